"""Byte forms of keys and values in stores and changelogs (`ValueAndTimestampSerializer`, `ChangeLoggingTimestamped…Store`)."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from riverrun.errors import DeserializationError, RegistryError, SerializationError, StreamsError
from riverrun.records import ValueAndTimestamp
from riverrun.serde.api import hint_of, refusal
from riverrun.state.api import ChangelogRecord, StoreBuilder, StoreKind
from riverrun.state.folds import step
from riverrun.state.values import shown, stored_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from riverrun.serde.api import Serde
    from riverrun.state.api import ChangelogBatch
    from riverrun.state.folds import Fold
    from riverrun.state.values import StoredValues


@dataclass(slots=True, eq=False)
class StoredKeys:
    """Converts the keys of one store to bytes and back; errors of the serde name store, key and serde.

    Functions that run for each record call `serialize`, and raise what `refused` returns if it fails. `written` would cost
    one more call.
    """

    store: str
    serde: Serde[Any]
    serialize: Callable[[Any], bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.serialize = self.serde.serialize

    def written(self, key: Any) -> bytes:
        try:
            return self.serialize(key)
        except Exception as error:  # a serde may raise anything
            raise self.refused(key, error) from error

    def read(self, data: bytes) -> Any:
        try:
            return self.serde.deserialize(data)
        except RegistryError:  # an error of a schema registry
            raise
        except Exception as error:  # a serde may raise anything
            why = refusal(self.serde, error)
            message = f"Store {self.store} cannot read the key {shown(data)}: {why}"
            raise DeserializationError(message, hint="Give the store the serde that has written its keys.") from error

    def refused(self, key: Any, error: Exception) -> StreamsError:
        """Return the error about a key that the serde cannot write; an error of a schema registry is returned unchanged."""
        if isinstance(error, RegistryError):
            return error
        why = refusal(self.serde, error)
        message = f"Store {self.store} cannot take the {type(key).__name__} key {shown(key)}: {why}"
        return SerializationError(
            message, hint=hint_of(error) or "Give the store a serde for such keys, or keys that its serde writes."
        )


def stored_keys(builder: StoreBuilder) -> StoredKeys:
    return StoredKeys(builder.name, builder.key_serde)


_TIME = struct.Struct(">q")
# Makes a named tuple in half the time of a call of its class.
_made = tuple.__new__


Writes: TypeAlias = "Mapping[bytes, bytes | None]"
"""Stored bytes by store key; None deletes."""

Folded: TypeAlias = "tuple[bytes | None, bytes | None, Any, Any, int]"
"""Result of adding a value: bytes stored before and now, the new aggregate, the old one if requested, the time (ms)."""


class ValueCodec(Protocol):
    """Converts values of a store to bytes and back, and bytes of a store to changelog records and back."""

    @property
    def values(self) -> StoredValues:
        """The converter of the values alone, without times."""

    def encode(self, key: Any, value: Any) -> bytes:
        """Return the value of a key in the store's form."""

    def decode(self, key: Any, data: bytes) -> Any:
        """Return the value of a key, read from the store's form."""

    def joined(self, data: bytes, time: int) -> bytes:
        """Join the bytes of a value and its time (ms) to the store's form."""

    def split(self, data: bytes) -> tuple[bytes, int]:
        """Split the store's form into the bytes of the value and its time (ms); 0 if values have none."""

    def parts(self, key: Any, value: Any) -> tuple[Any, int]:
        """Return the value of a key without its time, and that time (ms); 0 if values have none."""

    def whole(self, value: Any, time: int) -> Any:
        """Return a value with its time (ms)."""

    def to_changelog(self, writes: Writes, times: Mapping[bytes, int]) -> Iterator[ChangelogRecord]:
        """Return stored bytes by key as changelog records; `times` (ms) are those of the updates."""

    def from_changelog(self, batch: ChangelogBatch) -> Iterable[bytes | None]:
        """Return the values of changelog records as stored bytes."""


@dataclass(frozen=True, slots=True)
class PlainCodec:
    """Stores values as their serde writes them."""

    values: StoredValues

    def encode(self, key: Any, value: Any) -> bytes:
        """Return the value as bytes."""
        return self.values.encode(key, value)

    def decode(self, key: Any, data: bytes) -> Any:
        """Return the value, read from bytes."""
        try:
            return self.values.deserialize(data)
        except Exception as error:  # a serde may raise anything
            raise self.values.unreadable(key, data, error) from error

    def joined(self, data: bytes, time: int) -> bytes:  # noqa: ARG002 - there is none
        """Return the bytes unchanged."""
        return data

    def split(self, data: bytes) -> tuple[bytes, int]:
        """Return the bytes unchanged, and 0."""
        return data, 0

    def parts(self, key: Any, value: Any) -> tuple[Any, int]:  # noqa: ARG002 - as all codecs
        """Return the value unchanged, and 0."""
        return value, 0

    def whole(self, value: Any, time: int) -> Any:  # noqa: ARG002 - there is none
        return value

    def to_changelog(self, writes: Writes, times: Mapping[bytes, int]) -> Iterator[ChangelogRecord]:
        """Return the bytes unchanged."""
        return (_made(ChangelogRecord, (key, data, times[key], ())) for key, data in writes.items())

    def from_changelog(self, batch: ChangelogBatch) -> Iterable[bytes | None]:
        """Return the bytes unchanged."""
        return batch.values()


@dataclass(frozen=True, slots=True)
class TimestampedCodec:
    """Stores `int64 timestamp ++ value`; in the changelog the timestamp is the record's own."""

    values: StoredValues

    def encode(self, key: Any, value: ValueAndTimestamp[Any]) -> bytes:
        """Return the timestamp, followed by the value, as bytes."""
        try:
            time = _TIME.pack(value[1])
        except Exception as error:  # a user may have put anything
            raise self._untimed(key, value) from error
        return time + self.values.encode(key, value[0])

    def joined(self, data: bytes, time: int) -> bytes:
        """Join the bytes of a value and its time (ms)."""
        return _TIME.pack(time) + data

    def decode(self, key: Any, data: bytes) -> ValueAndTimestamp[Any]:
        """Return the value and its time, read from bytes."""
        try:
            return _made(ValueAndTimestamp, (self.values.deserialize(data[8:]), _TIME.unpack_from(data)[0]))
        except Exception as error:  # a serde may raise anything
            raise self.values.unreadable(key, data, error) from error

    def split(self, data: bytes) -> tuple[bytes, int]:
        """Split the store's form into the bytes of the value, and its time (ms)."""
        return data[8:], _TIME.unpack_from(data)[0]

    def parts(self, key: Any, value: ValueAndTimestamp[Any]) -> tuple[Any, int]:
        """Return the value and its time (ms); refuse a value without a time."""
        if value.__class__ is not ValueAndTimestamp and not _is_timed(value):
            raise self._untimed(key, value)
        return value

    def whole(self, value: Any, time: int) -> ValueAndTimestamp[Any]:
        """Return a value with its time (ms)."""
        return _made(ValueAndTimestamp, (value, time))

    def _untimed(self, key: Any, value: Any) -> SerializationError:
        message = f"Store {self.values.store} keeps values with their times, not the {type(value).__name__} of key {shown(key)}"
        return SerializationError(message, hint="Put ValueAndTimestamp(value, time in ms).")

    def folding(self, fold: Fold, *, tells_old: bool) -> Callable[[bytes | None, Any, Any, int], Folded]:
        """Return a function that adds a value: of stored bytes or None, and a record's key, value and timestamp (ms).

        The time of the aggregate is the highest so far. The old aggregate is returned with `tells_old`; None for a first value.
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
                except Exception as error:  # a serde may raise anything
                    raise values.unreadable(key, data, error) from error
            new, timestamp = step(fold, key, value, timestamp, known, time)
            # Decoded again, as the user's function may have changed its argument.
            if tells_old and data is not None:
                old = decode(data[8:])
            if new is None:
                return data, None, None, old, timestamp
            try:
                written = encode(new)
            except Exception as error:  # a serde may raise anything
                raise values.refused(key, new, error) from error
            if new.__class__ not in shared:
                values.verify(key, new, written)
            return data, time_bytes(timestamp) + written, new, old, timestamp

        return folded

    def to_changelog(self, writes: Writes, times: Mapping[bytes, int]) -> Iterator[ChangelogRecord]:
        """Return raw values at their own timestamps, and tombstones at those of their updates."""
        time_of = _TIME.unpack_from
        for key, data in writes.items():
            if data is None:
                yield ChangelogRecord(key, None, times[key])
            else:
                yield _made(ChangelogRecord, (key, data[8:], time_of(data)[0], ()))

    def from_changelog(self, batch: ChangelogBatch) -> Iterable[bytes | None]:
        """Return each record's timestamp followed by its value."""
        pack, rows = _TIME.pack, zip(batch.values(), batch.timestamps(), strict=True)
        return [None if value is None else pack(timestamp) + value for value, timestamp in rows]


def _is_timed(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], int)  # noqa: PLR2004 - value and time


def codec_of(builder: StoreBuilder) -> ValueCodec:
    values = stored_values(builder)
    if builder.kind in {StoreKind.TIMESTAMPED_KEY_VALUE, StoreKind.TIMESTAMPED_WINDOW}:
        return TimestampedCodec(values)
    return PlainCodec(values)
