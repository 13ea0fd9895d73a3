"""Rows with the names of their columns, as displays, data frames and expectations show them, and as users write them."""

from __future__ import annotations

import datetime as dt
import decimal
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import msgspec

from riverrun.decoders import exact_json
from riverrun.sql.formats.json_rows import reader_of
from riverrun.sql.operators import cast
from riverrun.sql.types import Array, Columns, Decimal, Map, Primitive, SqlType, Struct
from riverrun.sql.values import time_text, timestamp_of_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.serde.api import Serde

_EPOCH_DAY = dt.date(1970, 1, 1).toordinal()
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_PLAIN_TYPES: dict[SqlType, Any] = {
    Primitive.BOOLEAN: bool,
    Primitive.INTEGER: Annotated[int, msgspec.Meta(extra={"bits": 32})],
    Primitive.BIGINT: int,
    Primitive.DOUBLE: float,
    Primitive.STRING: str,
    Primitive.BYTES: bytes,
    Primitive.DATE: dt.date,
    Primitive.TIME: str,
    Primitive.TIMESTAMP: dt.datetime,
}


def named(serde: Serde[Any], columns: Columns, read: frozenset[str] | None = None) -> Serde[Any]:
    """Return a serde of rows that knows the names and types of their columns (`Serde.value_type`, `plain`, `of_text`).

    >>> from riverrun.sql.formats.rows import row_serde
    >>> rows = named(row_serde([Primitive.BIGINT, Primitive.DATE]), (("ID", Primitive.BIGINT), ("ON", Primitive.DATE)))
    >>> rows.plain((7, 0))
    {'ID': 7, 'ON': datetime.date(1970, 1, 1)}
    >>> rows.of_text('{"id": 7, "on": "1970-01-02"}')
    (7, 1)
    """
    # Columns that the serde does not read (`read`) are always None, and would look like NULLs of the record.
    shown = tuple(each for each in columns if read is None or each[0] in read)
    of_row = _plain_row(shown)
    places = [number for number, each in enumerate(columns) if each in shown]

    def plain(row: Any) -> dict[str, Any] | None:
        # Debezium's deletions and JSON's null are rows that are None.
        if row is None or len(shown) == len(columns):
            return None if row is None else of_row(row)
        return of_row(tuple(row[place] for place in places))

    return replace(
        serde,
        remake=(named, (serde, columns, read)),
        # The serde within `remake` is placed, and this one is made again around it.
        place=None,
        value_type=_type_of_row(shown),
        plain=plain,
        of_text=_row_of_text(columns),
    )


def _type_of_row(columns: Columns) -> Any:
    """Return a TypedDict, whose fields may have any names."""
    make: Any = TypedDict  # checkers know only those that are written out
    return make("Row", {name: _type_of(type_) for name, type_ in columns})


def _type_of(type_: SqlType) -> Any:
    match type_:
        case Decimal(precision, scale):
            found: Any = Annotated[decimal.Decimal, msgspec.Meta(extra={"precision": precision, "scale": scale})]
        case Array(item):
            found = list[_type_of(item)]  # type: ignore[misc]
        case Map(_, value):
            found = dict[str, _type_of(value)]  # type: ignore[misc]
        case Struct(fields):
            found = _type_of_row(fields)
        case _:
            found = _PLAIN_TYPES[type_]
    return found | None


def _plain_row(columns: Columns) -> Callable[[Any], dict[str, Any]]:
    parts = [(name, _plain(type_)) for name, type_ in columns]

    def plain(row: Any) -> dict[str, Any]:
        # A query of a store may name the value of a key alone, without its tuple.
        values = row if row.__class__ is tuple else (row,)
        return {
            name: value if value is None or part is None else part(value)
            for (name, part), value in zip(parts, values, strict=True)
        }

    return plain


def _plain(type_: SqlType) -> Callable[[Any], Any] | None:
    """Return the function that converts a value that is not NULL; None if no conversion is needed."""
    match type_:
        case Array(item):
            of_item = _plain(item)
            return of_item and (lambda value: [each if each is None else of_item(each) for each in value])
        case Map(key, item):
            of_key, of_value = cast(key, Primitive.STRING) or str, _plain(item) or _itself
            return lambda value: {
                "null" if name is None else of_key(name): each if each is None else of_value(each)
                for name, each in value.items()
            }
        case Struct(fields):
            row = _plain_row(fields)
            names = [name for name, _ in fields]
            return lambda value: row(tuple(value.get(name) for name in names))
        case Primitive.DATE:
            return _date
        case Primitive.TIME:
            return time_text
        case Primitive.TIMESTAMP:
            return _timestamp
    return None


def _date(days: int) -> dt.date | int:
    # Python has no dates outside of the years 1 to 9999.
    try:
        return dt.date.fromordinal(_EPOCH_DAY + days)
    except (OverflowError, ValueError):
        return days


def _timestamp(time_ms: int) -> dt.datetime | str:
    """Return a time; its milliseconds as text outside of Python's years."""
    try:
        return _EPOCH + dt.timedelta(milliseconds=time_ms)
    except OverflowError:
        return str(time_ms)


def _itself(value: Any) -> Any:
    return value


def _row_of_text(columns: Columns) -> Callable[[str], tuple[Any, ...]]:
    # Made with the first call: few serdes ever read texts.
    reader = cache(lambda: _text_reader(columns))
    return lambda text: reader()(text)  # noqa: PLW0108 - the first call makes the reader


def _text_reader(columns: Columns) -> Callable[[str], tuple[Any, ...]]:
    """Return a function that reads a row from an object of JSON; a single column may also stand alone."""
    only = columns[0][1] if len(columns) == 1 else None
    values_of = _values_reader(columns)

    def row_of(text: str) -> tuple[Any, ...]:
        if only is Primitive.STRING and not text.lstrip().startswith("{"):
            return (text,)
        found = exact_json(text)
        if only is not None and not isinstance(found, dict):
            return (_written(only)(found),)
        return tuple(values_of(found).values())

    return row_of


def _values_reader(columns: Columns) -> Callable[[Any], dict[str, Any]]:
    """Return a function that returns the values of all columns from an object, with names in any case."""
    readers = {name: _written(type_) for name, type_ in columns}
    # Reversed, so that of columns that differ only in case the first one is found.
    by_upper = {name.upper(): name for name in reversed(readers)}

    def values_of(found: Any) -> dict[str, Any]:
        if not isinstance(found, dict):
            message = f"{found!r} is not an object with the columns {', '.join(readers)}"
            raise ValueError(message)  # noqa: TRY004 - what the text says, not what the code does
        values: dict[str, Any] = dict.fromkeys(readers)
        for name, value in found.items():
            column = name if name in readers else by_upper.get(name.upper())
            if column is None:
                raise ValueError(f"there is no column {name!r}: there are {', '.join(readers)}")
            values[column] = readers[column](value)
        return values

    return values_of


def _written(type_: SqlType) -> Callable[[Any], Any]:
    """Return the function that converts a value from JSON, with times as texts or numbers."""
    read = reader_of(type_)
    match type_:
        case Array(item):
            of_item = _written(item)
            return lambda value: [of_item(each) for each in value] if isinstance(value, list) else read(value)
        case Map(key, item):
            to_key, of_value = cast(Primitive.STRING, key) or str, _written(item)
            return lambda value: (
                {to_key(name): of_value(each) for name, each in value.items()}
                if isinstance(value, dict)
                else read(value)
            )
        case Struct(fields):
            values_of = _values_reader(fields)
            return lambda value: None if value is None else values_of(value)
        case Primitive.TIMESTAMP:
            return lambda value: read(int(value)) if _is_ms(value) else _read_time(read, value)
        case Primitive.DATE | Primitive.TIME:
            of_text = cast(Primitive.STRING, type_) or read
            return lambda value: of_text(value) if isinstance(value, str) else read(value)
    return read


def _is_ms(value: Any) -> bool:
    return isinstance(value, str) and value.removeprefix("-").isdecimal()


def _read_time(read: Callable[[Any], Any], value: Any) -> Any:
    return timestamp_of_text(value) if isinstance(value, str) else read(value)
