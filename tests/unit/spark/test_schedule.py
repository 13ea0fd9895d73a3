"""Which levels and slices are processed at the same time, and what is left of a run that was interrupted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pipeline import LONG, STRING, Consumed, Grouped, Materialized, Produced, StreamsBuilder
from pipeline.records import OffsetRange, TopicPartition
from pipeline.spark.schedule import remaining, steps

if TYPE_CHECKING:
    from pipeline import Topology
    from pipeline.spark.schedule import Slice

STORED: Materialized[str, str] = Materialized(key_serde=STRING, value_serde=STRING)
A, B = TopicPartition("in", 0), TopicPartition("in", 1)


def part(a: tuple[int, int], b: tuple[int, int]) -> Slice:
    return {A: OffsetRange(*a), B: OffsetRange(*b)}


SLICES = [part((0, 10), (0, 20)), part((10, 30), (20, 20)), part((30, 40), (20, 50))]


def counted() -> Topology:
    builder = StreamsBuilder()
    by_value = builder.stream("in", Consumed(STRING, STRING)).group_by(lambda _k, v: v, Grouped(STRING, STRING))
    by_count = by_value.count().to_stream().map(lambda k, v: (str(v), k)).group_by_key(Grouped(STRING, STRING))
    by_count.count().to_stream().to("out", Produced(STRING, LONG))
    return builder.build()


def test_a_level_works_on_a_slice_while_the_level_above_works_on_the_next() -> None:
    levels = counted().levels()
    assert len(levels) == 3
    assert steps(levels, 2) == [((0, 0),), ((0, 1), (1, 0)), ((1, 1), (2, 0)), ((2, 1),)]
    assert steps(levels, 0) == []


def test_levels_that_ask_each_other_follow_one_another() -> None:
    builder = StreamsBuilder()
    left, right = builder.table("left", Consumed(STRING, STRING)), builder.table("right", Consumed(STRING, STRING))
    joined = left.join(right, lambda one, two: one + two, STORED, foreign_key_extractor=lambda v: v)
    joined.group_by(lambda k, v: (v, k), Grouped(STRING, STRING)).count()
    levels = builder.build().levels()
    assert steps(levels, 2) == [((level, number),) for number in range(2) for level in range(len(levels))]


def test_a_run_that_nobody_has_begun_has_all_its_slices() -> None:
    assert remaining(SLICES, {}) == SLICES
    assert remaining(SLICES, {A: 0, B: 0}) == SLICES
    assert remaining([], {A: 5}) == []


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
    assert remaining(SLICES, committed) == left


def test_an_offset_that_no_slice_of_the_run_ends_at_is_left_for_the_task_to_refuse() -> None:
    assert remaining(SLICES, {A: 7}) == [part((0, 10), (0, 20)), *SLICES[1:]]
