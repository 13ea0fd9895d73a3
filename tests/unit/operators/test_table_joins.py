"""Joins of tables by key. The tables of values are those of Kafka Streams' KTableKTable*JoinTest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from riverrun import INTEGER, STRING, Consumed, KTable, Materialized, Named, Processor, Produced, Record, StreamsBuilder
from riverrun.records import Change
from riverrun.testing import TopologyTestDriver

if TYPE_CHECKING:
    from riverrun.topology.topology import Topology

ROWS: Consumed[int, str] = Consumed(INTEGER, STRING)
OUT: Produced[int, str] = Produced(INTEGER, STRING)

Rows = list[tuple[Any, Any, int]]

LEFT, RIGHT = "left", "right"
BATCHES: list[tuple[str, Rows]] = [
    (LEFT, [(0, "X0", 5), (1, "X1", 6), (None, "SomeVal", 42)]),
    (RIGHT, [(0, "Y0", 0), (1, "Y1", 10), (None, "AnotherVal", 73)]),
    (LEFT, [(n, f"XX{n}", 7) for n in range(4)]),
    (RIGHT, [(n, f"YY{n}", n * 5) for n in range(4)]),
    (LEFT, [(n, f"XXX{n}", 6) for n in range(4)]),
    (RIGHT, [(0, None, 5), (1, None, 7)]),
    (LEFT, [(n, f"XXXX{n}", 13) for n in range(4)]),
    (LEFT, [(0, None, 0), (1, None, 42), (2, None, 5), (3, None, 20)]),
]
MATCHED: list[Rows] = [
    [(0, Change("X0+Y0", "X0+null"), 5), (1, Change("X1+Y1", "X1+null"), 10)],
    [
        (0, Change("XX0+Y0", "X0+Y0"), 7),
        (1, Change("XX1+Y1", "X1+Y1"), 10),
        (2, Change("XX2+null", None), 7),
        (3, Change("XX3+null", None), 7),
    ],
    [
        (0, Change("XX0+YY0", "XX0+Y0"), 7),
        (1, Change("XX1+YY1", "XX1+Y1"), 7),
        (2, Change("XX2+YY2", "XX2+null"), 10),
        (3, Change("XX3+YY3", "XX3+null"), 15),
    ],
    [
        (0, Change("XXX0+YY0", "XX0+YY0"), 6),
        (1, Change("XXX1+YY1", "XX1+YY1"), 6),
        (2, Change("XXX2+YY2", "XX2+YY2"), 10),
        (3, Change("XXX3+YY3", "XX3+YY3"), 15),
    ],
    [(0, Change("XXX0+null", "XXX0+YY0"), 6), (1, Change("XXX1+null", "XXX1+YY1"), 7)],
    [
        (0, Change("XXXX0+null", "XXX0+null"), 13),
        (1, Change("XXXX1+null", "XXX1+null"), 13),
        (2, Change("XXXX2+YY2", "XXX2+YY2"), 13),
        (3, Change("XXXX3+YY3", "XXX3+YY3"), 15),
    ],
]
"""The common results of left and outer joins: all but the first batch and the last."""
FIRST: Rows = [(0, Change("X0+null", None), 5), (1, Change("X1+null", None), 6)]
EXPECTED: dict[str, list[Rows]] = {
    "join": [
        [],
        [(0, Change("X0+Y0", None), 5), (1, Change("X1+Y1", None), 10)],
        [(0, Change("XX0+Y0", "X0+Y0"), 7), (1, Change("XX1+Y1", "X1+Y1"), 10)],
        [
            (0, Change("XX0+YY0", "XX0+Y0"), 7),
            (1, Change("XX1+YY1", "XX1+Y1"), 7),
            (2, Change("XX2+YY2", None), 10),
            (3, Change("XX3+YY3", None), 15),
        ],
        MATCHED[3],
        [(0, Change(None, "XXX0+YY0"), 6), (1, Change(None, "XXX1+YY1"), 7)],
        [(2, Change("XXXX2+YY2", "XXX2+YY2"), 13), (3, Change("XXXX3+YY3", "XXX3+YY3"), 15)],
        [(2, Change(None, "XXXX2+YY2"), 10), (3, Change(None, "XXXX3+YY3"), 20)],
    ],
    "left_join": [
        FIRST,
        *MATCHED,
        [
            (0, Change(None, "XXXX0+null"), 0),
            (1, Change(None, "XXXX1+null"), 42),
            (2, Change(None, "XXXX2+YY2"), 10),
            (3, Change(None, "XXXX3+YY3"), 20),
        ],
    ],
    "outer_join": [
        FIRST,
        *MATCHED,
        [
            (0, Change(None, "XXXX0+null"), 0),
            (1, Change(None, "XXXX1+null"), 42),
            (2, Change("null+YY2", "XXXX2+YY2"), 10),
            (3, Change("null+YY3", "XXXX3+YY3"), 20),
        ],
    ],
}


def plus(left: str | None, right: str | None) -> str:
    return f"{left or 'null'}+{right or 'null'}"


class Capture(Processor[int, Any]):
    def __init__(self, seen: Rows) -> None:
        self._seen = seen

    def process(self, record: Record[int, Any]) -> None:
        self._seen.append((record.key, record.value, record.timestamp))


def joined(kind: str, materialized: Materialized[int, str] | None = None) -> tuple[StreamsBuilder, KTable[int, str]]:
    builder = StreamsBuilder()
    left, right = builder.table(LEFT, ROWS), builder.table(RIGHT, ROWS)
    return builder, getattr(left, kind)(right, plus, materialized)


def run(topology: Topology, table: KTable[int, str]) -> list[Rows]:
    """The changes the table forwards, batch by batch."""
    seen: Rows = []
    topology.add_processor("capture", lambda: Capture(seen), table._node.name)
    found: list[Rows] = []
    with TopologyTestDriver(topology) as driver:
        topics = {name: driver.input_topic(name, INTEGER, STRING) for name in (LEFT, RIGHT)}
        for name, rows in BATCHES:
            for key, value, timestamp in rows:
                topics[name].pipe_input(key, value, timestamp=timestamp)
            found.append(list(seen))
            seen.clear()
    return found


@pytest.mark.parametrize("kind", EXPECTED)
def test_a_join_follows_both_tables_and_tells_what_it_replaced(kind: str) -> None:
    builder, table = joined(kind)
    table._node.enable_sending_old_values(force=True)
    assert run(builder.build(), table) == EXPECTED[kind]


@pytest.mark.parametrize("kind", EXPECTED)
@pytest.mark.parametrize("materialized", [None, Materialized(INTEGER, STRING, name="joined", caching=False)])
def test_a_join_sends_no_old_values_where_nobody_asks(kind: str, materialized: Materialized[int, str] | None) -> None:
    builder, table = joined(kind, materialized)
    without_old = [[(k, Change(change.new, None), t) for k, change, t in rows] for rows in EXPECTED[kind]]
    assert run(builder.build(), table) == without_old


def test_only_the_sides_that_may_be_missing_are_asked_for_old_values() -> None:
    asked = {}
    for kind in EXPECTED:
        _, table = joined(kind)
        asked[kind] = [parent.sends_old_values for parent in table._node.parents]
    assert asked == {"join": [False, False], "left_join": [True, False], "outer_join": [True, True]}


def test_joined_tables_must_have_equal_partitions_and_share_a_task() -> None:
    builder, _ = joined("join")
    topology = builder.build()
    assert topology.copartitioned_topics() == (frozenset({LEFT, RIGHT}),)
    assert len(topology.sub_topologies()) == 1


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("join", ["s:a+b", "s:None", "s:None", "s:None"]),
        ("left_join", ["s:a+b", "s:a+null", "s:None", "s:None"]),
        ("outer_join", ["s:a+b", "s:a+null", "s:null+b", "s:None"]),
    ],
)
def test_a_join_without_a_store_is_looked_up_in_both_tables(kind: str, values: list[str]) -> None:
    builder, table = joined(kind)
    stream = builder.stream("stream", ROWS)
    stream.left_join(table.map_values(lambda v: v), lambda s, v: f"{s}:{v}").to("out", OUT)
    topology = builder.build()
    assert len(topology.stores) == 2
    with TopologyTestDriver(topology) as driver:
        driver.input_topic(LEFT, INTEGER, STRING).pipe_key_value_list([(0, "a"), (1, "a"), (3, "a"), (3, None)])
        driver.input_topic(RIGHT, INTEGER, STRING).pipe_key_value_list([(0, "b"), (2, "b")])
        driver.input_topic("stream", INTEGER, STRING).pipe_key_value_list([(n, "s") for n in range(4)])
        found = driver.output_topic("out", INTEGER, STRING).read_key_values_to_list()
    assert found == list(enumerate(values))


def test_a_materialized_without_a_name_makes_a_store_as_well() -> None:
    builder, table = joined("join", Materialized(value_serde=STRING))
    assert table.queryable_store_name == "KTABLE-MERGE-STATE-STORE-0000000006"
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic(LEFT, INTEGER, STRING).pipe_input(1, "a", timestamp=3)
        driver.input_topic(RIGHT, INTEGER, STRING).pipe_input(1, "b", timestamp=2)
        assert list(driver.get_state_store("KTABLE-MERGE-STATE-STORE-0000000006").all()) == [(1, ("a+b", 3))]


def three_tables(first: str, second: str) -> StreamsBuilder:
    builder = StreamsBuilder()
    one, two, three = (builder.table(name, ROWS) for name in ("one", "two", "three"))
    both: KTable[int, str] = getattr(one, first)(two, plus)
    getattr(both, second)(three, plus).to_stream().to("out", OUT)
    return builder


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("join", "join", ["a+b+c", "A+b+c", None]),
        ("join", "left_join", ["a+b+null", "a+b+c", "A+b+c", None]),
        ("join", "outer_join", ["a+b+null", "a+b+c", "A+b+c", "null+c"]),
        ("left_join", "join", ["a+b+c", "A+b+c", "A+null+c"]),
        ("left_join", "left_join", ["a+null+null", "a+b+null", "a+b+c", "A+b+c", "A+null+c"]),
        ("outer_join", "outer_join", ["a+null+null", "a+b+null", "a+b+c", "A+b+c", "A+null+c"]),
    ],
)
def test_joins_of_three_tables_are_joins_of_pairs(first: str, second: str, expected: list[str | None]) -> None:
    with TopologyTestDriver(three_tables(first, second).build()) as driver:
        for name, value in (("one", "a"), ("two", "b"), ("three", "c"), ("one", "A"), ("two", None)):
            driver.input_topic(name, INTEGER, STRING).pipe_input(1, value)
        found = driver.output_topic("out", INTEGER, STRING).read_key_values_to_list()
    assert [value for _, value in found] == expected


def test_a_table_can_be_joined_with_itself() -> None:
    builder = StreamsBuilder()
    table = builder.table(LEFT, ROWS)
    table.join(table, plus).to_stream().to("out", OUT)
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic(LEFT, INTEGER, STRING).pipe_input(1, "a")
        assert driver.output_topic("out", INTEGER, STRING).read_key_values_to_list() == [(1, "a+a"), (1, "a+a")]


def test_nodes_of_a_join_are_named_after_it() -> None:
    builder = StreamsBuilder()
    left, right = builder.table(LEFT, ROWS), builder.table(RIGHT, ROWS)
    left.join(right, plus, named=Named("both")).to_stream().to("out", OUT)
    left.join(right, plus)
    names = list(builder.build().nodes)
    assert names[4:] == [
        "both-join-this",
        "both-join-other",
        "both",
        "KTABLE-TOSTREAM-0000000009",
        "KSTREAM-SINK-0000000010",
        "KTABLE-JOINTHIS-0000000012",
        "KTABLE-JOINOTHER-0000000013",
        "KTABLE-MERGE-0000000011",
    ]
