"""Finds new data in the source of an import, and reads its rows, in batches by Spark."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from riverrun.errors import ConfigError
from riverrun.spark.databases import with_driver
from riverrun.spark.failures import complaint, spark_failures
from riverrun.spark.formats import escaped, has_files, listing
from riverrun.transfers.import_rows import as_text
from riverrun.transfers.text_frames import OBJECT, OWN, is_text, text_frame

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.transfers.batches import Batch
    from riverrun.transfers.specs import ImportSpec

# One record of `riverrun-imports` holds the names of a batch's files.
_MAX_FILES = 1000
# By default, this reader returns null for malformed values.
_STRICT = {"xml": {"mode": "FAILFAST"}}


def with_what_is_new(
    spec: ImportSpec, planned: Batch, above: str | None, files_before: Callable[[], set[str]], spark: Any
) -> Batch | None:
    """Return `planned` with the files, or the values above `above`, that are new in the source; None if there are none."""
    if spec.incremental is not None:
        frame = _whole(spec, spark)
        new = _rows_above(frame, spec.incremental, above)
        highest = as_text(f"max(`{spec.incremental}`)", _kind(spec, frame, spec.incremental))
        upto = reading(spec, lambda: new.selectExpr(f"{highest} AS upto").first().upto)
        return None if upto is None else replace(planned, above=above, upto=upto)
    files = reading(spec, _listing(spec, spark).inputFiles)
    new_files = sorted(set(files) - files_before())[:_MAX_FILES]
    # A source that has no files, such as a table, is imported as a whole.
    if not new_files and (files or has_files(spec.format)):
        return None
    batch = replace(planned, files=tuple(new_files))
    # Missing columns are refused here: once the batch is recorded, it would have to be completed.
    rows_of(spec, batch, spark, is_planned=False)
    return batch


def rows_of(spec: ImportSpec, batch: Batch, spark: Any, *, is_planned: bool = True) -> Any:
    """Return the rows of a batch as a frame, without columns if its files are empty; a planned one has been checked."""
    if batch.files:
        return _of_files(spec, batch.files, spark, is_planned=is_planned)
    frame = _whole(spec, spark, is_planned=is_planned)
    if batch.upto is None or spec.incremental is None:
        return frame
    upto = f"`{spec.incremental}` <= {_from_text(batch.upto, _kind(spec, frame, spec.incremental))}"
    return _rows_above(frame, spec.incremental, batch.above).where(upto)


def reading(spec: ImportSpec, action: Callable[[], Any]) -> Any:
    """Run an action that makes Spark read the source."""
    from pyspark.errors import AnalysisException

    try:
        with spark_failures(f"import {spec.format} source {spec.source}"):
            return action()
    except AnalysisException as error:
        message = f"{spec.format} source {spec.source} cannot be read: {complaint(error)}"
        raise ConfigError(message, hint="Check --format, --option and the columns.") from error


def _reader(spec: ImportSpec, spark: Any) -> Any:
    strict = _STRICT.get(spec.format.lower(), {})
    reader = spark.read.format(spec.format).options(**(strict | with_driver(spec.options)))
    return reader if spec.schema is None else reader.schema(spec.schema)


def _whole(spec: ImportSpec, spark: Any, *, is_planned: bool = False) -> Any:
    reader = _reader(spec, spark)
    if spec.format == "jdbc":
        return _checked(spec, reading(spec, lambda: reader.option("dbtable", spec.source).load()))
    if is_text(spec.format):
        return _checked(
            spec, reading(spec, lambda: text_frame(spec, [spec.source], None, spark, is_planned=is_planned))
        )
    return _checked(spec, reading(spec, lambda: reader.load(spec.source)))


def _listing(spec: ImportSpec, spark: Any) -> Any:
    """Return a frame with the source's files, if any, and the columns of its directories."""
    if has_files(spec.format):
        return reading(spec, lambda: listing(spark, spec.source, spec.options))
    return _whole(spec, spark)


def _of_files(spec: ImportSpec, files: tuple[str, ...], spark: Any, *, is_planned: bool) -> Any:
    """Return the rows of some of a source's files, with the columns from directory names."""
    # Only these files determine the columns: another attempt must find the same ones, even if new files have arrived.
    reader, first, base = _reader(spec, spark), unquote(files[0]), None
    in_names = [name for name in _columns(spec, _listing(spec, spark)) if f"/{name}=" in first]
    if in_names:
        base = first[: min(first.index(f"/{name}=") for name in in_names)]
        reader = reader.option("basePath", base)
    paths = [escaped(unquote(file)) for file in files]
    if is_text(spec.format):
        return _checked(spec, reading(spec, lambda: text_frame(spec, paths, base, spark, is_planned=is_planned)))
    frame = reading(spec, lambda: reader.load(paths))
    has_contents = set(_columns(spec, frame)) - set(in_names)
    return _checked(spec, frame if has_contents else frame.select())


def _checked(spec: ImportSpec, frame: Any) -> Any:
    """Check that the frame has the required columns, or none at all: then it has no rows."""
    wanted, there = [*spec.key, spec.value, spec.timestamp, spec.incremental], _columns(spec, frame)
    # Objects have fields instead of columns, which `text_frame` has checked.
    if OBJECT in there:
        return frame
    there = [name for name in there if name not in OWN]
    missing = [column for column in wanted if column is not None and column not in there]
    if missing and there:
        message = f"{spec.source} has no column {', '.join(missing)}"
        raise ConfigError(message, hint=f"It has: {', '.join(there)}.")
    return frame


def _columns(spec: ImportSpec, frame: Any) -> list[str]:
    # Over Spark Connect, this is the first access to the source, so errors of reading come from here.
    found: list[str] = reading(spec, lambda: frame.columns)
    return found


def _rows_above(frame: Any, column: str, above: str | None) -> Any:
    if above is None:
        return frame
    kind = frame.schema[column].dataType.simpleString()
    return frame.where(f"`{column}` > {_from_text(above, kind)}")


def _kind(spec: ImportSpec, frame: Any, column: str) -> str:
    kind: str = frame.schema[column].dataType.simpleString()
    if spec.format == "jdbc" and kind.startswith(("string", "char", "varchar")):
        message = f"Column {column} is text: databases and Spark order text differently, and rows would be missed"
        raise ConfigError(message, hint="Import by a column of numbers, dates or times.")
    return kind


def _from_text(text: str, kind: str) -> str:
    """Return SQL that reverses `as_text` for a type."""
    if kind == "timestamp":
        return f"timestamp_micros({int(text)})"
    return f"CAST({_literal(text)} AS {kind})"


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
