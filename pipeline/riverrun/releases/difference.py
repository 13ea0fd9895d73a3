"""Index on disk of the rows of two topics, side by side by key, and of the keys under which they differ.

Callers feed it records; it reads nothing itself. It has a table for the rows of each side, and one for the differing keys.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from riverrun.decoders import msgpack_decoder
from riverrun.errors import ReleaseError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from riverrun.records import Headers, RawFields, TopicPartition
    from riverrun.state.api import StateBackend

# Digests divide the keys of a partition by their hashes, to show in how many ranges the topics differ.
RANGES = 16
_DIFFERING, _NOTES = "differing", "notes"
# Big-endian, so that scans are sorted by partition.
_PARTITION = struct.Struct(">I")
_ROW = struct.Struct(">qI")
_HEADERS = msgpack_decoder(tuple[tuple[str, bytes | None], ...])
_ENCODED = msgspec.msgpack.Encoder()
_WHOLE = (1 << 64) - 1


class Side(Enum):
    """One of the two topics: `old` is to become equal to `new`."""

    OLD = "old"
    NEW = "new"


class KeyChange(Enum):
    """Comparison of a key's new row to its old one."""

    SAME = "same"
    CHANGED = "changed"
    NEW = "new"
    GONE = "gone"


class TableRow(NamedTuple):
    """The last value of a key, the time (ms) of its last change, and its headers."""

    value: bytes
    timestamp: int
    headers: Headers = ()


class Pair(NamedTuple):
    """The rows of both topics under one key; None where a topic has none."""

    partition: int
    key: bytes
    old: TableRow | None
    new: TableRow | None

    @property
    def change(self) -> KeyChange:
        """How the rows compare. Equal values with different times or headers count as equal."""
        if self.old is None:
            return KeyChange.NEW
        if self.new is None:
            return KeyChange.GONE
        return KeyChange.SAME if self.old.value == self.new.value else KeyChange.CHANGED


@dataclass(frozen=True, slots=True)
class Digests:
    """Sums over the rows of both topics by partition and range of keys' hashes: equal sums mean equal rows."""

    old: Mapping[tuple[int, int], int]
    new: Mapping[tuple[int, int], int]

    @property
    def unequal(self) -> tuple[tuple[int, int], ...]:
        """The partitions and ranges in which the topics differ, sorted."""
        return tuple(sorted(w for w in self.old.keys() | self.new.keys() if self.old.get(w) != self.new.get(w)))

    def of(self, side: Side) -> str:
        """Return one digest of a whole topic: 16 hex digits."""
        sums = self.old if side is Side.OLD else self.new
        return hashlib.sha256(repr(sorted(sums.items())).encode()).hexdigest()[:16]


class DifferenceIndex:
    """Stores the rows of two topics by partition and key."""

    def __init__(self, backend: StateBackend) -> None:
        self._backend = backend
        self._tables = {side: backend.table(side.value) for side in Side}
        self._differing = backend.table(_DIFFERING)
        self._notes = backend.table(_NOTES)

    def apply(self, side: Side, tp: TopicPartition, records: Iterable[RawFields], position: int) -> None:
        """Add records of one partition, in the order of its log; `position` is their end offset (exclusive)."""
        prefix = _PARTITION.pack(tp.partition)
        rows: dict[bytes, bytes | None] = {}
        for key, value, timestamp, offset, headers in records:
            if key is None:
                raise keyless(tp, offset)
            rows[prefix + key] = None if value is None else _encoded(value, timestamp, headers)
        other = self._tables[Side.NEW if side is Side.OLD else Side.OLD].get
        is_differing = self._differing.get
        differing: dict[bytes, bytes | None] = {}
        for where, row in rows.items():
            if _value(row) != _value(other(where)):
                differing[where] = b""
            elif is_differing(where) is not None:
                differing[where] = None
        # One write: however the process ends, rows, differing keys and position belong to the same point of the topics.
        self._backend.write({side.value: rows, _DIFFERING: differing}, {tp: position})

    def differences(self) -> Iterator[Pair]:
        """Return the rows that differ, sorted by partition and key."""
        old, new = self._tables[Side.OLD].get, self._tables[Side.NEW].get
        for where, _ in self._differing.scan(None, None):
            yield _pair(where, old(where), new(where))

    def rows(self) -> Iterator[Pair]:
        """Return the rows of both topics, sorted by partition and key."""
        old, new = (self._tables[side].scan(None, None) for side in Side)
        ours, theirs = next(old, None), next(new, None)
        while ours is not None or theirs is not None:
            if theirs is None or (ours is not None and ours[0] < theirs[0]):
                assert ours is not None  # noqa: S101 - for the type checker
                yield _pair(ours[0], ours[1], None)
                ours = next(old, None)
            elif ours is None or theirs[0] < ours[0]:
                yield _pair(theirs[0], None, theirs[1])
                theirs = next(new, None)
            else:
                yield _pair(ours[0], ours[1], theirs[1])
                ours, theirs = next(old, None), next(new, None)

    def digests(self) -> Digests:
        """Return the digests of both topics; reads all rows."""
        sums: dict[Side, dict[tuple[int, int], int]] = {Side.OLD: {}, Side.NEW: {}}
        for side, table in self._tables.items():
            mine = sums[side]
            for where, row in table.scan(None, None):
                (partition,) = _PARTITION.unpack_from(where)
                part, number = _hashes(where, _value(row) or b"")
                mine[partition, part] = (mine.get((partition, part), 0) + number) & _WHOLE
        return Digests(sums[Side.OLD], sums[Side.NEW])

    def positions(self) -> dict[TopicPartition, int]:
        """Return the offset of each partition up to which its records have been added."""
        return self._backend.positions()

    def note(self, name: str, value: int) -> None:
        """Store a number next to the rows."""
        self._backend.write({_NOTES: {name.encode(): str(value).encode()}}, {})

    def noted(self, name: str) -> int | None:
        """Return a stored number; None if there is none."""
        found = self._notes.get(name.encode())
        return None if found is None else int(found)


def _encoded(value: bytes, timestamp: int, headers: Headers) -> bytes:
    written = _ENCODED.encode(headers) if headers else b""
    return _ROW.pack(timestamp, len(written)) + written + value


def _value(row: bytes | None) -> bytes | None:
    if row is None:
        return None
    _, length = _ROW.unpack_from(row)
    return row[_ROW.size + length :]


def _row(row: bytes | None) -> TableRow | None:
    if row is None:
        return None
    timestamp, length = _ROW.unpack_from(row)
    end = _ROW.size + length
    return TableRow(row[end:], timestamp, _HEADERS.decode(row[_ROW.size : end]) if length else ())


def _pair(where: bytes, old: bytes | None, new: bytes | None) -> Pair:
    (partition,) = _PARTITION.unpack_from(where)
    return Pair(partition, where[_PARTITION.size :], _row(old), _row(new))


def _hashes(where: bytes, value: bytes) -> tuple[int, int]:
    """Return the range that a key belongs to, and the number that represents its row."""
    # A digest can be taken on the way: the first is of the key, the second of key and value.
    key = hashlib.blake2b(where, digest_size=8)
    part = key.digest()[0] % RANGES
    key.update(value)
    return part, int.from_bytes(key.digest(), "big")


def keyless(tp: TopicPartition, offset: int) -> ReleaseError:
    """Return the error for a record without a key in a topic that is a table."""
    message = f"{tp} has a record without a key at offset {offset}: {tp.topic} cannot be compared as a table"
    hint = 'If each record counts, declare the public topic a log: [apps.NAME.outputs] "TOPIC" = "log".'
    return ReleaseError(message, hint=hint)
