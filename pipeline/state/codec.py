"""How values lie in stores and changelogs (`ValueAndTimestampSerializer`, `ChangeLoggingTimestamped…Store`)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from pipeline.records import ValueAndTimestamp
from pipeline.state.api import ChangelogRecord, StoreBuilder, StoreKind
from pipeline.state.values import stored_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pipeline.state.api import ChangelogBatch
    from pipeline.state.values import StoredValues

_TIME = struct.Struct(">q")
_made = tuple.__new__
"""Makes a named tuple in half the time of a call of its class."""


class Fold(Protocol):
    """What an aggregation does with a value."""

    @property
    def add(self) -> Callable[[Any, Any, Any], Any]:
        """`(key, value, aggregate) -> aggregate`; None deletes."""
        ...

    def first(self, key: Any, value: Any) -> Any:
        """The aggregate of a key's first value."""
        ...


Writes: TypeAlias = "Mapping[bytes, bytes | None]"
"""Stored bytes by store key; None deletes."""

Folded: TypeAlias = "tuple[bytes | None, bytes | None, Any, Any, int]"
"""What adding a value gives: bytes stored before and now, the new aggregate, the old one if it is told, the time (ms)."""


class ValueCodec(Protocol):
    """Values of a store to bytes and back, and bytes of a store to changelog records and back."""

    @property
    def values(self) -> StoredValues:
        """The values alone, without times."""
        ...

    def encode(self, key: Any, value: Any) -> bytes:
        """A key's value as it lies in the store."""
        ...

    def decode(self, data: bytes) -> Any:
        """The value back."""
        ...

    def joined(self, data: bytes, time: int) -> bytes:
        """The bytes of a value, and its time (ms), as both lie in the store."""
        ...

    def split(self, data: bytes) -> tuple[bytes, int]:
        """The bytes of the value that lies in the store so, and its time (ms); 0 if values have none."""
        ...

    def parts(self, value: Any) -> tuple[Any, int]:
        """A value without its time, and that time (ms); 0 if values have none."""
        ...

    def whole(self, value: Any, time: int) -> Any:
        """Both together."""
        ...

    def to_changelog(self, writes: Writes, times: Mapping[bytes, int]) -> Iterator[ChangelogRecord]:
        """Stored bytes by key as changelog records; `times` (ms) are those of the updates."""
        ...

    def from_changelog(self, batch: ChangelogBatch) -> Iterable[bytes | None]:
        """The values of changelog records as stored bytes."""
        ...


@dataclass(frozen=True, slots=True)
class PlainCodec:
    """Values as their serde writes them."""

    values: StoredValues

    def encode(self, key: Any, value: Any) -> bytes:
        """The value."""
        return self.values.encode(key, value)

    def decode(self, data: bytes) -> Any:
        """The value back."""
        return self.values.deserialize(data)

    def joined(self, data: bytes, time: int) -> bytes:  # noqa: ARG002 - there is none
        """The value."""
        return data

    def split(self, data: bytes) -> tuple[bytes, int]:
        """There is no time."""
        return data, 0

    def parts(self, value: Any) -> tuple[Any, int]:
        """There is no time."""
        return value, 0

    def whole(self, value: Any, time: int) -> Any:  # noqa: ARG002 - there is none
        """The value."""
        return value

    def to_changelog(self, writes: Writes, times: Mapping[bytes, int]) -> Iterator[ChangelogRecord]:
        """The same bytes."""
        return (ChangelogRecord(key, data, times[key]) for key, data in writes.items())

    def from_changelog(self, batch: ChangelogBatch) -> Iterable[bytes | None]:
        """The same bytes."""
        return batch.values()


@dataclass(frozen=True, slots=True)
class TimestampedCodec:
    """`int64 timestamp ++ value` in the store; in the changelog the timestamp is the record's own."""

    values: StoredValues

    def encode(self, key: Any, value: ValueAndTimestamp[Any]) -> bytes:
        """Timestamp, then value."""
        return _TIME.pack(value[1]) + self.values.encode(key, value[0])

    def joined(self, data: bytes, time: int) -> bytes:
        """The same, of both apart."""
        return _TIME.pack(time) + data

    def decode(self, data: bytes) -> ValueAndTimestamp[Any]:
        """Both back."""
        return _made(ValueAndTimestamp, (self.values.deserialize(data[8:]), _TIME.unpack_from(data)[0]))

    def split(self, data: bytes) -> tuple[bytes, int]:
        """Both apart."""
        return data[8:], _TIME.unpack_from(data)[0]

    def parts(self, value: ValueAndTimestamp[Any]) -> tuple[Any, int]:
        """It consists of them."""
        return value

    def whole(self, value: Any, time: int) -> ValueAndTimestamp[Any]:
        """Both."""
        return _made(ValueAndTimestamp, (value, time))

    def folding(self, fold: Fold, *, tells_old: bool) -> Callable[[bytes | None, Any, Any, int], Folded]:
        """A function of stored bytes, or None, and a record's key, value and timestamp (ms) that adds the value.

        The time is the highest so far. A first value replaces nothing: the old aggregate is None then.

        Args:
            fold: What the aggregation does.
            tells_old: Whether the old aggregate is told. It is decoded anew: `add` may change its argument.
        """
        first, add, values = fold.first, fold.add, self.values
        encode, decode, shared = values.serialize, values.deserialize, values.shared
        time_of, time_bytes = _TIME.unpack_from, _TIME.pack

        def folded(data: bytes | None, key: Any, value: Any, timestamp: int) -> Folded:
            old = None
            if data is None:
                new = first(key, value)
            else:
                (time,) = time_of(data)
                if time > timestamp:
                    timestamp = time
                new = add(key, value, decode(data[8:]))
                if tells_old:
                    old = decode(data[8:])
            if new is None:
                return data, None, None, old, timestamp
            try:
                written = encode(new)
            except Exception as error:
                raise values.refused(key, new, error) from error
            if new.__class__ not in shared:
                values.verify(key, new, written)
            return data, time_bytes(timestamp) + written, new, old, timestamp

        return folded

    def to_changelog(self, writes: Writes, times: Mapping[bytes, int]) -> Iterator[ChangelogRecord]:
        """The raw value at its own timestamp; a tombstone at that of the update."""
        time_of = _TIME.unpack_from
        for key, data in writes.items():
            if data is None:
                yield ChangelogRecord(key, None, times[key])
            else:
                yield _made(ChangelogRecord, (key, data[8:], time_of(data)[0], ()))

    def from_changelog(self, batch: ChangelogBatch) -> Iterable[bytes | None]:
        """Each record's timestamp before its value."""
        pack, rows = _TIME.pack, zip(batch.values(), batch.timestamps(), strict=True)
        return [None if value is None else pack(timestamp) + value for value, timestamp in rows]


def codec_of(builder: StoreBuilder) -> ValueCodec:
    """The codec of a store."""
    values = stored_values(builder)
    if builder.kind in {StoreKind.TIMESTAMPED_KEY_VALUE, StoreKind.TIMESTAMPED_WINDOW}:
        return TimestampedCodec(values)
    return PlainCodec(values)
