"""JSON: plain values, or any type that msgspec supports, checked on reading."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

import msgspec

from riverrun.decoders import json_decoder
from riverrun.serde.api import Serde
from riverrun.serde.immutable import PLAIN, immutable_types

T = TypeVar("T")

_encode = msgspec.json.Encoder(order="deterministic").encode
"""Mappings sorted by key, sets sorted by member, fields of structs and dataclasses in their declared order."""
_decode = msgspec.json.decode
_pack = msgspec.msgpack.Encoder().encode
_NO_NUMBER = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")
"""First byte of NaN and infinity in msgpack; text may contain it."""


def _serialize(value: Any) -> bytes:
    """Serialize to JSON, and refuse numbers that msgspec would write as null.

    Raises:
        ValueError: If the value contains NaN or infinity.
    """
    data = _encode(value)
    if data.find(b"null") >= 0 and _may_hold_no_number(value):  # `in` takes twice as long
        _refuse_numbers(msgspec.to_builtins(value), "")
    return data


def _may_hold_no_number(value: Any) -> bool:
    """Return whether a value may contain NaN or infinity, by a search in msgpack, which encodes them unlike null."""
    try:
        return _NO_NUMBER.search(_pack(value)) is not None
    except OverflowError:  # msgpack has no whole numbers of more than 64 bits
        return True


def _refuse_numbers(value: Any, path: str) -> None:
    """Raise an error that says where a number is that JSON cannot express."""
    if isinstance(value, float) and not math.isfinite(value):
        message = f"JSON has no number {value}{path and f' (at {path[1:]})'}: write None, or use DOUBLE"
        raise ValueError(message)
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
        name = str(type_) if get_args(type_) else type_.__name__  # the name of a generic lacks its arguments
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
