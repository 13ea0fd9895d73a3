"""JSON: plain values, or any type msgspec knows, checked on reading."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar, get_args

import msgspec

from pipeline.serde.api import Serde

T = TypeVar("T")

_encode = msgspec.json.Encoder(order="deterministic").encode
"""Mappings in order of keys, sets in order of members; fields of structs and dataclasses in their declared order."""


@dataclass(frozen=True, slots=True)
class JsonSerde(Serde[Any]):
    """A `Serde` of plain JSON values, and a way to typed ones.

    >>> JSON.serialize({"b": 1, "a": [True, None]})
    b'{"a":[true,null],"b":1}'
    >>> class Flight(msgspec.Struct):
    ...     carrier: str
    ...     delay: int | None = None
    >>> JSON(Flight).deserialize(b'{"carrier": "AA"}')
    Flight(carrier='AA', delay=None)
    """

    def __call__(self, type_: type[T]) -> Serde[T]:
        """A serde of one type: a `msgspec.Struct`, a dataclass, a TypedDict, or anything else msgspec can decode.

        Bytes that are not JSON, or do not fit the type, raise msgspec's error with the path of the field.

        >>> JSON(dict[str, int]).name
        'json[dict[str, int]]'
        """
        name = str(type_) if get_args(type_) else type_.__name__  # the name of a generic lacks its arguments
        return Serde(
            f"json[{name}]", _encode, msgspec.json.Decoder(type_).decode, remake=(_typed, (type_,)), value_type=type_
        )


def _plain() -> JsonSerde:
    return JSON


def _typed(type_: type[T]) -> Serde[T]:
    return JSON(type_)


JSON = JsonSerde("json", _encode, msgspec.json.decode, remake=(_plain, ()), value_type=Any)
"""JSON of plain values; `JSON(Type)` for a type. Equal values make equal bytes."""
