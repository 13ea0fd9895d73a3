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
