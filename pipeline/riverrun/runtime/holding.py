"""Holds a task for a mark: external inputs go up to given offsets, and internal ones drain.

A mark (`hosting.publication.Mark`) is a consistent picture of a running application. Queues of inputs have limits:
records beyond them are put aside, so that the loops over records need no knowledge of limits.

An internal input has a limit as well once its end is named. Tasks above may learn before this one that the hold is over. The
records that they write then are to be processed with the rights that this task has by then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from riverrun.records import TopicPartition
    from riverrun.runtime.inputs import PartitionGroup, RecordQueue

HERE = 0
"""Limit of an input that holds at its current offset."""
_NOTHING = -1
_DRAINING = 2
"""The first phase that names ends of repartition topics."""


@dataclass(frozen=True, slots=True)
class Hold:
    """A mark's demand on the tasks of one version.

    Args:
        mark: Id of the mark.
        phase: In phase 0, external inputs hold at their current offsets. From phase 1 on, they go up to their limits and hold
            there; those without a limit hold at their current offsets. From phase 2 on, limits name ends of repartition topics
            to be reached, and inputs that are not named hold at their current offsets.
        limits: Limit per input, an offset.
    """

    mark: str
    phase: int
    limits: Mapping[TopicPartition, int]

    def limit(self, tp: TopicPartition, *, is_internal: bool) -> int | None:
        """Return the offset up to which an input may go, or `HERE`; None if it is free, as internal ones are at first."""
        if is_internal and self.phase < _DRAINING:
            return None
        return self.limits.get(tp, HERE) if self.phase else HERE


class Holding:
    """Applies a hold to the inputs of a task, and knows which phase of it the task has reached.

    Args:
        queues: The inputs.
        is_internal: Whether an input is a repartition topic of the application.
    """

    def __init__(self, queues: PartitionGroup, is_internal: Callable[[TopicPartition], bool]) -> None:
        self._queues = queues
        self._is_internal = is_internal
        self._said = _NOTHING
        self.hold: Hold | None = None
        """The hold that is in force; None if the task runs freely."""

    def obey(self, hold: Hold | None) -> None:
        """Hold, or continue. Must not be called between the two halves of a commit."""
        if hold is None or self.hold is None or hold.mark != self.hold.mark:
            self._said = _NOTHING
        self.hold = hold
        self._queues.limit({} if hold is None else self._limits(hold))

    def has_news(self) -> bool:
        """Return whether the task has reached a phase that no commit has reported."""
        return self.hold is not None and self._reached(self.hold) > self._said

    def say(self) -> tuple[str, int] | None:
        """Return the mark and the phase to report in a commit prepared now; None before the first phase."""
        if self.hold is None:
            return None
        self._said = self._reached(self.hold)
        return None if self._said == _NOTHING else (self.hold.mark, self._said)

    def _limits(self, hold: Hold) -> dict[TopicPartition, int]:
        found = {q.tp: hold.limit(q.tp, is_internal=self._is_internal(q.tp)) for q in self._queues.all()}
        return {tp: limit for tp, limit in found.items() if limit is not None}

    def _reached(self, hold: Hold) -> int:
        """Return the highest phase that the task has reached or reported."""
        inputs = self._queues.all()
        if hold.phase >= _DRAINING:
            concerned = any(queue.tp in hold.limits and self._is_internal(queue.tp) for queue in inputs)
        else:
            concerned = any(not self._is_internal(queue.tp) for queue in inputs)
        return hold.phase if concerned and all(self._has_come(queue, hold) for queue in inputs) else self._said

    def _has_come(self, queue: RecordQueue, hold: Hold) -> bool:
        """Return whether an input has reached the offset that the phase demands; always true in phases without a demand."""
        if hold.phase >= _DRAINING:
            return queue.is_at_limit() or queue.tp not in hold.limits
        return queue.is_at_limit() or self._is_internal(queue.tp)
