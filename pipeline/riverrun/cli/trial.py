"""`riverrun try`: a topology in memory over archived records."""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path  # noqa: TC003 - typer reads the annotation
from typing import Annotated

import typer

from riverrun.cli.archive import Url, url_of
from riverrun.cli.gathering import gathering
from riverrun.cli.output import echo
from riverrun.cli.project import App, Version, flag, settings_of
from riverrun.cli.topic import shown_line
from riverrun.errors import ConfigError
from riverrun.records import counted
from riverrun.serde.exact_values import LAST_MS

_DAY_MS = timedelta(days=1) // timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class _Records:
    """Options that choose the archived records."""

    day: Annotated[str | None, typer.Option(help="The day to process, in UTC: 2026-11-01.")] = None
    start: Annotated[str | None, typer.Option("--from", help="Event time at which to begin.")] = None
    end: Annotated[str | None, typer.Option("--to", help="Event time at which to end, exclusive.")] = None
    whole: Annotated[
        list[str] | None, typer.Option(help="Topic to read from its first archived record, such as that of a table.")
    ] = None

    def stretch(self) -> tuple[int, int]:
        """Return the event times at which the records begin and end (exclusive), ms since the epoch."""
        from riverrun.spark.ranges import time_ms

        if (self.day is None) == (self.start is None and self.end is None):
            message = "try takes --day, or --from and --to"
            raise ConfigError(message, hint="riverrun try orders --day 2026-11-01")
        since_ms = time_ms(self.day or self.start or "1970-01-01")
        return since_ms, since_ms + _DAY_MS if self.day else time_ms(self.end) if self.end else LAST_MS


@dataclass(frozen=True, slots=True)
class _Shown:
    """Options that choose what is shown."""

    output: Annotated[list[str] | None, typer.Option(help="Topic to show; defaults to all outputs.")] = None
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, max=10**12, help="Stop after this many records.")
    ] = None


@dataclass(frozen=True, slots=True)
class _LookUps:
    """Options of look-ups, with the names of a `Trial`'s arguments."""

    answers: Annotated[
        Path | None, typer.Option(help="File of recorded answers, which look-ups get instead of calling a service.")
    ] = None
    record_answers: Annotated[
        Path | None, typer.Option(help="File to write the answers of look-ups to, for --answers.")
    ] = None


@gathering
def try_out(
    context: typer.Context,
    name: App,
    url: Url = None,
    *,
    records: _Records,
    shown: _Shown,
    version: Version = None,
    look_ups: _LookUps,
    as_json: Annotated[bool, flag("--json", "Print JSON, one record per line.")] = False,
) -> None:
    """Process archived records in memory, and show what the topology writes. Needs no broker, and changes nothing.

    State begins empty: name the topics of tables with --whole. Topics of global tables are read from their beginning anyway.
    """
    from riverrun.project.trial import Trial
    from riverrun.releases.topology import load_application

    stretch = records.stretch()
    project = settings_of(context).project()
    application = load_application(project.config, name, version=version, kafka=project.cluster.kafka)
    trial = Trial(application, url_of(project, url), *stretch, whole=records.whole or (), **asdict(look_ups))
    for topic in trial.missing:
        echo(f"the archive has nothing of {topic}", err=True)
    for record in itertools.islice(trial.outputs(shown.output or ()), shown.limit):
        echo(shown_line(record, as_json=as_json))
    read = ", ".join(f"{topic}: {counted(count, 'record')}" for topic, count in sorted(trial.result.read.items()))
    dropped = "".join(f", {count} dropped ({reason})" for reason, count in sorted(trial.result.dropped.items()))
    echo(f"read {read or 'nothing'}{dropped}", err=True)
