"""`riverrun broker` and `riverrun prepare-spark`: the embedded broker, and Spark's archive of classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from riverrun.cli.output import echo
from riverrun.cli.project import NOT_RUNNING, flag, settings_of
from riverrun.errors import ConfigError
from riverrun.records import whole_number

if TYPE_CHECKING:
    from riverrun.config import ProjectConfig
    from riverrun.kafka.embedded.broker import EmbeddedBroker

app = typer.Typer(help="The embedded broker: real Apache Kafka on this machine, for development.", no_args_is_help=True)

Port = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=65_534,
        help="Port on the loopback interface; the broker takes the next one as well. Defaults to that of bootstrap.servers"
        " in streams.toml, or 19092 without such a file.",
    ),
]
_DEFAULT_PORT = 19092
_HERE = ("127.0.0.1", "localhost")


@app.command()
def start(
    context: typer.Context,
    port: Port = None,
    *,
    reset: Annotated[bool, flag("--reset", "Delete all of the broker's data first.")] = False,
) -> None:
    """Start the broker unless it runs. The first start downloads Kafka."""
    broker = _broker(context, port)
    if reset:
        broker.reset()
    status = broker.start(lambda step: echo(step, err=True))
    echo(f"Broker runs at {status.bootstrap_servers} (process {status.pid})")


@app.command()
def stop(context: typer.Context, port: Port = None) -> None:
    """Stop the broker if it runs."""
    _broker(context, port).stop()
    echo("Broker is stopped")


@app.command()
def status(context: typer.Context, port: Port = None) -> None:
    """Say whether the broker runs. The exit code is 3 if it does not."""
    found = _broker(context, port).status()
    if not found.is_running:
        echo("Broker is not running")
        raise typer.Exit(NOT_RUNNING)
    echo(f"Broker runs at {found.bootstrap_servers} (process {found.pid})")


@app.command()
def logs(
    context: typer.Context,
    port: Port = None,
    lines: Annotated[int, typer.Option("-n", min=1, max=1_000_000, help="Number of lines.")] = 50,
) -> None:
    """Show the end of the broker's log."""
    echo(_broker(context, port).log_tail(lines))


def local_port(project: ProjectConfig) -> int:
    """Return the port of the project's only broker, which must be on this machine."""
    servers = project.kafka["bootstrap.servers"]
    host, _, port = servers.rpartition(":")
    if host not in _HERE or not whole_number(port, 65_534):
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


_MEBIBYTE = 1024 * 1024


def prepare_spark(context: typer.Context) -> None:
    """Let Spark sessions on this machine start in half the time, with an archive of the classes that Java loads for them.

    A machine or image needs it once, and again after an update of Java or Spark. The archive is in --home.
    """
    from riverrun.spark.java import archive_classes, classes_archive, quiet_java
    from riverrun.spark.session import spark_session

    settings = settings_of(context)
    archive = classes_archive(settings.environ, settings.home)

    def started(java_options: str) -> Any:
        return spark_session("local[1]", {"spark.driver.extraJavaOptions": java_options}, output=quiet_java)

    if not archive_classes(started, archive):
        echo(f"The archive already exists: {archive}")
        return
    echo(f"The archive was written, {archive.stat().st_size / _MEBIBYTE:.0f} MiB: {archive}")
