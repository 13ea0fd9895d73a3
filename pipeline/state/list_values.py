"""A store of lists: what left and outer joins keep until it is certain that no partner comes (`ListValueStore`)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING, Any

from pipeline.serde.join_sides import decode_list, encode_list
from pipeline.state.api import ChangelogRecord
from pipeline.state.keys import stored_keys
from pipeline.state.pending import written_bytes
from pipeline.state.values import stored_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pipeline.state.api import (
        ChangelogBatch,
        FlushListener,
        Puts,
        StateBackend,
        StateStore,
        StoreBuilder,
        UpdateContext,
    )


class ListValueStateStore:
    """A store of one task: keys to the values added to them, in order of serialized keys. No cache.

    Entries go from the front, mostly: the store remembers a key below which there is nothing, so that a scan does not step over
    everything ever deleted.
    """

    def __init__(self, builder: StoreBuilder, backend: StateBackend, context: UpdateContext) -> None:  # noqa: ARG002 - as all stores
        """Open the store as the backend holds it."""
        self.name = builder.name
        self.expired_puts = 0  # it forgets nothing
        self._keys, self._values = stored_keys(builder), stored_values(builder)
        self._table = backend.table(builder.name)
        self._pending: dict[bytes, bytes | None] = {}
        self._times: dict[bytes, int] = {}
        self._live: list[bytes] = []  # keys of pending values, sorted
        self._floor: bytes | None = b""  # no entry is below; None: no entry at all

    def add(self, key: Any, value: Any, timestamp: int) -> None:
        """Append a value to the key's list. `timestamp` (ms) is that of the change, for the changelog."""
        store_key = self._keys.written(key)
        known = self._get(store_key)
        if self._pending.get(store_key) is None:
            insort(self._live, store_key)
        entries = [*(decode_list(known) if known is not None else ()), self._values.written(key.key, value)]
        self._write(store_key, encode_list(entries), timestamp)
        self._floor = store_key if self._floor is None else min(self._floor, store_key)

    def delete(self, key: Any, timestamp: int) -> None:
        """Delete the key's list, if it has one. `timestamp` (ms) is that of the change, for the changelog."""
        store_key = self._keys.written(key)
        if self._floor is None or store_key < self._floor or self._get(store_key) is None:
            return
        if self._pending.get(store_key) is not None:
            del self._live[bisect_left(self._live, store_key)]
        if self._table.get(store_key) is None:  # came and went within one commit: nobody has heard of it
            del self._pending[store_key], self._times[store_key]
        else:
            self._write(store_key, None, timestamp)

    def all(self) -> Iterator[tuple[Any, Any]]:
        """`(key, value)` of every value of every list. What has been passed may be deleted on the way."""
        first = True
        for store_key, data in self._entries():
            if first:
                self._floor, first = store_key, False
            key = self._keys.read(store_key)
            for entry in decode_list(data):
                yield key, self._values.read(store_key, entry)
        if first:
            self._floor = None

    def set_flush_listener(self, listener: FlushListener, *, send_old_values: bool) -> bool:  # noqa: ARG002 - nothing to tell
        """Nothing is held back."""
        return False

    def flush(self) -> None:
        """Nothing is held back."""

    def held_back_bytes(self) -> int:
        """Estimated size of what was written since the last commit."""
        return written_bytes(self._pending)

    def changelog(self) -> Iterator[ChangelogRecord]:
        """One record per key written since the last commit, at the time of the record that wrote it last."""
        return (ChangelogRecord(key, data, self._times[key]) for key, data in self._pending.items())

    def pending(self) -> Puts:
        """Return the pending writes as the backend wants them."""
        return {self.name: self._pending} if self._pending else {}

    def committed(self) -> None:
        """The pending writes are in the backend."""
        self._pending, self._times, self._live = {}, {}, []

    def restore(self, batch: ChangelogBatch) -> Puts:
        """Changelog records as the backend wants them."""
        self._floor = b""
        return {self.name: dict(zip(batch.keys(), batch.values(), strict=True))}

    def _get(self, store_key: bytes) -> bytes | None:
        return self._pending[store_key] if store_key in self._pending else self._table.get(store_key)

    def _write(self, store_key: bytes, data: bytes | None, timestamp: int) -> None:
        self._pending[store_key] = data
        self._times[store_key] = timestamp

    def _entries(self) -> Iterator[tuple[bytes, bytes]]:
        """Stored and pending entries in order of keys, from the floor on."""
        if self._floor is None:
            return
        at: bytes | None = self._next_live(self._floor, bisect_left)
        for key, data in self._table.scan(self._floor, None):
            while at is not None and at <= key:
                live = self._pending.get(at)
                if live is not None:
                    yield at, live
                at = self._next_live(at, bisect_right)
            if key not in self._pending:
                yield key, data
        while at is not None:
            live = self._pending.get(at)
            if live is not None:
                yield at, live
            at = self._next_live(at, bisect_right)

    def _next_live(self, key: bytes, find: Callable[[list[bytes], bytes], int]) -> bytes | None:
        index = find(self._live, key)
        return self._live[index] if index < len(self._live) else None


if TYPE_CHECKING:
    _store: type[StateStore] = ListValueStateStore
