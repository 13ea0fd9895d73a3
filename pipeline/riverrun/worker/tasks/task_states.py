"""The states of a task in a stream thread, and the legal transitions between them (`Task.State`).

Counts the work of a stream thread since it started, and of each task since it was taken over.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from riverrun.errors import StreamsError
from riverrun.hosting.process import SystemClock
from riverrun.processor.metrics import added, totals
from riverrun.worker.states import TaskFigures, WorkerSummary

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from riverrun.hosting.owned_task import OwnedTask
    from riverrun.records import TaskId
    from riverrun.worker.states import Waiting


class StreamTaskState(Enum):
    """The state of a stream thread's task.

    Attributes:
        CREATED: Brokers have not been asked anything yet.
        OPENING: A thread takes the task over, and waits for brokers and snapshots.
        WAITING: The task is closed after a failure, and will be opened again.
        RESTORING: The task is taken over, and its state is being brought to the committed point.
        RUNNING: The task processes.
        COMMITTING: The commit of the task waits for brokers. The task must not be touched.
        LEAVING: The task is no longer wanted, but a thread still waits for brokers on its behalf.
        CLOSED: The task is closed; another process may own it.
    """

    CREATED = "created"
    OPENING = "opening"
    WAITING = "waiting"
    RESTORING = "restoring"
    RUNNING = "running"
    COMMITTING = "committing"
    LEAVING = "leaving"
    CLOSED = "closed"


TRANSITIONS: Mapping[StreamTaskState, frozenset[StreamTaskState]] = {
    StreamTaskState.CREATED: frozenset({StreamTaskState.OPENING}),
    StreamTaskState.OPENING: frozenset(
        {StreamTaskState.RESTORING, StreamTaskState.WAITING, StreamTaskState.LEAVING, StreamTaskState.CLOSED}
    ),
    StreamTaskState.WAITING: frozenset({StreamTaskState.OPENING, StreamTaskState.CLOSED}),
    StreamTaskState.RESTORING: frozenset({StreamTaskState.RUNNING, StreamTaskState.WAITING, StreamTaskState.CLOSED}),
    StreamTaskState.RUNNING: frozenset({StreamTaskState.COMMITTING, StreamTaskState.WAITING, StreamTaskState.CLOSED}),
    StreamTaskState.COMMITTING: frozenset({StreamTaskState.RUNNING, StreamTaskState.WAITING, StreamTaskState.CLOSED}),
    StreamTaskState.LEAVING: frozenset({StreamTaskState.OPENING, StreamTaskState.CLOSED}),
    StreamTaskState.CLOSED: frozenset(),
}
"""The legal transitions. A leaving task is wanted again, or closed; a failed task is opened again, or given up."""

STARTING = frozenset({StreamTaskState.OPENING, StreamTaskState.WAITING, StreamTaskState.RESTORING})
"""The states of a task that is wanted but does not process yet."""


@dataclass(slots=True, eq=False)
class StreamTask:
    """A task of a stream thread, and its state there.

    Args:
        owned: The task.
        state: Its state; only `move_to` changes it.
    """

    owned: OwnedTask
    state: StreamTaskState = StreamTaskState.CREATED

    @property
    def id(self) -> TaskId:
        """Return the id of the task."""
        return self.owned.id

    @property
    def is_running(self) -> bool:
        """Return whether the task processes, or commits what it has processed."""
        return self.state is StreamTaskState.RUNNING or self.state is StreamTaskState.COMMITTING

    def move_to(self, state: StreamTaskState) -> None:
        """Move to another state.

        Raises:
            StreamsError: If the transition is not legal, which is a mistake of the host itself.
        """
        if state not in TRANSITIONS[self.state]:
            message = f"Task {self.id} cannot go from {self.state.value} to {state.value}"
            raise StreamsError(message)
        self.state = state


class TaskCounts:
    """Counts the work of tasks. Running tasks have their own counts."""

    def __init__(self) -> None:
        self._processed = 0
        self.processed_by: Counter[TaskId] = Counter()
        """How many records each task has processed since it was taken over."""
        self._dropped: Counter[str] = Counter()
        self._totals: dict[str, float] = {}

    def processed(self, task_id: TaskId, records: int) -> None:
        """Count records that a task has processed."""
        self._processed += records
        self.processed_by[task_id] += records

    def stopped(self, owned: OwnedTask) -> None:
        """Keep the counts of a task that no longer runs. The next owner counts from zero."""
        self._dropped += owned.dropped
        self._totals = added(self._totals, totals(owned.measured()))
        self.processed_by.pop(owned.id, None)

    def summary(self, running: Collection[OwnedTask], restored: int, commits: int) -> WorkerSummary:
        """Return the work since the start.

        Args:
            running: The tasks that run.
            restored: Number of records restored.
            commits: Number of commits of tasks.
        """
        dropped = self._dropped + sum((owned.dropped for owned in running), Counter[str]())
        counted = added(self._totals, *(totals(owned.measured()) for owned in running))
        return WorkerSummary(self._processed, restored, commits, dict(dropped), counted)

    def figures(
        self, running: Collection[OwnedTask], held_back_s: Mapping[TaskId, float], waiting: Mapping[TaskId, Waiting]
    ) -> dict[TaskId, TaskFigures]:
        """Return the work of each running task since it was taken over.

        Args:
            running: The tasks.
            held_back_s: How long each task has waited for others, s.
            waiting: The present waits of tasks.
        """
        now_ms = SystemClock().now_ms()
        return {
            owned.id: TaskFigures(
                self.processed_by[owned.id],
                dict(owned.dropped),
                owned.measured(),
                held_back_s.get(owned.id, 0.0),
                waiting.get(owned.id),
                since_ms=owned.counts_since_ms,
                at_ms=now_ms,
                lateness=owned.lateness,
            )
            for owned in running
        }
