"""Finds or undoes what drivers of databases change without a word: infinite times, months, 24:00, numbers of 32 bits."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import sqlalchemy as sa

from riverrun.transfers.sql_columns import OF_MYSQL
from riverrun.transfers.sql_texts import shortest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

CHANGED = "riverrun_changed"
"""The column with the numbers of checks that a row has not passed; empty for most rows."""

_HELD = "riverrun_held_"
"""Begins the names of columns that have the exact value of another one."""
_SINGLES: Mapping[str, int] = {"mysql": 4, "mariadb": 4, "postgresql": 700}
"""The numbers that drivers have for the type of 32 bits, where they return another number than the database compares.

MySQL and MariaDB send six digits, and up to nine identify a value.
"""
_MONTHS = "extract(year from {0}) <> 0 OR extract(month from {0}) <> 0"
_IN_PARTS = re.compile(r"\[|\(|range$")
"""In types of PostgreSQL whose values have parts: arrays and ranges."""
_DIALECTS: Mapping[str, Mapping[str, str]] = {
    "postgresql": {
        r"date|timestamp with(out)? time zone": "NOT isfinite({0})",
        r"interval": f"NOT isfinite({{0}}) OR {_MONTHS}",
        r"time with(out)? time zone": "extract(hour from {0}) = 24",
    },
    "duckdb": {
        r"DATE": "isinf({0})",
        r"TIMESTAMP(_S|_MS|_NS| WITH TIME ZONE)?": "isinf(CAST({0} AS TIMESTAMP))",
        r"INTERVAL": _MONTHS,
    },
}
"""Per database, conditions of values that its drivers change, by patterns of types."""
_ENDS = {dt.datetime.max, dt.datetime.min, dt.date.max, dt.date.min}  # noqa: DTZ901 - zones are removed


def _always(_value: Any) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class ChangedValues:
    """Values of a column that the driver changes.

    Args:
        column: The column.
        condition: The condition of such values in SQL.
        is_changed: Looks at what the driver has returned, where texts within the value may fulfil the condition as well.
    """

    column: str
    condition: str
    is_changed: Callable[[Any], bool] = _always


@dataclass(frozen=True, slots=True)
class DriverValues:
    """The columns to select of rows so that changes by the driver are found, or undone.

    Args:
        selected: All columns, and those that tell of changes.
        checks: The values that cannot be read.
        rounded: The columns whose numbers of 32 bits the driver returns with other digits than the database compares.
        is_held: Whether the numbers that the server holds are selected for these columns as well.
    """

    selected: sa.TextClause = field(default_factory=lambda: sa.text("*"))
    checks: Sequence[ChangedValues] = ()
    rounded: Sequence[str] = ()
    is_held: bool = False

    @classmethod
    def of(cls, connection: sa.Connection, rows: Any) -> DriverValues:
        """Return what a driver changes of rows."""
        checks, rounded = tuple(_checks(connection, rows)), _singles_in(connection, rows)
        is_held = connection.dialect.name in OF_MYSQL
        columns = ["*"]
        if checks:
            found = (f"CASE WHEN {each.condition} THEN '{number} ' ELSE '' END" for number, each in enumerate(checks))
            columns.append(f"{' || '.join(found)} AS {CHANGED}")
        if is_held:
            # Some servers cast to doubles only by computing.
            columns += (f"{_quoted(name, '`')} + 0e0 AS {_quoted(_HELD + name, '`')}" for name in rounded)
        return cls(sa.text(", ".join(columns).replace(":", "\\:")), checks, rounded, is_held)

    def restore(self, fields: dict[str, Any]) -> str | None:
        """Take what was selected in addition from a row, and return what is wrong with it; None if nothing is.

        >>> row = {"x": 1.23457, "riverrun_held_x": 1.2345677614212036}
        >>> DriverValues(rounded=["x"], is_held=True).restore(row), row
        (None, {'x': 1.2345678})
        """
        for name in self.rounded if self.is_held else ():
            value = fields.pop(_HELD + name)
            fields[name] = None if value is None else float(shortest(value))
        failed = (self.checks[int(number)] for number in fields.pop(CHANGED, "").split())
        names = list(dict.fromkeys(each.column for each in failed if each.is_changed(fields[each.column])))
        if not names:
            return None
        whose = f"column {names[0]} has" if len(names) == 1 else f"columns {', '.join(names)} have"
        return f"{whose} an infinite time, months or 24:00, which Python does not have (a query can cast it to a text)"


def _singles_in(connection: sa.Connection, rows: Any) -> Sequence[str]:
    if (type_ := _SINGLES.get(connection.dialect.name)) is None:
        return ()
    found: Any = connection.execute(sa.select(sa.text("*")).select_from(rows).limit(0))
    return [column[0] for column in found.cursor.description if column[1] == type_]


def json_as_written(text: str | bytes) -> msgspec.Raw:
    """Return JSON of a database with all of its digits."""
    return msgspec.Raw(text.encode() if isinstance(text, str) else bytes(text))


def _quoted(name: str, quote: str = '"') -> str:
    # Not by the dialect, which doubles per cent signs, as a text of SQLAlchemy's does again.
    return f"{quote}{name.replace(quote, 2 * quote)}{quote}"


def _checks(connection: sa.Connection, rows: Any) -> Iterable[ChangedValues]:
    every = sa.select(sa.text("*")).select_from(rows)
    if connection.dialect.name == "duckdb":
        database: Any = connection.connection.driver_connection
        columns = database.sql(str(every.compile(dialect=connection.dialect)))
        for name, kind in zip(columns.columns, columns.types, strict=True):
            condition = _in_duckdb(kind, _quoted(name))
            if condition:
                yield ChangedValues(name, condition)
    elif connection.dialect.name == "postgresql":
        result: Any = connection.execute(every.limit(0))
        described = [(column[0], int(column[1])) for column in result.cursor.description]
        named = sa.select(*(sa.func.format_type(oid, None) for _, oid in described))
        for (name, _), kind in zip(described, connection.execute(named).one(), strict=True):
            yield from _in_postgresql(name, kind)


def _in_postgresql(name: str, kind: str) -> Iterable[ChangedValues]:
    value = _quoted(name)
    if _IN_PARTS.search(kind):
        return [
            ChangedValues(name, condition.format(value), is_changed)
            for words, condition, is_changed in _PARTS
            if words.search(kind)
        ]
    return [ChangedValues(name, condition.format(value)) for condition in _conditions("postgresql", kind)]


def _in_duckdb(kind: Any, value: str, depth: int = 0) -> str:
    """Return the condition of values of a type of DuckDB of which any part is changed; empty if there are none."""
    parts: list[tuple[Any, str]] = []
    if kind.id in {"list", "array"}:
        parts = [(kind.children[0][1], value)]
    elif kind.id == "map":
        parts = [(part, f"map_{name}s({value})") for name, part in kind.children]
    if parts:
        item = f"item{depth}"
        found = [(_in_duckdb(part, item, depth + 1), items) for part, items in parts]
        return " OR ".join(f"list_bool_or([{each} for {item} in {items}])" for each, items in found if each)
    if kind.id in {"struct", "tuple"}:
        fields = enumerate((part for _, part in kind.children), 1)
        nested = (_in_duckdb(part, f"struct_extract_at({value}, {at})", depth) for at, part in fields)
    elif kind.id == "union":
        nested = (_in_duckdb(part, f"union_extract({value}, {_text(name)})", depth) for name, part in kind.children[1:])
    else:
        nested = (condition.format(value) for condition in _conditions("duckdb", str(kind)))
    return " OR ".join(each for each in nested if each)


def _text(text: str) -> str:
    return "'{}'".format(text.replace("'", "''"))


def _conditions(database: str, kind: str) -> Iterable[str]:
    return [each for pattern, each in _DIALECTS[database].items() if re.fullmatch(pattern, kind)]


def _is_interval(value: Any) -> bool:
    # One with months may have any number of days: a month less five days has 25.
    return isinstance(value, dt.timedelta)


def _is_end(value: Any) -> bool:
    match value:
        case dt.datetime():
            return value.replace(tzinfo=None) in _ENDS
        case dt.date():
            return value in _ENDS
        case dt.time():
            return value.replace(tzinfo=None) == dt.time.min
    return False


def _with_part(is_changed: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return whether a value has a part of a kind."""

    def has(value: Any) -> bool:
        match value:
            case str() | bytes():
                return False
            case dict():
                return any(map(has, (*value, *value.values())))
            # Psycopg's multiranges are sequences as well.
            case Sequence() | AbstractSet():
                return any(map(has, value))
        # Ranges of psycopg.
        ends = (getattr(value, end, None) for end in ("lower", "upper"))
        return is_changed(value) or any(end is not None and is_changed(end) for end in ends)

    return has


_PARTS: Sequence[tuple[re.Pattern[str], str, Callable[[Any], bool]]] = (
    (
        re.compile("date|time|^ts", re.IGNORECASE),
        "CAST({0} AS text) ~ '(infinity|[^:0-9]24:00)'",
        _with_part(_is_end),
    ),
    (
        re.compile("interval", re.IGNORECASE),
        "CAST({0} AS text) ~ '(infinity|[0-9] (mon|year))'",
        _with_part(_is_interval),
    ),
)
"""Of values of PostgreSQL with parts: their types, conditions of their texts, and what Python looks for."""
