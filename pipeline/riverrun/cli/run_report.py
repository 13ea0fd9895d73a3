"""Shows bounded runs in a shell: plan, result and history."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from riverrun.cli.figures import dropped_text
from riverrun.records import counted
from riverrun.spark.tasks.work import total

if TYPE_CHECKING:
    from collections.abc import Iterable

    from riverrun.spark.bounded_runs.plan import RunPlan
    from riverrun.spark.bounded_runs.summary import RunSummary
    from riverrun.spark.planning.runs import RunRecord
    from riverrun.spark.tasks.work import TaskResult

_SHOWN_SLICES = 10
_LOOP = (
    "per slice, records of its repartition topics come after those of its other inputs, whatever their event times. "
    "Merges are not affected; joins and windows below may be."
)
_LEFT = "records that an interrupted run left in repartition topics"


def plan_table(plan: RunPlan) -> Table | str:
    """Return the plan: slices, each with its levels of tasks; a sentence if there are no records."""
    if not plan.slices:
        return "There are no records to process"
    levels = " then ".join(f"{counted(len(level), 'task')} ({', '.join(map(str, level))})" for level in plan.levels)
    table = Table(title=f"{counted(len(plan.slices), 'slice')}, in each: {levels}", title_justify="left")
    table.add_column("slice", justify="right")
    table.add_column("offsets", justify="right")
    table.add_column("range")
    for number, part in enumerate(plan.slices[:_SHOWN_SLICES], 1):
        text = ", ".join(f"{tp}@{r}" for tp, r in sorted(part.items()) if r.size)
        table.add_row(str(number), str(sum(r.size for r in part.values())), text or _LEFT)
    if len(plan.slices) > _SHOWN_SLICES:
        table.add_row("...", "", f"and {len(plan.slices) - _SHOWN_SLICES} more")
    if plan.loops:
        table.caption, table.caption_justify = "\n".join(map(_loop, plan.loops)), "left"
    return table


def _loop(numbers: tuple[int, ...]) -> str:
    """Describe how a bounded run differs from a worker if sub-topologies read their own output."""
    if len(numbers) == 1:
        return f"Sub-topology {numbers[0]} reads what it writes: {_LOOP}"
    return f"Sub-topologies {', '.join(map(str, numbers))} read what they write: {_LOOP}"


def summary_table(summary: RunSummary) -> Table:
    """Return the work of each task."""
    table = Table(title="tasks", title_justify="left")
    table.add_column("task")
    for name in ("rows in", "rows out", "commits", "restored", "restore s", "compute s"):
        table.add_column(name, justify="right")
    table.add_column("dropped")
    for task in summary.tasks:
        table.add_row(task.task_id, *_cells(task))
    if len(summary.tasks) > 1:
        table.add_section()
        table.add_row("all", *_cells(total("all", summary.tasks)))
    return table


def runs_table(app: str, runs: Iterable[RunRecord], *, wide: bool = False) -> Table:
    """Return the history of an application's runs for 80 columns; with `wide`, all of it in lines of any length."""
    table = Table(title=f"runs of {app}", title_justify="left", box=None)
    table.add_column("started (UTC)", no_wrap=True)
    table.add_column("version", overflow="fold", min_width=len("version"))
    table.add_column("state", no_wrap=True)
    for name in ("took", "in", "out", "dropped"):
        table.add_column(name, justify="right", no_wrap=True)
    if wide:
        for name in ("by", "range", "error"):
            table.add_column(name, no_wrap=True)
    for run in runs:
        counts = (run.records_in, run.records_out, sum(run.dropped.values()))
        rest = (run.by, run.range, run.error or "") if wide else ()
        table.add_row(
            utc(run.started_ms), run.version, run.state, _took(run), *map(str, counts), *(escape(cell) for cell in rest)
        )
    return table


def _cells(task: TaskResult) -> tuple[str, ...]:
    counts = (task.processed, task.written, task.commits, task.restored)
    return (
        *map(str, counts),
        f"{task.restore_ms / 1000:.1f}",
        f"{task.compute_ms / 1000:.1f}",
        dropped_text(task.dropped),
    )


def utc(time_ms: int) -> str:
    """Return a time, to the second."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _took(run: RunRecord) -> str:
    return "" if run.ended_ms is None else str(timedelta(seconds=round((run.ended_ms - run.started_ms) / 1000)))
