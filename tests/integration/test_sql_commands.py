"""`riverrun sql` over topics of a broker: SELECT and PRINT, as a shell would ask them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from riverrun.cli.main import app
from riverrun.errors import StreamsError
from tests.terminals import CTRL_C, terminal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.brokers import Broker

pytestmark = pytest.mark.broker

STATEMENTS = """
CREATE STREAM orders (customer STRING KEY, item STRING, amount DECIMAL(8, 2))
    WITH (KAFKA_TOPIC = 'NAME-orders', VALUE_FORMAT = 'JSON');
CREATE TABLE prices (item STRING PRIMARY KEY, price INT) WITH (KAFKA_TOPIC = 'NAME-prices', VALUE_FORMAT = 'JSON');
CREATE TABLE counts WITH (KAFKA_TOPIC = 'NAME-counts') AS SELECT customer, COUNT(*) AS n FROM orders GROUP BY customer;
CREATE STREAM large WITH (KAFKA_TOPIC = 'NAME-large') AS SELECT * FROM orders WHERE amount > 100;
"""


@pytest.fixture
def ask(broker: Broker, unique: str, tmp_path: Path) -> Callable[[str], list[dict[str, Any]]]:
    """Runs a command over two orders of ann, one of bob, a price that was deleted and one that was not."""
    (tmp_path / "orders.sql").write_text(STATEMENTS.replace("NAME", unique))
    config = tmp_path / "streams.toml"
    config.write_text(
        f'[kafka]\n"bootstrap.servers" = "{broker.bootstrap_servers}"\n[apps.{unique}]\ntopology = "orders.sql"\n'
    )
    broker.create(1, f"{unique}-orders", f"{unique}-prices", f"{unique}-large", f"{unique}-counts")
    orders = [("ann", "lamp", 20.5, 5), ("bob", "sofa", 800, 6), ("ann", "lamp", 5, 7)]
    broker.write(
        f"{unique}-orders",
        [(who.encode(), json.dumps({"ITEM": item, "AMOUNT": amount}).encode(), at) for who, item, amount, at in orders],
    )
    broker.write(f"{unique}-prices", [(b"lamp", b'{"PRICE":7}', 1), (b"sofa", b'{"PRICE":9}', 2), (b"sofa", None, 3)])

    def answer(command: str, *options: str) -> list[dict[str, Any]]:
        command = command.replace("NAME", unique)
        arguments = ["--config", str(config), "sql", unique, "--json", *options, "-e", command]
        done = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return [json.loads(line) for line in done.output.splitlines()]

    return answer


@pytest.mark.parametrize(
    ("command", "rows"),
    [
        (
            "SELECT amount * 2 AS twice, customer FROM orders WHERE item = 'lamp';",
            [{"TWICE": 41.0, "CUSTOMER": "ann"}, {"TWICE": 10.0, "CUSTOMER": "ann"}],
        ),
        ("SELECT item FROM orders LIMIT 2;", [{"ITEM": "lamp"}, {"ITEM": "sofa"}]),
        ("SELECT item, price FROM prices;", [{"ITEM": "lamp", "PRICE": 7}]),
        (
            "SELECT customer, COUNT(*) AS n FROM orders GROUP BY customer;",
            [{"CUSTOMER": "bob", "N": 1}, {"CUSTOMER": "ann", "N": 2}],
        ),
        (
            "SELECT customer, COUNT(DISTINCT item) AS n FROM orders GROUP BY customer ORDER BY customer;",
            [{"CUSTOMER": "ann", "N": 1}, {"CUSTOMER": "bob", "N": 1}],
        ),
        ("SELECT price FROM prices;", [{"PRICE": 7}]),
        ("SELECT SUM(price) AS total, MAX(ROWTIME) AS at FROM prices;", [{"TOTAL": 7, "AT": 1}]),
        (
            "SELECT item FROM orders UNION ALL SELECT customer FROM orders ORDER BY item DESC LIMIT 2;",
            [{"ITEM": "sofa"}, {"ITEM": "lamp"}],
        ),
        (
            "SET 'auto.offset.reset' = 'earliest'; SELECT COUNT(*) AS n FROM orders GROUP BY customer EMIT CHANGES LIMIT 3;",
            [{"N": 1}, {"N": 1}, {"N": 2}],
        ),
        (
            "SELECT customer, price FROM orders o JOIN prices p ON o.item = p.item;",
            [{"CUSTOMER": "ann", "PRICE": 7}, {"CUSTOMER": "ann", "PRICE": 7}],
        ),
    ],
)
def test_rows_of_a_query_are_those_of_the_topics_as_they_are(
    ask: Callable[[str], list[dict[str, Any]]], command: str, rows: list[dict[str, Any]]
) -> None:
    assert [{k: v for k, v in row.items() if k in rows[0]} for row in ask(command)] == rows


def test_a_push_query_joins_what_comes_and_ends_by_ctrl_c(
    ask: Callable[..., list[Any]], broker: Broker, unique: str, tmp_path: Path
) -> None:
    join = "SELECT o.customer, price FROM orders o JOIN prices p ON o.item = p.item EMIT CHANGES;"
    with terminal("--config", str(tmp_path / "streams.toml"), "sql", unique, "-e", join) as shown:
        shown.until("CUSTOMER | PRICE")
        broker.write(f"{unique}-orders", [(b"eve", b'{"ITEM":"lamp"}', 8)])
        shown.until("eve | 7")
        broker.write(f"{unique}-prices", [(b"lamp", b'{"PRICE":8}', 9)])
        broker.write(f"{unique}-orders", [(b"eve", b'{"ITEM":"lamp"}', 10)])
        shown.until("eve | 8")
        shown.type(CTRL_C)
        assert shown.ended() == 130
    assert "Traceback" not in shown.shown
    assert "ann" not in shown.shown  # it began at the end of the stream
    from_the_beginning = f"SET 'auto.offset.reset' = 'earliest'; {join.removesuffix(';')} LIMIT 4;"
    assert [row["PRICE"] for row in ask(from_the_beginning)] == [7, 7, 7, 8]


def test_a_stored_table_is_not_read_from_its_topic_unless_that_is_asked_for(ask: Callable[..., list[Any]]) -> None:
    with pytest.raises(StreamsError, match=r"No instance of .*-v1 answers queries") as refused:
        ask("SELECT * FROM counts;")
    assert "--from-topics computes it here" in (refused.value.hint or "")
    assert ask("SELECT * FROM counts;", "--from-topics") == []


def test_a_stored_table_is_computed_from_its_topic_as_workers_would(
    ask: Callable[..., list[Any]], broker: Broker, unique: str
) -> None:
    rows = [(b"ann", b'{"N":2}', 1), (b"bob", b'{"N":1}', 2), (b"eve", b'{"N":5}', 3), (b"eve", None, 4)]
    broker.write(f"{unique}-counts", rows)
    assert ask("SELECT n FROM counts WHERE customer > 'a' ORDER BY n;", "--from-topics") == [{"N": 1}, {"N": 2}]
    assert ask("SELECT SUM(n) AS s, MIN(customer) AS c FROM counts;", "--from-topics") == [{"S": 3, "C": "ann"}]


def test_inserted_values_are_records_of_the_topic(ask: Callable[..., list[Any]]) -> None:
    ask("INSERT INTO orders (item, customer, ROWTIME) VALUES (UCASE('pen'), 'eve', 12);")
    ask("INSERT INTO orders VALUES ('eve', 'desk', 1.5);")
    ask("INSERT INTO prices VALUES ('desk', 4 + 5);")
    shown = ask("SELECT customer, item, amount, ROWTIME AS at FROM orders WHERE customer = 'eve';")
    assert [(row["ITEM"], row["AMOUNT"], row["AT"] == 12) for row in shown] == [
        ("PEN", None, True),
        ("desk", 1.5, False),
    ]
    assert ask("SELECT item, price FROM prices WHERE item = 'desk';") == [{"ITEM": "desk", "PRICE": 9}]
    ask("DELETE FROM prices WHERE item IN ('desk', LCASE('CHAIR'));")
    assert ask("SELECT item FROM prices WHERE item = 'desk';") == []


def test_print_shows_records_as_their_source_reads_them(ask: Callable[[str], list[dict[str, Any]]]) -> None:
    rows = ask("PRINT 'NAME-orders' FROM BEGINNING INTERVAL 2 LIMIT 2;")
    assert [(row["KEY"], row["VALUE"], row["OFFSET"]) for row in rows] == [
        ({"CUSTOMER": "ann"}, {"ITEM": "lamp", "AMOUNT": 20.5}, 0),
        ({"CUSTOMER": "ann"}, {"ITEM": "lamp", "AMOUNT": 5.0}, 2),
    ]
