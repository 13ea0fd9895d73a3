"""Traces of interrupted runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from riverrun.errors import BegunRangeError
from riverrun.records import OffsetRange, TopicPartition
from riverrun.spark.ranges import RunRange
from riverrun.spark.slices import Slices
from riverrun.spark.unfinished import InterruptedRun, cut_as_begun, is_over, left_of_begun, left_of_cut

if TYPE_CHECKING:
    from riverrun.spark.unfinished import Slice

A, B = TopicPartition("in", 0), TopicPartition("in", 1)


def part(a: tuple[int, int], b: tuple[int, int]) -> Slice:
    return {A: OffsetRange(*a), B: OffsetRange(*b)}


SLICES = [part((0, 10), (0, 20)), part((10, 30), (20, 20)), part((30, 40), (20, 50))]


def test_a_run_that_nobody_has_begun_has_all_its_slices() -> None:
    assert left_of_cut(SLICES, {}) == SLICES
    assert left_of_cut(SLICES, {A: 0, B: 0}) == SLICES
    assert left_of_cut([], {A: 5}) == []


@pytest.mark.parametrize(
    ("committed", "left"),
    [
        ({A: 10}, [part((10, 10), (0, 20)), *SLICES[1:]]),
        ({A: 10, B: 20}, [part((10, 10), (20, 20)), *SLICES[1:]]),
        ({A: 30, B: 20}, [part((30, 30), (20, 20)), SLICES[2]]),
        ({A: 30, B: 0}, [part((30, 30), (0, 20)), SLICES[2]]),
        ({A: 10, B: 50}, [part((10, 40), (50, 50))]),
        ({A: 40, B: 50}, [part((40, 40), (50, 50))]),
        ({A: 99, B: 99}, [part((40, 40), (50, 50))]),
    ],
)
def test_what_was_begun_is_finished_as_one_slice(committed: dict[TopicPartition, int], left: list[Slice]) -> None:
    assert left_of_cut(SLICES, committed) == left


def test_what_is_committed_within_a_slice_is_not_processed_again() -> None:
    assert left_of_cut(SLICES, {A: 7}) == [part((7, 10), (0, 20)), *SLICES[1:]]


BEGUN = part((0, 10), (0, 20))


@pytest.mark.parametrize(
    ("wanted", "committed", "first"),
    [
        (part((10, 40), (0, 50)), {A: 10}, part((10, 10), (0, 20))),  # each writer goes to the end of what was begun
        (part((10, 40), (20, 50)), {A: 10, B: 20}, part((10, 10), (20, 20))),  # readers of repartition topics have to
        (part((0, 40), (0, 50)), {A: 10}, part((10, 10), (0, 20))),  # the same range again
        (part((10, 40), (25, 50)), {A: 10, B: 25}, part((10, 10), (25, 25))),  # a worker went on with one
        (part((0, 40), (0, 50)), {}, None),  # nobody has done anything
        (part((0, 10), (0, 20)), {A: 10, B: 20}, part((10, 10), (20, 20))),  # it is written, but may not be read
    ],
)
def test_what_was_begun_is_finished_first(
    wanted: Slice, committed: dict[TopicPartition, int], first: Slice | None
) -> None:
    assert left_of_begun(wanted, BEGUN, committed) == first


def test_of_a_partition_that_is_new_nothing_was_begun() -> None:
    new = TopicPartition("in", 2)
    wanted = {**part((10, 40), (0, 50)), new: OffsetRange(0, 5)}
    assert left_of_begun(wanted, BEGUN, {A: 10}) == {**part((10, 10), (0, 20)), new: OffsetRange(0, 0)}


@pytest.mark.parametrize(
    ("first", "parts"),
    [
        (part((0, 30), (0, 50)), [part((0, 10), (0, 20)), part((10, 30), (20, 20)), part((30, 30), (20, 50))]),
        (part((10, 30), (20, 50)), [part((10, 10), (20, 20)), part((10, 30), (20, 20)), part((30, 30), (20, 50))]),
        (part((25, 30), (50, 50)), [part((25, 25), (50, 50)), part((25, 30), (50, 50)), part((30, 30), (50, 50))]),
        (part((30, 30), (60, 60)), [part((30, 30), (60, 60))] * 3),  # a worker went on with one
    ],
)
def test_what_was_begun_is_finished_as_it_was_cut(first: Slice, parts: list[Slice]) -> None:
    begun = [part((0, 10), (0, 20)), part((10, 30), (20, 20)), part((30, 30), (20, 50))]
    assert cut_as_begun(first, begun) == parts
    noted = InterruptedRun(RunRange(first), tuple(map(RunRange, begun)), ())
    assert Slices((*parts, SLICES[0]), noted).with_one_begun() == (first, SLICES[0])


def test_a_partition_that_is_new_is_in_no_slice_that_was_begun() -> None:
    new = {TopicPartition("in", 2): OffsetRange(3, 3)}
    assert cut_as_begun({**part((5, 10), (0, 20)), **new}, [BEGUN]) == [{**part((5, 10), (0, 20)), **new}]


def test_a_partition_without_a_commit_stands_where_it_was_begun() -> None:
    begun, committed = part((0, 10), (100, 120)), {A: 10}
    assert left_of_begun(part((10, 40), (100, 150)), begun, committed) == part((10, 10), (100, 120))
    assert is_over(part((10, 10), (100, 100)), begun, committed)


def test_what_was_begun_before_a_reset_counts_no_more() -> None:
    assert left_of_begun(part((0, 40), (3, 50)), part((5, 10), (3, 20)), {A: 0, B: 3}) is None


@pytest.mark.parametrize(
    ("wanted", "committed", "over"),
    [
        (part((0, 5), (0, 3)), {A: 10, B: 3}, True),  # done before that was begun, which is half written
        (part((0, 5), (0, 3)), {A: 10, B: 20}, True),  # and which is written, but not read everywhere
        (part((0, 5), (0, 3)), {A: 5, B: 3}, True),  # and of which nothing is written
        (part((10, 10), (3, 3)), {A: 10, B: 3}, True),  # nothing is asked for, and others are still to write
        (part((10, 10), (20, 20)), {A: 10, B: 20}, False),  # what they have written may be read
        (part((0, 7), (0, 3)), {A: 10, B: 3}, False),  # it ends within what was begun
        (part((0, 5), (0, 3)), {A: 0, B: 0}, False),  # a reset came after that
    ],
)
def test_a_range_is_over_if_it_was_done_before_what_is_begun(
    wanted: Slice, committed: dict[TopicPartition, int], over: bool
) -> None:
    assert is_over(wanted, part((5, 10), (3, 20)), committed) is over


@pytest.mark.parametrize("wanted", [part((10, 10), (20, 20)), part((0, 10), (0, 20)), part((0, 5), (0, 3))])
def test_what_a_worker_left_in_repartition_topics_is_not_over(wanted: Slice) -> None:
    """The work that is begun has no records of inputs, so no later run of inputs finishes it."""
    assert not is_over(wanted, part((10, 10), (20, 20)), {A: 10, B: 20})


def test_a_range_that_ends_within_what_was_begun_is_refused() -> None:
    with pytest.raises(BegunRangeError, match=r"in-1: an unfinished run covers everything up to offset 20"):
        left_of_begun(part((0, 7), (0, 3)), part((5, 10), (3, 20)), {A: 10, B: 3})
    with pytest.raises(BegunRangeError, match=r"in-1: an unfinished run covers everything up to offset 20"):
        left_of_begun(part((10, 40), (0, 15)), BEGUN, {A: 10})
