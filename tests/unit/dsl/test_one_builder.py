"""A topology is of one builder, and complete when it is built."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from riverrun import STRING, Consumed, JoinWindows, Materialized, Produced, Repartitioned, StreamsBuilder, TopologyError
from riverrun.testing import TopologyTestDriver

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun import KStream, KTable

TEXTS = Consumed(STRING, STRING)
TO_TEXTS = Produced(STRING, STRING)


def both(one: str | None, other: str | None) -> str:
    return f"{one}{other}"


def add(_key: str, value: str, texts: str) -> str:
    return texts + value


def a_stream(builder: StreamsBuilder, topic: str) -> KStream[str, str]:
    return builder.stream(topic, TEXTS)


def a_table(builder: StreamsBuilder, topic: str) -> KTable[str, str]:
    return builder.table(topic, TEXTS)


TOGETHER: dict[str, Callable[[StreamsBuilder, StreamsBuilder], object]] = {
    "merge": lambda one, other: a_stream(one, "mine").merge(a_stream(other, "yours")),
    "join of streams": lambda one, other: a_stream(one, "mine").join(
        a_stream(other, "yours"), both, JoinWindows.of(timedelta(seconds=1))
    ),
    "outer join of streams": lambda one, other: a_stream(one, "mine").outer_join(
        a_stream(other, "yours"), both, JoinWindows.of(timedelta(seconds=1))
    ),
    "join with a table": lambda one, other: a_stream(one, "mine").left_join(a_table(other, "yours"), both),
    "join of tables": lambda one, other: a_table(one, "mine").outer_join(a_table(other, "yours"), both),
    "join by a foreign key": lambda one, other: a_table(one, "mine").join(
        a_table(other, "yours"), both, foreign_key_extractor=str.upper
    ),
    "cogroup": lambda one, other: (
        a_stream(one, "mine").group_by_key().cogroup(add).cogroup(a_stream(other, "yours").group_by_key(), add)
    ),
}


@pytest.mark.parametrize("together", TOGETHER)
def test_what_is_of_two_builders_cannot_be_brought_together(together: str) -> None:
    with pytest.raises(TopologyError, match=r"\(of mine\) and .*\(of yours\) belong to different StreamsBuilders"):
        TOGETHER[together](StreamsBuilder(), StreamsBuilder())


def test_a_global_table_of_another_builder_cannot_be_joined() -> None:
    everywhere = StreamsBuilder().global_table("yours", TEXTS, Materialized(name="names"))
    with pytest.raises(
        TopologyError, match=r"\(of mine\) and GlobalKTable\('names'\) belong to different StreamsBuilders"
    ):
        a_stream(StreamsBuilder(), "mine").join(everywhere, both, key_selector=lambda key, _value: key)


def test_what_was_repartitioned_is_known_by_its_topic() -> None:
    moved = a_stream(StreamsBuilder(), "mine").select_key(both).repartition(Repartitioned(STRING, STRING))
    with pytest.raises(TopologyError, match=r"\(of KSTREAM-REPARTITION-0000000002-repartition\) and .*\(of yours\)"):
        moved.merge(a_stream(StreamsBuilder(), "yours"))


def test_what_is_written_after_the_topology_was_built_is_refused() -> None:
    builder = StreamsBuilder()
    stream = a_stream(builder, "in")
    stream.to("out")
    before = builder.build().describe()
    with pytest.raises(TopologyError, match="The topology is already built"):
        stream.to("elsewhere")
    with pytest.raises(TopologyError, match="The topology is already built"):
        builder.table("other", TEXTS)
    assert builder.build().describe() == before


def test_a_stream_merged_with_itself_has_each_record_once() -> None:
    builder = StreamsBuilder()
    stream = a_stream(builder, "in")
    stream.merge(stream).merge(a_stream(builder, "in")).to("out", TO_TEXTS)
    topology = builder.build()
    assert "--> KSTREAM-MERGE-0000000001, KSTREAM-MERGE-0000000003" in topology.describe()
    with TopologyTestDriver(topology) as driver:
        driver.input_topic("in", STRING, STRING).pipe_input("a", "x", timestamp=1)
        assert driver.output_topic("out", STRING, STRING).read_key_values_to_list() == [("a", "x"), ("a", "x")]
