"""The log of one partition: records and markers of transactions, by offset.

Records are entries of their own here, where brokers keep batches. A batch is only what one request appends: it is
accepted or refused as a whole.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import KafkaError

from riverrun.simulation.refusals import RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from riverrun.records import Headers

NO_PRODUCER = -1
_BATCH_BYTES, _RECORD_BYTES, _MARKER_BYTES = 61, 8, 78
"""About what a batch and a record take next to their keys, values and headers; and a marker."""
_REMEMBERED = 5
"""Batches of a producer that a broker recognizes when they are sent again."""
_SEQUENCES = 2**31


class NewRecord(NamedTuple):
    """A record that a producer sends."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers

    @property
    def size(self) -> int:
        """Return its bytes, about."""
        named = sum(len(name) + len(value or b"") for name, value in self.headers)
        return _RECORD_BYTES + len(self.key or b"") + len(self.value or b"") + named


@dataclass(frozen=True, slots=True)
class BatchWriter:
    """The writer of a batch.

    Args:
        producer_id: Its id; -1 without idempotence.
        epoch: Its epoch; earlier ones are fenced.
        sequence: The number of the batch's first record.
    """

    producer_id: int = NO_PRODUCER
    epoch: int = -1
    sequence: int = -1
    is_transactional: bool = False


@dataclass(slots=True)
class LogEntry:
    """A record in the log, or a marker, which ends a transaction.

    Args:
        commits: Whether a marker commits; None for a record.
        horizon_ms: The time from which the cleaner may remove a tombstone or a marker; None before it was cleaned once.
    """

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    size: int
    producer_id: int = NO_PRODUCER
    is_transactional: bool = False
    commits: bool | None = None
    horizon_ms: int | None = None

    @property
    def is_marker(self) -> bool:
        return self.commits is not None


class Aborted(NamedTuple):
    """An aborted transaction in a log, from its first record to its marker."""

    first: int
    marker: int


class _Batch(NamedTuple):
    first_sequence: int
    last_sequence: int
    offset: int
    timestamp_ms: int


@dataclass(slots=True)
class _Producer:
    """A producer, as a log knows it."""

    epoch: int
    seen_ms: int
    batches: deque[_Batch] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    open_from: int | None = None


class Appended(NamedTuple):
    """The first offset of a batch, and the time with which the broker stamped its records; None if it did not."""

    offset: int
    time_ms: int | None


@dataclass(slots=True)
class PartitionLog:
    """The log of a partition, without gaps but for those of the cleaner.

    Args:
        start: The first offset that exists.
        end: The next offset.
        segments: First offsets of the segments; only whole segments are deleted, and the last one is never cleaned.
        cleaned_to: Up to where the cleaner has worked.
    """

    start: int = 0
    end: int = 0
    entries: list[LogEntry] = field(default_factory=list)
    segments: list[int] = field(default_factory=lambda: [0])
    cleaned_to: int = 0
    _producers: dict[int, _Producer] = field(default_factory=dict)
    _aborted: dict[int, list[Aborted]] = field(default_factory=dict)
    _active_bytes: int = 0
    """Of the last segment."""

    @property
    def stable_end(self) -> int:
        """Return the last stable offset: the first one of an open transaction, or the end."""
        opened = [each.open_from for each in self._producers.values() if each.open_from is not None]
        return max(self.start, min(opened, default=self.end))

    @property
    def size(self) -> int:
        """Return the bytes of all entries."""
        return sum(entry.size for entry in self.entries)

    def append(
        self, records: Sequence[NewRecord], writer: BatchWriter, config: Mapping[str, str], now_ms: int
    ) -> Appended:
        """Append a batch; one that is there already is answered as it was the first time."""
        size = _BATCH_BYTES + sum(record.size for record in records)
        stamps = config["message.timestamp.type"] == "LogAppendTime"
        _check_records(records, size, config, None if stamps else now_ms)
        if writer.producer_id != NO_PRODUCER:
            duplicate = self._sequenced(writer, len(records))
            if duplicate is not None:
                return Appended(duplicate.offset, duplicate.timestamp_ms if stamps else None)
        latest_ms = now_ms if stamps else max(record.timestamp_ms for record in records)
        self._roll(size, latest_ms, config)
        first = self.end
        for record in records:
            time_ms = now_ms if stamps else record.timestamp_ms
            key, value, _, headers = record
            bytes_ = record.size + (_BATCH_BYTES if self.end == first else 0)
            self.entries.append(
                LogEntry(
                    self.end,
                    time_ms,
                    key,
                    value,
                    headers,
                    size=bytes_,
                    producer_id=writer.producer_id,
                    is_transactional=writer.is_transactional,
                )
            )
            self.end += 1
        self._active_bytes += size
        if writer.producer_id != NO_PRODUCER:
            self._note(writer, len(records), first, now_ms)
        return Appended(first, now_ms if stamps else None)

    def mark(self, producer_id: int, epoch: int, now_ms: int, *, commits: bool) -> None:
        """Append the marker that ends a producer's transaction."""
        producer = self._producers.setdefault(producer_id, _Producer(epoch, now_ms))
        if producer.open_from is not None and not commits:
            self._aborted.setdefault(producer_id, []).append(Aborted(producer.open_from, self.end))
        if epoch != producer.epoch:
            producer.batches.clear()
        producer.open_from, producer.epoch, producer.seen_ms = None, epoch, now_ms
        marker = LogEntry(self.end, now_ms, None, None, (), _MARKER_BYTES, producer_id=producer_id, commits=commits)
        self.entries.append(marker)
        self.end += 1

    def is_aborted(self, entry: LogEntry) -> bool:
        """Return whether a record belongs to an aborted transaction."""
        if not entry.is_transactional or entry.is_marker:
            return False
        ended = self._aborted.get(entry.producer_id, ())
        return any(first <= entry.offset < marker for first, marker in ended)

    def readable_end(self, *, committed: bool) -> int:
        """Return the end of what a reader may read."""
        return self.stable_end if committed else self.end

    def read(self, offset: int, count: int, *, committed: bool) -> tuple[list[LogEntry], int]:
        """Return records from an offset on, and the offset at which to continue: markers and gaps are passed over."""
        if not self.start <= offset <= self.end:
            raise RefusedError(KafkaError.OFFSET_OUT_OF_RANGE)
        limit = self.readable_end(committed=committed)
        found: list[LogEntry] = []
        for place in range(self.place(offset), len(self.entries)):
            entry = self.entries[place]
            if entry.offset >= limit:
                break
            if len(found) == count:
                return found, entry.offset
            if not entry.is_marker and not (committed and self.is_aborted(entry)):
                found.append(entry)
        return found, max(offset, limit)

    def place(self, offset: int) -> int:
        """Return where the first entry at or after an offset is."""
        if not self.entries or offset <= self.entries[0].offset:
            return 0
        return bisect_left(self.entries, offset, key=lambda entry: entry.offset)

    def offset_at(self, time_ms: int, *, committed: bool) -> int | None:
        """Return the first offset with this time or a later one, markers included; None if there is none to be read."""
        found = next((entry.offset for entry in self.entries if entry.timestamp_ms >= time_ms), None)
        return found if found is not None and found < self.readable_end(committed=committed) else None

    def delete_before(self, offset: int) -> None:
        """Raise the start of the log."""
        if offset > self.end:
            raise RefusedError(KafkaError.OFFSET_OUT_OF_RANGE)
        if offset > self.start:
            del self.entries[: self.place(offset)]
            self.start = offset
            rest = bisect_right(self.segments, offset) - 1
            del self.segments[: max(0, rest)]

    def segment_entries(self) -> list[tuple[int, int, list[LogEntry]]]:
        """Return first offset, end and entries of each segment."""
        ends = [*self.segments[1:], self.end]
        return [
            (first, end, self.entries[self.place(first) : self.place(end)])
            for first, end in zip(self.segments, ends, strict=True)
        ]

    def roll(self) -> None:
        """Begin a segment, unless the last one is empty."""
        if self.segments[-1] < self.end:
            self.segments.append(self.end)
            self._active_bytes = 0

    def forget_producers(self, before_ms: int) -> None:
        """Forget producers without an open transaction that have been silent since before a time."""
        for known, producer in list(self._producers.items()):
            if producer.open_from is None and producer.seen_ms < before_ms:
                del self._producers[known]

    def _roll(self, size: int, latest_ms: int, config: Mapping[str, str]) -> None:
        place = self.place(self.segments[-1])
        if place == len(self.entries):
            return
        is_full = self._active_bytes + size > int(config["segment.bytes"])
        if is_full or latest_ms - self.entries[place].timestamp_ms > int(config["segment.ms"]):
            self.roll()

    def _sequenced(self, writer: BatchWriter, count: int) -> _Batch | None:
        """Check the epoch and the sequence; return the batch if it was appended before."""
        known = self._producers.get(writer.producer_id)
        if known is None:
            return None
        if writer.epoch < known.epoch:
            raise RefusedError(KafkaError.INVALID_PRODUCER_EPOCH)
        if writer.epoch > known.epoch:
            if writer.sequence != 0:
                raise RefusedError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER)
            return None
        last = (writer.sequence + count - 1) % _SEQUENCES
        for batch in known.batches:
            if (batch.first_sequence, batch.last_sequence) == (writer.sequence, last):
                return batch
        expected = (known.batches[-1].last_sequence + 1) % _SEQUENCES if known.batches else 0
        if writer.sequence != expected:
            raise RefusedError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER)
        return None

    def _note(self, writer: BatchWriter, count: int, offset: int, now_ms: int) -> None:
        known = self._producers.get(writer.producer_id)
        if known is None or known.epoch != writer.epoch:
            open_from = None if known is None else known.open_from
            known = self._producers[writer.producer_id] = _Producer(writer.epoch, now_ms, open_from=open_from)
        known.seen_ms = now_ms
        known.batches.append(_Batch(writer.sequence, (writer.sequence + count - 1) % _SEQUENCES, offset, now_ms))
        if writer.is_transactional and known.open_from is None:
            known.open_from = offset


def _check_records(records: Sequence[NewRecord], size: int, config: Mapping[str, str], now_ms: int | None) -> None:
    """Refuse a batch for its size, or for one of its records; `now_ms` is None if the broker stamps them."""
    if size > int(config["max.message.bytes"]):
        raise RefusedError(KafkaError.MSG_SIZE_TOO_LARGE)
    if "compact" in config["cleanup.policy"] and any(record.key is None for record in records):
        raise RefusedError(KafkaError.INVALID_RECORD)
    if now_ms is None:
        return
    earliest = now_ms - int(config["message.timestamp.before.max.ms"])
    latest = now_ms + int(config["message.timestamp.after.max.ms"])
    if any(not earliest <= record.timestamp_ms <= latest for record in records):
        raise RefusedError(KafkaError.INVALID_TIMESTAMP)
