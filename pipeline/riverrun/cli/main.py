"""`riverrun`: the entry point, and the options that all commands share."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

import riverrun
from riverrun.cli import (
    archive,
    backfill,
    broker,
    demo,
    dev,
    first_steps,
    inspect,
    letters,
    operations,
    release,
    run,
    sql,
    topic,
    trial,
    worker,
)
from riverrun.cli.project import INTERRUPTED, Settings, told
from riverrun.cli.signals import interrupt_on_sigterm
from riverrun.config.secrets import TOKEN
from riverrun.hosting.process import LogStyle, start_logging

app = typer.Typer(
    name="riverrun",
    help="Kafka Streams' model in Python: live workers, bounded runs on Spark, and releases between them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(broker.app, name="broker")
app.add_typer(topic.app, name="topic")
app.command("init")(first_steps.init)
app.command("describe")(inspect.describe)
app.command("worker")(worker.worker)
app.command("dev")(dev.dev)
app.command("run")(run.run)
app.command("backfill")(backfill.backfill)
app.command("try")(trial.try_out)
app.command("console")(inspect.console)
app.command("status")(operations.status)
app.command("lag")(operations.lag)
app.command("scale")(operations.scale)
app.command("reset")(operations.reset)
app.command("resume")(operations.resume)
app.command("skip")(operations.skip)
app.command("clean-up")(operations.clean_up)
app.command("runs")(run.runs)
app.command("sql")(sql.sql)
app.command("check")(inspect.check)
app.command("checks")(inspect.checks)
app.add_typer(inspect.quality_app, name="quality")
app.command("snapshot")(operations.snapshot)
app.command("prepare-spark")(broker.prepare_spark)
app.command("import")(topic.import_topic)
app.command("export")(topic.export_topic)
app.add_typer(operations.state_app, name="state")
app.add_typer(archive.app, name="archive")
app.add_typer(letters.app, name="letters")
app.add_typer(run.held_app, name="held")
app.add_typer(release.app, name="release")
app.add_typer(demo.app, name="demo")


def _show_version(is_wanted: bool) -> None:  # noqa: FBT001 - a callback
    if is_wanted:
        typer.echo(f"riverrun {riverrun.__version__}")
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
    verbose: Annotated[bool, typer.Option("--verbose", "-v", metavar="", help="Log each step.")] = False,
    log_json: Annotated[bool, typer.Option("--log-json", metavar="", help="Log as JSON, one object per line.")] = False,
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
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        code = told(error)
        if code is None:
            raise
        sys.exit(code)
