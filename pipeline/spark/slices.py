"""Cuts a range into slices of bounded size, at the same event time in all partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.kafka.ranges import read_range
from pipeline.records import OffsetRange

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.kafka.admin import Admin
    from pipeline.records import TopicPartition
    from pipeline.spark.ranges import RunRange

MAX_RECORDS_PER_SLICE = 2_000_000
"""Of all source partitions together; what a slice's tasks hold of their stores in memory is bounded by it."""


def cut(
    admin: Admin, kafka: Mapping[str, str], run_range: RunRange, max_records: int
) -> list[Mapping[TopicPartition, OffsetRange]]:
    """Consecutive parts of a range.

    The largest partition is cut into equal shares; the times of the records at its cuts are where all others are cut. Where the
    log's times are of no use (they do not rise), parts come out uneven, never wrong.

    Args:
        admin: Asks the brokers.
        kafka: Client properties.
        run_range: What to cut.
        max_records: How many offsets a part should have at most.
    """
    count = -(-run_range.size // max_records)
    if count <= 1:
        return [run_range.ranges] if run_range.size else []
    largest = max(run_range.ranges, key=lambda tp: run_range.ranges[tp].size)
    whole = run_range.ranges[largest]
    cuts: list[dict[TopicPartition, int]] = []
    for number in range(1, count):
        offset = whole.start + whole.size * number // count
        time_ms = _time_at(admin, kafka, largest, OffsetRange(offset, whole.end))
        found = admin.offsets_for_time(run_range.ranges, time_ms) if time_ms is not None else {}
        before = cuts[-1] if cuts else {tp: r.start for tp, r in run_range.ranges.items()}
        cuts.append({tp: min(max(found.get(tp, before[tp]), before[tp]), r.end) for tp, r in run_range.ranges.items()})
    starts = [{tp: r.start for tp, r in run_range.ranges.items()}, *cuts]
    ends = [*cuts, {tp: r.end for tp, r in run_range.ranges.items()}]
    parts = [{tp: OffsetRange(s[tp], e[tp]) for tp in s} for s, e in zip(starts, ends, strict=True)]
    return [part for part in parts if any(r.size for r in part.values())]


def _time_at(admin: Admin, kafka: Mapping[str, str], tp: TopicPartition, rest: OffsetRange) -> int | None:
    """Time (ms) of the first record at or after an offset; None if there is none."""
    for _, records in read_range(admin, kafka, {tp: rest}):
        if records:
            return records[0].timestamp
    return None
