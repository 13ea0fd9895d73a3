"""JSON with a schema, through a registry in memory: bytes, types, and what does not fit."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from confluent_kafka.schema_registry import Schema
from jsonschema.validators import validator_for

from riverrun import (
    BYTES,
    JSON,
    STRING,
    Avro,
    ConfigError,
    Consumed,
    DeserializationError,
    JsonSchema,
    Produced,
    SerializationError,
    StreamsBuilder,
)
from riverrun.schemas.json_schema import schema_of
from riverrun.schemas.registry import registry_of
from riverrun.serde.api import SerdePlace, placed
from riverrun.testing import TopologyTestDriver


class Flight(msgspec.Struct):
    carrier: str
    delay: int | None = None


@dataclass
class Trip:
    flights: list[Flight]


class Node(msgspec.Struct):
    children: list[Node] = []


FLIGHT = {
    "title": "Flight",
    "type": "object",
    "properties": {"carrier": {"type": "string"}, "delay": {"type": "integer"}},
    "required": ["carrier"],
}


def at(url: str, topic: str = "flights") -> SerdePlace:
    return SerdePlace(topic, is_key=False, registry={"url": url})


@pytest.fixture
def url() -> str:
    return f"mock://test-{uuid.uuid4()}"


def test_bytes_are_magic_byte_id_and_json(url: str) -> None:
    data = placed(JsonSchema(schema=FLIGHT), at(url)).serialize({"carrier": "UA", "delay": 1})
    assert data == b'\0\0\0\0\1{"carrier":"UA","delay":1}'
    assert placed(JsonSchema(), at(url)).deserialize(data) == {"carrier": "UA", "delay": 1}


@pytest.mark.parametrize(
    ("type_", "value"),
    [(Flight, Flight("UA", 3)), (Trip, Trip([Flight("UA")])), (list[int], [1]), (Node, Node([Node()]))],
)
def test_values_of_a_type_come_back_and_fit_its_schema(url: str, type_: Any, value: Any) -> None:
    serde = placed(JsonSchema(type_), at(url))
    data = serde.serialize(value)
    assert serde.deserialize(data) == value
    assert placed(JsonSchema(), at(url)).deserialize(data) == msgspec.to_builtins(value)


def test_a_schema_has_the_name_of_its_type_as_title(url: str) -> None:
    placed(JsonSchema(Trip), at(url)).serialize(Trip([]))
    registered = registry_of({"url": url}).latest("flights-value").schema
    assert registered.schema_type == "JSON"
    assert json.loads(registered.schema_str) == schema_of(Trip)
    assert schema_of(Trip)["title"] == "Trip"


def test_schemas_refer_to_others(url: str) -> None:
    placed(JsonSchema(schema=FLIGHT), at(url, "other")).serialize({"carrier": "UA"})
    trip = {"title": "Trip", "type": "object", "properties": {"first": {"$ref": "flight.json"}}}
    serde = placed(JsonSchema(schema=trip, references=[("flight.json", "other-value", 1)]), at(url))
    assert serde.deserialize(serde.serialize({"first": {"carrier": "UA"}})) == {"first": {"carrier": "UA"}}
    with pytest.raises(ValueError, match=r"'carrier' is a required property, at \$.first"):
        serde.serialize({"first": {}})


def test_what_does_not_fit_the_schema_is_neither_written_nor_read(url: str) -> None:
    builder = StreamsBuilder()
    serde = JsonSchema(schema=FLIGHT)
    builder.stream("in", Consumed(STRING, serde)).map_values(lambda _: {"delay": 1}).to("out", Produced(STRING, serde))
    unreadable = pytest.raises(DeserializationError, match="1 is not of type 'string', at")
    with TopologyTestDriver(builder.build(), schema_registry={"url": url}) as driver, unreadable:
        driver.input_topic("in", STRING, _raw(url)).pipe_input("a", {"carrier": 1})
    with TopologyTestDriver(builder.build(), schema_registry={"url": url}) as driver:
        source = driver.input_topic("in", STRING, serde)
        with pytest.raises(SerializationError, match="'carrier' is a required property"):
            source.pipe_input("a", {"carrier": "UA"})


def _raw(url: str) -> Any:
    """A serde that writes with the schema of flights, and checks nothing."""
    return placed(JsonSchema(Any, schema=FLIGHT), at(url, "in"))


def test_columns_are_those_of_the_schema() -> None:
    value_type = JsonSchema(schema=FLIGHT).value_type
    assert msgspec.convert({"carrier": "UA", "delay": 1}, value_type) == {"carrier": "UA", "delay": 1}
    assert JsonSchema(Flight).value_type is Flight


def written(schema: Any, payload: bytes) -> tuple[str, bytes]:
    """A registry with a schema, and a value that says to be written with it."""
    address = f"mock://{uuid.uuid4()}"
    text = schema if isinstance(schema, str) else json.dumps(schema)
    known = registry_of({"url": address}).registered("in-value", Schema(text, "JSON"), normalize=False).schema_id
    return address, b"\0" + known.to_bytes(4) + payload


def laughing(levels: int) -> Any:
    parts: dict[str, Any] = {"a0": {"type": "string"}}
    for n in range(1, levels):
        parts[f"a{n}"] = {"allOf": [{"$ref": f"#/definitions/a{n - 1}"}] * 2}
    return {"definitions": parts, "$ref": f"#/definitions/a{levels - 1}"}


ATTACKS: list[tuple[Any, bytes]] = [
    (laughing(40), b'"x"'),
    ({"properties": {"a": {"$schema": "http://json-schema.org/draft-07/schema#", **laughing(40)}}}, b'{"a":"x"}'),
    ({"$ref": "#"}, b"{}"),
    ({"pattern": "^(a+)+$"}, b'"' + b"a" * 5000 + b'b"'),
    (
        {"patternProperties": {"^(a+)+$": {"type": "string"}}, "additionalProperties": False},
        b'{"' + b"a" * 60 + b'b":1}',
    ),
    ({"patternProperties": {"^(a+)+$": {}}, "unevaluatedProperties": False}, b'{"' + b"a" * 60 + b'b":1}'),
    ({"pattern": "(?=a)a"}, b'"b"'),
    ({}, b"[" * 100_000 + b"]" * 100_000),
    ({}, b"1" * 5000),
    ('{"not":' * 5000 + "{}" + "}" * 5000, b"{}"),
    ({"uniqueItems": True}, json.dumps([{"a": n % 5999} for n in range(6000)]).encode()),
    ("[1]", b"{}"),
    ({"$ref": "file:///etc/passwd"}, b"{}"),
]


@pytest.mark.parametrize(("schema", "payload"), ATTACKS, ids=range(len(ATTACKS)))
def test_schemas_and_values_without_end_go_to_the_handler(schema: Any, payload: bytes) -> None:
    address, data = written(schema, payload)
    builder = StreamsBuilder()
    builder.stream("in", Consumed(STRING, JsonSchema())).to("out", Produced(STRING, JSON))
    config = {"deserialization.exception.handler": "continue"}
    with TopologyTestDriver(builder.build(), config, schema_registry={"url": address}) as driver:
        driver.input_topic("in", STRING, BYTES).pipe_input("k", data)
        assert driver.dropped() == {"undecodable": 1}


VALUES: list[Any] = [
    1,
    1.0,
    True,
    "a",
    "ab1",
    "\u00e9",
    None,
    [],
    [1, 1.0],
    [1, True],
    [{"a": 1}, {"a": 1.0}],
    {"a1": 1, "b": 2},
    {},
]
SCHEMAS: list[Any] = [
    {"uniqueItems": True},
    {"pattern": "^a"},
    {"pattern": "\\\\u00e9"},
    {"pattern": "[0-9]$"},
    {"patternProperties": {"[0-9]": {"type": "string"}}},
    {"patternProperties": {"[0-9]": {"type": "integer"}}, "additionalProperties": False},
    {"patternProperties": {"[0-9]": {}}, "additionalProperties": {"type": "string"}, "properties": {"b": {}}},
    {"additionalProperties": False, "properties": {"b": {}}},
    {"definitions": {"s": {"type": "string"}}, "anyOf": [{"$ref": "#/definitions/s"}, {"type": "array"}]},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
def test_bounded_checks_judge_as_the_library_does(schema: Any) -> None:
    validator = validator_for(schema)(schema)
    for value in VALUES:
        address, data = written(schema, json.dumps(value).encode())
        read = placed(JsonSchema(), SerdePlace("in", is_key=False, registry={"url": address})).deserialize
        if validator.is_valid(value):
            assert read(data) == value
        else:
            with pytest.raises(ValueError, match="at "):
                read(data)


@pytest.mark.parametrize("serde", [Avro, JsonSchema])
@pytest.mark.parametrize("make", [lambda text: text, json.loads], ids=["text", "parsed"])
def test_a_deep_schema_is_refused_when_the_topology_is_built(serde: Any, make: Any) -> None:
    text = '{"type":"array","items":' * 900 + '"string"' + "}" * 900
    with pytest.raises(ConfigError, match=r"deep|recursion"):
        serde(schema=make(text))
