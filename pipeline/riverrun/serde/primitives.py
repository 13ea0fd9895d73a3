"""Serdes of simple types, byte for byte compatible with `org.apache.kafka.common.serialization`."""

from __future__ import annotations

import struct
import uuid
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from riverrun.serde.api import Serde

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def _fixed(name: str, layout: str, value_type: Any, immutable: type | None = None) -> Serde[T]:
    """Return a serde of numbers with a fixed layout; bytes of another length are refused."""
    packer = struct.Struct(layout)
    unpack = packer.unpack

    def deserialize(data: bytes) -> T:
        try:
            value: T = unpack(data)[0]
        except struct.error as error:
            message = f"{name} takes {packer.size} bytes, not {len(data)}"
            raise ValueError(message) from error
        return value

    serialize: Callable[[T], bytes] = packer.pack
    return Serde(
        name,
        serialize,
        deserialize,
        remake=(_fixed, (name, layout, value_type, immutable)),
        value_type=value_type,
        immutable_types=frozenset() if immutable is None else frozenset({immutable}),
    )


def _same(data: bytes) -> bytes:
    return data if type(data) is bytes else bytes(memoryview(data))  # the result must be immutable


def _boolean_bytes(value: bool) -> bytes:  # noqa: FBT001 - the value itself, not a switch
    return b"\x01" if value else b"\x00"


def _boolean(data: bytes) -> bool:
    if data not in {b"\x00", b"\x01"}:
        message = f"boolean takes one byte, 0 or 1, not {data.hex() or 'none'}"
        raise ValueError(message)
    return data == b"\x01"


def _uuid_bytes(value: uuid.UUID) -> bytes:
    return str(value).encode()


def _uuid(data: bytes) -> uuid.UUID:
    return uuid.UUID(data.decode())


STRING: Serde[str] = Serde("string", str.encode, bytes.decode, value_type=str, immutable_types=frozenset({str}))
"""UTF-8 (`StringSerializer`)."""
BYTES: Serde[bytes] = Serde("bytes", _same, _same, value_type=bytes, immutable_types=frozenset({bytes}))
"""Bytes, unchanged (`ByteArraySerializer`)."""
SHORT: Serde[int] = _fixed("short", ">h", Annotated[int, 16], int)
"""Signed 16 bits, big-endian (`ShortSerializer`)."""
INTEGER: Serde[int] = _fixed("integer", ">i", Annotated[int, 32], int)
"""Signed 32 bits, big-endian (`IntegerSerializer`)."""
LONG: Serde[int] = _fixed("long", ">q", int, int)
"""Signed 64 bits, big-endian (`LongSerializer`)."""
FLOAT: Serde[float] = _fixed("float", ">f", Annotated[float, 32])
"""IEEE 754, 32 bits, big-endian (`FloatSerializer`)."""
DOUBLE: Serde[float] = _fixed("double", ">d", float, float)
"""IEEE 754, 64 bits, big-endian (`DoubleSerializer`)."""
BOOLEAN: Serde[bool] = Serde("boolean", _boolean_bytes, _boolean, value_type=bool, immutable_types=frozenset({bool}))
"""One byte, 0 or 1 (`BooleanSerializer`)."""
UUID: Serde[uuid.UUID] = Serde("uuid", _uuid_bytes, _uuid, value_type=uuid.UUID, immutable_types=frozenset({uuid.UUID}))
"""The 36 characters of the text form (`UUIDSerializer`)."""
