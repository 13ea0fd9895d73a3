"""Rows as JSON."""

from __future__ import annotations

import base64
import decimal
import math
from typing import TYPE_CHECKING, Any

import msgspec

from riverrun.decoders import json_decoder
from riverrun.serde.api import Serde, WritesFields, writing_fields
from riverrun.sql.compiling.operators import cast, scaled
from riverrun.sql.formats.json_objects import ObjectReader, Part
from riverrun.sql.types import Array, Columns, Decimal, Map, Primitive, SqlType, Struct, columns_text

if TYPE_CHECKING:
    from collections.abc import Callable

_encode = msgspec.json.Encoder(decimal_format="number").encode


def reader_of(type_: SqlType) -> Callable[[Any], Any]:
    """Return the function that converts a value from JSON."""
    inner = _inner_reader(type_)
    return lambda value: None if value is None else inner(value)


def _inner_reader(type_: SqlType) -> Callable[[Any], Any]:  # noqa: PLR0911 - one case for each type
    if isinstance(type_, Decimal):
        to_scale = scaled(type_.scale)
        return lambda value: to_scale(_refuse(value, dict, list, bool))
    if isinstance(type_, Array):
        item = reader_of(type_.item)
        return lambda value: [item(each) for each in _require(value, list)]
    if isinstance(type_, Map):
        to_key, to_value = cast(Primitive.STRING, type_.key) or str, reader_of(type_.value)
        return lambda value: {to_key(name): to_value(each) for name, each in _require(value, dict).items()}
    if isinstance(type_, Struct):
        return _struct_reader(type_.fields)
    if type_ is Primitive.STRING:
        return lambda value: value if isinstance(value, str) else _json_text(value)
    if type_ is Primitive.BOOLEAN:
        return lambda value: _require(value, bool)
    if type_ is Primitive.DOUBLE:
        return lambda value: float(_refuse(value, dict, list, bool))
    if type_ is Primitive.BYTES:
        return lambda value: base64.b64decode(_require(value, str))
    return lambda value: int(_refuse(value, dict, list, bool))


def _json_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return _encode(value).decode()


def _require(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        message = f"{value!r} is no {kind.__name__}"
        raise TypeError(message)
    return value


def _refuse(value: Any, *kinds: type) -> Any:
    if isinstance(value, kinds):
        message = f"{value!r} does not fit"
        raise TypeError(message)
    return value


_SHAPES = 1000
"""Greatest number of remembered sets of names, with their columns."""


_PLAIN: dict[SqlType, type] = {
    Primitive.BOOLEAN: bool,
    Primitive.INTEGER: int,
    Primitive.BIGINT: int,
    Primitive.DOUBLE: float,
    Primitive.STRING: str,
    Primitive.DATE: int,
    Primitive.TIME: int,
    Primitive.TIMESTAMP: int,
}
"""Classes of JSON values that need no conversion to SQL."""


def _fields_reader(columns: Columns) -> Callable[[Any], list[Any]]:
    """Return a function that returns the values of columns from an object, with names in any case."""
    readers = [(name, _PLAIN.get(type_), reader_of(type_)) for name, type_ in columns]
    known: dict[tuple[str, ...], list[tuple[str | None, type | None, Callable[[Any], Any]]]] = {}

    def placed(names: tuple[str, ...]) -> list[tuple[str | None, type | None, Callable[[Any], Any]]]:
        upper = {name.upper(): name for name in names}
        found = [(name if name in names else upper.get(name.upper()), kind, part) for name, kind, part in readers]
        if len(known) < _SHAPES:
            known[names] = found
        return found

    def read(value: Any) -> list[Any]:
        found = _require(value, dict)
        names = tuple(found)
        get = found.get
        return [
            each if (each := get(at)) is None or each.__class__ is kind else part(each)
            for at, kind, part in known.get(names) or placed(names)
        ]

    return read


def _struct_reader(columns: Columns) -> Callable[[Any], dict[str, Any]]:
    names, read = [name for name, _ in columns], _fields_reader(columns)
    return lambda value: dict(zip(names, read(value), strict=True))


def writer_of(type_: SqlType) -> Callable[[Any], Any] | None:
    """Return the function that converts a value to JSON; None if no conversion is needed."""
    if isinstance(type_, Array):
        item = writer_of(type_.item)
        return item and (lambda value: None if value is None else [item(each) for each in value])
    if isinstance(type_, Map):
        part, name_of = writer_of(type_.value) or _itself, cast(type_.key, Primitive.STRING) or str
        return lambda value: (
            None
            if value is None
            else {"null" if name is None else name_of(name): part(each) for name, each in value.items()}
        )
    if isinstance(type_, Struct):
        parts = {name: writer_of(each) or _itself for name, each in type_.fields}
        return lambda value: None if value is None else {name: part(value.get(name)) for name, part in parts.items()}
    if type_ is Primitive.BYTES:
        return lambda value: None if value is None else base64.b64encode(value).decode()
    return _double_json if type_ is Primitive.DOUBLE else None


def _double_json(value: float | None) -> float | str | None:
    """Return a number, or the text that represents one that JSON does not support."""
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def _itself(value: Any) -> Any:
    return value


def json_serde(columns: Columns, *, wrapped: bool, used: frozenset[str] | None = None) -> Serde[Any]:
    """Return the serde of rows as JSON: an object of all columns, or a single unwrapped value.

    Args:
        columns: Names and types of the values.
        wrapped: Whether the row is an object.
        used: Columns of an object that are read; others are None. All of them if left out.
    """
    write, read = json_functions(columns, wrapped=wrapped, used=used)
    unused = [] if used is None else [name for name, _ in columns if name not in used]
    without = f" without {', '.join(unused)}" if unused else ""  # tells fingerprints that state may lack these
    name = f"sql-json[{columns_text(columns)}]{without}"
    return Serde(name, write, read, remake=(_again, (columns, wrapped, used)))


def _again(columns: Columns, wrapped: bool, used: frozenset[str] | None) -> Serde[Any]:  # noqa: FBT001 - pickled
    return json_serde(columns, wrapped=wrapped, used=used)


def json_functions(
    columns: Columns, *, wrapped: bool, used: frozenset[str] | None = None
) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    """Return the functions that write and read rows as JSON. Arguments are those of `json_serde`."""
    options: dict[str, Any] = {"float_hook": decimal.Decimal} if "DECIMAL" in types_text(columns) else {}
    decode = json_decoder(Any, **options).decode
    if not wrapped:
        read_one, write_one = reader_of(columns[0][1]), writer_of(columns[0][1]) or _itself
        return (lambda row: _encode(write_one(row[0]))), (lambda data: (read_one(decode(data)),))
    read_columns = tuple(each for each in columns if used is None or each[0] in used)
    numbers = {name: number for number, (name, _) in enumerate(read_columns)}
    parts = [Part(name, _PLAIN.get(type_), reader_of(type_)) for name, type_ in read_columns]
    places = [numbers.get(name) for name, _ in columns]
    return _writer(columns), ObjectReader(parts, places, _fields_reader(read_columns), decode, options).reader()


def types_text(columns: Columns) -> str:
    """Return the types of columns, including nested types."""
    return " ".join(str(type_) for _, type_ in columns)


def _writer(columns: Columns) -> Callable[[Any], bytes]:
    """Return the function that writes rows as objects of a class, which is faster than dictionaries."""
    writers = [writer_of(type_) for _, type_ in columns]
    names = {f"f{number}": name for number, (name, _) in enumerate(columns)}
    try:
        made: Any = msgspec.defstruct("Row", list(names), rename=names, gc=False)
    except ValueError:  # a name that msgspec does not allow

        def made(*values: Any) -> dict[str, Any]:
            return dict(zip(names.values(), values, strict=True))

    if not any(writers):
        return writing_fields(lambda row: _encode(made(*row)), WritesFields(made, _encode))
    return lambda row: _encode(
        made(*[value if part is None else part(value) for part, value in zip(writers, row, strict=True)])
    )
