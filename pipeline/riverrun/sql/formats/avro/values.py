"""Converts values of Avro to those of columns."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from riverrun.sql.compiling.operators import cast, scaled
from riverrun.sql.types import Array, Columns, Decimal, Map, Primitive, SqlType, Struct

if TYPE_CHECKING:
    from collections.abc import Callable

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def of_avro(type_: SqlType) -> Callable[[Any], Any]:
    """Return the function that converts a value from Avro."""
    inner = _inner_of_avro(type_)
    return lambda value: None if value is None else inner(value)


def _inner_of_avro(type_: SqlType) -> Callable[[Any], Any]:
    if isinstance(type_, Decimal):
        to_scale = scaled(type_.scale)
        return lambda value: to_scale(repr(value) if isinstance(value, float) else value)
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
    return _SIMPLE_READERS.get(type_, _whole)


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


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        message = f"{value!r} is no BOOLEAN"
        raise TypeError(message)
    return value


def _whole(value: Any) -> int:
    """Return a number; of times in microseconds, which SQL has no type for, the microseconds."""
    if isinstance(value, dt.datetime):
        return (value - _EPOCH) // dt.timedelta(microseconds=1)
    if isinstance(value, dt.time):
        return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
    return int(value)


def _days(value: Any) -> int:
    return (value - _EPOCH.date()).days if isinstance(value, dt.date) else int(value)


def _time_ms(value: Any) -> int:
    if not isinstance(value, dt.time):
        return int(value)
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 1000 + value.microsecond // 1000


def _timestamp_ms(value: Any) -> int:
    return (value - _EPOCH) // dt.timedelta(milliseconds=1) if isinstance(value, dt.datetime) else int(value)


_SIMPLE_READERS: dict[SqlType, Callable[[Any], Any]] = {
    Primitive.BOOLEAN: _boolean,
    Primitive.DOUBLE: float,
    Primitive.STRING: str,
    Primitive.BYTES: bytes,
    Primitive.DATE: _days,
    Primitive.TIME: _time_ms,
    Primitive.TIMESTAMP: _timestamp_ms,
}
