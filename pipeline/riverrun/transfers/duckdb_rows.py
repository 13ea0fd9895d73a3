"""Writes many rows to a table of DuckDB at once, as an Arrow table: with parameters, each row is a statement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.sql import quoted_name

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


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
            # Constraints are about whole rows: DuckDB checks the row to add before it looks whether it is there.
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
        """Return a temporary table with columns of rows, which have the types of the table."""
        # Comparisons convert values in other ways than INSERT does, so all values are converted before.
        given, staged = (
            sa.table(f"{self.table.name} {what}", *(sa.column(quoted_name(name, quote=True)) for name in names))
            for what in ("given", "staged")
        )
        connection.exec_driver_sql("register", (given.name, self._arrow(rows, names)))
        dialect = connection.dialect
        empty = sa.select(*(self.table.c[name] for name in names)).where(sa.false()).compile(dialect=dialect)
        made = dialect.identifier_preparer.quote_identifier(staged.name)
        connection.exec_driver_sql(f"CREATE OR REPLACE TEMPORARY TABLE {made} AS {empty}")
        connection.execute(sa.insert(staged).from_select([*names], sa.select(*given.c)))
        return staged

    def _arrow(self, rows: Sequence[Mapping[str, Any]], names: Collection[str]) -> pa.Table:
        return pa.table({name: _column([row[name] for row in rows], self.schema.field(name).type) for name in names})


def _column(values: Sequence[Any], kind: Any) -> Any:
    # Structs and lists are JSON in tables.
    if pa.types.is_nested(kind):
        return pa.array(
            [None if value is None else msgspec.json.encode(value).decode() for value in values], pa.string()
        )
    return pa.array(values, kind)
