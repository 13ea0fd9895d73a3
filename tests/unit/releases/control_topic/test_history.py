"""The history of releases: each write adds a record with its user and change, and none is overwritten."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

import riverrun
from riverrun.config import AppConfig
from riverrun.errors import (
    ReleaseError,
    StreamsError,
    TaskMigratedError,
    UnknownOutcomeError,
    VersionConflictError,
)
from riverrun.hosting import control_topic
from riverrun.hosting.control_topic import ReleaseRegistry, known_release
from riverrun.hosting.release import Release, ReleaseStep
from riverrun.runtime.barrier import Barrier
from tests.unit.releases.control_topic.notes import MemoryNotes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


class SteppingClock:
    """Shows given times, one after the other."""

    def __init__(self, *times: int) -> None:
        self.times = iter(times)

    def now_ms(self) -> int:
        return next(self.times)


def registry(notes: MemoryNotes, by: str = "ann@desk", *times: int) -> ReleaseRegistry:
    return ReleaseRegistry(notes, by, clock=SteppingClock(*(times or range(1, 100))))


def test_each_write_of_a_release_adds_a_record_of_who_changed_what_and_when() -> None:
    notes = MemoryNotes()
    planned = registry(notes, "ann@desk", 1000).write(
        Release("clicks", "v1").to(ReleaseStep.PLANNED, candidate="v2", digests={"v2": "abc"})
    )
    registry(notes, "airflow:release/manual_1", 2000).write(planned.to(ReleaseStep.REPROCESSED, cut="in-0@7"))
    first, second = registry(notes).history("clicks")
    assert (first.by, first.at_ms, first.before, first.step) == ("ann@desk", 1000, "none", "planned")
    assert (first.live, first.candidate, first.digests, first.revision) == ("v1", "v2", {"v2": "abc"}, 1)
    assert (second.by, second.before, second.step) == ("airflow:release/manual_1", "planned", "reprocessed")
    assert (second.cut, second.changed, second.riverrun) == ("in-0@7", ("step", "cut"), riverrun.__version__)
    assert "planned -> reprocessed: v1 is live, v2 is the candidate, at in-0@7" in str(second)
    last = registry(notes).read("clicks", "v1")
    assert (last.changed_by, last.changed_ms) == ("airflow:release/manual_1", 2000)


def test_the_order_of_the_history_is_that_of_revisions_whatever_clocks_show() -> None:
    notes, times = MemoryNotes(), [900, 20, 500, 10, 400, 1, 7, 6, 5, 4, 3]
    release = Release("clicks", "v1")
    for time in times:
        release = registry(notes, "ann", time).write(replace(release, corrections=release.corrections + 1))
    found = registry(notes).history("clicks")
    assert [each.revision for each in found] == list(range(1, 12)), "10 comes after 9, not after 1"
    assert [each.at_ms for each in found] == times


def test_a_write_that_is_refused_leaves_no_trace_in_the_history() -> None:
    notes = MemoryNotes()
    seen = registry(notes).write(Release("clicks", "v1"))
    registry(notes, "bob").write(seen.to(ReleaseStep.PLANNED, candidate="v2"))
    before = notes.read()
    with pytest.raises(VersionConflictError, match="revision 2 was written meanwhile, 1 expected"):
        registry(notes, "eve").write(seen.to(ReleaseStep.PLANNED, candidate="v3"))
    assert notes.read() == before


def test_a_write_whose_outcome_is_unknown_is_found_and_noted_once() -> None:
    notes = MemoryNotes(outcome_unknown=True)
    written = registry(notes).write(Release("clicks", "v1"))
    assert registry(notes).read("clicks", "v1") == written
    assert len(registry(notes).history("clicks")) == 1


def test_a_history_goes_on_after_the_applications_record_was_lost() -> None:
    notes = MemoryNotes()
    planned = registry(notes).write(Release("clicks", "v1").to(ReleaseStep.PLANNED, candidate="v2"))
    registry(notes).write(planned.to(ReleaseStep.ABORTED))
    kept = {name: value for name, value in notes.read().items() if name != "clicks"}
    del notes.values["clicks"]
    with pytest.raises(
        ReleaseError, match=r"has no record of clicks, although it was released: 2 .*planned -> aborted"
    ):
        known_release(registry(notes), AppConfig("clicks", "none:none"), None)  # type: ignore[arg-type] # asks no broker
    assert registry(notes).write(Release("clicks", "v1")).revision == 3
    assert kept.items() <= notes.read().items(), "nothing is overwritten"


def test_applications_whose_names_begin_alike_have_histories_of_their_own() -> None:
    notes = MemoryNotes()
    for app in ("clicks", "clicks-2", "click"):
        registry(notes).write(Release(app, "v1"))
    assert [each.app for each in registry(notes).history("clicks")] == ["clicks"]
    registry(notes).forget("clicks")
    assert registry(notes).history("clicks") == []
    assert {"click", "click/1", "clicks-2", "clicks-2/1"} == notes.read().keys()


def test_a_record_of_a_newer_version_is_named_when_it_cannot_be_read() -> None:
    notes = MemoryNotes()
    registry(notes).write(Release("clicks", "v1"))
    notes.values["clicks/1"] = b"\x00"
    with pytest.raises(ReleaseError, match="record of clicks/1 that cannot be read"):
        registry(notes).history("clicks")


def test_a_barrier_of_a_dead_coordinator_ends_but_not_within_a_switch() -> None:
    gated = Release("app", "v1", ReleaseStep.GATED, "v2", barrier=Barrier("m", 1, {"v1": {"in-0": 5}}))
    assert gated.to(ReleaseStep.ABORTED).barrier is None
    assert gated.to(ReleaseStep.CUTTING).barrier == gated.barrier
    assert gated.to(ReleaseStep.CUTTING).to(ReleaseStep.LIVE).barrier is None


def test_lines_of_one_step_say_what_changed_and_what_became_of_a_candidate() -> None:
    notes = MemoryNotes()
    release = registry(notes).write(Release("clicks", "v1").to(ReleaseStep.PLANNED, candidate="v2"))
    release = registry(notes).write(replace(release, corrections=5))
    release = registry(notes).write(replace(release, repaired="payments at in-0@7"))
    registry(notes).write(release.to(ReleaseStep.ABORTED))
    lines = [str(each).partition("Z")[2] or str(each) for each in registry(notes).history("clicks")]
    assert len(set(lines)) == len(lines)
    assert "corrections changed" in lines[1]
    assert "v2 was given up" in lines[-1]


FATES = ("fenced", "refused after the commit", "unheard", "lost", "overtaken")
"""What may happen to an attempt to write: another writer takes the lock before or after the commit, the answer to a commit
that took place or did not is lost, or another writer takes the lock and writes."""


class FatefulNotes(MemoryNotes):
    """Lets given things happen to attempts to write, one after the other; further attempts succeed."""

    def __init__(self, fates: list[str]) -> None:
        super().__init__()
        self.fates = fates
        self.attempts = 0

    def write(self, lock: str, values: Mapping[str, bytes | None], check: Callable[[], None]) -> None:
        fate = self.fates[self.attempts] if self.attempts < len(self.fates) else ""
        self.attempts += 1
        if fate == "overtaken":
            other = MemoryNotes()
            other.values = self.values
            registry(other, "eve").write(registry(other).read("clicks", "v1"))
            self.values = other.values
        if fate in {"fenced", "lost", "overtaken"}:
            check_quietly(check)
        else:
            super().write(lock, values, check)
        if fate in {"fenced", "refused after the commit", "overtaken"}:
            raise TaskMigratedError(fate)
        if fate:
            raise UnknownOutcomeError(fate)


@pytest.fixture(autouse=True, scope="module")
def at_once() -> Iterator[None]:
    """Attempts to write follow each other without a pause."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(control_topic, "_APART_SECONDS", 0.0)
        yield


def check_quietly(check: Callable[[], None]) -> None:
    """A writer that loses the lock may have read before."""
    with suppress(VersionConflictError):
        check()


@given(st.lists(st.sampled_from(FATES), max_size=control_topic._ATTEMPTS + 2))
def test_a_write_succeeds_once_or_fails_with_nothing_written(fates: list[str]) -> None:
    notes = FatefulNotes(fates)
    seen = registry(notes).read("clicks", "v1")
    try:
        written = registry(notes, "bob").write(seen.to(ReleaseStep.PLANNED, candidate="v2"))
    except StreamsError as error:
        assert all(change.by != "bob" for change in registry(notes).history("clicks"))
        is_overtaken = any(change.by == "eve" for change in registry(notes).history("clicks"))
        assert is_overtaken or notes.attempts == control_topic._ATTEMPTS
        assert not is_overtaken or type(error) is VersionConflictError  # noqa: PT017 - of either outcome
    else:
        assert registry(notes).read("clicks", "v1") == written
        assert [change.by for change in registry(notes).history("clicks")].count("bob") == 1


@given(st.lists(st.tuples(st.integers(1, 500), st.integers(0, 500)), max_size=5))
def test_a_pause_counts_all_attempts_of_a_switch_and_says_since_when(attempts: list[tuple[int, int]]) -> None:
    """Attempts pause for a time and are given up, by their coordinator or by a worker; publication goes on in between."""
    notes, now = MemoryNotes(), 1_000
    barrier = Barrier("m", 1, {"v1": {"in-0": 5}})

    def write(release: Release, by: str = "ann") -> Release:
        return registry(notes, by, now).write(release)

    release = write(Release("app", "v1", ReleaseStep.GATED, "v2", verdict=None))
    for held, between in attempts:
        release = write(replace(release, barrier=barrier), "bob")
        assert (pause_of(release).since_ms, pause_of(release).by) == (now, "bob")
        assert "publication has been paused since 1970-01-01 00:00:0" in str(release)
        now += held
        release = write(replace(release, barrier=replace(barrier, phase=2)), "eve")
        assert pause_of(release).by == "bob"
        release = write(replace(release, barrier=None))
        assert "publication has been paused" not in str(release)
        now += between
    release = write(replace(release, barrier=barrier))
    now += 70
    release = write(release.to(ReleaseStep.CUTTING))
    now += 7
    expected = sum(held for held, _ in attempts) + 77
    assert registry(notes, "ann", now).paused_ms(release) == expected
    done = write(replace(release.to(ReleaseStep.LIVE, live="v2"), pause_ms=expected))
    assert (done.failed_pause_ms, done.barrier, done.pause_ms) == (0, None, expected)


def pause_of(release: Release) -> Barrier:
    assert release.barrier is not None
    return release.barrier
