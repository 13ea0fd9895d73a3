"""Judges what a live version has published so far, by the expectations of its gate. Nothing is written."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.config import OutputKind, call_attribute
from pipeline.kafka.ranges import read_fields
from pipeline.quality.expectations import by_topic
from pipeline.quality.frames import write_frame
from pipeline.quality.gate import INFO, WARNING, Verdict, judge
from pipeline.records import OffsetRange, OffsetVector, TopicPartition
from pipeline.releases.differ import Differ
from pipeline.releases.outputs import outputs
from pipeline.releases.rows import KEY_COLUMNS, log_rows, table_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from pipeline.hosting.application import Application
    from pipeline.kafka.admin import Admin
    from pipeline.topology.nodes import SinkNode

_DIRECTORY = "quality"
"""Below the version's directory: what its public tables hold, so that the next check reads only what is new."""


@dataclass(frozen=True, slots=True)
class LiveVerdict:
    """Findings of a check of public topics.

    Args:
        at: The ends of the topics up to which they were judged.
        verdict: What was found.
    """

    at: OffsetVector
    verdict: Verdict


def judge_live(application: Application, admin: Admin, spark: Callable[[], Any]) -> LiveVerdict:
    """Judge the public topics of a live version, as they are now. Expectations of differences do not apply.

    Args:
        application: The live version.
        admin: Asks the brokers.
        spark: Gives a Spark session, for tables that are large.

    Raises:
        ConfigError: If the expectations cannot be had, or are of an output that there is not.
        DeserializationError: If a record cannot be read.
        ReleaseError: If a record of a table has no key.
        BrokerError: If brokers do not answer.
    """
    quality, kinds = application.config.quality, outputs(application)
    logs = {topic for topic, output in kinds.items() if output.kind is OutputKind.LOG}
    wanted = by_topic(str(quality or ""), call_attribute(quality) if quality else [], kinds, logs)
    ends = admin.stable_end_offsets(
        TopicPartition(topic, n) for topic, count in admin.partitions(wanted).items() for n in range(count)
    )
    directory, found = application.directory / _DIRECTORY, Verdict({})
    for topic, expectations in wanted.items():
        sink = application.topology.sink_of(topic)
        if sink is None:
            continue
        own = {tp: end for tp, end in ends.items() if tp.topic == topic}
        if topic in logs:
            rows = _records(application, admin, sink, own)
            empty = WARNING if expectations.table else INFO
            found += _judged(topic, rows, expectations.table, directory, spark, if_empty=empty)
            continue
        with Differ("", topic, topic, directory / "tables" / topic, application.kafka, admin) as differ:
            differ.advance(own, {})
            pairs = (pair._replace(old=None, new=pair.new or pair.old) for pair in differ.rows())  # one topic is both
            rows = table_rows(pairs, sink, topic)
            found += _judged(topic, rows, expectations.table, directory, spark)
    return LiveVerdict(OffsetVector(ends), found)


def _records(
    application: Application, admin: Admin, sink: SinkNode, ends: Mapping[TopicPartition, int]
) -> Iterator[dict[str, Any]]:
    first = admin.beginning_offsets(ends)
    ranges = {tp: OffsetRange(min(first[tp], end), end) for tp, end in ends.items()}
    return log_rows(read_fields(admin, application.kafka, ranges), sink)


def _judged(
    topic: str,
    rows: Iterable[Mapping[str, Any]],
    expectations: Iterable[Any],
    directory: Path,
    spark: Callable[[], Any],
    **options: str,
) -> Verdict:
    written = directory / "frame"
    shutil.rmtree(written, ignore_errors=True)
    try:
        frame = write_frame(written, rows)
        keys = [f"_{column}" for column in KEY_COLUMNS if f"_{column}" in frame.columns]
        return judge(topic, frame, list(expectations), spark, keys=keys, **options)
    finally:
        shutil.rmtree(written, ignore_errors=True)
