"""Owns the tasks of a stream thread: takes them over, commits and closes them, and restarts those that fail."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from riverrun.errors import BrokerError, TaskMigratedError, UnknownOutcomeError
from riverrun.hosting.owned_task import OwnedTask
from riverrun.records import TaskId
from riverrun.worker.tasks.commits import Commits, CommitSchedule
from riverrun.worker.tasks.task_states import STARTING, StreamTask, StreamTaskState

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet

    from riverrun.config import StreamsConfig
    from riverrun.errors import StreamsError
    from riverrun.runtime.ports import Clock
    from riverrun.state.api import StateBackend
    from riverrun.worker.tasks.fetching import AbsentBrokers, Fetching, Interruptions
    from riverrun.worker.tasks.state_updater import StandbyUpdater, StateUpdater
    from riverrun.worker.tasks.task_states import TaskCounts

log = logging.getLogger(__name__)


class TaskManager:
    """Owns the tasks of a stream thread, active and standby (`TaskManager`).

    Each active task has one state, and moves along `task_states.TRANSITIONS`. Other classes see the running tasks (`running`),
    which they cannot change, or receive tasks: the updaters those that start and follow, `Commits` those that commit.

    Args:
        create: Creates a task, which is not taken over yet.
        updater: Takes tasks over, and restores them.
        standbys: Follows tasks that run elsewhere.
        fetching: Fetches for running tasks.
        counts: Counts the work of tasks.
        brokers: Waits for absent brokers.
        interruptions: Called while waiting for brokers.
        clock: Tells the time.
        streams: Settings.
        gives_up: Whether to give up tasks that another owner has taken over; otherwise a takeover is an error.
    """

    def __init__(
        self,
        create: Callable[[TaskId], OwnedTask],
        updater: StateUpdater,
        *,
        standbys: StandbyUpdater,
        fetching: Fetching,
        counts: TaskCounts,
        brokers: AbsentBrokers,
        interruptions: Interruptions,
        clock: Clock,
        streams: StreamsConfig,
        gives_up: bool,
    ) -> None:
        self._tasks: dict[TaskId, StreamTask] = {}
        self.running: Mapping[TaskId, OwnedTask] = _Running(self._tasks)
        """The tasks that process, or whose commit is under way."""
        self._create = create
        self._updater = updater
        self._standbys = standbys
        self._fetching = fetching
        self._counts = counts
        self._brokers = brokers
        self._interruptions = interruptions
        self._clock = clock
        self._timeout_s = streams.task_timeout_ms / 1000
        self._gives_up = gives_up
        self._schedule = CommitSchedule(streams.commit_interval_ms, streams.statestore_cache_max_bytes)
        self.commits = Commits(self._schedule, interruptions, self.fail)
        """The commits of running tasks."""

    @property
    def active(self) -> frozenset[TaskId]:
        """Return the tasks that run or start, including those that are not closed yet."""
        return frozenset(self._tasks)

    @property
    def standby(self) -> frozenset[TaskId]:
        """Return the tasks whose changelogs are followed."""
        return self._standbys.tasks

    @property
    def restoring(self) -> Mapping[TaskId, int | None]:
        """Return the tasks that start, with the number of missing changelog records, if known."""
        missing = self._updater.missing
        return {task.id: missing.get(task.id) for task in list(self._tasks.values()) if task.state in STARTING}

    @property
    def is_starting_tasks(self) -> bool:
        """Return whether tasks are being taken over or restored."""
        return any(task.state in STARTING for task in self._tasks.values())

    @property
    def is_closing_tasks(self) -> bool:
        """Return whether revoked tasks are still open."""
        return any(task.state is StreamTaskState.LEAVING for task in self._tasks.values())

    def assign(self, active: AbstractSet[TaskId], standby: AbstractSet[TaskId]) -> None:
        """Run and follow the given tasks, and revoke all others (`handleAssignment`). Tasks that stay are not disturbed.

        Raises:
            StateError: If another process has the state of a task open.
            BrokerError: If brokers do not answer for longer than `task.timeout.ms`.
        """
        self.revoke(self._tasks.keys() - active)
        self._updater.recall(active)
        self.wait_until_closed(standby)
        states = self._recycle(active, standby)
        for task_id in sorted(active - self._tasks.keys()):
            self._tasks[task_id] = task = StreamTask(self._create(task_id))
            self._updater.add(task, states.get(task_id))
        for task_id in sorted(standby - self._standbys.tasks):
            self._standbys.add(task_id)

    def revoke(self, task_ids: AbstractSet[TaskId]) -> None:
        """Commit and close tasks (`handleRevocation`). One that a thread is taking over is closed once brokers answer."""
        revoked = [task for task_id, task in self._tasks.items() if task_id in task_ids]
        self.commits.commit([task for task in revoked if task.is_running])
        for task in revoked:
            if task.is_running:
                self._close(task)
        self._updater.remove(task_ids)
        self._forget_closed()

    def wait_until_closed(self, task_ids: AbstractSet[TaskId]) -> None:
        """Wait until revoked tasks are closed."""
        self._updater.wait_until_closed(task_ids)
        self._forget_closed()

    def update(self, max_records: int, timeout_s: float) -> None:
        """Continue with the tasks that start, or with the standbys if none does, as `StoreChangelogReader` does.

        Args:
            max_records: The most records to restore.
            timeout_s: How long to wait for anything to happen, s.

        Raises:
            StateError: If the state of a task cannot be opened or written.
            BrokerError: If brokers refuse, or do not answer for longer than `task.timeout.ms`.
        """
        if not self._updater.is_busy:
            self._standbys.run_once()
            return
        with self._interruptions.away():
            updated = self._updater.run_once(max_records, timeout_s, gives_up=self._brokers.gives_up)
        for task, error in updated:
            if error is None:
                self._run(task)
            else:
                self._refuse(task, error)
        self._forget_closed()

    def close_left(self) -> None:
        """Close revoked tasks for which brokers have answered by now."""
        self._updater.close_left()
        self._forget_closed()

    def ready(self) -> list[OwnedTask]:
        """Return the tasks that may process: they run, and have no commit under way."""
        return [task.owned for task in self._tasks.values() if task.state is StreamTaskState.RUNNING]

    def begin_commits(self, now_ms: int) -> None:
        """Begin the commits that are due."""
        self.commits.begin_due(self._running(), now_ms)

    def commit_all(self) -> None:
        """Commit every task that has made progress, and wait until the commits end."""
        self.commits.commit(self._running())

    def commit_state(self, owned: OwnedTask) -> bool:
        """Commit a task and bring its local state to that point, before a checkpoint. Returns whether the task still runs."""
        return self.commits.commit_state(self._tasks[owned.id])

    def finish_commit_of(self, owned: OwnedTask) -> bool:
        """Wait for the commit of a task, if one is under way. Returns whether the task still runs."""
        return self.commits.come_to_end(self._tasks[owned.id])

    def fail(self, owned: OwnedTask, error: StreamsError) -> None:
        """Restart a task that has failed, or give it up if another owner has taken it over.

        Raises:
            StreamsError: The given error, if neither is possible.
        """
        task = self._tasks[owned.id]
        if not isinstance(error, TaskMigratedError):
            self._start_over(task, error)
        elif self._gives_up:
            _log_given_up(owned, error)
            self._close(task, is_ours=False)
            self._forget_closed()
        else:
            raise error

    def close(self) -> None:
        """Close all tasks. Uncommitted work is discarded. Idempotent."""
        self.commits.under_way.close()
        for task in self._running():
            task.move_to(StreamTaskState.CLOSED)
            task.owned.close(abort=self._brokers.are_there)
        self._updater.close()
        self._standbys.close()
        self._forget_closed()

    def _running(self) -> list[StreamTask]:
        return [task for task in self._tasks.values() if task.is_running]

    def _recycle(self, active: AbstractSet[TaskId], standby: AbstractSet[TaskId]) -> dict[TaskId, StateBackend]:
        """Stop following tasks. Returns the open states of those that become active here."""
        states: dict[TaskId, StateBackend] = {}
        for task_id in self._standbys.tasks - standby:
            state = self._standbys.release(task_id)
            if task_id in active:
                states[task_id] = state
            else:
                state.close()
        return states

    def _run(self, task: StreamTask) -> None:
        """Start to fetch for a task whose state is complete."""
        owned = task.owned
        self._schedule.note(task.id, self._clock.now_ms())
        try:
            self._fetching.begin(owned)
        except BrokerError as error:
            self.fail(owned, error)
            return
        known = {"task": str(task.id), "offsets": {str(tp): offset for tp, offset in owned.committed_offsets.items()}}
        log.info("task %s taken over, %d records restored", task.id, owned.restored_records, extra=known)

    def _refuse(self, task: StreamTask, error: StreamsError) -> None:
        """Handle a task that cannot be taken over, and is closed.

        Raises:
            StreamsError: The given error, unless another owner has the task.
        """
        if not isinstance(error, TaskMigratedError) or not self._gives_up:
            self._brokers.are_there = not isinstance(error, BrokerError)
            raise error
        _log_given_up(task.owned, error)

    def _start_over(self, task: StreamTask, error: StreamsError) -> None:
        """Take a task over again, repeatedly until brokers are back, for up to `task.timeout.ms`.

        That is also how long the outcomes of successive commits may be unknown while brokers answer.
        """
        if isinstance(error, BrokerError) and not error.retriable:
            raise error
        if isinstance(error, UnknownOutcomeError):
            self._check_progress(task.owned, error)
        log.warning("task %s starts over from its last commit: %s", task.id, error, extra={"task": str(task.id)})
        self._stop(task)
        task.move_to(StreamTaskState.WAITING)
        task.owned.close(abort=False)
        self._brokers.wait()
        self._updater.add(task, again=True)

    def _check_progress(self, owned: OwnedTask, error: UnknownOutcomeError) -> None:
        """Let a task restart, or end with an error if it has restarted in vain for too long."""
        owned.doubted_since = owned.doubted_since or time.monotonic()
        stuck_s = time.monotonic() - owned.doubted_since
        if stuck_s > self._timeout_s:
            message = f"Task {owned.id} has made no progress for {stuck_s:.0f} s: {error.message}"
            raise UnknownOutcomeError(message, hint="It starts over until task.timeout.ms has passed.") from error

    def _close(self, task: StreamTask, *, is_ours: bool = True) -> None:
        """Close a task that runs. Its uncommitted work is discarded."""
        self._stop(task)
        self.commits.forget(task.id)
        task.move_to(StreamTaskState.CLOSED)
        task.owned.close(abort=is_ours and self._brokers.are_there)

    def _stop(self, task: StreamTask) -> None:
        self._counts.stopped(task.owned)
        self._fetching.end(task.owned)
        self._schedule.forget(task.id)

    def _forget_closed(self) -> None:
        for task in [task for task in self._tasks.values() if task.state is StreamTaskState.CLOSED]:
            del self._tasks[task.id]


class _Running(Mapping[TaskId, OwnedTask]):
    """A read-only view of the running tasks."""

    def __init__(self, tasks: Mapping[TaskId, StreamTask]) -> None:
        self._tasks = tasks

    def __getitem__(self, task_id: TaskId) -> OwnedTask:
        task = self._tasks[task_id]
        if not task.is_running:
            raise KeyError(task_id)
        return task.owned

    def __iter__(self) -> Iterator[TaskId]:
        return iter([task.id for task in self._tasks.values() if task.is_running])

    def __len__(self) -> int:
        return sum(task.is_running for task in self._tasks.values())


def _log_given_up(owned: OwnedTask, error: TaskMigratedError) -> None:
    log.warning("task %s is given up: %s", owned.id, error, extra={"task": str(owned.id)})
