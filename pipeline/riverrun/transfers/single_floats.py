"""Numbers of 32 bits: MySQL and MariaDB send six digits, and up to nine identify a value; PostgreSQL compares other ones."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_HELD = "riverrun_held_"
"""Begins the names of columns that have the exact value of another one."""
_TYPES: Mapping[str, int] = {"mysql": 4, "mariadb": 4, "postgresql": 700}
"""The numbers that drivers have for the type, where they return another number than the database compares."""
_FEWEST, _MOST = 6, 9


def singles_in(connection: sa.Connection, rows: Any) -> Sequence[str]:
    """Return the columns whose numbers of 32 bits the driver returns rounded."""
    if (type_ := _TYPES.get(connection.dialect.name)) is None:
        return ()
    found: Any = connection.execute(sa.select(sa.text("*")).select_from(rows).limit(0))
    return [column[0] for column in found.cursor.description if column[1] == type_]


def with_singles(names: Sequence[str]) -> sa.TextClause:
    """Return what to select of a table of MySQL or MariaDB: all columns, and those of 32 bits as doubles as well."""
    quoted = ((_quoted(name), _quoted(f"{_HELD}{name}")) for name in names)
    # Some servers cast to doubles only by computing.
    exact = "".join(f", {name} + 0e0 AS {held}" for name, held in quoted)
    return sa.text(f"*{exact}".replace(":", "\\:"))


def as_held(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of a row with the shortest numbers that identify what the server holds.

    >>> as_held({"x": 1.23457, "riverrun_held_x": 1.2345677614212036})
    {'x': 1.2345678}
    """
    held = [name for name in fields if name.startswith(_HELD)]
    for name in held:
        value = fields.pop(name)
        fields[name.removeprefix(_HELD)] = None if value is None else shortest(value)
    return fields


def shortest(value: float) -> float:
    """Return the number with the fewest digits that has the same 32 bits.

    >>> shortest(0.10000000149011612), shortest(16777217.0)
    (0.1, 16777216.0)
    """
    bits = struct.pack("f", value)
    (held,) = struct.unpack("f", bits)
    texts = (f"{held:.{digits}g}" for digits in range(_FEWEST, _MOST + 1))
    return next((float(text) for text in texts if struct.pack("f", float(text)) == bits), held)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
