"""A host in memory that works as bounded runs do: slice by slice, level by level, task by task, over several partitions.

What Spark and Kafka do around that is left out; tasks, writers' runs, restores and the order of a commit are the real ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from riverrun.partitioning import partition_for
from riverrun.records import RawRecord, TopicPartition
from riverrun.runtime.layout import TaskSpec, plan_layout
from riverrun.runtime.ports import Ports
from riverrun.runtime.task import Task
from riverrun.spark.bounded_runs.packing import Packing
from riverrun.spark.tasks.spilling import WriterMerge
from riverrun.state.memory import MemoryBackend
from riverrun.testing.driver import MockClock
from riverrun.topology.grouping import is_cyclic
from tests.changelogs import Batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from riverrun.records import Headers, RawFields, TaskId
    from riverrun.runtime.task import TaskCommit
    from riverrun.topology.topology import Topology

Input = tuple[str, str, str | None, int]
"""Topic, key, value and timestamp (ms) of a record."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of the input, and what goes wrong with it.

    Args:
        records: In the order in which they were written.
        commit_every: Each task commits after so many records, and at the end.
        crashes: Each task is thrown away once before its first commit, and does its work again.
        loses_state: Each task starts without local state: it is restored from the changelogs.
    """

    records: tuple[Input, ...]
    commit_every: int
    crashes: bool = False
    loses_state: bool = False


@dataclass(slots=True)
class Transaction:
    """A collector of what a task has sent since its last commit."""

    counts: Mapping[str, int]
    sent: list[tuple[TopicPartition, RawRecord]] = field(default_factory=list)

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Headers,
        partition: int | None,
    ) -> None:
        if partition is None:
            partition = 0 if key is None else partition_for(key, self.partitions(topic))
        self.sent.append((TopicPartition(topic, partition), RawRecord(key, value, timestamp, 0, headers)))

    def partitions(self, topic: str) -> int:
        return self.counts.get(topic, 1)


class LevelledHost:
    """Runs a topology; topics, committed offsets and local states outlive the tasks."""

    def __init__(self, topology: Topology, partitions: int) -> None:
        self.topology = topology
        self.layout = plan_layout(topology, "app", dict.fromkeys(topology.source_topics, partitions))
        self.logs: dict[TopicPartition, list[RawRecord]] = {}
        self.committed: dict[TopicPartition, tuple[int, str]] = {}
        self.backends: dict[TaskId, MemoryBackend] = {}
        internal = {topic.name: topic.partitions for topic in self.layout.internal_topics}
        self.counts = {**dict.fromkeys(topology.source_topics, partitions), **internal}
        self.repartitions = {topic.name: topic.partitions for topic in self.layout.repartition_topics}

    def run(self, part: Slice) -> None:
        """Write the records, then process them all."""
        for topic, key, value, timestamp in part.records:
            raw = key.encode()
            tp = TopicPartition(topic, partition_for(raw, self.counts[topic]))
            self._append(tp, RawRecord(raw, None if value is None else value.encode(), timestamp, 0, ()))
        for level in self.topology.levels():
            ids = {sub.id for sub in level}
            tasks = sorted(task_id for task_id in self.layout.tasks if task_id.sub_topology in ids)
            self._run_tasks(tasks, part)
            while is_cyclic(level) and any(self._unread(tp) for task_id in tasks for tp in self.layout.tasks[task_id]):
                self._run_tasks(tasks, part)

    def _run_tasks(self, tasks: Sequence[TaskId], part: Slice) -> None:
        for task_id in tasks:
            if part.loses_state:
                self.backends.pop(task_id, None)
            if part.crashes:
                task, _, _ = self._open(task_id)
                task.process(part.commit_every)
                task.prepare_commit()
                task.close()
            self._work(task_id, part.commit_every)

    def outputs(self, topic: str) -> list[RawRecord]:
        """The records of a topic, partition by partition."""
        return [record for tp in sorted(self.logs) if tp.topic == topic for record in self.logs[tp]]

    def _work(self, task_id: TaskId, commit_every: int) -> None:
        task, packing, transaction = self._open(task_id)
        ends = {tp: len(self.logs.get(tp, ())) for tp in self.layout.tasks[task_id]}
        while task.process(commit_every):
            self._commit(task, packing, transaction)
        for tp, end in ends.items():
            task.advance(tp, end)
        self._commit(task, packing, transaction)
        task.close()

    def _open(self, task_id: TaskId) -> tuple[Task, Packing, Transaction]:
        """A task that is restored, has taken over its offsets, and has everything to read that there is."""
        inputs = self.layout.tasks[task_id]
        sub = next(sub for sub in self.topology.sub_topologies() if sub.id == task_id.sub_topology)
        transaction = Transaction(self.counts)
        backend = self.backends.setdefault(task_id, MemoryBackend())
        packing = Packing(transaction, task_id, self.repartitions)
        spec = TaskSpec(task_id, sub, "app", inputs, max_task_idle_ms=-1)
        task = Task(spec, Ports(packing, backend, MockClock()))
        for tp, start in task.restore_starts().items():
            end = self.committed.get(tp, (0, ""))[0] if tp in inputs else len(self.logs.get(tp, ()))
            task.restore(tp, Batch(self.logs.get(tp, [])[start:end]), end)
        task.start({tp: self.committed[tp] for tp in inputs if tp in self.committed})
        for tp in inputs:
            unread = self._unread(tp)
            task.add_records(tp, merged(tp, unread) if tp.topic in self.repartitions else unread)
        return task, packing, transaction

    def _unread(self, tp: TopicPartition) -> list[RawRecord]:
        return self.logs.get(tp, [])[self.committed.get(tp, (0, ""))[0] :]

    def _commit(self, task: Task, packing: Packing, transaction: Transaction) -> None:
        commit: TaskCommit = task.prepare_commit()
        packing.flush()
        for tp, record in transaction.sent:
            self._append(tp, record)
        transaction.sent.clear()
        self.committed |= commit.offsets
        task.post_commit({tp: len(self.logs[tp]) for tp in commit.changelogs})

    def _append(self, tp: TopicPartition, record: RawRecord) -> None:
        log = self.logs.setdefault(tp, [])
        log.append(record._replace(offset=len(log)))


def merged(tp: TopicPartition, records: Sequence[RawRecord]) -> list[RawFields]:
    """The records of a repartition topic in the order in which a task of a bounded run processes them."""
    with WriterMerge(Path(), limit_bytes=1 << 40) as merge:
        merge.add(tp, records)
        return [record for _, batches in merge.merged() for batch in batches for record in batch]


def last_values(records: Iterable[RawRecord]) -> dict[bytes | None, bytes]:
    """The table that a topic tells: the last value of each key, without those that were deleted."""
    table = {record.key: record.value for record in records}
    return {key: value for key, value in table.items() if value is not None}
