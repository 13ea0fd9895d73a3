"""Tasks delete processed records of internal topics from time to time, and nothing else waits for that."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from riverrun.errors import BrokerError
from riverrun.hosting.purge import Purge
from riverrun.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

TP = TopicPartition("app-words-repartition", 0)
CHANGELOG = TopicPartition("app-counts-changelog", 0)
INTERVAL_MS = 1000
HOUR_MS = 3_600_000


@dataclass
class FakeTask:
    """A task that has committed, and the time before which its store had forgotten all then."""

    processed: int = 0
    first_kept_ms: int | None = None

    @property
    def committed_offsets(self) -> dict[TopicPartition, int]:
        return {TP: self.processed, TopicPartition("in", 0): 100}

    @property
    def task(self) -> FakeTask:
        return self

    @property
    def forgotten(self) -> dict[TopicPartition, int]:
        return {} if self.first_kept_ms is None else {CHANGELOG: self.first_kept_ms}


@dataclass
class FakeAdmin:
    """Deletes when it is let, or fails."""

    fails: bool = False
    may_go_on: threading.Event = field(default_factory=threading.Event)
    deleted: list[dict[TopicPartition, int]] = field(default_factory=list)
    asked_ms: list[int] = field(default_factory=list)

    def offsets_for_time(self, tps: list[TopicPartition], timestamp_ms: int) -> dict[TopicPartition, int]:
        self.asked_ms.append(timestamp_ms)
        return dict.fromkeys(tps, timestamp_ms // HOUR_MS)

    def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        self.deleted.append(dict(before))
        assert self.may_go_on.wait(30)
        if self.fails:
            message = "brokers are away"
            raise BrokerError(message, retriable=True)


def purging(admin: Any) -> Purge:
    purge = Purge(admin, INTERVAL_MS)
    purge.run_if_due(0, [], [])
    return purge


def run_at(purge: Purge, now_ms: int, *tasks: Any) -> None:
    purge.run_if_due(now_ms, tasks, {TP.topic})


def wait(purge: Purge) -> None:
    assert purge._thread is not None
    purge._thread.join(30)


def test_what_is_committed_is_deleted_once_per_interval() -> None:
    admin = FakeAdmin()
    admin.may_go_on.set()
    purge = purging(admin)
    run_at(purge, INTERVAL_MS - 1, FakeTask(5))
    assert admin.deleted == []
    run_at(purge, INTERVAL_MS, FakeTask(5))
    wait(purge)
    run_at(purge, INTERVAL_MS + 1, FakeTask(6))
    run_at(purge, 2 * INTERVAL_MS, FakeTask(7))
    wait(purge)
    assert admin.deleted == [{TP: 5}, {TP: 7}]


def test_nothing_is_asked_of_brokers_where_nothing_was_processed() -> None:
    admin = FakeAdmin()
    admin.may_go_on.set()
    purge = purging(admin)
    run_at(purge, INTERVAL_MS, FakeTask(5))
    wait(purge)
    run_at(purge, 2 * INTERVAL_MS, FakeTask(5))
    assert admin.deleted == [{TP: 5}]


def test_the_next_time_waits_for_the_last_one_to_end() -> None:
    admin = FakeAdmin()
    purge = purging(admin)
    run_at(purge, INTERVAL_MS, FakeTask(5))
    run_at(purge, 2 * INTERVAL_MS, FakeTask(7))
    admin.may_go_on.set()
    wait(purge)
    assert admin.deleted == [{TP: 5}]


def test_what_failed_is_tried_again() -> None:
    admin = FakeAdmin(fails=True)
    admin.may_go_on.set()
    purge = purging(admin)
    run_at(purge, INTERVAL_MS, FakeTask(5))
    wait(purge)
    run_at(purge, 2 * INTERVAL_MS, FakeTask(5))
    wait(purge)
    assert admin.deleted == [{TP: 5}, {TP: 5}]


def test_windows_a_day_old_by_event_time_are_deleted_each_hour_of_it() -> None:
    admin = FakeAdmin()
    admin.may_go_on.set()
    purge = purging(admin)
    for run, hours in enumerate((1, 24, 26, 26, 26.5, 30), 1):
        run_at(purge, run * INTERVAL_MS, FakeTask(first_kept_ms=int(hours * HOUR_MS)))
        if purge._thread is not None:
            wait(purge)
    assert admin.asked_ms == [2 * HOUR_MS, 6 * HOUR_MS]
    assert admin.deleted == [{CHANGELOG: 2}, {CHANGELOG: 6}]
