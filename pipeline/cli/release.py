"""`millrace release`: from one version of an application to the next, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.project import App, settings_of

if TYPE_CHECKING:
    from pipeline.releases.registry import Release
    from pipeline.releases.releaser import Releaser

app = typer.Typer(
    help="Release a new version of an application: proven, switched over, taken back.", no_args_is_help=True
)


NEXT = {
    "none": "millrace release start {app} --to VERSION",
    "planned": "millrace release reprocess {app}",
    "reprocessed": "millrace release gate {app}",
    "gated": "millrace release cut {app}",
    "cutting": "millrace release cut {app}",
    "live": "millrace release rollback {app}, if it must be",
    "rolling-back": "millrace release rollback {app}",
    "rolled-back": "millrace release start {app} --to VERSION",
    "aborted": "millrace release start {app} --to VERSION",
}


@app.command()
def status(context: typer.Context, app: App) -> None:
    """Say where a release stands, and what comes next."""
    _show(_releaser(context, app).status())


@app.command()
def plan(
    context: typer.Context, app: App, to: Annotated[str, typer.Option(help="The version that is to go live.")]
) -> None:
    """Say what a release would do: what changed, and how much there is to process. Changes nothing."""
    typer.echo(str(_releaser(context, app).plan(to)))


@app.command()
def start(
    context: typer.Context, app: App, to: Annotated[str, typer.Option(help="The version that is to go live.")]
) -> None:
    """Begin a release; there is no way back from the last one any more."""
    _show(_releaser(context, app).start(to))


@app.command()
def restore(
    context: typer.Context, app: App, live: Annotated[str, typer.Option(help="The version that is live.")]
) -> None:
    """Note again which version is live, after the control topic was lost."""
    _show(_releaser(context, app).restore(live))


@app.command()
def reprocess(context: typer.Context, app: App) -> None:
    """Compute the candidate from the beginning into fresh state and staging topics."""
    typer.echo(str(_releaser(context, app).reprocess()))


@app.command()
def gate(context: typer.Context, app: App) -> None:
    """Judge the candidate's data."""
    _show(_releaser(context, app).gate())


@app.command()
def approve(
    context: typer.Context,
    app: App,
    verdict: Annotated[str, typer.Option(help="The id of the verdict, as `gate` and `status` show it.")],
) -> None:
    """Approve the warnings of a gate."""
    _show(_releaser(context, app).approve(verdict))


@app.command()
def cut(context: typer.Context, app: App) -> None:
    """Put the candidate in the place of the live version."""
    _show(_releaser(context, app).cut())


@app.command()
def rollback(context: typer.Context, app: App) -> None:
    """Put the previous version back."""
    _show(_releaser(context, app).rollback())


@app.command()
def abort(context: typer.Context, app: App) -> None:
    """Give a release up before its cut."""
    _show(_releaser(context, app).abort())


def _releaser(context: typer.Context, name: str) -> Releaser:
    from pipeline.releases.releaser import Releaser

    settings = settings_of(context)
    return Releaser(settings.reached(), name, settings.spark)


def _show(release: Release) -> None:
    typer.echo(str(release))
    typer.echo(f"Next: {NEXT[release.step.value].format(app=release.app)}")
