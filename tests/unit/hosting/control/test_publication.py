"""Checks what the metadata of a committed offset says about marks."""

from __future__ import annotations

from riverrun.hosting.publication import acknowledged_mark
from riverrun.runtime.times import OffsetMetadata


def test_metadata_tell_for_which_mark_a_task_holds_and_how_far_it_is() -> None:
    metadata = OffsetMetadata(100, {"user's": 7}, taken=3, times={"s": 5}, next_time=9, mark=("m-1", 2))
    assert acknowledged_mark(metadata.encode()) == ("m-1", 2)
    assert OffsetMetadata.decode(metadata.encode()) == metadata


def test_metadata_of_a_task_that_does_not_hold_name_no_mark() -> None:
    assert acknowledged_mark(OffsetMetadata(100, {"user's": 7}).encode()) is None
    assert acknowledged_mark("") is None
    assert acknowledged_mark("not ours") is None
