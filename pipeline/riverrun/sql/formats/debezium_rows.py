"""Rows of a database's tables, and changes of rows, from the envelopes that Debezium writes (`riverrun.serde.debezium`).

A table has the row after each change, a stream the parts of the envelope. Columns have the names of the database in any case.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.schemas.avro.serde import Avro
from riverrun.serde.api import Serde
from riverrun.serde.column_types import days_of_text, year_within
from riverrun.serde.debezium import changes_serde, row_after
from riverrun.serde.debezium import key_serde as serde_of_keys
from riverrun.serde.serdes import JSON
from riverrun.serde.unlogged import UNAVAILABLE, not_sent
from riverrun.sql.formats.json_rows import fields_reader, reader_of
from riverrun.sql.formats.named_rows import named
from riverrun.sql.statements import SqlError, nearest
from riverrun.sql.types import Array, Columns, Map, Primitive, SqlType, Struct, columns_text
from riverrun.sql.values import timestamp_of_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.serde.debezium import RowChange

FORMATS_OF_CHANGES = ("DEBEZIUM_JSON", "DEBEZIUM_AVRO")
_DAY_MS = 86_400_000
_DELETED = "d"
_ENVELOPE: dict[str, Callable[[SqlType], bool]] = {
    "OP": lambda type_: type_ is Primitive.STRING,
    "BEFORE": lambda type_: isinstance(type_, Struct),
    "AFTER": lambda type_: isinstance(type_, Struct),
    "SOURCE": lambda type_: isinstance(type_, Struct | Map) or type_ is Primitive.STRING,
    "TS_MS": lambda type_: type_ is Primitive.BIGINT,
}
"""Columns of a stream of changes, with the types that they may have."""
_ENVELOPE_TEXT = "OP STRING, BEFORE STRUCT<...>, AFTER STRUCT<...>, SOURCE STRUCT<...>, TS_MS BIGINT"


@dataclass(frozen=True, slots=True)
class Changes:
    """How a source reads changes of rows.

    Args:
        is_row: Whether the row after a change is read, as for tables; otherwise the envelope.
        types: Debezium's types of columns in JSON without a schema, and in Avro, by the names that records have.
        placeholder: Stands for columns that the database did not log.
    """

    format: str
    is_row: bool
    types: tuple[tuple[str, str], ...] = ()
    placeholder: str = UNAVAILABLE

    def _named(self, types: tuple[tuple[str, str], ...]) -> str:
        # The name is part of the fingerprint: DEBEZIUM_TYPES changes what is read, and columns alone do not show that.
        own = () if self.placeholder == UNAVAILABLE else (f"unlogged {self.placeholder}",)
        return ", ".join((f"sql-{self.format.lower()}", *(f"{column} {type_}" for column, type_ in types), *own))

    @property
    def _inner(self) -> Serde[Any]:
        return Avro() if self.format == "DEBEZIUM_AVRO" else JSON

    def check(self, key: Columns, columns: Columns) -> None:
        """Make sure that a source can have these columns, and that DEBEZIUM_TYPES fits them."""
        for name, type_ in () if self.is_row else columns:
            fits = _ENVELOPE.get(name)
            if fits is None or not fits(type_):
                message = f"A stream of changes has no column {name} {type_}"
                raise SqlError(message, hint=f"It has {_ENVELOPE_TEXT}. A table has the columns of its rows.")
        parts = [each for _, type_ in columns if not self.is_row and isinstance(type_, Struct) for each in type_.fields]
        known = {name.upper() for name, _ in (*key, *(columns if self.is_row else parts))}
        for column, _ in self.types:
            if column.upper() not in known:
                raise SqlError(f"DEBEZIUM_TYPES: the statement has no column {column}", hint=nearest(column, known))
        try:
            changes_serde(None, self.types)
        except ValueError as error:
            raise SqlError(f"DEBEZIUM_TYPES: {error}") from None
        try:
            changes_serde(None, None, JSON, self.placeholder)
        except ValueError as error:
            raise SqlError(f"DEBEZIUM_PLACEHOLDER: {error}") from None

    def serdes(self, key: Columns, value: Columns) -> tuple[Serde[Any], Serde[Any]]:
        """Return the serdes that read keys, and rows or envelopes. They cannot write."""
        of_key = _wanted(key)
        key_types = tuple(each for each in self.types if each[0].upper() in of_key)
        keys = change_keys(self._named(key_types), serde_of_keys(None, key_types, self._inner), key)
        changes = changes_serde(None, self.types, self._inner, self.placeholder)
        return keys, (change_rows if self.is_row else change_envelopes)(self._named(self.types), changes, value)


def types_of_text(text: str) -> tuple[tuple[str, str], ...]:
    """Return the columns and types of DEBEZIUM_TYPES.

    >>> types_of_text("born io.debezium.time.Date, price org.apache.kafka.connect.data.Decimal(2)")
    (('born', 'io.debezium.time.Date'), ('price', 'org.apache.kafka.connect.data.Decimal(2)'))
    """
    found = []
    for part in text.split(","):
        column, _, type_ = part.strip().partition(" ")
        if not type_.strip():
            raise ValueError(f"DEBEZIUM_TYPES has columns with their types, and not {part.strip()!r}")
        found.append((column, type_.strip()))
    return tuple(found)


def change_keys(name: str, keys: Serde[Any], columns: Columns) -> Serde[Any]:
    """Return the serde that reads keys of changes as the values of columns."""
    fields, read = fields_reader(columns, change_reader), keys.deserialize

    # The inner serde returns the value of a single primary key's column, and a dict of several.
    def one(data: bytes) -> tuple[Any, ...]:
        ((column, type_),) = columns
        found = read(data)
        if isinstance(found, dict) and not isinstance(type_, Struct | Map):
            message = f"the primary key has columns {', '.join(found)}, and not just {column}"
            raise ValueError(message)  # noqa: TRY004 - as of other records that do not fit
        return tuple(fields({column: found}))

    def several(data: bytes) -> tuple[Any, ...]:
        return tuple(fields(read(data)))

    made = Serde(
        f"{name}-key[{columns_text(columns)}]",
        _unwritten,
        one if len(columns) == 1 else several,
        remake=(change_keys, (name, keys, columns)),
    )
    return named(made, columns) if columns else made


def change_rows(name: str, changes: Serde[Any], columns: Columns) -> Serde[Any]:
    """Return the serde that reads the row after each change; None after a deletion."""
    fields, read, wanted = fields_reader(columns, change_reader), changes.deserialize, _wanted(columns)

    def row(data: bytes) -> tuple[Any, ...] | None:
        change = read(data)
        if change.op == _DELETED:
            return None
        _check_sent(change, wanted)
        return tuple(fields(row_after(change)))

    made = f"{name}-rows[{columns_text(columns)}]"
    return named(Serde(made, _unwritten, row, remake=(change_rows, (name, changes, columns))), columns)


def change_envelopes(name: str, changes: Serde[Any], columns: Columns) -> Serde[Any]:
    """Return the serde that reads the parts of each change."""
    fields, read, wanted = fields_reader(columns, change_reader), changes.deserialize, _wanted(_after(columns))

    def envelope(data: bytes) -> tuple[Any, ...]:
        change = read(data)
        _check_sent(change, wanted)
        parts = {"op": change.op, "before": change.row_before, "after": change.after}
        return tuple(fields({**parts, "source": change.source, "ts_ms": change.ts_ms}))

    made = f"{name}-changes[{columns_text(columns)}]"
    return named(Serde(made, _unwritten, envelope, remake=(change_envelopes, (name, changes, columns))), columns)


def _after(columns: Columns) -> Columns:
    type_ = dict(columns).get("AFTER")
    return type_.fields if isinstance(type_, Struct) else ()


def _wanted(columns: Columns) -> frozenset[str]:
    return frozenset(name.upper() for name, _ in columns)


def _check_sent(change: RowChange[Any], wanted: frozenset[str]) -> None:
    # The database has not logged these columns. As NULL, they would overwrite the values that the row really has.
    if missing := tuple(name for name in change.unavailable if name.upper() in wanted):
        raise ValueError(not_sent(missing))


def change_reader(type_: SqlType) -> Callable[[Any], Any]:
    """Return the function that converts a value of a row, like that of JSON; times may also be texts of ISO 8601."""
    inner = _inner_reader(type_)
    return lambda value: None if value is None else inner(value)


def _inner_reader(type_: SqlType) -> Callable[[Any], Any]:
    match type_:
        case Struct(fields):
            names, read = [name for name, _ in fields], fields_reader(fields, change_reader)
            return lambda value: dict(zip(names, read(value), strict=True))
        case Array(item):
            part, plain = change_reader(item), reader_of(type_)
            return lambda value: [part(each) for each in value] if isinstance(value, list) else plain(value)
        case Primitive.DATE | Primitive.TIME | Primitive.TIMESTAMP:
            of_text, plain = _OF_TEXTS[type_], reader_of(type_)
            return lambda value: of_text(value) if isinstance(value, str) else plain(value)
    return reader_of(type_)


def _time_of_text(text: str) -> int:
    try:
        return timestamp_of_text(f"1970-01-01T{text}")
    except ValueError:
        raise ValueError(f"{text} is no time of day: only a STRING can hold it") from None


def _timestamp_of_text(text: str) -> int:
    within, days = year_within(text)
    return timestamp_of_text(within) + days * _DAY_MS


_OF_TEXTS: dict[SqlType, Callable[[str], int]] = {
    Primitive.DATE: days_of_text,
    Primitive.TIME: _time_of_text,
    Primitive.TIMESTAMP: _timestamp_of_text,
}


def _unwritten(_row: Any) -> bytes:
    raise TypeError("Debezium changes are read-only")
