"""A table's store, together with the children of the operator that owns it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from riverrun.operators.forwarding import cache_forwards
from riverrun.records import Change, ValueAndTimestamp
from riverrun.state.store_types import PUT_RETURN_CODE_NOT_PUT, PUT_RETURN_CODE_VALID_TO_UNDEFINED
from riverrun.state.stores.versioned import VersionedStateStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.processor.operator import OperatorContext
    from riverrun.records import Headers, VersionedRecord
    from riverrun.state.codec import Folded
    from riverrun.state.folds import Fold


_made = tuple.__new__
"""Makes a named tuple in half the time that a call of its class takes."""


class TableStore:
    """Applies updates to the store of a table and forwards them (`KeyValueStoreWrapper`, `TimestampedTupleForwarder`).

    Args:
        context: Context of the operator that owns the table.
        store: Name of the store.
        send_old_values: Whether downstream needs the value that an update replaced.
    """

    def __init__(self, context: OperatorContext, store: str, *, send_old_values: bool) -> None:
        """Open the store and listen to its cache, if it has one."""
        self._store = context.get_state_store(store)
        self._forward = context.forward
        self._send_old_values = send_old_values
        self.is_versioned = isinstance(self._store, VersionedStateStore)
        """Whether the store keeps the history of each key."""
        self.holds_back = cache_forwards(context, self._store, send_old_values=send_old_values)
        """Whether the store's cache forwards."""
        self.get: Callable[[Any], ValueAndTimestamp[Any] | None] = (
            self._latest if self.is_versioned else self._store.get
        )
        """Returns the current value of a key."""

    def _latest(self, key: Any) -> ValueAndTimestamp[Any] | None:
        found: VersionedRecord[Any] | None = self._store.get(key)
        return None if found is None else ValueAndTimestamp(found.value, found.timestamp)

    def writing_fold(self, fold: Fold) -> Callable[[Any, Any, int], Folded] | None:
        """Return a function of key, value and timestamp (ms) that aggregates into a store and returns the update to forward.

        Returns:
            None if the store has a cache or is versioned, or if input records are kept.
        """
        if self.holds_back or self.is_versioned:
            return None
        return self._store.writing_fold(fold, tells_old=self._send_old_values)  # type: ignore[no-any-return]

    def replaced(self, key: Any) -> Any:
        """Return the value that an update of the key will replace; None if nobody needs it, or a cache will know it.

        It is decoded again, because an aggregator may change the result of `get` in place.
        """
        if not self._send_old_values or self.holds_back:
            return None
        found = self._store.get(key)
        return None if found is None else found.value

    def update(self, key: Any, new: Any, old: Any, timestamp: int, headers: Headers) -> None:
        """Store the new value and forward the change, unless the store's cache does that later.

        A versioned store neither stores nor forwards values that are too late.
        """
        if self.is_versioned:
            self._update_versioned(key, new, old, timestamp, headers)
            return
        self._store.put(key, None if new is None else _made(ValueAndTimestamp, (new, timestamp)))
        if not self.holds_back:
            change = _made(Change, (new, old if self._send_old_values else None, True))
            self._forward(key, change, timestamp, headers)

    def _update_versioned(self, key: Any, new: Any, old: Any, timestamp: int, headers: Headers) -> None:
        valid_to = self._store.put(key, new, timestamp)
        if valid_to != PUT_RETURN_CODE_NOT_PUT:
            is_latest = valid_to == PUT_RETURN_CODE_VALID_TO_UNDEFINED
            change = Change(new, old if self._send_old_values else None, is_latest)
            self._forward(key, change, timestamp, headers)
