"""The stores of a stream-stream join: a window store per side, and a shared list of records without a partner so far.

The window stores correspond to those of Kafka Streams with `retainDuplicates`: they keep all values, also those of equal key
and time. There is no cache: the other side must see each record at once.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass
from heapq import merge
from typing import TYPE_CHECKING, Any

from riverrun.serde.internal import decode_list, encode_list
from riverrun.state.api import ChangelogRecord
from riverrun.state.codec import PlainCodec, stored_keys
from riverrun.state.entries import RecentEntries
from riverrun.state.segments import Segments
from riverrun.state.stores.core import StoreCore
from riverrun.state.values import stored_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from riverrun.state.api import (
        ChangelogBatch,
        Puts,
        StateBackend,
        StateStore,
        StoreBuilder,
        UpdateContext,
    )
    from riverrun.state.entries import Entry

# Time and sequence number after the key (`WindowKeySchema`). The number distinguishes values of equal key and time, and keeps
# them in order of arrival.
JOIN_SUFFIX = struct.Struct(">qi")
_STATE_KEY = b"state"
_LAST_SEQUENCE = 0x7FFFFFFF


class JoinWindowStateStore:
    """A store of one task, for the two sides of a join and for the task.

    A value is kept while its time is above the highest time ever put, less retention.
    """

    def __init__(self, builder: StoreBuilder, backend: StateBackend, context: UpdateContext) -> None:
        self.name = builder.name
        self._context = context
        self.expired_puts = 0
        self._retention_ms = builder.retention_ms
        self._keys, self._values = stored_keys(builder), stored_values(builder)
        self._segments = Segments(builder.name, builder.retention_ms, backend, JOIN_SUFFIX.size)
        self._state_table = f"{builder.name}.state"
        self._core = core = StoreCore(_TimesInKeys(self._segments.time_of), self._segments.find, context)
        self.set_flush_listener, self.flush = core.set_flush_listener, core.flush
        self.held_back_bytes, self.changelog = core.held_back_bytes, core.changelog
        # Includes all entries written since the last commit, whatever their times: searches do not look at pending writes.
        self._recent = RecentEntries()
        # Sequence numbers continue after a restart. Those of Kafka Streams begin again, and may overwrite a value of equal key
        # and time.
        state = backend.table(self._state_table).get(_STATE_KEY)
        self._observed: int
        self._sequence: int
        self._observed, self._sequence = (-1, 0) if state is None else JOIN_SUFFIX.unpack(state)
        self._recent.begin_after(self._observed)

    @property
    def observed_time(self) -> int:
        """Highest time ever put, ms, also before a restart; -1 if there was none."""
        return self._observed

    def put(self, key: Any, value: Any, time: int) -> None:
        """Keep a value; None is ignored. Ignored and counted if the time has expired."""
        # As in Kafka Streams' changelogs, ignored values use a number up as well.
        self._sequence = (self._sequence + 1) & _LAST_SEQUENCE
        if value is None:
            # The store's time stays, as in Kafka Streams' RocksDB stores; in its in-memory stores it moves.
            return
        self._observed = max(self._observed, time)
        if time <= self._observed - self._retention_ms:
            self.expired_puts += 1
            return
        raw, data = self._keys.written(key), self._values.written(key, value)
        suffix = JOIN_SUFFIX.pack(time, self._sequence)
        self._core.pending[raw + suffix] = data
        self._recent.put(raw, suffix, data, self.first_kept)

    def fetch_range(self, key: Any, time_from: int, time_to: int) -> Iterator[tuple[int, Any]]:
        """Return `(time, value)` of the key's values in `[time_from, time_to]`, by time and in order of arrival."""
        first = max(0, time_from, self.first_kept)
        if first > time_to:
            return
        raw = self._keys.written(key)
        lower, upper, read = JOIN_SUFFIX.pack(first, 0), JOIN_SUFFIX.pack(time_to + 1, 0), self._values.read
        entries: Iterable[Entry] = self._recent.find(raw, lower, upper)
        if first <= self._recent.known_after:
            entries = self._searched(entries, raw, lower, upper, first, time_to)
        for suffix, data in entries:
            yield JOIN_SUFFIX.unpack(suffix)[0], read(key, data)

    def all(self) -> Iterator[tuple[Any, int, Any]]:
        """Yield `(key, time, value)` of all values that have not expired, in no particular order."""
        first = max(0, self.first_kept)
        stored = (entry for table in self._segments.between(first, self._observed) for entry in table.scan(None, None))
        for entries in (stored, list(self._core.pending.items())):
            for store_key, data in entries:
                time = self._segments.time_of(store_key)
                if time >= first and data is not None:
                    raw = store_key[: -JOIN_SUFFIX.size]
                    yield self._keys.read(raw), time, self._values.read(raw, data)

    def pending(self) -> Puts:
        pending = self._core.pending
        return self._puts(pending.items(), self.first_kept) if pending else {}

    def committed(self) -> None:
        """Forget the pending writes, which are in the backend, and drop segments with only expired values."""
        self._core.committed()
        self._recent.forget(self.first_kept, self._context.kept_bytes)
        self._segments.drop_before(self.first_kept)

    def restore(self, batch: ChangelogBatch) -> Puts:
        """Convert changelog records to the backend's form, without expired ones."""
        entries = [(key, value) for key, value in self._core.restored(batch) if value is not None]
        if not entries:
            return {}
        self._observed = max(self._observed, *(self._segments.time_of(key) for key, _ in entries))
        self._sequence = JOIN_SUFFIX.unpack(entries[-1][0][-JOIN_SUFFIX.size :])[1]
        self._recent.begin_after(self._observed)
        first = self.first_kept
        kept = [(key, data) for key, data in entries if self._segments.time_of(key) >= first]
        return self._puts(kept, first)

    def _puts(self, entries: Iterable[tuple[bytes, bytes | None]], first_kept: int) -> Puts:
        state: dict[bytes, bytes | None] = {_STATE_KEY: JOIN_SUFFIX.pack(self._observed, self._sequence)}
        return {self._state_table: state, **self._segments.puts(entries, first_kept)}

    def _searched(
        self, recent: Iterable[Entry], raw: bytes, lower: bytes, upper: bytes, time_from: int, time_to: int
    ) -> Iterator[Entry]:
        """Yield the entries of the backend and the recent ones, each of them once."""
        last = b""
        for entry in merge(self._stored(raw, lower, upper, time_from, time_to), recent):
            if entry[0] != last:
                yield entry
            last = entry[0]

    def _stored(self, raw: bytes, lower: bytes, upper: bytes, time_from: int, time_to: int) -> Iterator[Entry]:
        size = len(raw)
        for table in self._segments.between(time_from, time_to):
            for key, data in table.scan(raw + lower, raw + upper):
                # Longer keys sort in between.
                if len(key) == size + JOIN_SUFFIX.size and key.startswith(raw):
                    yield key[size:], data

    @property
    def first_kept(self) -> int:
        """The lowest time (ms) that is kept."""
        return self._observed - self._retention_ms + 1


@dataclass(frozen=True, slots=True)
class _TimesInKeys:
    """Changelog records of values with their times in their keys."""

    time_of: Callable[[bytes], int]

    def to_changelog(
        self, writes: Mapping[bytes, bytes | None], _times: Mapping[bytes, int]
    ) -> Iterator[ChangelogRecord]:
        """Return one record per value, at its own time, in the order of the puts."""
        return (ChangelogRecord(key, data, self.time_of(key)) for key, data in writes.items())

    def from_changelog(self, batch: ChangelogBatch) -> Iterable[bytes | None]:
        """Return the bytes unchanged."""
        return batch.values()


class ListValueStateStore:
    """A store of one task: keys to the values added to them, in order of serialized keys (`ListValueStore`)."""

    def __init__(self, builder: StoreBuilder, backend: StateBackend, context: UpdateContext) -> None:
        self.name = builder.name
        self.expired_puts = 0  # this store expires nothing
        self._keys, self._values = stored_keys(builder), stored_values(builder)
        self._table = backend.table(builder.name)
        self._core = core = StoreCore(PlainCodec(self._values), self._table.get, context)
        self.set_flush_listener, self.flush = core.set_flush_listener, core.flush
        self.held_back_bytes, self.changelog = core.held_back_bytes, core.changelog
        # Keys of pending values, sorted.
        self._live: list[bytes] = []
        # No entry is below; None: there is no entry at all. Most deletions are at the front, and a scan should not step over
        # all of them.
        self._floor: bytes | None = b""

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
        # Written and deleted within one commit: no reader of the changelog knows it.
        if self._table.get(store_key) is None:
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
        return {self.name: self._core.pending} if self._core.pending else {}

    def committed(self) -> None:
        self._core.committed()
        self._live = []

    def restore(self, batch: ChangelogBatch) -> Puts:
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


_store: type[StateStore] = JoinWindowStateStore
_list_store: type[StateStore] = ListValueStateStore
