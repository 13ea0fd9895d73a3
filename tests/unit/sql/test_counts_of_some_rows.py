"""COUNT(DISTINCT ...) and FILTER (WHERE ...): what groups of random rows have is what a computation over all rows has."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import BYTES, StreamsBuilder
from riverrun.errors import StreamsError
from riverrun.sql import build_sql
from riverrun.sql.statements import SqlError
from riverrun.testing import TopologyTestDriver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

COLUMNS = "shop STRING, item STRING, price DECIMAL(6, 2), n INT"
SALES = f"CREATE STREAM sales (id STRING KEY, {COLUMNS}) WITH (KAFKA_TOPIC = 'in', VALUE_FORMAT = 'JSON');"
STOCK = f"CREATE TABLE sales (id STRING PRIMARY KEY, {COLUMNS}) WITH (KAFKA_TOPIC = 'in', VALUE_FORMAT = 'JSON');"
RESULTS = """
    COUNT(DISTINCT item) AS items,
    COUNT(DISTINCT price) AS prices,
    COUNT(DISTINCT item, n) AS pairs,
    COUNT(*) FILTER (WHERE n > 1) AS many,
    SUM(n) FILTER (WHERE item = 'lamp' OR price IS NULL) AS lamps,
    COUNT(DISTINCT item) FILTER (WHERE n > 1) AS items_of_many,
    SUM(price) FILTER (WHERE 10 / n > 4) AS dear
"""
Row = dict[str, Any]
Record = tuple[str, Row | None, int]
"""Key, value and time."""


def expected(rows: Sequence[Row]) -> Row:
    """The results above for the rows of one group."""

    def different(of: Callable[[Row], Any], among: Iterable[Row] = rows) -> int:
        return len({of(each) for each in among} - {None})

    many = [each for each in rows if each["N"] is not None and each["N"] > 1]
    lamps = [each["N"] or 0 for each in rows if each["ITEM"] == "lamp" or each["PRICE"] is None]
    # A division by 0 or NULL is NULL, and NULL is not TRUE.
    dear = [each["PRICE"] or 0 for each in rows if each["N"] and 10 // each["N"] > 4]
    return {
        "ITEMS": different(lambda each: each["ITEM"]),
        "PRICES": different(lambda each: each["PRICE"]),
        "PAIRS": different(lambda each: None if None in {each["ITEM"], each["N"]} else (each["ITEM"], each["N"])),
        "MANY": len(many),
        "LAMPS": sum(lamps),
        "ITEMS_OF_MANY": different(lambda each: each["ITEM"], many),
        "DEAR": pytest.approx(sum(dear)),
    }


def drawn_row(draw: random.Random) -> Row:
    return {
        "SHOP": draw.choice(["a", "b", None]),
        "ITEM": draw.choice(["lamp", "sofa", "", "é", None]),
        "PRICE": draw.choice([1.5, 2, 2.25, 0, -1.1, None]),
        "N": draw.choice([0, 1, 2, 3, None]),
    }


def last_rows(statements: str, records: Iterable[Record]) -> dict[bytes | None, Row]:
    """The last row of each key of the result; deleted rows are left out."""
    found: dict[bytes | None, Row] = {}
    with TopologyTestDriver(build_sql(statements, StreamsBuilder())) as driver:
        topic = driver.input_topic("in", BYTES, BYTES)
        for key, row, time_ms in records:
            topic.pipe_input(key.encode(), None if row is None else json.dumps(row).encode(), timestamp=time_ms)
        for record in driver.read_raw("O"):
            found.pop(record.key, None)
            if record.value is not None:
                found[record.key] = json.loads(record.value)
    return found


def grouped(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows of each shop; rows without one are in no group."""
    found: dict[str, list[Row]] = {}
    for each in rows:
        if each["SHOP"] is not None:
            found.setdefault(each["SHOP"], []).append(each)
    return found


@pytest.mark.parametrize("seed", range(5))
def test_groups_of_a_stream_count_different_values_and_filtered_rows(seed: int) -> None:
    draw = random.Random(seed)
    rows = [drawn_row(draw) for _ in range(draw.randrange(60))]
    made = last_rows(
        f"{SALES} CREATE TABLE o AS SELECT shop, {RESULTS} FROM sales GROUP BY shop;", [("k", row, 0) for row in rows]
    )
    assert made == {shop.encode(): expected(found) for shop, found in grouped(rows).items()}


@pytest.mark.parametrize("seed", range(8))
def test_groups_of_a_table_forget_rows_that_move_or_are_deleted(seed: int) -> None:
    draw, records, last = random.Random(seed), [], {}
    for _ in range(80):
        key, row = draw.choice("uvwxyz"), drawn_row(draw) if draw.random() < 0.8 else None
        records.append((key, row, 0))
        last[key] = row
    made = last_rows(f"{STOCK} CREATE TABLE o AS SELECT shop, {RESULTS} FROM sales GROUP BY shop;", records)
    groups = grouped(row for row in last.values() if row is not None)
    ever = grouped(row for _, row, _ in records if row is not None)
    # A group without rows stays, with results of none.
    assert made == {shop.encode(): expected(groups.get(shop, [])) for shop in ever}


@pytest.mark.parametrize("seed", range(5))
def test_windows_count_the_rows_that_are_not_late(seed: int) -> None:
    draw, records = random.Random(seed), []
    windows: dict[tuple[str, int], list[Row]] = {}
    stream_time = 0
    for _ in range(80):
        row, time_ms = drawn_row(draw), max(0, stream_time + draw.randrange(-30, 20))
        records.append(("k", row, time_ms))
        if row["SHOP"] is None:
            continue
        stream_time = max(stream_time, time_ms)
        start = time_ms - time_ms % 10
        if start + 10 + 5 > stream_time:
            windows.setdefault((row["SHOP"], start), []).append(row)
    window = "WINDOW TUMBLING (SIZE 10 MILLISECONDS, GRACE PERIOD 5 MILLISECONDS)"
    made = last_rows(f"{SALES} CREATE TABLE o AS SELECT shop, {RESULTS} FROM sales {window} GROUP BY shop;", records)
    assert made == {shop.encode() + start.to_bytes(8): expected(found) for (shop, start), found in windows.items()}


@pytest.mark.parametrize("seed", range(5))
def test_merged_sessions_count_a_value_once(seed: int) -> None:
    draw = random.Random(seed)
    records = [("k", drawn_row(draw) | {"SHOP": "a"}, draw.randrange(200)) for _ in range(40)]
    sessions: list[list[Record]] = []
    for record in sorted(records, key=lambda each: each[2]):
        if sessions and record[2] - sessions[-1][-1][2] <= 3:
            sessions[-1].append(record)
        else:
            sessions.append([record])
    window = "WINDOW SESSION (3 MILLISECONDS)"
    made = last_rows(f"{SALES} CREATE TABLE o AS SELECT shop, {RESULTS} FROM sales {window} GROUP BY shop;", records)
    wanted = [expected([row for _, row, _ in each if row is not None]) for each in sessions]
    assert sorted(made.values(), key=repr) == sorted(wanted, key=repr)


def test_having_and_the_projection_use_filtered_aggregates() -> None:
    query = """
        CREATE TABLE o AS SELECT shop, COUNT(*) FILTER (WHERE n > 1) * 100 / COUNT(*) AS percent FROM sales
            GROUP BY shop HAVING COUNT(DISTINCT item) FILTER (WHERE n IS NOT NULL) > 1;
    """
    rows = [{"SHOP": "a", "ITEM": item, "N": n} for item, n in [("x", 1), ("y", 2), ("y", None), ("z", 5)]]
    made = last_rows(SALES + query, [("k", row, 0) for row in rows])
    assert made == {b"a": {"PERCENT": 50}}


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("COUNT(*) FILTER (WHERE n)", r"FILTER expression: Should evaluate to boolean but is INTEGER. \(<sql>:2:55\)"),
        ("COUNT(*) FILTER (WHERE NULL)", "Should evaluate to boolean but is None"),
        ("COUNT(*) FILTER (WHERE m > 1)", "Column 'M' cannot be resolved"),
        ("COUNT(*) FILTER (WHERE COUNT(*) > 1)", "Aggregate functions can not be nested"),
        ("COUNT(*), UCASE(shop) FILTER (WHERE n > 1)", "FILTER .WHERE .... follows aggregate functions only"),
        ("COUNT(DISTINCT SUM(n))", "Aggregate functions can not be nested"),
        ("COUNT(DISTINCT *)", "does not accept parameters"),
        ("COUNT(DISTINCT)", "does not accept parameters"),
        ("SUM(DISTINCT n)", "SUM.DISTINCT .... is not supported"),
    ],
)
def test_a_mistake_in_distinct_or_filter_is_said_with_its_place(result: str, message: str) -> None:
    with pytest.raises(SqlError, match=message) as error:
        build_sql(f"{SALES}\nCREATE TABLE o AS SELECT shop, {result} FROM sales GROUP BY shop;", StreamsBuilder())
    assert "<sql>:2:" in str(error.value)


def test_a_filter_without_a_group_is_refused_like_its_aggregate() -> None:
    with pytest.raises(SqlError, match="COUNT cannot be used here"):
        build_sql(
            f"{SALES} CREATE STREAM o AS SELECT id, COUNT(*) FILTER (WHERE n > 1) AS m FROM sales;", StreamsBuilder()
        )


def test_a_group_with_too_many_values_is_an_error_unless_a_limit_allows_them() -> None:
    query = "CREATE TABLE o AS SELECT shop, COUNT(DISTINCT n) AS items FROM sales GROUP BY shop;"
    records: list[Record] = [("k", {"SHOP": "a", "N": n}, 0) for n in [1, 2, 1, 3]]
    few, many = (f"{SALES} SET 'ksql.functions.count.limit' = '{limit}'; {query}" for limit in (2, 3))
    assert last_rows(few, records[:3]) == {b"a": {"ITEMS": 2}}
    assert last_rows(many, records) == {b"a": {"ITEMS": 3}}
    with pytest.raises(StreamsError, match="takes 2 different values in a group"):
        last_rows(few, records)


@pytest.mark.parametrize("count", ["COUNT(DISTINCT {})", "COUNT_DISTINCT({})"])
@pytest.mark.parametrize(
    "value",
    [
        "MAP(TO_BYTES('aa', 'hex') := n, TO_BYTES(item, 'utf8') := 2)",
        "MAP(CAST(1 AS DECIMAL(4, 2)) := n)",
        "MAP('a' := n, CAST(NULL AS STRING) := 2)",
        "ARRAY[MAP(item := n, CAST(NULL AS STRING) := 2)]",
        "STRUCT(of := MAP(TO_BYTES('aa', 'hex') := n))",
    ],
)
def test_maps_are_counted_whatever_their_keys_are(count: str, value: str) -> None:
    query = f"CREATE TABLE o AS SELECT shop, {count.format(value)} AS c FROM sales GROUP BY shop;"
    rows = [{"SHOP": "a", "ITEM": "x", "N": n} for n in (1, 2, 1)]
    assert last_rows(SALES + query, [("k", row, 0) for row in rows]) == {b"a": {"C": 2}}


def test_a_key_that_is_null_is_another_than_the_text() -> None:
    query = "CREATE TABLE o AS SELECT shop, COUNT(DISTINCT MAP(item := 1)) AS c FROM sales GROUP BY shop;"
    rows = [{"SHOP": "a", "ITEM": item} for item in ("null", None, "null")]
    assert last_rows(SALES + query, [("k", row, 0) for row in rows]) == {b"a": {"C": 2}}
