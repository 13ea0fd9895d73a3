"""Turns records of a topic, read by the executors, into rows with the columns of the target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from riverrun.errors import DeserializationError
from riverrun.kafka.ranges import read_range
from riverrun.records import OffsetRange
from riverrun.spark.engine.failures import on_executor
from riverrun.spark.tasks.work import admin_here
from riverrun.transfers.exporting.jdbc import TOMBSTONE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from riverrun.records import TopicPartition
    from riverrun.transfers.export_spec import ExportBatch, ExportSpec

_RECORDS_PER_TASK = 100_000
_SCHEMA = "_key binary, value binary, _timestamp timestamp, _partition int, _offset bigint"


def records_of(spec: ExportSpec, batch: ExportBatch, kafka: dict[str, str], spark: Any, counted: Any) -> Any:
    """Return the records of a batch. The executors read them, and count finished offsets if requested.

    Raises:
        DeserializationError: While they are read, if a key or a value that is exported as text is not in UTF-8.
    """
    texts = () if spec.is_binary and spec.schema is None else ("value",) if spec.is_binary else ("_key", "value")
    pieces = [
        (tp, OffsetRange(start, min(start + _RECORDS_PER_TASK, whole.end)))
        for tp, whole in batch.ranges.items()
        for start in range(whole.start, whole.end, _RECORDS_PER_TASK)
    ]

    def process(batches: Iterable[Any]) -> Iterator[Any]:
        for numbers in batches:
            for number in numbers.column(0).to_pylist():
                tp, wanted = pieces[number]
                with on_executor():
                    yield from _read_piece(tp, wanted, kafka, texts)
                if counted is not None:
                    counted.add(wanted.size)

    return spark.range(0, len(pieces), 1, len(pieces)).mapInArrow(process, _SCHEMA)


def _read_piece(
    tp: TopicPartition, wanted: OffsetRange, kafka: dict[str, str], texts: Collection[str]
) -> Iterator[Any]:
    """Read a part of a partition on an executor, in Arrow batches of `_SCHEMA`; some of its columns have to be texts."""
    kinds = (pa.binary(), pa.binary(), pa.timestamp("us", "UTC"), pa.int32(), pa.int64())
    schema = pa.schema(list(zip(("_key", "value", "_timestamp", "_partition", "_offset"), kinds, strict=True)))
    for _, records in read_range(admin_here(kafka), {tp: wanted}):
        columns = (
            [record.key for record in records],
            [record.value for record in records],
            [record.timestamp * 1000 for record in records],
            [tp.partition] * len(records),
            [record.offset for record in records],
        )
        arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
        found = pa.RecordBatch.from_arrays(arrays, schema=schema)
        for name in texts:
            _check_text(tp, found, name)
        yield found


def _check_text(tp: TopicPartition, records: Any, name: str) -> None:
    """Check that a column is text in UTF-8, as other bytes would be replaced.

    Raises:
        DeserializationError: If it is not; with the record's coordinates.
    """
    column = records.column(name)
    try:
        column.cast(pa.string())
    except pa.ArrowInvalid:
        for number, data in enumerate(column.to_pylist()):
            try:
                (data or b"").decode()
            except UnicodeDecodeError as error:
                message = f"A {name.removeprefix('_')} is no text in UTF-8: {error}"
                place = {
                    "topic": tp.topic,
                    "partition": tp.partition,
                    "offset": records.column("_offset")[number].as_py(),
                }
                hint = "Export bytes (--binary)."
                raise DeserializationError(message, hint=hint).at(**place) from error
        raise


def columns_of(spec: ExportSpec, frame: Any) -> Any:
    """Return the columns of the target: those of the value, then key, time and place; for tables, also a mark of deletions."""
    from pyspark.sql import functions as f

    place = ["_key", "_timestamp", "_partition", "_offset"]
    if spec.has_tables:
        frame, place = frame.withColumn(TOMBSTONE, f.col("value").isNull().cast("int")), [*place, TOMBSTONE]
    text = frame.withColumn("value", f.col("value").cast("string")) if spec.schema or not spec.is_binary else frame
    keyed = text if spec.is_binary else text.withColumn("_key", f.col("_key").cast("string"))
    if spec.schema is None:
        return keyed.select("value", *place)
    parsed = keyed.withColumn("value", f.from_json("value", spec.schema, {"mode": "FAILFAST"}))
    return parsed.select("value.*", *place)


def first_malformed(spec: ExportSpec, schema: str, records: Any) -> dict[str, str | int]:
    """Return the position of the first malformed value; searched only after an error."""
    from pyspark.sql import functions as f

    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_corrupt"}
    parsed = f.from_json(f.col("value").cast("string"), f"{schema}, _corrupt string", options)
    misfits = records.where(parsed["_corrupt"].isNotNull()).orderBy("_partition", "_offset")
    for row in misfits.select("_partition", "_offset").take(1):
        return {"topic": spec.topic, "partition": row["_partition"], "offset": row["_offset"]}
    return {"topic": spec.topic}
