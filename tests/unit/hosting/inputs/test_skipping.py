"""A skip of one record, where hundreds share an offset."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from riverrun.hosting.skipping import _skip
from riverrun.kafka.admin import CommittedOffset
from riverrun.records import RawRecord, TaskId, TopicPartition
from riverrun.runtime.packs import pack_header, packed
from riverrun.runtime.times import OffsetMetadata

if TYPE_CHECKING:
    from riverrun.hosting.skipping import Skip

TP = TopicPartition("clicks-v1-by-page-repartition", 0)
VALUES = [b"0", b"1", b"2"]
PACK = RawRecord(
    None, packed([b"k"] * 3, VALUES, [10, 11, 12], [(), (("h", b"x"),), ()]), 12, 7, pack_header(TaskId(0, 0))
)


def skipped(committed: CommittedOffset | None) -> Skip:
    return _skip(TaskId(1, 0), TP, PACK, committed, is_internal=True)


@pytest.mark.parametrize(
    ("committed", "value", "offset", "taken"),
    [
        (None, b"0", 7, 1),
        (CommittedOffset(5, OffsetMetadata(9, taken=2).encode()), b"0", 7, 1),  # of another pack: markers lie between
        (CommittedOffset(7, OffsetMetadata(9, taken=1).encode()), b"1", 7, 2),
        (CommittedOffset(7, OffsetMetadata(9, taken=2).encode()), b"2", 8, 0),
    ],
)
def test_of_a_pack_the_next_record_is_skipped_and_those_behind_stay(
    committed: CommittedOffset | None, value: bytes, offset: int, taken: int
) -> None:
    found = skipped(committed)
    assert (found.record.value, found.offset, OffsetMetadata.decode(found.metadata).taken) == (value, offset, taken)


def test_the_letter_of_a_record_in_a_pack_has_its_own_key_time_and_headers() -> None:
    record = skipped(CommittedOffset(7, OffsetMetadata(9, taken=1).encode())).record
    assert record == RawRecord(b"k", b"1", 11, 7, (("h", b"x"),))


def test_the_times_that_are_committed_beside_an_offset_stay_as_they_are() -> None:
    before = OffsetMetadata(42, times={"late": 40}, taken=1)
    found = skipped(CommittedOffset(7, before.encode()))
    assert OffsetMetadata.decode(found.metadata) == OffsetMetadata(42, times={"late": 40}, taken=2)
