"""The twins of `java/Tables.java` without cogroup and foreign keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverrun import LONG, STRING, Grouped, Joined, KTable, Materialized, Named, StreamsBuilder
from tests.oracle.topologies import BY_TEXT, TEXTS, TO_TEXTS, both, first, first_of_value, nothing, size, texts

if TYPE_CHECKING:
    from tests.oracle.topologies import Say


def table(builder: StreamsBuilder, topic: str = "in") -> KTable[str, str]:
    return builder.table(topic, TEXTS)


def stored(name: str) -> Materialized[str, str]:
    return Materialized(STRING, STRING, name=name)


def is_long(_key: str, value: str) -> bool:
    return len(value) > 2


def by_first(key: str, value: str) -> tuple[str, str]:
    return first(value), both(key, value)


def table_filter(builder: StreamsBuilder, _say: Say) -> None:
    table(builder).filter(is_long).to_stream().to("out")


def table_filter_stored(builder: StreamsBuilder, _say: Say) -> None:
    table(builder).filter(is_long, stored("kept")).to_stream().to("out")


def table_filter_not_named(builder: StreamsBuilder, _say: Say) -> None:
    table(builder).filter_not(is_long, named=Named("short")).to_stream().to("out")


def table_map_values(builder: StreamsBuilder, _say: Say) -> None:
    table(builder).map_values(size).to_stream().to("out", TO_TEXTS)


def table_map_values_stored(builder: StreamsBuilder, _say: Say) -> None:
    table(builder).map_values(both, stored("kept"), named=Named("mapped")).to_stream().to("out")


def table_map_values_with_serdes(builder: StreamsBuilder, _say: Say) -> None:
    table(builder).map_values(size, Materialized(STRING, STRING)).to_stream().to("out", TO_TEXTS)


def table_chain(builder: StreamsBuilder, _say: Say) -> None:
    marked = table(builder).map_values(lambda v: v + "!").filter(is_long)
    marked.map_values(first).to_stream().to("out", TO_TEXTS)


def table_to_stream_by_value(builder: StreamsBuilder, _say: Say) -> None:
    table(builder).to_stream(first_of_value).to("out", TO_TEXTS)


def stream_joined_with_a_filtered_table(builder: StreamsBuilder, _say: Say) -> None:
    stream = texts(builder)
    stream.left_join(table(builder, "table").filter(is_long).map_values(size), both).to("out", TO_TEXTS)


def counts_filtered_and_mapped(builder: StreamsBuilder, _say: Say) -> None:
    counts = texts(builder).group_by_key().count(Materialized(name="counts")).filter(lambda _k, v: v % 2 == 0)
    counts.map_values(lambda v: f"n{v}").to_stream().to("out", TO_TEXTS)


def table_group_by_count(builder: StreamsBuilder, _say: Say) -> None:
    table(builder).group_by(by_first, BY_TEXT).count().to_stream().to("out")


def table_group_by_reduce(builder: StreamsBuilder, _say: Say) -> None:
    grouped = table(builder).group_by(lambda _k, v: (first(v), v), Grouped(STRING, STRING, name="grouped"))
    reduced = grouped.reduce(
        lambda left, right: f"{left}+{right}", lambda left, right: f"{left}-{right}", Materialized(name="texts")
    )
    reduced.to_stream().to("out")


def table_group_by_aggregate(builder: StreamsBuilder, _say: Say) -> None:
    def subtract(_key: str, value: str, known: str) -> str | None:
        return None if len(known) > 20 else f"{known}-{value}"

    grouped = table(builder).group_by(by_first, BY_TEXT)
    aggregated = grouped.aggregate(
        nothing, lambda _k, v, known: f"{known}+{v}", subtract, stored("sums-store"), named=Named("sums")
    )
    aggregated.to_stream().to("out")


def table_filtered_group_by_count(builder: StreamsBuilder, _say: Say) -> None:
    def group(key: str, value: str) -> tuple[str | None, str]:
        return (None, value) if len(value) > 3 else by_first(key, value)

    table(builder).filter(is_long).group_by(group, BY_TEXT).count(Materialized(name="counts")).to_stream().to("out")


def table_grouped_twice(builder: StreamsBuilder, _say: Say) -> None:
    own = table(builder)
    own.group_by(by_first, BY_TEXT).count().to_stream().to("out")
    own.map_values(size).group_by(lambda k, v: (v, k), BY_TEXT).count().to_stream().to("second")


def counts_counted(builder: StreamsBuilder, _say: Say) -> None:
    counts = texts(builder).group_by_key().count().group_by(lambda _k, v: (str(v % 3), v), Grouped(STRING, LONG))
    counts.reduce(lambda left, right: left + right, lambda left, right: left - right).to_stream().to("out")


def table_join(builder: StreamsBuilder, _say: Say) -> None:
    table(builder).join(table(builder, "other"), both).to_stream().to("out", TO_TEXTS)


def table_left_join(builder: StreamsBuilder, _say: Say) -> None:
    table(builder).left_join(table(builder, "other"), both).to_stream().to("out", TO_TEXTS)


def table_outer_join(builder: StreamsBuilder, _say: Say) -> None:
    table(builder).outer_join(table(builder, "other"), both).to_stream().to("out", TO_TEXTS)


def table_join_stored(builder: StreamsBuilder, _say: Say) -> None:
    table(builder).join(table(builder, "other"), both, stored("pairs")).to_stream().to("out")


def table_left_join_named(builder: StreamsBuilder, _say: Say) -> None:
    joined = table(builder).left_join(table(builder, "other"), both, stored("pairs"), named=Named("met"))
    joined.to_stream().to("out")


def table_outer_join_with_serdes(builder: StreamsBuilder, _say: Say) -> None:
    options: Materialized[str, str] = Materialized(STRING, STRING)
    table(builder).outer_join(table(builder, "other"), both, options).to_stream().to("out", TO_TEXTS)


def three_tables(builder: StreamsBuilder, _say: Say) -> None:
    pairs = table(builder).join(table(builder, "other"), both)
    pairs.outer_join(table(builder, "third"), both).to_stream().to("out", TO_TEXTS)


def filtered_tables_joined_and_grouped(builder: StreamsBuilder, _say: Say) -> None:
    left = table(builder).filter(is_long)
    pairs = left.left_join(table(builder, "other").map_values(first), both)
    pairs.group_by(lambda _k, v: (v[-1], v), BY_TEXT).count().to_stream().to("out")


def counts_joined(builder: StreamsBuilder, _say: Say) -> None:
    left = texts(builder).group_by_key().count()
    right = texts(builder, "other").group_by_key().count()
    left.outer_join(right, both).to_stream().to("out", TO_TEXTS)


def stream_joined_with_joined_tables(builder: StreamsBuilder, _say: Say) -> None:
    stream = texts(builder)
    pairs = table(builder, "table").outer_join(table(builder, "other"), both)
    stream.left_join(pairs, both, joined=Joined(STRING, STRING)).to("out", TO_TEXTS)
