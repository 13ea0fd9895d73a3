"""The states of a task in a stream thread, and the legal transitions between them (`Task.State`)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from riverrun.errors import StreamsError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from riverrun.hosting.tasks.owned_task import OwnedTask
    from riverrun.records import TaskId


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
