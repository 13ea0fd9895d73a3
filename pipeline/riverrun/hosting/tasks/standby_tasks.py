"""Keeps copies of other instances' state up to date, so that their tasks can be taken over without a restore."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from riverrun.errors import BrokerError, CorruptStateError, RangeError, StreamsError
from riverrun.hosting.tasks.task_start import TaskStart
from riverrun.kafka.consumer import MessageBatch, RecordConsumer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.records import TaskId, TopicPartition
    from riverrun.runtime.ports import Clock
    from riverrun.runtime.task import Task
    from riverrun.state.api import StateBackend

log = logging.getLogger(__name__)

_RECORDS_PER_POLL = 10_000
_NO_RECORDS = MessageBatch(())


@dataclass(slots=True)
class _Standby:
    """A standby task.

    Args:
        task: The task.
        backend: Its state.
        positions: Per changelog, the next offset to apply.
        limits: Committed offsets of inputs that serve as changelogs. They are followed up to these: records that the task has
            not processed yet are not part of its state.
        held: Records read beyond the limits.
    """

    task: Task
    backend: StateBackend
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    limits: dict[TopicPartition, int] = field(default_factory=dict)
    held: dict[TopicPartition, MessageBatch] = field(default_factory=dict)

    def apply(self, tp: TopicPartition, batch: MessageBatch, reached: int) -> int:
        """Apply records up to the limit and keep the others. Returns the number of applied records."""
        limit = self.limits.get(tp, reached)
        kept, rest = batch.split(limit)
        self.positions[tp] = max(self.positions[tp], min(reached, limit))
        if kept:
            self.task.restore(tp, kept, self.positions[tp])
        if rest:
            self.held[tp] = rest
        return len(kept)


class StandbyTasks:
    """Follows the changelogs of tasks that run elsewhere (`StandbyTask`, `StoreChangelogReader`).

    Args:
        connected: The application.
        clock: Tells the time.
    """

    def __init__(self, connected: ConnectedApplication, clock: Clock) -> None:
        self._connected = connected
        self._clock = clock
        self._standbys: dict[TaskId, _Standby] = {}
        self._reader: dict[TopicPartition, _Standby] = {}
        self._limits_at_ms = 0
        self._ends: Mapping[TopicPartition, int] = {}
        self._consumer = RecordConsumer(connected.application.kafka, connected.application.config.streams.consumer)

    @property
    def tasks(self) -> frozenset[TaskId]:
        """Return the standby tasks."""
        return frozenset(self._standbys)

    def follow(self, task_id: TaskId) -> None:
        """Open a task's local state and follow its changelogs from there.

        Raises:
            StateError: If another process has it open.
            BrokerError: If brokers do not answer.
        """
        self._begin(task_id)

    def release(self, task_id: TaskId) -> StateBackend:
        """Stop following a task. Returns its state, which is still open."""
        standby = self._standbys.pop(task_id)
        self._consumer.unassign(standby.positions)
        for tp in standby.positions:
            del self._reader[tp]
        standby.task.close()
        return standby.backend

    def run_once(self, timeout_s: float) -> int:
        """Apply new changelog records.

        Returns:
            The number of records.

        Raises:
            BrokerError: If the brokers refuse or do not answer. Tasks that had to start from scratch may no longer be followed.
        """
        if not self._standbys:
            return 0
        try:
            polled = self._consumer.poll_batches(_RECORDS_PER_POLL, timeout_s)
        except RangeError:  # a changelog was truncated below the local position: its remaining records are valid
            followed = self.tasks
            for task_id in followed:
                self.release(task_id).close()
            for task_id in followed:
                self.follow(task_id)
            return 0
        applied = self._apply_held()
        for tp, reached in polled.reached.items():
            standby = self._reader.get(tp)
            if standby is not None and tp not in standby.held:
                applied += self._apply(standby, tp, polled.batches.get(tp, _NO_RECORDS), reached)
                if tp in standby.held:
                    self._consumer.pause([tp])
        return applied

    def task(self, task_id: TaskId) -> Task:
        """Return a standby task, for reading its stores; they contain the applied changelog records."""
        return self._standbys[task_id].task

    def applied(self, task_id: TaskId) -> dict[TopicPartition, int]:
        """Return the next offset to apply per changelog of a task."""
        return dict(self._standbys[task_id].positions)

    def positions(self) -> dict[TaskId, int]:
        """Return the sum of applied changelog offsets per task."""
        return {task_id: sum(standby.positions.values()) for task_id, standby in self._standbys.items()}

    def lags(self) -> dict[TaskId, int]:
        """Return the number of missing offsets per task; the last known number while brokers do not answer.

        Raises:
            BrokerError: If brokers refuse.
        """
        try:
            self._raise_limits()
            self._ends = self._connected.admin.end_offsets(self._reader)
        except BrokerError as error:
            if not error.retriable:
                raise
        ends = self._ends
        return {
            task_id: sum(max(standby.limits.get(tp, ends.get(tp, at)) - at, 0) for tp, at in standby.positions.items())
            for task_id, standby in self._standbys.items()
        }

    def close(self) -> None:
        """Stop following all tasks. Idempotent."""
        for task_id in list(self._standbys):
            self.release(task_id).close()
        self._consumer.close()

    def _apply(self, standby: _Standby, tp: TopicPartition, batch: MessageBatch, reached: int) -> int:
        try:
            return standby.apply(tp, batch, reached)
        except CorruptStateError as error:
            task_id = standby.task.spec.id
            log.warning("standby of task %s starts over: %s", task_id, error.message, extra={"task": str(task_id)})
            self.release(task_id)
            standby.held.clear()
            standby.backend.wipe()
            self._begin(task_id, standby.backend)
            return 0

    def _apply_held(self) -> int:
        """Apply those held records that are committed by now. Returns the number of records.

        Reads committed offsets once per `commit.interval.ms`, and only while records wait for them.
        """
        held = [(tp, standby) for standby in self._standbys.values() for tp in standby.held]
        now_ms = self._clock.now_ms()
        if not held or now_ms - self._limits_at_ms < self._connected.application.config.streams.commit_interval_ms:
            return 0
        self._raise_limits()
        applied = 0
        for tp, standby in held:
            batch = standby.held.pop(tp, _NO_RECORDS)
            if batch:
                applied += self._apply(standby, tp, batch, batch.end)
                if tp not in standby.held:
                    self._consumer.resume([tp])
        return applied

    def _raise_limits(self) -> None:
        """Read the committed offsets of inputs that serve as changelogs (`updateLimitOffsetsForStandbyChangelogs`)."""
        self._limits_at_ms = self._clock.now_ms()
        limited = [tp for standby in self._standbys.values() for tp in standby.limits]
        for tp, found in self._connected.committed(limited).items() if limited else ():
            limits = self._reader[tp].limits
            limits[tp] = max(limits[tp], found.offset)

    def _begin(self, task_id: TaskId, backend: StateBackend | None = None) -> None:
        """Follow changelogs from the position of the local state; closes the state if that position cannot be determined."""
        spec = self._connected.application.task_spec(task_id, self._connected.layout.tasks[task_id])
        limited = list(spec.source_changelogs.values())
        start = TaskStart(self._connected, task_id, self._clock, committed_of=limited)
        try:
            start.begin(backend)
        except StreamsError:
            start.close()
            raise
        backend, ranges = start.missing.backend, start.missing.ranges
        starts, limits = {tp: r.start for tp, r in ranges.items()}, {tp: ranges[tp].end for tp in limited}
        self._standbys[task_id] = standby = _Standby(start.prepare(), backend, starts, limits)
        self._reader |= dict.fromkeys(standby.positions, standby)
        self._consumer.assign(standby.positions)
