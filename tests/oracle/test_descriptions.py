"""Topologies of Kafka Streams' own tests have the descriptions that are expected there.

`descriptions.txt` has a block for each: a line `[test]` for every test that expects the text, and the text. With the suffix
`WithOptimization` the topology is built with all optimisations. Kafka Streams itself printed those of `SeveralRepartitions`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import (
    STRING,
    Grouped,
    Materialized,
    Named,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    TimeWindows,
)
from riverrun.config import TopologyConfig
from tests.oracle import described_repartitions, described_streams
from tests.oracle.topologies import TEXTS, TO_TEXTS, ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun import KGroupedStream, KStream

UNNAMED: Materialized[str, str] = Materialized(STRING, STRING)
STORE: Materialized[str, str] = Materialized(STRING, STRING, name="store")


def add(_key: str, value: str, aggregate: str) -> str:
    return aggregate + value


def empty() -> str:
    return ""


def rekeyed(stream: KStream[str, str], name: str | None = None) -> KGroupedStream[str, str]:
    return stream.map(lambda k, v: (v, k)).group_by_key(Grouped(STRING, STRING, name=name))


def streams(builder: StreamsBuilder, *topics: str) -> list[KStream[str, str]]:
    return [builder.stream(topic, TEXTS) for topic in topics]


def together(*grouped: KGroupedStream[str, str]) -> Any:
    first, *others = grouped
    cogrouped = first.cogroup(add)
    for other in others:
        cogrouped = cogrouped.cogroup(other, add)
    return cogrouped


def named(builder: StreamsBuilder) -> None:
    one, two = streams(builder, "one", "two")
    table = together(one.group_by_key(), two.group_by_key()).aggregate(empty, STORE, named=Named("test"))
    table.to_stream().to("output", TO_TEXTS)


def named_repartition(builder: StreamsBuilder) -> None:
    one, two = streams(builder, "one", "two")
    table = together(rekeyed(one, "repartition-test"), two.group_by_key()).aggregate(empty, UNNAMED)
    table.to_stream().to("output", TO_TEXTS)


def new_keys(builder: StreamsBuilder) -> None:
    one, two = streams(builder, "one", "two")
    table = together(rekeyed(one), two.group_by_key()).aggregate(empty, STORE, named=Named("test"))
    table.to_stream().to("output", TO_TEXTS)


def the_same_twice(builder: StreamsBuilder) -> None:
    one, two = streams(builder, "one", "two")
    grouped = rekeyed(one), two.group_by_key()
    second = together(*grouped).aggregate(empty, UNNAMED)
    first = together(*grouped).aggregate(empty, UNNAMED)
    first.to_stream().to("output", TO_TEXTS)
    second.to_stream().to("OUTPUT2", TO_TEXTS)


def one_with_two_others(builder: StreamsBuilder) -> None:
    one, two, three = streams(builder, "one", "two", "three")
    grouped = rekeyed(one), two.group_by_key(), three.group_by_key()
    together(grouped[0], grouped[2]).aggregate(empty, UNNAMED)
    together(grouped[0], grouped[1]).aggregate(empty, UNNAMED)


def one_also_alone(builder: StreamsBuilder) -> None:
    one, two = streams(builder, "one", "two")
    grouped = rekeyed(one), two.group_by_key()
    together(*grouped).aggregate(empty, UNNAMED)
    grouped[0].aggregate(empty, add, UNNAMED)


def grouped_anew(builder: StreamsBuilder) -> None:
    one, two, three = streams(builder, "one", "two", "three")
    first, second, third, fourth = rekeyed(one), two.group_by_key(), three.group_by_key(), rekeyed(one)
    together(first, second).aggregate(empty, UNNAMED)
    together(third, fourth).aggregate(empty, UNNAMED)


def used_twice(builder: StreamsBuilder) -> None:
    cogrouped = together(rekeyed(builder.stream("one", TEXTS), name="foo"))
    cogrouped.aggregate(empty, UNNAMED)
    cogrouped.aggregate(empty, UNNAMED)


def windowed(windows: Any, *merger: Callable[[str, str, str], str]) -> Callable[[StreamsBuilder], None]:
    def steps(builder: StreamsBuilder) -> None:
        cogrouped = together(*(stream.group_by_key() for stream in streams(builder, "topic")))
        cogrouped.windowed_by(windows).aggregate(empty, *merger, UNNAMED, named=Named("foo"))

    return steps


NEW_KEYS = "shouldInsertRepartitionsTopicForUpstreamKeyModification"
BUILD: dict[str, Callable[[StreamsBuilder], None]] = {
    "shouldNameProcessorsAndStoreBasedOnNamedParameter": named,
    "shouldNameRepartitionTopic": named_repartition,
    NEW_KEYS: new_keys,
    f"{NEW_KEYS}WithGroupedReusedInSameCogroups": the_same_twice,
    f"{NEW_KEYS}WithGroupedReusedInDifferentCogroups": one_with_two_others,
    f"{NEW_KEYS}WithGroupedReused": one_also_alone,
    f"{NEW_KEYS}WithGroupedRemade": grouped_anew,
    "shouldInsertRepartitionsTopicForCogroupsUsedTwice": used_twice,
    "SessionWindowed.namedParamShouldSetName": windowed(SessionWindows.of(ms(1)), lambda _k, a, b: a + b),
    "TimeWindowed.namedParamShouldSetName": windowed(TimeWindows.of(ms(500))),
    "SlidingWindowed.namedParamShouldSetName": windowed(SlidingWindows.of(ms(500), grace=ms(2_000))),
}
TOPOLOGIES = BUILD | described_streams.BUILD | described_repartitions.BUILD


def descriptions() -> dict[str, str]:
    found: dict[str, str] = {}
    for block in (Path(__file__).parent / "descriptions.txt").read_text().split("\n\n["):
        *names, text = f"[{block.removeprefix('[')}".rsplit("]\n", 1)
        found |= dict.fromkeys(names[0].removeprefix("[").split("]\n["), text)
    return found


DESCRIPTIONS = descriptions()


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_a_topology_has_the_description_that_kafka_streams_expects(name: str) -> None:
    builder = StreamsBuilder()
    TOPOLOGIES[name.removesuffix("WithOptimization")](builder)
    topology = builder.build(optimization="all" if name.endswith("WithOptimization") else "none")
    assert topology.describe().rstrip() == DESCRIPTIONS[name].rstrip()


def test_every_topology_is_described() -> None:
    assert {name.removesuffix("WithOptimization") for name in DESCRIPTIONS} == TOPOLOGIES.keys()


@pytest.mark.parametrize("is_persistent", [True, False])
@pytest.mark.parametrize("name", [name for name in TOPOLOGIES if "ZeroArgCount" in name])
def test_stores_are_kept_where_the_application_is_configured_to_keep_them(name: str, *, is_persistent: bool) -> None:
    builder = StreamsBuilder(TopologyConfig(is_persistent=is_persistent))
    TOPOLOGIES[name](builder)
    assert {store.persistent for store in builder.build().stores.values()} == {is_persistent}
