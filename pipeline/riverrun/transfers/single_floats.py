"""Numbers of 32 bits as MySQL and MariaDB hold them: their servers send six digits, and up to nine identify a value."""

from __future__ import annotations

import struct
from typing import Any

import sqlalchemy as sa

_HELD = "riverrun_held_"
"""Begins the names of columns that have the exact value of another one."""
_FLOAT = 4
"""The number that drivers of MySQL and MariaDB have for the type FLOAT."""
_FEWEST, _MOST = 6, 9


def with_singles(connection: sa.Connection, rows: Any) -> sa.TextClause:
    """Return what to select of rows: all columns, and those of the type FLOAT as doubles as well."""
    found: Any = connection.execute(sa.select(sa.text("*")).select_from(rows).limit(0))
    names = [column[0] for column in found.cursor.description if column[1] == _FLOAT]
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
    texts = (f"{value:.{digits}g}" for digits in range(_FEWEST, _MOST + 1))
    return next((float(text) for text in texts if struct.pack("f", float(text)) == bits), value)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
