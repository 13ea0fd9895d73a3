"""How a task holds for a mark: what it reads of others goes up to given offsets, and what is internal drains.

A mark (`hosting.control.publication.Mark`) is a consistent picture of a running application. Limits are set on the queues of
inputs: what lies beyond is put aside, so that the loops over records know nothing of it.

An input that is internal has a limit as well once its end is named: tasks above may hear before this one that the hold is
over, and what they write then is to be processed with the right that this task has got by then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pipeline.records import TopicPartition
    from pipeline.runtime.partition_group import PartitionGroup
    from pipeline.runtime.queue import RecordQueue

HERE = 0
"""As a limit: an input goes no further than it has come."""
_NOTHING = -1
_DRAINING = 2
"""The first phase that names ends of repartition topics."""


@dataclass(frozen=True, slots=True)
class Hold:
    """The demand of a mark on the tasks of one version.

    Args:
        mark: Names the mark.
        phase: In phase 0 inputs of others hold where they are. From phase 1 on they go up to their limits and hold there, and
            those without a limit hold where they are. From phase 2 on limits name ends of repartition topics, to be reached,
            and all inputs that are not named hold where they are.
        limits: Offset per input.
    """

    mark: str
    phase: int
    limits: Mapping[TopicPartition, int]

    def limit(self, tp: TopicPartition, *, is_internal: bool) -> int | None:
        """Up to which offset an input may go, which may be `HERE`; None if it is free, as internal ones are at first."""
        if is_internal and self.phase < _DRAINING:
            return None
        return self.limits.get(tp, HERE) if self.phase else HERE


class Holding:
    """Has the inputs of a task obey a hold, and knows which phase of it the task has reached.

    Args:
        queues: The inputs.
        is_internal: Whether an input is a repartition topic of the application.
    """

    def __init__(self, queues: PartitionGroup, is_internal: Callable[[TopicPartition], bool]) -> None:
        self._queues = queues
        self._is_internal = is_internal
        self._said = _NOTHING
        self.hold: Hold | None = None
        """What the task obeys now; None if it runs freely."""

    def obey(self, hold: Hold | None) -> None:
        """Hold, or go on. Not between the two halves of a commit."""
        if hold is None or self.hold is None or hold.mark != self.hold.mark:
            self._said = _NOTHING
        self.hold = hold
        self._queues.limit({} if hold is None else self._limits(hold))

    def has_news(self) -> bool:
        """Whether the task has reached a phase that no commit has said."""
        return self.hold is not None and self._reached(self.hold) > self._said

    def say(self) -> tuple[str, int] | None:
        """Return what a commit prepared now says: the mark, and the phase that the task has reached; None before the first."""
        if self.hold is None:
            return None
        self._said = self._reached(self.hold)
        return None if self._said == _NOTHING else (self.hold.mark, self._said)

    def _limits(self, hold: Hold) -> dict[TopicPartition, int]:
        found = {q.tp: hold.limit(q.tp, is_internal=self._is_internal(q.tp)) for q in self._queues.all()}
        return {tp: limit for tp, limit in found.items() if limit is not None}

    def _reached(self, hold: Hold) -> int:
        """The highest phase that the task has reached, or what it has said already."""
        inputs = self._queues.all()
        if hold.phase >= _DRAINING:
            concerned = any(queue.tp in hold.limits and self._is_internal(queue.tp) for queue in inputs)
        else:
            concerned = any(not self._is_internal(queue.tp) for queue in inputs)
        return hold.phase if concerned and all(self._has_come(queue, hold) for queue in inputs) else self._said

    def _has_come(self, queue: RecordQueue, hold: Hold) -> bool:
        """Whether an input is where the phase wants it; in phases that do not ask for it, anywhere."""
        if hold.phase >= _DRAINING:
            return queue.is_at_limit() or queue.tp not in hold.limits
        return queue.is_at_limit() or self._is_internal(queue.tp)
