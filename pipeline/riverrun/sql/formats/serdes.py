"""Serdes of topics by the names of their formats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.serde.api import ITEM, Serde
from riverrun.serde.serdes import BYTES, DOUBLE, INTEGER, LONG, STRING
from riverrun.sql.formats.avro_rows import avro_serde
from riverrun.sql.formats.debezium_rows import FORMATS_OF_CHANGES
from riverrun.sql.formats.json_rows import json_serde
from riverrun.sql.formats.json_schema_rows import json_schema_serde
from riverrun.sql.formats.named_rows import named
from riverrun.sql.formats.protobuf_rows import protobuf_serde
from riverrun.sql.formats.rows import delimited_serde
from riverrun.sql.statements import SqlError, nearest
from riverrun.sql.types import Array, Columns, Map, Primitive, SqlType, Struct

if TYPE_CHECKING:
    from collections.abc import Iterator

    from riverrun.sql.schema_types import WrittenSchema

FORMATS = ("AVRO", "DELIMITED", "JSON", "JSON_SR", "KAFKA", "NONE", "PROTOBUF", "PROTOBUF_NOSR")
_WITH_NAMES = frozenset({"JSON", "JSON_SR", "PROTOBUF", "PROTOBUF_NOSR"})
_KAFKA: dict[SqlType, Serde[Any]] = {
    Primitive.INTEGER: INTEGER,
    Primitive.BIGINT: LONG,
    Primitive.DOUBLE: DOUBLE,
    Primitive.STRING: STRING,
    Primitive.BYTES: BYTES,
}


def _single(inner: Serde[Any]) -> Serde[Any]:
    write, read = inner.serialize, inner.deserialize

    def written(row: Any) -> bytes:
        # A query of a store may name the value of a key alone, without its tuple.
        return write(row[0] if row.__class__ is tuple else row)

    def read_row(data: bytes) -> Any:
        return (read(data),)

    # Generated code has the item at hand, and need not make a tuple of it.
    setattr(written, ITEM, write)
    setattr(read_row, ITEM, read)
    return Serde(inner.name, written, read_row, remake=(_single, (inner,)))


def _nothing() -> Serde[Any]:
    return Serde("sql-none", lambda _row: b"", lambda _data: (), remake=(_nothing, ()))


def _no_key() -> Serde[Any]:
    """Return the serde of a source without a key: all keys of its records are read as NULL."""
    return Serde("sql-no-key", lambda _row: b"", lambda _data: None, remake=(_no_key, ()))


def _kafka(columns: Columns) -> Serde[Any]:
    if len(columns) != 1:
        message = "The 'KAFKA' format only supports a single field. Got: " + ", ".join(name for name, _ in columns)
        raise SqlError(message)
    name, type_ = columns[0]
    if type_ not in _KAFKA:
        raise SqlError(f"The 'KAFKA' format does not support type '{type_}', column: `{name}`")
    return _single(_KAFKA[type_])


@dataclass(frozen=True, slots=True)
class Form:
    """A format of keys or of values, with its options.

    Args:
        name: One of `FORMATS`, in upper case.
        delimiter: Delimiter of DELIMITED: the character, `SPACE` or `TAB`.
        schema_name: Full name of the schema's record, for formats of a registry; defaults to ksqlDB's.
        nullable: How Protobuf distinguishes NULLs of single values from 0: `OPTIONAL` or `WRAPPER`; with None it does not.
        schema: The schema to write with, for formats of a registry; defaults to that of the columns.
    """

    name: str
    delimiter: str = ","
    schema_name: str | None = None
    nullable: str | None = None
    schema: WrittenSchema | None = None


def value_serde(
    columns: Columns, form: Form, *, wrapped: bool = True, used: frozenset[str] | None = None
) -> Serde[Any]:
    """Return the serde of rows in a topic: tuples of values.

    With `wrapped`, a single value is in a record or an object. Of JSON objects, only the columns `used` are read.
    """
    if not columns:
        return _nothing()
    made = _value_serde(columns, form, used, is_whole=wrapped or len(columns) > 1)
    return named(made, columns, used if form.name == "JSON" and wrapped else None)


def _value_serde(columns: Columns, form: Form, used: frozenset[str] | None, *, is_whole: bool) -> Serde[Any]:
    """Return the serde of rows without their names."""
    format_ = form.name
    if format_ in _WITH_NAMES:
        _check_maps(format_, columns)
    match format_:
        case "JSON":
            return json_serde(columns, wrapped=is_whole, used=used)
        case "AVRO":
            return avro_serde(columns, form.schema_name, wrapped=is_whole, schema=form.schema)
        case "JSON_SR":
            return json_schema_serde(columns, wrapped=is_whole, schema=form.schema)
        case "PROTOBUF" | "PROTOBUF_NOSR":
            has_registry = format_ == "PROTOBUF"
            return protobuf_serde(
                columns, form.schema_name, form.nullable, has_registry=has_registry, schema=form.schema
            )
        case "KAFKA":
            return _kafka(columns)
        case "DELIMITED":
            return delimited_serde(columns, form.delimiter)
    if format_ in FORMATS_OF_CHANGES:
        message = f"Format {format_} is one of values, for sources that are declared"
        raise SqlError(message, hint=f"FORMAT = '{format_}' reads keys and values.")
    message = f"Format {format_} is not supported"
    raise SqlError(
        message, hint=nearest(format_, (*FORMATS, *FORMATS_OF_CHANGES)) or f"There are {', '.join(FORMATS)}."
    )


def _check_maps(format_: str, columns: Columns) -> None:
    """Make sure that the keys of maps are texts, as JSON and ksqlDB's Protobuf messages require."""
    for name, type_ in columns:
        if any(each.key is not Primitive.STRING for each in _maps(type_)):
            raise SqlError(
                f"{format_.partition('_')[0]} only supports MAP types with STRING keys: column `{name}` is a {type_}"
            )


def _maps(type_: SqlType) -> Iterator[Map]:
    match type_:
        case Map():
            yield type_
            yield from _maps(type_.value)
        case Array():
            yield from _maps(type_.item)
        case Struct():
            for _, field in type_.fields:
                yield from _maps(field)


def plain_key_format(columns: Columns) -> str:
    """Return the most common format for keys of these columns: `KAFKA` if it can hold them, otherwise `JSON`."""
    return "KAFKA" if len(columns) == 1 and columns[0][1] in _KAFKA else "JSON"


def key_serde(columns: Columns, form: Form) -> Serde[Any]:
    """Return the serde of keys: tuples of the values of the key's columns."""
    if form.name == "NONE" and columns:
        named = ", ".join(name for name, _ in columns)
        raise SqlError(f"The 'NONE' format can only be used when no columns are defined. Got: {named}")
    return value_serde(columns, form, wrapped=False) if columns else _no_key()
