"""Rows that wait for a time, in the order in which they are looked at: those of tables and stores that expire."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Later than any time.
NEVER_MS = 2**63 - 1


class WaitingRows:
    """Rows in a heap, each key once. A row that was written meanwhile comes up too early, and may wait again.

    >>> waiting = WaitingRows({b"a": 30, b"b": 10})
    >>> waiting.add(b"a", 20), waiting.add(b"b", 15)
    (True, False)
    >>> list(waiting.due(25))
    [(10, b'b'), (20, b'a')]

    Args:
        due: The time of each row, ms, by the bytes of its key.
    """

    def __init__(self, due: Mapping[bytes, int] | None = None) -> None:
        self._due = dict(due or {})
        self._heap = [(due_ms, key) for key, due_ms in self._due.items()]
        heapify(self._heap)

    @property
    def next_ms(self) -> int:
        """A time before which no row is due, ms."""
        return self._heap[0][0] if self._heap else NEVER_MS

    def add(self, key: bytes, due_ms: int) -> bool:
        """Let a row wait until a time (ms) at the latest; return False if it waits for an earlier one."""
        known = self._due.get(key)
        if known is not None and known <= due_ms:
            return False
        self._due[key] = due_ms
        heappush(self._heap, (due_ms, key))
        return True

    def due(self, now_ms: int) -> Iterator[tuple[int, bytes]]:
        """Yield the rows whose time has come, with that time (ms), and those that are added meanwhile. They wait no longer."""
        while self._heap and self._heap[0][0] <= now_ms:
            due_ms, key = heappop(self._heap)
            # Otherwise the row got an earlier time, and came up then.
            if self._due.get(key) == due_ms:
                del self._due[key]
                yield due_ms, key
