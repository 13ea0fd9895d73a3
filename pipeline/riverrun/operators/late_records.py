"""Late records as a stream: those that a windowed aggregation refuses, because their windows have closed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.processor.operator import OperatorContext
    from riverrun.records import Headers


class Refused:
    """True if an aggregation has refused the current record, wholly or for one of its windows."""

    __slots__ = ("is_late",)

    def __init__(self) -> None:
        self.is_late = False


def refused_by(context: OperatorContext, store: str) -> Refused:
    """Return what the aggregation into a store notes about the current record; it is one object in a task."""
    return context.shared(f"refused by {store}", Refused)


class LateRecords:
    """Forwards records that the aggregation before it has refused, as they came.

    It is a child of the aggregation's parent, after the aggregation, so it receives each record right after that. A record
    that belongs to several windows, one of which was closed, is forwarded once.
    """

    def __init__(self, store: str) -> None:
        self._store = store
        self._refused: Refused
        self._forward: Callable[[Any, Any, int, Headers], None]

    def init(self, context: OperatorContext) -> None:
        self._refused = refused_by(context, self._store)
        self._forward = context.forward

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if self._refused.is_late:
            self._refused.is_late = False
            self._forward(key, value, timestamp, headers)
