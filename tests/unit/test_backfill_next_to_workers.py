"""A backfill up to now, next to workers of the application: they process what is left of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from riverrun.project import unprocessed
from riverrun.project.backfill import Backfill
from riverrun.records import OffsetRange, TopicPartition
from riverrun.releases.scope import scope_of
from riverrun.spark.ranges import RunRange

SCOPE = scope_of("2026-01-01", "2026-01-02")


TP, IDLE = TopicPartition("in", 0), TopicPartition("in", 1)
END = 9


@dataclass
class Workers:
    """The group's members and the committed offset at each poll; the last of both stay."""

    members: list[int]
    committed: list[int | None]
    ran: list[int] = field(default_factory=list)
    position: int = 0

    def rest(self) -> Any:
        progress = SimpleNamespace(committed=self.poll, close=lambda: None)
        start = self.position
        return SimpleNamespace(
            range=RunRange({TP: OffsetRange(start, END), IDLE: OffsetRange(3, 3)}),
            application=SimpleNamespace(id="app-v1"),
            admin=SimpleNamespace(group=lambda _name: self.group(), progress_of=lambda _group: progress),
            run=lambda: self.ran.append(END - start),
        )

    def group(self) -> Any:
        return SimpleNamespace(members=("w",) * (self.members.pop(0) if len(self.members) > 1 else self.members[0]))

    def poll(self, tps: Any) -> dict[TopicPartition, tuple[int, str]]:
        assert list(tps) == [TP], "partitions without records need no progress"
        at = self.committed.pop(0) if len(self.committed) > 1 else self.committed[0]
        self.position = max(self.position, at or 0)
        return {} if at is None else {TP: (at, "")}


@pytest.mark.parametrize(
    ("members", "committed", "ran"),
    [
        ([1], [0, 4, 7, 9], []),
        ([1], [None, None, 12], []),
        ([1, 1, 1, 0], [2, 5], [4]),
        ([1, 1, 0], [None], [9]),
        ([0], [0], [9]),
        ([2], [0, 0, 0, 8, 8, 9], []),
    ],
)
def test_what_workers_process_is_awaited_and_a_run_does_the_rest(
    members: list[int], committed: list[int | None], ran: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert done(Workers(members, committed), 300_000, monkeypatch) == ran


@pytest.mark.parametrize(("committed", "ran"), [([None], [9]), ([0], [9]), ([1, 2], [7])])
def test_workers_that_process_nothing_are_not_awaited_for_ever(
    committed: list[int | None], ran: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert done(Workers([1], committed), 50, monkeypatch) == ran


@pytest.mark.parametrize(
    ("members", "committed", "ran"),
    [
        ([1], [0, 4, 9], []),
        ([1, 1, 0], [4], [5]),
        ([0], [0], [9]),
        ([1], [9, 9], []),
    ],
)
def test_repartition_topics_are_left_to_workers_and_a_run_does_the_rest(
    members: list[int], committed: list[int | None], ran: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert drained(Workers(members, committed), 300_000, monkeypatch) == ran


def test_workers_that_leave_repartition_topics_alone_are_reported_by_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drained(Workers([1], [4]), 50, monkeypatch) == [5], "a run refuses to begin next to workers"


def drained(workers: Workers, timeout_ms: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    monkeypatch.setattr(unprocessed, "_POLL_SECONDS", 0)

    def lags(_connected: Any) -> Any:
        return [SimpleNamespace(tp=TP, is_internal=True, lag=END - workers.position)]

    monkeypatch.setattr(unprocessed, "input_lags", lags)
    admin = workers.rest().admin
    admin.stable_end_offsets = lambda tps: dict.fromkeys(tps, END)
    streams = SimpleNamespace(task_timeout_ms=timeout_ms, commit_interval_ms=1)
    application = SimpleNamespace(config=SimpleNamespace(streams=streams))
    connected: Any = SimpleNamespace(application=application, admin=admin, id="app-v1")
    unprocessed.drain(connected, workers.rest)
    return workers.ran


def done(workers: Workers, timeout_ms: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    monkeypatch.setattr(unprocessed, "_POLL_SECONDS", 0)
    monkeypatch.setattr(Backfill, "_planned", lambda _self: (None, None))
    config = SimpleNamespace(streams=SimpleNamespace(task_timeout_ms=timeout_ms, commit_interval_ms=1))
    chosen: Any = SimpleNamespace(name="app", config=config)
    nothing: Any = None
    Backfill(chosen, nothing, SCOPE, workers.rest).run()
    return workers.ran
