"""Serdes on a real schema registry: what is registered, what is refused, and what happens while it is away."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from riverrun import (
    BYTES,
    STRING,
    Avro,
    ConfigError,
    Consumed,
    DeserializationError,
    JsonSchema,
    Produced,
    Protobuf,
    Serde,
    StreamsBuilder,
    Topology,
)
from riverrun.errors import RegistryError, SchemaError
from riverrun.schemas.avro.types import schema_of
from riverrun.schemas.registry import RegistryClient, registry_of
from riverrun.serde.api import SerdePlace, placed
from riverrun.sql.planning.planner import build_sql
from riverrun.sql.statement_files import resolve
from riverrun.testing import TopologyTestDriver
from tests.registries import running_registry
from tests.unit.schemas import flights as protobuf
from tests.unit.schemas import tickets

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Flight(msgspec.Struct):
    carrier: str
    delay: int | None = None


class Mistaken(msgspec.Struct):
    carrier: int


@pytest.fixture(scope="module")
def registry() -> Iterator[str]:
    with running_registry() as url:
        yield url


@pytest.fixture
def topic() -> str:
    return f"flights-{uuid.uuid4()}"


def at(url: str, topic: str, **settings: Any) -> SerdePlace:
    return SerdePlace(topic, is_key=False, registry={"url": url, **settings})


def anew(serde: Serde[Any], place: SerdePlace) -> Serde[Any]:
    """The serde as in another process, which has asked for nothing yet."""
    registry_of.__globals__["_registry"].cache_clear()
    return placed(serde, place)


def test_a_schema_is_registered_and_found_by_another_process(registry: str, topic: str) -> None:
    data = placed(Avro(Flight), at(registry, topic)).serialize(Flight("UA", 3))
    version = registry_of({"url": registry}).latest(f"{topic}-value")
    assert data == b"\0" + version.schema_id.to_bytes(4, "big") + b"\4UA\2\6"
    assert version.version == 1
    assert anew(Avro(), at(registry, topic)).deserialize(data) == {"carrier": "UA", "delay": 3}
    assert anew(Avro(Flight), at(registry, topic)).deserialize(data) == Flight("UA", 3)


def test_confluents_own_serializers_write_and_read_the_same(registry: str, topic: str) -> None:
    serde = placed(Avro(Flight), at(registry, topic))
    client, context = SchemaRegistryClient({"url": registry}), SerializationContext(topic, MessageField.VALUE)
    data = serde.serialize(Flight("UA", 3))
    schema = client.get_latest_version(f"{topic}-value").schema
    value = {"carrier": "UA", "delay": 3}
    assert AvroSerializer(client, schema)(value, context) == data
    assert AvroDeserializer(client)(data, context) == value


def test_an_incompatible_schema_is_refused_by_subject_and_versions(registry: str, topic: str) -> None:
    placed(Avro(Flight), at(registry, topic)).serialize(Flight("UA"))
    registry_of({"url": registry})._client.set_compatibility(f"{topic}-value", "BACKWARD")
    mistaken = Avro(
        Mistaken, schema={"type": "record", "name": "Flight", "fields": [{"name": "carrier", "type": "long"}]}
    )
    with pytest.raises(SchemaError, match=f"Subject {topic}-value with its versions 1 refuses the schema"):
        placed(mistaken, at(registry, topic)).serialize(Mistaken(1))


def test_a_schema_that_evolves_is_read_by_those_before_and_after(registry: str, topic: str) -> None:
    class Later(msgspec.Struct):
        carrier: str
        delay: int | None = None
        origin: str = "JFK"

    later = Avro(Later, schema={**schema_of(Later), "name": "Flight"})
    old = placed(Avro(Flight), at(registry, topic)).serialize(Flight("UA", 1))
    new = placed(later, at(registry, topic)).serialize(Later("UA", 2, "LGA"))
    assert placed(later, at(registry, topic)).deserialize(old) == Later("UA", 1, "JFK")
    assert placed(Avro(Flight), at(registry, topic)).deserialize(new) == Flight("UA", 2)
    assert registry_of({"url": registry}).latest(f"{topic}-value").version == 2


def test_references_are_looked_up_in_the_registry(registry: str, topic: str) -> None:
    placed(Avro(Flight), at(registry, topic)).serialize(Flight("UA", 1))
    trip = {"type": "record", "name": "Trip", "fields": [{"name": "first", "type": "Flight"}]}
    serde = placed(Avro(schema=trip, references=[("Flight", f"{topic}-value", 1)]), at(registry, f"{topic}-trips"))
    data = serde.serialize({"first": {"carrier": "UA", "delay": 1}})
    assert anew(Avro(), at(registry, topic)).deserialize(data) == {"first": {"carrier": "UA", "delay": 1}}


def test_json_with_a_schema_is_what_confluents_own_serializers_write(registry: str, topic: str) -> None:
    serde = placed(JsonSchema(Flight), at(registry, topic))
    data = serde.serialize(Flight("UA", 3))
    client, context = SchemaRegistryClient({"url": registry}), SerializationContext(topic, MessageField.VALUE)
    schema = client.get_latest_version(f"{topic}-value").schema
    value = {"carrier": "UA", "delay": 3}
    theirs = JSONSerializer(schema, client)(value, context)
    assert data[:5] == theirs[:5]
    assert JSONDeserializer(schema, schema_registry_client=client)(data, context) == value
    assert serde.deserialize(theirs) == Flight("UA", 3)
    assert anew(JsonSchema(), at(registry, topic)).deserialize(theirs) == value


def test_messages_are_what_confluents_own_serializers_write(registry: str, topic: str) -> None:
    serde = placed(Protobuf(protobuf.Flight), at(registry, topic))
    client, context = SchemaRegistryClient({"url": registry}), SerializationContext(topic, MessageField.VALUE)
    flight = protobuf.Flight(carrier=protobuf.Carrier(name="United"), delay=3)
    data = serde.serialize(flight)
    assert ProtobufSerializer(protobuf.Flight, client, {"use.deprecated.format": False})(flight, context) == data
    assert ProtobufDeserializer(protobuf.Flight, {"use.deprecated.format": False})(data, context) == flight
    assert anew(Protobuf(protobuf.Flight), at(registry, topic)).deserialize(data) == flight
    assert anew(Protobuf(), at(registry, topic)).deserialize(data)["carrier"] == {"name": "United"}


@pytest.mark.parametrize("message", [tickets.ticket(), tickets.Seat(row="1A"), tickets.Tray(folded=True)])
def test_nested_messages_and_all_kinds_of_fields_are_confluents(message: Any, registry: str, topic: str) -> None:
    kind = type(message)
    serde, dicts = (placed(Protobuf(kind, dicts=each), at(registry, topic)) for each in (False, True))
    client, context = SchemaRegistryClient({"url": registry}), SerializationContext(topic, MessageField.VALUE)
    theirs = ProtobufSerializer(kind, client, {"use.deprecated.format": False})(message, context)
    found = anew(Protobuf(), at(registry, topic)).deserialize(theirs)
    assert serde.deserialize(theirs) == message
    assert theirs[:5] == serde.serialize(message)[:5] == dicts.serialize(found)[:5]
    read = ProtobufDeserializer(kind, {"use.deprecated.format": False})
    assert read(serde.serialize(message), context) == read(dicts.serialize(found), context) == message
    assert found == dicts.deserialize(theirs)


def test_a_schema_that_was_registered_as_text_is_read_and_written_with(registry: str, topic: str) -> None:
    number = SchemaRegistryClient({"url": registry}).register_schema(f"{topic}-value", Schema(tickets.TEXT, "PROTOBUF"))
    latest = {"use.latest.version": True, "auto.register.schemas": False}
    data = placed(Protobuf(tickets.Seat, config=latest), at(registry, topic)).serialize(tickets.Seat(row="1A"))
    assert data == b"\0" + number.to_bytes(4, "big") + b"\4\2\0\n\0021A"
    assert anew(Protobuf(), at(registry, topic)).deserialize(data) == {"row": "1A", "tray": None}


def test_statements_read_all_kinds_of_fields_of_messages(registry: str, topic: str, tmp_path: Path) -> None:
    listed = """
        gate BIGINT, cash DOUBLE, traded STRUCT<`ROW` STRING, tray STRUCT<folded BOOLEAN>>, cabin STRING,
        cabins ARRAY<STRING>, seats MAP<STRING, STRUCT<`ROW` STRING>>, by_flag MAP<STRING, STRING>, at TIMESTAMP,
        stops ARRAY<TIMESTAMP>, took STRUCT<seconds BIGINT, nanos INT>, miles BIGINT, note STRING, photos ARRAY<BYTES>,
        price STRUCT<currency_code STRING, units BIGINT>, more MAP<STRING, STRING>
    """
    statements = f"""
        CREATE STREAM tickets ({listed}) WITH (KAFKA_TOPIC = '{topic}', VALUE_FORMAT = 'PROTOBUF');
        CREATE STREAM shown WITH (KAFKA_TOPIC = '{topic}-shown', VALUE_FORMAT = 'JSON') AS SELECT * FROM tickets;
    """  # noqa: S608 - statements of a topology
    message = tickets.ticket()
    message.more.Clear()
    message.more["b"] = "x"
    data = placed(Protobuf(tickets.Ticket), at(registry, topic)).serialize(message)
    topology = build_sql(statements, StreamsBuilder(), file=str(tmp_path / "tickets.sql"))
    with TopologyTestDriver(topology, schema_registry={"url": registry}) as driver:
        driver.input_topic(topic, BYTES, BYTES).pipe_input(None, data)
        shown = driver.output_topic(f"{topic}-shown", BYTES, BYTES).read_value()
    assert shown is not None
    at_ms = int(tickets.AT.timestamp() * 1000)
    assert msgspec.json.decode(shown) == {
        "GATE": 0,
        "CASH": None,
        "TRADED": {"ROW": "1A", "TRAY": {"FOLDED": True}},
        "CABIN": "FIRST",
        "CABINS": ["FIRST", "ECONOMY", "7"],
        "SEATS": {"a": {"ROW": "1A"}},
        "BY_FLAG": {"true": "yes", "false": "no"},
        "AT": at_ms,
        "STOPS": [at_ms, 0],
        "TOOK": {"SECONDS": 3, "NANOS": 5},
        "MILES": 0,
        "NOTE": "",
        "PHOTOS": ["AP8=", ""],
        "PRICE": {"CURRENCY_CODE": "EUR", "UNITS": 3},
        "MORE": {"b": "x"},
    }


def test_columns_of_messages_are_resolved_with_what_they_import(registry: str, topic: str, tmp_path: Path) -> None:
    text = """
        syntax = "proto3"; package riverrun.test;
        import "google/protobuf/wrappers.proto"; import "google/protobuf/duration.proto"; import "google/type/money.proto";
        import "google/protobuf/timestamp.proto";
        message Order {
            message Line { enum Size { S = 0; L = 1; } Size size = 1; optional int32 n = 2; }
            repeated Line lines = 1; map<string, Line> named = 2; google.protobuf.Int64Value miles = 3;
            google.protobuf.Duration took = 4; google.type.Money price = 5; optional string note = 6;
            google.protobuf.Timestamp at = 7;
        }
    """
    number = SchemaRegistryClient({"url": registry}).register_schema(f"{topic}-value", Schema(text, "PROTOBUF"))
    statements = f"""
        CREATE STREAM orders WITH (KAFKA_TOPIC = '{topic}', VALUE_FORMAT = 'PROTOBUF', VALUE_SCHEMA_ID = {number});
        CREATE STREAM again WITH (KAFKA_TOPIC = '{topic}-again', VALUE_FORMAT = 'PROTOBUF', VALUE_SCHEMA_ID = {number}) AS
            SELECT * FROM orders;
    """  # noqa: S608 - statements of a topology
    file = str(tmp_path / "orders.sql")
    _, lines = resolve(statements, file, {"url": registry})
    line = "STRUCT<`size` STRING, `n` INTEGER>"
    assert lines[0].startswith(
        f"ORDERS value: lines ARRAY<{line}>, named MAP<STRING, {line}>, miles BIGINT, "
        "took STRUCT<`seconds` BIGINT, `nanos` INTEGER>, "
        "price STRUCT<`currency_code` STRING, `units` BIGINT, `nanos` INTEGER>, note STRING, at TIMESTAMP (schema "
    )
    order = {
        "lines": [{"size": "L", "n": 0}, {"size": "S", "n": None}],
        "named": {"a": {"size": "L", "n": 1}},
        "miles": 0,
        "took": {"seconds": 3, "nanos": 5},
        "price": {"currency_code": "EUR", "units": 3, "nanos": 0},
        "note": None,
        "at": tickets.AT,
    }
    latest = {"use.latest.version": True, "auto.register.schemas": False}
    data = placed(Protobuf(config=latest), at(registry, topic)).serialize(order)
    topology = build_sql(statements, StreamsBuilder(), file=file)
    with TopologyTestDriver(topology, schema_registry={"url": registry}) as driver:
        driver.input_topic(topic, BYTES, BYTES).pipe_input(None, data)
        again = driver.output_topic(f"{topic}-again", BYTES, BYTES).read_value()
    assert again is not None
    assert anew(Protobuf(), at(registry, topic)).deserialize(again) == order


def test_avro_that_refers_to_other_schemas_has_columns(registry: str, topic: str, tmp_path: Path) -> None:
    client = SchemaRegistryClient({"url": registry})
    place = {
        "type": "record",
        "name": "Place",
        "namespace": "shop",
        "fields": [{"name": "city", "type": {"type": "enum", "name": "City", "symbols": ["ROME", "OSLO"]}}],
    }
    person = {"type": "record", "name": "Person", "namespace": "shop", "fields": [{"name": "home", "type": "Place"}]}
    fields = {"id": "long", "who": "shop.Person", "via": {"type": "array", "items": "shop.Place"}, "last": "shop.City"}
    order = {
        "type": "record",
        "name": "Order",
        "fields": [{"name": name, "type": type_} for name, type_ in fields.items()],
    }
    for_place = SchemaReference("shop.Place", f"{topic}-place", 1)
    for_person = SchemaReference("shop.Person", f"{topic}-person", 1)

    def register(subject: str, schema: Any, references: list[Any]) -> Any:
        return client.register_schema(f"{topic}-{subject}", Schema(json_text(schema), "AVRO", references))

    register("place", place, [])
    register("person", person, [for_place])
    number = register("value", order, [for_person, for_place])
    statements = f"""
        CREATE STREAM orders WITH (KAFKA_TOPIC = '{topic}', VALUE_FORMAT = 'AVRO');
        CREATE STREAM copies WITH (KAFKA_TOPIC = '{topic}-copy', VALUE_FORMAT = 'AVRO', VALUE_SCHEMA_ID = {number}) AS
            SELECT id AS `id`, STRUCT(`home` := STRUCT(`city` := who->home->city)) AS `who`,
                ARRAY[STRUCT(`city` := via[1]->city)] AS `via`, last AS `last` FROM orders;
    """  # noqa: S608 - statements of a topology
    file = str(tmp_path / "orders.sql")
    _, lines = resolve(statements, file, {"url": registry})
    assert lines[0].startswith(
        "ORDERS value: ID BIGINT, WHO STRUCT<HOME STRUCT<CITY STRING>>, VIA ARRAY<STRUCT<CITY STRING>>, LAST STRING (schema "
    )
    data = b"\0" + number.to_bytes(4, "big") + b"\16\2\2\0\0\2"
    topology = build_sql(statements, StreamsBuilder(), file=file)
    with TopologyTestDriver(topology, schema_registry={"url": registry}) as driver:
        driver.input_topic(topic, BYTES, BYTES).pipe_input(None, data)
        assert driver.output_topic(f"{topic}-copy", BYTES, BYTES).read_value() == data


def json_text(schema: Any) -> str:
    return msgspec.json.encode(schema).decode()


def copied() -> Topology:
    builder = StreamsBuilder()
    builder.stream("in", Consumed(STRING, Avro(Flight))).to("out", Produced(STRING, Avro(Flight)))
    return builder.build()


@pytest.mark.parametrize("format_", ["AVRO", "JSON_SR", "PROTOBUF"])
def test_statements_read_and_write_formats_of_the_registry(format_: str, registry: str, topic: str) -> None:
    statements = f"""
        CREATE STREAM flights (carrier STRING KEY, delay INT, seen TIMESTAMP, tags MAP<STRING, DECIMAL(4, 1)>)
            WITH (KAFKA_TOPIC = '{topic}', VALUE_FORMAT = 'JSON');
        CREATE STREAM late WITH (KAFKA_TOPIC = '{topic}-late', FORMAT = '{format_}') AS
            SELECT * FROM flights WHERE delay > 1;
        CREATE STREAM shown WITH (KAFKA_TOPIC = '{topic}-shown', FORMAT = 'JSON') AS SELECT * FROM late;
    """  # noqa: S608 - statements of a topology
    value = b'{"DELAY":3,"SEEN":1,"TAGS":{"a":0.5}}'
    topology = build_sql(statements, StreamsBuilder())
    with TopologyTestDriver(topology, schema_registry={"url": registry}) as driver:
        driver.input_topic(topic, STRING, BYTES).pipe_input("UA", value)
        assert driver.output_topic(f"{topic}-shown", BYTES, BYTES).read_key_value() == (b'"UA"', value)
    subjects = SchemaRegistryClient({"url": registry}).get_subjects()
    assert {f"{topic}-late-key", f"{topic}-late-value"} <= set(subjects)


SCHEMAS = {
    "AVRO": (
        '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}, '
        '{"name": "who", "type": {"type": "record", "name": "Person", "fields": [{"name": "name", "type": "string"}]}}]}'
    ),
    "JSON_SR": (
        '{"type": "object", "properties": {"id": {"type": "integer"}, '
        '"who": {"type": "object", "properties": {"name": {"type": "string"}}}}}'
    ),
    "PROTOBUF": 'syntax = "proto3"; message Order { int64 id = 1; Person who = 2; message Person { string name = 1; } }',
}


@pytest.mark.parametrize("format_", list(SCHEMAS))
def test_columns_are_those_that_the_registry_had_when_they_were_resolved(
    format_: str, registry: str, topic: str, tmp_path: Path
) -> None:
    schema = Schema(SCHEMAS[format_], {"JSON_SR": "JSON"}.get(format_, format_))
    number = SchemaRegistryClient({"url": registry}).register_schema(f"{topic}-value", schema)
    statements = f"""
        CREATE STREAM found WITH (KAFKA_TOPIC = '{topic}', VALUE_FORMAT = '{format_}');
        CREATE STREAM named WITH (KAFKA_TOPIC = '{topic}-named', VALUE_FORMAT = '{format_}', VALUE_SCHEMA_ID = {number}) AS
            SELECT id AS `id`, STRUCT(`name` := UCASE(who->name)) AS `who` FROM found;
        CREATE STREAM again WITH (KAFKA_TOPIC = '{topic}-named', VALUE_FORMAT = '{format_}', VALUE_SCHEMA_ID = {number});
        CREATE STREAM shown WITH (KAFKA_TOPIC = '{topic}-shown', VALUE_FORMAT = 'JSON') AS SELECT * FROM again;
    """  # noqa: S608 - statements of a topology
    file = str(tmp_path / "orders.sql")
    _, lines = resolve(statements, file, {"url": registry})
    assert lines[0].startswith("FOUND value: ID BIGINT, WHO STRUCT<NAME STRING> (schema ")
    topology, head = build_sql(statements, StreamsBuilder(), file=file), b"\0" + number.to_bytes(4, "big")
    value = {
        "AVRO": b"\16\6ann",
        "JSON_SR": b'{"id": 7, "who": {"name": "ann"}}',
        "PROTOBUF": b"\0\x08\7\x12\5\n\3ann",
    }[format_]
    with TopologyTestDriver(topology, schema_registry={"url": registry}) as driver:
        driver.input_topic(topic, BYTES, BYTES).pipe_input(None, head + value)
        named = driver.output_topic(f"{topic}-named", BYTES, BYTES).read_value()
        assert named is not None and named.startswith(head)  # noqa: PT018 - for types
        shown = driver.output_topic(f"{topic}-shown", BYTES, BYTES).read_value()
    assert shown == b'{"id":7,"who":{"name":"ANN"}}'
    subjects = SchemaRegistryClient({"url": registry}).get_subjects()
    assert f"{topic}-named-value" in subjects


def test_an_id_that_the_registry_does_not_know_is_the_handlers(registry: str) -> None:
    settings = {"deserialization.exception.handler": "continue"}
    raw = Serde("raw", bytes, bytes)
    with TopologyTestDriver(copied(), settings, schema_registry={"url": registry}) as driver:
        driver.input_topic("in", STRING, raw).pipe_input("a", b"\0\x7f\0\0\0x")
        assert driver.dropped() == {"undecodable": 1}
    unknown = pytest.raises(DeserializationError, match="does not have schema 2130706432")
    with TopologyTestDriver(copied(), schema_registry={"url": registry}) as driver, unknown:
        driver.input_topic("in", STRING, raw).pipe_input("a", b"\0\x7f\0\0\0x")


def test_no_record_is_dropped_while_the_registry_is_away() -> None:
    away = {"url": "http://127.0.0.1:9", "max.retries": 1, "retries.wait.ms": 1}
    handlers = ("deserialization", "processing", "production")
    settings = {f"{each}.exception.handler": "continue" for each in handlers}
    raw = Serde("raw", bytes, bytes)
    with TopologyTestDriver(copied(), settings, schema_registry=away) as driver:
        source = driver.input_topic("in", STRING, raw)
        with pytest.raises(
            RegistryError, match=r"http://127\.0\.0\.1:9 does not answer the request for schema 1"
        ) as raised:
            source.pipe_input("a", b"\0\0\0\0\1\4UA\0")
        assert raised.value.retriable
        assert driver.dropped() == {}


class Answers(BaseHTTPRequestHandler):
    """Refuses requests without the expected credentials, and keeps those that it was shown."""

    wanted: str | None = None

    def do_GET(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()

    def answer(self) -> None:
        known = self.headers["Authorization"] == self.wanted
        body = b'{"id": 1, "schema": "\\"string\\""}' if known else b'{"error_code": 401, "message": "no"}'
        self.send_response(200 if known else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def answering(wanted: str | None = None) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Wanting", (Answers,), {"wanted": wanted}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"basic.auth.user.info": "ann:hunter2"}, "Basic YW5uOmh1bnRlcjI="),
        ({"bearer.auth.credentials.source": "STATIC_TOKEN", "bearer.auth.token": "hunter2"}, "Bearer hunter2"),
    ],
)
def test_the_client_shows_what_it_was_given(settings: dict[str, str], wanted: str) -> None:
    with answering(wanted) as url:
        assert RegistryClient({"url": url, **settings}).schema(1).schema_str == '"string"'
        others = {key: value.replace("2", "3") for key, value in settings.items()}
        with pytest.raises(RegistryError, match=r"refuses schema 1 \(HTTP 401\)") as refused:
            RegistryClient({"url": url, **others}).schema(1)
    assert "hunter" not in str(refused.value)


def test_a_password_in_the_address_is_shown_to_the_registry_alone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    with answering("Basic YW5uOmh1bnRlcjI=") as url:
        assert RegistryClient({"url": url.replace("//", "//ann:hunter2@")}).schema(1).schema_str == '"string"'
    assert caplog.text
    assert "hunter2" not in caplog.text


def test_impossible_settings_are_named_without_their_values() -> None:
    with pytest.raises(ConfigError) as refused:
        RegistryClient({"url": "http://127.0.0.1:9", "basic.auth.user.info": "hunter2"})
    assert "hunter2" not in str(refused.value)


def test_after_its_first_record_a_schema_needs_no_registry(topic: str) -> None:
    with answering() as url:
        serde = placed(Avro(schema="string"), at(url, topic))
        assert serde.deserialize(serde.serialize("UA")) == "UA"
    assert serde.deserialize(serde.serialize("DL")) == "DL"


def test_instances_that_register_one_subject_at_once_all_succeed(registry: str) -> None:
    subjects = [f"{uuid.uuid4()}-value" for _ in range(10)]
    clients = [RegistryClient({"url": registry}) for _ in range(4)]
    schema = Schema(msgspec.json.encode(schema_of(Flight)).decode(), "AVRO")
    together = threading.Barrier(len(clients))

    def register(client: RegistryClient, subject: str) -> int:
        together.wait()
        found: int = client.registered(subject, schema, normalize=False).schema_id
        return found

    with ThreadPoolExecutor(len(clients)) as threads:
        for subject in subjects:
            found = list(threads.map(register, clients, [subject] * len(clients)))
            assert len(set(found)) == 1
