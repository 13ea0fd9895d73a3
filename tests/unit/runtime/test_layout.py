"""How many partitions the application's own topics get (`RepartitionTopics`, `CopartitionedTopicsEnforcer`)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import (
    STRING,
    Consumed,
    Grouped,
    Materialized,
    Processor,
    Produced,
    Record,
    StoreBuilder,
    Stores,
    StreamsBuilder,
    TableJoined,
    Topology,
    TopologyError,
)
from riverrun.errors import TopicError
from riverrun.runtime.layout import is_internal_topic, plan_layout
from riverrun.topology.nodes import RepartitionTopic

if TYPE_CHECKING:
    from collections.abc import Mapping

THIRTY_SECONDS = timedelta(seconds=30)
WINDOWS: dict[str, Any] = {"retention": THIRTY_SECONDS, "window_size": THIRTY_SECONDS}
LOG_CONFIG = {"min.insync.replicas": "2"}


class Ignore(Processor[str, str]):
    def process(self, record: Record[str, str]) -> None: ...


def add(left: str, right: str) -> str:
    return left + right


def read(topology: Topology, name: str, *topics: str) -> Topology:
    return topology.add_source(name, *topics, key_serde=STRING, value_serde=STRING)


def write(topology: Topology, topic: str, *parents: str) -> Topology:
    return topology.add_sink(f"to-{topic}", topic, *parents, key_serde=STRING, value_serde=STRING)


def repartitions(topology: Topology, partitions: Mapping[str, int]) -> dict[str, int]:
    return {topic.name: topic.partitions for topic in plan_layout(topology, "app", partitions).repartition_topics}


def joined(
    external: Mapping[str, int], upstream: Mapping[str, int], fixed: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Repartition topics when all these topics are joined: some outside, and some that are written from others."""
    topology = Topology()
    for name in upstream:
        topology.add_repartition_topic(RepartitionTopic(name, (fixed or {}).get(name)))
        write(read(topology, f"upstream-{name}", f"upstream-{name}"), name, f"upstream-{name}")
    for name in (*external, *upstream):
        read(topology, name, name)
    topology.copartition([*external, *upstream])
    return repartitions(topology, {**external, **{f"upstream-{name}": count for name, count in upstream.items()}})


def test_topics_of_others_that_are_joined_must_have_equal_partitions() -> None:
    with pytest.raises(TopicError, match=r"not co-partitioned: \[first: 2, second: 1\]"):
        joined({"first": 2, "second": 1}, {})


def test_joined_topics_of_others_decide_the_number_of_partitions() -> None:
    assert joined({"first": 2, "second": 2}, {"repartitioned": 10}) == {"app-repartitioned": 2}


def test_repartition_topics_that_are_joined_get_as_many_partitions_as_the_largest() -> None:
    assert joined({}, {"one": 1, "two": 15, "three": 5}) == {"app-one": 15, "app-two": 15, "app-three": 15}


def test_fixed_numbers_decide_for_repartition_topics_that_are_joined_with_them() -> None:
    counts = joined({}, {"one": 1, "two": 5, "three": 1}, {"one": 2, "three": 2})
    assert counts == {"app-one": 2, "app-two": 2, "app-three": 2}


def test_different_fixed_numbers_cannot_be_joined() -> None:
    assert joined({}, {"one": 1, "two": 1}, {"one": 10, "two": 10}) == {"app-one": 10, "app-two": 10}
    with pytest.raises(TopicError, match=r"do not have the same number of partitions: \[one: 10, two: 5\]"):
        joined({}, {"one": 1, "two": 1}, {"one": 10, "two": 5})


def test_a_fixed_number_must_be_that_of_the_topics_of_others() -> None:
    assert joined({"second": 2}, {"one": 1}, {"one": 2}) == {"app-one": 2}
    with pytest.raises(TopicError, match=r"do not have the same number of partitions: \[one: 10, second: 2\]"):
        joined({"second": 2}, {"one": 1}, {"one": 10})


@pytest.mark.parametrize(("other", "expected"), [(2, 3), (4, 4)])
def test_a_repartition_topic_gets_as_many_partitions_as_the_largest_topic_upstream(other: int, expected: int) -> None:
    topology = (
        Topology()
        .add_repartition_topic(RepartitionTopic("other", other))
        .add_repartition_topic(RepartitionTopic("own"))
    )
    read(write(read(topology, "source", "external"), "other", "source"), "reader", "other")
    topology.add_processor("both", Ignore, "source", "reader")
    read(write(topology, "own", "both"), "last", "own")
    assert repartitions(topology, {"external": 3})["app-own"] == expected


def test_a_repartition_topic_of_a_repartition_topic_gets_as_many_partitions() -> None:
    topology = (
        Topology().add_repartition_topic(RepartitionTopic("second")).add_repartition_topic(RepartitionTopic("first"))
    )
    write(read(topology, "source", "external"), "first", "source")
    read(write(read(topology, "reader", "first"), "second", "reader"), "last", "second")
    assert repartitions(topology, {"external": 3}) == {"app-second": 3, "app-first": 3}


@pytest.mark.parametrize("names", [("first", "second"), ("second", "first")])
def test_sub_topologies_that_write_to_each_other_get_the_largest_count(names: tuple[str, str]) -> None:
    topology = Topology()
    for name in names:
        topology.add_repartition_topic(RepartitionTopic(name))
    write(read(topology, "source", "small", "second"), "first", "source")
    write(read(topology, "other", "large", "first"), "second", "other")
    assert repartitions(topology, {"small": 2, "large": 5}) == {"app-first": 5, "app-second": 5}


def test_a_sub_topology_may_read_the_repartition_topic_that_it_writes() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", Consumed(STRING, STRING))
    counts = stream.group_by(lambda _k, v: v, Grouped(STRING, STRING)).count().to_stream().map_values(str)
    counts.merge(stream).to("out", Produced(STRING, STRING))
    found = repartitions(builder.build(), {"in": 3})
    assert found == {"app-KSTREAM-AGGREGATE-STATE-STORE-0000000002-repartition": 3}


def test_a_repartition_topic_that_nothing_writes_has_no_number_of_partitions() -> None:
    topology = read(Topology().add_repartition_topic(RepartitionTopic("own")), "reader", "own")
    with pytest.raises(TopologyError, match="cannot be decided for repartition topics own"):
        plan_layout(topology, "app", {})


def test_source_topics_that_are_missing_are_named() -> None:
    topology = read(read(Topology(), "one", "b", "there"), "two", "a")
    with pytest.raises(TopicError, match="Source topics do not exist: a, b"):
        plan_layout(topology, "app", {"there": 1})


def test_a_topology_that_repartitions_nothing_has_no_such_topics() -> None:
    assert repartitions(write(read(Topology(), "source", "in"), "out", "source"), {"in": 3}) == {}


@pytest.mark.parametrize("table_joined", [None, TableJoined(name="fk")], ids=["generated names", "named"])
def test_the_applications_own_topics_are_known_by_their_names(table_joined: TableJoined[str, str] | None) -> None:
    builder = StreamsBuilder()
    left, right = (builder.table(topic, Consumed(STRING, STRING)) for topic in ("left", "right"))
    stored = Materialized(STRING, STRING, name="joined")
    joined = left.join(right, add, stored, foreign_key_extractor=str.lower, table_joined=table_joined)
    joined.group_by(lambda _k, v: (v, v), Grouped(STRING, STRING)).count()
    layout = plan_layout(builder.build(), "app", {"left": 1, "right": 1})
    assert len(layout.internal_topics) > 4
    assert all(is_internal_topic("app", topic.name) for topic in layout.internal_topics)


def test_topics_of_others_are_not_taken_for_the_applications_own() -> None:
    others = "app", "app-orders", "app2-counts-changelog", "counts-changelog", "app-changelog-of-prices"
    assert not any(is_internal_topic("app", topic) for topic in others)


@pytest.mark.parametrize(
    "store",
    [
        Stores.key_value_store("s", STRING, STRING, log_config=LOG_CONFIG),
        Stores.timestamped_key_value_store("s", STRING, STRING, log_config=LOG_CONFIG),
        Stores.window_store("s", STRING, STRING, **WINDOWS, log_config=LOG_CONFIG),
        Stores.timestamped_window_store("s", STRING, STRING, **WINDOWS, log_config=LOG_CONFIG),
        Stores.session_store("s", STRING, STRING, retention=THIRTY_SECONDS, log_config=LOG_CONFIG),
        Stores.versioned_key_value_store("s", STRING, STRING, history_retention=THIRTY_SECONDS, log_config=LOG_CONFIG),
    ],
    ids=lambda store: store.kind.value,
)
def test_settings_of_a_changelog_come_on_top_of_those_of_its_kind(store: StoreBuilder) -> None:
    topology = read(Topology(), "source", "in").add_processor("processor", Ignore, "source")
    (changelog,) = plan_layout(topology.add_state_store(store, "processor"), "app", {"in": 1}).changelog_topics
    assert changelog.config["min.insync.replicas"] == "2"
    assert changelog.config["message.timestamp.type"] == "CreateTime"


def test_internal_topics_have_the_settings_of_kafka_streams() -> None:
    topology = read(Topology().add_repartition_topic(RepartitionTopic("foo", 1)), "source", "foo")
    topology.add_processor("processor", Ignore, "source")
    times: dict[str, Any] = {"retention": THIRTY_SECONDS}
    for store in (
        Stores.window_store("windows", STRING, STRING, window_size=timedelta(seconds=10), **times),
        Stores.session_store("sessions", STRING, STRING, **times),
        Stores.versioned_key_value_store("versions", STRING, STRING, history_retention=timedelta(minutes=1)),
        Stores.key_value_store("values", STRING, STRING),
    ):
        topology.add_state_store(store, "processor")
    layout = plan_layout(topology, "app", {})
    assert {topic.name: dict(topic.config) for topic in layout.internal_topics} == {
        "app-foo": {
            "cleanup.policy": "delete",
            "message.timestamp.type": "CreateTime",
            "retention.ms": "-1",
            "segment.bytes": "52428800",
        },
        **{
            f"app-{name}-changelog": {
                "cleanup.policy": "compact,delete",
                "message.timestamp.type": "CreateTime",
                "retention.ms": "-1",
            }
            for name in ("windows", "sessions")
        },
        "app-versions-changelog": {
            "cleanup.policy": "compact",
            "message.timestamp.type": "CreateTime",
            "min.compaction.lag.ms": str(2**63 - 1),
        },
        "app-values-changelog": {"cleanup.policy": "compact", "message.timestamp.type": "CreateTime"},
    }
