"""Tables and queries of any database that SQLAlchemy knows, polled by a column whose values only rise.

Transactions that began earlier may commit later, with lower values. So rows are taken only when the table has had their value,
or a higher one, for a while: the highest value of each poll bounds the rows that a later poll takes. Neither the clock of the
database nor the time zone of its values matters. The database compares; Python carries values from one query to the next.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import time
import uuid
from collections import deque
from contextlib import contextmanager
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
import sqlalchemy as sa
from sqlalchemy.exc import DataError, ProgrammingError, SQLAlchemyError, StatementError

from riverrun.errors import ConfigError, EngineError
from riverrun.hosting.process import SystemClock
from riverrun.records import EPOCH, moment, shortened
from riverrun.transfers.driver_values import DriverValues, json_as_written
from riverrun.transfers.import_progress import Position
from riverrun.transfers.import_rows import SourceRow
from riverrun.transfers.polled_feed import Found
from riverrun.transfers.sql_columns import MICRO_DIGITS, OF_MYSQL, digits_of_times
from riverrun.transfers.sql_sink import columns_of, engine_of, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from riverrun.config.imports import ImportConfig

# A count is only for reports, and must not scan a large table.
_MOST_COUNTED = 100_000
# Rows with one value are read at once where no second column tells them apart.
_MOST_ALIKE = 1_000_000
_NANOS = re.compile(r"TIME(STAMP)?_NS")
_CHOICES = re.compile(r"(ENUM|SET)\b", re.IGNORECASE)
# Not by reflection: it asks for definitions, and those of views need a right that readers rarely have.
_MYSQL_TYPES = (
    "SELECT column_name, cast(data_type AS char) FROM information_schema.columns"
    " WHERE table_name = :name AND table_schema = coalesce(:schema, database())"
)
_CASTS = {"mssql": "DATETIME2(6)", "oracle": "TIMESTAMP(6)", "duckdb": "TIMESTAMP"}
_MYSQL_TIMESTAMP = 7
"""The number that drivers of MySQL and MariaDB have for the type TIMESTAMP, which is read in the zone of the session."""
_ZONE_IS_UTC = (
    "SELECT convert_tz(cast('2026-01-15' AS DATETIME), '+00:00', @@global.time_zone) = cast('2026-01-15' AS DATETIME)"
    " AND convert_tz(cast('2026-07-15' AS DATETIME), '+00:00', @@global.time_zone) = cast('2026-07-15' AS DATETIME)"
)
# Positions of these databases have a mark since sessions are in UTC: those without it are in the zone of the server.
_MARKED = re.compile(r"(-?\d+) UTC")
# Time zones that the database does not name, and clocks that differ.
_LONGEST_AHEAD = dt.timedelta(days=1)
_MICROSECOND = dt.timedelta(microseconds=1)
_ROW_HINT = "Correct the row, or select the others by a query."
_FINITE_HINT = "Correct the row, or select the others by a query, such as one with WHERE isfinite(at)."
_NO_TIME = re.compile(r"parse date|year -?\d+ is out of range|date value out of range")
"""In errors of drivers about times that Python does not have."""
_ROUNDED_HINT = "Import by another column, or select it by a query that casts it to a double."
_BACKWARDS_HINT = (
    "If it was refilled, rename the import, which imports everything."
    ' If its newest rows were deleted, write backwards = "ignore".'
)


class PolledTable:
    """A table, or a query, as a source that is polled."""

    def __init__(
        self, config: ImportConfig, needed: Sequence[str] = (), *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine = engine_of(config.source, json_as_written)
        self._address = self._engine.url.render_as_string(hide_password=True)
        self._what = f"Table {config.table}" if config.table else "The query"
        self._columns = config.incremental
        self._rising = sa.column(self._columns[0])
        self._needed = tuple(dict.fromkeys((*config.incremental, *needed)))
        self._table = _table(config.table) if config.table else None
        self._from = _query(config.query, self._columns) if self._table is None else self._table
        self._lag_seconds = config.lag_seconds
        self._poll_seconds = config.poll_seconds
        self._stops_backwards = config.backwards == "stop"
        self._clock = clock
        self._look = _look_by_index(self._from, self._columns)
        self._values = DriverValues()
        self._upto: str | None = None
        self._key: str | None = None
        self._has_mark = False
        self._shown = ""
        self._highest: deque[tuple[float, Any]] = deque()
        self._has_more = False

    def resume(self, position: Position) -> None:
        self._upto, self._key = position.upto, position.after
        self._shown = position.upto or ""
        marked = _MARKED.fullmatch(self._shown) if self._is_of_mysql else None
        self._has_mark = marked is not None
        if marked:
            self._upto = marked[1]
        self._has_more = False

    def position(self) -> Position:
        return Position(f"{self._upto} UTC" if self._has_mark else self._upto, self._key)

    def committed(self) -> None:
        """Do nothing: there is no state besides the position."""

    def open(self) -> None:
        self._highest.clear()
        self._has_more = False
        with self._told():
            there = columns_of(self._engine, self._from)
            self._require(there)
            if twice := sorted({name for name in there if there.count(name) > 1}):
                message = f"{self._what} at {self._address} has two columns with the name {twice[0]}"
                raise ConfigError(message, hint="Records have each name once: give one of them another by AS.")
            with self._engine.connect() as connection:
                self._refuse_finer(connection)
                self._refuse_choices(connection)
                self._values = DriverValues.of(connection, self._from)
            self._refuse_rounded(self._values.rounded)
            if self._is_of_mysql and self._upto is not None and not self._has_mark:
                self._refuse_shifted()
            if self._table is not None:
                has_index = _may_have_index(self._engine, self._table, self._columns[0])
                self._look = (_look_by_index if has_index else _look_by_scan)(self._table, self._columns)

    @property
    def _is_of_mysql(self) -> bool:
        return self._engine.dialect.name in OF_MYSQL

    def _refuse_shifted(self) -> None:
        """Refuse a position in the zone of the server, from a version whose sessions had it."""
        with self._engine.connect() as connection:
            found: Any = connection.execute(sa.select(self._rising).select_from(self._from).limit(0))
            if found.cursor.description[0][1] != _MYSQL_TIMESTAMP or connection.exec_driver_sql(_ZONE_IS_UTC).scalar():
                return
        message = f"{self._what} was imported up to {self._columns[0]} {self._upto} in the zone of its server, which is not UTC"
        hint = "Rename the import: that imports everything, or the rows that a query selects, such as those of the last day."
        raise ConfigError(message, hint=hint)

    def _refuse_finer(self, connection: sa.Connection) -> None:
        """Refuse columns with nanoseconds: Python's times would be cut, and not be those that the database compares."""
        for name, type_ in self._finer(connection).items():
            message = (
                f"Column {name} of {self._what.lower()} at {self._address} is {type_}, and records have microseconds"
            )
            hint = f"Select it by a query that casts it, such as to {_CASTS[connection.dialect.name]}, or to a text."
            raise ConfigError(message, hint=hint)

    def _finer(self, connection: sa.Connection) -> dict[str, str]:
        """Return the types of columns with digits behind microseconds, by their names."""
        if connection.dialect.name == "duckdb":
            return {name: type_ for name, type_ in self._types(connection).items() if _NANOS.search(type_)}
        if self._table is None:
            return {}
        # Others than those of the position are cut as they always were: seven digits are the default of SQL Server.
        rising = {name.lower() for name in self._columns}
        return {
            name: f"{type_} with {digits} digits of a second"
            for name, type_, digits in digits_of_times(connection, self._table)
            if name.lower() in rising and (digits or 0) > MICRO_DIGITS
        }

    def _refuse_choices(self, connection: sa.Connection) -> None:
        """Refuse positions that are sorted by number and compared as texts: rows would be missed."""
        rising = {name.lower() for name in self._columns}
        for name, type_ in self._types(connection).items():
            if name.lower() in rising and _CHOICES.match(type_):
                message = f"Column {name} of {self._what.lower()} at {self._address} is {shortened(type_)}"
                hint = "Import by another column, or select it by a query that casts it to a text."
                raise ConfigError(f"{message}, whose values are sorted by number and compared as texts", hint=hint)

    def _types(self, connection: sa.Connection) -> Mapping[str, str]:
        """Return the types of columns by name, of databases whose types decide whether a column can be read."""
        dialect = connection.dialect
        if dialect.name == "duckdb":
            query = sa.select(sa.text("*")).select_from(self._from).compile(dialect=dialect)
            return {row[0]: str(row[1]) for row in connection.exec_driver_sql(f"DESCRIBE {query}")}
        if self._table is None or not self._is_of_mysql:
            return {}
        given = {"name": self._table.name, "schema": self._table.schema}
        return {name: str(type_) for name, type_ in connection.execute(sa.text(_MYSQL_TYPES), given)}

    def close(self) -> None:
        self._engine.dispose()

    def read(self, most: int) -> Found:
        with self._told(), self._engine.connect() as connection:
            rows = self._rows_at_hand(connection, most)
            if not rows:
                begun = self._note(connection)
                since, bound = self._highest[0]
                left = since + self._lag_seconds - begun
                if left > 0:
                    return Found((), again_seconds=left)
                rows = self._rows(connection, bound, most)
                if not rows:
                    self._refuse_fall(connection, self._highest[-1][1])
            if rows:
                self._refuse_infinite(connection, rows[0][self._columns[0]])
        found = [self._row(row) for row in rows]
        if rows:
            last = rows[-1][self._columns[0]]
            self._upto, self._shown = _as_text(last, self._columns[0]), str(last)
            self._has_mark = self._is_of_mysql and isinstance(last, dt.datetime)
            self._key = _as_json(rows[-1][self._columns[1]], self._columns[1]) if len(self._columns) > 1 else None
        return Found(found, has_more=self._has_more, is_end=not self._has_more)

    def waiting(self) -> int:
        """Return the number of rows after the position, at most a hundred thousand."""
        with self._told(), self._engine.connect() as connection:
            highest = self._highest[-1][1] if self._highest else None
            if highest is None:
                highest = connection.execute(_highest(self._from, self._rising)).scalar()
            if highest is None:
                return 0
            rows = sa.select(sa.literal_column("1").label("one")).select_from(self._from).where(self._above(highest))
            return int(
                connection.execute(
                    sa.select(sa.func.count()).select_from(rows.limit(_MOST_COUNTED).subquery())
                ).scalar_one()
            )

    def shown(self) -> str:
        if self._upto is None:
            return "nothing yet"
        return f"{self._columns[0]} {self._shown}" + ("" if self._key is None else f", {self._columns[1]} {self._key}")

    def _note(self, connection: sa.Connection) -> float:
        """Note the highest value, and forget values that later ones replace as the bound; return when this began."""
        begun = self._clock()
        highest, has_nulls = connection.execute(self._look).one()
        if has_nulls:
            self._refuse_nulls()
        self._refuse_infinite(connection, highest)
        if self._stops_backwards:
            self._refuse_future(highest)
        # The query may take long. The value was certainly there at its end, so its lag counts from then on.
        self._highest.append((self._clock() if self._lag_seconds else begun, highest))
        # The first entry stays the newest one that is old enough, judged by the beginning: rows may be read as of then.
        while len(self._highest) > 1 and self._highest[1][0] <= begun - self._lag_seconds:
            self._highest.popleft()
        return begun

    def _rows_at_hand(self, connection: sa.Connection, most: int) -> list[Any]:
        """Return further rows up to the known bound; none if it is time to look for a higher one."""
        if not self._has_more or self._clock() >= self._highest[-1][0] + self._poll_seconds:
            return []
        return self._rows(connection, self._highest[0][1], most)

    def _rows(self, connection: sa.Connection, bound: Any, most: int) -> list[Any]:
        """Return rows up to a bound, and note whether there are more of them."""
        self._has_more = False
        if bound is None or (len(self._columns) == 1 and self._is_reached(bound)):
            return []
        upto = sa.and_(self._above(bound), self._rising <= _bound(bound))
        order = [sa.column(name) for name in self._columns]
        query = sa.select(self._values.selected).select_from(self._from).order_by(*order)
        rows = list(connection.execute(query.where(upto).limit(most)).mappings())
        self._has_more = len(rows) >= most
        if not self._has_more or len(self._columns) > 1:
            return rows
        # Rows with one value stay together, as the next query begins above it.
        last = rows[-1][self._columns[0]]
        whole = [row for row in rows if row[self._columns[0]] != last]
        alike = query.where(self._rising == _bound(last)).limit(_MOST_ALIKE + 1)
        found = whole or list(connection.execute(alike).mappings())
        if len(found) > _MOST_ALIKE:
            message = (
                f"{self._what} at {self._address} has more than {_MOST_ALIKE:,} rows with {self._columns[0]} {last}"
            )
            raise ConfigError(message, hint=f'Name a key as well: incremental = ["{self._columns[0]}", "id"].')
        return found

    def _is_reached(self, value: Any) -> bool:
        """Return whether the position has exactly this value."""
        return self._upto is not None and _as_text(value, self._columns[0]) == self._upto

    def _above(self, like: Any) -> Any:
        """Return the condition of rows after the position, whose text is converted to the type of `like`."""
        if self._upto is None:
            return sa.true()
        last = _bound(self._like(self._upto, like))
        if self._key is None:
            return self._rising > last
        key, value = sa.column(self._columns[1]), _bound(_of_json(self._key))
        return sa.and_(self._rising >= last, sa.or_(self._rising > last, sa.and_(self._rising == last, key > value)))

    def _like(self, text: str, like: Any) -> Any:
        try:
            return _of_text(text, like)
        except (ValueError, InvalidOperation, OverflowError) as error:
            message = f"{self._what} was imported up to {self._columns[0]} {text}, which now has values such as {like}"
            raise ConfigError(message, hint="Rename the import: that imports everything.") from error

    def _refuse_nulls(self) -> NoReturn:
        message = (
            f"{self._what} at {self._address} has rows without {' or '.join(self._columns)}, which would be missed"
        )
        raise ConfigError(message, hint="Fill the column, and declare it NOT NULL; or select other rows by a query.")

    def _refuse_infinite(self, connection: sa.Connection, value: Any) -> None:
        """Refuse an infinite value: no row is above it. Drivers return infinite times as Python's first or last one."""
        if isinstance(value, float | Decimal) and not math.isfinite(value):
            self._refuse_no_position(str(value))
        end = value.replace(tzinfo=None) if isinstance(value, dt.datetime) else value
        if end in {dt.datetime.max, dt.date.max}:  # noqa: DTZ901 - the zone was removed
            beyond = self._rising > _bound(value)
        elif end in {dt.datetime.min, dt.date.min}:  # noqa: DTZ901 - likewise
            beyond = self._rising < _bound(value)
        else:
            return
        query = sa.select(sa.literal_column("1")).select_from(self._from).where(beyond).limit(1)
        if connection.execute(query).first() is not None:
            self._refuse_no_position("infinite")

    def _refuse_rounded(self, singles: Sequence[str]) -> None:
        """Refuse a column whose values are rounded as they are read: rows would be missed, or found again and again."""
        for name in self._columns:
            if name in singles:
                message = f"Column {name} of {self._what.lower()} at {self._address} has numbers of 32 bits"
                raise ConfigError(f"{message}, which are read with other digits", hint=_ROUNDED_HINT)

    def _refuse_no_position(self, what: str) -> NoReturn:
        message = f"{self._what} at {self._address} has a row whose {self._columns[0]} is {what}"
        raise ConfigError(message, hint=_FINITE_HINT)

    def _refuse_future(self, highest: Any) -> None:
        """Refuse a time far ahead: once it is the position, rows of all times before it would be missed."""
        latest = EPOCH + dt.timedelta(milliseconds=SystemClock().now_ms()) + _LONGEST_AHEAD
        is_ahead = (
            moment(highest) > latest
            if isinstance(highest, dt.datetime)
            else (isinstance(highest, dt.date) and highest > latest.date())
        )
        if is_ahead:
            message = (
                f"{self._what} at {self._address} has a row with {self._columns[0]} {highest}, which is in the future"
            )
            hint = 'Rows before that time would be missed. Correct the row; or write backwards = "ignore".'
            raise ConfigError(message, hint=hint)

    def _refuse_fall(self, connection: sa.Connection, highest: Any) -> None:
        """Refuse a table whose values are all below the position: rows with lower values would be missed."""
        if not self._stops_backwards or self._upto is None or highest is None or self._is_reached(highest):
            return
        reached = self._rising >= _bound(self._like(self._upto, highest))
        if connection.execute(
            sa.select(sa.literal_column("1")).select_from(self._from).where(reached).limit(1)
        ).first():
            return
        what = f"{self._what} at {self._address} has no {self._columns[0]} above {highest}"
        message = f"{what}, but was imported up to {self._upto}"
        raise ConfigError(message, hint=_BACKWARDS_HINT)

    def _row(self, row: Any) -> SourceRow:
        fields = dict(row)
        problem = self._values.restore(fields)
        self._require(list(fields))
        place = f"The row of {self._what.lower()} with {self._columns[0]} {fields[self._columns[0]]}"
        return SourceRow(fields, place, problem=problem)

    def _require(self, there: Sequence[str]) -> None:
        missing = [name for name in self._needed if name not in there]
        if missing:
            message = f"{self._what} at {self._address} has no column {', '.join(missing)}"
            raise ConfigError(message, hint=f"It has: {', '.join(there)}.")

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            raise self._error(error) from error
        # PostgreSQL has years that Python has not.
        except (ValueError, OverflowError) as error:
            raise self._unreadable(str(error)) from error

    def _error(self, error: SQLAlchemyError) -> ConfigError | EngineError:
        reason = reason_of(error)
        waiting = EngineError(f"The database {self._address} cannot be read: {reason}", hint="Check that it runs.")
        if getattr(error, "connection_invalidated", False) or not isinstance(error, StatementError):
            return waiting
        try:
            if self._table is not None and not sa.inspect(self._engine).has_table(self._table.name, self._table.schema):
                return ConfigError(f"{self._what} at {self._address} does not exist, or no longer")
            if self._table is not None:
                self._require(columns_of(self._engine, self._table))
        except ConfigError as missing:
            return missing
        except SQLAlchemyError:
            return waiting
        # SQLite reports a missing table or column with another class than other databases.
        if isinstance(error, DataError):
            return self._unreadable(reason)
        if isinstance(error, ProgrammingError) or reason.startswith("no such "):
            return ConfigError(f"{self._what} at {self._address} cannot be read: {reason}")
        return waiting

    def _unreadable(self, reason: str) -> ConfigError:
        hint = _FINITE_HINT if _NO_TIME.search(reason) else _ROW_HINT
        return ConfigError(f"{self._what} at {self._address} has a value that cannot be read: {reason}", hint=hint)


def _table(name: str) -> sa.TableClause:
    schema, _, own = name.rpartition(".")
    return sa.table(own, schema=schema or None)


def _highest(rows: Any, rising: Any) -> Any:
    return sa.select(sa.func.max(rising)).select_from(rows)


def _is_null(columns: Sequence[str]) -> Any:
    return sa.or_(*(sa.column(name).is_(None) for name in columns))


def _look_by_index(rows: Any, columns: Sequence[str]) -> Any:
    """Return the query of the highest value, and 1 if there are nulls, for a table with an index."""
    # Apart from each other: the index answers each at once, but not both in one aggregate.
    nulls = sa.select(sa.literal_column("1")).select_from(rows).where(_is_null(columns)).limit(1)
    highest = _highest(rows, sa.column(columns[0])).scalar_subquery()
    return sa.select(highest.label("highest"), nulls.scalar_subquery().label("nulls"))


def _look_by_scan(rows: Any, columns: Sequence[str]) -> Any:
    """Return the query of the highest value, and 1 if there are nulls, which reads all rows once."""
    nulls = sa.case((_is_null(columns), sa.literal_column("1")), else_=sa.literal_column("0"))
    both = sa.func.max(sa.column(columns[0])).label("highest"), sa.func.max(nulls).label("nulls")
    return sa.select(*both).select_from(rows)


def _may_have_index(engine: sa.Engine, table: sa.TableClause, column: str) -> bool:
    """Return whether an index of a table begins with a column; True also if that is unknown, as for views."""
    try:
        place = sa.inspect(engine)
        if table.name not in place.get_table_names(table.schema):
            return True
        found = [place.get_pk_constraint(table.name, table.schema)["constrained_columns"]]
        found += [index["column_names"] for index in place.get_indexes(table.name, table.schema)]
        found += [unique["column_names"] for unique in place.get_unique_constraints(table.name, table.schema)]
    except Exception:  # noqa: BLE001 - dialects raise anything, users may lack rights; only speed depends on it
        return True
    return any(names and (names[0] or "").lower() == column.lower() for names in found)


def _query(text: str, columns: Sequence[str]) -> Any:
    r"""Return a query as a table. Its colons are no parameters of SQLAlchemy's.

    >>> print(_query("SELECT a::int, 'x:y' FROM t", ["a"]).element)
    SELECT a::int, 'x:y' FROM t
    """
    escaped = text.strip().rstrip(";").replace(":", "\\:")
    return sa.text(escaped).columns(*(sa.column(name) for name in columns)).subquery("riverrun_query")


def _bound(value: Any) -> Any:
    # Without a type, so that SQLAlchemy does not convert what the driver has returned.
    return sa.bindparam(None, value, sa.types.NULLTYPE, unique=True)


def _as_text(value: Any, column: str) -> str:
    """Return a value of a rising column as text: times as microseconds, as batch imports note them.

    >>> _as_text(dt.datetime(1970, 1, 1, 0, 0, 1), "at"), _as_text(7, "id")
    ('1000000', '7')
    """
    match value:
        case bool():
            pass
        case dt.datetime():
            return str((moment(value) - EPOCH) // _MICROSECOND)
        case int() | Decimal() | str():
            return str(value)
        case float():
            return repr(value)
        case dt.date():
            return value.isoformat()
    message = f"Column {column} has values such as {value!r}, which cannot be a position"
    raise ConfigError(message, hint="Import by a column of numbers, dates, times or texts.")


def _of_text(text: str, like: Any) -> Any:
    """Reverse `_as_text` for the type of another value.

    >>> _of_text("1000000", dt.datetime(2026, 1, 1)), _of_text("7", 1)
    (datetime.datetime(1970, 1, 1, 0, 0, 1), 7)
    """
    match like:
        case dt.datetime():
            found = EPOCH + int(text) * _MICROSECOND
            return found if like.tzinfo is not None else found.replace(tzinfo=None)
        case dt.date():
            return dt.date.fromisoformat(text)
        case str():
            return text
    return type(like)(text)


def _as_json(value: Any, column: str) -> str:
    """Return a key as JSON, with its type if JSON does not have it."""
    match value:
        case bool():
            pass
        case int() | str():
            return msgspec.json.encode(value).decode()
        case uuid.UUID():
            return msgspec.json.encode({"uuid": str(value)}).decode()
        case Decimal():
            return msgspec.json.encode({"decimal": str(value)}).decode()
    message = f"Column {column} has values such as {value!r}, which cannot be a position"
    raise ConfigError(message, hint="The second column is a key: numbers, texts or UUIDs.")


def _of_json(text: str) -> Any:
    """Reverse `_as_json`.

    >>> [_of_json(_as_json(each, "id")) for each in (7, "x", Decimal("1.5"))]
    [7, 'x', Decimal('1.5')]
    """
    found = msgspec.json.decode(text)
    if not isinstance(found, dict):
        return found
    return uuid.UUID(found["uuid"]) if "uuid" in found else Decimal(found["decimal"])
