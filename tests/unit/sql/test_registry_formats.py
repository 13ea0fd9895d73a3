"""Formats of a schema registry in SQL: schemas and bytes as ksqlDB has them, and records that others have written."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import pickle
import uuid
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from riverrun import BYTES, STRING, Protobuf, StreamsBuilder
from riverrun.schemas.registry import registry_of
from riverrun.serde.api import SerdePlace, placed
from riverrun.sql.formats import Form, value_serde
from riverrun.sql.planning.planner import build_sql
from riverrun.sql.statements import SqlError
from riverrun.sql.types import Array, Columns, Decimal, Map, Primitive, Struct
from riverrun.testing import TopologyTestDriver
from tests.unit.schemas import flights

ALL_TYPES: Columns = (
    ("B", Primitive.BOOLEAN),
    ("I", Primitive.INTEGER),
    ("L", Primitive.BIGINT),
    ("D", Primitive.DOUBLE),
    ("T", Primitive.STRING),
    ("X", Primitive.BYTES),
    ("N", Decimal(6, 2)),
    ("DAY", Primitive.DATE),
    ("AT", Primitive.TIME),
    ("WHEN", Primitive.TIMESTAMP),
    ("A", Array(Map(Primitive.STRING, Primitive.INTEGER))),
    ("S", Struct((("X", Primitive.INTEGER), ("Y", Array(Struct((("Z", Primitive.STRING),))))))),
)
ROW = (
    True,
    -1,
    1 << 40,
    0.5,
    "é",
    b"\x00\xff",
    decimal.Decimal("12.30"),
    -3,
    86_399_999,
    -1,
    [{"a": 1, "b": None}, None, {}],
    {"X": 7, "Y": [{"Z": "deep"}, None]},
)
NULLS = (None,) * len(ALL_TYPES)
REGISTRY_FORMATS = ("AVRO", "JSON_SR")
ALL_FORMATS = (*REGISTRY_FORMATS, "PROTOBUF")


@pytest.fixture
def registry() -> dict[str, str]:
    return {"url": f"mock://test-{uuid.uuid4()}"}


def client(registry: dict[str, str]) -> Any:
    return registry_of(registry)._client


@pytest.mark.parametrize("format_", REGISTRY_FORMATS)
@pytest.mark.parametrize("row", [ROW, NULLS])
def test_rows_of_all_types_come_back_in_another_process_as_well(
    format_: str, row: tuple[Any, ...], registry: dict[str, str]
) -> None:
    serde = placed(value_serde(ALL_TYPES, Form(format_)), SerdePlace("t", is_key=False, registry=registry))
    other = pickle.loads(pickle.dumps(serde))  # noqa: S301 - our own
    assert serde.deserialize(serde.serialize(row)) == row
    assert other.deserialize(serde.serialize(row)) == row


@pytest.mark.parametrize("format_", REGISTRY_FORMATS)
@pytest.mark.parametrize("number", range(len(ALL_TYPES)))
def test_single_values_come_back_without_a_record_around_them(
    format_: str, number: int, registry: dict[str, str]
) -> None:
    serde = placed(
        value_serde((ALL_TYPES[number],), Form(format_), wrapped=False), SerdePlace("t", is_key=True, registry=registry)
    )
    assert serde.deserialize(serde.serialize((ROW[number],))) == (ROW[number],)


FULL = (*ROW[:10], [7, 8], {"a": 1, "b": 2}, {"X": 7, "Y": [{"Z": "deep"}, {"Z": "er"}]})
"""Types that Protobuf can hold: no arrays in arrays, and no NULL within them."""
FULL_TYPES: Columns = (
    *ALL_TYPES[:10],
    ("A", Array(Primitive.INTEGER)),
    ("M", Map(Primitive.STRING, Primitive.BIGINT)),
    ALL_TYPES[-1],
)


@pytest.mark.parametrize("format_", ["PROTOBUF", "PROTOBUF_NOSR"])
@pytest.mark.parametrize("nullable", [None, "OPTIONAL", "WRAPPER"])
def test_rows_come_back_from_protobuf(format_: str, nullable: str | None, registry: dict[str, str]) -> None:
    place = SerdePlace("t", is_key=False, registry=registry)
    serde = placed(value_serde(FULL_TYPES, Form(format_, nullable=nullable)), place)
    other = pickle.loads(pickle.dumps(serde))  # noqa: S301 - our own
    assert serde.deserialize(serde.serialize(FULL)) == FULL
    assert other.deserialize(serde.serialize(FULL)) == FULL
    empty = (False, 0, 0, 0.0, "", b"") if nullable is None else (None,) * 6
    nulls = (None,) * len(FULL_TYPES)
    assert serde.deserialize(serde.serialize(nulls)) == (*empty, None, None, None, None, [], {}, None)


@pytest.mark.parametrize("number", ["0", "-0.01", "-128.00", "9999.99"])
def test_decimals_are_those_of_connect(number: str, registry: dict[str, str]) -> None:
    columns: Columns = (("N", Decimal(6, 2)),)
    place = SerdePlace("t", is_key=False, registry=registry)
    value = (decimal.Decimal(number).quantize(decimal.Decimal("0.01")),)
    for format_ in ("AVRO", "PROTOBUF", "JSON_SR"):
        serde = placed(
            value_serde(columns, Form(format_)), SerdePlace(f"{format_}-t", is_key=False, registry=place.registry)
        )
        assert serde.deserialize(serde.serialize(value)) == value


def test_messages_that_others_have_written_are_read_by_the_names_of_columns(registry: dict[str, str]) -> None:
    theirs = placed(Protobuf(flights.Flight), SerdePlace("flights", is_key=False, registry=registry))
    message = flights.Flight(carrier=flights.Carrier(name="UA"), delay=3, status=1, delays={"a": 2})
    message.departed.FromMilliseconds(5)
    data = theirs.serialize(message)
    columns: Columns = (
        ("STATUS", Primitive.STRING),
        ("DELAY", Primitive.BIGINT),
        ("CARRIER", Struct((("NAME", Primitive.STRING),))),
        ("DEPARTED", Primitive.TIMESTAMP),
        ("DELAYS", Map(Primitive.STRING, Primitive.INTEGER)),
        ("MISSING", Primitive.STRING),
    )
    ours = placed(value_serde(columns, Form("PROTOBUF")), SerdePlace("flights", is_key=False, registry=registry))
    assert ours.deserialize(data) == ("LATE", 3, {"NAME": "UA"}, 5, {"a": 2}, None)


@pytest.mark.parametrize(
    ("column", "problem"),
    [
        ("l ARRAY<ARRAY<INT>>", "arrays and maps directly within"),
        ("m MAP<DOUBLE, INT>", "only supports MAP types with STRING keys"),
        ("`1st` INT", "name that Protobuf does not allow"),
    ],
)
def test_what_protobuf_does_not_have_is_refused_when_the_topology_is_built(column: str, problem: str) -> None:
    statement = f"CREATE STREAM s (k STRING KEY, {column}) WITH (KAFKA_TOPIC = 's', VALUE_FORMAT = 'PROTOBUF');"
    with pytest.raises(SqlError, match=problem):
        build_sql(statement, StreamsBuilder(), file="a.sql")


def test_avro_is_what_others_read_with_types_of_their_own(registry: dict[str, str]) -> None:
    serde = placed(value_serde(ALL_TYPES, Form("AVRO")), SerdePlace("t", is_key=False, registry=registry))
    read = AvroDeserializer(client(registry))(serde.serialize(ROW), SerializationContext("t", MessageField.VALUE))
    assert read["N"] == decimal.Decimal("12.30")
    assert read["DAY"] == dt.date(1969, 12, 29)
    assert read["AT"] == dt.time(23, 59, 59, 999_000)
    assert read["WHEN"] == dt.datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=dt.UTC)
    assert read["A"][0] == [{"key": "a", "value": 1}, {"key": "b", "value": None}]
    assert read["S"] == {"X": 7, "Y": [{"Z": "deep"}, None]}


def test_the_schema_of_avro_is_ksqldbs(registry: dict[str, str]) -> None:
    columns: Columns = (("ID", Primitive.BIGINT), ("M", Map(Primitive.STRING, Primitive.INTEGER)))
    placed(value_serde(columns, Form("AVRO")), SerdePlace("t", is_key=False, registry=registry)).serialize((1, None))
    name = "io.confluent.ksql.avro_schemas"
    entry = {
        "type": "record",
        "name": "KsqlDataSourceSchema_M",
        "namespace": name,
        "fields": [
            {"name": "key", "type": ["null", "string"], "default": None},
            {"name": "value", "type": ["null", "int"], "default": None},
        ],
        "connect.internal.type": "MapEntry",
    }
    entries = {"type": "array", "items": entry, "connect.name": f"{name}.KsqlDataSourceSchema_M"}
    assert json.loads(client(registry).get_latest_version("t-value").schema.schema_str) == {
        "type": "record",
        "name": "KsqlDataSourceSchema",
        "namespace": name,
        "fields": [
            {"name": "ID", "type": ["null", "long"], "default": None},
            {"name": "M", "type": ["null", entries], "default": None},
        ],
    }


def test_json_with_a_schema_fits_the_schema(registry: dict[str, str]) -> None:
    serde = placed(value_serde(ALL_TYPES, Form("JSON_SR")), SerdePlace("t", is_key=False, registry=registry))
    data = serde.serialize(ROW)
    schema = json.loads(client(registry).get_latest_version("t-value").schema.schema_str)
    read = JSONDeserializer(json.dumps(schema))(data, SerializationContext("t", MessageField.VALUE))
    assert (read["L"], read["A"][0], read["X"]) == (1 << 40, {"a": 1, "b": None}, "AP8=")
    assert schema["properties"]["L"] == {
        "connect.index": 2,
        "oneOf": [{"type": "null"}, {"type": "integer", "connect.type": "int64"}],
    }


def test_records_of_others_are_read_by_the_names_of_columns(registry: dict[str, str]) -> None:
    """Theirs has lower case, another order, more fields, a real map, and times in other units."""
    schema = {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "extra", "type": "string"},
            {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 3}},
            {"name": "tags", "type": {"type": "map", "values": "long"}},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}},
        ],
    }
    value = {
        "extra": "?",
        "amount": decimal.Decimal("1.500"),
        "tags": {"a": 1},
        "at": dt.datetime(1970, 1, 2, tzinfo=dt.UTC),
        "kind": "NEW",
    }
    write = AvroSerializer(client(registry), json.dumps(schema))
    data = write(value, SerializationContext("orders", MessageField.VALUE))
    columns = "kind STRING, at TIMESTAMP, tags MAP<STRING, INT>, amount DECIMAL(8, 2), missing INT"
    statements = f"""
        CREATE STREAM orders (id STRING KEY, {columns}) WITH (KAFKA_TOPIC = 'orders', VALUE_FORMAT = 'AVRO');
        CREATE STREAM read WITH (VALUE_FORMAT = 'JSON') AS SELECT * FROM orders;
    """
    with TopologyTestDriver(build_sql(statements, StreamsBuilder()), schema_registry=registry) as driver:
        driver.input_topic("orders", STRING, BYTES).pipe_input("a", data)
        found = driver.output_topic("READ", STRING, BYTES).read_value()
    assert found is not None
    assert json.loads(found) == {"KIND": "NEW", "AT": 86_400_000, "TAGS": {"a": 1}, "AMOUNT": 1.5, "MISSING": None}


@pytest.mark.parametrize("format_", ALL_FORMATS)
def test_keys_values_joins_and_windows_have_schemas(format_: str, registry: dict[str, str]) -> None:
    statements = f"""
        CREATE STREAM orders (id BIGINT KEY, item STRING) WITH (KAFKA_TOPIC = 'orders', FORMAT = '{format_}');
        CREATE TABLE prices (item STRING PRIMARY KEY, price DOUBLE) WITH (KAFKA_TOPIC = 'prices', FORMAT = '{format_}');
        CREATE STREAM priced AS SELECT o.item AS item, id, price FROM orders o JOIN prices p ON o.item = p.item;
        CREATE TABLE sold AS SELECT item, SUM(price) AS total FROM priced WINDOW TUMBLING (SIZE 1 DAY) GROUP BY item;
        CREATE TABLE shown WITH (FORMAT = 'JSON') AS SELECT item, total, WINDOWSTART AS day FROM sold;
    """
    orders, prices = (
        [
            placed(
                value_serde((column,), Form(format_), wrapped=False), SerdePlace(topic, is_key=True, registry=registry)
            )
            for column in columns
        ]
        for topic, columns in (("orders", [("ID", Primitive.BIGINT)]), ("prices", [("ITEM", Primitive.STRING)]))
    )
    values = {
        topic: placed(value_serde((column,), Form(format_)), SerdePlace(topic, is_key=False, registry=registry))
        for topic, column in (("orders", ("ITEM", Primitive.STRING)), ("prices", ("PRICE", Primitive.DOUBLE)))
    }
    with TopologyTestDriver(build_sql(statements, StreamsBuilder()), schema_registry=registry) as driver:
        driver.input_topic("prices", BYTES, BYTES).pipe_input(
            prices[0].serialize(("lamp",)), values["prices"].serialize((2.5,))
        )
        for number in (1, 2):
            driver.input_topic("orders", BYTES, BYTES).pipe_input(
                orders[0].serialize((number,)), values["orders"].serialize(("lamp",)), timestamp=number
            )
        found = driver.output_topic("SHOWN", BYTES, BYTES).read_values_to_list()
    assert [json.loads(value or b"") for value in found] == [{"TOTAL": 2.5, "DAY": 0}, {"TOTAL": 5.0, "DAY": 0}]
    assert {"orders-key", "PRICED-key", "PRICED-value", "SOLD-key", "SOLD-value"} <= set(
        client(registry).get_subjects()
    )


def test_the_record_of_a_schema_may_be_named(registry: dict[str, str]) -> None:
    statements = """
        CREATE STREAM s (k STRING KEY, v INT) WITH (KAFKA_TOPIC = 's', VALUE_FORMAT = 'JSON');
        CREATE STREAM o WITH (VALUE_FORMAT = 'AVRO', VALUE_AVRO_SCHEMA_FULL_NAME = 'com.acme.Order') AS SELECT * FROM s;
    """
    with TopologyTestDriver(build_sql(statements, StreamsBuilder()), schema_registry=registry) as driver:
        driver.input_topic("s", STRING, BYTES).pipe_input("a", b'{"V": 1}')
    schema = json.loads(client(registry).get_latest_version("O-value").schema.schema_str)
    assert (schema["namespace"], schema["name"]) == ("com.acme", "Order")


def test_a_single_null_is_no_value(registry: dict[str, str]) -> None:
    statements = """
        CREATE STREAM s (k STRING KEY, v INT) WITH (KAFKA_TOPIC = 's', VALUE_FORMAT = 'JSON');
        CREATE STREAM o WITH (VALUE_FORMAT = 'AVRO', WRAP_SINGLE_VALUE = false) AS SELECT * FROM s;
    """
    with TopologyTestDriver(build_sql(statements, StreamsBuilder()), schema_registry=registry) as driver:
        for value in (b'{"V": 1}', b"{}"):
            driver.input_topic("s", STRING, BYTES).pipe_input("a", value)
        found = driver.output_topic("O", STRING, BYTES).read_values_to_list()
    assert [value and value[5:] for value in found] == [b"\x02", None]


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ("`1st` INT", "name that Avro does not allow"),
        ("m MAP<INT, INT>", "MAPs with STRING keys"),
        ("s STRUCT<`a b` INT>", "name that Avro does not allow"),
    ],
)
def test_what_avro_does_not_have_is_refused_when_the_topology_is_built(columns: str, problem: str) -> None:
    statement = f"CREATE STREAM s (k STRING KEY, {columns}) WITH (KAFKA_TOPIC = 's', VALUE_FORMAT = 'AVRO');"
    with pytest.raises(SqlError, match=problem):
        build_sql(statement, StreamsBuilder(), file="a.sql")


def test_a_schema_of_another_format_is_named(registry: dict[str, str]) -> None:
    schema_id = client(registry).register_schema("s-value", Schema('{"type": "object"}', "JSON"))
    statements = """
        CREATE STREAM s (k STRING KEY, v INT) WITH (KAFKA_TOPIC = 's', VALUE_FORMAT = 'AVRO');
        CREATE STREAM o AS SELECT * FROM s;
    """
    with (
        TopologyTestDriver(build_sql(statements, StreamsBuilder()), schema_registry=registry) as driver,
        pytest.raises(Exception, match="schema of JSON, but the format of the source is AVRO"),
    ):
        driver.input_topic("s", STRING, BYTES).pipe_input("a", b"\0" + schema_id.to_bytes(4) + b"{}")
