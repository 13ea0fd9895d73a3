"""SELECTs over stored tables: what they ask of a store, and the rows they make of what is there."""

from __future__ import annotations

from contextlib import contextmanager
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import BYTES, StreamsBuilder
from riverrun.kafka.admin import Admin, TopicSpec
from riverrun.kafka.producer import IdempotentProducer
from riverrun.service.selecting import Selecting
from riverrun.simulation.cluster import Cluster
from riverrun.sql.answers import PullQuery, Sought, is_pull, pull_query
from riverrun.sql.commands import Select, parse_commands
from riverrun.sql.planning.planner import StatementPlan
from riverrun.sql.statement_parser import parse
from riverrun.sql.statements import SqlError
from riverrun.testing import TopologyTestDriver
from riverrun.windows import Window

if TYPE_CHECKING:
    from collections.abc import Iterator

STATEMENTS = """
CREATE STREAM orders (customer STRING KEY, item STRING, amount DECIMAL(8, 2), at DATE)
    WITH (KAFKA_TOPIC = 'orders', VALUE_FORMAT = 'JSON');
CREATE TABLE totals AS
    SELECT customer, COUNT(*) AS n, SUM(amount) AS total, LATEST_BY_OFFSET(at) AS at FROM orders
    GROUP BY customer HAVING COUNT(*) > 1;
CREATE TABLE sold AS
    SELECT item, COUNT(*) AS n FROM orders WINDOW TUMBLING (SIZE 10 SECONDS) GROUP BY item;
CREATE TABLE visits AS
    SELECT customer, COUNT(*) AS n FROM orders WINDOW SESSION (10 SECONDS) GROUP BY customer;
CREATE TABLE pairs WITH (KEY_FORMAT = 'JSON') AS SELECT customer, item, COUNT(*) AS n FROM orders GROUP BY customer, item;
CREATE TABLE large AS SELECT customer, total FROM totals WHERE total > 100;
CREATE SOURCE TABLE prices (item STRING PRIMARY KEY, price INT) WITH (KAFKA_TOPIC = 'prices', VALUE_FORMAT = 'JSON');
CREATE TABLE names (customer STRING PRIMARY KEY, name STRING) WITH (KAFKA_TOPIC = 'names', VALUE_FORMAT = 'JSON');
"""


def select(text: str) -> Select:
    (found,) = parse_commands(text)
    assert isinstance(found, Select)
    return found


@pytest.fixture(scope="module")
def plan() -> StatementPlan:
    made = StatementPlan(StreamsBuilder())
    made.add_all(parse(STATEMENTS))
    return made


def pulled(plan: StatementPlan, text: str) -> PullQuery:
    return pull_query(select(text), plan.catalog)


@pytest.mark.parametrize(
    ("condition", "sought"),
    [
        ("customer = 'ann'", Sought((("ann",),))),
        ("'ann' = customer AND n > 3", Sought((("ann",),))),
        ("(customer IN ('ann', 'bob', 'ann'))", Sought((("ann",), ("bob",)))),
        ("customer = LCASE('ANN')", Sought((("ann",),))),
        ("customer > 'a' AND customer <= 'c'", Sought(None, "a", "c")),
        ("customer BETWEEN 'a' AND 'c' AND customer >= 'b'", Sought(None, "b", "c")),
        ("customer = 'ann' OR n = 1", Sought()),
        ("customer = UCASE(customer)", Sought()),
        ("NOT (customer = 'ann')", Sought()),
        ("customer LIKE 'a%'", Sought()),
        ("n = 1", Sought()),
    ],
)
def test_a_condition_says_which_keys_are_looked_up(plan: StatementPlan, condition: str, sought: Sought) -> None:
    assert pulled(plan, f"SELECT * FROM totals WHERE {condition};").sought == sought


def test_keys_of_several_columns_are_looked_up_once_all_are_known(plan: StatementPlan) -> None:
    both = pulled(plan, "SELECT n FROM pairs WHERE item IN ('lamp', 'sofa') AND customer = 'ann';")
    assert both.sought.keys == (("ann", "lamp"), ("ann", "sofa"))
    assert pulled(plan, "SELECT n FROM pairs WHERE customer = 'ann';").sought == Sought()


@pytest.mark.parametrize(
    ("condition", "times"),
    [
        ("WINDOWSTART >= 20000 AND WINDOWSTART < 50000", (20_000, 50_000)),
        ("WINDOWEND > 20000 AND WINDOWEND <= 50000", (10_000, 40_000)),
        ("WINDOWSTART = '1970-01-01T00:01'", (60_000, 60_000)),
        ("WINDOWSTART IN (10000, 30000)", (10_000, 30_000)),
        ("WINDOWSTART < -5", (0, 0)),
    ],
)
def test_bounds_of_windows_are_those_of_the_store(plan: StatementPlan, condition: str, times: tuple[int, int]) -> None:
    sought = pulled(plan, f"SELECT * FROM sold WHERE item = 'lamp' AND {condition};").sought
    assert (sought.keys, sought.time_from, sought.time_to) == ((("lamp",),), *times)


def entries(driver: TopologyTestDriver, store: str) -> Iterator[tuple[Any, Any, int | None, Window | None]]:
    """Keys, values, times and windows of a store."""
    for key, *start, value in driver.get_all_state_stores()[store].all():
        window = Window(start[0], start[0] + 10_000) if start else getattr(key, "window", None)
        yield getattr(key, "key", key), getattr(value, "value", value), getattr(value, "timestamp", None), window


ORDERS = [
    ("ann", "lamp", "20.50", 5),
    ("bob", "sofa", "800", 6_000),
    ("ann", "lamp", "5", 27_000),
    ("bob", "pen", "2", 27_500),
]


PRICES = {b"lamp": b'{"PRICE":7}', b"sofa": b'{"PRICE":9}'}
RESULTS: list[tuple[str, list[tuple[Any, ...]]]] = [
    (
        "SELECT * FROM totals;",
        [("ann", 2, Decimal("25.50"), "2020-01-02"), ("bob", 2, Decimal("802.00"), "2020-01-02")],
    ),
    ("SELECT total * 2 AS twice, ROWTIME FROM totals t WHERE t.customer = 'bob';", [(Decimal("1604.00"), 27_500)]),
    ("SELECT customer FROM large;", [("bob",)]),
    ("SELECT item, price FROM prices WHERE price > 7;", [("sofa", 9)]),
    ("SELECT * FROM sold WHERE item = 'lamp';", [("lamp", 0, 10_000, 1), ("lamp", 20_000, 30_000, 1)]),
    ("SELECT * FROM visits WHERE WINDOWEND > 7000;", [("ann", 27_000, 27_000, 1), ("bob", 27_500, 27_500, 1)]),
    ("SELECT customer FROM visits WHERE WINDOWSTART = 27000 AND WINDOWEND = 27000;", [("ann",)]),
    ("SELECT n FROM pairs WHERE customer = 'ann' AND item = 'lamp';", [(2,)]),
    (
        "SELECT WINDOWSTART AS at, SUM(n) AS n, COUNT(*) AS c FROM sold GROUP BY WINDOWSTART;",
        [(0, 2, 2), (20_000, 2, 2)],
    ),
    ("SELECT MAX(WINDOWEND) AS last, MIN(ROWTIME) AS first FROM visits;", [(27_500, 5)]),
    ("SELECT item FROM sold ORDER BY WINDOWSTART DESC, item LIMIT 1;", [("lamp",)]),
    ("SELECT item, SUM(n) AS s FROM pairs GROUP BY item HAVING SUM(n) > 1;", [("lamp", 2)]),
]


@pytest.mark.parametrize(("text", "rows"), RESULTS)
def test_rows_are_made_of_what_a_store_has(text: str, rows: list[tuple[Any, ...]]) -> None:
    with running() as (plan, driver):
        query = pulled(plan, text)
        assert query.table is not None
        found = [query.entry(*entry) for entry in entries(driver, query.table.store)]
    assert sorted(query.results(each for each in found if each is not None)) == rows


@pytest.mark.parametrize(("text", "rows"), RESULTS)
def test_rows_of_topics_are_those_of_stores(text: str, rows: list[tuple[Any, ...]]) -> None:
    with running() as (plan, driver), Cluster() as cluster:
        admin = Admin(cluster.kafka)
        producer = IdempotentProducer(cluster.kafka)
        topics = {each.topic for each in plan.catalog.sources.values() if each.stored is not None}
        admin.create_topics([TopicSpec(topic, 1) for topic in topics])
        for topic in topics - {"prices"}:
            for record in driver.read_raw(topic):
                producer.send(topic, record.key, record.value, record.timestamp, (), 0)
        for item, price in PRICES.items():
            producer.send("prices", item, price, 0, (), 0)
        producer.flush()
        producer.close()
        found = list(Selecting(lambda: admin, {}, plan.catalog).selected(select(text)).rows)
    assert sorted(found) == rows


@contextmanager
def running() -> Iterator[tuple[StatementPlan, TopologyTestDriver]]:
    """Statements and their topology, which has processed orders and prices."""
    plan = StatementPlan(StreamsBuilder())
    plan.add_all(parse(STATEMENTS))
    with TopologyTestDriver(plan.builder.build()) as driver:
        orders = driver.input_topic("orders", BYTES, BYTES)
        for who, item, amount, at in ORDERS:
            orders.pipe_input(who.encode(), f'{{"ITEM":"{item}","AMOUNT":{amount},"AT":18263}}'.encode(), timestamp=at)
        for item_key, price in PRICES.items():
            driver.input_topic("prices", BYTES, BYTES).pipe_input(item_key, price)
        yield plan, driver


@pytest.mark.parametrize(
    "text",
    [
        "SELECT item FROM orders;",
        "SELECT name FROM names;",
        "SELECT customer, COUNT(*) FROM orders GROUP BY customer;",
        "SELECT item, COUNT(*) FROM sold WINDOW TUMBLING (SIZE 1 HOUR) GROUP BY item;",
        "SELECT customer, n FROM totals UNION ALL SELECT customer, n FROM totals;",
        "SELECT * FROM totals EMIT CHANGES;",
        "SELECT * FROM totals t JOIN names n ON t.customer = n.customer;",
        """SELECT * FROM totals MATCH_RECOGNIZE (PARTITION BY customer ORDER BY ROWTIME MEASURES a.n AS m PATTERN (a)
        WITHIN 1 DAY GRACE PERIOD 0 DAYS);""",
    ],
)
def test_what_stores_cannot_answer_is_no_pull_query(plan: StatementPlan, text: str) -> None:
    assert not is_pull(select(text), plan.catalog)
    with pytest.raises(SqlError, match="Workers answer a SELECT of one stored table"):
        pulled(plan, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELECT m FROM totals;", "Column 'M' cannot be resolved"),
        ("SELECT * FROM totals WHERE n;", "Should evaluate to boolean"),
        ("SELECT customer, COUNT(*) FROM totals;", "not part of GROUP BY: CUSTOMER"),
        ("SELECT n FROM totals ORDER BY m;", r"Column 'M' cannot be resolved"),
        ("SELECT n FROM totals ORDER BY 1;", "ORDER BY takes columns and expressions, and no constant"),
        ("SELECT n FROM totals ORDER BY ARRAY[n];", "ORDER BY takes values with an order, and not ARRAY<BIGINT>"),
        ("SELECT n FROM totals GROUP BY n ORDER BY total;", "not part of GROUP BY: TOTAL"),
        ("SELECT n FROM totals GROUP BY SUM(n);", "GROUP BY does not support aggregate functions"),
        (
            """SELECT SUM(n) OVER (PARTITION BY customer ORDER BY ROWTIME RANGE BETWEEN 1 DAY PRECEDING AND CURRENT ROW)
            FROM totals;""",
            "OVER stands in the SELECT",
        ),
        ("SELECT n FROM totals ORDER BY n EMIT CHANGES;", "Unexpected 'EMIT'"),
        ("SELECT n FROM totals EMIT CHANGES ORDER BY n;", "ORDER BY needs the current rows"),
        ("SELECT * FROM totls;", "TOTLS does not exist"),
    ],
)
def test_mistakes_in_pull_queries_are_named(plan: StatementPlan, text: str, message: str) -> None:
    with pytest.raises(SqlError, match=message):
        pulled(plan, text)


def test_stores_have_the_names_of_their_tables(plan: StatementPlan) -> None:
    stores = plan.builder.build().stores
    assert {"TOTALS", "SOLD", "VISITS", "PAIRS", "LARGE", "PRICES"} <= stores.keys()
    assert "NAMES" not in stores
