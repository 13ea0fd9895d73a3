"""Commands about statements: what they answer without a broker, and what they say about mistakes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from riverrun import BYTES, StreamsBuilder
from riverrun.cli.main import app
from riverrun.sql.commands import Explain, Select, Statements, parse_commands
from riverrun.sql.planning.planner import StatementPlan
from riverrun.sql.statements import SqlError
from riverrun.testing import TopologyTestDriver

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result

STATEMENTS = """
CREATE TYPE address AS STRUCT<street STRING, city STRING>;
CREATE TYPE gone AS STRING;
DROP TYPE gone;
CREATE STREAM orders (customer STRING KEY, item STRING, trace BYTES HEADER('trace'))
    WITH (KAFKA_TOPIC = 'orders', VALUE_FORMAT = 'JSON');
CREATE STREAM lamps AS SELECT customer, item FROM orders WHERE item = 'lamp';
CREATE TABLE totals WITH (KEY_FORMAT = 'JSON') AS SELECT customer, COUNT(*) AS n FROM orders
    WINDOW TUMBLING (SIZE 1 HOUR) GROUP BY customer;
INSERT INTO lamps SELECT customer, item FROM orders WHERE item = 'big lamp';
"""


@pytest.fixture
def asked(tmp_path: Path) -> Path:
    (tmp_path / "orders.sql").write_text(STATEMENTS)
    config = tmp_path / "streams.toml"
    config.write_text('[kafka]\n"bootstrap.servers" = "127.0.0.1:1"\n[apps.orders]\ntopology = "orders.sql"\n')
    return config


def ask(config: Path, command: str, *options: str) -> Result:
    return CliRunner().invoke(
        app, ["--config", str(config), "sql", "orders", "--version", "v1", *options, "-e", command]
    )


@pytest.mark.parametrize(
    ("command", "rows"),
    [
        ("SHOW STREAMS;", [["ORDERS", "orders", "KAFKA", "JSON", False], ["LAMPS", "LAMPS", "KAFKA", "JSON", False]]),
        ("list tables", [["TOTALS", "TOTALS", "JSON", "JSON", True]]),
        ("SHOW TOPICS", [["LAMPS", "LAMPS"], ["TOTALS", "TOTALS"], ["orders", "ORDERS"]]),
        ("SHOW TYPES", [["ADDRESS", "STRUCT<STREET STRING, CITY STRING>"]]),
        (
            "SHOW QUERIES",
            [
                ["CREATE AS SELECT", "LAMPS", "LAMPS"],
                ["CREATE AS SELECT", "TOTALS", "TOTALS"],
                ["INSERT INTO", "LAMPS", "LAMPS"],
            ],
        ),
        (
            "DESCRIBE orders EXTENDED",
            [["CUSTOMER", "STRING", "key"], ["ITEM", "STRING", ""], ["TRACE", "", "header trace"]],
        ),
        ("DESCRIBE totals", [["CUSTOMER", "STRING", "primary key"], ["N", "BIGINT", ""]]),
        ("DESCRIBE FUNCTION ucase", [["UCASE(text STRING) -> STRING", "The text in upper case."]]),
    ],
)
def test_commands_answer_in_rows(asked: Path, command: str, rows: list[list[object]]) -> None:
    done = ask(asked, command, "--json")
    assert done.exit_code == 0, done.output
    assert [list(json.loads(line).values()) for line in done.stdout.splitlines()] == rows


@pytest.mark.parametrize("command", ["EXPLAIN lamps", "EXPLAIN SELECT item FROM orders WHERE item = 'lamp'"])
def test_explain_shows_the_topology_of_a_query_alone(asked: Path, command: str) -> None:
    shown = ask(asked, command).stdout
    assert "(topics: [orders])" in shown
    assert "KSTREAM-FILTER" in shown
    assert "AGGREGATE" not in shown


EXPLAINED = f"""SET 'ksql.output.topic.name.prefix' = 'shop-';
{STATEMENTS}
UNSET 'ksql.output.topic.name.prefix';
DROP STREAM orders;
"""


def test_explain_finds_what_the_statement_found() -> None:
    """The properties of SET, and sources that later statements drop."""
    found = Statements.of(EXPLAINED, "x.sql")
    before = dict(found.catalog.sources)
    (command,) = parse_commands("EXPLAIN lamps")
    assert isinstance(command, Explain)
    assert "topic: shop-LAMPS" in str(found.answer(command).rows)
    assert found.catalog.sources == before


def test_a_table_of_text_is_as_wide_as_its_values(asked: Path) -> None:
    assert ask(asked, "SHOW TABLES").stdout.splitlines() == [
        "Table Name  Kafka Topic  Key Format  Value Format  Windowed",
        "TOTALS      TOTALS       JSON        JSON          True",
    ]


@pytest.mark.parametrize(
    ("command", "message", "hint"),
    [
        ("SHOW TABLS", "There is no SHOW TABLS (command:1:6)", "TABLES"),
        ("DESCRIBE totls", "TOTLS does not exist. (command:1:10)", "TOTALS"),
        ("DESCRIBE FUNCTION ucas", "any functions with the name 'UCAS'", "UCASE"),
        ("EXPLAIN orders", "No statement creates ORDERS from a query", "LAMPS"),
        ("CREATE STREAM x AS SELECT * FROM orders", "begins with 'CREATE'", "belong in the file"),
        ("SELECT itme FROM orders", "Column 'ITME' cannot be resolved. (command:1:8)", "ITEM"),
        ("SELECT m FROM totals", "Column 'M' cannot be resolved. (command:1:8)", "N"),
        ("SHOW STREAMS DESCRIBE orders", "Unexpected 'DESCRIBE'", ""),
        ("SELECT 'x", "This quote is not closed (command:1:8)", ""),
        ("SET 'auto.offset.rest' = 'earliest'", "There is no property 'auto.offset.rest' here", "auto.offset.reset"),
        ("SET 'auto.offset.reset' = 'first'", "cannot be 'first'", "earliest or latest"),
        ("INSERT INTO orders SELECT * FROM lamps", "INSERT INTO takes VALUES here", "belongs in the file"),
        ("INSERT INTO orders VALUES ('ann', 'lamp')", "Cannot insert into ORDERS because it has header columns", ""),
        ("INSERT INTO lamps VALUES ('ann')", "Expected a value for each column", ""),
        (
            "INSERT INTO lamps (customer, itm) VALUES ('ann', 'x')",
            "Column 'ITM' cannot be resolved. (command:1:30)",
            "ITEM",
        ),
        ("INSERT INTO lamps VALUES ('ann', 7)", "Expected type STRING for field ITEM but got INTEGER", ""),
        ("INSERT INTO totals VALUES ('ann', 7)", "Cannot insert values into windowed table: TOTALS", ""),
    ],
)
def test_a_mistake_is_named_with_its_place(asked: Path, command: str, message: str, hint: str) -> None:
    done = ask(asked, command)
    assert isinstance(done.exception, SqlError)
    assert message in str(done.exception)
    assert hint in str(done.exception)


@pytest.mark.parametrize(
    ("command", "message", "hint"),
    [
        ("DELETE FROM prices", "DELETE FROM takes WHERE", "WHERE id = 7"),
        ("DELETE FROM lamps WHERE customer = 'ann'", "LAMPS is a stream: rows are deleted from tables", ""),
        ("DELETE FROM totals WHERE customer = 'ann'", "Cannot delete from windowed table: TOTALS", ""),
        ("DELETE FROM prics WHERE item = 'x'", "PRICS does not exist", "PRICES"),
        ("DELETE FROM prices WHERE price = 3", "takes values of the key alone: ITEM = ... AND SIZE = ...", "Look for"),
        ("DELETE FROM prices WHERE item = 'x' OR size = 3", "takes values of the key alone", "Look for"),
        ("DELETE FROM prices WHERE item > 'x' AND size = 3", "takes values of the key alone", "Look for"),
        ("DELETE FROM prices WHERE item = UCASE(item) AND size = 3", "takes values of the key alone", "Look for"),
        ("DELETE FROM prices WHERE item = 'x'", "A value for the primary key of table PRICES is needed: SIZE", ""),
        ("DELETE FROM prices WHERE item = NULL AND size = 3", "primary key of table PRICES is needed: ITEM", ""),
        ("DELETE FROM prices WHERE item = 7 AND size = 3", "Expected type STRING for field ITEM but got INTEGER", ""),
        ("DELETE FROM prices WHERE item = 'x' AND item = 'y'", "ITEM can have one value only", "IN (...)"),
    ],
)
def test_a_deletion_that_is_not_one_of_keys_is_refused(asked: Path, command: str, message: str, hint: str) -> None:
    prices = "CREATE TABLE prices (item STRING PRIMARY KEY, size INT PRIMARY KEY, price INT)"
    with (asked.parent / "orders.sql").open("a") as file:
        file.write(f"{prices} WITH (KAFKA_TOPIC = 'prices', FORMAT = 'JSON');")
    done = ask(asked, command)
    assert isinstance(done.exception, SqlError)
    assert message in str(done.exception)
    assert hint in str(done.exception)


def test_times_are_shown_as_texts() -> None:
    statement = "CREATE STREAM s (at TIMESTAMP KEY, day DATE, t TIME) WITH (KAFKA_TOPIC = 's', FORMAT = 'JSON');"
    plan = StatementPlan(
        StreamsBuilder(), Statements.of(f"{statement} CREATE STREAM o AS SELECT * FROM s;", "a.sql").catalog
    )
    (command,) = parse_commands("SELECT t, day, at FROM s")
    assert isinstance(command, Select)
    selection = plan.select(command.query, "shown")
    with TopologyTestDriver(plan.builder.build()) as driver:
        driver.input_topic("s", BYTES, BYTES).pipe_input(b"1500", b'{"DAY": 1, "T": 60000}')
        driver.input_topic("s", BYTES, BYTES).pipe_input(b"0", b'{"DAY": null}')
        found = [selection.row(record.key, record.value) for record in driver.read_raw("shown")]
    assert found == [("00:01", "1970-01-02", "1970-01-01T00:00:01.500"), (None, None, "1970-01-01T00:00:00.000")]


def test_an_application_in_python_has_no_statements(asked: Path) -> None:
    with asked.open("a") as config:
        config.write('[apps.words]\ntopology = "riverrun.apps.word_count:build"\n')
    done = CliRunner().invoke(app, ["--config", str(asked), "sql", "words", "--version", "v1", "-e", "SHOW STREAMS"])
    assert "not a file of statements" in str(done.exception)
