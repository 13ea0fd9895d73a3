"""Columns keep the order of SELECT: in records, at the prompt and in frames."""

from __future__ import annotations

import pytest

from riverrun import BYTES, StreamsBuilder
from riverrun.spark.columns import columns_of
from riverrun.sql import build_sql
from riverrun.sql.commands import Select, Statements, parse_commands
from riverrun.sql.planning.planner import StatementPlan
from riverrun.testing import TopologyTestDriver

SOURCE = """
CREATE STREAM orders (customer STRING KEY, item STRING, amount DOUBLE, n INT)
    WITH (KAFKA_TOPIC = 'orders', VALUE_FORMAT = 'JSON');
"""


@pytest.mark.parametrize(
    ("query", "record"),
    [
        ("SELECT n, amount, customer, item FROM orders", b'{"N":3,"AMOUNT":1.5,"ITEM":"lamp"}'),
        ("SELECT amount * 2 AS twice, * FROM orders", b'{"TWICE":3.0,"ITEM":"lamp","AMOUNT":1.5,"N":3}'),
        ("SELECT n, item, customer FROM orders PARTITION BY item", b'{"N":3,"CUSTOMER":"ann"}'),
        (
            "SELECT COUNT(*) AS k, MAX(n) AS m, customer, SUM(n) AS s FROM orders GROUP BY customer",
            b'{"K":1,"M":3,"S":3}',
        ),
    ],
)
def test_a_record_has_its_columns_in_the_order_of_the_query(query: str, record: bytes) -> None:
    kind = "TABLE" if "GROUP BY" in query else "STREAM"
    topology = build_sql(f"{SOURCE}CREATE {kind} made AS {query};", StreamsBuilder())
    with TopologyTestDriver(topology) as driver:
        driver.input_topic("orders", BYTES, BYTES).pipe_input(b"ann", b'{"ITEM":"lamp","AMOUNT":1.5,"N":3}')
        assert driver.output_topic("MADE", BYTES, BYTES).read_value() == record


def test_the_prompt_shows_columns_in_the_order_of_the_query_keys_included() -> None:
    plan = StatementPlan(StreamsBuilder(), Statements.of(SOURCE, "orders.sql").catalog)
    (select,) = parse_commands("SELECT n, customer, amount FROM orders EMIT CHANGES;")
    assert isinstance(select, Select)
    assert plan.select(select.query, "shown").result.shown == ("N", "CUSTOMER", "AMOUNT")


def test_a_frame_has_the_columns_of_a_row_in_the_order_of_the_query() -> None:
    text = f"{SOURCE}CREATE STREAM made AS SELECT n, amount, customer, item FROM orders;"
    _, values = Statements.of(text, "orders.sql").catalog.sources["MADE"].serdes()
    (column,) = columns_of("value", values).columns
    assert [field.name for field in column.kind] == ["N", "AMOUNT", "ITEM"]
