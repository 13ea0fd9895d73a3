"""`riverrun check` and `riverrun checks`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from riverrun.cli.exit_codes import GATE_FAILED
from riverrun.cli.project import App, Master, settings_of

if TYPE_CHECKING:
    from riverrun.releases.quality.check_log import CheckRecord


def check(
    context: typer.Context,
    app: App,
    since: Annotated[
        str,
        typer.Option(
            metavar="last|VECTOR|TIME",
            help="Judge only records from here on; left out, all records, and tables by their rows.",
        ),
    ] = "",
    master: Master = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="Print one JSON document.")] = False,
) -> None:
    """Judge what the live version has published by its expectations. The exit code is 6 if a critical one fails."""
    import msgspec

    from riverrun.project.progress_bar import progress_bar

    with progress_bar():
        found = settings_of(context).project(master).app(app).check(since)
    verdict = found.verdict
    if as_json:
        document = {"id": found.id, "app": app, "at": str(found.at), "outcomes": dict(verdict.outcomes)}
        document |= {"critical": verdict.critical, "warnings": verdict.warnings, "pages": dict(verdict.pages)}
        typer.echo(msgspec.json.encode(document))
    else:
        typer.echo(f"check {found.id}: {app} is judged up to {found.at}")
        for name, outcome in verdict.outcomes.items():
            typer.echo(f"  {name}: {outcome}")
        for page in verdict.pages.values() if found.docs is not None else ():
            typer.echo(f"  page: {found.docs}/{page}")
    if verdict.critical:
        raise typer.Exit(GATE_FAILED)


def checks(
    context: typer.Context,
    app: App,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="Number of checks, latest first.")] = 20,
    *,
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="Print JSON, one check per line.")] = False,
) -> None:
    """List the checks of an application, with their time, user, range and findings."""
    import msgspec

    for each in settings_of(context).project().app(app).checks(limit):
        typer.echo(msgspec.json.encode(each) if as_json else _line(each))


def _line(each: CheckRecord) -> str:
    from riverrun.cli.run_report import utc

    failing = ", ".join(each.critical + each.warnings)
    return f"{utc(each.at_ms)} {each.id} {each.result}: {each.version} by {each.by}, up to {each.at} {failing}".rstrip()
