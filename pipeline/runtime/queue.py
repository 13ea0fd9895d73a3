"""The records a task still has to process, and which of them comes next (`RecordQueue`, `PartitionGroup`)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pipeline.errors import DeserializationError
from pipeline.records import ConsumerRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pipeline.records import Headers, RawRecord, TaskId, TopicPartition
    from pipeline.runtime.context import TaskContext
    from pipeline.topology.nodes import SourceNode


Decoded: TypeAlias = "tuple[Any, Any, int, int, Headers]"
"""A record that a source has decoded: key, value, event time (ms), offset, headers. Made for every record: no class."""
_TIMESTAMP: Final = 2
_OFFSET: Final = 3


@dataclass(slots=True)
class RecordQueue:
    """The records of one input, in the order of the log. Only the head is decoded.

    Args:
        tp: The partition they come from.
        node: The source that reads it.
        enter: Where its records enter the operators.
        skips_undecodable: Whether a record that cannot be decoded is dropped and counted
            (`deserialization.exception.handler`); else it stops the task.
        context: The task's counters.
        task_id: Named in errors.
    """

    tp: TopicPartition
    node: SourceNode
    enter: Callable[[Any, Any, int, Headers], None]
    context: TaskContext
    task_id: TaskId
    skips_undecodable: bool = False
    partition_time: int = -1
    next_offset: int = -1
    is_caught_up: bool = False
    _records: deque[RawRecord] = field(default_factory=deque)
    _head: Decoded | None = None
    _end: int = -1
    _key_of: Callable[[bytes], Any] = field(init=False)
    _value_of: Callable[[bytes], Any] = field(init=False)

    def __post_init__(self) -> None:
        """Bind the serdes."""
        self._key_of = self.node.key_serde.deserialize
        self._value_of = self.node.value_serde.deserialize

    def __len__(self) -> int:
        """Number of records waiting."""
        return len(self._records) + (self._head is not None)

    def add(self, records: Iterable[RawRecord]) -> None:
        """Append records; they must follow those already there."""
        self._records.extend(records)
        self.is_caught_up = False

    def reached_end(self, offset: int) -> None:
        """The host has read all there is up to `offset`: nothing more can be had by waiting."""
        self.is_caught_up = True
        self._end = offset

    def head(self) -> Decoded | None:
        """The next record, decoded; records that cannot be are skipped on the way, if so configured."""
        while self._head is None and self._records:
            raw = self._records.popleft()
            self._head = self._decode(raw)
            if self._head is None:
                self.next_offset = raw.offset + 1
        return self._head

    def pop(self) -> Decoded | None:
        """Take the next record out."""
        record = self._head or self.head()
        if record is not None:
            self._head = None
            self.next_offset = record[_OFFSET] + 1
            if record[_TIMESTAMP] > self.partition_time:
                self.partition_time = record[_TIMESTAMP]
        return record

    def committable_offset(self) -> int:
        """The offset to go on from: that of the head, or of what follows the last record; -1 if unknown."""
        if self._head is not None:
            return self._head[_OFFSET]
        if self._records:
            return self._records[0].offset
        return max(self.next_offset, self._end)  # behind the last record there may be markers and gaps

    def _decode(self, raw: RawRecord) -> Decoded | None:
        raw_key, raw_value, timestamp, offset, headers = raw
        try:
            key = None if raw_key is None else self._key_of(raw_key)
            value = None if raw_value is None else self._value_of(raw_value)
        except Exception as error:
            if self.skips_undecodable:
                self.context.dropped["undecodable"] += 1
                return None
            serdes = f"key serde {self.node.key_serde.name} and value serde {self.node.value_serde.name}"
            message = f"Record cannot be decoded with {serdes}: {type(error).__name__}: {error}"
            raise self._error(message, raw, "Set deserialization.exception.handler = continue to skip it.") from error
        if self.node.timestamp_extractor is not None:
            timestamp = self._extracted_time(self.node.timestamp_extractor, raw, key, value)
        if timestamp < 0:
            message = f"Input record has invalid (negative) timestamp {timestamp}"
            raise self._error(message, raw, "Use a timestamp_extractor that finds the event time elsewhere.")
        return key, value, timestamp, offset, headers

    def _extracted_time(
        self, extract: Callable[[ConsumerRecord[Any, Any], int], int], raw: RawRecord, key: Any, value: Any
    ) -> int:
        record = ConsumerRecord(key, value, raw.timestamp, raw.headers, *self.tp, raw.offset)
        try:
            return extract(record, self.partition_time)
        except Exception as error:
            message = f"Timestamp extractor of {self.node.name} failed: {type(error).__name__}: {error}"
            raise self._error(message, raw, None) from error

    def _error(self, message: str, raw: RawRecord, hint: str | None) -> DeserializationError:
        return DeserializationError(
            message,
            task=str(self.task_id),
            topic=self.tp.topic,
            partition=self.tp.partition,
            offset=raw.offset,
            hint=hint,
        )


@dataclass(slots=True)
class RecordQueues:
    """All inputs of a task. The record with the lowest event time among the heads comes next; equal times go by input.

    Within one input the order of the log is kept, whatever the times.
    """

    _queues: dict[tuple[TopicPartition, int], RecordQueue] = field(default_factory=dict)
    _heap: list[tuple[int, tuple[TopicPartition, int]]] = field(default_factory=list)
    _in_heap: set[tuple[TopicPartition, int]] = field(default_factory=set)

    def register(self, queue: RecordQueue, run: int = 0) -> None:
        """Add an input: a partition, or one writer's run of records within it."""
        self._queues[queue.tp, run] = queue

    def of(self, tp: TopicPartition, run: int = 0) -> RecordQueue | None:
        """The input, if there is one."""
        return self._queues.get((tp, run))

    def runs(self, tp: TopicPartition) -> list[RecordQueue]:
        """All runs of one partition."""
        return [queue for (own, _), queue in self._queues.items() if own == tp]

    def all(self) -> list[RecordQueue]:
        """All inputs."""
        return list(self._queues.values())

    def only(self) -> RecordQueue | None:
        """The input, if there is just one: then there is nothing to choose."""
        return next(iter(self._queues.values())) if len(self._queues) == 1 else None

    def next_queue(self) -> RecordQueue | None:
        """The input whose head comes next; None if nothing waits."""
        for name, queue in self._queues.items():
            if name not in self._in_heap and (head := queue.head()) is not None:
                heappush(self._heap, (head[_TIMESTAMP], name))
                self._in_heap.add(name)
        if not self._heap:
            return None
        _, name = heappop(self._heap)
        self._in_heap.discard(name)
        return self._queues[name]

    def buffered(self) -> int:
        """Number of records that wait."""
        return sum(map(len, self._queues.values()))
