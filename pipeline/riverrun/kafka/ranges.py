"""Bounded reads: exactly the records of `[start, end)`, whatever follows in the log."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from riverrun.errors import BrokerError, RangeError
from riverrun.kafka.consumer import UP_TO_AN_END, RecordConsumer
from riverrun.records import RAW_OFFSET, RAW_TIMESTAMP, OffsetRange, RawRecord, counted

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping

    from riverrun.kafka.admin import Admin
    from riverrun.records import RawFields, TopicPartition

# So many records stay, with their objects, in the CPU's cache until they are processed.
_BATCH = 1_000
_POLL_SECONDS = 1.0
_SILENT_POLLS = 10
"""Number of polls without result after which to check that the brokers and the records still exist."""
_LOST_POLLS = 120
"""Number of polls without result after which to give up, whatever the brokers answer."""


def check_ranges(admin: Admin, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
    """Refuse ranges that cannot be read completely."""
    asked = {tp: r for tp, r in ranges.items() if r.size}
    first, last = admin.beginning_offsets(asked), admin.end_offsets(asked)
    gone = {tp: first[tp] for tp, wanted in sorted(asked.items()) if wanted.start < first[tp]}
    if gone:
        message = "; ".join(_loss(admin, tp, asked[tp], left) for tp, left in gone.items())
        left = ",".join(f"{tp}@{offset}" for tp, offset in gone.items())
        raise RangeError(message, hint=f"Start at {left}. Raise retention.ms if you need the deleted records.")
    for tp, wanted in asked.items():
        if wanted.end > last[tp]:
            message = f"{tp} ends at offset {last[tp]} (last stable offset); {wanted} was requested"
            raise RangeError(message, hint="Choose an end that has been written and committed.")


def offsets_at_time(
    admin: Admin, ranges: Mapping[TopicPartition, OffsetRange], timestamp_ms: int
) -> dict[TopicPartition, int]:
    """Return, by partition, the offset of the first record at or after a time; the range's end if there is none."""
    found = admin.offsets_for_time(ranges, timestamp_ms)
    # Brokers also find transaction markers, which have the time of their clock. In an import of old records, the first
    # marker would match and hide all records behind it. So reading continues until a record is late enough.
    rest = {tp: OffsetRange(min(max(found[tp], r.start), r.end), r.end) for tp, r in ranges.items()}
    first: dict[TopicPartition, int] = {}
    for tp, batch in read_fields(admin, rest, enough=first):
        offset = next((fields[RAW_OFFSET] for fields in batch if fields[RAW_TIMESTAMP] >= timestamp_ms), None)
        if offset is not None:
            first.setdefault(tp, offset)
    return {tp: first.get(tp, r.end) for tp, r in ranges.items()}


def _loss(admin: Admin, tp: TopicPartition, wanted: OffsetRange, left: int) -> str:
    since = _first_time(admin, tp, left)
    lost = f"{tp}: offsets {wanted.start} to {left} ({counted(left - wanted.start, 'record')} or fewer) are gone{since}"
    return f"{lost}; {wanted} was requested"


def _first_time(admin: Admin, tp: TopicPartition, offset: int) -> str:
    """Describe the time of the first remaining record, for a message; empty if it is unknown."""
    # Brokers may not have it.
    if admin.earlier is not None:
        return ""
    consumer = RecordConsumer(admin.kafka)
    try:
        consumer.assign({tp: offset})
        for _ in range(_SILENT_POLLS):
            polled = consumer.poll(1, _POLL_SECONDS)
            for _, _, time_ms, _, _ in polled.records.get(tp, ()):
                time = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")
                return f" (the first remaining record is of {time})"
            if tp in polled.ends:
                break
    finally:
        consumer.close()
    return " (no record remains)"


def read_range(
    admin: Admin, ranges: Mapping[TopicPartition, OffsetRange]
) -> Iterator[tuple[TopicPartition, list[RawRecord]]]:
    """Read as `read_fields` does, and return records with named fields."""
    for tp, batch in read_fields(admin, ranges):
        # `tuple.__new__` takes half the time of a call of the class.
        yield tp, [tuple.__new__(RawRecord, fields) for fields in batch]


def read_fields(
    admin: Admin,
    ranges: Mapping[TopicPartition, OffsetRange],
    enough: Container[TopicPartition] = (),
) -> Iterator[tuple[TopicPartition, list[RawFields]]]:
    """Read ranges of partitions; batches of different partitions alternate, each in order of offsets.

    The reader may add a partition to `enough` at any batch: it is not read any further.
    """
    check_ranges(admin, ranges)
    open_ranges = {tp: r for tp, r in ranges.items() if r.size}
    yield from _earlier(admin, open_ranges, enough)
    if open_ranges:
        yield from _from_brokers(admin, open_ranges, enough)


def _earlier(
    admin: Admin, open_ranges: dict[TopicPartition, OffsetRange], enough: Container[TopicPartition]
) -> Iterator[tuple[TopicPartition, list[RawFields]]]:
    """Read the parts of ranges that lie in front of brokers' logs, or also there, and leave the rest."""
    if admin.earlier is None or not open_ranges:
        return
    for tp, found in sorted(admin.earlier.ranges(admin, admin.log_starts(open_ranges)).items()):
        wanted = open_ranges[tp]
        if not found.start <= wanted.start < found.end:
            continue
        part = OffsetRange(wanted.start, min(wanted.end, found.end))
        # Between the archive's last record and the brokers' first ones, no deletion may be missing.
        if part.end < wanted.end:
            admin.earlier.check_seam(admin.alone(), tp)
        for batch in admin.earlier.read(tp, part):
            yield tp, batch
            if tp in enough:
                break
        if tp in enough or part.end == wanted.end:
            del open_ranges[tp]
        else:
            open_ranges[tp] = OffsetRange(part.end, wanted.end)


def _from_brokers(
    admin: Admin, open_ranges: dict[TopicPartition, OffsetRange], enough: Container[TopicPartition]
) -> Iterator[tuple[TopicPartition, list[RawFields]]]:
    consumer = RecordConsumer(admin.kafka.with_defaults(UP_TO_AN_END))
    try:
        consumer.assign({tp: r.start for tp, r in open_ranges.items()})
        silent = 0
        while open_ranges:
            polled = consumer.poll(_BATCH, _POLL_SECONDS)
            silent = 0 if polled.records or polled.ends else silent + 1
            # Raises if the last records have been deleted meanwhile: they would never arrive.
            if silent and silent % _SILENT_POLLS == 0:
                check_ranges(admin, {tp: OffsetRange(r.end - 1, r.end) for tp, r in open_ranges.items()})
            if silent > _LOST_POLLS:
                waiting = ", ".join(map(str, sorted(open_ranges)))
                message = f"Brokers returned no records of {waiting} for {_LOST_POLLS * _POLL_SECONDS:.0f} s"
                raise BrokerError(message, retriable=True)
            # The last offsets may have no records: they are transaction markers, or gaps of compaction. So the end of the
            # log counts as well.
            done = [tp for tp, end in polled.ends.items() if tp in open_ranges and end >= open_ranges[tp].end]
            for tp, records in polled.records.items():
                if tp not in open_ranges:
                    continue
                end = open_ranges[tp].end
                last = records[-1][RAW_OFFSET]
                if last >= end - 1:
                    done.append(tp)
                yield tp, records if last < end else [r for r in records if r[RAW_OFFSET] < end]
            done += [tp for tp in open_ranges if tp in enough and tp not in done]
            consumer.unassign(done)
            for tp in done:
                open_ranges.pop(tp, None)
    finally:
        consumer.close()
