"""Copies of other instances' state, kept up to date so that their tasks can be taken over without a restore."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.errors import BrokerError, CorruptStateError, RangeError, StreamsError, TaskCorruptedError
from pipeline.hosting.snapshots import Nowhere, open_state
from pipeline.hosting.task_state import check_starts, start_over
from pipeline.kafka.consumer import RecordConsumer
from pipeline.runtime.ports import Ports
from pipeline.runtime.task import Task

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.hosting.application import Application
    from pipeline.kafka.admin import Admin
    from pipeline.records import TaskId, TopicPartition
    from pipeline.runtime.layout import Layout
    from pipeline.runtime.ports import Clock
    from pipeline.state.api import StateBackend

_RECORDS_PER_POLL = 10_000


@dataclass(slots=True)
class _Standby:
    task: Task
    backend: StateBackend
    positions: dict[TopicPartition, int]


class StandbyTasks:
    """Follows the changelogs of tasks that run elsewhere (`StandbyTask`).

    Args:
        application: Whose tasks.
        layout: Which inputs they have.
        admin: Asks the brokers.
        clock: What time it is.
    """

    def __init__(self, application: Application, layout: Layout, admin: Admin, clock: Clock) -> None:
        """Follows nothing yet."""
        self._application = application
        self._layout = layout
        self._admin = admin
        self._clock = clock
        self._standbys: dict[TaskId, _Standby] = {}
        self._reader: dict[TopicPartition, _Standby] = {}
        self._ends: Mapping[TopicPartition, int] = {}
        self._consumer = RecordConsumer(application.kafka, application.config.streams.consumer)

    @property
    def tasks(self) -> frozenset[TaskId]:
        """The tasks that are followed."""
        return frozenset(self._standbys)

    def follow(self, task_id: TaskId) -> None:
        """Open a task's local state and go on from where it stands.

        Raises:
            StateError: If another process has it open.
            BrokerError: If brokers do not answer.
        """
        backend = open_state(self._application, task_id, self._admin, self._clock)
        try:
            self._read(task_id, backend)
        except StreamsError:
            backend.close()
            raise

    def release(self, task_id: TaskId) -> StateBackend:
        """Stop following a task, and give its state to whoever is to run it, or to close it."""
        standby = self._standbys.pop(task_id)
        self._consumer.unassign(standby.positions)
        for tp in standby.positions:
            del self._reader[tp]
        standby.task.close()
        return standby.backend

    def run_once(self, timeout_s: float) -> int:
        """Apply what has been written since; gives the number of records.

        Raises:
            BrokerError: If the brokers refuse.
        """
        if not self._standbys:
            return 0
        try:
            polled = self._consumer.poll(_RECORDS_PER_POLL, timeout_s)
        except RangeError:  # a changelog was cut off below the local position: what is left of it is the truth
            for task_id in self.tasks:
                self.release(task_id).close()
                self.follow(task_id)
            return 0
        applied = 0
        for tp, records in polled.records.items():
            if tp in self._reader:
                standby = self._reader[tp]
                standby.positions[tp] = records[-1].offset + 1
                try:
                    standby.task.restore(tp, records, standby.positions[tp])
                except CorruptStateError as error:
                    self._start_over(standby, error)
                applied += len(records)
        for tp, end in polled.ends.items():
            if tp in self._reader:
                self._reader[tp].positions[tp] = max(self._reader[tp].positions[tp], end)
        return applied

    def task(self, task_id: TaskId) -> Task:
        """A task that is followed, for reading its stores; they are as far as the changelogs have been applied."""
        return self._standbys[task_id].task

    def applied(self, task_id: TaskId) -> dict[TopicPartition, int]:
        """Per changelog of a task the next offset to apply."""
        return dict(self._standbys[task_id].positions)

    def positions(self) -> dict[TaskId, int]:
        """Changelog offsets applied, summed up, per task."""
        return {task_id: sum(standby.positions.values()) for task_id, standby in self._standbys.items()}

    def lags(self) -> dict[TaskId, int]:
        """How many offsets are missing, per task; while brokers do not answer, as it was when they did.

        Raises:
            BrokerError: If brokers refuse.
        """
        try:
            self._ends = self._admin.end_offsets(self._reader)
        except BrokerError as error:
            if not error.retriable:
                raise
        ends = self._ends
        return {
            task_id: sum(max(ends.get(tp, position) - position, 0) for tp, position in standby.positions.items())
            for task_id, standby in self._standbys.items()
        }

    def close(self) -> None:
        """Stop following anything. Idempotent."""
        for task_id in list(self._standbys):
            self.release(task_id).close()
        self._consumer.close()

    def _read(self, task_id: TaskId, backend: StateBackend) -> None:
        """Go on after what the local state has, or from the beginning if it is of another history than the changelog."""
        spec = self._application.task_spec(task_id, self._layout.tasks[task_id])
        task = Task(spec, Ports(Nowhere(), backend, self._clock))
        starts = task.restore_starts()
        first, last = self._admin.beginning_offsets(starts), self._admin.end_offsets(starts)
        try:
            check_starts(starts, first, last)
        except TaskCorruptedError as error:
            start_over(task, backend, error)
            self._read(task_id, backend)
            return
        standby = _Standby(task, backend, {tp: max(start, first[tp]) for tp, start in starts.items()})
        self._standbys[task_id] = standby
        self._reader |= dict.fromkeys(standby.positions, standby)
        self._consumer.assign(standby.positions)

    def _start_over(self, standby: _Standby, error: StreamsError) -> None:
        task_id = standby.task.spec.id
        self.release(task_id)
        start_over(standby.task, standby.backend, error)
        self._read(task_id, standby.backend)
