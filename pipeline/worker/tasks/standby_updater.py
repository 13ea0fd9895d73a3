"""Follows changelogs of standbys: on when brokers come back, and again when other topics are read (`StateUpdater`)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pipeline.errors import BrokerError
from pipeline.hosting.tasks.standby_tasks import StandbyTasks

if TYPE_CHECKING:
    from pipeline.kafka.admin import Admin
    from pipeline.records import TaskId, TopicPartition
    from pipeline.runtime.ports import Clock
    from pipeline.runtime.task import Task
    from pipeline.state.api import StateBackend
    from pipeline.worker.inputs.absent_brokers import AbsentBrokers
    from pipeline.worker.inputs.known_topics import KnownTopics

log = logging.getLogger(__name__)


class StandbyUpdater:
    """Follows the changelogs of the standbys of a stream thread.

    Args:
        topics: Those that tasks are made of.
        admin: Asks the brokers.
        clock: Tells the time.
        brokers: Waits for those that do not answer.
    """

    def __init__(self, topics: KnownTopics, admin: Admin, clock: Clock, brokers: AbsentBrokers) -> None:
        self._topics = topics
        self._admin = admin
        self._clock = clock
        self._brokers = brokers
        self._standbys: StandbyTasks | None = None

    @property
    def tasks(self) -> frozenset[TaskId]:
        """The tasks that are followed."""
        return self._standbys.tasks if self._standbys else frozenset()

    def begin(self) -> None:
        """Follow nothing for now; tasks that are followed from now on are made of the topics that are known now."""
        self.close()
        self._standbys = StandbyTasks(self._topics.application, self._topics.layout, self._admin, self._clock)

    def add(self, task_id: TaskId) -> None:
        """Follow a task.

        Raises:
            StateError: If another process has its state open.
            BrokerError: If brokers do not answer for longer than `task.timeout.ms`.
        """
        self._brokers.outlast(lambda: self._open.follow(task_id), f"standby of task {task_id}")

    def release(self, task_id: TaskId) -> StateBackend:
        """Follow a task no longer; its state stays open."""
        return self._open.release(task_id)

    def run_once(self) -> None:
        """Apply what there is. Those that could not go on, as brokers are away, begin anew when these are back."""
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
        """The task that is followed, with its stores."""
        return self._open.task(task_id)

    def applied(self, task_id: TaskId) -> dict[TopicPartition, int]:
        """Return up to which offsets the changelogs of a task are applied."""
        return self._open.applied(task_id)

    def positions(self) -> dict[TaskId, int]:
        """Changelog offsets applied, summed up, per task."""
        return self._open.positions()

    def lags(self) -> dict[TaskId, int]:
        """Records that are missing, per task."""
        return self._open.lags()

    def close(self) -> None:
        """Let go of all. Idempotent."""
        if self._standbys is not None:
            self._standbys.close()

    @property
    def _open(self) -> StandbyTasks:
        assert self._standbys is not None, "nothing has been started"  # noqa: S101 - a host's own mistake
        return self._standbys
