"""`millrace describe`."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.cli.project import settings_of


def describe(
    context: typer.Context,
    app: Annotated[str, typer.Argument(help="The application's name in streams.toml.")],
    version: Annotated[str | None, typer.Option(help="Which version; the configured one if left out.")] = None,
) -> None:
    """Show an application's topology, as Kafka Streams describes it."""
    application = settings_of(context).application(app, version)
    typer.echo(application.topology.describe().rstrip())
    typer.echo(f"Fingerprint: {application.topology.fingerprint()}")
