"""Refuses what a table would change without an error: values, names that are cut, and keys that count as equal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import sqlalchemy as sa

from riverrun.errors import ConfigError
from riverrun.processor.sinks import JSON_FIELD
from riverrun.records import shortened
from riverrun.transfers.sink_rows import refuse
from riverrun.transfers.sql_columns import OF_MYSQL, ColumnType, column_types

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from riverrun.processor.sinks import SinkBatch, SinkTable
    from riverrun.transfers.sql_columns import Changes

STRICT_SESSION = (
    "SET SESSION sql_mode = concat_ws(',', nullif(@@sql_mode, ''), 'STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE')",
)
"""Statements without which MySQL and MariaDB may cut values, or write the day 0."""
_ALIKE = (("a", "A"), ("a", "á"), ("a", "a "))
"""Texts that collations take for equal: without case, without accents, and with padding."""
# Names are compared without case, also if they are quoted.
_WITHOUT_CASE = frozenset({"sqlite", "duckdb", "mssql", *OF_MYSQL})


def check_types(connection: sa.Connection, rows: sa.Table, table: SinkTable) -> Mapping[str, Changes]:
    """Refuse a table whose columns would change all values of a type, or take different keys for equal.

    Returns:
        By column, which values it changes. Columns that change none are left out.
    """
    there, rules = column_types(connection, rows), dict[str, "Changes"]()
    dialect = connection.dialect.name
    for field in table.schema:
        type_, is_json = ColumnType.of(there.get(field.name, ""), dialect), field.metadata == JSON_FIELD
        # SQLite makes numbers of texts in such columns, with 15 digits.
        is_number = dialect == "sqlite" and type_.kind in {"numeric", "double"}
        if type_.changes(field.type) or (is_number and is_json):
            message = (
                f"Column {field.name} of table {rows.fullname} is {there[field.name]}, and the export has"
                f" {'JSON' if is_json else field.type}: values would be rounded, cut or converted"
            )
            raise ConfigError(message, hint="Alter the column, or export to another table.")
        if table.is_upsert and field.name in table.key and pa.types.is_string(field.type) and type_.kind == "text":
            _check_collation(connection, rows.c[field.name], rows.fullname)
        if (rule := type_.rule(field)) is not None:
            rules[field.name] = rule
    return rules


def require_held(batch: SinkBatch, rules: Mapping[str, Changes], table: str) -> None:
    """Refuse records with values that their columns would change."""
    found = (
        (
            row,
            (
                f"has {shortened(value)} in column {name},"
                f" which table {table} would round, cut, pad, or read as something else"
            ),
        )
        for name, changes in rules.items()
        for row, value in enumerate(batch.records.column(name).to_pylist())
        if value is not None and changes(value)
    )
    refuse(batch, found, "Alter the column, write plain numbers, and times as ISO 8601 does")


def _check_collation(connection: sa.Connection, column: sa.Column[Any], table: str) -> None:
    """Refuse a key whose collation takes different texts for equal: their rows would replace each other."""
    none = sa.select(column.label("k")).where(sa.false())
    # SQL Server pads with all collations.
    for one, other in _ALIKE[:-1] if connection.dialect.name == "mssql" else _ALIKE:
        both = sa.union_all(none, sa.select(sa.literal(one, sa.String()))).subquery()
        query = sa.select(sa.func.count()).select_from(both).where(both.c[0] == sa.literal(other, sa.String()))
        if connection.execute(query).scalar():
            message = f"Key column {column.name} of table {table} takes {one!r} and {other!r} for equal"
            raise ConfigError(
                message, hint="Rows would replace each other. Give it a binary collation, or export to another table."
            )


def check_names(columns: Iterable[str], table: str, dialect: Any) -> None:
    """Refuse names that the database does not have, or cuts."""
    schema, _, own = table.rpartition(".")
    most, known = dialect.max_identifier_length, dict[str, str]()
    for what, name in (("schema", schema or "s"), ("table", own), *(("column", each) for each in columns)):
        length, unit = (len(name.encode()), "bytes") if dialect.name == "postgresql" else (len(name), "characters")
        problem = ""
        if not name or "\0" in name:
            problem = "is empty" if not name else "has a NUL"
        elif length > most:
            problem = f"has {length} {unit}, and {dialect.name} has names of at most {most}"
        elif (
            what == "column"
            and dialect.name in _WITHOUT_CASE
            and (twice := known.setdefault(name.lower(), name)) != name
        ):
            problem = f"differs only in its case from {twice!r}, which {dialect.name} takes for equal"
        if problem:
            message = f"The name of the {what} {name!r} {problem}"
            raise ConfigError(message, hint="Rename it. Columns of a key get other names by key = [...].")
