"""Decides which tasks are aligned by event time, and how far each may process; plain arithmetic.

A reader of a repartition topic sees the records of all its writers in the order in which they were written. If one writer
is ahead by more than a window's grace, records of the others are late there, although not in the inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from riverrun.runtime.layout import full_name
from riverrun.windows import MAX_TIME_MS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from riverrun.records import TaskId, TopicPartition
    from riverrun.runtime.layout import Layout
    from riverrun.state.api import StoreBuilder
    from riverrun.topology.nodes import SubTopology
    from riverrun.topology.topology import Topology

LEAST_DRIFT_MS = 1_000
"""With a smaller drift, tasks would wait for each other's commits after nearly every record."""
UNBOUNDED_DRIFT_MS = 86_400_000
"""If no record is late, the order matters only to joins."""


@dataclass(frozen=True, slots=True)
class AlignedTasks:
    """Tasks whose records meet in one sub-topology.

    Args:
        inputs: Their input partitions, with the task that reads each.
        external: The input partitions that others write: their records at the start of tasks are a backlog.
    """

    inputs: Mapping[TopicPartition, TaskId]
    external: frozenset[TopicPartition]

    @property
    def tasks(self) -> frozenset[TaskId]:
        """Return the tasks."""
        return frozenset(self.inputs.values())


def aligned_tasks(topology: Topology, layout: Layout, application_id: str) -> list[AlignedTasks]:
    """Find the tasks that are aligned with each other: the writers of each reader of repartition topics.

    If the reader has external inputs as well, they include its tasks. A single task is not aligned.
    """
    subs = topology.sub_topologies()
    found: dict[frozenset[TopicPartition], AlignedTasks] = {}
    for reader in subs:
        internal = reader.repartition_topics.intersection(reader.source_topics)
        members = {sub.id for sub in subs if internal & sub.written_repartition_topics}
        if internal and set(reader.source_topics) - internal:
            members.add(reader.id)
        inputs = {tp: task for task, tps in layout.tasks.items() if task.sub_topology in members for tp in tps}
        if len(set(inputs.values())) > 1:
            own = {full_name(sub, application_id, topic) for sub in subs for topic in sub.repartition_topics}
            found[frozenset(inputs)] = AlignedTasks(inputs, frozenset(tp for tp in inputs if tp.topic not in own))
    return list(found.values())


def drift_of(topology: Topology) -> int:
    """Return how far apart tasks may be (ms) without making records late behind repartition topics.

    That is half of the smallest grace period there, as inputs may be out of order themselves. Repartition topics that records
    pass one after the other share it. Without a grace period no distance is safe. A tenth of the window then loses few records,
    and lets tasks continue.
    """
    levels = _levels(topology.sub_topologies())
    found = [
        _tolerated_ms(store) // levels[sub.id]
        for sub in topology.sub_topologies()
        if levels[sub.id]
        for store in sub.stores
        if store.grace_ms is not None
    ]
    return max(min(found, default=UNBOUNDED_DRIFT_MS), LEAST_DRIFT_MS)


def limits(tasks: Iterable[TaskId], next_times: Mapping[TaskId, int], drift_ms: int) -> dict[TaskId, int]:
    """Return the event time (ms) up to which each task may process: one drift beyond the slowest other task.

    Never holds the slowest task back: the limit of each task is beyond the next record of the slowest other task.

    Args:
        tasks: All tasks that are aligned with each other.
        next_times: Event time of the next record, ms, of each task that others wait for.
        drift_ms: How far apart they may be, ms.
    """
    slowest = sorted((time_ms, task) for task, time_ms in next_times.items())[:2]
    found = {}
    for task in tasks:
        others = [time_ms for time_ms, other in slowest if other != task]
        found[task] = others[0] + drift_ms if others else MAX_TIME_MS
    return found


def _tolerated_ms(store: StoreBuilder) -> int:
    """Return how far apart (ms) tasks may be because of one store."""
    if store.grace_ms:
        return store.grace_ms // 2
    return (store.window_size_ms or store.retention_ms) // 10


def _levels(subs: Sequence[SubTopology]) -> dict[int, int]:
    """Return the most repartition topics that records pass before each sub-topology; within a cycle, as many as it has."""
    levels = {sub.id: 0 for sub in subs}
    for _ in subs:
        for reader in subs:
            internal = reader.repartition_topics.intersection(reader.source_topics)
            above = [levels[sub.id] for sub in subs if sub is not reader and internal & sub.written_repartition_topics]
            levels[reader.id] = min(max(above, default=-1) + 1, len(subs))
    return levels
