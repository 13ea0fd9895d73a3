"""The tables of a store that forgets: one per stretch of time, dropped as a whole when all of it has expired."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.state.pending import merged_scan
from pipeline.windows import MAX_TIME_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pipeline.state.api import Puts, StateBackend, Table

MIN_SEGMENT_MS = 60_000
"""Shortest segment (`Stores.defaultSegmentInterval`)."""


def segment_length_ms(retention_ms: int) -> int:
    """Length of a segment: half the retention, at least a minute (`SegmentedBytesStore`)."""
    return max(retention_ms // 2, MIN_SEGMENT_MS)


class Segments:
    """Tables `<store>.<first time>`, each for half the retention, at least a minute.

    Args:
        name: Name of the store.
        retention_ms: How long entries are kept.
        backend: Where the tables are.
        time_of: The time (ms) that an entry's key carries; decides its segment and when it expires.
    """

    def __init__(self, name: str, retention_ms: int, backend: StateBackend, time_of: Callable[[bytes], int]) -> None:
        """Open the tables that exist."""
        self._name = name
        self._backend = backend
        self._time_of = time_of
        self._segment_ms = segment_length_ms(retention_ms)
        prefix = f"{name}."
        names = (table[len(prefix) :] for table in backend.tables() if table.startswith(prefix))
        self._tables: dict[int, Table] = {
            int(start): backend.table(prefix + start) for start in names if start.isdecimal()
        }

    def highest_time(self) -> int:
        """The highest time of an entry; -1 without entries."""
        for start in sorted(self._tables, reverse=True):
            times = [self._time_of(key) for key, _ in self._tables[start].scan(None, None)]
            if times:
                return max(times)
        return -1

    def get(self, key: bytes, time: int) -> bytes | None:
        """An entry as the backend has it; `time` (ms) is the one its key carries."""
        table = self._tables.get(time // self._segment_ms * self._segment_ms)
        return None if table is None else table.get(key)

    def scan(
        self,
        changed: Mapping[bytes, bytes | None],
        lower: bytes | None,
        upper: bytes | None,
        time_from: int,
        time_to: int = MAX_TIME_MS,
        *,
        reverse: bool = False,
    ) -> Iterator[tuple[bytes, bytes]]:
        """Entries with `changed` laid over them, `lower <= key < upper`: by segment, then by key; or the other way round.

        Whole segments outside `[time_from, time_to]` are left out; single entries are not.
        """
        by_segment: dict[int, dict[bytes, bytes | None]] = {start: {} for start in self._tables}
        for key, data in changed.items():
            by_segment.setdefault(self._segment_of(key), {})[key] = data
        for start in sorted(by_segment, reverse=reverse):
            if start + self._segment_ms > time_from and start <= time_to:
                table = self._tables.get(start) or self._backend.table(self._table_name(start))
                yield from merged_scan(by_segment[start], table, lower, upper, reverse=reverse)

    def between(self, time_from: int, time_to: int) -> list[Table]:
        """The tables with anything from `time_from` to `time_to` (ms, both inclusive); the oldest first."""
        starts = (s for s in sorted(self._tables) if s + self._segment_ms > time_from and s <= time_to)
        return [self._tables[start] for start in starts]

    def puts(self, entries: Iterable[tuple[bytes, bytes | None]]) -> Puts:
        """Writes as the backend wants them; their segments are known from now on, and empty until they are written."""
        puts: Puts = {}
        time_of, segment_ms = self._time_of, self._segment_ms
        last, into = None, dict[bytes, bytes | None]()
        for key, data in entries:
            segment = time_of(key) // segment_ms
            if segment != last:  # they come in runs of one segment
                last, start = segment, segment * segment_ms
                into = puts.setdefault(self._table_name(start), {})
                self._tables.setdefault(start, self._backend.table(self._table_name(start)))
            into[key] = data
        return puts

    def drop_before(self, first_kept: int) -> None:
        """Drop the segments of which every entry is before `first_kept`."""
        for start in [s for s in self._tables if s + self._segment_ms <= first_kept]:
            del self._tables[start]
            self._backend.drop(self._table_name(start))

    def _segment_of(self, key: bytes) -> int:
        return self._time_of(key) // self._segment_ms * self._segment_ms

    def _table_name(self, segment: int) -> str:
        return f"{self._name}.{segment}"
