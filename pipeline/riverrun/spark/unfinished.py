"""The order of a run's parts, and what is left of them after an interruption, to be finished as if there had been none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from riverrun.decoders import UnreadableError, foreign_decoder, why_unreadable
from riverrun.errors import BegunRangeError, RangeError
from riverrun.records import OffsetRange, OffsetVector
from riverrun.spark.ranges import RunRange
from riverrun.topology.grouping import is_cyclic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from riverrun.records import TopicPartition
    from riverrun.topology.nodes import SubTopology

Slice: TypeAlias = "Mapping[TopicPartition, OffsetRange]"
"""The range to process of each external input."""
Step: TypeAlias = "tuple[tuple[int, int], ...]"
"""Levels and slices that are processed at the same time, as pairs of numbers."""


def steps(levels: Sequence[tuple[SubTopology, ...]], slices: int) -> list[Step]:
    """Return the steps of a run; the pairs of level and slice in a step are independent of each other.

    A level works on a slice while the level above works on the next one.

    >>> steps([(), ()], 3)
    [((0, 0),), ((0, 1), (1, 0)), ((0, 2), (1, 1)), ((1, 2),)]
    """
    count = len(levels)
    # Overlapping needs known ends of slices in the repartition topics. They are not known if several levels write to one topic,
    # or a level is run until nothing is left.
    if not _may_overlap(levels):
        return [((level, part),) for part in range(slices) for level in range(count)]
    return [
        tuple((level, step - level) for level in range(count) if 0 <= step - level < slices)
        for step in range(slices + count - 1 if slices else 0)
    ]


def _may_overlap(levels: Sequence[tuple[SubTopology, ...]]) -> bool:
    written = [{topic for sub in level for topic in sub.written_repartition_topics} for level in levels]
    return sum(map(len, written)) == len(set().union(*written)) and not any(is_cyclic(level) for level in levels)


class _Texts(msgspec.Struct, frozen=True):
    """Begun work as it is kept in the topic of runs."""

    whole: str
    slices: list[str]
    ends: list[str]


_texts = foreign_decoder(_Texts)


@dataclass(frozen=True, slots=True)
class InterruptedRun:
    """Work that runs have begun and not finished, with all facts needed to finish it as if they had not been interrupted.

    Args:
        whole: The range from where the tasks of the first run stood to the end of the last slice that was begun.
        slices: The slices that some levels had not finished when it was begun.
        ends: Per slice, its end in the repartition topics that were complete then.
    """

    whole: RunRange
    slices: tuple[RunRange, ...]
    ends: tuple[OffsetVector, ...]

    def encode(self) -> bytes:
        """Return the work as bytes."""
        texts = {"whole": str(self.whole), "slices": [*map(str, self.slices)], "ends": [*map(str, self.ends)]}
        return msgspec.json.encode(texts)

    @classmethod
    def decode(cls, data: bytes) -> InterruptedRun:
        """Read the work from bytes."""
        texts = _texts(data)
        try:
            slices, ends = map(RunRange.parse, texts.slices), map(OffsetVector.parse, texts.ends)
            found = cls(RunRange.parse(texts.whole), tuple(slices), tuple(ends))
        except (RangeError, ValueError) as error:
            raise UnreadableError(why_unreadable(error)) from error
        if len(found.slices) != len(found.ends):
            raise UnreadableError(f"it has {len(found.slices)} slices with {len(found.ends)} ends")
        return found


def left_of_cut(slices: Sequence[Slice], committed: Mapping[TopicPartition, int]) -> list[Slice]:
    """Return the remaining slices of a range; if the range is done, its end."""
    begun = [
        n for n, part in enumerate(slices) if any(r.start < committed.get(tp, 0) for tp, r in part.items() if r.size)
    ]
    if not begun:
        return list(slices)
    # Without a note of begun work, its records in repartition topics cannot be told apart by slice: it becomes one slice.
    count = begun[-1] + 1
    ranges = joined(slices[:count])
    left = {tp: OffsetRange(min(max(r.start, committed.get(tp, 0)), r.end), r.end) for tp, r in ranges.items()}
    return [left, *slices[count:]]


def left_of_begun(wanted: Slice, begun: Slice, committed: Mapping[TopicPartition, int]) -> Slice | None:
    """Return the remaining part of begun work; None if none of it is done, or the committed offsets do not belong to it.

    `begun` is the range from where the tasks stood to the end of the begun work (`InterruptedRun.whole`).
    """
    stands = _stands(begun, committed)
    if all(stands[tp] <= r.start for tp, r in begun.items()) or any(stands[tp] < r.start for tp, r in begun.items()):
        return None
    left = {}
    for tp, asked in wanted.items():
        start = min(max(asked.start, stands.get(tp, 0)), asked.end)
        end = max(start, begun[tp].end) if tp in begun and stands[tp] < begun[tp].end else start
        if end > asked.end:
            message = f"{tp}: an unfinished run covers everything up to offset {end}; {asked} ends before that"
            hint = "Wait until that run ends. If it died, finish its range first, with an end such as latest."
            raise BegunRangeError(message, hint=hint)
        left[tp] = OffsetRange(start, end)
    return left


def cut_as_begun(left: Slice, begun: Sequence[Slice]) -> list[Slice]:
    """Cut the remaining work (`left_of_begun`) into slices that end where the begun slices end."""
    parts: list[Slice] = []
    reached = {tp: r.start for tp, r in left.items()}
    for number, part in enumerate(begun):
        is_last = number == len(begun) - 1
        ends = {
            tp: r.end if is_last or tp not in part else min(max(part[tp].end, reached[tp]), r.end)
            for tp, r in left.items()
        }
        parts.append({tp: OffsetRange(reached[tp], end) for tp, end in ends.items()})
        reached = ends
    return parts


def is_over(wanted: Slice, begun: Slice, committed: Mapping[TopicPartition, int]) -> bool:
    """Return whether a range was done before the unfinished work was begun, so that repeating it has nothing to do.

    Repartition topics then hold records of the later work, part of which is still to be written. The later run finishes it.
    An empty range is over while begun work is still to be written.
    """
    stands = _stands(begun, committed)
    if any(stands.get(tp, 0) < r.end for tp, r in wanted.items()):
        return False
    # The note of the begun work is from before a reset of the application.
    if any(stands[tp] < r.start for tp, r in begun.items()):
        return False
    # Work without records of inputs is what a worker left in repartition topics, which no later run will finish.
    has_inputs = any(r.size for r in begun.values())
    if has_inputs and all(tp in begun and r.end <= begun[tp].start for tp, r in wanted.items()):
        return True
    is_empty = not any(r.size for r in wanted.values())
    return is_empty and any(stands[tp] < r.end for tp, r in begun.items())


def joined(slices: Sequence[Slice]) -> Slice:
    """Join consecutive slices into one."""
    return {tp: OffsetRange(r.start, slices[-1][tp].end) for tp, r in slices[0].items()}


def _stands(begun: Slice, committed: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    # Where work was begun if there is no commit: earlier records may be gone, so 0 would be wrong.
    return {tp: r.start for tp, r in begun.items()} | dict(committed)
