"""Converts values to keys of sets and dictionaries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


def key_of(value: Any) -> Any:
    """Return a hashable object that is equal for equal values."""
    if isinstance(value, list):
        return ("array", *map(key_of, value))
    if isinstance(value, dict):
        return ("map", frozenset((name, key_of(each)) for name, each in value.items()))
    return value


def distinct(values: Iterable[Any]) -> list[Any]:
    """Return each value once, in order of first appearance."""
    found: dict[Any, Any] = {}
    for value in values:
        found.setdefault(key_of(value), value)
    return list(found.values())
