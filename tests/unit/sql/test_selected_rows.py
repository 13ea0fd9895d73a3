"""Queries at the prompt: rows of streams and tables, deleted ones included, are computed from topics."""

from __future__ import annotations

from typing import Any

import pytest

from riverrun import StreamsBuilder
from riverrun.kafka.admin import Admin, TopicSpec
from riverrun.kafka.producer import IdempotentProducer
from riverrun.records import TopicPartition
from riverrun.service.selecting import Selecting
from riverrun.simulation.cluster import Cluster
from riverrun.sql.commands import Select, Statements, parse_commands
from riverrun.sql.planning.planner import StatementPlan
from riverrun.sql.statements import SqlError
from riverrun.topics.records import ReadRecord

STATEMENTS = """
CREATE STREAM s (k STRING KEY, v STRING) WITH (KAFKA_TOPIC = 's', VALUE_FORMAT = '{form}');
CREATE TABLE t (k STRING PRIMARY KEY, v STRING) WITH (KAFKA_TOPIC = 't', VALUE_FORMAT = '{form}');
"""


def rows_of(query: str, form: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query after a row and its deletion."""
    catalog = Statements.of(STATEMENTS.format(form=form), "a.sql").catalog
    selecting = Selecting(lambda: pytest.fail("no broker is asked"), {}, catalog)
    (select,) = parse_commands(f"{query};")
    assert isinstance(select, Select)
    plan = StatementPlan(StreamsBuilder(), catalog)
    selection = plan.select(select.query.without_key(), "shown")
    topic = catalog.sources[select.query.source.name].topic
    value = b'{"V": "a"}' if form == "JSON" else b"a"
    records = [ReadRecord(TopicPartition(topic, 0), n, n, b"x", each, ()) for n, each in enumerate((value, None))]
    return [selection.row(*update) for update in selecting._updates(plan, selection, [topic], records)]


@pytest.mark.parametrize("form", ["JSON", "KAFKA", "DELIMITED"])
@pytest.mark.parametrize("source", ["s", "t"])
@pytest.mark.parametrize(
    ("columns", "rows"),
    [
        ("*", [("x", "a"), ("x", None)]),
        ("k", [("x",), ("x",)]),
        ("v", [("a",), (None,)]),
        ("k, UCASE(v) AS w", [("x", "A"), ("x", None)]),
        ("k, v IS NULL AS missing", [("x", False), ("x", None)]),
    ],
)
def test_queries_show_rows_and_their_deletions(form: str, source: str, columns: str, rows: list[Any]) -> None:
    assert rows_of(f"SELECT {columns} FROM {source} EMIT CHANGES", form) == rows


@pytest.mark.parametrize(
    ("size", "end"),
    [
        ("'1 SECOND'", 1000),
        ("'1 MONTH', WINDOW_TIMEZONE = 'Europe/Berlin'", 30 * 86_400_000 + 23 * 3_600_000),
    ],
)
def test_windowed_rows_are_shown_with_their_ends(size: str, end: int) -> None:
    windows = f"WINDOW_TYPE = 'TUMBLING', WINDOW_SIZE = {size}"
    source = f"CREATE STREAM w (k STRING KEY, n BIGINT) WITH (KAFKA_TOPIC = 'w', VALUE_FORMAT = 'JSON', {windows});"
    catalog = Statements.of(source, "a.sql").catalog
    (select,) = parse_commands("SELECT k, WINDOWSTART AS a, WINDOWEND AS b, n FROM w EMIT CHANGES;")
    assert isinstance(select, Select)
    plan = StatementPlan(StreamsBuilder(), catalog)
    selection = plan.select(select.query.without_key(), "shown")
    records = [ReadRecord(TopicPartition("w", 0), 0, 5, b"x" + bytes(8), b'{"N": 7}', ())]
    selecting = Selecting(lambda: pytest.fail("no broker is asked"), {}, catalog)
    rows = [selection.row(*update) for update in selecting._updates(plan, selection, ["w"], records)]
    assert rows == [("x", 0, end, 7)]


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("SELECT COUNT(*) AS n FROM s GROUP BY v ORDER BY n DESC;", [(2,), (1,)]),
        ("SELECT v, COUNT(*) AS n FROM s GROUP BY k, v ORDER BY v DESC, n LIMIT 2;", [("b", 1), ("a", 1)]),
        ("SELECT COUNT(*) AS n FROM s WINDOW TUMBLING (SIZE 1 MINUTE) GROUP BY v ORDER BY n;", [(1,), (2,)]),
        ("SELECT t.v AS one, u.v AS other FROM t JOIN t2 u ON t.k = u.k ORDER BY one;", [("a", "c"), ("b", "c")]),
        ("SELECT v, ROWTIME FROM t ORDER BY ROWTIME DESC LIMIT 1;", [("b", 2)]),
        ("SELECT v, ROWTIME FROM s ORDER BY ROWTIME DESC, v LIMIT 2;", [("a", 3), ("b", 2)]),
        ("SELECT k, k AS again FROM s ORDER BY again LIMIT 1;", [("x", "x")]),
        ("SELECT v, ROWPARTITION AS p FROM t WHERE ROWOFFSET > 0;", [("b", 0)]),
        ("SELECT MAX(ROWOFFSET) AS o FROM t;", [(1,)]),
        ("SELECT FROM_BYTES(h, 'utf8') AS h FROM t2 GROUP BY h;", [("seven",)]),
    ],
)
def test_a_query_of_current_rows_may_leave_out_or_repeat_the_key(query: str, rows: list[tuple[Any, ...]]) -> None:
    second = "CREATE TABLE t2 (k STRING PRIMARY KEY, v STRING, h BYTES HEADER('h')) WITH (KAFKA_TOPIC = 't2', \
        VALUE_FORMAT = 'JSON');"
    catalog = Statements.of(STATEMENTS.format(form="JSON") + second, "a.sql").catalog
    (select,) = parse_commands(query)
    assert isinstance(select, Select)
    with Cluster() as cluster:
        admin = Admin(cluster.kafka)
        admin.create_topics([TopicSpec(topic, 1) for topic in ("s", "t", "t2")])
        producer = IdempotentProducer(cluster.kafka)
        for time_ms, (key, value) in enumerate([(b"x", b"a"), (b"y", b"b"), (b"z", b"a")], 1):
            for topic in ("s", "t") if key != b"z" else ("s",):
                producer.send(topic, key, b'{"V":"%s"}' % value, time_ms, (), 0)
            producer.send("t2", key, b'{"V":"c"}', time_ms, (("h", b"seven"),), 0)
        producer.flush()
        producer.close()
        assert list(Selecting(lambda: admin, {}, catalog).selected(select).rows) == rows


def test_a_table_function_over_a_table_is_refused_as_in_a_file() -> None:
    catalog = Statements.of(STATEMENTS.format(form="JSON"), "a.sql").catalog
    (select,) = parse_commands("SELECT EXPLODE(ARRAY[v]) AS v FROM t;")
    assert isinstance(select, Select)
    with pytest.raises(SqlError, match="Table source is not supported with table functions"):
        Selecting(lambda: pytest.fail("no broker is asked"), {}, catalog).selected(select)
