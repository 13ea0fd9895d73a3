"""Writes many rows to a table at once, from a temporary table that has them: by Arrow in DuckDB, and by COPY in PostgreSQL.

With parameters, each row is a statement of DuckDB, and PostgreSQL parses the text of all values.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql import quoted_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

_STAGED = "riverrun staged"
"""Name of the temporary table."""
_GIVEN = "riverrun given"
_MANY = 100
"""Rows for which PostgreSQL makes a table: that writes to its catalog."""
_ESCAPED = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"})


def least_at_once(connection: sa.Connection, table: sa.Table) -> float:
    """Return the number of rows from which on they are to be written at once; infinity for never."""
    dialect = connection.dialect
    # Its temporary table would hide one of that name.
    if table.name.lower() == _STAGED:
        return math.inf
    if dialect.name == "duckdb":
        return 1
    # The drivers of PostgreSQL have different ways to COPY.
    if (dialect.name, dialect.driver) == ("postgresql", "psycopg2"):
        may = sa.func.has_database_privilege(sa.func.current_database(), "TEMPORARY")
        return _MANY if connection.execute(sa.select(may)).scalar() else math.inf
    return math.inf


@dataclass(frozen=True, slots=True)
class RowsAtOnce:
    """Writes rows as the statements of `SqlSink` do that take one row.

    Args:
        table: The table of the database.
        key: Columns by which rows replace others; empty if rows are only added.
        schema: The columns of rows, as an Arrow schema.
    """

    table: sa.Table
    key: Sequence[str]
    schema: Any

    def write(self, connection: sa.Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows of the same columns, or replace what they have by key. No two rows have one key."""
        names = [*rows[0]]
        given = self._staged(connection, rows, names)
        added, insert = sa.select(*given.c), postgresql.insert(self.table)
        change = {name: given.c[name] for name in names if name not in self.key}
        if self.key and len(names) < len(self.table.c):
            # Constraints are about whole rows: databases check the row to add before they look whether it is there.
            connection.execute(sa.update(self.table).where(self._is_of(given)).values(change))
            connection.execute(insert.from_select(names, added.where(~self._exists(self.table, given))))
            return
        insert = insert.from_select(names, added)
        if self.key:
            replaced = {name: insert.excluded[name] for name in change}
            insert = insert.on_conflict_do_update(index_elements=list(self.key), set_=replaced)
        connection.execute(insert)

    def delete(self, connection: sa.Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Delete rows by key."""
        given = self._staged(connection, rows, self.key)
        connection.execute(sa.delete(self.table).where(self._exists(given, self.table)))

    def _exists(self, there: sa.FromClause, outer: sa.FromClause) -> sa.ColumnElement[bool]:
        given = there if outer is self.table else outer
        return sa.select(sa.literal_column("1")).select_from(there).where(self._is_of(given)).correlate(outer).exists()

    def _is_of(self, given: sa.FromClause) -> sa.ColumnElement[bool]:
        return sa.and_(*(self.table.c[name] == given.c[name] for name in self.key))

    def _staged(
        self, connection: sa.Connection, rows: Sequence[Mapping[str, Any]], names: Collection[str]
    ) -> sa.FromClause:
        """Return a temporary table with columns of rows."""
        staged = _table(_STAGED, names)
        kinds = {name: self.schema.field(name).type for name in names}
        columns: dict[str, list[Any]] = {name: [row[name] for row in rows] for name in names}
        if connection.dialect.name == "duckdb":
            # Comparisons convert values in other ways than INSERT does, so all of them get the types of the table.
            _make(connection, "CREATE OR REPLACE TEMPORARY TABLE {} AS {}", [self.table.c[name] for name in names])
            found = pa.table({name: _column(values, kinds[name]) for name, values in columns.items()})
            connection.exec_driver_sql("register", (_GIVEN, found))
            connection.execute(sa.insert(staged).from_select([*names], sa.select(*_table(_GIVEN, names).c)))
            return staged
        connection.exec_driver_sql(f'DROP TABLE IF EXISTS pg_temp."{_STAGED}"')
        typed = [_as_parameter(self.table.c[name], kinds[name]) for name in names]
        _make(connection, "CREATE TEMPORARY TABLE {} ON COMMIT DROP AS {}", typed)
        _copy(connection, zip(*columns.values(), strict=True))
        return staged


def _table(name: str, columns: Collection[str]) -> sa.TableClause:
    return sa.table(name, *(sa.column(quoted_name(column, quote=True)) for column in columns))


def _make(connection: sa.Connection, statement: str, columns: Sequence[Any]) -> None:
    empty = sa.select(*columns).where(sa.false()).compile(dialect=connection.dialect)
    connection.exec_driver_sql(statement.format(f'"{_STAGED}"', empty))


def _column(values: Sequence[Any], kind: Any) -> Any:
    # Structs and lists are JSON in tables.
    if pa.types.is_nested(kind):
        return pa.array(
            [None if value is None else msgspec.json.encode(value).decode() for value in values], pa.string()
        )
    # As texts, numbers of 32 bits would have fewer digits than parameters, which have 64.
    return pa.array(values, pa.float64() if kind == pa.float32() else kind)


def _as_parameter(column: sa.Column[Any], kind: Any) -> Any:
    """Return a column with the type that parameters of a kind have in PostgreSQL: texts have that of the column."""
    if pa.types.is_string(kind) or pa.types.is_nested(kind):
        return column
    is_number = pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    return sa.cast(sa.null(), sa.Numeric() if is_number else column.type).label(quoted_name(column.name, quote=True))


def _copy(connection: sa.Connection, rows: Iterable[Sequence[Any]]) -> None:
    """Copy rows into the temporary table of PostgreSQL."""
    statement = f'COPY pg_temp."{_STAGED}" FROM STDIN'
    text = io.StringIO("".join("\t".join(map(_copied, row)) + "\n" for row in rows))
    driver: Any = connection.dialect.loaded_dbapi
    cursor: Any = connection.connection.cursor()
    try:
        cursor.copy_expert(statement, text)
    except driver.Error as error:
        # SQLAlchemy has no COPY, and would raise its own errors.
        is_lost = connection.dialect.is_disconnect(error, connection.connection, cursor)
        if is_lost:
            connection.invalidate(error)
        raise DBAPIError.instance(statement, None, error, driver.Error, connection_invalidated=is_lost) from error


def _copied(value: Any) -> str:
    """Return a value as COPY reads it."""
    if value is None:
        return r"\N"
    if isinstance(value, bytes):
        return rf"\\x{value.hex()}"
    if isinstance(value, float) and math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict | list):
        value = msgspec.json.encode(value).decode()
    return format(value, "f") if isinstance(value, Decimal) else str(value).translate(_ESCAPED)
