"""Tables made of tables: filters, mapped values, aggregations. Values are those of Kafka Streams' own tests."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import (
    INTEGER,
    LONG,
    STRING,
    Consumed,
    Grouped,
    KStream,
    KTable,
    Materialized,
    Named,
    ProcessingError,
    ProcessorContext,
    Produced,
    Record,
    SessionWindows,
    Stores,
    StreamsBuilder,
    TimeWindows,
)
from riverrun.records import Change
from riverrun.testing import TopologyTestDriver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from riverrun.serde.api import Serde
    from riverrun.topology.topology import Topology

NUMBERS: Consumed[str, int] = Consumed(STRING, INTEGER)
STRINGS: Consumed[str, str] = Consumed(STRING, STRING)
TEXT: Produced[str, str] = Produced(STRING, STRING)
GROUPS: Grouped[str, str] = Grouped(STRING, STRING)

Rows = list[tuple[Any, Any, int]]


class Capture:
    """A processor that notes what it is given."""

    def __init__(self, seen: Rows) -> None:
        self._seen = seen

    def init(self, context: ProcessorContext) -> None: ...

    def process(self, record: Any) -> None:
        self._seen.append((record.key, record.value, record.timestamp))

    def close(self) -> None: ...


def captured(topology: Topology, *tables: KTable[Any, Any]) -> list[Rows]:
    """Watch the changes that tables forward."""
    found: list[Rows] = [[] for _ in tables]
    for number, (table, rows) in enumerate(zip(tables, found, strict=True)):
        topology.add_processor(f"capture-{number}", partial(Capture, rows), table._node.name)
    return found


def outputs(build: Callable[[StreamsBuilder], None], serde: Serde[Any], given: Iterable[tuple[Any, Any, int]]) -> Rows:
    """The records that go to `out` when `given` comes from `in`."""
    builder = StreamsBuilder()
    build(builder)
    with TopologyTestDriver(builder.build()) as driver:
        source = driver.input_topic("in", STRING, serde)
        for key, value, timestamp in given:
            source.pipe_input(key, value, timestamp=timestamp)
        raw = driver.read_raw("out")
    return [(r.key and r.key.decode(), r.value, r.timestamp) for r in raw]


def even(_key: str, value: int) -> bool:
    return value % 2 == 0


ROWS: Rows = [("A", 1, 10), ("B", 2, 5), ("C", 3, 8), ("D", 4, 14), ("A", None, 18), ("B", None, 15)]


@pytest.mark.parametrize("materialized", [None, Materialized(name="store2"), Materialized()])
def test_a_row_that_does_not_pass_a_filter_is_a_deletion(materialized: Materialized[str, int] | None) -> None:
    builder = StreamsBuilder()
    table = builder.table("in", NUMBERS)
    passed, refused = table.filter(even, materialized), table.filter_not(even)
    topology = builder.build()
    seen = captured(topology, passed, refused)
    with TopologyTestDriver(topology) as driver:
        source = driver.input_topic("in", STRING, INTEGER)
        for key, value, timestamp in ROWS:
            source.pipe_input(key, value, timestamp=timestamp)
    if materialized is None or materialized.name is None:
        assert [(k, change.new, t) for k, change, t in seen[0]] == [
            ("A", None, 10),
            ("B", 2, 5),
            ("C", None, 8),
            ("D", 4, 14),
            ("A", None, 18),
            ("B", None, 15),
        ]
    else:  # the cache forwards no deletion of what was never there
        assert [(k, change.new, t) for k, change, t in seen[0]] == [("B", 2, 5), ("D", 4, 14), ("B", None, 15)]
    assert [(k, change.new, t) for k, change, t in seen[1]] == [
        ("A", 1, 10),
        ("B", None, 5),
        ("C", 3, 8),
        ("D", None, 14),
        ("A", None, 18),
        ("B", None, 15),
    ]
    assert passed.queryable_store_name == (materialized.name if materialized else None)


UPDATES: Rows = [
    ("A", 1, 5),
    ("B", 1, 10),
    ("C", 1, 15),
    ("A", 2, 15),
    ("B", 2, 8),
    ("A", 3, 20),
    ("A", None, 10),
    ("B", None, 20),
]


def changes_of_filter(
    source: Materialized[str, int] | None, result: Materialized[str, int] | None, *, forced: bool
) -> tuple[list[Rows], bool]:
    builder = StreamsBuilder()
    table = builder.table("in", NUMBERS, source)
    passed = table.filter(even, result)
    passed._node.enable_sending_old_values(force=forced)
    topology = builder.build()
    seen = captured(topology, table, passed)
    with TopologyTestDriver(topology) as driver:
        topic = driver.input_topic("in", STRING, INTEGER)
        for key, value, timestamp in UPDATES:
            topic.pipe_input(key, value, timestamp=timestamp)
    return seen, table._node.sends_old_values


@pytest.mark.parametrize(
    ("source", "result", "forced", "table_sends"),
    [
        (None, None, True, True),
        (None, Materialized(name="store2", caching=False), True, False),
        (Materialized(name="store2", caching=False), None, False, True),
    ],
)
def test_a_filter_that_sends_old_values_forwards_no_deletion_of_what_was_not_there(
    source: Materialized[str, int] | None, result: Materialized[str, int] | None, forced: bool, table_sends: bool
) -> None:
    (_, seen), sends = changes_of_filter(source, result, forced=forced)
    assert sends is table_sends
    assert seen == [
        ("A", Change(2, None), 15),
        ("B", Change(2, None), 8),
        ("A", Change(None, 2), 20),
        ("B", Change(None, 2), 20),
    ]


def test_old_values_are_not_sent_when_that_would_take_a_store_nobody_forces() -> None:
    (below, seen), sends = changes_of_filter(None, None, forced=False)
    assert not sends
    assert all(change.old is None for _, change, _ in below + seen)
    assert len(seen) == len(UPDATES)


def test_values_without_a_store_are_looked_up_in_the_parent_and_mapped() -> None:
    builder = StreamsBuilder()
    table = builder.table("in", NUMBERS).filter(even).map_values(lambda k, v: f"{k}{v * 10}")
    builder.stream("stream", STRINGS).left_join(table, lambda s, v: f"{s}-{v}").to("out", TEXT)
    topology = builder.build()
    assert list(topology.stores) == ["in-STATE-STORE-0000000000"]
    with TopologyTestDriver(topology) as driver:
        rows, stream = driver.input_topic("in", STRING, INTEGER), driver.input_topic("stream", STRING, STRING)
        out = driver.output_topic("out", STRING, STRING)
        rows.pipe_key_value_list([("a", 2), ("b", 3), ("c", 4), ("c", None)])
        stream.pipe_key_value_list([("a", "x"), ("b", "x"), ("c", "x")])
        assert out.read_key_values_to_list() == [("a", "x-a20"), ("b", "x-None"), ("c", "x-None")]


def test_mapped_values_are_stored_where_a_name_is_given() -> None:
    builder = StreamsBuilder()
    table = builder.table("in", STRINGS).map_values(
        lambda v: int(v) * 2, Materialized(name="twice", value_serde=INTEGER)
    )
    topology = builder.build()
    (seen,) = captured(topology, table)
    assert list(topology.stores) == ["twice"]
    with TopologyTestDriver(topology) as driver:
        driver.input_topic("in", STRING, STRING).pipe_key_value_list([("a", "1"), ("b", "2"), ("a", None)])
        assert list(driver.get_state_store("twice").all()) == [("b", (4, 0))]
    assert seen == [("a", Change(2, None), 0), ("b", Change(4, None), 0), ("a", Change(None, None), 0)]


def test_a_table_becomes_a_stream_under_other_keys() -> None:
    def build(builder: StreamsBuilder) -> None:
        table = builder.table("in", STRINGS)
        table.to_stream(lambda k, v: f"{k}{v}", named=Named("flat")).to("out", Produced(STRING, STRING))

    assert outputs(build, STRING, [("a", "1", 3), ("a", None, 4)]) == [("a1", b"1", 3), ("aNone", None, 4)]


def aggregated(group: Callable[[str, str], tuple[str | None, str] | None]) -> Callable[[StreamsBuilder], None]:
    def build(builder: StreamsBuilder) -> None:
        builder.table("in", STRINGS).group_by(group, GROUPS).aggregate(
            lambda: "0",
            lambda _k, v, aggregate: f"{aggregate}+{v}",
            lambda _k, v, aggregate: f"{aggregate}-{v}",
            Materialized(name="topic1-Canonized", value_serde=STRING),
        ).to_stream().to("out", TEXT)

    return build


def test_an_update_within_a_group_takes_the_old_value_out_and_adds_the_new_one() -> None:
    given = [("A", "1", 10), ("B", "2", 15), ("A", "3", 20), ("B", "4", 18)]
    given += [("C", "5", 5), ("D", "6", 25), ("B", "7", 15), ("C", "8", 10)]
    assert outputs(aggregated(lambda k, v: (k, v)), STRING, given) == [
        ("A", b"0+1", 10),
        ("B", b"0+2", 15),
        ("A", b"0+1-1+3", 20),
        ("B", b"0+2-2+4", 18),
        ("C", b"0+5", 5),
        ("D", b"0+6", 25),
        ("B", b"0+2-2+4-4+7", 18),
        ("C", b"0+5-5+8", 10),
    ]


def by_value(key: str, value: str) -> tuple[str | None, str] | None:
    return None if key == "NULL" else (None if key == "null" else value, value)


def test_an_update_that_changes_its_group_leaves_the_old_group_first() -> None:
    given = [("A", "1", 10), ("A", None, 15), ("A", "1", 12), ("B", "2", 20)]
    given += [("null", "3", 25), ("B", "4", 23), ("NULL", "5", 24), ("B", "7", 22)]
    assert outputs(aggregated(by_value), STRING, given) == [
        ("1", b"0+1", 10),
        ("1", b"0+1-1", 15),
        ("1", b"0+1-1+1", 15),
        ("2", b"0+2", 20),
        ("2", b"0+2-2", 23),
        ("4", b"0+4", 23),
        ("4", b"0+4-4", 23),
        ("7", b"0+7", 22),
    ]


@pytest.mark.parametrize("materialized", [None, Materialized(name="count")])
def test_a_count_of_rows_goes_up_and_down(materialized: Materialized[str, int] | None) -> None:
    def build(builder: StreamsBuilder) -> None:
        counts = builder.table("in", STRINGS).group_by(lambda _k, v: (v, v), GROUPS).count(materialized)
        counts.to_stream().to("out", Produced(STRING, LONG))

    given = [("A", "green", 10), ("B", "green", 9), ("A", "blue", 12), ("C", "yellow", 15), ("D", "green", 11)]
    found = [(k, LONG.deserialize(v), t) for k, v, t in outputs(build, STRING, given)]
    assert found == [
        ("green", 1, 10),
        ("green", 2, 10),
        ("green", 1, 12),
        ("blue", 1, 12),
        ("yellow", 1, 15),
        ("green", 2, 12),
    ]


def test_the_old_value_is_removed_before_the_new_one_is_added() -> None:
    def build(builder: StreamsBuilder) -> None:
        builder.table("in", STRINGS).group_by(lambda k, _v: (k[0], k[1]), GROUPS).aggregate(
            lambda: "",
            lambda _k, v, aggregate: aggregate + v,
            lambda _k, v, aggregate: aggregate.replace(v, ""),
            Materialized(name="someStore", value_serde=STRING),
        ).to_stream().to("out", TEXT)

    given = [("11", "A", 10), ("12", "B", 8), ("11", None, 12), ("12", "C", 6)]
    assert outputs(build, STRING, given) == [("1", b"1", 10), ("1", b"12", 10), ("1", b"2", 12), ("1", b"2", 12)]


def test_reducing_a_table_adds_and_subtracts_and_none_deletes_the_group() -> None:
    def build(builder: StreamsBuilder) -> None:
        grouped = builder.table("in", NUMBERS).group_by(lambda k, v: (k[0], v), Grouped(STRING, INTEGER))
        sums = grouped.reduce(lambda total, v: total + v, lambda total, v: total - v or None)
        sums.to_stream().to("out", Produced(STRING, INTEGER))

    given = [("a1", 5, 1), ("a2", 7, 4), ("a1", None, 2), ("a2", None, 3), ("a2", 1, 3)]
    found = [(k, v and INTEGER.deserialize(v), t) for k, v, t in outputs(build, INTEGER, given)]
    assert found == [("a", 5, 1), ("a", 12, 4), ("a", 7, 4), ("a", None, 3), ("a", 1, 3)]


def test_both_sides_of_an_update_within_a_group_travel_in_one_record() -> None:
    builder = StreamsBuilder()
    builder.table("in", STRINGS).group_by(lambda _k, v: (v[0], v), GROUPS).count(Materialized(name="counts"))
    with TopologyTestDriver(builder.build(), application_id="app") as driver:
        driver.input_topic("in", STRING, STRING).pipe_key_value_list([("k", "n1"), ("k", "n2"), ("k", "o1")])
        sent = [(r.key, r.value) for r in driver.read_raw("app-counts-repartition")]
    assert sent == [(b"n", b"n1\x01"), (b"n", b"\x04n2n1\x02"), (b"n", b"n2\x00"), (b"o", b"o1\x01")]


def test_names_and_counters_are_those_of_kafka_streams() -> None:
    builder = StreamsBuilder()
    table = builder.table("in", STRINGS)
    table.filter(lambda _k, _v: True, Materialized()).map_values(lambda v: v, named=Named("upper"))
    table.group_by(lambda k, v: (k, v), GROUPS).count()
    table.group_by(lambda k, v: (k, v), Grouped(STRING, STRING, name="named")).count(
        Materialized(name="c"), named=Named("cnt")
    )
    topology = builder.build()
    assert list(topology.nodes) == [
        "KSTREAM-SOURCE-0000000001",
        "KTABLE-SOURCE-0000000002",
        "KTABLE-FILTER-0000000004",
        "upper",
        "KTABLE-SELECT-0000000006",
        "KSTREAM-SINK-0000000008",
        "KSTREAM-SOURCE-0000000009",
        "KTABLE-AGGREGATE-0000000010",
        "named",
        "cnt-sink",
        "cnt-source",
        "cnt",
    ]
    assert list(topology.repartition_topics) == [
        "KTABLE-AGGREGATE-STATE-STORE-0000000007-repartition",
        "named-repartition",
    ]


def test_aggregations_of_one_named_grouping_share_its_repartition_topic() -> None:
    builder = StreamsBuilder()
    grouped = builder.table("in", STRINGS).group_by(lambda _k, v: (v, v), Grouped(STRING, STRING, name="shared"))
    grouped.count(Materialized(name="first"))
    grouped.count(Materialized(name="second"))
    topology = builder.build()
    assert list(topology.repartition_topics) == ["shared-repartition"]
    with TopologyTestDriver(topology) as driver:
        driver.input_topic("in", STRING, STRING).pipe_key_value_list([("a", "x"), ("b", "x")])
        assert driver.get_state_store("first").get("x").value == 2
        assert driver.get_state_store("second").get("x").value == 2


def test_a_mapped_none_deletes_and_a_null_key_in_a_repartition_topic_stops() -> None:
    builder = StreamsBuilder()
    table = builder.table("in", STRINGS)
    table.group_by(lambda k, v: (k, v), GROUPS).count(Materialized(name="counts"))
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic("in", STRING, STRING).pipe_input("k", "v")
        with pytest.raises(ProcessingError, match="should not be null"):
            driver._pipe("test-counts-repartition", None, b"v\x01", 0, ())


class Exclaim:
    """Notes what it has been called for in a store."""

    def init(self, context: ProcessorContext) -> None:
        self.context = context
        self.store = context.get_state_store("calls")

    def transform(self, key: str, value: str | None) -> str:
        self.store.put(key, (self.store.get(key) or 0) + 1)
        return f"{key}->{value}!"

    def close(self) -> None: ...


@pytest.mark.parametrize("materialized", [None, Materialized(STRING, STRING, name="queryable")])
def test_a_transformer_makes_values_of_updates_and_deletions(materialized: Materialized[str, str] | None) -> None:
    builder = StreamsBuilder()
    builder.add_state_store(Stores.key_value_store("calls", STRING, LONG))
    table = builder.table("in", STRINGS).transform_values(Exclaim, "calls", materialized=materialized)
    table.to_stream().to("out", TEXT)
    with TopologyTestDriver(builder.build()) as driver:
        for key, value, timestamp in (("A", "a", 5), ("B", "b", 10), ("D", None, 15)):
            driver.input_topic("in", STRING, STRING).pipe_input(key, value, timestamp=timestamp)
        records = driver.output_topic("out", STRING, STRING).read_records_to_list()
        assert [(r.key, r.value, r.timestamp) for r in records] == [
            ("A", "A->a!", 5),
            ("B", "B->b!", 10),
            ("D", "D->None!", 15),
        ]
        assert driver.get_state_store("calls").get("D") == 1
        assert ("queryable" in driver.get_all_state_stores()) is (materialized is not None)


def test_lookups_of_a_transformed_table_without_a_store_transform_the_parents_value() -> None:
    builder = StreamsBuilder()
    builder.add_state_store(Stores.key_value_store("calls", STRING, LONG))
    table = builder.table("in", STRINGS).transform_values(Exclaim, "calls")
    builder.stream("stream", STRINGS).left_join(table, lambda s, v: f"{s} {v}").to("out", TEXT)
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic("in", STRING, STRING).pipe_input("A", "a")
        driver.input_topic("stream", STRING, STRING).pipe_key_value_list([("A", "x"), ("B", "x")])
        found = driver.output_topic("out", STRING, STRING).read_key_values_to_list()
    assert found == [("A", "x A->a!"), ("B", "x B->None!")]


def test_each_transformer_is_closed_that_of_lookups_as_well() -> None:
    closed: list[Any] = []

    class Closing(Exclaim):
        def close(self) -> None:
            closed.append(self)

    builder = StreamsBuilder()
    builder.add_state_store(Stores.key_value_store("calls", STRING, LONG))
    table = builder.table("in", STRINGS).transform_values(Closing, "calls")
    builder.stream("stream", STRINGS).left_join(table, lambda s, v: f"{s} {v}").to("out", TEXT)
    with TopologyTestDriver(builder.build()):
        assert closed == []
    assert len(set(closed)) == len(closed) == 2


UNEVEN: Rows = [("A", "01", 5), ("B", "02", 100), ("C", "03", 0), ("D", "04", 0), ("A", "05", 10), ("A", "06", 8)]


@pytest.mark.parametrize(
    ("materialized", "expected"),
    [
        (None, [("A", None, 5), ("B", 2, 100), ("C", None, 0), ("D", 4, 0), ("A", None, 10), ("A", 6, 8)]),
        (Materialized(STRING, STRING, name="fred"), [("B", 2, 100), ("D", 4, 0), ("A", 6, 8)]),
    ],
)
def test_a_filter_of_a_stored_table_tells_no_deletions_of_rows_never_passed(
    materialized: Materialized[str, str] | None, expected: Rows
) -> None:
    builder = StreamsBuilder()
    first = builder.table("in", STRINGS, materialized)
    numbers = first.map_values(int)
    evens = numbers.filter(even)
    first.to_stream().to("between", TEXT)
    last = builder.table("between", STRINGS)
    seen: list[Rows] = [[], [], [], []]
    tables: tuple[KTable[str, Any], ...] = first, numbers, evens, last
    for table, rows in zip(tables, seen, strict=True):
        table.to_stream().process(partial(Capture, rows))
    with TopologyTestDriver(builder.build()) as driver:
        for key, value, timestamp in UNEVEN:
            driver.input_topic("in", STRING, STRING).pipe_input(key, value, timestamp=timestamp)
        assert set(driver.get_all_state_stores()) == ({"fred"} if materialized else set())
    assert seen == [UNEVEN, [(key, int(value), at) for key, value, at in UNEVEN], expected, UNEVEN]


def test_a_join_stores_the_tables_it_looks_up_and_nothing_between() -> None:
    builder = StreamsBuilder()
    evens = builder.table("in", STRINGS).map_values(int).filter(even)
    builder.table("other", STRINGS).join(evens, lambda a, b: f"{a}{b}")
    with TopologyTestDriver(builder.build()) as driver:
        assert set(driver.get_all_state_stores()) == {"in-STATE-STORE-0000000000", "other-STATE-STORE-0000000005"}


class Count:
    """Returns the number of its calls."""

    def init(self, context: ProcessorContext) -> None:
        self.context, self.calls = context, 0

    def transform(self, _key: str, _value: str | None) -> int:
        self.calls += 1
        return self.calls

    def close(self) -> None: ...


def test_old_values_of_a_stored_transformation_are_those_that_were_stored() -> None:
    def build(builder: StreamsBuilder) -> None:
        stored: Materialized[str, int] = Materialized(STRING, INTEGER, name="queryable")
        counted = builder.table("in", STRINGS).transform_values(Count, materialized=stored)
        grouped = counted.group_by(lambda k, v: (k, v), Grouped(STRING, INTEGER))
        sums = grouped.reduce(lambda total, v: total + v, lambda total, v: total - v)
        sums.map_values(str, Materialized(value_serde=STRING)).to_stream().to("out", TEXT)

    given = [("A", "ignored", 5), ("A", "ignored1", 15), ("A", "ignored2", 10)]
    assert outputs(build, STRING, given) == [("A", b"1", 5), ("A", b"2", 15), ("A", b"3", 15)]


class Forwarding(Exclaim):
    def transform(self, key: str, value: str | None) -> str:
        self.context.forward(Record(key, value, 0))
        return ""


def test_a_transformer_must_not_forward() -> None:
    builder = StreamsBuilder()
    builder.add_state_store(Stores.key_value_store("calls", STRING, LONG))
    builder.table("in", STRINGS).transform_values(Forwarding, "calls").to_stream().to("out", TEXT)
    with (
        TopologyTestDriver(builder.build()) as driver,
        pytest.raises(ProcessingError, match="must not forward"),
    ):
        driver.input_topic("in", STRING, STRING).pipe_input("A", "a")


def counted(stream: KStream[str, str], stored: Materialized[str, int]) -> KTable[Any, int]:
    return stream.group_by_key().count(stored)


def counted_by_hand(stream: KStream[str, str], stored: Materialized[str, int]) -> KTable[Any, int]:
    return stream.group_by_key().aggregate(lambda: 0, lambda _k, _v, count: count + 1, stored)


def counted_in_windows(stream: KStream[str, str], stored: Materialized[str, int]) -> KTable[Any, int]:
    return stream.group_by_key().windowed_by(TimeWindows.of(timedelta(minutes=1))).count(stored)


def counted_in_sessions(stream: KStream[str, str], stored: Materialized[str, int]) -> KTable[Any, int]:
    return stream.group_by_key().windowed_by(SessionWindows.of(timedelta(minutes=1))).count(stored)


def counted_together(stream: KStream[str, str], stored: Materialized[str, int]) -> KTable[Any, int]:
    return stream.group_by_key().cogroup(lambda _k, _v, count: count + 1).aggregate(lambda: 0, stored)


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize(
    "table",
    [counted, counted_by_hand, counted_in_windows, counted_in_sessions, counted_together],
    ids=lambda made: made.__name__,
)
def test_what_replaces_nothing_takes_nothing_out_of_the_table_below(
    table: Callable[[KStream[str, str], Materialized[str, int]], KTable[Any, int]], caching: bool
) -> None:
    builder = StreamsBuilder()
    rows = table(builder.stream("in", STRINGS), Materialized(STRING, LONG, name="rows", caching=caching))
    groups = rows.group_by(lambda _k, _n: ("all", "x"), GROUPS).count(Materialized(name="groups", caching=caching))
    groups.to_stream().to("out", Produced(STRING, LONG))
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic("in", STRING, STRING).pipe_key_value_list([(key, "v") for key in "aabbc"])
        assert driver.get_key_value_store("groups").get("all") == 3
