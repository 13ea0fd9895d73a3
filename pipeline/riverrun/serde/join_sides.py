"""The layout of stream-stream joins' stores (`TimestampedKeyAndJoinSideSerializer`, `LeftOrRightValueSerializer`).

```
key      int64 timestamp ++ byte side ++ key      side: 1 left, 0 right
value    byte side ++ value
list     0x01 ++ int32 count ++ (int32 length ++ bytes)*
```
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from riverrun.serde.api import Serde

if TYPE_CHECKING:
    from collections.abc import Sequence

_KEY_HEAD = struct.Struct(">qB")
_LIST_HEAD = struct.Struct(">Bi")
_LENGTH = struct.Struct(">i")
_VARIABLE_SIZE = 1
"""`ListSerializer`'s strategy for entries with individual lengths; Kafka Streams uses no other one here."""


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

    >>> from riverrun.serde.primitives import STRING
    >>> join_side_key(STRING).serialize(JoinSideKey(10, True, "k")).hex()
    '000000000000000a016b'
    """
    encode, decode = inner.serialize, inner.deserialize

    def serialize(key: JoinSideKey) -> bytes:
        return _KEY_HEAD.pack(key.timestamp, key.is_left) + encode(key.key)

    def deserialize(data: bytes) -> JoinSideKey:
        if len(data) < _KEY_HEAD.size:
            message = f"{len(data)} bytes are too few for the key of a join"
            raise ValueError(message)
        timestamp, side = _KEY_HEAD.unpack_from(data)
        return JoinSideKey(timestamp, _is_left(side), decode(data[_KEY_HEAD.size :]))

    return Serde(f"join-side-key[{inner.name}]", serialize, deserialize, remake=(join_side_key, (inner,)))


def join_side_value(left: Serde[Any], right: Serde[Any]) -> Serde[JoinSideValue]:
    """Return the serde of values in the store that both sides share.

    >>> from riverrun.serde.primitives import STRING
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
        message = f"the side of a join is 0 or 1, not {side if side >= 0 else 'missing'}"
        raise ValueError(message)
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
    """Decode a list of values.

    Raises:
        ValueError: If the bytes are not such a list.
    """
    if len(data) < _LIST_HEAD.size or data[0] != _VARIABLE_SIZE:
        message = f"a list of values begins with 0x01 and its length, not {data[: _LIST_HEAD.size].hex() or 'nothing'}"
        raise ValueError(message)
    at, entries, count = _LIST_HEAD.size, [], _LIST_HEAD.unpack_from(data)[1]
    if not 0 <= count * _LENGTH.size <= len(data) - at:
        message = f"{count} values do not fit into a list of {len(data)} bytes"
        raise ValueError(message)
    for _ in range(count):
        start = at + _LENGTH.size
        length = _LENGTH.unpack_from(data, at)[0] if start <= len(data) else -1
        at = start + length
        if length < 0 or at > len(data):
            message = f"a value does not fit into a list of {len(data)} bytes, at byte {start - _LENGTH.size}"
            raise ValueError(message)
        entries.append(data[start:at])
    return entries
