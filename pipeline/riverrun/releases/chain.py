"""Takes several steps of a release in a row: each begins where the previous one ended, and a person approves where required."""

from __future__ import annotations

import time
from enum import Enum
from typing import TYPE_CHECKING

from riverrun.errors import ApprovalNeededError, BrokerError, ReleaseError, UnderWayError, VersionConflictError
from riverrun.hosting.release import ACTIONS, APPROVE, CUT, ReleaseStep

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.hosting.release import Release
    from riverrun.releases.releaser import Releaser

_LOOKS_PER_LINE = 10
_ATTEMPTS = 5
_RUNS_LOOK_SECONDS = 1.0
_RUNS_LOOKS_PER_LINE = 60
_MOVES_SECONDS = 5.0
"""How long a step that another process is in the way of waits for a sign of another chain."""
_CUT_SECONDS = 32.0
"""How long the cut of another process may show no sign of life: two beats of `BEAT_SECONDS`, and a moment."""
_ENDED = frozenset({ReleaseStep.ROLLING_BACK, ReleaseStep.ROLLED_BACK, ReleaseStep.ABORTED})
"""Steps by which a person has decided against a candidate."""


class _ComputedError(Exception):
    """The candidate cannot be computed now, as another process may do it."""

    def __init__(self, cause: UnderWayError) -> None:
        super().__init__(cause.message)
        self.cause = cause


class Through(Enum):
    """The last step of a chain."""

    START = "start"
    REPROCESS = "reprocess"
    AWAIT = "await"
    GATE = "gate"
    CUT = "cut"


def take_through(
    releaser: Releaser, candidate: str, last: Through, tell: Callable[[str], None], *, carry: bool = False
) -> Release:
    """Take the steps of a release, from its start through `last`, and report each to `tell`. After a crash, it resumes.

    Steps that are done, and a verdict, are kept as long as the code of both versions is the code that they are about. If
    another process moves the release, or computes the candidate, the chain continues from there, and after its cut.
    An abort or a rollback there ends the chain.
    """
    first = releaser.status()
    for left in reversed(range(_ATTEMPTS)):
        before = releaser.status()
        try:
            return _taken_through(releaser, candidate, last, tell, carry=carry)
        except (VersionConflictError, UnderWayError) as error:
            # Two chains of one release would end each other otherwise. But of two switches the last one wins, and fences the
            # other: chains that continue there would take it from each other again and again.
            now = _moved(releaser, before) if isinstance(error, UnderWayError) else releaser.status()
            is_same = now is not None and now.candidate in {candidate, first.candidate}
            if not (left and is_same and _await_cut(releaser, tell)):
                raise
            _require_not_ended(releaser, candidate, first)
            tell(f"{error.message}: continuing from there")
        except _ComputedError as error:
            is_awaited = left > 0 and _await_run(releaser, candidate, error.cause.message, tell)
            # The run may have ended before the look, so the first attempt is repeated anyway.
            if not is_awaited and left < _ATTEMPTS - 1:
                raise error.cause from None
            _require_not_ended(releaser, candidate, first)
    raise AssertionError  # the last attempt returns or raises


def _taken_through(
    releaser: Releaser, candidate: str, last: Through, tell: Callable[[str], None], *, carry: bool
) -> Release:
    steps = list(Through)[: list(Through).index(last) + 1]
    first = {None: 0, ReleaseStep.PLANNED: 1, ReleaseStep.REPROCESSED: 2}.get(releaser.resumed(candidate), 4)
    # The last one is taken in any case.
    for step in steps[first:] or steps[-1:]:
        if step is Through.AWAIT:
            await_workers(releaser, tell)
            continue
        action = ACTIONS[step.value]
        try:
            found = action.take(releaser, candidate, carry=carry)
        except UnderWayError as error:
            if step is Through.REPROCESS:
                raise _ComputedError(error) from error
            raise
        lost = found.lost_records if step is Through.START else ()
        tell("\n".join([f"{action.name}: {action.says.format(found)}", *lost]))
        if step is Through.GATE:
            _require_no_open_approval(found)
    return releaser.status()


def _await_run(releaser: Releaser, candidate: str, message: str, tell: Callable[[str], None]) -> bool:
    """Wait while another process computes the candidate; return whether one did."""
    if not releaser.is_computed(candidate):
        return False
    tell(f"{message}: waiting for its end")
    looks = 0
    while _is_computed(releaser, candidate, tell):
        looks += 1
        if looks % _RUNS_LOOKS_PER_LINE == 0:
            tell(f"reprocess: waiting for {looks * _RUNS_LOOK_SECONDS:.0f} s")
        time.sleep(_RUNS_LOOK_SECONDS)
    # An abort meanwhile is a decision of a person, and a switch goes live by itself.
    if releaser.resumed(candidate) in {None, ReleaseStep.CUTTING}:
        raise _ended(releaser.status(), candidate)
    return True


def _require_not_ended(releaser: Releaser, candidate: str, first: Release) -> None:
    """Make sure that nobody has ended the release since a chain met it for the first time.

    A release that had ended by then may start again, even if others write its record: a worker notes where it begins.
    """
    now = releaser.status()
    if now.candidate == candidate and now.step not in _ENDED:
        return
    ended = {step.value for step in _ENDED}
    since = (each for each in releaser.log() if each.revision >= first.revision)
    if any(each.candidate == candidate and each.step not in ended for each in since):
        raise _ended(now, candidate)


def _ended(now: Release, candidate: str) -> ReleaseError:
    message = f"{now.app}: another process has moved {candidate} meanwhile: {now.progress}"
    return ReleaseError(message, hint=f"Look at it: riverrun release status {now.app}")


def _moved(releaser: Releaser, before: Release) -> Release | None:
    """Return the release if another process moves it; None if nothing happens."""
    deadline = time.monotonic() + _MOVES_SECONDS
    # A step that fails may have written the release itself, as those before it have.
    while (now := releaser.status()).revision == before.revision or releaser.has_written(now):
        if time.monotonic() > deadline:
            return None
        time.sleep(_RUNS_LOOK_SECONDS)
    return now


def _await_cut(releaser: Releaser, tell: Callable[[str], None]) -> bool:
    """Wait while another process cuts; return whether it has ended, and has not died."""
    looks, seen, deadline = 0, None, 0.0
    while (now := releaser.status()).step is ReleaseStep.CUTTING:
        if now != seen:
            seen, deadline = now, time.monotonic() + _CUT_SECONDS
        elif time.monotonic() > deadline:
            return False
        if looks % _RUNS_LOOKS_PER_LINE == 0:
            tell(f"{now.app}: waiting for the switch of {now.changed_by}")
        looks += 1
        time.sleep(_RUNS_LOOK_SECONDS)
    return True


def _is_computed(releaser: Releaser, candidate: str, tell: Callable[[str], None]) -> bool:
    try:
        return releaser.is_computed(candidate)
    except BrokerError as error:
        if not error.retriable:
            raise
        tell(f"{error.message}: trying again")
        return True


def await_workers(releaser: Releaser, tell: Callable[[str], None]) -> None:
    """Wait for workers of the candidate to catch up.

    If none run, return at once: the candidate stays at its position, and the gate processes the rest.
    """
    if not releaser.is_followed():
        tell("await: no workers of the candidate run")
        return
    for look, ready in enumerate(releaser.wait_ready()):
        if ready.is_ready or look % _LOOKS_PER_LINE == 0:
            tell(f"await: {ready}")


def _require_no_open_approval(release: Release) -> None:
    verdict = release.verdict
    if verdict is not None and verdict.needs_approval:
        message = f"{release.app}: the gate has warnings without an approval: {', '.join(verdict.warnings)}"
        hint = f"Look at them, then: {APPROVE.command(release.app, verdict.id)}, and {CUT.command(release.app)}"
        raise ApprovalNeededError(message, hint=hint)
