"""Statements, inputs and outputs: what topologies in SQL do."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from typer.testing import CliRunner

from riverrun import BYTES, STRING, StreamsBuilder
from riverrun.cli.main import app
from riverrun.serde.windowed import session_windowed
from riverrun.sql import udaf, udf, udtf
from riverrun.sql.planning.planner import build_sql
from riverrun.sql.statements import SqlError
from riverrun.testing import TopologyTestDriver
from riverrun.windows import Window, Windowed
from tests.conformance.run_case import main, run

if TYPE_CHECKING:
    from pathlib import Path

SALES = (
    "CREATE STREAM sales (shop STRING KEY, item STRING, n INT, price DECIMAL(6, 2)) "
    "WITH (kafka_topic='s', value_format='JSON');"
)
STOCK = "CREATE TABLE stock (item STRING PRIMARY KEY, shop STRING, n INT) WITH (kafka_topic='s', value_format='JSON');"
NUMBERS = (
    "CREATE STREAM sales (a INT, b DOUBLE, t STRING, l ARRAY<INT>, m MAP<STRING, INT>, p STRUCT<x INT>) "
    "WITH (kafka_topic='s', value_format='JSON');"
)


class Case(NamedTuple):
    statements: str
    inputs: list[tuple[str | None, Any]]
    outputs: list[tuple[Any, Any]]


CASES = {
    "filters and projects": Case(
        f"{SALES} CREATE STREAM o AS SELECT shop, n * price AS total FROM sales WHERE item LIKE 'l%';",
        [("a", {"ITEM": "lamp", "N": 2, "PRICE": 1.25}), ("a", {"ITEM": "sofa", "N": 1, "PRICE": 9})],
        [(b"a", {"TOTAL": 2.5})],
    ),
    "counts and sums by the key": Case(
        f"{SALES} CREATE TABLE o AS SELECT shop, COUNT(*) AS c, SUM(n) AS s FROM sales GROUP BY shop;",
        [("a", {"N": 1}), ("b", {"N": 2}), ("a", {"N": None})],
        [(b"a", {"C": 1, "S": 1}), (b"b", {"C": 1, "S": 2}), (b"a", {"C": 2, "S": 1})],
    ),
    "groups by a column": Case(
        f"{SALES} CREATE TABLE o AS SELECT item, MAX(n) AS m FROM sales GROUP BY item;",
        [("a", {"ITEM": "x", "N": 1}), ("b", {"ITEM": "x", "N": 3}), ("b", {"N": 9})],
        [(b"x", {"M": 1}), (b"x", {"M": 3})],
    ),
    "takes rows out of a table's groups": Case(
        f"{STOCK} CREATE TABLE o AS SELECT shop, SUM(n) AS s FROM stock GROUP BY shop;",
        [("x", {"SHOP": "a", "N": 1}), ("y", {"SHOP": "a", "N": 5}), ("x", None)],
        [(b"a", {"S": 1}), (b"a", {"S": 6}), (b"a", {"S": 5})],
    ),
    "deletes groups that HAVING does not let pass": Case(
        f"{SALES} CREATE TABLE o AS SELECT shop, SUM(n) AS s FROM sales GROUP BY shop HAVING SUM(n) < 3;",
        [("a", {"N": 1}), ("a", {"N": 2})],
        [(b"a", {"S": 1}), (b"a", None)],
    ),
    "makes a column the key": Case(
        f"{SALES} CREATE STREAM o AS SELECT item, shop FROM sales PARTITION BY item;",
        [("a", {"ITEM": "x"})],
        [(b"x", {"SHOP": "a"})],
    ),
    "reads the result of another query": Case(
        f"{SALES} CREATE STREAM p AS SELECT shop, n FROM sales; CREATE STREAM o AS SELECT shop, n + 1 AS n FROM p;",
        [("a", {"N": 1})],
        [(b"a", {"N": 2})],
    ),
    "reaches into arrays, maps and structs": Case(
        f"{NUMBERS} CREATE STREAM o AS SELECT l[1] AS f, l[-1] AS e, l[9] AS g, m['k'] AS k, p->x AS x FROM sales;",
        [(None, {"L": [1, 2], "M": {"k": 3}, "P": {"X": 4}})],
        [(None, {"F": 1, "E": 2, "G": None, "K": 3, "X": 4})],
    ),
    "computes as Java does": Case(
        f"{NUMBERS} CREATE STREAM o AS SELECT a / 2 AS h, a % 2 AS r, a * 1000000000 AS w, a + b AS d,"
        "  CAST(b AS STRING) AS s FROM sales;",
        [(None, {"A": -7, "B": 0.5})],
        [(None, {"H": -3, "R": -1, "W": 1589934592, "D": -6.5, "S": "0.5"})],
    ),
    "calls functions with lambdas and units": Case(
        f"{NUMBERS} CREATE STREAM o AS SELECT TRANSFORM(l, x => x * a) AS l, REDUCE(l, 0, (s, x) => s + x) AS r,"
        " TIMESTAMPADD(SECONDS, 2, CAST('1970-01-01T00:00:00' AS TIMESTAMP)) AS u FROM sales;",
        [(None, {"A": 3, "L": [1, 2]})],
        [(None, {"L": [3, 6], "R": 3, "U": 2000})],
    ),
    "keeps the constants of aggregates": Case(
        f"{SALES} CREATE TABLE o AS SELECT shop, TOPK(n, 2) AS t FROM sales GROUP BY shop;",
        [("a", {"N": 1}), ("a", {"N": 5}), ("a", {"N": 3})],
        [(b"a", {"T": [1]}), (b"a", {"T": [5, 1]}), (b"a", {"T": [5, 3]})],
    ),
    "tells casts apart": Case(
        f"{NUMBERS} CREATE TABLE o AS SELECT CAST(b AS INT) AS i, MAX(CAST(b AS INT)) AS m, MAX(CAST(b AS STRING)) AS c"
        " FROM sales GROUP BY CAST(b AS INT);",
        [(None, {"B": 1.5})],
        [(b"\0\0\0\1", {"M": 1, "C": "1.5"})],
    ),
    "keeps NULLs in a key of several columns": Case(
        f"{SALES} CREATE STREAM o WITH (KEY_FORMAT='JSON') AS SELECT item, n, shop FROM sales PARTITION BY item, n;",
        [("a", {}), ("b", {"ITEM": "x", "N": 1})],
        [(b'{"ITEM":null,"N":null}', {"SHOP": "a"}), (b'{"ITEM":"x","N":1}', {"SHOP": "b"})],
    ),
    "takes texts in IN for the numbers they hold": Case(
        f"{NUMBERS} CREATE STREAM o AS SELECT a IN (1, '2') AS i, a IN ('3') AS j, LN(b) AS n FROM sales;",
        [(None, {"A": 2, "B": -1.0})],
        [(None, {"I": True, "J": False, "N": "NaN"})],
    ),
    "chooses with CASE": Case(
        f"{NUMBERS} CREATE STREAM o AS SELECT CASE WHEN a > 1 THEN 'many' WHEN a IS NULL THEN 'none' ELSE t END AS c,"
        " CASE a WHEN 1 THEN true ELSE a BETWEEN 2 AND 3 END AS d FROM sales;",
        [(None, {"A": 2}), (None, {}), (None, {"A": 1, "T": "one"})],
        [(None, {"C": "many", "D": True}), (None, {"C": "none", "D": False}), (None, {"C": "one", "D": True})],
    ),
    "makes a row of each item, and fills up shorter lists": Case(
        f"{NUMBERS} CREATE STREAM o AS SELECT t, EXPLODE(l) + 1 AS i, EXPLODE(ARRAY[a, a, a]) AS n FROM sales WHERE a > 0;",
        [(None, {"A": 7, "T": "x", "L": [1, 2]}), (None, {"A": 0, "L": [9]}), (None, {"A": 5, "L": None})],
        [
            (None, {"T": "x", "I": 2, "N": 7}),
            (None, {"T": "x", "I": 3, "N": 7}),
            (None, {"T": "x", "I": None, "N": 7}),
            *[(None, {"T": None, "I": None, "N": 5})] * 3,
        ],
    ),
    "compares DOUBLEs with decimal constants as they are written": Case(
        f"{NUMBERS} CREATE STREAM o AS SELECT b = 1.1 AS e, b > 1.1 AS g, b IN (1.1, 2) AS i FROM sales;",
        [(None, {"B": 1.1}), (None, {"B": 1.2})],
        [(None, {"E": True, "G": False, "I": True}), (None, {"E": False, "G": True, "I": False})],
    ),
    "takes NULL for a value where it is asked whether two are distinct": Case(
        f"{NUMBERS} CREATE STREAM o AS SELECT a IS DISTINCT FROM 1 AS d, t IS NOT DISTINCT FROM NULL AS n FROM sales;",
        [(None, {"A": 1, "T": "x"}), (None, {})],
        [(None, {"D": False, "N": False}), (None, {"D": True, "N": True})],
    ),
    "keeps the other parts of a value of which one cannot be computed": Case(
        f"{NUMBERS} CREATE STREAM o AS SELECT ARRAY[1, a / (a - 1)] AS l, STRUCT(x := a / (a - 1), y := 2) AS s,"
        " IFNULL(l[1], -1) AS i, COALESCE(a / (a - 1), 3) AS c FROM sales;",
        [(None, {"A": 1})],
        [(None, {"L": [1, None], "S": {"X": None, "Y": 2}, "I": -1, "C": 3})],
    ),
    "gives items one type": Case(
        f"{NUMBERS} CREATE STREAM o AS SELECT ARRAY[a, '2e1', NULL] AS l, MAP('k' := true, t := 'no') AS m,"
        " ARRAY[STRUCT(x := 1), STRUCT(y := 2)] AS s FROM sales;",
        [(None, {"A": 1, "T": "t"})],
        [
            (
                None,
                {
                    "L": [1, 20, None],
                    "M": {"k": True, "t": False},
                    "S": [{"X": 1, "Y": None}, {"X": None, "Y": 2}],
                },
            )
        ],
    ),
    "makes texts of arrays, maps and structs as Java does": Case(
        f"{NUMBERS} CREATE STREAM o AS SELECT CAST(l AS STRING) AS l, CAST(m AS STRING) AS m, CAST(p AS STRING) AS p"
        " FROM sales;",
        [(None, {"L": [1, None], "M": {"k": 1}, "P": {"X": 4}})],
        [(None, {"L": "[1, null]", "M": "{k=1}", "P": "Struct{X=4}"})],
    ),
    "keys records without values by columns of their key": Case(
        f"{SALES} CREATE STREAM o WITH (KEY_FORMAT='JSON') AS SELECT shop, item, n FROM sales PARTITION BY shop, item;",
        [("a", None), ("b", {"ITEM": "x", "N": 1})],
        [(b'{"SHOP":"a","ITEM":null}', None), (b'{"SHOP":"b","ITEM":"x"}', {"N": 1})],
    ),
    "writes NULL alone as no value": Case(
        f"{SALES} CREATE STREAM o WITH (VALUE_FORMAT='KAFKA') AS SELECT shop, item FROM sales;",
        [("a", {"N": 1})],
        [(b"a", None)],
    ),
    "takes keys away": Case(
        f"{SALES} CREATE STREAM o AS SELECT shop, n FROM sales PARTITION BY NULL;",
        [("a", {"N": 1})],
        [(None, {"SHOP": "a", "N": 1})],
    ),
    "negates LIKE": Case(
        f"{NUMBERS} CREATE STREAM o AS SELECT t NOT LIKE 'a%' AS n, t NOT LIKE 'a!%' ESCAPE '!' AS e FROM sales"
        " WHERE t NOT LIKE '%z';",
        [(None, {"T": "ab"}), (None, {"T": "xz"}), (None, {"T": "a%"})],
        [(None, {"N": False, "E": True}), (None, {"N": False, "E": False})],
    ),
    "names columns that have no name unlike those of their sources": Case(
        f"{NUMBERS.replace('a INT', 'a INT, KSQL_COL_1 INT')}"
        " CREATE STREAM o AS SELECT a + 1, a + 2, KSQL_COL_1, p->x, p->x FROM sales;",
        [(None, {"A": 1, "KSQL_COL_1": 9, "P": {"X": 4}})],
        [(None, {"KSQL_COL_0": 2, "KSQL_COL_2": 3, "KSQL_COL_1": 9, "X": 4, "X_1": 4})],
    ),
    "widens what is inserted, and leaves out what does not fit": Case(
        f"{SALES} CREATE STREAM o (shop STRING KEY, n DECIMAL(2, 1)) WITH (kafka_topic='O', value_format='JSON');"
        " INSERT INTO o SELECT shop, n FROM sales;",
        [("a", {"N": 1}), ("a", {"N": 10})],
        [(b"a", {"N": 1.0}), (b"a", {"N": None})],
    ),
    "compares dates with timestamps, and reads those that end early": Case(
        f"{NUMBERS} CREATE STREAM o AS SELECT CAST(t AS DATE) = CAST('1970-02' AS TIMESTAMP) AS e,"
        " CAST(CAST(t AS DATE) AS STRING) AS d FROM sales;",
        [(None, {"T": "1970-02"}), (None, {"T": "1970-02-02"})],
        [(None, {"E": True, "D": "1970-02-01"}), (None, {"E": False, "D": "1970-02-02"})],
    ),
    "does not hand on keys that no column holds": Case(
        f"{NUMBERS} CREATE STREAM o AS SELECT a FROM sales;",
        [("unread", {"A": 1})],
        [(None, {"A": 1})],
    ),
}

MISTAKES = {
    "an unknown column": ("SELECT shop, prise FROM sales", "Column 'PRISE' cannot be resolved", "PRICE"),
    "an unknown source": ("SELECT * FROM sale", "SALE does not exist", "SALES"),
    "an unknown function": ("SELECT shop, UCAES(item) FROM sales", "name 'UCAES'", "UCASE"),
    "types that do not fit": ("SELECT shop, item * 2 AS x FROM sales", "STRING INTEGER", ""),
    "a comparison of unlike types": (
        "SELECT * FROM sales WHERE item > 3",
        "Cannot compare STRING with INTEGER",
        "",
    ),
    "a text in IN that is not a number": ("SELECT * FROM sales WHERE n IN ('two')", 'type INTEGER: "two"', ""),
    "items without a common type": ("SELECT shop, ARRAY[n, true] AS l FROM sales", "INTEGER and BOOLEAN", "CAST"),
    "a time that is none": ("SELECT * FROM sales WHERE ROWTIME > 'noon'", "Failed to parse timestamp 'noon'", "2020-"),
    "EMIT FINAL without windows": ("SELECT shop, n FROM sales EMIT FINAL", "windowed aggregations", ""),
    "PARTITION BY of nothing": ("SELECT shop FROM sales PARTITION BY ()", "at least one expression", ""),
    "a key format without a key": ("SELECT shop, n FROM sales PARTITION BY NULL, n", "including NULL", ""),
    "a table function in WHERE": (
        "SELECT * FROM sales WHERE EXPLODE(ARRAY[n]) = 1",
        "only be used in the projection",
        "",
    ),
    "a table function of a number": ("SELECT shop, EXPLODE(n) FROM sales", "does not accept parameters (INTEGER)", ""),
    "a pseudo column without a name of its own": ("SELECT shop, ROWTIME FROM sales", "Reserved column name", ""),
    "an aggregate in GROUP BY": (
        "SELECT shop, COUNT(*) FROM sales GROUP BY shop, SUM(n)",
        "GROUP BY does not support aggregate functions: SUM",
        "",
    ),
    "a table function in an aggregation": (
        "SELECT shop, EXPLODE(ARRAY[1]), COUNT(*) FROM sales GROUP BY shop",
        "cannot be used with aggregations",
        "",
    ),
    "a condition that is none": ("SELECT * FROM sales WHERE n", "Should evaluate to boolean", ""),
    "a missing key": ("SELECT item FROM sales", "Key missing from projection", ""),
    "a table from a stream": ("SELECT shop, COUNT(*) FROM sales GROUP BY shop", "CREATE TABLE AS SELECT", ""),
    "a column that is not grouped": (
        "SELECT shop, n, COUNT(*) FROM sales GROUP BY shop",
        "not part of GROUP BY",
        "",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_topology_of_statements(name: str) -> None:
    case = CASES[name]
    with TopologyTestDriver(build_sql(case.statements, StreamsBuilder())) as driver:
        topic = driver.input_topic("s", BYTES, BYTES)
        for key, value in case.inputs:
            topic.pipe_input(
                None if key is None else key.encode(), None if value is None else json.dumps(value).encode()
            )
        found = driver.output_topic("O", BYTES, BYTES).read_key_values_to_list()
    assert [(key, value and json.loads(value)) for key, value in found] == case.outputs


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_with_its_place(name: str) -> None:
    query, message, meant = MISTAKES[name]
    with pytest.raises(SqlError) as caught:
        build_sql(f"{SALES}\nCREATE STREAM o AS {query};", StreamsBuilder(), file="orders.sql")
    assert message in caught.value.message
    assert "(orders.sql:2:" in caught.value.message
    assert meant in str(caught.value.hint or "")


def test_delimited_values_are_quoted_where_ksqldb_quotes_them() -> None:
    query = "CREATE STREAM o WITH (VALUE_FORMAT='DELIMITED') AS SELECT shop, item, n FROM sales;"
    with TopologyTestDriver(build_sql(SALES + query, StreamsBuilder())) as driver:
        for item in ("plain", "a,b", "!", 'q"', "end "):
            driver.input_topic("s", BYTES, BYTES).pipe_input(b"a", json.dumps({"ITEM": item, "N": 1}).encode())
        found = driver.output_topic("O", BYTES, BYTES).read_values_to_list()
    assert found == [b"plain,1", b'"a,b",1', b'"!",1', b'"q""",1', b'"end ",1']


def test_windows_keep_counts_apart() -> None:
    query = "CREATE TABLE o AS SELECT shop, COUNT(*) AS c FROM sales WINDOW TUMBLING (SIZE 10 SECONDS) GROUP BY shop;"
    with TopologyTestDriver(build_sql(SALES + query, StreamsBuilder())) as driver:
        topic = driver.input_topic("s", BYTES, BYTES)
        for time_ms in (0, 9_999, 10_000):
            topic.pipe_input(b"a", b"{}", timestamp=time_ms)
        found = driver.output_topic("O", BYTES, BYTES).read_key_values_to_list()
    assert [(key[-8:], value) for key, value in found if key] == [
        (bytes(8), b'{"C":1}'),
        (bytes(8), b'{"C":2}'),
        ((10_000).to_bytes(8), b'{"C":1}'),
    ]


@pytest.mark.parametrize(("grace", "sent"), [("", [0, 10_000]), (", GRACE PERIOD 5 SECONDS", [0])])
def test_final_results_are_sent_once_when_their_window_has_closed(grace: str, sent: list[int]) -> None:
    windows = f"WINDOW TUMBLING (SIZE 10 SECONDS{grace})"
    query = f"CREATE TABLE o AS SELECT shop, COUNT(*) AS c FROM sales {windows} GROUP BY shop EMIT FINAL;"
    with TopologyTestDriver(build_sql(SALES + query, StreamsBuilder())) as driver:
        for time_ms in (0, 9_999, 15_000, 20_000):
            driver.input_topic("s", BYTES, BYTES).pipe_input(b"a", b"{}", timestamp=time_ms)
        found = driver.output_topic("O", BYTES, BYTES).read_key_values_to_list()
    assert [int.from_bytes(key[-8:]) for key, _ in found if key] == sent
    assert found[0][1] == b'{"C":2}'


def test_times_may_be_written_as_texts_and_end_early() -> None:
    query = (
        "CREATE STREAM o AS SELECT shop, n FROM sales WHERE ROWTIME BETWEEN '1970-01-02' AND '1970-01-02T01:00+0000';"
    )
    with TopologyTestDriver(build_sql(SALES + query, StreamsBuilder())) as driver:
        for hours in (23, 24, 25, 26):
            driver.input_topic("s", BYTES, BYTES).pipe_input(b"a", b'{"N": %d}' % hours, timestamp=hours * 3_600_000)
        found = driver.output_topic("O", BYTES, BYTES).read_values_to_list()
    assert found == [b'{"N":24}', b'{"N":25}']


@pytest.mark.parametrize(
    ("projection", "more", "expected"),
    [
        ("shop, n", "", [{"N": 1}]),
        ("*", "", []),
        ("shop, n", "CREATE STREAM p AS SELECT shop, price FROM sales;", []),
        ("shop, n", "CREATE STREAM p AS SELECT * FROM sales;", []),
        ("shop, n", "CREATE STREAM p AS SELECT shop, item FROM sales WHERE price > 1;", []),
        ("shop, AS_VALUE(shop) AS name", "", [{"NAME": "a"}]),
    ],
)
def test_only_columns_that_statements_use_have_to_be_right(projection: str, more: str, expected: list[Any]) -> None:
    builder = StreamsBuilder()
    topology = build_sql(f"{SALES} CREATE STREAM o AS SELECT {projection} FROM sales; {more}", builder)
    with TopologyTestDriver(topology, {"deserialization.exception.handler": "continue"}) as driver:
        driver.input_topic("s", STRING, BYTES).pipe_input("a", b'{"N": 1, "PRICE": [], "ITEM": "x"}')
        written = driver.output_topic("O", STRING, BYTES).read_records_to_list()
    assert [json.loads(record.value or b"") for record in written] == expected


def test_a_statement_that_uses_more_columns_changes_the_fingerprint_of_the_source() -> None:
    first = f"{SALES} CREATE STREAM o AS SELECT shop, n FROM sales;"
    more = f"{first} CREATE STREAM p AS SELECT shop, item FROM sales;"
    (one, *_), (other, *_) = (build_sql(text, StreamsBuilder()).node_fingerprints().values() for text in (first, more))
    assert one != other


def test_headers_are_columns() -> None:
    columns = "(k STRING KEY, h ARRAY<STRUCT<key STRING, value BYTES>> HEADERS, trace BYTES HEADER('trace'), v INT)"
    statements = f"CREATE STREAM sales {columns} WITH (kafka_topic='s', value_format='JSON');"
    statements += "CREATE STREAM o AS SELECT k, v, h[1]->key AS first, FROM_BYTES(trace, 'utf8') AS trace FROM sales;"
    with TopologyTestDriver(build_sql(statements, StreamsBuilder())) as driver:
        topic = driver.input_topic("s", BYTES, BYTES)
        topic.pipe_input(b"a", b'{"V": 1}', headers=(("trace", b"old"), ("x", None), ("trace", b"new")))
        topic.pipe_input(b"a", b'{"V": 2}')
        found = driver.output_topic("O", BYTES, BYTES).read_values_to_list()
    assert found == [b'{"V":1,"FIRST":"trace","TRACE":"new"}', b'{"V":2,"FIRST":null,"TRACE":null}']


def test_rows_of_a_table_keep_the_time_and_place_of_their_record() -> None:
    statements = (
        f"{SALES} CREATE TABLE stock (item STRING PRIMARY KEY, n INT) WITH (kafka_topic='t', value_format='JSON');"
    )
    query = "SELECT s.item, t.ROWTIME AS at, t.ROWOFFSET AS place FROM sales s JOIN stock t ON s.item = t.item"
    with TopologyTestDriver(build_sql(f"{statements} CREATE STREAM o AS {query};", StreamsBuilder())) as driver:
        for time_ms in (5, 7):
            driver.input_topic("t", BYTES, BYTES).pipe_input(b"x", b'{"N": 1}', timestamp=time_ms)
        driver.input_topic("s", BYTES, BYTES).pipe_input(b"a", b'{"ITEM": "x"}', timestamp=100)
        found = driver.output_topic("O", BYTES, BYTES).read_values_to_list()
    assert found == [b'{"AT":7,"PLACE":1}']


@pytest.mark.parametrize(
    ("query", "is_repartitioned"),
    [
        ("SELECT shop, COUNT(*) AS c FROM sales GROUP BY shop", False),
        ("SELECT shop, COUNT(*) AS c FROM sales WINDOW TUMBLING (SIZE 1 DAY) WHERE n > 1 GROUP BY shop", False),
        ("SELECT item, COUNT(*) AS c FROM sales GROUP BY item", True),
        ("SELECT shop, item, COUNT(*) AS c FROM sales GROUP BY shop, item", True),
        ("SELECT UCASE(shop) AS shop, COUNT(*) AS c FROM sales GROUP BY UCASE(shop)", True),
        ("SELECT s.item, COUNT(*) AS c FROM sales s JOIN stock t ON s.item = t.item GROUP BY s.item", True),
    ],
)
def test_rows_that_are_grouped_by_their_key_stay_where_they_are(query: str, is_repartitioned: bool) -> None:
    stock = STOCK.replace("kafka_topic='s'", "kafka_topic='t'")
    options = "WITH (KEY_FORMAT='JSON')" if "shop, item" in query else ""
    described = build_sql(f"{SALES} {stock} CREATE TABLE o {options} AS {query};", StreamsBuilder()).describe()
    assert ("repartition" in described) is is_repartitioned
    assert described.count("Sub-topology") == 1 + is_repartitioned


def test_a_table_that_two_queries_read_for_its_times_is_made_once() -> None:
    queries = "CREATE TABLE o AS SELECT item, ROWTIME AS at FROM stock; CREATE TABLE p AS SELECT item, n FROM stock;"
    described = build_sql(STOCK + queries, StreamsBuilder()).describe()
    assert described.count("Processor: KSTREAM-TOTABLE") == 1


@pytest.mark.parametrize(("column", "time_ms"), [("at", 7), ("shop", None)])
def test_the_time_of_what_is_written_may_be_that_of_a_windows_key(column: str, time_ms: int | None) -> None:
    source = SALES.replace("shop STRING", "at BIGINT")
    query = "SELECT at, COUNT(*) AS shop FROM sales WINDOW TUMBLING (SIZE 1 DAY) GROUP BY at"
    with TopologyTestDriver(
        build_sql(f"{source} CREATE TABLE o WITH (timestamp='{column}') AS {query};", StreamsBuilder())
    ) as driver:
        driver.input_topic("s", BYTES, BYTES).pipe_input((7).to_bytes(8), b"{}", timestamp=99)
        found = driver.output_topic("O", BYTES, BYTES).read_records_to_list()
    assert [record.timestamp for record in found] == [time_ms or 1]


def test_times_of_records_may_be_texts_in_a_column() -> None:
    source = SALES.replace("value_format", "timestamp='item', timestamp_format='dd.MM.yyyy', value_format")
    with TopologyTestDriver(
        build_sql(f"{source} CREATE STREAM o AS SELECT shop, n FROM sales;", StreamsBuilder())
    ) as driver:
        for item in ("02.01.1970", "some day"):
            driver.input_topic("s", BYTES, BYTES).pipe_input(
                b"a", b'{"ITEM": "%s", "N": 1}' % item.encode(), timestamp=9
            )
        found = driver.output_topic("O", BYTES, BYTES).read_records_to_list()
    assert [record.timestamp for record in found] == [24 * 3_600_000]


@pytest.mark.parametrize(
    ("left", "right", "on", "problem"),
    [
        ("SESSION", None, "l.k = r.k", "windowed source to non-windowed"),
        ("SESSION", "TUMBLING", "l.k = r.k", "Incompatible windowed sources"),
        ("SESSION", "SESSION", "l.v = r.v", "Implicit repartitioning"),
    ],
)
def test_sources_of_unlike_windows_cannot_be_joined(left: str, right: str | None, on: str, problem: str) -> None:
    with pytest.raises(SqlError, match=problem):
        build_sql(_windowed_join(left, right, on), StreamsBuilder())


def test_sources_of_equal_windows_are_joined_within_them() -> None:
    keys = session_windowed(STRING)
    with TopologyTestDriver(build_sql(_windowed_join("SESSION", "SESSION", "l.k = r.k"), StreamsBuilder())) as driver:
        for topic, window in (("l", Window(0, 5)), ("r", Window(0, 4)), ("r", Window(0, 5))):
            driver.input_topic(topic, keys, BYTES).pipe_input(
                Windowed("a", window), b'{"V": %d}' % window.end, timestamp=9
            )
        found = driver.output_topic("O", keys, BYTES).read_key_values_to_list()
    assert found == [(Windowed("a", Window(0, 5)), b'{"E":5,"L_V":5,"R_V":5}')]


def _windowed_join(left: str, right: str | None, on: str) -> str:
    def source(name: str, window: str | None) -> str:
        size = ", window_size='1 SECOND'" if window not in {None, "SESSION"} else ""
        windows = f", window_type='{window}'{size}" if window else ""
        return f"CREATE STREAM {name} (k STRING KEY, v INT) WITH (kafka_topic='{name}', value_format='JSON'{windows});"

    query = f"SELECT l.k, l.WINDOWEND AS e, l.v, r.v FROM l JOIN r WITHIN 1 HOUR ON {on}"
    return f"{source('l', left)} {source('r', right)} CREATE STREAM o AS {query};"


def test_a_table_function_of_users_makes_rows() -> None:
    @udtf
    def words_of(text: str) -> list[str]:
        return text.split()

    query = "CREATE STREAM o AS SELECT shop, WORDS_OF(item) AS word FROM sales;"
    with TopologyTestDriver(build_sql(SALES + query, StreamsBuilder())) as driver:
        for item in ('"a b"', "null", '"c"'):
            driver.input_topic("s", BYTES, BYTES).pipe_input(b"a", b'{"ITEM": %s}' % item.encode())
        found = driver.output_topic("O", BYTES, BYTES).read_values_to_list()
    assert found == [b'{"WORD":"a"}', b'{"WORD":"b"}', b'{"WORD":"c"}']


@pytest.mark.parametrize("text", ["'); raise SystemExit #", 'x" + __import__("os").name + "', "\\'''\n{row}", "it''s"])
def test_texts_and_names_of_users_are_never_run(text: str) -> None:
    name = text.replace("''", "").replace("`", "")
    quoted = text.replace("'", "''")
    statements = f"{SALES} CREATE STREAM o AS SELECT shop, '{quoted}' AS `{name}` FROM sales WHERE '{quoted}' <> 'x';"
    with TopologyTestDriver(build_sql(statements, StreamsBuilder())) as driver:
        driver.input_topic("s", BYTES, BYTES).pipe_input(b"a", b"{}")
        value = driver.output_topic("O", BYTES, BYTES).read_value()
    assert value is not None
    assert json.loads(value) == {name: text}


def test_a_constant_changes_the_fingerprint() -> None:
    def of(number: str, aggregate: str) -> str:
        queries = f"CREATE STREAM o AS SELECT shop, n + {number} AS x FROM sales;"
        queries += f"CREATE TABLE p AS SELECT shop, {aggregate}(n) AS x FROM sales GROUP BY shop;"
        return build_sql(SALES + queries, StreamsBuilder()).fingerprint()

    assert of("1", "MIN") == of("1", "MIN")
    assert len({of("1", "MIN"), of("2", "MIN"), of("1", "MAX"), of("1.5", "MAX"), of("1.6", "MAX")}) == 5


def test_windows_are_kept_as_long_as_their_retention_says() -> None:
    windows = "WINDOW TUMBLING (SIZE 1 MINUTE, RETENTION 3 DAYS)"
    query = f"CREATE TABLE p AS SELECT shop, COUNT(*) AS x FROM sales {windows} GROUP BY shop;"
    (sub,) = [each for each in build_sql(SALES + query, StreamsBuilder()).sub_topologies() if each.stores]
    assert [store.retention_ms for store in sub.stores] == [3 * 24 * 3_600_000]


def test_other_code_of_a_users_function_changes_the_fingerprint() -> None:
    def of(times: int, start: int) -> str:
        @udf
        def multiplied(x: int) -> int:
            return x * times

        @udaf
        class highest:  # noqa: N801 - as statements call it
            def initial(self) -> int:
                return start

            def add(self, state: int, x: int) -> int:
                return max(state, x)

            def merge(self, first: int, second: int) -> int:
                return max(first, second)

        queries = "CREATE STREAM o AS SELECT shop, MULTIPLIED(n) AS x FROM sales;"
        queries += "CREATE TABLE p AS SELECT shop, HIGHEST(n) AS x FROM sales GROUP BY shop;"
        return build_sql(SALES + queries, StreamsBuilder()).fingerprint()

    assert of(2, 0) == of(2, 0)
    assert len({of(2, 0), of(3, 0), of(2, 1)}) == 3


def test_an_application_may_name_a_file_of_statements(tmp_path: Path) -> None:
    (tmp_path / "sales.sql").write_text(f"{SALES}\nCREATE STREAM o AS SELECT shop, n FROM sales;")
    (tmp_path / "wrong.sql").write_text(f"{SALES}\nCREATE STREAM o AS SELECT shop, m FROM sales;")
    config = tmp_path / "streams.toml"
    config.write_text(
        '[kafka]\n"bootstrap.servers" = "localhost:1"\n[apps.sales]\ntopology = "sales.sql"\n'
        '[apps.wrong]\ntopology = "wrong.sql"\n'
    )
    described = CliRunner().invoke(app, ["--config", str(config), "describe", "sales", "--version", "v1"])
    assert "topic: O" in described.stdout, described.output
    refused = CliRunner().invoke(app, ["--config", str(config), "describe", "wrong", "--version", "v1"])
    assert refused.exit_code != 0


def test_cases_of_files_are_judged() -> None:
    case: dict[str, Any] = {
        "statements": [SALES, "CREATE STREAM o AS SELECT shop, n FROM sales;"],
        "inputs": [{"topic": "s", "key": "a", "value": {"n": 1}}],
        "outputs": [{"topic": "O", "key": "a", "value": {"N": 1}}],
    }
    assert run(case) == "passed"
    assert run({**case, "outputs": []}) == "passed"
    assert run({**case, "outputs": [{"topic": "O", "key": "b"}]}).startswith("failed: O, record 0: key")
    assert run({**case, "expectedException": {"message": "no"}}).startswith("failed: no error")
    assert run({**case, "statements": ["CREATE STREAM o AS SELECT 1 FROM sales;"], "expectedException": {}}) == "passed"


def test_a_declared_source_gets_more_columns_by_create_or_replace() -> None:
    first = "CREATE STREAM a (id STRING KEY, n INT) WITH (KAFKA_TOPIC = 'a', VALUE_FORMAT = 'JSON');"
    second = first.replace("CREATE", "CREATE OR REPLACE").replace("n INT", "n INT, m INT")
    query = "CREATE STREAM b WITH (KAFKA_TOPIC = 'b') AS SELECT id, n + m AS sum FROM a;"
    with TopologyTestDriver(build_sql(first + second + query, StreamsBuilder())) as driver:
        driver.input_topic("a", BYTES, BYTES).pipe_input(b"x", b'{"N": 1, "M": 2}')
        assert driver.output_topic("b", BYTES, BYTES).read_value() == b'{"SUM":3}'


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("n INT", "m INT", "columns can only be added after the existing ones"),
        ("'a',", "'other',", "its topic is a, not other"),
        ("'JSON'", "'DELIMITED'", "its key, formats and properties must stay the same"),
        ("STREAM", "TABLE", "one is a stream, the other a table"),
    ],
)
def test_create_or_replace_changes_nothing_that_there_is(old: str, new: str, message: str) -> None:
    first = "CREATE STREAM a (id STRING KEY, n INT) WITH (KAFKA_TOPIC = 'a', VALUE_FORMAT = 'JSON');"
    second = first.replace("CREATE", "CREATE OR REPLACE").replace(old, new)
    if new == "TABLE":
        second = second.replace("KEY", "PRIMARY KEY")
    with pytest.raises(SqlError, match=message):
        build_sql(first + second, StreamsBuilder())


def test_the_result_of_a_query_is_not_replaced_within_a_file() -> None:
    text = """
    CREATE STREAM a (id STRING KEY, n INT) WITH (KAFKA_TOPIC = 'a', VALUE_FORMAT = 'JSON');
    CREATE STREAM b AS SELECT * FROM a;
    CREATE OR REPLACE STREAM b AS SELECT * FROM a WHERE n > 1;
    """
    with pytest.raises(SqlError, match="Cannot replace stream 'B': it is the result of a query"):
        build_sql(text, StreamsBuilder())


@pytest.mark.parametrize(
    "text", [None, "{", "[]", '{"tests": [{"name": "no statements"}]}', '{"tests": [{"name": "", "statements": []}]}']
)
def test_a_file_without_cases_is_named_and_not_run(
    text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cases.json"
    if text is not None:
        path.write_text(text)
    assert main([str(path)]) == 2
    assert f"{path} is not a file of cases" in capsys.readouterr().err
