"""Protobuf through a registry in memory: indexes of messages, files that import others, messages and dicts."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from pipeline import STRING, ConfigError, Consumed, DeserializationError, Produced, Protobuf, Serde, StreamsBuilder
from pipeline.schemas.protobuf_types import plain
from pipeline.schemas.registry import registry_of
from pipeline.serde.api import SerdePlace, placed
from pipeline.spark.columns import columns_of
from pipeline.testing import TopologyTestDriver
from tests.unit.schemas.flights import Airport, Carrier, Flight, Leg


def at(url: str) -> SerdePlace:
    return SerdePlace("flights", is_key=False, registry={"url": url})


@pytest.fixture
def url() -> str:
    return f"mock://test-{uuid.uuid4()}"


FULL = Flight(
    carrier=Carrier(name="United"), delay=2**40, status=1, legs=[Leg(origin="JFK")], delays={"JFK": 3}, photo=b"\0\xff"
)
FULL.departed.FromDatetime(dt.datetime(2013, 1, 1, 5, 15, tzinfo=dt.UTC))
AS_DICT = {
    "carrier": {"name": "United"},
    "delay": 2**40,
    "status": "LATE",
    "legs": [{"origin": "JFK"}],
    "delays": {"JFK": 3},
    "departed": dt.datetime(2013, 1, 1, 5, 15, tzinfo=dt.UTC),
    "photo": b"\0\xff",
}


@pytest.mark.parametrize(
    ("message", "indexes"),
    [(Airport(code="JFK"), "00"), (Flight(delay=1), "0202"), (Leg(origin="JFK"), "040200")],
)
def test_the_place_of_a_message_in_its_file_is_behind_the_id(url: str, message: Any, indexes: str) -> None:
    serde = placed(Protobuf(type(message)), at(url))
    data = serde.serialize(message)
    schema_id = registry_of({"url": url}).latest("flights-value").schema_id
    assert data == b"\0" + schema_id.to_bytes(4, "big") + bytes.fromhex(indexes) + message.SerializeToString()
    assert serde.deserialize(data) == message


def test_the_long_form_of_the_first_message_is_read_too(url: str) -> None:
    serde = placed(Protobuf(Airport), at(url))
    data = serde.serialize(Airport(code="JFK"))
    assert serde.deserialize(data[:5] + b"\2\0" + data[6:]) == Airport(code="JFK")


def test_files_that_are_imported_are_registered_and_referred_to(url: str) -> None:
    placed(Protobuf(Flight), at(url)).serialize(FULL)
    registry = registry_of({"url": url})
    (reference,) = registry.latest("flights-value").schema.references
    assert (reference.name, reference.subject, reference.version) == (("millrace/carriers.proto",) * 2 + (1,))


def test_dicts_have_all_fields_of_a_message_and_become_one(url: str) -> None:
    messages, dicts = placed(Protobuf(Flight), at(url)), placed(Protobuf(Flight, dicts=True), at(url))
    data = messages.serialize(FULL)
    assert dicts.deserialize(data) == plain(FULL) == AS_DICT
    assert messages.deserialize(dicts.serialize(AS_DICT)) == FULL
    assert plain(Flight()) == {
        "carrier": None,
        "delay": 0,
        "status": "PLANNED",
        "legs": [],
        "delays": {},
        "departed": None,
        "photo": b"",
    }
    with pytest.raises(ValueError, match="no field named"):
        dicts.serialize({"carier": {}})


@pytest.mark.parametrize("message", [FULL, Leg(origin="JFK"), Airport(code="JFK")])
def test_without_a_class_values_are_read_by_the_schema_of_the_writer(url: str, message: Any) -> None:
    data = placed(Protobuf(type(message)), at(url)).serialize(message)
    assert placed(Protobuf(), at(url)).deserialize(data) == plain(message)


def test_columns_are_those_of_the_message(url: str) -> None:
    serde = placed(Protobuf(Flight), at(url))
    columns = columns_of("value", serde)
    (rows,) = columns.arrays([serde.serialize(FULL)], lambda _: {})
    assert rows.to_pylist() == [{**AS_DICT, "delays": [("JFK", 3)]}]
    assert rows.type.field("departed").type == pa.timestamp("us", "UTC")
    assert msgspec.convert(AS_DICT, serde.value_type) == AS_DICT


def test_what_is_no_message_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="protoc"):
        Protobuf(dict)
    with pytest.raises(TypeError, match=r"Airport is not millrace\.test\.Flight"):
        placed(Protobuf(Flight), at(url)).serialize(Airport())


@pytest.mark.parametrize("end", [b"", b"\4", b"\0\xff"])
def test_damaged_messages_are_records_that_cannot_be_read(url: str, end: bytes) -> None:
    builder = StreamsBuilder()
    builder.stream("in", Consumed(STRING, Protobuf(Airport))).to("out", Produced(STRING, Protobuf(Airport)))
    with TopologyTestDriver(builder.build(), schema_registry={"url": url}) as driver:
        source = driver.input_topic("in", STRING, Protobuf(Airport))
        source.pipe_input("a", Airport(code="JFK"))
        assert driver.output_topic("out", STRING, Protobuf(Airport)).read_value() == Airport(code="JFK")
        raw = driver.input_topic("in", STRING, Serde("raw", bytes, bytes))
        with pytest.raises(DeserializationError, match="protobuf"):
            raw.pipe_input("a", b"\0\0\0\0\1" + end)
