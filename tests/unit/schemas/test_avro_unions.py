"""Branches of Avro unions: kept through every host and store, visible to functions, or refused when a topology is built."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import uuid
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from confluent_kafka.schema_registry import Schema
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun import (
    BYTES,
    STRING,
    Avro,
    BufferConfig,
    ConfigError,
    Consumed,
    Grouped,
    Joined,
    JoinWindows,
    Materialized,
    Produced,
    Repartitioned,
    SerializationError,
    Stores,
    StreamJoined,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
)
from riverrun.schemas.registry import registry_of
from riverrun.serde.api import SerdePlace, placed
from riverrun.testing import TopologyTestDriver
from tests.unit.schemas.avro_schemas import HEAD, encoded, schemas
from tests.unit.schemas.test_avro_reading import parsed

SECOND = dt.timedelta(seconds=1)


def topology(schema: Any) -> Any:
    """A topology in which values pass every kind of store, topic and join, each with its own output."""

    def avro() -> Any:
        return Avro(schema=schema)

    builder = StreamsBuilder()
    stream = builder.stream("in", Consumed(STRING, avro()))
    out = Produced(STRING, avro())
    stream.filter(lambda _key, _value: True).to("filter")
    stream.map_values(lambda value: value).to("map", out)
    stream.repartition(Repartitioned(STRING, avro(), name="again")).to("repartition", out)
    grouped = stream.group_by_key(Grouped(STRING, avro()))
    for name, caches in (("cached", True), ("plain", False)):
        stored = Materialized(STRING, avro(), name=name, caching=caches)
        grouped.reduce(lambda _total, value: value, stored).to_stream().to(name, out)
    windows = grouped.windowed_by(TimeWindows.of_size_with_no_grace(SECOND))
    last = windows.reduce(lambda _total, value: value, Materialized(STRING, avro(), name="windows"))
    last.suppress(Suppressed.until_window_closes(BufferConfig.unbounded())).to_stream(lambda key, _value: key.key).to(
        "windows", out
    )
    table = stream.to_table(Materialized(STRING, avro(), name="table"))
    other = builder.table("other", Consumed(STRING, avro()), Materialized(STRING, avro(), name="other"))
    stream.join(table, lambda _value, row: row, joined=Joined(STRING, avro())).to("stream-table", out)
    table.join(other, lambda value, _other: value).to_stream().to("table-table", out)
    joined = StreamJoined(STRING, avro(), avro())
    right, near = (
        builder.stream("right", Consumed(STRING, avro())),
        JoinWindows.of_time_difference_with_no_grace(SECOND),
    )
    stream.outer_join(right, lambda one, two: one or two, near, joined=joined).to("outer", out)
    moved = table.group_by(lambda key, value: (f"{key}!", value), Grouped(STRING, avro()))
    kept = Materialized(STRING, avro(), name="moved")
    moved.aggregate(
        lambda: None, lambda _key, value, _total: value, lambda _key, _value, total: total, kept
    ).to_stream().to("moved", out)
    by_foreign_key = table.join(
        other,
        lambda value, _other: value,
        foreign_key_extractor=lambda _value: "k",
        materialized=Materialized(STRING, avro(), name="fk"),
    )
    by_foreign_key.to_stream().to("foreign-key", out)
    return builder.build()


OUTPUTS = (
    "filter",
    "map",
    "repartition",
    "cached",
    "plain",
    "windows",
    "stream-table",
    "table-table",
    "outer",
    "moved",
    "foreign-key",
)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_values_pass_every_host_with_equal_bytes(data: Any) -> None:
    inner = data.draw(schemas())
    schema = {"type": "record", "name": "Top", "fields": [{"name": "u", "type": inner}]}
    parsed(schema)
    url = f"mock://{uuid.uuid4()}"
    registry = registry_of({"url": url})
    head = b"\0" + registry.registered(
        "in-value", Schema(json.dumps(schema), "AVRO"), normalize=False
    ).schema_id.to_bytes(4)
    raw = head + encoded(data.draw, schema)[len(HEAD) :]
    with TopologyTestDriver(topology(schema), schema_registry={"url": url}) as driver:
        driver.input_topic("other", STRING, BYTES).pipe_input("k", raw, timestamp=1)
        driver.input_topic("in", STRING, BYTES).pipe_input("k", raw, timestamp=1)
        driver.input_topic("in", STRING, BYTES).pipe_input("late", raw, timestamp=100_000)
        for name in OUTPUTS:
            written = driver.output_topic(name, STRING, BYTES).read_values_to_list()
            assert written, name
            assert set(written) == {raw}, name


def record(name: str, *fields: tuple[str, Any], **more: Any) -> Any:
    return {"type": "record", "name": name, "fields": [{"name": one, "type": two, **more} for one, two in fields]}


PAYMENT = {**record("Payment", ("id", "string"), ("amount", "long")), "namespace": "n"}
REFUND = {**record("Refund", ("id", "string"), ("amount", "long")), "namespace": "n"}
COLOUR = {"type": "enum", "name": "Colour", "symbols": ["RED"]}
PAIR = {"type": "fixed", "name": "Pair", "size": 2}
MAP = {"type": "map", "values": "string"}
TIME = {"type": "int", "logicalType": "time-millis"}
TIME_US = {"type": "long", "logicalType": "time-micros"}
DATE = {"type": "int", "logicalType": "date"}
MICROS, MILLIS = ({"type": "long", "logicalType": f"timestamp-{unit}"} for unit in ("micros", "millis"))
MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
REASON = {"name": "reason", "type": ["null", "string"], "default": None}
CLOSED = {"type": "record", "name": "Closed", "fields": [{"name": "id", "type": "string"}, REASON]}
CREATED = record("Created", ("id", "string"), ("by", "string"))
ROW = {"id": "r", "amount": 5}


def str_of(value: Any) -> str:
    return "huge" if isinstance(value, int) and value > 2**64 else repr(value)


def round_trip(schema: Any, value: Any) -> Any:
    serde = placed(Avro(schema=schema), SerdePlace("t", is_key=False, registry={"url": f"mock://{uuid.uuid4()}"}))
    data = serde.serialize(value)
    found = serde.deserialize(data)
    assert serde.serialize(found) == data
    return data[5] // 2, found


@pytest.mark.parametrize(
    ("schema", "value", "branch", "read"),
    [
        ([PAYMENT, REFUND], ("n.Refund", ROW), 1, {"-type": "n.Refund", **ROW}),
        ([PAYMENT, REFUND], {"-type": "n.Refund", **ROW}, 1, {"-type": "n.Refund", **ROW}),
        (["null", PAYMENT], ROW, 1, ROW),
        (["null", PAYMENT], {"-type": "n.Payment", **ROW}, 1, ROW),
        ([CLOSED, CREATED], {"id": "1"}, 0, {"-type": "Closed", "id": "1", "reason": None}),
        ([CLOSED, CREATED], {"-type": "Created", "id": "1", "by": "x"}, 1, {"-type": "Created", "id": "1", "by": "x"}),
        (["null", COLOUR, "string"], ("string", "RED"), 2, ("string", "RED")),
        (["null", COLOUR, "string"], ("Colour", "RED"), 1, ("Colour", "RED")),
        (["null", COLOUR, "string"], "blue", 2, ("string", "blue")),
        (["bytes", PAIR], b"ab", 0, ("bytes", b"ab")),
        (["bytes", PAIR], ("Pair", b"ab"), 1, ("Pair", b"ab")),
        (["int", "long"], ("long", 5), 1, ("long", 5)),
        (["int", "long"], 2**40, 1, ("long", 2**40)),
        (["float", "double"], 0.1, 1, ("double", 0.1)),
        (["double", "long"], 5, 1, 5),
        (["double", "string"], 5, 0, 5.0),
        ([TIME, TIME_US], ("long", dt.time(1)), 1, ("long", dt.time(1))),
        ([MAP, PAYMENT], ("map", {"-type": "x"}), 0, ("map", {"-type": "x"})),
        ([MAP, PAYMENT], {"-type": "n.Payment", **ROW}, 1, {"-type": "n.Payment", **ROW}),
        (["null", MAP], {"-type": "x"}, 1, {"-type": "x"}),
        (["string", {"type": "array", "items": "string"}], ["string", "x"], 1, ["string", "x"]),
        (["boolean", "int"], True, 0, True),
        ([DATE, MICROS], dt.date(2020, 1, 1), 0, dt.date(2020, 1, 1)),
        ([DATE, MICROS], EPOCH, 1, EPOCH),
    ],
    ids=str_of,
)  # fmt: skip
def test_values_name_their_branch_where_their_class_does_not(schema: Any, value: Any, branch: int, read: Any) -> None:
    assert round_trip(schema, value) == (branch, read)
    assert round_trip([*([] if "null" in schema else ["null"]), *schema], value)[1] == read
    nested = {"type": "array", "items": {"type": "map", "values": record("In", ("u", schema))}}
    assert round_trip(nested, [{"a": {"u": value}}])[1] == [{"a": {"u": read}}]


@pytest.mark.parametrize(
    ("schema", "value", "why"),
    [
        ([PAYMENT, REFUND], ROW, "may be n.Payment and n.Refund"),
        ([PAYMENT, REFUND], {"-type": "n.Other", **ROW}, "the n.Other fits none of n.Payment, n.Refund"),
        ([PAYMENT, REFUND], ("n.Other", ROW), "fits none of n.Payment, n.Refund"),
        (["null", PAYMENT], {"-type": "n.Refund", **ROW}, "the n.Refund fits none of null, n.Payment"),
        (PAYMENT, {"-type": "n.Refund", **ROW}, "a n.Refund is not a n.Payment"),
        ([MAP, record("One", ("a", "string"))], {"a": "x"}, "may be map and One"),
        (["null", COLOUR], "BLUE", "'BLUE' fits none of null, Colour"),
        (["int", "string"], 2**40, "1099511627776 fits none of int, string"),
        (["int", "string"], 10**5000, "a number of 16610 bits fits none of int, string"),
        (record("R", ("u", ["null", PAYMENT])), {"u": {"id": 5, "amount": 5}}, "5 is not of type string, at u.id"),
    ],
    ids=str_of,
)
def test_values_without_a_branch_or_with_several_are_refused(schema: Any, value: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        round_trip(schema, value)


class Payment(msgspec.Struct, tag="n.Payment"):
    id: str
    amount: int


class Refund(msgspec.Struct, tag=True):
    id: str
    amount: int


class Event(msgspec.Struct):
    what: Payment | Refund | None
    many: list[Refund | Payment] = []
    by_name: dict[str, Payment | Refund] = {}


@pytest.mark.parametrize(
    ("serde", "value"),
    [
        (Avro(Payment | Refund), Refund("r", 5)),
        (Avro(Payment | Refund), Payment("r", 5)),
        (Avro(Payment | Refund, schema=[PAYMENT, REFUND]), Refund("r", 5)),
        (Avro(Refund | Payment, schema=["null", PAYMENT, REFUND]), Payment("r", 5)),
        (Avro(Event), Event(Refund("r", 5), [Payment("p", 1), Refund("r", 5)], {"a": Refund("r", 1)})),
        (Avro(Event), Event(None)),
        (Avro(Refund), Refund("r", 1)),
        (Avro(dict[str, Any] | None, schema=["null", PAYMENT, REFUND]), {"-type": "n.Refund", **ROW}),
        (Avro(list[Any], schema={"type": "array", "items": ["int", "long"]}), [("long", 5), ("int", 5)]),
    ],
)
def test_classes_of_a_union_come_back_as_they_were(serde: Any, value: Any) -> None:
    own = placed(serde, SerdePlace("t", is_key=False, registry={"url": f"mock://{uuid.uuid4()}"}))
    data = own.serialize(value)
    assert own.deserialize(data) == value
    assert own.serialize(own.deserialize(data)) == data
    builder = StreamsBuilder()
    stream = builder.stream("in", Consumed(STRING, serde)).repartition(Repartitioned(STRING, serde, name="r"))
    stream.to_table(Materialized(STRING, serde, name="t")).to_stream().to("out", Produced(STRING, serde))
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic("in", STRING, serde).pipe_input("k", value, timestamp=1)
        assert driver.output_topic("out", STRING, serde).read_value() == value


class Untagged(msgspec.Struct):
    id: str
    amount: int


@dataclass
class Counted:
    n: int


class Wrapped(msgspec.Struct):
    what: Untagged | None


@pytest.mark.parametrize(
    ("type_", "schema"),
    [
        (Untagged, [PAYMENT, REFUND]),
        (Payment, [PAYMENT, {**REFUND, "name": "Other"}]),
        (Wrapped, record("Wrapped", ("what", ["null", PAYMENT, REFUND]))),
        (list[Wrapped], {"type": "array", "items": record("Wrapped", ("what", ["null", PAYMENT, REFUND]))}),
        (int, ["int", "long"]),
        (Counted, record("Counted", ("n", ["null", "int", "long"]))),
        (dict[str, str], {"type": "map", "values": ["null", COLOUR, "string"]}),
    ],
)
def test_types_that_hide_a_branch_are_refused_when_the_topology_is_built(type_: Any, schema: Any) -> None:
    with pytest.raises(ConfigError, match="does not distinguish") as refused:
        Avro(type_, schema=schema)
    assert "Hint" in str(refused.value)


def test_classes_of_one_name_are_refused() -> None:
    other = msgspec.defstruct("Payment", [("x", int)])
    both = msgspec.defstruct("Both", [("a", Payment), ("b", other)])
    with pytest.raises(ConfigError, match="one name"):
        Avro(both)


@pytest.mark.parametrize(
    "schema", [["null", "null"], ["string", ["int"]], ["string", {"type": "string"}], [PAYMENT, PAYMENT]]
)
def test_unions_that_avro_forbids_are_refused_when_the_topology_is_built(schema: Any) -> None:
    with pytest.raises(ConfigError, match="not an Avro schema"):
        Avro(schema=schema)


def read_later(written: Any, later: Any, value: Any) -> Any:
    registry = {"url": f"mock://{uuid.uuid4()}"}
    data = placed(Avro(schema=written), SerdePlace("t", is_key=False, registry=registry)).serialize(value)
    own = placed(Avro(schema=later), SerdePlace("u", is_key=False, registry=registry))
    found = own.deserialize(data)
    assert own.deserialize(own.serialize(found)) == found
    return found


def added(default: Any, type_: Any) -> Any:
    return {"type": "record", "name": "R", "fields": [{"name": "new", "type": type_, "default": default}]}


@pytest.mark.parametrize(
    ("written", "later", "value", "read"),
    [
        (PAYMENT, [PAYMENT, REFUND], ROW, {"-type": "n.Payment", **ROW}),
        ([PAYMENT, REFUND], REFUND, ("n.Refund", ROW), ROW),
        ([PAYMENT, REFUND], [REFUND, "null", PAYMENT], ("n.Refund", ROW), {"-type": "n.Refund", **ROW}),
        ("string", ["bytes", "string"], "a", "a"),
        (["string", "bytes"], ["bytes", "string"], b"", b""),
        (["string", "int"], ["bytes", "long"], "a", b"a"),
        ("int", ["double", "long"], 5, 5.0),
        (["int"], ["null", "int", "long"], 5, ("int", 5)),
        (["null", COLOUR, "string"], ["string", COLOUR], ("Colour", "RED"), ("Colour", "RED")),
        (MILLIS, MICROS, EPOCH, EPOCH),
        ("long", MILLIS, 0, EPOCH),
        (MILLIS, "long", EPOCH, 0),
        (record("R"), added("ÿ", "bytes"), {}, {"new": b"\xff"}),
        (record("R"), added("ab", PAIR), {}, {"new": b"ab"}),
        (record("R"), added("RED", [COLOUR, "string"]), {}, {"new": ("Colour", "RED")}),
        (record("R"), added("blue", ["string", COLOUR]), {}, {"new": ("string", "blue")}),
        (record("R"), added(ROW, [PAYMENT, REFUND]), {}, {"new": {"-type": "n.Payment", **ROW}}),
        (record("R"), added([None], {"type": "array", "items": ["null", "int"]}), {}, {"new": [None]}),
        (record("R"), added(0, MICROS), {}, {"new": EPOCH}),
        (record("R"), added("\u0001\u00f4", MONEY), {}, {"new": decimal.Decimal("5.00")}),
        (record("R"), added("NaN", "string"), {}, {"new": "NaN"}),
    ],
    ids=str_of,
)  # fmt: skip
def test_branches_survive_a_change_of_the_schema(written: Any, later: Any, value: Any, read: Any) -> None:
    assert read_later(written, later, value) == read
    if isinstance(value, dict) and not value:
        assert round_trip(later, {})[1] == read  # a field that is left out has its default
    nested = read_later(record("W", ("u", written)), record("W", ("u", later)), {"u": value})
    assert nested == {"u": read}


@pytest.mark.parametrize(
    ("schema", "bad"),
    [
        (MONEY, decimal.Decimal("1E+5")),
        (MONEY, decimal.Decimal("0.001")),
        (MONEY, decimal.Decimal("NaN")),
        (MONEY, decimal.Decimal("1E+999999")),
        ("double", decimal.Decimal("0.1")),
        ("double", 2**53 + 1),
        ("long", True),
        ("long", 2**63),
        ("int", 2**31),
        ("string", b"x"),
        ("string", "\ud800"),
        (DATE, dt.datetime(2020, 1, 1, tzinfo=dt.UTC)),
        ({"type": "string", "logicalType": "uuid"}, "no uuid"),
        (TIME, 86_400_000),
    ],
    ids=str_of,
)
def test_values_that_would_come_back_as_others_are_refused(schema: Any, bad: Any) -> None:
    builder = StreamsBuilder()
    whole = record("W", ("u", schema))
    builder.stream("in", Consumed(STRING, STRING)).map_values(lambda _: {"u": bad}).to(
        "out", Produced(STRING, Avro(schema=whole))
    )
    with TopologyTestDriver(builder.build()) as driver, pytest.raises(SerializationError, match="at u"):
        driver.input_topic("in", STRING, STRING).pipe_input("k", "x")


def test_stores_of_processors_keep_branches() -> None:
    serde = Avro(schema=[PAYMENT, REFUND])
    builder = StreamsBuilder()
    builder.add_state_store(Stores.key_value_store("s", STRING, serde))
    with TopologyTestDriver(_stored(builder, serde)) as driver:
        driver.input_topic("in", STRING, serde).pipe_input("k", ("n.Refund", ROW))
        assert driver.output_topic("out", STRING, serde).read_value() == {"-type": "n.Refund", **ROW}


def _stored(builder: StreamsBuilder, serde: Any) -> Any:
    class Remembers:
        def init(self, context: Any) -> None:
            self.context, self.store = context, context.get_state_store("s")

        def process(self, record: Any) -> None:
            self.store.put(record.key, record.value)
            self.context.forward(record.with_value(self.store.get(record.key)))

        def close(self) -> None:
            pass

    builder.stream("in", Consumed(STRING, serde)).process(Remembers, "s").to("out", Produced(STRING, serde))
    return builder.build()
