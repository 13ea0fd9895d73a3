"""`riverrun`: the entry point, and the options that all commands share."""

from __future__ import annotations

import logging
import os
import sys
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperGroup
from typer.main import get_group

import riverrun
from riverrun.cli import (
    backfill,
    broker,
    dev,
    environments,
    first_steps,
    inspect,
    joint,
    letters,
    operations,
    plan,
    release,
    run,
    topic,
    worker,
)
from riverrun.cli.exits import is_of_command
from riverrun.cli.output import echo
from riverrun.cli.project import INTERRUPTED, Settings, flag, prepare_nothing, told
from riverrun.cli.signals import interrupt_on_sigterm
from riverrun.config.addons import BUILT_IN, AddOn, others, part_of, refuse_taken
from riverrun.config.code import users_line
from riverrun.config.project import SECTIONS
from riverrun.config.secrets import TOKEN
from riverrun.errors import ConfigError, StreamsError, as_exception
from riverrun.hosting.process import LogStyle, start_logging

if TYPE_CHECKING:
    from collections.abc import Mapping


class _Commands(TyperGroup):
    """Riverrun's commands, and those of others' add-ons, which are looked for only where Riverrun has no such command."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in self._shown:
            return self._shown[cmd_name]
        own = super().get_command(ctx, cmd_name)
        if own is None:
            return self._of_others.get(cmd_name)
        return self._shown.setdefault(cmd_name, _as_written(own))

    @cached_property
    def _shown(self) -> dict[str, Any]:
        return {}

    def list_commands(self, ctx: Any) -> list[str]:
        own = super().list_commands(ctx)
        try:
            return [*own, *self._of_others]
        except ConfigError as error:
            # Help must help: a package that is broken hides none of Riverrun's own commands.
            told(error)
            return own

    @cached_property
    def _of_others(self) -> Mapping[str, Any]:
        if others():
            from riverrun.project.riverrun import Riverrun

            refuse_taken("commands", self.commands)
            refuse_taken("sections", SECTIONS)
            refuse_taken("methods", dir(Riverrun))
        found = typer.Typer()
        for name, add_on in others().items():
            _add(found, name, add_on)
        return get_group(found).commands


def _as_written(command: Any) -> Any:
    """Return a command whose help shows brackets, as in `[exports.NAME]`; rich would take them for styles."""
    if command.rich_markup_mode != "rich":
        return command
    for described in (command, *getattr(command, "params", ())):
        for text in ("help", "short_help"):
            if found := getattr(described, text, None):
                setattr(described, text, escape(found))
    for below in getattr(command, "commands", {}).values():
        _as_written(below)
    return command


def _add(to: typer.Typer, name: str, add_on: AddOn) -> None:
    for command, reference in add_on.commands.items():
        given = part_of(name, reference)
        if isinstance(given, typer.Typer):
            to.add_typer(given, name=command)
        else:
            to.command(command)(given)


app = typer.Typer(
    name="riverrun",
    cls=_Commands,
    help="Kafka Streams' model in Python: live workers, bounded runs on Spark, and releases between them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(broker.app, name="broker")
app.add_typer(topic.app, name="topic")
app.command("init")(first_steps.init)
app.command("describe")(inspect.describe)
app.command("plan")(plan.plan)
app.command("worker")(worker.worker)
app.command("dev")(dev.dev)
app.command("run")(run.run)
app.command("backfill")(backfill.backfill)
app.command("status")(operations.status)
app.command("lag")(operations.lag)
app.command("scale")(operations.scale)
app.command("reset")(operations.reset)
app.command("resume")(operations.resume)
app.command("skip")(operations.skip)
app.command("clean-up")(operations.clean_up)
app.command("runs")(run.runs)
app.command("check")(inspect.check)
app.command("checks")(inspect.checks)
app.add_typer(inspect.quality_app, name="quality")
app.command("snapshot")(operations.snapshot)
app.command("prepare-spark")(broker.prepare_spark)
app.add_typer(operations.state_app, name="state")
app.add_typer(letters.app, name="letters")
app.add_typer(run.held_app, name="held")
release.app.add_typer(joint.app, name="joint")
app.add_typer(release.app, name="release")
app.add_typer(environments.app, name="env")
for _name, _add_on in BUILT_IN.items():
    _add(app, _name, _add_on)


def _show_version(is_wanted: bool) -> None:  # noqa: FBT001 - a callback
    if is_wanted:
        echo(f"riverrun {riverrun.__version__}")
        raise typer.Exit


@app.callback()
def settings(
    context: typer.Context,
    config: Annotated[Path, typer.Option(envvar="RIVERRUN_CONFIG", help="Path of the project's streams.toml.")] = Path(
        "streams.toml"
    ),
    home: Annotated[
        Path, typer.Option(envvar="RIVERRUN_HOME", help="Directory of downloads, and of the embedded broker's data.")
    ] = Path("~/.cache/riverrun"),
    *,
    prepare_spark: Annotated[
        bool,
        typer.Option(
            "--prepare-spark/--no-prepare-spark",
            envvar="RIVERRUN_PREPARE_SPARK",
            help="Run prepare-spark in the background after the first use of Spark on this machine.",
        ),
    ] = True,
    verbose: Annotated[bool, flag("--verbose", "-v", "Log each step.")] = False,
    log_json: Annotated[bool, flag("--log-json", "Log as JSON, one object per line.")] = False,
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            metavar="",
            help="Show the version of Riverrun and stop.",
        ),
    ] = False,
) -> None:
    """Read the options that come before the command."""
    # These two handle signals by `Ending`.
    if context.invoked_subcommand not in {"dev", "worker"}:
        interrupt_on_sigterm()
    start_logging(LogStyle(logging.INFO if verbose else logging.WARNING, log_json))
    context.obj = Settings(config, home.expanduser(), dict(os.environ), prepare_spark)
    # Processes that this one starts inherit the environment, and those that run users' code need no token.
    os.environ.pop(TOKEN, None)


def main() -> None:
    """Run `riverrun`, and show errors that users can act on without a traceback."""
    # `Settings.project` puts the directory of streams.toml before it.
    sys.path.insert(0, str(Path.cwd()))
    try:
        _run()
    except BaseException as end:
        if not isinstance(end, SystemExit) or end.code:
            prepare_nothing()
        raise


def _run() -> None:
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except SystemExit as end:
        # Called by a user's code, such as a sink, it would pass for the end of the command.
        if is_of_command(end):
            raise
        sys.exit(told(StreamsError(str(as_exception(end)), hint=users_line(end))))
    except Exception as error:
        code = told(error)
        if code is None:
            raise
        sys.exit(code)
