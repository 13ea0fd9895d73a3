"""Owns the tasks of a stream thread: takes them over, commits and closes them, and restarts those that fail."""

from __future__ import annotations

import logging
import time
from types import MappingProxyType
from typing import TYPE_CHECKING

from riverrun.errors import BrokerError, SetAsideError, TaskMigratedError, UnknownOutcomeError
from riverrun.worker.states import TaskCounts
from riverrun.worker.tasks.task_executor import Commits, CommitSchedule

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from collections.abc import Set as AbstractSet

    from riverrun.config import StreamsConfig
    from riverrun.errors import StreamsError
    from riverrun.hosting.active_task import ActiveTask
    from riverrun.hosting.claim import Claim
    from riverrun.hosting.ownership import ThreadProducer
    from riverrun.records import TaskId
    from riverrun.state.api import StateBackend
    from riverrun.worker.tasks.fetching import AbsentBrokers, Fetching, Interruptions
    from riverrun.worker.tasks.state_updater import StandbyUpdater, StateUpdater

log = logging.getLogger(__name__)


class TaskManager:
    """Owns the tasks of a stream thread, active and standby (`TaskManager`).

    An active task is in one of two places: with the updater until its state is complete, then among the running tasks
    (`running`), which other classes see but cannot change. One that fails goes back to the updater.

    Args:
        gives_up: Whether to give up tasks that another owner has taken over; otherwise that is an error.
    """

    def __init__(
        self,
        claim: Callable[[TaskId], Claim],
        producer: ThreadProducer,
        updater: StateUpdater,
        *,
        standbys: StandbyUpdater,
        fetching: Fetching,
        brokers: AbsentBrokers,
        interruptions: Interruptions,
        streams: StreamsConfig,
        gives_up: bool,
    ) -> None:
        self._running: dict[TaskId, ActiveTask] = {}
        self.running: Mapping[TaskId, ActiveTask] = MappingProxyType(self._running)
        """The tasks that process, except while a commit is under way."""
        self._claim = claim
        self._producer = producer
        self._updater = updater
        self._standbys = standbys
        self._fetching = fetching
        self.counts = TaskCounts()
        self._brokers = brokers
        self._interruptions = interruptions
        self._timeout_s = streams.task_timeout_ms / 1000
        self._gives_up = gives_up
        schedule = CommitSchedule(streams.commit_interval_ms, streams.statestore_cache_max_bytes)
        self.commits = Commits(self.running, producer, schedule, interruptions, self.fail, self.counts)

    @property
    def active(self) -> frozenset[TaskId]:
        """Return the tasks that run or start, including those that are not closed yet."""
        return self._updater.tasks.union(self._running)

    @property
    def standby(self) -> frozenset[TaskId]:
        """Return the tasks whose changelogs are followed."""
        return self._standbys.tasks

    @property
    def restoring(self) -> Mapping[TaskId, int | None]:
        """Return the tasks that start, with the number of missing changelog records, if known."""
        return self._updater.starting

    @property
    def is_starting_tasks(self) -> bool:
        """Return whether tasks are being taken over or restored."""
        return bool(self._updater.starting)

    @property
    def is_closing_tasks(self) -> bool:
        """Return whether revoked tasks are still open."""
        return self._updater.is_closing_tasks

    def assign(self, active: AbstractSet[TaskId], standby: AbstractSet[TaskId]) -> None:
        """Run and follow the given tasks, and revoke all others (`handleAssignment`). Tasks that stay are not disturbed."""
        # Revoked before anything is opened: a task that changes roles here has one state directory, which one user may open.
        self.revoke(self.active - active)
        self._updater.recall(active)
        self.wait_until_closed(standby)
        states = self._recycle(active, standby)
        for task_id in sorted(active - self.active):
            self._updater.add(self._claim(task_id), states.get(task_id))
        for task_id in sorted(standby - self._standbys.tasks):
            self._standbys.add(task_id)

    def follow_nothing(self) -> None:
        """Stop following tasks; those assigned from now on depend on the topics known now."""
        self._standbys.begin()

    def revoke(self, task_ids: AbstractSet[TaskId]) -> None:
        """Commit and close tasks (`handleRevocation`). One that is being taken over is closed once brokers answer."""
        leaving = [active for task_id, active in self._running.items() if task_id in task_ids]
        if leaving:
            self.commits.commit(leaving)
        # If the commit failed, `fail` has closed them already.
        for active in [active for active in leaving if active.id in self._running]:
            self._close(active)
        # A release is a request: while brokers are away it would only delay the end.
        self._updater.remove(task_ids, release=self._brokers.are_there)

    def wait_until_closed(self, task_ids: AbstractSet[TaskId]) -> None:
        self._updater.wait_until_closed(task_ids)

    def update(self, max_records: int, timeout_s: float) -> None:
        """Continue with the tasks that start, waiting for up to `timeout_s`, or with the standbys if none does."""
        # Standbys wait for restores, as in Kafka Streams' `StoreChangelogReader`: nothing processes until those are done.
        if not self._updater.is_busy:
            self._standbys.run_once()
            return
        with self._interruptions.away():
            updated = self._updater.run_once(max_records, timeout_s, gives_up=self._brokers.gives_up)
        for task_id, error in updated.refused:
            self._refuse(task_id, error)
        if updated.complete:
            # Tasks may write when they start, but not into a transaction that is being committed.
            self.commits.come_to_end()
        for active in updated.complete:
            self._run(active)

    def close_left(self) -> None:
        """Close revoked tasks for which brokers have answered by now."""
        self._updater.close_left()

    def begin_commits(self, now_ms: int) -> None:
        self.commits.begin_if_due(now_ms)

    def commit_all(self) -> None:
        """Commit every task that has made progress, and wait until the commit ends."""
        self.commits.commit()

    def fail(self, error: StreamsError) -> None:
        """Restart all tasks from their last commit, since they share a transaction, once brokers are back."""
        is_fenced = isinstance(error, TaskMigratedError)
        if (is_fenced and not self._gives_up) or (isinstance(error, BrokerError) and not error.retriable):
            raise error
        if isinstance(error, UnknownOutcomeError):
            self._check_progress(error)
        if isinstance(error, SetAsideError):
            self._running[error.aside.task_id].claim.aside += (error.aside,)
        failed = list(self._running.values())
        names = ", ".join(str(active.id) for active in failed)
        log.warning("tasks %s start over from their last commit: %s", names, error)
        for active in failed:
            if isinstance(error, UnknownOutcomeError):
                self.counts.doubted(active)
            self._suspend(active)
            self._updater.add_again(active.claim)
            active.close()
        # Not aborted, which could wait for absent brokers: taking the tasks over again fences it and ends its transaction.
        self._producer.discard(abort=False)
        if not is_fenced:
            self._brokers.wait()

    def close(self) -> None:
        """Close all tasks. Uncommitted work is discarded. Idempotent."""
        self.commits.under_way.close()
        self._producer.discard(abort=self._brokers.are_there)
        for active in self._running.values():
            active.close()
        self._running.clear()
        self._updater.close()
        self._standbys.close()

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

    def _run(self, active: ActiveTask) -> None:
        """Start a task whose state is complete, and fetch for it."""
        self._updater.take(active.id)
        # A failure of other tasks has discarded the producer while this one was restored: its claim names a fenced owner.
        if active.producer.is_closed:
            active.close()
            self._updater.add_again(active.claim)
            return
        self.counts.taken_over(active)
        failed: StreamsError | None = None
        try:
            active.start()
        # Rows of a table that are gone are processed first.
        except SetAsideError as error:
            failed = error
        self._running[active.id] = active
        try:
            self._fetching.begin(active)
        except BrokerError as error:
            failed = failed or error
        if failed is not None:
            self.fail(failed)
            return
        offsets = {str(tp): offset for tp, offset in active.committed_offsets.items()}
        known = {"task": str(active.id), "offsets": offsets}
        log.info("task %s taken over, %d records restored", active.id, active.restored_records, extra=known)

    def _refuse(self, task_id: TaskId, error: StreamsError) -> None:
        if not isinstance(error, TaskMigratedError) or not self._gives_up:
            self._brokers.are_there = not isinstance(error, BrokerError)
            raise error
        self.commits.forget(task_id)
        log.warning("task %s is given up: %s", task_id, error, extra={"task": str(task_id)})

    def _check_progress(self, error: UnknownOutcomeError) -> None:
        # Brokers answer, so no wait for them ends this: outcomes may stay unknown for as long as brokers may be away.
        producer = self._producer
        producer.doubted_since = producer.doubted_since or time.monotonic()
        stuck_s = time.monotonic() - producer.doubted_since
        if stuck_s > self._timeout_s:
            message = f"Tasks have made no progress for {stuck_s:.0f} s: {error.message}"
            raise UnknownOutcomeError(message, hint="They start over until task.timeout.ms has passed.") from error

    def _close(self, active: ActiveTask) -> None:
        self._suspend(active)
        self.commits.forget(active.id)
        active.close()

    def _suspend(self, active: ActiveTask) -> None:
        self.counts.stopped(active)
        self._fetching.end(active)
        active.suspend()
        del self._running[active.id]
