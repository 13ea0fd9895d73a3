"""`riverrun demo` runs the whole story, or its first act, and checks the results."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from riverrun.cli.broker import local_port
from riverrun.cli.output import echo
from riverrun.cli.project import FAILED, flag, settings_of
from riverrun.extras import require_extra

if TYPE_CHECKING:
    from pathlib import Path

    from riverrun.demo.steps import Steps

app = typer.Typer(help="The main job on real data: the flights that left New York in 2013.")

_NEXT = """
That took {seconds:.1f} s, without a broker: topics were lists in memory. Workers and
bounded runs have the same task; they commit in transactions of Kafka.

  riverrun init shop   makes a project with such a topology, and its test
  make demo            in a checkout, continues: a year of real flights on Kafka,
                       live, bounded on Spark, released, and rolled back
"""

Days = Annotated[
    int | None,
    typer.Option(
        min=1, max=366, help="Use only the flights of this many days from 2013-01-01 on. Fewer take less time."
    ),
]


@app.callback(invoke_without_command=True)
def demo(
    context: typer.Context,
    *,
    quick: Annotated[
        bool,
        flag(
            "--quick",
            "Run the first act only, in seconds: a topology and its results, in memory. It needs no broker and no extra.",
        ),
    ] = False,
) -> None:
    """The main job on real data: the flights that left New York in 2013. With --quick, its first act in memory."""
    if context.invoked_subcommand is not None:
        return
    if not quick:
        echo(context.get_help())
        raise typer.Exit
    from riverrun.demo.first_act import FirstAct

    console = _console()
    begun = time.monotonic()
    held = FirstAct(console).tell()
    console.print(_NEXT.format(seconds=time.monotonic() - begun), highlight=False)
    if not held:
        raise typer.Exit(FAILED)


@app.command()
def run(
    context: typer.Context,
    days: Days = None,
    install: Annotated[
        str | None, typer.Option(hidden=True, help="Command that installs the demo's packages during the first act.")
    ] = None,
    begun: Annotated[
        float | None,
        typer.Option(min=0, max=10**12, hidden=True, help="Time at which a caller began, seconds since the epoch."),
    ] = None,
) -> None:
    """Run the whole demo, from a topology in memory to a rollback, in minutes. The exit code is 1 if a check failed."""
    from riverrun.demo.steps import Steps

    settings = settings_of(context)
    scratch = settings.config.resolve().parent / ".riverrun"
    steps, console = Steps(), _console()
    if begun is not None:
        steps.seconds["Python and the first packages"] = time.time() - begun
    # Without an installation, missing packages are reported before the first act, not after it.
    if install is None:
        _require_extras()
    held = _first_act(install, scratch, steps, console)
    _require_extras()
    from riverrun.demo.story import Story, running

    project = settings.project().config
    broker = settings.broker(local_port(project))
    story = Story(
        project=project,
        config=settings.config,
        broker=broker,
        environ=settings.environ,
        scratch=scratch,
        console=console,
        steps=steps,
        days=days,
    )
    with running(broker):
        held &= story.tell()
    if not held:
        raise typer.Exit(FAILED)


def _first_act(install: str | None, scratch: Path, steps: Steps, console: Console) -> bool:
    """Run the first act, and install the other packages meanwhile; return whether all results agree."""
    from riverrun.demo.first_act import FirstAct
    from riverrun.demo.installing import installed

    def act() -> bool:
        console.rule("[bold]In memory: a topology and its results", align="left")
        with steps.timed("The first act, in memory"):
            return FirstAct(console).tell()

    if install is None:
        return act()
    return installed(shlex.split(install), scratch / "install.log", act, steps, console)


def _require_extras() -> None:
    require_extra("demo")
    require_extra("quality")


def _console() -> Console:
    return Console(emoji=False)


@app.command()
def load(context: typer.Context, days: Days = None) -> None:
    """Create the demo's topics and write its data. A topic that has exactly these records stays as it is.

    The archive of the flights is dropped.
    """
    from riverrun.demo.data import load as load_data

    project = settings_of(context).project()

    def tell(topic: str, records: int, of: int) -> None:
        if records == of:
            echo(f"{topic}: {of} records")

    load_data(project.cluster.admin, project.config.app("delays"), tell, days=days)


@app.command()
def reset(context: typer.Context) -> None:
    """Delete all results and state of the application `delays`. Its input data stay."""
    from riverrun.demo.data import reset as reset_data

    project = settings_of(context).project()
    delays = project.config.app("delays")
    reset_data(project.cluster.admin, delays, project.config.state_directory(delays))


@app.command()
def check(
    context: typer.Context,
    version: Annotated[str, typer.Option(help="Version whose results are expected: v1 or v2.")] = "v1",
    days: Days = None,
) -> None:
    """Compare the output topic, key by key, with pandas' results for the original data. The exit code is 1 if they differ."""
    from riverrun.demo.data import compare, expected, published

    found = published(settings_of(context).project().cluster.admin)
    comparison = compare(found, expected(cancelled_count_as_on_time=version == "v1", days=days))
    echo(f"{comparison.compared} keys compared: {'all equal' if comparison.is_equal else 'they differ'}")
    for key, hour_ms in comparison.differing:
        echo(f"  differs: {key} at {hour_ms}")
    if not comparison.is_equal:
        raise typer.Exit(FAILED)
