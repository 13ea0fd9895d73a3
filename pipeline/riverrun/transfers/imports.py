"""Imports new data from any source that Spark can read into a topic, with keys, exactly once.

An import works in batches: new files, or rows above the last value of a column, or everything. Each batch is divided by
partition into parts. One transaction writes a part and its progress, as exactly-once source connectors do with their
offsets (KIP-618). An interrupted batch is completed as planned, without its finished parts. If none is finished, it is
planned again, as the plan may have caused the failure. Attempts at a part fence each other through its transactional
id.

`specs` specifies an import, and `import_progress` stores its progress. `import_source` finds new data,
`import_rows` turns rows into records.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import msgspec

from riverrun.errors import ConfigError, RangeError, StreamsError
from riverrun.hosting.process import SystemClock
from riverrun.hosting.progress import is_followed, polling_progress
from riverrun.kafka.producer import LONGEST_TRANSACTION_MS, TransactionalProducer
from riverrun.records import OffsetRange, TopicPartition
from riverrun.spark.failures import another_attempt_may_help, describe_error, on_executor, rebuilt_error, text_row
from riverrun.spark.ranges import RunRange
from riverrun.spark.session import lazily
from riverrun.spark.tasks.work import admin_here
from riverrun.transfers.import_progress import IMPORTS_TOPIC, FinishedPart, ImportProgress
from riverrun.transfers.import_rows import records_of
from riverrun.transfers.import_source import reading, rows_of, with_what_is_new
from riverrun.transfers.specs import Batch, ImportSpec, Terms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from riverrun.kafka.admin import Admin
    from riverrun.kafka.door import Kafka

_SCHEMA = "result string"


def write_batch(
    spec: ImportSpec,
    batch: Batch,
    admin: Admin,
    spark: Any,
) -> tuple[int, int]:
    """Write the parts of a recorded batch that earlier attempts have not written; return the numbers of rows and of records."""
    source = rows_of(spec, batch, spark)
    if not source.columns:
        return 0, 0
    rows, kafka = records_of(spec, source, batch), admin.kafka

    def process(batches: Iterable[Any]) -> Iterator[Any]:
        numbered = (row for rows in batches for row in rows.to_pylist())
        for part, records in groupby(numbered, key=lambda row: int(row["part"])):
            with on_executor():
                result = _attempt(spec, batch, part, records, kafka)
            yield text_row("result", result)

    everything = reading(spec, source.count) if is_followed() else 0
    written = _written_since_now(spec.topic, admin)
    with polling_progress(f"import {spec.id}", lambda: (min(written(), everything), everything)):
        results = [json.loads(row.result) for row in reading(spec, rows.mapInArrow(process, _SCHEMA).collect)]
    for result in results:
        if "error" in result:
            raise rebuilt_error(result["error"])
    return sum(result["read"] for result in results), sum(result["written"] for result in results)


def fence_parts(spec: ImportSpec, batch: Batch, kafka: Kafka) -> None:
    """Fence earlier attempts at the parts of a batch."""
    # Executors may outlive their driver, and would otherwise still commit a part.
    for part in range(batch.parts):
        producer = _producer(spec, part, kafka)
        try:
            producer.init()
        finally:
            producer.close()


def _producer(spec: ImportSpec, part: int, kafka: Kafka) -> TransactionalProducer:
    transactional_id = f"riverrun-import-{spec.id}-{part}"
    # A part is one transaction, so it gets as much time as brokers allow.
    return TransactionalProducer(kafka, transactional_id, transaction_timeout_ms=LONGEST_TRANSACTION_MS)


def _written_since_now(topic: str, admin: Admin) -> Callable[[], int]:
    """Return a function that counts new records of a topic, committed or not; an estimate if others write as well."""
    tps = [TopicPartition(topic, number) for number in range(admin.partitions([topic])[topic])]
    before = sum(admin.written_offsets(tps).values())
    return lambda: sum(admin.written_offsets(tps).values()) - before


def _attempt(spec: ImportSpec, batch: Batch, part: int, records: Iterable[dict[str, Any]], kafka: Kafka) -> str:
    """Attempt a part once, and return its result as JSON."""
    # Spark repeats a task that raises. An error at which no retry helps is returned, and the driver raises it.
    try:
        read, written = _write_part(spec, batch, part, records, kafka)
        return json.dumps({"read": read, "written": written})
    except StreamsError as error:
        if another_attempt_may_help(error):
            raise
        return json.dumps({"error": describe_error(error)})


def _write_part(
    spec: ImportSpec, batch: Batch, part: int, records: Iterable[dict[str, Any]], kafka: Kafka
) -> tuple[int, int]:
    """Take over the part, write it unless it is done, and return the numbers of rows and of records written."""
    progress, now_ms = ImportProgress(admin_here(kafka), spec.id), SystemClock().now_ms()
    producer = _producer(spec, part, kafka)
    try:
        # The fence before the question: an earlier attempt can no longer commit this part afterwards.
        producer.init()
        # Its rows still count as read.
        if progress.is_written(batch, part):
            return sum(1 for _ in records), 0
        tps, admin, written = _partitions_of(spec, batch, part), admin_here(kafka), 0
        before = admin.written_offsets(tps)
        for row in records:
            time_ms = now_ms if row["timestamp"] is None else row["timestamp"]
            producer.send(spec.topic, row["key"], row["value"], time_ms, (), row["partition"])
            written += 1
        # The offsets of the records are part of the progress, which goes into the same transaction.
        producer.flush()
        done = FinishedPart(str(_grown(before, admin.written_offsets(tps))))
        name = progress.part_name(batch, part).encode()
        producer.send(IMPORTS_TOPIC, name, msgspec.json.encode(asdict(done)), now_ms, (), 0)
        producer.commit({}, "")
        return written, written
    finally:
        producer.close()


def _partitions_of(spec: ImportSpec, batch: Batch, part: int) -> list[TopicPartition]:
    """Return the partitions that a part writes to; no other part does."""
    return [TopicPartition(spec.topic, number) for number in range(part, batch.partitions, batch.parts)]


def _grown(before: Mapping[TopicPartition, int], after: Mapping[TopicPartition, int]) -> RunRange:
    """Return the ranges between two ends, without partitions that have not grown."""
    return RunRange({tp: OffsetRange(before[tp], end) for tp, end in after.items() if end > before[tp]})


__all__ = ["ImportSpec", "ImportSummary", "run_import"]


@dataclass(frozen=True, slots=True)
class ImportSummary:
    """The outcome of an import.

    Args:
        read: Number of rows read from the source, including those that an earlier attempt has written.
        written: Number of records written.
        batches: Number of batches.
    """

    read: int
    written: int
    batches: int


def run_import(
    spec: ImportSpec,
    admin: Admin,
    spark: Any,
    *,
    here: Path | None = None,
    on_batch: Callable[[RunRange], None] = lambda _ranges: None,
) -> ImportSummary:
    """Import new data. A run after a failure completes the interrupted batch.

    `spark` is a session, or a function that creates one, which is not called if the local source `here` has no new files.
    `on_batch` gets the offsets of each batch: the topic's growth while it was written, which includes records of others.
    """
    if spec.missing_timestamp not in {"fail", "now"}:
        message = f"{spec.missing_timestamp!r} is not a way to treat rows without a time"
        raise ConfigError(message, hint="Allowed: fail, now")
    if spec.not_a_number not in {"fail", "null"}:
        message = f"{spec.not_a_number!r} is not a way to treat NaN and infinity"
        raise ConfigError(message, hint="Allowed: fail, null")
    progress = ImportProgress(admin, spec.id)
    admin.require([spec.topic], f"import {spec.id} writes to")
    _check_no_place(spec, progress)
    if here is not None and _has_nothing_new(spec, progress, here):
        _check_goes_on(spec, progress.last(), admin.topic_ids([spec.topic])[spec.topic])
        return ImportSummary(0, 0, 0)
    session = lazily(spark)()
    read = written = batches = 0
    while True:
        last = progress.last()
        batch = _to_do(spec, admin, session, last)
        if batch is None:
            return ImportSummary(read, written, batches)
        if batch != last:
            progress.begin(batch, last)
        rows, records = write_batch(spec, batch, admin, session)
        read, written = read + rows, written + records
        ranges = progress.ranges(batch)
        progress.finish(batch)
        batches += 1
        if ranges.size:
            on_batch(ranges)
        # A source without files and without a rising column was imported as a whole: it would be new again, for ever.
        if not (batch.files or batch.upto):
            return ImportSummary(read, written, batches)


def _check_no_place(spec: ImportSpec, progress: ImportProgress) -> None:
    """Check that polling has not taken a part of a file, which a batch would import as a whole."""
    place = progress.place()
    if place is not None:
        message = f"Import {spec.id} has taken {place.rows} rows of {place.file}, and not the rest"
        raise ConfigError(message, hint=f"Let it resume where it stopped: riverrun import {spec.id}.")


def _has_nothing_new(spec: ImportSpec, progress: ImportProgress, source: Path) -> bool:
    """Return whether all files of a local source have been imported; False if only Spark can say."""
    last = progress.last()
    if not (last.number and last.is_done) or spec.incremental is not None:
        return False
    known = {unquote(urlsplit(name).path) for name in progress.files() if name.startswith("file:")}
    below = source.absolute().rglob("*") if source.is_dir() else [source.absolute()]
    there = {str(path) for path in below if path.is_file() and not path.name.startswith((".", "_"))}
    return bool(there) and there <= known


def _to_do(spec: ImportSpec, admin: Admin, spark: Any, last: Batch) -> Batch | None:
    """Return the interrupted batch if a part of it is written, otherwise a batch of new data; None if there is none."""
    # A batch without a written part is planned again: its plan may have caused the failure.
    progress, topic_id = ImportProgress(admin, spec.id), admin.topic_ids([spec.topic])[spec.topic]
    _check_goes_on(spec, last, topic_id)
    if not last.is_done:
        # Before the question for parts: otherwise an attempt that still runs could commit one after the answer.
        fence_parts(spec, last, admin.kafka)
        if progress.has_parts(last):
            _check_same_terms(spec, last)
            return last
    number, above = (last.number + 1, last.upto) if last.is_done else (last.number, last.above)
    partitions = admin.partitions([spec.topic])[spec.topic]
    parts, terms = min(spec.parts, partitions), Terms.of(spec)
    planned = Batch(number, partitions, parts, is_done=False, terms=terms, topic_id=topic_id)
    return with_what_is_new(spec, planned, above, progress.files, spark)


def _check_same_terms(spec: ImportSpec, last: Batch) -> None:
    """Check that a partly written batch is completed with its original terms."""
    terms = Terms.of(spec)
    if last.terms != terms:
        message = f"Batch {last.number} of import {spec.id} was interrupted after a part of it had been written"
        raise ConfigError(message, hint=f"Complete it with its original settings: {last.terms.differences(terms)}.")


def _check_goes_on(spec: ImportSpec, last: Batch, topic_id: str) -> None:
    """Check that earlier progress is valid for this import."""
    if last.number and last.topic_id != topic_id:
        message = f"Topic {spec.topic} was recreated after batch {last.number} of import {spec.id} had begun"
        raise RangeError(message, hint="The new topic lacks the imported records. Import under another name (--name).")
    if not (last.number if last.is_done else last.number - 1):
        return
    if last.terms.incremental != spec.incremental:
        before, now = (column or "no column" for column in (last.terms.incremental, spec.incremental))
        message = f"Import {spec.id} has selected new rows by {before} so far, not by {now}"
        raise ConfigError(message, hint="Import it under another name (--name): that imports everything.")
    if spec.incremental is not None and last.terms.source != spec.source and not spec.name:
        message = f"Import {spec.id} has read {last.terms.source} so far, up to {last.upto}, not {spec.source}"
        hint = f"Give this import its own name (--name). If both are one table: --name {spec.id}."
        raise ConfigError(message, hint=hint)
