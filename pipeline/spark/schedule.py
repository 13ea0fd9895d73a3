"""Which parts of a run are processed at the same time: levels of sub-topologies, each a slice behind the one above."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

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
