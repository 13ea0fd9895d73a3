"""Reports the status and the work of a stream thread's tasks; reading it at any time changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from riverrun.hosting.clock import SystemClock
from riverrun.runtime.context import GLOBAL_TASK
from riverrun.worker.stream_thread.protocol import Report
from riverrun.worker.task_figures import TaskFigures, Waiting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from riverrun.records import TaskId
    from riverrun.worker.alignment.alignment import Alignment
    from riverrun.worker.inputs.fetching import Fetching
    from riverrun.worker.states import WorkerSummary
    from riverrun.worker.stream_thread.open_stores import OpenStores
    from riverrun.worker.tasks.standby_updater import StandbyUpdater
    from riverrun.worker.tasks.state_updater import StateUpdater
    from riverrun.worker.tasks.task_counts import TaskCounts
    from riverrun.worker.tasks.task_manager import TaskManager


class Figures:
    """Reports on tasks that run, start, or are followed.

    Args:
        manager: Owns the tasks.
        updater: Knows the progress of restoring tasks.
        standbys: Knows the progress of standby tasks.
        counts: Counts the work of tasks.
        stores: Has the global tables.
        alignment: Knows how long tasks were held back, and for which others.
        fetching: Knows the positions of tasks in their inputs.
    """

    def __init__(
        self,
        manager: TaskManager,
        updater: StateUpdater,
        *,
        standbys: StandbyUpdater,
        counts: TaskCounts,
        stores: OpenStores,
        alignment: Alignment,
        fetching: Fetching,
    ) -> None:
        self._manager = manager
        self._updater = updater
        self._standbys = standbys
        self._counts = counts
        self._stores = stores
        self._alignment = alignment
        self._fetching = fetching

    @property
    def active(self) -> frozenset[TaskId]:
        """Return the tasks that run or start, including those that are not closed yet."""
        return self._manager.active

    @property
    def standby(self) -> frozenset[TaskId]:
        """Return the tasks whose changelogs are followed."""
        return self._manager.standby

    @property
    def restoring(self) -> Mapping[TaskId, int | None]:
        """Return the tasks that are being taken over, with the number of missing changelog records, if known."""
        return self._manager.restoring

    def summary(self) -> WorkerSummary:
        """Return the work so far."""
        return self._counts.summary(self._manager.running.values(), self._updater.restored, self._manager.commits.done)

    def lags(self) -> Mapping[TaskId, int]:
        """Return the number of missing records per standby."""
        return self._standbys.lags()

    def report(self, obeyed: int) -> Report:
        """Return a report of everything, for the supervisor.

        Args:
            obeyed: Number of the last order that was carried out.
        """
        return Report(
            active=self.active,
            standby=self.standby,
            positions=self._positions(),
            lags=self.lags(),
            summary=self.summary(),
            obeyed=obeyed,
            restoring=self.restoring,
            commit_seconds=self._manager.commits.under_way.seconds,
            tasks=self.by_task(),
        )

    def by_task(self) -> Mapping[TaskId, TaskFigures]:
        """Return the work of each running task since it was taken over, and the figures of global stores' processors."""
        counted = self._counts.figures(self._manager.running.values(), self._alignment.held_back_s, self._waiting())
        progress, last = self._fetching.progress(), self._manager.commits.last
        figures = {
            task: replace(each, inputs=progress.get(task, {}), last_commit=last.get(task))
            for task, each in counted.items()
        }
        tables = self._stores.tables
        if tables is None or not (measured := tables.measured()):
            return figures
        return figures | {GLOBAL_TASK: TaskFigures(0, dict(tables.dropped), measured)}

    def _waiting(self) -> dict[TaskId, Waiting]:
        """Return what each task with records at hand waits for: its own empty inputs, slower tasks, or both."""
        now_ms, behind = SystemClock().now_ms(), self._alignment.waits()
        found = {}
        for task_id, owned in self._manager.running.items():
            idle_since_ms, inputs = owned.task.waiting or (now_ms, ())
            held_s, tasks = behind.get(task_id, (0.0, ()))
            if inputs or tasks:
                found[task_id] = Waiting(min(idle_since_ms, now_ms - int(held_s * 1000)), inputs, tasks)
        return found

    def _positions(self) -> Mapping[TaskId, int]:
        """Return the sum of applied changelog offsets, per task."""
        running = {task_id: owned.position() for task_id, owned in self._manager.running.items()}
        return running | self._updater.positions() | self._standbys.positions()
