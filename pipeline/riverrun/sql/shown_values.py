"""Formats values of columns for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from riverrun.sql.types import Primitive
from riverrun.sql.values import date_text, time_text, timestamp_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from riverrun.sql.types import SqlType

_TEXTS: Mapping[SqlType, Callable[[int], str]] = {
    Primitive.DATE: date_text,
    Primitive.TIME: time_text,
    Primitive.TIMESTAMP: timestamp_text,
}


def shown(value: Any, type_: SqlType) -> Any:
    """Return a value as JSON shows it, with times as texts.

    >>> shown(0, Primitive.DATE)
    '1970-01-01'
    """
    text = _TEXTS.get(type_)
    return value if value is None or text is None else text(value)
