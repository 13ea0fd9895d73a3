"""Joins of statements: what comes out of them, under which key, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from riverrun import BYTES, StreamsBuilder
from riverrun.sql.planning.planner import build_sql
from riverrun.sql.statements import SqlError
from riverrun.testing import TopologyTestDriver

SOURCES = """
CREATE STREAM orders (id STRING KEY, customer STRING, amount BIGINT) WITH (KAFKA_TOPIC='orders', VALUE_FORMAT='JSON');
CREATE STREAM payments (id STRING KEY, paid BIGINT) WITH (KAFKA_TOPIC='payments', VALUE_FORMAT='JSON');
CREATE TABLE customers (id STRING PRIMARY KEY, city STRING) WITH (KAFKA_TOPIC='customers', VALUE_FORMAT='JSON');
CREATE TABLE limits (id STRING PRIMARY KEY, high BIGINT) WITH (KAFKA_TOPIC='limits', VALUE_FORMAT='JSON');
CREATE TABLE cities (name STRING PRIMARY KEY, country STRING) WITH (KAFKA_TOPIC='cities', VALUE_FORMAT='JSON');
"""
Input = tuple[str, str, dict[str, Any] | None, int]
Output = tuple[str | None, dict[str, Any] | None]

ORDER = ("orders", "1", {"CUSTOMER": "ann", "AMOUNT": 5}, 1_000)
PAYMENT = ("payments", "1", {"PAID": 4}, 3_000)
ANN: Input = ("customers", "ann", {"CITY": "Rome"}, 0)
ROME: Input = ("cities", "Rome", {"COUNTRY": "Italy"}, 0)
HIGH: Input = ("limits", "ann", {"HIGH": 9}, 5)

CASES: dict[str, tuple[str, list[Input], list[Output]]] = {
    "streams within a time": (
        """CREATE STREAM o AS SELECT o.id, amount, paid FROM orders o
           JOIN payments p WITHIN 5 SECONDS GRACE PERIOD 0 SECONDS ON o.id = p.id;""",
        [ORDER, PAYMENT, ("payments", "1", {"PAID": 1}, 9_000)],
        [("1", {"AMOUNT": 5, "PAID": 4})],
    ),
    "streams, before and after": (
        """CREATE STREAM o AS SELECT o.id, paid FROM orders o
           JOIN payments p WITHIN (0 SECONDS, 5 SECONDS) GRACE PERIOD 0 SECONDS ON o.id = p.id;""",
        [("payments", "1", {"PAID": 3}, 500), ORDER, PAYMENT],
        [("1", {"PAID": 4})],
    ),
    "streams, the left one alone": (
        """CREATE STREAM o AS SELECT o.id, paid FROM orders o
           LEFT JOIN payments p WITHIN 1 SECOND GRACE PERIOD 0 SECONDS ON o.id = p.id;""",
        [ORDER, ("orders", "2", {"CUSTOMER": "bob", "AMOUNT": 1}, 9_000)],
        [("1", {"PAID": None})],
    ),
    "streams, the right one alone": (
        """CREATE STREAM o AS SELECT p.id, amount, paid FROM orders o
           RIGHT JOIN payments p WITHIN 1 SECOND GRACE PERIOD 0 SECONDS ON o.id = p.id;""",
        [PAYMENT, ("payments", "2", {"PAID": 2}, 9_000)],
        [("1", {"AMOUNT": None, "PAID": 4})],
    ),
    "streams, whichever is there": (
        """CREATE STREAM o AS SELECT ROWKEY AS id, amount, paid FROM orders o
           FULL OUTER JOIN payments p WITHIN 1 SECOND GRACE PERIOD 0 SECONDS ON o.id = p.id;""",
        [ORDER, ("payments", "2", {"PAID": 2}, 9_000)],
        [("1", {"AMOUNT": 5, "PAID": None})],
    ),
    "a stream with a table, by a column": (
        "CREATE STREAM o AS SELECT customer, o.id AS number, city FROM orders o JOIN customers c ON o.customer = c.id;",
        [ORDER, ANN, ORDER],
        [("ann", {"NUMBER": "1", "CITY": "Rome"})],
    ),
    "a stream with a table, whatever the table has": (
        "CREATE STREAM o AS SELECT * FROM orders o LEFT JOIN customers c ON c.id = o.customer;",
        [ORDER],
        [("ann", {"O_ID": "1", "O_AMOUNT": 5, "C_ID": None, "C_CITY": None})],
    ),
    "tables by their keys": (
        "CREATE TABLE o AS SELECT c.id, city, high FROM customers c JOIN limits l ON c.id = l.id;",
        [ANN, HIGH, ("customers", "ann", None, 9)],
        [("ann", {"CITY": "Rome", "HIGH": 9}), ("ann", None)],
    ),
    "tables, whichever is there": (
        "CREATE TABLE o AS SELECT ROWKEY, city, high FROM customers c FULL OUTER JOIN limits l ON c.id = l.id;",
        [HIGH, ANN],
        [("ann", {"CITY": None, "HIGH": 9}), ("ann", {"CITY": "Rome", "HIGH": 9})],
    ),
    "tables by a foreign key": (
        "CREATE TABLE o AS SELECT c.id, country FROM customers c JOIN cities n ON c.city = n.name;",
        [ANN, ROME, ("cities", "Rome", {"COUNTRY": "IT"}, 9)],
        [("ann", {"COUNTRY": "Italy"}), ("ann", {"COUNTRY": "IT"})],
    ),
    "three sources": (
        """CREATE STREAM o AS SELECT c.id, amount, high, city FROM orders o
           JOIN customers c ON o.customer = c.id LEFT JOIN limits l ON c.id = l.id WHERE amount > 1;""",
        [ANN, HIGH, ORDER],
        [("ann", {"AMOUNT": 5, "HIGH": 9, "CITY": "Rome"})],
    ),
    "an aggregation of joined rows": (
        """CREATE TABLE o AS SELECT city, SUM(amount) AS total FROM orders o
           JOIN customers c ON o.customer = c.id GROUP BY city;""",
        [ANN, ORDER, ORDER],
        [("Rome", {"TOTAL": 5}), ("Rome", {"TOTAL": 10})],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_joined_rows_have_the_columns_of_all_sources(case: str) -> None:
    statement, inputs, outputs = CASES[case]
    with TopologyTestDriver(build_sql(SOURCES + statement, StreamsBuilder())) as driver:
        for topic, key, value, timestamp in inputs:
            data = None if value is None else json.dumps(value).encode()
            driver.input_topic(topic, BYTES, BYTES).pipe_input(key.encode(), data, timestamp=timestamp)
        found = driver.output_topic("O", BYTES, BYTES).read_records_to_list()
    assert [
        (None if r.key is None else r.key.decode(), None if r.value is None else json.loads(r.value)) for r in found
    ] == outputs


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("SELECT o.id, paid FROM orders o JOIN payments p ON o.id = p.id", "must have a WITHIN clause"),
        ("SELECT o.id, city FROM orders o JOIN customers c WITHIN 1 SECOND ON o.id = c.id", "one side is a table"),
        ("SELECT c.id, amount FROM customers c JOIN orders o ON o.customer = c.id", "Invalid join order"),
        ("SELECT o.id, city FROM orders o JOIN customers c ON o.amount = c.id", "types don't match. Got .*BIGINT"),
        ("SELECT o.id, city FROM orders o JOIN customers c ON o.id = c.city", "joined by its primary key"),
        ("SELECT o.id, city FROM orders o JOIN customers c ON o.id > c.id", "must have the form a = b"),
        ("SELECT amount, city FROM orders o JOIN customers c ON o.customer = c.id", "Key missing from projection"),
        ("SELECT id, city FROM orders o JOIN customers c ON o.customer = c.id", "'ID' is ambiguous"),
        ("SELECT o.id FROM orders o JOIN customers o ON o.customer = o.id", "its own name"),
        ("SELECT o.id, x FROM orders o JOIN nowhere n ON o.id = n.id", "NOWHERE does not exist"),
    ],
)
def test_joins_that_cannot_be_are_refused_with_their_place(statement: str, why: str) -> None:
    with pytest.raises(SqlError, match=why) as refused:
        build_sql(f"{SOURCES}CREATE STREAM x AS {statement};", StreamsBuilder(), file="joins.sql")
    assert "(joins.sql:7:" in str(refused.value)
