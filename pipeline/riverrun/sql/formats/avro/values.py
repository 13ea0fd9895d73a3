"""Converts values of Avro to those of columns."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from riverrun.sql.compiling.operators import cast
from riverrun.sql.types import Array, Columns, Decimal, Map, Primitive, SqlType, Struct
from riverrun.sql.values import EPOCH, RANGES, decimal_of, double_of, unfit, whole_of

if TYPE_CHECKING:
    from collections.abc import Callable


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
            message = f"{value!r} is no record"
            raise TypeError(message)
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
    """Return a number; of times in microseconds, which SQL has no type for, the microseconds."""
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
