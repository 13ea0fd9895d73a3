"""Takes several steps of a release in a row, and describes a step in dry runs.

Each step begins where the previous one ended; a person has to approve where required.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from riverrun.errors import ApprovalNeededError
from riverrun.hosting.release import Step

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from riverrun.hosting.release import Release
    from riverrun.releases.releaser import Releaser

_WOULD: Mapping[str, str] = {
    "start": "begin the release of {argument}; the last release can no longer be rolled back",
    "reprocess": "compute {candidate} up to where {live} stands, into staging topics",
    "gate": "judge {candidate} where it and {live} have processed the same offsets; nothing public changes",
    "approve": "approve the warnings of verdict {argument}",
    "cut": "make {candidate} live in the place of {live}, correct the public tables by what differs,"
    " and publish the logs that only {candidate} writes",
    "rollback": "make {previous} live again in the place of {live}, correct the public tables by what differs,"
    " and publish the logs that only {previous} writes",
    "abort": "give up the release of {candidate}, and delete what it has computed: staging and internal topics, offsets, state",
    "retire": "delete what {retired} has computed: staging and internal topics, offsets, state; there is no way back to it",
    "restore": "note that {argument} is live",
}


def rehearsed(step: str, release: Release, argument: str = "") -> str:
    """Describe what a step would do to a release that is at a step where it may be taken.

    `argument` is the version or the verdict that the step is about.
    """
    names = {"live": release.live, "candidate": release.candidate, "previous": release.previous, "argument": argument}
    names["retired"] = argument or (release.candidate if release.step.value == "rolled-back" else release.previous)
    return f"{release.app}: this would {_WOULD[step].format(**names)}"


_LOOKS_PER_LINE = 10


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

    Steps that are done, and a verdict, are kept as long as the code of both versions is the code that they are about.
    """
    done = releaser.resumed(candidate)
    if done is None or last is Through.START:
        release = releaser.start(candidate, carry=carry)
        tell("\n".join([f"start: {candidate} will replace {release.live}", *release.lost_records]))
    for step in _left(done, last):
        if step is Through.REPROCESS:
            tell(f"reprocess: {releaser.reprocess().range} is processed")
        elif step is Through.AWAIT:
            await_workers(releaser, tell)
        elif step is Through.GATE:
            _require_no_open_approval(releaser.gate(), tell)
        else:
            cut = releaser.cut()
            tell(f"cut: {cut.live} is live, {cut.corrections} corrections were published")
    return releaser.status()


def _left(done: Step | None, last: Through) -> list[Through]:
    """Return the steps to take after those of a release that has reached a step; the last one is taken in any case."""
    steps = list(Through)[1 : list(Through).index(last) + 1]
    if done in {Step.CUTTING, Step.LIVE}:
        return steps[-1:]
    if done is Step.GATED:
        return [step for step in steps if step is Through.CUT] or steps[-1:]
    if done is Step.REPROCESSED:
        return [step for step in steps if step is not Through.REPROCESS] or steps[-1:]
    return steps


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


def _require_no_open_approval(release: Release, tell: Callable[[str], None]) -> None:
    verdict = release.verdict
    if verdict is None:
        return
    tell(f"gate: {verdict}")
    if verdict.needs_approval:
        message = f"{release.app}: the gate has warnings without an approval: {', '.join(verdict.warnings)}"
        hint = (
            f"Look at them, then: riverrun release approve {release.app} --verdict {verdict.id}, "
            f"and riverrun release cut {release.app}"
        )
        raise ApprovalNeededError(message, hint=hint)
