"""The format of rows within a topology: in state, and in internal topics."""

from __future__ import annotations

import decimal
from typing import TYPE_CHECKING, Any

import msgspec

from riverrun.decoders import msgpack_decoder
from riverrun.serde.api import Serde
from riverrun.sql.types import Array, Decimal, Map, Primitive, SqlType, Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def _python_type(type_: SqlType) -> Any:
    if isinstance(type_, Decimal):
        return decimal.Decimal | None
    if isinstance(type_, Array):
        return list[_python_type(type_.item)] | None  # type: ignore[misc]
    if isinstance(type_, Map):
        return dict[_python_type(type_.key), _python_type(type_.value)] | None  # type: ignore[misc]
    if isinstance(type_, Struct):
        return dict[str, Any] | None
    return {
        Primitive.BOOLEAN: bool | None,
        Primitive.DOUBLE: float | None,
        Primitive.STRING: str | None,
        Primitive.BYTES: bytes | None,
    }.get(type_, int | None)


def _restored(type_: SqlType) -> Callable[[Any], Any] | None:
    """Return the function that completes values read from state, such as decimals, which are stored as text."""
    if isinstance(type_, Array):
        item = _restored(type_.item)
        return item and (lambda value: None if value is None else [item(each) for each in value])
    if isinstance(type_, Map):
        held = _restored(type_.value)
        return held and (lambda value: None if value is None else {name: held(each) for name, each in value.items()})
    if isinstance(type_, Struct):
        parts = {name: part for name, each in type_.fields if (part := _inner_restored(each))}
        if not parts:
            return None
        return lambda value: (
            None
            if value is None
            else {name: parts[name](each) if name in parts else each for name, each in value.items()}
        )
    return None


def _inner_restored(type_: SqlType) -> Callable[[Any], Any] | None:
    if isinstance(type_, Decimal):
        return lambda value: None if value is None else decimal.Decimal(value)
    if isinstance(type_, Array) and isinstance(type_.item, Decimal):
        return lambda value: None if value is None else [each and decimal.Decimal(each) for each in value]
    return _restored(type_)


def row_serde(types: Sequence[SqlType], *, is_exact: bool = False) -> Serde[Any]:
    """Return the serde of rows within a topology, in state and internal topics.

    Args:
        types: Types of the values.
        is_exact: Whether values have exactly these types, so that stores may return the written rows: a DOUBLE is never an int.
    """
    kinds = tuple(types)
    decoder: Any = msgpack_decoder(tuple[tuple(_python_type(each) for each in kinds)] if kinds else tuple[()])  # type: ignore[misc]
    finish = {number: made for number, each in enumerate(kinds) if (made := _restored(each))}
    encode = msgspec.msgpack.Encoder().encode

    def read(data: bytes) -> Any:
        row = decoder.decode(data)
        return row if not finish else tuple(finish[n](v) if n in finish else v for n, v in enumerate(row))

    name = f"sql[{', '.join(map(str, kinds))}]"
    is_fixed = is_exact and all(isinstance(each, Primitive | Decimal) for each in kinds)
    fixed = frozenset({tuple} if is_fixed else ())
    return Serde(name, encode, read, remake=(_again, (kinds, is_exact)), immutable_types=fixed)


def _again(types: tuple[SqlType, ...], is_exact: bool) -> Serde[Any]:  # noqa: FBT001 - pickled
    return row_serde(types, is_exact=is_exact)
