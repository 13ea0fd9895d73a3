"""Conversions of values to wider types."""

from __future__ import annotations

import decimal
from typing import TYPE_CHECKING, Any

from riverrun.sql.types import Array, Decimal, Map, Primitive, SqlType
from riverrun.sql.values import rounded_to

if TYPE_CHECKING:
    from collections.abc import Callable

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
