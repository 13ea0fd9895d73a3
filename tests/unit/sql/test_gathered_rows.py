"""GROUP BY, ORDER BY and LIMIT over the rows of a table: from stores and from topics, as a computation over all rows."""

from __future__ import annotations

import json
import math
import random
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import BYTES, StreamsBuilder
from riverrun.kafka.admin import Admin, TopicSpec
from riverrun.kafka.producer import IdempotentProducer
from riverrun.service.query_computing import _Computer
from riverrun.service.rendering import to_base64
from riverrun.service.selecting import Selecting
from riverrun.simulation.cluster import Cluster
from riverrun.sql import answers, build_sql, gathering
from riverrun.sql.answers import PullQuery, pull_query
from riverrun.sql.commands import Select, Statements, parse_commands
from riverrun.sql.gathering import TooManyRowsError
from riverrun.sql.planning.planner import StatementPlan
from riverrun.sql.statement_parser import parse
from riverrun.sql.statements import SqlError
from riverrun.testing import TopologyTestDriver

STATEMENTS = """
    CREATE SOURCE TABLE stock (id STRING PRIMARY KEY, shop STRING, n INT, price DECIMAL(6, 2), weight DOUBLE)
        WITH (KAFKA_TOPIC = 'in', VALUE_FORMAT = 'JSON');
"""
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Row = dict[str, Any]


def drawn_changes(seed: int) -> list[tuple[str, Row | None]]:
    """Keys and their new rows; None deletes one."""
    draw = random.Random(seed)
    return [
        (
            draw.choice("abcdefghijklmnopqrstuvwxyz"),
            None
            if draw.random() < 0.2
            else {
                "SHOP": draw.choice(["x", "y", None]),
                "N": draw.choice([1, 2, 3, None]),
                "PRICE": draw.choice([1.5, 10, 2.25, None]),
                "WEIGHT": draw.choice([0.5, -1.0, "NaN", None]),
            },
        )
        for _ in range(60)
    ]


def last_rows(changes: Iterable[tuple[str, Row | None]]) -> list[Row]:
    """The rows that remain, with values in the types of their columns."""
    last: dict[str, Row] = {}
    for key, row in changes:
        last.pop(key, None)
        if row is not None:
            price, weight = row["PRICE"], row["WEIGHT"]
            typed = {
                "PRICE": None if price is None else Decimal(price).quantize(Decimal("0.01")),
                "WEIGHT": None if weight is None else float(weight),
            }
            last[key] = {"ID": key, **row, **typed}
    return list(last.values())


def pulled_query(query: str) -> PullQuery:
    plan = StatementPlan(StreamsBuilder())
    plan.add_all(parse(STATEMENTS))
    (select,) = parse_commands(query)
    assert isinstance(select, Select)
    return pull_query(select, plan.catalog)


def from_store(query: str, changes: Iterable[tuple[str, Row | None]]) -> list[Any]:
    """The result of a query over the store of the table."""
    plan = StatementPlan(StreamsBuilder())
    plan.add_all(parse(STATEMENTS))
    pulled = pulled_query(query)
    with TopologyTestDriver(plan.builder.build()) as driver:
        topic = driver.input_topic("in", BYTES, BYTES)
        for key, row in changes:
            topic.pipe_input(key.encode(), None if row is None else json.dumps(row).encode(), timestamp=0)
        assert pulled.table is not None
        found = list(driver.get_all_state_stores()[pulled.table.store].all())
    entries = (pulled.entry(key, row.value, row.timestamp, None) for key, row in found)
    return list(pulled.results(each for each in entries if each is not None))


def from_topics(query: str, changes: Iterable[tuple[str, Row | None]]) -> list[Any]:
    """The result of a query over the topic of the table, in two partitions."""
    with Cluster() as cluster:
        admin = Admin(cluster.kafka)
        admin.create_topics([TopicSpec("in", 2)])
        producer = IdempotentProducer(cluster.kafka)
        for key, row in changes:
            producer.send("in", key.encode(), None if row is None else json.dumps(row).encode(), 0, (), ord(key) % 2)
        producer.flush()
        producer.close()
        (select,) = parse_commands(query)
        assert isinstance(select, Select)
        selecting = Selecting(lambda: admin, {}, Statements.of(STATEMENTS, "a.sql").catalog)
        return list(selecting.selected(select).rows)


def rank(value: Any, *, null: int = 0) -> Any:
    if value is None:
        return (null,)
    is_nan = isinstance(value, float) and math.isnan(value)
    return (1, is_nan, 0 if is_nan else value)


def by_group(rows: list[Row], *names: str) -> dict[tuple[Any, ...], list[Row]]:
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in names), []).append(row)
    return found


def values(rows: list[Row], name: str) -> list[Any]:
    return [row[name] for row in rows if row[name] is not None]


def groups_of_shops(rows: list[Row]) -> list[Any]:
    groups = sorted(by_group(rows, "SHOP").items(), key=lambda each: rank(each[0][0], null=2))
    return [
        (
            shop,
            len(found),
            sum(values(found, "N")),
            min(values(found, "PRICE"), default=None),
            max(values(found, "N"), default=None),
            len(set(values(found, "N"))),
            sum(row["N"] == 2 for row in found),
        )
        for (shop,), found in groups
    ]


def pairs(rows: list[Row]) -> list[Any]:
    found = [(*pair, len(of)) for pair, of in by_group(rows, "SHOP", "N").items() if len(of) > 1]
    return sorted(found, key=lambda each: (-each[2], rank(each[0]), rank(each[1])))


CASES: dict[str, Callable[[list[Row]], list[Any]]] = {
    """SELECT shop, COUNT(*) AS c, SUM(n) AS s, MIN(price) AS least, MAX(n) AS most, COUNT(DISTINCT n) AS d,
        COUNT(*) FILTER (WHERE n = 2) AS twos FROM stock GROUP BY shop ORDER BY shop NULLS LAST;""": groups_of_shops,
    "SELECT shop, n, COUNT(*) AS c FROM stock GROUP BY shop, n HAVING COUNT(*) > 1 ORDER BY c DESC, shop, n;": pairs,
    "SELECT COUNT(*) AS c, SUM(n) AS s FROM stock WHERE n > 1;": lambda rows: [
        (len(found), sum(found)) for found in [[n for n in values(rows, "N") if n > 1]]
    ],
    "SELECT COUNT(*) AS c, MAX(price) AS p FROM stock WHERE n > 99;": lambda _: [(0, None)],
    "SELECT shop FROM stock WHERE n > 99 GROUP BY shop;": lambda _: [],
    "SELECT id, n FROM stock ORDER BY n DESC, id LIMIT 5;": lambda rows: [
        (row["ID"], row["N"]) for row in sorted(rows, key=lambda row: (-(row["N"] or 0), row["ID"]))[:5]
    ],
    "SELECT id FROM stock WHERE n IS NOT NULL ORDER BY price DESC NULLS FIRST, UCASE(id) LIMIT 4;": lambda rows: [
        (row["ID"],)
        for row in sorted(
            (row for row in rows if row["N"] is not None),
            key=lambda row: (row["PRICE"] is not None, -(row["PRICE"] or 0), row["ID"]),
        )[:4]
    ],
    "SELECT n AS id, id AS own FROM stock ORDER BY id, stock.id DESC;": lambda rows: [
        (row["N"], row["ID"])
        for row in sorted(sorted(rows, key=lambda row: row["ID"], reverse=True), key=lambda row: rank(row["N"]))
    ],
    "SELECT id, n * 2 AS n, n AS m FROM stock WHERE n > 0 ORDER BY n * (m - 2), id;": lambda rows: [
        (row["ID"], row["N"] * 2, row["N"])
        for row in sorted(rows, key=lambda row: (2 * (row["N"] or 0) * ((row["N"] or 0) - 2), row["ID"]))
        if row["N"]
    ],
    """SELECT id FROM stock WHERE n > 0
        ORDER BY REDUCE(TRANSFORM(ARRAY[n], id => id * -1), 0, (sum, id) => sum + id), id;""": lambda rows: [
        (row["ID"],) for row in sorted((row for row in rows if row["N"]), key=lambda row: (-row["N"], row["ID"]))
    ],
    "SELECT id FROM stock ORDER BY weight, id;": lambda rows: [
        (row["ID"],) for row in sorted(rows, key=lambda row: (rank(row["WEIGHT"]), row["ID"]))
    ],
    "SELECT shop FROM stock WHERE id = 'c' OR id > 'w' ORDER BY id LIMIT 0;": lambda _: [],
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("query", CASES)
@pytest.mark.parametrize("results", [from_store, from_topics])
def test_groups_and_orders_are_those_of_all_rows(results: Callable[..., list[Any]], query: str, seed: int) -> None:
    changes = drawn_changes(seed)
    assert results(query, changes) == CASES[query](last_rows(changes))


def test_a_few_first_rows_of_many_are_found_without_holding_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "MOST_HELD", 1500)
    changes: list[tuple[str, Row | None]] = [(f"k{n}", {"SHOP": "x", "N": n * 7919 % 4001}) for n in range(4000)]
    found = from_store("SELECT n FROM stock ORDER BY n DESC LIMIT 3;", changes)
    assert found == [(4000,), (3999,), (3998,)]
    assert from_store("SELECT COUNT(*) AS c, COUNT(DISTINCT n) AS d FROM stock;", changes) == [(4000, 4000)]
    for query in ("SELECT n FROM stock ORDER BY n;", "SELECT n FROM stock GROUP BY n LIMIT 1;"):
        with pytest.raises(TooManyRowsError, match="more than 1500 rows or groups at a time"):
            from_store(query, changes)


def test_a_query_counts_more_values_than_a_group_that_is_stored() -> None:
    rows = [("x", n, None, None, "k", 0) for n in range(10_001)]
    assert list(pulled_query("SELECT COUNT(DISTINCT n) AS c FROM stock;").results(rows)) == [(10_001,)]


def test_an_aggregate_that_fails_is_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(answers._SETTINGS, "ksql.functions.count.limit", 2)
    changes: list[tuple[str, Row | None]] = [(key, {"N": n}) for n, key in enumerate("abc")]
    for results in (from_store, from_topics):
        with pytest.raises(
            TooManyRowsError, match=r"cannot be aggregated: COUNT.DISTINCT .... takes 2 different values"
        ):
            results("SELECT COUNT(DISTINCT n) AS c FROM stock;", changes)


@pytest.mark.parametrize(
    "query", ["SELECT COUNT(DISTINCT k) AS c FROM kept;", "SELECT k, COUNT(*) AS c FROM kept GROUP BY k;"]
)
def test_who_asks_for_what_no_query_may_hold_is_told_so(query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(answers._SETTINGS, "ksql.functions.count.limit", 2)
    monkeypatch.setattr(gathering, "MOST_HELD", 2)
    builder = StreamsBuilder()
    statements = """
    CREATE TABLE counts (k STRING PRIMARY KEY, n INT) WITH (KAFKA_TOPIC='counts', VALUE_FORMAT='JSON');
    CREATE TABLE kept AS SELECT * FROM counts;
    """
    catalog = Statements.of(statements, "a.sql", builder).catalog
    stores = {store.name: store for sub in builder.build().sub_topologies() for store in sub.stores}
    computer = _Computer(catalog, stores)
    assert computer.answer(query).is_gathered
    (store,) = stores.values()
    key, value = store.key_serde.serialize, to_base64(store.value_serde.serialize((1,)))
    rows = [{"key": {"base64": to_base64(key((each,)))}, "value": {"base64": value}} for each in "abc"]
    refused = computer.answer((rows, None, 1000))
    assert (refused.error, refused.status) == ("answer-too-large", 413)


def test_maps_make_no_groups_as_they_make_no_keys() -> None:
    with pytest.raises(SqlError, match="Map keys, including types that contain maps, are not supported"):
        pulled_query("SELECT COUNT(*) AS c FROM stock GROUP BY ARRAY[MAP(id := n)];")


@pytest.mark.parametrize("clause", ["HAVING COUNT(*)", "HAVING NULL", "HAVING shop"])
def test_having_takes_conditions_alone(clause: str) -> None:
    message = "Type error in HAVING expression: Should evaluate to boolean but is (BIGINT|None|STRING)"
    with pytest.raises(SqlError, match=message):
        pulled_query(f"SELECT shop, COUNT(*) AS c FROM stock GROUP BY shop {clause};")
    table = "CREATE TABLE rows (id STRING PRIMARY KEY, shop STRING) WITH (KAFKA_TOPIC = 'rows', VALUE_FORMAT = 'JSON');"
    with pytest.raises(SqlError, match=message):
        build_sql(
            f"{table} CREATE TABLE o AS SELECT shop, COUNT(*) AS c FROM rows GROUP BY shop {clause};", StreamsBuilder()
        )


@pytest.mark.parametrize("clause", ["ORDER BY n", "LIMIT 3"])
def test_a_statement_of_a_file_has_no_order(clause: str) -> None:
    with pytest.raises(SqlError, match=f"{clause.rpartition(' ')[0]} needs rows that end"):
        parse(f"{STATEMENTS} CREATE TABLE o AS SELECT id, n FROM stock {clause};")


def test_order_is_an_alias_where_no_by_follows() -> None:
    assert from_store("SELECT order.n FROM stock order WHERE order.n = 1;", [("a", {"N": 1})]) == [(1,)]
