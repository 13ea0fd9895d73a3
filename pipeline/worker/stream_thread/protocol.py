"""Messages between a supervisor and its stream threads, over a pipe for each: plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pipeline.config import AppConfig
    from pipeline.hosting.control.publication import LiveVersion
    from pipeline.records import TaskId
    from pipeline.worker.states import WorkerSummary
    from pipeline.worker.task_figures import TaskFigures


@dataclass(frozen=True, slots=True)
class StreamJob:
    """The facts that a stream thread needs to build the application by itself.

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
    """To a stream thread: run these tasks and follow those; close all others. Orders are numbered, from 1.

    `topics` has the partitions of the topics that tasks are made of.
    """

    active: frozenset[TaskId]
    standby: frozenset[TaskId]
    number: int
    topics: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pause:
    """To a stream thread: process nothing for now, or go on."""

    paused: bool


@dataclass(frozen=True, slots=True)
class Learn:
    """To a stream thread: the control topic says this of the application."""

    record: LiveVersion


@dataclass(frozen=True, slots=True)
class Stop:
    """To a stream thread: commit and close everything, and end."""


Command = Assign | Pause | Learn | Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """From a stream thread, at least once per second.

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
    """From a stream thread that waits for brokers: all is as it was."""


@dataclass(frozen=True, slots=True)
class Failed:
    """From a stream thread, as its last word: an error that it cannot handle, and where it happened, if at a record."""

    kind: str
    message: str
    hint: str | None
    coordinates: Mapping[str, str | int] = field(default_factory=dict)
