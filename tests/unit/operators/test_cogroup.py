"""Streams aggregated together. Values are those of Kafka Streams' CogroupedKStreamImplTest and its windowed twin."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import (
    STRING,
    BufferConfig,
    Consumed,
    Grouped,
    Materialized,
    Named,
    Produced,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    session_windowed,
    windowed,
)
from riverrun.testing import TopologyTestDriver
from tests.presence import present

if TYPE_CHECKING:
    from riverrun.topology.topology import Topology

STRINGS: Consumed[str, str] = Consumed(STRING, STRING)
TEXT: Produced[str, str] = Produced(STRING, STRING)
AS_TEXT: Materialized[str, str] = Materialized(value_serde=STRING)
SIZE = timedelta(milliseconds=500)


def append(_key: str, value: str, aggregate: str) -> str:
    return aggregate + value


def add(_key: str, value: str, aggregate: str) -> str:
    return f"{aggregate}+{value}"


def remove(_key: str, value: str, aggregate: str) -> str:
    return f"{aggregate}-{value}"


def merged(_key: str, one: str, two: str) -> str:
    return f"{one}+{two}"


def run(topology: Topology, given: list[tuple[str, str, str | None, int]]) -> list[tuple[Any, ...]]:
    with TopologyTestDriver(topology) as driver:
        for topic, key, value, timestamp in given:
            driver.input_topic(topic, STRING, STRING).pipe_input(key, value, timestamp=timestamp)
        records = driver.output_topic("output", STRING, STRING).read_records_to_list()
    return [(r.key, r.value, r.timestamp) for r in records]


def test_three_streams_share_one_aggregate_per_key() -> None:
    builder = StreamsBuilder()
    one, two, three = (builder.stream(name, STRINGS).group_by_key() for name in ("one", "two", "three"))
    table = one.cogroup(append).cogroup(two, append).cogroup(three, append).aggregate(lambda: "", AS_TEXT)
    table.to_stream().to("output", TEXT)
    given: list[tuple[str, str, str | None, int]] = [
        ("one", "k1", "A", 0),
        ("one", "k2", "A", 1),
        ("one", "k1", "A", 10),
        ("one", "k2", "A", 100),
        ("two", "k2", "B", 100),
        ("two", "k2", "B", 200),
        ("two", "k1", "B", 1),
        ("two", "k2", "B", 500),
        ("three", "k1", "B", 500),
        ("three", "k2", "B", 500),
        ("three", "k3", "B", 500),
        ("three", "k2", None, 100),
    ]
    assert run(builder.build(), given) == [
        ("k1", "A", 0),
        ("k2", "A", 1),
        ("k1", "AA", 10),
        ("k2", "AA", 100),
        ("k2", "AAB", 100),
        ("k2", "AABB", 200),
        ("k1", "AAB", 10),
        ("k2", "AABBB", 500),
        ("k1", "AABB", 500),
        ("k2", "AABBBB", 500),
        ("k3", "B", 500),
    ]


def test_each_stream_has_an_aggregator_of_its_own() -> None:
    builder = StreamsBuilder()
    one, two = (builder.stream(name, STRINGS).group_by_key() for name in ("one", "two"))
    table = (
        one.cogroup(remove).cogroup(two, add).aggregate(lambda: "0", Materialized(name="store1", value_serde=STRING))
    )
    table.to_stream().to("output", TEXT)
    given: list[tuple[str, str, str | None, int]] = [
        ("one", "k1", "1", 0),
        ("one", "k2", "1", 1),
        ("one", "k1", "1", 10),
        ("one", "k2", "1", 100),
        ("two", "k1", "2", 500),
        ("two", "k2", "2", 500),
        ("two", "k1", "2", 500),
        ("two", "k2", "2", 100),
    ]
    assert run(builder.build(), given) == [
        ("k1", "0-1", 0),
        ("k2", "0-1", 1),
        ("k1", "0-1-1", 10),
        ("k2", "0-1-1", 100),
        ("k1", "0-1-1+2", 500),
        ("k2", "0-1-1+2", 500),
        ("k1", "0-1-1+2+2", 500),
        ("k2", "0-1-1+2+2", 500),
    ]


def test_a_stream_that_is_added_again_keeps_its_place_and_has_the_new_aggregator() -> None:
    builder = StreamsBuilder()
    one, two = (builder.stream(name, STRINGS).group_by_key() for name in ("one", "two"))
    both = one.cogroup(remove).cogroup(two, add).cogroup(one, append)
    both.aggregate(lambda: "0", AS_TEXT, named=Named("n")).to_stream().to("output", TEXT)
    topology = builder.build()
    described = [line.strip() for line in str(topology.describe()).splitlines()]
    assert described[described.index("Source: KSTREAM-SOURCE-0000000000 (topics: [one])") + 1] == "--> n-cogroup-agg-0"
    assert described[described.index("Source: KSTREAM-SOURCE-0000000001 (topics: [two])") + 1] == "--> n-cogroup-agg-1"
    assert run(topology, [("two", "k", "2", 0), ("one", "k", "1", 1)]) == [("k", "0+2", 0), ("k", "0+21", 1)]


def test_windows_are_shared_by_all_streams() -> None:
    builder = StreamsBuilder()
    one, two = (builder.stream(name, STRINGS).group_by_key() for name in ("one", "two"))
    table = one.cogroup(add).cogroup(two, remove).windowed_by(TimeWindows.of(SIZE)).aggregate(lambda: "0", AS_TEXT)
    table.to_stream().to("output", Produced(windowed(STRING), STRING))
    with TopologyTestDriver(builder.build()) as driver:
        given = [("k1", 0), ("k2", 0), ("k2", 1), ("k1", 2), ("k1", 503)]
        for key, timestamp in given:
            driver.input_topic("one", STRING, STRING).pipe_input(key, "A", timestamp=timestamp)
        for key, timestamp in [("k1", 503), ("k2", 504), ("k2", 3)]:
            driver.input_topic("two", STRING, STRING).pipe_input(key, "B", timestamp=timestamp)
        found = driver.output_topic("output", windowed(STRING, SIZE), STRING).read_records_to_list()
    assert [(str(r.key), r.value, r.timestamp) for r in found] == [
        ("[k1@0/500]", "0+A", 0),
        ("[k2@0/500]", "0+A", 0),
        ("[k2@0/500]", "0+A+A", 1),
        ("[k1@0/500]", "0+A+A", 2),
        ("[k1@500/1000]", "0+A", 503),
        ("[k1@500/1000]", "0+A-B", 503),
        ("[k2@500/1000]", "0-B", 504),
    ]


def test_sliding_windows_are_shared_by_all_streams() -> None:
    builder = StreamsBuilder()
    one, two = (builder.stream(name, STRINGS).group_by_key() for name in ("one", "two"))
    windows = SlidingWindows.of(SIZE, grace=timedelta(seconds=2))
    table = one.cogroup(add).cogroup(two, remove).windowed_by(windows).aggregate(lambda: "0", AS_TEXT)
    table.to_stream().to("output", Produced(windowed(STRING), STRING))
    with TopologyTestDriver(builder.build()) as driver:
        for topic, value, timestamp in [("one", "A", 500), ("two", "B", 750), ("one", "A", 1000)]:
            driver.input_topic(topic, STRING, STRING).pipe_input("k1", value, timestamp=timestamp)
        found = driver.output_topic("output", windowed(STRING, SIZE), STRING).read_records_to_list()
    assert [(str(r.key), r.value, r.timestamp) for r in found] == [
        ("[k1@0/500]", "0+A", 500),
        ("[k1@501/1001]", "0-B", 750),
        ("[k1@250/750]", "0+A-B", 750),
        ("[k1@501/1001]", "0-B+A", 1000),
        ("[k1@751/1251]", "0+A", 1000),
        ("[k1@500/1000]", "0+A-B+A", 1000),
    ]


def test_sessions_are_shared_by_all_streams() -> None:
    builder = StreamsBuilder()
    one, two = (builder.stream(name, STRINGS).group_by_key() for name in ("one", "two"))
    windows = SessionWindows.of(timedelta(milliseconds=100), grace=timedelta(days=1))
    table = one.cogroup(add).cogroup(two, remove).windowed_by(windows).aggregate(lambda: "0", merged, AS_TEXT)
    table.to_stream().to("output", Produced(session_windowed(STRING), STRING))
    given: list[tuple[str, str, str, int]] = [
        ("one", "k1", "A", 0),
        ("one", "k2", "A", 0),
        ("one", "k2", "A", 1),
        ("one", "k1", "A", 2),
        ("two", "k1", "B", 3),
        ("two", "k2", "B", 3),
        ("two", "k2", "B", 444),
        ("two", "k1", "B", 444),
    ]
    with TopologyTestDriver(builder.build()) as driver:
        for topic, key, value, timestamp in given:
            driver.input_topic(topic, STRING, STRING).pipe_input(key, value, timestamp=timestamp)
        found = driver.output_topic("output", session_windowed(STRING), STRING).read_records_to_list()
    assert [(present(r.key).key, r.value, r.timestamp) for r in found] == [
        ("k1", "0+A", 0),
        ("k2", "0+A", 0),
        ("k2", None, 0),
        ("k2", "0+0+A+A", 1),
        ("k1", None, 0),
        ("k1", "0+0+A+A", 2),
        ("k1", None, 2),
        ("k1", "0+0+0+A+A-B", 3),
        ("k2", None, 1),
        ("k2", "0+0+0+A+A-B", 3),
        ("k2", "0-B", 444),
        ("k1", "0-B", 444),
    ]


def test_windows_of_several_streams_can_be_held_back_until_they_close() -> None:
    builder = StreamsBuilder()
    one, two = (builder.stream(name, STRINGS).group_by_key() for name in ("one", "two"))
    table = one.cogroup(add).cogroup(two, remove).windowed_by(TimeWindows.of(SIZE)).aggregate(lambda: "0", AS_TEXT)
    final = table.suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
    final.to_stream(lambda k, _v: k.key).to("output", TEXT)
    given: list[tuple[str, str, str | None, int]] = [("one", "k", "A", 0), ("two", "k", "B", 1), ("one", "k", "A", 500)]
    assert run(builder.build(), given) == [("k", "0+A-B", 1)]


@pytest.mark.parametrize("windows", [SlidingWindows.of(SIZE, grace=SIZE), SessionWindows.of(SIZE, grace=SIZE)])
def test_so_can_windows_of_every_other_kind(windows: Any) -> None:
    builder = StreamsBuilder()
    one, two = (builder.stream(name, STRINGS).group_by_key() for name in ("one", "two"))
    merger = [lambda _k, left, right: left + right] if isinstance(windows, SessionWindows) else []
    table: Any = one.cogroup(add).cogroup(two, remove).windowed_by(windows)
    table = table.aggregate(lambda: "0", *merger, AS_TEXT)
    table.suppress(Suppressed.until_window_closes(BufferConfig.unbounded())).to_stream(lambda k, _v: k.key).to(
        "output", TEXT
    )
    given: list[tuple[str, str, str | None, int]] = [("one", "k", "A", 500), ("two", "k", "x", 5_000)]
    assert run(builder.build(), given) == [("k", "0+A", 500)]


def test_a_stream_with_new_keys_is_repartitioned_under_the_stores_name() -> None:
    builder = StreamsBuilder()
    one, two = builder.stream("one", STRINGS), builder.stream("two", STRINGS)
    changed = one.map(lambda k, v: (v, k)).group_by_key(Grouped(STRING, STRING))
    table = changed.cogroup(append).cogroup(two.group_by_key(), append)
    table.aggregate(lambda: "", Materialized(name="store", value_serde=STRING), named=Named("test")).to_stream().to(
        "output", TEXT
    )
    topology = builder.build()
    assert (
        topology.describe()
        == """Topologies:
   Sub-topology: 0
    Source: KSTREAM-SOURCE-0000000000 (topics: [one])
      --> KSTREAM-MAP-0000000002
    Processor: KSTREAM-MAP-0000000002 (stores: [])
      --> store-repartition-filter
      <-- KSTREAM-SOURCE-0000000000
    Processor: store-repartition-filter (stores: [])
      --> store-repartition-sink
      <-- KSTREAM-MAP-0000000002
    Sink: store-repartition-sink (topic: store-repartition)
      <-- store-repartition-filter

  Sub-topology: 1
    Source: KSTREAM-SOURCE-0000000001 (topics: [two])
      --> test-cogroup-agg-1
    Source: store-repartition-source (topics: [store-repartition])
      --> test-cogroup-agg-0
    Processor: test-cogroup-agg-0 (stores: [store])
      --> test-cogroup-merge
      <-- store-repartition-source
    Processor: test-cogroup-agg-1 (stores: [store])
      --> test-cogroup-merge
      <-- KSTREAM-SOURCE-0000000001
    Processor: test-cogroup-merge (stores: [])
      --> KTABLE-TOSTREAM-0000000009
      <-- test-cogroup-agg-0, test-cogroup-agg-1
    Processor: KTABLE-TOSTREAM-0000000009 (stores: [])
      --> KSTREAM-SINK-0000000010
      <-- test-cogroup-merge
    Sink: KSTREAM-SINK-0000000010 (topic: output)
      <-- KTABLE-TOSTREAM-0000000009

"""
    )
    assert topology.copartitioned_topics() == (frozenset({"two", "store-repartition"}),)
    assert run(topology, [("one", "a", "k", 1), ("two", "k", "b", 2)]) == [("k", "a", 1), ("k", "ab", 2)]


def test_unnamed_nodes_and_topics_get_the_numbers_kafka_streams_gives_them() -> None:
    builder = StreamsBuilder()
    one, two = builder.stream("one", STRINGS), builder.stream("two", STRINGS)
    grouped = one.map(lambda k, v: (v, k)).group_by_key(Grouped(STRING, STRING, name="repartition-test"))
    grouped.cogroup(append).cogroup(two.group_by_key(), append).aggregate(lambda: "", AS_TEXT).to_stream().to(
        "output", TEXT
    )
    topology = builder.build()
    assert list(topology.stores) == ["COGROUPKSTREAM-AGGREGATE-STATE-STORE-0000000003"]
    assert list(topology.nodes)[-5:] == [
        "COGROUPKSTREAM-AGGREGATE-0000000007",
        "COGROUPKSTREAM-AGGREGATE-0000000008",
        "COGROUPKSTREAM-MERGE-0000000009",
        "KTABLE-TOSTREAM-0000000010",
        "KSTREAM-SINK-0000000011",
    ]


def test_two_aggregations_of_the_same_streams_share_the_repartition_topic() -> None:
    builder = StreamsBuilder()
    grouped = builder.stream("one", STRINGS).group_by(lambda _k, v: v, Grouped(STRING, STRING))
    cogrouped = grouped.cogroup(append)
    cogrouped.aggregate(lambda: "", Materialized(name="first", value_serde=STRING))
    cogrouped.aggregate(lambda: "", Materialized(name="second", value_serde=STRING))
    topology = builder.build()
    assert list(topology.repartition_topics) == ["first-repartition"]
    assert list(topology.stores) == ["first", "second"]
