"""`millrace broker`: the embedded broker."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.cli.project import settings_of

app = typer.Typer(help="The embedded broker: real Apache Kafka on this machine, for development.", no_args_is_help=True)

NOT_RUNNING = 3
Port = Annotated[
    int, typer.Option(min=1, max=65_534, help="Port on the loopback interface; the next one is taken as well.")
]
DEFAULT_PORT = 19092


@app.command()
def start(
    context: typer.Context,
    port: Port = DEFAULT_PORT,
    *,
    reset: Annotated[bool, typer.Option("--reset", metavar="", help="Delete all data first.")] = False,
) -> None:
    """Start it, unless it runs; the first time downloads Kafka."""
    broker = settings_of(context).broker(port)
    if reset:
        broker.reset()
    status = broker.start(lambda step: typer.echo(step, err=True))
    typer.echo(f"Broker runs at {status.bootstrap_servers} (process {status.pid})")


@app.command()
def stop(context: typer.Context, port: Port = DEFAULT_PORT) -> None:
    """Stop it, if it runs."""
    settings_of(context).broker(port).stop()
    typer.echo("Broker is stopped")


@app.command()
def status(context: typer.Context, port: Port = DEFAULT_PORT) -> None:
    """Say whether it runs; exit code 3 if not."""
    found = settings_of(context).broker(port).status()
    if not found.is_running:
        typer.echo("Broker is not running")
        raise typer.Exit(NOT_RUNNING)
    typer.echo(f"Broker runs at {found.bootstrap_servers} (process {found.pid})")


@app.command()
def logs(
    context: typer.Context,
    port: Port = DEFAULT_PORT,
    lines: Annotated[int, typer.Option("-n", help="How many lines.")] = 50,
) -> None:
    """Show the end of its log."""
    typer.echo(settings_of(context).broker(port).log_tail(lines))
