"""The newest entries of a store by key, so that most records need no search of the backend."""

from __future__ import annotations

import struct
from bisect import bisect_left

from riverrun.windows import MAX_TIME_MS

ENTRY_OVERHEAD_BYTES = 350
"""Size of an entry besides its value: its place in a list, its suffix and its key. Measured over 200,000, one per key."""
_TRIMMED_AFTER = 8
"""When a key with more entries than this gets another, its expired ones are removed."""
_TIME = struct.Struct(">q")

Entry = tuple[bytes, bytes]
"""The part of an entry's key behind the user's key, and the value. The first begins with the time, so entries sort by time."""


class RecentEntries:
    """All entries of a store whose times are after `known_after`, by key.

    Sessions and stream-stream joins search for entries of a key once per record, and often find none. A search of the backend
    costs ten times as much as a search here, with or without a result.

    A store that was opened or restored knows none of its entries. After `begin_after` its highest time, it knows new ones.
    """

    __slots__ = ("_by_key", "_count", "_last", "known_after")

    def __init__(self) -> None:
        """Know no entries until `begin_after`."""
        self._by_key: dict[bytes, list[Entry]] = {}
        self._count = 0
        self._last = b""
        self.known_after = MAX_TIME_MS
        """Every entry with a later time (ms) is known."""

    def begin_after(self, time_ms: int) -> None:
        """Forget all entries, and know those put from now on: the store has none after this time."""
        self._by_key, self._count, self.known_after = {}, 0, time_ms

    def find(self, key: bytes, lower: bytes, upper: bytes | None = None) -> list[Entry]:
        """Return a copy of a key's known entries, `lower <= suffix < upper`, in order."""
        known = self._by_key.get(key)
        if known is None:
            return []
        end = len(known) if upper is None else bisect_left(known, (upper, b""))
        return known[bisect_left(known, (lower, b"")) : end]

    def put(self, key: bytes, suffix: bytes, data: bytes, first_kept: int) -> None:
        """Note an entry that was written.

        Args:
            key: The user's key.
            suffix: The part of the entry's key behind it.
            data: The value, if it is to be kept here.
            first_kept: Entries of the key before this time (ms) have expired.
        """
        known = self._by_key.get(key)
        self._last = data
        if known is None:
            self._by_key[key] = [(suffix, data)]
        elif known[-1][0] < suffix:  # most entries come in order
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
        """Note an entry that was deleted."""
        known = self._by_key.get(key)
        if known is None:
            return
        at = bisect_left(known, (suffix, b""))
        if at == len(known) or known[at][0] != suffix:
            return
        del known[at]
        self._count -= 1
        if not known:
            del self._by_key[key]

    def forget(self, first_kept: int, limit_bytes: int) -> None:
        """Forget entries if they exceed a limit: all expired ones, then the oldest, down to half of the limit.

        Args:
            first_kept: Entries before this time (ms) have expired.
            limit_bytes: Limit of the entries' size, extrapolated from the last one, bytes.
        """
        entry_bytes = len(self._last) + ENTRY_OVERHEAD_BYTES
        if self._count * entry_bytes <= limit_bytes:
            return
        times = sorted(_TIME.unpack_from(suffix)[0] for known in self._by_key.values() for suffix, _ in known)
        share = limit_bytes // entry_bytes // 2
        if len(times) > share:
            self.known_after = max(self.known_after, first_kept - 1, times[len(times) - share - 1])
        first = (pack_time(self.known_after + 1), b"")
        self._by_key = {
            key: known[bisect_left(known, first) :] for key, known in self._by_key.items() if known[-1] >= first
        }
        self._count = sum(map(len, self._by_key.values()))


def pack_time(time_ms: int) -> bytes:
    """Return a time in the form in which suffixes begin; negative times become 0."""
    return _TIME.pack(min(max(time_ms, 0), MAX_TIME_MS))
