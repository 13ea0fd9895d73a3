"""The functions of an aggregation, and its step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Fold(Protocol):
    """The functions of an aggregation, for a store."""

    @property
    def add(self) -> Callable[[Any, Any, Any], Any]:
        """`(key, value, aggregate) -> aggregate`; None deletes."""

    def first(self, key: Any, value: Any) -> Any:
        """Return the aggregate of a key's first value."""


def step(fold: Fold, key: Any, value: Any, timestamp: int, aggregate: Any, time: int) -> tuple[Any, int]:
    """Add a value to an aggregate, None if there is none; return the new one, and the highest time so far, ms."""
    if aggregate is None:
        return fold.first(key, value), timestamp
    return fold.add(key, value, aggregate), max(timestamp, time)
