"""Commits running tasks: decides which are due, prepares them, and sends commits in threads, while other tasks continue."""

from __future__ import annotations

import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, NamedTuple

from riverrun.errors import TaskMigratedError
from riverrun.hosting.process import SystemClock
from riverrun.worker.states import LastCommit
from riverrun.worker.tasks.state_updater import RECOVERABLE
from riverrun.worker.tasks.task_states import StreamTaskState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from collections.abc import Set as AbstractSet

    from riverrun.errors import StreamsError
    from riverrun.hosting.owned_task import OwnedTask
    from riverrun.records import TaskId
    from riverrun.worker.tasks.fetching import Interruptions
    from riverrun.worker.tasks.task_states import StreamTask

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

    def due(self, running: Collection[OwnedTask], resting: Collection[OwnedTask], now_ms: int) -> list[OwnedTask]:
        """Return the tasks that begin to commit now; of those that are due only a part, since the next turn follows.

        Tasks with nothing to commit do not count towards that part: they delay nothing, and their intervals begin again.

        Args:
            running: All tasks.
            resting: Those whose commit is not under way.
            now_ms: The present time, ms.
        """
        if sum(owned.task.held_back_bytes() for owned in running) > self._cache_max_bytes:
            return list(resting)
        latest = now_ms - self._interval_ms
        late = [owned for owned in resting if self._begun_at_ms[owned.id] <= latest]
        busy = sorted((self._begun_at_ms[owned.id], owned.id) for owned in late if owned.task.needs_commit)
        chosen = {task_id for _, task_id in busy[: -(-len(running) // _PARTS)]}
        chosen |= {owned.id for owned in late if not owned.task.needs_commit}
        return [owned for owned in resting if owned.id in chosen or owned.task.commit_requested]


_AT_ONCE = 16
"""How many tasks may commit at the same time."""


class _Sent(NamedTuple):
    """An unfinished commit, with the time it began (monotonic seconds)."""

    task: StreamTask
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

    def send(self, task: StreamTask) -> None:
        """Make a task's prepared commit durable."""
        self._sent[task.id] = _Sent(task, self._threads.submit(task.owned.send_commit), time.monotonic())

    def wait_for_any(self, timeout_s: float) -> None:
        """Wait until a commit has an outcome, or the time is up."""
        wait([sent.outcome for sent in self._sent.values()], timeout_s, FIRST_COMPLETED)

    def wait_for(self, task_ids: Iterable[TaskId]) -> None:
        """Wait until the commits of the given tasks have outcomes."""
        wait([self._sent[task_id].outcome for task_id in task_ids if task_id in self._sent])

    def take_done(self) -> list[tuple[StreamTask, Future[None]]]:
        """Remove and return the commits with an outcome."""
        done = [sent for sent in self._sent.values() if sent.outcome.done()]
        for sent in done:
            del self._sent[sent.task.id]
            took = time.monotonic() - sent.began
            self.seconds = self.seconds[0] + took, max(self.seconds[1], took)
        return [(sent.task, sent.outcome) for sent in done]

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
        failed: Callable[[OwnedTask, StreamsError], None],
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

    def begin_due(self, running: Collection[StreamTask], now_ms: int) -> None:
        """Begin due commits, of a part of the tasks per turn: others process while these wait for brokers."""
        resting = {task.id: task for task in running if task.state is StreamTaskState.RUNNING}
        every, ready = [task.owned for task in running], [task.owned for task in resting.values()]
        for owned in self._schedule.due(every, ready, now_ms):
            self._schedule.note(owned.id, now_ms)
            self._begin(resting[owned.id])

    def finish(self) -> None:
        """Finish the commits that have an outcome."""
        for task, outcome in self.under_way.take_done():
            if self._succeeds(task, outcome.result) and self._succeeds(task, task.owned.finish_commit):
                task.move_to(StreamTaskState.RUNNING)
                self.done += 1
                self._note(task.owned)

    def commit(self, tasks: Collection[StreamTask]) -> None:
        """Commit tasks and wait for the outcome. Finishes a commit that is already under way first."""
        wanted = {task.id for task in tasks}
        self._finish(wanted)
        for task in tasks:
            if task.is_running:
                self._begin(task)
        self._finish(wanted)

    def come_to_end(self, task: StreamTask) -> bool:
        """Wait for the commit of a task, if one is under way. Returns whether the task still runs."""
        self._finish({task.id})
        return task.is_running

    def commit_state(self, task: StreamTask) -> bool:
        """Commit a task and bring its local state to that point. Returns whether that succeeded, and the task still runs."""

        def confirm() -> None:
            with self._interruptions.away():
                task.owned.confirm_commit()

        self.commit([task])
        return task.is_running and self._succeeds(task, confirm)

    def forget(self, task_id: TaskId) -> None:
        """Forget the last commit of a task that another process now owns."""
        self.last.pop(task_id, None)

    def _succeeds(self, task: StreamTask, step: Callable[[], None]) -> bool:
        """Take a step of a commit. Reports a failure of the task, instead of raising it."""
        try:
            step()
        except (*RECOVERABLE, TaskMigratedError) as error:
            self._failed(task.owned, error)
            return False
        self._interruptions.attend()
        return True

    def _note(self, owned: OwnedTask) -> None:
        now_ms, newest_ms = self._clock.now_ms(), owned.task.stream_time
        latency_ms = max(now_ms - newest_ms, 0) if newest_ms >= 0 else None
        self.last[owned.id] = LastCommit(now_ms, latency_ms, owned.sent())

    def _begin(self, task: StreamTask) -> None:
        if task.owned.task.needs_commit and self._succeeds(task, task.owned.prepare_commit):
            task.move_to(StreamTaskState.COMMITTING)
            self.under_way.send(task)

    def _finish(self, task_ids: AbstractSet[TaskId]) -> None:
        with self._interruptions.away():
            self.under_way.wait_for(task_ids)
        self.finish()
