"""Avro through a registry in memory: bytes, types, schemas that differ, and where a serde is used."""

from __future__ import annotations

import datetime as dt
import enum
import pickle
import uuid
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from riverrun import (
    STRING,
    Avro,
    ConfigError,
    Consumed,
    DeserializationError,
    Grouped,
    Materialized,
    Produced,
    Serde,
    StreamsBuilder,
    TimeWindows,
    Topology,
    windowed,
)
from riverrun.errors import SchemaError, SerializationError
from riverrun.schemas.avro.types import schema_of
from riverrun.schemas.registry import registry_of
from riverrun.serde.api import SerdePlace, placed
from riverrun.testing import TopologyTestDriver


class Carrier(enum.Enum):
    UNITED = "UA"
    DELTA = "DL"


class Flight(msgspec.Struct):
    carrier: str
    delay: int | None = None


@dataclass
class Trip:
    id: uuid.UUID
    at: dt.datetime
    day: dt.date
    flights: list[Flight]
    carrier: Carrier = Carrier.UNITED
    seen: dict[str, float] = field(default_factory=dict)
    photo: bytes = b""


FLIGHT = {
    "type": "record",
    "name": "Flight",
    "namespace": "com.acme",
    "fields": [{"name": "carrier", "type": "string"}, {"name": "delay", "type": "int"}],
}


def at(url: str, topic: str | None = "flights", *, is_key: bool = False, **settings: Any) -> SerdePlace:
    return SerdePlace(topic, is_key, {"url": url, **settings})


@pytest.fixture
def url() -> str:
    return f"mock://test-{uuid.uuid4()}"


def test_bytes_are_magic_byte_id_and_what_avro_prescribes(url: str) -> None:
    serde = placed(Avro(schema=FLIGHT), at(url))
    assert serde.serialize({"carrier": "UA", "delay": -2}) == bytes([0, 0, 0, 0, 1, 4]) + b"UA" + bytes([3])
    assert serde.deserialize(bytes([0, 0, 0, 0, 1, 4]) + b"UA" + bytes([3])) == {"carrier": "UA", "delay": -2}


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (Flight, Flight("UA", 3)),
        (Flight, Flight("UA")),
        (list[Flight], [Flight("UA")]),
        (dict[str, int], {"a": 2**62}),
        (float, 0.5),
        (
            Trip,
            Trip(
                uuid.UUID(int=7), dt.datetime(2013, 1, 1, 5, 15, 0, 7, dt.UTC), dt.date(2013, 1, 1), [Flight("DL", 1)]
            ),
        ),
    ],
)
def test_values_of_a_type_come_back_as_they_were(url: str, type_: Any, value: Any) -> None:
    serde = placed(Avro(type_), at(url))
    assert serde.deserialize(serde.serialize(value)) == value


def test_a_schema_is_made_of_a_type() -> None:
    assert schema_of(Flight) == {
        "type": "record",
        "name": "Flight",
        "fields": [
            {"name": "carrier", "type": "string"},
            {"name": "delay", "type": ["null", "long"], "default": None},
        ],
    }


def test_a_type_that_avro_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="schema="):
        Avro(dict[int, str])


def test_readers_resolve_what_was_written_with_another_schema(url: str) -> None:
    class Later(msgspec.Struct):
        carrier: str
        origin: str = "JFK"

    later = Avro(Later, schema={**schema_of(Later), "name": "Flight", "namespace": "com.acme"})
    data = placed(Avro(schema=FLIGHT), at(url)).serialize({"carrier": "UA", "delay": 1})
    assert placed(later, at(url)).deserialize(data) == Later("UA", "JFK")
    assert placed(Avro(), at(url)).deserialize(data) == {"carrier": "UA", "delay": 1}


@pytest.mark.parametrize(
    ("strategy", "is_key", "subject"),
    [
        ("topic_subject_name_strategy", False, "flights-value"),
        ("TopicNameStrategy", True, "flights-key"),
        ("record_subject_name_strategy", False, "com.acme.Flight"),
        ("io.confluent.kafka.serializers.subject.TopicRecordNameStrategy", True, "flights-com.acme.Flight"),
        (lambda context, record: f"{context.field}/{record}", False, "value/com.acme.Flight"),
    ],
)
def test_a_strategy_names_the_subject(url: str, strategy: Any, is_key: bool, subject: str) -> None:
    place = at(url, is_key=is_key)
    serde = placed(Avro(schema=FLIGHT, config={"subject.name.strategy": strategy}), place)
    serde.serialize({"carrier": "UA", "delay": 1})
    assert registry_of(place.registry).latest(subject).version == 1


def test_a_topic_that_is_chosen_per_record_needs_another_strategy(url: str) -> None:
    with pytest.raises(SchemaError, match="record_subject_name_strategy"):
        placed(Avro(schema=FLIGHT), at(url, None)).serialize({"carrier": "UA", "delay": 1})


def test_the_latest_version_is_written_where_that_is_wanted(url: str) -> None:
    placed(Avro(schema=FLIGHT), at(url)).serialize({"carrier": "UA", "delay": 1})
    latest = Avro(config={"auto.register.schemas": False, "use.latest.version": True})
    assert placed(latest, at(url)).serialize({"carrier": "DL", "delay": 0}) == b"\0\0\0\0\1\4DL\0"


def test_a_version_registered_meanwhile_is_written_from_the_next_start_on(url: str) -> None:
    flight = {"carrier": "DL", "delay": 0}
    placed(Avro(schema=FLIGHT), at(url)).serialize(flight)
    latest = Avro(config={"auto.register.schemas": False, "use.latest.version": True})
    running = placed(latest, at(url))
    before = running.serialize(flight)
    fields = [*FLIGHT["fields"], {"name": "gate", "type": "string", "default": "A1"}]
    placed(Avro(schema={**FLIGHT, "fields": fields}), at(url)).serialize({**flight, "gate": "B2"})
    assert running.serialize(flight) == before
    restarted = placed(latest, at(url))
    written = restarted.serialize({**flight, "gate": "B2"})
    assert written[:5] != before[:5]
    assert running.deserialize(written)["gate"] == "B2"
    assert restarted.deserialize(before) == flight


def test_schemas_refer_to_others(url: str) -> None:
    placed(Avro(schema=FLIGHT), at(url, "other")).serialize({"carrier": "UA", "delay": 1})
    trip = {"type": "record", "name": "Trip", "fields": [{"name": "first", "type": "com.acme.Flight"}]}
    serde = placed(Avro(schema=trip, references=[("com.acme.Flight", "other-value", 1)]), at(url))
    data = serde.serialize({"first": {"carrier": "UA", "delay": 1}})
    assert placed(Avro(), at(url)).deserialize(data) == {"first": {"carrier": "UA", "delay": 1}}


@pytest.mark.parametrize(
    "settings", [{"auto.registr.schemas": True}, {"use.latest.version": "yes"}, {"url": "http://x"}]
)
def test_unknown_settings_of_a_serde_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Avro(Flight, config=settings)


def test_a_schema_that_may_not_be_registered_is_named(url: str) -> None:
    serde = placed(Avro(Flight, config={"auto.register.schemas": False}), at(url))
    with pytest.raises(SchemaError, match="does not have that schema as a version of subject flights-value"):
        serde.serialize(Flight("UA"))


@pytest.mark.parametrize("place", ["sink", "store"])
def test_a_task_whose_schema_is_refused_ends_with_the_registrys_hint(place: str) -> None:
    builder, serde = StreamsBuilder(), Avro(Flight, config={"auto.register.schemas": False})
    flights = builder.stream("carriers", Consumed(STRING, STRING)).map_values(Flight)
    if place == "sink":
        flights.to("flights", Produced(STRING, serde))
    else:
        flights.to_table(Materialized(STRING, serde, name="flights"))
    with TopologyTestDriver(builder.build()) as driver, pytest.raises(SerializationError) as ended:
        driver.input_topic("carriers", STRING, STRING).pipe_input("UA1", "UA")
    assert "refuses it (SchemaError: Schema registry" in ended.value.message
    assert "Hint" not in ended.value.message
    assert ended.value.hint is not None
    where, _, advice = ended.value.hint.partition("\n")
    # Not the line of the library that asks the registry.
    assert "is made at tests/unit/schemas/test_avro.py:" in where
    assert advice.startswith("Register it, or set auto.register.schemas = true.")


def test_a_serde_without_a_registry_says_so() -> None:
    with pytest.raises(ConfigError, match="outside an application"):
        Avro(Flight).serialize(Flight("UA"))
    with pytest.raises(ConfigError, match=r"\[schema_registry\]"):
        placed(Avro(Flight), SerdePlace("flights", is_key=False, registry={})).serialize(Flight("UA"))


def test_serdes_are_pickled_with_their_place(url: str) -> None:
    before = placed(Avro(schema=FLIGHT), at(url))
    after: Serde[Any] = pickle.loads(pickle.dumps(before))  # noqa: S301 - our own
    value = {"carrier": "UA", "delay": 1}
    assert after.serialize(value) == before.serialize(value)
    assert after.name == before.name == "avro[com.acme.Flight]"


def test_a_serde_that_has_its_place_keeps_it(url: str) -> None:
    serde = placed(Avro(Flight), at(url))
    assert placed(serde, at(url, "others")) is serde
    windows = placed(windowed(serde), at(url, "others"))
    assert windows.remake is not None
    assert windows.remake[1][0] is serde


def counted() -> Topology:
    builder = StreamsBuilder()
    flights = builder.stream("flights", Consumed(Avro(schema="string"), Avro(Flight)))
    by_carrier = flights.group_by(lambda _key, flight: flight.carrier, Grouped(Avro(schema="string"), Avro(Flight)))
    table = by_carrier.windowed_by(TimeWindows.of_size_with_no_grace(dt.timedelta(minutes=1))).reduce(
        lambda total, flight: Flight(flight.carrier, (total.delay or 0) + (flight.delay or 0))
    )
    stream = table.to_stream().map(lambda key, flight: (key.key, flight))
    stream.to("delays", Produced(STRING, Avro(Flight)))
    return builder.build()


def test_subjects_are_those_of_topics_and_of_internal_topics(url: str) -> None:
    with TopologyTestDriver(counted(), schema_registry={"url": url}) as driver:
        flights = driver.input_topic("flights", Avro(schema="string"), Avro(Flight))
        flights.pipe_key_value_list([("1", Flight("UA", 3)), ("2", Flight("UA", 4))])
        delays = driver.output_topic("delays", STRING, Avro(Flight)).read_values_to_list()
    assert delays == [Flight("UA", 3), Flight("UA", 7)]
    store = "KSTREAM-REDUCE-STATE-STORE-0000000002"
    subjects = {
        "delays-value",
        "flights-key",
        "flights-value",
        f"test-{store}-changelog-key",
        f"test-{store}-changelog-value",
        f"test-{store}-repartition-key",
        f"test-{store}-repartition-value",
    }
    assert set(registry_of({"url": url})._client.get_subjects()) == subjects


def test_a_fingerprint_says_which_records_not_which_registry() -> None:
    assert counted().fingerprint() == counted().fingerprint()
    with TopologyTestDriver(counted()):
        assert counted().fingerprint() == counted().fingerprint()


def joined() -> Topology:
    builder = StreamsBuilder()
    keys, values = Avro(schema="string"), Avro(Flight)
    flights = builder.table("flights", Consumed(keys, values))
    names = builder.table("names", Consumed(Avro(schema="string"), STRING))
    of_carrier = flights.join(
        names, lambda flight, name: f"{name} {flight.delay}", foreign_key_extractor=lambda flight: flight.carrier
    )
    of_carrier.to_stream().to("out", Produced(keys, STRING))
    return builder.build()


def test_joins_by_foreign_key_use_keys_and_values_with_schemas() -> None:
    with TopologyTestDriver(joined()) as driver:
        driver.input_topic("names", Avro(schema="string"), STRING).pipe_input("UA", "United")
        driver.input_topic("flights", Avro(schema="string"), Avro(Flight)).pipe_input("1", Flight("UA", 4))
        driver.input_topic("names", Avro(schema="string"), STRING).pipe_input("UA", "UNITED")
        out = driver.output_topic("out", Avro(schema="string"), STRING).read_values_to_list()
    assert out == ["United 4", "UNITED 4"]


@pytest.mark.parametrize("data", [b"", b"{}", b"\0\0\0\0", b"\0\0\0\0\7x"])
def test_bytes_without_a_known_schema_go_to_the_handler(data: bytes) -> None:
    builder = StreamsBuilder()
    builder.stream("in", Consumed(STRING, Avro(Flight))).to("out", Produced(STRING, Avro(Flight)))
    topology = builder.build()
    raw = Serde("raw", bytes, bytes)
    with TopologyTestDriver(topology, {"deserialization.exception.handler": "continue"}) as driver:
        driver.input_topic("in", STRING, raw).pipe_input("a", data)
        assert driver.dropped() == {"undecodable": 1}
    with TopologyTestDriver(topology) as driver, pytest.raises(DeserializationError, match="avro"):
        driver.input_topic("in", STRING, raw).pipe_input("a", data)
