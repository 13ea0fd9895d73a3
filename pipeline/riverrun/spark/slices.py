"""Cuts a range into slices of bounded size, at the same event time in all partitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from riverrun.hosting.inputs import input_lags
from riverrun.hosting.ownership import settled_offsets
from riverrun.kafka.ranges import offsets_at_time, read_range
from riverrun.records import OffsetRange
from riverrun.spark.ranges import RunRange
from riverrun.spark.runs import RunLog
from riverrun.spark.unfinished import cut_as_begun, is_over, joined, left_of_begun

if TYPE_CHECKING:
    from collections.abc import Mapping

    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.kafka.admin import Admin
    from riverrun.records import TopicPartition
    from riverrun.spark.unfinished import InterruptedRun, Slice


@dataclass(frozen=True, slots=True)
class Slices:
    """The slices of a range.

    Args:
        begun: Work that interrupted runs have begun within the range, the first of the parts; None if there is none.
        is_over: Whether the range was done before a later run that was interrupted. Then there is nothing to do, and the
            later run's work stays untouched.
    """

    parts: tuple[Slice, ...] = ()
    begun: InterruptedRun | None = None
    is_over: bool = False

    def with_one_begun(self) -> tuple[Slice, ...]:
        """Return the parts, with all begun work as one."""
        # A dry run cannot tell the begun slices apart in repartition topics.
        if self.begun is None:
            return self.parts
        count = len(self.begun.slices)
        return joined(self.parts[:count]), *self.parts[count:]


def slices_of(connected: ConnectedApplication, run_range: RunRange, max_records: int) -> Slices:
    """Return the slices of a range: first those that an interrupted run has begun, cut as that run has cut them.

    If their external records are processed, repartition topics may still hold some of the results. Slices without external
    records remain then.
    """
    application, admin = connected.application, connected.admin
    repartitions = any(sub.repartition_topics for sub in application.topology.sub_topologies())
    # Without repartition topics, all work of a slice is one transaction per task: nothing is half done.
    begun = RunLog(admin).begun(application) if repartitions else None
    if begun is None:
        parts = cut(admin, run_range, max_records)
        # What workers have left in repartition topics is a slice without external records.
        is_left = repartitions and not parts and any(each.is_internal and each.lag for each in input_lags(connected))
        return Slices(tuple(parts or ([run_range.ranges] if is_left else [])))
    known = settled_offsets(connected, run_range.ranges)
    committed = {tp: found.offset for tp, found in known.items()}
    if is_over(run_range.ranges, begun.whole.ranges, committed):
        return Slices(is_over=True)
    left = left_of_begun(run_range.ranges, begun.whole.ranges, committed)
    if left is None:
        return Slices(tuple(cut(admin, run_range, max_records) or [run_range.ranges]))
    # The same cuts, however far each task came, give the same result as no interruption. With others, a task would read one
    # writer's records of later slices together with another writer's records of earlier ones, which would then be late.
    parts = cut_as_begun(left, [part.ranges for part in begun.slices])
    rest = {tp: OffsetRange(left[tp].end, r.end) for tp, r in run_range.ranges.items()}
    parts += cut(admin, RunRange(rest), max_records)
    return Slices(tuple(parts), begun)


def cut(admin: Admin, run_range: RunRange, max_records: int) -> list[Slice]:
    """Return consecutive parts of a range, of about `max_records` offsets in all partitions together.

    The largest partition is cut into equal shares. All others are cut at the times of the records at its cuts.
    """
    count = -(-run_range.size // max_records)
    if count <= 1:
        return [run_range.ranges] if run_range.size else []
    largest = max(run_range.ranges, key=lambda tp: run_range.ranges[tp].size)
    whole = run_range.ranges[largest]
    cuts: list[Mapping[TopicPartition, int]] = []
    for number in range(1, count):
        offset = whole.start + whole.size * number // count
        # Each cut starts from the one before it: if the log's times do not rise, parts come out uneven, but never wrong.
        before = cuts[-1] if cuts else {tp: r.start for tp, r in run_range.ranges.items()}
        rest = {tp: OffsetRange(before[tp], r.end) for tp, r in run_range.ranges.items()}
        time_ms = _time_at(admin, largest, OffsetRange(offset, whole.end))
        cuts.append(before if time_ms is None else offsets_at_time(admin, rest, time_ms))
    starts = [{tp: r.start for tp, r in run_range.ranges.items()}, *cuts]
    ends = [*cuts, {tp: r.end for tp, r in run_range.ranges.items()}]
    parts: list[Slice] = [{tp: OffsetRange(s[tp], e[tp]) for tp in s} for s, e in zip(starts, ends, strict=True)]
    return [part for part in parts if any(r.size for r in part.values())]


def _time_at(admin: Admin, tp: TopicPartition, rest: OffsetRange) -> int | None:
    """Return the time (ms) of the first record at or after an offset; None if there is none."""
    for _, records in read_range(admin, {tp: rest}):
        if records:
            return records[0].timestamp
    return None
