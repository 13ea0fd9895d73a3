"""The layout of records in the changelog of a suppression buffer (`BufferValue`).

```
int64 timestamp ++ int64 offset ++ int32 length ++ topic ++ int32 partition
    ++ int32 headers ++ (int32 length ++ name ++ int32 length, -1 if null ++ value)*
    ++ int32 -1 (no prior value) ++ int32 -1 (no old value) ++ int32 length ++ value ++ int64 0
```
The key has the layout of time-first windows: `0x00 ++ int64 timestamp ++ key ++ int32 sequence number`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from riverrun.records import RecordMetadata

if TYPE_CHECKING:
    from riverrun.records import Headers

_INT, _LONG = struct.Struct(">i"), struct.Struct(">q")
_NOTHING = _INT.pack(-1)
_END = _LONG.pack(0)
_MAX_SEQUENCE = 0x7FFFFFFF


class BufferedRecord(NamedTuple):
    """A buffered record: its serialized value, and where it came from. Times in ms."""

    timestamp: int
    headers: Headers
    metadata: RecordMetadata | None
    value: bytes


def encode_buffered(record: BufferedRecord) -> bytes:
    """Encode a record as a value of the buffer's changelog."""
    topic, partition, offset = record.metadata or ("", -1, -1)
    parts = [_LONG.pack(record.timestamp), _LONG.pack(offset), _sized(topic.encode()), _INT.pack(partition)]
    parts.append(_INT.pack(len(record.headers)))
    for name, value in record.headers:
        parts += _sized(name.encode()), _NOTHING if value is None else _sized(value)
    return b"".join((*parts, _NOTHING, _NOTHING, _sized(record.value), _END))


def decode_buffered(data: bytes) -> BufferedRecord:
    """Decode a record from a value of the buffer's changelog.

    Raises:
        ValueError: If the bytes are not such a record.
    """
    try:
        return _decoded(data)
    except struct.error as error:
        message = f"{len(data)} bytes are too few for a buffered record: {error}"
        raise ValueError(message) from error


def _decoded(data: bytes) -> BufferedRecord:
    timestamp, offset = _LONG.unpack_from(data)[0], _LONG.unpack_from(data, 8)[0]
    topic, at = _read(data, 16)
    (partition,), (count,) = _INT.unpack_from(data, at), _INT.unpack_from(data, at + 4)
    at += 8
    headers = []
    for _ in range(count):
        name, at = _read(data, at)
        value, at = _read(data, at)
        headers.append(((name or b"").decode(), value))
    for _ in ("prior", "old"):
        _, at = _read(data, at)
    value, _ = _read(data, at)
    metadata = RecordMetadata(topic.decode(), partition, offset) if topic else None
    return BufferedRecord(timestamp, tuple(headers), metadata, value or b"")


def buffer_key(timestamp: int, key: bytes, sequence: int) -> bytes:
    """Return the key of a buffered record: ordered by time, then by key, then by arrival.

    >>> buffer_key(60000, b"A", 0).hex()
    '00000000000000ea604100000000'
    """
    return b"\0" + _LONG.pack(timestamp) + key + _INT.pack(sequence & _MAX_SEQUENCE)


def buffered_key_of(store_key: bytes) -> bytes:
    """Return the record's own key."""
    return store_key[1 + _LONG.size : -_INT.size]


def sequence_of(store_key: bytes) -> int:
    """Return the number that distinguishes records with equal key and time."""
    sequence: int = _INT.unpack_from(store_key, len(store_key) - _INT.size)[0]
    return sequence


def _sized(data: bytes) -> bytes:
    return _INT.pack(len(data)) + data


def _read(data: bytes, at: int) -> tuple[bytes | None, int]:
    (length,) = _INT.unpack_from(data, at)
    at += _INT.size
    if length > len(data) - at:
        message = f"{length} bytes do not follow at byte {at} of {len(data)}"
        raise ValueError(message)
    return (None, at) if length < 0 else (data[at : at + length], at + length)
