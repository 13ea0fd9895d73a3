"""Partitions of exported files: columns, and the year, month, day or hour of a time."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from riverrun.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_UNITS = ("year", "month", "day", "hour")
_OF_TIME = re.compile(rf"({'|'.join(_UNITS)})\((.+)\)", re.DOTALL)
_FROM_DAY = {"year": 4, "month": 7, "day": 10}
"""Number of characters that a unit takes of a day, as ISO 8601 writes it."""
_ODD = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^]")
"""Characters that Hive and Spark escape."""
_NULL = "__HIVE_DEFAULT_PARTITION__"
_DAY_MICROS, _HOUR_MICROS = 86_400_000_000, 3_600_000_000


@dataclass(frozen=True, slots=True)
class PartitionField:
    """One level of directories.

    Args:
        column: The column.
        unit: The unit of its times; empty for its values.
    """

    column: str
    unit: str = ""

    @classmethod
    def parse(cls, text: str) -> PartitionField:
        """Read a field as users write it.

        >>> PartitionField.parse("country"), PartitionField.parse("day(_timestamp)")
        (PartitionField(column='country', unit=''), PartitionField(column='_timestamp', unit='day'))
        """
        found = _OF_TIME.fullmatch(text)
        return cls(text) if found is None else cls(found[2], found[1])

    @property
    def name(self) -> str:
        """Return the name of its directories."""
        return self.unit or self.column


def directory_fields(texts: Sequence[str]) -> list[PartitionField]:
    """Return the levels of directories; refuse those that readers would not find."""
    found = [PartitionField.parse(text) for text in texts]
    names = [field.name.lower() for field in found]
    for field in found:
        if field.name.startswith(("_", ".")):
            message = f"Files cannot be partitioned by {field.column}: readers skip directories that begin with {field.name[0]}"
            raise ConfigError(message, hint="Choose another column, or a unit of a time: day(_timestamp).")
        if field.name.lower() == "batch":
            message = "Files cannot be partitioned by a column named batch, as exports by Spark have such directories"
            raise ConfigError(message, hint="Rename the field, or choose another column.")
        if names.count(field.name.lower()) > 1:
            raise ConfigError(f"Two levels of directories have the name {field.name}", hint="Leave one of them out.")
    return found


def with_directories(frame: Any, fields: Sequence[PartitionField]) -> Any:
    """Return a frame of Spark with the columns that name directories."""
    kinds = dict(frame.dtypes)
    for field in fields:
        if field.column not in kinds:
            raise _unknown(field, kinds)
        if field.unit:
            if field.name.lower() in map(str.lower, kinds):
                raise _named_twice(field)
            frame = frame.withColumn(field.name, _unit_of(field, kinds[field.column]))
        elif kinds[field.column] == "binary":
            raise _of_no_text(field)
    return frame


def check_directories(schema: Any, fields: Sequence[PartitionField]) -> None:
    """Refuse columns of an Arrow schema that cannot name directories."""
    for field in fields:
        if field.column not in schema.names:
            raise _unknown(field, schema.names)
        kind = schema.field(field.column).type
        if field.unit and field.unit in map(str.lower, schema.names):
            raise _named_twice(field)
        if field.unit and not (pa.types.is_timestamp(kind) or (pa.types.is_date(kind) and field.unit != "hour")):
            raise _without_unit(field, kind)
        if pa.types.is_binary(kind) or pa.types.is_nested(kind):
            raise _of_no_text(field)


def directories(records: Any, fields: Sequence[PartitionField]) -> list[str]:
    """Return the directory of each row of an Arrow batch, as Hive and Spark write it."""
    levels = ([f"{escaped_name(field.name)}={text}" for text in _texts(records, field)] for field in fields)
    return ["/".join(row) for row in zip(*levels, strict=True)]


def _texts(records: Any, field: PartitionField) -> Iterator[str]:
    for value in records.column(field.column).to_pylist():
        text = _text(value, field.unit)
        yield escaped_name(text) if text else _NULL


def _text(value: Any, unit: str) -> str:
    if value is None or isinstance(value, bool):
        return "" if value is None else str(value).lower()
    if not isinstance(value, dt.date):
        return format(value, "f") if isinstance(value, Decimal) else str(value)
    text = value.isoformat()
    if unit:
        return f"{text[:10]}-{text[11:13]}" if unit == "hour" else text[: _FROM_DAY[unit]]
    # In UTC, so the zone tells nothing.
    return text.removesuffix("+00:00").replace("T", " ")


def escaped_name(text: str) -> str:
    """Escape a text for the name of a directory.

    >>> escaped_name("a/b 100%")
    'a%2Fb 100%25'
    """
    return _ODD.sub(lambda found: f"%{ord(found[0]):02X}", text)


def _unit_of(field: PartitionField, kind: str) -> Any:
    """Return the text of a unit in UTC, whatever zone the session has."""
    from pyspark.sql import functions as f

    column = f"`{field.column.replace('`', '``')}`"
    if kind == "date" and field.unit != "hour":
        return f.expr(f"substring(cast({column} AS string), 1, {_FROM_DAY[field.unit]})")
    if kind != "timestamp":
        raise _without_unit(field, kind)
    micros = f"unix_micros({column})"
    within = f"pmod({micros}, {_DAY_MICROS})"
    day = f"cast(date_from_unix_date(cast(({micros} - {within}) div {_DAY_MICROS} AS int)) AS string)"
    if field.unit == "hour":
        return f.expr(f"concat({day}, '-', lpad(cast({within} div {_HOUR_MICROS} AS string), 2, '0'))")
    return f.expr(f"substring({day}, 1, {_FROM_DAY[field.unit]})")


def _unknown(field: PartitionField, columns: Iterable[str]) -> ConfigError:
    message = f"There is no column {field.column}, by which files are to be partitioned"
    return ConfigError(message, hint=f"There are: {', '.join(columns)}.")


def _named_twice(field: PartitionField) -> ConfigError:
    message = f"A column has the name of the directories of {field.unit}({field.column})"
    return ConfigError(message, hint="Choose another unit, or rename the field.")


def _of_no_text(field: PartitionField) -> ConfigError:
    message = f"Files cannot be partitioned by {field.column}, whose values are no texts, numbers or times"
    return ConfigError(message, hint="Choose another column.")


def _without_unit(field: PartitionField, kind: Any) -> ConfigError:
    message = f"{field.column} is {kind}, which has no {field.unit}"
    return ConfigError(message, hint="Choose a column of type timestamp, such as _timestamp.")
