"""The tasks that one process runs: fetched for, processed, committed, and taken over anew when something fails."""

from __future__ import annotations

import logging
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from pipeline.errors import (
    BrokerError,
    CorruptStateError,
    TaskCorruptedError,
    TaskError,
    TaskMigratedError,
    UnknownOutcomeError,
)
from pipeline.hosting.application import prepare, with_topics
from pipeline.hosting.clock import SystemClock
from pipeline.hosting.global_tables import open_global_state
from pipeline.hosting.owned_task import OwnedTask
from pipeline.hosting.purge import RepartitionPurge
from pipeline.hosting.standby_tasks import StandbyTasks
from pipeline.kafka.admin import Admin
from pipeline.kafka.consumer import RecordConsumer
from pipeline.worker.answers import look_up
from pipeline.worker.protocol import TaskFigures
from pipeline.worker.queries import Page, Question, Reason, Refusal
from pipeline.worker.states import WorkerSummary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pipeline.errors import StreamsError
    from pipeline.hosting.application import Application
    from pipeline.kafka.consumer import Polled
    from pipeline.records import TaskId, TopicPartition
    from pipeline.runtime.global_state import GlobalState
    from pipeline.runtime.layout import Layout
    from pipeline.runtime.task import Task
    from pipeline.state.api import StateBackend, StoreBuilder

log = logging.getLogger(__name__)

_RECORDS_PER_POLL = 10_000
_RECORDS_PER_TURN = 1_000
"""How many records a task processes before the next one has its turn."""
_RECORDS_PER_LOOK = 32
"""How many of these it processes before it looks at the clock, at most."""
_TURN_SECONDS = 0.2
"""So long does a turn last if records are slow: transactions must be committed, and supervisors answered, in time."""
_RETRY_SECONDS = 0.5
_COMMITTERS = 16
"""How many tasks commit at the same time."""
_RECOVERABLE = (UnknownOutcomeError, TaskCorruptedError, CorruptStateError, BrokerError)
"""After these a task is taken over anew; broker errors count only if waiting helps."""


_TIDY_AFTER = 1_000
"""After so many answers, what they left in the stores' caches is looked at."""


class Interruptions(Protocol):
    """What may happen beside processing."""

    def attend(self) -> None:
        """Called between the turns of two tasks, when stores are at rest."""
        ...

    def away(self) -> AbstractContextManager[None]:
        """Entered while brokers are waited for and no store is touched."""
        ...


class Undisturbed:
    """Nothing happens beside processing."""

    def attend(self) -> None:
        """Nothing."""

    def away(self) -> AbstractContextManager[None]:
        """Nothing either."""
        return nullcontext()


class RunningTasks:
    """Some tasks of one version of an application, active and standby.

    Args:
        application: Whose tasks.
        gives_up: Whether a task that another owner has taken over is given up; else that is an error.
        interruptions: What may happen beside processing.
        on_restore: Told changelog, records restored and records expected.
    """

    def __init__(
        self,
        application: Application,
        *,
        gives_up: bool = False,
        interruptions: Interruptions | None = None,
        on_restore: Callable[[TopicPartition, int, int], None] | None = None,
    ) -> None:
        """Nothing is asked before `start`."""
        self.layout: Layout
        self._application = application
        self._streams = application.config.streams
        self._gives_up = gives_up
        self._interruptions = interruptions or Undisturbed()
        self._on_restore = on_restore
        self._builders = _builders(application)
        self._global_names = frozenset(declared.store.name for declared in application.topology.global_stores)
        self._admin = Admin(application.kafka)
        self._clock = SystemClock()
        self._purge = RepartitionPurge(self._admin, self._streams.repartition_purge_interval_ms)
        self._tasks: dict[TaskId, OwnedTask] = {}
        self._owner_of: dict[TopicPartition, OwnedTask] = {}
        self._standbys: StandbyTasks
        self._paused: set[TopicPartition] = set()
        self._internal_topics: set[str] = set()
        self._ends_seen: set[TopicPartition] = set()
        self._consumer = RecordConsumer(application.kafka, self._streams.consumer)
        self._committers = ThreadPoolExecutor(_COMMITTERS, "commit")
        self._global: GlobalState
        self._processed = 0
        self._restored = 0
        self._commits = 0
        self._commit_seconds = (0.0, 0.0)
        self._processed_by: Counter[TaskId] = Counter()
        self._restoring: dict[TaskId, int | None] = {}
        self._answers = 0
        self._dropped: Counter[str] = Counter()
        self._last_commit_ms = 0
        self._is_stalled = False
        self._has_brokers = True
        self._stopping = False

    @property
    def active(self) -> frozenset[TaskId]:
        """The tasks that are processed."""
        return frozenset(self._tasks)

    @property
    def standby(self) -> frozenset[TaskId]:
        """The tasks whose changelogs are followed."""
        return self._standbys.tasks

    def start(self) -> None:
        """Check topics, create internal ones, and fill the global tables.

        Raises:
            TopicError: If topics are missing or do not fit.
            BrokerError: If brokers do not answer.
        """
        self._application = with_topics(self._application, self._admin)
        self.layout = prepare(self._application, self._admin)
        self._standbys = StandbyTasks(self._application, self.layout, self._admin, self._clock)
        self._global = open_global_state(self._application, self._admin, self._clock, on_restore=self._on_restore)
        self._internal_topics = {topic.name for topic in self.layout.repartition_topics}
        self._consumer.assign(self._global.positions())

    def stop_waiting(self) -> None:
        """Wait for absent brokers no longer. May be called from a signal handler."""
        self._stopping = True

    def take(self, active: frozenset[TaskId], standby: frozenset[TaskId]) -> None:
        """Run these tasks and follow those; commit and let go of all others. Tasks that stay are not disturbed.

        Raises:
            StateError: If another process has the state of a task open.
            BrokerError: If brokers do not answer for longer than `task.timeout.ms`.
        """
        self._release(self.active - active)
        states: dict[TaskId, StateBackend] = {}
        for task_id in self.standby - standby:
            state = self._standbys.release(task_id)
            if task_id in active:
                states[task_id] = state
            else:
                state.close()
        for task_id in sorted(active - self.active):
            self._add(task_id, states.get(task_id))
        for task_id in sorted(standby - self.standby):
            self._follow(task_id)

    def run_once(self) -> None:
        """Fetch, process a few records of each task, and commit if it is time."""
        waiting = sum(owned.task.buffered(tp) for tp, owned in self._owner_of.items())
        if waiting < _RECORDS_PER_POLL or self._is_stalled:
            timeout_s = self._streams.poll_ms / 1000 if waiting == 0 or self._is_stalled else 0
            self._hand_out(self._poll(timeout_s))
        self._standbys.run_once(0)
        if self._consumer.has_lost_brokers():
            self._wait_for_brokers(self._deadline())
        processed = 0
        for owned in list(self._tasks.values()):
            try:
                done = _take_turn(owned.task)
                owned.task.punctuate_wall_clock()
                processed += done
                self._processed_by[owned.id] += done
            except _RECOVERABLE as error:
                self._recover(owned, error)
            except TaskMigratedError as error:
                self._lose(owned, error)
            self._interruptions.attend()
        self._processed += processed
        self._is_stalled = processed == 0
        self._balance_fetching()
        now_ms = self._clock.now_ms()
        is_due = now_ms - self._last_commit_ms >= self._streams.commit_interval_ms
        if is_due or self._cache_is_full():
            self.commit_all()
            self._last_commit_ms = now_ms
        else:
            self._commit(owned for owned in self._tasks.values() if owned.task.commit_requested)
        self._purge.run_if_due(now_ms, self._processed_repartitions)

    def commit_all(self) -> None:
        """Commit every task that has made progress."""
        self._commit(owned for owned in self._tasks.values() if owned.task.needs_commit)

    def has_finished(self) -> bool:
        """Whether every input has been read to its end, processed and committed: then nothing can follow any more."""
        try:
            return self._has_nothing_left()
        except BrokerError as error:
            if not error.retriable:
                raise
            self._wait_for_brokers(self._deadline())
            return False

    def summary(self) -> WorkerSummary:
        """What has been done so far."""
        dropped = self._dropped + sum((owned.dropped for owned in self._tasks.values()), Counter[str]())
        return WorkerSummary(self._processed, self._restored, self._commits, dict(dropped))

    def positions(self) -> Mapping[TaskId, int]:
        """Changelog offsets applied, summed up, per task."""
        return {task_id: owned.position() for task_id, owned in self._tasks.items()} | self._standbys.positions()

    def lags(self) -> Mapping[TaskId, int]:
        """Records that are missing, per standby."""
        return self._standbys.lags()

    @property
    def restoring(self) -> Mapping[TaskId, int | None]:
        """Tasks that are being taken over, with the number of changelog records that are missing, if it is known already."""
        return dict(self._restoring)

    @property
    def commit_seconds(self) -> tuple[float, float]:
        """How long commits took: all together, and the longest."""
        return self._commit_seconds

    def figures(self) -> Mapping[TaskId, TaskFigures]:
        """What each task that runs has done since it was taken over."""
        return {
            task_id: TaskFigures(self._processed_by[task_id], dict(owned.dropped))
            for task_id, owned in self._tasks.items()
        }

    def answer(self, question: Question) -> Page | Refusal:
        """Look up what a store has at this moment: what is not committed yet included, since processing sees that as well.

        To be called between two turns only, or while brokers are waited for.
        """
        builder = self._builders.get(question.store)
        if builder is None:
            known = ", ".join(sorted(self._builders)) or "none"
            return Refusal(Reason.NO_SUCH_STORE, f"There is no store {question.store}; there are: {known}")
        found = self._find(question)
        if isinstance(found, Refusal):
            return found
        store, position, is_standby = found
        try:
            page = look_up(store, builder, question.query, question.limit, question.after)
        except Exception as error:  # noqa: BLE001 - a serde may raise anything, and nothing but the answer is lost
            return Refusal(Reason.FAILED, f"Store {question.store}: {type(error).__name__}: {error}")
        if isinstance(page, Refusal):
            return page
        self._answers += 1
        if is_standby:
            store.forget_reads(0)  # restoring goes past the cache
        elif self._answers % _TIDY_AFTER == 0:
            store.forget_reads()
        return Page(page.rows, page.after, position, is_standby)

    def close(self) -> None:
        """Let go of all tasks. What was not committed is forgotten."""
        for owned in self._tasks.values():
            owned.close(abort=self._has_brokers)
        if hasattr(self, "_standbys"):
            self._standbys.close()
        self._committers.shutdown()
        self._consumer.close()

    def _find(self, question: Question) -> tuple[Any, Mapping[TopicPartition, int], bool] | Refusal:
        """The open store that a question is about, how far it is, and whether it is a standby's."""
        task_id = question.task
        if question.store in self._global_names:
            return self._global.stores[question.store], self._global.positions(), False
        if task_id in self._tasks and self._tasks[task_id].is_running and task_id not in self._restoring:
            owned = self._tasks[task_id]
            reached = {tp: owned.task.position(tp) for tp in owned.inputs}
            return owned.task.store(question.store), {tp: n for tp, n in reached.items() if n >= 0}, False
        if task_id in self._tasks:
            missing = self._restoring.get(task_id)
            return Refusal(Reason.RESTORING, f"Task {task_id} is being restored", missing=missing)
        if task_id in self.standby and question.allows_standby:
            return self._standbys.task(task_id).store(question.store), self._standbys.applied(task_id), True
        return Refusal(Reason.NOT_HERE, f"Task {task_id} does not run here")

    def _poll(self, timeout_s: float) -> Polled:
        with self._interruptions.away():
            return self._consumer.poll(_RECORDS_PER_POLL, timeout_s)

    def _add(self, task_id: TaskId, state: StateBackend | None) -> None:
        owned = OwnedTask(self._application, self.layout, task_id, self._admin, self._clock, self._global.stores)
        self._tasks[task_id] = owned
        self._owner_of |= dict.fromkeys(owned.inputs, owned)
        try:
            self._take_over(owned, state)
        except _RECOVERABLE as error:
            self._recover(owned, error)
        self._interruptions.attend()

    def _follow(self, task_id: TaskId) -> None:
        deadline = self._deadline()
        while task_id not in self.standby:
            try:
                self._standbys.follow(task_id)
            except BrokerError as error:
                if not error.retriable or time.monotonic() > deadline or self._stopping:
                    raise
                log.warning("standby of task %s: %s", task_id, error, extra={"task": str(task_id)})
                self._wait_for_brokers(deadline)

    def _release(self, leaving: frozenset[TaskId]) -> None:
        self._commit(owned for task_id, owned in self._tasks.items() if task_id in leaving and owned.task.needs_commit)
        for task_id in leaving & self._tasks.keys():
            self._drop(self._tasks[task_id])

    def _drop(self, owned: OwnedTask) -> None:
        self._dropped += owned.dropped
        self._consumer.unassign(owned.inputs)
        owned.close(abort=self._has_brokers)
        del self._tasks[owned.id]
        self._restoring.pop(owned.id, None)
        self._processed_by.pop(owned.id, None)
        for tp in owned.inputs:
            del self._owner_of[tp]

    def _lose(self, owned: OwnedTask, error: TaskMigratedError) -> None:
        if not self._gives_up:
            raise error
        log.warning("task %s is given up: %s", owned.id, error, extra={"task": str(owned.id)})
        self._drop(owned)

    def _take_over(self, owned: OwnedTask, state: StateBackend | None = None) -> None:
        self._restoring[owned.id] = None
        owned.open(lambda *progress: self._show_restore(owned.id, *progress), state)
        del self._restoring[owned.id]
        self._restored += owned.restored_records
        self._ends_seen -= set(owned.inputs)
        self._paused -= set(owned.inputs)
        self._consumer.assign(owned.starts())
        known = {"task": str(owned.id), "offsets": {str(tp): offset for tp, offset in owned.committed_offsets.items()}}
        log.info("task %s taken over, %d records restored", owned.id, owned.restored_records, extra=known)

    def _show_restore(self, task_id: TaskId, changelog: TopicPartition, done: int, expected: int) -> None:
        self._restoring[task_id] = max(expected - done, 0)
        if self._on_restore is not None:
            self._on_restore(changelog, done, expected)
        self._interruptions.attend()

    def _hand_out(self, polled: Polled) -> None:
        for tp, records in polled.records.items():
            self._ends_seen.discard(tp)
            if tp in self._owner_of:
                self._owner_of[tp].task.add_records(tp, records)
            elif tp.topic in self._global.topics:
                self._global.apply(tp, records, records[-1].offset + 1)
        for tp, end in polled.ends.items():
            self._ends_seen.add(tp)
            if tp in self._owner_of:
                self._owner_of[tp].task.reached_end(tp, end)

    def _has_nothing_left(self) -> bool:
        is_idle = not any(owned.task.buffered(tp) for tp, owned in self._owner_of.items())
        if not is_idle or not self._ends_seen.issuperset(self._owner_of):
            return False
        if any(owned.task.needs_commit for owned in self._tasks.values()):
            self.commit_all()  # may write to repartition topics, whose ends then have to be reached again
            return False
        positions = {tp: owned.task.position(tp) for tp, owned in self._owner_of.items()}
        internal = {tp for tp in positions if tp.topic in self._internal_topics}
        ends = self._admin.settled_end_offsets(internal) | self._admin.end_offsets(positions.keys() - internal)
        return all(positions[tp] >= ends[tp] or ends[tp] == 0 for tp in positions)

    def _processed_repartitions(self) -> dict[TopicPartition, int]:
        committed = {tp: at for owned in self._tasks.values() for tp, at in owned.committed_offsets.items()}
        return {tp: offset for tp, offset in committed.items() if tp.topic in self._internal_topics}

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

    def _commit(self, tasks: Iterable[OwnedTask]) -> None:
        """Commit tasks at the same time: each has a transaction of its own, and waits for brokers most of the time."""
        began = time.monotonic()
        prepared = [owned for owned in list(tasks) if self._succeeds(owned, owned.prepare_commit)]
        if not prepared:
            return
        sent = [(owned, self._committers.submit(owned.send_commit)) for owned in prepared]
        with self._interruptions.away():
            wait(future for _, future in sent)  # all, before any is closed or started over
        for owned, future in sent:
            if self._succeeds(owned, future.result) and self._succeeds(owned, owned.finish_commit):
                self._commits += 1
        seconds = time.monotonic() - began
        self._commit_seconds = self._commit_seconds[0] + seconds, max(self._commit_seconds[1], seconds)

    def _succeeds(self, owned: OwnedTask, step: Callable[[], None]) -> bool:
        """Take a step of a task's commit; if it fails in a way that passes, the task starts over."""
        self._interruptions.attend()
        try:
            step()
        except _RECOVERABLE as error:
            self._recover(owned, error)
            return False
        except TaskMigratedError as error:
            self._lose(owned, error)
            return False
        return True

    def _recover(self, owned: OwnedTask, error: StreamsError) -> None:
        """Take a task over anew, as often as brokers need to come back, within `task.timeout.ms`."""
        if isinstance(error, BrokerError) and not error.retriable:
            raise error
        log.warning("task %s starts over from its last commit: %s", owned.id, error, extra={"task": str(owned.id)})
        self._dropped += owned.dropped
        deadline = self._deadline()
        while True:
            owned.close(abort=False)
            self._consumer.unassign(owned.inputs)
            self._wait_for_brokers(deadline)
            try:
                owned.check_owner()
                self._take_over(owned)
            except TaskMigratedError as migrated:
                self._lose(owned, migrated)
                return
            except _RECOVERABLE as again:
                may_come_back = again.retriable if isinstance(again, BrokerError) else isinstance(again, TaskError)
                if not may_come_back or time.monotonic() > deadline or self._stopping:
                    raise
                log.warning("task %s: %s", owned.id, again, extra={"task": str(owned.id)})
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
                with self._interruptions.away():
                    self._admin.partitions(self._application.topology.source_topics)
            except BrokerError as error:
                if not error.retriable or time.monotonic() > deadline or self._stopping:
                    raise
                log.warning("waiting for brokers: %s", error)
                with self._interruptions.away():
                    time.sleep(_RETRY_SECONDS)
            else:
                self._has_brokers = True

    def _deadline(self) -> float:
        return time.monotonic() + self._streams.task_timeout_ms / 1000


def _take_turn(task: Task) -> int:
    """Let a task process records until the turn is over; gives how many (`TaskManager.process`, `max.poll.interval.ms`).

    The clock is looked at after 1, 2, 4, ... records: one slow record is enough to notice, many fast ones cost no looks.
    """
    ends, done, next_look = time.monotonic() + _TURN_SECONDS, 0, 1
    while done < _RECORDS_PER_TURN:
        part = task.process(next_look)
        done += part
        if part < next_look or time.monotonic() > ends:
            break
        next_look = min(2 * next_look, _RECORDS_PER_LOOK)
    return done


def _builders(application: Application) -> dict[str, StoreBuilder]:
    """All stores by name."""
    topology = application.topology
    own = {store.name: store for sub in topology.sub_topologies() for store in sub.stores}
    return own | {declared.store.name: declared.store for declared in topology.global_stores}
