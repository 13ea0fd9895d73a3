"""Barriers: the offsets at which the tasks of running versions pause, so that versions can be compared or switched.

A barrier is a consistent picture of a running application: external inputs go up to given offsets, and internal ones drain.
Queues of inputs have limits: records beyond them are put aside, so that the loops over records need no knowledge of limits.

An internal input has a limit as well once its end is named: upstream tasks may learn first that the pause is over. What they
write then must be processed by the rules that hold for this task after the pause.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - msgspec reads the annotations
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from riverrun.decoders import Line, Name, Natural, Small, Time, Word  # noqa: TC001 - as above
from riverrun.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.runtime.inputs import PartitionGroup, RecordQueue

# No record has an offset below 0, so this limit holds an input where it is.
HERE = 0
_NOTHING = -1
# The first phase that names ends of repartition topics: external inputs have reached their limits in phase 1.
_DRAINING = 2


@dataclass(frozen=True, slots=True)
class Barrier:
    """Asks the tasks of some versions to process exactly up to given offsets, commit there, and pause.

    It has phases. In phase 0, tasks that read external topics stop wherever they are. In phase 1 they process up to the offsets
    that the barrier then names, and pause. Each further phase names the ends of the repartition topics one level below. A task
    acknowledges a phase with a commit whose metadata names the barrier and the phase. A pause ends when the record of the
    application has no barrier.

    Args:
        limits: Offset per `topic-partition` at which to pause, by version; other versions do not pause.
        timeout_ms: Time after which an incomplete barrier is given up, ms; it does not apply once a switch is under way.
        since_ms: When versions began to pause, ms since the epoch; set when the barrier is first recorded.
        by: The user whose command made them pause; likewise.
    """

    id: Word
    phase: Small = 0
    limits: Mapping[Name, Mapping[str, Natural]] = field(default_factory=dict)
    timeout_ms: Natural = 30_000
    since_ms: Time = 0
    by: Line = ""

    def __post_init__(self) -> None:
        # Another process has written it: a limit of no partition fails here, not in a running task.
        for version in self.limits:
            self.limits_of(version)

    def limits_of(self, version: str) -> Limits | None:
        """Return where the tasks of a version pause; None if they do not."""
        named = self.limits.get(version)
        if named is None:
            return None
        return Limits(self.id, self.phase, {TopicPartition.parse(name): offset for name, offset in named.items()})


@dataclass(frozen=True, slots=True)
class Limits:
    """The offsets at which the tasks of one version pause in a phase of a barrier.

    Args:
        phase: In phase 0, external inputs pause at their current offsets. From phase 1 on, they go up to their limits and pause
            there; those without a limit pause at their current offsets. From phase 2 on, limits name ends of repartition topics
            to be reached, and inputs that are not named pause at their current offsets.
    """

    barrier: str
    phase: int
    offsets: Mapping[TopicPartition, int]

    def of(self, tp: TopicPartition, *, is_internal: bool) -> int | None:
        """Return the offset up to which an input may go, or `HERE`; None if it is free, as internal ones are at first."""
        if is_internal and self.phase < _DRAINING:
            return None
        return self.offsets.get(tp, HERE) if self.phase else HERE


class BarrierHandler:
    """Pauses the inputs of a task at limits, and knows which phase of the barrier the task has reached."""

    def __init__(self, queues: PartitionGroup, is_internal: Callable[[TopicPartition], bool]) -> None:
        self._queues = queues
        self._is_internal = is_internal
        self._acknowledged = _NOTHING
        self.limits: Limits | None = None

    def pause_at(self, limits: Limits | None) -> None:
        """Pause, or continue. Must not be called between the two halves of a commit."""
        if limits is None or self.limits is None or limits.barrier != self.limits.barrier:
            self._acknowledged = _NOTHING
        self.limits = limits
        self._queues.limit({} if limits is None else self._by_input(limits))

    def has_news(self) -> bool:
        """Return whether the task has reached a phase that no commit has acknowledged."""
        return self.limits is not None and self._reached(self.limits) > self._acknowledged

    def acknowledge(self) -> tuple[str, int] | None:
        """Return the barrier and the phase to name in a commit prepared now; None before the first phase."""
        if self.limits is None:
            return None
        self._acknowledged = self._reached(self.limits)
        return None if self._acknowledged == _NOTHING else (self.limits.barrier, self._acknowledged)

    def _by_input(self, limits: Limits) -> dict[TopicPartition, int]:
        found = {q.tp: limits.of(q.tp, is_internal=self._is_internal(q.tp)) for q in self._queues.all()}
        return {tp: limit for tp, limit in found.items() if limit is not None}

    def _reached(self, limits: Limits) -> int:
        inputs = self._queues.all()
        if limits.phase >= _DRAINING:
            concerned = any(queue.tp in limits.offsets and self._is_internal(queue.tp) for queue in inputs)
        else:
            concerned = any(not self._is_internal(queue.tp) for queue in inputs)
        is_there = concerned and all(self._has_come(queue, limits) for queue in inputs)
        return limits.phase if is_there else self._acknowledged

    def _has_come(self, queue: RecordQueue, limits: Limits) -> bool:
        # Inputs of which the phase demands nothing never hold it up.
        if limits.phase >= _DRAINING:
            return queue.is_at_limit() or queue.tp not in limits.offsets
        return queue.is_at_limit() or self._is_internal(queue.tp)
