"""Tables that workers keep in stores, and the way their rows are made from store entries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class StoredTable:
    """A table in a store.

    Args:
        store: Name of the store.
        row_of: Makes the values of a row from a key of the store and its value; None if the row is not in the table. Keys of
            windows are `Windowed`.
    """

    store: str
    row_of: Callable[[Any, Any], Any]


def chained(*steps: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a function of key and value that chains steps: each gets the value of the one before, until a value is None."""

    def made(key: Any, value: Any) -> Any:
        for step in steps:
            if value is None:
                return None
            value = step(key, value)
        return value

    return made
