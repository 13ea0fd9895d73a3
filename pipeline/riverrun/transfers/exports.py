"""Exports the records of a topic to any target that Spark can write, from the end of the previous export.

Each export writes one range of offsets into its own directory, `batch=<number>`. An interrupted export is repeated with
the same range, and overwrites its directory. So the target has every record once, however often exports fail. For
targets without directories (`jdbc`), one transaction writes a batch together with the progress
(`riverrun.transfers.jdbc`).
"""

from __future__ import annotations

import uuid
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from riverrun.decoders import UnreadableError, foreign_decoder
from riverrun.errors import ConfigError, DeserializationError, RangeError
from riverrun.hosting.control_topic import ControlTopic
from riverrun.hosting.progress import is_followed, polling_progress
from riverrun.kafka.ranges import check_ranges, read_range
from riverrun.kafka.tombstones import whole_now, why_incomplete
from riverrun.records import OffsetRange, TopicPartition, Whole
from riverrun.serde.exact_values import micros
from riverrun.spark.columns import TIME, FrameColumn, array
from riverrun.spark.databases import has_jvm, refusal
from riverrun.spark.failures import complaint, on_executor, spark_failures
from riverrun.spark.formats import escaped, has_files, listing, named, remove, saved, writer_options
from riverrun.spark.ranges import RunRange
from riverrun.spark.session import lazily
from riverrun.spark.tasks.work import admin_here
from riverrun.transfers.batches import ExportBatch, unreadable
from riverrun.transfers.jdbc import TOMBSTONE, JdbcTarget, WrittenRows
from riverrun.transfers.partitions import directory_fields, with_directories
from riverrun.transfers.specs import ExportSpec
from riverrun.transfers.typed_records import TypedRecords

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from riverrun.kafka.admin import Admin
    from riverrun.kafka.door import Kafka
    from riverrun.kafka.tombstones import Incomplete
    from riverrun.serde.api import Serde
    from riverrun.spark.formats import SavedFiles

_RECORDS_PER_TASK = 100_000
_RECORD = (
    FrameColumn("_key", pa.binary()),
    FrameColumn("value", pa.binary()),
    FrameColumn("_timestamp", TIME, micros),
    FrameColumn("_partition", pa.int32()),
    FrameColumn("_offset", pa.int64()),
)
_SCHEMA = "_key binary, value binary, _timestamp timestamp, _partition int, _offset bigint"


def records_of(
    spec: ExportSpec, batch: ExportBatch, kafka: Kafka, spark: Any, counted: Any, typed: TypedRecords | None
) -> Any:
    """Return the records of a batch, which executors read; they add finished offsets to `counted` unless it is None."""
    texts = () if spec.is_binary and spec.schema is None else ("value",) if spec.is_binary else ("_key", "value")
    texts = texts if typed is None else ()
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
                    found = _read_piece(tp, wanted, kafka, texts)
                    yield from found if typed is None else typed.rows(found, partial(_place_of, tp.topic))
                if counted is not None:
                    counted.add(wanted.size)

    return spark.range(0, len(pieces), 1, len(pieces)).mapInArrow(process, _SCHEMA if typed is None else typed.schema)


def _place_of(topic: str, batch: pa.RecordBatch, number: int) -> dict[str, str | int]:
    places = {"partition": batch["_partition"], "offset": batch["_offset"]}
    return {"topic": topic, **{name: column[number].as_py() for name, column in places.items()}}


def _read_piece(tp: TopicPartition, wanted: OffsetRange, kafka: Kafka, texts: Collection[str]) -> Iterator[Any]:
    """Yield a part of a partition as Arrow batches of `_SCHEMA`; the columns of `texts` have to be UTF-8."""
    schema = pa.schema([(column.name, column.kind) for column in _RECORD])
    for _, records in read_range(admin_here(kafka), {tp: wanted}):
        columns: tuple[Sequence[Any], ...] = (
            [record.key for record in records],
            [record.value for record in records],
            [record.timestamp for record in records],
            [tp.partition] * len(records),
            [record.offset for record in records],
        )

        def place(number: int, offsets: Sequence[int] = columns[-1]) -> dict[str, str | int]:
            return {"topic": tp.topic, "partition": tp.partition, "offset": offsets[number]}

        arrays = [array(column, values, place) for column, values in zip(_RECORD, columns, strict=True)]
        found = pa.RecordBatch.from_arrays(arrays, schema=schema)
        for name in texts:
            _check_text(tp, found, name)
        yield found


def _check_text(tp: TopicPartition, records: Any, name: str) -> None:
    """Check that a column is text in UTF-8."""
    # Spark would replace other bytes silently.
    column = records.column(name)
    try:
        column.cast(pa.string())
    # The error does not name the row, which is searched only now.
    except pa.ArrowInvalid:
        for number, data in enumerate(column.to_pylist()):
            try:
                (data or b"").decode()
            except UnicodeDecodeError as error:
                message = f"A {name.removeprefix('_')} is not UTF-8 text: {error}"
                place = {
                    "topic": tp.topic,
                    "partition": tp.partition,
                    "offset": records.column("_offset")[number].as_py(),
                }
                hint = "Export bytes (--binary)."
                raise DeserializationError(message, hint=hint).at(**place) from error
        raise


def columns_of(spec: ExportSpec, frame: Any) -> Any:
    """Return the columns of the target: the value's, then key, time and place; for tables, also a mark of deletions."""
    from pyspark.sql import functions as f

    if spec.app:
        return frame
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
    """Return the place of the first malformed value; Spark's error does not name it."""
    from pyspark.sql import functions as f

    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_corrupt"}
    parsed = f.from_json(f.col("value").cast("string"), f"{schema}, _corrupt string", options)
    misfits = records.where(parsed["_corrupt"].isNotNull()).orderBy("_partition", "_offset")
    for row in misfits.select("_partition", "_offset").take(1):
        return {"topic": spec.topic, "partition": row["_partition"], "offset": row["_offset"]}
    return {"topic": spec.topic}


__all__ = ["ExportSpec", "ExportSummary", "run_export"]

EXPORTS_TOPIC = "riverrun-exports"
_FOLLOWED = f"*-*-{'[0-9]' * 20}.*"
"""Pattern of the files of followers, whose directories batches leave alone."""
_MALFORMED = "MALFORMED_RECORD_IN_PARSING"
"""Spark's error classes of malformed values."""


@dataclass(frozen=True, slots=True)
class ExportSummary:
    """The outcome of an export.

    Args:
        batch: The last batch written; None if there was nothing new.
        read: Records read from the topic.
        written: Rows that were added to the target, replaced or deleted.
    """

    batch: ExportBatch | None
    read: int = 0
    written: int = 0


def run_export(
    spec: ExportSpec,
    admin: Admin,
    spark: Any,
    *,
    serdes: tuple[Serde[Any], Serde[Any]] | None = None,
    on_batch: Callable[[RunRange], None] = lambda _ranges: None,
) -> ExportSummary:
    """Export the records since the last export, after completing a failed one.

    `spark` is a session, or a function that creates one, which is called only if there is something to export. `serdes` are
    those of the application in `spec.app`, for keys and values.
    """
    topic = ControlTopic(admin, EXPORTS_TOPIC)
    typed = None if serdes is None else TypedRecords(*serdes, marks_deletions=spec.has_tables)
    _check_spec(spec, typed)
    admin.require([spec.topic], f"export {spec.id} reads")
    last = _last(topic, spec.id)
    _check_same_topic(spec, last, admin)
    _check_same_target(spec, last)
    done, session = [], lazily(spark)
    if not last.is_done:
        check_ranges(admin, last.ranges)
        began = session()
        # An earlier attempt may only hang: it takes its files back when it finds that there is another one.
        again = replace(last, attempt=uuid.uuid4().hex, partition_by=tuple(spec.partition_by))
        _note(topic, spec, again, last)
        done.append(_write(spec, again, admin.kafka, began, topic, typed, mode="overwrite"))
        on_batch(RunRange(last.ranges))
        last = done[-1].batch or last
    new = _next_batch(spec, last, admin)
    if new is not None:
        _check_free(spec, new, session())
        # Before any row: an attempt that fails is repeated with the same range.
        _note(topic, spec, new, last)
        # The directory is free, or another attempt has begun meanwhile, whose files are left alone.
        done.append(_write(spec, new, admin.kafka, session(), topic, typed, mode="append"))
        on_batch(RunRange(new.ranges))
    batch = done[-1].batch if done else None
    return ExportSummary(batch, sum(each.read for each in done), sum(each.written for each in done))


def _check_spec(spec: ExportSpec, typed: TypedRecords | None) -> None:
    if spec.app and (spec.schema is not None or spec.is_binary):
        message = f"The serdes of {spec.app} make the columns, not a schema, and not bytes"
        raise ConfigError(message, hint="Leave out --app, or leave out --schema and --binary.")
    if spec.has_tables:
        JdbcTarget(spec.target, spec.options, spec.key).check()
    elif spec.key:
        message = f"Format {spec.format} cannot replace rows by key"
        raise ConfigError(message, hint="--key is for --format jdbc.")
    if spec.partition_by and not has_files(spec.format):
        message = f"Format {spec.format} has no directories"
        raise ConfigError(message, hint="--partition-by is for files, such as --format parquet.")
    directory_fields(spec.partition_by)
    if spec.format.lower() == "csv":
        _check_csv(spec, typed)


def _check_csv(spec: ExportSpec, typed: TypedRecords | None) -> None:
    bytes_of, nested = ((), ()) if typed is None else (typed.binary, typed.nested)
    if spec.is_binary or bytes_of:
        message = "Format csv cannot hold bytes: Spark would write text such as [FF FE]"
        what = (
            "Leave out --binary" if spec.is_binary else f"Leave out --app, whose {', '.join(bytes_of)} would be bytes"
        )
        raise ConfigError(message, hint=f"{what}, or choose a format with bytes: --format parquet.")
    if nested:
        message = f"Format csv cannot hold lists and objects, as column {', '.join(nested)} would have"
        raise ConfigError(message, hint="Leave out --app, or choose a format with both: --format parquet.")


def has_batches(admin: Admin, name: str) -> bool:
    """Return whether an export has begun a batch."""
    return _last(ControlTopic(admin, EXPORTS_TOPIC), name).number > 0


def ends_of_batches(admin: Admin, name: str, topic: str) -> dict[TopicPartition, int]:
    """Return the end offset (exclusive) of an export's last batch, by partition of its topic."""
    last = _last(ControlTopic(admin, EXPORTS_TOPIC), name)
    if not last.number or {tp.topic for tp in last.ranges} != {topic}:
        message = f"There is no batch export {name} of topic {topic}"
        raise ConfigError(message, hint="continues names an export by its --name, or by its topic if it has none.")
    if not last.is_done:
        message = f"Batch {last.number} of export {name} is not complete"
        raise ConfigError(message, hint="Export once more with Spark, which completes it, and then follow.")
    _check_same_topic(ExportSpec(topic, last.target, "", name=name), last, admin)
    return {tp: wanted.end for tp, wanted in last.ranges.items()}


_batch = foreign_decoder(ExportBatch)


def _last(topic: ControlTopic, name: str) -> ExportBatch:
    found = topic.read().get(name)
    if found is None:
        return ExportBatch()
    try:
        batch = _batch(found)
        batch.ranges  # noqa: B018 - raises if the text is not a range
    except (UnreadableError, RangeError) as error:
        raise unreadable(EXPORTS_TOPIC, f"export {name}", error) from error
    return batch


def _check(topic: ControlTopic, name: str, expected: ExportBatch) -> None:
    found = _last(topic, name)
    if found != expected:
        what = f"batch {found.number}{', another attempt' if found.number == expected.number else ''}"
        message = f"Export {name} is at {what} now, not at batch {expected.number}: it also runs elsewhere"
        raise RangeError(message, hint="Wait until the other one ends, then export again.")


def _check_same_topic(spec: ExportSpec, last: ExportBatch, admin: Admin) -> None:
    if last.number and last.topic_id != admin.topic_ids([spec.topic])[spec.topic]:
        message = f"Topic {spec.topic} was recreated after batch {last.number} of export {spec.id} had begun"
        hint = "Its offsets now mean other records. Export it under another name (--name), to another target."
        raise RangeError(message, hint=hint)


def _check_same_target(spec: ExportSpec, last: ExportBatch) -> None:
    """Refuse a new target, which would unexpectedly get only new records, unless the export has a name."""
    # Of a first batch that failed, nothing is left: it is written again as a whole.
    has_written = last.number > 1 or (last.number and last.is_done)
    if has_written and last.target == spec.place and last.partition_by != tuple(spec.partition_by):
        there = " ".join(f"--partition-by '{text}'" for text in last.partition_by) or "no --partition-by"
        message = f"Export {spec.id} has written batches with {there} to {spec.place}"
        hint = "Readers need the same directories in all batches: continue like that, or export to another target (--name)."
        raise ConfigError(message, hint=hint)
    if last.number and last.target != spec.place and not spec.name:
        message = (
            f"Export {spec.id} has written to {last.target} so far, up to batch {last.number}, not to {spec.place}"
        )
        hint = f"Another name (--name) exports everything there; --name {spec.id} writes only new records there."
        raise ConfigError(message, hint=hint)


def _check_free(spec: ExportSpec, batch: ExportBatch, spark: Any) -> None:
    """Check that the target is free: the batch has not begun, so files there belong to others."""
    from pyspark.errors import AnalysisException

    if not has_files(spec.format):
        return
    directory = _directory(spec, batch)
    for place in (escaped(directory), f"{escaped(spec.target.rstrip('/'))}/{_FOLLOWED}"):
        try:
            with spark_failures(f"look into {directory}"):
                found = listing(spark, place, {"recursiveFileLookup": "true"}).inputFiles()
        # There is no such directory, or file of a follower.
        except AnalysisException:
            continue
        if found:
            message = f"Export {spec.id} has not written to {directory} yet, but there are files: {found[0]}"
            raise ConfigError(message, hint="Give each export its own target.")


def _directory(spec: ExportSpec, batch: ExportBatch) -> str:
    return f"{spec.target.rstrip('/')}/batch={batch.number:08d}"


def _next_batch(spec: ExportSpec, last: ExportBatch, admin: Admin) -> ExportBatch | None:
    tps = [TopicPartition(spec.topic, n) for n in range(admin.partitions([spec.topic])[spec.topic])]
    # The time before the ends: a batch up to these ends has everything up to this time.
    now = whole_now(admin, [spec.topic])
    first, ends = admin.beginning_offsets(tps), admin.end_offsets(tps)
    before = last.ranges
    ranges = {}
    for tp in tps:
        start = before[tp].end if tp in before else first[tp]
        ranges[tp] = OffsetRange(start, max(start, ends[tp]))
    check_ranges(admin, ranges)
    if spec.key:
        unread = {tp: each.end for tp, each in before.items() if each.end > first.get(tp, 0)}
        _require_deletions(spec, why_incomplete(admin, Whole.decode(last.whole), now, unread))
    chosen = RunRange(ranges)
    if not chosen.size:
        return None
    topic_id = admin.topic_ids([spec.topic])[spec.topic]
    number = last.number + 1
    return ExportBatch(
        number,
        str(chosen),
        is_done=False,
        topic_id=topic_id,
        target=spec.place,
        whole=now.encode(),
        attempt=uuid.uuid4().hex,
        partition_by=tuple(spec.partition_by),
    )


def _require_deletions(spec: ExportSpec, reason: Incomplete | None) -> None:
    if reason is not None:
        message = f"The table {spec.target} of export {spec.id} may hold rows that have been deleted: {reason}"
        hint = reason.hint(
            "Export everything under another name (--name) to an empty table, and then more often. A follower can remove such"
            ' rows: `continues` and lost_deletions = "remove" of [exports.NAME].'
        )
        raise RangeError(message, hint=hint)


def _write(
    spec: ExportSpec,
    batch: ExportBatch,
    kafka: Kafka,
    spark: Any,
    topic: ControlTopic,
    typed: TypedRecords | None,
    *,
    mode: str,
) -> ExportSummary:
    """Write a batch, and record that it is done. `mode` is about files that are there already."""
    # Spark Connect has no accumulators, so progress is not shown there.
    counted = spark.sparkContext.accumulator(0) if is_followed() and has_jvm(spark) else None
    records = records_of(spec, batch, kafka, spark, counted, typed)
    offsets = RunRange(batch.ranges).size
    with (
        polling_progress(f"export {spec.id}", lambda: (counted.value if counted else 0, offsets)),
        _told(spec, batch, records),
    ):
        written = (
            _into_table(spec, batch, records) if spec.has_tables else _into_files(spec, batch, records, topic, mode)
        )
    done = replace(batch, is_done=True)
    _note(topic, spec, done, batch)
    return ExportSummary(done, *written)


def _note(topic: ControlTopic, spec: ExportSpec, batch: ExportBatch, last: ExportBatch) -> None:
    """Write the state of a batch, unless another process has written one since the last."""
    topic.write(spec.id, {spec.id: msgspec.json.encode(asdict(batch))}, lambda: _check(topic, spec.id, last))


def _into_files(spec: ExportSpec, batch: ExportBatch, records: Any, topic: ControlTopic, mode: str) -> WrittenRows:
    """Write the directory of a batch."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    observed = Observation()
    fields = directory_fields(spec.partition_by)
    frame = with_directories(columns_of(spec, records.observe(observed, f.count(f.lit(1)).alias("rows"))), fields)
    writer, directory = frame.write.format(spec.format), _directory(spec, batch)
    if fields:
        # Spark sorts rows by directory, so a task has one file open at a time. A repeated attempt replaces all directories.
        writer = writer.partitionBy(*(field.name for field in fields)).option("partitionOverwriteMode", "static")
    writer.options(**writer_options(spec.format, spec.options))
    if has_files(spec.format):
        files = saved(writer.mode(mode), frame.sparkSession, directory, batch.attempt)
        _check_alone(spec, batch, frame.sparkSession, topic, files)
    else:
        writer.mode("overwrite").save(directory)
    rows = observed.get["rows"]
    return WrittenRows(rows, rows)


def _check_alone(spec: ExportSpec, batch: ExportBatch, spark: Any, topic: ControlTopic, files: SavedFiles) -> None:
    """Check that one attempt alone has written the files of a batch."""
    try:
        _check(topic, spec.id, batch)
    except RangeError as error:
        if not _is_left_to_another(spec, batch, topic) or not files.others:
            raise
        if not has_jvm(spark):
            place = f"{named(batch.attempt)}-* in {_directory(spec, batch)}"
            raise RangeError(
                error.message, hint=f"Delete the files {place}: the other one has their records, too."
            ) from error
        remove(spark, files.own)
        raise
    if files.others:
        message = (
            f"Another attempt at batch {batch.number} of export {spec.id} has added files to {_directory(spec, batch)}"
        )
        raise RangeError(message, hint="Make sure that it has ended, then export again: that replaces all of them.")


def _is_left_to_another(spec: ExportSpec, batch: ExportBatch, topic: ControlTopic) -> bool:
    """Return whether another attempt has completed a batch; one that still writes can do so no more."""
    while (found := _last(topic, spec.id)).number == batch.number and not found.is_done:
        # Its files may lack rows: Spark deletes what others have not completed. The next attempt replaces all files.
        with suppress(RangeError):
            _note(topic, spec, replace(found, attempt=uuid.uuid4().hex), found)
            return False
    return True


def _into_table(spec: ExportSpec, batch: ExportBatch, records: Any) -> WrittenRows:
    """Write a batch to a table, unless it is there already."""
    # An attempt may have committed to the database and then failed to record that in Kafka.
    target = JdbcTarget(spec.target, spec.options, spec.key)
    if target.has(records.sparkSession, spec.id, batch.number, batch.range):
        return WrittenRows(0, 0)
    return target.write(columns_of(spec, records), spec.id, batch.number, batch.range)


@contextmanager
def _told(spec: ExportSpec, batch: ExportBatch, records: Any) -> Iterator[None]:
    """Translate errors of a batch to errors of the export."""
    from pyspark.errors import AnalysisException, IllegalArgumentException

    with spark_failures(f"write batch {batch.number} of {spec.topic} to {spec.format} target {spec.target}"):
        try:
            yield
        except (AnalysisException, IllegalArgumentException) as error:
            message = f"{spec.format} target {spec.target} cannot be written: {complaint(error)}"
            raise ConfigError(message, hint="Check --format, --option and --schema.") from error
        # The JVM reports a refusal, or a malformed value, as one of several causes.
        except Exception as error:
            _raise_refusal(spec, batch, error)
            if _MALFORMED not in str(error) or spec.schema is None:
                raise
            message = f"A value does not fit the schema {spec.schema}"
            hint = "Without --schema, values are exported unchanged."
            where = first_malformed(spec, spec.schema, records)
            raise DeserializationError(message, hint=hint).at(**where) from error


def _raise_refusal(spec: ExportSpec, batch: ExportBatch, error: Exception) -> None:
    """Raise the error of the batch if a database has refused its rows."""
    refused = refusal(error)
    if refused is not None:
        message = f"The database refuses batch {batch.number} of {spec.topic} for table {spec.target}: {refused}"
        hint = "Alter the table, or choose other columns (--schema). No row was written: export it again afterwards."
        raise ConfigError(message, hint=hint) from error
