"""The commits of the tasks that run: begun when they are due, sent in threads, and looked after when brokers have answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.errors import TaskMigratedError
from pipeline.hosting.clock import SystemClock
from pipeline.worker.stream_thread.arrivals import RECOVERABLE
from pipeline.worker.stream_thread.open_commits import OpenCommits
from pipeline.worker.stream_thread.protocol import LastCommit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from collections.abc import Set as AbstractSet

    from pipeline.errors import StreamsError
    from pipeline.hosting.owned_task import OwnedTask
    from pipeline.records import TaskId
    from pipeline.worker.stream_thread.commit_schedule import CommitSchedule
    from pipeline.worker.stream_thread.interruptions import Interruptions


class Commits:
    """Commits tasks, each for itself: what fails is the task's failure, and the others go on.

    Args:
        tasks: Those that run; looked at anew each time.
        schedule: Says when each commits.
        interruptions: What may happen between two steps, and while brokers are waited for.
        failed: Told a task whose commit has failed, and why; if it returns, the task runs no more, for now at least.
    """

    def __init__(
        self,
        tasks: Mapping[TaskId, OwnedTask],
        schedule: CommitSchedule,
        interruptions: Interruptions,
        failed: Callable[[OwnedTask, StreamsError], None],
    ) -> None:
        self._schedule = schedule
        self.under_way = OpenCommits()
        self.done = 0
        """How many have succeeded."""
        self.last: dict[TaskId, LastCommit] = {}
        """The last one of each task."""
        self._tasks = tasks
        self._interruptions = interruptions
        self._failed = failed
        self._clock = SystemClock()

    def begin_due(self, now_ms: int) -> None:
        """Begin those for which it is time, a part of the tasks per turn: others process while these wait for brokers."""
        resting = [owned for owned in self._tasks.values() if owned.id not in self.under_way]
        for owned in self._schedule.due(self._tasks.values(), resting, now_ms):
            self._schedule.note(owned.id, now_ms)
            self._begin(owned)

    def finish(self) -> None:
        """Look after those that have an outcome."""
        for owned, outcome in self.under_way.take_done():
            if self.succeeds(owned, outcome.result) and self.succeeds(owned, owned.finish_commit):
                self.done += 1
                self._note(owned)

    def commit(self, tasks: Iterable[OwnedTask]) -> None:
        """Commit tasks and wait for it; what is under way already has to come to its end before."""
        wanted = {owned.id for owned in tasks}
        self._finish(wanted)
        for task_id in wanted & self._tasks.keys():
            self._begin(self._tasks[task_id])
        self._finish(wanted)

    def come_to_end(self, owned: OwnedTask) -> bool:
        """Wait for a task's commit, if one is under way; gives whether the task runs on."""
        self._finish({owned.id})
        return self._tasks.get(owned.id) is owned

    def settle(self, owned: OwnedTask) -> bool:
        """Commit a task, and make sure that its state is what was committed; gives whether it is, and the task runs on."""

        def settle() -> None:
            with self._interruptions.away():
                owned.settle()

        self.commit([owned])
        return owned.id in self._tasks and self.succeeds(owned, settle)

    def succeeds(self, owned: OwnedTask, step: Callable[[], None]) -> bool:
        """Take a step of a task's commit, or one that belongs to it. Failures that are the task's are told, and not raised."""
        try:
            step()
        except (*RECOVERABLE, TaskMigratedError) as error:
            self._failed(owned, error)
            return False
        self._interruptions.attend()
        return True

    def _note(self, owned: OwnedTask) -> None:
        now_ms, newest_ms = self._clock.now_ms(), owned.task.stream_time
        latency_ms = max(now_ms - newest_ms, 0) if newest_ms >= 0 else None
        self.last[owned.id] = LastCommit(now_ms, latency_ms, owned.sent())

    def _begin(self, owned: OwnedTask) -> None:
        if owned.task.needs_commit and self.succeeds(owned, owned.prepare_commit):
            self.under_way.send(owned)

    def _finish(self, task_ids: AbstractSet[TaskId]) -> None:
        with self._interruptions.away():
            self.under_way.wait_for(task_ids)
        self.finish()
