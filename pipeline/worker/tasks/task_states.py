"""The states of a task in a stream thread, and its legal transitions (`Task.State`)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from pipeline.errors import StreamsError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.hosting.tasks.owned_task import OwnedTask
    from pipeline.records import TaskId


class StreamTaskState(Enum):
    """The state of a task that a stream thread has.

    Attributes:
        CREATED: Nothing has been asked of brokers.
        OPENING: A thread takes the task over, and waits for brokers and snapshots.
        WAITING: The task is closed after a failure, and is opened again later.
        RESTORING: The task is taken over, and its state is brought to the committed point.
        RUNNING: The task processes.
        COMMITTING: The commit of the task waits for brokers. The task must not be touched.
        LEAVING: The task is not wanted any more, but a thread still waits for brokers on its behalf.
        CLOSED: The task is another process's.
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
"""The legal transitions. A task that leaves is wanted again, or closed; one that has failed is opened again, or given up."""

STARTING = frozenset({StreamTaskState.OPENING, StreamTaskState.WAITING, StreamTaskState.RESTORING})
"""The states of a task that is wanted and does not process yet."""


@dataclass(slots=True, eq=False)
class StreamTask:
    """A task in the hands of a stream thread, and its state there.

    Args:
        owned: The task.
        state: Changed by `move_to` only.
    """

    owned: OwnedTask
    state: StreamTaskState = StreamTaskState.CREATED

    @property
    def id(self) -> TaskId:
        """The id of the task."""
        return self.owned.id

    @property
    def is_running(self) -> bool:
        """Whether the task processes, or commits what it has processed."""
        return self.state is StreamTaskState.RUNNING or self.state is StreamTaskState.COMMITTING

    def move_to(self, state: StreamTaskState) -> None:
        """Move to another state.

        Raises:
            StreamsError: If the transition is not legal, which is a host's own mistake.
        """
        if state not in TRANSITIONS[self.state]:
            message = f"Task {self.id} cannot go from {self.state.value} to {state.value}"
            raise StreamsError(message)
        self.state = state
