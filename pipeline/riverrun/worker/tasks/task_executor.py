"""Lets running tasks process in slices of time, between which queries are answered, and commits them (`TaskExecutor`)."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

from riverrun.errors import StreamsError, TaskMigratedError
from riverrun.hosting.active_task import TaskState, send_commits
from riverrun.hosting.process import SystemClock, monotonic_ms
from riverrun.runtime.context import KEPT_BYTES
from riverrun.worker.states import LastCommit
from riverrun.worker.tasks.state_updater import RECOVERABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from riverrun.hosting.active_task import ActiveTask
    from riverrun.hosting.barrier_listener import ReleaseFollower
    from riverrun.hosting.ownership import ThreadProducer
    from riverrun.records import TaskId
    from riverrun.runtime.task import Task
    from riverrun.worker.states import TaskCounts
    from riverrun.worker.tasks.fetching import Interruptions
    from riverrun.worker.tasks.silent_tasks import SilentTasks

# Stores without caches also keep uncommitted records in memory; above this size, tasks commit early.
_UNCACHED_MAX_BYTES = 10 * 1024 * 1024
# Another process waits for tasks that leave. After this, it repeats their look-ups.
_LEAVING_SECONDS = 5.0
# Brokers end a transaction that is open for longer.
_TRANSACTION_SECONDS = 60.0
# Short, as a turn fetches records only between two waits.
_LOOKUP_SECONDS = 0.01


class CommitSchedule:
    """Determines when the next commit is due.

    Args:
        interval_ms: `commit.interval.ms`.
        cache_max_bytes: `statestore.cache.max.bytes`. Tasks commit early when all stores together hold back more; 0 for the
            limit of stores without caches.
    """

    def __init__(self, interval_ms: int, cache_max_bytes: int) -> None:
        self._interval_ms = interval_ms
        self._cache_max_bytes = cache_max_bytes or _UNCACHED_MAX_BYTES
        self._begun_at_ms = 0

    def note(self, now_ms: int) -> None:
        """Begin the interval, with a commit or because there was nothing to commit."""
        self._begun_at_ms = now_ms

    def is_due(self, running: Collection[ActiveTask], now_ms: int) -> bool:
        if now_ms - self._begun_at_ms >= self._interval_ms or any(active.task.commit_requested for active in running):
            return True
        # An early commit instead of evictions: it forwards no more than the next regular one would.
        return sum(active.task.held_back_bytes() for active in running) > self._cache_max_bytes


def wait_for_lookups(running: Iterable[ActiveTask], timeout_s: float) -> None:
    """Wait until a look-up has finished since tasks processed, or the time (s) is up."""
    # The first one only: what finishes after it has processed, its successors in the turn may know already.
    waiting = next((active.task for active in running if active.task.awaits_lookups), None)
    if waiting is not None:
        waiting.wait_for_lookups(timeout_s)


@dataclass(frozen=True, slots=True)
class _Sent:
    """An unfinished commit, with its tasks, and the time it began (monotonic seconds)."""

    tasks: Sequence[ActiveTask]
    outcome: Future[None]
    began: float


class OpenCommit:
    """Sends the one prepared commit in a thread, since it mostly waits for brokers; meanwhile no task may process."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(1, "commit")
        self._sent: _Sent | None = None
        self.seconds = (0.0, 0.0)
        """Duration of commits, s: the sum, and the longest."""

    def __bool__(self) -> bool:
        return self._sent is not None

    def __contains__(self, task_id: TaskId) -> bool:
        """Return whether a task's commit is under way."""
        # All tasks of a stream thread share one transaction: brokers could not keep up with one per task (KIP-447).
        return self._sent is not None

    def send(self, tasks: Sequence[ActiveTask], commit: Callable[[], None]) -> None:
        """Call `commit`, which makes the prepared commits of tasks durable."""
        self._sent = _Sent(tasks, self._threads.submit(commit), time.monotonic())

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the commit has an outcome, or the time is up."""
        if self._sent is not None:
            wait([self._sent.outcome], timeout_s)

    def take_done(self) -> _Sent | None:
        """Remove and return the commit if it has an outcome."""
        sent = self._sent
        if sent is None or not sent.outcome.done():
            return None
        self._sent = None
        took = time.monotonic() - sent.began
        self.seconds = self.seconds[0] + took, max(self.seconds[1], took)
        return sent

    def close(self) -> None:
        """Wait for the commit, and discard its outcome. Idempotent."""
        self._threads.shutdown()
        self._sent = None


class Commits:
    """Commits all tasks of a stream thread at once.

    Args:
        interruptions: Called between two steps, and while waiting for brokers.
        failed: Called with an error. If it returns, none of the tasks runs any more.
    """

    def __init__(
        self,
        running: Mapping[TaskId, ActiveTask],
        producer: ThreadProducer,
        schedule: CommitSchedule,
        interruptions: Interruptions,
        failed: Callable[[StreamsError], None],
        counts: TaskCounts,
    ) -> None:
        self._running = running
        self._counts = counts
        self._producer = producer
        self._schedule = schedule
        self.under_way = OpenCommit()
        self.done = 0
        """Number of successful commits, counted per task."""
        self.last: dict[TaskId, LastCommit] = {}
        self._interruptions = interruptions
        self._failed = failed
        self._clock = SystemClock()

    def begin_if_due(self, now_ms: int) -> None:
        """Begin a commit if one is due and none is under way."""
        if not self.under_way and self._schedule.is_due(self._running.values(), now_ms):
            self._begin(now_ms)

    def finish(self) -> None:
        sent = self.under_way.take_done()
        if sent is not None and self._succeeds(sent.outcome.result):
            for active in sent.tasks:
                if not self._succeeds(active.finish_commit):
                    return
                self._counts.committed(active)
                self._note(active)
            self.done += len(sent.tasks)
            self._producer.doubted_since = None

    def commit(self, leaving: Collection[ActiveTask] = ()) -> None:
        """Commit all tasks and wait for the outcome. Tasks that this process lets go (`leaving`) commit without an owner.

        If look-ups do not end in time, nothing is committed: the tasks start over from their last commit.
        """
        self.come_to_end()
        self._wait_for_lookups(_LEAVING_SECONDS if leaving else _TRANSACTION_SECONDS)
        self._begin(monotonic_ms(), [active for active in leaving if active.state is TaskState.RUNNING])
        self.come_to_end()

    def come_to_end(self) -> None:
        """Wait for the commit, if one is under way."""
        with self._interruptions.away():
            self.under_way.wait()
        self.finish()

    def commit_state(self, active: ActiveTask) -> bool:
        """Commit, and bring the state of a task to that point. Returns whether that succeeded, and the task still runs."""

        def confirm() -> None:
            with self._interruptions.away():
                active.confirm_commit()

        self.commit()
        return active.state is TaskState.RUNNING and self._succeeds(confirm)

    def forget(self, task_id: TaskId) -> None:
        """Forget the last commit of a task that another process now owns."""
        self.last.pop(task_id, None)

    def _begin(self, now_ms: int, leaving: Collection[ActiveTask] = ()) -> None:
        busy = [active for active in self._running.values() if active.task.needs_commit]
        # The offsets would cover records that still wait for their look-ups. The next turn tries again.
        if not self._settle(busy):
            return
        self._schedule.note(now_ms)
        if all(self._succeeds(active.prepare_commit) for active in busy) and (busy or leaving):
            # Without an owner in the metadata, the next owner fences nobody.
            released = {tp: found for active in leaving for tp, found in active.claim.released().items()}
            producer = self._producer.present()
            for active in busy:
                self._counts.prepared(active)
            self.under_way.send(busy, lambda: send_commits(producer, busy, released))

    def _settle(self, busy: Collection[ActiveTask]) -> bool:
        """Let tasks take no more records until the commit. Returns whether no record waits for a look-up."""
        try:
            return all([active.task.settle() for active in busy])  # noqa: C419 - all of them, not only the first ones
        except (*RECOVERABLE, TaskMigratedError) as error:
            self._failed(error)
            return False

    def _wait_for_lookups(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not self._settle([active for active in self._running.values() if active.task.needs_commit]):
            if time.monotonic() > deadline:
                self._failed(StreamsError(f"look-ups have not ended within {timeout_s:g} s"))
            with self._interruptions.away():
                wait_for_lookups(self._running.values(), _LOOKUP_SECONDS)

    def _succeeds(self, step: Callable[[], None]) -> bool:
        """Take a step of a commit. Returns False after a failure that was handled."""
        try:
            step()
        except (*RECOVERABLE, TaskMigratedError) as error:
            self._failed(error)
            return False
        self._interruptions.attend()
        return True

    def _note(self, active: ActiveTask) -> None:
        now_ms, newest_ms = self._clock.now_ms(), active.task.stream_time
        latency_ms = max(now_ms - newest_ms, 0) if newest_ms >= 0 else None
        self.last[active.id] = LastCommit(now_ms, latency_ms, active.sent())


# Queries are answered between two stretches, so at least twice per millisecond.
_STRETCH_SECONDS = 0.0004
_RECORDS_PER_SLICE = 1_000
# Slow records must not delay commits, or the reports without which the instance takes this process for stuck.
_SLICE_SECONDS = 0.2


class TaskExecutor:
    """Lets running tasks process, one after another (`TaskExecutor`).

    Args:
        follower: Applies records of the control topic between two commits.
        failed: Called with the error of a task. If it returns, none of the tasks runs any more.
        cache_max_bytes: `statestore.cache.max.bytes`, for the stores of all tasks.
        commits_each: Whether each record is committed before the next one (`commit.interval.ms` is 0).
        silent: Advances event time in silent tasks (`window.idle.close.ms`); None to leave it.
    """

    def __init__(
        self,
        running: Mapping[TaskId, ActiveTask],
        under_way: OpenCommit,
        *,
        follower: ReleaseFollower,
        counts: TaskCounts,
        interruptions: Interruptions,
        failed: Callable[[StreamsError], None],
        cache_max_bytes: int,
        commits_each: bool = False,
        silent: SilentTasks | None,
    ) -> None:
        self._running = running
        self._under_way = under_way
        self._follower = follower
        self._counts = counts
        self._interruptions = interruptions
        self._failed = failed
        self._cache_max_bytes = cache_max_bytes
        self._silent = silent
        self._most = 1 if commits_each else _RECORDS_PER_SLICE
        self._stretch = min(16, self._most)
        self.punctuate_s = 0.0
        """Time that punctuators have taken, s."""

    def process(self) -> int:
        """Let each task process. Returns the number of records."""
        # Outputs would belong to the transaction that is being committed, but not to its offsets.
        if self._under_way:
            return 0
        processed, kept_bytes = 0, self._kept_bytes
        for active in list(self._running.values()):
            if not self._follower.let_process(active):
                continue
            active.task.set_cache_limit(kept_bytes)
            began, punctuated_s = time.perf_counter(), active.task.punctuate_s
            try:
                done = self._slice(active.task)
                active.task.punctuate_wall_clock()
                if self._silent is not None:
                    self._silent.follow(active.id, active.task, done)
                if active.task.has_reached_barrier():
                    # The commit acknowledges the barrier, for which a release waits.
                    active.task.request_commit()
                processed += done
                self.punctuate_s += active.task.punctuate_s - punctuated_s
                self._counts.processed(active.id, done, time.perf_counter() - began)
            except (*RECOVERABLE, TaskMigratedError) as error:
                self._failed(error)
                # All tasks of the thread start over: none of them runs any more.
                break
        return processed

    @property
    def awaits_lookups(self) -> bool:
        """Return whether records wait for look-ups."""
        return any(active.task.awaits_lookups for active in self._running.values())

    def wait_for_lookups(self) -> None:
        """Wait a moment for a look-up to finish, if records wait for one."""
        if self.awaits_lookups:
            with self._interruptions.away():
                wait_for_lookups(self._running.values(), _LOOKUP_SECONDS)

    @property
    def _kept_bytes(self) -> int:
        """Return each store's part of `statestore.cache.max.bytes`, or the minimum that stores keep."""
        stores = sum(len(active.task.stores()) for active in self._running.values())
        return max(KEPT_BYTES, self._cache_max_bytes // max(1, stores))

    def _slice(self, task: Task) -> int:
        done, ends = 0, time.perf_counter() + _SLICE_SECONDS
        while done < self._most and (began := time.perf_counter()) < ends:
            asked = self._stretch
            part = task.process(asked)
            done += part
            self._interruptions.attend()
            if part < asked:
                break
            took_s = time.perf_counter() - began
            # At most halved or doubled: a single slow record must not make the next stretches tiny.
            self._stretch = min(max(int(asked * _STRETCH_SECONDS / took_s), asked // 2, 1), 2 * asked, self._most)
        return done
