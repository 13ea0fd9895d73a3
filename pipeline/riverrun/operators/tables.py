"""Operators at the borders of tables: sources that materialise them, and the conversion back to streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from riverrun.operators.table_store import TableStore
from riverrun.processor.drops import DropReason
from riverrun.records import Change, ValueAndTimestamp
from riverrun.state.access import KeepsForwarded

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.processor.fused import Site
    from riverrun.processor.operator import OperatorContext
    from riverrun.records import Headers
    from riverrun.state.store_types import KeyValueStore
    from riverrun.windows import Windowed


class ValueGetter(Protocol):
    """Reads a table for the other side of a join: the latest value of a key, with its timestamp.

    Versioned tables can be asked for the value as of a time, ms: `getter(key, as_of)`.
    """

    def __call__(self, key: Any, *as_of: int) -> ValueAndTimestamp[Any] | None:
        """Return the value, or None."""
        ...


@runtime_checkable
class KnowsForwarded(Protocol):
    """Opens lookups of a table as its updates have been forwarded, without those that wait in caches."""

    def open_forwarded(self, context: OperatorContext) -> ValueGetter | None:
        """Open the lookup; None if a store does not know such values."""
        ...


def open_forwarded(opener: Any, context: OperatorContext) -> ValueGetter | None:
    """Return the lookup of a table as its updates have been forwarded; None if there is none."""
    return opener.open_forwarded(context) if isinstance(opener, KnowsForwarded) else None


@dataclass(frozen=True, slots=True)
class StoreGetter:
    """Reads a table from the store that materialises it."""

    store: str

    def __call__(self, context: OperatorContext) -> ValueGetter:
        """Open the lookup."""
        getter: ValueGetter = context.get_state_store(self.store).get
        return getter

    def open_forwarded(self, context: OperatorContext) -> ValueGetter | None:
        """Open the lookup of what the store's flushes have forwarded."""
        store = context.get_state_store(self.store)
        return store.get_forwarded if isinstance(store, KeepsForwarded) else None


def window_store_getter(context: OperatorContext, store: str) -> ValueGetter:
    """Return a function that reads a windowed table by `Windowed` keys from the store that materialises it."""
    fetch = context.get_state_store(store).fetch

    def get(key: Windowed[Any], *_as_of: int) -> ValueAndTimestamp[Any] | None:
        found: ValueAndTimestamp[Any] | None = fetch(key.key, key.window.start)
        return found

    return get


class TableSource:
    """Turns records into updates of a table (`KTableSource`).

    Null keys are dropped; a null value deletes. Out-of-order updates are applied, as in Kafka Streams; a versioned store
    recognises them.

    Args:
        store: Name of the store that materialises the table, or None if nobody needs one.
        send_old_values: Whether downstream needs the value that an update replaced.
    """

    def __init__(self, store: str | None, *, send_old_values: bool) -> None:
        self._store_name = store
        self._send_old_values = send_old_values
        self._store: TableStore | None = None
        self._context: OperatorContext

    def init(self, context: OperatorContext) -> None:
        """Open the store and bind the children."""
        self._context = context
        if self._store_name is not None:
            self._store = TableStore(context, self._store_name, send_old_values=self._send_old_values)

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        """Apply one update."""
        if key is None:
            self._context.drop(DropReason.NULL_KEY)
        elif self._store is None:
            self._context.forward(key, Change(value, None), timestamp, headers)
        else:
            self._store.update(key, value, self._store.replaced(key), timestamp, headers)

    def close(self) -> None:
        """Leave the store open: the task closes it."""


class GlobalTableSource:
    """Fills a global store; forwards nothing (`GlobalKTableSource`)."""

    def __init__(self, store: str) -> None:
        self._store_name = store
        self._store: KeyValueStore[Any, ValueAndTimestamp[Any]]
        self._context: OperatorContext

    def init(self, context: OperatorContext) -> None:
        """Open the store."""
        self._context = context
        self._store = context.get_state_store(self._store_name)

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:  # noqa: ARG002 - an operator
        """Apply one update; null keys are dropped, a null value deletes."""
        if key is None:
            self._context.drop(DropReason.NULL_KEY)
            return
        self._store.put(key, None if value is None else ValueAndTimestamp(value, timestamp))

    def close(self) -> None:
        """Leave the store open: the task closes it."""


@dataclass(slots=True)
class ToStream:
    """Forwards the new value of each update, tombstones included (`KTableImpl.toStream`)."""

    _forward: Callable[[Any, Any, int, Headers], None] = None  # type: ignore[assignment]

    def init(self, context: OperatorContext) -> None:
        """Bind the children."""
        self._forward = context.forward

    def process(self, key: Any, value: Change[Any], timestamp: int, headers: Headers) -> None:
        """Forward the new value."""
        self._forward(key, value.new, timestamp, headers)

    def lines(self, at: Site) -> str:
        """Return the lines of `process`."""
        return f"{at.own('value')} = {at.new}\n{at.below(value=at.own('value'))}"

    def close(self) -> None:
        """Nothing to release."""
