"""Stores with retention: which entries they keep and accept, and their segments of time, which expire as a whole."""

from __future__ import annotations

import struct
from bisect import bisect_right, insort
from typing import TYPE_CHECKING

from riverrun.state.entries import merged_scan
from riverrun.windows import MAX_TIME_MS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from riverrun.state.api import Puts, StateBackend, Table

# As `Stores.defaultSegmentInterval` of Kafka Streams.
MIN_SEGMENT_MS = 60_000
# Shorter segments share tables of this length: creating and dropping one in RocksDB takes as long as a thousand writes.
_TABLE_MS = 3_600_000
# A time (ms) within an entry's key. In a shared table, the segment's first time precedes keys (`LogicalKeyValueSegment`).
_TIME = struct.Struct(">q")
# Unsigned, for ends of ranges: such a time (ms) may be above the highest one.
_END = struct.Struct(">Q")


def segment_length_ms(retention_ms: int) -> int:
    """Return the length of a segment, ms: half the retention, at least a minute (`SegmentedBytesStore`)."""
    return max(retention_ms // 2, MIN_SEGMENT_MS)


class Segments:
    """Segments of half the retention, at least a minute. A table `<store>.<first time>` holds one, or all of an hour.

    Args:
        suffix_bytes: Length of the part of an entry's key after the user's key. It begins with the entry's time (ms), which
            decides the entry's segment and its expiry.
    """

    def __init__(self, name: str, retention_ms: int, backend: StateBackend, suffix_bytes: int) -> None:
        self._name = name
        self._backend = backend
        self._time_at = -suffix_bytes
        self._segment_ms = segment_length_ms(retention_ms)
        self._table_ms = max(_TABLE_MS // self._segment_ms, 1) * self._segment_ms
        self._shares = self._table_ms > self._segment_ms
        self._segments: dict[int, Table] = {start: self._segment(start) for start in self._found()}
        # Kept in order: some operators search for every record.
        self._starts = sorted(self._segments)

    def time_of(self, key: bytes) -> int:
        """Return the time (ms) in an entry's key."""
        time: int = _TIME.unpack_from(key, self._time_at)[0]
        return time

    def highest_time(self) -> int:
        """Return the highest time of an entry, ms; -1 without entries."""
        for start in reversed(self._starts):
            times = [self.time_of(key) for key, _ in self._segments[start].scan(None, None)]
            if times:
                return max(times)
        return -1

    def get(self, key: bytes, time: int) -> bytes | None:
        """Return an entry of the backend; `time` (ms) is the one in its key."""
        segment = self._segments.get(time // self._segment_ms * self._segment_ms)
        return None if segment is None else segment.get(key)

    def find(self, key: bytes) -> bytes | None:
        time = _TIME.unpack_from(key, self._time_at)[0]
        segment = self._segments.get(time // self._segment_ms * self._segment_ms)
        return None if segment is None else segment.get(key)

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
        """Yield entries with `changed` applied, `lower <= key < upper`, by segment and then by key, or in reverse order.

        Whole segments outside `[time_from, time_to]` are left out; single entries are not.
        """
        by_segment: dict[int, dict[bytes, bytes | None]] = {}
        for key, data in changed.items():
            by_segment.setdefault(self._segment_of(key), {})[key] = data
        starts = self._starts_between(time_from, time_to)
        new = [s for s in by_segment if s not in self._segments and s + self._segment_ms > time_from and s <= time_to]
        if new:
            starts = sorted([*starts, *new])
        for start in reversed(starts) if reverse else starts:
            segment = self._segments.get(start) or self._segment(start)
            yield from merged_scan(by_segment.get(start, {}), segment, lower, upper, reverse=reverse)

    def between(self, time_from: int, time_to: int) -> list[Table]:
        """Return the segments that overlap `time_from` to `time_to` (ms, both inclusive), the oldest first."""
        return [self._segments[start] for start in self._starts_between(time_from, time_to)]

    def puts(self, entries: Iterable[tuple[bytes, bytes | None]], first_kept: int = 0) -> Puts:
        """Return writes in the backend's form. Their segments are known from now on, and empty until they are written.

        Segments with only entries before `first_kept` (ms) are left out: they would be dropped next.
        """
        puts: Puts = {}
        read_time, time_at, segment_ms = _TIME.unpack_from, self._time_at, self._segment_ms
        last, prefix, into = None, b"", dict[bytes, bytes | None]()
        for key, data in entries:
            number = read_time(key, time_at)[0] // segment_ms
            # Entries come in runs of one segment, so its table is found once per run.
            if number != last:
                last, start = number, number * segment_ms
                into = {}
                if start + segment_ms > first_kept:
                    into = puts.setdefault(self._table_name(start), into)
                    if start not in self._segments:
                        self._segments[start] = self._segment(start)
                        insort(self._starts, start)
                prefix = _TIME.pack(start) if self._shares else b""
            into[prefix + key] = data
        return puts

    def drop_before(self, first_kept: int) -> None:
        """Drop the segments with only entries before `first_kept`."""
        expired = self._starts[: bisect_right(self._starts, first_kept - self._segment_ms)]
        if not expired:
            return
        del self._starts[: len(expired)]
        for start in expired:
            del self._segments[start]
        kept = {self._table_name(start) for start in self._segments}
        # A shared table is dropped with its last segment; until then, segments are deleted from it as ranges.
        for name in {self._table_name(start) for start in expired} - kept:
            self._backend.drop(name)
        for start in expired:
            if (name := self._table_name(start)) in kept:
                self._backend.delete_range(name, _TIME.pack(start), _END.pack(start + self._segment_ms))

    def _found(self) -> Iterator[int]:
        """Yield the first times of the segments in the backend."""
        prefix = f"{self._name}."
        for name in self._backend.tables():
            start = name.removeprefix(prefix)
            if start == name or not start.isdecimal():
                continue
            if not self._shares:
                yield int(start)
                continue
            # One seek per segment: after its first entry, the search continues from its end.
            table, lower = self._backend.table(name), b""
            while (entry := next(table.scan(lower, None), None)) is not None:
                (found,) = _TIME.unpack_from(entry[0])
                yield found
                lower = _END.pack(found + self._segment_ms)

    def _starts_between(self, time_from: int, time_to: int) -> list[int]:
        starts = self._starts
        return starts[bisect_right(starts, time_from - self._segment_ms) : bisect_right(starts, time_to)]

    def _segment(self, start: int) -> Table:
        table = self._backend.table(self._table_name(start))
        return _SharedTable(table, start, start + self._segment_ms) if self._shares else table

    def _segment_of(self, key: bytes) -> int:
        return self.time_of(key) // self._segment_ms * self._segment_ms

    def _table_name(self, segment: int) -> str:
        return f"{self._name}.{segment // self._table_ms * self._table_ms}"


class _SharedTable:
    """The entries of one segment in a table that several segments share."""

    def __init__(self, table: Table, start: int, end: int) -> None:
        self._table = table
        self._lowest, self._end = _TIME.pack(start), _END.pack(end)

    def get(self, key: bytes) -> bytes | None:
        return self._table.get(self._lowest + key)

    def scan(self, lower: bytes | None, upper: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        first = self._lowest + (lower or b"")
        end = self._end if upper is None else self._lowest + upper
        rows = self._table.scan(first, end, reverse=reverse)
        return ((key[_TIME.size :], data) for key, data in rows)


class Retention:
    """The times of kept entries: those above the highest time ever put, less a span.

    Readers and writers of an entry with `first <= time < end` need not call any method here. A writer that knows `first` may
    call `reach` for times from `end` on.

    Attributes:
        first: The first time (ms) that is kept; above `end` as long as it is unknown.
        end: Times from here on (ms) are kept as well, and move `first`.
        refused: Number of times that `takes` has refused.
    """

    __slots__ = ("_resumed", "_segments", "_span_ms", "end", "first", "refused")

    def __init__(self, segments: Segments, span_ms: int) -> None:
        # Segments are read at the first use (`find_first`), as the changelog may be restored until then.
        self._segments = segments
        self._span_ms = span_ms
        self._resumed = -1
        self.refused = 0
        self.forget()

    def find_first(self) -> int:
        """Return the first time (ms) that is kept; reads the segments after the store was opened or restored."""
        if self.first > self.end:
            self.reach(max(self._segments.highest_time(), self._resumed))
        return self.first

    @property
    def highest(self) -> int:
        """The highest time ever put, ms; -1 if unknown."""
        return self._resumed if self.first > self.end else self.end - 1

    def resume(self, highest: int) -> None:
        """Continue from the highest time (ms) ever put in an earlier owner's store."""
        # The entry of that time may have been deleted since, so the segments alone do not show it.
        self._resumed = highest
        self.forget()

    def takes(self, time: int) -> bool:
        """Return whether an entry of a time (ms) may be written; refusals are counted."""
        if time < self.find_first():
            self.refused += 1
            return False
        if time >= self.end:
            self.reach(time)
        return True

    def forget(self) -> None:
        """Forget the highest time, after a restore: it is determined again."""
        self.first, self.end = 0, -1

    def reach(self, highest: int) -> None:
        """Continue from a time (ms) above all before; `first` must be known."""
        self.end = highest + 1
        self.first = self.end - self._span_ms


_table: type[Table] = _SharedTable
