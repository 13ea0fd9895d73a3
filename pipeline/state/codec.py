"""How values lie in stores and changelogs (`ValueAndTimestampSerializer`, `ChangeLoggingTimestamped…Store`)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from pipeline.errors import SerializationError
from pipeline.records import ValueAndTimestamp
from pipeline.state.api import ChangelogRecord, StoreBuilder, StoreKind
from pipeline.state.folds import step
from pipeline.state.values import shown, stored_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pipeline.state.api import ChangelogBatch
    from pipeline.state.folds import Fold
    from pipeline.state.values import StoredValues

_TIME = struct.Struct(">q")
_made = tuple.__new__
"""Makes a named tuple in half the time of a call of its class."""


Writes: TypeAlias = "Mapping[bytes, bytes | None]"
"""Stored bytes by store key; None deletes."""

Folded: TypeAlias = "tuple[bytes | None, bytes | None, Any, Any, int]"
"""The result of adding a value: bytes stored before and now, the new aggregate, the old one if it is told, the time (ms)."""


class ValueCodec(Protocol):
    """Values of a store to bytes and back, and bytes of a store to changelog records and back."""

    @property
    def values(self) -> StoredValues:
        """The values alone, without times."""
        ...

    def encode(self, key: Any, value: Any) -> bytes:
        """Return the value of a key as it lies in the store."""
        ...

    def decode(self, key: Any, data: bytes) -> Any:
        """The value of a key back."""
        ...

    def joined(self, data: bytes, time: int) -> bytes:
        """The bytes of a value, and its time (ms), as both lie in the store."""
        ...

    def split(self, data: bytes) -> tuple[bytes, int]:
        """The bytes of the value that lies in the store so, and its time (ms); 0 if values have none."""
        ...

    def parts(self, key: Any, value: Any) -> tuple[Any, int]:
        """Return the value of a key without its time, and that time (ms); 0 if values have none."""
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

    def decode(self, key: Any, data: bytes) -> Any:
        """The value back."""
        try:
            return self.values.deserialize(data)
        except Exception as error:
            raise self.values.unreadable(key, data, error) from error

    def joined(self, data: bytes, time: int) -> bytes:  # noqa: ARG002 - there is none
        """The value."""
        return data

    def split(self, data: bytes) -> tuple[bytes, int]:
        """There is no time."""
        return data, 0

    def parts(self, key: Any, value: Any) -> tuple[Any, int]:  # noqa: ARG002 - as all codecs
        """There is no time."""
        return value, 0

    def whole(self, value: Any, time: int) -> Any:  # noqa: ARG002 - there is none
        """The value."""
        return value

    def to_changelog(self, writes: Writes, times: Mapping[bytes, int]) -> Iterator[ChangelogRecord]:
        """Return the bytes unchanged."""
        return (ChangelogRecord(key, data, times[key]) for key, data in writes.items())

    def from_changelog(self, batch: ChangelogBatch) -> Iterable[bytes | None]:
        """Return the bytes unchanged."""
        return batch.values()


@dataclass(frozen=True, slots=True)
class TimestampedCodec:
    """`int64 timestamp ++ value` in the store; in the changelog the timestamp is the record's own."""

    values: StoredValues

    def encode(self, key: Any, value: ValueAndTimestamp[Any]) -> bytes:
        """Timestamp, then value."""
        try:
            time = _TIME.pack(value[1])
        except Exception as error:
            raise self._untimed(key, value) from error
        return time + self.values.encode(key, value[0])

    def joined(self, data: bytes, time: int) -> bytes:
        """Join value and time that are apart."""
        return _TIME.pack(time) + data

    def decode(self, key: Any, data: bytes) -> ValueAndTimestamp[Any]:
        """Both back."""
        try:
            return _made(ValueAndTimestamp, (self.values.deserialize(data[8:]), _TIME.unpack_from(data)[0]))
        except Exception as error:
            raise self.values.unreadable(key, data, error) from error

    def split(self, data: bytes) -> tuple[bytes, int]:
        """Both apart."""
        return data[8:], _TIME.unpack_from(data)[0]

    def parts(self, key: Any, value: ValueAndTimestamp[Any]) -> tuple[Any, int]:
        """It consists of them.

        Raises:
            SerializationError: If it is something else.
        """
        if value.__class__ is not ValueAndTimestamp and not _is_timed(value):
            raise self._untimed(key, value)
        return value

    def whole(self, value: Any, time: int) -> ValueAndTimestamp[Any]:
        """Both."""
        return _made(ValueAndTimestamp, (value, time))

    def _untimed(self, key: Any, value: Any) -> SerializationError:
        message = f"Store {self.values.store} keeps values with their times, not the {type(value).__name__} of key {shown(key)}"
        return SerializationError(message, hint="Put ValueAndTimestamp(value, time in ms).")

    def folding(self, fold: Fold, *, tells_old: bool) -> Callable[[bytes | None, Any, Any, int], Folded]:
        """Return a function of stored bytes, or None, and a record's key, value and timestamp (ms) that adds the value.

        The time is the highest so far. A first value replaces nothing: the old aggregate is None then.

        Args:
            fold: What the aggregation does.
            tells_old: Whether the old aggregate is told. It is decoded anew: `add` may change its argument.
        """
        values = self.values
        encode, decode, shared = values.serialize, values.deserialize, values.shared
        time_of, time_bytes = _TIME.unpack_from, _TIME.pack

        def folded(data: bytes | None, key: Any, value: Any, timestamp: int) -> Folded:
            known, time, old = None, timestamp, None
            if data is not None:
                (time,) = time_of(data)
                try:
                    known = decode(data[8:])
                except Exception as error:
                    raise values.unreadable(key, data, error) from error
            new, timestamp = step(fold, key, value, timestamp, known, time)
            if tells_old and data is not None:
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


def _is_timed(value: Any) -> bool:
    """Whether something may stand for a value and its time."""
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], int)  # noqa: PLR2004 - these two


def codec_of(builder: StoreBuilder) -> ValueCodec:
    """The codec of a store."""
    values = stored_values(builder)
    if builder.kind in {StoreKind.TIMESTAMPED_KEY_VALUE, StoreKind.TIMESTAMPED_WINDOW}:
        return TimestampedCodec(values)
    return PlainCodec(values)
