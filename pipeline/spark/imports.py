"""Imports: any source that Spark reads into a topic, keyed, exactly once, and only what is new.

An import goes in batches: the files that are new, or the rows whose column has risen above the last value, or everything. A
batch is cut by partition into parts, each written in one transaction together with the note that it is done, as exactly-once
source connectors do with their offsets (KIP-618). A batch that was cut off is done again as it was planned; parts that are done
are skipped. Attempts of a part fence each other through its transactional id.
"""

from __future__ import annotations

import json
import zlib
from array import array
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

import msgspec

from pipeline.errors import ConfigError, RangeError, StreamsError, TaskMigratedError
from pipeline.hosting.clock import SystemClock
from pipeline.hosting.control_topic import ControlTopic
from pipeline.kafka.admin import Admin
from pipeline.kafka.producer import TransactionalProducer
from pipeline.partitioning import partition_for
from pipeline.records import TopicPartition
from pipeline.spark.failures import on_executor, spark_failures
from pipeline.spark.jdbc import with_driver
from pipeline.spark.progress import watched
from pipeline.spark.text_rows import text_row
from pipeline.spark.work import another_attempt_may_help, describe_error, rebuilt_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

IMPORTS_TOPIC = "millrace-imports"
_TRANSACTION_TIMEOUT_MS = 15 * 60 * 1000
_MAX_FILES = 1000
"""Of one batch: their names are kept in one record."""
_SCHEMA = "result string"
_LENIENT = {"csv", "json", "xml"}
"""Formats that would give nulls for what does not fit the schema."""


@dataclass(frozen=True, slots=True)
class ImportSpec:
    """What to import, and how rows become records.

    Args:
        topic: Where to; must exist.
        source: A path (directory, file or pattern), or the table of a `jdbc` source.
        format: Any format Spark reads: parquet, csv, json, jdbc, or a data source's name.
        options: The reader's options.
        schema: The rows' schema as DDL, for formats that do not know it.
        key: Key columns: one is written as text, or as it is if binary; several as a JSON object. Without, there is no key, and
            equal values go to equal partitions.
        value: The column of values, text or binary, where null is a tombstone; None makes a JSON object of each row.
        timestamp: The column of event times: timestamps, dates, or numbers of ms since the epoch; None takes the present.
        incremental: A column that only rises (a number, a date, a time), by which new rows are told from old ones: those above
            the highest value that was imported. Not seen are rows that come later with that value or a lower one (a transaction
            that began before and ended after the import; a second row of the same ms), those without a value, and deletions.
            None imports new files, or everything where there are no files.
        name: Names the import: its progress and its transactions. The topic's name if left out.
        parts: How many parts a batch has, each one transaction; no more than the topic has partitions, whose records come all
            from one part and in the order of the source.
    """

    topic: str
    source: str
    format: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    schema: str | None = None
    key: tuple[str, ...] = ()
    value: str | None = None
    timestamp: str | None = None
    incremental: str | None = None
    name: str = ""
    parts: int = 4

    @property
    def id(self) -> str:
        """What its progress is kept under."""
        return self.name or self.topic


@dataclass(frozen=True, slots=True)
class Batch:
    """What an import does at a time.

    Args:
        number: Counts the batches of the import.
        partitions: Number of partitions of the topic when it was planned.
        parts: Number of its parts.
        files: The files it consists of.
        above: It has the rows whose column is above this value, as text; None for all.
        upto: And not above this one.
        is_done: Whether all of it has been written.
    """

    number: int = 0
    partitions: int = 0
    parts: int = 0
    files: tuple[str, ...] = ()
    above: str | None = None
    upto: str | None = None
    is_done: bool = True


@dataclass(frozen=True, slots=True)
class ImportSummary:
    """What an import did.

    Args:
        read: Rows read from the source; those that an earlier attempt had written are among them.
        written: Records written.
        batches: Batches they came in.
    """

    read: int
    written: int
    batches: int


def run_import(
    spec: ImportSpec, kafka: Mapping[str, str], spark: Any, on_progress: Callable[[int, int], None] | None = None
) -> ImportSummary:
    """Import what is new. Run again after a failure, it completes the batch that was cut off.

    Args:
        spec: What.
        kafka: Client properties.
        spark: A Spark session.
        on_progress: Called again and again with the records written and the rows of the whole batch, from another thread; to
            know these, the rows are counted first.

    Raises:
        ConfigError: If the source cannot be read, has no such column, or a batch that was cut off was begun in another way.
        TopicError: If there is no such topic.
        TaskMigratedError: If the same import runs elsewhere.
        BrokerError: If brokers do not answer.
    """
    admin = Admin(kafka)
    admin.require([spec.topic], f"import {spec.id} writes to")
    partitions = admin.partitions([spec.topic])[spec.topic]
    progress = _Progress(kafka, spec.id)
    read = written = batches = 0
    while True:
        last = progress.last()
        batch = last if not last.is_done else _next_batch(spec, partitions, last, progress, spark)
        if batch is None:
            return ImportSummary(read, written, batches)
        if (batch.upto is None) != (spec.incremental is None):
            message = f"Import {spec.id} was cut off in batch {batch.number}, which was told apart in another way"
            raise ConfigError(
                message, hint="Complete it as it was begun, with or without --incremental; then change it."
            )
        if last.is_done:
            progress.begin(batch)
        rows, records = _write(spec, batch, dict(kafka), spark, on_progress)
        read, written = read + rows, written + records
        progress.finish(batch)
        batches += 1
        if not (batch.files or batch.upto):
            return ImportSummary(read, written, batches)


class _Progress:
    """How far an import is, in a compacted topic: its last batch, the parts of it that are done, and files that are done."""

    def __init__(self, kafka: Mapping[str, str], name: str) -> None:
        self._topic = ControlTopic(kafka, IMPORTS_TOPIC)
        self._name = name

    def last(self) -> Batch:
        """The last batch; number 0 if there was none."""
        found = self._topic.read().get(self._name)
        return Batch() if found is None else msgspec.json.decode(found, type=Batch)

    def files(self) -> set[str]:
        """The files that have been imported."""
        prefix = f"{self._name}/file/"
        return {name.removeprefix(prefix) for name in self._topic.read() if name.startswith(prefix)}

    def is_written(self, batch: Batch, part: int) -> bool:
        """Whether a part of the last batch has been written.

        Raises:
            RangeError: If it is not the last batch any more.
        """
        found = self._topic.read()
        last = found.get(self._name)
        if last is None or msgspec.json.decode(last, type=Batch) != batch:
            message = f"Import {self._name} has gone on without batch {batch.number}: it runs elsewhere as well"
            raise RangeError(message)
        return self.part_name(batch, part) in found

    def part_name(self, batch: Batch, part: int) -> str:
        """What a part's note is kept under."""
        return f"{self._name}/part/{batch.number}/{part}"

    def begin(self, batch: Batch) -> None:
        """Note what is going to be done."""
        self._topic.write({self._name: msgspec.json.encode(asdict(batch))}, lambda: self._check(batch.number - 1))

    def finish(self, batch: Batch) -> None:
        """Note that a batch is done, and forget its parts."""
        values: dict[str, bytes | None] = {self._name: msgspec.json.encode(asdict(replace(batch, is_done=True)))}
        values |= {f"{self._name}/file/{file}": b"{}" for file in batch.files}
        values |= dict.fromkeys(self.part_name(batch, part) for part in range(batch.parts))
        self._topic.write(values, lambda: self._check(batch.number))

    def _check(self, number: int) -> None:
        found = self.last().number
        if found != number:
            message = f"Import {self._name} is at batch {found}, not {number}: it runs elsewhere as well"
            raise TaskMigratedError(message)


def _next_batch(spec: ImportSpec, partitions: int, last: Batch, progress: _Progress, spark: Any) -> Batch | None:
    """What is new since the last batch; None if nothing is."""
    frame = _read(spec, spark, None)
    planned = Batch(last.number + 1, partitions, min(spec.parts, partitions), is_done=False)
    if spec.incremental is not None:
        new = _rows_above(frame, spec.incremental, last.upto)
        highest = _as_text(f"max(`{spec.incremental}`)", _kind(spec, frame, spec.incremental))
        upto = _reading(spec, lambda: new.selectExpr(f"{highest} AS upto").first().upto)
        return None if upto is None else replace(planned, above=last.upto, upto=upto)
    files = _reading(spec, frame.inputFiles)
    if files:
        new_files = sorted(set(files) - progress.files())[:_MAX_FILES]
        return replace(planned, files=tuple(new_files)) if new_files else None
    return planned


def _write(
    spec: ImportSpec,
    batch: Batch,
    kafka: dict[str, str],
    spark: Any,
    on_progress: Callable[[int, int], None] | None,
) -> tuple[int, int]:
    """Write a batch; gives the number of rows, and that of records written."""
    source = _read(spec, spark, batch)
    rows = _records(spec, source, batch)

    def process(batches: Iterable[Any]) -> Iterator[Any]:
        numbered = (row for rows in batches for row in rows.to_pylist())
        for part, records in groupby(numbered, key=lambda row: int(row["part"])):
            with on_executor():
                result = _attempt(spec, batch, part, records, kafka)
            yield text_row("result", result)

    everything = 0 if on_progress is None else _reading(spec, source.count)
    with watched(_written_since_now(spec.topic, kafka), everything, on_progress):
        results = [json.loads(row.result) for row in _reading(spec, rows.mapInArrow(process, _SCHEMA).collect)]
    for result in results:
        if "error" in result:
            raise rebuilt_error(result["error"])
    return sum(result["read"] for result in results), sum(result["written"] for result in results)


def _written_since_now(topic: str, kafka: dict[str, str]) -> Callable[[], int]:
    """What says how many records a topic has got, committed or not; an estimate if others write as well."""
    admin = Admin(kafka)
    tps = [TopicPartition(topic, number) for number in range(admin.partitions([topic])[topic])]
    before = sum(admin.written_offsets(tps).values())
    return lambda: sum(admin.written_offsets(tps).values()) - before


def _attempt(
    spec: ImportSpec, batch: Batch, part: int, records: Iterable[dict[str, Any]], kafka: dict[str, str]
) -> str:
    """One attempt at a part. What another attempt may mend is raised, so that Spark tries again."""
    try:
        read, written = _write_part(spec, batch, part, records, kafka)
        return json.dumps({"read": read, "written": written})
    except StreamsError as error:
        if another_attempt_may_help(error):
            raise
        return json.dumps({"error": describe_error(error)})


def _write_part(
    spec: ImportSpec, batch: Batch, part: int, records: Iterable[dict[str, Any]], kafka: dict[str, str]
) -> tuple[int, int]:
    """Take the part over, and write it unless that is done; gives the number of rows, and that of records written."""
    progress, now_ms = _Progress(kafka, spec.id), SystemClock().now_ms()
    transactional_id = f"millrace-import-{spec.id}-{part}"
    producer = TransactionalProducer(kafka, transactional_id, transaction_timeout_ms=_TRANSACTION_TIMEOUT_MS)
    try:
        producer.init()
        if progress.is_written(batch, part):
            return sum(1 for _ in records), 0
        written = 0
        for row in records:
            time_ms = now_ms if row["timestamp"] is None else row["timestamp"]
            producer.send(spec.topic, row["key"], row["value"], time_ms, (), row["partition"])
            written += 1
        producer.send(IMPORTS_TOPIC, progress.part_name(batch, part).encode(), b"{}", now_ms, (), 0)
        producer.commit({}, "")
        return written, written
    finally:
        producer.close()


def _read(spec: ImportSpec, spark: Any, batch: Batch | None) -> Any:
    """The source's rows: all, or those of a batch."""
    strict = {"mode": "FAILFAST"} if spec.format in _LENIENT else {}
    reader = spark.read.format(spec.format).options(**(strict | with_driver(spec.options)))
    if spec.schema is not None:
        reader = reader.schema(spec.schema)
    if spec.format == "jdbc":
        frame = _reading(spec, lambda: reader.option("dbtable", spec.source).load())
    else:
        frame = _reading(spec, lambda: reader.load(spec.source))
    wanted = [*spec.key, spec.value, spec.timestamp, spec.incremental]
    missing = [column for column in wanted if column is not None and column not in frame.columns]
    if missing:
        message = f"{spec.source} has no column {', '.join(missing)}"
        raise ConfigError(message, hint=f"It has: {', '.join(frame.columns)}.")
    if batch is not None and batch.files:
        return _of_files(spec, reader, batch.files, frame.columns)
    if batch is None or batch.upto is None or spec.incremental is None:
        return frame
    upto = f"`{spec.incremental}` <= {_from_text(batch.upto, _kind(spec, frame, spec.incremental))}"
    return _rows_above(frame, spec.incremental, batch.above).where(upto)


def _of_files(spec: ImportSpec, reader: Any, files: tuple[str, ...], columns: list[str]) -> Any:
    """The rows of some of a source's files, with the columns that the names of directories stand for."""
    frame = _reading(spec, lambda: reader.load(list(files)))
    if set(frame.columns) != set(columns):
        frame = _reading(spec, lambda: reader.option("basePath", spec.source).load(list(files)))
    return frame.select(*(f"`{column}`" for column in columns))


def _rows_above(frame: Any, column: str, above: str | None) -> Any:
    if above is None:
        return frame
    kind = frame.schema[column].dataType.simpleString()
    return frame.where(f"`{column}` > {_from_text(above, kind)}")


def _kind(spec: ImportSpec, frame: Any, column: str) -> str:
    """The type of the column that rises.

    Raises:
        ConfigError: If it is text of a database, which may be ordered otherwise there than here.
    """
    kind: str = frame.schema[column].dataType.simpleString()
    if spec.format == "jdbc" and kind.startswith(("string", "char", "varchar")):
        message = f"Column {column} is text: its order is the database's, not Spark's, and rows would be missed"
        raise ConfigError(message, hint="Import by a column of numbers, dates or times.")
    return kind


def _as_text(value: str, kind: str) -> str:
    """SQL that writes a value down; times as microseconds, which mean the same in every time zone."""
    return f"CAST({f'unix_micros({value})' if kind == 'timestamp' else value} AS STRING)"


def _from_text(text: str, kind: str) -> str:
    """SQL that gives it back."""
    if kind == "timestamp":
        return f"timestamp_micros({int(text)})"
    return f"CAST({_literal(text)} AS {kind})"


def _records(spec: ImportSpec, frame: Any, batch: Batch) -> Any:
    """Rows as records: part, partition, key, value and timestamp (ms), those of a part together, in the order of the source."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - an engine loads where it is used
    from pyspark.sql.types import IntegerType, StructField, StructType  # noqa: PLC0415 - as above

    as_json = {"ignoreNullFields": "false"}
    names = frame.columns
    key = f.lit(None)
    if len(spec.key) == 1:
        key = _bytes(frame, spec.key[0])
    elif spec.key:
        key = f.to_json(f.struct(*(f.col(f"`{name}`") for name in sorted(spec.key))), as_json).cast("binary")
    if spec.value is not None:
        value = _bytes(frame, spec.value)
    else:
        value = f.to_json(f.struct(*(f.col(f"`{name}`") for name in names)), as_json).cast("binary")
    order = f.lit(0) if spec.incremental is None else f.col(f"`{spec.incremental}`")
    records = frame.select(
        key.cast("binary").alias("key"),
        value.alias("value"),
        _time(frame, spec.timestamp).alias("timestamp"),
        order.alias("order"),
        f.input_file_name().alias("file"),
        f.monotonically_increasing_id().alias("row"),
    )
    with_place = StructType([*records.schema, StructField("partition", IntegerType())])
    placed = records.mapInArrow(_placing(batch.partitions), with_place)
    in_parts = placed.withColumn("part", f.col("partition") % batch.parts)
    sorted_parts = in_parts.repartition(batch.parts, "part").sortWithinPartitions("part", "order", "file", "row")
    return sorted_parts.select("part", "partition", "key", "value", "timestamp")


def _placing(partitions: int) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """What adds the partition to rows: that of the key as producers choose it; of the value where there is none.

    The client library would spread records without keys at random, and differently at another attempt.
    """

    def place(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa  # noqa: PLC0415 - runs on executors

        for rows in batches:
            keys, values = rows.column("key").to_pylist(), rows.column("value").to_pylist()
            chosen = array(
                "i",
                (
                    partition_for(key, partitions) if key is not None else zlib.crc32(value or b"") % partitions
                    for key, value in zip(keys, values, strict=True)
                ),
            )
            column = pa.Array.from_buffers(pa.int32(), len(chosen), [None, pa.py_buffer(chosen)])
            yield rows.append_column("partition", column)

    return place


def _bytes(frame: Any, column: str) -> Any:
    """A column's bytes, or its text in UTF-8."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - as above

    found = f.col(f"`{column}`")
    return found if frame.schema[column].dataType.simpleString() == "binary" else found.cast("string").cast("binary")


def _time(frame: Any, column: str | None) -> Any:
    """A column as ms since the epoch."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - as above

    if column is None:
        return f.lit(None).cast("long")
    found = f.col(f"`{column}`")
    if frame.schema[column].dataType.simpleString() in {"int", "bigint", "smallint"}:
        return found.cast("long")
    return f.unix_millis(found.cast("timestamp"))


def _literal(text: str) -> str:
    """A SQL string."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _reading(spec: ImportSpec, action: Callable[[], Any]) -> Any:
    """Do something that makes Spark look at the source.

    Raises:
        ConfigError: If it cannot be read.
    """
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - as above

    try:
        with spark_failures(f"import {spec.format} source {spec.source}"):
            return action()
    except AnalysisException as error:
        message = f"{spec.format} source {spec.source} cannot be read: {str(error).splitlines()[0]}"
        raise ConfigError(message, hint="Are --format, --option and the columns right?") from error
