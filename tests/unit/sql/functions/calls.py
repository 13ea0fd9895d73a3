"""Calls of functions in tests."""

from __future__ import annotations

from typing import Any

from riverrun.sql.functions import find_aggregate, find_scalar
from riverrun.sql.types import Array, Decimal, Map, Primitive, SqlType

TYPES = {
    "BOOLEAN": Primitive.BOOLEAN,
    "INT": Primitive.INTEGER,
    "BIGINT": Primitive.BIGINT,
    "DOUBLE": Primitive.DOUBLE,
    "STRING": Primitive.STRING,
    "BYTES": Primitive.BYTES,
    "DATE": Primitive.DATE,
    "TIME": Primitive.TIME,
    "TIMESTAMP": Primitive.TIMESTAMP,
    "NULL": None,
    "DECIMAL": Decimal(6, 2),
    "STRINGS": Array(Primitive.STRING),
    "INTS": Array(Primitive.INTEGER),
    "BOOLEANS": Array(Primitive.BOOLEAN),
    "DOUBLES": Array(Primitive.DOUBLE),
    "MAP": Map(Primitive.STRING, Primitive.INTEGER),
    "STRINGMAP": Map(Primitive.STRING, Primitive.STRING),
}


def types(names: str) -> list[SqlType | None]:
    return [TYPES[name] for name in names.split()]


def call(name: str, argument_types: str, *values: Any) -> Any:
    return find_scalar(name, types(argument_types)).apply(*values)


def folded(name: str, argument_types: str, rows: list[Any], *literals: Any) -> Any:
    """The result of an aggregate; a row is a value, or a tuple of values."""
    given = types(argument_types)
    constants = {len(given) - len(literals) + at: literal for at, literal in enumerate(literals)}
    aggregate = find_aggregate(name, given, constants)
    state = aggregate.initial()
    for row in rows:
        state = aggregate.add(state, *(row if isinstance(row, tuple) else (row,)), *literals)
    return aggregate.result(state)
