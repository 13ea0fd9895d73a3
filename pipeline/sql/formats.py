"""Formats of topics and of state: bytes to values of SQL, and back."""

from __future__ import annotations

import base64
import csv
import decimal
import io
import math
from typing import TYPE_CHECKING, Any

import msgspec

from pipeline.serde.api import Serde
from pipeline.serde.primitives import BYTES, DOUBLE, INTEGER, LONG, STRING
from pipeline.sql.errors import SqlError
from pipeline.sql.operators import cast, scaled
from pipeline.sql.types import Array, Decimal, Map, Primitive, SqlType, Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Columns = tuple[tuple[str, SqlType], ...]
"""Names and types, in order."""

FORMATS = ("JSON", "KAFKA", "DELIMITED", "NONE")
_KAFKA: dict[SqlType, Serde[Any]] = {
    Primitive.INTEGER: INTEGER,
    Primitive.BIGINT: LONG,
    Primitive.DOUBLE: DOUBLE,
    Primitive.STRING: STRING,
    Primitive.BYTES: BYTES,
}
_DELIMITERS = {"SPACE": " ", "TAB": "\t"}
_encode = msgspec.json.Encoder(decimal_format="number").encode


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
    """Return what completes a value of a struct read from state: decimals come as text."""
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


def row_serde(types: Sequence[SqlType]) -> Serde[Any]:
    """Return the serde of rows within a topology: state, and topics of its own."""
    kinds = tuple(types)
    decoder: Any = msgspec.msgpack.Decoder(tuple[tuple(_python_type(each) for each in kinds)] if kinds else tuple[()])  # type: ignore[misc]
    finish = {number: made for number, each in enumerate(kinds) if (made := _restored(each))}
    encode = msgspec.msgpack.Encoder().encode

    def read(data: bytes) -> Any:
        row = decoder.decode(data)
        return row if not finish else tuple(finish[n](v) if n in finish else v for n, v in enumerate(row))

    name = f"sql[{', '.join(map(str, kinds))}]"
    return Serde(name, encode, read, remake=(row_serde, (kinds,)))


def _reader(type_: SqlType) -> Callable[[Any], Any]:
    """Return what makes a value of SQL of one of JSON."""
    inner = _inner_reader(type_)
    return lambda value: None if value is None else inner(value)


def _inner_reader(type_: SqlType) -> Callable[[Any], Any]:  # noqa: PLR0911 - one case for each type
    if isinstance(type_, Decimal):
        to_scale = scaled(type_.scale)
        return lambda value: to_scale(_refuse(value, dict, list, bool))
    if isinstance(type_, Array):
        item = _reader(type_.item)
        return lambda value: [item(each) for each in _require(value, list)]
    if isinstance(type_, Map):
        to_key, to_value = cast(Primitive.STRING, type_.key) or str, _reader(type_.value)
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


def _struct_reader(columns: Columns) -> Callable[[Any], Any]:
    readers = [(name, name.upper(), _reader(type_)) for name, type_ in columns]

    def read(value: Any) -> dict[str, Any]:
        found = _require(value, dict)
        upper = {name.upper(): each for name, each in found.items()}
        return {name: read(found.get(name, upper.get(alike))) for name, alike, read in readers}

    return read


def _writer(type_: SqlType) -> Callable[[Any], Any] | None:
    """Return what makes a value of JSON; None if it is one already."""
    if isinstance(type_, Array):
        item = _writer(type_.item)
        return item and (lambda value: None if value is None else [item(each) for each in value])
    if isinstance(type_, Map):
        part, name_of = _writer(type_.value) or _itself, cast(type_.key, Primitive.STRING) or str
        return lambda value: (
            None
            if value is None
            else {"null" if name is None else name_of(name): part(each) for name, each in value.items()}
        )
    if isinstance(type_, Struct):
        parts = {name: _writer(each) or _itself for name, each in type_.fields}
        return lambda value: None if value is None else {name: part(value.get(name)) for name, part in parts.items()}
    if type_ is Primitive.BYTES:
        return lambda value: None if value is None else base64.b64encode(value).decode()
    return _double_json if type_ is Primitive.DOUBLE else None


def _double_json(value: float | None) -> float | str | None:
    """Return a number, or the text that stands for one that JSON does not have."""
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def _itself(value: Any) -> Any:
    return value


def _json(columns: Columns, *, wrapped: bool) -> Serde[Any]:
    writers = [(name, _writer(type_) or _itself) for name, type_ in columns]
    decode: Any = (
        msgspec.json.Decoder(float_hook=decimal.Decimal).decode
        if "DECIMAL" in str(columns) or any("DECIMAL" in str(type_) for _, type_ in columns)
        else msgspec.json.decode
    )
    if not wrapped:
        read_one, (_, write_one) = _reader(columns[0][1]), writers[0]
        return _serde(
            "json", (columns, wrapped), lambda row: _encode(write_one(row[0])), lambda data: (read_one(decode(data)),)
        )
    read_all = _struct_reader(columns)

    def read(data: bytes) -> Any:
        found = decode(data)
        return None if found is None else tuple(read_all(found).values())

    def write(row: Any) -> bytes:
        return _encode({name: part(value) for (name, part), value in zip(writers, row, strict=True)})

    return _serde("json", (columns, wrapped), write, read)


def _serde(name: str, parts: Any, write: Callable[[Any], bytes], read: Callable[[bytes], Any]) -> Serde[Any]:
    columns, option = parts
    text = ", ".join(f"{column} {type_}" for column, type_ in columns)
    return Serde(f"sql-{name}[{text}]", write, read, remake=(_remade, (name, columns, option)))


def _remade(name: str, columns: Columns, option: Any) -> Serde[Any]:
    return {"json": lambda: _json(columns, wrapped=option), "delimited": lambda: _delimited(columns, option)}[name]()


def _delimited_text(type_: SqlType) -> Callable[[Any], str]:
    if type_ is Primitive.BYTES:
        return lambda value: base64.b64encode(value).decode()
    if type_ in {Primitive.DATE, Primitive.TIME, Primitive.TIMESTAMP}:
        return str
    return cast(type_, Primitive.STRING) or str


def _needs_quotes(text: str, delimiter: str, *, is_first: bool) -> bool:
    """Tell whether Apache Commons CSV, which ksqlDB writes with, puts a text into quotes."""
    begins_oddly = not (text[0].isascii() and text[0].isalnum()) if is_first else text[0] <= "#"
    return begins_oddly or text[-1] <= " " or any(sign in text for sign in (delimiter, '"', "\n", "\r"))


def _delimited(columns: Columns, delimiter: str) -> Serde[Any]:
    for name, type_ in columns:
        if isinstance(type_, Array | Map | Struct):
            message = f"The 'DELIMITED' format does not support type '{type(type_).__name__.upper()}', column: `{name}`"
            raise SqlError(message)
    readers = [
        _reader(type_) if type_ is not Primitive.BOOLEAN else cast(Primitive.STRING, type_) or str
        for _, type_ in columns
    ]
    writers = [_delimited_text(type_) for _, type_ in columns]

    def read(data: bytes) -> Any:
        found = next(csv.reader(io.StringIO(data.decode(), newline=""), delimiter=delimiter), [])
        if len(found) != len(readers):
            message = f"Unexpected field count, csvFields:{len(found)} schemaFields:{len(readers)}"
            raise ValueError(message)
        return tuple(read(text) if text else None for read, text in zip(readers, found, strict=True))

    def write(row: Any) -> bytes:
        parts: list[str] = []
        for value, to_text in zip(row, writers, strict=True):
            text = "" if value is None else to_text(value)
            if text and _needs_quotes(text, delimiter, is_first=not parts):
                text = '"' + text.replace('"', '""') + '"'
            parts.append(text)
        return delimiter.join(parts).encode()

    return _serde("delimited", (columns, delimiter), write, read)


def _single(inner: Serde[Any]) -> Serde[Any]:
    return Serde(
        inner.name,
        lambda row: inner.serialize(row[0]),
        lambda data: (inner.deserialize(data),),
        remake=(_single, (inner,)),
    )


def _nothing() -> Serde[Any]:
    return Serde("sql-none", lambda _row: b"", lambda _data: (), remake=(_nothing, ()))


def _no_key() -> Serde[Any]:
    """Return the serde of a source without a key: whatever its records have is NULL, and stays so."""
    return Serde("sql-no-key", lambda _row: b"", lambda _data: None, remake=(_no_key, ()))


def _kafka(columns: Columns) -> Serde[Any]:
    if len(columns) != 1:
        message = "The 'KAFKA' format only supports a single field. Got: " + ", ".join(name for name, _ in columns)
        raise SqlError(message)
    name, type_ = columns[0]
    if type_ not in _KAFKA:
        message = f"The 'KAFKA' format does not support type '{type_}', column: `{name}`"
        raise SqlError(message)
    return _single(_KAFKA[type_])


def value_serde(columns: Columns, format_: str, *, wrapped: bool = True, delimiter: str = ",") -> Serde[Any]:
    """Return the serde of rows in a topic: tuples of values.

    Raises:
        SqlError: If there is no such format, or it cannot hold the columns.
    """
    if not columns:
        return _nothing()
    if format_ == "JSON":
        return _json(columns, wrapped=wrapped or len(columns) > 1)
    if format_ == "KAFKA":
        return _kafka(columns)
    if format_ == "DELIMITED":
        return _delimited(columns, _DELIMITERS.get(delimiter, delimiter))
    message = f"Format {format_} is not supported"
    raise SqlError(message, hint=f"There are {', '.join(FORMATS)}.")


def key_serde(columns: Columns, format_: str) -> Serde[Any]:
    """Return the serde of keys: tuples of the values of the key's columns.

    Raises:
        SqlError: If there is no such format, or it cannot hold the columns.
    """
    if format_ == "NONE" and columns:
        named = ", ".join(name for name, _ in columns)
        message = f"The 'NONE' format can only be used when no columns are defined. Got: {named}"
        raise SqlError(message)
    if not columns:
        return _no_key()
    return value_serde(columns, format_, wrapped=False)
