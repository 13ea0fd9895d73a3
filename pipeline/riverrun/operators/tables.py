"""Operators that own a table's store: sources, the conversion back to streams, and suppressions.

`TableStore` applies updates to such a store, and forwards them at once or when the store's cache is flushed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from riverrun.errors import StreamsError
from riverrun.processor.handlers import DropReason
from riverrun.records import Change, ValueAndTimestamp
from riverrun.state.access import KeepsForwarded
from riverrun.state.store_types import PUT_RETURN_CODE_NOT_PUT, PUT_RETURN_CODE_VALID_TO_UNDEFINED
from riverrun.state.stores.versioned import VersionedStateStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from riverrun.processor.operator import OperatorContext
    from riverrun.records import Headers, VersionedRecord
    from riverrun.state.api import CachedUpdate
    from riverrun.state.codec import Folded
    from riverrun.state.folds import Fold
    from riverrun.state.store_types import ChangeBuffer, KeyValueStore
    from riverrun.windows import Windowed


def cache_forwards(
    context: OperatorContext,
    store: Any,
    *,
    send_old_values: bool,
    key_of: Callable[[Any], Any] = lambda key: key,
) -> bool:
    """Connect a store's cache with the children of its operator (`TimestampedCacheFlushListener`).

    Return whether the cache forwards, so that the operator must not. Windowed aggregations forward keys made by `key_of`.
    """

    def forward(updates: Sequence[CachedUpdate]) -> None:
        context.forward_flushed(updates, key_of)

    return bool(store.set_flush_listener(forward, send_old_values=send_old_values))


# Half the time of calling the class.
_made = tuple.__new__


class TableStore:
    """Applies updates to the store of a table and forwards them (`KeyValueStoreWrapper`, `TimestampedTupleForwarder`)."""

    def __init__(self, context: OperatorContext, store: str, *, send_old_values: bool) -> None:
        self._store = context.get_state_store(store)
        self._forward = context.forward
        self._send_old_values = send_old_values
        self.is_versioned = isinstance(self._store, VersionedStateStore)
        # The cache then forwards, and this must not.
        self.holds_back = cache_forwards(context, self._store, send_old_values=send_old_values)
        self.get: Callable[[Any], ValueAndTimestamp[Any] | None] = (
            self._latest if self.is_versioned else self._store.get
        )

    def _latest(self, key: Any) -> ValueAndTimestamp[Any] | None:
        found: VersionedRecord[Any] | None = self._store.get(key)
        return None if found is None else ValueAndTimestamp(found.value, found.timestamp)

    def writing_fold(self, fold: Fold) -> Callable[[Any, Any, int], Folded] | None:
        """Return a function of key, value and timestamp (ms) that aggregates into a store and returns the update to forward.

        None if the store has a cache or is versioned, or if input records are kept.
        """
        if self.holds_back or self.is_versioned:
            return None
        return self._store.writing_fold(fold, tells_old=self._send_old_values)  # type: ignore[no-any-return]

    def replaced(self, key: Any) -> Any:
        """Return the value that an update of the key will replace; None if it is not needed, or a cache will know it."""
        if not self._send_old_values or self.holds_back:
            return None
        # Decoded again: an aggregator may change the result of `get` in place.
        found = self._store.get(key)
        return None if found is None else found.value

    def update(self, key: Any, new: Any, old: Any, timestamp: int, headers: Headers) -> None:
        """Store the new value and forward the change, unless the store's cache does that later."""
        if self.is_versioned:
            self._update_versioned(key, new, old, timestamp, headers)
            return
        self._store.put(key, None if new is None else _made(ValueAndTimestamp, (new, timestamp)))
        if not self.holds_back:
            change = _made(Change, (new, old if self._send_old_values else None, True))
            self._forward(key, change, timestamp, headers)

    def _update_versioned(self, key: Any, new: Any, old: Any, timestamp: int, headers: Headers) -> None:
        valid_to = self._store.put(key, new, timestamp)
        # Values that are too late are neither stored nor forwarded.
        if valid_to != PUT_RETURN_CODE_NOT_PUT:
            is_latest = valid_to == PUT_RETURN_CODE_VALID_TO_UNDEFINED
            change = Change(new, old if self._send_old_values else None, is_latest)
            self._forward(key, change, timestamp, headers)


class ValueGetter(Protocol):
    """Reads a table for the other side of a join: the latest value of a key, with its timestamp.

    Versioned tables can be asked for the value as of a time, ms: `getter(key, as_of)`.
    """

    def __call__(self, key: Any, *as_of: int) -> ValueAndTimestamp[Any] | None:
        """Return the value, or None."""


@runtime_checkable
class KnowsForwarded(Protocol):
    """Opens lookups of a table as its updates have been forwarded, without those that wait in caches."""

    def open_forwarded(self, context: OperatorContext) -> ValueGetter | None:
        """Open the lookup; None if a store does not know such values."""


def open_forwarded(opener: Any, context: OperatorContext) -> ValueGetter | None:
    """Return the lookup of a table as its updates have been forwarded; None if there is none."""
    return opener.open_forwarded(context) if isinstance(opener, KnowsForwarded) else None


@dataclass(frozen=True, slots=True)
class StoreGetter:
    """Reads a table from the store that materialises it."""

    store: str

    def __call__(self, context: OperatorContext) -> ValueGetter:
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
    """

    def __init__(self, store: str | None, *, send_old_values: bool) -> None:
        self.rows_in = store
        self._send_old_values = send_old_values
        self._store: TableStore | None = None
        self._context: OperatorContext

    def init(self, context: OperatorContext) -> None:
        self._context = context
        if self.rows_in is not None:
            self._store = TableStore(context, self.rows_in, send_old_values=self._send_old_values)

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None:
            self._context.drop(DropReason.NULL_KEY)
        elif self._store is None:
            self._context.forward(key, Change(value, None), timestamp, headers)
        else:
            self._store.update(key, value, self._store.replaced(key), timestamp, headers)


class GlobalTableSource:
    """Fills a global store; forwards nothing (`GlobalKTableSource`)."""

    def __init__(self, store: str) -> None:
        self._store_name = store
        self._store: KeyValueStore[Any, ValueAndTimestamp[Any]]
        self._context: OperatorContext

    def init(self, context: OperatorContext) -> None:
        self._context = context
        self._store = context.get_state_store(self._store_name)

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:  # noqa: ARG002 - an operator
        """Apply one update; null keys are dropped, a null value deletes."""
        if key is None:
            self._context.drop(DropReason.NULL_KEY)
            return
        self._store.put(key, None if value is None else ValueAndTimestamp(value, timestamp))


class ToStream:
    """Forwards the new value of each update, tombstones included (`KTableImpl.toStream`)."""

    def for_rows(self) -> ToStream:
        """Return itself: it reads no value that an update replaced."""
        return self

    def init(self, context: OperatorContext) -> None:
        self._forward = context.forward

    def process(self, key: Any, value: Change[Any], timestamp: int, headers: Headers) -> None:
        self._forward(key, value.new, timestamp, headers)


_UNKNOWN_TIME = -1


@dataclass(frozen=True, slots=True)
class SuppressRules:
    """How long updates wait, and how many may wait.

    Args:
        wait_ms: When an update is due: this long after its time, in stream time; with `waits_for_close` this long after the
            end of its window.
        waits_for_close: Whether an update's time is the end of its window, and deletions are dropped. Otherwise the time is the
            record's, and deletions are forwarded.
        emits_early: Whether the oldest updates are forwarded if the buffer is full; otherwise the task fails.
    """

    wait_ms: int
    waits_for_close: bool
    max_records: int
    max_bytes: int
    emits_early: bool


class Suppress:
    """Buffers updates and forwards the last one per key when it is due (`KTableSuppressProcessorSupplier`).

    An update is forwarded with its own timestamp, headers and origin. A key keeps the position of its first update.
    """

    def __init__(self, node: str, store: str, rules: SuppressRules) -> None:
        self._node = node
        self._store_name = store
        self._rules = rules
        self._observed = -1
        self._buffer: ChangeBuffer[Any, Any]
        self._context: OperatorContext

    def init(self, context: OperatorContext) -> None:
        self._context = context
        self._buffer = context.get_state_store(self._store_name)

    def times(self) -> tuple[int, ...]:
        return (self._observed,)

    def resume(self, times: Sequence[int]) -> None:
        """Continue from the committed times, so that due results stay due."""
        self._observed = times[0]

    def process(self, key: Any, value: Change[Any], timestamp: int, headers: Headers) -> None:
        rules, buffer = self._rules, self._buffer
        self._observed = max(self._observed, timestamp)
        buffer.put(key.window.end if rules.waits_for_close else timestamp, key, value, timestamp, headers)
        self._forward_due()
        while self._is_over_capacity():
            if not rules.emits_early:
                raise self._full()
            self._forward_first()

    def advance_stream_time(self, time_ms: int) -> None:
        """Forward the updates that a record of this time would make due."""
        self._observed = max(self._observed, time_ms)
        self._forward_due()

    def _forward_due(self) -> None:
        expiry_ms = self._observed - self._rules.wait_ms
        while (first_time := self._buffer.first_time) is not None and first_time <= expiry_ms:
            self._forward_first()

    def _forward_first(self) -> None:
        key, change, entry = self._buffer.pop()
        # A window that is deleted before it closes is unknown downstream, so its deletion is not forwarded.
        if change.new is not None or not self._rules.waits_for_close:
            context = self._context
            context.acting_as(entry.metadata, context.forward, key, change, entry.timestamp, entry.headers)

    def _is_over_capacity(self) -> bool:
        return len(self._buffer) > self._rules.max_records or self._buffer.size_bytes > self._rules.max_bytes

    def _full(self) -> StreamsError:
        records, size, rules = len(self._buffer), self._buffer.size_bytes, self._rules
        message = (
            f"{self._node} buffer exceeded its max capacity. Currently [{records}/{rules.max_records}] records and "
            f"[{size}/{rules.max_bytes}] bytes."
        )
        return StreamsError(message, hint="Allow more, or let the oldest updates go early: emit_early_when_full().")


def suppressed_getter(
    context: OperatorContext, store: str, open_parent: Callable[[OperatorContext], ValueGetter]
) -> ValueGetter:
    """Return a function that reads a suppressed table: a buffered key's value as downstream knows it, else the parent's."""
    buffer: ChangeBuffer[Any, Any] = context.get_state_store(store)
    parent = open_parent(context)

    def get(key: Any, *as_of: int) -> ValueAndTimestamp[Any] | None:
        is_buffered, prior = buffer.prior_value(key)
        if not is_buffered:
            return parent(key, *as_of)
        return None if prior is None else ValueAndTimestamp(prior, _UNKNOWN_TIME)

    return get
