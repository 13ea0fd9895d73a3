"""`riverrun import` and `export`: the ways of records from and to other systems."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from riverrun.cli.gathering import gathering
from riverrun.cli.output import echo
from riverrun.cli.project import Master, flag, settings_of
from riverrun.cli.signals import Ending, end_now, stop_then_end
from riverrun.config.secrets import expanded, redacted
from riverrun.errors import ConfigError
from riverrun.records import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.project.following import ExportStatus
    from riverrun.transfers.follower import FollowReport

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
        bool, flag("--follow", "Keep the topic of [imports.NAME] up to date until Ctrl-C or SIGTERM.")
    ] = False,
    status: Annotated[bool, flag("--status", "Show how far [imports.NAME] has come, and stop.")] = False,
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
    is_binary: Annotated[bool, flag("--binary", "Write keys and values as bytes instead of text.")] = False
    app: Annotated[
        str,
        typer.Option(
            help="Application that reads or writes the topic. Its serdes make the columns: fields of values, windows of keys."
        ),
    ] = ""
    partition_by: Annotated[
        list[str] | None,
        typer.Option(
            help="Level of directories: a column, or year, month, day or hour of a time in UTC, such as 'day(_timestamp)'."
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class _OfStore:
    """Options of the export of a store."""

    store: Annotated[str | None, typer.Option(help="Store of an application to export as a whole.")] = None
    at: Annotated[
        str, typer.Option(help="State of the store to export: latest, an offset vector, or the id of a run.")
    ] = "latest"
    version: Annotated[
        str | None,
        typer.Option(help="With --store or --app, the version of the application; defaults to the live one."),
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
        bool, flag("--follow", "Keep the target of [exports.NAME] up to date until Ctrl-C or SIGTERM.")
    ] = False,
    status: Annotated[bool, flag("--status", "Show the followers of [exports.NAME] and their lag, and stop.")] = False,
) -> None:
    """Write new records of a topic to a target, exactly once. With --store, write all rows of a state store.

    Each export of a topic has a separate directory, which a repeated attempt overwrites. A table gets the rows in one
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
    if of_store.version is not None and of_store.store is None and not options.app:
        raise ConfigError("--version is of an application, and none is named", hint="Add --app, or leave it out.")
    project, packages = settings_of(context).project(master), package or ()
    given = _fields(context, options) | {"partition_by": tuple(options.partition_by or ())}
    if of_store.store is not None:
        if options.app:
            message = f"--store exports a store of {source}, which has its own serdes"
            raise ConfigError(message, hint="Leave out --app.")
        if options.partition_by:
            raise ConfigError("--store writes one directory", hint="Leave out --partition-by.")
        app = project.app(source, version=of_store.version)
        with progress_bar():
            rows = app.state.export(
                of_store.store, target, options.format, at=of_store.at, options=given["options"], packages=packages
            )
        echo(f"{of_store.store} of {source}: {counted(rows, 'row')} written to {target}")
        return
    spec = ExportSpec(source, target, version=of_store.version, **given)
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
            raise ConfigError(f"{redacted(option)!r} is not name=value")
        pairs[name] = expanded(f"--option {name}", value, environ)
    return pairs


class Follows(Protocol):
    """Follows topics until `ends` returns True, and reports progress to `on_report`."""

    def __call__(self, *, ends: Callable[[], bool], on_report: Callable[[FollowReport], None]) -> FollowReport:
        """Return the last report."""


def follow_until_stopped(name: str, follow: Follows) -> None:
    """Follow until a signal requests the end, and show the progress. A second signal ends the process at once."""
    begun, stopped = threading.Event(), threading.Event()

    def stop() -> None:
        stopped.set()
        # It waits for brokers, and has nothing to commit.
        if not begun.is_set():
            end_now()

    def ends() -> bool:
        begun.set()
        return stopped.is_set()

    Ending().ask(stop_then_end(stop))
    last = follow(ends=ends, on_report=lambda report: echo(f"{name}: {report}"))
    echo(f"{name}: {counted(last.records, 'record')} in {counted(last.commits, 'commit')}")
