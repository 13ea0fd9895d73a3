"""Figures of one task, as stream threads report them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.processor.metrics import Measurement
    from pipeline.records import TaskId, TopicPartition


@dataclass(frozen=True, slots=True)
class Waiting:
    """The wait of a task with records at hand, as they are later in event time than what may still come.

    Args:
        since_ms: Since when, ms of the wall clock.
        inputs: Its own inputs that are empty (`max.task.idle.ms`).
        tasks: The slowest of the tasks that it is aligned with (`task.alignment.max.drift.ms`).
    """

    since_ms: int
    inputs: tuple[TopicPartition, ...] = ()
    tasks: tuple[TaskId, ...] = ()


class InputProgress(NamedTuple):
    """How far a task has come in one input.

    Args:
        position: The next offset that has not been processed; -1 if nothing was read.
        end: The end of the log as it was heard of last; None if nothing was.
    """

    position: int
    end: int | None

    @property
    def lag(self) -> int | None:
        """Offsets that are still to be processed, an upper bound of the records; None if that is not known."""
        return None if self.end is None or self.position < 0 else max(self.end - self.position, 0)


@dataclass(frozen=True, slots=True)
class LastCommit:
    """The last commit of a task.

    Args:
        at_ms: When brokers had answered, ms of the wall clock.
        latency_ms: The time from its newest record's event time until then, ms; None without a record.
        sent: Records sent by topic since the task was taken over.
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
        measured: What its processors' sensors have measured.
        held_back_s: How long it has waited for tasks that are behind in event time, s.
        waiting: What it waits for at present; None if it does not wait.
        inputs: How far it has come in each input.
        last_commit: Its last commit; None before the first.
    """

    processed: int
    dropped: Mapping[str, int]
    measured: tuple[Measurement, ...] = ()
    held_back_s: float = 0.0
    waiting: Waiting | None = None
    inputs: Mapping[TopicPartition, InputProgress] = field(default_factory=dict)
    last_commit: LastCommit | None = None
