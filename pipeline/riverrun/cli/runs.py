"""`riverrun runs`."""

from __future__ import annotations

from typing import Annotated

import typer

from riverrun.cli.project import App, settings_of

_NO_LIMIT = 100_000
"""Columns: lines are as long as they must be."""


def runs(
    context: typer.Context,
    app: App,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="Number of runs, latest first.")] = 20,
    *,
    wide: Annotated[bool, typer.Option("--wide", "-w", metavar="", help="Also show users, ranges and errors.")] = False,
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="Print JSON, one run per line.")] = False,
) -> None:
    """List the bounded runs of an application: when they ran, who started them, and how they ended."""
    import msgspec
    from rich.console import Console

    from riverrun.cli.run_report import runs_table, utc

    found = settings_of(context).project().app(app).runs(limit)
    if as_json:
        for run in found:
            typer.echo(msgspec.json.encode(run))
        return
    console = Console(width=_NO_LIMIT if wide else None, emoji=False)
    console.print(runs_table(app, found, wide=wide))
    for run in () if wide else found:
        if run.error is not None:
            console.print(f"{utc(run.started_ms)} failed: {run.error}", markup=False, soft_wrap=True)
