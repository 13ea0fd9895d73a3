"""Converts records of Avro to rows: matches columns with fields, and values with the types of columns."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.generated import NotGenerated
from riverrun.schemas.avro.parsing import definition_of, definitions, kind_of
from riverrun.schemas.avro.reading import MadeRecord, RecordPart
from riverrun.sql.operators import cast
from riverrun.sql.types import Array, Columns, Decimal, Map, Primitive, SqlType, Struct
from riverrun.sql.values import EPOCH, RANGES, decimal_of, double_of, unfit, whole_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def of_avro(type_: SqlType) -> Callable[[Any], Any]:
    """Return the function that converts a value from Avro."""
    inner = _inner_of_avro(type_)
    return lambda value: None if value is None else inner(value)


def _inner_of_avro(type_: SqlType) -> Callable[[Any], Any]:
    if isinstance(type_, Decimal):
        return decimal_of(type_)
    if isinstance(type_, Array):
        item = of_avro(type_.item)
        return lambda value: [item(each) for each in value]
    if isinstance(type_, Map):
        to_key, part = cast(Primitive.STRING, type_.key) or str, of_avro(type_.value)
        return lambda value: {
            to_key(name) if isinstance(name, str) else name: part(each) for name, each in _entries(value)
        }
    if isinstance(type_, Struct):
        return fields_of_avro(type_.fields)
    if type_ in RANGES:
        whole, number_of = whole_of(type_), _NUMBERS.get(type_, _number)
        return lambda value: whole(number_of(value))
    return _SIMPLE_READERS[type_]


def fields_of_avro(columns: Columns) -> Callable[[Any], dict[str, Any]]:
    """Return the function that converts a record to a dict of columns, whose names match fields in any case."""
    readers = [(name, name.upper(), of_avro(type_)) for name, type_ in columns]

    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise TypeError(f"{value!r} is not a record")
        upper = {name.upper(): each for name, each in value.items()}
        return {name: read(value.get(name, upper.get(alike))) for name, alike, read in readers}

    return read


def _entries(value: Any) -> Any:
    """Return the entries of a map, or of the array of records that represents one."""
    return value.items() if isinstance(value, dict) else ((each["key"], each["value"]) for each in value)


def _of_class(type_: SqlType, *kinds: type) -> Callable[[Any], Any]:
    def same(value: Any) -> Any:
        if not isinstance(value, kinds):
            raise unfit(value, type_)
        return value

    return same


def _text(value: Any) -> str:
    """Return a text; other single values are written as in JSON."""
    if isinstance(value, dict | list | bytes):
        raise unfit(value, Primitive.STRING)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _number(value: Any) -> Any:
    # SQL has no type for times in microseconds: as BIGINT such a column has the microseconds.
    if isinstance(value, dt.datetime):
        return (value - EPOCH) // dt.timedelta(microseconds=1)
    if isinstance(value, dt.time):
        return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
    return value


def _days(value: Any) -> Any:
    is_date = isinstance(value, dt.date) and not isinstance(value, dt.datetime)
    return (value - EPOCH.date()).days if is_date else value


def _time_ms(value: Any) -> Any:
    if not isinstance(value, dt.time):
        return value
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 1000 + value.microsecond // 1000


def _timestamp_ms(value: Any) -> Any:
    return (value - EPOCH) // dt.timedelta(milliseconds=1) if isinstance(value, dt.datetime) else value


_NUMBERS: dict[SqlType, Callable[[Any], Any]] = {
    Primitive.DATE: _days,
    Primitive.TIME: _time_ms,
    Primitive.TIMESTAMP: _timestamp_ms,
}
_SIMPLE_READERS: dict[SqlType, Callable[[Any], Any]] = {
    Primitive.BOOLEAN: _of_class(Primitive.BOOLEAN, bool),
    Primitive.DOUBLE: double_of,
    Primitive.STRING: _text,
    Primitive.BYTES: _of_class(Primitive.BYTES, bytes),
}


_WHOLE = frozenset({"int", "long"})
_SAME: dict[SqlType, frozenset[str]] = {
    Primitive.BOOLEAN: frozenset({"boolean"}),
    Primitive.INTEGER: frozenset({"int"}),
    Primitive.BIGINT: _WHOLE,
    Primitive.DOUBLE: frozenset({"float", "double"}),
    Primitive.STRING: frozenset({"string", "enum"}),
    Primitive.BYTES: frozenset({"bytes", "fixed"}),
    Primitive.DATE: frozenset({"int"}),
    Primitive.TIMESTAMP: _WHOLE,
}
"""Types of Avro whose values need neither a conversion nor a check of their range."""


def row_of(columns: Columns, schema: Any) -> MadeRecord:
    """Return how generated functions make rows of records, without dicts in between."""
    if not isinstance(schema, dict) or kind_of(schema) != "record":
        raise NotGenerated("the schema of a row must be a record")
    return MadeRecord(tuple, _Fitting(definitions(schema)).parts(columns, schema))


@dataclass(frozen=True, slots=True)
class _Fitting:
    """A comparison of columns with a schema; `defined` has its named schemas."""

    defined: Mapping[str, Any]

    def parts(self, columns: Columns, schema: Any) -> dict[str, RecordPart]:
        """Return columns by the names of their fields; a column without a field has its own name."""
        fields = {each["name"]: each["type"] for each in schema["fields"]}
        alike = {name.upper(): name for name in fields}
        found: dict[str, RecordPart] = {}
        for column, type_ in columns:
            name = column if column in fields else alike.get(column.upper(), column)
            if name in found:
                raise NotGenerated(f"two columns have the field {name}")
            made, convert = self._fit(type_, fields[name]) if name in fields else (None, None)
            found[name] = RecordPart(column, made, type_, convert)
        return found

    def _fit(self, type_: SqlType, schema: Any) -> tuple[MadeRecord | None, Callable[[Any], Any] | None]:
        """Return how the records in a value are made, or else the function that converts the value; None for neither."""
        schema = definition_of(schema, self.defined)
        if isinstance(schema, list):
            others = [each for each in schema if each != "null"]
            return self._fit(type_, others[0]) if len(others) == 1 else (None, of_avro(type_))
        kind = kind_of(schema)
        match type_:
            case Struct() if kind == "record":
                return MadeRecord(dict, self.parts(type_.fields, schema)), None
            case Array() if kind == "array":
                made, convert = self._fit(type_.item, schema["items"])
            case Map(key=Primitive.STRING) if kind == "map":
                made, convert = self._fit(type_.value, schema["values"])
            case _:
                is_logical = isinstance(schema, dict) and "logicalType" in schema
                made, convert = None, None if kind in _SAME.get(type_, ()) and not is_logical else of_avro(type_)
        return (made, None) if convert is None else (None, of_avro(type_))
