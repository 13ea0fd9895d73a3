"""SQL that finds values which drivers of databases change without a word: infinite times, months, and 24:00."""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING, Any

import msgspec
import sqlalchemy as sa

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CHANGED = "riverrun_changed"
"""The column that names the first column of a row with such a value; null for most rows."""

_MONTHS = "extract(year from {0}) <> 0 OR extract(month from {0}) <> 0"
_IN_PARTS = re.compile(r"\[|\(|range$")
"""In types of values that have parts: arrays, structures, ranges."""
_DIALECTS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "postgresql": (
        (r"^(date|timestamp)", "NOT isfinite({0})"),
        ("^interval", f"NOT isfinite({{0}}) OR {_MONTHS}"),
        ("^time ", "extract(hour from {0}) = 24"),
    ),
    "duckdb": (("^DATE", "isinf({0})"), ("^TIMESTAMP", "isinf(CAST({0} AS TIMESTAMP))"), ("^INTERVAL", _MONTHS)),
}
"""Per database, conditions of values that its drivers change, by patterns of types."""
_PARTS: Mapping[str, tuple[str, str]] = {
    "postgresql": (r"date|time|interval|^ts", "CAST({0} AS text) ~ '(infinity|24:00|mon|year)'"),
    "duckdb": (r"DATE|TIME|INTERVAL", "regexp_matches(CAST({0} AS VARCHAR), 'infinity|month|year')"),
}
"""Of values with parts, whose texts may have these words as well: Python looks at what the driver has returned."""
_ENDS = {dt.datetime.max, dt.datetime.min, dt.date.max, dt.date.min}  # noqa: DTZ901 - zones are removed
_SHORTEST_MONTH = 28
_NAME, _TEXT = '"', "'"


def with_changed(connection: sa.Connection, rows: Any) -> sa.TextClause:
    """Return what to select of rows: all columns, and `CHANGED` if a column may have such values."""
    dialect = connection.dialect
    found = [
        f"WHEN {condition.format(_quoted(name, _NAME))} THEN {_quoted(name, _TEXT)}"
        for name, kind in _types(connection, rows)
        if (condition := _condition(dialect.name, kind)) is not None
    ]
    text = f"*, CASE {' '.join(found)} END AS {CHANGED}" if found else "*"
    return sa.text(text.replace(":", "\\:"))


def problem_of(fields: dict[str, Any]) -> str | None:
    """Take `CHANGED` from a row, and return what is wrong; None if nothing is."""
    name = fields.pop(CHANGED, None)
    if name is None or not _may_be_changed(fields[name]):
        return None
    return (
        f"column {name} has an infinite time, months or 24:00, which Python does not have"
        " (a query can cast it to a text)"
    )


def json_as_written(text: str | bytes) -> msgspec.Raw:
    """Return JSON of a database with all of its digits."""
    return msgspec.Raw(text.encode() if isinstance(text, str) else bytes(text))


def _quoted(name: str, mark: str) -> str:
    # Not by the dialect, which doubles per cent signs, as a text of SQLAlchemy's does again.
    return f"{mark}{name.replace(mark, mark * 2)}{mark}"


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


def _condition(database: str, kind: str) -> str | None:
    if _IN_PARTS.search(re.sub(r"\(\d\)", "", kind)):
        words, condition = _PARTS[database]
        return condition if re.search(words, kind) else None
    return next((condition for pattern, condition in _DIALECTS[database] if re.match(pattern, kind)), None)


def _may_be_changed(value: Any) -> bool:
    match value:
        case dt.datetime():
            return value.replace(tzinfo=None) in _ENDS
        case dt.date():
            return value in _ENDS
        case dt.timedelta():
            return abs(value.days) >= _SHORTEST_MONTH
        case dt.time():
            return value.replace(tzinfo=None) == dt.time.min
        case dict():
            return any(map(_may_be_changed, value.values()))
        case list() | tuple() | set():
            return any(map(_may_be_changed, value))
    # Ranges of psycopg.
    return any(_may_be_changed(getattr(value, end, None)) for end in ("lower", "upper") if not isinstance(value, str))
