"""Bounded reads: exactly the records of `[start, end)`, whatever lies at the end of the log."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pipeline.errors import BrokerError, RangeError
from pipeline.kafka.consumer import RecordConsumer
from pipeline.records import RAW_OFFSET, OffsetRange, RawRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pipeline.kafka.admin import Admin
    from pipeline.records import RawFields, TopicPartition

_BATCH = 10_000
_POLL_SECONDS = 1.0
_SILENT_POLLS = 10
"""Polls without any record or end after which the brokers are asked whether they are there, and the records as well."""
_LOST_POLLS = 120
"""Such polls after which nothing is expected to come any more, whatever the brokers say."""


def check_ranges(admin: Admin, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
    """Refuse ranges that cannot be read completely.

    Raises:
        RangeError: If a range begins before the first record that still exists, or ends after the last stable offset.
    """
    asked = {tp: r for tp, r in ranges.items() if r.size}
    first, last = admin.beginning_offsets(asked), admin.end_offsets(asked)
    for tp, wanted in asked.items():
        if wanted.start < first[tp]:
            lost = first[tp] - wanted.start
            since = _first_time(admin, tp, first[tp])
            gone = f"{tp}: offsets {wanted.start} to {first[tp]} ({lost} records or less) are gone{since}"
            message = f"{gone}; {wanted} was asked for"
            raise RangeError(message, hint=f"Start at {first[tp]}, and raise retention.ms if they were needed.")
        if wanted.end > last[tp]:
            message = f"{tp} ends at offset {last[tp]} (last stable offset); {wanted} was asked for"
            raise RangeError(message, hint="Ask for an end that has been written and committed.")


def _first_time(admin: Admin, tp: TopicPartition, offset: int) -> str:
    """Of when the first record is that is left, for a message; nothing if there is none."""
    consumer = RecordConsumer(admin.kafka)
    try:
        consumer.assign({tp: offset})
        for _ in range(_SILENT_POLLS):
            polled = consumer.poll(1, _POLL_SECONDS)
            for _, _, time_ms, _, _ in polled.records.get(tp, ()):
                time = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")
                return f" (the first that is left is of {time})"
            if tp in polled.ends:
                break
    finally:
        consumer.close()
    return " (none is left)"


def read_range(
    admin: Admin, kafka: Mapping[str, str], ranges: Mapping[TopicPartition, OffsetRange]
) -> Iterator[tuple[TopicPartition, list[RawRecord]]]:
    """What `read_fields` gives, with names."""
    for tp, batch in read_fields(admin, kafka, ranges):
        yield tp, [tuple.__new__(RawRecord, fields) for fields in batch]  # half the time of a call


def read_fields(
    admin: Admin, kafka: Mapping[str, str], ranges: Mapping[TopicPartition, OffsetRange]
) -> Iterator[tuple[TopicPartition, list[RawFields]]]:
    """Read ranges of partitions; batches of different partitions alternate, each in order of offsets.

    A partition is done when a record at its last offset or beyond has been seen, or the end of the log at or beyond its end:
    transaction markers and compacted gaps leave the last offsets without records.

    Args:
        admin: Asks the brokers whether the ranges are there.
        kafka: Client properties.
        ranges: What to read; empty ranges give nothing.

    Raises:
        RangeError: If a range cannot be read completely.
        BrokerError: If the brokers do not answer any more.
    """
    check_ranges(admin, ranges)
    open_ranges = {tp: r for tp, r in ranges.items() if r.size}
    if not open_ranges:
        return
    consumer = RecordConsumer(kafka)
    try:
        consumer.assign({tp: r.start for tp, r in open_ranges.items()})
        silent = 0
        while open_ranges:
            polled = consumer.poll(_BATCH, _POLL_SECONDS)
            silent = 0 if polled.records or polled.ends else silent + 1
            if silent and silent % _SILENT_POLLS == 0:
                check_ranges(admin, {tp: OffsetRange(r.end - 1, r.end) for tp, r in open_ranges.items()})
            if silent > _LOST_POLLS:
                waiting = ", ".join(map(str, sorted(open_ranges)))
                message = f"No records of {waiting} for {_LOST_POLLS * _POLL_SECONDS:.0f} s"
                raise BrokerError(message, retriable=True)
            done = [tp for tp, end in polled.ends.items() if tp in open_ranges and end >= open_ranges[tp].end]
            for tp, records in polled.records.items():
                if tp not in open_ranges:
                    continue
                end = open_ranges[tp].end
                last = records[-1][RAW_OFFSET]
                if last >= end - 1:
                    done.append(tp)
                yield tp, records if last < end else [r for r in records if r[RAW_OFFSET] < end]
            consumer.unassign(done)
            for tp in done:
                open_ranges.pop(tp, None)
    finally:
        consumer.close()
