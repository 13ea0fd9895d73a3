"""Work that interrupted runs have begun, and what is left of it: finished as if they had not been interrupted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from pipeline.errors import BegunRangeError
from pipeline.records import OffsetRange, OffsetVector
from pipeline.spark.ranges import RunRange

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pipeline.records import TopicPartition
    from pipeline.spark.planning.schedule import Slice


@dataclass(frozen=True, slots=True)
class Begun:
    """Work that runs have begun and not finished, with what it takes to finish it as if they had not been interrupted.

    Args:
        whole: From where the tasks of the first of them stood to the end of the last slice that was begun.
        slices: The slices that not all levels had finished when it was begun.
        ends: Of each slice, where it ends in the repartition topics that were complete then.
    """

    whole: RunRange
    slices: tuple[RunRange, ...]
    ends: tuple[OffsetVector, ...]

    def encode(self) -> bytes:
        """As bytes."""
        texts = {"whole": str(self.whole), "slices": [*map(str, self.slices)], "ends": [*map(str, self.ends)]}
        return msgspec.json.encode(texts)

    @classmethod
    def decode(cls, data: bytes) -> Begun:
        """From bytes."""
        texts = msgspec.json.decode(data)
        slices, ends = map(RunRange.parse, texts["slices"]), map(OffsetVector.parse, texts["ends"])
        return cls(RunRange.parse(texts["whole"]), tuple(slices), tuple(ends))


def left_of_cut(slices: Sequence[Slice], committed: Mapping[TopicPartition, int]) -> list[Slice]:
    """The slices that are left of a range; of one that is done, its end.

    All that somebody has begun without a note of it is one slice: what was written of it to repartition topics cannot be told
    apart any more.

    Args:
        slices: All of the range.
        committed: Where the application stands.
    """
    begun = [
        n for n, part in enumerate(slices) if any(r.start < committed.get(tp, 0) for tp, r in part.items() if r.size)
    ]
    if not begun:
        return list(slices)
    count = begun[-1] + 1
    ranges = joined(slices[:count])
    left = {tp: OffsetRange(min(max(r.start, committed.get(tp, 0)), r.end), r.end) for tp, r in ranges.items()}
    return [left, *slices[count:]]


def left_of_begun(wanted: Slice, begun: Slice, committed: Mapping[TopicPartition, int]) -> Slice | None:
    """Return what is left of begun work; None if none of it is done, or what is committed is not of it.

    Args:
        wanted: The range that is asked for.
        begun: From where the tasks stood to the end of what they have begun (`Begun.whole`).
        committed: Where the application stands.

    Raises:
        BegunRangeError: If the range ends before what is begun does.
    """
    stands = _stands(begun, committed)
    if all(stands[tp] <= r.start for tp, r in begun.items()) or any(stands[tp] < r.start for tp, r in begun.items()):
        return None
    left = {}
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
        left[tp] = OffsetRange(start, end)
    return left


def cut_as_begun(left: Slice, begun: Sequence[Slice]) -> list[Slice]:
    """Cut what is left into slices that end where the begun ones did.

    Args:
        left: What is left of all of them (`left_of_begun`).
        begun: Those that were not finished when the last of them began.
    """
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
    """Whether a range was done before that was begun which is not finished yet, so that its repetition has nothing to do.

    What lies in repartition topics then is of later records, some of which are still to be written: their run finishes them.

    Args:
        wanted: The range that is asked for; an empty one is over as long as what is begun is still to be written.
        begun: From where the tasks stood to the end of what they have begun (`Begun.whole`).
        committed: Where the application stands.
    """
    stands = _stands(begun, committed)
    if any(stands.get(tp, 0) < r.end for tp, r in wanted.items()):
        return False
    if any(stands[tp] < r.start for tp, r in begun.items()):  # it is of before a reset
        return False
    if all(tp in begun and r.end <= begun[tp].start for tp, r in wanted.items()):
        return True
    is_empty = not any(r.size for r in wanted.values())
    return is_empty and any(stands[tp] < r.end for tp, r in begun.items())


def joined(slices: Sequence[Slice]) -> Slice:
    """Slices that follow each other, as one."""
    return {tp: OffsetRange(r.start, slices[-1][tp].end) for tp, r in slices[0].items()}


def _stands(begun: Slice, committed: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return where each partition stands; without a commit, where it was begun: records before may be gone."""
    return {tp: r.start for tp, r in begun.items()} | dict(committed)
