"""`riverrun describe`, `check`, `checks` and `quality suggest`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path  # noqa: TC003 - typer reads the annotation
from typing import TYPE_CHECKING, Annotated

import typer

from riverrun.cli.output import echo
from riverrun.cli.project import GATE_FAILED, App, Master, Version, flag, settings_of
from riverrun.records import counted

if TYPE_CHECKING:
    from riverrun.releases.check_log import CheckRecord

Code = Annotated[bool, flag("--code", "Also show the code that tasks generate, and why nodes are left out of it.")]

Lines = Annotated[bool, flag("--lines", "Also show the line of your code that makes each node.")]

Neighbours = Annotated[
    bool,
    flag(
        "--neighbours",
        "Also name the writers of topics that it reads, and the readers of those that it writes. This loads all applications.",
    ),
]


class Format(StrEnum):
    """A way to show a topology."""

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
    lines: Lines = False,  # noqa: FBT002 # an option
    neighbours: Neighbours = False,  # noqa: FBT002 # an option
    form: As = Format.TEXT,
) -> None:
    """Show an application's topology as Kafka Streams describes it, or as a picture. With --version it asks no broker."""
    for is_asked, option in ((code, "code"), (lines, "lines"), (neighbours, "neighbours")):
        if is_asked and form is not Format.TEXT:
            message = f"--format {form.value} does not show {option}: leave out --{option}"
            raise typer.BadParameter(message, param_hint=f"--{option}")
    from riverrun.project.app import described, generated_code
    from riverrun.project.graph_pictures import neighbours_text
    from riverrun.project.members import graph_of

    project = settings_of(context).project()
    application = project.app(app, version=version).loaded()
    if form is not Format.TEXT:
        echo(described(application, form.value), nl=False)
        return
    echo(application.topology.describe(lines=lines).rstrip())
    echo(f"Fingerprint: {application.topology.fingerprint()}")
    if neighbours:
        echo(neighbours_text(graph_of(project.config, kafka=project.cluster.kafka, loaded={app: application}), app))
    if code:
        echo(f"\n{generated_code(application)}".rstrip())


def check(
    context: typer.Context,
    app: App,
    since: Annotated[
        str,
        typer.Option(
            metavar="last|VECTOR|TIME",
            help="Judge only records from here on; left out, all records, and tables by their rows.",
        ),
    ] = "",
    master: Master = None,
    *,
    as_json: Annotated[bool, flag("--json", "Print one JSON document.")] = False,
) -> None:
    """Judge what the live version has published by its expectations. The exit code is 6 if a critical one fails."""
    import msgspec

    from riverrun.project.progress_bar import progress_bar

    with progress_bar():
        found = settings_of(context).project(master).app(app).checks.run(since)
    verdict = found.verdict
    if as_json:
        document = {"id": found.id, "app": app, "at": str(found.at), "outcomes": dict(verdict.outcomes)}
        document |= {"critical": verdict.critical, "warnings": verdict.warnings, "pages": dict(verdict.pages)}
        echo(msgspec.json.encode(document))
    else:
        echo(f"check {found.id}: {app} is judged up to {found.at}")
        for name, outcome in verdict.outcomes.items():
            echo(f"  {name}: {outcome}")
        for page in verdict.pages.values() if found.docs is not None else ():
            echo(f"  page: {found.docs}/{page}")
    if verdict.critical:
        raise typer.Exit(GATE_FAILED)


def checks(
    context: typer.Context,
    app: App,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="Number of checks, latest first.")] = 20,
    *,
    statistics: Annotated[bool, flag("--statistics", "Also show statistics of the columns that were judged.")] = False,
    as_json: Annotated[bool, flag("--json", "Print JSON, one check per line.")] = False,
) -> None:
    """List the checks and gates of an application: time, user, range, findings, rows, and statistics of columns."""
    import msgspec

    for each in settings_of(context).project().app(app).checks.history(limit):
        echo(msgspec.json.encode(each) if as_json else _line(each))
        for name, found in each.statistics.items() if statistics and not as_json else ():
            echo(f"  {name}: {counted(found.rows, 'row')}")
            for column, values in found.columns.items():
                echo(f"    {column}: {values}")


def _line(each: CheckRecord) -> str:
    from riverrun.cli.run import utc

    rows = ", ".join(f"{name} {counted(found.rows, 'row')}" for name, found in each.statistics.items())
    failing = ", ".join(each.critical + each.warnings)
    about = f"{each.what} of {each.version} by {each.by}, up to {each.at}"
    return "; ".join(part for part in (f"{utc(each.at_ms)} {each.id} {each.result}: {about}", rows, failing) if part)


quality_app = typer.Typer(help="Expectations of an application's outputs.", no_args_is_help=True)


@quality_app.callback()
def _quality() -> None:
    """Keep `suggest` a command of its own."""


@quality_app.command()
def suggest(
    context: typer.Context,
    app: App,
    output: Annotated[str, typer.Argument(help="The public topic.")],
    to: Annotated[
        Path | None,
        typer.Option(help="File to write; defaults to a new one in the directory that quality names, else in suites."),
    ] = None,
    version: Version = None,
    sample: Annotated[
        int, typer.Option(min=1, max=100_000, help="Number of offsets to look at, the latest of each partition.")
    ] = 10_000,
) -> None:
    """Draft a suite of expectations from the latest rows of an output. It replaces no file."""
    from riverrun.quality.drafts import require_new

    checks = settings_of(context).project().app(app, version=version).checks
    path = checks.suite_path(output) if to is None else to
    require_new(path)
    drafted = checks.suggest(output, sample=sample)
    drafted.save(path)
    expectations = drafted.document["expectations"]
    echo(f"{path}: {counted(len(expectations), 'expectation')} of {counted(drafted.rows, 'row')} of {output}")
    for each in expectations:
        settings = {name: value for name, value in each["kwargs"].items() if name != "column"}
        about = each["kwargs"].get("column", "")
        echo(f"  {about} {each['type']} {settings or ''}".replace("  ", " ").rstrip())
