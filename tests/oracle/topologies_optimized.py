"""The twins of `java/Optimized.java`: topologies that `topology.optimization` changes; all are built with `all`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from riverrun import (
    STRING,
    Grouped,
    Joined,
    JoinWindows,
    KStream,
    KTable,
    Materialized,
    Named,
    Repartitioned,
    StreamJoined,
    StreamsBuilder,
    TimeWindows,
)
from tests.oracle.topologies import (
    BY_TEXT,
    TEXTS,
    TO_COUNTS,
    TO_TEXTS,
    both,
    concatenate,
    first,
    first_of_value,
    flat,
    latest,
    ms,
    size,
    texts,
)

if TYPE_CHECKING:
    from tests.oracle.topologies import Say

TEXT_STORE: Materialized[str, str] = Materialized(key_serde=STRING, value_serde=STRING)


def rekeyed(builder: StreamsBuilder, topic: str = "in") -> KStream[str, str]:
    return texts(builder, topic).filter(lambda _k, v: v is not None).select_key(first_of_value)


def within(count: int) -> JoinWindows:
    return JoinWindows.of(ms(count), grace=ms(count))


def joined(**options: Any) -> StreamJoined[str, str, str]:
    return StreamJoined(STRING, STRING, STRING, **options)


def counted(stream: KStream[str, Any], topic: str = "counts") -> None:
    stream.group_by_key(BY_TEXT).count().to_stream().to(topic, TO_COUNTS)


def table(builder: StreamsBuilder, topic: str) -> KTable[str, str]:
    return builder.table(topic, TEXTS)


def optimized_aggregations(builder: StreamsBuilder, _say: Say) -> None:
    stream = rekeyed(builder)
    counted(stream)
    longer = stream.filter(lambda _k, v: len(v) > 1)
    longer.group_by_key(BY_TEXT).reduce(concatenate).to_stream().to("out", TO_TEXTS)
    stream.to("copy", TO_TEXTS)


def optimized_aggregations_named(builder: StreamsBuilder, _say: Say) -> None:
    stream = rekeyed(builder)
    first_group, second_group = Grouped(STRING, STRING, name="first"), Grouped(STRING, STRING, name="second")
    stream.group_by_key(first_group).count(Materialized(name="counted")).to_stream().to("counts", TO_COUNTS)
    stream.group_by_key(second_group).reduce(latest).to_stream().to("out", TO_TEXTS)


def optimized_with_values_changed(builder: StreamsBuilder, say: Say) -> None:
    stream = rekeyed(builder)
    sizes = stream.map_values(size).group_by_key(BY_TEXT)
    sizes.reduce(concatenate).to_stream().to("sizes", TO_TEXTS)
    counted(stream)
    windows = stream.peek(lambda _k, v: say(v)).group_by_key(BY_TEXT).windowed_by(TimeWindows.of(ms(100)))
    windows.reduce(latest).to_stream(lambda k, _v: flat(k)).to("out", TO_TEXTS)


def optimized_merge(builder: StreamsBuilder, _say: Say) -> None:
    merged = rekeyed(builder).merge(rekeyed(builder, "other"))
    counted(merged)
    merged.filter(lambda _k, _v: True).group_by_key(BY_TEXT).reduce(latest).to_stream().to("out", TO_TEXTS)


def optimized_table_joins(builder: StreamsBuilder, _say: Say) -> None:
    looked_up = table(builder, "table")
    stream: KStream[Any, str] = texts(builder).map(
        lambda k, v: (None if k == "a" else first(v), "x" if v is None else v)
    )
    stream.left_join(looked_up, both, joined=Joined(STRING, STRING, name="lookup")).to("out", TO_TEXTS)
    stream.join(looked_up, both, joined=Joined(STRING, STRING)).to("second", TO_TEXTS)
    counted(stream)


def optimized_stream_join(builder: StreamsBuilder, _say: Say) -> None:
    left, right = rekeyed(builder), rekeyed(builder, "other")
    left.join(right, both, within(40), joined=joined()).to("out", TO_TEXTS)
    counted(left)
    kept = right.to_table(Materialized(STRING, STRING, name="kept"), named=Named("latest"))
    kept.to_stream().to("second", TO_TEXTS)


def optimized_cogroup(builder: StreamsBuilder, _say: Say) -> None:
    left, right = rekeyed(builder), rekeyed(builder, "other").group_by_key(Grouped(STRING, STRING, name="right"))
    both_groups = left.group_by_key(BY_TEXT).cogroup(lambda _k, v, aggregate: aggregate + v)
    both_groups = both_groups.cogroup(right, lambda _k, v, aggregate: v + aggregate)
    both_groups.aggregate(lambda: "", TEXT_STORE).to_stream().to("out", TO_TEXTS)
    counted(left)


def optimized_two_changes(builder: StreamsBuilder, _say: Say) -> None:
    stream = rekeyed(builder)
    counted(stream)
    again = stream.select_key(lambda _k, v: str(len(v)))
    counted(again, "second")
    again.group_by_key(BY_TEXT).reduce(latest).to_stream().to("out", TO_TEXTS)
    by_value = stream.group_by(lambda _k, v: v, Grouped(STRING, STRING, name="by-value"))
    by_value.count().to_stream().to("third", TO_COUNTS)


def optimized_explicit_repartition(builder: StreamsBuilder, _say: Say) -> None:
    stream = rekeyed(builder)
    stream.repartition(Repartitioned(STRING, STRING, name="wanted")).to("out", TO_TEXTS)
    counted(stream)
    counted(stream.repartition(Repartitioned(STRING, STRING)), "second")


def optimized_self_join(builder: StreamsBuilder, _say: Say) -> None:
    stream = texts(builder)
    stream.join(stream, both, within(50), joined=joined()).to("out", TO_TEXTS)


def optimized_self_join_same_topic(builder: StreamsBuilder, _say: Say) -> None:
    windows = within(40).before(ms(20)).after(ms(60))
    left, right = texts(builder), texts(builder)
    left.join(right, both, windows, joined=joined(name="self")).to("out", TO_TEXTS)


def optimized_self_left_join(builder: StreamsBuilder, _say: Say) -> None:
    stream = texts(builder)
    stream.left_join(stream, both, within(30), joined=joined(store_name="kept")).to("out", TO_TEXTS)


def optimized_self_join_repartition(builder: StreamsBuilder, _say: Say) -> None:
    stream = rekeyed(builder)
    stream.join(stream, both, within(30), joined=joined(name="self")).to("out", TO_TEXTS)


def optimized_no_self_join(builder: StreamsBuilder, _say: Say) -> None:
    stream = texts(builder)
    stream.join(stream.filter(lambda _k, _v: True), both, within(30), joined=joined()).to("out", TO_TEXTS)
    stream.outer_join(stream, both, within(30), joined=joined(name="self")).to("second", TO_TEXTS)


def optimized_table(builder: StreamsBuilder, _say: Say) -> None:
    kept = builder.table("in", TEXTS, Materialized(STRING, STRING, name="kept"))
    kept.filter(lambda _k, v: len(v) > 1).to_stream().to("out", TO_TEXTS)


def optimized_tables_joined(builder: StreamsBuilder, _say: Say) -> None:
    table(builder, "in").left_join(table(builder, "other"), both).to_stream().to("out", TO_TEXTS)


def optimized_table_grouped(builder: StreamsBuilder, _say: Say) -> None:
    groups = table(builder, "in").group_by(lambda _k, v: (first(v), v), BY_TEXT)
    groups.count().to_stream().to("counts", TO_COUNTS)
