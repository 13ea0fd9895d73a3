"""Rows as JSON."""

from __future__ import annotations

import base64
import decimal
import math
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from riverrun.decoders import json_decoder
from riverrun.serde.api import Serde, WritesFields, writing_fields
from riverrun.sql.compiling.operators import cast
from riverrun.sql.formats.json_objects import ObjectReader, Part
from riverrun.sql.types import Array, Columns, Decimal, Map, Primitive, SqlType, Struct, columns_text
from riverrun.sql.values import RANGES, bytes_of_text, decimal_of, double_of, double_text, unfit, whole_of

if TYPE_CHECKING:
    from collections.abc import Callable

_encode = msgspec.json.Encoder(decimal_format="number").encode


def reader_of(type_: SqlType) -> Callable[[Any], Any]:
    """Return the function that converts a value from JSON."""
    inner = _inner_reader(type_)
    return lambda value: None if value is None else inner(value)


def _inner_reader(type_: SqlType) -> Callable[[Any], Any]:
    if isinstance(type_, Decimal):
        return decimal_of(type_)
    if isinstance(type_, Array):
        item = reader_of(type_.item)
        return lambda value: [item(each) for each in _require(value, list, type_)]
    if isinstance(type_, Map):
        to_key, to_value = cast(Primitive.STRING, type_.key) or str, reader_of(type_.value)
        return lambda value: {to_key(name): to_value(each) for name, each in _require(value, dict, type_).items()}
    if isinstance(type_, Struct):
        return _struct_reader(type_.fields)
    return _PRIMITIVE.get(type_) or whole_of(type_, is_cut=True)


def _json_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return _encode(value).decode()


def _require(value: Any, kind: type, type_: SqlType | str) -> Any:
    if not isinstance(value, kind):
        raise unfit(value, type_)
    return value


_PRIMITIVE: dict[SqlType, Callable[[Any], Any]] = {
    Primitive.STRING: _json_text,
    Primitive.BOOLEAN: lambda value: _require(value, bool, Primitive.BOOLEAN),
    Primitive.DOUBLE: double_of,
    Primitive.BYTES: lambda value: bytes_of_text(_require(value, str, Primitive.BYTES)),
}


_SHAPES = 1000
"""Greatest number of remembered sets of names, with their columns."""


_PLAIN: dict[SqlType, type] = {
    Primitive.BOOLEAN: bool,
    Primitive.DOUBLE: float,
    Primitive.STRING: str,
}
"""Classes of JSON values that need no conversion to SQL."""


def _declared(type_: SqlType) -> tuple[type | None, Any]:
    """Return the class of JSON values that are SQL's as they are, and the type by which msgspec finds those in range."""
    if type_ in RANGES:
        least, greatest = RANGES[type_]
        return int, Annotated[int, msgspec.Meta(ge=least, le=greatest)]
    return _PLAIN.get(type_), _PLAIN.get(type_)


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
        found = _require(value, dict, "object")
        names = tuple(found)
        get, places = found.get, known.get(names) or placed(names)
        try:
            return [
                each if (each := get(at)) is None or each.__class__ is kind else part(each) for at, kind, part in places
            ]
        except (TypeError, ValueError, ArithmeticError):
            for (name, _), (at, _, part) in zip(columns, places, strict=True):
                read_column(name, part, get(at))
            raise

    return read


def read_column(name: str, read: Callable[[Any], Any], value: Any) -> None:
    """Read a value again, so that its error names the column."""
    try:
        _ = None if value is None else read(value)
    except (TypeError, ValueError, ArithmeticError) as error:
        message = f"{name}: {error}"
        raise ValueError(message) from None


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
    return double_text(value)


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
    options: dict[str, Any] = {"float_hook": decimal.Decimal}  # for values that are no DOUBLE: all digits count
    decode = json_decoder(Any, **options).decode
    if not wrapped:
        read_one, write_one = reader_of(columns[0][1]), writer_of(columns[0][1]) or _itself
        return (lambda row: _encode(write_one(row[0]))), (lambda data: (read_one(decode(data)),))
    read_columns = tuple(each for each in columns if used is None or each[0] in used)
    numbers = {name: number for number, (name, _) in enumerate(read_columns)}
    parts = [Part(name, *_declared(type_), reader_of(type_)) for name, type_ in read_columns]
    places = [numbers.get(name) for name, _ in columns]
    return _writer(columns), ObjectReader(parts, places, _fields_reader(read_columns), decode, options).reader()


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
