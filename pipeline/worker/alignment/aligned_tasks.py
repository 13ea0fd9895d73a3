"""Decides which tasks are aligned by event time, and how far each may go: plain arithmetic.

A reader of a repartition topic sees the records of all its writers in the order in which they were written. If one writer
is ahead by more than a window's grace, what the others write is late there, although it was not in the inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.runtime.layout import full_name
from pipeline.windows import MAX_TIME_MS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pipeline.records import TaskId, TopicPartition
    from pipeline.runtime.layout import Layout
    from pipeline.state.api import StoreBuilder
    from pipeline.topology.nodes import SubTopology
    from pipeline.topology.topology import Topology

LEAST_DRIFT_MS = 1_000
"""Less would have tasks wait for each other's commits after nearly every record."""
UNBOUNDED_DRIFT_MS = 86_400_000
"""Where nothing is late, order matters to joins at most."""


@dataclass(frozen=True, slots=True)
class AlignedTasks:
    """Tasks whose records meet in one sub-topology.

    Args:
        inputs: Their input partitions, and whose each is.
        external: Those of them that others write: what lies there when tasks start is a backlog.
    """

    inputs: Mapping[TopicPartition, TaskId]
    external: frozenset[TopicPartition]

    @property
    def tasks(self) -> frozenset[TaskId]:
        """The tasks."""
        return frozenset(self.inputs.values())


def aligned_tasks(topology: Topology, layout: Layout, application_id: str) -> list[AlignedTasks]:
    """Find the tasks that are aligned with each other: per reader of repartition topics, their writers.

    If the reader has inputs of others besides, its tasks are among them. A single task waits for none.
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
    """Return how far tasks may be apart (ms), so that what is in time in the inputs is in time behind repartition topics.

    That is half of the smallest grace period there, as inputs may be out of order themselves. Repartition topics that records
    pass one after the other share it. Without a grace period no distance is safe: a tenth of the window loses little, and lets
    tasks go on.
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
    """Return up to which event time (ms) each task may process: a drift beyond the slowest of the others.

    The slowest one is never held back: the limit of each task is beyond the next record of the slowest other one.

    Args:
        tasks: All that are aligned with each other.
        next_times: Of those that are waited for, the event time that the next record brings them to.
        drift_ms: How far they may be apart.
    """
    slowest = sorted((time_ms, task) for task, time_ms in next_times.items())[:2]
    found = {}
    for task in tasks:
        others = [time_ms for time_ms, other in slowest if other != task]
        found[task] = others[0] + drift_ms if others else MAX_TIME_MS
    return found


def _tolerated_ms(store: StoreBuilder) -> int:
    """Return how far apart tasks may be because of one store."""
    if store.grace_ms:
        return store.grace_ms // 2
    return (store.window_size_ms or store.retention_ms) // 10


def _levels(subs: Sequence[SubTopology]) -> dict[int, int]:
    """Return how many repartition topics records pass at most before a sub-topology; in a cycle, as many as it has."""
    levels = {sub.id: 0 for sub in subs}
    for _ in subs:
        for reader in subs:
            internal = reader.repartition_topics.intersection(reader.source_topics)
            above = [levels[sub.id] for sub in subs if sub is not reader and internal & sub.written_repartition_topics]
            levels[reader.id] = min(max(above, default=-1) + 1, len(subs))
    return levels
