"""Names of repartition topics; what is expected is what `RepartitionTopicNamingTest` expects."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import (
    STRING,
    Consumed,
    Grouped,
    JoinWindows,
    Materialized,
    SessionWindows,
    StreamJoined,
    StreamsBuilder,
    TimeWindows,
    TopologyError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun import KStream

TEXTS: Consumed[str, str] = Consumed(STRING, STRING)
GROUPING: Grouped[str, str] = Grouped(STRING, STRING, name="grouping")
UNNAMED: Grouped[str, str] = Grouped(STRING, STRING)
TEN, THIRTY = (TimeWindows.of(timedelta(milliseconds=count)) for count in (10, 30))
SESSIONS = SessionWindows.of(timedelta(milliseconds=10))


def rekeyed(builder: StreamsBuilder, topic: str = "topic", *, more: bool = False) -> KStream[str, str]:
    stream = builder.stream(topic, TEXTS).select_key(lambda k, v: k + v)
    return stream.filter(lambda _k, _v: True).peek(print) if more else stream


def of_a_stream(grouped: Any) -> None:
    for windows in (TEN, THIRTY):
        grouped.windowed_by(windows).count()


def of_a_windowed_stream(grouped: Any) -> None:
    windowed = grouped.windowed_by(TEN)
    windowed.count()
    windowed.reduce(max)
    grouped.windowed_by(THIRTY).count()


def of_a_stream_of_sessions(grouped: Any) -> None:
    windowed = grouped.windowed_by(SESSIONS)
    windowed.count()
    windowed.reduce(max)
    grouped.windowed_by(THIRTY).count()


@pytest.mark.parametrize("optimization", ["none", "all"])
@pytest.mark.parametrize("aggregate", [of_a_stream, of_a_windowed_stream, of_a_stream_of_sessions])
def test_aggregations_of_one_named_group_share_its_topic(aggregate: Callable[[Any], None], optimization: str) -> None:
    builder = StreamsBuilder()
    aggregate(rekeyed(builder).group_by_key(GROUPING))
    assert list(builder.build(optimization=optimization).repartition_topics) == ["grouping-repartition"]


@pytest.mark.parametrize(("grouping", "topics"), [(GROUPING, 1), (UNNAMED, 2)])
def test_aggregations_of_one_grouped_table_share_its_topic_if_it_is_named(
    grouping: Grouped[str, str], topics: int
) -> None:
    builder = StreamsBuilder()
    grouped = builder.table("topic", TEXTS).group_by(lambda k, v: (k, v), grouping)
    grouped.count()
    grouped.reduce(max, min)
    assert len(builder.build().repartition_topics) == topics


def test_aggregations_of_one_group_without_a_name_have_a_topic_each() -> None:
    builder = StreamsBuilder()
    of_a_stream(rekeyed(builder).group_by_key(UNNAMED))
    assert len(builder.build().repartition_topics) == 2


def test_two_groups_cannot_have_one_name() -> None:
    builder = StreamsBuilder()
    for topic in ("topic", "topicII"):
        rekeyed(builder, topic).group_by_key(GROUPING).count()
    with pytest.raises(TopologyError, match="grouping-repartition-filter is already added"):
        builder.build()


@pytest.mark.parametrize("store", [None, "store"])
def test_two_groups_without_a_name_cannot_be_cogrouped(store: str | None) -> None:
    builder = StreamsBuilder()
    one, two = (rekeyed(builder, topic).group_by_key(UNNAMED) for topic in ("topic", "topicII"))
    cogrouped = one.cogroup(lambda _k, v, a: a + v).cogroup(two, lambda _k, v, a: a + v)
    cogrouped.aggregate(str, Materialized(STRING, STRING, name=store))
    with pytest.raises(TopologyError, match="already added: two streams are repartitioned through") as raised:
        builder.build()
    assert "Name each topic" in str(raised.value)


def test_two_joins_cannot_have_one_name() -> None:
    builder = StreamsBuilder()
    options = [StreamJoined(STRING, STRING, STRING, f"store{number}", name="join-repartition") for number in (1, 2)]
    one, two, three = (rekeyed(builder, topic) for topic in ("topic", "topic2", "topic3"))
    first = one.join(two, max, JoinWindows(30, 30), joined=options[0])
    first.join(three, max, JoinWindows(30, 30), joined=options[1])
    with pytest.raises(TopologyError, match="join-repartition-right-repartition-filter is already added"):
        builder.build()


@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("by", ["group_by_key", "group_by"])
@pytest.mark.parametrize("windows", [None, TEN, SESSIONS])
def test_the_name_of_a_group_is_that_of_its_topic_whatever_comes_before(windows: Any, by: str, *, more: bool) -> None:
    builder = StreamsBuilder()
    stream = rekeyed(builder, more=more)
    grouped: Any = (
        stream.group_by_key(GROUPING) if by == "group_by_key" else stream.group_by(lambda k, v: k + v, GROUPING)
    )
    (grouped if windows is None else grouped.windowed_by(windows)).count()
    assert list(builder.build().repartition_topics) == ["grouping-repartition"]


@pytest.mark.parametrize("more", [False, True])
def test_the_name_of_a_join_is_that_of_its_topics_whatever_comes_before(*, more: bool) -> None:
    builder = StreamsBuilder()
    one, two = (rekeyed(builder, topic, more=more) for topic in ("topic-one", "topic-two"))
    one.join(two, max, JoinWindows(30, 30), joined=StreamJoined(STRING, STRING, STRING, name="my-join"))
    assert list(builder.build().repartition_topics) == ["my-join-left-repartition", "my-join-right-repartition"]


@pytest.mark.parametrize("more", [False, True])
def test_the_name_of_a_grouped_table_is_that_of_its_topic_whatever_comes_before(*, more: bool) -> None:
    builder = StreamsBuilder()
    table = builder.table("topic", TEXTS)
    (table.filter(lambda _k, _v: True) if more else table).group_by(lambda k, v: (k, v), GROUPING).count()
    assert list(builder.build().repartition_topics) == ["grouping-repartition"]


def test_a_join_with_a_global_table_keeps_in_mind_that_keys_have_changed() -> None:
    builder = StreamsBuilder()
    table = builder.global_table("global", TEXTS)
    joined = rekeyed(builder).join(table, max, key_selector=lambda k, _v: k)
    joined.group_by_key(UNNAMED).count()
    assert len(builder.build().repartition_topics) == 1
