"""Commits running tasks: prepares due commits, sends them in threads, and finishes them when brokers have answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverrun.errors import TaskMigratedError
from riverrun.hosting.clock import SystemClock
from riverrun.worker.task_figures import LastCommit
from riverrun.worker.tasks.open_commits import OpenCommits
from riverrun.worker.tasks.state_updater import RECOVERABLE
from riverrun.worker.tasks.task_states import StreamTaskState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from collections.abc import Set as AbstractSet

    from riverrun.errors import StreamsError
    from riverrun.hosting.tasks.owned_task import OwnedTask
    from riverrun.records import TaskId
    from riverrun.worker.inputs.interruptions import Interruptions
    from riverrun.worker.tasks.commit_schedule import CommitSchedule
    from riverrun.worker.tasks.task_states import StreamTask


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
