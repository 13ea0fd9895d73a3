"""A partition in memory whose cleaner removes tombstones as Kafka's does, and the requests that copies of it make."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from riverrun.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

TP = TopicPartition("app-table-changelog", 0)


@dataclass(frozen=True)
class Written:
    """A record. Times are the broker's."""

    offset: int
    key: bytes
    value: bytes | None


@dataclass
class CompactedLog:
    """A compacted partition, and the table that its whole history makes.

    Args:
        retention_ms: `delete.retention.ms`.
        now_ms: The broker's clock.
        jumped_ms: By how much it was set forward while the clocks of hosts were right.
    """

    retention_ms: int
    now_ms: int = 1_000_000_000
    jumped_ms: int = 0
    records: list[Written] = field(default_factory=list)
    start: int = 0
    end: int = 0
    table: dict[bytes, bytes] = field(default_factory=dict)
    _active: int = 0
    _removed_at: dict[int, int] = field(default_factory=dict)

    def write(self, key: bytes, value: bytes | None, *, marked: bool = True) -> None:
        """Append a record and, in a transaction, its marker."""
        self.records.append(Written(self.end, key, value))
        self.end += 1 + marked
        if value is None:
            self.table.pop(key, None)
        else:
            self.table[key] = value

    def clean(self) -> None:
        """Clean what is not in the active segment, which then begins at the last record."""
        last = {each.key: each.offset for each in self.records if each.offset < self._active}
        kept = []
        for each in self.records:
            if each.offset < self._active:
                if last[each.key] != each.offset:
                    continue
                if each.value is None:
                    due_at = self._removed_at.setdefault(each.offset, self.now_ms + self.retention_ms)
                    if self.now_ms >= due_at:
                        continue
            kept.append(each)
        self.records = kept
        self._active = max(self._active, max((each.offset for each in self.records), default=0))

    def clean_up(self, passed_ms: int) -> None:
        """Clean all but the last record, and once more after a time."""
        self.clean()
        self.clean()  # after the first, a new segment is active
        self.now_ms += passed_ms
        self.clean()

    def jump(self, ms: int) -> None:
        """Set the broker's clock forward, or back."""
        self.now_ms += ms
        self.jumped_ms += ms

    def trim(self) -> None:
        """Delete all but the last record, as brokers do because of their age, or as somebody asks them to."""
        self.records = self.records[-1:]
        self.start = self.records[0].offset if self.records else self.end

    def read(self, start: int, end: int) -> Iterator[Written]:
        """Yield the records that are left of a range."""
        return (each for each in list(self.records) if start <= each.offset < end)


class Brokers:
    """Brokers with one log, as copies of it ask them.

    Args:
        log: The log.
    """

    def __init__(self, log: CompactedLog) -> None:
        self.log = log
        self.settings: dict[str, str] = {"cleanup.policy": "compact"}
        self.clock: Any = SimpleNamespace(
            **dict.fromkeys(["now_ms", "noted_ms", "reckoned_ms"], lambda: log.now_ms),
            apart_ms=lambda: abs(log.jumped_ms),
        )

    def beginning_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(tps, self.log.start)

    log_starts = beginning_offsets

    def end_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(tps, self.log.end)

    written_offsets = end_offsets

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        return dict.fromkeys(topics, "id")

    def topic_configs(self, topics: Iterable[str]) -> Mapping[str, Mapping[str, str]]:
        settings = {"delete.retention.ms": str(self.log.retention_ms), **self.settings}
        return dict.fromkeys(topics, settings)
