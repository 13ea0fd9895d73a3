"""Takes several steps of a release in a row. Each begins where the one before ended; a person is asked where required."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from riverrun.errors import ApprovalNeededError

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.releases.control_topic.registry import Release
    from riverrun.releases.steps.releaser import Releaser


_LOOKS_PER_LINE = 10


class Through(Enum):
    """The last step of a chain."""

    START = "start"
    REPROCESS = "reprocess"
    AWAIT = "await"
    GATE = "gate"
    CUT = "cut"


def take_through(releaser: Releaser, candidate: str, last: Through, tell: Callable[[str], None]) -> Release:
    """Take the steps of a release, from its start through a given step.

    Args:
        releaser: Takes the steps.
        candidate: The version that is to go live.
        last: The last step to take.
        tell: Called with a message after each step.

    Returns:
        The state of the release after the last step.

    Raises:
        ApprovalNeededError: If the gate has warnings. A person has to approve them, then cut.
        StreamsError: If a step fails; those before it are done.
    """
    release = releaser.start(candidate)
    tell(f"start: {candidate} is to follow {release.live}")
    for step in list(Through)[1 : list(Through).index(last) + 1]:
        if step is Through.REPROCESS:
            tell(f"reprocess: {releaser.reprocess().range} is processed")
        elif step is Through.AWAIT:
            await_workers(releaser, tell)
        elif step is Through.GATE:
            _require_approval_of_nobody(releaser.gate(), tell)
        else:
            done = releaser.cut()
            tell(f"cut: {done.live} is live, {done.corrections} corrections were published")
    return releaser.status()


def await_workers(releaser: Releaser, tell: Callable[[str], None]) -> None:
    """Wait for workers of the candidate to catch up.

    If none run, return at once: the candidate stays at its position, and the gate processes the rest.

    Args:
        releaser: Knows the candidate.
        tell: Called now and then with the workers' progress.

    Raises:
        ReleaseError: If nothing is being released.
        BrokerError: If brokers do not answer.
    """
    if not releaser.is_followed():
        tell("await: no workers of the candidate run")
        return
    for look, ready in enumerate(releaser.wait_ready()):
        if ready.is_ready or look % _LOOKS_PER_LINE == 0:
            tell(f"await: {ready}")


def _require_approval_of_nobody(release: Release, tell: Callable[[str], None]) -> None:
    verdict = release.verdict
    if verdict is None:
        return
    tell(f"gate: {verdict}")
    if verdict.needs_approval:
        message = f"{release.app}: the gate has warnings that nobody has approved: {', '.join(verdict.warnings)}"
        hint = (
            f"Look at them, then: riverrun release approve {release.app} --verdict {verdict.id}, "
            f"and riverrun release cut {release.app}"
        )
        raise ApprovalNeededError(message, hint=hint)
