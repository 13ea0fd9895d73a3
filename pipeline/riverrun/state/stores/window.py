"""Window stores, plain and timestamped, with or without a cache; cut into segments that expire as a whole."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from riverrun.state.access import CachedFold
from riverrun.state.api import idle
from riverrun.state.codec import TimestampedCodec, stored_keys
from riverrun.state.entries import ChangedKeys
from riverrun.state.stores.core import SegmentedCore
from riverrun.windows import MAX_TIME_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from riverrun.state.api import (
        StateBackend,
        StateStore,
        StoreBuilder,
        UpdateContext,
    )
    from riverrun.state.cache import CacheEntry
    from riverrun.state.codec import Folded
    from riverrun.state.folds import Fold
    from riverrun.state.store_types import WindowStore

# Window start and sequence number after the key (`WindowKeySchema`); the number is 0 without duplicates.
WINDOW_SUFFIX = struct.Struct(">qi")


class WindowStateStore:
    """A store of one task: `WindowStore` for processors, `StateStore` for the task.

    A window is kept while its start is above the highest start ever put, less retention. Both backends apply this exact
    bound to reads and writes.
    """

    def __init__(
        self,
        builder: StoreBuilder,
        backend: StateBackend,
        context: UpdateContext,
        pause: Callable[[], None] = idle,
    ) -> None:
        self.name = builder.name
        self._context = context
        self._keys = keys = stored_keys(builder)
        self._key_bytes, self._key_of = keys.serialize, keys.read
        self._fixed_keys = builder.key_serde.immutable_types
        span_ms = builder.retention_ms + builder.slack_ms
        self._entries = entries = SegmentedCore(builder, backend, context, WINDOW_SUFFIX.size, span_ms)
        self._codec, self._segments, self._kept = entries.codec, entries.segments, entries.kept
        self._core = core = entries.writes
        self.times, self.resume = entries.times, entries.resume
        self.pending, self.restore = entries.pending, entries.restore
        self.set_flush_listener, self.flush = core.set_flush_listener, core.flush
        self.held_back_bytes, self.changelog = core.held_back_bytes, core.changelog
        self.forget_reads = core.forget_reads
        self._cache = self._core.hold_back(self._codec, pause) if builder.caching else None
        self._changed = ChangedKeys(WINDOW_SUFFIX.size)
        self._last_key: Any = None
        self._last_start = -1
        self._last_store_key = b""

    @property
    def expired_puts(self) -> int:
        return self._kept.refused

    @property
    def first_kept(self) -> int:
        """The lowest start (ms) of windows that are kept."""
        return self._kept.find_first()

    def put(self, key: Any, value: Any, window_start: int) -> None:
        kept = self._kept
        if not kept.first <= window_start < kept.end and not kept.takes(window_start):
            return
        store_key = self._store_key(key, window_start)
        context, cache = self._context, self._cache
        if self._changed.is_kept:
            # Or searches of a key whose windows come and go would look at all that went since the last commit.
            is_gone = value is None and cache is None and self._segments.get(store_key, window_start) is None
            note = self._changed.discard if is_gone else self._changed.add
            note(store_key[: -WINDOW_SUFFIX.size], store_key)
        if cache is None:
            data = None if value is None else self._codec.encode(key, value)
            self._core.write(store_key, data, context.timestamp)
            return
        cache.put(store_key, (self._kept_key(key, store_key), window_start), value, context)

    def fetch(self, key: Any, time: int) -> Any:
        """Return the value of the window that starts at `time`, or None."""
        kept = self._kept
        if not kept.first <= time < kept.end and time < kept.find_first():
            return None
        store_key = self._store_key(key, time)
        if self._cache is not None:
            return self._cache.get(store_key)
        pending = self._core.pending
        data = pending[store_key] if store_key in pending else self._segments.get(store_key, time)
        return None if data is None else self._codec.decode(key, data)

    def fetch_range(self, key: Any, time_from: int, time_to: int) -> Iterator[tuple[int, Any]]:
        """Return `(start, value)` of the key's windows that start in `[time_from, time_to]`, ascending; values are copies."""
        return self._of_key(key, time_from, time_to, reverse=False)

    def backward_fetch_range(self, key: Any, time_from: int, time_to: int) -> Iterator[tuple[int, Any]]:
        return self._of_key(key, time_from, time_to, reverse=True)

    def fetch_keys(self, key_from: Any, key_to: Any, time_from: int, time_to: int) -> Iterator[tuple[Any, int, Any]]:
        """Return `(key, start, value)` of a range of keys and of times, all inclusive; older segments first."""
        return self._of_keys(key_from, key_to, time_from, time_to, reverse=False)

    def backward_fetch_keys(
        self, key_from: Any, key_to: Any, time_from: int, time_to: int
    ) -> Iterator[tuple[Any, int, Any]]:
        return self._of_keys(key_from, key_to, time_from, time_to, reverse=True)

    def fetch_all(self, time_from: int, time_to: int) -> Iterator[tuple[Any, int, Any]]:
        """Return `(key, start, value)` of the windows that start in `[time_from, time_to]`; older segments first."""
        return self._of_keys(None, None, time_from, time_to, reverse=False)

    def backward_fetch_all(self, time_from: int, time_to: int) -> Iterator[tuple[Any, int, Any]]:
        return self._of_keys(None, None, time_from, time_to, reverse=True)

    def all(self) -> Iterator[tuple[Any, int, Any]]:
        """Return `(key, start, value)` of all windows that have not expired; older segments first."""
        return self._of_keys(None, None, 0, MAX_TIME_MS, reverse=False)

    def backward_all(self) -> Iterator[tuple[Any, int, Any]]:
        return self._of_keys(None, None, 0, MAX_TIME_MS, reverse=True)

    def cached_fold(self, fold: Fold) -> CachedFold | None:
        """Return an aggregation into this store in parts; None without a cache, or if input records are kept."""
        cache, keys, changed = self._cache, self._keys, self._changed
        if cache is None or self._context.keeps_sources:
            return None
        index, suffix, committed, core = cache.new_index(), WINDOW_SUFFIX.pack, self._segments.get, self._core

        def find(key_as_bytes: bytes, key: Any, start: int) -> CacheEntry:
            store_key, pending = keys.written(key) + suffix(start, 0), core.pending
            entry = cache.entries.get(store_key)
            if entry is None:
                data = pending[store_key] if store_key in pending else committed(store_key, start)
                entry = cache.loaded(store_key, data)
            try:
                index[start][key_as_bytes] = entry
            except KeyError:
                index[start] = {key_as_bytes: entry}
            entry.key = self._kept_key(key, store_key), start
            return entry

        def mark(entry: CacheEntry) -> None:
            cache.mark(entry)
            if changed.is_kept:
                changed.add(entry.store_key[: -WINDOW_SUFFIX.size], entry.store_key)

        return CachedFold(fold, keys, index, find, cache, mark, self._kept)

    def writing_fold(self, fold: Fold, *, tells_old: bool) -> Callable[[Any, Any, int, int], Folded] | None:
        """Return a function of key, value, timestamp and window start (ms) that aggregates a record into a window.

        It returns the result to forward; an expired window has no result, and is not stored.

        Returns None for stores with a cache or without timestamps, or if input records are kept.
        """
        codec, context = self._codec, self._context
        if self._cache is not None or context.keeps_sources or not isinstance(codec, TimestampedCodec):
            return None
        folded, keys, suffix = codec.folding(fold, tells_old=tells_old), self._keys, WINDOW_SUFFIX.pack
        key_bytes, core = keys.serialize, self._core
        committed, kept = self._segments.get, self._kept

        def put(key: Any, value: Any, timestamp: int, start: int) -> Folded:
            if not kept.first <= start < kept.end and not kept.takes(start):
                return folded(None, key, value, timestamp)
            try:
                store_key = key_bytes(key) + suffix(start, 0)
            except Exception as error:  # a serde may raise anything
                raise keys.refused(key, error) from error
            pending = core.pending
            known = pending[store_key] if store_key in pending else committed(store_key, start)
            if self._changed.is_kept:
                self._changed.add(store_key[: -WINDOW_SUFFIX.size], store_key)
            update = folded(known, key, value, timestamp)
            pending[store_key] = update[1]
            core.times[store_key] = context.timestamp
            return update

        return put

    def committed(self) -> None:
        """Forget the pending writes, which are in the backend, and drop segments with only expired windows."""
        self._entries.committed()
        self._changed.clear()
        self.forget_reads()

    def _of_key(self, key: Any, time_from: int, time_to: int, *, reverse: bool) -> Iterator[tuple[int, Any]]:
        raw = self._keys.written(key)
        first = max(0, time_from, self._kept.find_first())
        if first > time_to:
            return
        lower, upper = raw + WINDOW_SUFFIX.pack(first, 0), raw + WINDOW_SUFFIX.pack(time_to, 0) + b"\0"
        changed = self._laid_over(self._changed.kept(self._core.pending, self._cache).of(raw, lower, upper))
        for store_key, data in self._segments.scan(changed, lower, upper, first, time_to, reverse=reverse):
            # Longer keys sort in between.
            if len(store_key) == len(raw) + WINDOW_SUFFIX.size and store_key.startswith(raw):
                yield self._segments.time_of(store_key), self._codec.decode(key, data)

    def _of_keys(
        self, key_from: Any, key_to: Any, time_from: int, time_to: int, *, reverse: bool
    ) -> Iterator[tuple[Any, int, Any]]:
        lowest = None if key_from is None else self._keys.written(key_from)
        highest = None if key_to is None else self._keys.written(key_to)
        first = max(0, time_from, self._kept.find_first())
        changed = self._laid_over(self._changed.kept(self._core.pending, self._cache).all())
        for store_key, data in self._segments.scan(changed, lowest, None, first, time_to, reverse=reverse):
            raw, start = store_key[: -WINDOW_SUFFIX.size], self._segments.time_of(store_key)
            in_keys = (lowest is None or raw >= lowest) and (highest is None or raw <= highest)
            if in_keys and first <= start <= time_to:
                yield self._key_of(raw), start, self._codec.decode(raw, data)

    def _store_key(self, key: Any, start: int) -> bytes:
        # The last ones are kept: an aggregation puts the window that it has just fetched.
        if key is self._last_key and start == self._last_start:
            return self._last_store_key
        try:
            store_key: bytes = self._key_bytes(key) + WINDOW_SUFFIX.pack(start, 0)
        except Exception as error:  # a serde may raise anything
            raise self._keys.refused(key, error) from error
        # A key that can be changed in place may have other bytes the next time, so it is encoded each time.
        if type(key) in self._fixed_keys:
            self._last_key, self._last_start, self._last_store_key = key, start, store_key
        return store_key

    def _kept_key(self, key: Any, store_key: bytes) -> Any:
        """Return a key that the user cannot change later."""
        return key if type(key) in self._fixed_keys else self._key_of(store_key[: -WINDOW_SUFFIX.size])

    def _laid_over(self, store_keys: Iterable[bytes]) -> Mapping[bytes, bytes | None]:
        """Return the writes of these keys since the last commit."""
        cache, pending = self._cache, self._core.pending
        if cache is None:
            return {key: pending.get(key) for key in store_keys}
        return {key: cache.encoded(key) if key in cache.dirty else pending.get(key) for key in store_keys}


_store: type[StateStore] = WindowStateStore
_window: type[WindowStore[Any, Any]] = WindowStateStore
