"""What the parts of an elastic worker say to each other.

Instances speak through the group's leader, in JSON (`Introduction`, `Orders`): other releases may be at the other end. A
supervisor and its stream processes speak over a pipe of their own, in plain values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from pipeline.records import TaskId

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from pipeline.config import AppConfig
    from pipeline.processor.metrics import Measurement
    from pipeline.worker.queries import Page, Question, Refusal
    from pipeline.worker.states import WorkerSummary

FORMAT = 1
"""Of introductions and orders; instances of another format are refused."""


class Introduction(msgspec.Struct, frozen=True):
    """What an instance says of itself when the group is rebalanced (`SubscriptionInfo`).

    Args:
        instance: Its id; survives restarts.
        fingerprint: Of its topology: instances of another one cannot share its tasks.
        capacity: Number of stream threads.
        tags: Client tags.
        active: The tasks it runs.
        positions: Changelog offsets applied, summed up, per task of which it has state.
        server: `host:port` where it answers queries; empty if nowhere.
        shuts_down: Whether it asks the whole application to end.
        topics: Partitions of the topics to read that it has found.
        format: Of this message.
    """

    instance: str
    fingerprint: str
    capacity: int
    tags: dict[str, str] = {}
    active: list[str] = []
    positions: dict[str, int] = {}
    server: str = ""
    shuts_down: bool = False
    topics: dict[str, int] = {}
    format: int = FORMAT


class Orders(msgspec.Struct, frozen=True):
    """What the leader tells an instance (`AssignmentInfo`).

    Args:
        active: Tasks to process.
        standby: Tasks whose changelogs to follow.
        warm_up: Those of the standbys that are to become active here.
        servers: Where the active instance of each task answers queries.
        standby_servers: Where its standbys do.
        refusal: Why it cannot take part; then it has to end.
        shuts_down: Whether the whole application is to end.
        topics: Partitions of the topics that these tasks are made of: the same for everybody.
        format: Of this message.
    """

    active: list[str] = []
    standby: list[str] = []
    warm_up: list[str] = []
    servers: dict[str, str] = {}
    standby_servers: dict[str, list[str]] = {}
    refusal: str | None = None
    shuts_down: bool = False
    topics: dict[str, int] = {}
    format: int = FORMAT


def task_ids(texts: Iterable[str]) -> frozenset[TaskId]:
    """Tasks, out of their text forms."""
    return frozenset(map(TaskId.parse, texts))


def texts(tasks: Iterable[TaskId]) -> list[str]:
    """Text forms of tasks, in order."""
    return [str(task) for task in sorted(tasks)]


@dataclass(frozen=True, slots=True)
class StreamJob:
    """What a stream process needs to build the application by itself.

    Args:
        config: The application.
        version: Which version.
        kafka: Client properties.
        state_directory: Where local state of all applications is kept.
        published: Public output topics that go elsewhere for now.
        dead_letters: Where dead letters go for now; None leaves it to the handlers.
    """

    config: AppConfig
    version: str
    kafka: Mapping[str, str] = field(repr=False)
    state_directory: Path
    published: Mapping[str, str]
    dead_letters: str | None = None


@dataclass(frozen=True, slots=True)
class Take:
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
class Stop:
    """To a stream process: commit, let go of everything, and end."""


@dataclass(frozen=True, slots=True)
class Ask:
    """To a stream process: answer this; the number comes back with the answer."""

    number: int
    question: Question


@dataclass(frozen=True, slots=True)
class Answered:
    """From a stream process: the answer to the question of that number."""

    number: int
    answer: Page | Refusal


Command = Take | Pause | Stop


@dataclass(frozen=True, slots=True)
class TaskFigures:
    """What a task has done since its process took it over.

    Args:
        processed: Records processed.
        dropped: Records not processed, by reason.
        measured: What its processors' sensors have measured.
    """

    processed: int
    dropped: Mapping[str, int]
    measured: tuple[Measurement, ...] = ()


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
