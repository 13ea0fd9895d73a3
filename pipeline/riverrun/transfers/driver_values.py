"""SQL that finds values which drivers of databases change without a word: infinite times, months, and 24:00."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence, Set
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
"""In types of values that have parts: arrays, structures, ranges."""
_DIGITS = re.compile(r"\(\d\)")
_DIALECTS: Mapping[str, Mapping[str, str]] = {
    "postgresql": {
        r"date|timestamp with(out)? time zone": "NOT isfinite({0})",
        r"interval": f"NOT isfinite({{0}}) OR {_MONTHS}",
        r"time with(out)? time zone": "extract(hour from {0}) = 24",
    },
    "duckdb": {
        r"DATE": "isinf({0})",
        r"TIMESTAMP(_S|_MS| WITH TIME ZONE)?": "isinf(CAST({0} AS TIMESTAMP))",
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
    database = connection.dialect.name
    checks = tuple(check for name, kind in _types(connection, rows) for check in _checks(database, name, kind))
    if not checks:
        return sa.text("*"), ()
    found = (
        f"CASE WHEN {check.condition.format(_quoted(check.column))} THEN '{number} ' ELSE '' END"
        for number, check in enumerate(checks)
    )
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


def _types(connection: sa.Connection, rows: Any) -> Iterable[tuple[str, str]]:
    every = sa.select(sa.text("*")).select_from(rows)
    if connection.dialect.name == "duckdb":
        described = connection.exec_driver_sql(f"DESCRIBE {every.compile(dialect=connection.dialect)}")
        return [(str(row[0]), str(row[1])) for row in described]
    if connection.dialect.name != "postgresql":
        return []
    result: Any = connection.execute(every.limit(0))
    columns = [(column[0], int(column[1])) for column in result.cursor.description]
    named = sa.select(*(sa.func.format_type(oid, None) for _, oid in columns))
    return list(zip((name for name, _ in columns), connection.execute(named).one(), strict=True))


def _checks(database: str, name: str, kind: str) -> Iterable[Check]:
    kind = _DIGITS.sub("", kind)
    if _IN_PARTS.search(kind):
        return [
            Check(name, condition, is_changed)
            for words, condition, is_changed in _PARTS[database]
            if words.search(kind)
        ]
    return [Check(name, each) for pattern, each in _DIALECTS[database].items() if re.fullmatch(pattern, kind)]


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
            case Sequence() | Set():
                return any(map(has, value))
        # Ranges of psycopg.
        ends = (getattr(value, end, None) for end in ("lower", "upper"))
        return is_changed(value) or any(end is not None and is_changed(end) for end in ends)

    return has


_TIMES = (re.compile("date|time|^ts", re.IGNORECASE), _with_part(_is_end))
_INTERVALS = (re.compile("interval", re.IGNORECASE), _with_part(_is_interval))
_PARTS: Mapping[str, Sequence[tuple[re.Pattern[str], str, Callable[[Any], bool]]]] = {
    "postgresql": (
        (_TIMES[0], "CAST({0} AS text) ~ '(infinity|[^:0-9]24:00)'", _TIMES[1]),
        (_INTERVALS[0], "CAST({0} AS text) ~ '(infinity|[0-9] (mon|year))'", _INTERVALS[1]),
    ),
    "duckdb": (
        (_TIMES[0], "contains(CAST({0} AS VARCHAR), 'infinity')", _TIMES[1]),
        (_INTERVALS[0], "regexp_matches(CAST({0} AS VARCHAR), '[0-9] (month|year)')", _INTERVALS[1]),
    ),
}
"""Of values with parts: their types, conditions of their texts, and what Python looks for."""
