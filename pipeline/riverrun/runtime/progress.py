"""The position of a task in its inputs: taken over from committed offsets, and reported by each commit.

An offset is committed with metadata (`OffsetMetadata`): what a task must know to resume there as if it had never stopped.
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


class TaskOffsets:
    """The committed offsets of a task, and those to commit next."""

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
        self.reports_next_times = False
        self.wholes: Mapping[TopicPartition, Whole | None] = MappingProxyType({})
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
        queue.next_offset = self._begun[queue.tp] = offset
        queue.partition_time = known.partition_time
        if queue.tp in self._packs:
            self._packs[queue.tp].begin(offset, known.taken)
        # Each input has a copy of the task's own counts and times, some older than others: the maximum is the latest.
        self._dropped_before |= Counter(known.dropped)
        kept = self._context.processor_metadata
        # As Kafka Streams' `ProcessorMetadata.update` does.
        for key, time_ms in known.processor_metadata.items():
            kept[key] = max(time_ms, kept.get(key, time_ms))
        self._times.learn(known.times)
        self._context.stream_time = max(self._context.stream_time, queue.partition_time)

    def offsets(self) -> Iterator[tuple[TopicPartition, tuple[int, str]]]:
        """Yield next offset and metadata per input that was read; this acknowledges the phase of a barrier."""
        kept, times, barrier = self._context.processor_metadata, self._times.current(), self._barrier.acknowledge()
        dropped = self._dropped()
        dropped.update(self._dropped_before)
        for queue, offset in self._reached():
            tp = queue.tp
            taken = self._packs[tp].taken(offset, queue.waiting_at(offset)) if tp in self._packs else 0
            metadata = OffsetMetadata(
                queue.partition_time,
                kept,
                taken,
                times,
                queue.next_time() if self.reports_next_times else -1,
                barrier=barrier,
                topics=self._topics.get(tp, {}),
                dropped=dropped,
                owner=self._owner,
                whole=self.wholes.get(tp),
            )
            yield tp, (offset, metadata.encode())

    def bare_offsets(self) -> Iterator[tuple[TopicPartition, tuple[int, str]]]:
        """Return, per input that was read, the offset to continue from, with empty metadata; it acknowledges nothing."""
        return ((queue.tp, (offset, "")) for queue, offset in self._reached())

    def _reached(self) -> Iterator[tuple[RecordQueue, int]]:
        for tp in self._inputs:
            queue = self._queues.of(tp)
            assert queue is not None, "each input has a queue"  # noqa: S101 - see `Task`
            # Before the offset is taken: looking for the next time skips records that cannot be decoded.
            if self.reports_next_times:
                queue.next_time()
            offset = queue.committable_offset()
            if offset >= 0:
                yield queue, offset

    def read_since(self, committed: Mapping[TopicPartition, tuple[int, str]]) -> str:
        """Return the records processed since a commit, as text; without a commit, those since the start."""
        begun = self._since(committed)
        read = ((tp, begun.get(tp, 0), offset) for tp, (offset, _metadata) in self.bare_offsets())
        return ", ".join(f"{tp}@{first} to {last - 1}" for tp, first, last in read if first < last)

    def is_committed(
        self, tp: TopicPartition, offset: int, committed: Mapping[TopicPartition, tuple[int, str]]
    ) -> bool:
        """Return whether a commit has passed a record; none can skip a record of what is no input any more."""
        return tp not in self._inputs or offset < self._since(committed).get(tp, 0)

    def _since(self, committed: Mapping[TopicPartition, tuple[int, str]]) -> Mapping[TopicPartition, int]:
        return {tp: offset for tp, (offset, _metadata) in committed.items()} or self._begun
