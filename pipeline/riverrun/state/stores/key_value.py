"""Key-value stores, plain and timestamped, with or without a cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from riverrun.state.access import CachedFold, CachedGet, CachedPut
from riverrun.state.api import idle
from riverrun.state.codec import TimestampedCodec, codec_of, stored_keys
from riverrun.state.entries import MemoryLRUCache, merged_scan, prefix_end
from riverrun.state.stores.core import StoreCore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from riverrun.state.api import (
        ChangelogBatch,
        Puts,
        StateBackend,
        StateStore,
        StoreBuilder,
        UpdateContext,
    )
    from riverrun.state.cache import CacheEntry
    from riverrun.state.codec import Folded
    from riverrun.state.folds import Fold
    from riverrun.state.store_types import KeyValueStore


class KeyValueStateStore:
    """A store of one task: `KeyValueStore` for processors, `StateStore` for the task."""

    def __init__(
        self,
        builder: StoreBuilder,
        backend: StateBackend,
        context: UpdateContext,
        pause: Callable[[], None] = idle,
    ) -> None:
        self.name = builder.name
        self.expired_puts = 0  # this store expires nothing
        self._context = context
        self._keys = keys = stored_keys(builder)
        self._key_bytes, self._key_of = keys.serialize, keys.read
        self._fixed_keys = builder.key_serde.immutable_types
        self._codec = codec_of(builder)
        self._table = backend.table(builder.name)
        self._core = core = StoreCore(self._codec, self._table.get, context)
        self.set_flush_listener, self.held_back_bytes = core.set_flush_listener, core.held_back_bytes
        self.changelog, self.forget_reads = core.changelog, core.forget_reads
        self._lru = None if builder.max_entries is None else MemoryLRUCache(builder.name, builder.max_entries, backend)
        self._stored, self._write = core.stored, core.write
        if self._lru is not None:
            self._stored, self._write = self._stored_in_lru, self._write_to_lru
        hold_back = core.hold_back
        self._cache = hold_back(self._codec, pause, stored=self._stored, write=self._write) if builder.caching else None

    def get(self, key: Any) -> Any:
        try:
            store_key = self._key_bytes(key)
        except Exception as error:  # a serde may raise anything
            raise self._keys.refused(key, error) from error
        cache = self._cache
        if cache is not None:
            entry = cache.entries.get(store_key)
            return cache.get(store_key) if entry is None or entry.whole is None else entry.whole
        data = self._stored(store_key)
        return None if data is None else self._codec.decode(key, data)

    def get_forwarded(self, key: Any, *_as_of: int) -> Any:
        """Return the value without an update that waits for a flush, or None."""
        store_key, cache = self._keys.written(key), self._cache
        if cache is not None:
            entry = cache.entries.get(store_key)
            if entry is None or not entry.order:
                return cache.get(store_key)
        data = self._stored(store_key)
        return None if data is None else self._codec.decode(key, data)

    def put(self, key: Any, value: Any) -> None:
        try:
            store_key = self._key_bytes(key)
        except Exception as error:  # a serde may raise anything
            raise self._keys.refused(key, error) from error
        context, cache = self._context, self._cache
        if cache is None:
            data = None if value is None else self._codec.encode(key, value)
            self._write(store_key, data, context.timestamp)
            return
        cache.put(store_key, key if type(key) in self._fixed_keys else self._key_of(store_key), value, context)

    def put_if_absent(self, key: Any, value: Any) -> Any:
        known = self.get(key)
        if known is None:
            self.put(key, value)
        return known

    def put_all(self, entries: Iterable[tuple[Any, Any]]) -> None:
        for key, value in entries:
            self.put(key, value)

    def delete(self, key: Any) -> Any:
        known = self.get(key)
        self.put(key, None)
        return known

    def range(self, from_key: Any = None, to_key: Any = None) -> Iterator[tuple[Any, Any]]:
        """Return entries from `from_key` to `to_key`, both inclusive, in order of serialized keys."""
        return self._scan(*self._bounds(from_key, to_key))

    def reverse_range(self, from_key: Any = None, to_key: Any = None) -> Iterator[tuple[Any, Any]]:
        return self._scan(*self._bounds(from_key, to_key), reverse=True)

    def all(self) -> Iterator[tuple[Any, Any]]:
        """Return all entries, in order of serialized keys."""
        return self._scan(None, None)

    def reverse_all(self) -> Iterator[tuple[Any, Any]]:
        return self._scan(None, None, reverse=True)

    def prefix_scan(self, prefix: bytes) -> Iterator[tuple[Any, Any]]:
        return self._scan(prefix, prefix_end(prefix))

    def approximate_num_entries(self) -> int:
        """Return the number of entries; they are counted, which takes time."""
        return sum(1 for _ in self._scan_bytes(None, None))

    def cached_fold(self, fold: Fold) -> CachedFold | None:
        """Return an aggregation into this store in parts; None without a cache, with `max_entries`, or if input is kept."""
        cache, keys = self._cache, self._keys
        # A store with `max_entries` must hear of each use of a key, also of one that the cache has already. With kept input
        # records, each update notes its source (`UpdateContext.record_metadata`), which generated lines do not.
        if cache is None or self._lru is not None or self._context.keeps_sources:
            return None
        index, committed, core = cache.new_index(), self._table.get, self._core

        def find(key_as_bytes: bytes, key: Any) -> CacheEntry:
            store_key, pending = keys.written(key), core.pending
            entry = cache.entries.get(store_key)
            if entry is None:
                data = pending[store_key] if store_key in pending else committed(store_key)
                entry = cache.loaded(store_key, data)
            entry.key = key if type(key) in self._fixed_keys else self._key_of(store_key)
            index[key_as_bytes] = entry
            return entry

        return CachedFold(fold, keys, index, find, cache, cache.mark)

    def cached_put(self) -> CachedPut | None:
        """Return puts in parts; None without a cache or timestamps, with `max_entries`, or if input records are kept."""
        cache, keys, is_timed = self._cache, self._keys, isinstance(self._codec, TimestampedCodec)
        if cache is None or not is_timed or self._lru is not None or self._context.keeps_sources:
            return None
        index = cache.new_index()

        def find(key_as_bytes: bytes, key: Any) -> CacheEntry | None:
            store_key = keys.written(key)
            entry = cache.entries.get(store_key)
            if entry is not None:
                entry.key = key if type(key) in self._fixed_keys else self._key_of(store_key)
                index[key_as_bytes] = entry
            return entry

        return CachedPut(index, find, cache)

    def cached_get(self) -> CachedGet | None:
        """Return look-ups in parts; None without a cache or timestamps, or with `max_entries`."""
        cache, codec, key_bytes = self._cache, self._codec, self._keys.written
        if cache is None or self._lru is not None or not isinstance(codec, TimestampedCodec):
            return None
        values, changeable, stored = cache.new_reads(), cache.new_reads(), self._stored
        values_of, fixed = codec.values, codec.values.serde.immutable_types
        decode = values_of.deserialize

        def find(key_as_bytes: bytes, key: Any) -> Any:
            data = changeable.get(key_as_bytes)
            if data is not None:
                try:
                    return decode(data)
                except Exception as error:  # a serde may raise anything
                    raise values_of.unreadable(key, data, error) from error
            store_key = key_bytes(key)
            entry = cache.entries.get(store_key)
            if entry is not None:
                return cache.value_of(entry)
            # An update drops a kept value by the store's bytes of its key. Under other bytes, it would stay.
            if store_key != key_as_bytes:
                return cache.value_of(cache.loaded(store_key, stored(store_key)))
            data = stored(store_key)
            value = None if data is None else values_of.read(key, data[8:])
            if data is None or type(value) in fixed:
                values[store_key] = value
            else:
                changeable[store_key] = data[8:]
            return value

        return CachedGet(values, find)

    def writing_fold(self, fold: Fold, *, tells_old: bool) -> Callable[[Any, Any, int], Folded] | None:
        """Return a function of key, value and timestamp (ms) that aggregates a record and returns the result to forward.

        Returns None for stores with a cache, without timestamps, with `max_entries`, or if input records are kept.
        """
        codec, context = self._codec, self._context
        if (
            self._cache is not None
            or self._lru is not None
            or context.keeps_sources
            or not isinstance(codec, TimestampedCodec)
        ):
            return None
        folded, keys, committed = codec.folding(fold, tells_old=tells_old), self._keys, self._table.get
        key_bytes, core = keys.serialize, self._core

        def put(key: Any, value: Any, timestamp: int) -> Folded:
            try:
                store_key = key_bytes(key)
            except Exception as error:  # a serde may raise anything
                raise keys.refused(key, error) from error
            pending = core.pending
            known = pending[store_key] if store_key in pending else committed(store_key)
            update = folded(known, key, value, timestamp)
            pending[store_key] = update[1]
            core.times[store_key] = context.timestamp
            return update

        return put

    def flush(self) -> None:
        self._core.flush()

    def pending(self) -> Puts:
        pending = self._core.pending
        puts: Puts = {self.name: pending} if pending else {}
        return puts if self._lru is None else {**puts, **self._lru.puts()}

    def committed(self) -> None:
        self._core.committed()
        if self._lru is not None:
            self._lru.committed()
        self.forget_reads()

    def restore(self, batch: ChangelogBatch) -> Puts:
        entries, lru = self._core.restored(batch), self._lru
        if lru is None:
            return {self.name: dict(entries)}
        restored: dict[bytes, bytes | None] = {}
        for key, data in entries:
            restored[key] = data
            restored.update(dict.fromkeys(lru.written(key, data)))
        puts = {self.name: restored, **lru.puts()}
        lru.committed()
        return puts

    def _stored_in_lru(self, store_key: bytes) -> bytes | None:
        assert self._lru is not None  # noqa: S101 - callers have checked it
        self._lru.used(store_key)
        return self._core.stored(store_key)

    def _write_to_lru(self, store_key: bytes, data: bytes | None, timestamp: int) -> None:
        """Write, and delete the least recently used rows: here and in the changelog (`ChangeLoggingKeyValueBytesStore`)."""
        assert self._lru is not None  # noqa: S101 - callers have checked it
        self._core.write(store_key, data, timestamp)
        for eldest in self._lru.written(store_key, data):
            self._core.write(eldest, None, timestamp)
            if self._cache is not None:
                self._cache.forget(eldest)

    def _bounds(self, from_key: Any, to_key: Any) -> tuple[bytes | None, bytes | None]:
        lower = None if from_key is None else self._keys.written(from_key)
        # The smallest key above `to_key`, as the bound of a scan is exclusive.
        upper = None if to_key is None else self._keys.written(to_key) + b"\0"
        return lower, upper

    def _scan(self, lower: bytes | None, upper: bytes | None, *, reverse: bool = False) -> Iterator[tuple[Any, Any]]:
        key_of, decode = self._key_of, self._codec.decode
        return ((key_of(k), decode(k, data)) for k, data in self._scan_bytes(lower, upper, reverse=reverse))

    def _scan_bytes(
        self, lower: bytes | None, upper: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        pending, cache = self._core.pending, self._cache
        changed = pending if cache is None else pending | cache.encoded_dirty()
        return merged_scan(changed, self._table, lower, upper, reverse=reverse)


_store: type[StateStore] = KeyValueStateStore
_key_value: type[KeyValueStore[Any, Any]] = KeyValueStateStore
