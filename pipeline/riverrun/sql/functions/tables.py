"""Functions that make rows."""

from __future__ import annotations

from itertools import product
from typing import Any

from riverrun.sql.functions.registry import table_function
from riverrun.sql.functions.values import MOST_ITEMS, check_size


@table_function("EXPLODE(items ARRAY<T>) -> T")
def explode(items: list[Any] | None) -> list[Any]:
    """A row for each item of an array; none if it is NULL."""
    return list(items or ())


@table_function("CUBE_EXPLODE(columns ARRAY<T>) -> ARRAY<T>")
def cube_explode(columns: list[Any] | None) -> list[list[Any]]:
    """A row for each combination of columns, with NULL in place of those that are left out."""
    known = sum(column is not None for column in columns or ())
    check_size(len(columns or ()) << min(known, 64), MOST_ITEMS)
    choices = [(None,) if column is None else (None, column) for column in columns or ()]
    return [] if columns is None else [list(chosen) for chosen in product(*choices)]
