"""Types of SQL's columns and expressions, with the Python types of their values.

A NULL is None. Times are integers, as in formats and Kafka:

| Type | Python value |
|---|---|
| BOOLEAN | bool |
| INTEGER, BIGINT | int |
| DOUBLE | float |
| DECIMAL(precision, scale) | decimal.Decimal of exactly that scale |
| STRING | str |
| BYTES | bytes |
| DATE | int, days since 1970-01-01 |
| TIME | int, milliseconds since midnight |
| TIMESTAMP | int, milliseconds since 1970-01-01 UTC |
| ARRAY | list |
| MAP | dict |
| STRUCT | dict of all fields by name, in their order |
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Primitive(StrEnum):
    """Types without parameters."""

    BOOLEAN = "BOOLEAN"
    INTEGER = "INTEGER"
    BIGINT = "BIGINT"
    DOUBLE = "DOUBLE"
    STRING = "STRING"
    BYTES = "BYTES"
    TIME = "TIME"
    DATE = "DATE"
    TIMESTAMP = "TIMESTAMP"


MOST_DIGITS = 64
"""Greatest precision of a DECIMAL."""


@dataclass(frozen=True, slots=True)
class Decimal:
    """Exact numbers: `precision` digits in all (1 to 64), `scale` of them after the decimal point.

    >>> print(Decimal(4, 2))
    DECIMAL(4, 2)
    """

    precision: int
    scale: int

    def __str__(self) -> str:
        return f"DECIMAL({self.precision}, {self.scale})"


@dataclass(frozen=True, slots=True)
class Array:
    """Lists of values of one type.

    >>> print(Array(Primitive.STRING))
    ARRAY<STRING>
    """

    item: SqlType

    def __str__(self) -> str:
        return f"ARRAY<{self.item}>"


@dataclass(frozen=True, slots=True)
class Map:
    """Maps with one type of keys and one of values.

    >>> print(Map(Primitive.STRING, Primitive.BIGINT))
    MAP<STRING, BIGINT>
    """

    key: SqlType
    value: SqlType

    def __str__(self) -> str:
        return f"MAP<{self.key}, {self.value}>"


@dataclass(frozen=True, slots=True)
class Struct:
    """Named fields, in order.

    >>> print(Struct((("ID", Primitive.BIGINT), ("TAGS", Array(Primitive.STRING)))))
    STRUCT<ID BIGINT, TAGS ARRAY<STRING>>
    """

    fields: tuple[tuple[str, SqlType], ...]

    def __str__(self) -> str:
        return "STRUCT<" + ", ".join(f"{name} {type_}" for name, type_ in self.fields) + ">"

    def field(self, name: str) -> SqlType | None:
        """Return the type of a field; None if there is no such field."""
        return dict(self.fields).get(name)


SqlType = Primitive | Decimal | Array | Map | Struct

Columns = tuple[tuple[str, SqlType], ...]
"""Names and types, in order."""


HEADERS = Array(Struct((("KEY", Primitive.STRING), ("VALUE", Primitive.BYTES))))
"""Type of a HEADERS column, which holds all headers."""


def columns_text(columns: Columns) -> str:
    """Return names and types as written in statements.

    >>> columns_text((("ID", Primitive.BIGINT), ("TAGS", Array(Primitive.STRING))))
    'ID BIGINT, TAGS ARRAY<STRING>'
    """
    return ", ".join(f"{name} {type_}" for name, type_ in columns)
