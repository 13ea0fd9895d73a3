"""Rows of SQL have the names of their columns wherever people and expectations see them."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import pickle
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from riverrun import JSON, Protobuf, StreamsBuilder, session_windowed, windowed
from riverrun.quality.frames import write_frame
from riverrun.quality.gate import judge
from riverrun.records import TopicPartition
from riverrun.releases.difference import Pair, Side, TableRow
from riverrun.releases.gating import _with_fields
from riverrun.releases.rows import difference_rows, log_rows, table_rows
from riverrun.serde.api import Serde, SerdePlace, placed, plain_reader
from riverrun.spark.columns import columns_of
from riverrun.spark.store_rows import READABLE, store_columns
from riverrun.sql.formats import Form, key_serde, value_serde
from riverrun.sql.planning.planner import build_sql
from riverrun.sql.statements import SqlError
from riverrun.sql.types import Array, Columns, Decimal, Map, Primitive, SqlType, Struct
from riverrun.topics.serdes import from_text, jsonable, readable
from riverrun.topology.nodes import SinkNode, SourceNode
from riverrun.windows import Window, Windowed
from tests.presence import present
from tests.unit.schemas import flights

if TYPE_CHECKING:
    from pathlib import Path

FORMATS = ("AVRO", "DELIMITED", "JSON", "JSON_SR", "KAFKA", "PROTOBUF", "PROTOBUF_NOSR")
DAY = 86_400_000
TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters='"\\'), min_size=1, max_size=5)
VALUES: dict[SqlType, st.SearchStrategy[Any]] = {
    Primitive.BOOLEAN: st.booleans(),
    Primitive.INTEGER: st.integers(-(2**31), 2**31 - 1),
    Primitive.BIGINT: st.integers(-(2**63), 2**63 - 1),
    Primitive.DOUBLE: st.floats(allow_nan=False, allow_infinity=False),
    Primitive.STRING: TEXTS,
    Primitive.BYTES: st.binary(min_size=1, max_size=4),
    Primitive.DATE: st.integers(-1000, 20_000),
    Primitive.TIME: st.integers(0, DAY - 1),
    Primitive.TIMESTAMP: st.integers(-DAY, 2**41),
    Decimal(6, 2): st.decimals(-9999, 9999, places=2),
}
SINGLE = st.sampled_from(sorted(VALUES, key=str))
NESTED = st.recursive(
    SINGLE,
    lambda inner: st.one_of(
        inner.map(Array),
        inner.map(lambda each: Map(Primitive.STRING, each)),
        st.lists(inner, min_size=1, max_size=2).map(lambda each: Struct(tuple(zip(("X", "Y"), each, strict=False)))),
    ),
    max_leaves=3,
)


def values(type_: SqlType) -> st.SearchStrategy[Any]:
    match type_:
        case Array(item):
            return st.lists(values(item), min_size=1, max_size=2)
        case Map(_, item):
            return st.dictionaries(TEXTS, values(item), min_size=1, max_size=2)
        case Struct(fields):
            return st.fixed_dictionaries({name: values(each) for name, each in fields})
    return VALUES[type_]


@st.composite
def rows(draw: Any, types: st.SearchStrategy[SqlType], most: int) -> tuple[Columns, tuple[Any, ...]]:
    names = draw(st.lists(st.sampled_from(("ID", "TOTAL", "class", "N1")), min_size=1, max_size=most, unique=True))
    columns = tuple((name, draw(types)) for name in names)
    return columns, tuple(draw(values(type_)) for _, type_ in columns)


def in_place(serde: Serde[Any], *, is_key: bool) -> Serde[Any]:
    return placed(serde, SerdePlace("t", is_key, {"url": f"mock://{uuid.uuid4()}"}))


@pytest.mark.parametrize("format_", FORMATS)
@settings(max_examples=12, deadline=None)
@given(data=st.data(), is_key=st.booleans(), window=st.sampled_from((None, "TIME", "SESSION")))
def test_rows_of_every_format_have_their_names_and_are_written_as_shown(
    format_: str, data: Any, *, is_key: bool, window: str | None
) -> None:
    most = 1 if format_ == "KAFKA" else 3
    kafka = st.sampled_from((Primitive.INTEGER, Primitive.BIGINT, Primitive.DOUBLE, Primitive.STRING, Primitive.BYTES))
    types = {"KAFKA": kafka, "DELIMITED": SINGLE}.get(format_, NESTED)
    columns, row = data.draw(rows(types, most))
    try:
        serde = (key_serde if is_key else value_serde)(columns, Form(format_))
    except SqlError:  # lists within lists, in Protobuf
        reject()
    own = in_place(pickle.loads(pickle.dumps(serde)), is_key=is_key)  # noqa: S301 - our own
    names = [name for name, _ in columns]
    shown = plain_reader(own)(own.serialize(row))
    assert list(shown) == names
    assert (columns[0][1] is not Primitive.BIGINT) or shown[names[0]] == row[0]

    assert set(json.loads(readable(shown))) == set(names)
    assert from_text(own, readable(shown)) == row
    assert from_text(own, json.dumps(jsonable(shown))) == row
    (column,) = columns_of("value", own).columns
    assert [column.kind.field(number).name for number in range(column.kind.num_fields)] == names
    (found,) = columns_of("value", own).arrays([own.serialize(row)], lambda _: {})
    assert list(found.to_pylist()[0]) == names

    if is_key and window is not None:
        keys = windowed(serde, timedelta(minutes=1)) if window == "TIME" else session_windowed(serde)
        at = in_place(pickle.loads(pickle.dumps(keys)), is_key=True)  # noqa: S301 - our own
        key = at.serialize(Windowed(row, Window(0, 60_000)))
        assert plain_reader(at)(key) == Windowed(shown, Window(0, 60_000))
        assert columns_of("key", at).arrays([key], lambda _: {})[0].to_pylist() == found.to_pylist()


TABLE: Columns = (
    ("TOTAL", Decimal(10, 2)),
    ("AT", Primitive.TIMESTAMP),
    ("N", Primitive.INTEGER),
    ("PLACE", Struct((("CITY", Primitive.STRING),))),
)
ROW = (decimal.Decimal("49867.24"), 1000, 3, {"CITY": "Köln"})


@pytest.mark.parametrize("format_", ["AVRO", "JSON", "JSON_SR", "PROTOBUF", "PROTOBUF_NOSR"])
@pytest.mark.parametrize("keys", [(("ID", Primitive.INTEGER),), (("ID", Primitive.INTEGER), ("U", Primitive.STRING))])
@pytest.mark.parametrize("is_windowed", [False, True])
def test_rows_to_be_judged_have_columns_of_keys_and_values(format_: str, keys: Columns, *, is_windowed: bool) -> None:
    inner, value = (
        in_place(key_serde(keys, Form("JSON")), is_key=True),
        in_place(value_serde(TABLE, Form(format_)), is_key=False),
    )
    key: Any = windowed(inner) if is_windowed else inner
    of_key = (510, "ann")[: len(keys)]
    written = key.serialize(Windowed(of_key, Window(0, 60_000)) if is_windowed else of_key)
    sink, row = SinkNode("out", (), "out", key, value), TableRow(value.serialize(ROW), 5)
    expected = {"ID": 510, "TOTAL": ROW[0], "N": 3, "AT": dt.datetime.fromtimestamp(1, dt.UTC)}
    whole = 510 if len(keys) == 1 else '{"ID":510,"U":"ann"}'

    (table,) = table_rows([Pair(0, written, None, row)], sink, "out")
    log = log_rows([(TopicPartition("out", 0), [(written, row.value, 5, 0, ())])], sink)
    for found in (table, *log):
        assert {name: found[name] for name in expected} == expected
        assert found["_key"] == whole
        assert found["PLACE"] == {"CITY": "Köln"}
    (found,) = difference_rows([Pair(0, written, row, row)], sink, sink, dict.fromkeys(Side, "out"), pytest.fail)
    sides = {f"{side}_{name}": expected[name] for side in ("old", "new") for name in ("TOTAL", "N", "AT")}
    assert {name: found[name] for name in sides} == sides
    assert (found["key"], found["key_ID"]) == (whole, 510)


def test_expectations_judge_the_columns_of_statements(tmp_path: Path) -> None:
    import great_expectations.expectations as gxe  # noqa: PLC0415 - takes a second

    key, value = key_serde((("ID", Primitive.INTEGER),), Form("KAFKA")), value_serde(TABLE, Form("JSON"))
    pairs = [Pair(0, key.serialize((510,)), None, TableRow(value.serialize(ROW), 5))]
    rules = [
        gxe.ExpectColumnValuesToBeBetween(column="TOTAL", min_value=0, max_value=49_867),
        gxe.ExpectColumnValuesToBeBetween(column="ID", min_value=510, max_value=510),
        gxe.ExpectColumnValuesToNotBeNull(column="PLACE"),
    ]
    frame = write_frame(tmp_path / "frame", table_rows(pairs, SinkNode("out", (), "out", key, value), "out"))
    outcomes = judge("out", frame, rules, pytest.fail).outcomes
    assert [outcome[:6] for outcome in outcomes.values()] == ["passed", "failed", "passed", "passed"]
    assert "unexpected" in next(outcome for outcome in outcomes.values() if outcome.startswith("failed"))


STATEMENTS = """
    CREATE STREAM orders (id INT KEY, amount DECIMAL(10, 2), city STRING, at TIMESTAMP)
        WITH (KAFKA_TOPIC = 'orders', VALUE_FORMAT = 'JSON', PARTITIONS = 1);
    CREATE TABLE users (id INT PRIMARY KEY, name STRING)
        WITH (KAFKA_TOPIC = 'users', VALUE_FORMAT = 'JSON', PARTITIONS = 1);
    CREATE TABLE named AS SELECT id, UCASE(name) AS name FROM users;
    CREATE TABLE totals AS SELECT id, COUNT(*) AS n, SUM(amount) AS total, MAX(at) AS latest FROM orders GROUP BY id;
    CREATE TABLE hourly AS SELECT city, COUNT(*) AS n FROM orders WINDOW TUMBLING (SIZE 1 HOUR) GROUP BY city;
    CREATE TABLE sessions WITH (KEY_FORMAT = 'JSON') AS
        SELECT city, id, COUNT(*) FROM orders WINDOW SESSION (1 HOUR) GROUP BY city, id;
"""


def test_stores_of_statements_have_the_names_of_their_columns() -> None:
    found = {}
    for store in build_sql(STATEMENTS, StreamsBuilder()).stores.values():
        if store.kind in READABLE:
            kinds = {column.name: column.kind for column in store_columns(store).all}
            key, value = kinds["key"], kinds["value"]
            found[frozenset(key.names), frozenset(value.names)] = store.name
    wanted = [
        ({"ID"}, {"N", "TOTAL", "MAX(AT)"}),
        ({"CITY"}, {"N"}),
        ({"CITY", "ID"}, {"KSQL_COL_0"}),
        ({"ID"}, {"NAME"}),
    ]
    assert {(frozenset(key), frozenset(value)) for key, value in wanted} <= found.keys()


def test_rows_of_stores_have_columns_of_keys_and_values() -> None:
    row: dict[str, Any] = {"key": {"ID": 7}, "value": {"N": 1}, "timestamp": None, "partition": 0}
    assert _with_fields(row) == {"_key": 7, "_time": None, "_partition": 0, "ID": 7, "N": 1}
    row = {"key": {"N": 7, "U": "a"}, "value": '{"N": 1}', "partition": 0}
    assert _with_fields(row) == {"_key": '{"N":7,"U":"a"}', "_partition": 0, "_key_N": 7, "U": "a", "N": 1}


def test_columns_that_a_statement_does_not_read_are_not_shown_as_null() -> None:
    text = """
        CREATE STREAM s (a INT, b INT) WITH (KAFKA_TOPIC = 's', VALUE_FORMAT = 'JSON', PARTITIONS = 1);
        CREATE STREAM o AS SELECT a FROM s;
    """
    topology = build_sql(text, StreamsBuilder())
    (source,) = [node for node in topology.nodes.values() if isinstance(node, SourceNode) and node.topics == ("s",)]
    assert plain_reader(source.value_serde)(b'{"A": 1, "B": 2}') == {"A": 1}


def test_keys_of_windows_are_messages_for_no_one_but_the_topology() -> None:
    keys = windowed(Protobuf(flights.Carrier), timedelta(minutes=1))
    at = in_place(keys, is_key=True)
    data = at.serialize(Windowed(flights.Carrier(name="AA"), Window(0, 60_000)))
    assert plain_reader(at)(data).key["name"] == "AA"
    assert columns_of("key", at).arrays([data], lambda _: {})[0].to_pylist()[0]["name"] == "AA"
    (row,) = log_rows([(TopicPartition("out", 0), [(data, b"{}", 5, 0, ())])], SinkNode("out", (), "out", at, JSON))
    assert row["_key"] == "AA"
    assert row["_key_name"] == "AA"


@pytest.mark.parametrize(
    ("text", "message"),
    [('{"TOTL": 1}', "no column 'TOTL'"), ("[1, 2]", "not an object"), ('{"TOTAL": "x"}', "."), ("{", ".")],
)
def test_rows_that_do_not_fit_are_not_written(text: str, message: str) -> None:
    with pytest.raises(Exception, match=message):
        from_text(value_serde(TABLE, Form("JSON")), text)


def test_times_outside_of_pythons_years_are_shown_and_have_no_value_in_columns() -> None:
    columns = (("AT", Primitive.TIMESTAMP), ("N", Primitive.INTEGER))
    serde, row = value_serde(columns, Form("DELIMITED")), (253_402_300_800_000, 1)
    shown = present(serde.plain)(row)
    assert readable(shown) == '{"AT":"253402300800000","N":1}'
    assert from_text(serde, readable(shown)) == row


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_json_does_not_have_are_shown(number: float) -> None:
    assert json.loads(readable({"D": number}))["D"] in {"NaN", "Infinity", "-Infinity"}
    assert jsonable({"D": [number]})["D"][0] in {"NaN", "Infinity", "-Infinity"}
