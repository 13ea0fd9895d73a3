"""Refuses values that columns of servers would change: spaces at the end, padding, and conversions of MySQL."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import sqlalchemy as sa

from riverrun.errors import ConfigError
from riverrun.processor.sinks import OFFSET, RefusedRecordsError
from riverrun.records import shortened
from riverrun.transfers.sql_columns import ColumnType, column_types

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeAlias

    from riverrun.processor.sinks import SinkBatch, SinkTable
    from riverrun.records import TopicPartition

    Changes: TypeAlias = "Callable[[Any], bool]"
    """Takes a value, and returns True if a column would change it."""

OF_MYSQL = ("mysql", "mariadb")
STRICT_SESSION = (
    "SET SESSION sql_mode = concat_ws(',', nullif(@@sql_mode, ''), 'STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE')",
)
"""Statements without which MySQL and MariaDB may cut values, or write the day 0."""
_PADDED = frozenset({"postgresql", "mssql", "oracle"})
_CHARS = re.compile(r"(?:N?CHAR|CHARACTER)\b(?! VARYING)[^(]*(?:\((?P<length>\d+))?")
_BYTES = re.compile(r"BINARY\b(?! VARYING)[^(]*(?:\((?P<length>\d+))?")
_OF_TEXT = re.compile(r"\w*(CHAR|TEXT|CLOB)")
_TEXT_BYTES = {"TINYTEXT": 255, "TEXT": 65_535, "MEDIUMTEXT": 2**24 - 1}
_FORMS = {
    "date": re.compile(r"\d{4}-\d\d-\d\d([T ]00:00(:00(\.0+)?)?)?"),
    "moment": re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)?)?"),
    "time": re.compile(r"-?\d{1,3}:\d\d(:\d\d(\.\d+)?)?"),
}
"""Texts that MySQL reads as they say. It takes `123` for a minute and 23 seconds, and `1.2.3` for a day."""
_YEAR = re.compile(r"\d{4}")
_YEARS = frozenset((0, *range(1901, 2156)))
_ODD = re.compile(r"(BIT|BINARY|ENUM|SET|YEAR)\b")
_SHORT = re.compile(r"\w*CHAR\b[^(]*(?:\((?P<length>\d+))?")
_DOUBLE_LENGTH = 24
"""So long are doubles with all of their digits, at most; MySQL writes fewer digits into a shorter text."""
_ROUNDED = re.compile(r"(FLOAT|REAL|DOUBLE)\b[^(]*\(\d+, *\d+\)")
_SHOWN = 100


def columns_that_change(connection: sa.Connection, rows: sa.Table, table: SinkTable) -> Mapping[str, Changes]:
    """Refuse columns for which no rule finds what they change, and return the rules of the others by name."""
    dialect = connection.dialect.name
    if dialect not in _PADDED.union(OF_MYSQL):
        return {}
    there, found = column_types(connection, rows), dict[str, "Changes"]()
    choices = _choices(connection, rows) if dialect in OF_MYSQL else {}
    for field in table.schema:
        written = there.get(field.name, "").upper()
        if _is_refused(written, field.type, dialect):
            message = (
                f"Column {field.name} of table {rows.fullname} is {there[field.name]}, and the export has {field.type}"
            )
            hint = f"{dialect} would convert values. Alter the column, or export to another table."
            raise ConfigError(message, hint=hint)
        if field.name in choices:
            found[field.name] = _is_no_choice(choices[field.name], is_set=written.startswith("SET"))
        elif (rule := _rule(written, field.type, dialect)) is not None:
            found[field.name] = rule
    return found


def _is_refused(written: str, kind: pa.DataType, dialect: str) -> bool:
    return _is_converted(written, kind) if dialect in OF_MYSQL else _is_reshaped(written, kind, dialect)


def require_held(batch: SinkBatch, rules: Mapping[str, Changes], table: str) -> None:
    """Refuse records with values that their columns would change."""
    reasons: dict[tuple[TopicPartition, int], str] = {}
    for name, changes in rules.items():
        for row, value in enumerate(batch.records.column(name).to_pylist()):
            if value is not None and changes(value):
                offset = batch.records.column(OFFSET)[row].as_py()
                reasons[batch.tp, offset] = (
                    f"Record {batch.tp}@{offset} has {shortened(value, _SHOWN)!r} in column {name},"
                    f" which table {table} would cut, pad or convert"
                )
    if reasons:
        hint = "Alter the column, or let the export skip such records: deserialization_exception_handler."
        raise RefusedRecordsError(next(iter(reasons.values())), reasons, hint=hint)


def _rule(written: str, kind: pa.DataType, dialect: str) -> Changes | None:
    """Return which values of an Arrow type a column changes; None if it changes none."""
    is_text = pa.types.is_string(kind)
    if (is_text or pa.types.is_binary(kind)) and (fixed := _BYTES.match(written)):
        size = int(fixed["length"] or 1)
        return lambda value: len(value.encode() if is_text else value) != size
    if is_text:
        return _rule_of_texts(written, dialect)
    if dialect in OF_MYSQL and _is_whole(kind):
        if written.startswith("YEAR"):
            return lambda value: value not in _YEARS
        if written.startswith("BIT"):
            return lambda value: value < 0
    return None


def _rule_of_texts(written: str, dialect: str) -> Changes | None:
    """Return which texts a column changes, besides those that it cuts (`ColumnType.changes_text`)."""
    if fixed := _CHARS.match(written):
        length = int(fixed["length"] or 1)
        if dialect == "postgresql":
            # It does not count padding, but would not count these spaces either.
            return lambda text: text.endswith(" ") and len(text) < length
        if dialect in _PADDED:
            return lambda text: len(text) < length
        return lambda text: text.endswith(" ")
    if dialect not in OF_MYSQL:
        return None
    if (most_bytes := _TEXT_BYTES.get(written.split(" ", maxsplit=1)[0])) is not None:
        return lambda text: text.endswith(" ") and len(text.encode()) > most_bytes
    form = _YEAR if written.startswith("YEAR") else _FORMS.get(ColumnType.of(written, dialect).kind)
    return None if form is None else lambda text: form.fullmatch(text) is None


def _is_whole(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_boolean(kind))


def _is_converted(written: str, kind: pa.DataType) -> bool:
    """Return whether MySQL may convert all values of an Arrow type to others, without an error."""
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


def _is_reshaped(written: str, kind: pa.DataType, dialect: str) -> bool:
    """Return whether other databases may write bytes as hexadecimal digits, or numbers with spaces."""
    if pa.types.is_binary(kind):
        return _OF_TEXT.match(written) is not None
    # PostgreSQL does not count the spaces.
    return dialect != "postgresql" and not pa.types.is_string(kind) and _CHARS.match(written) is not None


def _choices(connection: sa.Connection, rows: sa.Table) -> dict[str, Sequence[str]]:
    """Return the texts that columns with a fixed set of them have."""
    columns = sa.inspect(connection).get_columns(rows.name, rows.schema)
    named = ((each["name"], each["type"]) for each in columns)
    return {
        name: tuple(type_.enums if hasattr(type_, "enums") else type_.values) for name, type_ in named if _lists(type_)
    }


def _lists(type_: Any) -> bool:
    return hasattr(type_, "enums") or type(type_).__name__ == "SET"


def _is_no_choice(choices: Sequence[str], *, is_set: bool) -> Changes:
    if not is_set:
        return lambda text: text not in choices
    # The server puts them in order, and leaves out what is there twice.
    return lambda text: text != ",".join(each for each in choices if each in text.split(","))
