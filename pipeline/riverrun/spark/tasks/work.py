"""Messages between the driver and executors: plain values without open resources."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from riverrun.errors import TopologyError
from riverrun.hosting.application import Application
from riverrun.hosting.connected import ConnectedApplication
from riverrun.hosting.earlier_records import with_archive
from riverrun.hosting.standby_tasks import global_partitions
from riverrun.hosting.topic_ids import found_ids, require_same
from riverrun.kafka.admin import Admin
from riverrun.processor.metrics import added

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from riverrun.config import AppConfig
    from riverrun.kafka.door import Kafka
    from riverrun.records import OffsetRange, TaskId, TopicPartition
    from riverrun.topology.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The facts that all tasks of a run share. Executors build the topology again, and refuse one that differs.

    Args:
        published: Replacement topics for outputs; None if the version publishes.
        dead_letters: Replacement topic for dead letters; None leaves the topic to the handlers.
        progress: The group in which tasks report their progress; empty if they do not report.
        partitions: Partition counts of the external source topics.
        topics: Ids of these topics (`hosting.topic_ids`); tasks compare them when they have read.
        global_ends: End offsets up to which global tables are read, shared by all tasks.
        may_be_discarded: Whether the run may be taken back (`Application.may_be_discarded`).
        attempt: The attempt of a run with a gate, or its switch (`Application.attempt`).
    """

    config: AppConfig
    version: str
    kafka: Kafka
    state_directory: Path
    fingerprint: str
    published: Mapping[str, str] | None
    partitions: Mapping[str, int]
    global_ends: Mapping[TopicPartition, int]
    dead_letters: str | None = None
    progress: str = ""
    topics: Mapping[str, int] = field(default_factory=dict)
    may_be_discarded: bool = False
    attempt: str = ""


def job_of(connected: ConnectedApplication, progress: str = "") -> Job:
    """Return the job of an application, with the ends of its global tables as they are now, equal for all tasks."""
    application = connected.application
    return Job(
        config=application.config,
        version=application.version,
        kafka=application.kafka,
        state_directory=application.state_directory,
        fingerprint=application.topology.code_fingerprint(),
        published=application.published,
        partitions=connected.partitions,
        global_ends=connected.admin.end_offsets(global_partitions(connected)),
        dead_letters=application.dead_letters,
        progress=progress,
        topics=found_ids(connected.admin, connected.partitions),
        may_be_discarded=application.may_be_discarded,
        attempt=application.attempt,
    )


def connected_here(job: Job, build: Callable[[Job], Topology], admin: Admin | None = None) -> ConnectedApplication:
    """Return the application of a job, with the topology built in this process."""
    topology = build(job).resolved(job.partitions)
    if topology.code_fingerprint() != job.fingerprint:
        message = f"The topology of {job.config.name} here differs from the driver's"
        raise TopologyError(message, hint="Driver and executors must run the same release of the application.")
    application = Application(
        config=job.config,
        version=job.version,
        topology=topology,
        kafka=job.kafka,
        state_directory=job.state_directory,
        published=job.published,
        dead_letters=job.dead_letters,
        may_be_discarded=job.may_be_discarded,
        attempt=job.attempt,
    )
    found = with_archive(admin or admin_here(job.kafka), job.config.streams.archive_url)
    return ConnectedApplication(application, found, job.partitions)


def require_same_topics(job: Job, connected: ConnectedApplication, known: Mapping[str, int]) -> None:
    """Make sure that topics were not recreated since the driver planned with them; `known` are the ids that a task knows."""
    pairs = {*job.topics.items(), *known.items()}
    require_same(connected.application, pairs, found_ids(connected.admin, (topic for topic, _ in pairs)))


@cache
def admin_here(kafka: Kafka) -> Admin:
    """Return the client that all tasks of this process share."""
    # Each task would otherwise open and close two connections.
    return Admin(kafka)


@dataclass(frozen=True, slots=True)
class SliceWork:
    """One task's part of one slice: the ranges of all its inputs.

    Args:
        advance_to_ms: Event time to which the task moves afterwards, ms; None leaves it where the records took it.
        turn: Number of times that the run has submitted work to its engine; reports of progress carry it.
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
        processed: Records processed; 0 if an earlier attempt had done all the work.
        error: The error that stopped it for good, as `describe_error` writes it; None if there was none.
        read: Number of the processed records that came from external topics.
        published: Number of the written records that went to public topics, by topic.
        commits: Number of transactions, one per slice.
        restore_ms: Duration of taking over and restoring, ms.
        compute_ms: Duration of reading, processing and committing, ms.
        snapshot: Name of the snapshot of its state at the end; None if it was not published.
        totals: Totals of processors' sensors, by the text of their names.
        forgotten: By changelog that was not purged, the time before which its stores have forgotten everything, ms since the
            epoch.
    """

    task_id: str
    processed: int
    restored: int
    dropped: dict[str, int]
    error: str | None = None
    read: int = 0
    written: int = 0
    published: dict[str, int] = field(default_factory=dict)
    commits: int = 0
    restore_ms: int = 0
    compute_ms: int = 0
    snapshot: str | None = None
    warnings: tuple[str, ...] = ()
    totals: dict[str, float] = field(default_factory=dict)
    forgotten: dict[str, int] = field(default_factory=dict)


def total(name: str, results: Iterable[TaskResult]) -> TaskResult:
    """Sum several results up as one.

    >>> total("all", [TaskResult("0_0", 3, 0, {"late": 1}), TaskResult("0_1", 4, 2, {"late": 2})]).dropped
    {'late': 3}
    """
    parts = list(results)
    return TaskResult(
        name,
        sum(part.processed for part in parts),
        sum(part.restored for part in parts),
        _counted(part.dropped for part in parts),
        read=sum(part.read for part in parts),
        written=sum(part.written for part in parts),
        published=_counted(part.published for part in parts),
        commits=sum(part.commits for part in parts),
        restore_ms=sum(part.restore_ms for part in parts),
        compute_ms=sum(part.compute_ms for part in parts),
        snapshot=parts[-1].snapshot if parts else None,
        warnings=tuple(dict.fromkeys(warning for part in parts for warning in part.warnings)),
        totals=added(*(part.totals for part in parts)),
        forgotten={tp: time_ms for part in parts for tp, time_ms in part.forgotten.items()},
    )


def _counted(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    return dict(sum((Counter(each) for each in counts), Counter[str]()))
