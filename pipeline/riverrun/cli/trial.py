"""`riverrun try`: a topology in memory over archived records."""

from __future__ import annotations

import itertools
from datetime import timedelta
from pathlib import Path  # noqa: TC003 - typer reads the annotation
from typing import Annotated

import typer

from riverrun.cli.archive import Url, url_of
from riverrun.cli.output import echo
from riverrun.cli.project import App, Version, settings_of
from riverrun.cli.topic import shown_line
from riverrun.errors import ConfigError
from riverrun.records import counted
from riverrun.serde.exact_values import LAST_MS

_DAY_MS = timedelta(days=1) // timedelta(milliseconds=1)


def try_out(
    context: typer.Context,
    name: App,
    url: Url = None,
    day: Annotated[str | None, typer.Option(help="The day to process, in UTC: 2026-11-01.")] = None,
    start: Annotated[str | None, typer.Option("--from", help="Event time at which to begin.")] = None,
    end: Annotated[str | None, typer.Option("--to", help="Event time at which to end, exclusive.")] = None,
    whole: Annotated[
        list[str] | None, typer.Option(help="Topic to read from its first archived record, such as that of a table.")
    ] = None,
    output: Annotated[list[str] | None, typer.Option(help="Topic to show; defaults to all outputs.")] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, max=10**12, help="Stop after this many records.")
    ] = None,
    version: Version = None,
    answers: Annotated[
        Path | None, typer.Option(help="File of recorded answers, which look-ups get instead of calling a service.")
    ] = None,
    record_answers: Annotated[
        Path | None, typer.Option(help="File to write the answers of look-ups to, for --answers.")
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="Print JSON, one record per line.")] = False,
) -> None:
    """Process archived records in memory, and show what the topology writes. Needs no broker, and changes nothing.

    State begins empty: name the topics of tables with --whole. Topics of global tables are read from their beginning anyway.
    """
    from riverrun.project.trial import Trial
    from riverrun.releases.topology import load_application
    from riverrun.spark.ranges import time_ms

    if (day is None) == (start is None and end is None):
        message = "try takes --day, or --from and --to"
        raise ConfigError(message, hint="riverrun try orders --day 2026-11-01")
    since_ms = time_ms(day or start or "1970-01-01")
    until_ms = since_ms + _DAY_MS if day else time_ms(end) if end else LAST_MS
    project = settings_of(context).project()
    application = load_application(project.config, name, version=version, kafka=project.cluster.kafka)
    trial = Trial(
        application,
        url_of(project, url),
        since_ms,
        until_ms,
        whole=whole or (),
        answers=answers,
        record_answers=record_answers,
    )
    for topic in trial.missing:
        echo(f"the archive has nothing of {topic}", err=True)
    for record in itertools.islice(trial.outputs(output or ()), limit):
        echo(shown_line(record, as_json=as_json))
    read = ", ".join(f"{topic}: {counted(count, 'record')}" for topic, count in sorted(trial.result.read.items()))
    dropped = "".join(f", {count} dropped ({reason})" for reason, count in sorted(trial.result.dropped.items()))
    echo(f"read {read or 'nothing'}{dropped}", err=True)
