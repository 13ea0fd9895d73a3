"""Parts of stores: pending writes, the newest entries by key, and the order of keys by their last use."""

from __future__ import annotations

import struct
from bisect import bisect_left
from typing import TYPE_CHECKING

from riverrun.windows import MAX_TIME_MS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from riverrun.state.api import Puts, StateBackend, Table
    from riverrun.state.cache import NamedCache

# Size of a write besides the bytes of its key and value: the objects around them. Measured over 200,000: 170 to 240.
WRITE_OVERHEAD_BYTES = 200


def written_bytes(writes: dict[bytes, bytes] | dict[bytes, bytes | None]) -> int:
    """Return the estimated size of writes in memory, extrapolated from the last one, bytes."""
    if not writes:
        return 0
    last = next(reversed(writes))
    return len(writes) * (len(last) + len(writes[last] or b"") + WRITE_OVERHEAD_BYTES)


class ChangedKeys:
    """The store keys written since the last commit, in order, by the user's key that they begin with.

    A search of a key's windows or sessions reads only those of the searched times, however many were written. Some operators
    search for every record.

    Args:
        suffix_bytes: Length of what follows the user's key.
    """

    def __init__(self, suffix_bytes: int) -> None:
        # Stores that are never searched add no writes, which saves the effort.
        self.is_kept = False
        self._suffix_bytes = suffix_bytes
        self._by_key: dict[bytes, list[bytes]] = {}

    def kept(self, pending: Iterable[bytes], cache: NamedCache | None) -> ChangedKeys:
        """Return these keys, which are kept from the first search on."""
        if not self.is_kept:
            self.is_kept = True
            for store_key in {*pending, *(cache.dirty if cache is not None else ())}:
                self.add(store_key[: -self._suffix_bytes], store_key)
        return self

    def add(self, key: bytes, store_key: bytes) -> None:
        """Note a written store key that begins with `key`."""
        known = self._by_key.get(key)
        if known is None:
            self._by_key[key] = [store_key]
            return
        at = bisect_left(known, store_key)
        if at == len(known) or known[at] != store_key:
            known.insert(at, store_key)

    def discard(self, key: bytes, store_key: bytes) -> None:
        """Forget a store key that is in no table: it was written and deleted since the last commit."""
        known = self._by_key.get(key, [])
        at = bisect_left(known, store_key)
        if at < len(known) and known[at] == store_key:
            del known[at]

    def clear(self) -> None:
        self._by_key.clear()

    def of(self, key: bytes, lower: bytes, upper: bytes) -> list[bytes]:
        """Return the store keys of one key, `lower <= store_key < upper`."""
        known = self._by_key.get(key)
        return [] if known is None else known[bisect_left(known, lower) : bisect_left(known, upper)]

    def all(self) -> Iterator[bytes]:
        """Iterate over the store keys of all keys."""
        return (store_key for known in self._by_key.values() for store_key in known)


def prefix_end(prefix: bytes) -> bytes | None:
    r"""Return the smallest key above all keys with a prefix; None if there is none.

    >>> prefix_end(b"a\xff")
    b'b'
    """
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None


def merged_scan(
    pending: Mapping[bytes, bytes | None],
    table: Table,
    lower: bytes | None,
    upper: bytes | None,
    *,
    reverse: bool = False,
) -> Iterator[tuple[bytes, bytes]]:
    """Yield entries of a table with pending writes applied, `lower <= key < upper`, in key order."""
    changed = sorted(
        (key for key in pending if (lower is None or key >= lower) and (upper is None or key < upper)), reverse=reverse
    )
    at = 0
    for key, value in table.scan(lower, upper, reverse=reverse):
        while at < len(changed) and (changed[at] > key if reverse else changed[at] < key):
            written = pending[changed[at]]
            if written is not None:
                yield changed[at], written
            at += 1
        if at < len(changed) and changed[at] == key:
            written = pending[key]
            at += 1
            if written is not None:
                yield key, written
        else:
            yield key, value
    for key in changed[at:]:
        written = pending[key]
        if written is not None:
            yield key, written


# Size of an entry besides its value: its place in a list, its suffix and its key. Measured over 200,000, one per key.
ENTRY_OVERHEAD_BYTES = 350
# When a key with more entries than this gets another, its expired ones are removed.
_TRIMMED_AFTER = 8
_TIME = struct.Struct(">q")

Entry = tuple[bytes, bytes]
"""The part of an entry's key after the user's key, and the value. The first begins with the time, so entries sort by time."""


class RecentEntries:
    """All entries of a store whose times are after `known_after`, by key.

    Sessions and stream-stream joins search for entries of a key once per record, and often find none. A search of the backend
    costs ten times as much as a search here, with or without a result.
    """

    __slots__ = ("_count", "_last", "by_key", "known_after")

    def __init__(self) -> None:
        self.by_key: dict[bytes, list[Entry]] = {}
        """The known entries of each key, in order; at least one."""
        self._count = 0
        self._last = b""
        # Every entry with a later time (ms) is known: none of a store that was just opened or restored, until `begin_after`.
        self.known_after = MAX_TIME_MS

    def begin_after(self, time_ms: int) -> None:
        """Forget all entries, and know those put from now on: the store has none after this time (ms).

        After `MAX_TIME_MS`, none are known, as at the beginning.
        """
        self.by_key, self._count, self.known_after = {}, 0, time_ms

    def find(self, key: bytes, lower: bytes, upper: bytes | None = None) -> list[Entry]:
        """Return a copy of a key's known entries, `lower <= suffix < upper`, in order."""
        known = self.by_key.get(key)
        if known is None:
            return []
        end = len(known) if upper is None else bisect_left(known, (upper, b""))
        return known[bisect_left(known, (lower, b"")) : end]

    def put(self, key: bytes, suffix: bytes, data: bytes, first_kept: int) -> None:
        """Note an entry that was written; entries of the key before `first_kept` (ms) have expired."""
        known = self.by_key.get(key)
        self._last = data
        if known is None:
            self.by_key[key] = [(suffix, data)]
        elif known[-1][0] < suffix:
            # Most entries come in order.
            known.append((suffix, data))
        else:
            at = bisect_left(known, (suffix, b""))
            if known[at][0] == suffix:
                known[at] = (suffix, data)
                return
            known.insert(at, (suffix, data))
        self._count += 1
        if known is not None and len(known) > _TRIMMED_AFTER:
            expired = bisect_left(known, (pack_time(first_kept), b""))
            del known[:expired]
            self._count -= expired

    def remove(self, key: bytes, suffix: bytes) -> None:
        known = self.by_key.get(key)
        if known is None:
            return
        at = bisect_left(known, (suffix, b""))
        if at == len(known) or known[at][0] != suffix:
            return
        del known[at]
        self._count -= 1
        if not known:
            del self.by_key[key]

    def forget(self, first_kept: int, limit_bytes: int) -> None:
        """Forget entries if they exceed a limit: all expired ones, then the oldest, down to half of the limit."""
        entry_bytes = len(self._last) + ENTRY_OVERHEAD_BYTES
        if self._count * entry_bytes <= limit_bytes:
            return
        suffixes = sorted([suffix for known in self.by_key.values() for suffix, _ in known])
        share = limit_bytes // entry_bytes // 2
        if len(suffixes) > share:
            oldest = _TIME.unpack_from(suffixes[len(suffixes) - share - 1])[0]
            # All entries of a time must be known or none: the times up to that of the newest one that is dropped are not.
            self.known_after = max(self.known_after, first_kept - 1, oldest)
        first = (pack_time(self.known_after + 1), b"")
        self.by_key = {
            key: known[bisect_left(known, first) :] for key, known in self.by_key.items() if known[-1] >= first
        }
        self._count = sum(map(len, self.by_key.values()))


def pack_time(time_ms: int) -> bytes:
    """Return a time in the form in which suffixes begin; negative times become 0."""
    return _TIME.pack(min(max(time_ms, 0), MAX_TIME_MS))


_NUMBER = struct.Struct(">q")


class MemoryLRUCache:
    """The keys of a store, least recently used first; a restore from the changelog knows of writes only, not of reads."""

    def __init__(self, store: str, max_entries: int, backend: StateBackend) -> None:
        # The order survives a restart: this table holds the number of each key's last use.
        self._table = f"{store}.order"
        self._max_entries = max_entries
        numbers = {key: _NUMBER.unpack(data)[0] for key, data in backend.table(self._table).scan(None, None)}
        self._numbers: dict[bytes, int] = dict(sorted(numbers.items(), key=lambda entry: entry[1]))
        self._next = max(numbers.values(), default=-1) + 1
        self._changed: dict[bytes, bytes | None] = {}

    def used(self, key: bytes) -> None:
        """Note that a key was read, if the store has it."""
        if key in self._numbers:
            self._move_to_end(key)

    def written(self, key: bytes, data: bytes | None) -> Iterator[bytes]:
        """Note that a key was written or deleted, and yield the keys to evict."""
        if data is None:
            self._forget(key)
            return
        self._move_to_end(key)
        while len(self._numbers) > self._max_entries:
            eldest = next(iter(self._numbers))
            self._forget(eldest)
            yield eldest

    def puts(self) -> Puts:
        """Return the changes since the last commit in the backend's form."""
        return {self._table: self._changed} if self._changed else {}

    def committed(self) -> None:
        """Forget the changes, which are in the backend."""
        self._changed = {}

    def _move_to_end(self, key: bytes) -> None:
        self._numbers.pop(key, None)
        self._numbers[key] = self._next
        self._changed[key] = _NUMBER.pack(self._next)
        self._next += 1

    def _forget(self, key: bytes) -> None:
        if self._numbers.pop(key, None) is not None:
            self._changed[key] = None
