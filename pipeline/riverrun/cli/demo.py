"""`riverrun demo`: the whole story, its data and the check of its results."""

from __future__ import annotations

from typing import Annotated

import typer

from riverrun.cli.broker import local_port
from riverrun.cli.exit_codes import FAILED
from riverrun.cli.project import settings_of
from riverrun.extras import require_extra

app = typer.Typer(help="The main job on real data: the flights that left New York in 2013.", no_args_is_help=True)

Days = Annotated[
    int | None,
    typer.Option(
        min=1, max=366, help="Use only the flights of this many days from 2013-01-01 on. Fewer take less time."
    ),
]


@app.command()
def run(context: typer.Context, days: Days = None) -> None:
    """Run the whole demo, from an empty broker to a rollback, in minutes. The exit code is 1 if a check failed."""
    require_extra("demo")
    require_extra("quality")
    from rich.console import Console

    from riverrun.demo.story import Story, running

    settings = settings_of(context)
    project = settings.project().config
    broker = settings.broker(local_port(project))
    scratch = settings.config.resolve().parent / ".riverrun"
    story = Story(
        project=project,
        config=settings.config,
        broker=broker,
        environ=settings.environ,
        scratch=scratch,
        console=Console(emoji=False),
        days=days,
    )
    with running(broker):
        if not story.tell():
            raise typer.Exit(FAILED)


@app.command()
def load(context: typer.Context, days: Days = None) -> None:
    """Create the demo's topics and write its data. A topic that has exactly these records stays as it is."""
    from riverrun.demo.data import load as load_data

    admin = settings_of(context).project().cluster.admin
    load_data(admin, lambda topic, size: typer.echo(f"{topic}: {size} records"), days=days)


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
    from riverrun.demo.check import compare, expected, published

    found = published(settings_of(context).project().cluster.admin)
    comparison = compare(found, expected(cancelled_count_as_on_time=version == "v1", days=days))
    typer.echo(f"{comparison.compared} keys compared: {'all equal' if comparison.is_equal else 'they differ'}")
    for key, hour_ms in comparison.differing:
        typer.echo(f"  differs: {key} at {hour_ms}")
    if not comparison.is_equal:
        raise typer.Exit(FAILED)
