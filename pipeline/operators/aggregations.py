"""Aggregations of a stream by key, with and without windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.operators.forwarding import CachedForward
from pipeline.records import Change, ValueAndTimestamp
from pipeline.windows import TimeWindows, Window, Windowed

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.processor.operator import OperatorContext
    from pipeline.records import Headers
    from pipeline.state.api import KeyValueStore, WindowStore


@dataclass(frozen=True, slots=True)
class Aggregator:
    """What an aggregation does with a value.

    Args:
        initializer: Gives the aggregate of nothing; None if the first value is the aggregate (`reduce`).
        add: `(key, value, aggregate) -> aggregate`; None deletes.
    """

    initializer: Callable[[], Any] | None
    add: Callable[[Any, Any, Any], Any]

    def first(self, key: Any, value: Any) -> Any:
        """The aggregate of the first value."""
        return self.first_update(key, value)[1]

    def first_update(self, key: Any, value: Any) -> tuple[Any, Any]:
        """The aggregate before and after the first value."""
        if self.initializer is None:
            return None, value
        old = self.initializer()
        return old, self.add(key, value, old)


class StreamAggregate:
    """Aggregates per key (`KStreamAggregate`, `KStreamReduce`). Null keys and null values are dropped.

    The result's timestamp is the highest of the key so far. Without a cache, what a key's first update replaced is the
    initial aggregate, not None.
    """

    def __init__(self, store: str, aggregator: Aggregator, *, send_old_values: bool) -> None:
        """Nothing is opened before `init`."""
        self._store_name = store
        self._aggregator = aggregator
        self._send_old_values = send_old_values
        self._store: KeyValueStore[Any, ValueAndTimestamp[Any]]
        self._context: OperatorContext

    def init(self, context: OperatorContext) -> None:
        """Open the store and bind the children."""
        self._context = context
        self._store = context.get_state_store(self._store_name)
        self._updates = CachedForward.of(context, self._store, send_old_values=self._send_old_values)

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        """Aggregate one value."""
        if key is None or value is None:
            self._context.drop("null-key-or-value")
            return
        stored = self._store.get(key)
        if stored is None:
            old, new = self._aggregator.first_update(key, value)
            new_timestamp = timestamp
        else:
            old, new_timestamp = stored.value, max(timestamp, stored.timestamp)
            new = self._aggregator.add(key, value, old)
        self._store.put(key, None if new is None else ValueAndTimestamp(new, new_timestamp))
        if not self._updates.holds_back:
            change = Change(new, old if self._send_old_values else None)
            self._context.forward(key, change, new_timestamp, headers)

    def close(self) -> None:
        """The task closes the store."""


class StreamWindowAggregate:
    """Aggregates per key and window (`KStreamWindowAggregate`).

    Null keys are dropped; a null value reaches the aggregator. A window is closed when its end is not above the highest
    event time this operator has seen, less grace; a record is dropped, and counted, per closed window.
    """

    def __init__(self, store: str, windows: TimeWindows, aggregator: Aggregator, *, send_old_values: bool) -> None:
        """Nothing is opened before `init`."""
        self._store_name = store
        self._windows = windows
        self._aggregator = aggregator
        self._send_old_values = send_old_values
        self._observed = -1
        self._store: WindowStore[Any, ValueAndTimestamp[Any]]
        self._context: OperatorContext

    def init(self, context: OperatorContext) -> None:
        """Open the store and bind the children."""
        self._context = context
        self._store = context.get_state_store(self._store_name)
        self._updates = CachedForward.of(
            context, self._store, send_old_values=self._send_old_values, key_of=self._windowed
        )

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        """Aggregate one value into each of its open windows."""
        if key is None:
            self._context.drop("null-key")
            return
        self._observed = max(self._observed, timestamp)
        first_open_start = self._observed - self._windows.grace_ms - self._windows.size_ms + 1
        for start in self._windows.starts_for(timestamp):
            if start >= first_open_start:
                self._update(key, value, timestamp, headers, start)
            else:
                self._context.drop("late")

    def _update(self, key: Any, value: Any, timestamp: int, headers: Headers, start: int) -> None:
        stored = self._store.fetch(key, start)
        if stored is None:
            old, new = self._aggregator.first_update(key, value)
            new_timestamp = timestamp
        else:
            old, new_timestamp = stored.value, max(timestamp, stored.timestamp)
            new = self._aggregator.add(key, value, old)
        self._store.put(key, None if new is None else ValueAndTimestamp(new, new_timestamp), start)
        if not self._updates.holds_back:
            change = Change(new, old if self._send_old_values else None)
            self._context.forward(self._windowed((key, start)), change, new_timestamp, headers)

    def _windowed(self, key: tuple[Any, int]) -> Windowed[Any]:
        return Windowed(key[0], Window(key[1], key[1] + self._windows.size_ms))

    def close(self) -> None:
        """The task closes the store."""
