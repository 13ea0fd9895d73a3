"""Commands of operators, by the calls of `Riverrun`."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from riverrun.errors import ApprovalNeededError, ArchiveError, RangeError, ReleaseError
from riverrun.hosting.gated import HeldState
from riverrun.hosting.release import BEGUN, SWITCHING, ReleaseStep
from riverrun.project.archives import Archives
from riverrun.releases.chain import Through
from tests.histories.history import WrongError
from tests.histories.versions import COUNTS, INPUT, VERSIONS, WINDOW_MS, WINDOWS

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from riverrun.project.app import App
    from riverrun.project.release import AppRelease
    from riverrun.testing import Cluster

    Command = Callable[["Operator"], object]

_THROUGH = [Through.START, Through.REPROCESS, Through.AWAIT, Through.GATE, Through.CUT]


@dataclass
class Judge:
    """The strictness of the expectations, which operators correct."""

    is_strict: bool = False


JUDGE = Judge()


def quality() -> object:
    """Return expectations: one of a person's decision, and one that is too strict at times."""
    import great_expectations.expectations as gxe  # noqa: PLC0415 - takes seconds

    from riverrun.quality import Expectations  # noqa: PLC0415 - as above

    found = [gxe.ExpectColumnValuesToNotBeInSet(column="_key", value_set=["e"], severity="warning")]
    if JUDGE.is_strict:
        found.append(gxe.ExpectColumnValuesToNotBeInSet(column="_key", value_set=["d"], severity="critical"))
    return {COUNTS: Expectations(table=found)}


@dataclass
class Operator:
    """A person or a schedule with commands, in a process.

    Args:
        began_ms: The time before which nothing has happened.
    """

    app: App
    random: Random
    cluster: Cluster
    began_ms: int

    def candidate(self) -> str:
        """Return the version that is being released, mostly, or another one that is not live."""
        status = self.app.release().status
        if status.step in BEGUN and status.candidate is not None and self.is_likely(0.9):
            return status.candidate
        return self.random.choice([each for each in VERSIONS if each != status.live])

    def is_likely(self, share: float) -> bool:
        return self.random.random() < share

    def think(self) -> None:
        self.cluster.advance(timedelta(seconds=self.random.choice([0.01, 0.01, 1, 5, 60])))

    def all_times(self) -> tuple[str, str]:
        """Return the interval of all windows but the last ones, which may still change."""
        times = self.began_ms - 10 * WINDOW_MS, self.cluster.now_ms - 6 * WINDOW_MS
        first, last = (datetime.fromtimestamp(ms / 1000, UTC).isoformat() for ms in times)
        return first, last


def take_chain(operator: Operator) -> None:
    """Take the steps of a release in a row, and approve what needs it."""
    release, last = operator.app.release(operator.candidate()), operator.random.choice([*_THROUGH, Through.CUT])
    try:
        release.take_through(last, carry=operator.is_likely(0.2))
    except ApprovalNeededError:
        approve(release)
        release.take_through(last)


def take_steps(operator: Operator) -> None:
    """Take one step after the other, with a look at each result."""
    release = operator.app.release(operator.candidate())
    if release.status.step not in SWITCHING:
        for step in (release.start, release.reprocess, release.gate):
            step()
            operator.think()
        approve(release)
    release.cut()


def prepare(operator: Operator) -> None:
    """Take the steps of a release up to its cut."""
    release = operator.app.release(operator.candidate())
    release.take_through(Through.GATE)
    approve(release)


def take_next(operator: Operator) -> None:
    """Take the step that comes next, as the status says."""
    status = operator.app.release().status
    if status.step is ReleaseStep.LIVE and operator.is_likely(0.6):
        operator.app.release().rollback()
    elif status.step in SWITCHING:
        getattr(operator.app.release(), SWITCHING[status.step].name)()
    elif status.step not in BEGUN:
        operator.app.release(operator.candidate()).start(carry=operator.is_likely(0.2))
    elif status.step is ReleaseStep.PLANNED:
        operator.app.release().reprocess()
    elif status.step is ReleaseStep.REPROCESSED:
        operator.app.release().gate()
    else:
        approve(operator.app.release())
        operator.app.release().cut()


def approve(release: AppRelease) -> None:
    """Approve the warnings of the last gate."""
    verdict = release.status.verdict
    if verdict is not None and verdict.needs_approval:
        release.approve(verdict.id)


def cut(operator: Operator) -> None:
    operator.app.release().cut()


def gate(operator: Operator) -> None:
    operator.app.release().gate()


def roll_back(operator: Operator) -> None:
    operator.app.release().rollback()


def abort(operator: Operator) -> None:
    operator.app.release().abort()


def retire(operator: Operator) -> None:
    operator.app.release().retire()


def repair(operator: Operator) -> None:
    """Recompute the windows of all times."""
    with_approval(
        lambda approved: operator.app.release().repair(*operator.all_times(), topics=[WINDOWS], approve=approved)
    )


def backfill(operator: Operator) -> None:
    """Recompute all tables from the beginning."""

    def run(approved: str) -> None:
        operator.app.runs.backfill(*operator.all_times(), from_beginning=True, approve=approved).run()

    with_approval(run)


def with_approval(command: Callable[[str], object]) -> None:
    """Give a command, and again with an approval of the warnings that it names."""
    try:
        command("")
    except ApprovalNeededError as error:
        words = str(error.hint).split("--approve ")
        command(words[1].split()[0].strip(".`") if len(words) > 1 else "")


def run(operator: Operator) -> None:
    operator.app.run()


def archive(operator: Operator) -> None:
    """Archive the input; perhaps join small files of the archive, or drop those that no manifest lists."""
    archives = Archives(operator.cluster.project().cluster, operator.app.config.streams.archive_url)
    try:
        archives.write([INPUT])
        if operator.is_likely(0.5):
            archives.compact(INPUT)
        if operator.is_likely(0.2):
            archives.drop_leftovers(INPUT, hours=0)
    except ArchiveError as error:
        # One at a time may write. Nothing else may happen to an archive.
        if "Another archiver" not in error.message:
            raise WrongError(error.message) from error


def decide_held(operator: Operator) -> None:
    """Decide about a run that is held back."""
    runs = operator.app.runs.held
    held = runs.status()
    if held is None:
        return
    if held.state is HeldState.HELD and operator.is_likely(0.7):
        verdict = runs.judge()
        runs.publish(verdict.id if verdict.needs_approval else "")
    elif held.state is HeldState.PUBLISHING:
        runs.publish()
    else:
        runs.discard()


def look(operator: Operator) -> None:
    """Look at everything, also at what steps would do, and change nothing."""
    release = operator.app.release()
    before = release.status
    operator.app.release(operator.candidate()).plan()
    operator.app.lag()
    operator.app.runs.bounded().plan()
    release.releaser.log()
    if before.step in {ReleaseStep.REPROCESSED, ReleaseStep.GATED}:
        release.releaser.diff(10)
    for step in ("start", "reprocess", "gate", "cut", "rollback", "retire", "abort"):
        with suppress(ReleaseError, RangeError):
            release.releaser.check(step, operator.candidate() if step in {"start", "retire"} else "")
