"""`riverrun run`, `riverrun runs` and `riverrun held`: bounded runs in a shell, their plan, progress, result and history."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path  # noqa: TC003 - typer reads the annotation
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from riverrun.cli.gathering import gathering
from riverrun.cli.output import echo
from riverrun.cli.project import GATE_FAILED, NEEDS_APPROVAL, App, Master, Version, flag, settings_of, tell_of_staging
from riverrun.cli.release import AsJson, CommandOutcome, plain, report
from riverrun.errors import ConfigError
from riverrun.records import counted, visible
from riverrun.spark.options import RunOptions  # noqa: TC001 - gathering reads the annotation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rich.console import Console

    from riverrun.project.runs import BoundedRun
    from riverrun.releases.gated_run import GatedRuns
    from riverrun.spark.bounded_runs.job import RunPlan, RunSummary
    from riverrun.spark.ranges import RunRange
    from riverrun.spark.runs import RunRecord
    from riverrun.spark.tasks.work import TaskResult


def dropped_text(dropped: Mapping[str, int]) -> str:
    """Return the numbers of dropped records by reason, as text."""
    return ", ".join(f"{reason}: {count}" for reason, count in sorted(dropped.items())) or "none"


def show_figures(done: str, dropped: Mapping[str, int], totals: Mapping[str, float]) -> None:
    """Print the work done, the dropped records by reason, and the totals of processors' sensors by name."""
    echo(f"{done}; dropped: {dropped_text(dropped)}")
    for name, value in totals.items():
        echo(f"{name}: {value:g}")


_SHOWN_SLICES = 10
_LOOP = (
    "in each slice, records of its repartition topics come after those of its other inputs, regardless of event times. "
    "This does not affect merges, but may affect joins and windows."
)
_LEFT = "records that were left in repartition topics"


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
    from riverrun.spark.tasks.work import total

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
    """Return the history of an application's runs as a table for 80 columns; with `wide`, in full."""
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
        state = f"{run.state}, {run.gate}" if run.gate else run.state
        table.add_row(
            utc(run.started_ms),
            run.version,
            state,
            _took(run),
            *map(str, counts),
            *(escape(visible(cell)) for cell in rest),
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
    """Return a time in UTC, to the second."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _took(run: RunRecord) -> str:
    return "" if run.ended_ms is None else str(timedelta(seconds=round((run.ended_ms - run.started_ms) / 1000)))


_SHOWN_ROWS = 5
_HIDDEN = {"headers", "task", "position"}


@dataclass(frozen=True, slots=True)
class _Preview:
    """Options of looking at a run before it is done."""

    answers: Annotated[
        Path | None,
        typer.Option(help="With --dry-run: file of recorded answers, which look-ups get instead of calling a service."),
    ] = None
    plan: Annotated[bool, flag("--plan", "Show what the run would process, and stop.")] = False
    dry_run: Annotated[bool, flag("--dry-run", "Show what the run would write, and commit nothing.")] = False


@gathering
def run(
    context: typer.Context,
    app: App,
    start: Annotated[
        str,
        typer.Option(
            "--from", help="Where the range starts: committed, earliest, a vector (topic-0@12,topic-1@7) or a time."
        ),
    ] = "committed",
    end: Annotated[str, typer.Option("--to", help="Where the range ends: latest, a vector or a time.")] = "latest",
    version: Version = None,
    master: Master = None,
    *,
    options: RunOptions,
    preview: _Preview,
) -> None:
    """Process a bounded range of offsets, exactly once: on Spark or, if there are few records, in this process.

    Windows that are open at the end of the range stay open. The next run, or a worker, continues them. To close them
    now, advance event time with --advance-stream-time-to. Later records of these windows are late, as they are after a
    restart.
    """
    from rich.console import Console

    from riverrun.project.progress_bar import progress_bar
    from riverrun.project.runs import bounded_run

    if preview.answers is not None and not preview.dry_run:
        raise ConfigError("--answers requires --dry-run: a run asks the service")
    console = Console(emoji=False)
    chosen = settings_of(context).project(master).app(app, version=version)
    bounded = bounded_run(chosen.runs.chosen, start, end, options)
    tell_of_staging(bounded.application)
    echo(f"{bounded.application.id}: {counted(bounded.range.size, 'offset')}, {bounded.range}")
    if preview.plan:
        console.print(plan_table(bounded.plan()))
        return
    if preview.dry_run:
        _dry_run(bounded, console, preview.answers)
        return
    with progress_bar(console) as above:
        summary = bounded.run(on_plan=lambda planned: above.print(plan_table(planned)))
    _tell(summary, bounded.range, console)


def _tell(summary: RunSummary, chosen: RunRange, console: Console) -> None:
    if summary.tasks:
        console.print(summary_table(summary))
    for warning in summary.warnings:
        console.print(visible(f"Warning: {warning}"), style="yellow", markup=False)
    if summary.tasks:
        done = f"{counted(summary.processed, 'record')} processed in {counted(summary.slices, 'slice')}"
        show_figures(done, summary.dropped, summary.totals)
        echo(f"engine: {summary.engine}")
    elif chosen.size:
        echo("Nothing was processed: the range was already processed")
    if summary.published is not None:
        echo(str(summary.published))


def _dry_run(bounded: BoundedRun, console: Console, answers: Path | None) -> None:
    from riverrun.project.progress_bar import progress_bar

    with progress_bar(console):
        outputs = bounded.dry_run(answers=answers)
        sizes = {topic: frame.count() for topic, frame in outputs.items()}
    for topic, frame in outputs.items():
        echo(f"{topic}: {counted(sizes[topic], 'record')} would be written")
        if sizes[topic]:
            console.print(_shown(topic, frame.orderBy("timestamp", ascending=False).limit(_SHOWN_ROWS).collect()))
    echo(f"{counted(sum(sizes.values()), 'record')} in all; nothing was committed")


def _shown(topic: str, rows: list[Any]) -> Table:
    """Return a table of records of a topic: key, value and the window if there is one, then place and time."""
    from rich.markup import escape
    from rich.table import Table

    columns = [name for name in rows[0].asDict() if name not in _HIDDEN]
    table = Table(*columns, title=f"{topic}: the last by event time", title_justify="left")
    for row in rows:
        table.add_row(*(escape(visible(_readable(row[name]))) for name in columns))
    return table


def _readable(value: Any) -> str:
    """Return the text of a cell: times in UTC, structs as dictionaries."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds")
    if isinstance(value, bytearray):
        return str(bytes(value))
    return str(value.asDict(recursive=True)) if hasattr(value, "asDict") else str(value)


# Columns of a console that never breaks a line.
_NO_LIMIT = 100_000


def runs(
    context: typer.Context,
    app: App,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="Number of runs, latest first.")] = 20,
    *,
    wide: Annotated[bool, flag("--wide", "-w", "Also show users, ranges and errors.")] = False,
    as_json: Annotated[bool, flag("--json", "Print JSON, one run per line.")] = False,
) -> None:
    """List the bounded runs of an application: when they ran, who started them, and how they ended."""
    import msgspec
    from rich.console import Console

    chosen = settings_of(context).project().app(app)
    found, docs = chosen.runs.history(limit), chosen.config.docs_directory
    if as_json:
        for run in found:
            echo(msgspec.json.encode(run))
        return
    console = Console(width=_NO_LIMIT if wide else None, emoji=False)
    console.print(runs_table(app, found, wide=wide))
    for run in () if wide else found:
        if run.error is not None:
            console.print(visible(f"{utc(run.started_ms)} failed: {run.error}"), markup=False, soft_wrap=True)
    for run in found if docs is not None else ():
        for page in run.pages.values():
            console.print(f"{utc(run.started_ms)} page: {docs}/{page}", markup=False, soft_wrap=True)


held_app = typer.Typer(help="Decide on the outputs that the gate of a bounded run holds back.", no_args_is_help=True)


@held_app.command("show")
def show(context: typer.Context, app: App, *, as_json: AsJson = False) -> None:
    """Show the run whose outputs are held back, the findings of its gate, and what can be done."""

    def shown() -> CommandOutcome:
        held = _held(context, app).status()
        if held is None:
            return CommandOutcome(f"{app}: no run is held back", {"app": app, "held": None})
        document = {"app": app, "held": plain(held), "hint": held.hint(app)}
        return CommandOutcome(f"{held}\nNext: {held.hint(app)}", document)

    report(shown, as_json=as_json)


@held_app.command("judge")
def judge(context: typer.Context, app: App, master: Master = None, *, as_json: AsJson = False) -> None:
    """Judge the outputs again, by the present expectations. Publishes nothing."""

    def judged() -> CommandOutcome:
        verdict = _held(context, app, master).judge()
        code = GATE_FAILED if verdict.critical else NEEDS_APPROVAL if verdict.needs_approval else 0
        return CommandOutcome(str(verdict), plain(verdict), code)

    report(judged, as_json=as_json)


@held_app.command("publish")
def publish(
    context: typer.Context,
    app: App,
    approve: Annotated[str, typer.Option(help="Id of the verdict whose warnings you approve.")] = "",
    *,
    as_json: AsJson = False,
) -> None:
    """Publish the outputs, exactly once: if the gate has passed, or with the approval of its warnings."""

    def published() -> CommandOutcome:
        done = _held(context, app).publish(approve)
        return CommandOutcome(str(done), plain(done))

    report(published, as_json=as_json)


@held_app.command("discard")
def discard(context: typer.Context, app: App, *, as_json: AsJson = False) -> None:
    """Throw the outputs away, and take state and offsets back to before the run. The next run processes the records again."""

    def discarded() -> CommandOutcome:
        held = _held(context, app).discard()
        text = f"{app}: run {held.id} is discarded; its records are processed again by the next run"
        return CommandOutcome(text, {"app": app, "discarded": held.id})

    report(discarded, as_json=as_json)


def _held(context: typer.Context, app: str, master: str | None = None) -> GatedRuns:
    return settings_of(context).project(master).app(app).runs.held
