"""`millrace import` and `millrace export`."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.cli.project import MASTER, settings_of
from pipeline.errors import ConfigError

_FORMAT = typer.Option("--format", "-f", help="parquet, csv, json, jdbc or any other that Spark knows.")
_OPTIONS = typer.Option("--option", "-o", help="An option of the format, name=value; may be given several times.")


def import_topic(
    context: typer.Context,
    source: Annotated[str, typer.Argument(help="A path, or the table of a jdbc source.")],
    topic: Annotated[str, typer.Argument(help="Where to; must exist.")],
    kind: Annotated[str, _FORMAT] = "parquet",
    option: Annotated[list[str] | None, _OPTIONS] = None,
    schema: Annotated[str | None, typer.Option(help="The rows' schema as DDL.")] = None,
    key: Annotated[list[str] | None, typer.Option(help="Key column; several make a JSON object.")] = None,
    value: Annotated[str | None, typer.Option(help="Column of values; a JSON object of each row if left out.")] = None,
    timestamp: Annotated[str | None, typer.Option(help="Column of event times; now if left out.")] = None,
    incremental: Annotated[str | None, typer.Option(help="A column that only rises: imports what is above.")] = None,
    name: Annotated[str, typer.Option(help="Names the import and its progress; the topic if left out.")] = "",
    parts: Annotated[int, typer.Option(min=1, help="Parts of a batch, each one transaction.")] = 4,
    master: Annotated[str | None, MASTER] = None,
) -> None:
    """Write what is new in a source to a topic, exactly once: new files, or rows with a higher value in a column."""
    from pipeline.spark.imports import ImportSpec, run_import  # noqa: PLC0415 - engines load where they are used

    spec = ImportSpec(
        topic,
        source,
        kind,
        _pairs(option or []),
        schema,
        tuple(key or ()),
        value,
        timestamp,
        incremental,
        name,
        parts,
    )
    summary = run_import(spec, settings_of(context).project().kafka, settings_of(context).spark(master))
    typer.echo(f"{summary.written} records written to {topic} in {summary.batches} batches")


def export_topic(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(help="Where from.")],
    target: Annotated[str, typer.Argument(help="A directory, or the table of a jdbc target.")],
    kind: Annotated[str, _FORMAT] = "parquet",
    option: Annotated[list[str] | None, _OPTIONS] = None,
    schema: Annotated[str | None, typer.Option(help="Schema of JSON values as DDL: fields become columns.")] = None,
    name: Annotated[str, typer.Option(help="Names the export and its progress; the topic if left out.")] = "",
    master: Annotated[str | None, MASTER] = None,
    *,
    binary: Annotated[bool, typer.Option("--binary", help="Keys and values are bytes, not text.")] = False,
) -> None:
    """Write what is new in a topic to a target: one directory per export, overwritten if it has to be done again."""
    from pipeline.spark.exports import ExportSpec, run_export  # noqa: PLC0415 - engines load where they are used

    spec = ExportSpec(topic, target, kind, _pairs(option or []), schema, binary, name)
    batch = run_export(spec, settings_of(context).project().kafka, settings_of(context).spark(master))
    typer.echo(f"{topic}: nothing is new" if batch is None else f"batch {batch.number} is written: {batch.range}")


def _pairs(options: list[str]) -> dict[str, str]:
    pairs = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not (name and equals):
            message = f"{option!r} is not name=value"
            raise ConfigError(message)
        pairs[name] = value
    return pairs
