"""How values lie in stores and changelogs (`ValueAndTimestampSerializer`, `ChangeLoggingTimestamped…Store`)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pipeline.records import ValueAndTimestamp
from pipeline.state.api import ChangelogRecord, StoreBuilder, StoreKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pipeline.state.api import ChangelogBatch

_TIME = struct.Struct(">q")


class ValueCodec(Protocol):
    """Values of a store to bytes and back, and bytes of a store to changelog records and back."""

    def encode(self, value: Any) -> bytes:
        """A value as it lies in the store."""
        ...

    def decode(self, data: bytes) -> Any:
        """The value back."""
        ...

    def to_changelog(self, key: bytes, data: bytes | None, timestamp: int) -> ChangelogRecord:
        """Stored bytes as a changelog record; `timestamp` (ms) is that of the update."""
        ...

    def from_changelog(self, batch: ChangelogBatch) -> Iterable[bytes | None]:
        """The values of changelog records as stored bytes."""
        ...


@dataclass(frozen=True, slots=True)
class PlainCodec:
    """Values as their serde writes them."""

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]

    def to_changelog(self, key: bytes, data: bytes | None, timestamp: int) -> ChangelogRecord:
        """The same bytes."""
        return ChangelogRecord(key, data, timestamp)

    def from_changelog(self, batch: ChangelogBatch) -> Iterable[bytes | None]:
        """The same bytes."""
        return batch.values()


@dataclass(frozen=True, slots=True)
class TimestampedCodec:
    """`int64 timestamp ++ value` in the store; in the changelog the timestamp is the record's own."""

    encode_value: Callable[[Any], bytes]
    decode_value: Callable[[bytes], Any]

    def encode(self, value: ValueAndTimestamp[Any]) -> bytes:
        """Timestamp, then value."""
        return _TIME.pack(value[1]) + self.encode_value(value[0])

    def decode(self, data: bytes) -> ValueAndTimestamp[Any]:
        """Both back."""
        return ValueAndTimestamp(self.decode_value(data[8:]), _TIME.unpack_from(data)[0])

    def to_changelog(self, key: bytes, data: bytes | None, timestamp: int) -> ChangelogRecord:
        """The raw value at its own timestamp; a tombstone at that of the update."""
        if data is None:
            return ChangelogRecord(key, None, timestamp)
        return ChangelogRecord(key, data[8:], _TIME.unpack_from(data)[0])

    def from_changelog(self, batch: ChangelogBatch) -> Iterable[bytes | None]:
        """Each record's timestamp before its value."""
        pack, rows = _TIME.pack, zip(batch.values(), batch.timestamps(), strict=True)
        return [None if value is None else pack(timestamp) + value for value, timestamp in rows]


def codec_of(builder: StoreBuilder) -> ValueCodec:
    """The codec of a store."""
    serde = builder.value_serde
    if builder.kind in {StoreKind.TIMESTAMPED_KEY_VALUE, StoreKind.TIMESTAMPED_WINDOW}:
        return TimestampedCodec(serde.serialize, serde.deserialize)
    return PlainCodec(serde.serialize, serde.deserialize)
