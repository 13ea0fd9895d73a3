"""Lets running tasks process in slices of time, between which queries are answered, and commits them (`TaskExecutor`).

Commits that are due are prepared, and sent in threads, while other tasks continue.
"""

from __future__ import annotations

import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, NamedTuple

from riverrun.errors import TaskMigratedError
from riverrun.hosting.active_task import TaskState
from riverrun.hosting.process import SystemClock
from riverrun.runtime.context import KEPT_BYTES
from riverrun.worker.states import LastCommit
from riverrun.worker.tasks.state_updater import RECOVERABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from collections.abc import Set as AbstractSet

    from riverrun.errors import StreamsError
    from riverrun.hosting.active_task import ActiveTask
    from riverrun.hosting.barrier_listener import ReleaseFollower
    from riverrun.records import TaskId
    from riverrun.runtime.task import Task
    from riverrun.worker.states import TaskCounts
    from riverrun.worker.tasks.fetching import Interruptions

_PARTS = 4
"""The number of turns over which due commits begin, so that not all tasks wait for brokers at once."""
_UNCACHED_MAX_BYTES = 10 * 1024 * 1024
"""Stores without caches also keep uncommitted records in memory; above this size, tasks commit early."""


class CommitSchedule:
    """Determines when the next commit of each task is due.

    Args:
        interval_ms: Time between two commits of a task, ms (`commit.interval.ms`).
        cache_max_bytes: Tasks commit early when the stores of all tasks hold back more bytes than this
            (`statestore.cache.max.bytes`). With 0, stores have no caches, and the limit for early commits is the default.
    """

    def __init__(self, interval_ms: int, cache_max_bytes: int) -> None:
        self._interval_ms = interval_ms
        self._cache_max_bytes = cache_max_bytes or _UNCACHED_MAX_BYTES
        self._begun_at_ms: dict[TaskId, int] = {}

    def note(self, task_id: TaskId, now_ms: int) -> None:
        """Begin the interval of a task, when it begins to commit, or to process."""
        self._begun_at_ms[task_id] = now_ms

    def forget(self, task_id: TaskId) -> None:
        """Forget a task that no longer runs."""
        del self._begun_at_ms[task_id]

    def due(self, running: Collection[ActiveTask], resting: Collection[ActiveTask], now_ms: int) -> list[ActiveTask]:
        """Return the tasks that begin to commit now; of those that are due only a part, since the next turn follows.

        Tasks with nothing to commit do not count towards that part: they delay nothing, and their intervals begin again.

        Args:
            running: All tasks.
            resting: Those whose commit is not under way.
            now_ms: The present time, ms.
        """
        if sum(active.task.held_back_bytes() for active in running) > self._cache_max_bytes:
            return list(resting)
        latest = now_ms - self._interval_ms
        late = [active for active in resting if self._begun_at_ms[active.id] <= latest]
        busy = sorted((self._begun_at_ms[active.id], active.id) for active in late if active.task.needs_commit)
        chosen = {task_id for _, task_id in busy[: -(-len(running) // _PARTS)]}
        chosen |= {active.id for active in late if not active.task.needs_commit}
        return [active for active in resting if active.id in chosen or active.task.commit_requested]


_AT_ONCE = 16
"""How many tasks may commit at the same time."""


class _Sent(NamedTuple):
    """An unfinished commit, with the time it began (monotonic seconds)."""

    active: ActiveTask
    outcome: Future[None]
    began: float


class OpenCommits:
    """Sends prepared commits, each in a thread.

    Tasks have separate transactions, and mostly wait for brokers.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_AT_ONCE, "commit")
        self._sent: dict[TaskId, _Sent] = {}
        self.seconds = (0.0, 0.0)
        """Duration of commits, s: all together, and the longest."""

    def __contains__(self, task_id: TaskId) -> bool:
        """Return whether a task's commit is under way; then the task must not process."""
        return task_id in self._sent

    def __bool__(self) -> bool:
        """Return whether any commit is under way."""
        return bool(self._sent)

    def send(self, active: ActiveTask) -> None:
        """Make a task's prepared commit durable."""
        self._sent[active.id] = _Sent(active, self._threads.submit(active.send_commit), time.monotonic())

    def wait_for_any(self, timeout_s: float) -> None:
        """Wait until a commit has an outcome, or the time is up."""
        wait([sent.outcome for sent in self._sent.values()], timeout_s, FIRST_COMPLETED)

    def wait_for(self, task_ids: Iterable[TaskId]) -> None:
        """Wait until the commits of the given tasks have outcomes."""
        wait([self._sent[task_id].outcome for task_id in task_ids if task_id in self._sent])

    def take_done(self) -> list[tuple[ActiveTask, Future[None]]]:
        """Remove and return the commits with an outcome."""
        done = [sent for sent in self._sent.values() if sent.outcome.done()]
        for sent in done:
            del self._sent[sent.active.id]
            took = time.monotonic() - sent.began
            self.seconds = self.seconds[0] + took, max(self.seconds[1], took)
        return [(sent.active, sent.outcome) for sent in done]

    def close(self) -> None:
        """Wait for all commits, and discard their outcomes. Idempotent."""
        self._threads.shutdown()
        self._sent.clear()


class Commits:
    """Commits tasks independently: a failure concerns one task, and the others continue.

    Args:
        schedule: Determines when each task commits.
        interruptions: Called between two steps, and while waiting for brokers.
        failed: Called with a task whose commit has failed, and the error. If it returns, the task no longer runs.
    """

    def __init__(
        self,
        schedule: CommitSchedule,
        interruptions: Interruptions,
        failed: Callable[[ActiveTask, StreamsError], None],
    ) -> None:
        self._schedule = schedule
        self.under_way = OpenCommits()
        self.done = 0
        """How many commits have succeeded."""
        self.last: dict[TaskId, LastCommit] = {}
        """The last commit of each task."""
        self._interruptions = interruptions
        self._failed = failed
        self._clock = SystemClock()

    def begin_due(self, running: Collection[ActiveTask], now_ms: int) -> None:
        """Begin due commits, of a part of the tasks per turn: others process while these wait for brokers."""
        resting = [active for active in running if active.id not in self.under_way]
        for active in self._schedule.due(running, resting, now_ms):
            self._schedule.note(active.id, now_ms)
            self._begin(active)

    def finish(self) -> None:
        """Finish the commits that have an outcome."""
        for active, outcome in self.under_way.take_done():
            if self._succeeds(active, outcome.result) and self._succeeds(active, active.finish_commit):
                self.done += 1
                self._note(active)

    def commit(self, tasks: Collection[ActiveTask]) -> None:
        """Commit tasks and wait for the outcome. Finishes a commit that is already under way first."""
        wanted = {active.id for active in tasks}
        self._finish(wanted)
        for active in tasks:
            if active.state is TaskState.RUNNING:
                self._begin(active)
        self._finish(wanted)

    def come_to_end(self, active: ActiveTask) -> bool:
        """Wait for the commit of a task, if one is under way. Returns whether the task still runs."""
        self._finish({active.id})
        return active.state is TaskState.RUNNING

    def commit_state(self, active: ActiveTask) -> bool:
        """Commit a task and bring its local state to that point. Returns whether that succeeded, and the task still runs."""

        def confirm() -> None:
            with self._interruptions.away():
                active.confirm_commit()

        self.commit([active])
        return active.state is TaskState.RUNNING and self._succeeds(active, confirm)

    def forget(self, task_id: TaskId) -> None:
        """Forget the last commit of a task that another process now owns."""
        self.last.pop(task_id, None)

    def _succeeds(self, active: ActiveTask, step: Callable[[], None]) -> bool:
        """Take a step of a commit. Reports a failure of the task, instead of raising it."""
        try:
            step()
        except (*RECOVERABLE, TaskMigratedError) as error:
            self._failed(active, error)
            return False
        self._interruptions.attend()
        return True

    def _note(self, active: ActiveTask) -> None:
        now_ms, newest_ms = self._clock.now_ms(), active.task.stream_time
        latency_ms = max(now_ms - newest_ms, 0) if newest_ms >= 0 else None
        self.last[active.id] = LastCommit(now_ms, latency_ms, active.sent())

    def _begin(self, active: ActiveTask) -> None:
        if active.task.needs_commit and self._succeeds(active, active.prepare_commit):
            self.under_way.send(active)

    def _finish(self, task_ids: AbstractSet[TaskId]) -> None:
        with self._interruptions.away():
            self.under_way.wait_for(task_ids)
        self.finish()


_STRETCH_SECONDS = 0.0004
"""Time for which a task processes before queries are answered; the number of records adapts to it."""
_RECORDS_PER_SLICE = 1_000
"""How many records a task processes before the next task does."""
_SLICE_SECONDS = 0.2
"""Maximum duration of a slice if records are slow: transactions must be committed, and instances answered, in time."""


class TaskExecutor:
    """Lets running tasks process, one after another (`TaskExecutor`).

    Args:
        running: The tasks that run; looked up each time.
        under_way: The commits that wait for brokers; meanwhile a task must not process.
        follower: Applies records of the control topic between two commits.
        counts: Counts the work of tasks.
        interruptions: Called between two records.
        failed: Called with a task that has failed, and the error. If it returns, the task no longer runs.
        cache_max_bytes: Memory for the caches of all stores (`statestore.cache.max.bytes`).
    """

    def __init__(
        self,
        running: Mapping[TaskId, ActiveTask],
        under_way: OpenCommits,
        *,
        follower: ReleaseFollower,
        counts: TaskCounts,
        interruptions: Interruptions,
        failed: Callable[[ActiveTask, StreamsError], None],
        cache_max_bytes: int,
    ) -> None:
        self._running = running
        self._under_way = under_way
        self._follower = follower
        self._counts = counts
        self._interruptions = interruptions
        self._failed = failed
        self._cache_max_bytes = cache_max_bytes
        self._stretch = 16

    def process(self) -> int:
        """Let each task process whose commit is not under way. Returns the number of records."""
        processed, kept_bytes = 0, self._kept_bytes
        ready = [active for task_id, active in self._running.items() if task_id not in self._under_way]
        for active in ready:
            if not self._follower.let_process(active):
                continue
            active.task.set_cache_limit(kept_bytes)
            try:
                done = self._slice(active.task)
                active.task.punctuate_wall_clock()
                if active.task.has_reached_barrier():
                    active.task.request_commit()  # acknowledges it at once
                processed += done
                self._counts.processed(active.id, done)
            except (*RECOVERABLE, TaskMigratedError) as error:
                self._failed(active, error)
        return processed

    @property
    def _kept_bytes(self) -> int:
        """Return each store's part of `statestore.cache.max.bytes`, or the minimum that stores keep."""
        stores = sum(len(active.task.stores()) for active in self._running.values())
        return max(KEPT_BYTES, self._cache_max_bytes // max(1, stores))

    def _slice(self, task: Task) -> int:
        """Let a task process in short intervals, between which queries are answered. Returns the number of records."""
        done, ends = 0, time.perf_counter() + _SLICE_SECONDS
        while done < _RECORDS_PER_SLICE and (began := time.perf_counter()) < ends:
            asked = self._stretch
            part = task.process(asked)
            done += part
            self._interruptions.attend()
            if part < asked:
                break
            took_s = time.perf_counter() - began
            self._stretch = min(
                max(int(asked * _STRETCH_SECONDS / took_s), asked // 2, 1), 2 * asked, _RECORDS_PER_SLICE
            )
        return done
