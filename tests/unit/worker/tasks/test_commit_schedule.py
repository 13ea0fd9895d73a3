"""When the tasks of a process commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from riverrun import STRING, Topology
from riverrun.records import RawRecord, TaskId, TopicPartition
from riverrun.runtime.layout import TaskSpec
from riverrun.runtime.ports import Ports
from riverrun.runtime.task import Task
from riverrun.state.memory import MemoryBackend
from riverrun.testing.driver import MockClock
from riverrun.worker.tasks.task_executor import CommitSchedule

INTERVAL_MS = 100


class Nowhere:
    def send(self, *_record: Any) -> None:
        pass

    def partitions(self, _topic: str) -> int:
        return 1


@dataclass(frozen=True)
class Owned:
    """A task that a host owns, as far as the schedule looks at it."""

    id: TaskId
    task: Task

    def process_a_record(self) -> None:
        self.task.add_records(TopicPartition("in", self.id.partition), [RawRecord(b"k", b"v", 1, 0)])
        assert self.task.process(1) == 1


def active(partition: int) -> Any:
    topology = Topology()
    topology.add_source("source", "in", key_serde=STRING, value_serde=STRING)
    topology.add_sink("sink", "out", "source", key_serde=STRING, value_serde=STRING)
    (sub,) = topology.sub_topologies()
    spec = TaskSpec(TaskId(0, partition), sub, "app", (TopicPartition("in", partition),))
    task = Task(spec, Ports(Nowhere(), MemoryBackend(), MockClock()))
    task.start({})
    return Owned(spec.id, task)


@pytest.fixture
def tasks() -> list[Any]:
    return [active(partition) for partition in range(20)]


@pytest.fixture
def schedule() -> CommitSchedule:
    schedule = CommitSchedule(INTERVAL_MS, 0)
    schedule.note(0)
    return schedule


def test_tasks_commit_together_when_the_interval_is_over(tasks: list[Any], schedule: CommitSchedule) -> None:
    tasks[-1].process_a_record()
    assert not schedule.is_due(tasks, INTERVAL_MS - 1)
    assert schedule.is_due(tasks, INTERVAL_MS)
    schedule.note(INTERVAL_MS)
    assert not schedule.is_due(tasks, 2 * INTERVAL_MS - 1)


def test_a_task_that_asks_for_a_commit_does_not_wait(tasks: list[Any], schedule: CommitSchedule) -> None:
    assert not schedule.is_due(tasks, 1)
    tasks[3].task.request_commit()
    assert schedule.is_due(tasks, 1)


def test_tasks_commit_early_if_their_stores_hold_back_too_much(tasks: list[Any]) -> None:
    schedule = CommitSchedule(INTERVAL_MS, 19)
    schedule.note(0)
    for task in tasks:
        task.task.held_back_bytes = lambda: 1
    assert schedule.is_due(tasks, 1)
    assert not schedule.is_due(tasks[1:], 1)


def paced(*took_s: float, interval_ms: int = INTERVAL_MS) -> int:
    schedule = CommitSchedule(interval_ms, 0)
    for each in took_s:
        schedule.took(each)
    return schedule.pace_ms


def test_commits_that_take_long_leave_as_much_time_for_processing(tasks: list[Any], schedule: CommitSchedule) -> None:
    for _ in range(2):
        schedule.took(0.3)
    schedule.note(1_000)
    assert not schedule.is_due(tasks, 1_599)
    assert schedule.is_due(tasks, 1_600)


def test_the_interval_returns_once_brokers_have_room() -> None:
    assert paced(0.3, 0.3) == 600
    assert paced(0.3, 0.3, 0.01) == INTERVAL_MS


def test_a_single_slow_commit_changes_nothing() -> None:
    assert paced(0.01, 5.0) == INTERVAL_MS
    assert paced(0.01, 5.0, 0.01) == INTERVAL_MS


def test_an_interval_that_is_longer_stays_as_it_is() -> None:
    assert paced(0.3, 0.3, interval_ms=30_000) == 30_000


def test_no_commit_waits_for_longer_than_ten_seconds_because_others_took_long() -> None:
    assert paced(50.0, 50.0) == 10_000


def test_records_that_are_committed_one_by_one_do_not_wait() -> None:
    assert paced(0.3, 0.3, interval_ms=0) == 0


def test_a_task_that_asks_for_a_commit_does_not_wait_for_the_pace(tasks: list[Any], schedule: CommitSchedule) -> None:
    schedule.took(1.0)
    schedule.took(1.0)
    tasks[3].task.request_commit()
    assert schedule.is_due(tasks, 1)
