"""Whether what a topology writes is a table or a log."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import (
    LONG,
    STRING,
    BufferConfig,
    Consumed,
    Grouped,
    JoinWindows,
    Materialized,
    Produced,
    Repartitioned,
    SessionWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Topology,
    windowed,
)
from riverrun.config import Optimization, OutputKind, TopologyConfig
from riverrun.topology.outputs import outputs_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.dsl.kstream import KStream

HOUR = TimeWindows.of(timedelta(hours=1), grace=timedelta(0))
TEXTS = Produced(STRING, STRING)
NUMBERS = Produced(STRING, LONG)


def texts(builder: StreamsBuilder) -> KStream[str, str]:
    return builder.stream("in", Consumed(STRING, STRING))


def counts(builder: StreamsBuilder) -> KStream[str, int]:
    return texts(builder).group_by_key(Grouped(STRING, STRING)).count().to_stream()


def a_table_of_a_topic(b: StreamsBuilder) -> Any:
    return b.table("in", Consumed(STRING, STRING)).to_stream().to("out", TEXTS)


def a_stream_read_as_a_table(b: StreamsBuilder) -> Any:
    return texts(b).to_table().to_stream().to("out", TEXTS)


def an_aggregation(b: StreamsBuilder) -> Any:
    return counts(b).to("out", NUMBERS)


def an_aggregation_behind_a_new_key(b: StreamsBuilder) -> Any:
    grouped = texts(b).flat_map(lambda k, v: [(v, k)]).group_by(lambda k, _: k, Grouped(STRING, STRING))
    return grouped.count().to_stream().to("out", NUMBERS)


def windows(b: StreamsBuilder) -> Any:
    counted = texts(b).group_by_key().windowed_by(HOUR).count()
    return counted.to_stream().to("out", Produced(windowed(STRING, timedelta(hours=1)), LONG))


def sessions(b: StreamsBuilder) -> Any:
    counted = texts(b).group_by_key().windowed_by(SessionWindows.of(timedelta(hours=1), grace=timedelta(0))).count()
    return (
        counted.suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
        .to_stream()
        .to("out", Produced(windowed(STRING), LONG))
    )


def a_filtered_table(b: StreamsBuilder) -> Any:
    table = b.table("in", Consumed(STRING, STRING), Materialized(name="kept"))
    return table.filter(lambda _, v: bool(v)).to_stream().to("out", TEXTS)


def joined_tables(b: StreamsBuilder) -> Any:
    one, other = (b.table(topic, Consumed(STRING, STRING)) for topic in ("in", "other"))
    return one.join(other, lambda v, o: v + o).to_stream().to("out", TEXTS)


def tables_joined_by_foreign_key(b: StreamsBuilder) -> Any:
    one, other = (b.table(topic, Consumed(STRING, STRING), Materialized(name=topic)) for topic in ("in", "other"))
    joined = one.join(
        other, lambda v, o: v + o, foreign_key_extractor=lambda v: v, materialized=Materialized(STRING, STRING)
    )
    return joined.to_stream().to("out", TEXTS)


def other_values(b: StreamsBuilder) -> Any:
    return counts(b).map_values(str).peek(lambda _k, _v: None).to("out", TEXTS)


def other_values_looked_up(b: StreamsBuilder) -> Any:
    names, others = b.table("names", Consumed(STRING, STRING)), b.global_table("others", Consumed(STRING, STRING))
    joined = counts(b).left_join(names, lambda n, name: f"{n} {name}")
    return joined.left_join(others, lambda v, o: f"{v} {o}", key_selector=lambda k, _: k).to("out", TEXTS)


def a_table_sent_through_a_topic(b: StreamsBuilder) -> Any:
    return counts(b).map_values(str).repartition(Repartitioned(value_serde=STRING)).to("out", TEXTS)


def a_stream_merged_with_itself(b: StreamsBuilder) -> Any:
    numbers = counts(b)
    return numbers.merge(numbers).to("out", NUMBERS)


def a_stream(b: StreamsBuilder) -> Any:
    return texts(b).to("out", TEXTS)


def a_filter_below_a_table(b: StreamsBuilder) -> Any:
    return counts(b).filter(lambda _, n: n > 3).to("out", NUMBERS)


def a_branch_below_a_table(b: StreamsBuilder) -> Any:
    (numbers,) = counts(b).split().branch(lambda _, n: n > 3).no_default_branch().values()
    return numbers.to("out", NUMBERS)


def several_values_below_a_table(b: StreamsBuilder) -> Any:
    return counts(b).flat_map_values(lambda n: [n, n]).to("out", NUMBERS)


def other_keys_below_a_table(b: StreamsBuilder) -> Any:
    return counts(b).select_key(lambda k, _: k[:1]).to("out", NUMBERS)


def matches_below_a_table(b: StreamsBuilder) -> Any:
    names = b.table("names", Consumed(STRING, STRING))
    return counts(b).join(names, lambda n, name: f"{n} {name}").to("out", TEXTS)


def a_table_merged_with_a_stream(b: StreamsBuilder) -> Any:
    more = b.stream("more", Consumed(STRING, LONG))
    return counts(b).merge(more).to("out", NUMBERS)


def two_tables_in_one_topic(b: StreamsBuilder) -> Any:
    counts(b).to("out", NUMBERS)
    return b.table("other", Consumed(STRING, LONG)).to_stream().to("out", NUMBERS)


def joined_streams(b: StreamsBuilder) -> Any:
    other = b.stream("other", Consumed(STRING, STRING))
    window = JoinWindows.of(timedelta(hours=1), grace=timedelta(0))
    return texts(b).left_join(other, lambda v, o: f"{v} {o}", window).to("out", TEXTS)


@pytest.mark.parametrize(
    "build",
    [
        a_table_of_a_topic,
        a_stream_read_as_a_table,
        an_aggregation,
        an_aggregation_behind_a_new_key,
        windows,
        sessions,
        a_filtered_table,
        joined_tables,
        tables_joined_by_foreign_key,
        other_values,
        other_values_looked_up,
        a_table_sent_through_a_topic,
        a_stream_merged_with_itself,
    ],
)
@pytest.mark.parametrize("rules", [frozenset(), frozenset(Optimization)], ids=["plain", "optimized"])
def test_the_updates_of_a_table_are_a_table(
    build: Callable[[StreamsBuilder], Any], rules: frozenset[Optimization]
) -> None:
    assert kind_of(build, rules) == (OutputKind.TABLE, "it has the updates of a table")


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (a_stream, "it has the records of KSTREAM-SOURCE-0000000000"),
        (a_filter_below_a_table, "KSTREAM-FILTER-0000000004 may send fewer"),
        (a_branch_below_a_table, "KSTREAM-BRANCH-00000000041 may send fewer"),
        (several_values_below_a_table, "KSTREAM-FLATMAPVALUES-0000000004 may send fewer or more records"),
        (other_keys_below_a_table, "KSTREAM-KEY-SELECT-0000000004 may send"),
        (matches_below_a_table, "KSTREAM-JOIN-0000000007 may send fewer"),
        (a_table_merged_with_a_stream, "KTABLE-TOSTREAM-0000000004 and KSTREAM-SOURCE-0000000000 write to it"),
        (two_tables_in_one_topic, "KTABLE-TOSTREAM-0000000003 and KTABLE-TOSTREAM-0000000008 write to it"),
        (joined_streams, "may send fewer"),
    ],
)
def test_what_is_more_or_less_than_the_updates_of_a_table_is_a_log(
    build: Callable[[StreamsBuilder], Any], why: str
) -> None:
    kind, found = kind_of(build, frozenset())
    assert kind is OutputKind.LOG
    assert why in found


def test_processors_of_users_write_logs_unless_somebody_says_otherwise() -> None:
    topology = Topology().add_source("in", "words", key_serde=STRING, value_serde=STRING)
    topology.add_sink("out", "copy", "in", key_serde=STRING, value_serde=STRING)
    assert outputs_of(topology)["copy"].kind is OutputKind.LOG


def kind_of(build: Callable[[StreamsBuilder], Any], rules: frozenset[Optimization]) -> tuple[OutputKind, str]:
    builder = StreamsBuilder(TopologyConfig(rules))
    build(builder)
    output = outputs_of(builder.build())["out"]
    return output.kind, output.why
