"""Takes tasks over, restores them, and follows changelogs of standbys, while other tasks run (`StateUpdater`)."""

from __future__ import annotations

import logging
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from riverrun.errors import (
    BrokerError,
    CorruptStateError,
    RangeError,
    SetAsideError,
    StreamsError,
    UnknownOutcomeError,
)
from riverrun.hosting.restoring import StoreChangelogReader
from riverrun.hosting.standby_tasks import StandbyTasks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from riverrun.hosting.active_task import ActiveTask
    from riverrun.hosting.claim import Claim, ClaimedTask
    from riverrun.hosting.restoring import Missing
    from riverrun.kafka.admin import Admin
    from riverrun.kafka.door import Kafka
    from riverrun.records import TaskId, TopicPartition
    from riverrun.runtime.ports import Clock
    from riverrun.runtime.task import Task
    from riverrun.state.api import StateBackend
    from riverrun.worker.tasks.fetching import AbsentBrokers
    from riverrun.worker.tasks.known_topics import KnownTopics

log = logging.getLogger(__name__)


class StandbyUpdater:
    """Follows the changelogs of the standbys of a stream thread."""

    def __init__(self, topics: KnownTopics, clock: Clock, brokers: AbsentBrokers) -> None:
        self._topics = topics
        self._clock = clock
        self._brokers = brokers
        self._standbys = StandbyTasks(topics.connected, clock)

    @property
    def tasks(self) -> frozenset[TaskId]:
        """Return the tasks that are followed."""
        return self._standbys.tasks

    def begin(self) -> None:
        """Begin without standbys; tasks added from now on depend on the topics known now."""
        self.close()
        self._standbys = StandbyTasks(self._topics.connected, self._clock)

    def add(self, task_id: TaskId) -> None:
        """Follow a task."""
        self._brokers.retry_until_available(lambda: self._standbys.follow(task_id), f"standby of task {task_id}")

    def release(self, task_id: TaskId) -> StateBackend:
        """Stop following a task. Returns its state, which stays open."""
        return self._standbys.release(task_id)

    def run_once(self) -> None:
        """Apply new changelog records. Restarts standbys that failed for absent brokers once these answer again."""
        followed = self.tasks
        try:
            self._standbys.run_once(0)
        except BrokerError as error:
            if not error.retriable:
                raise
            log.warning("standbys wait for brokers: %s", error)
            # One wait for all standbys before any is added again: each attempt would add its timeout.
            self._brokers.wait()
            for task_id in sorted(followed - self.tasks):
                self.add(task_id)

    def task(self, task_id: TaskId) -> Task:
        """Return a standby task, with its stores."""
        return self._standbys.task(task_id)

    def applied(self, task_id: TaskId) -> dict[TopicPartition, int]:
        """Return the next offset to apply per changelog of a task."""
        return self._standbys.applied(task_id)

    def positions(self) -> dict[TaskId, int]:
        """Return the sum of applied changelog offsets, per task."""
        return self._standbys.positions()

    def lags(self) -> dict[TaskId, int]:
        """Return the number of missing records per task."""
        return self._standbys.lags()

    def close(self) -> None:
        """Stop following all tasks. Idempotent."""
        self._standbys.close()


# After these errors a task is taken over again; broker errors count only if they are temporary.
RECOVERABLE = (UnknownOutcomeError, CorruptStateError, BrokerError, SetAsideError)
_RETRY_SECONDS = 0.5
# Take-overs mostly wait for brokers, so some of them overlap.
_AT_ONCE = 4


class _Waiting(NamedTuple):
    """The phase of a task until it is taken over, at `until` at the earliest (monotonic seconds)."""

    until: float


class _Opening(NamedTuple):
    """The phase of a task that a thread takes over."""

    outcome: Future[ClaimedTask]


@dataclass(slots=True, eq=False)
class _Restoring:
    """The phase of a task that lacks so many changelog records (none: its state is complete)."""

    active: ActiveTask
    missing: int


@dataclass(slots=True, eq=False)
class _Update:
    """A task that is being taken over or restored.

    Args:
        again: Whether this process had it before.
        is_wanted: Whether it is still assigned here.
        deadline: When to stop trying (monotonic seconds); None while nothing has failed.
    """

    claim: Claim
    phase: _Waiting | _Opening | _Restoring
    again: bool = False
    is_wanted: bool = True
    deadline: float | None = None
    is_released: bool = False


class RefusedTask(NamedTuple):
    """A task that cannot be taken over; it is closed."""

    task_id: TaskId
    error: StreamsError


class Updated(NamedTuple):
    """The tasks whose state is complete, and those that cannot be taken over."""

    complete: list[ActiveTask]
    refused: list[RefusedTask]


class StateUpdater:
    """Takes tasks over without delaying others: threads wait for brokers, and slices of the caller's time restore.

    A task that is removed meanwhile keeps its restored records: the next process that opens its state continues from there.

    Args:
        timeout_ms: How long to try when brokers refuse or do not answer, ms (`task.timeout.ms`).
        on_restore: Called with changelog, records restored and records expected.
    """

    def __init__(
        self,
        admin: Admin,
        kafka: Kafka,
        timeout_ms: int,
        on_restore: Callable[[TopicPartition, int, int], None],
        create: Callable[[ClaimedTask], ActiveTask],
    ) -> None:
        self._reader = StoreChangelogReader(admin, kafka)
        self._timeout_s = timeout_ms / 1000
        self._on_restore = on_restore
        self._create = create
        self._updates: dict[TaskId, _Update] = {}
        self._openers = ThreadPoolExecutor(_AT_ONCE, "take-over")
        self._releases: list[Future[None]] = []

    @property
    def is_busy(self) -> bool:
        """Return whether there is any task to take over, restore or close."""
        return bool(self._updates)

    @property
    def tasks(self) -> frozenset[TaskId]:
        """Return the tasks that start, and those that are removed but not closed yet."""
        return frozenset(self._updates)

    @property
    def starting(self) -> Mapping[TaskId, int | None]:
        """Return the tasks that start, with the number of missing changelog records; None while unknown."""
        return {
            task_id: update.phase.missing if isinstance(update.phase, _Restoring) else None
            for task_id, update in list(self._updates.items())
            if update.is_wanted
        }

    @property
    def is_closing_tasks(self) -> bool:
        """Return whether removed tasks are still open."""
        return not all(update.is_wanted for update in self._updates.values())

    @property
    def restored(self) -> int:
        """Return the number of records restored so far."""
        return self._reader.restored

    def positions(self) -> dict[TaskId, int]:
        """Return the sum of applied changelog offsets, per restoring task."""
        return {update.claim.id: phase.active.position() for update, phase in self._restoring()}

    def add(self, claim: Claim, backend: StateBackend | None = None) -> None:
        """Take a task over; its open local state (`backend`), if any, is its own from now on."""
        self._updates[claim.id] = _Update(claim, self._opening(claim, backend))

    def add_again(self, claim: Claim) -> None:
        """Take a task over that this process had before, unless another owner has continued it."""
        self._updates[claim.id] = _Update(claim, _Waiting(0.0), again=True)

    def take(self, task_id: TaskId) -> None:
        """Remove a task whose state is complete, and which stays open."""
        del self._updates[task_id]

    def recall(self, task_ids: Iterable[TaskId]) -> None:
        """Resume tasks that were removed and are wanted again, unless they are closed already."""
        for update in self._leaving(task_ids):
            update.is_wanted, update.is_released = True, False

    def remove(self, task_ids: Iterable[TaskId], *, release: bool = False) -> None:
        """Close tasks. With `release`, brokers let their next owner take over without fencing this thread's producer."""
        for update in [self._updates[task_id] for task_id in task_ids if task_id in self._updates]:
            update.is_released = release
            if isinstance(update.phase, _Opening):
                # Its thread cannot be interrupted: `close_left` closes it once brokers have answered.
                update.is_wanted = False
            else:
                self._end(update)
        self._wait_until_released()

    def wait_until_closed(self, task_ids: Iterable[TaskId]) -> None:
        """Wait until removed tasks are closed."""
        phases = (update.phase for update in self._leaving(task_ids))
        wait(phase.outcome for phase in phases if isinstance(phase, _Opening))
        self.close_left()

    def run_once(self, max_records: int, timeout_s: float, *, gives_up: bool = False) -> Updated:
        """Continue with all tasks. With `gives_up`, failed attempts are not repeated."""
        if timeout_s and not self._reader.is_busy:
            opening = [update.phase.outcome for update in self._wanted() if isinstance(update.phase, _Opening)]
            if opening:
                wait(opening, timeout_s, FIRST_COMPLETED)
            else:
                time.sleep(timeout_s)
        self.close_left()
        refused = [refused for update in self._wanted() if (refused := self._go_on(update, gives_up=gives_up))]
        try:
            complete = self._reader.run_once(max_records, timeout_s)
        except RangeError as error:
            # The changelog was truncated meanwhile; the records that are left are valid.
            log.warning("restores start over: %s", error.message)
            return Updated([], refused + self._start_over(gives_up=gives_up))
        except RECOVERABLE as error:
            return Updated([], refused + self._fail_all(error, gives_up=gives_up))
        return Updated([self._complete(task) for task in complete], refused)

    def close_left(self) -> None:
        """Close removed tasks for which brokers have answered; `run_once` does this as well."""
        for update in self._leaving(list(self._updates)):
            if not isinstance(update.phase, _Opening) or update.phase.outcome.done():
                self._end(update)
        self._wait_until_released()

    def close(self) -> None:
        """Close all tasks. Idempotent."""
        self.remove(list(self._updates))
        self._openers.shutdown()
        self.close_left()
        self._reader.close()

    def _wanted(self) -> list[_Update]:
        return [update for update in self._updates.values() if update.is_wanted]

    def _leaving(self, task_ids: Iterable[TaskId]) -> list[_Update]:
        found = (self._updates.get(task_id) for task_id in task_ids)
        return [update for update in found if update is not None and not update.is_wanted]

    def _restoring(self) -> list[tuple[_Update, _Restoring]]:
        updates = self._updates.values()
        return [(update, update.phase) for update in updates if isinstance(update.phase, _Restoring)]

    def _opening(self, claim: Claim, backend: StateBackend | None = None, *, again: bool = False) -> _Opening:
        def take_over() -> ClaimedTask:
            if again:
                # Another owner that has committed meanwhile is the rightful one, and must not be fenced.
                claim.check_owner()
            return claim.take_over(backend)

        return _Opening(self._openers.submit(take_over))

    def _go_on(self, update: _Update, *, gives_up: bool) -> RefusedTask | None:
        """Take the next step of taking a task over, if there is one."""
        match update.phase:
            case _Waiting(until) if time.monotonic() >= until:
                update.phase = self._opening(update.claim, again=update.again)
            case _Opening(outcome) if outcome.done():
                try:
                    self._restore(update, outcome.result())
                except StreamsError as error:
                    return self._failed(update, error, gives_up=gives_up)
        return None

    def _restore(self, update: _Update, claimed: ClaimedTask) -> None:
        active = self._create(claimed)
        missing = active.initialize()
        update.phase = phase = _Restoring(active, 0)
        self._read(update, phase, missing)

    def _read(self, update: _Update, phase: _Restoring, missing: Missing) -> None:
        phase.missing = sum(part.size for part in missing.ranges.values())

        def show(changelog: TopicPartition, done: int, expected: int) -> None:
            # Progress ends a row of failures, so the time to keep trying begins again with the next one.
            phase.missing, update.deadline = max(expected - done, 0), None
            phase.active.restored_records = done
            self._on_restore(changelog, done, expected)

        self._reader.add(phase.active.task, missing, show)

    def _complete(self, restored: Task) -> ActiveTask:
        return next(phase.active for _, phase in self._restoring() if phase.active.task is restored)

    def _start_over(self, *, gives_up: bool) -> list[RefusedTask]:
        refused = []
        for update, phase in self._restoring():
            self._reader.remove(phase.active.task)
            try:
                self._read(update, phase, phase.active.start_over())
            except StreamsError as error:
                refused.append(self._failed(update, error, gives_up=gives_up))
        return [each for each in refused if each is not None]

    def _fail_all(self, error: StreamsError, *, gives_up: bool) -> list[RefusedTask]:
        failed = (self._failed(update, error, gives_up=gives_up) for update, _ in self._restoring())
        return [refused for refused in failed if refused is not None]

    def _failed(self, update: _Update, error: StreamsError, *, gives_up: bool) -> RefusedTask | None:
        now, task_id = time.monotonic(), update.claim.id
        update.deadline = update.deadline or now + self._timeout_s
        may_help = isinstance(error, RECOVERABLE) and (not isinstance(error, BrokerError) or error.retriable)
        if not may_help or gives_up or now > update.deadline:
            self._end(update)
            return RefusedTask(task_id, error)
        self._close(update.phase)
        log.warning("task %s: %s", task_id, error, extra={"task": str(task_id)})
        update.again, update.phase = True, _Waiting(now + _RETRY_SECONDS)
        return None

    def _end(self, update: _Update) -> None:
        del self._updates[update.claim.id]
        is_taken_over = self._close(update.phase)
        if is_taken_over and update.is_released:
            self._releases.append(self._openers.submit(update.claim.release))

    def _wait_until_released(self) -> None:
        # Outcomes are not looked at: after a release that failed, the next owner fences the producer of this thread.
        wait(self._releases)
        self._releases.clear()

    def _close(self, phase: _Waiting | _Opening | _Restoring) -> bool:
        """Close a task. Returns whether it was taken over."""
        match phase:
            case _Opening(outcome) if outcome.exception() is None:
                outcome.result().close()
                return True
            case _Restoring(active):
                self._reader.remove(active.task)
                # No transaction to abort: a task that is being restored has sent nothing.
                active.close(abort=False)
                return True
        return False
