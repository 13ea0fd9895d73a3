"""By what the files of an export are apart: columns, and the year, month, day or hour of a time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

_UNITS = ("year", "month", "day", "hour")
_OF_TIME = re.compile(rf"({'|'.join(_UNITS)})\((.+)\)", re.DOTALL)
_FROM_DAY = {"year": 4, "month": 7, "day": 10}
"""Number of characters that a unit takes of a day, as ISO 8601 writes it."""
_DAY_MICROS, _HOUR_MICROS = 86_400_000_000, 3_600_000_000


@dataclass(frozen=True, slots=True)
class PartitionField:
    """One level of directories.

    Args:
        column: The column.
        unit: The unit of its times that files are apart by; empty for its values.
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
            message = (
                f"Files cannot be apart by {field.column}: readers skip directories that begin with {field.name[0]}"
            )
            raise ConfigError(message, hint="Choose another column, or a unit of a time: day(_timestamp).")
        if names.count(field.name.lower()) > 1:
            raise ConfigError(f"Two levels of directories have the name {field.name}", hint="Leave one of them out.")
    return found


def with_directories(frame: Any, fields: Sequence[PartitionField]) -> Any:
    """Return a frame of Spark with the columns that name directories."""
    kinds = dict(frame.dtypes)
    for field in fields:
        if field.column not in kinds:
            message = f"There is no column {field.column}, by which files are to be apart"
            raise ConfigError(message, hint=f"There are: {', '.join(kinds)}.")
        if field.unit:
            if field.name.lower() in map(str.lower, kinds):
                message = f"A column has the name of the directories of {field.unit}({field.column})"
                raise ConfigError(message, hint="Choose another unit, or rename the field.")
            frame = frame.withColumn(field.name, _unit_of(field, kinds[field.column]))
        elif kinds[field.column] == "binary":
            message = f"Files cannot be apart by {field.column}, which is bytes"
            raise ConfigError(message, hint="Choose a column of texts, numbers or times.")
    return frame


def _unit_of(field: PartitionField, kind: str) -> Any:
    """Return the text of a unit in UTC, whatever zone the session has."""
    from pyspark.sql import functions as f

    column = f"`{field.column.replace('`', '``')}`"
    if kind == "date" and field.unit != "hour":
        return f.expr(f"substring(cast({column} AS string), 1, {_FROM_DAY[field.unit]})")
    if kind != "timestamp":
        message = f"{field.column} is {kind}, which has no {field.unit}"
        raise ConfigError(message, hint="Choose a column of type timestamp, such as _timestamp.")
    micros = f"unix_micros({column})"
    within = f"pmod({micros}, {_DAY_MICROS})"
    day = f"cast(date_from_unix_date(cast(({micros} - {within}) div {_DAY_MICROS} AS int)) AS string)"
    if field.unit == "hour":
        return f.expr(f"concat({day}, '-', lpad(cast({within} div {_HOUR_MICROS} AS string), 2, '0'))")
    return f.expr(f"substring({day}, 1, {_FROM_DAY[field.unit]})")
