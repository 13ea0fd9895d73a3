"""Protobuf through a registry in memory: indexes of messages, files that import others, messages and dicts."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun import (
    BYTES,
    STRING,
    ConfigError,
    Consumed,
    DeserializationError,
    Materialized,
    Produced,
    Protobuf,
    Repartitioned,
    Serde,
    StreamsBuilder,
)
from riverrun.errors import SchemaError
from riverrun.schemas.protobuf_files import add_file, file_of
from riverrun.schemas.protobuf_types import plain_of
from riverrun.schemas.registry import registry_of
from riverrun.serde.api import SerdePlace, placed
from riverrun.spark.columns import columns_of
from riverrun.testing import TopologyTestDriver
from tests.unit.schemas import tickets
from tests.unit.schemas.flights import Airport, Carrier, Flight, Leg
from tests.unit.schemas.tickets import Passenger, Seat, Ticket, Tray


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
    assert (reference.name, reference.subject, reference.version) == (("riverrun/carriers.proto",) * 2 + (1,))


def test_dicts_have_all_fields_of_a_message_and_become_one(url: str) -> None:
    messages, dicts = placed(Protobuf(Flight), at(url)), placed(Protobuf(Flight, dicts=True), at(url))
    data = messages.serialize(FULL)
    assert dicts.deserialize(data) == plain_of(Flight.DESCRIPTOR)(FULL) == AS_DICT
    assert messages.deserialize(dicts.serialize(AS_DICT)) == FULL
    assert plain_of(Flight.DESCRIPTOR)(Flight()) == {
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
    assert placed(Protobuf(), at(url)).deserialize(data) == plain_of(message.DESCRIPTOR)(message)


def test_columns_are_those_of_the_message(url: str) -> None:
    serde = placed(Protobuf(Flight), at(url))
    columns = columns_of("value", serde)
    (rows,) = columns.arrays([serde.serialize(FULL)], lambda _: {})
    assert rows.to_pylist() == [{**AS_DICT, "delays": [("JFK", 3)]}]
    assert rows.type.field("departed").type == pa.timestamp("us", "UTC")
    assert msgspec.convert(AS_DICT, serde.value_type) == AS_DICT


@pytest.mark.parametrize("is_plain", [True, False])
def test_columns_have_enums_whose_numbers_have_no_name(url: str, *, is_plain: bool) -> None:
    """A later version of the class may know the number: `cabins` has a 7, as proto3 allows."""
    serde: Serde[Any] = placed(Protobuf(Ticket, dicts=is_plain), at(url))
    data = placed(Protobuf(Ticket), at(url)).serialize(tickets.ticket())
    (rows,) = columns_of("value", serde).arrays([data], lambda _: {})
    (row,) = rows.to_pylist()
    assert row["cabins"] == ["FIRST", "ECONOMY", "7"]
    assert (row["gate"], row["took"], row["photos"]) == (0, {"seconds": 3, "nanos": 5}, [b"\0\xff", b""])
    assert serde.serialize(serde.deserialize(data)) == data


def test_what_is_no_message_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="protoc"):
        Protobuf(dict)
    with pytest.raises(TypeError, match=r"Airport is not riverrun\.test\.Flight"):
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


@pytest.mark.parametrize(("message", "value"), [(tickets.ticket(), tickets.AS_DICT), (Ticket(), tickets.NOTHING)])
def test_all_kinds_of_fields_are_read_and_written(url: str, message: Any, value: dict[str, Any]) -> None:
    messages, dicts = placed(Protobuf(Ticket), at(url)), placed(Protobuf(Ticket, dicts=True), at(url))
    data = messages.serialize(message)
    assert messages.deserialize(data) == message
    assert dicts.deserialize(data) == placed(Protobuf(), at(url)).deserialize(data) == value
    assert dicts.serialize(value) == data
    assert msgspec.convert(value | {"cabins": []}, dicts.value_type) == value | {"cabins": []}


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ({"took": dt.timedelta(seconds=1.5)}, Ticket(took={"seconds": 1, "nanos": 500_000_000})),
        ({"at": "1970-01-01T00:00:01Z"}, Ticket(at={"seconds": 1})),
        ({"by_number": {3: 1}}, Ticket(by_number={3: 1})),
        ({"traded": {}}, Ticket(traded={})),
        ({"price": None, "cash": 1}, Ticket(cash=1.0)),
    ],
)
def test_dicts_may_be_written_in_other_ways(url: str, value: dict[str, Any], written: Any) -> None:
    data = placed(Protobuf(Ticket, dicts=True), at(url)).serialize(value)
    assert placed(Protobuf(Ticket), at(url)).deserialize(data) == written


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"cash": 1.0, "free": {}}, "only one of the fields cash and free may have a value"),
        ({"spare": [{"row": 3}]}, "spare: row: "),
        ({"spare": [{"raw": "3"}]}, "spare: riverrun.test.Ticket.Seat has no field named raw"),
        ({"traded": 3}, "traded: 3 is not a riverrun.test.Ticket.Seat"),
        ({"cabin": "THIRD"}, "cabin: .*THIRD"),
        ({"at": 3}, "at: "),
        ({"took": 3}, "took: 3 is not a google.protobuf.Duration"),
        ({"by_number": {"x": 1}}, "by_number: "),
        ({"by_flag": {"x": "1"}}, "by_flag: 'x' is not a bool"),
        ({"spare": 3}, "spare: "),
        ({"seats": []}, "seats: .* is not a map"),
        ({"miles": "3"}, "miles: "),
        ({"more": [3]}, "more: "),
        ([], r"\[\] is not a riverrun.test.Ticket"),
    ],
)
def test_dicts_that_do_not_fit_are_refused_by_the_field(url: str, value: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        placed(Protobuf(Ticket, dicts=True), at(url)).serialize(value)


@pytest.mark.parametrize(("message", "indexes"), [(Ticket(), "0202"), (Seat(), "040200"), (Tray(), "06020000")])
def test_the_indexes_of_nested_messages_lead_from_the_outermost_in(url: str, message: Any, indexes: str) -> None:
    data = placed(Protobuf(type(message)), at(url)).serialize(message)
    assert data[5:].hex() == indexes
    assert placed(Protobuf(), at(url)).deserialize(data) == plain_of(message.DESCRIPTOR)(message)


def registered(url: str, text: str, type_: str = "PROTOBUF", references: Any = None) -> bytes:
    schema = Schema(text, type_, references)
    number: int = registry_of({"url": url}).registered("flights-value", schema, normalize=False).schema_id
    return b"\0" + number.to_bytes(4, "big")


def test_values_are_read_by_a_schema_that_the_registry_has_as_text(url: str) -> None:
    head = registered(url, tickets.TEXT)
    data = head + b"\2\2" + tickets.ticket().SerializeToString()
    assert placed(Protobuf(), at(url)).deserialize(data) == tickets.AS_DICT
    assert placed(Protobuf(Ticket), at(url)).deserialize(data) == tickets.ticket()


def test_the_latest_version_decides_the_place_of_a_message(url: str) -> None:
    head = registered(url, 'syntax = "proto3"; package riverrun.test; message Ticket {} message Passenger {}')
    serde = placed(Protobuf(Passenger, config={"use.latest.version": True, "auto.register.schemas": False}), at(url))
    assert serde.serialize(Passenger()) == head + b"\2\2"
    lost = placed(Protobuf(Tray, config={"use.latest.version": True, "auto.register.schemas": False}), at(url))
    with pytest.raises(SchemaError, match=r"no message riverrun\.test\.Ticket\.Seat\.Tray"):
        lost.serialize(Tray())


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (("nothing", "PROTOBUF"), "cannot be read: 'nothing' stands where a declaration is expected"),
        (('import "a.proto"; message A {}', "PROTOBUF"), "cannot be read: .*a.proto"),
        (('import "google/protobuf/unknown.proto"; message A {}', "PROTOBUF"), "cannot be read: .*unknown.proto"),
        (('edition = "2023"; message A {}', "PROTOBUF"), "cannot be read: 'edition' stands"),
        (('"string"', "AVRO"), "a schema of AVRO, but the serde reads Protobuf"),
    ],
)
def test_a_schema_that_cannot_be_read_is_described(url: str, schema: tuple[str, str], why: str) -> None:
    data = registered(url, *schema) + b"\0"
    with pytest.raises(SchemaError, match=why):
        placed(Protobuf(), at(url)).deserialize(data)


@pytest.mark.parametrize("indexes", [b"\1", b"\2\1"])
def test_negative_indexes_are_refused(url: str, indexes: bytes) -> None:
    data = registered(url, 'syntax = "proto3"; message A {}') + indexes
    with pytest.raises(ValueError, match="the indexes of a message are negative"):
        placed(Protobuf(), at(url)).deserialize(data)


def _versions() -> tuple[Any, Any]:
    """Two versions of a message of many kinds of fields: the later one has more of them, in each message within it too."""
    messages = []
    for name, more in (
        ("old", ""),
        ("new", "string x = 10; fixed64 y = 11; repeated sint32 z = 12; Event other = 13;"),
    ):
        text = (
            'syntax = "proto3"; package riverrun.kept; import "google/protobuf/timestamp.proto"; '
            'import "google/protobuf/wrappers.proto"; enum Kind { NONE = 0; ONE = 1; } message Event { string a = 1; '
            "google.protobuf.Timestamp at = 2; repeated Event many = 3; map<string, Event> by = 4; "
            "oneof choice { int64 n = 5; Event one = 6; } google.protobuf.Int64Value wrapped = 7; Kind kind = 8; "
            f"optional bytes raw = 9; {more} }}"
        )
        file = file_of(text, f"riverrun/{name}.proto")
        messages.append(GetMessageClass(add_file(DescriptorPool(), file).message_types_by_name["Event"]))
    return messages[0], messages[1]


OLD, NEW = _versions()


def events(draw: Any, depth: int = 2) -> Any:
    """A random message of the later version."""
    message = NEW(
        a=draw(st.text(max_size=3)), kind=draw(st.integers(0, 3)), z=draw(st.lists(st.integers(-5, 5), max_size=2))
    )
    if draw(st.booleans()):
        message.at.seconds, message.at.nanos = draw(st.integers(-(2**35), 2**35)), draw(st.integers(0, 999_999_999))
    if draw(st.booleans()):
        message.at.nanos = message.at.nanos // 1000 * 1000
    for name, values in (("x", st.text(max_size=2)), ("y", st.integers(0, 2**64 - 1)), ("raw", st.binary(max_size=2))):
        if draw(st.booleans()):
            setattr(message, name, draw(values))
    if draw(st.booleans()):
        message.wrapped.value = draw(st.integers(-5, 5))
    if depth:
        message.many.extend(events(draw, depth - 1) for _ in range(draw(st.integers(0, 2))))
        for key in draw(st.lists(st.text(max_size=2), max_size=2, unique=True)):
            message.by[key].CopyFrom(events(draw, depth - 1))
        if draw(st.booleans()):
            message.other.CopyFrom(events(draw, depth - 1))
        if draw(st.booleans()):
            message.one.CopyFrom(events(draw, depth - 1))
    return message


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_dicts_keep_nanoseconds_and_fields_of_later_versions(data: Any) -> None:
    message = events(data.draw)
    dicts = Protobuf(OLD, dicts=True)
    builder = StreamsBuilder()
    stream = builder.stream("in", Consumed(STRING, dicts)).repartition(Repartitioned(STRING, dicts, name="r"))
    stream.map_values(dict).to_table(Materialized(STRING, dicts, name="t")).to_stream().to("out")
    url = f"mock://{uuid.uuid4()}"
    with TopologyTestDriver(builder.build(), schema_registry={"url": url}) as driver:
        raw = placed(Protobuf(NEW), at(url)).serialize(message)
        driver.input_topic("in", STRING, BYTES).pipe_input("k", raw)
        written = driver.output_topic("out", STRING, BYTES).read_value() or b""
    assert NEW.FromString(written[6:]) == message
    assert written[6:] == raw[6:] == message.SerializeToString(deterministic=True)
    assert placed(dicts, at(url)).deserialize(written) == placed(dicts, at(url)).deserialize(raw)


def test_columns_have_microseconds_and_refuse_nanoseconds(url: str) -> None:
    serde = placed(Protobuf(Flight, dicts=True), at(url))

    def rows(time: str) -> Any:
        exact = Flight()
        exact.departed.FromJsonString(time)
        data = serde.serialize(plain_of(Flight.DESCRIPTOR)(exact))
        (found,) = columns_of("value", serde).arrays([data], lambda _: {})
        return found.to_pylist()

    assert rows("2020-01-01T00:00:00.123456Z")[0]["departed"] == dt.datetime(2020, 1, 1, 0, 0, 0, 123456, dt.UTC)
    with pytest.raises(
        DeserializationError, match=r"00:00:00\.123456789Z' has nanoseconds, and columns have microseconds"
    ):
        rows("2020-01-01T00:00:00.123456789Z")


def test_a_value_without_room_for_unknown_fields_is_refused(url: str) -> None:
    message = NEW()
    message.at.MergeFromString(b"\x1a\x01x")
    data = placed(Protobuf(NEW), at(url)).serialize(message)
    with pytest.raises(ValueError, match="Timestamp has unknown fields"):
        placed(Protobuf(OLD, dicts=True), at(url)).deserialize(data)


@pytest.mark.parametrize(
    ("text", "payload"),
    [
        ("message A {" * 2000 + "}" * 2000, b"\0"),
        ("message A { string a = " + "1" * 5000 + "; }", b"\0"),
        ("message A {}", b"\xff" * 1_000_000),
        ("message A {}", b"\xfe\xff\xff\xff\x0f" + b"\0" * 1_000_000),
        ("message A {}", b"\2\xc6\1"),
        ("message A { A a = 1; }", b"\0" + b"\x0a\xff\xff\xff\xff\x07"),
    ],
    ids=["nested messages", "a long number", "an endless index", "many indexes", "no such message", "a long message"],
)
def test_counts_and_depths_are_checked(url: str, text: str, payload: bytes) -> None:
    data = registered(url, f'syntax = "proto3"; {text}') + payload
    builder = StreamsBuilder()
    builder.stream("in", Consumed(STRING, Protobuf())).to("out", Produced(STRING, Protobuf()))
    with TopologyTestDriver(
        builder.build(), {"deserialization.exception.handler": "continue"}, schema_registry={"url": url}
    ) as driver:
        driver.input_topic("in", STRING, BYTES).pipe_input("a", data)
        assert driver.dropped() == {"undecodable": 1}
