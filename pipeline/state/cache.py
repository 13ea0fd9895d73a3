"""Updates that a store holds back until it is flushed, and decoded values kept for the next read (`NamedCache`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from pipeline.state.api import PAUSED_AFTER, CachedUpdate, idle

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.records import Headers
    from pipeline.state.api import Place
    from pipeline.state.codec import Fold, ValueCodec
    from pipeline.state.pending import ChangedKeys

ENTRY_OVERHEAD_BYTES = 200
"""What an entry costs beside its serialized key and value: the objects around them, measured with sys.getsizeof."""


Dirty: TypeAlias = "tuple[Any, int, Headers, Place | None]"
"""The last update of a key that was not flushed yet: key, timestamp (ms), headers, and where it came from."""


def stored_time(value: Any, dirty: Dirty) -> int:
    """The value's own timestamp; a deletion has that of the record that caused it (`TimestampedCacheFlushListener`)."""
    time: int = dirty[1] if value is None else value.timestamp
    return time


@dataclass(slots=True)
class UpdateCache:
    """Decoded values by store key; the dirty ones in the order in which they became dirty.

    Both dicts stay the same objects: loops that aggregate know them (`CachedFold`).
    A value handed out is the live object: whoever changes it in place must put it back, as every aggregation does.

    Args:
        codec: How values become bytes.
        stored: What the store holds without this cache, as bytes.
        put: How a flushed value gets into the store: `(store_key, data, timestamp_ms)`.
        time_of: The time (ms) to forward an update with: `(value, dirty) -> time_ms`.
        pause: Called now and then while entries are flushed: values may be read by their keys meanwhile, but not scanned.
    """

    codec: ValueCodec
    stored: Callable[[bytes], bytes | None]
    put: Callable[[bytes, bytes | None, int], None]
    time_of: Callable[[Any, Dirty], int] = stored_time
    pause: Callable[[], None] = idle
    values: dict[bytes, Any] = field(default_factory=dict)
    dirty: dict[bytes, Dirty] = field(default_factory=dict)
    _listener: Callable[[CachedUpdate], None] | None = None
    _send_old_values: bool = False
    _entry_bytes: int = ENTRY_OVERHEAD_BYTES

    def listen(self, listener: Callable[[CachedUpdate], None], *, send_old_values: bool) -> None:
        """Tell `listener` about every update that is flushed."""
        self._listener = listener
        self._send_old_values = send_old_values

    def load(self, store_key: bytes) -> Any:
        """The value of a key that `values` does not have, which has it from now on."""
        data = self.stored(store_key)
        value = self.values[store_key] = None if data is None else self.codec.decode(data)
        return value

    def flush(self) -> None:
        """Write the dirty values to the store, and tell the listener about each."""
        dirty = self.dirty.copy()
        self.dirty.clear()
        for number, (store_key, last) in enumerate(dirty.items()):
            if number % PAUSED_AFTER == 0:
                self.pause()
            key, updated, headers, metadata = last
            value = self.values[store_key]
            old_data = self.stored(store_key) if value is None or self._send_old_values else None
            if value is None and old_data is None:
                continue  # came and went within one commit: nobody has heard of it
            data = None if value is None else self.codec.encode(value)
            self.put(store_key, data, updated)
            if data is not None:
                self._entry_bytes = len(store_key) + len(data) + ENTRY_OVERHEAD_BYTES
            if self._listener is not None:
                old = self.codec.decode(old_data) if old_data is not None and self._send_old_values else None
                update = CachedUpdate(key, value, old, self.time_of(value, last), headers, metadata)
                self._listener(update)

    def encoded_dirty(self) -> dict[bytes, bytes | None]:
        """The dirty values as the store would hold them, for scans."""
        values = ((key, self.values[key]) for key in self.dirty)
        return {key: None if value is None else self.codec.encode(value) for key, value in values}

    def dirty_bytes(self) -> int:
        """Estimated size of the dirty entries, from the size of the last one flushed."""
        return len(self.dirty) * self._entry_bytes

    def drop_clean(self, limit_bytes: int) -> None:
        """Forget decoded values that are not dirty, if all together take more than `limit_bytes`."""
        if len(self.values) * self._entry_bytes > limit_bytes:
            kept = {key: self.values[key] for key in self.dirty}
            self.values.clear()
            self.values.update(kept)


@dataclass(slots=True)
class KeptStarts:
    """The starts of windows, `first <= start < end` (ms), that a store takes without looking any further."""

    first: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True)
class CachedFold:
    """An aggregation into a cached store of timestamped values, in parts: get, add and put without a call for each.

    Who has it reads the aggregate from `cache.values`, with `cache.load` where that has none, adds a value, and writes the
    result to `cache.values` and `cache.dirty`.

    Args:
        cache: The values.
        fold: What is done with them.
        key_bytes: Gives the first part of a store key, or all of it.
        kept: Of a window store, the starts for which that may be done; for others the store must be asked.
        changed: Of a window store, its store keys that were written, once they are kept.
    """

    cache: UpdateCache
    fold: Fold
    key_bytes: Callable[[Any], bytes]
    kept: KeptStarts = field(default_factory=KeptStarts)
    changed: ChangedKeys | None = None
