"""`riverrun plan`: the applications of a project and the topics between them, and what a change of one means for others."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from riverrun.cli.project import flag, settings_of
from riverrun.cli.release import AsJson, CommandOutcome, report

_ASSUMED = (
    "Versions are the first ones of streams.toml, unless --version says otherwise. --live takes those that are live."
)


class PlanForm(StrEnum):
    """A way to show a project."""

    TEXT = "text"
    MERMAID = "mermaid"
    SVG = "svg"


def plan(
    context: typer.Context,
    app: Annotated[
        str | None,
        typer.Argument(
            help="Application that changes: show what this means for others. Without it, show the whole project."
        ),
    ] = None,
    version: Annotated[
        str | None, typer.Option(help="Version of that application; defaults to the first one in streams.toml.")
    ] = None,
    start: Annotated[
        str, typer.Option("--from", help="Event time at which an interval to backfill begins; none for a release.")
    ] = "",
    end: Annotated[str, typer.Option("--to", help="Event time at which the interval ends; not included.")] = "",
    form: Annotated[
        PlanForm,
        typer.Option("--format", help="How to show the project: a tree, a Mermaid flowchart, or an SVG picture."),
    ] = PlanForm.TEXT,
    *,
    live: Annotated[
        bool, flag("--live", "Take the versions that are live, which brokers know, and not the first ones.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the applications of the project with the topics between them, and what is surprising about them.

    With an application, show what a release of it means for those that read its topics: which of them must, may or need not
    take part. With --from and --to, show what a backfill of that interval means. Nothing is changed. Brokers are asked only
    with --live.
    """
    from riverrun.project.graph_pictures import as_picture, as_text, graph_document, impact_document, impact_text
    from riverrun.project.surprises import surprises
    from riverrun.topology.graph import mermaid
    from riverrun.topology.svg import svg

    _check(app, form, is_of_app=bool(version or start or end), as_json=as_json)
    project = settings_of(context).project()

    def planned() -> CommandOutcome:
        if app is not None:
            found = project.impact(app, version=version, start=start, end=end, live=live)
            text = impact_text(found)
            return CommandOutcome(f"{text}\n{_ASSUMED}" if start and not live else text, impact_document(found))
        graph = project.graph({name: project.app(name).version for name in project.config.apps} if live else None)
        if form is PlanForm.TEXT:
            told = surprises(graph)
            return CommandOutcome(as_text(graph, told), graph_document(graph, told))
        picture = as_picture(graph)
        text = mermaid(picture) if form is PlanForm.MERMAID else svg(picture, project.config.path.resolve().parent.name)
        return CommandOutcome(text.rstrip(), None)

    report(planned, as_json=as_json)


def _check(app: str | None, form: PlanForm, *, is_of_app: bool, as_json: bool) -> None:
    if app is None and is_of_app:
        raise typer.BadParameter("name the application that they are about", param_hint="--version, --from, --to")
    if form is not PlanForm.TEXT and (app is not None or as_json):
        message = f"{form.value} shows the whole project: leave out {'APP' if app is not None else '--json'}"
        raise typer.BadParameter(message, param_hint="--format")
