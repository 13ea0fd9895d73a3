"""Writes a batch of an import into its topic: each part in one transaction with its progress."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Any

import msgspec

from riverrun.errors import StreamsError
from riverrun.hosting.clock import SystemClock
from riverrun.hosting.progress import is_followed, looked_at
from riverrun.kafka.producer import LONGEST_TRANSACTION_MS, TransactionalProducer
from riverrun.records import OffsetRange, TopicPartition
from riverrun.spark.engine.executor_errors import another_attempt_may_help, describe_error, rebuilt_error
from riverrun.spark.engine.failures import on_executor
from riverrun.spark.engine.text_rows import text_row
from riverrun.spark.ranges import RunRange
from riverrun.spark.tasks.work import admin_here
from riverrun.transfers.importing.import_progress import IMPORTS_TOPIC, Part, Progress
from riverrun.transfers.importing.import_rows import records_of
from riverrun.transfers.importing.import_source import reading, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from riverrun.kafka.admin import Admin
    from riverrun.transfers.import_spec import ImportSpec
    from riverrun.transfers.importing.import_progress import Batch

_SCHEMA = "result string"


def write_batch(
    spec: ImportSpec,
    batch: Batch,
    admin: Admin,
    spark: Any,
) -> tuple[int, int]:
    """Write a batch, or the parts of it that earlier attempts have not written.

    Args:
        spec: The import.
        batch: The batch, which must be recorded as begun.
        admin: Asks the brokers.
        spark: A Spark session.

    Returns:
        The number of rows, and the number of records written.
    """
    source = rows_of(spec, batch, spark)
    if not source.columns:
        return 0, 0
    rows, kafka = records_of(spec, source, batch), dict(admin.kafka)

    def process(batches: Iterable[Any]) -> Iterator[Any]:
        numbered = (row for rows in batches for row in rows.to_pylist())
        for part, records in groupby(numbered, key=lambda row: int(row["part"])):
            with on_executor():
                result = _attempt(spec, batch, part, records, kafka)
            yield text_row("result", result)

    everything = reading(spec, source.count) if is_followed() else 0
    written = _written_since_now(spec.topic, admin)
    with looked_at(f"import {spec.id}", lambda: (min(written(), everything), everything)):
        results = [json.loads(row.result) for row in reading(spec, rows.mapInArrow(process, _SCHEMA).collect)]
    for result in results:
        if "error" in result:
            raise rebuilt_error(result["error"])
    return sum(result["read"] for result in results), sum(result["written"] for result in results)


def fence_parts(spec: ImportSpec, batch: Batch, kafka: Mapping[str, str]) -> None:
    """Fence earlier attempts at the parts of a batch, whose executors may outlive their driver.

    Raises:
        BrokerError: If brokers do not answer.
    """
    for part in range(batch.parts):
        producer = _producer(spec, part, kafka)
        try:
            producer.init()
        finally:
            producer.close()


def _producer(spec: ImportSpec, part: int, kafka: Mapping[str, str]) -> TransactionalProducer:
    transactional_id = f"riverrun-import-{spec.id}-{part}"
    return TransactionalProducer(kafka, transactional_id, transaction_timeout_ms=LONGEST_TRANSACTION_MS)


def _written_since_now(topic: str, admin: Admin) -> Callable[[], int]:
    """Return a function that counts new records of a topic, committed or not; an estimate if others write as well."""
    tps = [TopicPartition(topic, number) for number in range(admin.partitions([topic])[topic])]
    before = sum(admin.written_offsets(tps).values())
    return lambda: sum(admin.written_offsets(tps).values()) - before


def _attempt(
    spec: ImportSpec, batch: Batch, part: int, records: Iterable[dict[str, Any]], kafka: dict[str, str]
) -> str:
    """Attempt a part once. Failures that another attempt may fix are raised, so that Spark retries."""
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
    """Take over the part, write it unless it is done, and return the numbers of rows and of records written."""
    progress, now_ms = Progress(admin_here(kafka), spec.id), SystemClock().now_ms()
    producer = _producer(spec, part, kafka)
    try:
        producer.init()
        if progress.is_written(batch, part):
            return sum(1 for _ in records), 0
        tps, admin, written = _partitions_of(spec, batch, part), admin_here(kafka), 0
        before = admin.written_offsets(tps)
        for row in records:
            time_ms = now_ms if row["timestamp"] is None else row["timestamp"]
            producer.send(spec.topic, row["key"], row["value"], time_ms, (), row["partition"])
            written += 1
        producer.flush()  # the offsets of its records are part of the progress
        done = Part(str(_grown(before, admin.written_offsets(tps))))
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
