"""Messages between the driver and executors: plain values, nothing open."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from pipeline.errors import TopologyError
from pipeline.hosting.application import Application
from pipeline.hosting.connected import ConnectedApplication
from pipeline.hosting.tasks.global_tables import global_partitions
from pipeline.kafka.admin import Admin
from pipeline.processor.metrics import added

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from pipeline.config import AppConfig
    from pipeline.records import OffsetRange, TaskId, TopicPartition
    from pipeline.topology.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The facts that all tasks of a run share. Executors build the topology anew, and refuse if it is another one.

    Args:
        config: The application.
        version: Which version.
        kafka: Client properties.
        state_directory: Where executors keep local state.
        fingerprint: Of the driver's topology.
        published: Where outputs go instead; None if the version publishes.
        dead_letters: Where dead letters go instead; None leaves it to the handlers.
        progress: The group in which tasks tell how far they are; empty if nobody wants to know.
        partitions: Partition counts of the external source topics.
        global_ends: Up to where global tables are read: the same for all tasks.
    """

    config: AppConfig
    version: str
    kafka: Mapping[str, str] = field(repr=False)
    state_directory: Path
    fingerprint: str
    published: Mapping[str, str] | None
    partitions: Mapping[str, int]
    global_ends: Mapping[TopicPartition, int]
    dead_letters: str | None = None
    progress: str = ""


def job_of(connected: ConnectedApplication, progress: str = "") -> Job:
    """Return the job of an application, with the ends of its global tables as they are now.

    Args:
        connected: The application.
        progress: The group in which tasks tell how far they are; empty if nobody wants to know.
    """
    application = connected.application
    return Job(
        config=application.config,
        version=application.version,
        kafka=application.kafka,
        state_directory=application.state_directory,
        fingerprint=application.topology.fingerprint(),
        published=application.published,
        partitions=connected.partitions,
        global_ends=connected.admin.end_offsets(global_partitions(connected)),
        dead_letters=application.dead_letters,
        progress=progress,
    )


def connected_here(job: Job, build: Callable[[Job], Topology]) -> ConnectedApplication:
    """Return the application of a job, of a topology that is built in this process.

    Args:
        job: The job.
        build: Builds the topology.

    Raises:
        TopologyError: If that topology is not the driver's.
    """
    topology = build(job).resolved(job.partitions)
    if topology.fingerprint() != job.fingerprint:
        message = f"The topology of {job.config.name} here is not the driver's"
        raise TopologyError(message, hint="Driver and executors must run the same release of the application.")
    application = Application(
        config=job.config,
        version=job.version,
        topology=topology,
        kafka=job.kafka,
        state_directory=job.state_directory,
        published=job.published,
        dead_letters=job.dead_letters,
    )
    return ConnectedApplication(application, admin_here(job.kafka), job.partitions)


def admin_here(kafka: Mapping[str, str]) -> Admin:
    """Return the client of this process, which its tasks share: each would begin and end two connections otherwise."""
    return _admin(tuple(sorted(kafka.items())))


@cache
def _admin(kafka: tuple[tuple[str, str], ...]) -> Admin:
    return Admin(dict(kafka))


@dataclass(frozen=True, slots=True)
class TaskWork:
    """One task's part of one slice: all its inputs, and what to process of each.

    Args:
        job: The run.
        task_id: Which task.
        ranges: Per input what to process of it.
        advance_to_ms: Where its event time is moved to afterwards, ms; None leaves it where the records took it.
        turn: Counts the times that the run has given works to Spark.
    """

    job: Job
    task_id: TaskId
    ranges: Mapping[TopicPartition, OffsetRange]
    advance_to_ms: int | None = None
    turn: int = 0

    @property
    def size(self) -> int:
        """Number of offsets to process; an upper bound of the records."""
        return sum(wanted.size for wanted in self.ranges.values())


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The outcome of one task.

    Args:
        task_id: The task, as text.
        processed: Records processed; 0 if an earlier attempt had done it all.
        restored: Records restored from changelogs.
        dropped: Records not processed, by reason.
        error: What stopped it for good, as `describe_error` writes it; None if nothing did.
        read: Those of the processed that came from external topics.
        written: Records written, other than to changelogs.
        published: Those of the written that went to public topics.
        commits: Transactions, each of a slice.
        restore_ms: How long taking over and restoring took.
        compute_ms: How long reading, processing and committing took.
        snapshot: Name of the snapshot of its state at the end; None if it was not published.
        warnings: What went wrong without harm to the results.
        totals: Totals that processors' sensors have counted, by the text of their names.
    """

    task_id: str
    processed: int
    restored: int
    dropped: dict[str, int]
    error: str | None = None
    read: int = 0
    written: int = 0
    published: int = 0
    commits: int = 0
    restore_ms: int = 0
    compute_ms: int = 0
    snapshot: str | None = None
    warnings: tuple[str, ...] = ()
    totals: dict[str, float] = field(default_factory=dict)


def total(name: str, results: Iterable[TaskResult]) -> TaskResult:
    """Several results as one.

    >>> total("all", [TaskResult("0_0", 3, 0, {"late": 1}), TaskResult("0_1", 4, 2, {"late": 2})]).dropped
    {'late': 3}
    """
    parts = list(results)
    dropped = sum((Counter(part.dropped) for part in parts), Counter[str]())
    return TaskResult(
        name,
        sum(part.processed for part in parts),
        sum(part.restored for part in parts),
        dict(dropped),
        read=sum(part.read for part in parts),
        written=sum(part.written for part in parts),
        published=sum(part.published for part in parts),
        commits=sum(part.commits for part in parts),
        restore_ms=sum(part.restore_ms for part in parts),
        compute_ms=sum(part.compute_ms for part in parts),
        snapshot=parts[-1].snapshot if parts else None,
        warnings=tuple(dict.fromkeys(warning for part in parts for warning in part.warnings)),
        totals=added(*(part.totals for part in parts)),
    )
