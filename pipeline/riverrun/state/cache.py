"""Updates that a store holds back until it is flushed, and decoded values kept for the next read."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from riverrun.state.api import CachedUpdate, idle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from riverrun.records import Headers
    from riverrun.state.api import FlushListener, Place, UpdateContext
    from riverrun.state.codec import ValueCodec

# Size of an entry besides its serialized key and value: the objects around them, key and value, and its places in three
# tables. Measured over 200,000 small ones, by tracemalloc and resident memory: 420 to 600.
ENTRY_OVERHEAD_BYTES = 550

# Stands for a value that has not been read yet.
UNREAD: Any = object()

# Stands for a value that may be changed, which is kept as bytes.
ENCODED: Any = object()

_order = attrgetter("order")

# Number of updates that are written to the store together, then forwarded: few enough for a query that waits.
FLUSHED_TOGETHER = 128

# Makes a named tuple in half the time of a call of its class.
_made = tuple.__new__


@dataclass(slots=True, eq=False)
class CacheEntry:
    """A value, and its last update that has not been flushed yet.

    An immutable value is kept as it is. Any other value is kept as bytes, perhaps with a copy for the next reader;
    `NamedCache.value_of` and `NamedCache.hold` distinguish them (`riverrun.state.values`).

    Args:
        value: The value alone; None if there is none, `ENCODED` if it is kept as bytes.
        time: The value's own timestamp (ms), in stores with timestamps.
        whole: Value and timestamp in the form that readers get; None until a read, and for values that can be changed.
        data: The bytes of the value alone.
        order: Number of its last update since the last flush; 0 if there was none. The record of that update had this
            `timestamp` (ms), these `headers`, and came from `place`.
        is_new: Whether the store below the cache is known to have no such key.
    """

    store_key: bytes
    key: Any = None
    value: Any = None
    time: int = 0
    whole: Any = None
    data: bytes = b""
    copy: Any = None
    order: int = 0
    timestamp: int = -1
    headers: Headers = ()
    place: Place | None = None
    is_new: bool = False


def stored_time(entry: CacheEntry) -> int:
    """Return the value's own timestamp, ms; for a deletion the time of its record (`TimestampedCacheFlushListener`)."""
    return entry.timestamp if entry.value is None else entry.time


@dataclass(slots=True)
class NamedCache:
    """Values by store key; updated ones are flushed in the order of their last updates.

    Values that are only read may have no entry, but lie in a dict of their reader (`new_reads`).

    Args:
        stored: Returns the bytes of a key in the store below this cache.
        write: Writes a flushed value to the store: `(store_key, data, timestamp_ms)`.
        time_of: Returns the time (ms) to forward an update with.
        pause: Called now and then while entries are flushed: values may be read by key meanwhile, but not scanned.
        writes_at_once: Whether a value that cannot be written is refused when it is put, so that a handler can decide about
            its record; otherwise some are refused when they are flushed.
    """

    codec: ValueCodec
    stored: Callable[[bytes], bytes | None]
    write: Callable[[bytes, bytes | None, int], None]
    time_of: Callable[[CacheEntry], int] = stored_time
    pause: Callable[[], None] = idle
    writes_at_once: bool = False
    dirty: dict[bytes, CacheEntry] = field(default_factory=dict)
    entries: dict[bytes, CacheEntry] = field(default_factory=dict)
    _flushing: dict[bytes, CacheEntry] = field(default_factory=dict)
    _indexes: list[dict[Any, Any]] = field(default_factory=list)
    _reads: list[dict[bytes, Any]] = field(default_factory=list)
    _listener: FlushListener | None = None
    _send_old_values: bool = False
    _entry_bytes: int = ENTRY_OVERHEAD_BYTES
    # From 1: an entry's order of 0 means that it is clean.
    updates: Iterator[int] = field(default_factory=lambda: count(1))

    def listen(self, listener: FlushListener, *, send_old_values: bool) -> None:
        """Forward every flushed update to `listener`."""
        self._listener = listener
        self._send_old_values = send_old_values

    def new_index(self) -> dict[Any, Any]:
        """Return an empty dict for a user that finds entries by other keys; it is cleared when entries are forgotten."""
        self._indexes.append({})
        return self._indexes[-1]

    def new_reads(self) -> dict[bytes, Any]:
        """Return an empty dict for a reader that keeps values, by store key, without an entry for each.

        Only for keys without an entry: a value is dropped when its key gets one, and all are when entries are forgotten.
        """
        self._reads.append({})
        return self._reads[-1]

    def loaded(self, store_key: bytes, data: bytes | None) -> CacheEntry:
        """Make the entry of a key that is not known yet, given the store's bytes, and return it."""
        if data is None:
            return self._add(CacheEntry(store_key, is_new=True))
        values = self.codec.values
        raw, time = self.codec.split(data)
        value = values.read(store_key, raw)
        entry = self._add(CacheEntry(store_key, time=time))
        if type(value) in values.serde.immutable_types:
            entry.value = value
        else:
            entry.value, entry.data, entry.copy = ENCODED, raw, value
        return entry

    def value_of(self, entry: CacheEntry) -> Any:
        """Return the value of an entry, for a user that may change it."""
        value = entry.value
        if value is not ENCODED:
            return value
        # A copy is handed out once, to a user that may change it; the next one gets a new copy.
        copy, entry.copy = entry.copy, None
        if copy is not None:
            return copy
        try:
            return self.codec.values.deserialize(entry.data)
        except Exception as error:  # a serde may raise anything
            raise self.codec.values.unreadable(entry.key, entry.data, error) from error

    def hold(self, entry: CacheEntry, value: Any, read_from: bytes | None = None) -> None:
        """Set the value of an entry to one that may be changed later; None deletes. A refused value leaves the entry as it was.

        `read_from` are the bytes that the store's serde has just read the value from, if it has.
        """
        values = self.codec.values
        if value is None or type(value) in values.shared:
            entry.value, entry.data, entry.copy = value, b"", None
            return
        data = values.written(entry.key, value)
        # A value that is written as the bytes from which it was read needs no comparison with its copy. Immutable classes do,
        # as their first value decides whether the class is shared.
        is_exact = data == read_from and type(value) not in values.serde.immutable_types
        copy = None if is_exact else values.verify(entry.key, value, data)
        if type(value) in values.shared:
            entry.value, entry.data, entry.copy = value, b"", None
        else:
            entry.value, entry.data, entry.copy = ENCODED, data, copy

    def get(self, store_key: bytes) -> Any:
        """Return the value of a key, or None."""
        return self._whole(self.entries.get(store_key) or self.loaded(store_key, self.stored(store_key)))

    def put(self, store_key: bytes, key: Any, value: Any, context: UpdateContext) -> None:
        """Set the value of a key; None deletes."""
        known = self.entries.get(store_key)
        entry = CacheEntry(store_key) if known is None else known
        entry.key = key
        inner, time = (None, 0) if value is None else self.codec.parts(key, value)
        # Shared values are otherwise written at the flush, when no handler can decide about their record any more.
        if self.writes_at_once and type(inner) in self.codec.values.shared:
            self.codec.values.written(key, inner)
        self.hold(entry, inner)
        if known is None:
            self._add(entry)
        entry.time, entry.whole = time, None if entry.value is ENCODED else value
        entry.timestamp, entry.headers, entry.place = context.timestamp, context.headers, context.record_metadata
        if not entry.order:
            self.mark(entry)
        entry.order = next(self.updates)

    def mark(self, entry: CacheEntry) -> None:
        """Note that a clean entry has been updated. The caller sets its order."""
        self.dirty[entry.store_key] = entry

    def flush(self) -> None:
        """Write the dirty values to the store and forward them to the listener, in groups."""
        # Listeners may put again: such updates belong to the next flush.
        self._flushing, self.dirty = self.dirty, {}
        entries = iter(sorted(self._flushing.values(), key=_order))
        while together := list(islice(entries, FLUSHED_TOGETHER)):
            self.pause()
            updates = self._written(together)
            if self._listener is not None and updates:
                self._listener(updates)
        self._flushing = {}

    def _written(self, entries: Iterable[CacheEntry]) -> list[CachedUpdate]:
        """Write entries to the store, mark them clean, and return the updates."""
        sends_old, tells, stored, write, time_of, codec = (
            self._send_old_values,
            self._listener is not None,
            self.stored,
            self.write,
            self.time_of,
            self.codec,
        )
        joined, serialize = codec.joined, codec.values.serialize
        updates, data, store_key = [], None, b""
        for entry in entries:
            entry.order = 0
            store_key, value, old = entry.store_key, entry.value, None
            if value is None or sends_old:
                old_data = None if entry.is_new else stored(store_key)
                if value is None and old_data is None:
                    # Added and deleted within one commit: no listener knows it.
                    continue
                if sends_old and old_data is not None:
                    old = codec.parts(store_key, codec.decode(store_key, old_data))[0]
            if value is ENCODED:
                data = joined(entry.data, entry.time)
                # The listener may change the object, so it must not stay as the copy of the next reader.
                value, entry.copy = self.value_of(entry) if tells else None, None
            elif value is None:
                data = None
            else:
                try:
                    data = joined(serialize(value), entry.time)
                except Exception as error:  # a serde may raise anything
                    raise codec.values.refused(entry.key, value, error) from error
            write(store_key, data, entry.timestamp)
            entry.is_new = False
            updates.append(_made(CachedUpdate, (entry.key, value, old, time_of(entry), entry.headers, entry.place)))
        if data is not None:
            self._entry_bytes = len(store_key) + len(data) + ENTRY_OVERHEAD_BYTES
        return updates

    def _encoded(self, entry: CacheEntry) -> bytes:
        is_encoded, codec = entry.value is ENCODED, self.codec
        data = entry.data if is_encoded else codec.values.written(entry.key, entry.value)
        return codec.joined(data, entry.time)

    def encoded(self, store_key: bytes) -> bytes | None:
        """Return the value of a known key in the store's form, for scans."""
        entry = self.entries[store_key]
        return None if entry.value is None else self._encoded(entry)

    def encoded_dirty(self) -> dict[bytes, bytes | None]:
        """Return the dirty values in the store's form, for scans."""
        return {key: self.encoded(key) for key in self.dirty}

    def dirty_bytes(self) -> int:
        """Return the estimated size of the dirty entries, extrapolated from the last one flushed, bytes."""
        return len(self.dirty) * self._entry_bytes

    def drop_clean(self, limit_bytes: int) -> None:
        """Forget clean decoded values if they exceed a limit, bytes: the oldest first, down to half of the limit."""
        clean = len(self.entries) - len(self.dirty) + sum(map(len, self._reads))
        if clean * self._entry_bytes <= limit_bytes:
            return
        share = limit_bytes // self._entry_bytes // 2 // (1 + len(self._reads))
        newest = islice(self.entries.items(), max(0, len(self.entries) - share), None)
        self.entries = dict(newest) | self._flushing | self.dirty
        # An index must not lead to an entry that this cache has dropped: its updates would never be flushed.
        for index in self._indexes:
            index.clear()
        for reads in self._reads:
            for store_key in list(islice(reads, max(0, len(reads) - share))):
                del reads[store_key]

    def forget(self, store_key: bytes) -> None:
        """Forget an entry, unless it is dirty."""
        if store_key not in self.dirty and store_key not in self._flushing:
            self.entries.pop(store_key, None)

    def _add(self, entry: CacheEntry) -> CacheEntry:
        self.entries[entry.store_key] = entry
        for reads in self._reads:
            reads.pop(entry.store_key, None)
        return entry

    def _whole(self, entry: CacheEntry) -> Any:
        if entry.value is ENCODED:
            return self.codec.whole(self.value_of(entry), entry.time)
        if entry.whole is None and entry.value is not None:
            entry.whole = self.codec.whole(entry.value, entry.time)
        return entry.whole
