"""Generated writers of Avro against those of the library: random schemas and values, of any class where they do not belong."""

from __future__ import annotations

import datetime as dt
from typing import Any

import msgspec
import pytest
from fastavro import parse_schema
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from riverrun.generated import NotGenerated
from riverrun.schemas.avro.plain_reading import plain_reader
from riverrun.schemas.avro.plain_writing import plain_writer
from riverrun.schemas.avro.types import struct_of
from riverrun.schemas.avro.values import Tags
from riverrun.schemas.avro.writing import generated_writer
from tests.unit.schemas.avro_schemas import HEAD, encoded, refusing, schemas, values, written
from tests.unit.schemas.test_avro_reading import chooses, parsed


def result(write: Any, value: Any) -> Any:
    """The bytes that a writer returns, or the class and text of its error."""
    try:
        return write(value)
    except Exception as error:  # noqa: BLE001 - whatever the library raises
        return type(error), str(error)


def writer_of(schema: Any, plain: Any) -> Any:
    try:
        return generated_writer(schema, None, HEAD, plain, Tags())
    except NotGenerated:
        assume(False)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_what_is_read_is_written_as_the_same_bytes(data: Any) -> None:
    schema = data.draw(schemas())
    raw = encoded(data.draw, schema)
    known = parsed(schema)
    value = plain_reader(known, None, Tags())(raw)
    assert plain_writer(known, HEAD, Tags())(value) == raw
    try:
        assert generated_writer(known, None, HEAD, refusing, Tags())(value) == raw
    except NotGenerated:
        return


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_values_of_one_type_are_written_as_the_library_writes_them(data: Any) -> None:
    schema = parsed(data.draw(schemas()))
    value = data.draw(values(schema))
    library = result(lambda value: written(schema, value), value)
    own = result(plain_writer(schema, HEAD, Tags()), value)
    if isinstance(library, bytes) and not chooses(schema) and "decimal" not in str(schema):  # longer than Java's
        assert own == library


_ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=3)
    | st.binary(max_size=3)
    | st.dates(),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.tuples(inner, inner)
        | st.dictionaries(st.sampled_from(["a", "b", "-type"]), inner)
    ),
    max_leaves=4,
)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_values_of_other_classes_are_left_to_the_plain_writer(data: Any) -> None:
    schema = parsed(data.draw(schemas(2)))
    value = spoilt(data, data.draw(values(schema)))
    plain = plain_writer(schema, HEAD, Tags())
    assert result(writer_of(schema, plain), value) == result(plain, value)


def spoilt(data: Any, value: Any) -> Any:
    """A value of which some part is replaced by anything, or is missing."""
    if isinstance(value, dict) and value and data.draw(st.booleans()):
        name = data.draw(st.sampled_from(sorted(value)))
        rest = {key: each for key, each in value.items() if key != name}
        return rest if data.draw(st.integers(0, 4)) == 0 else rest | {name: spoilt(data, value[name])}
    if isinstance(value, list) and value and data.draw(st.booleans()):
        return [spoilt(data, value[0]), *value[1:]]
    return data.draw(_ANY)


class Leg(msgspec.Struct, frozen=True):
    origin: str
    miles: float = 0.0


class Trip(msgspec.Struct, rename="camel", kw_only=True):
    at: dt.datetime
    flight_id: int
    legs: list[Leg]
    by_name: dict[str, Leg]
    note: str | None = None
    first: Leg | None = None


LEG = {
    "type": "record",
    "name": "Leg",
    "fields": [{"name": "origin", "type": "string"}, {"name": "miles", "type": "double"}],
}
TRIP = {
    "type": "record",
    "name": "Trip",
    "fields": [
        {"name": "legs", "type": {"type": "array", "items": LEG}},
        {"name": "flightId", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "first", "type": ["null", "Leg"]},
        {"name": "byName", "type": {"type": "map", "values": "Leg"}},
        {"name": "note", "type": ["null", "string"]},
    ],
}
AT = dt.datetime(2013, 1, 1, tzinfo=dt.UTC)


@pytest.mark.parametrize("first", [None, Leg("LGA", 2.5)])
def test_objects_are_written_directly(first: Leg | None) -> None:
    schema, leg = parse_schema(TRIP), Leg("JFK", 0.5)
    write = generated_writer(schema, struct_of(Trip, schema), HEAD, refusing, Tags())
    trip = Trip(flight_id=-300, at=AT, legs=[leg, leg], by_name={"home": leg}, first=first, note="x" * 9000)
    assert write(trip) == written(schema, msgspec.to_builtins(trip, builtin_types=(dt.datetime,)))
    trip.legs = []
    assert write(trip) == written(schema, msgspec.to_builtins(trip, builtin_types=(dt.datetime,)))


WRONG: tuple[Any, ...] = (None, b"JFK")


@pytest.mark.parametrize("leg", [Leg("JFK", 1), *(Leg(each) for each in WRONG), {"origin": "JFK"}], ids=repr)
def test_objects_with_other_values_than_their_types_say_are_converted(leg: Any) -> None:
    schema = parse_schema(LEG)
    write = generated_writer(schema, struct_of(Leg, schema), HEAD, lambda value: repr(value).encode(), Tags())
    assert write(leg) == repr(leg).encode()


class Brief(msgspec.Struct, omit_defaults=True):
    origin: str = ""
    miles: float = 0.0


class Shorter(msgspec.Struct):
    origin: str


@pytest.mark.parametrize("type_", [Brief, Shorter])
def test_types_without_all_fields_of_a_schema_are_converted(type_: Any) -> None:
    schema = parse_schema(LEG)
    with pytest.raises(NotGenerated):
        generated_writer(schema, struct_of(type_, schema), HEAD, refusing, Tags())


LIST = {"type": "record", "name": "List", "fields": [{"name": "next", "type": ["null", "List"]}]}


def test_schemas_that_are_not_covered_are_left_to_the_plain_writer() -> None:
    with pytest.raises(NotGenerated):
        generated_writer(parse_schema(LIST), None, HEAD, refusing, Tags())
