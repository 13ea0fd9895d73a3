"""Exports: the records of a topic into any target that Spark writes, from where the last export ended.

Each export writes one range of offsets into a directory of its own, `batch=<number>`; one that was cut off is done again with
the same range and the same directory, which is overwritten. So the target has every record once, however often exports fail.
Where there are no directories (`jdbc`), rows are appended, and may come twice after a failure: partition and offset tell.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec

from pipeline.errors import ConfigError, DeserializationError, RangeError
from pipeline.hosting.control_topic import ControlTopic
from pipeline.kafka.admin import Admin
from pipeline.kafka.ranges import check_ranges, read_range
from pipeline.records import OffsetRange, TopicPartition
from pipeline.spark.ranges import RunRange

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

EXPORTS_TOPIC = "millrace-exports"
_RECORDS_PER_TASK = 500_000
_SCHEMA = "_key binary, value binary, _timestamp timestamp, _partition int, _offset bigint"
_MALFORMED = "MALFORMED_RECORD_IN_PARSING"
"""How Spark names values that do not fit."""
_WHOLE = "jdbc"
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
        name: Names the export: its progress. The topic's name if left out.
    """

    topic: str
    target: str
    format: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    schema: str | None = None
    is_binary: bool = False
    name: str = ""

    @property
    def id(self) -> str:
        """What its progress is kept under."""
        return self.name or self.topic


@dataclass(frozen=True, slots=True)
class ExportBatch:
    """One range of offsets.

    Args:
        number: Counts the batches of the export; names the directory.
        range: The range, as text.
        is_done: Whether it has been written.
    """

    number: int = 0
    range: str = ""
    is_done: bool = True

    @property
    def ranges(self) -> Mapping[TopicPartition, OffsetRange]:
        """The range, by partition."""
        return RunRange.parse(self.range).ranges


def run_export(spec: ExportSpec, kafka: Mapping[str, str], spark: Any) -> ExportBatch | None:
    """Export what has been written to the topic since the last export; first what a failed one left. Gives the last batch.

    Args:
        spec: What.
        kafka: Client properties.
        spark: A Spark session.

    Returns:
        The batch that was written last, None if there was nothing.

    Raises:
        TopicError: If there is no such topic.
        RangeError: If records that have not been exported are gone, or the same export runs elsewhere.
        ConfigError: If the target cannot be written.
        DeserializationError: If a value does not fit the schema.
        BrokerError: If brokers do not answer.
    """
    admin, topic = Admin(kafka), ControlTopic(kafka, EXPORTS_TOPIC)
    admin.require([spec.topic], f"export {spec.id} reads")
    last = _last(topic, spec.id)
    written = None
    if not last.is_done:
        written = last = _write(spec, last, kafka, spark, topic)
    new = _next_batch(spec, last, admin)
    if new is not None:
        topic.write({spec.id: msgspec.json.encode(asdict(new))}, lambda: _check(topic, spec.id, last))
        written = _write(spec, new, kafka, spark, topic)
    return written


def _last(topic: ControlTopic, name: str) -> ExportBatch:
    found = topic.read().get(name)
    return ExportBatch() if found is None else msgspec.json.decode(found, type=ExportBatch)


def _check(topic: ControlTopic, name: str, expected: ExportBatch) -> None:
    found = _last(topic, name)
    if found != expected:
        message = f"Export {name} is at batch {found.number} now, not {expected.number}: it runs elsewhere as well"
        raise RangeError(message, hint="Wait for that one, then export again.")


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
    return ExportBatch(last.number + 1, str(chosen), is_done=False) if chosen.size else None


def _write(
    spec: ExportSpec, batch: ExportBatch, kafka: Mapping[str, str], spark: Any, topic: ControlTopic
) -> ExportBatch:
    """Write a batch, and note that it is done."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - an engine loads where it is used

    frame = _columns(spec, _frame(batch, dict(kafka), spark))
    writer = frame.write.format(spec.format).options(**spec.options)
    try:
        if spec.format == _WHOLE:
            writer.mode("append").option("dbtable", spec.target).save()
        else:
            writer.mode("overwrite").save(f"{spec.target.rstrip('/')}/batch={batch.number:08d}")
    except AnalysisException as error:
        message = f"{spec.format} target {spec.target} cannot be written: {str(error).splitlines()[0]}"
        raise ConfigError(message, hint="Are --format, --option and --schema right?") from error
    except Exception as error:  # from the JVM it comes as one of several
        if _MALFORMED not in str(error):
            raise
        message = f"A value of {spec.topic} does not fit the schema {spec.schema}"
        raise DeserializationError(message, hint="Without --schema, values are exported as they are.") from error
    done = replace(batch, is_done=True)
    topic.write({spec.id: msgspec.json.encode(asdict(done))}, lambda: _check(topic, spec.id, batch))
    return done


def _frame(batch: ExportBatch, kafka: dict[str, str], spark: Any) -> Any:
    """The records of a batch, read by the executors themselves."""
    pieces = [
        (tp, OffsetRange(start, min(start + _RECORDS_PER_TASK, whole.end)))
        for tp, whole in batch.ranges.items()
        for start in range(whole.start, whole.end, _RECORDS_PER_TASK)
    ]

    def process(batches: Iterable[Any]) -> Iterator[Any]:
        for numbers in batches:
            for number in numbers.column(0).to_pylist():
                tp, wanted = pieces[number]
                yield from _read_piece(tp, wanted, kafka)

    return spark.range(0, len(pieces), 1, len(pieces)).mapInArrow(process, _SCHEMA)


def _read_piece(tp: TopicPartition, wanted: OffsetRange, kafka: dict[str, str]) -> Iterator[Any]:
    """Runs on executors: a part of a partition, in Arrow batches of `_SCHEMA`."""
    import pyarrow as pa  # noqa: PLC0415 - runs on executors

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
    """The columns of the target: those of the value first, then key, time and place of the record."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - as above

    text = frame.withColumn("value", f.col("value").cast("string")) if spec.schema or not spec.is_binary else frame
    keyed = text if spec.is_binary else text.withColumn("_key", f.col("_key").cast("string"))
    place = ("_key", "_timestamp", "_partition", "_offset")
    if spec.schema is None:
        return keyed.select("value", *place)
    parsed = keyed.withColumn("value", f.from_json("value", spec.schema, {"mode": "FAILFAST"}))
    return parsed.select("value.*", *place)
