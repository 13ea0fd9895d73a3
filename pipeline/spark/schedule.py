"""Which parts of a run are processed at the same time: levels of sub-topologies, each a slice behind the one above."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from pipeline.errors import BegunRangeError
from pipeline.records import OffsetRange
from pipeline.topology.grouping import is_cyclic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pipeline.records import TopicPartition
    from pipeline.topology.nodes import SubTopology

Slice: TypeAlias = "Mapping[TopicPartition, OffsetRange]"
"""What is processed of each external input."""
Step: TypeAlias = "tuple[tuple[int, int], ...]"
"""Levels and slices that are processed at the same time, as pairs of numbers."""


def steps(levels: Sequence[tuple[SubTopology, ...]], slices: int) -> list[Step]:
    """All pairs of level and slice: those of a step are independent of each other.

    A level works on a slice while the level above works on the next one. That needs to be known where in a repartition topic a
    slice ends: if several levels write to one topic, or a level is run until nothing is left, levels follow one another.

    >>> steps([(), ()], 3)
    [((0, 0),), ((0, 1), (1, 0)), ((0, 2), (1, 1)), ((1, 2),)]
    """
    count = len(levels)
    if not _may_overlap(levels):
        return [((level, part),) for part in range(slices) for level in range(count)]
    return [
        tuple((level, step - level) for level in range(count) if 0 <= step - level < slices)
        for step in range(slices + count - 1 if slices else 0)
    ]


def _may_overlap(levels: Sequence[tuple[SubTopology, ...]]) -> bool:
    written = [
        {topic for sub in level for topic in sub.repartition_topics.intersection(sub.sink_topics)} for level in levels
    ]
    return sum(map(len, written)) == len(set().union(*written)) and not any(is_cyclic(level) for level in levels)


def remaining(slices: Sequence[Slice], committed: Mapping[TopicPartition, int]) -> list[Slice]:
    """The slices that are left of a run that was interrupted; of one that is done, its end.

    All that somebody has begun is one slice: what was written of it to repartition topics cannot be told apart any more.
    Partitions that are committed up to a slice's end go on there; any other offset is not of this run, and left for the task
    to refuse.

    Args:
        slices: All of the run.
        committed: Where the application stands.
    """
    begun = [
        n for n, part in enumerate(slices) if any(r.size and committed.get(tp, 0) > r.start for tp, r in part.items())
    ]
    if not begun:
        return list(slices)
    last = begun[-1]
    whole = {}
    for tp, first in slices[0].items():
        start, end = min(committed.get(tp, 0), slices[last][tp].end), slices[last][tp].end
        is_own = start == end or any(part[tp].start == start for part in slices[: last + 1])
        whole[tp] = OffsetRange(start if is_own else first.start, end)
    return [whole, *slices[last + 1 :]]


def is_over(wanted: Slice, begun: Slice, committed: Mapping[TopicPartition, int]) -> bool:
    """Whether a range was done before that was begun which is not finished yet, so that its repetition has nothing to do.

    What lies in repartition topics then is of later records, some of which are still to be written: their run finishes them.

    Args:
        wanted: The range that is asked for; an empty one is over as long as what is begun is still to be written.
        begun: From where the tasks of runs that were interrupted stood to the end of what they have begun.
        committed: Where the application stands.
    """
    if any(committed.get(tp, 0) < r.end for tp, r in wanted.items()):
        return False
    if any(committed.get(tp, 0) < r.start for tp, r in begun.items()):  # it is of before a reset
        return False
    if all(tp in begun and r.end <= begun[tp].start for tp, r in wanted.items()):
        return True
    is_empty = not any(r.size for r in wanted.values())
    return is_empty and any(committed.get(tp, 0) < r.end for tp, r in begun.items())


def slice_begun(wanted: Slice, begun: Slice, committed: Mapping[TopicPartition, int]) -> Slice | None:
    """The rest of what runs that were interrupted have begun; None if nothing is, or what is committed is not theirs.

    Args:
        wanted: The range that is asked for.
        begun: From where these runs' tasks stood to the end of what they have begun.
        committed: Where the application stands.

    Raises:
        BegunRangeError: If the range ends before what is begun does.
    """
    stands = {tp: committed.get(tp, 0) for tp in begun}
    if all(stands[tp] <= r.start for tp, r in begun.items()) or any(stands[tp] < r.start for tp, r in begun.items()):
        return None
    first = {}
    for tp, asked in wanted.items():
        start = min(max(asked.start, stands.get(tp, 0)), asked.end)
        end = max(start, begun[tp].end) if tp in begun and stands[tp] < begun[tp].end else start
        if end > asked.end:
            message = (
                f"{tp}: another run has begun everything up to offset {end}, and not finished it; {asked} ends before"
            )
            hint = (
                "Wait for its end. If it died, finish that first: ask for an end that lies no earlier, such as latest."
            )
            raise BegunRangeError(message, hint=hint)
        first[tp] = OffsetRange(start, end)
    return first


def parts_begun(first: Slice, begun: Sequence[Slice]) -> list[Slice]:
    """What is left of the slices that were begun, each for itself, as they were cut.

    Args:
        first: What is left of all of them (`slice_begun`).
        begun: Those that were not finished when the last of them began.
    """
    parts: list[Slice] = []
    reached = {tp: r.start for tp, r in first.items()}
    for number, part in enumerate(begun):
        is_last = number == len(begun) - 1
        ends = {
            tp: r.end if is_last or tp not in part else min(max(part[tp].end, reached[tp]), r.end)
            for tp, r in first.items()
        }
        parts.append({tp: OffsetRange(reached[tp], end) for tp, end in ends.items()})
        reached = ends
    return parts


@dataclass(frozen=True, slots=True)
class Slices:
    """How a range is cut.

    Args:
        parts: One after the other.
        begun: Of the first of them, which earlier runs have begun, where each ends in the repartition topics; what is not
            known, is where these end now.
        is_over: Whether the range was done before a later run that was interrupted: nothing is to be done, and that is left
            alone.
    """

    parts: tuple[Slice, ...] = ()
    begun: tuple[Mapping[TopicPartition, int], ...] = ()
    is_over: bool = False

    def with_one_begun(self) -> tuple[Slice, ...]:
        """The parts, all that was begun as one: for who cannot tell apart what was written of it to repartition topics."""
        count = len(self.begun)
        if count == 0:
            return self.parts
        first, last = self.parts[0], self.parts[count - 1]
        return {tp: OffsetRange(r.start, last[tp].end) for tp, r in first.items()}, *self.parts[count:]
