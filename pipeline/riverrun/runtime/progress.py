"""How far a task has come in its inputs: taken over from committed offsets, and told by each commit.

An offset is committed with metadata (`OffsetMetadata`): what a task must know to go on there as if it had never stopped.
"""

from __future__ import annotations

from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING

from riverrun.runtime.times import OffsetMetadata

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from riverrun.records import TopicPartition, Whole
    from riverrun.runtime.barrier import BarrierHandler
    from riverrun.runtime.context import TaskContext
    from riverrun.runtime.inputs import PartitionGroup, RecordQueue
    from riverrun.runtime.packs import PackedInput
    from riverrun.runtime.times import ObservedTimes


class Progress:
    """The committed offsets of a task, and those to commit next.

    Args:
        inputs: The partitions that the task reads; each has a queue.
        context: The task's times and counters.
        queues: The queues of its inputs.
        packs: Those of its inputs that may contain packs.
        times: The times that its stores and operators keep.
        barrier: Knows which phase of a barrier a commit acknowledges.
        dropped: Returns the number of records dropped since the start, by reason.
    """

    def __init__(
        self,
        inputs: Sequence[TopicPartition],
        context: TaskContext,
        *,
        queues: PartitionGroup,
        packs: Mapping[TopicPartition, PackedInput],
        times: ObservedTimes,
        barrier: BarrierHandler,
        dropped: Callable[[], Counter[str]],
    ) -> None:
        self.tells_next_times = False
        """Whether an offset is committed with the event time to which the next record brings its input."""
        self.wholes: Mapping[TopicPartition, Whole | None] = MappingProxyType({})
        """When the task had read all of inputs that are tables; committed with their offsets."""
        self._inputs = inputs
        self._context = context
        self._queues = queues
        self._packs = packs
        self._times = times
        self._barrier = barrier
        self._dropped = dropped
        self._dropped_before: Counter[str] = Counter()
        self._begun: dict[TopicPartition, int] = {}
        self._topics: Mapping[TopicPartition, Mapping[str, int]] = MappingProxyType({})
        self._owner = ""

    def resume(
        self,
        committed: Mapping[TopicPartition, tuple[int, str]],
        topics: Mapping[TopicPartition, Mapping[str, int]],
        owner: str,
    ) -> None:
        """Take over what was committed: offsets, times and counts."""
        self._topics, self._owner = topics, owner
        for queue in self._queues.all():
            if queue.tp in committed:
                offset, metadata = committed[queue.tp]
                self._resume_input(queue, offset, OffsetMetadata.decode(metadata))
        self._times.resume()

    def _resume_input(self, queue: RecordQueue, offset: int, known: OffsetMetadata) -> None:
        """Take over an input. Each has a copy of the task's own times and counts, and the latest counts."""
        queue.next_offset = self._begun[queue.tp] = offset
        queue.partition_time = known.partition_time
        if queue.tp in self._packs:
            self._packs[queue.tp].begin(offset, known.taken)
        self._dropped_before |= Counter(known.dropped)
        kept = self._context.processor_metadata
        for key, time_ms in known.processor_metadata.items():
            kept[key] = max(time_ms, kept.get(key, time_ms))  # as `ProcessorMetadata.update` does
        self._times.learn(known.times)
        self._context.stream_time = max(self._context.stream_time, queue.partition_time)

    def offsets(self) -> Iterator[tuple[TopicPartition, tuple[int, str]]]:
        """Return, per input that was read, the offset to continue from, and its metadata; it acknowledges the barrier."""
        kept, times, barrier = self._context.processor_metadata, self._times.current(), self._barrier.acknowledge()
        dropped = self._dropped()
        dropped.update(self._dropped_before)
        for tp in self._inputs:
            queue = self._queues.of(tp)
            assert queue is not None, "each input has a queue"  # noqa: S101 - see `Task`
            next_time = queue.next_time() if self.tells_next_times else -1  # skips undecodable records
            offset = queue.committable_offset()
            if offset >= 0:
                taken = self._packs[tp].taken(offset, queue.waiting_at(offset)) if tp in self._packs else 0
                metadata = OffsetMetadata(
                    queue.partition_time,
                    kept,
                    taken,
                    times,
                    next_time,
                    barrier=barrier,
                    topics=self._topics.get(tp, {}),
                    dropped=dropped,
                    owner=self._owner,
                    whole=self.wholes.get(tp),
                )
                yield tp, (offset, metadata.encode())

    def read_since(self, committed: Mapping[TopicPartition, tuple[int, str]]) -> str:
        """Return the records that were processed since a commit, as text; without one, those since the start."""
        begun = {tp: offset for tp, (offset, _metadata) in committed.items()} or self._begun
        read = ((tp, begun.get(tp, 0), offset) for tp, (offset, _metadata) in self.offsets())
        return ", ".join(f"{tp}@{first} to {last - 1}" for tp, first, last in read if first < last)
