"""`riverrun topic`: topics, and the records in them."""

from __future__ import annotations

import itertools
import sys
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path  # noqa: TC003 - typer reads the annotation
from typing import TYPE_CHECKING, Annotated, Any

import typer

from riverrun.cli.gathering import gathering
from riverrun.cli.output import echo
from riverrun.cli.project import flag, settings_of
from riverrun.errors import ConfigError
from riverrun.records import MOST_PARTITIONS, counted

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from riverrun.serde.api import Serde
    from riverrun.topics.records import ReadRecord

app = typer.Typer(help="Topics, and the records in them: create, list, read, write.", no_args_is_help=True)

_SERDES = "string, json, long, integer, double, bytes, ..., windowed-string, session-windowed-string"
Topic = Annotated[str, typer.Argument(help="Name of the topic.")]


@dataclass(frozen=True, slots=True)
class _Serdes:
    """Options that name serdes."""

    key_serde: Annotated[str | None, typer.Option(help=f"Serde of keys: {_SERDES}. Defaults to string.")] = None
    value_serde: Annotated[str | None, typer.Option(help="Serde of values, by the names of --key-serde.")] = None


@dataclass(frozen=True, slots=True)
class _OfApp:
    """Options that choose the application which has the serdes."""

    of_app: Annotated[
        str | None, typer.Option("--app", help="Use the serdes of this application, which reads or writes the topic.")
    ] = None
    version: Annotated[
        str | None, typer.Option(help="Version of the application in --app; defaults to the live one.")
    ] = None


@dataclass(frozen=True, slots=True)
class _Part:
    """Options that choose a part of the records."""

    start: Annotated[
        str, typer.Option("--from", help="Where to start: earliest, latest, a vector (topic-0@12,topic-1@7) or a time.")
    ] = "earliest"
    end: Annotated[
        str | None, typer.Option("--to", help="Where to end, in the forms of --from; defaults to latest.")
    ] = None
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, max=10**12, help="Stop after this many records.")
    ] = None


@app.command()
def create(
    context: typer.Context,
    topics: Annotated[list[str], typer.Argument(help="Names of the topics.")],
    partitions: Annotated[
        int, typer.Option(min=1, max=MOST_PARTITIONS, help="Number of partitions of each topic.")
    ] = 4,
    replication_factor: Annotated[
        int, typer.Option(min=-1, max=2**15 - 1, help="Number of replicas; -1 for the brokers' default.")
    ] = -1,
    config: Annotated[
        list[str] | None, typer.Option("--config", "-c", help="Setting of the topics, name=value.")
    ] = None,
) -> None:
    """Create topics. One that exists must have this number of partitions, and keeps its settings."""
    from riverrun.kafka.admin import TopicSpec

    settings = dict(_pair(each) for each in config or [])
    admin = settings_of(context).project().cluster.admin
    existed = admin.create_topics(TopicSpec(name, partitions, settings, replication_factor) for name in topics)
    size = counted(partitions, "partition")
    if new := [name for name in topics if name not in existed]:
        echo(f"{', '.join(new)}: {size}")
    for name in sorted(existed):
        echo(f"{name}: exists with {size}, and keeps its settings")


@app.command("list")
def list_topics(
    context: typer.Context,
    prefix: Annotated[str, typer.Argument(help="List only topics whose names begin with this.")] = "",
) -> None:
    """List topics with their numbers of partitions. The brokers' internal topics are left out."""
    admin = settings_of(context).project().cluster.admin
    names = [name for name in admin.list_topics(prefix) if not name.startswith("__")]
    for name, count in sorted(admin.partitions(names).items()):
        echo(f"{name}: {counted(count, 'partition')}")


@app.command()
@gathering
def read(
    context: typer.Context,
    topic: Topic,
    *,
    named: _Serdes,
    window: Annotated[str | None, typer.Option(help="Length of the windows of windowed keys, such as 5m.")] = None,
    of: _OfApp,
    part: _Part,
    follow: Annotated[bool, flag("--follow", "-f", "Wait for more records, until Ctrl-C.")] = False,
    as_json: Annotated[bool, flag("--json", "Print JSON, one record per line.")] = False,
) -> None:
    """Show the committed records of a topic: place, time, key and value.

    A partition that a vector leaves out starts, or stops, at its end.
    """
    from riverrun.topics.records import TopicReader

    if follow and part.end is not None:
        raise ConfigError("--to cannot be combined with --follow, which has no end", hint="Leave one of them out.")
    serdes = _serdes(context, topic, named, of, window)
    reader = TopicReader(settings_of(context).project().cluster.admin, topic, *serdes)
    records = reader.follow(part.start) if follow else reader.read(part.start, part.end or "latest")
    for record in itertools.islice(records, part.limit):
        echo(shown_line(record, as_json=as_json))


@app.command()
@gathering
def write(
    context: typer.Context,
    topic: Topic,
    file: Annotated[
        Path | None, typer.Argument(help="File with the lines to write; defaults to the standard input.")
    ] = None,
    *,
    named: _Serdes,
    of: _OfApp,
    key: Annotated[str | None, typer.Option(help="Field of JSON values that is also the key.")] = None,
    timestamp: Annotated[
        str | None,
        typer.Option(help="Field of JSON values with the event time, in ms or as text. Defaults to the present time."),
    ] = None,
    separator: Annotated[
        str | None,
        typer.Option(
            help="Separator between the key and the value of a line. A line that ends with it is a tombstone."
        ),
    ] = None,
    records: Annotated[
        bool, flag("--records", "Lines are records as `topic read --json` prints them, headers included.")
    ] = False,
) -> None:
    """Write lines to a topic, one record each. Values are JSON unless --value-serde or --app says otherwise.

    With --records, a value of null is a tombstone, and records without a timestamp are of now. Bytes are in hexadecimal digits.
    """
    from riverrun.topics.records import LineFormat, RecordFormat, write_lines

    if records and (key or timestamp or separator):
        message = "--records cannot be combined with --key, --timestamp or --separator: the lines have all of these"
        raise ConfigError(message, hint="Leave these out.")
    if not (of.of_app or named.value_serde):
        named = replace(named, value_serde="json")
    serdes = _serdes(context, topic, named, of)
    admin = settings_of(context).project().cluster.admin
    with _opened(file) as lines:
        form = RecordFormat(*serdes) if records else LineFormat(*serdes, key, timestamp, separator)
        written = write_lines(admin, topic, lines, form)
    echo(f"{counted(written, 'record')} written to {topic}")


def _opened(file: Path | None) -> AbstractContextManager[Any]:
    # The standard input stays open: `nullcontext` does not close it.
    if file is None:
        return nullcontext(sys.stdin.buffer)
    try:
        return file.open("rb")
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error


def _serdes(
    context: typer.Context, topic: str, named: _Serdes, of: _OfApp, window: str | None = None
) -> tuple[Serde[Any], Serde[Any]]:
    """Return the serdes of the options, or else those of the application, or else text."""
    from riverrun.serde.serdes import STRING
    from riverrun.topics.serdes import serde_named, serdes_of

    if of.of_app is None:
        key, value = STRING, STRING
    else:
        key, value = serdes_of(
            settings_of(context).project().app(of.of_app, version=of.version).topology(), topic, window
        )
    return (
        key if named.key_serde is None else serde_named(named.key_serde, window),
        value if named.value_serde is None else serde_named(named.value_serde, window),
    )


def shown_line(record: ReadRecord, *, as_json: bool) -> str:
    """Return a record as a readable line, or as JSON."""
    return _json(record) if as_json else _line(record)


def _line(record: ReadRecord) -> str:
    from riverrun.topics.serdes import readable, time_text

    place = f"{record.tp}@{record.offset}"
    return f"{place}  {time_text(record.timestamp)}  {readable(record.key)}: {readable(record.value)}"


def _json(record: ReadRecord) -> str:
    import msgspec

    from riverrun.topics.records import shown_record

    return msgspec.json.encode(shown_record(record), enc_hook=str).decode()


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ConfigError(f"{text!r} is not name=value")
    return name, value
