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
def schedule(tasks: list[Any]) -> CommitSchedule:
    schedule = CommitSchedule(INTERVAL_MS, 0)
    for task in tasks:
        schedule.note(task.id, 0)
    return schedule


def test_tasks_that_are_busy_begin_to_commit_in_parts(tasks: list[Any], schedule: CommitSchedule) -> None:
    for task in tasks:
        task.process_a_record()
    assert schedule.due(tasks, tasks, INTERVAL_MS - 1) == []
    assert schedule.due(tasks, tasks, INTERVAL_MS) == tasks[:5]
    for task in tasks[:5]:
        schedule.note(task.id, INTERVAL_MS)
    assert schedule.due(tasks, tasks[5:], INTERVAL_MS) == tasks[5:10]


def test_a_busy_task_does_not_wait_for_those_that_have_nothing_to_commit(
    tasks: list[Any], schedule: CommitSchedule
) -> None:
    busy = tasks[-1]
    busy.process_a_record()
    assert busy in schedule.due(tasks, tasks, INTERVAL_MS)


def test_the_interval_of_a_task_with_nothing_to_commit_restarts(tasks: list[Any], schedule: CommitSchedule) -> None:
    assert schedule.due(tasks, tasks, INTERVAL_MS) == tasks
