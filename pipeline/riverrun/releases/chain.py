"""Takes several steps of a release in a row: each begins where the previous one ended, and a person approves where required."""

from __future__ import annotations

import time
from enum import Enum
from typing import TYPE_CHECKING

from riverrun.errors import ApprovalNeededError, UnderWayError, VersionConflictError
from riverrun.hosting.release import ACTIONS, APPROVE, CUT, SWITCHING, Step

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.hosting.release import Release
    from riverrun.releases.releaser import Releaser

_LOOKS_PER_LINE = 10
_ATTEMPTS = 5
_RUNS_LOOK_SECONDS = 1.0


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
    another process moves the release, or computes the candidate, the chain continues from there.
    """
    for left in reversed(range(_ATTEMPTS)):
        try:
            return _taken_through(releaser, candidate, last, tell, carry=carry)
        except VersionConflictError as error:
            # Two chains of one release would end each other otherwise. But of two switches the last one wins, and fences the
            # other: chains that continue there would take it from each other again and again.
            now = releaser.status()
            if not left or now.candidate != candidate or now.step in SWITCHING:
                raise
            tell(f"{error.message}: continuing from there")
        except UnderWayError as error:
            # Another chain computes the candidate. Its run may have ended since, so the first attempt is repeated anyway.
            if left < _ATTEMPTS - 1 and not (left and releaser.is_computed(candidate)):
                raise
            tell(f"{error.message}: waiting for its end")
            while releaser.is_computed(candidate):
                time.sleep(_RUNS_LOOK_SECONDS)
    raise AssertionError  # the last attempt returns or raises


def _taken_through(
    releaser: Releaser, candidate: str, last: Through, tell: Callable[[str], None], *, carry: bool
) -> Release:
    steps = list(Through)[: list(Through).index(last) + 1]
    first = {None: 0, Step.PLANNED: 1, Step.REPROCESSED: 2}.get(releaser.resumed(candidate), 4)
    # The last one is taken in any case.
    for step in steps[first:] or steps[-1:]:
        if step is Through.AWAIT:
            await_workers(releaser, tell)
            continue
        action = ACTIONS[step.value]
        found = action.take(releaser, candidate, carry=carry)
        lost = found.lost_records if step is Through.START else ()
        tell("\n".join([f"{action.name}: {action.says.format(found)}", *lost]))
        if step is Through.GATE:
            _require_no_open_approval(found)
    return releaser.status()


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
