"""How the tasks of a process stand, and what they have done: read at any time, it changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pipeline.hosting.clock import SystemClock
from pipeline.runtime.context import GLOBAL_TASK
from pipeline.worker.stream_thread.protocol import Report, TaskFigures, Waiting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.hosting.owned_task import OwnedTask
    from pipeline.records import TaskId
    from pipeline.worker.states import WorkerSummary
    from pipeline.worker.stream_thread.alignment import Alignment
    from pipeline.worker.stream_thread.arrivals import Arrivals
    from pipeline.worker.stream_thread.commits import Commits
    from pipeline.worker.stream_thread.fetching import Fetching
    from pipeline.worker.stream_thread.followed import Followed
    from pipeline.worker.stream_thread.open_stores import OpenStores
    from pipeline.worker.stream_thread.tally import Tally


class Figures:
    """Looks at the tasks that run, are taken over, or are followed.

    Args:
        tasks: Those that run.
        arrivals: Those that are taken over.
        followed: Those that are followed.
        commits: The commits of those that run.
        tally: Counts what they do.
        stores: Has the global tables.
        alignment: Knows how long tasks were held back, and for which others.
        fetching: Knows how far they have come in their inputs.
    """

    def __init__(
        self,
        tasks: Mapping[TaskId, OwnedTask],
        arrivals: Arrivals,
        followed: Followed,
        commits: Commits,
        tally: Tally,
        stores: OpenStores,
        alignment: Alignment,
        fetching: Fetching,
    ) -> None:
        """They are looked at anew each time."""
        self._tasks = tasks
        self._arrivals = arrivals
        self._followed = followed
        self._commits = commits
        self._tally = tally
        self._stores = stores
        self._alignment = alignment
        self._fetching = fetching

    @property
    def active(self) -> frozenset[TaskId]:
        """The tasks that are processed, or about to be; also those that are not let go of yet."""
        return self._arrivals.coming.union(self._tasks, self._arrivals.leaving)

    @property
    def standby(self) -> frozenset[TaskId]:
        """The tasks whose changelogs are followed."""
        return self._followed.tasks

    @property
    def restoring(self) -> Mapping[TaskId, int | None]:
        """Tasks that are being taken over, with the number of changelog records that are missing, if it is known already."""
        return self._arrivals.missing

    def summary(self) -> WorkerSummary:
        """Return what has been done so far."""
        return self._tally.summary(self._tasks.values(), self._arrivals.restored, self._commits.done)

    def lags(self) -> Mapping[TaskId, int]:
        """Records that are missing, per standby."""
        return self._followed.lags()

    def report(self, obeyed: int) -> Report:
        """All of it, for the supervisor.

        Args:
            obeyed: Number of the last order that is carried out.
        """
        return Report(
            self.active,
            self.standby,
            self._positions(),
            self.lags(),
            self.summary(),
            obeyed,
            self.restoring,
            self._commits.under_way.seconds,
            self.by_task(),
        )

    def by_task(self) -> Mapping[TaskId, TaskFigures]:
        """Return what each running task has done since it was taken over, and the figures of global stores' processors."""
        counted = self._tally.figures(self._tasks.values(), self._alignment.held_back_s, self._waiting())
        progress, last = self._fetching.progress(), self._commits.last
        figures = {
            task: replace(each, inputs=progress.get(task, {}), last_commit=last.get(task))
            for task, each in counted.items()
        }
        tables = self._stores.tables
        if tables is None or not (measured := tables.measured()):
            return figures
        return figures | {GLOBAL_TASK: TaskFigures(0, dict(tables.dropped), measured)}

    def _waiting(self) -> dict[TaskId, Waiting]:
        """Return what each task with records at hand waits for: its own empty inputs, others that are behind, or both."""
        now_ms, behind = SystemClock().now_ms(), self._alignment.waits()
        found = {}
        for task_id, owned in self._tasks.items():
            idle_since_ms, inputs = owned.task.waiting or (now_ms, ())
            held_s, tasks = behind.get(task_id, (0.0, ()))
            if inputs or tasks:
                found[task_id] = Waiting(min(idle_since_ms, now_ms - int(held_s * 1000)), inputs, tasks)
        return found

    def _positions(self) -> Mapping[TaskId, int]:
        """Changelog offsets applied, summed up, per task."""
        running = {task_id: owned.position() for task_id, owned in self._tasks.items()}
        return running | self._arrivals.positions() | self._followed.positions()
