"""Takes tasks over and restores them in the background, while other tasks run (`StateUpdater`).

Follows changelogs of standbys, across absences of brokers and changes of topics (`StateUpdater`).
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from riverrun.errors import BrokerError, CorruptStateError, RangeError, StreamsError, UnknownOutcomeError
from riverrun.hosting.restoring import StoreChangelogReader
from riverrun.hosting.standby_tasks import StandbyTasks
from riverrun.worker.tasks.task_states import StreamTaskState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from riverrun.kafka.admin import Admin
    from riverrun.records import TaskId, TopicPartition
    from riverrun.runtime.ports import Clock
    from riverrun.runtime.task import Task
    from riverrun.state.api import StateBackend
    from riverrun.worker.tasks.fetching import AbsentBrokers
    from riverrun.worker.tasks.known_topics import KnownTopics
    from riverrun.worker.tasks.task_states import StreamTask

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


RECOVERABLE = (UnknownOutcomeError, CorruptStateError, BrokerError)
"""After these errors a task is taken over again; broker errors count only if they are temporary."""
_RETRY_SECONDS = 0.5
_AT_ONCE = 4
"""How many tasks may be taken over at the same time."""


@dataclass(slots=True)
class _Update:
    """A task that is being taken over or restored.

    Args:
        task: The task.
        backend: Its local state, if it was open already.
        again: Whether this process had it before: then no other owner may have continued it meanwhile.
        opening: The attempt to take it over, while that is under way.
        restored: The task as it is restored, once it has been taken over.
        missing: How many changelog records are still missing, once known.
        retry_at: When to try again (monotonic seconds).
        deadline: When to stop trying (monotonic seconds); None while nothing has failed.
    """

    task: StreamTask
    backend: StateBackend | None
    again: bool
    opening: Future[None] | None = None
    restored: Task | None = None
    missing: int | None = None
    retry_at: float = 0.0
    deadline: float | None = None

    @property
    def is_opened(self) -> bool:
        """Return whether the attempt to take it over has ended."""
        return self.opening is None or self.opening.done()

    def open(self) -> None:
        """Take the task over; called in a separate thread."""
        if self.again:
            self.task.owned.check_owner()
        self.task.owned.take_over(self.backend)


class Updated(NamedTuple):
    """A task whose state is complete or, with an error, one that cannot be taken over and is closed."""

    task: StreamTask
    error: StreamsError | None


class StateUpdater:
    """Takes tasks over without delaying others: threads wait for brokers, and slices of the caller's time restore.

    A task that is removed meanwhile keeps its restored records: the next process that opens its state continues from there.

    Args:
        admin: Asks the brokers.
        kafka: Client properties.
        timeout_ms: How long to try when brokers refuse or do not answer, ms (`task.timeout.ms`).
        on_restore: Called with changelog, records restored and records expected.
    """

    def __init__(
        self,
        admin: Admin,
        kafka: Mapping[str, str],
        timeout_ms: int,
        on_restore: Callable[[TopicPartition, int, int], None],
    ) -> None:
        self._reader = StoreChangelogReader(admin, kafka)
        self._timeout_s = timeout_ms / 1000
        self._on_restore = on_restore
        self._updates: dict[TaskId, _Update] = {}
        self._openers = ThreadPoolExecutor(_AT_ONCE, "take-over")

    @property
    def is_busy(self) -> bool:
        """Return whether there is any task to take over, restore or close."""
        return bool(self._updates)

    @property
    def missing(self) -> Mapping[TaskId, int | None]:
        """Return the number of missing changelog records per task; None while unknown."""
        return {task_id: update.missing for task_id, update in list(self._updates.items())}

    @property
    def restored(self) -> int:
        """Return the number of records restored so far."""
        return self._reader.restored

    def positions(self) -> dict[TaskId, int]:
        """Return the sum of applied changelog offsets, per restoring task."""
        return {
            task_id: update.task.owned.position()
            for task_id, update in self._updates.items()
            if update.restored is not None
        }

    def add(self, task: StreamTask, backend: StateBackend | None = None, *, again: bool = False) -> None:
        """Take a task over.

        Args:
            task: The task; new, or waiting to be taken over again.
            backend: Its local state, if it is open; the task owns it from now on.
            again: Whether this process had it before: then no other owner may have continued it meanwhile.
        """
        self._updates[task.id] = update = _Update(task, backend, again)
        self._open(update)

    def recall(self, task_ids: Iterable[TaskId]) -> None:
        """Resume tasks that were removed and are wanted again, unless they are closed already."""
        for update in self._leaving(task_ids):
            update.task.move_to(StreamTaskState.OPENING)

    def remove(self, task_ids: Iterable[TaskId]) -> None:
        """Close tasks; a task that waits for brokers is closed as soon as they have answered."""
        for task_id in task_ids:
            update = self._updates.get(task_id)
            if update is None or update.task.state is StreamTaskState.LEAVING:
                continue
            if update.opening is None:
                self._end(update)
            else:
                update.task.move_to(StreamTaskState.LEAVING)

    def wait_until_closed(self, task_ids: Iterable[TaskId]) -> None:
        """Wait until removed tasks are closed."""
        wait(update.opening for update in self._leaving(task_ids) if update.opening is not None)
        self.close_left()

    def run_once(self, max_records: int, timeout_s: float, *, gives_up: bool = False) -> list[Updated]:
        """Continue with all tasks.

        Args:
            max_records: The most records to restore.
            timeout_s: How long to wait for anything to happen, s.
            gives_up: Whether not to repeat failed attempts.

        Returns:
            The tasks whose state is complete, and those that cannot be taken over.

        Raises:
            StateError: If the state of a task cannot be opened or written.
        """
        if timeout_s and not self._reader.is_busy:
            opening = [update.opening for update in self._wanted() if update.opening is not None]
            if opening:
                wait(opening, timeout_s, FIRST_COMPLETED)
            else:
                time.sleep(timeout_s)
        self.close_left()
        failed = [updated for update in self._wanted() if (updated := self._go_on(update, gives_up=gives_up))]
        try:
            complete = self._reader.run_once(max_records, timeout_s)
        except RangeError as error:  # truncated meanwhile: the remaining changelog records are valid
            log.warning("restores start over: %s", error.message)
            return failed + self._start_over(gives_up=gives_up)
        except RECOVERABLE as error:
            return failed + self._fail_all(error, gives_up=gives_up)
        return failed + [self._complete(task) for task in complete]

    def close_left(self) -> None:
        """Close removed tasks for which brokers have answered; `run_once` does this as well."""
        for update in self._leaving(list(self._updates)):
            if update.is_opened:
                self._end(update)

    def close(self) -> None:
        """Close all tasks. Idempotent."""
        self.remove(list(self._updates))
        self._openers.shutdown()
        self.close_left()
        self._reader.close()

    def _wanted(self) -> list[_Update]:
        return [update for update in self._updates.values() if update.task.state is not StreamTaskState.LEAVING]

    def _leaving(self, task_ids: Iterable[TaskId]) -> list[_Update]:
        found = (self._updates.get(task_id) for task_id in task_ids)
        return [update for update in found if update is not None and update.task.state is StreamTaskState.LEAVING]

    def _open(self, update: _Update) -> None:
        update.task.move_to(StreamTaskState.OPENING)
        update.opening = self._openers.submit(update.open)

    def _go_on(self, update: _Update, *, gives_up: bool) -> Updated | None:
        """Take the next step of taking a task over, if there is one."""
        if update.opening is None:
            if update.restored is None and time.monotonic() >= update.retry_at:
                self._open(update)
            return None
        if not update.opening.done():
            return None
        opened, update.opening, update.backend = update.opening, None, None
        try:
            opened.result()
            self._restore(update)
        except StreamsError as error:
            return self._failed(update, error, gives_up=gives_up)
        update.task.move_to(StreamTaskState.RESTORING)
        return None

    def _restore(self, update: _Update) -> None:
        owned = update.task.owned
        update.restored, missing = owned.prepare()
        update.missing = sum(part.size for part in missing.ranges.values())

        def show(changelog: TopicPartition, done: int, expected: int) -> None:
            update.missing, update.deadline = max(expected - done, 0), None
            owned.restored_records = done
            self._on_restore(changelog, done, expected)

        self._reader.add(update.restored, missing, show)

    def _complete(self, restored: Task) -> Updated:
        update = next(update for update in self._updates.values() if update.restored is restored)
        update.task.owned.start()
        update.task.move_to(StreamTaskState.RUNNING)
        del self._updates[update.task.id]
        return Updated(update.task, None)

    def _start_over(self, *, gives_up: bool) -> list[Updated]:
        failed = []
        for update in self._restoring():
            assert update.restored is not None  # noqa: S101 - those that are restored
            self._reader.remove(update.restored)
            update.restored.close()
            try:
                update.task.owned.find_missing()
                self._restore(update)
            except StreamsError as error:
                failed.append(self._failed(update, error, gives_up=gives_up))
        return [updated for updated in failed if updated is not None]

    def _fail_all(self, error: StreamsError, *, gives_up: bool) -> list[Updated]:
        return [updated for update in self._restoring() if (updated := self._failed(update, error, gives_up=gives_up))]

    def _restoring(self) -> list[_Update]:
        return [update for update in self._updates.values() if update.restored is not None]

    def _failed(self, update: _Update, error: StreamsError, *, gives_up: bool) -> Updated | None:
        """Close a task that could not be taken over, and try again later if that may help."""
        now = time.monotonic()
        update.deadline = update.deadline or now + self._timeout_s
        may_help = isinstance(error, RECOVERABLE) and (not isinstance(error, BrokerError) or error.retriable)
        if not may_help or gives_up or now > update.deadline:
            self._end(update)
            return Updated(update.task, error)
        self._close(update)
        update.task.move_to(StreamTaskState.WAITING)
        log.warning("task %s: %s", update.task.id, error, extra={"task": str(update.task.id)})
        update.again, update.retry_at = True, now + _RETRY_SECONDS
        return None

    def _end(self, update: _Update) -> None:
        del self._updates[update.task.id]
        update.task.move_to(StreamTaskState.CLOSED)
        self._close(update)

    def _close(self, update: _Update) -> None:
        if update.restored is not None:
            self._reader.remove(update.restored)
        update.restored = update.missing = None
        update.task.owned.close(abort=False)  # it has sent nothing
