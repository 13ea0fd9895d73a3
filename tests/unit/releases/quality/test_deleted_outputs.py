"""Records of public topics that were deleted before a check of the records since an earlier one."""

from __future__ import annotations

import pytest

from riverrun.records import OffsetVector, TopicPartition
from riverrun.releases.live_quality import unread_verdict

ONE, TWO = TopicPartition("out", 0), TopicPartition("out", 1)


@pytest.mark.parametrize(
    ("start", "first", "gone"),
    [
        ({ONE: 5}, {ONE: 5, TWO: 0}, ""),
        ({ONE: 5, TWO: 2}, {ONE: 7, TWO: 2}, "out-0@5..7"),
        ({ONE: 0, TWO: 2}, {ONE: 7, TWO: 3}, "out-0@0..7, out-1@2..3"),
        ({}, {ONE: 7}, ""),
        ({TopicPartition("other", 0): 1}, {ONE: 7}, ""),
    ],
)
def test_records_that_nobody_judged_before_they_were_deleted_are_a_warning(
    start: dict[TopicPartition, int], first: dict[TopicPartition, int], gone: str
) -> None:
    found = unread_verdict("out", OffsetVector(start), first)
    assert bool(found.warnings) == bool(gone)
    assert gone in str(found.outcomes)
