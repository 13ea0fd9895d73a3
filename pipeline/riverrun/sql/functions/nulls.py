"""Functions of NULLs."""

from __future__ import annotations

from typing import Any

from riverrun.sql.functions.registry import scalar

THEME = "NULLs"


@scalar("COALESCE(first T, [more T...]) -> T", theme=THEME, nulls=True)
def coalesce(*values: Any) -> Any:
    """The first value that is not NULL."""
    return next((value for value in values if value is not None), None)


@scalar("IFNULL(value T, instead T) -> T", theme=THEME, nulls=True)
def if_null(value: Any, instead: Any) -> Any:
    """The value, or another one if it is NULL."""
    return instead if value is None else value


@scalar("NULLIF(value T, other T) -> T", theme=THEME, nulls=True)
def null_if(value: Any, other: Any) -> Any:
    """NULL if both are equal, the first value otherwise."""
    return None if value == other else value


@scalar("AS_VALUE(key T) -> T", theme=THEME, nulls=True)
def as_value(key: Any) -> Any:
    """A copy of a column of the key, for the value."""
    return key
