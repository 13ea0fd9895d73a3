"""`millrace describe`."""

from __future__ import annotations

import typer

from pipeline.cli.project import App, Version, settings_of


def describe(context: typer.Context, app: App, version: Version = None) -> None:
    """Show an application's topology, as Kafka Streams describes it. With --version no broker is asked."""
    topology = settings_of(context).project().app(app, version).topology()
    typer.echo(topology.describe().rstrip())
    typer.echo(f"Fingerprint: {topology.fingerprint()}")
