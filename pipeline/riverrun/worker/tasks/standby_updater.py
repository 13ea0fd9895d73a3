"""Follows changelogs of standbys, across absences of brokers and changes of topics (`StateUpdater`)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from riverrun.errors import BrokerError
from riverrun.hosting.tasks.standby_tasks import StandbyTasks

if TYPE_CHECKING:
    from riverrun.records import TaskId, TopicPartition
    from riverrun.runtime.ports import Clock
    from riverrun.runtime.task import Task
    from riverrun.state.api import StateBackend
    from riverrun.worker.inputs.absent_brokers import AbsentBrokers
    from riverrun.worker.inputs.known_topics import KnownTopics

log = logging.getLogger(__name__)


class StandbyUpdater:
    """Follows the changelogs of the standbys of a stream thread.

    Args:
        topics: The topics that determine the tasks.
        clock: Tells the time.
        brokers: Waits for absent brokers.
    """

    def __init__(self, topics: KnownTopics, clock: Clock, brokers: AbsentBrokers) -> None:
        self._topics = topics
        self._clock = clock
        self._brokers = brokers
        self._standbys: StandbyTasks | None = None

    @property
    def tasks(self) -> frozenset[TaskId]:
        """Return the tasks that are followed."""
        return self._standbys.tasks if self._standbys else frozenset()

    def begin(self) -> None:
        """Begin without standbys; tasks that are added from now on depend on the topics that are known now."""
        self.close()
        self._standbys = StandbyTasks(self._topics.connected, self._clock)

    def add(self, task_id: TaskId) -> None:
        """Follow a task.

        Raises:
            StateError: If another process has its state open.
            BrokerError: If brokers do not answer for longer than `task.timeout.ms`.
        """
        self._brokers.outlast(lambda: self._open.follow(task_id), f"standby of task {task_id}")

    def release(self, task_id: TaskId) -> StateBackend:
        """Stop following a task. Returns its state, which stays open."""
        return self._open.release(task_id)

    def run_once(self) -> None:
        """Apply new changelog records. Restarts standbys that failed for absent brokers once these answer again."""
        followed = self.tasks
        try:
            self._open.run_once(0)
        except BrokerError as error:
            if not error.retriable:
                raise
            log.warning("standbys wait: %s", error)
            self._brokers.wait()
            for task_id in sorted(followed - self.tasks):
                self.add(task_id)

    def task(self, task_id: TaskId) -> Task:
        """Return a standby task, with its stores."""
        return self._open.task(task_id)

    def applied(self, task_id: TaskId) -> dict[TopicPartition, int]:
        """Return the next offset to apply per changelog of a task."""
        return self._open.applied(task_id)

    def positions(self) -> dict[TaskId, int]:
        """Return the sum of applied changelog offsets, per task."""
        return self._open.positions()

    def lags(self) -> dict[TaskId, int]:
        """Return the number of missing records per task."""
        return self._open.lags()

    def close(self) -> None:
        """Stop following all tasks. Idempotent."""
        if self._standbys is not None:
            self._standbys.close()

    @property
    def _open(self) -> StandbyTasks:
        assert self._standbys is not None, "nothing has been started"  # noqa: S101 - a host's own mistake
        return self._standbys
