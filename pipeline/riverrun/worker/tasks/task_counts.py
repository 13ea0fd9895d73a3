"""Counts the work of a stream thread since it started, and of each task since it was taken over."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from riverrun.hosting.clock import SystemClock
from riverrun.processor.metrics import added, totals
from riverrun.worker.states import WorkerSummary
from riverrun.worker.task_figures import TaskFigures

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from riverrun.hosting.tasks.owned_task import OwnedTask
    from riverrun.records import TaskId
    from riverrun.worker.task_figures import Waiting


class TaskCounts:
    """Counts the work of tasks. Running tasks have their own counts."""

    def __init__(self) -> None:
        self._processed = 0
        self.processed_by: Counter[TaskId] = Counter()
        """How many records each task has processed since it was taken over."""
        self._dropped: Counter[str] = Counter()
        self._totals: dict[str, float] = {}

    def processed(self, task_id: TaskId, records: int) -> None:
        """Count records that a task has processed."""
        self._processed += records
        self.processed_by[task_id] += records

    def stopped(self, owned: OwnedTask) -> None:
        """Keep the counts of a task that no longer runs. The next owner counts from zero."""
        self._dropped += owned.dropped
        self._totals = added(self._totals, totals(owned.measured()))
        self.processed_by.pop(owned.id, None)

    def summary(self, running: Collection[OwnedTask], restored: int, commits: int) -> WorkerSummary:
        """Return the work since the start.

        Args:
            running: The tasks that run.
            restored: Number of records restored.
            commits: Number of commits of tasks.
        """
        dropped = self._dropped + sum((owned.dropped for owned in running), Counter[str]())
        counted = added(self._totals, *(totals(owned.measured()) for owned in running))
        return WorkerSummary(self._processed, restored, commits, dict(dropped), counted)

    def figures(
        self, running: Collection[OwnedTask], held_back_s: Mapping[TaskId, float], waiting: Mapping[TaskId, Waiting]
    ) -> dict[TaskId, TaskFigures]:
        """Return the work of each running task since it was taken over.

        Args:
            running: The tasks.
            held_back_s: How long each task has waited for others, s.
            waiting: The present waits of tasks.
        """
        now_ms = SystemClock().now_ms()
        return {
            owned.id: TaskFigures(
                self.processed_by[owned.id],
                dict(owned.dropped),
                owned.measured(),
                held_back_s.get(owned.id, 0.0),
                waiting.get(owned.id),
                since_ms=owned.counts_since_ms,
                at_ms=now_ms,
                lateness=owned.lateness,
            )
            for owned in running
        }
