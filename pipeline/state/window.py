"""Window stores, plain and timestamped, with or without a cache; cut into segments that expire as a whole."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from pipeline.state.cache import ENTRY_OVERHEAD_BYTES, UpdateCache
from pipeline.state.codec import codec_of
from pipeline.state.key_value import CLEAN_CACHE_BYTES
from pipeline.state.pending import merged_scan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pipeline.state.api import (
        CachedUpdate,
        ChangelogRecord,
        Puts,
        StateBackend,
        StateStore,
        StoreBuilder,
        Table,
        UpdateContext,
        WindowStore,
    )

_SUFFIX = struct.Struct(">qi")
"""Window start and sequence number behind the key (`WindowKeySchema`); the number is 0 without duplicates."""
_MIN_SEGMENT_MS = 60_000
_IMMUTABLE = frozenset({str, bytes, int})
"""Types of most keys."""


class WindowStateStore:
    """A store of one task: `WindowStore` for processors, `StateStore` for the task.

    A window is kept while its start is above the highest start ever put, less retention; both backends apply the same
    exact bound to reads and writes.
    """

    def __init__(self, builder: StoreBuilder, backend: StateBackend, context: UpdateContext) -> None:
        """Open the store as the backend holds it."""
        self.name = builder.name
        self.expired_puts = 0
        self._context = context
        self._backend = backend
        self._retention_ms = builder.retention_ms
        self._segment_ms = max(builder.retention_ms // 2, _MIN_SEGMENT_MS)
        self._key_bytes = builder.key_serde.serialize
        self._key_of = builder.key_serde.deserialize
        self._codec = codec_of(builder)
        self._segments: dict[int, Table] = self._open_segments()
        self._pending: dict[bytes, bytes | None] = {}
        self._times: dict[bytes, int] = {}
        self._cache = UpdateCache(self._codec, self._stored, self._write) if builder.caching else None
        self._observed = self._highest_start()
        self._last_key: Any = None
        self._last_start = -1
        self._last_store_key = b""

    def put(self, key: Any, value: Any, window_start: int) -> None:
        """Set the value of a window; None deletes. Ignored and counted if the window has expired."""
        if window_start > self._observed:
            self._observed = window_start
        elif window_start <= self._observed - self._retention_ms:
            self.expired_puts += 1
            return
        store_key = self._store_key(key, window_start)
        context, cache = self._context, self._cache
        if cache is None:
            data = None if value is None else self._codec.encode(value)
            self._write(store_key, data, context.timestamp)
            return
        cache.values[store_key] = value
        cache.dirty[store_key] = (key, window_start), context.timestamp, context.headers, context.record_metadata

    def fetch(self, key: Any, time: int) -> Any:
        """The value of the window that starts at `time`, or None."""
        if time <= self._observed - self._retention_ms:
            return None
        store_key = self._store_key(key, time)
        cache = self._cache
        if cache is not None and store_key in cache.values:
            return cache.values[store_key]
        data = self._stored(store_key)
        value = None if data is None else self._codec.decode(data)
        if cache is not None:
            cache.values[store_key] = value
        return value

    def fetch_range(self, key: Any, time_from: int, time_to: int) -> Iterator[tuple[int, Any]]:
        """`(start, value)` of the key's windows that start in `[time_from, time_to]`, ascending."""
        raw = self._key_bytes(key)
        first = max(0, time_from, self._first_kept())
        if first > time_to:
            return
        lower, upper = raw + _SUFFIX.pack(first, 0), raw + _SUFFIX.pack(time_to, 0) + b"\0"
        for store_key, data in self._scan_segments(lower, upper, first, time_to):
            if len(store_key) == len(raw) + _SUFFIX.size and store_key.startswith(raw):
                yield _start_of(store_key), self._codec.decode(data)

    def fetch_keys(
        self,
        key_from: Any,
        key_to: Any,
        time_from: int,
        time_to: int,
    ) -> Iterator[tuple[Any, int, Any]]:
        """`(key, start, value)` of a range of keys and of times, all inclusive; older segments first."""
        lowest = None if key_from is None else self._key_bytes(key_from)
        highest = None if key_to is None else self._key_bytes(key_to)
        first = max(0, time_from, self._first_kept())
        for store_key, data in self._scan_segments(lowest, None, first, time_to):
            raw, start = store_key[: -_SUFFIX.size], _start_of(store_key)
            in_keys = (lowest is None or raw >= lowest) and (highest is None or raw <= highest)
            if in_keys and first <= start <= time_to:
                yield self._key_of(raw), start, self._codec.decode(data)

    def all(self) -> Iterator[tuple[Any, int, Any]]:
        """`(key, start, value)` of everything that has not expired; older segments first."""
        return self.fetch_keys(None, None, 0, max(self._observed, 0))

    def set_flush_listener(self, listener: Callable[[CachedUpdate], None], *, send_old_values: bool) -> bool:
        """Forward held-back updates to `listener`; False without a cache."""
        if self._cache is None:
            return False
        self._cache.listen(listener, send_old_values=send_old_values)
        return True

    def flush(self) -> None:
        """Give held-back updates to the listener."""
        if self._cache is not None:
            self._cache.flush()

    def held_back_bytes(self) -> int:
        """Estimated size of the updates since the last commit."""
        held_back = self._cache.dirty_bytes() if self._cache is not None else 0
        return held_back + len(self._pending) * ENTRY_OVERHEAD_BYTES

    def changelog(self) -> Iterator[ChangelogRecord]:
        """One record per window written since the last commit."""
        convert, times = self._codec.to_changelog, self._times
        return (convert(key, data, times[key]) for key, data in self._pending.items())

    def pending(self) -> Puts:
        """The same writes as the backend wants them."""
        return self._by_segment(self._pending.items())

    def committed(self) -> None:
        """The pending writes are in the backend; segments of which every window has expired are dropped."""
        for start in {self._segment_of(_start_of(key)) for key in self._pending}:
            self._segments.setdefault(start, self._backend.table(self._table_name(start)))
        self._pending, self._times = {}, {}
        for start in [s for s in self._segments if s + self._segment_ms <= self._first_kept()]:
            del self._segments[start]
            self._backend.drop(self._table_name(start))
        if self._cache is not None:
            self._cache.drop_clean(CLEAN_CACHE_BYTES)

    def restore(self, records: Iterable[ChangelogRecord]) -> Puts:
        """Changelog records as the backend wants them; what has expired is left out."""
        entries = [(record.key, self._codec.from_changelog(record)) for record in records]
        self._observed = max((_start_of(key) for key, _ in entries), default=self._observed, key=int)
        kept = ((key, data) for key, data in entries if _start_of(key) >= self._first_kept())
        puts = self._by_segment(kept)
        for name in puts:
            start = int(name.rpartition(".")[2])
            self._segments.setdefault(start, self._backend.table(name))
        return puts

    def _store_key(self, key: Any, start: int) -> bytes:
        """The bytes of a window's key. An aggregation puts what it has just fetched: the last ones are remembered."""
        if key is self._last_key and start == self._last_start:
            return self._last_store_key
        store_key: bytes = self._key_bytes(key) + _SUFFIX.pack(start, 0)
        if type(key) in _IMMUTABLE:  # what can be changed in place is encoded anew
            self._last_key, self._last_start, self._last_store_key = key, start, store_key
        return store_key

    def _by_segment(self, entries: Iterable[tuple[bytes, bytes | None]]) -> Puts:
        puts: Puts = {}
        for key, data in entries:
            puts.setdefault(self._table_name(self._segment_of(_start_of(key))), {})[key] = data
        return puts

    def _stored(self, store_key: bytes) -> bytes | None:
        if store_key in self._pending:
            return self._pending[store_key]
        segment = self._segments.get(self._segment_of(_start_of(store_key)))
        return None if segment is None else segment.get(store_key)

    def _write(self, store_key: bytes, data: bytes | None, timestamp: int) -> None:
        self._pending[store_key] = data
        self._times[store_key] = timestamp

    def _scan_segments(
        self, lower: bytes | None, upper: bytes | None, time_from: int, time_to: int
    ) -> Iterator[tuple[bytes, bytes]]:
        changed = self._pending if self._cache is None else self._pending | self._cache.encoded_dirty()
        by_segment: dict[int, dict[bytes, bytes | None]] = {start: {} for start in self._segments}
        for key, data in changed.items():
            by_segment.setdefault(self._segment_of(_start_of(key)), {})[key] = data
        for start in sorted(by_segment):
            if start + self._segment_ms > time_from and start <= time_to:
                table = self._segments.get(start) or self._backend.table(self._table_name(start))
                yield from merged_scan(by_segment[start], table, lower, upper)

    def _first_kept(self) -> int:
        return self._observed - self._retention_ms + 1

    def _segment_of(self, start: int) -> int:
        return start // self._segment_ms * self._segment_ms

    def _table_name(self, segment: int) -> str:
        return f"{self.name}.{segment}"

    def _open_segments(self) -> dict[int, Table]:
        prefix = f"{self.name}."
        names = (name for name in self._backend.tables() if name.startswith(prefix))
        starts = (int(name[len(prefix) :]) for name in names if name[len(prefix) :].isdecimal())
        return {start: self._backend.table(self._table_name(start)) for start in starts}

    def _highest_start(self) -> int:
        for segment in sorted(self._segments, reverse=True):
            starts = [_start_of(key) for key, _ in self._segments[segment].scan(None, None)]
            if starts:
                return max(starts)
        return -1


def _start_of(store_key: bytes) -> int:
    start: int = _SUFFIX.unpack_from(store_key, len(store_key) - _SUFFIX.size)[0]
    return start


if TYPE_CHECKING:
    _store: type[StateStore] = WindowStateStore
    _window: type[WindowStore[Any, Any]] = WindowStateStore
