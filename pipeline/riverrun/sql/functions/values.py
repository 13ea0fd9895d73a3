"""Values of functions: their greatest sizes, and keys of sets and dictionaries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Sized

S = TypeVar("S", bound="Sized")
MOST_CHARACTERS = 16 * 1024 * 1024
"""Greatest number of characters, or bytes, of a value that a function makes: no record is larger."""
MOST_ITEMS = 1_000_000
"""Greatest number of items of an array or map that a function makes."""


def within(value: S, most: int) -> S:
    """Return a value that is not too large.

    Raises:
        ValueError: If it has more than `most` characters, bytes or items.
    """
    if len(value) > most:
        check_size(len(value), most)
    return value


def check_size(size: int, most: int = MOST_CHARACTERS) -> None:
    """Make sure that a value does not become too large, before it is made.

    Raises:
        ValueError: If it would have more than `most` characters, bytes or items.
    """
    if size > most:
        message = f"a value with a size of {size}: functions make values of up to {most}"
        raise ValueError(message)


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
