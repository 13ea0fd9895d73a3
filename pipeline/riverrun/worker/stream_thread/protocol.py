"""Messages between an instance and its stream threads, over one pipe each; plain values."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from riverrun.hosting.application import Application
from riverrun.worker.states import ThreadSeconds

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from riverrun.config import AppConfig
    from riverrun.hosting.release import Release
    from riverrun.kafka.door import Kafka
    from riverrun.records import TaskId
    from riverrun.runtime.context import FailedRecord
    from riverrun.runtime.stuck_records import StuckRecord
    from riverrun.topology.topology import Topology
    from riverrun.worker.states import TaskFigures, WorkerSummary


@dataclass(frozen=True, slots=True)
class StreamJob:
    """The data from which a stream thread builds the application itself.

    Args:
        published: Staging topics by the name that the topology uses; None if the version publishes.
        dead_letters: Topic of all dead letters; None if the handlers decide.
    """

    config: AppConfig
    version: str
    kafka: Kafka
    state_directory: Path
    published: Mapping[str, str] | None
    dead_letters: str | None

    @classmethod
    def of(cls, application: Application) -> StreamJob:
        shared = {each.name: getattr(application, each.name) for each in fields(cls)}
        return cls(**shared)

    def application(self, topology: Topology) -> Application:
        """Return the application with the topology that this process has built."""
        return Application(**{each.name: getattr(self, each.name) for each in fields(self)}, topology=topology)


@dataclass(frozen=True, slots=True)
class Assign:
    """Command to run and follow the given tasks, and close all others. Orders are numbered, from 1.

    `topics` has the partitions of the topics that determine the tasks.
    """

    active: frozenset[TaskId]
    standby: frozenset[TaskId]
    number: int
    topics: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pause:
    """Command to pause or resume processing."""

    paused: bool


@dataclass(frozen=True, slots=True)
class Learn:
    """Command to obey a record of the control topic."""

    record: Release


@dataclass(frozen=True, slots=True)
class Stop:
    """Command to commit and close all tasks, and end."""


@dataclass(frozen=True, slots=True)
class Beware:
    """Command to end a function that does not return at any of these records, which were tried often enough."""

    records: tuple[StuckRecord, ...]


Command = Assign | Pause | Learn | Stop | Beware


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadReport:
    """Report of a stream thread, sent at least once per second.

    Args:
        positions: Sum of the applied changelog offsets, per task.
        lags: Number of missing records, per standby or restoring task.
        obeyed: Number of the last order that it has carried out.
        restoring: Tasks that are being restored, with the number of missing records; None while unknown.
        commit_seconds: Duration of all commits, and of the longest one, s.
        failed: Failures of skipped records since the last report, with a limited number.
        nodes: Time spent at each node since the thread began, s; empty without samples.
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
    failed: tuple[FailedRecord, ...] = ()
    seconds: ThreadSeconds = field(default_factory=ThreadSeconds)
    nodes: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Alive:
    """Sign of life of a stream thread that waits for brokers; nothing has changed."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Last message of a stream thread: an error that it cannot handle, with the record at which it happened, if any."""

    kind: str
    message: str
    hint: str | None
    coordinates: Mapping[str, str | int] = field(default_factory=dict)
