"""Session stores, with or without a cache; cut into segments that expire as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from riverrun.state.api import idle
from riverrun.state.codec import stored_keys
from riverrun.state.entries import ChangedKeys, RecentEntries, pack_time
from riverrun.state.stores.core import SegmentedCore
from riverrun.state.stores.session_merging import SUFFIX, MergedStore
from riverrun.windows import MAX_TIME_MS, Window, Windowed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from riverrun.state.api import (
        ChangelogBatch,
        Puts,
        StateBackend,
        StateStore,
        StoreBuilder,
        UpdateContext,
    )
    from riverrun.state.cache import CacheEntry
    from riverrun.state.store_types import SessionStore
    from riverrun.state.stores.session_merging import Merging, SessionFold


class SessionStateStore:
    """A store of one task: `SessionStore` for processors, `StateStore` for the task.

    A session is kept while its end is at least the highest end ever put, less retention. Both backends apply this exact bound
    to reads and writes.
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
        # One ms more than the retention: an aggregation may extend a session for exactly that long. In Kafka Streams the bound
        # is 1 ms less, or more, depending on the cache.
        self._entries = entries = SegmentedCore(builder, backend, context, SUFFIX.size, builder.retention_ms + 1)
        self._codec, self._segments, self._kept = entries.codec, entries.segments, entries.kept
        self._core = core = entries.writes
        self.times, self.pending = entries.times, entries.pending
        self.set_flush_listener, self.flush = core.set_flush_listener, core.flush
        self.held_back_bytes, self.changelog = core.held_back_bytes, core.changelog
        self._cache = self._core.hold_back(self._codec, pause, _session_end) if builder.caching else None
        # Aggregations search for every record. A search looks at one key alone, however much was written since the last commit.
        # It reads the backend only for times of which not all sessions are known.
        self._changed = ChangedKeys(SUFFIX.size)
        self._recent = RecentEntries()

    @property
    def expired_puts(self) -> int:
        return self._kept.refused

    @property
    def first_kept(self) -> int:
        """The lowest end (ms) of sessions that are kept."""
        return self._kept.find_first()

    def put(self, session: Windowed[Any], value: Any) -> None:
        end, kept = session.window.end, self._kept
        if not kept.first <= end < kept.end and not kept.takes(end):
            return
        try:
            raw = self._key_bytes(session.key)
        except Exception as error:  # a serde may raise anything
            raise self._keys.refused(session.key, error) from error
        suffix = SUFFIX.pack(end, session.window.start)
        store_key = raw + suffix
        if self._changed.is_kept:
            self._changed.add(raw, store_key)
        context, cache = self._context, self._cache
        if cache is None:
            data = None if value is None else self._codec.encode(session.key, value)
            self._core.write(store_key, data, context.timestamp)
        else:
            # A key that the user may change in place is read again from its bytes.
            kept_key = session if type(session.key) in self._fixed_keys else Windowed(self._key_of(raw), session.window)
            cache.put(store_key, kept_key, value, context)
        if value is None:
            self._recent.remove(raw, suffix)
        else:
            self._recent.put(raw, suffix, b"", kept.first)

    def remove(self, session: Windowed[Any]) -> None:
        self.put(session, None)

    def fetch_session(self, key: Any, start: int, end: int) -> Any:
        """Return the value of the session with exactly these bounds, or None."""
        kept = self._kept
        if not kept.first <= end < kept.end and end < kept.find_first():
            return None
        return self._read(key, self._keys.written(key) + SUFFIX.pack(end, start))

    def find_sessions(self, key: Any, earliest_end: int, latest_start: int) -> Iterator[tuple[Windowed[Any], Any]]:
        return self._of_key(key, earliest_end, latest_start, reverse=False)

    def backward_find_sessions(
        self, key: Any, earliest_end: int, latest_start: int
    ) -> Iterator[tuple[Windowed[Any], Any]]:
        return self._of_key(key, earliest_end, latest_start, reverse=True)

    def find_sessions_of_keys(
        self, key_from: Any, key_to: Any, earliest_end: int, latest_start: int
    ) -> Iterator[tuple[Windowed[Any], Any]]:
        """Find sessions of a range of keys, both inclusive; None is an open end. Older segments first."""
        return self._of_keys(key_from, key_to, earliest_end, latest_start, reverse=False)

    def backward_find_sessions_of_keys(
        self, key_from: Any, key_to: Any, earliest_end: int, latest_start: int
    ) -> Iterator[tuple[Windowed[Any], Any]]:
        """Find sessions of a range of keys backwards."""
        return self._of_keys(key_from, key_to, earliest_end, latest_start, reverse=True)

    def fetch(self, key: Any) -> Iterator[tuple[Windowed[Any], Any]]:
        return self._of_key(key, 0, MAX_TIME_MS, reverse=False)

    def backward_fetch(self, key: Any) -> Iterator[tuple[Windowed[Any], Any]]:
        return self._of_key(key, 0, MAX_TIME_MS, reverse=True)

    def fetch_keys(self, key_from: Any, key_to: Any) -> Iterator[tuple[Windowed[Any], Any]]:
        """Return all sessions of a range of keys, both inclusive; None is an open end. Older segments first."""
        return self._of_keys(key_from, key_to, 0, MAX_TIME_MS, reverse=False)

    def backward_fetch_keys(self, key_from: Any, key_to: Any) -> Iterator[tuple[Windowed[Any], Any]]:
        return self._of_keys(key_from, key_to, 0, MAX_TIME_MS, reverse=True)

    def all(self) -> Iterator[tuple[Windowed[Any], Any]]:
        """Return all sessions that have not expired; older segments first."""
        return self.fetch_keys(None, None)

    def merging(self, fold: SessionFold) -> Merging | None:
        """Return a function that adds a record to the newest session of its key; None without a cache, or if input is kept."""
        if self._cache is None or self._context.keeps_sources:
            return None
        parts = MergedStore(
            keys=self._keys,
            fixed_keys=self._fixed_keys,
            context=self._context,
            recent=self._recent,
            changed=self._changed,
            kept=self._kept,
            cache=self._cache,
            put=self.put,
        )
        return parts.merging(fold)

    def resume(self, times: Sequence[int]) -> None:
        """Continue from committed times: expired entries stay expired."""
        self._entries.resume(times)
        # The highest end is now another one: sessions after it are known only from the next search on (`_of_key`).
        self._recent.begin_after(MAX_TIME_MS)

    def committed(self) -> None:
        """Forget the pending writes, which are in the backend, and drop segments with only expired sessions."""
        self._entries.committed()
        self._changed.clear()
        self._changed.is_kept = False
        self.forget_reads()

    def forget_reads(self, limit_bytes: int | None = None) -> None:
        """Forget decoded values that are not held back, if they exceed a limit."""
        limit_bytes = self._context.kept_bytes if limit_bytes is None else limit_bytes
        self._recent.forget(self._kept.find_first(), limit_bytes)
        self._core.forget_reads(limit_bytes)

    def restore(self, batch: ChangelogBatch) -> Puts:
        """Convert changelog records to the backend's form; the first commit drops expired ones."""
        self._recent.begin_after(MAX_TIME_MS)
        return self._entries.restore(batch)

    def _of_key(
        self, key: Any, earliest_end: int, latest_start: int, *, reverse: bool
    ) -> Iterator[tuple[Windowed[Any], Any]]:
        try:
            raw = self._key_bytes(key)
        except Exception as error:  # a serde may raise anything
            raise self._keys.refused(key, error) from error
        first = max(0, earliest_end, self._kept.find_first())
        recent = self._recent
        # After it was opened or restored, the store has no session that ends later than its highest end: that much is known.
        if recent.known_after == MAX_TIME_MS:
            recent.begin_after(self._kept.highest)
        if first <= recent.known_after:
            return self._searched(key, raw, first, latest_start, reverse=reverse)
        found = []
        for suffix, _ in recent.find(raw, pack_time(first)):
            end, start = SUFFIX.unpack(suffix)
            if start <= latest_start and (value := self._read(key, raw + suffix)) is not None:
                found.append((Windowed(key, Window(start, end)), value))
        return reversed(found) if reverse else iter(found)

    def _searched(
        self, key: Any, raw: bytes, first: int, latest_start: int, *, reverse: bool
    ) -> Iterator[tuple[Windowed[Any], Any]]:
        """Search the backend with the writes since the last commit laid over it."""
        lower, upper = raw + SUFFIX.pack(first, 0), raw + SUFFIX.pack(MAX_TIME_MS, MAX_TIME_MS) + b"\0"
        changed = self._laid_over(self._changed.kept(self._core.pending, self._cache).of(raw, lower, upper))
        for store_key, data in self._segments.scan(changed, lower, upper, first, reverse=reverse):
            if len(store_key) == len(raw) + SUFFIX.size and store_key.startswith(raw):
                end, start = SUFFIX.unpack_from(store_key, len(raw))
                if start <= latest_start:
                    yield Windowed(key, Window(start, end)), self._value(key, store_key, data)

    def _of_keys(
        self, key_from: Any, key_to: Any, earliest_end: int, latest_start: int, *, reverse: bool
    ) -> Iterator[tuple[Windowed[Any], Any]]:
        lowest = None if key_from is None else self._keys.written(key_from)
        highest = None if key_to is None else self._keys.written(key_to)
        first = max(0, earliest_end, self._kept.find_first())
        changed = self._laid_over(self._changed.kept(self._core.pending, self._cache).all())
        for store_key, data in self._segments.scan(changed, lowest, None, first, reverse=reverse):
            raw = store_key[: -SUFFIX.size]
            end, start = SUFFIX.unpack_from(store_key, len(raw))
            in_keys = (lowest is None or raw >= lowest) and (highest is None or raw <= highest)
            if in_keys and end >= first and start <= latest_start:
                yield Windowed(self._key_of(raw), Window(start, end)), self._value(raw, store_key, data)

    def _read(self, key: Any, store_key: bytes) -> Any:
        if self._cache is not None:
            return self._cache.get(store_key)
        data = self._core.stored(store_key)
        return None if data is None else self._codec.decode(key, data)

    def _value(self, key: Any, store_key: bytes, data: bytes) -> Any:
        cache = self._cache
        if cache is None:
            return self._codec.decode(key, data)
        if store_key not in cache.entries:
            cache.loaded(store_key, data)
        return cache.get(store_key)

    def _laid_over(self, store_keys: Iterable[bytes]) -> Mapping[bytes, bytes | None]:
        """Return the writes since the last commit."""
        # Of cached values only a mark that there is one: `_value` takes them from the cache.
        cache, pending = self._cache, self._core.pending
        if cache is None:
            return {key: pending[key] for key in store_keys}
        return {key: _presence(cache.dirty[key]) if key in cache.dirty else pending.get(key) for key in store_keys}


def _presence(entry: CacheEntry) -> bytes | None:
    return None if entry.value is None else b""


def _session_end(entry: CacheEntry) -> int:
    """Return a session's end, the time with which its updates are forwarded (`SessionCacheFlushListener`)."""
    # Access by index takes half the time of access by name.
    end: int = entry.key[1][1]
    return end


_store: type[StateStore] = SessionStateStore
_session: type[SessionStore[Any, Any]] = SessionStateStore
