"""Orders the parts of a run: levels of sub-topologies run at the same time, each one slice behind the level above."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from riverrun.topology.grouping import is_cyclic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from riverrun.records import OffsetRange, TopicPartition
    from riverrun.topology.nodes import SubTopology

Slice: TypeAlias = "Mapping[TopicPartition, OffsetRange]"
"""The range to process of each external input."""
Step: TypeAlias = "tuple[tuple[int, int], ...]"
"""Levels and slices that are processed at the same time, as pairs of numbers."""


def steps(levels: Sequence[tuple[SubTopology, ...]], slices: int) -> list[Step]:
    """Return the steps of a run; the pairs of level and slice in a step are independent of each other.

    A level works on a slice while the level above works on the next one. This requires known ends of slices in the repartition
    topics. If several levels write to one topic, or a level is run until nothing is left, levels run one after another.

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
    written = [{topic for sub in level for topic in sub.written_repartition_topics} for level in levels]
    return sum(map(len, written)) == len(set().union(*written)) and not any(is_cyclic(level) for level in levels)
