"""`riverrun topic`, `import` and `export`: topics, the records in them, and their ways from and to other systems."""

from __future__ import annotations

import itertools
import sys
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path  # noqa: TC003 - typer reads the annotation
from typing import TYPE_CHECKING, Annotated, Any

import typer

from riverrun.cli.gathering import gathering
from riverrun.cli.output import echo
from riverrun.cli.project import Master, settings_of
from riverrun.cli.signals import follow_until_stopped
from riverrun.config.secrets import expanded, redacted
from riverrun.errors import ConfigError
from riverrun.records import MOST_PARTITIONS, counted

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from riverrun.project.following import ExportStatus
    from riverrun.serde.api import Serde
    from riverrun.transfers.topic_records import ReadRecord

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
    """Create topics. One that exists must have this number of partitions."""
    from riverrun.kafka.admin import TopicSpec

    settings = dict(_pair(each) for each in config or [])
    admin = settings_of(context).project().cluster.admin
    admin.create_topics(TopicSpec(name, partitions, settings, replication_factor) for name in topics)
    echo(f"{', '.join(topics)}: {counted(partitions, 'partition')}")


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
    start: Annotated[
        str, typer.Option("--from", help="Where to start: earliest, latest, a vector (topic-0@12,topic-1@7) or a time.")
    ] = "earliest",
    end: Annotated[
        str | None, typer.Option("--to", help="Where to end, in the forms of --from; defaults to latest.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, max=10**12, help="Stop after this many records.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", metavar="", help="Wait for more records, until Ctrl-C.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="Print JSON, one record per line.")] = False,
) -> None:
    """Show the committed records of a topic: place, time, key and value.

    A partition that a vector leaves out starts, or stops, at its end.
    """
    from riverrun.transfers.topic_records import TopicReader

    if follow and end is not None:
        message = "--to cannot be combined with --follow, which has no end"
        raise ConfigError(message, hint="Leave one of them out.")
    serdes = _serdes(context, topic, named, of, window)
    reader = TopicReader(settings_of(context).project().cluster.admin, topic, *serdes)
    records = reader.follow(start) if follow else reader.read(start, end or "latest")
    for record in itertools.islice(records, limit):
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
        bool,
        typer.Option(
            "--records", metavar="", help="Lines are records as `topic read --json` prints them, headers included."
        ),
    ] = False,
) -> None:
    """Write lines to a topic, one record each. Values are JSON unless --value-serde or --app says otherwise.

    With --records, a value of null is a tombstone, and records without a timestamp are of now. Bytes are in hexadecimal digits.
    """
    from riverrun.transfers.topic_records import LineFormat, RecordFormat, write_lines

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
        message = f"{file} cannot be read: {error.strerror}"
        raise ConfigError(message) from error


def _serdes(
    context: typer.Context, topic: str, named: _Serdes, of: _OfApp, window: str | None = None
) -> tuple[Serde[Any], Serde[Any]]:
    """Return the serdes of the options, or else those of the application, or else text."""
    from riverrun.serde.serdes import STRING
    from riverrun.transfers.topic_serdes import serde_named, serdes_of

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
    from riverrun.transfers.topic_serdes import readable, time_text

    place = f"{record.tp}@{record.offset}"
    return f"{place}  {time_text(record.timestamp)}  {readable(record.key)}: {readable(record.value)}"


def _json(record: ReadRecord) -> str:
    import msgspec

    from riverrun.transfers.topic_records import shown_record

    return msgspec.json.encode(shown_record(record), enc_hook=str).decode()


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        message = f"{text!r} is not name=value"
        raise ConfigError(message)
    return name, value


_FORMAT = typer.Option(
    "--format", "-f", help="Format of the data: parquet, csv, json, jdbc or any other that Spark knows."
)
_PACKAGE = typer.Option(
    "--package", help="Maven coordinates of a package that the format needs, such as a JDBC driver."
)
_OPTIONS = typer.Option(
    "--option", "-o", help="Option of the format, name=value. ${NAME} in it is replaced by an environment variable."
)


@dataclass(frozen=True, slots=True)
class _ImportOptions:
    """Options with the names of an `ImportSpec`'s fields."""

    format: Annotated[str, _FORMAT] = "parquet"
    options: Annotated[list[str] | None, _OPTIONS] = None
    schema: Annotated[str | None, typer.Option(help="Schema of the rows as DDL.")] = None
    key: Annotated[list[str] | None, typer.Option(help="Column of keys. Several make a JSON object.")] = None
    value: Annotated[str | None, typer.Option(help="Column of values; by default, each row becomes a JSON object.")] = (
        None
    )
    timestamp: Annotated[str | None, typer.Option(help="Column of event times. Defaults to the present time.")] = None
    incremental: Annotated[
        str | None,
        typer.Option(help="Column whose values only rise. The import takes rows above the highest value so far."),
    ] = None
    name: Annotated[str, typer.Option(help="Name of the import and its progress; defaults to the topic.")] = ""
    missing_timestamp: Annotated[
        str, typer.Option(help="How to treat rows without an event time in that column: fail, or now.")
    ] = "fail"
    not_a_number: Annotated[
        str, typer.Option(help="How to treat NaN and infinity, which JSON does not have: fail, or null.")
    ] = "fail"
    parts: Annotated[int, typer.Option(min=1, max=10_000, help="Parts of a batch. Each is one transaction.")] = 4


@gathering
def import_topic(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            help="Path of the source, or the table of a jdbc source; without TOPIC, the name of an import in streams.toml."
        ),
    ],
    topic: Annotated[
        str | None,
        typer.Argument(help="Topic to write to; it must exist. Defaults to that of [imports.NAME]."),
    ] = None,
    *,
    options: _ImportOptions,
    package: Annotated[list[str] | None, _PACKAGE] = None,
    master: Master = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", metavar="", help="Keep the topic of [imports.NAME] up to date until Ctrl-C or SIGTERM."
        ),
    ] = False,
    status: Annotated[
        bool, typer.Option("--status", metavar="", help="Show how far [imports.NAME] has come, and stop.")
    ] = False,
) -> None:
    """Write new data of a source to a topic, exactly once: new files, or rows with a higher value in a column.

    Without TOPIC, an import of streams.toml polls its source without Spark: up to the present end of the source, or with
    --follow until it is stopped.
    """
    from riverrun.project.progress_bar import progress_bar
    from riverrun.transfers.imports import ImportSpec

    if topic is None or follow or status:
        if topic is not None:
            message = (
                f"{'--status' if status else '--follow'} takes the name of an import in streams.toml, and no topic"
            )
            raise ConfigError(message, hint="Declare topic and source in [imports.NAME].")
        _poll(context, source, is_endless=follow, only_status=status)
        return
    spec = ImportSpec(topic, source, **_fields(context, options))
    project = settings_of(context).project(master)
    with progress_bar():
        summary = project.run_import(spec, packages=package or ())
    written = f"{counted(summary.written, 'record')} written to {topic} in {counted(summary.batches, 'batch')}"
    echo(f"{counted(summary.read, 'row')} read, {written}")


@dataclass(frozen=True, slots=True)
class _ExportOptions:
    """Options with the names of an `ExportSpec`'s fields."""

    format: Annotated[str, _FORMAT] = "parquet"
    options: Annotated[list[str] | None, _OPTIONS] = None
    schema: Annotated[str | None, typer.Option(help="Schema of JSON values as DDL. Fields become columns.")] = None
    name: Annotated[str, typer.Option(help="Name of the export and its progress; defaults to the topic.")] = ""
    key: Annotated[
        list[str] | None, typer.Option(help="With jdbc, the column by which rows are replaced (PostgreSQL).")
    ] = None
    is_binary: Annotated[
        bool, typer.Option("--binary", metavar="", help="Write keys and values as bytes instead of text.")
    ] = False


@dataclass(frozen=True, slots=True)
class _OfStore:
    """Options of the export of a store."""

    store: Annotated[str | None, typer.Option(help="Store of an application to export as a whole.")] = None
    at: Annotated[
        str, typer.Option(help="State of the store to export: latest, an offset vector, or the id of a run.")
    ] = "latest"
    version: Annotated[
        str | None, typer.Option(help="With --store, the version of the application; defaults to the live one.")
    ] = None


@gathering
def export_topic(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            help="Topic to read; with --store, the name of an application in streams.toml; without TARGET, the name of an"
            " export in streams.toml."
        ),
    ],
    target: Annotated[
        str | None,
        typer.Argument(help="Directory to write, or the table of a jdbc target. Defaults to that of [exports.NAME]."),
    ] = None,
    *,
    options: _ExportOptions,
    package: Annotated[list[str] | None, _PACKAGE] = None,
    of_store: _OfStore,
    master: Master = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", metavar="", help="Keep the target of [exports.NAME] up to date until Ctrl-C or SIGTERM."
        ),
    ] = False,
    status: Annotated[
        bool, typer.Option("--status", metavar="", help="Show the followers of [exports.NAME] and their lag, and stop.")
    ] = False,
) -> None:
    """Write new records of a topic to a target, exactly once. With --store, write all rows of a state store.

    Each export of a topic has a directory of its own, which a repeated attempt overwrites. A table gets the rows in one
    transaction, together with the progress. A store overwrites the target.

    Without TARGET, an export of streams.toml is written without Spark: up to the end of the topic, or with --follow until it
    is stopped. Several processes share the partitions.
    """
    from riverrun.project.progress_bar import progress_bar
    from riverrun.transfers.exports import ExportSpec

    if target is None or follow or status:
        if target is not None or of_store.store is not None:
            message = (
                f"{'--status' if status else '--follow'} takes the name of an export in streams.toml, and no target"
            )
            raise ConfigError(message, hint="Declare topic and target in [exports.NAME].")
        _follow(context, source, is_endless=follow, only_status=status)
        return
    project, packages = settings_of(context).project(master), package or ()
    given = _fields(context, options)
    if of_store.store is not None:
        app = project.app(source, version=of_store.version)
        with progress_bar():
            rows = app.state.export(
                of_store.store, target, options.format, at=of_store.at, options=given["options"], packages=packages
            )
        echo(f"{of_store.store} of {source}: {counted(rows, 'row')} written to {target}")
        return
    spec = ExportSpec(source, target, **given)
    with progress_bar():
        summary = project.run_export(spec, packages=packages)
    if summary.batch is None:
        echo(f"{source}: nothing is new")
        return
    echo(f"batch {summary.batch.number} is written: {summary.batch.range}")
    done = f"{counted(summary.read, 'record')} read, {counted(summary.written, 'row')} written to {target}"
    echo(done)


def _follow(context: typer.Context, name: str, *, is_endless: bool, only_status: bool) -> None:
    export = settings_of(context).project().export(name)
    if only_status:
        _show_status(export.status())
        return
    follow_until_stopped(name, partial(export.follow, until_caught_up=not is_endless))


def _poll(context: typer.Context, name: str, *, is_endless: bool, only_status: bool) -> None:
    declared = settings_of(context).project().declared_import(name)
    if only_status:
        found = declared.status()
        echo(f"{counted(found.batches, 'commit')} from {found.source or declared.config.place}")
        echo(f"  up to {found.upto or 'nothing yet'}" if declared.config.incremental else f"  files: {found.files}")
        if found.file:
            echo(f"  {found.rows} rows of {found.file}")
        return
    follow_until_stopped(name, partial(declared.follow, until_caught_up=not is_endless))


def _show_status(found: ExportStatus) -> None:
    from riverrun.hosting.inputs import beyond_warning, total_text

    echo(f"group {found.group} is {found.state}, {counted(len(found.members), 'follower')}")
    for member in found.members:
        echo(f"  {member}")
    for each in found.partitions:
        committed = "none" if each.committed is None else each.committed
        echo(f"  {each.tp}: committed {committed}, end {each.end}, lag {each.text}")
    echo(total_text(found.partitions))
    warning = beyond_warning(found.partitions)
    if warning is not None:
        echo(f"Warning: {warning}", err=True)


def _fields(context: typer.Context, options: _ImportOptions | _ExportOptions) -> dict[str, Any]:
    return {**asdict(options), "options": _pairs(context, options.options), "key": tuple(options.key or ())}


def _pairs(context: typer.Context, options: list[str] | None) -> dict[str, str]:
    """Return options by name, with `${NAME}` replaced by environment variables."""
    # All users of a machine can see the arguments of a process, so passwords come from variables, and stay out of errors.
    environ = settings_of(context).environ
    pairs = {}
    for option in options or []:
        name, equals, value = option.partition("=")
        if not (name and equals):
            message = f"{redacted(option)!r} is not name=value"
            raise ConfigError(message)
        pairs[name] = expanded(f"--option {name}", value, environ)
    return pairs
