"""JSON with a schema, through a registry in memory: bytes, types, and what does not fit."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from riverrun import STRING, Consumed, DeserializationError, JsonSchema, Produced, SerializationError, StreamsBuilder
from riverrun.schemas.json_types import schema_of
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
