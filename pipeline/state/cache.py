"""Updates that a store holds back until it is flushed, and decoded values kept for the next read (`NamedCache`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from pipeline.state.api import CachedUpdate, idle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pipeline.records import Headers
    from pipeline.state.api import FlushListener, Place, UpdateContext
    from pipeline.state.codec import Fold, ValueCodec
    from pipeline.state.kept_times import KeptTimes

ENTRY_OVERHEAD_BYTES = 550
"""What an entry costs beside its serialized key and value: the objects around them, those of key and value, and its places in
three tables. Measured over 200,000 small ones, by tracemalloc and resident memory: 420 to 600."""

UNREAD: Any = object()
"""Stands for a value that was not read yet."""

FLUSHED_TOGETHER = 128
"""So many updates are written to the store, then forwarded: few enough for somebody who waits to look after them."""

_made = tuple.__new__
"""Makes a named tuple in half the time of a call of its class."""


@dataclass(slots=True, eq=False)
class CacheEntry:
    """A decoded value, and the last update of it that was not flushed yet.

    Args:
        store_key: The key as it lies in the store.
        key: The key to forward with; known from the first update on.
        value: The value alone; None if there is none. It is the live object: whoever changes it in place makes an update of it.
        time: The value's own timestamp (ms), where the store has such.
        whole: Both, as readers are given them; None until one asks.
        is_dirty: Whether it was updated since the last flush, by a record of this `timestamp` (ms) with these `headers`, that
            came from `place`.
    """

    store_key: bytes
    key: Any = None
    value: Any = None
    time: int = 0
    whole: Any = None
    is_dirty: bool = False
    timestamp: int = -1
    headers: Headers = ()
    place: Place | None = None


def stored_time(entry: CacheEntry) -> int:
    """The value's own timestamp; a deletion has that of the record that caused it (`TimestampedCacheFlushListener`)."""
    return entry.timestamp if entry.value is None else entry.time


@dataclass(slots=True)
class UpdateCache:
    """Decoded values by store key; the dirty ones in the order in which they became dirty.

    Values that are only read may have no entry, but lie in a dict of whoever reads them (`new_reads`).

    Args:
        codec: How values become bytes.
        stored: What the store holds without this cache, as bytes.
        write: How a flushed value gets into the store: `(store_key, data, timestamp_ms)`.
        time_of: The time (ms) to forward an update with.
        pause: Called now and then while entries are flushed: values may be read by their keys meanwhile, but not scanned.
    """

    codec: ValueCodec
    stored: Callable[[bytes], bytes | None]
    write: Callable[[bytes, bytes | None, int], None]
    time_of: Callable[[CacheEntry], int] = stored_time
    pause: Callable[[], None] = idle
    dirty: dict[bytes, CacheEntry] = field(default_factory=dict)
    entries: dict[bytes, CacheEntry] = field(default_factory=dict)
    _flushing: dict[bytes, CacheEntry] = field(default_factory=dict)
    _indexes: list[dict[Any, Any]] = field(default_factory=list)
    _reads: list[dict[bytes, Any]] = field(default_factory=list)
    _listener: FlushListener | None = None
    _send_old_values: bool = False
    _entry_bytes: int = ENTRY_OVERHEAD_BYTES

    def listen(self, listener: FlushListener, *, send_old_values: bool) -> None:
        """Tell `listener` about every update that is flushed."""
        self._listener = listener
        self._send_old_values = send_old_values

    def new_index(self) -> dict[Any, Any]:
        """An empty dict for somebody who finds entries by other keys; it is cleared when entries are forgotten."""
        self._indexes.append({})
        return self._indexes[-1]

    def new_reads(self) -> dict[bytes, Any]:
        """An empty dict for somebody who keeps values that were read, by store key, without an entry for each.

        Only for keys that have none: a value is dropped there when its key gets one, and all are when entries are forgotten.
        """
        self._reads.append({})
        return self._reads[-1]

    def loaded(self, store_key: bytes, data: bytes | None) -> CacheEntry:
        """The entry of a key that is not known yet, of which the store has this."""
        whole = None if data is None else self.codec.decode(data)
        entry = self._new_entry(store_key)
        if whole is not None:
            entry.whole = whole
            entry.value, entry.time = self.codec.parts(whole)
        return entry

    def get(self, store_key: bytes) -> Any:
        """The value of a key, or None."""
        return self._whole(self.entries.get(store_key) or self.loaded(store_key, self.stored(store_key)))

    def put(self, store_key: bytes, key: Any, value: Any, context: UpdateContext) -> None:
        """Set the value of a key; None deletes.

        Args:
            store_key: The key as it lies in the store.
            key: The key to forward with.
            value: The value.
            context: The record that causes this.
        """
        entry = self.entries.get(store_key)
        if entry is None:
            entry = self._new_entry(store_key)
        entry.key, entry.whole = key, value
        entry.value, entry.time = (None, 0) if value is None else self.codec.parts(value)
        entry.timestamp, entry.headers, entry.place = context.timestamp, context.headers, context.record_metadata
        if not entry.is_dirty:
            self.mark(entry)

    def mark(self, entry: CacheEntry) -> None:
        """An entry that was clean has been updated."""
        entry.is_dirty = True
        self.dirty[entry.store_key] = entry

    def flush(self) -> None:
        """Write the dirty values to the store, and tell the listener about them, some at a time."""
        self._flushing, self.dirty = self.dirty, {}
        entries = iter(self._flushing.values())
        while together := list(islice(entries, FLUSHED_TOGETHER)):
            self.pause()
            updates = self._written(together)
            if self._listener is not None and updates:
                self._listener(updates)
        self._flushing = {}

    def _written(self, entries: Iterable[CacheEntry]) -> list[CachedUpdate]:
        """Write entries to the store, which are clean from now on; gives what has become of them."""
        sends_old, stored, encode, write, time_of = (
            self._send_old_values,
            self.stored,
            self.codec.encode_parts,
            self.write,
            self.time_of,
        )
        updates, data, store_key = [], None, b""
        for entry in entries:
            entry.is_dirty = False
            store_key, value, old = entry.store_key, entry.value, None
            if value is None or sends_old:
                old_data = stored(store_key)
                if value is None and old_data is None:
                    continue  # came and went within one commit: nobody has heard of it
                if sends_old and old_data is not None:
                    old = self.codec.parts(self.codec.decode(old_data))[0]
            data = None if value is None else encode(value, entry.time)
            write(store_key, data, entry.timestamp)
            updates.append(_made(CachedUpdate, (entry.key, value, old, time_of(entry), entry.headers, entry.place)))
        if data is not None:
            self._entry_bytes = len(store_key) + len(data) + ENTRY_OVERHEAD_BYTES
        return updates

    def encoded(self, store_key: bytes) -> bytes | None:
        """The value of a known key as the store would hold it, for scans."""
        value = self.get(store_key)
        return None if value is None else self.codec.encode(value)

    def encoded_dirty(self) -> dict[bytes, bytes | None]:
        """The dirty values as the store would hold them, for scans."""
        return {key: self.encoded(key) for key in self.dirty}

    def dirty_bytes(self) -> int:
        """Estimated size of the dirty entries, from the size of the last one flushed."""
        return len(self.dirty) * self._entry_bytes

    def drop_clean(self, limit_bytes: int) -> None:
        """Forget decoded values that are not dirty, if these take more than so much: those known longest, to half of it."""
        clean = len(self.entries) - len(self.dirty) + sum(map(len, self._reads))
        if clean * self._entry_bytes <= limit_bytes:
            return
        share = limit_bytes // self._entry_bytes // 2 // (1 + len(self._reads))
        newest = islice(self.entries.items(), max(0, len(self.entries) - share), None)
        self.entries = dict(newest) | self._flushing | self.dirty
        for index in self._indexes:
            index.clear()
        for reads in self._reads:
            for store_key in list(islice(reads, max(0, len(reads) - share))):
                del reads[store_key]

    def forget(self, store_key: bytes) -> None:
        """Forget one of them, unless it is dirty."""
        if store_key not in self.dirty and store_key not in self._flushing:
            self.entries.pop(store_key, None)

    def _new_entry(self, store_key: bytes) -> CacheEntry:
        entry = self.entries[store_key] = CacheEntry(store_key)
        for reads in self._reads:
            reads.pop(store_key, None)
        return entry

    def _whole(self, entry: CacheEntry) -> Any:
        if entry.whole is None and entry.value is not None:
            entry.whole = self.codec.whole(entry.value, entry.time)
        return entry.whole


@dataclass(frozen=True, slots=True)
class CachedLookup:
    """Look-ups of values in a cached store of timestamped ones, in parts: without a call for each.

    Args:
        values: Values that were read, or None where there is none, by the bytes that their keys came as.
        find: `(bytes, key) -> value` for those that are not there.
    """

    values: dict[bytes, Any]
    find: Callable[[bytes, Any], Any]


@dataclass(frozen=True, slots=True)
class CachedFold:
    """An aggregation into a cached store of timestamped values, in parts: get, add and put without a call for each.

    Who has it looks up the entry by bytes that stand for the key - those it came as, or those of the store - in `index`, of a
    window store in `index[start]`. It asks `find` for those that are not there, and tells `mark` about those it makes dirty.

    Args:
        fold: What is done with values.
        key_bytes: Gives the key as the store has it.
        index: Entries that were found.
        find: `(bytes, key)`, of a window store `(bytes, key, start) -> entry`; puts it into the index.
        mark: `(entry)`: it was clean, and is updated.
        kept: Of a window store, the starts for which that may be done, from `first` up to `end`; for others the store must be
            asked.
    """

    fold: Fold
    key_bytes: Callable[[Any], bytes]
    index: dict[Any, Any]
    find: Callable[..., CacheEntry]
    mark: Callable[[CacheEntry], None]
    kept: KeptTimes | None = None
