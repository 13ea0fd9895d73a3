"""The options before a command, access to the project for commands, and how commands end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from riverrun.errors import ApprovalNeededError, GateFailedError, NotReadyError, ReleaseError, StreamsError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from riverrun.hosting.application import Application
    from riverrun.kafka.embedded.broker import EmbeddedBroker
    from riverrun.project.riverrun import Riverrun

FAILED = 1
NOT_UNDERSTOOD = 2
NOT_RUNNING = 3
NOT_READY = 4
REFUSED = 5
GATE_FAILED = 6
NEEDS_APPROVAL = 7
INTERRUPTED = 130

MEANINGS: Mapping[int, str] = {
    0: "Done.",
    FAILED: "An error of the configuration, the brokers or the data, with a hint; or a check of `demo` found differences.",
    NOT_UNDERSTOOD: "The command line has an unknown command or option, or lacks an argument.",
    NOT_RUNNING: "The broker does not run (`broker status`).",
    NOT_READY: "The candidate is not ready (`release await`). Waiting may help.",
    REFUSED: "The release refuses: it is at another step, a verdict no longer holds, or another user is working on it.",
    GATE_FAILED: "A critical expectation failed (`release gate`, `check`, `run --gate`). Nothing was published.",
    NEEDS_APPROVAL: "A person must decide: `release approve`, `held publish`.",
    INTERRUPTED: "Interrupted by Ctrl-C or SIGTERM. A worker ends with 0 instead.",
}
"""Every exit code, with its meaning."""

_CODES: Mapping[type[StreamsError], int] = {
    NotReadyError: NOT_READY,
    GateFailedError: GATE_FAILED,
    ApprovalNeededError: NEEDS_APPROVAL,
    ReleaseError: REFUSED,
}


def code_of(error: StreamsError) -> int:
    """Return the exit code of an error; the nearest of its classes decides."""
    return next((_CODES[each] for each in type(error).__mro__ if each in _CODES), FAILED)


App = Annotated[str, typer.Argument(help="Name of the application in streams.toml.")]
"""The argument of commands for one application."""
Version = Annotated[str | None, typer.Option(help="Version of the application; the live one if left out.")]
"""The option `--version` of all commands."""
Master = Annotated[
    str | None,
    typer.Option(
        help="Spark's master URL, or sc://host:port of a Spark Connect server; that of streams.toml if left out."
    ),
]
"""The option `--master`."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The options before the command.

    Args:
        config: Path of `streams.toml`.
        home: Directory of downloads and of the embedded broker.
        environ: The environment variables.
    """

    config: Path
    home: Path
    environ: Mapping[str, str]

    def project(self, master: str | None = None) -> Riverrun:
        """Return the project.

        Args:
            master: Spark's master URL, which overrides `streams.toml`.

        Raises:
            ConfigError: If `streams.toml` cannot be read, or has unknown keys or impossible values.
        """
        from riverrun.config.code import look_beside
        from riverrun.project.riverrun import Riverrun
        from riverrun.spark.java import quiet_java

        look_beside(self.config, first=True)
        environ = {**self.environ, "RIVERRUN_HOME": str(self.home)}
        project = Riverrun(
            self.config,
            master=master,
            environ=environ,
            on_wait=lambda servers: typer.echo(f"Waiting for brokers at {servers}", err=True),
        )
        project.spark_sessions.starting = quiet_java
        return project

    def broker(self, port: int) -> EmbeddedBroker:
        """Return the embedded broker of this home directory."""
        from riverrun.kafka.embedded.broker import EmbeddedBroker

        java_home = self.environ.get("JAVA_HOME")
        return EmbeddedBroker(self.home / "broker", self.home, port, java_home=Path(java_home) if java_home else None)


def tell_of_staging(application: Application) -> None:
    """Warn if the version to process is not live."""
    if application.published is not None:
        topics = ", ".join(application.published.values()) or "none"
        name = f"{application.config.name} {application.version}"
        typer.echo(f"{name} is not live: it publishes no records, and writes to {topics}")


def settings_of(context: typer.Context) -> Settings:
    """Return the options before the command."""
    found = context.find_object(Settings)
    assert found is not None, "the callback sets it"  # noqa: S101 - a mistake of this package
    return found
