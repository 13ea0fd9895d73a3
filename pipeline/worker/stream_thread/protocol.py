"""Messages between a supervisor and its stream processes, over a pipe for each: plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pipeline.config import AppConfig
    from pipeline.hosting.publication import LiveVersion
    from pipeline.processor.metrics import Measurement
    from pipeline.records import TaskId, TopicPartition
    from pipeline.worker.states import WorkerSummary


@dataclass(frozen=True, slots=True)
class StreamJob:
    """The facts that a stream process needs to build the application by itself.

    Args:
        config: The application.
        version: Which version.
        kafka: Client properties.
        state_directory: Where local state of all applications is kept.
        published: Where outputs go instead, by topic; None if the version publishes.
        dead_letters: Where dead letters go for now; None leaves it to the handlers.
    """

    config: AppConfig
    version: str
    kafka: Mapping[str, str] = field(repr=False)
    state_directory: Path
    published: Mapping[str, str] | None
    dead_letters: str | None = None


@dataclass(frozen=True, slots=True)
class Assign:
    """To a stream process: run these tasks and follow those; let go of all others. Orders are numbered, from 1.

    `topics` has the partitions of the topics that tasks are made of.
    """

    active: frozenset[TaskId]
    standby: frozenset[TaskId]
    number: int
    topics: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pause:
    """To a stream process: process nothing for now, or go on."""

    paused: bool


@dataclass(frozen=True, slots=True)
class Learn:
    """To a stream process: the control topic says this of the application."""

    record: LiveVersion


@dataclass(frozen=True, slots=True)
class Stop:
    """To a stream process: commit, let go of everything, and end."""


Command = Assign | Pause | Learn | Stop


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


@dataclass(frozen=True, slots=True)
class Report:
    """From a stream process, at least once per second.

    Args:
        active: Tasks it has taken over.
        standby: Tasks whose changelogs it follows.
        positions: Changelog offsets applied, summed up, per task.
        lags: Records that are missing, per standby or restoring task.
        summary: What it has done since it began.
        obeyed: Number of the last order that is carried out.
        restoring: Tasks that are being restored, with the number of records that are missing; None as long as it is unknown.
        commit_seconds: How long all commits took, together and the longest.
        tasks: What each active task has done.
    """

    active: frozenset[TaskId]
    standby: frozenset[TaskId]
    positions: Mapping[TaskId, int]
    lags: Mapping[TaskId, int]
    summary: WorkerSummary
    obeyed: int
    restoring: Mapping[TaskId, int | None] = field(default_factory=dict)
    commit_seconds: tuple[float, float] = (0.0, 0.0)
    tasks: Mapping[TaskId, TaskFigures] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Alive:
    """From a stream process that waits for brokers: all is as it was."""


@dataclass(frozen=True, slots=True)
class Failed:
    """From a stream process, as its last word: an error that it cannot handle, and where it happened, if at a record."""

    kind: str
    message: str
    hint: str | None
    coordinates: Mapping[str, str | int] = field(default_factory=dict)
