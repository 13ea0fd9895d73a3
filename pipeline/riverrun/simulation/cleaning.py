"""Shorter logs: retention by time and size, and the cleaner of compacted topics."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from riverrun.simulation.partition_log import LogEntry, PartitionLog

_NEVER_MS = 2**63 - 1


def retain(log: PartitionLog, config: Mapping[str, str], now_ms: int) -> None:
    """Delete the oldest segments that `retention.ms` or `retention.bytes` do not keep."""
    if "delete" not in config["cleanup.policy"]:
        return
    keep_ms, keep_bytes = int(config["retention.ms"]), int(config["retention.bytes"])
    if keep_ms >= 0:
        _delete_oldest(log, lambda entries: now_ms - max(entry.timestamp_ms for entry in entries) > keep_ms)
    if keep_bytes >= 0:
        _delete_oldest(log, lambda entries: log.size - sum(entry.size for entry in entries) >= keep_bytes)


def _delete_oldest(log: PartitionLog, is_over: Callable[[list[LogEntry]], bool]) -> None:
    while log.entries:
        _first, end, entries = log.segment_entries()[0]
        # A segment may be empty once the cleaner has been there.
        if entries and not is_over(entries):
            return
        log.roll()
        log.delete_before(end)


def clean(log: PartitionLog, config: Mapping[str, str], now_ms: int) -> bool:
    """Clean a log if it is dirty enough: keep the latest record of each key. Return whether it was cleaned."""
    if "compact" not in config["cleanup.policy"]:
        return False
    _roll_for_cleaning(log, config, now_ms)
    first, limit = max(log.cleaned_to, log.start), _cleanable_to(log, config, now_ms)
    if limit <= first or not _is_dirty_enough(log, config, (first, limit), now_ms):
        return False
    latest: dict[bytes | None, int] = {
        entry.key: entry.offset
        for entry in _between(log, first, limit)
        if not entry.is_marker and entry.key is not None and not log.is_aborted(entry)
    }
    horizon_ms = now_ms + int(config["delete.retention.ms"])
    kept: list[LogEntry] = []
    with_records: set[int] = set()
    for entry in _between(log, log.start, limit):
        if entry.is_marker:
            is_needed = entry.producer_id in with_records
            with_records.discard(entry.producer_id)
            if is_needed or _outlives(entry, horizon_ms, now_ms):
                kept.append(entry)
        elif _is_latest(log, entry, latest) and (entry.value is not None or _outlives(entry, horizon_ms, now_ms)):
            kept.append(entry)
            if entry.is_transactional:
                with_records.add(entry.producer_id)
    log.entries[: log.place(limit)] = kept
    log.cleaned_to = limit
    return True


def _outlives(entry: LogEntry, horizon_ms: int, now_ms: int) -> bool:
    """Return whether a tombstone or marker stays; the first cleaning decides for how long."""
    if entry.horizon_ms is None:
        entry.horizon_ms = horizon_ms
    return now_ms < entry.horizon_ms


def _is_latest(log: PartitionLog, entry: LogEntry, latest: Mapping[bytes | None, int]) -> bool:
    return entry.key is not None and not log.is_aborted(entry) and entry.offset >= latest.get(entry.key, -1)


def _between(log: PartitionLog, first: int, end: int) -> list[LogEntry]:
    return log.entries[log.place(first) : log.place(end)]


def _roll_for_cleaning(log: PartitionLog, config: Mapping[str, str], now_ms: int) -> None:
    """Begin a segment if records of the last one must be cleaned by now."""
    active = log.entries[log.place(log.segments[-1]) :]
    if active and now_ms - active[0].timestamp_ms > min(int(config["max.compaction.lag.ms"]), _NEVER_MS):
        log.roll()


def _cleanable_to(log: PartitionLog, config: Mapping[str, str], now_ms: int) -> int:
    """Return up to where the cleaner may work: not in the last segment, in open transactions, or in what is too young."""
    limit = min(log.segments[-1], log.stable_end)
    lag_ms = int(config["min.compaction.lag.ms"])
    if lag_ms > 0:
        for first, _end, entries in log.segment_entries():
            if entries and max(entry.timestamp_ms for entry in entries) > now_ms - lag_ms:
                limit = min(limit, first)
                break
    # Whole segments only.
    return log.segments[max(0, bisect_right(log.segments, limit) - 1)]


def _is_dirty_enough(log: PartitionLog, config: Mapping[str, str], dirty: tuple[int, int], now_ms: int) -> bool:
    first, limit = dirty
    entries = _between(log, first, limit)
    clean_bytes = sum(entry.size for entry in _between(log, log.start, first))
    dirty_bytes = sum(entry.size for entry in entries)
    must = any(now_ms - entry.timestamp_ms > int(config["max.compaction.lag.ms"]) for entry in entries[:1])
    share = float(config["min.cleanable.dirty.ratio"])
    return bool(dirty_bytes) and (must or dirty_bytes > share * (clean_bytes + dirty_bytes))
