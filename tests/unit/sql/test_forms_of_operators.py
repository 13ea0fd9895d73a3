"""Operators of the DSL in SQL: statements do what the calls in Python do, record by record."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun import (
    BYTES,
    JSON,
    LONG,
    STRING,
    Avro,
    Consumed,
    DeserializationError,
    Grouped,
    JoinWindows,
    Materialized,
    Produced,
    RollingWindows,
    SessionWindows,
    StreamJoined,
    StreamsBuilder,
    TimeWindows,
)
from riverrun.serde.api import SerdePlace, placed, shown_reader
from riverrun.serde.windowed import session_windowed, windowed
from riverrun.sql import build_sql
from riverrun.sql.commands import Statements, parse_commands
from riverrun.sql.planning.planner import StatementPlan
from riverrun.sql.statement_files import statement_digests
from riverrun.sql.statements import SqlError
from riverrun.testing import TopologyTestDriver
from riverrun.topology.nodes import SourceNode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from riverrun import KTable, Topology

MS = timedelta(milliseconds=1)
CLICKS = "CREATE STREAM clicks (u STRING KEY, page STRING, n INTEGER) WITH (KAFKA_TOPIC = 'in', VALUE_FORMAT = 'JSON');"
ORDERS = "CREATE STREAM orders (k STRING KEY, n INTEGER) WITH (KAFKA_TOPIC = 'in', VALUE_FORMAT = 'JSON');"
PAID = "CREATE STREAM paid (k STRING KEY, n INTEGER) WITH (KAFKA_TOPIC = 'other', VALUE_FORMAT = 'JSON');"
TABLE = "CREATE TABLE t (k STRING PRIMARY KEY, n INTEGER) WITH (KAFKA_TOPIC = 'in', VALUE_FORMAT = 'JSON'"

Piped = tuple[str, str, dict[str, Any] | None, int]
"""Topic, key, value and time in ms of a record."""


def row(page: str | None, n: int | None) -> dict[str, Any]:
    return {"PAGE": page, "N": n}


def records(*topics: str, within_ms: int = 60) -> st.SearchStrategy[list[Piped]]:
    """Records of few keys and values, whose times go forwards and backwards."""
    values = st.builds(row, st.sampled_from(["a", "b", None]), st.integers(-2, 4) | st.none())
    one = st.tuples(st.sampled_from(topics), st.sampled_from("xyz"), values, st.integers(0, within_ms))
    return st.lists(one, max_size=15)


def sent(topology: Topology, piped: Iterable[Piped], *outputs: tuple[str, Any, Any]) -> list[list[Any]]:
    """Keys, values and times of the records that a topology writes to some topics."""
    with TopologyTestDriver(topology) as driver:
        for topic, key, value, time_ms in piped:
            driver.input_topic(topic, STRING, JSON).pipe_input(key, value, timestamp=time_ms)
        found = []
        for topic, keys, values in outputs:
            read = driver.output_topic(topic, keys, values).read_records_to_list()
            found.append([(each.key, each.value, each.timestamp) for each in read])
        return found


def of(statements: str) -> Topology:
    return build_sql(statements, StreamsBuilder())


# Late records


def late_in_windows(builder: StreamsBuilder, windows: Any) -> Topology:
    clicks = builder.stream("in", Consumed(STRING, JSON)).group_by_key(Grouped(STRING, JSON))
    timed = clicks.windowed_by(windows).late(lambda late: late.to("LATE", Produced(STRING, JSON)))
    counts = timed.count(Materialized(STRING, LONG)).map_values(lambda n: {"C": n}).to_stream()
    keys = session_windowed(STRING) if isinstance(windows, SessionWindows) else windowed(STRING, 10 * MS)
    counts.to("COUNTS", Produced(keys, JSON))
    return builder.build()


WINDOWS = {
    "TUMBLING (SIZE 10 MILLISECONDS, GRACE PERIOD 5 MILLISECONDS, LATE INTO late)": TimeWindows.of(
        10 * MS, grace=5 * MS
    ),
    "HOPPING (SIZE 10 MILLISECONDS, ADVANCE BY 4 MILLISECONDS, LATE INTO late, GRACE PERIOD 0 SECONDS)": TimeWindows.of(
        10 * MS, grace=0 * MS
    ).advance_by(4 * MS),
    "SESSION (10 MILLISECONDS, GRACE PERIOD 3 MILLISECONDS, LATE INTO late)": SessionWindows.of(10 * MS, grace=3 * MS),
}


@pytest.mark.parametrize("clause", WINDOWS)
@settings(max_examples=8)
@given(piped=records("in"))
def test_late_rows_of_windows_are_those_of_python(clause: str, piped: list[Piped]) -> None:
    statement = f"CREATE TABLE counts AS SELECT u, COUNT(*) AS c FROM clicks WINDOW {clause} GROUP BY u;"
    windows = WINDOWS[clause]
    keys = session_windowed(STRING) if isinstance(windows, SessionWindows) else windowed(STRING, 10 * MS)
    outputs = ("COUNTS", keys, JSON), ("LATE", STRING, JSON)
    python = sent(late_in_windows(StreamsBuilder(), windows), piped, *outputs)
    assert sent(of(CLICKS + statement), piped, *outputs) == python


def test_late_rows_have_their_own_keys_behind_a_repartition_topic() -> None:
    statement = """CREATE TABLE o AS SELECT page, SUM(n) AS s FROM clicks
        WINDOW TUMBLING (SIZE 10 MILLISECONDS, GRACE PERIOD 0 SECONDS, LATE INTO late) WHERE n > 0 GROUP BY page;
        CREATE STREAM again AS SELECT u, page, n * 10 AS n FROM late;"""
    piped = [("in", "x", row("a", 1), 0), ("in", "y", row("a", 2), 10), ("in", "z", row("a", 3), 9)]
    late, again = sent(of(CLICKS + statement), [*piped, ("in", "z", row("a", 0), 1)], *outputs_of("LATE", "AGAIN"))
    assert late == [("z", row("a", 3), 9)]
    assert again == [("z", row("a", 30), 9)]


def outputs_of(*topics: str) -> list[tuple[str, Any, Any]]:
    return [(topic, STRING, JSON) for topic in topics]


def test_final_results_have_late_rows_too() -> None:
    statement = """CREATE TABLE o AS SELECT u, COUNT(*) AS c FROM clicks WINDOW TUMBLING (SIZE 10 MILLISECONDS,
        LATE INTO late WITH (KAFKA_TOPIC = 'too-late', VALUE_FORMAT = 'DELIMITED')) GROUP BY u EMIT FINAL;"""
    piped = [("in", "x", row("a", 1), 0), ("in", "x", row("a", 2), 10), ("in", "x", row("b", 3), 9)]
    (late,) = sent(of(CLICKS + statement), piped, ("too-late", STRING, STRING))
    assert late == [("x", "b,3", 9)]


def late_in_joins(builder: StreamsBuilder, kind: str) -> Topology:
    left, right = builder.stream("in", Consumed(STRING, JSON)), builder.stream("other", Consumed(STRING, JSON))
    written = Produced(STRING, JSON)
    joined: Any = StreamJoined(
        STRING,
        JSON,
        JSON,
        late=lambda late: late.map_values(lambda value: {"N": value["N"]}).to("LATE_ORDERS", written),
        other_late=lambda late: late.map_values(lambda value: {"N": value["N"]}).to("LATE_PAID", written),
    )
    windows = JoinWindows.of(10 * MS, grace=5 * MS)

    def both(one: Any, other: Any) -> dict[str, Any]:
        return {"M": one and one["N"], "N": other and other["N"]}

    call: Any = {"JOIN": left.join, "LEFT JOIN": left.left_join, "FULL JOIN": left.outer_join}[kind]
    call(right, both, windows=windows, joined=joined).to("O", written)
    return builder.build()


@pytest.mark.parametrize("kind", ["JOIN", "LEFT JOIN", "FULL JOIN"])
@settings(max_examples=8)
@given(piped=records("in", "other", within_ms=80))
def test_late_rows_of_joins_are_those_of_python(kind: str, piped: list[Piped]) -> None:
    key = "ROWKEY" if kind == "FULL JOIN" else "o.k AS k"
    statement = f"""CREATE STREAM o AS SELECT {key}, o.n AS m, p.n AS n FROM orders o {kind} paid p WITHIN 10 MILLISECONDS
        GRACE PERIOD 5 MILLISECONDS LATE o INTO late_orders, p INTO late_paid ON o.k = p.k;"""
    outputs = outputs_of("O", "LATE_ORDERS", "LATE_PAID")
    python = sent(late_in_joins(StreamsBuilder(), kind), piped, *outputs)
    assert sent(of(ORDERS + PAID + statement), piped, *outputs) == python


def test_a_right_join_and_a_side_that_is_repartitioned_have_late_rows() -> None:
    statement = """CREATE STREAM o AS SELECT p.k AS k, c.u, p.n FROM clicks c RIGHT JOIN paid p WITHIN 10 MILLISECONDS
        GRACE PERIOD 0 SECONDS LATE p INTO late_paid, c INTO late_clicks ON c.page = p.k;"""
    late = [("in", "u", row("x", 1), 0), ("other", "x", row(None, 2), 1)]
    piped = [("in", "u", row("x", 9), 100), ("other", "x", row(None, 8), 100), *late]
    clicks, paid = sent(of(CLICKS + PAID + statement), piped, *outputs_of("LATE_CLICKS", "LATE_PAID"))
    assert clicks == [("u", row("x", 1), 0)]
    assert paid == [("x", {"N": 2}, 1)]


# Repetitions


def once(builder: StreamsBuilder, by: Any, grace: timedelta | None) -> Topology:
    clicks = builder.stream("in", Consumed(STRING, JSON))
    kept = clicks.deduplicate(10 * MS, by=by, grace=grace, materialized=Materialized(JSON))
    kept.to("O", Produced(STRING, JSON))
    return builder.build()


IDENTITIES: dict[str, Callable[[Any, Any], Any]] = {
    "u": lambda key, _value: key,
    "page": lambda _key, value: value["PAGE"],
    "n, page": lambda _key, value: [value["N"], value["PAGE"]],
    "n + 1": lambda _key, value: None if value["N"] is None else value["N"] + 1,
}


@pytest.mark.parametrize("grace", ["", " GRACE PERIOD 3 MILLISECONDS"])
@pytest.mark.parametrize("on", IDENTITIES)
@settings(max_examples=8)
@given(piped=records("in"))
def test_the_first_rows_of_repetitions_are_those_of_python(on: str, grace: str, piped: list[Piped]) -> None:
    statement = f"CREATE STREAM o AS SELECT DISTINCT ON ({on}) * FROM clicks WITHIN 10 MILLISECONDS{grace};"
    python = sent(once(StreamsBuilder(), IDENTITIES[on], 3 * MS if grace else None), piped, *outputs_of("O"))
    assert sent(of(CLICKS + statement), piped, *outputs_of("O")) == python


def test_repetitions_of_other_partitions_are_found_with_partition_by() -> None:
    statement = """CREATE STREAM o AS SELECT DISTINCT ON (page) page, u, n FROM clicks WITHIN 1 DAY WHERE n > 0
        PARTITION BY page;"""
    topology = of(CLICKS + statement)
    piped = [("in", "x", row("a", 0), 0), ("in", "x", row("a", 1), 1), ("in", "y", row("a", 2), 2)]
    assert sent(topology, piped, *outputs_of("O")) == [[("a", {"U": "x", "N": 1}, 1)]]
    assert "repartition" in str(topology.describe())


# The first values


def ranked(builder: StreamsBuilder, *, largest: bool) -> Topology:
    clicks = builder.stream("in", Consumed(STRING, JSON)).group_by_key(Grouped(STRING, JSON))
    top = clicks.top(2, "N", largest=largest, materialized=Materialized(STRING, JSON))
    shown = top.map_values(lambda rows: {"T": [{"sort_col": each["N"], "col0": each["PAGE"]} for each in rows]})
    shown.to_stream().to("O", Produced(STRING, JSON))
    return builder.build()


@pytest.mark.parametrize("name", ["TOPK", "BOTTOMK"])
@settings(max_examples=8)
@given(piped=records("in"))
def test_the_first_values_of_a_group_are_those_of_python(name: str, piped: list[Piped]) -> None:
    statement = f"CREATE TABLE o AS SELECT u, {name}(n, page, 2) AS t FROM clicks GROUP BY u;"
    python = sent(ranked(StreamsBuilder(), largest=name == "TOPK"), piped, *outputs_of("O"))
    assert sent(of(CLICKS + statement), piped, *outputs_of("O")) == python


# Rolling aggregates

LAST_TIME = "RANGE BETWEEN 10 MILLISECONDS PRECEDING AND CURRENT ROW"
LAST_ROWS = "ROWS BETWEEN 1 PRECEDING AND CURRENT ROW WITHIN 30 MILLISECONDS GRACE PERIOD 5 MILLISECONDS"
FRAMES = {
    LAST_TIME: RollingWindows.of(10 * MS),
    f"{LAST_TIME} GRACE PERIOD 0 SECONDS": RollingWindows.of(10 * MS, grace=0 * MS),
    LAST_ROWS: RollingWindows.of(30 * MS, records=2, grace=5 * MS),
}


def over(function: str, group: str = "u", frame: str = LAST_TIME) -> str:
    return f"{function} OVER (PARTITION BY {group} ORDER BY ROWTIME {frame})"


def rolled(builder: StreamsBuilder, windows: RollingWindows, group: str) -> Topology:
    def row_of(_key: Any, records: Sequence[Any]) -> dict[str, Any]:
        numbers = [each.value["N"] for each in records]
        known = [each for each in numbers if each is not None]
        before = numbers[-2] if len(numbers) > 1 else None
        rise = None if before is None or numbers[-1] is None else numbers[-1] - before
        most = max([each for each in known if each > 0], default=None)
        return {**records[-1].value, "C": len(numbers), "S": sum(known), "RISE": rise, "MOST": most}

    clicks = builder.stream("in", Consumed(STRING, JSON)).map_values(lambda key, value: {**value, "U": key})
    clicks = clicks.filter(lambda _key, value: value[group.upper()] is not None)
    grouped = clicks.group_by(lambda _key, value: value[group.upper()], Grouped(STRING, JSON))
    rows = grouped.windowed_by(windows).apply(row_of, Materialized(value_serde=JSON))
    own = rows.select_key(lambda _key, value: value["U"])
    own.map_values(lambda each: {n: v for n, v in each.items() if n != "U"}).to("O", Produced(STRING, JSON))
    return builder.build()


@pytest.mark.parametrize("group", ["u", "page"])
@pytest.mark.parametrize("frame", FRAMES)
@settings(max_examples=10)
@given(piped=records("in"))
def test_aggregates_over_the_rows_before_are_those_of_python(frame: str, group: str, piped: list[Piped]) -> None:
    count, total, lag = (over(function, group, frame) for function in ("COUNT(*)", "SUM(n)", "LAG(n)"))
    most = over("MAX(n) FILTER (WHERE n > 0)", group, frame)
    statement = (
        f"CREATE STREAM o AS SELECT *, {count} AS c, {total} AS s, n - {lag} AS rise, {most} AS most FROM clicks;"
    )
    python = sent(rolled(StreamsBuilder(), FRAMES[frame], group), piped, *outputs_of("O"))
    assert sent(of(CLICKS + statement), piped, *outputs_of("O")) == python


def test_rows_with_aggregates_over_others_have_their_own_keys_and_headers() -> None:
    statement = f"""CREATE STREAM o AS SELECT u, page, {over("COUNT(*)", "page")} AS c FROM clicks WHERE n > 0;
        CREATE STREAM p AS SELECT page, u, {over("LATEST_BY_OFFSET(u, 2)", "page")} AS last FROM clicks PARTITION BY page;"""
    topology = of(CLICKS + statement)
    piped = [("in", "x", row("a", 1), 0), ("in", "y", row("a", 2), 1), ("in", "y", row(None, 3), 2)]
    own, by_page = sent(topology, piped, *outputs_of("O", "P"))
    assert own == [("x", {"PAGE": "a", "C": 1}, 0), ("y", {"PAGE": "a", "C": 2}, 1)]
    assert by_page == [("a", {"U": "x", "LAST": ["x"]}, 0), ("a", {"U": "y", "LAST": ["x", "y"]}, 1)]


def test_lag_looks_back_by_so_many_rows_and_counts_null() -> None:
    lags = ", ".join(f"{over(f'LAG(n, {offset})')} AS l{offset}" for offset in (0, 1, 2))
    statement = f"CREATE STREAM o AS SELECT u, n, {lags} FROM clicks;"
    piped = [("in", "x", row(None, n), time) for time, n in enumerate([7, None, 5])]
    (rows,) = sent(of(CLICKS + statement), piped, *outputs_of("O"))
    assert [[value[f"L{offset}"] for offset in (0, 1, 2)] for _, value, _ in rows] == [
        [7, None, None],
        [None, 7, None],
        [5, None, 7],
    ]


# Rows that expire


@settings(max_examples=8)
@given(piped=records("in"))
def test_rows_of_a_table_expire_as_in_python(piped: list[Piped]) -> None:
    statement = f"{TABLE}, TTL = '10 MILLISECONDS'); CREATE TABLE o AS SELECT k, n FROM t;"
    builder = StreamsBuilder()
    rows = builder.table("in", Consumed(STRING, JSON), Materialized(ttl=10 * MS))
    rows.map_values(lambda value: {"N": value["N"]}).to_stream().to("O", Produced(STRING, JSON))
    assert sent(of(statement), piped, *outputs_of("O")) == sent(builder.build(), piped, *outputs_of("O"))


@settings(max_examples=8)
@given(piped=records("in"))
def test_rows_of_an_aggregate_expire_as_in_python(piped: list[Piped]) -> None:
    statement = "CREATE TABLE o WITH (TTL = '10 MILLISECONDS') AS SELECT u, COUNT(*) AS c FROM clicks GROUP BY u;"
    builder = StreamsBuilder()
    clicks = builder.stream("in", Consumed(STRING, JSON)).group_by_key(Grouped(STRING, JSON))
    counts = clicks.count(Materialized(STRING, LONG, ttl=10 * MS)).map_values(lambda n: {"C": n})
    counts.to_stream().to("O", Produced(STRING, JSON))
    assert sent(of(CLICKS + statement), piped, *outputs_of("O")) == sent(builder.build(), piped, *outputs_of("O"))


def test_groups_of_a_table_expire() -> None:
    statement = f"{TABLE}); CREATE TABLE o WITH (TTL = '10 MILLISECONDS') AS SELECT n, COUNT(*) AS c FROM t GROUP BY n;"
    piped = [("in", "x", {"N": 1}, 0), ("in", "y", {"N": 1}, 5), ("in", "z", {"N": 2}, 15)]
    (rows,) = sent(of(statement), piped, *outputs_of("O"))
    assert [(value, time_ms) for _, value, time_ms in rows] == [
        ({"C": 1}, 0),
        ({"C": 2}, 5),
        (None, 15),
        ({"C": 1}, 15),
    ]


@pytest.mark.parametrize(
    "more",
    ["", "CREATE TABLE p AS SELECT k, n, ROWTIME AS at FROM t;", ("CREATE STREAM s (k STRING KEY, n INTEGER) WITH "
     "(KAFKA_TOPIC = 'in', VALUE_FORMAT = 'JSON'); CREATE STREAM p AS SELECT * FROM s;")],
)  # fmt: skip
def test_rows_of_a_source_table_expire_however_it_is_read(more: str) -> None:
    statement = f"{TABLE.replace('CREATE', 'CREATE SOURCE')}, TTL = '10 MILLISECONDS');"
    piped = [("in", "x", {"N": 1}, 0), ("in", "y", {"N": 2}, 10)]
    with TopologyTestDriver(of(f"{statement} CREATE TABLE o AS SELECT k, n FROM t; {more}")) as driver:
        for topic, key, value, time_ms in piped:
            driver.input_topic(topic, STRING, JSON).pipe_input(key, value, timestamp=time_ms)
        assert [key for key, _ in driver.get_state_store("T").all()] == [("y",)]
        assert driver.output_topic("O", STRING, JSON).read_key_values_to_list() == [
            ("x", {"N": 1}), ("x", None), ("y", {"N": 2}),
        ]  # fmt: skip


# Changes of rows

CUSTOMERS = """CREATE TABLE customers (id BIGINT PRIMARY KEY, name STRING, since DATE, credit DECIMAL(8, 2), seen TIMESTAMP)
    WITH (KAFKA_TOPIC = 'shop.customers', FORMAT = 'DEBEZIUM_JSON',
        DEBEZIUM_TYPES = 'since io.debezium.time.Date, credit org.apache.kafka.connect.data.Decimal(2),
            seen io.debezium.time.MicroTimestamp');"""
TYPES = {
    "since": "io.debezium.time.Date",
    "credit": "org.apache.kafka.connect.data.Decimal(2)",
    "seen": "io.debezium.time.MicroTimestamp",
}
ROWS = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["Ann", "Eve", None]),
        "since": st.integers(0, 20_000) | st.none(),
        "credit": st.sampled_from(["BNI=", "AA==", "/w==", None]),
        "seen": st.integers(0, 2_000_000_000_000_000) | st.none(),
    }
)
FIELDS = [
    {"field": name, "type": type_, "name": TYPES.get(name, "").partition("(")[0] or None, "parameters": {"scale": "2"}}
    for name, type_ in (("id", "int64"), ("name", "string"), ("since", "int32"), ("credit", "bytes"), ("seen", "int64"))
]
SCHEMA = {
    "type": "struct",
    "fields": [{"field": part, "type": "struct", "fields": FIELDS} for part in ("before", "after")],
}


def envelope(op: str, row_id: int, columns: dict[str, Any], *, has_schema: bool) -> tuple[bytes, bytes | None]:
    whole = {"id": row_id, **columns}
    key: Any = {"id": row_id}
    if op == "tombstone":
        return json.dumps(key).encode(), None
    before, after = (whole, None) if op == "d" else (None, whole)
    value: Any = {"op": op, "before": before, "after": after, "source": {"table": "customers"}, "ts_ms": 7}
    if has_schema:
        key = {"schema": {"type": "struct", "fields": FIELDS[:1]}, "payload": key}
        value = {"schema": SCHEMA, "payload": value}
    return json.dumps(key).encode(), json.dumps(value).encode()


CHANGES = st.lists(
    st.builds(
        envelope,
        st.sampled_from("crud") | st.just("tombstone"),
        st.integers(1, 3),
        ROWS,
        has_schema=st.booleans(),
    ),
    max_size=12,
)


def after_changes(topology: Topology, changes: Sequence[tuple[bytes, bytes | None]], keys: Any) -> list[Any]:
    with TopologyTestDriver(topology) as driver:
        for key, value in changes:
            driver.input_topic("shop.customers", BYTES, BYTES).pipe_input(key, value)
        return driver.output_topic("O", keys, JSON).read_key_values_to_list()


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """A row of Python as SQL's JSON has it."""
    since, seen = row["since"], row["seen"]
    return {
        "NAME": row["name"],
        "SINCE": since and (date.fromisoformat(since) - date(1970, 1, 1)).days,
        "CREDIT": row["credit"] and float(Decimal(row["credit"])),
        "SEEN": seen and millis(seen),
    }


def millis(text: str) -> int:
    return (datetime.fromisoformat(text).replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // MS


@settings(max_examples=8)
@given(changes=CHANGES)
def test_the_table_of_changes_is_that_of_python(changes: list[tuple[bytes, bytes | None]]) -> None:
    builder = StreamsBuilder()
    rows: KTable[Any, Any] = builder.table_from_changes("shop.customers", Consumed.debezium(types=TYPES))
    rows.to_stream().map_values(lambda found: found and shown(found)).to("O", Produced(LONG, JSON))
    python = after_changes(builder.build(), changes, LONG)
    statements = f"{CUSTOMERS} CREATE TABLE o AS SELECT * FROM customers;"
    assert after_changes(of(statements), changes, LONG) == python


def test_changes_in_avro_are_read_by_the_schema_of_their_record() -> None:
    fields = [
        {"name": "id", "type": "long"},
        {"name": "name", "type": "string"},
        {"name": "since", "type": ["null", {"type": "int", "connect.name": "io.debezium.time.Date"}]},
        {"name": "credit", "type": {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}},
        {"name": "seen", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    ]
    of_row = {"type": "record", "name": "Value", "fields": fields}
    parts = [{"name": "before", "type": ["null", of_row]}, {"name": "after", "type": ["null", "Value"]}]
    of_change = {"type": "record", "name": "Envelope", "fields": [*parts, {"name": "op", "type": "string"}]}
    of_key = {"type": "record", "name": "Key", "fields": fields[:1]}
    registry = {"url": f"mock://{uuid.uuid4()}"}
    keys, values = (
        placed(
            Avro(schema=json.dumps(schema)), SerdePlace("shop.customers", is_key=schema is of_key, registry=registry)
        )
        for schema in (of_key, of_change)
    )
    seen = datetime(1970, 1, 1, 0, 0, 1, 500_900, tzinfo=UTC)
    ann = {"id": 7, "name": "Ann", "since": 1, "credit": Decimal("12.30"), "seen": seen}
    statements = (
        CUSTOMERS[: CUSTOMERS.index(",\n        DEBEZIUM_TYPES")].replace("_JSON", "_AVRO")
        + """);
        CREATE TABLE o WITH (VALUE_FORMAT = 'JSON') AS SELECT * FROM customers;"""
    )
    with TopologyTestDriver(of(statements), schema_registry=registry) as driver:
        changes = driver.input_topic("shop.customers", BYTES, BYTES)
        for change in ({"before": None, "after": ann, "op": "c"}, {"before": ann, "after": None, "op": "d"}):
            changes.pipe_input(keys.serialize({"id": 7}), values.serialize(change))
        assert driver.output_topic("O", LONG, JSON).read_key_values_to_list() == [
            (7, {"NAME": "Ann", "SINCE": 1, "CREDIT": 12.3, "SEEN": 1500}),
            (7, None),
        ]


def test_a_stream_of_changes_has_the_parts_of_the_envelope() -> None:
    statements = """CREATE STREAM changes (id BIGINT KEY, op STRING, after STRUCT<name STRING, since DATE>,
            before STRUCT<name STRING>, source STRUCT<`table` STRING>, ts_ms BIGINT)
        WITH (KAFKA_TOPIC = 'shop.customers', FORMAT = 'DEBEZIUM_JSON');
        CREATE TABLE o AS SELECT op, COUNT(*) AS n, LATEST_BY_OFFSET(after->name) AS name, LATEST_BY_OFFSET(after->since) AS d,
            LATEST_BY_OFFSET(before->name) AS b, LATEST_BY_OFFSET(source->`table`) AS t, MAX(ts_ms) AS at
        FROM changes GROUP BY op;"""
    ann = {"name": "Ann", "since": 3, "credit": None, "seen": None}
    changes = [
        envelope(op, 1, ann, has_schema=has_schema) for op, has_schema in (("c", True), ("c", False), ("d", False))
    ]
    assert after_changes(of(statements), changes, STRING) == [
        ("c", {"N": 1, "NAME": "Ann", "D": 3, "B": None, "T": "customers", "AT": 7}),
        ("c", {"N": 2, "NAME": "Ann", "D": 3, "B": None, "T": "customers", "AT": 7}),
        ("d", {"N": 1, "NAME": None, "D": None, "B": "Ann", "T": "customers", "AT": 7}),
    ]


@pytest.mark.parametrize("more", ["", "CREATE STREAM s AS SELECT * FROM changes;"])
def test_changes_are_shown_as_rows_and_deletions_as_none(more: str) -> None:
    stream = "CREATE STREAM changes (id BIGINT KEY, op STRING) WITH (KAFKA_TOPIC = 'shop.customers', FORMAT = 'DEBEZIUM_JSON');"
    topology = of(f"{CUSTOMERS} {stream} CREATE TABLE o AS SELECT * FROM customers; {more}")
    (source,) = (
        each for each in topology.nodes.values() if isinstance(each, SourceNode) and "shop" in repr(each.topics)
    )
    show = shown_reader(source.value_serde)
    key, change = envelope("c", 7, {"name": "Ann", "since": 1, "credit": "BNI=", "seen": 0}, has_schema=True)
    assert shown_reader(source.key_serde)(key) == {"ID": 7}
    assert change is not None
    row = {
        "NAME": "Ann",
        "SINCE": date(1970, 1, 2),
        "CREDIT": Decimal("12.34"),
        "SEEN": datetime(1970, 1, 1, tzinfo=UTC),
    }
    assert show(change) == ({**row, "OP": "c"} if more else row)
    assert show(b'{"op": "d"}') == ({"OP": "d"} if more else None)


def test_repetitions_in_a_stream_of_changes_are_dropped() -> None:
    statements = """CREATE STREAM changes (id BIGINT KEY, op STRING, ts_ms BIGINT)
        WITH (KAFKA_TOPIC = 'shop.customers', FORMAT = 'DEBEZIUM_JSON');
        CREATE STREAM o AS SELECT DISTINCT ON (id, op) id, op FROM changes WITHIN 1 DAY;"""
    ann = {"name": "Ann", "since": 3, "credit": None, "seen": None}
    changes = [envelope(op, row_id, ann, has_schema=True) for op, row_id in (("c", 1), ("c", 1), ("u", 1), ("c", 2))]
    assert after_changes(of(statements), changes, LONG) == [(1, {"OP": "c"}), (1, {"OP": "u"}), (2, {"OP": "c"})]


def test_tables_of_changes_are_joined_and_expire() -> None:
    statements = """CREATE TABLE customers (id BIGINT PRIMARY KEY, name STRING)
            WITH (KAFKA_TOPIC = 'shop.customers', FORMAT = 'DEBEZIUM_JSON', TTL = '1 DAY');
        CREATE TABLE orders (id BIGINT PRIMARY KEY, customer BIGINT)
            WITH (KAFKA_TOPIC = 'shop.orders', VALUE_FORMAT = 'DEBEZIUM_JSON');
        CREATE TABLE o AS SELECT orders.id AS id, name FROM orders JOIN customers ON customer = customers.id;"""
    with TopologyTestDriver(of(statements)) as driver:
        customers, orders = (driver.input_topic(f"shop.{name}", BYTES, BYTES) for name in ("customers", "orders"))
        customers.pipe_input(*envelope("c", 7, {"name": "Ann"}, has_schema=False), timestamp=0)
        orders.pipe_input(*envelope("c", 1, {"customer": 7}, has_schema=False), timestamp=0)
        customers.pipe_input(*envelope("u", 8, {"name": "Eve"}, has_schema=False), timestamp=86_400_000)
        assert driver.output_topic("O", LONG, JSON).read_key_values_to_list() == [(1, {"NAME": "Ann"}), (1, None)]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (b'{"id": 1}', b'{"id": 1, "name": "Ann"}', "not a Debezium change: there is no op"),
        (b'{"id": 1}', b'{"op": "t"}', "its table was truncated"),
        (b'{"id": 1}', b'{"op": "u", "after": {"id": 1, "name": "__debezium_unavailable_value"}}', "did not log name"),
        (b'{"id": 1, "part": 2}', b'{"op": "c", "after": {}}', "the primary key has columns id, part, and not just ID"),
        (b'{"id": 1}', b'{"op": "c", "after": {"name": "Ann", "CREDIT": "much"}}', "CREDIT: "),
        (b'{"id": 1}', b'{"op": "c", "after": {"since": "soon"}}', "column since: "),
    ],
)
def test_a_record_that_is_no_row_is_an_error_that_says_why(key: bytes, value: bytes, message: str) -> None:
    statements = f"{CUSTOMERS} CREATE TABLE o AS SELECT * FROM customers;"
    with pytest.raises(DeserializationError, match=message):
        after_changes(of(statements), [(key, value)], LONG)


# Mistakes

COUNTED = "CREATE TABLE o AS SELECT u, COUNT(*) AS c FROM clicks"
DECLARED = "CREATE TABLE t (id BIGINT PRIMARY KEY, n INTEGER) WITH (KAFKA_TOPIC = 't', "
MISTAKES = {
    "late rows without a name": (f"{COUNTED} WINDOW TUMBLING (SIZE 1 DAY, LATE INTO) GROUP BY u;", "Expected a name", ""),
    "late rows twice": (
        f"{COUNTED} WINDOW TUMBLING (SIZE 1 DAY, LATE INTO a, LATE INTO b) GROUP BY u;",
        "Windows have no second LATE",
        "",
    ),
    "late rows into a source": (
        f"{COUNTED} WINDOW TUMBLING (SIZE 1 DAY, LATE INTO clicks) GROUP BY u;",
        "Cannot add stream 'CLICKS': it already exists",
        "",
    ),
    "late rows into the table itself": (
        f"{COUNTED} WINDOW TUMBLING (SIZE 1 DAY, LATE INTO o) GROUP BY u;",
        "LATE INTO cannot name O, which this statement creates",
        "Choose another name",
    ),
    "late rows with an unknown property": (
        f"{COUNTED} WINDOW TUMBLING (SIZE 1 DAY, LATE INTO late WITH (TOPIC = 'x')) GROUP BY u;",
        "WITH has no property TOPIC",
        "KAFKA_TOPIC",
    ),
    "late rows of an unknown side": (
        (f"{ORDERS} {PAID} CREATE STREAM o AS SELECT a.k, a.n, b.n FROM orders a JOIN paid b WITHIN 1 DAY LATE c INTO late "
        "ON a.k = b.k;"),
        "LATE C: this join has no source of that name",
        "There are: A, B",
    ),
    "late rows of a side twice": (
        (f"{ORDERS} {PAID} CREATE STREAM o AS SELECT a.k, a.n, b.n FROM orders a JOIN paid b WITHIN 1 DAY "
        "LATE a INTO late, a INTO later ON a.k = b.k;"),
        "go to one stream",
        "",
    ),
    "late rows of no side": (
        (f"{ORDERS} {PAID} CREATE STREAM o AS SELECT a.k, a.n, b.n FROM orders a JOIN paid b WITHIN 1 DAY LATE INTO late "
        "ON a.k = b.k;"),
        "LATE names a source",
        "LATE orders INTO",
    ),
    "DISTINCT alone": ("CREATE STREAM o AS SELECT DISTINCT u, n FROM clicks;", "takes ON", "DISTINCT ON (id)"),
    "DISTINCT ON without a time": ("CREATE STREAM o AS SELECT DISTINCT ON (n) * FROM clicks;", "takes WITHIN", "1 DAY"),
    "DISTINCT ON nothing": ("CREATE STREAM o AS SELECT DISTINCT ON () * FROM clicks WITHIN 1 DAY;", "at least one", ""),
    "DISTINCT ON an unknown column": (
        "CREATE STREAM o AS SELECT DISTINCT ON (m) * FROM clicks WITHIN 1 DAY;",
        "Column 'M' cannot be resolved",
        "",
    ),
    "DISTINCT ON of groups": (
        "CREATE TABLE o AS SELECT DISTINCT ON (u) u, COUNT(*) AS c FROM clicks WITHIN 1 DAY GROUP BY u;",
        "GROUP BY makes groups",
        "an earlier statement",
    ),
    "DISTINCT ON of a table": (
        f"{TABLE}); CREATE TABLE o AS SELECT DISTINCT ON (n) * FROM t WITHIN 1 DAY;",
        "a table has each row once",
        "",
    ),
    "ROW_NUMBER": (
        "CREATE STREAM o AS SELECT u, ROW_NUMBER() OVER (PARTITION BY u ORDER BY n) AS r FROM clicks;",
        "OVER takes ORDER BY ROWTIME",
        "TOPK",
    ),
    **{
        f"{shown} as an item": (f"CREATE STREAM o AS SELECT u, {item} AS r FROM clicks;", message, hint)
        for shown, item, message, hint in [
            ("ROW_NUMBER", over("ROW_NUMBER()"), "not an aggregate function", "COUNT(*)"),
            ("LEAD", over("LEAD(n)"), "not an aggregate function", "LAG looks back"),
            ("a scalar function", over("ABS(n)"), "ABS is not an aggregate function", ""),
            ("an unknown LAG", over("LAG(n, n)"), "whole number of rows", ""),
            ("a LAG ahead", over("LAG(n, -1)"), "whole number of rows", ""),
            ("OVER within OVER", over(f"SUM({over('COUNT(n)').replace('COUNT', 'ABS')})"), "OVER", "earlier statement"),
            ("OVER of everyone", "SUM(n) OVER (ORDER BY ROWTIME)", "takes PARTITION BY", "PARTITION BY account"),
            ("OVER without rows", over("SUM(n)", frame=""), "takes RANGE or ROWS", "10 MINUTES"),
            (
                "OVER all rows",
                over("SUM(n)", frame="ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"),
                "for ever",
                "GROUP BY",
            ),
            (
                "OVER rows without a time",
                over("SUM(n)", frame="ROWS BETWEEN 3 PRECEDING AND CURRENT ROW"),
                "takes WITHIN",
                "30 DAYS",
            ),
            ("two groups of OVER", f"{over('SUM(n)')} + {over('SUM(n)', 'page')}", "equal PARTITION BY", "further"),
            ("two frames of OVER", f"{over('SUM(n)')} + {over('SUM(n)', frame=LAST_ROWS)}", "equal rows", "further"),
        ]
    },
    "OVER in WHERE": (
        f"CREATE STREAM o AS SELECT u, n FROM clicks WHERE {over('SUM(n)')} > 1;",
        "OVER stands in the SELECT",
        "earlier statement",
    ),
    "OVER of groups": (
        f"CREATE TABLE o AS SELECT u, COUNT(*) AS c, {over('SUM(n)')} AS s FROM clicks GROUP BY u;",
        "OVER stands in the SELECT",
        "earlier statement",
    ),
    "OVER a table": (
        f"{TABLE}); CREATE TABLE o AS SELECT k, {over('SUM(n)', 'k')} AS s FROM t;",
        "OVER takes the rows of a stream",
        "GROUP BY",
    ),
    "a query in FROM": (
        "CREATE STREAM o AS SELECT * FROM (SELECT * FROM clicks) WHERE n = 1;",
        "A query within FROM is not supported",
        "an earlier statement",
    ),
    "windows of rows": (f"{COUNTED} WINDOW TUMBLING (SIZE 3 ROWS) GROUP BY u;", "no unit of time ROWS", "CountWindows"),
    "no number of first values": ("CREATE TABLE o AS SELECT u, BOTTOMK(n, 0) AS b FROM clicks GROUP BY u;", "above 0", ""),
    "a TTL of a stream": (
        "CREATE STREAM s (n INTEGER) WITH (KAFKA_TOPIC = 's', VALUE_FORMAT = 'JSON', TTL = '1 DAY');",
        "TTL is a property of tables",
        "",
    ),
    "a TTL that is no time": (f"{DECLARED} VALUE_FORMAT = 'JSON', TTL = '1');", "TTL '1' is not a duration", ""),
    "a TTL of nothing": (f"{DECLARED} VALUE_FORMAT = 'JSON', TTL = '0 SECONDS');", "TTL must be more than 0", ""),
    "a TTL of windows": (
        "CREATE TABLE o WITH (TTL = '1 DAY') AS SELECT u, COUNT(*) AS c FROM clicks WINDOW TUMBLING (SIZE 1 DAY) GROUP BY u;",
        "TTL is for tables of topics",
        "",
    ),
    "a TTL of a projection": (
        f"{TABLE}); CREATE TABLE o WITH (TTL = '1 DAY') AS SELECT * FROM t;",
        "TTL is for tables of topics",
        "",
    ),
    "changes that are written": (
        "CREATE STREAM o WITH (VALUE_FORMAT = 'DEBEZIUM_JSON') AS SELECT * FROM clicks;",
        "Format DEBEZIUM_JSON is only read",
        "'JSON' or 'AVRO'",
    ),
    "changes that are inserted": (
        ("CREATE STREAM s (u STRING KEY, op STRING) WITH (KAFKA_TOPIC = 's', FORMAT = 'DEBEZIUM_JSON'); "
        "INSERT INTO s SELECT u, page AS op FROM clicks;"),
        "Cannot insert into S",
        "",
    ),
    "Flink's name of the format": (f"{DECLARED} FORMAT = 'debezium-json');", "is not supported", "DEBEZIUM_JSON"),
    "keys in another format": (
        f"{DECLARED} KEY_FORMAT = 'JSON', VALUE_FORMAT = 'DEBEZIUM_JSON');",
        "have one format",
        "FORMAT = 'DEBEZIUM_JSON'",
    ),
    "keys alone": (f"{DECLARED} KEY_FORMAT = 'DEBEZIUM_JSON', VALUE_FORMAT = 'JSON');", "is one of values", "keys and values"),
    "a column that the envelope lacks": (
        "CREATE STREAM s (id BIGINT KEY, name STRING) WITH (KAFKA_TOPIC = 's', FORMAT = 'DEBEZIUM_JSON');",
        "A stream of changes has no column NAME STRING",
        "OP STRING",
    ),
    "a wrong type of Debezium": (
        f"{DECLARED} FORMAT = 'DEBEZIUM_JSON', DEBEZIUM_TYPES = 'n io.debezium.time.Moon');",
        "there is no type 'io.debezium.time.Moon'",
        "",
    ),
    "a type of an unknown column": (
        f"{DECLARED} FORMAT = 'DEBEZIUM_JSON', DEBEZIUM_TYPES = 'm io.debezium.time.Date');",
        "the statement has no column m",
        "N",
    ),
    "a column without its type": (
        f"{DECLARED} FORMAT = 'DEBEZIUM_JSON', DEBEZIUM_TYPES = 'n');",
        "has columns with their types, and not 'n'",
        "",
    ),
    "types of Debezium in JSON": (
        f"{DECLARED} VALUE_FORMAT = 'JSON', DEBEZIUM_TYPES = 'n io.debezium.time.Date');",
        "needs a format of changes",
        "",
    ),
    "windows of changes": (f"{DECLARED} FORMAT = 'DEBEZIUM_JSON', WINDOW_TYPE = 'SESSION');", "WINDOW_TYPE does not fit", ""),
    "times of deleted rows": (f"{DECLARED} FORMAT = 'DEBEZIUM_JSON', TIMESTAMP = 'id');", "times of its records", ""),
    "another TTL": (
        f"{TABLE}, TTL = '1 DAY'); CREATE OR REPLACE {TABLE.removeprefix('CREATE ')}, TTL = '2 DAYS');",
        "properties must stay the same",
        "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_wrong_form_is_named_with_its_place(name: str) -> None:
    statements, message, hint = MISTAKES[name]
    with pytest.raises(SqlError) as raised:
        build_sql(f"{CLICKS}\n{statements}", StreamsBuilder(), file="x.sql")
    assert message in str(raised.value)
    assert hint in (raised.value.hint or "")
    assert "(x.sql:2:" in str(raised.value)


# Commands, digests and fingerprints

EXPLAINED = f"{CLICKS} {COUNTED} WINDOW TUMBLING (SIZE 1 DAY, LATE INTO late) GROUP BY u;"


@pytest.mark.parametrize("name", ["o", "late"])
def test_late_rows_are_explained_with_the_statement_that_makes_them(name: str) -> None:
    statements, (command,) = Statements.of(EXPLAINED, "x.sql"), parse_commands(f"EXPLAIN {name};")
    explained = statements.answer(command)  # type: ignore[arg-type]
    assert any("KSTREAM-LATE-" in line for (line,) in explained.rows)


def test_late_rows_are_a_stream_as_others() -> None:
    statements = Statements.of(EXPLAINED, "x.sql")
    streams, described, queries = (
        statements.answer(command).rows  # type: ignore[arg-type]
        for command in parse_commands("SHOW STREAMS; DESCRIBE late; SHOW QUERIES;")
    )
    assert ("LATE", "LATE", "KAFKA", "JSON", False) in streams
    assert described == (("U", "STRING", "key"), ("PAGE", "STRING", ""), ("N", "INTEGER", ""))
    assert queries == (("CREATE AS SELECT", "O", "O"), ("LATE INTO", "LATE", "LATE"))


@pytest.mark.parametrize("command", ["SELECT", "EXPLAIN SELECT"])
def test_a_query_of_the_prompt_makes_no_stream(command: str) -> None:
    text = f"{command} u, COUNT(*) FROM clicks WINDOW TUMBLING (SIZE 1 DAY, LATE INTO more) GROUP BY u;"
    statements, (parsed,) = Statements.of(CLICKS, "x.sql"), parse_commands(text)
    plan = StatementPlan(StreamsBuilder(), statements.catalog)
    with pytest.raises(SqlError, match="as statements of a file do"):
        plan.select(parsed.query, "shown")  # type: ignore[union-attr, arg-type]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("n INTEGER)", "n BIGINT)"),
        (", LATE INTO late", ""),
        ("INTO late", "INTO later"),
        ("INTO late", "INTO late WITH (VALUE_FORMAT = 'AVRO')"),
    ],
)
def test_the_digest_of_a_statement_covers_its_late_rows(old: str, new: str) -> None:
    assert old in EXPLAINED
    one, other = (statement_digests(text, "x.sql") for text in (EXPLAINED, EXPLAINED.replace(old, new, 1)))
    assert one["CREATE TABLE O"] != other["CREATE TABLE O"]


FORMS = [
    "CREATE STREAM o AS SELECT * FROM clicks;",
    "CREATE STREAM o AS SELECT DISTINCT ON (n) * FROM clicks WITHIN 1 DAY;",
    "CREATE STREAM o AS SELECT DISTINCT ON (page) * FROM clicks WITHIN 1 DAY;",
    "CREATE STREAM o AS SELECT DISTINCT ON (page) * FROM clicks WITHIN 2 DAYS;",
    "CREATE STREAM o AS SELECT DISTINCT ON (page) * FROM clicks WITHIN 2 DAYS GRACE PERIOD 1 DAY;",
    "CREATE STREAM o AS SELECT DISTINCT ON (page, n) * FROM clicks WITHIN 1 DAY;",
    *(
        f"CREATE STREAM o AS SELECT u, {each} AS r FROM clicks;"
        for each in (
            over("SUM(n)"),
            over("MAX(n)"),
            over("LAG(n)"),
            over("LAG(n, 2)"),
            over("SUM(n) FILTER (WHERE n > 1)"),
            over("SUM(n)", "page"),
            over("SUM(n)", frame=LAST_TIME.replace("10", "20")),
            over("SUM(n)", frame=LAST_ROWS),
            over("SUM(n)", frame=LAST_ROWS.replace("BETWEEN 1", "BETWEEN 2")),
            over("SUM(n)", frame=f"{LAST_TIME} GRACE PERIOD 1 DAY"),
        )
    ),
    f"{COUNTED} GROUP BY u;",
    COUNTED.replace("o AS", "o WITH (TTL = '1 DAY') AS") + " GROUP BY u;",
    COUNTED.replace("o AS", "o WITH (TTL = '2 DAYS') AS") + " GROUP BY u;",
    "CREATE TABLE o AS SELECT u, TOPK(n, 2) AS t FROM clicks GROUP BY u;",
    "CREATE TABLE o AS SELECT u, TOPK(n, 3) AS t FROM clicks GROUP BY u;",
    "CREATE TABLE o AS SELECT u, BOTTOMK(n, 2) AS t FROM clicks GROUP BY u;",
    "CREATE TABLE o AS SELECT u, TOPK(n, page, 2) AS t FROM clicks GROUP BY u;",
    f"{COUNTED} WINDOW TUMBLING (SIZE 1 DAY) GROUP BY u;",
    f"{COUNTED} WINDOW TUMBLING (SIZE 1 DAY, LATE INTO late) GROUP BY u;",
    f"{COUNTED} WINDOW TUMBLING (SIZE 1 DAY, LATE INTO later) GROUP BY u;",
    f"{DECLARED} VALUE_FORMAT = 'JSON'); CREATE TABLE o AS SELECT * FROM t;",
    f"{DECLARED} VALUE_FORMAT = 'JSON', TTL = '1 DAY'); CREATE TABLE o AS SELECT * FROM t;",
    f"{DECLARED} FORMAT = 'DEBEZIUM_JSON'); CREATE TABLE o AS SELECT * FROM t;",
    f"{DECLARED} FORMAT = 'DEBEZIUM_JSON', TTL = '1 DAY'); CREATE TABLE o AS SELECT * FROM t;",
    f"{DECLARED} FORMAT = 'DEBEZIUM_AVRO'); CREATE TABLE o WITH (VALUE_FORMAT = 'JSON') AS SELECT * FROM t;",
    (
        f"{DECLARED} FORMAT = 'DEBEZIUM_JSON', DEBEZIUM_TYPES = 'n io.debezium.time.Date'); "
        "CREATE TABLE o AS SELECT * FROM t;"
    ),
    (
        "CREATE STREAM s (id BIGINT KEY, op STRING) WITH (KAFKA_TOPIC = 't', FORMAT = 'DEBEZIUM_JSON'); "
        "CREATE STREAM o AS SELECT * FROM s;"
    ),
]


def test_no_two_forms_have_one_fingerprint() -> None:
    found: dict[str, str] = {}
    for form in FORMS:
        other = found.setdefault(of(CLICKS + form).fingerprint(), form)
        assert other == form
    again = {of(CLICKS + form).fingerprint() for form in FORMS}
    assert again == found.keys()
