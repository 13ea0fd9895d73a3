"""Writes since the last commit, merged with the entries of a table."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from riverrun.state.api import Table


WRITE_OVERHEAD_BYTES = 200
"""Size of a write besides the bytes of its key and value: the objects around them. Measured over 200,000: 170 to 240."""


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
        is_kept: Whether writes are added at all: stores that are never searched save the effort.
    """

    def __init__(self, *, is_kept: bool = True) -> None:
        self.is_kept = is_kept
        self._by_key: dict[bytes, list[bytes]] = {}

    def add(self, key: bytes, store_key: bytes) -> None:
        """Note a written store key that begins with `key`."""
        known = self._by_key.get(key)
        if known is None:
            self._by_key[key] = [store_key]
            return
        at = bisect_left(known, store_key)
        if at == len(known) or known[at] != store_key:
            known.insert(at, store_key)

    def clear(self) -> None:
        """Forget all keys, at a commit."""
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
