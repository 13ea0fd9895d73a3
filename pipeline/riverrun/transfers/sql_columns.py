"""Types of a database's columns: what each holds exactly, and which values it would change without an error."""

from __future__ import annotations

import re
from dataclasses import dataclass
from dataclasses import field as declared
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from riverrun.processor.sinks import JSON_FIELD
from riverrun.transfers.sql_texts import changes_number, changes_time, is_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import TypeAlias

    Changes: TypeAlias = "Callable[[Any], bool]"
    """Takes a value, and returns True if a column would change it."""

OF_MYSQL = ("mysql", "mariadb")
MICRO_DIGITS = 6
_PADDED = frozenset({"postgresql", "mssql", "oracle"})
_TYPE = re.compile(r"(?P<name>[A-Z][A-Z0-9_]*)(?: PRECISION)?(?:\s*\((?P<first>\d+)(?:\s*,\s*(?P<second>-?\d+))?\))?")
_WHOLE = re.compile(r"U?(TINY|SMALL|MEDIUM|BIG|HUGE)?INT(EGER)?\d*|(SMALL|BIG)?SERIAL")
_TEXT = re.compile(r"\w*(CHAR|TEXT|CLOB|STRING)\w*")
_SINGLE_FLOAT = frozenset({"mysql", "mariadb", "duckdb"})
"""Databases whose FLOAT has 32 bits."""
_DOUBLE_DIGITS, _SINGLE_DIGITS, _INT_BITS = 15, 6, 32
# SQL Server's SMALLDATETIME has minutes.
_KINDS = {"DATE": "date", "SMALLDATETIME": "date", "MONEY": "exact", "SMALLMONEY": "exact"}
# PostgreSQL's depends on its locale, and SQL Server has four.
_DIGITS = {"MONEY": 2, "SMALLMONEY": 4}
_SECOND_DIGITS = {"TIMESTAMP_S": 0, "TIMESTAMP_MS": 3, "TIMESTAMP_NS": 9, "TIMESTAMPTZ_NS": 9, "TIME_NS": 9, "DATE": 0}
"""Digits of a second of DuckDB's types, which have them in their names, and of Oracle's DATE."""
_ZONED = frozenset({"TIMETZ", "TIMESTAMPTZ", "TIMESTAMPTZ_NS", "TIMESTAMP_TZ", "TIMESTAMP_LTZ", "DATETIMEOFFSET"})
_WITH_ZONE = re.compile(r"WITH (LOCAL )?TIME ZONE")
_TIMES = frozenset({"date", "moment", "time", "span"})
_OF_TEXTS = frozenset({"whole", "exact", "single", "double", "numeric"}) | _TIMES
"""Kinds of other columns that may change texts."""
_CHARS = re.compile(r"(?:N?CHAR|CHARACTER)\b(?! VARYING)[^(]*(?:\((?P<length>\d+))?")
_BYTES = re.compile(r"BINARY\b(?! VARYING)[^(]*(?:\((?P<length>\d+))?")
_OF_TEXT = re.compile(r"\w*(CHAR|TEXT|CLOB)")
_TEXT_BYTES = {"TINYTEXT": 255, "TEXT": 65_535, "MEDIUMTEXT": 2**24 - 1}
_FORMS = {
    "date": re.compile(r"\d{4}-\d\d-\d\d([T ]00:00(:00(\.0+)?)?)?"),
    "moment": re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)?)?"),
}
"""Texts that MySQL reads as they say. It takes `1.2.3` for a day."""
_YEAR = re.compile(r"\d{4}")
_YEARS = frozenset((0, *range(1901, 2156)))
_ODD = re.compile(r"(BIT|BINARY|ENUM|SET|YEAR)\b")
_SHORT = re.compile(r"\w*CHAR\b[^(]*(?:\((?P<length>\d+))?")
_DOUBLE_LENGTH = 24
"""So long are doubles with all of their digits, at most; MySQL writes fewer digits into a shorter text."""
_ROUNDED = re.compile(r"(FLOAT|REAL|DOUBLE)\b[^(]*\(\d+, *\d+\)")
_CHOICE = re.compile(r"'((?:[^']|'')*)'")
_CATALOGS: Mapping[str, str] = {
    # In capitals: servers whose collation has case know no other names.
    "mssql": "SELECT COLUMN_NAME, DATA_TYPE, DATETIME_PRECISION FROM INFORMATION_SCHEMA.COLUMNS"
    " WHERE TABLE_NAME = :name AND TABLE_SCHEMA = {}",
    "oracle": "SELECT column_name, data_type, data_scale FROM all_tab_columns"
    " WHERE data_type LIKE 'TIMESTAMP%' AND table_name = :name AND owner = {}",
}
"""Queries of the digits that times of a table have, which SQLAlchemy does not read."""
_OWN_SCHEMA = {"mssql": "schema_name()", "oracle": "sys_context('USERENV', 'CURRENT_SCHEMA')"}
_WITHOUT_DIGITS = re.compile(r"\b(DATETIME2|DATETIMEOFFSET|TIME|TIMESTAMP)\b(?!\()")


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A type of a column: its kind, and its digits after the point or of a second; None if they have no limit.

    Args:
        zones: Which zones of times it converts or keeps (`changes_time`).
        is_loose: Whether texts are kept that are no values of the type, as SQLite does.
        width: The most characters of a text; None if it has no limit.
        written: The type as the database writes it, in capitals.
        choices: The texts of an `ENUM` or a `SET`.
    """

    kind: str
    digits: int | None = None
    zones: str = declared(default="none", repr=False, compare=False)
    is_loose: bool = declared(default=False, repr=False, compare=False)
    width: int | None = declared(default=None, repr=False, compare=False)
    dialect: str = declared(default="", repr=False, compare=False)
    written: str = declared(default="", repr=False, compare=False)
    choices: Sequence[str] = declared(default=(), repr=False, compare=False)

    @classmethod
    def of(cls, text: str, dialect: str) -> ColumnType:
        """Return a type as the database writes it.

        >>> ColumnType.of("NUMERIC(10, 2)", "postgresql"), ColumnType.of("REAL", "sqlite")
        (ColumnType(kind='exact', digits=2), ColumnType(kind='double', digits=None))
        """
        written = text.strip().upper()
        found = _TYPE.match(written)
        if found is None:
            return cls("other")
        if dialect == "sqlite":
            return cls(_affinity(written), is_loose=True)
        name, first = found["name"], int(found["first"]) if found["first"] else None
        kind = _kind(name, dialect)
        choices = [each.replace("''", "'") for each in _CHOICE.findall(text)] if name in {"ENUM", "SET"} else ()
        digits, width, zones = first, None, "none"
        if kind == "exact":
            scale = None if first is None else int(found["second"] or 0)
            digits = _DIGITS.get(name, scale)
        elif kind == "text":
            digits, width = None, first
        elif kind in {"moment", "time", "span"}:
            digits = _second_digits(name, dialect) if first is None else first
            zones = _zones(written, name, kind, dialect)
        elif kind in _OF_TEXTS:
            digits = None
        return cls(kind, digits, zones, width=width, dialect=dialect, written=written, choices=choices)

    def changes(self, kind: pa.DataType) -> bool:
        """Return whether values of an Arrow type may become others in this column, without an error.

        Those that only some values of the type become are found by `rule`.
        """
        if self.dialect in OF_MYSQL and self._converts(kind):
            return True
        if self.dialect in _PADDED and self._reshapes(kind):
            return True
        return self._rounds(kind)

    def _rounds(self, kind: pa.DataType) -> bool:
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
                self.kind == "moment" and (self.digits or 0) < MICRO_DIGITS
            )
        return False

    def _converts(self, kind: pa.DataType) -> bool:
        """Return whether MySQL may convert all values of an Arrow type to others."""
        written = self.written
        if pa.types.is_string(kind):
            return written.startswith("BIT") or _ROUNDED.match(written) is not None
        if pa.types.is_binary(kind):
            # Spaces at the end of bytes are removed.
            return _CHARS.match(written) is not None or (_ODD.match(written) is not None and not _BYTES.match(written))
        if _ODD.match(written):
            return not (_is_whole(kind) and written.startswith(("BIT", "YEAR")))
        if pa.types.is_floating(kind) and (short := _SHORT.match(written)):
            return int(short["length"] or 1) < _DOUBLE_LENGTH
        if pa.types.is_floating(kind) or pa.types.is_decimal(kind) or _is_whole(kind):
            return written.startswith(("DATE", "TIME", "VARBINARY")) or _ROUNDED.match(written) is not None
        return False

    def _reshapes(self, kind: pa.DataType) -> bool:
        """Return whether other databases may write bytes as hexadecimal digits, or numbers with spaces."""
        if pa.types.is_binary(kind):
            return _OF_TEXT.match(self.written) is not None
        # PostgreSQL does not count the spaces.
        is_padded = self.dialect != "postgresql" and not pa.types.is_string(kind)
        return is_padded and _CHARS.match(self.written) is not None

    def rule(self, field: pa.Field) -> Changes | None:
        """Return which values of a field this column changes without an error; None if it changes none."""
        is_text = pa.types.is_string(field.type) and field.metadata != JSON_FIELD
        read = self.changes_text if is_text and self.may_change_texts else None
        fitted = self._fitted(field.type) if self.dialect in _PADDED.union(OF_MYSQL) else None
        if read is None or fitted is None:
            return read or fitted
        return lambda value: fitted(value) or read(value)

    @property
    def may_change_texts(self) -> bool:
        return self.kind in _OF_TEXTS or (self.kind == "text" and self.width is not None)

    def changes_text(self, text: str) -> bool:
        """Return whether a text may become another value in this column, without an error.

        >>> [ColumnType("exact", 2).changes_text(text) for text in ("1.50", "1.500", "1.505")]
        [False, False, True]
        """
        if self.kind in _TIMES:
            return changes_time(text, self.kind, self.digits or 0, self.zones)
        if self.kind == "text":
            # By the standard, spaces are no error.
            return self.width is not None and len(text.rstrip(" ")) <= self.width < len(text)
        if self.is_loose and not is_number(text):
            return False
        return changes_number(text, self.kind, self.digits)

    def _fitted(self, kind: pa.DataType) -> Changes | None:
        """Return which values of an Arrow type a server pads, cuts, or takes for another one."""
        is_text = pa.types.is_string(kind)
        if self.choices:
            return _is_no_choice(self.choices, is_set=self.written.startswith("SET"))
        if (is_text or pa.types.is_binary(kind)) and (fixed := _BYTES.match(self.written)):
            size = int(fixed["length"] or 1)
            return lambda value: len(value.encode() if is_text else value) != size
        if is_text:
            return self._padded_texts() or (self._read_texts() if self.dialect in OF_MYSQL else None)
        if self.dialect in OF_MYSQL and _is_whole(kind):
            if self.written.startswith("YEAR"):
                return lambda value: value not in _YEARS
            if self.written.startswith("BIT"):
                return lambda value: value < 0
        return None

    def _padded_texts(self) -> Changes | None:
        """Return which texts a column of a fixed length changes, in addition to those that it cuts."""
        fixed = _CHARS.match(self.written)
        if fixed is None:
            return None
        length = int(fixed["length"] or 1)
        if self.dialect == "postgresql":
            # It does not count padding, but would not count these spaces either.
            return lambda text: text.endswith(" ") and len(text) < length
        return (lambda text: len(text) < length) if self.dialect in _PADDED else (lambda text: text.endswith(" "))

    def _read_texts(self) -> Changes | None:
        """Return which texts MySQL cuts, or reads in another way than `changes_text` tells."""
        if (most_bytes := _TEXT_BYTES.get(self.written.split(" ", maxsplit=1)[0])) is not None:
            return lambda text: text.endswith(" ") and len(text.encode()) > most_bytes
        form = _YEAR if self.written.startswith("YEAR") else _FORMS.get(self.kind)
        return None if form is None else lambda text: form.fullmatch(text) is None


def _kind(name: str, dialect: str) -> str:
    if _WHOLE.fullmatch(name):
        return "whole"
    if name in {"NUMERIC", "DECIMAL", "NUMBER"}:
        return "exact"
    if name in {"REAL", "FLOAT4"} or (name == "FLOAT" and dialect in _SINGLE_FLOAT):
        return "single"
    if name in {"FLOAT", "DOUBLE", "FLOAT8"}:
        return "double"
    if name in {"TIME", "TIMETZ", "TIME_NS"}:
        return "span" if dialect in OF_MYSQL else "time"
    # Oracle's DATE has seconds.
    if name.startswith(("TIME", "DATETIME")) or (name, dialect) == ("DATE", "oracle"):
        return "moment"
    return _KINDS.get(name) or ("text" if _TEXT.fullmatch(name) else "other")


def _affinity(text: str) -> str:
    """Return the kind of a type of SQLite, which decides by parts of its name."""
    kinds = {"INT": "numeric", "CHAR": "text", "CLOB": "text", "TEXT": "text", "BLOB": "other"}
    doubles = dict.fromkeys(("REAL", "FLOA", "DOUB"), "double")
    return next((kind for part, kind in (kinds | doubles).items() if part in text), "numeric")


def _second_digits(name: str, dialect: str) -> int:
    # SQL Server's DATETIME has steps of 1/300 s.
    usual = 0 if dialect in OF_MYSQL else 2 if (name, dialect) == ("DATETIME", "mssql") else MICRO_DIGITS
    return _SECOND_DIGITS.get(name, usual)


def _zones(written: str, name: str, kind: str, dialect: str) -> str:
    if name in _ZONED or _WITH_ZONE.search(written) or (name, dialect) == ("TIMESTAMP", "bigquery"):
        return "all"
    # MySQL converts offsets to the zone of the session, which is UTC.
    return "offsets" if dialect == "mysql" and kind == "moment" else "none"


def _is_whole(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_boolean(kind))


def _is_no_choice(choices: Sequence[str], *, is_set: bool) -> Changes:
    if not is_set:
        return lambda text: text not in choices
    # The server puts them in order, and leaves out what is there twice.
    return lambda text: text != ",".join(each for each in choices if each in text.split(","))


def column_types(connection: sa.Connection, table: sa.TableClause) -> Mapping[str, str]:
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
    digits = {name: count for name, _, count in digits_of_times(connection, table)}
    types = ((each["name"], _written(each["type"], dialect)) for each in columns)
    return {
        name: _WITHOUT_DIGITS.sub(rf"\1({digits[name]})", written, count=1) if digits.get(name) is not None else written
        for name, written in types
    }


def _written(type_: Any, dialect: Any) -> str:
    choices = getattr(type_, "enums", None) or (type_.values if type(type_).__name__ == "SET" else ())
    if choices and dialect.name in OF_MYSQL:
        # SQLAlchemy doubles per cent signs.
        listed = "','".join(each.replace("'", "''") for each in choices)
        return f"{type(type_).__name__}('{listed}')"
    try:
        return str(type_.compile(dialect))
    except SQLAlchemyError:
        return ""


def digits_of_times(connection: sa.Connection, table: sa.TableClause) -> Iterable[tuple[str, str, int | None]]:
    """Return columns of a table of SQL Server or Oracle: names, types, and the digits that times have of a second."""
    dialect = connection.dialect
    if dialect.name not in _CATALOGS:
        return []
    text, given = digits_query(table, dialect)
    known = dialect.normalize_name if dialect.requires_name_normalize else str
    return [(known(name), type_, digits) for name, type_, digits in connection.execute(sa.text(text), given)]


def digits_query(table: sa.TableClause, dialect: Any) -> tuple[str, dict[str, str]]:
    """Return the query of the digits that times of a table have, and its parameters."""
    # Oracle has names without capitals in capitals.
    named = dialect.denormalize_name if dialect.requires_name_normalize else str
    given = {"name": named(table.name)} | ({"schema": named(table.schema)} if table.schema else {})
    schema = ":schema" if table.schema else _OWN_SCHEMA[dialect.name]
    return _CATALOGS[dialect.name].format(schema), given
