"""Two chains of one release, of which one meets what the other has done."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from riverrun.errors import ReleaseError, UnderWayError, VersionConflictError
from riverrun.hosting.release import BEGUN, Release, ReleaseChange, ReleaseStep
from riverrun.releases import chain
from riverrun.releases.chain import Through, take_through

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GATED = Release("clicks", "v1", candidate="v2", step=ReleaseStep.GATED, revision=7, changed_by="ann")
CUTTING = replace(GATED, step=ReleaseStep.CUTTING, revision=8)
LIVE = replace(GATED, live="v2", step=ReleaseStep.LIVE, revision=9)


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1_000_000))
    monkeypatch.setattr(chain, "time", SimpleNamespace(sleep=lambda _s: None, monotonic=lambda: float(next(clock))))


class Meeting:
    """A releaser whose cut fails while another process, or an earlier step of the cut, takes the release on."""

    def __init__(self, error: Exception, meanwhile: Iterator[Release], *own: Release) -> None:
        self._error, self._meanwhile, self._own = error, meanwhile, own
        self._now, self._is_met = GATED, False
        self._log = [GATED]
        self.cuts = self.starts = 0

    def status(self) -> Release:
        if self._is_met:
            self._now = next(self._meanwhile, self._now)
            self._log.append(self._now)
        return self._now

    def log(self) -> list[ReleaseChange]:
        return [ReleaseChange.between(None, each) for each in self._log]

    def resumed(self, _candidate: str) -> ReleaseStep | None:
        return (
            None
            if self._now.step in {ReleaseStep.ROLLING_BACK, ReleaseStep.ROLLED_BACK, ReleaseStep.ABORTED}
            else self._now.step
        )

    def has_written(self, release: Release) -> bool:
        return release in self._own

    def start(self, _candidate: str, *, carry: bool) -> Release:
        assert not carry
        self.starts += 1
        return self._now

    def cut(self) -> Release:
        self.cuts += 1
        if self._now.step is ReleaseStep.LIVE:
            return self._now
        self._is_met = True
        raise self._error


def through(releaser: Any, tell: Callable[[str], None]) -> Release:
    return take_through(releaser, "v2", Through.CUT, tell)


@pytest.mark.parametrize("error", [VersionConflictError("revision 8 was written"), UnderWayError("v1 is processed")])
def test_a_chain_waits_for_the_switch_of_another_one(error: Exception) -> None:
    told: list[str] = []
    releaser = Meeting(error, iter([*[GATED] * isinstance(error, UnderWayError), *[CUTTING] * 9, LIVE]))
    assert through(releaser, told.append) == LIVE
    assert releaser.cuts == 2
    assert "clicks: waiting for the switch of ann" in told
    assert told[-1] == "cut: v2 is live, 0 corrections were published"


def test_a_chain_does_not_wait_for_ever_for_a_switch_that_shows_no_sign() -> None:
    releaser = Meeting(VersionConflictError("written"), iter([CUTTING]))
    with pytest.raises(VersionConflictError):
        through(releaser, lambda _line: None)
    assert releaser.cuts == 1


def test_a_step_that_something_else_is_in_the_way_of_ends_soon() -> None:
    with pytest.raises(UnderWayError, match="is processed"):
        through(Meeting(UnderWayError("v1 is processed"), iter([GATED])), lambda _line: None)


DECISIONS = {
    "a rollback under way": [replace(LIVE, step=ReleaseStep.ROLLING_BACK, revision=10)],
    "a rollback after the switch": [
        CUTTING,
        CUTTING,
        replace(LIVE, step=ReleaseStep.ROLLED_BACK, live="v1", revision=11),
    ],
    "an abort after a switch that failed": [CUTTING, replace(GATED, step=ReleaseStep.ABORTED, revision=10)],
    "another release after the switch": [CUTTING, replace(LIVE, candidate="v3", step=ReleaseStep.PLANNED, revision=10)],
}


@pytest.mark.parametrize("error", [VersionConflictError("revision 8 was written"), UnderWayError("v1 is processed")])
@pytest.mark.parametrize("decided", DECISIONS.values(), ids=DECISIONS)
def test_a_chain_starts_nothing_again_that_another_process_has_ended(error: Exception, decided: list[Release]) -> None:
    releaser = Meeting(error, iter(decided))
    with pytest.raises(ReleaseError, match="another process has moved v2 meanwhile"):
        through(releaser, lambda _line: None)
    assert (releaser.cuts, releaser.starts) == (1, 0)


def test_what_a_chain_has_written_is_no_sign_of_another_one() -> None:
    # A cut writes the release, and finds a run of the live version after that.
    own = [replace(GATED, revision=revision) for revision in range(8, 11)]
    told: list[str] = []
    releaser = Meeting(UnderWayError("v1 is processed"), iter(own), *own)
    with pytest.raises(UnderWayError, match="is processed"):
        through(releaser, told.append)
    assert (releaser.cuts, told) == (1, [])


class Starting:
    """A releaser whose first start, or first run of the candidate, fails while others write the release."""

    def __init__(self, first: Release, *, fails_at: str, error: Exception, meanwhile: Release) -> None:
        self._log, self._fails_at, self._error, self._meanwhile = [first], fails_at, error, meanwhile
        self.starts = 0

    def status(self) -> Release:
        return self._log[-1]

    def log(self) -> list[ReleaseChange]:
        return [ReleaseChange.between(None, each) for each in self._log]

    def has_written(self, _release: Release) -> bool:
        return False

    def is_computed(self, _candidate: str) -> bool:
        return False

    def resumed(self, _candidate: str) -> ReleaseStep | None:
        return self.status().step if self.status().step in BEGUN else None

    def start(self, candidate: str, *, carry: bool) -> Release:
        assert not carry
        self.starts += 1
        self._fail_once("before start")
        self._write(replace(self.status(), candidate=candidate, step=ReleaseStep.PLANNED))
        self._fail_once("within start")
        return self.status()

    def reprocess(self) -> Any:
        self._fail_once("reprocess")
        self._write(replace(self.status(), step=ReleaseStep.REPROCESSED))
        return SimpleNamespace(range="clicks-0@5")

    def _fail_once(self, place: str) -> None:
        if place == self._fails_at:
            self._fails_at = ""
            self._write(self._meanwhile)
            raise self._error

    def _write(self, release: Release) -> None:
        self._log.append(replace(release, revision=self._log[-1].revision + 1))


FIRST = {
    "a rollback": replace(GATED, step=ReleaseStep.ROLLED_BACK),
    "an abort": replace(GATED, step=ReleaseStep.ABORTED),
    "no release": Release("clicks", "v1", revision=3),
    "another version's release": replace(LIVE, candidate="v1", live="v1"),
}
CONFLICTS = [VersionConflictError("revision 8 was written"), UnderWayError("v1 is processed")]


@pytest.mark.parametrize("error", CONFLICTS)
@pytest.mark.parametrize("first", FIRST.values(), ids=FIRST)
def test_a_chain_starts_though_a_worker_notes_its_beginning(error: Exception, first: Release) -> None:
    noted = replace(first, begins={"v1": {"clicks-0": 5}})
    releaser: Any = Starting(first, fails_at="before start", error=error, meanwhile=noted)
    done = take_through(releaser, "v2", Through.REPROCESS, lambda _line: None)
    assert (done.step, done.candidate, releaser.starts) == (ReleaseStep.REPROCESSED, "v2", 2)


@pytest.mark.parametrize("error", CONFLICTS)
@pytest.mark.parametrize("fails_at", ["within start", "reprocess"])
@pytest.mark.parametrize("first", FIRST.values(), ids=FIRST)
def test_a_chain_ends_once_another_process_aborts_what_it_has_begun(
    error: Exception, fails_at: str, first: Release
) -> None:
    releaser: Any = Starting(first, fails_at=fails_at, error=error, meanwhile=replace(GATED, step=ReleaseStep.ABORTED))
    with pytest.raises(ReleaseError, match="another process has moved v2 meanwhile"):
        take_through(releaser, "v2", Through.REPROCESS, lambda _line: None)
    assert releaser.starts == 1
