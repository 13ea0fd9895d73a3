"""Figures of one task, as stream threads report them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from riverrun.runtime.times.lateness import Lateness

if TYPE_CHECKING:
    from collections.abc import Mapping

    from riverrun.processor.metrics import Measurement
    from riverrun.records import TaskId, TopicPartition


@dataclass(frozen=True, slots=True)
class Waiting:
    """The wait of a task with records at hand, because earlier records in event time may still arrive.

    Args:
        since_ms: Since when, ms of the wall clock.
        inputs: Its own inputs that are empty (`max.task.idle.ms`).
        tasks: The slowest of the tasks that it is aligned with (`task.alignment.max.drift.ms`).
    """

    since_ms: int
    inputs: tuple[TopicPartition, ...] = ()
    tasks: tuple[TaskId, ...] = ()


class InputProgress(NamedTuple):
    """The progress of a task in one input.

    Args:
        position: The next offset to process; -1 if nothing was read.
        end: The last known end of the log; None if it is unknown.
    """

    position: int
    end: int | None

    @property
    def lag(self) -> int | None:
        """Return the number of offsets still to be processed, an upper bound of the number of records; None if unknown."""
        return None if self.end is None or self.position < 0 else max(self.end - self.position, 0)


@dataclass(frozen=True, slots=True)
class LastCommit:
    """The last commit of a task.

    Args:
        at_ms: When brokers had acknowledged it, ms of the wall clock.
        latency_ms: Time from its newest record's event time until then, ms; None without a record.
        sent: Number of records sent since the task was taken over, by topic.
    """

    at_ms: int
    latency_ms: int | None
    sent: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class TaskFigures:
    """The work of a task since its process took it over.

    Args:
        processed: Records processed.
        dropped: Records not processed, by reason.
        measured: Measurements of its processors' sensors.
        held_back_s: How long it has waited for tasks that are behind in event time, s.
        waiting: Its present wait; None if it does not wait.
        inputs: Its progress in each input.
        last_commit: Its last commit; None before the first.
        since_ms: When its process took it over, ms of the wall clock.
        at_ms: When these figures were read, ms of the wall clock.
        lateness: How late its records were.
    """

    processed: int
    dropped: Mapping[str, int]
    measured: tuple[Measurement, ...] = ()
    held_back_s: float = 0.0
    waiting: Waiting | None = None
    inputs: Mapping[TopicPartition, InputProgress] = field(default_factory=dict)
    last_commit: LastCommit | None = None
    since_ms: int = 0
    at_ms: int = 0
    lateness: Lateness = field(default_factory=Lateness)
