"""`riverrun run`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from riverrun.cli.figures import show_figures
from riverrun.cli.project import App, Master, Version, settings_of, tell_of_staging
from riverrun.records import counted

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from riverrun.project.bounded import BoundedRun
    from riverrun.spark.bounded_runs.summary import RunSummary
    from riverrun.spark.ranges import RunRange

_SHOWN_ROWS = 5
_HIDDEN = {"headers", "task", "position"}


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
    advance_stream_time_to: Annotated[
        str | None,
        typer.Option(help="Move event time to this time after the last record. Windows that end before it close."),
    ] = None,
    wall_clock_punctuation: Annotated[
        str | None,
        typer.Option(
            help="How to treat wall-clock punctuation: refuse, once (at the end of each slice) or never."
            " Left out, the setting bounded.wall.clock.punctuation decides."
        ),
    ] = None,
    max_records_per_slice: Annotated[
        int,
        typer.Option(
            min=1, max=1_000_000_000, help="Records of one slice. Each task commits a slice in one transaction."
        ),
    ] = 2_000_000,
    *,
    plan: Annotated[
        bool, typer.Option("--plan", metavar="", help="Show what the run would process, and stop.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", metavar="", help="Show what the run would write, and commit nothing.")
    ] = False,
) -> None:
    """Process a bounded range of offsets on Spark, exactly once.

    Windows that are open at the end of the range stay open. The next run, or a worker, continues them. To close them
    now, advance event time with --advance-stream-time-to. Later records of these windows are late, as they are after a
    restart.
    """
    from rich.console import Console

    from riverrun.cli.run_report import plan_table
    from riverrun.project.progress_bar import progress_bar

    console = Console(emoji=False)
    bounded = (
        settings_of(context)
        .project(master)
        .app(app, version)
        .bounded(
            start,
            end,
            wall_clock_punctuation=wall_clock_punctuation,
            advance_stream_time_to=advance_stream_time_to,
            max_records_per_slice=max_records_per_slice,
        )
    )
    tell_of_staging(bounded.application)
    typer.echo(f"{bounded.application.id}: {counted(bounded.range.size, 'offset')}, {bounded.range}")
    if plan:
        console.print(plan_table(bounded.plan()))
        return
    if dry_run:
        _dry_run(bounded, console)
        return
    with progress_bar(console) as above:
        summary = bounded.run(on_plan=lambda planned: above.print(plan_table(planned)))
    _tell(summary, bounded.range, console)


def _tell(summary: RunSummary, chosen: RunRange, console: Console) -> None:
    from riverrun.cli.run_report import summary_table

    if summary.tasks:
        console.print(summary_table(summary))
    for warning in summary.warnings:
        console.print(f"Warning: {warning}", style="yellow", markup=False)
    if summary.tasks:
        done = f"{counted(summary.processed, 'record')} processed in {counted(summary.slices, 'slice')}"
        show_figures(done, summary.dropped, summary.totals)
    elif chosen.size:
        typer.echo("Nothing was processed: the range is done already")


def _dry_run(bounded: BoundedRun, console: Console) -> None:
    from riverrun.project.progress_bar import progress_bar

    with progress_bar(console):
        outputs = bounded.dry_run()
        sizes = {topic: frame.count() for topic, frame in outputs.items()}
    for topic, frame in outputs.items():
        typer.echo(f"{topic}: {counted(sizes[topic], 'record')} would be written")
        if sizes[topic]:
            console.print(_shown(topic, frame.orderBy("timestamp", ascending=False).limit(_SHOWN_ROWS).collect()))
    typer.echo(f"{counted(sum(sizes.values()), 'record')} in all; nothing was committed")


def _shown(topic: str, rows: list[Any]) -> Table:
    """Show some records of a topic: key, value and the window if there is one, then place and time."""
    from rich.markup import escape
    from rich.table import Table

    columns = [name for name in rows[0].asDict() if name not in _HIDDEN]
    table = Table(*columns, title=f"{topic}: the last by event time", title_justify="left")
    for row in rows:
        table.add_row(*(escape(_readable(row[name])) for name in columns))
    return table


def _readable(value: Any) -> str:
    """Return the text of a cell: times in UTC, structs as dictionaries."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds")
    if isinstance(value, bytearray):
        return str(bytes(value))
    return str(value.asDict(recursive=True)) if hasattr(value, "asDict") else str(value)
