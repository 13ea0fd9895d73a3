"""`riverrun describe`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from riverrun.cli.project import App, Version, settings_of
from riverrun.project.operations.description import described, generated_code

Code = Annotated[
    bool,
    typer.Option(
        "--code", metavar="", help="Also show the code that tasks generate, and why nodes are left out of it."
    ),
]


class Format(StrEnum):
    """How a topology is shown."""

    TEXT = "text"
    MERMAID = "mermaid"
    SVG = "svg"
    HTML = "html"


As = Annotated[
    Format,
    typer.Option(
        "--format",
        help="How to show it: Kafka Streams' text, a Mermaid flowchart, an SVG picture, or a page with picture and text.",
    ),
]


def describe(
    context: typer.Context,
    app: App,
    version: Version = None,
    code: Code = False,  # noqa: FBT002 # an option
    form: As = Format.TEXT,
) -> None:
    """Show an application's topology as Kafka Streams describes it, or as a picture. With --version it asks no broker."""
    if code and form is not Format.TEXT:
        message = f"a picture shows no code: --format {form.value} goes without --code"
        raise typer.BadParameter(message, param_hint="--code")
    application = settings_of(context).project().app(app, version).loaded()
    if form is not Format.TEXT:
        typer.echo(described(application, form.value), nl=False)
        return
    typer.echo(application.topology.describe().rstrip())
    typer.echo(f"Fingerprint: {application.topology.fingerprint()}")
    if code:
        typer.echo(f"\n{generated_code(application)}".rstrip())
