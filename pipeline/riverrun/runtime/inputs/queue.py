"""The records of one input that a task still has to process."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from itertools import chain, takewhile
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from riverrun.errors import USER_ERRORS, BrokerError, DeserializationError, RecordError, StreamsError, as_exception
from riverrun.processor.drops import DropReason
from riverrun.processor.timestamps import NEGATIVE, USE_ANOTHER, WallclockTimestampExtractor
from riverrun.records import RAW_OFFSET, RAW_VALUE, ConsumerRecord, RawRecord
from riverrun.runtime.choices import is_time
from riverrun.runtime.inputs.packs import damage_of, writer_of
from riverrun.serde.api import hint_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from riverrun.processor.timestamps import TimestampExtractor
    from riverrun.records import Headers, RawFields, TopicPartition
    from riverrun.runtime.context import TaskContext
    from riverrun.runtime.failures import Failures
    from riverrun.topology.nodes import SourceNode

    Forward = Callable[[Any, Any, int, Headers], None]

Decoded: TypeAlias = "tuple[Any, Any, int, int, Headers]"
"""A record that a source has decoded: key, value, event time (ms), offset, headers. A plain tuple, for speed."""
Loop: TypeAlias = "Callable[[RecordQueue, int, int], int]"
"""`(queue, limit, last_time_ms) -> done`: processes up to `limit` records of a queue, none later; returns their number."""
_TIMESTAMP: Final = 2
_OFFSET: Final = 3


@dataclass(slots=True)
class RecordQueue:
    """The records of one input, in the order of the log. Only the head is decoded.

    Args:
        tp: The partition of the records.
        node: The source that reads it.
        enter: Takes its records into the operators.
        context: The task's counters.
        failures: Handles records that cannot be decoded.
        extractor: Finds the event time if the source has no extractor; None takes the record's own timestamp.
        loop: Takes waiting records through the operators in one go, if the task may.
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
        """Bind the serdes; keep the head as it was read if a handler may ask for it."""
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
        """Return the number of records waiting, without those beyond a limit."""
        return len(self.waiting) + (self._head is not None)

    def buffered(self) -> int:
        """Return the number of records in memory."""
        return len(self) + len(self._beyond) + (self._head_beyond is not None)

    def add(self, records: Iterable[RawFields]) -> None:
        """Append records; they must follow those already there."""
        self.waiting.extend(records if self._limit is None else self._within(records, self._limit))
        self.is_caught_up = False

    def limit(self, offset: int | None) -> None:
        """Put aside the records at and after an offset, as if they had not been added, until the limit changes.

        Args:
            offset: The limit; 0 holds the input where it is, and None lifts the limit.
        """
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
        """Return whether there is a limit, and no record can come before it any more."""
        if self._limit is None or len(self):
            return False
        return self._first_beyond() >= self._limit

    def _first_beyond(self) -> int:
        """Return the offset of the first record that is put aside; without any, the one to continue from, -1 if unknown."""
        if self._head_beyond is not None:
            return self._head_beyond[_OFFSET]
        return self._beyond[0][RAW_OFFSET] if self._beyond else max(self.next_offset, self._end)

    def _within(self, records: Iterable[RawFields], limit: int) -> list[RawFields]:
        """Put aside the records that are not before the limit; return the others."""
        within: list[RawFields] = []
        for record in records:
            (within if record[RAW_OFFSET] < limit else self._beyond).append(record)
        return within

    def add_batches(self, batches: Iterator[Iterable[RawFields]]) -> None:
        """Append batches of records, which are fetched when those at hand have been processed."""
        self._batches = batches

    def reached_end(self, offset: int) -> None:
        """Note that the host has read all records up to `offset`, so that waiting yields no more."""
        self.is_caught_up = True
        self._end = offset

    def head(self) -> Decoded | None:
        """Return the next record, decoded; records that cannot be decoded are skipped on the way, if so configured."""
        while self._head is None and self.has_waiting():
            raw = self.waiting.popleft()
            self._head = self.decode(raw)
            if self._head is None:
                self.next_offset = raw[RAW_OFFSET] + 1
                self.context.has_skipped = True
        return self._head

    def pop(self) -> Decoded | None:
        """Remove and return the next record."""
        record = self._head or self.head()
        if record is not None:
            self._head = None
            self.next_offset = record[_OFFSET] + 1
            if record[_TIMESTAMP] > self.partition_time:
                self.partition_time = record[_TIMESTAMP]
        return record

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
        return max(self.next_offset, self._end)  # markers and gaps may follow the last record

    def next_time(self) -> int:
        """Return the event time (ms) to which the next record brings the input; -1 if none is at hand."""
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
        """Return whether there are records behind the head; fetch some if there are none at hand."""
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
        except BrokerError:  # raised by a schema registry: the record is not to blame
            raise
        except USER_ERRORS as raised:  # serdes are the user's, and the handler decides
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
        return self._decode(raw)

    def _entering(self, enter: Forward) -> Forward:
        """Enter a node with the input record, as it was read, known meanwhile."""

        def entered(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            self.context.source = self._source
            enter(key, value, timestamp, headers)

        return entered

    def event_time(self, raw: RawFields, key: Any, value: Any) -> int:
        """Return the extractor's time for a record, ms; less than 0 if it fails, so that `decode` examines the failure."""
        try:
            return self._extracted(raw, key, value)
        except RecordError:
            return -1

    def _extracted(self, raw: RawFields, key: Any, value: Any) -> int:
        """Return the event time of a record, ms.

        Raises:
            DeserializationError: If the extractor fails, or returns no time.
        """
        extract, (_, _, timestamp, offset, headers) = self.extractor, raw
        if extract is None:
            if timestamp < 0:
                if writer_of(headers) is not None:
                    raise damage_of(raw[RAW_VALUE])
                raise DeserializationError(NEGATIVE.format(timestamp), hint=USE_ANOTHER)
            return timestamp
        record = ConsumerRecord(key, value, timestamp, headers, *self.tp, offset)
        try:
            found = extract(record, self.partition_time)
        except RecordError:
            raise
        except USER_ERRORS as raised:
            error = as_exception(raised)
            message = f"Timestamp extractor of {self.node.name} failed: {type(error).__name__}: {error}"
            raise DeserializationError(message) from error
        if not is_time(found):
            message = f"Timestamp extractor of {self.node.name} gave {found!r}: event times are whole numbers of ms"
            raise DeserializationError(message)
        return found
