"""Two formats of rows: MessagePack within a topology, in state and internal topics, and CSV for DELIMITED topics."""

from __future__ import annotations

import base64
import csv
import decimal
import io
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from riverrun.decoders import msgpack_decoder
from riverrun.serde.api import Serde
from riverrun.sql.formats.json_rows import read_column, reader_of
from riverrun.sql.operators import cast
from riverrun.sql.statements import SqlError
from riverrun.sql.types import Array, Columns, Decimal, Map, Primitive, SqlType, Struct, columns_text
from riverrun.sql.values import RANGES, double_of_text, unfit, whole_of_text

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
    """Return the function that completes values read from state; None if they are complete."""
    # msgspec restores decimals, which MessagePack has as texts, where a type says so: not in the fields of a struct,
    # which are read as `Any`.
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
    """Return the serde of rows within a topology; `is_exact` promises that values have exactly these types."""
    kinds = tuple(types)
    decoder: Any = msgpack_decoder(tuple[tuple(_python_type(each) for each in kinds)] if kinds else tuple[()])  # type: ignore[misc]
    finish = {number: made for number, each in enumerate(kinds) if (made := _restored(each))}
    encode = msgspec.msgpack.Encoder().encode

    def read(data: bytes) -> Any:
        row = decoder.decode(data)
        return row if not finish else tuple(finish[n](v) if n in finish else v for n, v in enumerate(row))

    name = f"sql[{', '.join(map(str, kinds))}]"
    # A store may then hand out the row that was written in place of its bytes: a DOUBLE, say, is never an int.
    is_fixed = is_exact and all(isinstance(each, Primitive | Decimal) for each in kinds)
    fixed = frozenset({tuple} if is_fixed else ())
    return Serde(name, encode, read, remake=(_again, (kinds, is_exact)), immutable_types=fixed)


def _again(types: tuple[SqlType, ...], is_exact: bool) -> Serde[Any]:  # noqa: FBT001 - pickled
    return row_serde(types, is_exact=is_exact)


_DELIMITERS = {"SPACE": " ", "TAB": "\t"}


def _delimited_text(type_: SqlType) -> Callable[[Any], str]:
    if type_ is Primitive.BYTES:
        return lambda value: base64.b64encode(value).decode()
    if type_ in {Primitive.DATE, Primitive.TIME, Primitive.TIMESTAMP}:
        return str
    return cast(type_, Primitive.STRING) or str


def _reader(type_: SqlType) -> Callable[[str], Any]:
    """Return the function that reads a text that is not empty."""
    if type_ in RANGES:
        return partial(whole_of_text, type_=type_)
    return _TEXTS.get(type_) or reader_of(type_)


def _boolean(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise unfit(text, Primitive.BOOLEAN)
    return text.lower() == "true"


_TEXTS: dict[SqlType, Callable[[str], Any]] = {
    Primitive.BOOLEAN: _boolean,
    Primitive.DOUBLE: double_of_text,
    Primitive.STRING: str,
}


def _needs_quotes(text: str, delimiter: str, *, is_first: bool) -> bool:
    """Return whether Apache Commons CSV, with which ksqlDB writes, quotes a text."""
    begins_oddly = not (text[0].isascii() and text[0].isalnum()) if is_first else text[0] <= "#"
    return begins_oddly or text[-1] <= " " or any(sign in text for sign in (delimiter, '"', "\n", "\r"))


def delimited_serde(columns: Columns, delimiter: str) -> Serde[Any]:
    """Return the serde of rows as a line of CSV."""
    sign = _DELIMITERS.get(delimiter, delimiter)
    for name, type_ in columns:
        if isinstance(type_, Array | Map | Struct):
            message = f"The 'DELIMITED' format does not support type '{type(type_).__name__.upper()}', column: `{name}`"
            raise SqlError(message)
    readers = [_reader(type_) for _, type_ in columns]
    names = [name for name, _ in columns]
    writers = [_delimited_text(type_) for _, type_ in columns]

    def read(data: bytes) -> Any:
        found = next(csv.reader(io.StringIO(data.decode(), newline=""), delimiter=sign), [])
        if len(found) != len(readers):
            raise ValueError(f"Unexpected field count, csvFields:{len(found)} schemaFields:{len(readers)}")
        try:
            return tuple([read(text) if text else None for read, text in zip(readers, found, strict=True)])
        except ValueError:
            for column, read, text in zip(names, readers, found, strict=True):
                read_column(column, read, text or None)
            raise

    def write(row: Any) -> bytes:
        parts: list[str] = []
        for value, to_text in zip(row, writers, strict=True):
            text = "" if value is None else to_text(value)
            if text and _needs_quotes(text, sign, is_first=not parts):
                text = '"' + text.replace('"', '""') + '"'
            parts.append(text)
        return sign.join(parts).encode()

    name = f"sql-delimited[{columns_text(columns)}]"
    return Serde(name, write, read, remake=(delimited_serde, (columns, delimiter)))
