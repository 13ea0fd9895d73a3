"""Each operator by itself, in the test driver."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import (
    LONG,
    STRING,
    Consumed,
    Grouped,
    Joined,
    Materialized,
    Named,
    Produced,
    Repartitioned,
    SerializationError,
    StreamsBuilder,
    StreamsError,
    TimeWindows,
    Topology,
    TopologyError,
    Windowed,
    windowed,
)
from riverrun.testing import TopologyTestDriver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from riverrun import KStream, Serde

STRINGS: Consumed[str, str] = Consumed(STRING, STRING)
SECOND = timedelta(seconds=1)
Given = tuple[str | None, str | None, int]


def results(
    operate: Callable[[StreamsBuilder, KStream[str, str]], KStream[Any, Any]],
    given: Iterable[Given],
    *,
    key: Serde[Any] = STRING,
    value: Serde[Any] = STRING,
    before: Iterable[tuple[str, str, str | None, int]] = (),
) -> list[tuple[Any, Any, int]]:
    """Key, value and time of what `operate` makes of the records of topic `in`; `before` are records of other topics."""
    builder = StreamsBuilder()
    operate(builder, builder.stream("in", STRINGS)).to("out", Produced(key, value))
    with TopologyTestDriver(builder.build()) as driver:
        for topic, other_key, other_value, at in before:
            driver.input_topic(topic, STRING, STRING).pipe_input(other_key, other_value, timestamp=at)
        source = driver.input_topic("in", STRING, STRING)
        for record_key, record_value, at in given:
            source.pipe_input(record_key, record_value, timestamp=at)
        found = driver.output_topic("out", key, value).read_records_to_list()
    return [(record.key, record.value, record.timestamp) for record in found]


WORDS: list[Given] = [("a", "x", 3), ("b", "yy", 1), (None, "x", 2), ("a", None, 9)]


@pytest.mark.parametrize(
    ("operate", "expected"),
    [
        (lambda s: s.filter(lambda _k, v: v == "x"), [("a", "x", 3), (None, "x", 2)]),
        (lambda s: s.filter_not(lambda _k, v: v == "x"), [("b", "yy", 1), ("a", None, 9)]),
        (lambda s: s.map_values(lambda v: v and v + "!"), [("a", "x!", 3), ("b", "yy!", 1), (None, "x!", 2), ("a", None, 9)]),
        (lambda s: s.map_values(lambda k, v: f"{k}{v}"),
         [("a", "ax", 3), ("b", "byy", 1), (None, "Nonex", 2), ("a", "aNone", 9)]),
        (lambda s: s.map(lambda k, v: (v, k)), [("x", "a", 3), ("yy", "b", 1), ("x", None, 2), (None, "a", 9)]),
        (lambda s: s.flat_map(lambda k, v: [(c, k) for c in v or ""]),
         [("x", "a", 3), ("y", "b", 1), ("y", "b", 1), ("x", None, 2)]),
        (lambda s: s.flat_map_values(lambda v: list(v or "")), [("a", "x", 3), ("b", "y", 1), ("b", "y", 1), (None, "x", 2)]),
        (lambda s: s.flat_map_values(lambda k, v: [k] * len(v or "")),
         [("a", "a", 3), ("b", "b", 1), ("b", "b", 1), (None, None, 2)]),
        (lambda s: s.select_key(lambda _k, v: v), [("x", "x", 3), ("yy", "yy", 1), ("x", "x", 2), (None, None, 9)]),
        (lambda s: s.repartition(Repartitioned(STRING, STRING, name="r")), [("a", "x", 3), ("b", "yy", 1), ("a", None, 9)]),
    ],
    ids=["filter", "filter_not", "map_values", "map_values-key", "map", "flat_map", "flat_map_values", "flat_map_values-key",
         "select_key", "repartition"],
)  # fmt: skip
def test_stateless_operators(operate: Callable[[Any], Any], expected: list[Any]) -> None:
    assert results(lambda _builder, stream: operate(stream), WORDS) == expected


def test_peek_sees_each_record_and_passes_it_on_and_for_each_ends_the_stream() -> None:
    peeked: list[Any] = []
    ended: list[Any] = []

    def operate(_builder: StreamsBuilder, stream: KStream[str, str]) -> KStream[str, str]:
        stream.foreach(lambda k, v: ended.append((k, v)))
        return stream.peek(lambda k, v: peeked.append((k, v)))

    assert results(operate, WORDS) == WORDS
    assert peeked == ended == [(k, v) for k, v, _ in WORDS]


def test_merge_takes_the_records_of_both_streams_as_they_come() -> None:
    found = results(lambda b, s: s.merge(b.stream("other", STRINGS)), [("a", "x", 3)], before=[("other", "b", "y", 7)])
    assert found == [("b", "y", 7), ("a", "x", 3)]


def test_to_chooses_a_topic_and_a_partitioner_per_record() -> None:
    builder = StreamsBuilder()
    calls: list[Any] = []

    def partitioner(topic: str, key: str, value: str, partitions: int) -> int:
        calls.append((topic, key, value, partitions))
        return 0

    builder.stream("in", STRINGS).to(lambda _k, v, at: f"{v}-{at}", Produced(STRING, STRING, partitioner))
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic("in", STRING, STRING).pipe_input("a", "x", timestamp=4)
        assert driver.produced_topic_names() == {"x-4"}
    assert calls == [("x-4", "a", "x", 1)]


# Aggregations

GROUPED: list[Given] = [("a", "1", 10), ("b", "2", 11), ("a", "3", 5), (None, "4", 12), ("a", None, 13)]


def test_count_skips_null_keys_and_values_and_keeps_the_highest_time() -> None:
    found = results(lambda _b, s: s.group_by_key().count().to_stream(), GROUPED, value=LONG)
    assert found == [("a", 1, 10), ("b", 1, 11), ("a", 2, 10)]


def test_reduce_begins_with_the_first_value() -> None:
    found = results(lambda _b, s: s.group_by_key().reduce(lambda total, v: f"{total}+{v}").to_stream(), GROUPED)
    assert found == [("a", "1", 10), ("b", "2", 11), ("a", "1+3", 10)]


def test_aggregate_begins_with_its_initializer_and_none_deletes() -> None:
    def operate(_builder: StreamsBuilder, stream: KStream[str, str]) -> KStream[str, str]:
        grouped = stream.group_by(lambda _k, v: v[0], Grouped(STRING, STRING))
        stored: Materialized[str, str] = Materialized(STRING, STRING, name="agg")
        return grouped.aggregate(
            lambda: ":", lambda k, v, agg: None if v.endswith("!") else agg + k + v, stored
        ).to_stream()

    records = [("k", "x1", 1), ("k", "x!", 2), ("k", "x2", 3)]
    assert results(operate, records) == [("x", ":xx1", 1), ("x", None, 2), ("x", ":xx2", 3)]


def test_tumbling_windows_count_null_values_and_drop_what_is_behind_grace() -> None:
    windows = TimeWindows.of(SECOND, grace=SECOND)
    found = results(
        lambda _b, s: s.group_by_key().windowed_by(windows).count().to_stream(),
        [("a", "x", 100), ("a", None, 1900), ("a", "y", 900), ("b", "z", 2000), ("a", "late", 999)],
        key=windowed(STRING, SECOND),
        value=LONG,
    )
    assert [(str(key), count, at) for key, count, at in found] == [
        ("[a@0/1000]", 1, 100),
        ("[a@1000/2000]", 1, 1900),
        ("[a@0/1000]", 2, 900),
        ("[b@2000/3000]", 1, 2000),
    ]


def test_hopping_windows_hold_a_record_more_than_once() -> None:
    windows = TimeWindows.of(2 * SECOND).advance_by(SECOND)
    found = results(
        lambda _b, s: s.group_by_key().windowed_by(windows).reduce(lambda x, y: x + y).to_stream(),
        [("a", "x", 1500), ("a", "y", 2500)],
        key=windowed(STRING, 2 * SECOND),
    )
    assert [(key.window.start, value) for key, value, _ in found] == [(0, "x"), (1000, "x"), (1000, "xy"), (2000, "y")]


def test_a_grouping_that_changes_the_key_is_repartitioned_under_its_name() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", STRINGS)
    stream.group_by(lambda _k, v: v, Grouped(STRING, STRING, name="by-value")).count().to_stream().to(
        "out", Produced(STRING, LONG)
    )
    with TopologyTestDriver(builder.build(), application_id="app") as driver:
        driver.input_topic("in", STRING, STRING).pipe_input("a", "x")
        assert "app-by-value-repartition" in driver.produced_topic_names()


# Joins with tables

TABLE = [("table", "a", "A", 0), ("table", "b", "B", 0), ("table", "b", None, 1)]


@pytest.mark.parametrize(
    ("join", "expected"),
    [("join", [("a", "1A", 5)]), ("left_join", [("a", "1A", 5), ("b", "2None", 6), (None, "3None", 7)])],
)
def test_a_stream_is_joined_with_the_present_value_of_a_table(join: str, expected: list[Any]) -> None:
    def operate(builder: StreamsBuilder, stream: KStream[str, str]) -> KStream[str, str]:
        found: KStream[str, str] = getattr(stream, join)(
            builder.table("table", STRINGS), lambda value, other: f"{value}{other}"
        )
        return found

    assert results(operate, [("a", "1", 5), ("b", "2", 6), (None, "3", 7)], before=TABLE) == expected


@pytest.mark.parametrize(
    ("join", "expected"), [("join", [("k", "1A", 5)]), ("left_join", [("k", "1A", 5), ("k", "2None", 6)])]
)
def test_a_global_table_is_looked_up_by_any_key(join: str, expected: list[Any]) -> None:
    def operate(builder: StreamsBuilder, stream: KStream[str, str]) -> KStream[str, str]:
        table = builder.global_table("table", STRINGS)
        keys = {"1": "a", "2": "b"}
        found: KStream[str, str] = getattr(stream, join)(
            table, lambda value, other: f"{value}{other}", key_selector=lambda _k, v: keys[v]
        )
        return found

    assert results(operate, [("k", "1", 5), ("k", "2", 6)], before=TABLE) == expected


def test_a_joiner_may_ask_for_the_key() -> None:
    def operate(builder: StreamsBuilder, stream: KStream[str, str]) -> KStream[str, str]:
        return stream.join(builder.table("table", STRINGS), lambda key, value, other: key + value + other)

    assert results(operate, [("a", "1", 5)], before=TABLE) == [("a", "a1A", 5)]


def test_a_join_after_a_change_of_key_goes_through_a_topic_named_after_it() -> None:
    builder = StreamsBuilder()
    moved = builder.stream("in", STRINGS).select_key(lambda _k, v: v)
    joined: Joined[str, str, str] = Joined(STRING, STRING, name="enrich")
    moved.join(builder.table("table", STRINGS), lambda v, t: v + t, joined=joined).to("out", Produced(STRING, STRING))
    with TopologyTestDriver(builder.build(), application_id="app") as driver:
        driver.input_topic("table", STRING, STRING).pipe_input("x", "X")
        driver.input_topic("in", STRING, STRING).pipe_input("a", "x")
        assert driver.output_topic("out", STRING, STRING).read_key_value() == ("x", "xX")
        assert "app-enrich-repartition" in driver.produced_topic_names()


# Mistakes


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda b: b.build(), "Topology is empty"),
        (lambda b: b.stream("in", STRINGS).filter(lambda _k, _v: True, named=Named("a b")), "illegal"),
        (lambda b: b.stream("in", STRINGS).map(lambda k, v: (k, v)).to("out"), "needs a serde for its keys"),
        (lambda b: b.stream("in", STRINGS).group_by_key().aggregate(str, lambda _k, v, a: a + v),
         "needs a serde for its values"),
        (lambda b: b.stream("in", STRINGS).join(b.table("t", STRINGS), max, key_selector=max), "not belong"),
        (lambda _b: TimeWindows.of(timedelta(0)), "size"),
        (lambda _b: TimeWindows.of(SECOND).advance_by(2 * SECOND), "advance"),
        (lambda _b: Repartitioned(number_of_partitions=0), "at least 1"),
    ],
    ids=["empty", "name", "key-serde", "value-serde", "key-of-table", "window", "advance", "partitions"],
)  # fmt: skip
def test_a_mistake_in_a_topology_is_named_when_it_is_built(
    mistake: Callable[[StreamsBuilder], object], message: str
) -> None:
    with pytest.raises(TopologyError, match=message):
        mistake(StreamsBuilder())


def test_a_value_its_serde_cannot_write_is_an_error_that_names_sink_and_serde() -> None:
    with pytest.raises(SerializationError, match=r"KSTREAM-SINK-0000000001 .* the str of key .*serde long"):
        results(lambda _b, s: s, [("a", "x", 1)], value=LONG)


def test_reading_an_empty_output_or_writing_an_unknown_input_is_an_error() -> None:
    builder = StreamsBuilder()
    builder.stream("in", STRINGS).to("out", Produced(STRING, STRING))
    with TopologyTestDriver(builder.build()) as driver:
        with pytest.raises(StreamsError, match="out has no more records"):
            driver.output_topic("out", STRING, STRING).read_value()
        with pytest.raises(StreamsError, match="No source reads topic nowhere"):
            driver.input_topic("nowhere", STRING, STRING)


def test_a_windowed_key_says_what_it_is() -> None:
    builder = StreamsBuilder()
    counts = builder.stream("in", STRINGS).group_by_key().windowed_by(TimeWindows.of(SECOND)).count()
    seen: list[Windowed[str]] = []
    counts.to_stream().foreach(lambda key, _count: seen.append(key))
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic("in", STRING, STRING, start_ms=1500).pipe_input("a", "x")
    assert [str(key) for key in seen] == ["[a@1000/2000]"]


def test_the_same_topology_has_the_same_fingerprint_and_another_function_another() -> None:
    def build(predicate: Callable[[str, str], bool]) -> Topology:
        builder = StreamsBuilder()
        builder.stream("in", STRINGS).filter(predicate).to("out", Produced(STRING, STRING))
        return builder.build()

    assert build(lambda _k, v: v == "x").fingerprint() == build(lambda _k, v: v == "x").fingerprint()
    assert build(lambda _k, v: v == "x").fingerprint() != build(lambda _k, v: v == "y").fingerprint()
