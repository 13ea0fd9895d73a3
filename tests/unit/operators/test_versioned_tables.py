"""Tables on versioned stores. Values are those of KStreamKTableJoinTest, KTableAggregateTest and the join tests."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import (
    INTEGER,
    LONG,
    STRING,
    BufferConfig,
    Consumed,
    Grouped,
    Joined,
    Materialized,
    Produced,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    TopologyError,
    VersionedRecord,
)
from riverrun.records import RecordMetadata
from riverrun.serde.internal import BufferedRecord, buffer_key, buffered_key_of, decode_buffered, encode_buffered
from riverrun.testing import TopologyTestDriver

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.dsl.grouped_tables import KGroupedTable
    from riverrun.dsl.ktable import KTable

ROWS: Consumed[int, str] = Consumed(INTEGER, STRING)
STRINGS: Consumed[str, str] = Consumed(STRING, STRING)
TEXT: Produced[str, str] = Produced(STRING, STRING)
HISTORY = timedelta(minutes=5)
MS = timedelta(milliseconds=1)


def versioned(name: str = "versioned") -> Materialized[Any, Any]:
    return Materialized(name=name, history_retention=HISTORY)


def by_value(_key: str, value: str) -> tuple[str, str]:
    return value, value


def output(driver: TopologyTestDriver, serde: Any) -> list[tuple[Any, Any, int]]:
    records = driver.output_topic("out", STRING, serde).read_records_to_list()
    return [(r.key, r.value, r.timestamp) for r in records]


def test_an_aggregation_counts_only_updates_with_the_highest_timestamp_of_their_row() -> None:
    builder = StreamsBuilder()
    table = builder.table("in", STRINGS, versioned())
    counts = table.group_by(by_value, Grouped(STRING, STRING)).count()
    counts.to_stream().to("out", Produced(STRING, LONG))
    with TopologyTestDriver(builder.build()) as driver:
        rows = [("A", "green", 10), ("B", "green", 9), ("A", "blue", 12), ("A", "blue", 11)]
        for key, value, timestamp in [*rows, ("C", "yellow", 15), ("D", "green", 11)]:
            driver.input_topic("in", STRING, STRING).pipe_input(key, value, timestamp=timestamp)
        assert output(driver, LONG) == [
            ("green", 1, 10),
            ("green", 2, 10),
            ("green", 1, 12),
            ("blue", 1, 12),
            ("yellow", 1, 15),
            ("green", 2, 12),
        ]


def test_an_update_behind_the_history_changes_nothing_and_is_not_forwarded() -> None:
    builder = StreamsBuilder()
    builder.table("in", STRINGS, versioned()).to_stream().to("out", TEXT)
    with TopologyTestDriver(builder.build()) as driver:
        end = HISTORY // MS
        for value, timestamp in (("a", 0), ("b", end + 10), ("late", 9), ("in time", 10)):
            driver.input_topic("in", STRING, STRING).pipe_input("k", value, timestamp=timestamp)
        assert output(driver, STRING) == [("k", "a", 0), ("k", "b", end + 10), ("k", "in time", 10)]
        store = driver.get_state_store("versioned")
        assert store.get("k") == VersionedRecord("b", end + 10, None)
        assert store.get("k", 11) == VersionedRecord("in time", 10, end + 10)


@pytest.mark.parametrize("kind", ["join", "left_join", "outer_join"])
def test_a_join_of_tables_drops_updates_that_come_out_of_order(kind: str) -> None:
    builder = StreamsBuilder()
    left, right = builder.table("left", STRINGS, versioned()), builder.table("right", STRINGS)
    joined: KTable[str, str] = getattr(left.filter(lambda _k, _v: True), kind)(right, lambda a, b: f"{a}+{b}")
    joined.to_stream().to("out", TEXT)
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic("right", STRING, STRING).pipe_input("k", "r", timestamp=1)
        for value, timestamp in (("new", 10), ("old", 5), ("newer", 10)):
            driver.input_topic("left", STRING, STRING).pipe_input("k", value, timestamp=timestamp)
        found = [value for _, value, _ in output(driver, STRING)]
        assert found[-2:] == ["new+r", "newer+r"]
        assert driver.dropped()["out-of-order"] == 1


def test_a_join_by_foreign_key_drops_updates_that_come_out_of_order() -> None:
    builder = StreamsBuilder()
    left, right = builder.table("left", STRINGS, versioned("l")), builder.table("right", STRINGS, versioned("r"))
    left.join(right, lambda a, b: f"{a}+{b}", foreign_key_extractor=lambda v: v[0]).to_stream().to("out", TEXT)
    with TopologyTestDriver(builder.build()) as driver:
        for topic, key, value, timestamp in (
            ("right", "a", "x", 5),
            ("left", "k", "a1", 10),
            ("left", "k", "b1", 8),
            ("right", "a", "old", 3),
            ("right", "a", "y", 12),
        ):
            driver.input_topic(topic, STRING, STRING).pipe_input(key, value, timestamp=timestamp)
        assert output(driver, STRING) == [("k", "a1+x", 10), ("k", "a1+y", 12)]
        assert driver.dropped()["out-of-order"] == 2


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("join", [("k", "s2+a", 5), ("k", "s3+b", 15), ("k", "s4+b", 12)]),
        (
            "left_join",
            [("k", "s1+None", 1), ("k", "s2+a", 5), ("k", "s3+b", 15), ("k", "s4+b", 12), ("k", "s5+None", 30)],
        ),
    ],
)
def test_a_stream_meets_the_value_that_held_at_its_own_time(kind: str, expected: list[Any]) -> None:
    builder = StreamsBuilder()
    table = builder.table("table", STRINGS, versioned()).map_values(lambda v: v.lower())
    joined = getattr(builder.stream("stream", STRINGS), kind)(table, lambda s, t: f"{s}+{t}")
    joined.to("out", TEXT)
    with TopologyTestDriver(builder.build()) as driver:
        for value, timestamp in (("A", 2), ("B", 10), (None, 20)):
            driver.input_topic("table", STRING, STRING).pipe_input("k", value, timestamp=timestamp)
        for number, timestamp in enumerate((1, 5, 15, 12, 30), 1):
            driver.input_topic("stream", STRING, STRING).pipe_input("k", f"s{number}", timestamp=timestamp)
        assert output(driver, STRING) == expected


class GraceCase:
    def __init__(self, grace: timedelta, kind: str = "join") -> None:
        builder = StreamsBuilder()
        table = builder.table("table", ROWS, versioned("V-grace"))
        joined: Joined[int, str, str] = Joined(INTEGER, STRING, grace, name="Grace")
        stream = getattr(builder.stream("stream", ROWS), kind)(table, lambda a, b: f"{a}+{b}", joined=joined)
        stream.to("out", Produced(INTEGER, STRING))
        self.topology = builder.build()
        self.driver = TopologyTestDriver(self.topology)

    def stream(self, *rows: tuple[int | None, str, int]) -> list[tuple[Any, Any, int]]:
        for key, value, timestamp in rows:
            headers = ((f"h{value}", b"x"),)
            self.driver.input_topic("stream", INTEGER, STRING).pipe_input(
                key, value, timestamp=timestamp, headers=headers
            )
        self.records = self.driver.output_topic("out", INTEGER, STRING).read_records_to_list()
        return [(r.key, r.value, r.timestamp) for r in self.records]

    def table(self, value: str) -> None:
        for key in range(4):
            self.driver.input_topic("table", INTEGER, STRING).pipe_input(key, f"{value}{key}", timestamp=0)


FOUR = [(n, f"X{n}", n) for n in range(4)]


def test_records_wait_for_the_grace_period_and_come_in_order_of_time() -> None:
    case = GraceCase(2 * MS)
    case.table("Y")
    assert case.stream(*FOUR) == [(0, "X0+Y0", 0), (1, "X1+Y1", 1)]
    case.table("YY")
    assert case.stream(*FOUR) == [(0, "X0+YY0", 0), (1, "X1+YY1", 1)]
    assert case.stream((5, "test", 7)) == [
        (2, "X2+YY2", 2),
        (2, "X2+YY2", 2),
        (3, "X3+YY3", 3),
        (3, "X3+YY3", 3),
    ]
    assert [r.headers for r in case.records] == [((f"hX{n}", b"x"),) for n in (2, 2, 3, 3)]
    waiting = [key for key, _ in case.driver.get_state_store("Grace-Buffer").all()]
    assert waiting == [buffer_key(7, INTEGER.serialize(5), 8)]


def test_a_record_that_is_later_than_the_grace_period_is_joined_at_once() -> None:
    case = GraceCase(2 * MS)
    case.table("Y")
    assert case.stream(*FOUR) == [(0, "X0+Y0", 0), (1, "X1+Y1", 1)]
    assert case.stream((0, "X0", 0)) == [(0, "X0+Y0", 0)]


def test_a_left_join_with_grace_joins_records_without_a_key_at_once() -> None:
    case = GraceCase(2 * MS, "left_join")
    assert case.stream((None, "n", 5), (9, "x", 5)) == [(None, "n+None", 5)]
    assert case.stream((9, "y", 8)) == [(9, "x+None", 5)]


def test_records_that_wait_survive_a_restart() -> None:
    from riverrun.operators.joins import BufferedStreamTableJoin  # noqa: PLC0415 - looked at from inside

    case = GraceCase(2 * MS)
    case.table("Y")
    case.stream(*FOUR)
    (task,) = case.driver._tasks.values()
    join = next(o for o in task._nodes.operators.values() if isinstance(o, BufferedStreamTableJoin))
    reopened = BufferedStreamTableJoin(join._join, "Grace-Buffer", (INTEGER, STRING), 2)
    reopened.init(join._context)
    assert (reopened._waiting._waiting, reopened._observed) == (sorted(join._waiting._waiting), 3)


@pytest.mark.parametrize(
    ("materialized", "grace", "message"),
    [
        (None, 1 * MS, "must be versioned"),
        (Materialized(name="plain"), 1 * MS, "must be versioned"),
        (versioned(), HISTORY + 1 * MS, "must be at least grace period"),
    ],
)
def test_a_grace_period_needs_a_history_that_is_as_long(
    materialized: Materialized[Any, Any] | None, grace: timedelta, message: str
) -> None:
    builder = StreamsBuilder()
    table = builder.table("table", STRINGS, materialized).filter(lambda _k, _v: True)
    builder.stream("stream", STRINGS).join(table, lambda a, _b: a, joined=Joined(grace_period=grace))
    with pytest.raises(TopologyError, match=message):
        builder.build()


def kept(builder: StreamsBuilder, name: str = "kept") -> KTable[str, str]:
    return builder.table(name, STRINGS, Materialized(STRING, STRING, name=name, history_retention=HISTORY))


def grouped(builder: StreamsBuilder) -> KGroupedTable[str, str]:
    return kept(builder).group_by(by_value, Grouped(STRING, STRING))


def by_foreign_key(builder: StreamsBuilder, materialized: Materialized[str, str] | None = None) -> KTable[str, str]:
    other = kept(builder, "other")
    return kept(builder).join(other, max, materialized, foreign_key_extractor=lambda value: value)


TEXTS: Materialized[Any, Any] = Materialized(STRING, STRING)
WITH_HISTORY: Materialized[Any, Any] = Materialized(STRING, STRING, name="result", history_retention=HISTORY)
COUNTS_WITH_HISTORY: Materialized[Any, Any] = Materialized(STRING, LONG, name="result", history_retention=HISTORY)
TABLES: dict[str, tuple[Callable[[StreamsBuilder], KTable[str, Any]], bool]] = {
    "source": (kept, True),
    "filter": (lambda b: kept(b).filter(lambda _k, _v: True), True),
    "map_values": (lambda b: kept(b).map_values(str.upper), True),
    "map_values, stored": (lambda b: kept(b).map_values(str.upper, Materialized(STRING, STRING, name="result")), False),
    "map_values, with history": (lambda b: kept(b).map_values(str.upper, WITH_HISTORY), True),
    "count": (lambda b: grouped(b).count(), False),
    "count, with history": (lambda b: grouped(b).count(COUNTS_WITH_HISTORY), True),
    "join": (lambda b: kept(b).join(kept(b, "other"), max, TEXTS), False),
    "join, with history": (lambda b: kept(b).join(kept(b, "other"), max, WITH_HISTORY), True),
    "join by foreign key": (lambda b: by_foreign_key(b, TEXTS), False),
    "join by foreign key, with history": (lambda b: by_foreign_key(b, WITH_HISTORY), True),
    "to_table": (lambda b: kept(b).to_stream().to_table(TEXTS), False),
    "to_table, with history": (lambda b: kept(b).to_stream().to_table(WITH_HISTORY), True),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_is_versioned_or_inherits_that_cannot_be_suppressed(name: str) -> None:
    table, is_versioned = TABLES[name]
    builder = StreamsBuilder()
    suppressed = Suppressed.until_time_limit(timedelta(0), BufferConfig.unbounded())
    outcome = pytest.raises(TopologyError, match="only supported for non-versioned KTables")
    with outcome if is_versioned else nullcontext():
        table(builder).suppress(suppressed)
        builder.build()


def test_windows_cannot_be_versioned() -> None:
    windowed = StreamsBuilder().stream("in", STRINGS).group_by_key().windowed_by(TimeWindows.of(HISTORY))
    with pytest.raises(TopologyError, match="cannot be versioned"):
        windowed.count(versioned())


def test_global_tables_cannot_be_versioned() -> None:
    with pytest.raises(TopologyError, match="cannot be versioned"):
        StreamsBuilder().global_table("in", STRINGS, versioned())


def test_an_aggregate_can_be_kept_with_its_history() -> None:
    builder = StreamsBuilder()
    total: Materialized[str, int] = Materialized(STRING, LONG, name="total", history_retention=HISTORY)
    builder.stream("in", STRINGS).group_by_key().count(total).to_stream().to("out", Produced(STRING, LONG))
    with TopologyTestDriver(builder.build()) as driver:
        for timestamp in (10, 30, 20):
            driver.input_topic("in", STRING, STRING).pipe_input("k", "v", timestamp=timestamp)
        assert output(driver, LONG) == [("k", 1, 10), ("k", 2, 30), ("k", 3, 30)]
        assert driver.get_state_store("total").get("k", 29) == VersionedRecord(1, 10, 30)


def test_buffered_records_have_kafka_streams_bytes() -> None:
    record = BufferedRecord(5, (("h", b"v"), ("n", None)), RecordMetadata("t", 1, 42), b"xyz")
    data = encode_buffered(record)
    assert data.hex() == (
        "0000000000000005000000000000002a0000000174000000010000000200000001680000000176"
        "000000016effffffff"
        "ffffffffffffffff0000000378797a0000000000000000"
    )
    assert decode_buffered(data) == record
    assert buffered_key_of(buffer_key(60000, b"A", 7)) == b"A"


UNNAMED: Materialized[Any, Any] = Materialized(STRING, STRING)


@pytest.mark.parametrize(
    "derive",
    [
        lambda table: table,
        lambda table: table.map_values(str.lower),
        lambda table: table.map_values(str.lower, UNNAMED),
        lambda table: table.filter(lambda _k, _v: True, UNNAMED).map_values(str.lower, UNNAMED),
    ],
    ids=["the table itself", "derived", "derived with serdes", "derived twice"],
)
def test_tables_without_a_store_are_looked_up_at_the_time_of_the_record(
    derive: Callable[[KTable[Any, Any]], KTable[Any, Any]],
) -> None:
    """`KTableValueGetter.isVersioned` is that of the table with the store, whatever the options of those between say."""
    builder = StreamsBuilder()
    table = derive(builder.table("rows", STRINGS, versioned()))
    builder.stream("asked", STRINGS).left_join(table, lambda one, row: f"{one}{row}").to("out", TEXT)
    with TopologyTestDriver(builder.build()) as driver:
        rows = driver.input_topic("rows", STRING, STRING)
        asked = driver.input_topic("asked", STRING, STRING)
        rows.pipe_input("k", "b", timestamp=258)
        asked.pipe_input("k", "at 246: ", timestamp=246)
        asked.pipe_input("k", "at 258: ", timestamp=258)
        assert driver.output_topic("out", STRING, STRING).read_values_to_list() == ["at 246: None", "at 258: b"]
