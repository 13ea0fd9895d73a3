"""Levels and slices that are processed at one time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverrun import LONG, STRING, Consumed, Grouped, Materialized, Produced, StreamsBuilder
from riverrun.spark.unfinished import steps
from riverrun.topology.grouping import loops

if TYPE_CHECKING:
    from riverrun import Topology

STORED: Materialized[str, str] = Materialized(key_serde=STRING, value_serde=STRING)


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
    assert loops(builder.build().sub_topologies()) == ()


def test_a_sub_topology_that_reads_what_it_writes_is_a_loop() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", Consumed(STRING, STRING))
    counts = stream.group_by(lambda _k, v: v, Grouped(STRING, STRING)).count().to_stream().map_values(str)
    counts.merge(stream).to("out", Produced(STRING, STRING))
    topology = builder.build()
    assert loops(topology.sub_topologies()) == ((0,),)
    assert steps(topology.levels(), 2) == [((0, 0),), ((0, 1),)]
