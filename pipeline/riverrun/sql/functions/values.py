"""Limits of the values of functions, conversions to wider types, and errors of wrong calls."""

from __future__ import annotations

import decimal
from typing import TYPE_CHECKING, Any, TypeVar

from riverrun.errors import TopologyError
from riverrun.sql.types import Array, Decimal, Map, Primitive, SqlType
from riverrun.sql.values import rounded_to

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sized

S = TypeVar("S", bound="Sized")


class UnknownFunction(TopologyError):  # noqa: N818 - a name of SQL's own vocabulary
    """No function has this name.

    Args:
        name: The name in the statement.
        nearest: The name it resembles most; None if there is none.
    """

    def __init__(self, name: str, nearest: str | None) -> None:
        """Keep both names, and offer the nearest in the hint."""
        super().__init__(
            f"Can't find any functions with the name '{name}'", hint=f"Did you mean {nearest}?" if nearest else None
        )
        self.name = name
        self.nearest = nearest


class WrongArguments(TopologyError):  # noqa: N818 - as above
    """The function does not take arguments of these types; the message lists what it takes."""


MOST_CHARACTERS = 16 * 1024 * 1024
"""Greatest number of characters, or bytes, of a value that a function makes: no record is larger."""
MOST_ITEMS = 1_000_000
"""Greatest number of items of an array or map that a function makes."""


def within(value: S, most: int) -> S:
    """Return the value, if it has at most so many characters, bytes or items."""
    if len(value) > most:
        check_size(len(value), most)
    return value


def check_size(size: int, most: int = MOST_CHARACTERS) -> None:
    """Refuse a size before a value of it is made: one call could fill the memory of a worker."""
    if size > most:
        raise ValueError(f"a value with a size of {size}: functions make values of up to {most}")


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


# A product of two DECIMALs of 64 digits has 128.
DIGITS = decimal.Context(prec=128, rounding=decimal.ROUND_HALF_UP)
"""Arithmetic with enough digits for every DECIMAL."""


def conversion(given: SqlType, wanted: SqlType) -> Callable[[Any], Any] | None:
    """Return the function that converts values of one type to another; None if no conversion is needed."""
    if given == wanted:
        return None
    if wanted == Primitive.DOUBLE:
        return lambda value: None if value is None else float(value)
    if isinstance(wanted, Decimal):
        rounded = rounded_to(wanted)
        return lambda value: None if value is None else rounded(value)
    if isinstance(wanted, Array) and isinstance(given, Array):
        return _each(conversion(given.item, wanted.item))
    if isinstance(wanted, Map) and isinstance(given, Map):
        return _each_value(conversion(given.value, wanted.value))
    return None


def _each(convert: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    if convert is None:
        return None
    return lambda items: None if items is None else [convert(item) for item in items]


def _each_value(convert: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    if convert is None:
        return None
    return lambda items: None if items is None else {key: convert(value) for key, value in items.items()}
