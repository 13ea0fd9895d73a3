"""The work of each level of a bounded run in a step, and the ends of its slices in the repartition topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverrun.records import OffsetRange, OffsetVector, TopicPartition
from riverrun.runtime.layout import full_name
from riverrun.spark.planning.schedule import steps
from riverrun.spark.planning.unfinished import Begun
from riverrun.spark.ranges import RunRange
from riverrun.spark.tasks.work import TaskWork
from riverrun.topology.grouping import is_cyclic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.records import TaskId
    from riverrun.spark.planning.schedule import Slice, Step
    from riverrun.spark.tasks.work import Job


class Levels:
    """The work of each level, and the ends of the written slices in the repartition topics.

    Args:
        job: The run.
        connected: The application that runs.
    """

    def __init__(self, job: Job, connected: ConnectedApplication) -> None:
        self._job = job
        self._connected = connected
        self._admin = connected.admin
        self._layout = connected.layout
        self._levels = connected.topology.levels()
        self._ends: dict[tuple[TopicPartition, int], int] = {}

    def know(self, begun: Begun) -> None:
        """Adopt the ends of slices that an interrupted run has noted.

        The last begun slice ends where the topics end, as another host may have continued. If the topics have been deleted
        and recreated since, all slices end there.
        """
        complete = begun.ends[:-1]
        internal = {tp for level in range(len(self._levels)) for tp in self._internal(level)}
        now = self._admin.settled_end_offsets(internal) if complete else {}
        for number, ends in enumerate(complete):
            self._ends |= {(tp, number): min(end, now[tp]) for tp, end in ends.offsets.items() if tp in now}

    def begun(self, step: Step, slices: Sequence[Slice], origin: Mapping[TopicPartition, int]) -> Begun:
        """Return the work that is begun and unfinished once a step begins; `origin` is where tasks stood before all of it."""
        numbers = [number for _, number in step]
        unfinished = range(min(numbers), max(numbers) + 1)
        whole = RunRange({tp: OffsetRange(start, slices[max(numbers)][tp].end) for tp, start in origin.items()})
        ends = [OffsetVector({tp: end for (tp, n), end in self._ends.items() if n == number}) for number in unfinished]
        return Begun(whole, tuple(RunRange(slices[number]) for number in unfinished), tuple(ends))

    def steps(self, slices: int) -> list[Step]:
        """Return the steps in order, each with the pairs of level and slice that run at the same time."""
        return steps(self._levels, slices)

    def repeats(self, step: Step) -> bool:
        """Return whether the step is repeated, each task from its committed offsets, until nothing is left."""
        return any(is_cyclic(self._levels[level]) for level, _ in step)

    def works(self, step: Step, slices: Sequence[Slice]) -> list[TaskWork]:
        """Return the remaining work of a step, the largest first."""
        repeats = self.repeats(step)
        found = []
        for level, number in step:
            internal = self._internal(level)
            ends = (
                self._admin.settled_end_offsets(internal)
                if repeats
                else {tp: self._ends[tp, number] for tp in internal}
            )
            found += self._works(level, slices[number], ends, resumes=repeats)
        return sorted((work for work in found if work.size), key=lambda work: -work.size)

    def finish(self, step: Step) -> None:
        """Note the ends of a finished step's slices in the topics that it wrote to."""
        written = {level: self._written(level) for level, _ in step}
        ends = self._admin.settled_end_offsets({tp for tps in written.values() for tp in tps})
        for level, number in step:
            for tp in written[level]:
                self._ends.setdefault((tp, number), ends[tp])  # an earlier run's note of an end is more exact

    def last_works(self, level: int, end: Slice) -> list[TaskWork]:
        """Return work for all tasks of a level, even if there is nothing to read."""
        return self._works(level, end, self._admin.settled_end_offsets(self._internal(level)), resumes=False)

    def _works(self, level: int, part: Slice, ends: Mapping[TopicPartition, int], *, resumes: bool) -> list[TaskWork]:
        """Return the work of a level.

        External inputs are read as the slice says or, with `resumes`, from where the task stands. Internal ones are read up
        to an end.
        """
        tasks = self._tasks(level)
        first = self._admin.beginning_offsets(ends)
        asked = [tp for inputs in tasks.values() for tp in inputs] if resumes else ends
        committed = {tp: known.offset for tp, known in self._connected.committed(asked).items()}

        def wanted(tp: TopicPartition) -> OffsetRange:
            if tp in ends:
                start = committed.get(tp, first[tp])
                return OffsetRange(start, max(start, ends[tp]))
            start = max(part[tp].start, committed.get(tp, 0))
            return OffsetRange(start, max(start, part[tp].end))

        return [TaskWork(self._job, task_id, {tp: wanted(tp) for tp in inputs}) for task_id, inputs in tasks.items()]

    def _tasks(self, level: int) -> dict[TaskId, tuple[TopicPartition, ...]]:
        ids = {sub.id for sub in self._levels[level]}
        return {task_id: inputs for task_id, inputs in self._layout.tasks.items() if task_id.sub_topology in ids}

    def _internal(self, level: int) -> list[TopicPartition]:
        """Partitions of repartition topics that a level reads."""
        own = {topic.name for topic in self._layout.repartition_topics}
        return [tp for inputs in self._tasks(level).values() for tp in inputs if tp.topic in own]

    def _written(self, level: int) -> list[TopicPartition]:
        """Partitions of repartition topics that a level writes to."""
        names = {
            full_name(sub, self._connected.id, topic)
            for sub in self._levels[level]
            for topic in sub.written_repartition_topics
        }
        return [
            TopicPartition(topic.name, number)
            for topic in self._layout.repartition_topics
            if topic.name in names
            for number in range(topic.partitions)
        ]
