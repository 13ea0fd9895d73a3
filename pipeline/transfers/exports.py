"""Exports: the records of a topic into any target that Spark writes, from where the last export ended.

Each export writes one range of offsets into a directory of its own, `batch=<number>`; one that was cut off is done again with
the same range and the same directory, which is overwritten. So the target has every record once, however often exports fail.
Where there are no directories (`jdbc`), a batch is written in one transaction together with the note that it is
(`pipeline.transfers.jdbc`).
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from pipeline.errors import ConfigError, DeserializationError, RangeError
from pipeline.hosting.control_topic import ControlTopic
from pipeline.kafka.admin import Admin
from pipeline.kafka.ranges import check_ranges, read_range
from pipeline.records import OffsetRange, TopicPartition
from pipeline.spark.databases import has_jvm
from pipeline.spark.failures import on_executor, spark_failures
from pipeline.spark.progress import watched
from pipeline.spark.ranges import RunRange
from pipeline.transfers.files import escaped, has_files, listing
from pipeline.transfers.jdbc import TOMBSTONE, JdbcTarget, Written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

EXPORTS_TOPIC = "millrace-exports"
_RECORDS_PER_TASK = 100_000
_SCHEMA = "_key binary, value binary, _timestamp timestamp, _partition int, _offset bigint"
_MALFORMED = "MALFORMED_RECORD_IN_PARSING"
"""How Spark names values that do not fit."""
_TABLES = "jdbc"
"""A format whose targets are tables, not directories."""


@dataclass(frozen=True, slots=True)
class ExportSpec:
    """What to export, and as what.

    Args:
        topic: Where from.
        target: A directory, or the table of a `jdbc` target.
        format: Any format Spark writes: parquet, csv, json, jdbc, or a data source's name.
        options: The writer's options.
        schema: Schema of JSON values as DDL: each field becomes a column. None gives one column `value`.
        is_binary: Whether keys, and values without a schema, are bytes rather than text.
        name: Names the export: its progress. The topic's name if left out; then another target is refused, as it would get what
            is new only.
        key: Columns of a `jdbc` target by which rows replace others (PostgreSQL): of several records the last counts, and with
            `_key`, the record's key, one without a value deletes. None: rows are only added.
    """

    topic: str
    target: str
    format: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    schema: str | None = None
    is_binary: bool = False
    name: str = ""
    key: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """What its progress is kept under."""
        return self.name or self.topic

    @property
    def place(self) -> str:
        """The target as it is told from others. Not by a database's address: the same one may be had at several."""
        return self.target.rstrip("/")


@dataclass(frozen=True, slots=True)
class ExportBatch:
    """One range of offsets.

    Args:
        number: Counts the batches of the export; names the directory.
        range: The range, as text.
        is_done: Whether it has been written.
        topic_id: What the brokers call the topic: one that is created anew has another id, and offsets that mean other records.
        target: Where to.
    """

    number: int = 0
    range: str = ""
    is_done: bool = True
    topic_id: str = ""
    target: str = ""

    @property
    def ranges(self) -> Mapping[TopicPartition, OffsetRange]:
        """The range, by partition."""
        return RunRange.parse(self.range).ranges


@dataclass(frozen=True, slots=True)
class ExportSummary:
    """What an export did.

    Args:
        batch: The batch that was written last; None if nothing was new.
        read: Records read from the topic.
        written: Rows that were added to the target, replaced or deleted.
    """

    batch: ExportBatch | None
    read: int = 0
    written: int = 0


def run_export(
    spec: ExportSpec, kafka: Mapping[str, str], spark: Any, on_progress: Callable[[int, int], None] | None = None
) -> ExportSummary:
    """Export what has been written to the topic since the last export; first what a failed one left.

    Args:
        spec: What.
        kafka: Client properties.
        spark: A Spark session.
        on_progress: Called again and again with the offsets read and those of the whole batch, from another thread. Never over
            Spark Connect, which has no accumulators.

    Raises:
        TopicError: If there is no such topic.
        RangeError: If records that have not been exported are gone, the topic was created anew, or the same export runs
            elsewhere.
        ConfigError: If the target cannot be written, there is no such way to write it, it is another one than before of an
            export without a name of its own, or files of others lie where a batch is to be.
        DeserializationError: If a value does not fit the schema.
        BrokerError: If brokers do not answer.
    """
    admin, topic = Admin(kafka), ControlTopic(kafka, EXPORTS_TOPIC)
    _check_spec(spec)
    admin.require([spec.topic], f"export {spec.id} reads")
    last = _last(topic, spec.id)
    _check_same_topic(spec, last, admin)
    _check_same_target(spec, last)
    done = []
    if not last.is_done:
        check_ranges(admin, last.ranges)
        done.append(_write(spec, last, kafka, spark, topic, on_progress))
        last = done[-1].batch or last
    new = _next_batch(spec, last, admin)
    if new is not None:
        _check_free(spec, new, spark)
        topic.write({spec.id: msgspec.json.encode(asdict(new))}, lambda: _check(topic, spec.id, last))
        done.append(_write(spec, new, kafka, spark, topic, on_progress))
    batch = done[-1].batch if done else None
    return ExportSummary(batch, sum(each.read for each in done), sum(each.written for each in done))


def _check_spec(spec: ExportSpec) -> None:
    if spec.format == _TABLES:
        JdbcTarget(spec.target, spec.options, spec.key).check()
    elif spec.key:
        message = f"Format {spec.format} has no rows that could be replaced by key"
        raise ConfigError(message, hint="--key is for --format jdbc.")


def _last(topic: ControlTopic, name: str) -> ExportBatch:
    found = topic.read().get(name)
    return ExportBatch() if found is None else msgspec.json.decode(found, type=ExportBatch)


def _check(topic: ControlTopic, name: str, expected: ExportBatch) -> None:
    found = _last(topic, name)
    if found != expected:
        message = f"Export {name} is at batch {found.number} now, not {expected.number}: it runs elsewhere as well"
        raise RangeError(message, hint="Wait for that one, then export again.")


def _check_same_topic(spec: ExportSpec, last: ExportBatch, admin: Admin) -> None:
    if last.number and last.topic_id != admin.topic_ids([spec.topic])[spec.topic]:
        message = f"Topic {spec.topic} was created anew since batch {last.number} of export {spec.id} was begun"
        hint = "Its offsets are those of other records now. Export it under another name (--name), to another target."
        raise RangeError(message, hint=hint)


def _check_same_target(spec: ExportSpec, last: ExportBatch) -> None:
    """A new target would get what is new only, which nobody expects who has not said that this is the same export."""
    if last.number and last.target != spec.place and not spec.name:
        message = f"Export {spec.id} has gone to {last.target} so far, up to batch {last.number}, not to {spec.place}"
        hint = f"A name of its own (--name) exports everything there; --name {spec.id} goes on there with what is new."
        raise ConfigError(message, hint=hint)


def _check_free(spec: ExportSpec, batch: ExportBatch, spark: Any) -> None:
    """What has not been begun has not written anything: files there are somebody else's, and would be overwritten."""
    from pyspark.errors import AnalysisException

    if not has_files(spec.format):
        return
    directory = _directory(spec, batch)
    try:
        with spark_failures(f"look into {directory}"):
            found = listing(spark, escaped(directory), {"recursiveFileLookup": "true"}).inputFiles()
    except AnalysisException:  # there is no such directory
        return
    if found:
        message = f"Export {spec.id} has not written {directory} yet, but there are files: {found[0]}"
        raise ConfigError(message, hint="Give each export a target of its own.")


def _directory(spec: ExportSpec, batch: ExportBatch) -> str:
    return f"{spec.target.rstrip('/')}/batch={batch.number:08d}"


def _next_batch(spec: ExportSpec, last: ExportBatch, admin: Admin) -> ExportBatch | None:
    tps = [TopicPartition(spec.topic, n) for n in range(admin.partitions([spec.topic])[spec.topic])]
    first, ends = admin.beginning_offsets(tps), admin.end_offsets(tps)
    before = last.ranges
    ranges = {}
    for tp in tps:
        start = before[tp].end if tp in before else first[tp]
        ranges[tp] = OffsetRange(start, max(start, ends[tp]))
    check_ranges(admin, ranges)
    chosen = RunRange(ranges)
    if not chosen.size:
        return None
    topic_id = admin.topic_ids([spec.topic])[spec.topic]
    return ExportBatch(last.number + 1, str(chosen), is_done=False, topic_id=topic_id, target=spec.place)


def _write(
    spec: ExportSpec,
    batch: ExportBatch,
    kafka: Mapping[str, str],
    spark: Any,
    topic: ControlTopic,
    on_progress: Callable[[int, int], None] | None,
) -> ExportSummary:
    """Write a batch, and note that it is done."""
    on_progress = on_progress if has_jvm(spark) else None  # accumulators are the driver's
    counted = None if on_progress is None else spark.sparkContext.accumulator(0)
    records = _frame(batch, dict(kafka), spark, counted)
    offsets = RunRange(batch.ranges).size
    with watched(lambda: counted.value if counted else 0, offsets, on_progress), _told(spec, batch, records):
        written = _into_table(spec, batch, records) if spec.format == _TABLES else _into_files(spec, batch, records)
    done = replace(batch, is_done=True)
    topic.write({spec.id: msgspec.json.encode(asdict(done))}, lambda: _check(topic, spec.id, batch))
    return ExportSummary(done, *written)


def _into_files(spec: ExportSpec, batch: ExportBatch, records: Any) -> Written:
    """Write the directory of a batch, whatever is in it."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    observed = Observation()
    frame = _columns(spec, records.observe(observed, f.count(f.lit(1)).alias("rows")))
    writer = frame.write.format(spec.format).options(**spec.options)
    writer.mode("overwrite").save(_directory(spec, batch))
    rows = observed.get["rows"]
    return Written(rows, rows)


def _into_table(spec: ExportSpec, batch: ExportBatch, records: Any) -> Written:
    """Write a batch to a table, unless it is there."""
    target = JdbcTarget(spec.target, spec.options, spec.key)
    if target.has(records.sparkSession, spec.id, batch.number, batch.range):
        return Written(0, 0)
    return target.write(_columns(spec, records), spec.id, batch.number, batch.range)


@contextmanager
def _told(spec: ExportSpec, batch: ExportBatch, records: Any) -> Iterator[None]:
    """Within this, what goes wrong with a batch is told in terms of the export.

    Raises:
        ConfigError: If the target cannot be written like that.
        DeserializationError: If a value does not fit the schema; with its coordinates.
    """
    from pyspark.errors import AnalysisException

    with spark_failures(f"write batch {batch.number} of {spec.topic} to {spec.format} target {spec.target}"):
        try:
            yield
        except AnalysisException as error:
            message = f"{spec.format} target {spec.target} cannot be written: {str(error).splitlines()[0]}"
            raise ConfigError(message, hint="Are --format, --option and --schema right?") from error
        except Exception as error:  # from the JVM it comes as one of several
            if _MALFORMED not in str(error) or spec.schema is None:
                raise
            message = f"A value does not fit the schema {spec.schema}"
            hint = "Without --schema, values are exported as they are."
            where = _first_malformed(spec, spec.schema, records)
            raise DeserializationError(message, hint=hint).at(**where) from error


def _first_malformed(spec: ExportSpec, schema: str, records: Any) -> dict[str, str | int]:
    """Where the first value lies that does not fit: looked for only when one has been met."""
    from pyspark.sql import functions as f

    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_corrupt"}
    parsed = f.from_json(f.col("value").cast("string"), f"{schema}, _corrupt string", options)
    misfits = records.where(parsed["_corrupt"].isNotNull()).orderBy("_partition", "_offset")
    for row in misfits.select("_partition", "_offset").take(1):
        return {"topic": spec.topic, "partition": row["_partition"], "offset": row["_offset"]}
    return {"topic": spec.topic}


def _frame(batch: ExportBatch, kafka: dict[str, str], spark: Any, counted: Any) -> Any:
    """The records of a batch, read by the executors themselves, which count offsets that are done if somebody wants to know."""
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
                    yield from _read_piece(tp, wanted, kafka)
                if counted is not None:
                    counted.add(wanted.size)

    return spark.range(0, len(pieces), 1, len(pieces)).mapInArrow(process, _SCHEMA)


def _read_piece(tp: TopicPartition, wanted: OffsetRange, kafka: dict[str, str]) -> Iterator[Any]:
    """Runs on executors: a part of a partition, in Arrow batches of `_SCHEMA`."""
    kinds = (pa.binary(), pa.binary(), pa.timestamp("us", "UTC"), pa.int32(), pa.int64())
    schema = pa.schema(list(zip(("_key", "value", "_timestamp", "_partition", "_offset"), kinds, strict=True)))
    for _, records in read_range(Admin(kafka), kafka, {tp: wanted}):
        columns = (
            [record.key for record in records],
            [record.value for record in records],
            [record.timestamp * 1000 for record in records],
            [tp.partition] * len(records),
            [record.offset for record in records],
        )
        arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _columns(spec: ExportSpec, frame: Any) -> Any:
    """The columns of the target: those of the value first, then key, time and place; for tables, also what is a deletion."""
    from pyspark.sql import functions as f

    place = ["_key", "_timestamp", "_partition", "_offset"]
    if spec.format == _TABLES:
        frame, place = frame.withColumn(TOMBSTONE, f.col("value").isNull().cast("int")), [*place, TOMBSTONE]
    text = frame.withColumn("value", f.col("value").cast("string")) if spec.schema or not spec.is_binary else frame
    keyed = text if spec.is_binary else text.withColumn("_key", f.col("_key").cast("string"))
    if spec.schema is None:
        return keyed.select("value", *place)
    parsed = keyed.withColumn("value", f.from_json("value", spec.schema, {"mode": "FAILFAST"}))
    return parsed.select("value.*", *place)
