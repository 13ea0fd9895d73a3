"""The outcome of a bounded run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from riverrun.records import TaskId, counted
from riverrun.spark.tasks.work import TaskResult, total

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from riverrun.spark.bounded_runs.plan import RunPlan
    from riverrun.spark.ranges import RunRange


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The outcome of a run, in records.

    Args:
        range: The range that it was to process.
        slices: Number of slices.
        processed: Records processed, those of repartition topics included.
        restored: Records restored from changelogs.
        dropped: Records not processed, by reason.
        tasks: The result of each task, all slices together.
        warnings: Failures that do not affect the results.
        totals: Totals of processors' sensors over all tasks, by the text of their names.
    """

    range: RunRange
    slices: int
    processed: int = 0
    restored: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    tasks: tuple[TaskResult, ...] = ()
    warnings: tuple[str, ...] = ()
    totals: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return a line with the outcome."""
        dropped = ", ".join(f"{reason} {count}" for reason, count in sorted(self.dropped.items())) or "none"
        done = f"{counted(self.processed, 'record')} processed in {counted(self.slices, 'slice')}"
        return f"{done}, up to {self.range.end}; dropped: {dropped}"


def summary_of(plan: RunPlan, results: Iterable[TaskResult]) -> RunSummary:
    """Sum up the results of tasks."""
    by_task: dict[str, list[TaskResult]] = {}
    for result in results:
        by_task.setdefault(result.task_id, []).append(result)
    tasks = tuple(total(task_id, by_task[task_id]) for task_id in sorted(by_task, key=TaskId.parse))
    everything = total("all", tasks)
    return RunSummary(
        range=plan.range,
        slices=max(len(plan.slices), min(1, len(tasks))),  # records that a worker has left over are one slice
        processed=everything.processed,
        restored=everything.restored,
        dropped=everything.dropped,
        tasks=tasks,
        warnings=everything.warnings,
        totals=everything.totals,
    )
