"""Rows as lines of CSV in the style of Apache Commons CSV."""

from __future__ import annotations

import base64
import csv
import io
from functools import partial
from typing import TYPE_CHECKING, Any

from riverrun.serde.api import Serde
from riverrun.sql.compiling.operators import cast
from riverrun.sql.errors import SqlError
from riverrun.sql.formats.json_rows import read_column, reader_of
from riverrun.sql.types import Array, Columns, Map, Primitive, SqlType, Struct, columns_text
from riverrun.sql.values import RANGES, double_of_text, unfit, whole_of_text

if TYPE_CHECKING:
    from collections.abc import Callable

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
    """Return the serde of rows as a line of CSV.

    Raises:
        SqlError: If a column's type is not a single value.
    """
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
            message = f"Unexpected field count, csvFields:{len(found)} schemaFields:{len(readers)}"
            raise ValueError(message)
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
