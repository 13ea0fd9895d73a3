"""SQL that finds values which drivers of databases change without a word: infinite times, months, and 24:00."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import sqlalchemy as sa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

CHANGED = "riverrun_changed"
"""The column with the numbers of checks that a row has not passed; empty for most rows."""

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
class Check:
    """A condition of values of a column that the driver changes.

    Args:
        column: The column.
        condition: The condition in SQL.
        is_changed: Looks at what the driver has returned, where texts within the value may fulfil the condition as well.
    """

    column: str
    condition: str
    is_changed: Callable[[Any], bool] = _always


def with_changed(connection: sa.Connection, rows: Any) -> tuple[sa.TextClause, tuple[Check, ...]]:
    """Return what to select of rows: all columns, and `CHANGED` if a column may have such values; and its checks."""
    checks = tuple(_checks(connection, rows))
    if not checks:
        return sa.text("*"), ()
    found = (f"CASE WHEN {check.condition} THEN '{number} ' ELSE '' END" for number, check in enumerate(checks))
    return sa.text(f"*, {' || '.join(found)} AS {CHANGED}".replace(":", "\\:")), checks


def problem_of(fields: dict[str, Any], checks: Sequence[Check]) -> str | None:
    """Take `CHANGED` from a row, and return what is wrong; None if nothing is."""
    numbers = fields.pop(CHANGED, "").split()
    failed = (checks[int(number)] for number in numbers)
    names = list(dict.fromkeys(each.column for each in failed if each.is_changed(fields[each.column])))
    if not names:
        return None
    whose = f"column {names[0]} has" if len(names) == 1 else f"columns {', '.join(names)} have"
    return f"{whose} an infinite time, months or 24:00, which Python does not have (a query can cast it to a text)"


def json_as_written(text: str | bytes) -> msgspec.Raw:
    """Return JSON of a database with all of its digits."""
    return msgspec.Raw(text.encode() if isinstance(text, str) else bytes(text))


def _quoted(name: str) -> str:
    # Not by the dialect, which doubles per cent signs, as a text of SQLAlchemy's does again.
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _checks(connection: sa.Connection, rows: Any) -> Iterable[Check]:
    every = sa.select(sa.text("*")).select_from(rows)
    if connection.dialect.name == "duckdb":
        database: Any = connection.connection.driver_connection
        columns = database.sql(str(every.compile(dialect=connection.dialect)))
        for name, kind in zip(columns.columns, columns.types, strict=True):
            condition = _in_duckdb(kind, _quoted(name))
            if condition:
                yield Check(name, condition)
    elif connection.dialect.name == "postgresql":
        result: Any = connection.execute(every.limit(0))
        described = [(column[0], int(column[1])) for column in result.cursor.description]
        named = sa.select(*(sa.func.format_type(oid, None) for _, oid in described))
        for (name, _), kind in zip(described, connection.execute(named).one(), strict=True):
            yield from _in_postgresql(name, kind)


def _in_postgresql(name: str, kind: str) -> Iterable[Check]:
    value = _quoted(name)
    if _IN_PARTS.search(kind):
        return [
            Check(name, condition.format(value), is_changed)
            for words, condition, is_changed in _PARTS
            if words.search(kind)
        ]
    return [Check(name, condition.format(value)) for condition in _conditions("postgresql", kind)]


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
