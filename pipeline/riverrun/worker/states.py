"""States and summaries of workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping  # noqa: TC003 - summaries are decoded as their annotations say
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from riverrun.errors import StreamsError
from riverrun.processor.metrics import added

if TYPE_CHECKING:
    from collections.abc import Iterable

    from riverrun.records import TaskId


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
"""The legal transitions; a worker is `rebalancing` while it takes over and restores tasks."""


@dataclass(frozen=True, slots=True)
class WorkerSummary:
    """The work of a worker so far, in records.

    Args:
        processed: Records processed.
        restored: Records restored from changelogs.
        commits: Commits of tasks.
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
        state: Its state.
        active: Tasks that run here.
        standby: Tasks whose changelogs are followed here.
        lags: Number of missing records per standby.
        restoring: Tasks that are being taken over, with the number of missing changelog records, if known.
        threads: Number of stream threads.
        paused: Whether processing is paused.
        summary: The work since it started.
        recovery_s: Duration of the last change of its tasks until all of them ran, s; None before the first has ended.
        holding: Id of the mark for which it holds, without publishing; None if it does not hold.
        held_s: Duration of the last hold, s; None before the first has ended.
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


def summed(parts: Iterable[WorkerSummary]) -> WorkerSummary:
    """Return the sum of several summaries."""
    every = list(parts)
    return WorkerSummary(
        sum(part.processed for part in every),
        sum(part.restored for part in every),
        sum(part.commits for part in every),
        dict(sum((Counter(part.dropped) for part in every), Counter[str]())),
        added(*(part.totals for part in every)),
    )


def moved(old: WorkerState, new: WorkerState) -> WorkerState:
    """Return the new state of a worker.

    Raises:
        StreamsError: If the transition from the old state is not legal, which is a mistake of the worker itself.
    """
    if new not in TRANSITIONS[old]:
        message = f"Worker cannot go from {old.value} to {new.value}"
        raise StreamsError(message)
    return new
