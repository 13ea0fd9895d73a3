"""`millrace broker`: the embedded broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.project import settings_of
from pipeline.errors import ConfigError

if TYPE_CHECKING:
    from pipeline.config import ProjectConfig
    from pipeline.kafka.embedded.broker import EmbeddedBroker

app = typer.Typer(help="The embedded broker: real Apache Kafka on this machine, for development.", no_args_is_help=True)

NOT_RUNNING = 3
Port = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=65_534,
        help="Port on the loopback interface; the next one is taken as well. That of bootstrap.servers in streams.toml if left"
        " out; 19092 where there is no such file.",
    ),
]
_DEFAULT_PORT = 19092
_HERE = ("127.0.0.1", "localhost")


@app.command()
def start(
    context: typer.Context,
    port: Port = None,
    *,
    reset: Annotated[bool, typer.Option("--reset", metavar="", help="Delete all data first.")] = False,
) -> None:
    """Start it, unless it runs; the first time downloads Kafka."""
    broker = _broker(context, port)
    if reset:
        broker.reset()
    status = broker.start(lambda step: typer.echo(step, err=True))
    typer.echo(f"Broker runs at {status.bootstrap_servers} (process {status.pid})")


@app.command()
def stop(context: typer.Context, port: Port = None) -> None:
    """Stop it, if it runs."""
    _broker(context, port).stop()
    typer.echo("Broker is stopped")


@app.command()
def status(context: typer.Context, port: Port = None) -> None:
    """Say whether it runs; exit code 3 if not."""
    found = _broker(context, port).status()
    if not found.is_running:
        typer.echo("Broker is not running")
        raise typer.Exit(NOT_RUNNING)
    typer.echo(f"Broker runs at {found.bootstrap_servers} (process {found.pid})")


@app.command()
def logs(
    context: typer.Context,
    port: Port = None,
    lines: Annotated[int, typer.Option("-n", help="How many lines.")] = 50,
) -> None:
    """Show the end of its log."""
    typer.echo(_broker(context, port).log_tail(lines))


def local_port(project: ProjectConfig) -> int:
    """Return the port at which a project looks for a broker on this machine.

    Raises:
        ConfigError: If its brokers are elsewhere, or several.
    """
    servers = project.kafka["bootstrap.servers"]
    host, _, port = servers.rpartition(":")
    if host not in _HERE or not port.isdecimal():
        message = f"The embedded broker runs on this machine, and the project's brokers are at {servers}"
        raise ConfigError(
            message, hint=f'Set "bootstrap.servers" to one of {", ".join(_HERE)} and a port, or name a port.'
        )
    return int(port)


def _broker(context: typer.Context, port: int | None) -> EmbeddedBroker:
    settings = settings_of(context)
    if port is None:
        port = local_port(settings.project().config) if settings.config.exists() else _DEFAULT_PORT
    return settings.broker(port)
