"""UNION ALL: rows of several SELECTs in one stream, with the types of all of them."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from riverrun import BYTES, StreamsBuilder
from riverrun.records import TopicPartition
from riverrun.service.selecting import Selecting
from riverrun.sql import build_sql
from riverrun.sql.commands import Select, Statements, parse_commands
from riverrun.sql.planning.planner import StatementPlan
from riverrun.sql.statement_files import statement_digests
from riverrun.sql.statements import SqlError
from riverrun.testing import TopologyTestDriver
from riverrun.topics.records import ReadRecord

WEB = """
    CREATE STREAM web (id STRING KEY, shop STRING, n INT, price DECIMAL(4, 2), tags ARRAY<INT>)
        WITH (KAFKA_TOPIC = 'web', VALUE_FORMAT = 'JSON');
"""
STORES = """
    CREATE STREAM stores (id STRING KEY, shop STRING, n BIGINT, price DECIMAL(6, 1), tags ARRAY<BIGINT>)
        WITH (KAFKA_TOPIC = 'stores', VALUE_FORMAT = 'JSON');
    CREATE STREAM numbered (id BIGINT KEY, n INT) WITH (KAFKA_TOPIC = 'numbered', FORMAT = 'JSON');
    CREATE STREAM hours (id STRING KEY, n INT)
        WITH (KAFKA_TOPIC = 'hours', VALUE_FORMAT = 'JSON', WINDOW_TYPE = 'TUMBLING', WINDOW_SIZE = '1 HOUR');
    CREATE STREAM loose (shop STRING, n INT) WITH (KAFKA_TOPIC = 'loose', VALUE_FORMAT = 'JSON');
    CREATE TABLE shops (id STRING PRIMARY KEY, n INT) WITH (KAFKA_TOPIC = 'shops', VALUE_FORMAT = 'JSON');
"""
SOURCES = WEB + STORES


def written(statements: str, *records: tuple[str, str | None, dict[str, Any] | None]) -> list[tuple[Any, Any, int]]:
    """Key, value and time of each row of O, after records of topics at 0, 1 and so on."""
    with TopologyTestDriver(build_sql(SOURCES + statements, StreamsBuilder())) as driver:
        for time_ms, (topic, key, row) in enumerate(records):
            value = None if row is None else json.dumps(row).encode()
            driver.input_topic(topic, BYTES, BYTES).pipe_input(
                None if key is None else key.encode(), value, timestamp=time_ms
            )
        return [
            (record.key and record.key.decode(), json.loads(record.value or b"null"), record.timestamp)
            for record in driver.read_raw("O")
        ]


def test_columns_correspond_by_their_places_and_have_the_names_of_the_first() -> None:
    made = written(
        "CREATE STREAM o AS SELECT id, shop, n FROM web UNION ALL SELECT id, UCASE(shop), n + 1 AS m FROM stores EMIT CHANGES;",
        ("web", "x", {"SHOP": "a", "N": 1}),
        ("stores", "y", {"SHOP": "b", "N": 2**40}),
        ("web", "x", None),
        ("stores", None, {"SHOP": None, "N": None}),
    )
    assert made == [
        ("x", {"SHOP": "a", "N": 1}, 0),
        ("y", {"SHOP": "B", "N": 2**40 + 1}, 1),
        ("x", None, 2),
        (None, {"SHOP": None, "N": None}, 3),
    ]


def test_numbers_get_the_type_that_holds_those_of_all_selects() -> None:
    text = """
        CREATE STREAM o AS SELECT id, n, price, tags, 1 AS x FROM web
            UNION ALL SELECT id, n, price, tags, 2.5E0 FROM stores;
    """
    catalog = Statements.of(SOURCES + text, "a.sql").catalog
    assert [(name, str(type_)) for name, type_ in catalog.sources["O"].layout.value] == [
        ("N", "BIGINT"),
        ("PRICE", "DECIMAL(7, 2)"),
        ("TAGS", "ARRAY<BIGINT>"),
        ("X", "DOUBLE"),
    ]
    made = written(
        text,
        ("web", "x", {"N": 1, "PRICE": 12.34, "TAGS": [1, None]}),
        ("stores", "y", {"N": 2, "PRICE": 12345.6, "TAGS": None}),
    )
    assert [row for _, row, _ in made] == [
        {"N": 1, "PRICE": 12.34, "TAGS": [1, None], "X": 1.0},
        {"N": 2, "PRICE": 12345.6, "TAGS": None, "X": 2.5},
    ]


@pytest.mark.parametrize("seed", range(4))
def test_random_rows_come_once_for_each_select_that_lets_them_pass(seed: int) -> None:
    draw = random.Random(seed)
    records: list[tuple[str, str | None, dict[str, Any] | None]] = [
        (
            draw.choice(["web", "stores"]),
            draw.choice("xyz"),
            {"SHOP": draw.choice("ab"), "N": draw.choice([None, 1, 2, 3])},
        )
        for _ in range(60)
    ]
    made = written(
        """
        CREATE STREAM o AS
            SELECT id, n FROM web WHERE n > 1
            UNION ALL SELECT id, n * 10 FROM stores WHERE shop = 'a'
            UNION ALL SELECT id, n FROM web;
        """,
        *records,
    )
    wanted = []
    for time_ms, (topic, key, row) in enumerate(records):
        assert row is not None
        n = row["N"]
        if topic == "web":
            wanted += [(key, {"N": n}, time_ms)] * (2 if n is not None and n > 1 else 1)
        elif row["SHOP"] == "a":
            wanted.append((key, {"N": n and n * 10}, time_ms))
    assert made == wanted


def test_a_select_with_itself_has_each_row_twice() -> None:
    made = written("CREATE STREAM o AS SELECT id, n FROM web UNION ALL SELECT id, n FROM web;", ("web", "x", {"N": 1}))
    assert made == [("x", {"N": 1}, 0)] * 2


def test_another_key_fits_after_partition_by() -> None:
    made = written(
        """
        CREATE STREAM o AS SELECT id, n FROM web
            UNION ALL SELECT CAST(id AS STRING) AS id, n FROM numbered PARTITION BY CAST(id AS STRING)
            UNION ALL SELECT shop, n FROM loose PARTITION BY shop;
        """,
        ("web", "x", {"N": 1}),
        ("numbered", "7", {"N": 2}),
        ("loose", None, {"SHOP": "a", "N": 3}),
    )
    assert made == [("x", {"N": 1}, 0), ("7", {"N": 2}, 1), ("a", {"N": 3}, 2)]


def test_a_later_statement_groups_the_united_rows_and_insert_adds_more() -> None:
    made = written(
        """
        CREATE STREAM sales AS SELECT id, n FROM web UNION ALL SELECT id, n FROM stores;
        INSERT INTO sales SELECT id, CAST(1 AS BIGINT) AS n FROM hours PARTITION BY id
            UNION ALL SELECT shop AS id, CAST(n AS BIGINT) AS n FROM loose PARTITION BY shop;
        CREATE TABLE o AS SELECT id, SUM(n) AS n, COUNT(*) AS rows FROM sales GROUP BY id;
        """,
        ("web", "x", {"N": 1}),
        ("stores", "x", {"N": 5}),
        ("loose", None, {"SHOP": "x", "N": 7}),
    )
    assert made[-1] == ("x", {"N": 13, "ROWS": 3}, 2)


@pytest.mark.parametrize(
    ("query", "message", "place"),
    [
        ("SELECT id, n FROM web\nUNION ALL SELECT id, n, shop FROM stores", "have 2 and 3 columns", "3:18"),
        ("SELECT id, n FROM web\nUNION ALL SELECT id, shop FROM stores", "Column N .* INTEGER and STRING", "3:22"),
        ("SELECT id, shop, n FROM web\nUNION ALL SELECT shop, id, n FROM stores", "have other keys", "3:18"),
        (
            "SELECT id, n FROM web\nUNION ALL SELECT id, n FROM numbered",
            "other keys: .`ID` STRING., and .`ID` BIGINT.",
            "3:18",
        ),
        ("SELECT id, n FROM web\nUNION ALL SELECT id, n FROM hours", "other keys", "3:18"),
        ("SELECT id, n FROM web\nUNION ALL SELECT shop, n FROM loose", "other keys: .`ID` STRING., and ..", "3:18"),
        ("SELECT id, n FROM web\nUNION ALL SELECT id, n FROM shops", "this SELECT makes a table", "3:29"),
        ("SELECT id, COUNT(*) AS n FROM web GROUP BY id\nUNION ALL SELECT id, n FROM web", "makes a table", "2:31"),
        ("SELECT id, n FROM web\nUNION SELECT id, n FROM web", "UNION takes ALL", "3:7"),
        ("SELECT id, n FROM web\nUNION ALL SELECT id, m FROM stores", "Column 'M' cannot be resolved", "3:22"),
        ("SELECT id, n FROM web\nUNION ALL SELECT id, NULL FROM stores", "is NULL, and has no type", "3:22"),
        ("SELECT id, n FROM web\nUNION ALL SELECT id, n FROM o", "O does not exist", "3:29"),
    ],
)
def test_selects_that_do_not_go_together_are_refused(query: str, message: str, place: str) -> None:
    text = f"{' '.join(SOURCES.split())} CREATE STREAM o AS\n{query};"
    with pytest.raises(SqlError, match=message) as error:
        build_sql(text, StreamsBuilder(), file="a.sql")
    assert f"(a.sql:{place})" in str(error.value)


def test_rows_that_come_back_through_the_second_select_are_refused() -> None:
    text = """
        CREATE STREAM o AS SELECT id, n FROM web;
        INSERT INTO o SELECT id, n FROM web UNION ALL SELECT id, n FROM o;
    """
    with pytest.raises(SqlError, match="Rows would go round for ever"):
        build_sql(SOURCES + text, StreamsBuilder())


def test_late_rows_of_each_select_have_their_stream() -> None:
    join = "SELECT a.id AS id, a.n FROM web a JOIN web b WITHIN 1 SECOND GRACE PERIOD 0 SECONDS LATE a INTO {} ON a.id = b.id"
    text = f"{SOURCES} CREATE STREAM o AS {join.format('late_one')} UNION ALL {join.format('late_two')};"
    text = text.replace("web b", "stores b")
    statements = Statements.of(text, "a.sql")
    assert {"LATE_ONE", "LATE_TWO", "O"} <= statements.catalog.sources.keys()
    assert statement_digests(text, "a.sql") != statement_digests(
        text.replace("n INT, price", "m INT, n INT, price"), "a.sql"
    )


def test_union_is_a_name_where_no_select_follows() -> None:
    assert written("CREATE STREAM o AS SELECT union.id, union.n FROM web union;", ("web", "x", {"N": 1})) == [
        ("x", {"N": 1}, 0)
    ]


def test_a_query_at_the_prompt_unites_rows_and_needs_no_keys() -> None:
    catalog = Statements.of(SOURCES, "a.sql").catalog
    (select,) = parse_commands("SELECT id, n FROM web UNION ALL SELECT shop, n FROM loose EMIT CHANGES LIMIT 3;")
    assert isinstance(select, Select)
    assert (select.follows, select.limit) == (True, 3)
    plan = StatementPlan(StreamsBuilder(), catalog)
    selection = plan.select(select.query.without_key(), "shown")
    records = [
        ReadRecord(TopicPartition(topic, 0), 0, n, b"x", json.dumps({"SHOP": topic, "N": n}).encode(), ())
        for n, topic in enumerate(["web", "loose"])
    ]
    selecting = Selecting(lambda: pytest.fail("no broker is asked"), {}, catalog)
    rows = [selection.row(*update) for update in selecting._updates(plan, selection, ["web", "loose"], records)]
    assert rows == [("x", 0), ("loose", 1)]
