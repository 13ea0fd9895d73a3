"""`millrace check`."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.cli.exit_codes import GATE_FAILED
from pipeline.cli.project import App, Master, settings_of


def check(
    context: typer.Context,
    app: App,
    master: Master = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="Print one JSON document.")] = False,
) -> None:
    """Judge all that the live version has published by its expectations. The exit code is 6 if a critical one fails."""
    import msgspec

    found = settings_of(context).project(master).app(app).check()
    verdict = found.verdict
    if as_json:
        document = {"app": app, "at": str(found.at), "outcomes": dict(verdict.outcomes)}
        document |= {"critical": verdict.critical, "warnings": verdict.warnings}
        typer.echo(msgspec.json.encode(document))
    else:
        typer.echo(f"{app} is judged up to {found.at}")
        for name, outcome in verdict.outcomes.items():
            typer.echo(f"  {name}: {outcome}")
    if verdict.critical:
        raise typer.Exit(GATE_FAILED)
