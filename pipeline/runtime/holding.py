"""How a task holds for a mark: what it reads of others goes up to given offsets, and what is internal drains.

A mark (`hosting.publication.Mark`) is a consistent picture of a running application. Limits are set on the queues of inputs:
what lies beyond is put aside, so that the loops over records know nothing of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pipeline.records import TopicPartition
    from pipeline.runtime.queue import RecordQueue, RecordQueues

HERE = 0
"""As a limit: an input goes no further than it has come."""
_NOTHING = -1


@dataclass(frozen=True, slots=True)
class Hold:
    """What a mark asks of the tasks of one version.

    Args:
        mark: Names the mark.
        phase: In phase 0 inputs of others hold where they are. From phase 1 on they go up to their limits and hold there, and
            those without a limit hold where they are. From phase 2 on limits name ends of repartition topics, to be reached.
        limits: Offset per input.
    """

    mark: str
    phase: int
    limits: Mapping[TopicPartition, int]


class Holding:
    """Has the inputs of a task obey a hold, and knows which phase of it the task has reached.

    Args:
        queues: The inputs.
        is_internal: Whether an input is a repartition topic of the application.
    """

    def __init__(self, queues: RecordQueues, is_internal: Callable[[TopicPartition], bool]) -> None:
        """Nothing holds."""
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
        self._queues.limit(
            {} if hold is None else {queue.tp: self._limit(queue.tp, hold) for queue in self._external()}
        )

    def has_news(self) -> bool:
        """Whether the task has reached a phase that no commit has said."""
        return self.hold is not None and self._reached(self.hold) > self._said

    def say(self) -> tuple[str, int] | None:
        """What a commit says that is prepared now: the mark, and the phase that the task has reached; None before the first."""
        if self.hold is None:
            return None
        self._said = self._reached(self.hold)
        return None if self._said == _NOTHING else (self.hold.mark, self._said)

    def _external(self) -> list[RecordQueue]:
        return [queue for queue in self._queues.all() if not self._is_internal(queue.tp)]

    def _limit(self, tp: TopicPartition, hold: Hold) -> int:
        return hold.limits.get(tp, HERE) if hold.phase else HERE

    def _reached(self, hold: Hold) -> int:
        """The highest phase that the task has reached, or what it has said already."""
        inputs = self._queues.all()
        if hold.phase > 1:
            concerned = any(queue.tp in hold.limits and self._is_internal(queue.tp) for queue in inputs)
        else:
            concerned = any(not self._is_internal(queue.tp) for queue in inputs)
        return hold.phase if concerned and all(self._has_come(queue, hold) for queue in inputs) else self._said

    def _has_come(self, queue: RecordQueue, hold: Hold) -> bool:
        """Whether an input is where the phase wants it; in phases that do not ask for it, anywhere."""
        if not self._is_internal(queue.tp):
            return queue.is_at_limit()
        return hold.phase < 2 or queue.committable_offset() >= hold.limits.get(queue.tp, _NOTHING)  # noqa: PLR2004 - the first
