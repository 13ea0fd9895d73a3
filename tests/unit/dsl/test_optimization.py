"""`topology.optimization`; what Kafka Streams makes of whole topologies is compared in tests/oracle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from riverrun import (
    LONG,
    STRING,
    ConfigError,
    Consumed,
    Grouped,
    JoinWindows,
    Materialized,
    Produced,
    Repartitioned,
    Stores,
    StreamJoined,
    StreamsBuilder,
    TopicPartition,
)
from riverrun.config import Optimization, StreamsConfig
from riverrun.processor.api import Processor
from riverrun.records import RawRecord, Record, TaskId
from riverrun.runtime.layout import TaskSpec, plan_layout
from riverrun.runtime.ports import Ports
from riverrun.runtime.task import Task
from riverrun.state.memory import MemoryBackend
from riverrun.testing import TopologyTestDriver
from riverrun.testing.driver import MemoryTopics, MockClock
from tests.changelogs import Batch
from tests.presence import present

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun import KStream, Topology

TEXTS: Consumed[str, str] = Consumed(STRING, STRING)
COUNTS: Produced[str, int] = Produced(STRING, LONG)
BY_TEXT: Grouped[str, str] = Grouped(STRING, STRING)


def by_first_letter(builder: StreamsBuilder) -> KStream[str, str]:
    return builder.stream("in", TEXTS).select_key(lambda _k, v: v[0]).filter(lambda _k, v: len(v) > 1)


def two_counts(optimization: str) -> Topology:
    builder = StreamsBuilder()
    filtered = by_first_letter(builder)
    filtered.peek(lambda _k, _v: None).group_by_key(BY_TEXT).count(Materialized(STRING, name="one")).to_stream().to(
        "ones", COUNTS
    )
    filtered.group_by_key(BY_TEXT).count(Materialized(STRING, name="two")).to_stream().to("twos", COUNTS)
    return builder.build(optimization=optimization)


def results(topology: Topology) -> dict[str, list[tuple[str, int]]]:
    with TopologyTestDriver(topology) as driver:
        for value in ("apple", "a", "axe", "bee"):
            driver.input_topic("in", STRING, STRING).pipe_input("k", value)
        return {
            topic: [
                (present(r.key), present(r.value))
                for r in driver.output_topic(topic, STRING, LONG).read_records_to_list()
            ]
            for topic in ("ones", "twos")
        }


def test_nothing_is_optimised_unless_it_is_asked_for() -> None:
    builder = StreamsBuilder()
    builder.table("in", TEXTS, Materialized(name="kept"))
    assert builder.build().stores["kept"].logging
    assert len(two_counts("none").repartition_topics) == 2


def test_streams_below_a_filter_share_a_repartition_topic_unlike_kafka_streams() -> None:
    topology = two_counts("all")
    assert list(topology.repartition_topics) == ["one-repartition"]
    assert results(topology) == results(two_counts("none"))


def test_a_repartition_is_not_moved_above_a_processor_that_may_change_keys() -> None:
    class Upper(Processor[str, str]):
        def process(self, record: Record[str, str]) -> None: ...

    builder = StreamsBuilder()
    rekeyed = by_first_letter(builder)
    rekeyed.group_by_key(BY_TEXT).count(Materialized(STRING, name="one"))
    for stream in (rekeyed.process(Upper), rekeyed.map_values(str)):
        stream.to_table(Materialized(STRING, STRING))
    assert len(builder.build(optimization="merge.repartition.topics").repartition_topics) == 3


def test_a_builder_can_be_built_more_than_once() -> None:
    builder = StreamsBuilder()
    by_first_letter(builder).group_by_key(BY_TEXT).count(Materialized(STRING)).to_stream().to("out", COUNTS)
    builder.table("table", TEXTS, Materialized(name="kept"))
    plain, optimised = builder.build(), builder.build(optimization="all")
    assert builder.build().describe() == plain.describe() != optimised.describe()
    assert builder.build(optimization="all").describe() == optimised.describe()
    assert plain.stores["kept"].logging
    assert not optimised.stores["kept"].logging


def test_a_table_comes_back_from_its_topic_as_far_as_that_is_committed() -> None:
    builder = StreamsBuilder()
    builder.table("in", TEXTS, Materialized(name="kept")).to_stream().to("out", Produced(STRING, STRING))
    topology = builder.build(optimization="reuse.ktable.source.topics")
    assert plan_layout(topology, "app", {"in": 1}).changelog_topics == ()
    source = TopicPartition("in", 0)
    spec = TaskSpec(TaskId(0, 0), topology.sub_topologies()[0], "app", (source,))
    topics = MemoryTopics()
    task = Task(spec, Ports(topics, MemoryBackend(), MockClock()))
    assert task.restore_starts() == {source: 0}
    log = [RawRecord(b"a", b"x", 1, 0), RawRecord(None, b"y", 2, 1), RawRecord(b"b", b"z", 3, 2)]
    task.restore(source, Batch(log), 3)
    task.start({source: (3, "")})
    assert [(key, *value) for key, value in task.store("kept").all()] == [("a", "x", 1), ("b", "z", 3)]
    assert topics.logs == {}


def test_the_rules_are_those_of_kafka_streams() -> None:
    for text, rules in [
        ("none", set()),
        ("all", set(Optimization)),
        ("reuse.ktable.source.topics", {Optimization.REUSE_KTABLE_SOURCE_TOPICS}),
        (
            "merge.repartition.topics,single.store.self.join",
            {Optimization.MERGE_REPARTITION_TOPICS, Optimization.SINGLE_STORE_SELF_JOIN},
        ),
    ]:
        assert StreamsConfig(topology_optimization=text).topology_config.optimization == rules


@pytest.mark.parametrize("text", ["", "none,all", "all,single.store.self.join", "faster"])
def test_other_rules_are_refused(text: str) -> None:
    builder = StreamsBuilder().add_state_store(Stores.key_value_store("s", STRING, STRING))
    with pytest.raises(ConfigError, match=r"is not a value of topology\.optimization"):
        builder.build(optimization=text)


def windows_kept(topology: Topology) -> int:
    """How many nodes keep records of a stream for a join: one of a join with itself, two of each other one."""
    return sum("KSTREAM-WINDOWED" in name for name in topology.nodes)


def joined(one: KStream[str, str], *others: KStream[str, str]) -> KStream[str, str]:
    for other in others:
        one = one.join(other, max, JoinWindows(100, 100), joined=StreamJoined(STRING, STRING, STRING))
    return one


def with_itself(stream: KStream[str, str]) -> KStream[str, str]:
    return joined(stream, stream)


SELF_JOINS: dict[str, tuple[Callable[[Callable[[str], KStream[str, str]]], object], int]] = {
    "one stream": (lambda read: with_itself(read("t1")), 1),
    "two streams of a topic": (lambda read: joined(read("t1"), read("t1")), 1),
    "a merged stream": (lambda read: with_itself(read("t1").merge(read("t2"))), 1),
    "and then with another topic": (lambda read: joined(read("t1"), read("t1"), read("t3")), 3),
    "and then with the topic again": (lambda read: joined(read("t1"), read("t1"), read("t1")), 3),
    "two topics, each by itself": (
        lambda read: joined(read("t1"), read("t1")).merge(joined(read("t2"), read("t2"))),
        2,
    ),
    "a topic twice": (lambda read: [joined(read("t1"), read("t1")) for _ in range(2)], 2),
    "a filter beside it": (lambda read: (read("t1").filter(lambda _k, _v: True), joined(read("t1"), read("t1"))), 1),
    "a filter above it": (lambda read: joined(read("t1").filter(lambda _k, _v: True), read("t1")), 2),
    "values changed above it": (lambda read: joined(read("t1").map_values(str.upper), read("t1")), 2),
    "two topics": (lambda read: joined(read("t1"), read("t2")), 2),
}


@pytest.mark.parametrize("streams", SELF_JOINS)
def test_a_join_keeps_one_stream_if_both_are_the_same(streams: str) -> None:
    join, expected = SELF_JOINS[streams]
    builder = StreamsBuilder()
    join(lambda topic: builder.stream(topic, TEXTS))
    assert windows_kept(builder.build(optimization="all")) == expected
    assert windows_kept(builder.build(optimization="single.store.self.join")) == expected


def test_a_join_of_a_stream_with_itself_keeps_both_sides_without_the_rule() -> None:
    builder = StreamsBuilder()
    with_itself(builder.stream("t1", TEXTS))
    assert windows_kept(builder.build(optimization="reuse.ktable.source.topics,merge.repartition.topics")) == 2


@pytest.mark.parametrize("rekeyed", ["left", "right"])
def test_aggregations_of_a_merged_stream_share_a_repartition_topic(rekeyed: str) -> None:
    builder = StreamsBuilder()
    streams = {name: builder.stream(name, TEXTS) for name in ("left", "right")}
    streams[rekeyed] = streams[rekeyed].select_key(lambda _k, v: v).filter(lambda _k, v: bool(v))
    grouped = streams["left"].merge(streams["right"]).group_by_key(BY_TEXT)
    grouped.count(Materialized(name="count-store"))
    grouped.aggregate(str, lambda k, _v, _a: k, Materialized(STRING, STRING, name="latest-store"))
    assert len(builder.build(optimization="all").repartition_topics) == 1


@pytest.mark.parametrize("optimization", ["none", "all"])
def test_a_repartition_that_was_asked_for_is_not_merged_with_others(optimization: str) -> None:
    builder = StreamsBuilder()
    rekeyed = by_first_letter(builder)
    rekeyed.repartition(Repartitioned(STRING, STRING)).group_by_key(BY_TEXT).count()
    rekeyed.repartition(Repartitioned(STRING, STRING)).group_by_key(BY_TEXT).count()
    assert len(builder.build(optimization=optimization).repartition_topics) == 2


def test_a_repartition_topic_is_no_changelog() -> None:
    builder = StreamsBuilder()
    builder.stream("in", TEXTS).repartition(Repartitioned(STRING, STRING)).to_table(Materialized(name="kept"))
    layout = plan_layout(builder.build(optimization="all"), "app", {"in": 1})
    assert [topic.name for topic in layout.changelog_topics] == ["app-kept-changelog"]
