"""Kafka Streams' layouts of table changes, suppression buffers and stream-stream joins, byte for byte.

Table changes in repartition topics (`ChangedSerializer`, KIP-904):

```
old only   old ++ 0x00
new only   new ++ 0x01
both       varint(length of new) ++ new ++ old ++ 0x02
```
Flags 0x03, 0x04 and 0x05 mean 0x00, 0x01 and 0x02 with a byte `is_latest` before the flag. Later releases of Kafka Streams
may write them, and this module reads them. Lengths are zigzag varints, as everywhere in Kafka.

Records in the changelog of a suppression buffer (`BufferValue`):

```
int64 timestamp ++ int64 offset ++ int32 length ++ topic ++ int32 partition
    ++ int32 headers ++ (int32 length ++ name ++ int32 length, -1 if null ++ value)*
    ++ int32 -1 (no prior value) ++ int32 -1 (no old value) ++ int32 length ++ value ++ int64 0
```
Their key has the layout of time-first windows: `0x00 ++ int64 timestamp ++ key ++ int32 sequence number`.

Stores of stream-stream joins (`TimestampedKeyAndJoinSideSerializer`, `LeftOrRightValueSerializer`):

```
key      int64 timestamp ++ byte side ++ key      side: 1 left, 0 right
value    byte side ++ value
list     0x01 ++ int32 count ++ (int32 length ++ bytes)*
```
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from riverrun.records import Change, RecordMetadata
from riverrun.serde.api import Serde

if TYPE_CHECKING:
    from collections.abc import Sequence

    from riverrun.records import Headers

_OLD, _NEW, _BOTH = 0, 1, 2
_WITH_IS_LATEST = 3
_VARINT_MAX_BYTES = 5


class ChangeBytes(NamedTuple):
    """Both sides of a change, serialized; at least one is not None. `is_latest` is False only if the writer set it."""

    new: bytes | None
    old: bytes | None
    is_latest: bool = True


def encode_change(new: bytes | None, old: bytes | None) -> bytes:
    """Encode a change as one value. Changes with both sides need readers of Kafka Streams 3.5 or later.

    >>> encode_change(b"n", b"o").hex()
    '026e6f02'
    """
    if new is None:
        if old is None:
            raise ValueError("a change needs a new value, an old one, or both")
        return old + b"\x00"
    if old is None:
        return new + b"\x01"
    return varint(len(new)) + new + old + b"\x02"


def decode_change(data: bytes) -> ChangeBytes:
    flag = data[-1] if data else -1
    if flag not in range(_BOTH + _WITH_IS_LATEST + 1):
        raise ValueError(f"a change ends with a flag from 0 to 5, not {flag if data else 'nothing'}")
    is_latest, body = True, data[:-1]
    if flag >= _WITH_IS_LATEST:
        if not body:
            raise ValueError("a change with flag 3 to 5 has a byte before the flag")
        flag -= _WITH_IS_LATEST
        is_latest, body = body[-1] != 0, body[:-1]
    if flag == _OLD:
        return ChangeBytes(None, body, is_latest)
    if flag == _NEW:
        return ChangeBytes(body, None, is_latest)
    length, start = _read_varint(body)
    # A foreign length must not read past the value: slices would end silently.
    if not 0 <= length <= len(body) - start:
        raise ValueError(f"a new value of {length} bytes does not fit into a change of {len(data)} bytes")
    return ChangeBytes(body[start : start + length], body[start + length :], is_latest)


def change_serde(inner: Serde[Any]) -> Serde[Change[Any]]:
    """Return the serde of a table's changes, given the serde of its values.

    >>> from riverrun.serde.serdes import STRING
    >>> change_serde(STRING).serialize(Change("n", None)).hex()
    '6e01'
    """
    encode, decode = inner.serialize, inner.deserialize

    def serialize(change: Change[Any]) -> bytes:
        new = None if change.new is None else encode(change.new)
        return encode_change(new, None if change.old is None else encode(change.old))

    def deserialize(data: bytes) -> Change[Any]:
        new, old, is_latest = decode_change(data)
        return Change(None if new is None else decode(new), None if old is None else decode(old), is_latest)

    return Serde(f"change[{inner.name}]", serialize, deserialize, remake=(change_serde, (inner,)))


def varint(value: int) -> bytes:
    """Return the zigzag varint of a number that is never negative.

    >>> varint(1).hex(), varint(64).hex()
    ('02', '8001')
    """
    rest, written = value << 1, bytearray()
    while rest > 0x7F:  # noqa: PLR2004 - seven bits per byte
        written.append(rest & 0x7F | 0x80)
        rest >>= 7
    written.append(rest)
    return bytes(written)


def _read_varint(data: bytes) -> tuple[int, int]:
    """Return the number, and the position after it."""
    value = 0
    for at, byte in enumerate(data[:_VARINT_MAX_BYTES]):
        value |= (byte & 0x7F) << 7 * at
        if byte <= 0x7F:  # noqa: PLR2004 - the eighth bit says that more follows
            return (value >> 1) ^ -(value & 1), at + 1
    raise ValueError(f"a length takes at most {_VARINT_MAX_BYTES} bytes: {data[:_VARINT_MAX_BYTES].hex()}")


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
    """Decode a record from a value of the buffer's changelog."""
    try:
        return _decoded(data)
    except struct.error as error:
        raise ValueError(f"{len(data)} bytes are too few for a buffered record: {error}") from error


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
        raise ValueError(f"truncated: expected {length} bytes at byte {at}, but only {len(data) - at} are left")
    return (None, at) if length < 0 else (data[at : at + length], at + length)


_KEY_HEAD = struct.Struct(">qB")
_LIST_HEAD = struct.Struct(">Bi")
_LENGTH = struct.Struct(">i")
# `ListSerializer`'s strategy for entries with individual lengths; Kafka Streams uses no other one here.
_VARIABLE_SIZE = 1


class JoinSideKey(NamedTuple):
    """A record of one side of a join. Serialized keys sort by time; at equal times the right side comes first."""

    timestamp: int
    is_left: bool
    key: Any


class JoinSideValue(NamedTuple):
    """A value of the left or of the right side."""

    is_left: bool
    value: Any


def join_side_key(inner: Serde[Any]) -> Serde[JoinSideKey]:
    """Return the serde of keys in the store that both sides share.

    >>> from riverrun.serde.serdes import STRING
    >>> join_side_key(STRING).serialize(JoinSideKey(10, True, "k")).hex()
    '000000000000000a016b'
    """
    encode, decode = inner.serialize, inner.deserialize

    def serialize(key: JoinSideKey) -> bytes:
        return _KEY_HEAD.pack(key.timestamp, key.is_left) + encode(key.key)

    def deserialize(data: bytes) -> JoinSideKey:
        if len(data) < _KEY_HEAD.size:
            raise ValueError(f"{len(data)} bytes are too few for the key of a join")
        timestamp, side = _KEY_HEAD.unpack_from(data)
        return JoinSideKey(timestamp, _is_left(side), decode(data[_KEY_HEAD.size :]))

    return Serde(f"join-side-key[{inner.name}]", serialize, deserialize, remake=(join_side_key, (inner,)))


def join_side_value(left: Serde[Any], right: Serde[Any]) -> Serde[JoinSideValue]:
    """Return the serde of values in the store that both sides share.

    >>> from riverrun.serde.serdes import STRING
    >>> join_side_value(STRING, STRING).serialize(JoinSideValue(True, "a")).hex()
    '0161'
    """

    def serialize(value: JoinSideValue) -> bytes:
        return b"\x01" + left.serialize(value.value) if value.is_left else b"\x00" + right.serialize(value.value)

    def deserialize(data: bytes) -> JoinSideValue:
        is_left = _is_left(data[0] if data else -1)
        return JoinSideValue(is_left, (left if is_left else right).deserialize(data[1:]))

    name = f"join-side-value[{left.name},{right.name}]"
    return Serde(name, serialize, deserialize, remake=(join_side_value, (left, right)))


def _is_left(side: int) -> bool:
    if side not in {0, 1}:
        raise ValueError(f"the side of a join is 0 or 1, not {side if side >= 0 else 'missing'}")
    return side == 1


def encode_list(entries: Sequence[bytes]) -> bytes:
    """Encode several values as one (`ListSerializer`).

    >>> encode_list([bytes([1, 97])]).hex()
    '0100000001000000020161'
    """
    parts = [_LIST_HEAD.pack(_VARIABLE_SIZE, len(entries))]
    for entry in entries:
        parts += (_LENGTH.pack(len(entry)), entry)
    return b"".join(parts)


def decode_list(data: bytes) -> list[bytes]:
    if len(data) < _LIST_HEAD.size or data[0] != _VARIABLE_SIZE:
        message = f"a list of values begins with 0x01 and its length, not {data[: _LIST_HEAD.size].hex() or 'nothing'}"
        raise ValueError(message)
    at, entries, count = _LIST_HEAD.size, [], _LIST_HEAD.unpack_from(data)[1]
    # Before the loop: a foreign count must not make it run two billion times.
    if not 0 <= count * _LENGTH.size <= len(data) - at:
        raise ValueError(f"{count} values do not fit into a list of {len(data)} bytes")
    for _ in range(count):
        start = at + _LENGTH.size
        length = _LENGTH.unpack_from(data, at)[0] if start <= len(data) else -1
        at = start + length
        if length < 0 or at > len(data):
            raise ValueError(f"a value does not fit into a list of {len(data)} bytes, at byte {start - _LENGTH.size}")
        entries.append(data[start:at])
    return entries
