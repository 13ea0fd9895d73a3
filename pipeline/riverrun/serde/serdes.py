"""Serdes of simple types, byte for byte compatible with `org.apache.kafka.common.serialization`, and of JSON."""

from __future__ import annotations

import math
import re
import struct
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

import msgspec

from riverrun.decoders import json_decoder
from riverrun.serde.api import PLAIN, Serde, immutable_types

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def _fixed(name: str, layout: str, value_type: Any, immutable: type | None = None) -> Serde[T]:
    packer = struct.Struct(layout)
    unpack = packer.unpack

    def deserialize(data: bytes) -> T:
        try:
            value: T = unpack(data)[0]
        except struct.error as error:
            raise ValueError(f"{name} takes {packer.size} bytes, not {len(data)}") from error
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
    # A store may hand out the result many times, so it must be immutable.
    return data if type(data) is bytes else bytes(memoryview(data))


def _boolean_bytes(value: bool) -> bytes:  # noqa: FBT001 - the value itself, not a switch
    return b"\x01" if value else b"\x00"


def _boolean(data: bytes) -> bool:
    if data not in {b"\x00", b"\x01"}:
        raise ValueError(f"boolean takes one byte, 0 or 1, not {data.hex() or 'none'}")
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


encode_json = msgspec.json.Encoder(order="deterministic").encode
"""Encodes JSON: mappings sorted by key, sets sorted by member, fields of structs and dataclasses in their declared order.

NaN and infinity become null."""
_decode = msgspec.json.decode
_pack = msgspec.msgpack.Encoder().encode
# NaN and infinity as msgpack writes them. Text may contain these bytes, so a match is only a suspicion.
_NO_NUMBER = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")


def _serialize(value: Any) -> bytes:
    """Serialize to JSON, and refuse numbers that msgspec would write as null."""
    data = encode_json(value)
    # Only values with a null are searched for such numbers. `in` takes twice as long as `find`.
    if data.find(b"null") >= 0:
        refuse_odd_numbers(value)
    return data


def refuse_odd_numbers(value: Any) -> None:
    """Refuse a value with a number that msgspec writes as null."""
    if _may_hold_no_number(value):
        _refuse_numbers(msgspec.to_builtins(value), "")


def _may_hold_no_number(value: Any) -> bool:
    # msgpack encodes NaN and infinity, unlike JSON: a search of its bytes replaces a walk through the value.
    try:
        return _NO_NUMBER.search(_pack(value)) is not None
    # msgpack has no whole numbers of more than 64 bits.
    except OverflowError:
        return True


def _refuse_numbers(value: Any, path: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"JSON cannot represent {value}{path and f' (at {path[1:]})'}: write None, or use DOUBLE")
    if isinstance(value, dict):
        for name, part in value.items():
            _refuse_numbers(part, f"{path}.{name}")
    elif isinstance(value, list | tuple):
        for number, part in enumerate(value):
            _refuse_numbers(part, f"{path}.{number}")


ODD_NUMBERS = ("NaN", "Infinity", "-Infinity")
"""Texts in place of the numbers that JSON does not have."""


def without_odd_numbers(value: Any) -> Any:
    """Return a value with texts in place of the numbers that JSON does not have: `NaN`, `Infinity`, `-Infinity`."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"
    if isinstance(value, dict):
        return {key: without_odd_numbers(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_odd_numbers(each) for each in value]
    return value


@dataclass(frozen=True, slots=True)
class JsonSerde(Serde[Any]):
    """A `Serde` of plain JSON values, and a factory of typed ones.

    >>> JSON.serialize({"b": 1, "a": [True, None]})
    b'{"a":[true,null],"b":1}'
    >>> class Flight(msgspec.Struct):
    ...     carrier: str
    ...     delay: int | None = None
    >>> JSON(Flight).deserialize(b'{"carrier": "AA"}')
    Flight(carrier='AA', delay=None)
    """

    def __call__(self, type_: type[T]) -> Serde[T]:
        """Return the serde of a type: a `msgspec.Struct`, a dataclass, a TypedDict, or any other type that msgspec decodes.

        Bytes that are not JSON, or do not fit the type, raise msgspec's error with the path of the field.

        >>> JSON(dict[str, int]).name
        'json[dict[str, int]]'
        """
        # `__name__` of a generic lacks its arguments, and names are part of fingerprints.
        name = str(type_) if get_args(type_) else type_.__name__
        return Serde(
            f"json[{name}]",
            _serialize,
            json_decoder(type_).decode,
            remake=(_typed, (type_,)),
            value_type=type_,
            immutable_types=immutable_types(type_),
            exact=True,
        )


def _plain() -> JsonSerde:
    return JSON


def _typed(type_: type[T]) -> Serde[T]:
    return JSON(type_)


JSON = JsonSerde("json", _serialize, _decode, remake=(_plain, ()), value_type=Any, immutable_types=PLAIN, exact=True)
"""JSON of plain values; `JSON(Type)` for a type. Equal values have equal bytes.

NaN and infinity are refused. Stores refuse what would come back as something else, such as a tuple as a list."""


def is_json(serde: Serde[Any]) -> bool:
    """Return whether a serde is `JSON`, or `JSON` of a type.

    >>> is_json(JSON), is_json(JSON(int)), is_json(LONG)
    (True, True, False)
    """
    return serde.remake is not None and serde.remake[0] in {_plain, _typed}


def simple_format(serde: Serde[Any]) -> str | None:
    """Return the name of a simple type's format; None for all other serdes.

    >>> simple_format(LONG), simple_format(STRING), simple_format(JSON(int))
    ('long', 'string', None)
    """
    is_fixed = serde.remake is not None and serde.remake[0] is _fixed
    return serde.name if is_fixed or serde in {STRING, BYTES, BOOLEAN, UUID} else None
