"""`millrace demo`: the whole story, its data and the check of its results."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.cli.project import settings_of

app = typer.Typer(help="The main job on real data: the flights that left New York in 2013.", no_args_is_help=True)

DIFFERENT = 1
DEFAULT_PORT = 19092


@app.command()
def run(context: typer.Context) -> None:
    """Tell the whole story, from an empty broker to a release and back; exit code 1 if a check failed. Takes minutes."""
    from rich.console import Console  # noqa: PLC0415 - engines load where they are used

    from pipeline.demo.story import Story, running  # noqa: PLC0415 - as above

    settings = settings_of(context)
    broker = settings.broker(DEFAULT_PORT)
    scratch = settings.config.resolve().parent / ".millrace"
    story = Story(settings.project(), settings.config, broker, settings.environ, scratch, Console())
    with running(broker):
        if not story.tell():
            raise typer.Exit(DIFFERENT)


@app.command()
def load(context: typer.Context) -> None:
    """Create the demo's topics and write its data; topics that have records are left as they are."""
    from pipeline.demo.data import load as load_data  # noqa: PLC0415 - engines load where they are used

    load_data(settings_of(context).project().kafka, lambda topic, size: typer.echo(f"{topic}: {size} records"))


@app.command()
def reset(context: typer.Context) -> None:
    """Forget all that the application `delays` has computed; the input data stay."""
    from pipeline.demo.data import reset as reset_data  # noqa: PLC0415 - engines load where they are used

    project = settings_of(context).project()
    delays = project.app("delays")
    reset_data(project.kafka, delays, project.state_directory(delays))


@app.command()
def check(
    context: typer.Context,
    version: Annotated[str, typer.Option(help="v1 or v2: whose results are expected.")] = "v1",
) -> None:
    """Compare the output topic with pandas' computation over the original data, key by key; exit code 1 if they differ."""
    from pipeline.demo.check import compare, expected, published  # noqa: PLC0415 - as above

    found = published(settings_of(context).project().kafka)
    comparison = compare(found, expected(cancelled_count_as_on_time=version == "v1"))
    typer.echo(f"{comparison.compared} keys compared: {'all equal' if comparison.is_equal else 'they differ'}")
    for key, hour_ms in comparison.differing:
        typer.echo(f"  differs: {key} at {hour_ms}")
    if not comparison.is_equal:
        raise typer.Exit(DIFFERENT)
