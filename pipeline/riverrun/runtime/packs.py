"""Packs: many records of a repartition topic in one, by which a bounded run passes them from one level to the next.

A record costs the client library microseconds to write and to read, and the broker a place in its log. A pack of hundreds costs
no more. It names the task that wrote it in its header, and holds its records by columns.

Readers of repartition topics take packs apart: the next level of the run, or the worker that continues an interrupted run. The
number of records that a task has taken of an unfinished pack is stored with the committed offset (`OffsetMetadata.taken`).

Headers are the user's, and may have any name. If the last one looks like that of a pack, another one guards the record. Every
sink to a repartition topic adds it, and every reader of one removes it, so no user's record is read as a pack.

What other programs write to a repartition topic is untrusted: a pack that does not hold complete records goes to the
deserialization handler as one record.
"""

from __future__ import annotations

from itertools import repeat
from operator import itemgetter
from struct import Struct
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from riverrun.decoders import msgpack_decoder
from riverrun.errors import DeserializationError, ProcessingError
from riverrun.records import RAW_HEADERS, RAW_OFFSET, RAW_VALUE, Headers, TaskId, check_headers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from riverrun.records import RawFields

PACK_HEADER = "__riverrun.pack"
"""The last header of records that are packs; its value names the writer."""
# The last header of records that are not packs, but whose own headers end like those of a pack, or with this one.
_PLAIN_HEADER = "__riverrun.plain"
# A record whose last header has one of these names needs a guard.
RESERVED = frozenset({PACK_HEADER, _PLAIN_HEADER})
_GUARD: tuple[str, bytes | None] = (_PLAIN_HEADER, None)
# No record has a negative time, so a pack that cannot be read reaches the deserialization handler.
DAMAGED_MS = -1
_LATEST_MS = 2**63 - 1
_WRITER = Struct(">ii")
_HEADERS = itemgetter(RAW_HEADERS)

# Keys, values, event times and headers; the latter are None if no record has any.
Columns: TypeAlias = tuple[list[bytes | None], list[bytes | None], list[int], list[Headers] | None]

# msgspec's errors are ValueErrors; headers that cannot be written are a ProcessingError.
_UNREADABLE = (ValueError, RecursionError, ProcessingError)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgpack_decoder(Columns).decode


def packed(
    keys: Sequence[bytes | None], values: Sequence[bytes | None], times: Sequence[int], headers: Sequence[Headers]
) -> bytes:
    """Return the value of a pack of one or more records, by columns.

    >>> unpacked(packed([b"a", b"b"], [b"1", None], [7, 5], [(), ()]))
    ([b'a', b'b'], [b'1', None], [7, 5], None)
    """
    return _encode((keys, values, times, headers if any(headers) else None))


def columns_of(value: bytes) -> Columns:
    """Return the columns of a pack that this process has written, unchecked."""
    columns: Columns = _decode(value)
    return columns


def unpacked(value: bytes) -> Columns:
    """Return the columns of a pack that may come from another program; raise one of `_UNREADABLE` if it is not complete."""
    columns = columns_of(value)
    keys, values, times, headers = columns
    if not len(keys) == len(values) == len(times) == (len(keys) if headers is None else len(headers)):
        raise ValueError(f"its columns are of {len(keys)} keys, {len(values)} values and {len(times)} times")
    if not times:
        raise ValueError("it holds no records")
    if max(times) > _LATEST_MS:
        raise ValueError("one of its times has more than 63 bits")
    for held in headers or ():
        check_headers(held)
    return columns


def guarded(headers: Headers) -> Headers:
    """Return the headers under which a record is written to a repartition topic, so that it is not taken for a pack.

    >>> guarded((("a", b"1"),))
    (('a', b'1'),)
    >>> unguarded(guarded((("__riverrun.pack", b"12345678"),)))
    (('__riverrun.pack', b'12345678'),)
    """
    return (*headers, _GUARD) if headers and headers[-1][0] in RESERVED else headers


def unguarded(headers: Headers) -> Headers:
    """Return the headers of a record that is not a pack as they were before it was written to a repartition topic."""
    return headers[:-1] if headers and headers[-1][0] == _PLAIN_HEADER else headers


def unguarded_records(records: Iterable[RawFields]) -> Iterable[RawFields]:
    """Return the records of a repartition topic with their headers as they were before."""
    records = records if isinstance(records, list) else list(records)
    if not _has_reserved(records):
        return records
    return [(*record[:RAW_HEADERS], unguarded(_HEADERS(record))) for record in records]


def _has_reserved(records: Iterable[RawFields]) -> bool:
    return any(headers[-1][0] in RESERVED for headers in map(_HEADERS, records) if headers)


def pack_header(writer: TaskId) -> Headers:
    return ((PACK_HEADER, _WRITER.pack(*writer)),)


def writer_of(headers: Headers) -> TaskId | None:
    """Return the task that wrote a pack; None for records that are not packs."""
    if not headers:
        return None
    name, writer = headers[-1]
    if name != PACK_HEADER or writer is None or len(writer) != _WRITER.size:
        return None
    sub_topology, partition = _WRITER.unpack(writer)
    return TaskId(sub_topology, partition) if sub_topology >= 0 <= partition else None


_DAMAGED = pack_header(TaskId(0, 0))


def opened(value: bytes | None, offset: int) -> Iterator[RawFields]:
    """Return the records of a pack, with its offset; of a damaged pack a single one, which no source can decode."""
    try:
        return records_of(unpacked(value or b""), repeat(offset))
    except _UNREADABLE:
        return iter([(None, value, DAMAGED_MS, offset, _DAMAGED)])


def damage_of(value: bytes | None) -> DeserializationError:
    """Describe why the value of a pack that does not open cannot be read."""
    try:
        unpacked(value or b"")
        reason: object = "its time is negative"
    except _UNREADABLE as error:
        reason = error
    message = f"The records that a run has packed cannot be read: {reason}"
    return DeserializationError(message, hint="The topic is the application's own: did another program write to it?")


def rest_of(value: bytes, taken: int) -> bytes:
    """Return a pack without its first records; a damaged pack, or one of fewer records, unchanged."""
    try:
        keys, values, times, headers = unpacked(value)
    except _UNREADABLE:
        return value
    if taken >= len(times):
        return value
    return _encode((keys[taken:], values[taken:], times[taken:], headers and headers[taken:]))


def records_of(columns: Columns, offsets: Iterable[int]) -> Iterator[RawFields]:
    """Return the records of a pack with the given offsets, usually that of the pack."""
    keys, values, times, headers = columns
    # Not strict: `repeat` has no end.
    return zip(keys, values, times, offsets, headers or repeat(()), strict=False)


class PackedInput:
    """Takes apart the packs of one input of a task, and tracks how much of a pack has been processed."""

    def __init__(self) -> None:
        self.begun = 0
        """Number of records of the first pack that were processed before."""
        self._begun_at = -1
        self._sizes: dict[int, int] = {}

    def begin(self, offset: int, taken: int) -> None:
        """Continue at an offset, after the given number of records of the pack there."""
        self._begun_at, self.begun = offset, taken

    def open(self, records: Sequence[RawFields]) -> Sequence[RawFields]:
        """Return the records, with packs replaced by their content."""
        if not _has_reserved(records):
            return records
        found: list[RawFields] = []
        for record in records:
            if writer_of(_HEADERS(record)) is None:
                found.append(record)
            else:
                found += self._open(record)
        return list(unguarded_records(found))

    def taken(self, offset: int, waiting: int) -> int:
        """Return how many records of the pack at an offset have been processed; `waiting` of them have not."""
        if offset not in self._sizes:
            return self.begun if offset == self._begun_at else 0
        self._sizes = {at: size for at, size in self._sizes.items() if at >= offset}
        return self._sizes[offset] - waiting

    def _open(self, record: RawFields) -> list[RawFields]:
        offset = record[RAW_OFFSET]
        members = list(opened(record[RAW_VALUE], offset))
        self._sizes[offset] = len(members)
        # The first ones were processed before, by the task that committed this offset.
        return members[self.begun :] if offset == self._begun_at else members
