"""Decides which tasks are aligned by event time and how far each may process, and warns of many late records.

A reader of a repartition topic sees the records of all its writers in the order in which they were written. If one writer
is ahead by more than a window's grace, records of the others are late there, although not in the inputs.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from riverrun.processor.handlers import DropReason
from riverrun.runtime.layout import full_name
from riverrun.windows import MAX_TIME_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from riverrun.records import TaskId, TopicPartition
    from riverrun.runtime.layout import Layout
    from riverrun.state.api import StoreBuilder
    from riverrun.topology.nodes import SubTopology
    from riverrun.topology.topology import Topology

log = logging.getLogger(__name__)

# With a smaller drift, tasks would wait for each other's commits after nearly every record.
LEAST_DRIFT_MS = 1_000
# If no record is late, the order matters only to joins.
UNBOUNDED_DRIFT_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class AlignedTasks:
    """Tasks whose records meet in one sub-topology.

    Args:
        external: The inputs that others write: their records at the start of tasks are a backlog.
    """

    inputs: Mapping[TopicPartition, TaskId]
    external: frozenset[TopicPartition]

    @property
    def tasks(self) -> frozenset[TaskId]:
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
    """Return how far apart tasks may be (ms) without making records late behind repartition topics."""
    # Drift adds up over repartition topics that records pass one after the other, so levels share the grace period.
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
    """Return the event time (ms) up to which each task may process: one drift beyond the slowest other task."""
    # The slowest other task, not the slowest: so the slowest one is never held back, and tasks cannot wait in a circle.
    slowest = sorted((time_ms, task) for task, time_ms in next_times.items())[:2]
    found = {}
    for task in tasks:
        others = [time_ms for time_ms, other in slowest if other != task]
        found[task] = others[0] + drift_ms if others else MAX_TIME_MS
    return found


def _tolerated_ms(store: StoreBuilder) -> int:
    # Half of the grace period, as inputs may be out of order themselves. Without one no distance is safe: a tenth of the
    # window loses few records, and lets tasks continue.
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


_LOOK_SECONDS = 5.0
_QUIET_SECONDS = 600.0
"""Minimum time between two warnings about one task."""
# Both are required: a few late records are normal, and so is a small share of many.
_MANY = 100
_SHARE = 0.05
_ADVICE = (
    "Raise the grace period of its windows, set task.alignment.max.drift.ms no higher than that, or process a backlog with"
    " riverrun run, which orders it by event time"
)


class CountingTask(Protocol):
    """A task that counts dropped records (`ActiveTask`)."""

    @property
    def dropped(self) -> Mapping[str, int]:
        """Return the number of records that were not processed, by reason."""


class LateShare:
    """Compares the number of late records with the number of processed ones, interval by interval."""

    def __init__(
        self,
        tasks: Mapping[TaskId, CountingTask],
        processed: Mapping[TaskId, int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tasks = tasks
        self._processed = processed
        self._clock = clock
        self._look_at = clock() + _LOOK_SECONDS
        self._before: dict[TaskId, tuple[int, int]] = {}
        self._said_at: dict[TaskId, float] = {}

    def warn_if_due(self) -> None:
        """Check the tasks if it is time."""
        now = self._clock()
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_SECONDS
        for task_id, active in self._tasks.items():
            late = active.dropped.get(DropReason.LATE, 0) + active.dropped.get(DropReason.EXPIRED_WINDOW, 0)
            self._look(task_id, late, self._processed.get(task_id, 0), now)

    def _look(self, task_id: TaskId, late: int, processed: int, now: float) -> None:
        late_before, processed_before = self._before.get(task_id, (0, 0))
        # Counters went back: the task has been taken over again.
        if late < late_before or processed < processed_before:
            late_before = processed_before = 0
        new_late, new = late - late_before, processed - processed_before
        self._before[task_id] = late, processed
        if new_late < _MANY or new_late < _SHARE * new or now < self._said_at.get(task_id, now):
            return
        self._said_at[task_id] = now + _QUIET_SECONDS
        message = "task %s drops %d records as late, having processed %d in the same time. %s"
        log.warning(message, task_id, new_late, new, _ADVICE, extra={"task": str(task_id)})
