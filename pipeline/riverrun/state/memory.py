"""A backend in memory: for the test driver, for stores that need not survive, and as the model for tests of RocksDB."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from riverrun.errors import UnsupportedByHostError
from riverrun.state.api import idle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from riverrun.records import TopicPartition, Whole
    from riverrun.state.api import Puts, StateBackend, Table


class MemoryTable:
    """An ordered map: a dict, with its keys sorted when a scan needs them."""

    def __init__(self) -> None:
        self._entries: dict[bytes, bytes] = {}
        # None while the order has to be determined again, by the next scan.
        self._sorted: list[bytes] | None = []
        self.get = self._entries.get

    def __len__(self) -> int:
        return len(self._entries)

    def scan(self, lower: bytes | None, upper: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Return entries with `lower <= key < upper`, as they are now."""
        if self._sorted is None:
            self._sorted = sorted(self._entries)
        start = 0 if lower is None else bisect_left(self._sorted, lower)
        end = len(self._sorted) if upper is None else bisect_left(self._sorted, upper)
        keys = self._sorted[start:end]
        if reverse:
            keys.reverse()
        # A list, as of now: later writes must not be visible in the scan.
        return iter([(key, self._entries[key]) for key in keys])

    def update(self, puts: Mapping[bytes, bytes | None]) -> None:
        """Apply writes; None deletes."""
        # Overwritten values keep the order of keys. Deletions reset it at once: with an addition, the number would be the same.
        before = len(self._entries)
        for key, value in puts.items():
            if value is None:
                if self._entries.pop(key, None) is not None:
                    self._sorted = None
            else:
                self._entries[key] = value
        if len(self._entries) != before:
            self._sorted = None

    def clear(self) -> None:
        self._entries.clear()
        self._sorted = []


class MemoryBackend:
    """Tables in memory."""

    def __init__(self) -> None:
        self._tables: dict[str, MemoryTable] = {}
        self._positions: dict[TopicPartition, int] = {}
        self._topic_ids: dict[str, str] = {}
        self._whole: Whole | None = None

    def table(self, name: str) -> MemoryTable:
        return self._tables.setdefault(name, MemoryTable())

    def tables(self) -> tuple[str, ...]:
        """Return the sorted names of the tables with entries."""
        return tuple(sorted(name for name, table in self._tables.items() if len(table)))

    def drop(self, name: str) -> None:
        if name in self._tables:
            self._tables.pop(name).clear()

    def delete_range(self, name: str, lower: bytes, upper: bytes) -> None:
        table = self.table(name)
        table.update(dict.fromkeys([key for key, _ in table.scan(lower, upper)]))

    def write(
        self,
        puts: Puts,
        positions: Mapping[TopicPartition, int],
        pause: Callable[[], None] = idle,
        *,
        in_parts: bool = False,  # noqa: ARG002 - nothing outlives the process
        whole: Whole | None = None,
    ) -> None:
        """Apply writes and positions, without pauses."""
        pause()
        for name, entries in puts.items():
            self.table(name).update(entries)
        self._positions.update(positions)
        self._whole = whole or self._whole

    def positions(self) -> dict[TopicPartition, int]:
        return dict(self._positions)

    def whole(self) -> Whole | None:
        return self._whole

    def topic_ids(self) -> dict[str, str]:
        """Return the recorded ids of the changelog topics."""
        return dict(self._topic_ids)

    def note_topic_ids(self, ids: Mapping[str, str]) -> None:
        self._topic_ids.update(ids)

    def checkpoint(self, directory: Path) -> None:
        raise UnsupportedByHostError(f"State in memory cannot be copied to {directory}")

    def close(self) -> None:
        """Do nothing: entries stay, so that a task can be opened again in this process."""

    def wipe(self) -> None:
        for table in self._tables.values():
            table.clear()
        self._positions.clear()
        self._topic_ids.clear()
        self._whole = None


_backend: type[StateBackend] = MemoryBackend
_table: type[Table] = MemoryTable
