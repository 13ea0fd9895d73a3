"""Queries at the prompt: rows of streams and tables, deleted ones included, are computed from topics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from riverrun import StreamsBuilder
from riverrun.records import TopicPartition
from riverrun.service.selecting import Selecting
from riverrun.sql.commands import Select, Statements, parse_commands
from riverrun.sql.planning.planner import StatementPlan
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
    selection = plan.select(replace(select.query, needs_key=False), "shown")
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
    selection = plan.select(replace(select.query, needs_key=False), "shown")
    records = [ReadRecord(TopicPartition("w", 0), 0, 5, b"x" + bytes(8), b'{"N": 7}', ())]
    selecting = Selecting(lambda: pytest.fail("no broker is asked"), {}, catalog)
    rows = [selection.row(*update) for update in selecting._updates(plan, selection, ["w"], records)]
    assert rows == [("x", 0, end, 7)]
