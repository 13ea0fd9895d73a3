"""`millrace`: the entry point, and what all commands share."""

from __future__ import annotations

import errno
import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pipeline.cli import broker, demo, describe, operations, release, run, runs, snapshot, transfer, worker
from pipeline.cli.project import Settings
from pipeline.errors import StreamsError
from pipeline.hosting.logs import LogStyle, start_logging

app = typer.Typer(
    name="millrace",
    help="Kafka Streams' model in Python: live workers, bounded runs on Spark, and releases between them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(broker.app, name="broker")
app.command("describe")(describe.describe)
app.command("worker")(worker.worker)
app.command("run")(run.run)
app.command("status")(operations.status)
app.command("lag")(operations.lag)
app.command("scale")(operations.scale)
app.command("reset")(operations.reset)
app.command("runs")(runs.runs)
app.command("snapshot")(snapshot.snapshot)
app.command("import")(transfer.import_topic)
app.command("export")(transfer.export_topic)
app.add_typer(release.app, name="release")
app.add_typer(demo.app, name="demo")

INTERRUPTED = 130
FAILED = 1
_FULL = {errno.ENOSPC, errno.EDQUOT}


@app.callback()
def settings(
    context: typer.Context,
    config: Annotated[Path, typer.Option(envvar="MILLRACE_CONFIG", help="The project's streams.toml.")] = Path(
        "streams.toml"
    ),
    home: Annotated[
        Path, typer.Option(envvar="MILLRACE_HOME", help="Where downloads are kept, and the embedded broker's data.")
    ] = Path("~/.cache/millrace"),
    *,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what happens.")] = False,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log JSON, one object per line.")] = False,
) -> None:
    """Read the options that come before the command."""
    start_logging(LogStyle(logging.INFO if verbose else logging.WARNING, log_json))
    context.obj = Settings(config, home.expanduser(), dict(os.environ))


def main() -> None:
    """Run `millrace`; errors that users can act on are shown without a traceback."""
    sys.path.insert(0, str(Path.cwd()))  # applications are found where the command is started
    try:
        app()
    except StreamsError as error:
        _say(error)
        sys.exit(FAILED)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        where = f" for {error.filename}" if error.filename else ""
        _say(
            StreamsError(
                f"There is no space left on the disk{where}", hint="Free space, or set state.dir or TMPDIR elsewhere."
            )
        )
        sys.exit(FAILED)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _say(error: StreamsError) -> None:
    console = Console(stderr=True)
    console.print(f"[bold red]Error:[/] {_escaped(error.message)}", soft_wrap=True)
    if error.hint:
        console.print(f"[yellow]Hint:[/] {_escaped(error.hint)}", soft_wrap=True)


def _escaped(text: str) -> str:
    return text.replace("[", "\\[")
