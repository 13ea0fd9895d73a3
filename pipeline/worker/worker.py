"""`Worker`: takes over all tasks of an application, and runs them until it is told to stop."""

from __future__ import annotations

import logging
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from pipeline.errors import BrokerError, StreamsError, TaskCorruptedError, UnknownOutcomeError
from pipeline.hosting.application import prepare, with_topics
from pipeline.hosting.clock import SystemClock
from pipeline.hosting.global_tables import open_global_state
from pipeline.hosting.owned_task import OwnedTask
from pipeline.kafka.admin import Admin
from pipeline.kafka.consumer import RecordConsumer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pipeline.hosting.application import Application
    from pipeline.kafka.consumer import Polled
    from pipeline.records import TaskId, TopicPartition
    from pipeline.runtime.global_state import GlobalState

log = logging.getLogger(__name__)

_RECORDS_PER_POLL = 10_000
_RECORDS_PER_TURN = 1_000
"""How many records a task processes before the next one has its turn."""
_RETRY_SECONDS = 0.5
_RECOVERABLE = (UnknownOutcomeError, TaskCorruptedError, BrokerError)
"""After these a task is taken over anew; broker errors count only if waiting helps."""
_COMMITTERS = 16
"""How many tasks commit at the same time."""


class WorkerState(Enum):
    """Where a worker stands (`KafkaStreams.State`)."""

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
"""The legal transitions; `rebalancing` is the time in which tasks are taken over and restored."""


@dataclass(frozen=True, slots=True)
class WorkerSummary:
    """What a worker has done so far, in records; `dropped` by reason."""

    processed: int
    restored: int
    commits: int
    dropped: Mapping[str, int]


class Worker:
    """Runs all tasks of one version of an application in this process.

    Args:
        application: What to run.
        on_state: Told about every change of state.
        on_restore: Told changelog, records restored and records expected.
    """

    def __init__(
        self,
        application: Application,
        *,
        on_state: Callable[[WorkerState], None] = lambda _state: None,
        on_restore: Callable[[TopicPartition, int, int], None] | None = None,
    ) -> None:
        """Nothing is started before `run`."""
        self.state = WorkerState.CREATED
        self._application = application
        self._streams = application.config.streams
        self._on_state = on_state
        self._on_restore = on_restore
        self._stopping = False
        self._admin = Admin(application.kafka)
        self._clock = SystemClock()
        self._tasks: dict[TaskId, OwnedTask] = {}
        self._owner_of: dict[TopicPartition, OwnedTask] = {}
        self._paused: set[TopicPartition] = set()
        self._internal_topics: set[str] = set()
        self._ends_seen: set[TopicPartition] = set()
        self._consumer = RecordConsumer(application.kafka, self._streams.consumer)
        self._committers = ThreadPoolExecutor(_COMMITTERS, "commit")
        self._global: GlobalState
        self._processed = 0
        self._restored = 0
        self._commits = 0
        self._dropped: Counter[str] = Counter()
        self._last_commit_ms = 0
        self._is_stalled = False
        self._has_brokers = True

    def stop(self) -> None:
        """Ask it to finish the records at hand, commit, and let go of its tasks. May be called from a signal handler."""
        self._stopping = True

    def summary(self) -> WorkerSummary:
        """What it has done so far."""
        dropped = self._dropped + sum((o.task.dropped for o in self._tasks.values()), Counter[str]())
        return WorkerSummary(self._processed, self._restored, self._commits, dict(dropped))

    def is_caught_up(self) -> bool:
        """Whether all that was in the topics at the last look is processed and committed."""
        return self._is_idle and not any(o.task.needs_commit for o in self._tasks.values())

    def run(self, *, until_caught_up: bool = False) -> WorkerSummary:
        """Run until told to stop.

        Args:
            until_caught_up: Stop as well once all inputs have been read to their ends and processed.

        Raises:
            TopicError: If topics are missing or do not fit.
            TaskMigratedError: If another worker has taken over.
            RecordError: If a record cannot be handled, and is not to be skipped.
            BrokerError: If brokers do not answer for longer than `task.timeout.ms`.
        """
        try:
            self._start()
            while not self._stopping and not (until_caught_up and self._has_finished()):
                self._run_once()
            self._move_to(WorkerState.PENDING_SHUTDOWN)
            self._commit_all()
            summary = self.summary()
        except BaseException:
            self.state = WorkerState.ERROR
            self._on_state(self.state)
            raise
        else:
            self._move_to(WorkerState.NOT_RUNNING)
            return summary
        finally:
            self._close()

    def _start(self) -> None:
        self._move_to(WorkerState.REBALANCING)
        self._application = with_topics(self._application, self._admin)
        layout = prepare(self._application, self._admin)
        self._global = open_global_state(self._application, self._admin, self._clock)
        self._internal_topics = {topic.name for topic in layout.repartition_topics}
        for task_id in layout.tasks:
            owned = OwnedTask(self._application, layout, task_id, self._admin, self._clock, self._global.stores)
            self._tasks[task_id] = owned
            self._owner_of |= dict.fromkeys(owned.inputs, owned)
            self._take_over(owned)
        self._consumer.assign(self._global.positions())
        self._move_to(WorkerState.RUNNING)

    def _take_over(self, owned: OwnedTask) -> None:
        owned.open(self._on_restore)
        self._restored += owned.restored_records
        self._ends_seen -= set(owned.inputs)
        self._paused -= set(owned.inputs)
        self._consumer.assign(owned.starts())
        log.info("task %s taken over, %d records restored", owned.id, owned.restored_records)

    def _run_once(self) -> None:
        waiting = sum(owned.task.buffered(tp) for tp, owned in self._owner_of.items())
        if waiting < _RECORDS_PER_POLL or self._is_stalled:
            timeout_s = self._streams.poll_ms / 1000 if waiting == 0 or self._is_stalled else 0
            self._hand_out(self._consumer.poll(_RECORDS_PER_POLL, timeout_s))
        if self._consumer.has_lost_brokers():
            self._wait_for_brokers(self._deadline())
        processed = 0
        for owned in self._tasks.values():
            try:
                processed += owned.task.process(_RECORDS_PER_TURN)
                owned.task.punctuate_wall_clock()
            except _RECOVERABLE as error:
                self._recover(owned, error)
        self._processed += processed
        self._is_stalled = processed == 0
        self._balance_fetching()
        now_ms = self._clock.now_ms()
        is_due = now_ms - self._last_commit_ms >= self._streams.commit_interval_ms
        if is_due or self._cache_is_full():
            self._commit_all()
            self._last_commit_ms = now_ms
        else:
            self._commit(owned for owned in self._tasks.values() if owned.task.commit_requested)

    def _hand_out(self, polled: Polled) -> None:
        for tp, records in polled.records.items():
            self._ends_seen.discard(tp)
            if tp in self._owner_of:
                self._owner_of[tp].task.add_records(tp, records)
            else:
                self._global.apply(tp, records, records[-1].offset + 1)
        for tp, end in polled.ends.items():
            self._ends_seen.add(tp)
            if tp in self._owner_of:
                self._owner_of[tp].task.reached_end(tp, end)

    @property
    def _is_idle(self) -> bool:
        return not any(owned.task.buffered(tp) for tp, owned in self._owner_of.items())

    def _has_finished(self) -> bool:
        try:
            return self._has_nothing_left()
        except BrokerError as error:
            if not error.retriable:
                raise
            self._wait_for_brokers(self._deadline())
            return False

    def _has_nothing_left(self) -> bool:
        """Whether every input has been read to its end, processed and committed: then nothing can follow any more."""
        if not self._is_idle or not self._ends_seen.issuperset(self._owner_of):
            return False
        if any(owned.task.needs_commit for owned in self._tasks.values()):
            self._commit_all()  # may write to repartition topics, whose ends then have to be reached again
            return False
        positions = {tp: owned.task.position(tp) for tp, owned in self._owner_of.items()}
        internal = {tp for tp in positions if tp.topic in self._internal_topics}
        ends = self._admin.settled_end_offsets(internal) | self._admin.end_offsets(positions.keys() - internal)
        return all(positions[tp] >= ends[tp] or ends[tp] == 0 for tp in positions)

    def _balance_fetching(self) -> None:
        """Stop fetching inputs that run ahead of the others of their task, so that memory stays bounded."""
        limit = max(self._streams.buffered_records_per_partition, 5 * _RECORDS_PER_POLL)
        full = {tp for tp, owned in self._owner_of.items() if owned.task.buffered(tp) > limit}
        if full - self._paused:
            self._consumer.pause(full - self._paused)
        if self._paused - full:
            self._consumer.resume(self._paused - full)
        self._paused = full

    def _cache_is_full(self) -> bool:
        held_back = sum(owned.task.held_back_bytes() for owned in self._tasks.values())
        return held_back > self._streams.statestore_cache_max_bytes

    def _commit_all(self) -> None:
        self._commit(owned for owned in self._tasks.values() if owned.task.needs_commit)

    def _commit(self, tasks: Iterable[OwnedTask]) -> None:
        """Commit tasks at the same time: each has a transaction of its own, and waits for brokers most of the time."""
        prepared = [owned for owned in list(tasks) if self._succeeds(owned, owned.prepare_commit)]
        sent = [(owned, self._committers.submit(owned.send_commit)) for owned in prepared]
        wait(future for _, future in sent)  # all, before any is closed or started over
        for owned, future in sent:
            if self._succeeds(owned, future.result):
                owned.finish_commit()
                self._commits += 1

    def _succeeds(self, owned: OwnedTask, step: Callable[[], None]) -> bool:
        """Take a step of a task's commit; if it fails in a way that passes, the task starts over."""
        try:
            step()
        except _RECOVERABLE as error:
            self._recover(owned, error)
            return False
        return True

    def _recover(self, owned: OwnedTask, error: StreamsError) -> None:
        """Take a task over anew, as often as brokers need to come back, within `task.timeout.ms`."""
        if isinstance(error, BrokerError) and not error.retriable:
            raise error
        log.warning("task %s starts over from its last commit: %s", owned.id, error)
        self._dropped += owned.task.dropped
        deadline = self._deadline()
        while True:
            owned.close(abort=False)
            self._consumer.unassign(owned.inputs)
            self._wait_for_brokers(deadline)
            try:
                owned.check_owner()
                self._take_over(owned)
            except _RECOVERABLE as again:
                may_come_back = not isinstance(again, BrokerError) or again.retriable
                if not may_come_back or time.monotonic() > deadline or self._stopping:
                    raise
                log.warning("task %s: %s", owned.id, again)
                time.sleep(_RETRY_SECONDS)
            else:
                return

    def _wait_for_brokers(self, deadline: float) -> None:
        """Try nothing while brokers do not answer: each try would run into its own time limit.

        Raises:
            BrokerError: If they do not answer until the deadline, or until this worker is to stop.
        """
        self._has_brokers = False
        while not self._has_brokers:
            try:
                self._admin.partitions(self._application.topology.source_topics)
            except BrokerError as error:
                if not error.retriable or time.monotonic() > deadline or self._stopping:
                    raise
                log.warning("waiting for brokers: %s", error)
                time.sleep(_RETRY_SECONDS)
            else:
                self._has_brokers = True

    def _deadline(self) -> float:
        return time.monotonic() + self._streams.task_timeout_ms / 1000

    def _close(self) -> None:
        for owned in self._tasks.values():
            owned.close(abort=self._has_brokers)
        self._committers.shutdown()
        self._consumer.close()

    def _move_to(self, state: WorkerState) -> None:
        if state not in TRANSITIONS[self.state]:
            message = f"Worker cannot go from {self.state.value} to {state.value}"
            raise StreamsError(message)
        self.state = state
        self._on_state(state)
