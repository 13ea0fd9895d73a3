"""A task that is stopped and taken over: the driver cannot do that."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from riverrun.records import RawRecord, TaskId, TopicPartition
from riverrun.runtime.layout import TaskSpec
from riverrun.runtime.ports import Ports
from riverrun.runtime.task import Task
from riverrun.state.memory import MemoryBackend
from riverrun.testing.driver import MemoryTopics, MockClock
from tests.changelogs import Batch

if TYPE_CHECKING:
    from riverrun.topology.topology import Topology

INPUT = TopicPartition("in", 0)


@dataclass
class Restartable:
    """One task that reads `in`, or another topic, and writes `out`; every `run` is a new process."""

    topology: Topology
    reads: TopicPartition = INPUT
    topics: MemoryTopics = field(default_factory=MemoryTopics)
    backend: MemoryBackend = field(default_factory=MemoryBackend)
    committed: dict[TopicPartition, tuple[int, str]] = field(default_factory=dict)
    offset: int = 0

    def run(self, *rows: tuple[str, int] | tuple[str, int, bytes]) -> None:
        """Take the task over, process `(key, timestamp)` or `(key, timestamp, value)`, commit."""
        sub = self.topology.sub_topologies()[-1]
        spec = TaskSpec(TaskId(sub.id, 0), sub, "app", (self.reads,))
        task = Task(spec, Ports(self.topics, self.backend, MockClock(), {}))
        for tp, start in task.restore_starts().items():
            log = self.topics.logs.get(tp.topic, [])[start:]
            task.restore(tp, Batch(log), start + len(log))
        task.start(self.committed)
        for key, timestamp, *value in rows:
            task.add_records(self.reads, [RawRecord(key.encode(), value[0] if value else b"v", timestamp, self.offset)])
            self.offset += 1
        task.process_all()
        commit = task.prepare_commit()
        self.committed = dict(commit.offsets)
        task.post_commit({tp: len(self.topics.logs[tp.topic]) for tp in commit.changelogs})
        task.close()

    def lose_state(self) -> None:
        """The next run starts on another machine."""
        self.backend = MemoryBackend()

    def written(self) -> list[RawRecord]:
        """The records written to `out` since the last look."""
        found = []
        while (record := self.topics.take("out")) is not None:
            found.append(record)
        return found
