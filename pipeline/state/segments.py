"""Stores that keep a stretch of time cut it into segments, each a table, and drop them as a whole (`AbstractSegments`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pipeline.state.api import StateBackend, Table

_MIN_SEGMENT_MS = 60_000


class Segments:
    """The segments of one store.

    Args:
        store: Name of the store; its tables are `<store>.<first time of the segment, ms>`.
        backend: Where they lie.
        retention_ms: How long the store keeps what it is given; a segment is half as long, and at least a minute.
    """

    def __init__(self, store: str, backend: StateBackend, retention_ms: int) -> None:
        """Find the segments that exist."""
        self._prefix = f"{store}."
        self._backend = backend
        self._length_ms = max(retention_ms // 2, _MIN_SEGMENT_MS)
        self._tables: dict[int, Table] = {}
        names = (name[len(self._prefix) :] for name in backend.tables() if name.startswith(self._prefix))
        for name in names:
            if name.isdecimal():
                self._register(int(name))

    def table_name(self, time: int) -> str:
        """Name of the table that holds what belongs to `time` (ms)."""
        return f"{self._prefix}{self._start(time)}"

    def between(self, time_from: int, time_to: int) -> list[Table]:
        """The tables with anything from `time_from` to `time_to`, both inclusive; the oldest first."""
        starts = (s for s in sorted(self._tables) if s + self._length_ms > time_from and s <= time_to)
        return [self._tables[start] for start in starts]

    def written(self, times: Iterable[int]) -> None:
        """Something that belongs to these times has been, or is about to be, written to the backend."""
        for start in {self._start(time) for time in times} - self._tables.keys():
            self._register(start)

    def drop_before(self, time: int) -> None:
        """Drop the tables that hold nothing of `time` or later."""
        for start in [s for s in self._tables if s + self._length_ms <= time]:
            del self._tables[start]
            self._backend.drop(f"{self._prefix}{start}")

    def _start(self, time: int) -> int:
        return time // self._length_ms * self._length_ms

    def _register(self, start: int) -> None:
        self._tables[start] = self._backend.table(f"{self._prefix}{start}")
