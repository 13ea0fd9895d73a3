"""Digests of statements: what changes them, and what does not."""

from __future__ import annotations

import pytest

from riverrun.sql.statement_files import statement_digests

STATEMENTS = """
CREATE TYPE address AS STRUCT<street STRING>;
CREATE STREAM orders (customer STRING KEY, item STRING, place address) WITH (KAFKA_TOPIC = 'orders', VALUE_FORMAT = 'JSON');
CREATE STREAM copies AS SELECT * FROM orders;
CREATE TABLE counts AS SELECT customer, COUNT(*) AS n FROM orders WHERE item = 'lamp; x' GROUP BY customer;
INSERT INTO copies SELECT * FROM orders WHERE item = 'a';
INSERT INTO copies SELECT * FROM orders WHERE item = 'b';
"""
COUNTS, COPIES, ORDERS = "CREATE TABLE COUNTS", "CREATE STREAM COPIES", "CREATE STREAM ORDERS"
FIRST, SECOND = "INSERT INTO COPIES", "INSERT INTO COPIES #2"


def changed(text: str) -> set[str]:
    old, new = statement_digests(STATEMENTS, "old.sql"), statement_digests(text, "new.sql")
    return {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ("CREATE TABLE counts AS", "create table  Counts -- all of them\nas", set()),
        ("'lamp; x'", "'Lamp; x'", {COUNTS}),
        ("COUNT(*) AS n", "COUNT(*) AS m", {COUNTS}),
        ("item = 'b'", "item = 'c'", {SECOND}),
        ("street STRING", "street STRING, city STRING", {ORDERS, COPIES, FIRST, SECOND}),
        (
            "CREATE TABLE counts",
            "CREATE STREAM few AS SELECT * FROM orders;\nCREATE TABLE counts",
            {"CREATE STREAM FEW"},
        ),
        ("INSERT INTO copies SELECT * FROM orders WHERE item = 'b';", "", {SECOND}),
    ],
)
def test_a_digest_depends_on_what_is_said_and_on_the_columns_made(old: str, new: str, names: set[str]) -> None:
    assert old in STATEMENTS
    assert changed(STATEMENTS.replace(old, new)) == names
