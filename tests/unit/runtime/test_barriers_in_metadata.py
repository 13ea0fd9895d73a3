"""Checks what the metadata of a committed offset says about barriers."""

from __future__ import annotations

from riverrun.runtime.times import OffsetMetadata


def test_metadata_tell_at_which_barrier_a_task_pauses_and_how_far_it_is() -> None:
    metadata = OffsetMetadata(100, {"user's": 7}, taken=3, times={"s": 5}, next_time=9, barrier=("m-1", 2))
    assert OffsetMetadata.decode(metadata.encode()).barrier == ("m-1", 2)
    assert OffsetMetadata.decode(metadata.encode()) == metadata


def test_metadata_of_a_task_that_does_not_pause_name_no_barrier() -> None:
    assert OffsetMetadata.decode(OffsetMetadata(100, {"user's": 7}).encode()).barrier is None
    assert OffsetMetadata.decode("").barrier is None
    assert OffsetMetadata.decode("not ours").barrier is None
