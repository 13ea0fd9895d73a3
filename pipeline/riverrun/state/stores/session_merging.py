"""Adds a record to the newest session of its key, in one call of the store: nearly all records need no more."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from riverrun.state.cache import CacheEntry
from riverrun.windows import Window, Windowed

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.state.api import UpdateContext
    from riverrun.state.cache import NamedCache
    from riverrun.state.codec import StoredKeys
    from riverrun.state.entries import ChangedKeys, RecentEntries
    from riverrun.state.segments import Retention


# End and start of the session after the key (`SessionKeySchema`).
SUFFIX = struct.Struct(">qq")
Merging: TypeAlias = "Callable[[Any, Any, int], bool]"
"""Adds a record's key, value and timestamp (ms), or returns False for one that requires a search."""
# Makes a named tuple in half the time of a call of its class.
_made = tuple.__new__


@dataclass(frozen=True, slots=True)
class SessionFold:
    """The functions of an aggregation into sessions.

    Args:
        initial: Returns the aggregate without values.
        add: `(key, value, aggregate) -> aggregate`; None deletes.
        merge: `(key, aggregate, other_aggregate) -> aggregate`.
    """

    initial: Callable[[], Any]
    add: Callable[[Any, Any, Any], Any]
    merge: Callable[[Any, Any, Any], Any]
    gap_ms: int


@runtime_checkable
class MergesSessions(Protocol):
    """A store that adds records to the newest sessions of their keys."""

    def merging(self, fold: SessionFold) -> Merging | None:
        """Return the function that adds a record; None if sessions have to be found, removed and put one by one."""


@dataclass(frozen=True, slots=True)
class MergedStore:
    """The parts of a session store with a cache.

    Args:
        changed: The keys written since the last commit.
        put: Sets the value of a session, as processors do.
    """

    keys: StoredKeys
    fixed_keys: frozenset[type]
    context: UpdateContext
    recent: RecentEntries
    changed: ChangedKeys
    kept: Retention
    cache: NamedCache
    put: Callable[[Windowed[Any], Any], None]

    def merging(self, fold: SessionFold) -> Merging:
        """Return the function that adds records.

        It has the effect of finding the sessions within the gap, merging and removing them, and putting the result. It returns
        False, and does nothing, if there may be several sessions, or one that is not at hand.
        """
        refused, key_bytes, gap_ms = self.keys.refused, self.keys.serialize, fold.gap_ms
        recent, kept, cache, fixed_keys = self.recent, self.kept, self.cache, self.fixed_keys
        initial, add, merge = fold.initial, fold.add, fold.merge
        shared, pack, unpack = cache.codec.values.shared, SUFFIX.pack, SUFFIX.unpack
        set_newest, put, remove_old = self._set_newest(), self.put, self._remove_old

        def merged(key: Any, value: Any, timestamp: int) -> bool:
            first = timestamp - gap_ms
            # All sessions in reach of the record must be known, and nobody may change the key later.
            if first <= recent.known_after or first < kept.first or key.__class__ not in fixed_keys:
                return False
            try:
                raw = key_bytes(key)
            except Exception as error:  # a serde may raise anything
                raise refused(key, error) from error
            start = end = timestamp
            entry, known = None, recent.by_key.get(raw)
            if known is not None and (times := unpack(known[-1][0]))[0] >= first:
                entry, (old_end, old_start) = cache.entries.get(raw + known[-1][0]), times
                if entry is None or old_start > timestamp + gap_ms or entry.value.__class__ not in shared:
                    return False
                # Two sessions in reach would have to be merged.
                if len(known) > 1 and unpack(known[-2][0])[0] >= first:
                    return False
                start = old_start if old_start < start else start  # noqa: FURB136 - a call takes longer
                end = old_end if old_end > end else end  # noqa: FURB136 - likewise
            suffix = pack(end, start)
            # There was a session with these times before, whose entry must not be overwritten.
            if raw + suffix in cache.entries and (entry is None or entry.store_key != raw + suffix):
                return False
            session = _made(Windowed, (key, _made(Window, (start, end))))
            aggregate = initial() if entry is None else merge(key, initial(), entry.value)
            try:
                aggregate = add(key, value, aggregate)
            except BaseException:
                remove_old(entry, session, timestamp)
                raise
            if aggregate.__class__ in shared:
                set_newest(raw, suffix, session, entry, aggregate)
            else:
                remove_old(entry, session, timestamp)
                put(session, aggregate)
            return True

        return merged

    def _remove_old(self, entry: CacheEntry | None, session: Windowed[Any], timestamp: int) -> None:
        """Remove the session that a record has joined, before it is put again (`KStreamSessionWindowAggregate`)."""
        # Only a session of this one moment stays. If the user's function fails, the session is gone, as in Kafka Streams.
        if entry is not None and session.window != Window(timestamp, timestamp):
            self.put(Windowed(session.key, _window_of(entry.store_key)), None)

    def _set_newest(self) -> Callable[[bytes, bytes, Windowed[Any], CacheEntry | None, Any], None]:
        recent, kept, cache, changed, context = self.recent, self.kept, self.cache, self.changed, self.context
        updates = cache.updates

        def set_newest(
            raw: bytes, suffix: bytes, session: Windowed[Any], entry: CacheEntry | None, aggregate: Any
        ) -> None:
            """Put a session in place of the newest one of its key, or after it."""
            store_key, end, timestamp, headers = raw + suffix, session[1][1], context.timestamp, context.headers
            place = None if context.topic is None else (context.topic, context.partition, context.offset)
            if end >= kept.end:
                kept.reach(end)
            dirty, entries = cache.dirty, cache.entries
            if changed.is_kept:
                changed.add(raw, store_key)
            if entry is None:
                recent.put(raw, suffix, b"", kept.first)
                entry = entries[store_key] = CacheEntry(store_key, is_new=True)
            elif entry.store_key != store_key:
                recent.by_key[raw][-1] = (suffix, b"")
                # A session that grows gets another key: it is removed, and put again with its new times. While the store below
                # does not have it, its entry moves instead: no listener has heard of it.
                if entry.is_new:
                    del entries[entry.store_key]
                    dirty.pop(entry.store_key, None)
                    entry.store_key, entry.order = store_key, 0
                else:
                    if changed.is_kept:
                        changed.add(raw, entry.store_key)
                    entry.key = _made(Windowed, (session[0], _window_of(entry.store_key)))
                    entry.value, entry.whole = None, None
                    entry.timestamp, entry.headers, entry.place = timestamp, headers, place
                    entry.order, dirty[entry.store_key] = next(updates), entry
                    entry = CacheEntry(store_key, is_new=True)
                entries[store_key] = entry
            entry.key, entry.value, entry.whole = session, aggregate, aggregate
            entry.timestamp, entry.headers, entry.place = timestamp, headers, place
            entry.order, dirty[store_key] = next(updates), entry

        return set_newest


def _window_of(store_key: bytes) -> Window:
    end, start = SUFFIX.unpack_from(store_key, len(store_key) - SUFFIX.size)
    return Window(start, end)
