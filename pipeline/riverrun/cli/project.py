"""The options before a command, access to the project for commands, and how commands end."""

from __future__ import annotations

import atexit
import errno
import logging
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from riverrun.cli.output import echo
from riverrun.config.secrets import redacted
from riverrun.errors import (
    ApprovalNeededError,
    ConfigError,
    GateFailedError,
    NotReadyError,
    ReleaseError,
    StreamsError,
    of_an_interrupt,
)
from riverrun.extras import missing_extra
from riverrun.hosting.process import configure_logging, current_style
from riverrun.records import visible

if TYPE_CHECKING:
    from collections.abc import Mapping

    from riverrun.hosting.application import Application
    from riverrun.kafka.embedded.broker import EmbeddedBroker
    from riverrun.project.cluster import SparkSessions
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
    GATE_FAILED: "A critical expectation failed (`release gate`, `check`, `run --gate`, `backfill`). Nothing was published.",
    NEEDS_APPROVAL: "A person must decide: `release approve`, `held publish`, `--approve` of `backfill` and `release repair`.",
    INTERRUPTED: "Interrupted by Ctrl-C or SIGTERM. A worker ends with 0 instead.",
}
"""Every exit code, with its meaning."""

_FULL = {errno.ENOSPC, errno.EDQUOT}
_CODES: Mapping[type[StreamsError], int] = {
    NotReadyError: NOT_READY,
    GateFailedError: GATE_FAILED,
    ApprovalNeededError: NEEDS_APPROVAL,
    ReleaseError: REFUSED,
}


def code_of(error: StreamsError) -> int:
    """Return the exit code of an error; the nearest of its classes decides."""
    return next((_CODES[each] for each in type(error).__mro__ if each in _CODES), FAILED)


def told(error: Exception) -> int | None:
    """Print an error that the user can resolve, and return the exit code; None for other errors."""
    from riverrun.spark.failures import of_ended_java

    if of_an_interrupt(error):
        return INTERRUPTED
    if isinstance(error, OSError) and error.errno in _FULL:
        where = f" for {error.filename}" if error.filename else ""
        hint = "Free space, or set state.dir or TMPDIR elsewhere."
        error = StreamsError(f"There is no space left on the disk{where}", hint=hint)
    error = missing_extra(error) or of_ended_java(error) or error
    if not isinstance(error, StreamsError):
        return None
    _say(error)
    return code_of(error)


def _say(error: StreamsError) -> None:
    # Collectors of JSON lines accept nothing else.
    if current_style().as_json:
        logging.getLogger("riverrun").error("%s", error)
        return
    console = Console(stderr=True, emoji=False)
    console.print(Text.assemble(("Error:", "bold red"), f" {visible(redacted(error.message))}"), soft_wrap=True)
    if error.hint:
        console.print(Text.assemble(("Hint:", "yellow"), f" {visible(redacted(error.hint))}"), soft_wrap=True)


def flag(*words: str) -> Any:
    """Return the option of a flag: its names, then its help."""
    *names, said = words
    return typer.Option(*names, metavar="", help=said)


App = Annotated[str, typer.Argument(help="Name of the application in streams.toml.")]
Version = Annotated[str | None, typer.Option(help="Version of the application; defaults to the live one.")]
Master = Annotated[
    str | None,
    typer.Option(
        help="Spark's master URL, or sc://host:port of a Spark Connect server; defaults to that of streams.toml."
    ),
]


@dataclass(frozen=True, slots=True)
class Settings:
    """The options before the command.

    Args:
        config: Path of `streams.toml`.
        home: Directory of downloads and of the embedded broker.
        prepares_spark: Whether the first session on this machine is followed by `riverrun prepare-spark` in the background.
    """

    config: Path
    home: Path
    environ: Mapping[str, str]
    prepares_spark: bool = False

    def project(self, master: str | None = None) -> Riverrun:
        """Return the project; `master`, Spark's URL, overrides `streams.toml`."""
        from riverrun.config.code import look_beside
        from riverrun.project.riverrun import Riverrun
        from riverrun.spark.java import quiet_java

        look_beside(self.config, first=True)
        environ = {**self.environ, "RIVERRUN_HOME": str(self.home)}
        project = Riverrun(
            self.config,
            master=master,
            environ=environ,
            on_wait=lambda servers: echo(f"Waiting for brokers at {servers}", err=True),
        )
        configure_logging(project.config.logging, logging.getLogger().level)
        sessions = project.spark_sessions
        sessions.output = quiet_java
        if self.prepares_spark:
            sessions.on_start = partial(self._prepare_spark_later, sessions)
        return project

    def _prepare_spark_later(self, sessions: SparkSessions) -> None:
        """Make Spark's archive of classes once this process ends, if sessions on this machine lack it."""
        if sessions.lacks_archive:
            atexit.register(_start_preparing_spark, self.home)

    def broker(self, port: int) -> EmbeddedBroker:
        """Return the embedded broker of this home directory."""
        from riverrun.kafka.embedded.broker import EmbeddedBroker

        java_home = self.environ.get("JAVA_HOME")
        return EmbeddedBroker(self.home / "broker", self.home, port, java_home=Path(java_home) if java_home else None)


def prepare_nothing() -> None:
    """Do not prepare Spark at the end of this process: it was interrupted, or has failed."""
    atexit.unregister(_start_preparing_spark)


_LOWEST_PRIORITY = 19


def _start_preparing_spark(home: Path) -> None:
    """Start `riverrun prepare-spark` as a process that outlives this one, at the lowest priority."""
    command = [sys.executable, "-m", "riverrun.cli", "--home", str(home), "prepare-spark"]
    nothing = subprocess.DEVNULL
    # Only the next start of Spark is slower if this fails.
    with suppress(OSError):
        made = subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True)
        os.setpriority(os.PRIO_PROCESS, made.pid, _LOWEST_PRIORITY)


def require_answer(question: str, *, yes: bool) -> None:
    """Refuse where a question has no answer: there is no terminal."""
    if not yes and not sys.stdin.isatty():
        raise ConfigError(f"{question} There is no terminal to answer at", hint="Confirm with --yes.")


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation before something is changed that cannot be undone; without a terminal, refuse."""
    require_answer(question, yes=yes)
    if not yes:
        typer.confirm(question, abort=True)


def tell_of_staging(application: Application) -> None:
    """Warn if the version to process is not live."""
    if application.published is not None:
        topics = ", ".join(application.published.values()) or "none"
        name = f"{application.config.name} {application.version}"
        echo(f"{name} is not live: it publishes no records, and writes to {topics}")


def settings_of(context: typer.Context) -> Settings:
    """Return the options before the command."""
    found = context.find_object(Settings)
    assert found is not None, "the callback sets it"  # noqa: S101 - a mistake of this package
    return found
