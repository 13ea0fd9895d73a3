"""`riverrun import` and `riverrun export`."""

from __future__ import annotations

from typing import Annotated

import typer

from riverrun.cli.project import Master, settings_of
from riverrun.config.secrets import expanded, redacted
from riverrun.errors import ConfigError
from riverrun.records import counted

_FORMAT = typer.Option(
    "--format", "-f", help="Format of the data: parquet, csv, json, jdbc or any other that Spark knows."
)
_PACKAGE = typer.Option(
    "--package", help="Maven coordinates of a package that the format needs, such as a JDBC driver."
)
_OPTIONS = typer.Option(
    "--option", "-o", help="Option of the format, name=value. ${NAME} in it is replaced by an environment variable."
)


def import_topic(
    context: typer.Context,
    source: Annotated[str, typer.Argument(help="Path of the source, or the table of a jdbc source.")],
    topic: Annotated[str, typer.Argument(help="Topic to write to; it must exist.")],
    kind: Annotated[str, _FORMAT] = "parquet",
    option: Annotated[list[str] | None, _OPTIONS] = None,
    schema: Annotated[str | None, typer.Option(help="Schema of the rows as DDL.")] = None,
    key: Annotated[list[str] | None, typer.Option(help="Column of keys. Several make a JSON object.")] = None,
    value: Annotated[
        str | None, typer.Option(help="Column of values; each row becomes a JSON object if left out.")
    ] = None,
    timestamp: Annotated[str | None, typer.Option(help="Column of event times. Left out, the time is now.")] = None,
    incremental: Annotated[
        str | None,
        typer.Option(help="Column whose values only rise. The import takes rows above the highest value so far."),
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the import and its progress; the topic if left out.")] = "",
    missing_timestamp: Annotated[
        str, typer.Option(help="How to treat rows without an event time in that column: fail, or now.")
    ] = "fail",
    not_a_number: Annotated[
        str, typer.Option(help="How to treat NaN and infinity, which JSON does not have: fail, or null.")
    ] = "fail",
    parts: Annotated[int, typer.Option(min=1, max=10_000, help="Parts of a batch. Each is one transaction.")] = 4,
    package: Annotated[list[str] | None, _PACKAGE] = None,
    master: Master = None,
) -> None:
    """Write new data of a source to a topic, exactly once: new files, or rows with a higher value in a column."""
    from riverrun.project.progress_bar import progress_bar
    from riverrun.transfers.importing.imports import ImportSpec

    spec = ImportSpec(
        topic=topic,
        source=source,
        format=kind,
        options=_pairs(context, option),
        schema=schema,
        key=tuple(key or ()),
        value=value,
        timestamp=timestamp,
        incremental=incremental,
        name=name,
        parts=parts,
        missing_timestamp=missing_timestamp,
        not_a_number=not_a_number,
    )
    project = settings_of(context).project(master)
    with progress_bar():
        summary = project.run_import(spec, packages=package or ())
    written = f"{counted(summary.written, 'record')} written to {topic} in {counted(summary.batches, 'batch')}"
    typer.echo(f"{counted(summary.read, 'row')} read, {written}")


def export_topic(
    context: typer.Context,
    source: Annotated[
        str, typer.Argument(help="Topic to read; with --store, the name of an application in streams.toml.")
    ],
    target: Annotated[str, typer.Argument(help="Directory to write, or the table of a jdbc target.")],
    kind: Annotated[str, _FORMAT] = "parquet",
    option: Annotated[list[str] | None, _OPTIONS] = None,
    schema: Annotated[str | None, typer.Option(help="Schema of JSON values as DDL. Fields become columns.")] = None,
    name: Annotated[str, typer.Option(help="Name of the export and its progress; the topic if left out.")] = "",
    key: Annotated[
        list[str] | None, typer.Option(help="With jdbc, the column by which rows are replaced (PostgreSQL).")
    ] = None,
    package: Annotated[list[str] | None, _PACKAGE] = None,
    store: Annotated[str | None, typer.Option(help="Store of an application to export as a whole.")] = None,
    at: Annotated[
        str, typer.Option(help="State of the store to export: latest, an offset vector, or the id of a run.")
    ] = "latest",
    version: Annotated[
        str | None, typer.Option(help="With --store, the version of the application; the live one if left out.")
    ] = None,
    master: Master = None,
    *,
    binary: Annotated[
        bool, typer.Option("--binary", metavar="", help="Write keys and values as bytes instead of text.")
    ] = False,
) -> None:
    """Write new records of a topic to a target, exactly once. With --store, write all rows of a state store.

    Each export of a topic has a directory of its own, which a repeated attempt overwrites. A table gets the rows in one
    transaction, together with the progress. A store overwrites the target.
    """
    from riverrun.project.progress_bar import progress_bar
    from riverrun.transfers.exporting.exports import ExportSpec

    project, options, packages = settings_of(context).project(master), _pairs(context, option), package or ()
    if store is not None:
        app = project.app(source, version)
        with progress_bar():
            rows = app.export_store(store, target, kind, at=at, options=options, packages=packages)
        typer.echo(f"{store} of {source}: {counted(rows, 'row')} written to {target}")
        return
    spec = ExportSpec(
        topic=source,
        target=target,
        format=kind,
        options=options,
        schema=schema,
        is_binary=binary,
        name=name,
        key=tuple(key or ()),
    )
    with progress_bar():
        summary = project.run_export(spec, packages=packages)
    if summary.batch is None:
        typer.echo(f"{source}: nothing is new")
        return
    typer.echo(f"batch {summary.batch.number} is written: {summary.batch.range}")
    done = f"{counted(summary.read, 'record')} read, {counted(summary.written, 'row')} written to {target}"
    typer.echo(done)


def _pairs(context: typer.Context, options: list[str] | None) -> dict[str, str]:
    """Return options by name, with `${NAME}` replaced by environment variables, as all users of a machine can see arguments."""
    environ = settings_of(context).environ
    pairs = {}
    for option in options or []:
        name, equals, value = option.partition("=")
        if not (name and equals):
            message = f"{redacted(option)!r} is not name=value"
            raise ConfigError(message)
        pairs[name] = expanded(f"--option {name}", value, environ)
    return pairs
