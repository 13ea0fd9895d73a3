"""Rows as lines of CSV in the style of Apache Commons CSV."""

from __future__ import annotations

import base64
import csv
import io
from typing import TYPE_CHECKING, Any

from riverrun.serde.api import Serde
from riverrun.sql.compiling.operators import cast
from riverrun.sql.errors import SqlError
from riverrun.sql.formats.json_rows import reader_of
from riverrun.sql.types import Array, Columns, Map, Primitive, SqlType, Struct, columns_text

if TYPE_CHECKING:
    from collections.abc import Callable

_DELIMITERS = {"SPACE": " ", "TAB": "\t"}


def _delimited_text(type_: SqlType) -> Callable[[Any], str]:
    if type_ is Primitive.BYTES:
        return lambda value: base64.b64encode(value).decode()
    if type_ in {Primitive.DATE, Primitive.TIME, Primitive.TIMESTAMP}:
        return str
    return cast(type_, Primitive.STRING) or str


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
    readers = [
        reader_of(type_) if type_ is not Primitive.BOOLEAN else cast(Primitive.STRING, type_) or str
        for _, type_ in columns
    ]
    writers = [_delimited_text(type_) for _, type_ in columns]

    def read(data: bytes) -> Any:
        found = next(csv.reader(io.StringIO(data.decode(), newline=""), delimiter=sign), [])
        if len(found) != len(readers):
            message = f"Unexpected field count, csvFields:{len(found)} schemaFields:{len(readers)}"
            raise ValueError(message)
        return tuple(read(text) if text else None for read, text in zip(readers, found, strict=True))

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
