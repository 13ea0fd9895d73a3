"""A store of lists: records of left and outer joins that may still find a partner (`ListValueStore`)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING, Any

from riverrun.serde.join_sides import decode_list, encode_list
from riverrun.state.codec import PlainCodec
from riverrun.state.keys import stored_keys
from riverrun.state.stores.core import StoreCore
from riverrun.state.values import stored_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from riverrun.state.api import (
        ChangelogBatch,
        Puts,
        StateBackend,
        StateStore,
        StoreBuilder,
        UpdateContext,
    )


class ListValueStateStore:
    """A store of one task: keys to the values added to them, in order of serialized keys. It has no cache.

    Most deletions are at the front. The store remembers a key below which there are no entries, so that a scan does not step
    over all deleted ones.
    """

    def __init__(self, builder: StoreBuilder, backend: StateBackend, context: UpdateContext) -> None:
        """Open the store as the backend holds it."""
        self.name = builder.name
        self.expired_puts = 0  # this store expires nothing
        self._keys, self._values = stored_keys(builder), stored_values(builder)
        self._table = backend.table(builder.name)
        self._core = core = StoreCore(PlainCodec(self._values), self._table.get, context)
        self.set_flush_listener, self.flush = core.set_flush_listener, core.flush
        self.held_back_bytes, self.changelog = core.held_back_bytes, core.changelog
        self._live: list[bytes] = []  # keys of pending values, sorted
        self._floor: bytes | None = b""  # no entry is below; None: no entry at all

    def add(self, key: Any, value: Any, timestamp: int) -> None:
        """Append a value to the key's list. `timestamp` is the time of the change for the changelog, ms."""
        store_key = self._keys.written(key)
        known = self._core.stored(store_key)
        if self._core.pending.get(store_key) is None:
            insort(self._live, store_key)
        entries = [*(decode_list(known) if known is not None else ()), self._values.written(key.key, value)]
        self._core.write(store_key, encode_list(entries), timestamp)
        self._floor = store_key if self._floor is None else min(self._floor, store_key)

    def delete(self, key: Any, timestamp: int) -> None:
        """Delete the key's list, if it has one. `timestamp` is the time of the change for the changelog, ms."""
        store_key = self._keys.written(key)
        if self._floor is None or store_key < self._floor or self._core.stored(store_key) is None:
            return
        if self._core.pending.get(store_key) is not None:
            del self._live[bisect_left(self._live, store_key)]
        if self._table.get(store_key) is None:  # written and deleted within one commit: no reader knows it
            del self._core.pending[store_key], self._core.times[store_key]
        else:
            self._core.write(store_key, None, timestamp)

    def all(self) -> Iterator[tuple[Any, Any]]:
        """Yield `(key, value)` of all values of all lists. Entries already yielded may be deleted meanwhile."""
        first = True
        for store_key, data in self._entries():
            if first:
                self._floor, first = store_key, False
            key = self._keys.read(store_key)
            for entry in decode_list(data):
                yield key, self._values.read(store_key, entry)
        if first:
            self._floor = None

    def pending(self) -> Puts:
        """Return the pending writes in the backend's form."""
        return {self.name: self._core.pending} if self._core.pending else {}

    def committed(self) -> None:
        """Forget the pending writes, which are in the backend."""
        self._core.committed()
        self._live = []

    def restore(self, batch: ChangelogBatch) -> Puts:
        """Convert changelog records to the backend's form."""
        self._floor = b""
        return {self.name: dict(self._core.restored(batch))}

    def _entries(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield stored and pending entries in order of keys, from the floor on."""
        if self._floor is None:
            return
        at: bytes | None = self._next_live(self._floor, bisect_left)
        for key, data in self._table.scan(self._floor, None):
            while at is not None and at <= key:
                live = self._core.pending.get(at)
                if live is not None:
                    yield at, live
                at = self._next_live(at, bisect_right)
            if key not in self._core.pending:
                yield key, data
        while at is not None:
            live = self._core.pending.get(at)
            if live is not None:
                yield at, live
            at = self._next_live(at, bisect_right)

    def _next_live(self, key: bytes, find: Callable[[list[bytes], bytes], int]) -> bytes | None:
        index = find(self._live, key)
        return self._live[index] if index < len(self._live) else None


if TYPE_CHECKING:
    _store: type[StateStore] = ListValueStateStore
