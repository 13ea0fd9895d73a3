"""Refuses tables that would change rows without an error: types that round, names that are cut, texts that count as equal."""

from __future__ import annotations

import re
from dataclasses import dataclass
from dataclasses import field as declared
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from riverrun.errors import ConfigError
from riverrun.processor.sinks import JSON_FIELD, OFFSET, RefusedRecordsError
from riverrun.records import shortened
from riverrun.transfers.sql_texts import changes_number, changes_time, is_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from riverrun.processor.sinks import SinkBatch, SinkTable
    from riverrun.records import TopicPartition

_TYPE = re.compile(r"(?P<name>[A-Z][A-Z0-9_]*)(?: PRECISION)?(?:\s*\((?P<first>\d+)(?:\s*,\s*(?P<second>-?\d+))?\))?")
_WHOLE = re.compile(r"U?(TINY|SMALL|MEDIUM|BIG|HUGE)?INT(EGER)?\d*|(SMALL|BIG)?SERIAL")
_TEXT = re.compile(r"\w*(CHAR|TEXT|CLOB|STRING)\w*")
_SINGLE_FLOAT = frozenset({"mysql", "mariadb", "duckdb"})
"""Databases whose FLOAT has 32 bits."""
_DOUBLE_DIGITS, _SINGLE_DIGITS, _INT_BITS, _MICRO_DIGITS = 15, 6, 32, 6
_SHOWN = 100
# SQL Server's SMALLDATETIME has minutes.
_KINDS = {"DATE": "date", "SMALLDATETIME": "date", "MONEY": "exact", "SMALLMONEY": "exact"}
# PostgreSQL's depends on its locale, and SQL Server has four.
_DIGITS = {"MONEY": 2, "SMALLMONEY": 4}
_SECOND_DIGITS = {"TIMESTAMP_S": 0, "TIMESTAMP_MS": 3, "TIMESTAMP_NS": 9, "TIMESTAMPTZ_NS": 9, "TIME_NS": 9, "DATE": 0}
"""Digits of a second of DuckDB's types, which have them in their names, and of Oracle's DATE."""
_ZONED = frozenset({"TIMETZ", "TIMESTAMPTZ", "TIMESTAMPTZ_NS", "TIMESTAMP_TZ", "TIMESTAMP_LTZ", "DATETIMEOFFSET"})
_WITH_ZONE = re.compile(r"WITH (LOCAL )?TIME ZONE")
_ALIKE = (("a", "A"), ("a", "á"), ("a", "a "))
"""Texts that collations take for equal: without case, without accents, and with padding."""
# Names are compared without case, also if they are quoted.
_WITHOUT_CASE = frozenset({"sqlite", "duckdb", "mysql", "mariadb", "mssql"})


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A type of a column: its kind, and its digits after the point or of a second; None if they have no limit.

    Args:
        zones: Which zones of times it converts or keeps (`changes_time`).
        is_loose: Whether texts are kept that are no values of the type, as SQLite does.
    """

    kind: str
    digits: int | None = None
    zones: str = declared(default="none", repr=False, compare=False)
    is_loose: bool = declared(default=False, repr=False, compare=False)

    @classmethod
    def of(cls, text: str, dialect: str) -> ColumnType:
        """Return a type as the database writes it.

        >>> ColumnType.of("NUMERIC(10, 2)", "postgresql"), ColumnType.of("REAL", "sqlite")
        (ColumnType(kind='exact', digits=2), ColumnType(kind='double', digits=None))
        """
        found = _TYPE.match(text.strip().upper())
        if found is None:
            return cls("other")
        if dialect == "sqlite":
            return cls(_affinity(text.upper()), is_loose=True)
        name, first = found["name"], int(found["first"]) if found["first"] else None
        if _WHOLE.fullmatch(name):
            return cls("whole")
        if name in {"NUMERIC", "DECIMAL", "NUMBER"}:
            return cls("exact", None if first is None else int(found["second"] or 0))
        if name in {"REAL", "FLOAT4"} or (name == "FLOAT" and dialect in _SINGLE_FLOAT):
            return cls("single")
        if name in {"FLOAT", "DOUBLE", "FLOAT8"}:
            return cls("double")
        # Oracle's DATE has seconds.
        if name.startswith(("TIME", "DATETIME")) or (name, dialect) == ("DATE", "oracle"):
            has_zone = name in _ZONED or _WITH_ZONE.search(text.upper()) is not None
            is_zoned = has_zone or (name, dialect) == ("TIMESTAMP", "bigquery")
            return cls._of_times(name, first, dialect, is_zoned=is_zoned)
        return cls(_KINDS.get(name) or ("text" if _TEXT.fullmatch(name) else "other"), _DIGITS.get(name, first))

    @classmethod
    def _of_times(cls, name: str, digits: int | None, dialect: str, *, is_zoned: bool) -> ColumnType:
        kind = "time" if name in {"TIME", "TIMETZ", "TIME_NS"} else "moment"
        is_of_mysql = dialect in {"mysql", "mariadb"}
        if is_of_mysql and kind == "time":
            kind = "span"
        if digits is None:
            # SQL Server's DATETIME has steps of 1/300 s.
            usual = 0 if is_of_mysql else 2 if (name, dialect) == ("DATETIME", "mssql") else _MICRO_DIGITS
            digits = _SECOND_DIGITS.get(name, usual)
        # MySQL converts offsets to the zone of the session, which is UTC.
        otherwise = "offsets" if dialect == "mysql" and kind == "moment" else "none"
        return cls(kind, digits, "all" if is_zoned else otherwise)

    def changes(self, kind: pa.DataType) -> bool:
        """Return whether values of an Arrow type may become others in this column, without an error."""
        if pa.types.is_floating(kind):
            is_cut = self.kind == "whole" or (self.kind == "exact" and self.digits is not None)
            # SQLite writes fractions into texts with 15 digits.
            is_short = self.kind == "single" or (self.kind == "text" and self.is_loose)
            return is_cut or (is_short and kind == pa.float64())
        if pa.types.is_decimal(kind):
            most = {
                "whole": 0 if kind.scale else kind.precision,
                "double": _DOUBLE_DIGITS,
                "numeric": _DOUBLE_DIGITS,
                "single": _SINGLE_DIGITS,
            }
            return kind.precision > most.get(self.kind, kind.precision) or (
                self.kind == "exact" and self.digits is not None and self.digits < kind.scale
            )
        if pa.types.is_integer(kind):
            # With a scale below 0, digits before the point are rounded as well.
            is_cut = self.kind == "exact" and self.digits is not None and self.digits < 0
            return is_cut or kind.bit_width > {"single": _INT_BITS // 2, "double": _INT_BITS}.get(
                self.kind, kind.bit_width
            )
        if pa.types.is_timestamp(kind):
            return self.kind in {"date", "time", "span"} or (
                self.kind == "moment" and (self.digits or 0) < _MICRO_DIGITS
            )
        return False

    @property
    def may_change_texts(self) -> bool:
        return self.kind in _OF_TEXTS or (self.kind == "text" and self.digits is not None)

    def changes_text(self, text: str) -> bool:
        """Return whether a text may become another value in this column, without an error.

        >>> [ColumnType("exact", 2).changes_text(text) for text in ("1.50", "1.500", "1.505")]
        [False, False, True]
        """
        if self.kind in _TIMES:
            return changes_time(text, self.kind, self.digits or 0, self.zones)
        if self.kind == "text":
            # By the standard, spaces are no error.
            return self.digits is not None and len(text.rstrip(" ")) <= self.digits < len(text)
        if self.is_loose and not is_number(text):
            return False
        return changes_number(text, self.kind, self.digits)


_TIMES = frozenset({"date", "moment", "time", "span"})
_OF_TEXTS = frozenset({"whole", "exact", "single", "double", "numeric"}) | _TIMES
"""Kinds of other columns that may change texts."""


def require_texts(batch: SinkBatch, types: Mapping[str, ColumnType], table: str) -> None:
    """Refuse records whose texts a column of another type would change."""
    reasons: dict[tuple[TopicPartition, int], str] = {}
    offsets = batch.records.column(OFFSET)
    for name, type_ in types.items():
        for row, text in enumerate(batch.records.column(name).to_pylist()):
            if text is not None and type_.changes_text(text):
                offset = offsets[row].as_py()
                reasons[batch.tp, offset] = (
                    f"Record {batch.tp}@{offset} has {shortened(text, _SHOWN)} in column {name},"
                    f" which table {table} would round, cut, or read as something else"
                )
    if reasons:
        hint = (
            "Write plain numbers, and times as ISO 8601 does. Or alter the column, or let the export skip such records:"
            " deserialization_exception_handler."
        )
        raise RefusedRecordsError(next(iter(reasons.values())), reasons, hint=hint)


def _affinity(text: str) -> str:
    """Return the kind of a type of SQLite, which decides by parts of its name."""
    kinds = {"INT": "numeric", "CHAR": "text", "CLOB": "text", "TEXT": "text", "BLOB": "other"}
    doubles = dict.fromkeys(("REAL", "FLOA", "DOUB"), "double")
    return next((kind for part, kind in (kinds | doubles).items() if part in text), "numeric")


def column_types(connection: sa.Connection, table: sa.Table) -> Mapping[str, str]:
    """Return the types of a table's columns by name, as the database writes them."""
    dialect = connection.dialect
    if dialect.name == "duckdb":
        # duckdb-engine describes tables by queries of PostgreSQL that DuckDB does not have.
        query = sa.text(
            "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = :name"
            " AND table_schema = coalesce(:schema, current_schema()) AND table_catalog = current_database()"
        )
        found = connection.execute(query, {"name": table.name, "schema": table.schema})
        return {name: str(type_) for name, type_ in found}
    columns = sa.inspect(connection).get_columns(table.name, table.schema)
    return {each["name"]: _written(each["type"], dialect) for each in columns}


def _written(type_: Any, dialect: Any) -> str:
    try:
        return str(type_.compile(dialect))
    except SQLAlchemyError:
        return ""


def check_types(connection: sa.Connection, rows: sa.Table, table: SinkTable) -> Mapping[str, ColumnType]:
    """Refuse a table whose columns would change values, or take different keys for equal.

    Returns the types of columns that may change texts.
    """
    there, texts = column_types(connection, rows), dict[str, ColumnType]()
    dialect = connection.dialect.name
    for field in table.schema:
        type_ = ColumnType.of(there.get(field.name, ""), dialect)
        # SQLite makes numbers of texts in such columns, with 15 digits.
        is_number = dialect == "sqlite" and type_.kind in {"numeric", "double"}
        if type_.changes(field.type) or (is_number and field.metadata == JSON_FIELD):
            message = (
                f"Column {field.name} of table {rows.fullname} is {there[field.name]}, and the export has"
                f" {'JSON' if field.metadata == JSON_FIELD else field.type}:"
                " values would be rounded or cut"
            )
            raise ConfigError(message, hint="Alter the column, or export to another table.")
        if table.is_upsert and field.name in table.key and pa.types.is_string(field.type) and type_.kind == "text":
            _check_collation(connection, rows.c[field.name], rows.fullname)
        is_text = pa.types.is_string(field.type) and field.metadata != JSON_FIELD
        if is_text and type_.may_change_texts:
            texts[field.name] = type_
    return texts


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
