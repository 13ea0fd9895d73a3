"""The layout of table changes in repartition topics (`ChangedSerializer`, KIP-904).

```
old only   old ++ 0x00
new only   new ++ 0x01
both       varint(length of new) ++ new ++ old ++ 0x02
```
Flags 0x03, 0x04 and 0x05 mean 0x00, 0x01 and 0x02 with a byte `is_latest` before the flag. Later releases of Kafka Streams
may write them, and this module reads them. Lengths are zigzag varints, as everywhere in Kafka.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from riverrun.records import Change
from riverrun.serde.api import Serde

_OLD, _NEW, _BOTH = 0, 1, 2
_WITH_IS_LATEST = 3
"""Added to a flag that follows a byte `is_latest`."""
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

    Raises:
        ValueError: If both sides are None; such a change is empty and must not be sent.
    """
    if new is None:
        if old is None:
            message = "a change needs a new value, an old one, or both"
            raise ValueError(message)
        return old + b"\x00"
    if old is None:
        return new + b"\x01"
    return _varint(len(new)) + new + old + b"\x02"


def decode_change(data: bytes) -> ChangeBytes:
    """Decode both sides of a change.

    Raises:
        ValueError: If the bytes are not a change.
    """
    flag = data[-1] if data else -1
    if flag not in range(_BOTH + _WITH_IS_LATEST + 1):
        message = f"a change ends with a flag from 0 to 5, not {flag if data else 'nothing'}"
        raise ValueError(message)
    is_latest, body = True, data[:-1]
    if flag >= _WITH_IS_LATEST:
        if not body:
            message = "a change with flag 3 to 5 has a byte before the flag"
            raise ValueError(message)
        flag -= _WITH_IS_LATEST
        is_latest, body = body[-1] != 0, body[:-1]
    if flag == _OLD:
        return ChangeBytes(None, body, is_latest)
    if flag == _NEW:
        return ChangeBytes(body, None, is_latest)
    length, start = _read_varint(body)
    if not 0 <= length <= len(body) - start:
        message = f"a new value of {length} bytes does not fit into a change of {len(data)} bytes"
        raise ValueError(message)
    return ChangeBytes(body[start : start + length], body[start + length :], is_latest)


def change_serde(inner: Serde[Any]) -> Serde[Change[Any]]:
    """Return the serde of a table's changes, given the serde of its values.

    >>> from riverrun.serde.primitives import STRING
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


def _varint(value: int) -> bytes:
    rest, written = value << 1, bytearray()  # zigzag; lengths are not negative
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
    message = f"a length takes at most {_VARINT_MAX_BYTES} bytes: {data[:_VARINT_MAX_BYTES].hex()}"
    raise ValueError(message)
