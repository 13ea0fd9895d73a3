"""Refuses tables that would change rows without an error: types that round, names that are cut, texts that count as equal."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from dataclasses import field as declared
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from riverrun.errors import ConfigError
from riverrun.processor.sinks import JSON_FIELD, OFFSET, RefusedRecordsError
from riverrun.records import shortened

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
_KINDS = {"DATE": "date", "TIME": "time", "TIMETZ": "time", "MONEY": "exact", "SMALLMONEY": "exact"}
# PostgreSQL's depends on its locale, and SQL Server has four.
_DIGITS = {"MONEY": 2, "SMALLMONEY": 4}
_ALIKE = (("a", "A"), ("a", "á"), ("a", "a "))
"""Texts that collations take for equal: without case, without accents, and with padding."""
# Names are compared without case, also if they are quoted.
_WITHOUT_CASE = frozenset({"sqlite", "duckdb", "mysql", "mariadb", "mssql"})


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A type of a column: its kind, and its digits after the point or of a second; None if they have no limit.

    Args:
        drops_zone: Whether the offset of a time that is written as text is left out.
    """

    kind: str
    digits: int | None = None
    drops_zone: bool = declared(default=False, repr=False, compare=False)

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
            kind = _affinity(text.upper())
            return cls(kind, _DOUBLE_DIGITS if kind == "text" else None)
        name, first = found["name"], int(found["first"]) if found["first"] else None
        if _WHOLE.fullmatch(name):
            return cls("whole")
        if name in {"NUMERIC", "DECIMAL", "NUMBER"}:
            return cls("exact", None if first is None else int(found["second"] or 0))
        if name in {"REAL", "FLOAT4"} or (name == "FLOAT" and dialect in _SINGLE_FLOAT):
            return cls("single")
        if name in {"FLOAT", "DOUBLE", "FLOAT8"}:
            return cls("double")
        if name.startswith(("TIMESTAMP", "DATETIME")):
            # DuckDB has the unit in the name, and MySQL seconds by default.
            usual = 0 if first is None and dialect in {"mysql", "mariadb"} else first
            is_zoned = name == "TIMESTAMPTZ" or "WITH TIME ZONE" in text.upper()
            drops_zone = dialect in {"postgresql", "duckdb"} and not is_zoned
            return cls("moment", {"TIMESTAMP_S": 0, "TIMESTAMP_MS": 3}.get(name, usual), drops_zone)
        return cls(_KINDS.get(name) or ("text" if _TEXT.fullmatch(name) else "other"), _DIGITS.get(name, first))

    def changes(self, kind: pa.DataType) -> bool:
        """Return whether values of an Arrow type may become others in this column, without an error."""
        if pa.types.is_floating(kind):
            is_cut = self.kind == "whole" or (self.kind == "exact" and self.digits is not None)
            # SQLite writes fractions into texts with 15 digits.
            is_short = self.kind == "single" or (self.kind == "text" and self.digits is not None)
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
            return self.kind in {"date", "time"} or (
                self.kind == "moment" and self.digits is not None and self.digits < _MICRO_DIGITS
            )
        return False

    def changes_text(self, text: str) -> bool:
        """Return whether a text may become another value in this column, without an error.

        >>> [ColumnType("exact", 2).changes_text(text) for text in ("1.50", "1.500", "1.505")]
        [False, False, True]
        """
        if self.kind == "date":
            return ":" in text
        if self.kind in {"moment", "time"}:
            fraction = _SECONDS.search(text)
            digits = _MICRO_DIGITS if self.digits is None else min(self.digits, _MICRO_DIGITS)
            is_cut = fraction is not None and len(fraction[1].rstrip("0")) > digits
            is_shifted = self.drops_zone and _OFFSET.search(text) is not None
            return is_cut or is_shifted or (self.kind == "time" and _DATE.match(text) is not None)
        number = _decimal(text) if self.kind in _NUMBERS else None
        if number is None:
            return False
        exponent = number.normalize().as_tuple().exponent
        if self.kind == "single":
            return not _is_single(number)
        if self.kind in {"double", "numeric"}:
            # SQLite has whole numbers of 64 bits in such columns.
            is_whole = self.kind == "numeric" and int(exponent) >= 0 and abs(number) < _WHOLE_END
            return not is_whole and Decimal(repr(float(number))) != number
        most = 0 if self.kind == "whole" else self.digits
        return most is not None and -int(exponent) > most


_SECONDS = re.compile(r":\d\d[.,](\d+)")
_OFFSET = re.compile(r":\d\d.*[+-](?!00(:?00)?$)\d\d")
_DATE = re.compile(r"\s*\d+-\d")
_NUMBERS = frozenset({"whole", "exact", "single", "double", "numeric"})
_WHOLE_END = 2**63
_MOST_SINGLE_DIGITS = 9
_OF_TEXTS = _NUMBERS | {"date", "moment", "time"}
"""Kinds of columns that may change texts."""


def _decimal(text: str) -> Decimal | None:
    try:
        found = Decimal(text.strip())
    except InvalidOperation:
        return None
    return found if found.is_finite() else None


def _is_single(number: Decimal) -> bool:
    """Return whether 32 bits hold a number, as databases show it: with the fewest digits that identify the value.

    >>> [_is_single(Decimal(text)) for text in ("0.1", "16777216", "16777217", "0.123456789")]
    [True, True, False, False]
    """
    try:
        held = struct.pack("f", number)
    except OverflowError:
        return False
    (value,) = struct.unpack("f", held)
    shown = (f"{value:.{digits}g}" for digits in range(1, _MOST_SINGLE_DIGITS))
    shortest = next(
        (text for text in shown if struct.pack("f", float(text)) == held), f"{value:.{_MOST_SINGLE_DIGITS}g}"
    )
    return Decimal(shortest) == number


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
                    f" which table {table} would round or cut"
                )
    if reasons:
        hint = "Alter the column, or let the export skip such records: deserialization_exception_handler."
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
        if is_text and type_.kind in _OF_TEXTS:
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
