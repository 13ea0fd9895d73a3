"""States of workers, and statistics of their work: per worker, stream thread and task."""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Mapping  # noqa: TC003 - summaries are decoded as their annotations say
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from riverrun.errors import StreamsError
from riverrun.hosting.process import SystemClock
from riverrun.processor.metrics import added, totals
from riverrun.runtime.stuck_records import StuckRecord  # noqa: TC001 - as above
from riverrun.runtime.times import Lateness

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from riverrun.hosting.active_task import ActiveTask
    from riverrun.processor.metrics import Measurement
    from riverrun.records import TaskId, TopicPartition

log = logging.getLogger(__name__)


class WorkerState(Enum):
    """The state of a worker (`KafkaStreams.State`)."""

    CREATED = "created"
    REBALANCING = "rebalancing"
    RUNNING = "running"
    PENDING_SHUTDOWN = "pending-shutdown"
    NOT_RUNNING = "not-running"
    ERROR = "error"


TRANSITIONS: Mapping[WorkerState, frozenset[WorkerState]] = {
    WorkerState.CREATED: frozenset({WorkerState.REBALANCING, WorkerState.PENDING_SHUTDOWN}),
    WorkerState.REBALANCING: frozenset({WorkerState.RUNNING, WorkerState.PENDING_SHUTDOWN, WorkerState.ERROR}),
    WorkerState.RUNNING: frozenset({WorkerState.REBALANCING, WorkerState.PENDING_SHUTDOWN, WorkerState.ERROR}),
    WorkerState.PENDING_SHUTDOWN: frozenset({WorkerState.NOT_RUNNING, WorkerState.ERROR}),
    WorkerState.NOT_RUNNING: frozenset(),
    WorkerState.ERROR: frozenset(),
}
"""The legal transitions. A worker is `rebalancing` while it takes over and restores tasks, or is not in its group."""


@dataclass(frozen=True, slots=True)
class WorkerSummary:
    """The work of a worker so far: numbers of records, and of tasks' commits.

    Args:
        dropped: Records not processed, by reason.
        totals: Totals of processors' sensors, by the text of their names.
    """

    processed: int = 0
    restored: int = 0
    commits: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    totals: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InstanceStatus:
    """The status of an instance at any time.

    Args:
        active: Tasks that run here.
        standby: Tasks whose changelogs are followed here.
        lags: Number of missing records per standby.
        restoring: Tasks that are being taken over, with the number of missing changelog records, if known.
        recovery_s: Duration of the last change of its tasks until all of them ran, s; None before the first has ended.
        holding: Id of the barrier at which it pauses, without publishing; None if it does not pause.
        held_s: Duration of the last pause at a barrier, s; None before the first has ended.
        is_member: Whether brokers count it as a member of its group, or did less than a session ago.
        stuck: The records whose functions have not returned for long, by number of the stream thread.
    """

    state: WorkerState
    active: frozenset[TaskId]
    standby: frozenset[TaskId]
    lags: Mapping[TaskId, int]
    restoring: Mapping[TaskId, int | None]
    threads: int
    paused: bool
    summary: WorkerSummary
    recovery_s: float | None = None
    holding: str | None = None
    held_s: float | None = None
    is_member: bool = True
    stuck: Mapping[int, StuckRecord] = field(default_factory=dict)


def summed(parts: Iterable[WorkerSummary]) -> WorkerSummary:
    every = list(parts)
    return WorkerSummary(
        sum(part.processed for part in every),
        sum(part.restored for part in every),
        sum(part.commits for part in every),
        dict(sum((Counter(part.dropped) for part in every), Counter[str]())),
        added(*(part.totals for part in every)),
    )


def moved(old: WorkerState, new: WorkerState) -> WorkerState:
    """Return the new state of a worker. An illegal transition is a fault of the worker itself."""
    if new not in TRANSITIONS[old]:
        raise StreamsError(f"Worker cannot go from {old.value} to {new.value}")
    return new


@dataclass(frozen=True, slots=True)
class Waiting:
    """The wait of a task that has buffered records, because earlier ones in event time may still arrive.

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
    """Statistics of a task since its process took it over.

    Args:
        held_back_s: How long it has waited for tasks that are behind in event time, s.
        waiting: Its present wait; None if it does not wait.
        last_commit: None before the first.
        since_ms: When its process took it over, ms of the wall clock.
        at_ms: When these statistics were read, ms of the wall clock.
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
    process_s: float = 0.0
    warnings: tuple[str, ...] = ()


class ThreadSeconds(NamedTuple):
    """Time of a stream thread since it began, s, and how it spent it.

    Args:
        process: Processing records (`process-ratio`).
        poll: Fetching records, and waiting for them (`poll-ratio`).
        punctuate: Calling punctuators (`punctuate-ratio`).
        commit_wait: Waiting for the outcome of commits. Kafka Streams' `commit-ratio` is `commit` and this.
    """

    all: float = 0.0
    process: float = 0.0
    commit: float = 0.0
    poll: float = 0.0
    punctuate: float = 0.0
    commit_wait: float = 0.0

    def shares_since(self, earlier: ThreadSeconds) -> dict[str, float]:
        """Return the shares of the time since earlier, from 0 to 1, by name of the part; empty if no time has passed."""
        passed = self.all - earlier.all
        if passed <= 0:
            return {}
        parts = zip(self._fields[1:], self[1:], earlier[1:], strict=True)
        return {name: min(max(now - before, 0.0) / passed, 1.0) for name, now, before in parts}


@dataclass(slots=True)
class SpentTime:
    """Adds up the time that a stream thread spends."""

    began: float = field(default_factory=time.perf_counter)
    process: float = 0.0
    """Includes `punctuate`."""
    commit: float = 0.0
    poll: float = 0.0
    punctuate: float = 0.0
    commit_wait: float = 0.0

    def seconds(self) -> ThreadSeconds:
        passed, process = time.perf_counter() - self.began, self.process - self.punctuate
        return ThreadSeconds(passed, process, self.commit, self.poll, self.punctuate, self.commit_wait)


class RegularSummary:
    """Logs the work since the last summary.

    Args:
        interval_ms: The interval, ms; 0 for no summaries.
    """

    def __init__(self, application_id: str, interval_ms: int) -> None:
        self._application_id = application_id
        self._interval_s = interval_ms / 1000
        self._logged_at = time.monotonic()
        self._logged = WorkerSummary()

    def log_if_due(self, summary: Callable[[], WorkerSummary]) -> None:
        if not self._interval_s or time.monotonic() - self._logged_at < self._interval_s:
            return
        logged, now = self._logged, summary()
        self._logged_at, self._logged = time.monotonic(), now
        log.info(
            "Processed %d total records and committed %d total tasks since the last update",
            now.processed - logged.processed,
            now.commits - logged.commits,
            extra={"application": self._application_id},
        )


class TaskCounts:
    """Counts the work of tasks. Running tasks have their own counts.

    Of a task that no longer runs, what it did after its last commit is not counted: it is undone, and repeated.
    """

    def __init__(self) -> None:
        self._processed = 0
        self.processed_by: Counter[TaskId] = Counter()
        self._seconds_by: defaultdict[TaskId, float] = defaultdict(float)
        self._dropped: Counter[str] = Counter()
        self._totals: dict[str, float] = {}
        self._prepared: dict[TaskId, WorkerSummary] = {}
        self._committed: dict[TaskId, WorkerSummary] = {}
        self._doubted: dict[TaskId, tuple[Mapping[TopicPartition, int], WorkerSummary, WorkerSummary]] = {}

    def processed(self, task_id: TaskId, records: int, seconds: float) -> None:
        """Count records that a task has processed, and the time that it took, s."""
        self._processed += records
        self.processed_by[task_id] += records
        self._seconds_by[task_id] += seconds

    def prepared(self, active: ActiveTask) -> None:
        """Note the counts of a task that is about to commit."""
        counted = totals(active.measured())
        self._prepared[active.id] = WorkerSummary(self.processed_by[active.id], dropped=active.dropped, totals=counted)

    def committed(self, active: ActiveTask) -> None:
        self._committed[active.id] = self._prepared.pop(active.id)

    def doubted(self, active: ActiveTask) -> None:
        """Count what a commit without an answer had, as mostly it succeeded, until `taken_over` knows."""
        if active.id in self._prepared:
            offsets = {tp: offset for tp, (offset, _) in active.prepared.offsets.items()}
            before = self._committed.get(active.id, WorkerSummary())
            self.committed(active)
            self._doubted[active.id] = offsets, before, self._committed[active.id]

    def taken_over(self, active: ActiveTask) -> None:
        """Count no more what a commit without an answer had if its offsets show that it failed: it is repeated."""
        offsets, before, counted = self._doubted.pop(active.id, ({}, WorkerSummary(), WorkerSummary()))
        if all(active.committed_offsets.get(tp, -1) >= offset for tp, offset in offsets.items()):
            return
        self._processed -= counted.processed - before.processed
        self._dropped -= Counter(counted.dropped) - Counter(before.dropped)
        undone = added(counted.totals, {name: -value for name, value in before.totals.items()})
        self._totals = added(self._totals, {name: -value for name, value in undone.items()})

    def stopped(self, active: ActiveTask) -> None:
        """Keep the committed counts of a task that no longer runs. The next owner counts from zero."""
        self._prepared.pop(active.id, None)
        kept = self._committed.pop(active.id, WorkerSummary())
        self._processed += kept.processed - self.processed_by.pop(active.id, 0)
        self._dropped += Counter(kept.dropped)
        self._totals = added(self._totals, kept.totals)
        self._seconds_by.pop(active.id, None)

    def summary(self, running: Collection[ActiveTask], restored: int, commits: int) -> WorkerSummary:
        """Return the work since the start."""
        dropped = self._dropped + sum((active.dropped for active in running), Counter[str]())
        counted = added(self._totals, *(totals(active.measured()) for active in running))
        return WorkerSummary(self._processed, restored, commits, dict(dropped), counted)

    def figures(
        self, running: Collection[ActiveTask], held_back_s: Mapping[TaskId, float], waiting: Mapping[TaskId, Waiting]
    ) -> dict[TaskId, TaskFigures]:
        """Return the work of each running task since it was taken over."""
        now_ms = SystemClock().now_ms()
        return {
            active.id: TaskFigures(
                self.processed_by[active.id],
                dict(active.dropped),
                active.measured(),
                held_back_s.get(active.id, 0.0),
                waiting.get(active.id),
                since_ms=active.counts_since_ms,
                at_ms=now_ms,
                lateness=active.lateness,
                process_s=self._seconds_by[active.id],
                warnings=active.warnings,
            )
            for active in running
        }
