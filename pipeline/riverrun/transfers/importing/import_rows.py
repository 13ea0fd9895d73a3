"""Turns rows of a source into records: keys, values, times and partitions, in parts."""

from __future__ import annotations

import zlib
from array import array
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from riverrun.errors import DeserializationError
from riverrun.partitioning import partition_for
from riverrun.spark.engine.failures import on_executor
from riverrun.transfers.importing.import_source import as_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from riverrun.transfers.import_spec import ImportSpec
    from riverrun.transfers.importing.import_progress import Batch

_RISING = "rising"
_SHOWN_BYTES = 200
"""Maximum number of characters of a refused row to show."""
_JSON = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Options of JSON: all columns, and times in full, as Spark would cut them to ms."""


def records_of(spec: ImportSpec, frame: Any, batch: Batch) -> Any:
    """Return rows as records: part, partition, key, value and timestamp (ms), by part, in the order of the source.

    Args:
        spec: The import.
        frame: The rows.
        batch: Their batch.

    Raises:
        DeserializationError: While they are read, if a row has no event time, or one before 1970.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import IntegerType, StructField, StructType

    names = frame.columns
    key = f.lit(None)
    if len(spec.key) == 1:
        key = _bytes(frame, spec.key[0])
    elif spec.key:
        key = f.to_json(f.struct(*(f.col(f"`{name}`") for name in sorted(spec.key))), _JSON).cast("binary")
    if spec.value is not None:
        value = _bytes(frame, spec.value)
    else:
        value = f.to_json(f.struct(*(f.col(f"`{name}`") for name in names)), _JSON).cast("binary")
    order = f.lit(0) if spec.incremental is None else f.col(f"`{spec.incremental}`")
    rising = [] if spec.incremental is None else [_rising(frame, spec.incremental).alias(_RISING)]
    records = frame.select(
        *rising,
        key.cast("binary").alias("key"),
        value.alias("value"),
        _time(frame, spec.timestamp).alias("timestamp"),
        order.alias("order"),
        f.input_file_name().alias("file"),
        f.monotonically_increasing_id().alias("row"),
    )
    with_place = StructType([*records.schema, StructField("partition", IntegerType())])
    placed = records.mapInArrow(_placing(spec, batch.partitions), with_place)
    in_parts = placed.withColumn("part", f.col("partition") % batch.parts)
    sorted_parts = in_parts.repartition(batch.parts, "part").sortWithinPartitions("part", "order", "file", "row")
    return sorted_parts.select("part", "partition", "key", "value", "timestamp")


def _placing(spec: ImportSpec, partitions: int) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return a function that checks the times of rows before any is written, and adds their partition.

    The key determines the partition, as in producers. Without a key, the incremental column does, or else the value.
    The client library would spread rows randomly, and differently in each attempt; other columns of a table may have
    changed by then.
    """
    unkeyed = "value" if spec.incremental is None else _RISING

    def place(batches: Iterable[Any]) -> Iterator[Any]:
        for rows in batches:
            if spec.timestamp is not None:
                with on_executor():
                    _check_times(spec, rows)
            keys, others = rows.column("key").to_pylist(), rows.column(unkeyed).to_pylist()
            chosen = array(
                "i",
                (
                    partition_for(key, partitions) if key is not None else zlib.crc32(other or b"") % partitions
                    for key, other in zip(keys, others, strict=True)
                ),
            )
            column = pa.Array.from_buffers(pa.int32(), len(chosen), [None, pa.py_buffer(chosen)])
            yield rows.append_column("partition", column)

    return place


def _check_times(spec: ImportSpec, rows: Any) -> None:
    """Check that all rows have event times.

    Raises:
        DeserializationError: If a row has none although it must, or one before 1970; describes the row.
    """
    times = rows.column("timestamp")
    at = pc.index(pc.fill_null(pc.less(times, 0), spec.missing_timestamp == "fail"), True).as_py()
    if at < 0:
        return
    row, time_ms = rows.slice(at, 1).to_pylist()[0], times[at].as_py()
    what = "has no event time" if time_ms is None else f"has an event time before 1970 ({time_ms} ms)"
    place = {"key": row["key"], "value": row["value"]} if row["key"] is None else {"key": row["key"]}
    shown = {name: data[:_SHOWN_BYTES].decode(errors="replace") for name, data in place.items() if data is not None}
    message = f"A row of {spec.source} {what} in column {spec.timestamp}"
    hint = "Remove such rows from the source, or use the time of the import for them: --missing-timestamp now."
    raise DeserializationError(
        message, hint=hint if time_ms is None else None, **({"file": row["file"]} if row["file"] else {}), **shown
    )


def _bytes(frame: Any, column: str) -> Any:
    """Return a column's bytes, or its text in UTF-8."""
    from pyspark.sql import functions as f

    found = f.col(f"`{column}`")
    return found if frame.schema[column].dataType.simpleString() == "binary" else found.cast("string").cast("binary")


def _rising(frame: Any, column: str) -> Any:
    """Return the bytes of the incremental column, identical in every attempt."""
    from pyspark.sql import functions as f

    return f.expr(as_text(f"`{column}`", frame.schema[column].dataType.simpleString())).cast("binary")


def _time(frame: Any, column: str | None) -> Any:
    """Return a column as ms since the epoch: numbers unchanged, whatever type a database has for them."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import NumericType

    if column is None:
        return f.lit(None).cast("long")
    found = f.col(f"`{column}`")
    if isinstance(frame.schema[column].dataType, NumericType):
        return found.cast("long")
    return f.unix_millis(found.cast("timestamp"))
