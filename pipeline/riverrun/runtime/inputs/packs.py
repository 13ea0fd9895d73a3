"""Packs: many records of a repartition topic in one, by which a bounded run passes them from one level to the next.

A record costs the client library microseconds to write and to read, and the broker a place in its log. A pack of hundreds costs
no more. It names the task that wrote it in its header, and holds its records by columns.

Readers of repartition topics take packs apart: the next level of the run, or the worker that continues an interrupted run. The
number of records that a task has taken of an unfinished pack is stored with the committed offset (`OffsetMetadata.taken`).
"""

from __future__ import annotations

from itertools import repeat
from operator import itemgetter
from struct import Struct
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from riverrun.decoders import msgpack_decoder
from riverrun.errors import DeserializationError
from riverrun.records import RAW_HEADERS, RAW_OFFSET, RAW_VALUE, Headers, TaskId

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from riverrun.records import RawFields, TopicPartition

PACK_HEADER = "__riverrun.pack"
"""The last header of records that are packs; its value names the writer."""
_WRITER = Struct(">ii")
_HEADERS = itemgetter(RAW_HEADERS)

Columns: TypeAlias = tuple[list[bytes | None], list[bytes | None], list[int], list[Headers] | None]
"""Keys, values, event times and headers of a pack's records; headers are None if no record has any."""

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


def unpacked(value: bytes) -> Columns:
    """Return the columns of a pack.

    Raises:
        msgspec.MsgspecError: If the value is not a pack.
    """
    columns: Columns = _decode(value)
    return columns


def pack_header(writer: TaskId) -> Headers:
    """Return the headers of a pack."""
    return ((PACK_HEADER, _WRITER.pack(*writer)),)


def writer_of(headers: Headers) -> TaskId | None:
    """Return the task that wrote a pack; None for records that are no packs."""
    if not headers:
        return None
    name, writer = headers[-1]
    if name != PACK_HEADER or writer is None or len(writer) != _WRITER.size:
        return None
    return TaskId(*_WRITER.unpack(writer))


def opened(value: bytes, tp: TopicPartition, offset: int) -> Columns:
    """Return the columns of a pack read from a partition.

    Raises:
        DeserializationError: If the pack is damaged.
    """
    try:
        return unpacked(value)
    except msgspec.MsgspecError as error:
        message = f"The records that a run has packed cannot be read: {error}"
        hint = "The topic is the application's own: did another program write to it?"
        raise DeserializationError(message, topic=tp.topic, partition=tp.partition, offset=offset, hint=hint) from error


def rest_of(columns: Columns, taken: int) -> bytes:
    """Return a pack without its first records."""
    keys, values, times, headers = columns
    return _encode((keys[taken:], values[taken:], times[taken:], headers and headers[taken:]))


def records_of(columns: Columns, offsets: Iterable[int]) -> Iterator[RawFields]:
    """Return the records of a pack with the given offsets, usually that of the pack."""
    keys, values, times, headers = columns
    return zip(keys, values, times, offsets, headers or repeat(()), strict=False)  # `repeat` has no end


class PackedInput:
    """Takes apart the packs of one input of a task, and tracks how much of a pack has been processed.

    Args:
        tp: The input.
    """

    def __init__(self, tp: TopicPartition) -> None:
        """Start before any pack."""
        self._tp = tp
        self.begun = 0
        """Number of records of the first pack that were processed before."""
        self._begun_at = -1
        self._sizes: dict[int, int] = {}

    def begin(self, offset: int, taken: int) -> None:
        """Continue at an offset, after the given number of records of the pack there."""
        self._begun_at, self.begun = offset, taken

    def open(self, records: Sequence[RawFields]) -> Sequence[RawFields]:
        """Return the records, with packs replaced by their content.

        Raises:
            DeserializationError: If a pack is damaged.
        """
        if not any(map(_HEADERS, records)):
            return records
        found: list[RawFields] = []
        for record in records:
            if writer_of(_HEADERS(record)) is None:
                found.append(record)
            else:
                found += self._open(record)
        return found

    def taken(self, offset: int, waiting: int) -> int:
        """Return how many records of the pack at an offset have been processed.

        Args:
            offset: Offset of the next record to process.
            waiting: Number of records of that offset that are still to be processed.
        """
        if offset not in self._sizes:
            return self.begun if offset == self._begun_at else 0
        self._sizes = {at: size for at, size in self._sizes.items() if at >= offset}
        return self._sizes[offset] - waiting

    def _open(self, record: RawFields) -> list[RawFields]:
        offset = record[RAW_OFFSET]
        members = list(records_of(opened(record[RAW_VALUE] or b"", self._tp, offset), repeat(offset)))
        self._sizes[offset] = len(members)
        return members[self.begun :] if offset == self._begun_at else members
