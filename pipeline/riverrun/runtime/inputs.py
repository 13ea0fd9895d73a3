"""The inputs of a task: a queue for each partition, and the choice of the next record among their heads."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush, heapreplace
from itertools import chain, takewhile
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from riverrun.errors import USER_ERRORS, DeserializationError, RecordError, RegistryError, StreamsError, as_exception
from riverrun.processor.handlers import DropReason
from riverrun.processor.timestamps import NEGATIVE, USE_ANOTHER, WallclockTimestampExtractor
from riverrun.records import RAW_OFFSET, RAW_VALUE, ConsumerRecord, RawRecord
from riverrun.runtime.node_context import is_time
from riverrun.runtime.packs import damage_of, writer_of
from riverrun.serde.api import hint_of
from riverrun.windows import MAX_TIME_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from riverrun.processor.timestamps import TimestampExtractor
    from riverrun.records import Headers, RawFields, TopicPartition
    from riverrun.runtime.context import TaskContext
    from riverrun.runtime.failures import Failures
    from riverrun.topology.nodes import SourceNode

    Forward = Callable[[Any, Any, int, Headers], None]

# Plain tuples, as one is made for every record: key, value, event time (ms), offset, headers.
Decoded: TypeAlias = "tuple[Any, Any, int, int, Headers]"
Loop: TypeAlias = "Callable[[RecordQueue, int, int], int]"
"""`(queue, limit, last_time_ms) -> done`: processes up to `limit` records of a queue, none later."""
_NO_VALUE = "A deletion has no value: let the extractor return record.timestamp for it."
_TIMESTAMP: Final = 2
_OFFSET: Final = 3


@dataclass(slots=True)
class RecordQueue:
    """The records of one input, in the order of the log. Only the head is decoded.

    Args:
        extractor: Finds the event time if the source has no extractor; None takes the record's own timestamp.
        loop: Takes many waiting records through the operators; None if they must go one by one.
    """

    tp: TopicPartition
    node: SourceNode
    enter: Callable[[Any, Any, int, Headers], None]
    context: TaskContext
    failures: Failures
    extractor: TimestampExtractor | None = None
    loop: Loop | None = None
    partition_time: int = -1
    next_offset: int = -1
    is_caught_up: bool = False
    waiting: deque[RawFields] = field(default_factory=deque)
    _limit: int | None = None
    _beyond: deque[RawFields] = field(default_factory=deque)
    _head_beyond: Decoded | None = None
    _batches: Iterator[Iterable[RawFields]] | None = None
    _head: Decoded | None = None
    _end: int = -1
    _key_of: Callable[[bytes], Any] = field(init=False)
    _value_of: Callable[[bytes], Any] = field(init=False)
    decode: Callable[[RawFields], Decoded | None] = field(init=False)
    _source: RawRecord | None = None

    def __post_init__(self) -> None:
        self._key_of = self.node.key_serde.deserialize
        self._value_of = self.node.value_serde.deserialize
        self.extractor = self.node.timestamp_extractor or self.extractor
        if isinstance(self.extractor, WallclockTimestampExtractor):
            self.extractor = replace(self.extractor, now_ms=self.context.clock.now_ms)
        self.decode = self._decode
        if self.failures.needs_sources:
            self.decode = self._decode_and_keep
            self.enter = self._entering(self.enter)

    def __len__(self) -> int:
        # Without records beyond a limit: the loops over records must not see these.
        return len(self.waiting) + (self._head is not None)

    def buffered(self) -> int:
        """Return the number of records in memory, including those beyond a limit."""
        return len(self) + len(self._beyond) + (self._head_beyond is not None)

    def add(self, records: Iterable[RawFields]) -> None:
        """Append records; they must follow those already there."""
        self.waiting.extend(records if self._limit is None else self._within(records, self._limit))
        self.is_caught_up = False

    def limit(self, offset: int | None) -> None:
        """Put aside records from an offset on until the limit changes; 0 holds the input where it is, None lifts the limit."""
        if self._head_beyond is not None:
            self._head, self._head_beyond = self._head_beyond, None
        self.waiting.extend(self._beyond)
        self._beyond.clear()
        self._limit = offset
        if offset is None:
            return
        while self.waiting and self.waiting[-1][RAW_OFFSET] >= offset:
            self._beyond.appendleft(self.waiting.pop())
        if self._head is not None and self._head[_OFFSET] >= offset:
            self._head, self._head_beyond = None, self._head

    def is_at_limit(self) -> bool:
        """Return whether there is a limit, and no record before it is still to come."""
        if self._limit is None or len(self):
            return False
        return self._first_beyond() >= self._limit

    def _first_beyond(self) -> int:
        if self._head_beyond is not None:
            return self._head_beyond[_OFFSET]
        return self._beyond[0][RAW_OFFSET] if self._beyond else max(self.next_offset, self._end)

    def _within(self, records: Iterable[RawFields], limit: int) -> list[RawFields]:
        within: list[RawFields] = []
        for record in records:
            (within if record[RAW_OFFSET] < limit else self._beyond).append(record)
        return within

    def add_batches(self, batches: Iterator[Iterable[RawFields]]) -> None:
        """Append batches of records, which are fetched when those that wait have been processed."""
        self._batches = batches

    def reached_end(self, offset: int) -> None:
        """Note that the host has read all records before `offset`, so that waiting yields no more."""
        self.is_caught_up = True
        self._end = offset

    def head(self) -> Decoded | None:
        """Return the next record, decoded; skip records that cannot be decoded, if handlers say so."""
        while self._head is None and self.has_waiting():
            raw = self.waiting.popleft()
            self._head = self.decode(raw)
            if self._head is None:
                self.next_offset = raw[RAW_OFFSET] + 1
                self.context.has_skipped = True
        return self._head

    def pop(self) -> Decoded | None:
        record = self._head or self.head()
        if record is not None:
            self._head = None
            self.next_offset = record[_OFFSET] + 1
            if record[_TIMESTAMP] > self.partition_time:
                self.partition_time = record[_TIMESTAMP]
        return record

    def head_time(self) -> int:
        """Return the event time of the next record, ms; -1 if there is none."""
        head = self.head()
        return -1 if head is None else head[_TIMESTAMP]

    @property
    def has_head(self) -> bool:
        """Return whether the next record has been decoded already."""
        return self._head is not None

    def committable_offset(self) -> int:
        """Return the offset to continue from: that of the head, or the one after the last record; -1 if unknown."""
        if self._head is not None:
            return self._head[_OFFSET]
        if self.waiting:
            return self.waiting[0][RAW_OFFSET]
        if self._limit is not None:
            first = self._first_beyond()
            return max(self.next_offset, min(first, self._limit)) if self._limit else first
        # Markers of transactions and gaps may follow the last record.
        return max(self.next_offset, self._end)

    def next_time(self) -> int:
        """Return the event time (ms) that the input reaches with its next record; -1 if none is waiting."""
        if self._head is None and self.extractor is None and self.has_waiting():
            return max(self.partition_time, self.waiting[0][_TIMESTAMP])
        head = self.head()
        return -1 if head is None else max(self.partition_time, head[_TIMESTAMP])

    def waiting_at(self, offset: int) -> int:
        """Return how many of the next records have this offset: those of a pack share one."""
        heads = sum(1 for head in (self._head, self._head_beyond) if head is not None and head[_OFFSET] == offset)
        return heads + sum(
            1 for _ in takewhile(lambda raw: raw[RAW_OFFSET] == offset, chain(self.waiting, self._beyond))
        )

    def has_waiting(self) -> bool:
        """Return whether records follow the head; fetch a batch if none is waiting."""
        while not self.waiting and self._batches is not None:
            batch = next(self._batches, None)
            if batch is None:
                self._batches = None
            else:
                self.waiting.extend(batch)
        return bool(self.waiting)

    def _decode(self, raw: RawFields) -> Decoded | None:
        raw_key, raw_value, timestamp, offset, headers = raw
        try:
            key = None if raw_key is None else self._key_of(raw_key)
            value = None if raw_value is None else self._value_of(raw_value)
        # A schema registry did not answer: the record is not to blame, so no handler may skip it.
        except RegistryError:
            raise
        except USER_ERRORS as raised:
            error = as_exception(raised)
            serdes = f"key serde {self.node.key_serde.name} and value serde {self.node.value_serde.name}"
            reason = error.message if isinstance(error, StreamsError) else error
            message = f"Record cannot be decoded with {serdes}: {type(error).__name__}: {reason}"
            self.failures.undecodable(self.node.name, self.tp, RawRecord(*raw), error, message, hint_of(error))
            return None
        try:
            timestamp = self._extracted(raw, key, value)
        except RecordError as error:
            cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
            self.failures.undecodable(self.node.name, self.tp, RawRecord(*raw), cause, error.reason, error.hint)
            return None
        if timestamp < 0:
            self.context.drop(DropReason.INVALID_TIMESTAMP)
            return None
        return key, value, timestamp, offset, headers

    def _decode_and_keep(self, raw: RawFields) -> Decoded | None:
        self._source = RawRecord(*raw)
        return None if self.failures.leaves_out(self.tp, self._source) else self._decode(raw)

    def _entering(self, enter: Forward) -> Forward:
        def entered(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            self.context.source = self._source
            enter(key, value, timestamp, headers)

        return entered

    def event_time(self, raw: RawFields, key: Any, value: Any) -> int:
        """Return the extractor's time for a record, ms; below 0 if it fails, so that `decode` examines the failure."""
        try:
            return self._extracted(raw, key, value)
        except RecordError:
            return -1

    def _extracted(self, raw: RawFields, key: Any, value: Any) -> int:
        extract, (_, _, timestamp, offset, headers) = self.extractor, raw
        if extract is None:
            if timestamp < 0:
                # Of a pack that cannot be read, `packs.opened` makes one record with a negative time.
                if writer_of(headers) is not None:
                    raise damage_of(raw[RAW_VALUE])
                raise DeserializationError(NEGATIVE.format(timestamp), hint=USE_ANOTHER)
            return timestamp
        record = ConsumerRecord(key, value, timestamp, headers, *self.tp, offset)
        try:
            found = extract(record, self.partition_time)
        except (RecordError, RegistryError):  # as in `_decode`
            raise
        except USER_ERRORS as raised:
            error = as_exception(raised)
            message = f"Timestamp extractor of {self.node.name} failed: {type(error).__name__}: {error}"
            raise DeserializationError(message, hint=_NO_VALUE if value is None else None) from error
        if not is_time(found):
            message = f"Timestamp extractor of {self.node.name} returned {found!r}: event times are whole numbers of ms"
            raise DeserializationError(message)
        return found


@dataclass(slots=True)
class PartitionGroup:
    """Holds all inputs of a task. The head with the lowest event time comes next; equal times are ordered by input.

    Within one input the order of the log is kept, whatever the times.
    """

    _queues: dict[TopicPartition, RecordQueue] = field(default_factory=dict)
    _heap: list[tuple[int, TopicPartition]] = field(default_factory=list)
    _in_heap: set[TopicPartition] = field(default_factory=set)
    _idle_since: dict[TopicPartition, int] = field(default_factory=dict)
    waiting: tuple[int, tuple[TopicPartition, ...]] | None = None
    """Since when (ms) records wait for empty inputs, and for which; None if they do not. Set by `is_ready`."""

    def register(self, queue: RecordQueue) -> None:
        self._queues[queue.tp] = queue

    def of(self, tp: TopicPartition) -> RecordQueue | None:
        return self._queues.get(tp)

    def all(self) -> list[RecordQueue]:
        return list(self._queues.values())

    def limit(self, limits: Mapping[TopicPartition, int]) -> None:
        """Limit inputs to records before these offsets, and lift the limits of all others."""
        for tp, queue in self._queues.items():
            queue.limit(limits.get(tp))
        # Heads may have been put aside, or have come back.
        self._heap.clear()
        self._in_heap.clear()

    def only(self) -> RecordQueue | None:
        """Return the input if there is just one, and so nothing to choose."""
        return next(iter(self._queues.values())) if len(self._queues) == 1 else None

    def is_ready(self, max_idle_ms: int, now_ms: Callable[[], int]) -> bool:
        """Return whether the next record may be chosen now (`readyToProcess`).

        An input without records holds the others back while the broker may still have records for it, and then for
        `max.task.idle.ms`; below 0 it never does. Otherwise the order would depend on which fetch comes first.
        """
        # Asking for heads skips records that cannot be decoded, after which an input may be empty.
        heads = [queue.head() for queue in self._queues.values()]
        has_records = any(head is not None for head in heads)
        if max_idle_ms < 0:
            return has_records
        now = now_ms()
        empty = self._waited_for(max_idle_ms, now)
        if not (empty and has_records):
            self.waiting = None
        else:
            self.waiting = (now if self.waiting is None else self.waiting[0], tuple(empty))
        return has_records and not empty

    def _waited_for(self, max_idle_ms: int, now_ms: int) -> list[TopicPartition]:
        """Return the inputs without records that may still get some in time.

        An input's time runs from when its end was seen, even if no other input had records then.
        """
        empty = []
        for queue in self._queues.values():
            # A barrier's limit is the end of the input as long as the task pauses.
            if queue.is_at_limit():
                self._idle_since.pop(queue.tp, None)
            elif len(queue) or not queue.is_caught_up:
                self._idle_since.pop(queue.tp, None)
                if not len(queue):
                    empty.append(queue.tp)
            elif now_ms - self._idle_since.setdefault(queue.tp, now_ms) < max_idle_ms:
                empty.append(queue.tp)
        return empty

    def next_queue(self, latest_ms: int = MAX_TIME_MS) -> tuple[RecordQueue, int] | None:
        """Return the input whose head comes next, and the highest time (ms) up to which it precedes the others.

        None if no records wait, or only records later than `latest_ms`.
        """
        for tp, queue in self._queues.items():
            if tp not in self._in_heap and (head := queue.head()) is not None:
                heappush(self._heap, (head[_TIMESTAMP], tp))
                self._in_heap.add(tp)
        if not self._heap or self._heap[0][0] > latest_ms:
            return None
        _, tp = heappop(self._heap)
        self._in_heap.discard(tp)
        if not self._heap:
            return self._queues[tp], latest_ms
        return self._queues[tp], min(latest_ms, _before(tp, self._heap[0]))

    def in_order(self) -> Iterator[tuple[RecordQueue, int]]:
        """Yield the results of `next_queue` until nothing waits. At least one record is processed before the next step.

        For hosts that have all records of all inputs. There may be many inputs, so they are not all examined for each record.
        """
        self._heap.clear()
        self._in_heap.clear()
        heap = [(head[_TIMESTAMP], tp) for tp, queue in self._queues.items() if (head := queue.head()) is not None]
        heapify(heap)
        while heap:
            tp = heap[0][1]
            # The second lowest head of a heap is one of the two below its top.
            queue, others = self._queues[tp], heap[1:3]
            yield queue, _before(tp, min(others)) if others else MAX_TIME_MS
            head = queue.head()
            if head is None:
                heappop(heap)
            else:
                heapreplace(heap, (head[_TIMESTAMP], tp))


def _before(tp: TopicPartition, other: tuple[int, TopicPartition]) -> int:
    time, other_tp = other
    # Equal times are ordered by input, so the input that comes first may go up to the same time.
    return time if tp < other_tp else time - 1
