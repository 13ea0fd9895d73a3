"""Readers of Avro against each other and the library: random schemas, values, readers' schemas and corrupt bytes."""

from __future__ import annotations

import datetime as dt
import enum
import io
import json
from typing import Annotated, Any

import msgspec
import pytest
from fastavro import parse_schema, schemaless_reader
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from riverrun.errors import ConfigError
from riverrun.generated import NotGenerated
from riverrun.schemas.avro.parsing import parsed_text
from riverrun.schemas.avro.plain_reading import plain_reader
from riverrun.schemas.avro.reading import generated_reader
from riverrun.schemas.avro.types import struct_of
from riverrun.schemas.avro.values import Tags
from tests.unit.schemas.avro_schemas import HEAD, Plain, encoded, evolved, refusing, schemas, written


def parsed(schema: Any) -> Any:
    try:
        return parsed_text(json.dumps(schema))
    except ConfigError:  # such as a name whose definition the reader's schema lacks
        assume(False)


def written_if_possible(schema: Any, value: Any) -> bytes:
    """The bytes of a random value: in unions, the library tries types to which a value does not belong, and may fail."""
    try:
        return written(schema, value)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        assume(False)
        raise


def result(read: Any, data: bytes) -> Any:
    """The value that a reader returns, or the class and text of its error; as text, since NaN is not itself."""
    try:
        return repr(read(data))
    except Exception as error:  # noqa: BLE001 - whatever the library raises
        return type(error), str(error).split(" at 0x")[0]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_values_are_read_as_the_library_reads_them(data: Any) -> None:
    schema = data.draw(schemas())
    raw = encoded(data.draw, schema)
    writer = parsed(schema)
    library = result(lambda raw: schemaless_reader(io.BytesIO(raw[5:]), writer, None), raw)
    assert result(plain_reader(writer, None, None), raw) == library
    read = generated_if_possible(writer, None, None)
    assert read is None or result(read, raw) == library


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_readers_schemas_are_resolved_as_the_library_resolves_them(data: Any) -> None:
    schema = data.draw(schemas())
    raw = encoded(data.draw, schema)
    later = evolved(data.draw, schema)
    writer, reader = parsed(schema), parsed(later)
    own = result_sorted(plain_reader(writer, reader, None), raw)
    library = result_sorted(lambda raw: schemaless_reader(io.BytesIO(raw[5:]), writer, reader), raw)
    if not (chooses(schema) or chooses(later)):  # the library takes the first branch, Java's rules the best one
        assert isinstance(own, str) == isinstance(library, str)
        assert not isinstance(library, str) or own == library


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_generated_readers_read_as_the_plain_one(data: Any) -> None:
    schema = data.draw(schemas())
    raw = encoded(data.draw, schema)
    writer = parsed(schema)
    reader = parsed(evolved(data.draw, schema)) if data.draw(st.booleans()) else None
    tags = data.draw(st.sampled_from([None, Tags()]))
    read = generated_if_possible(writer, reader, tags)
    plain = result_sorted(plain_reader(writer, reader, tags), raw)
    assert read is None or not isinstance(plain, str) or result_sorted(read, raw) == plain


def generated_if_possible(writer: Any, reader: Any, tags: Tags | None) -> Any:
    """The generated reader, which refuses what it leaves to the plain one; None if the schemas are not covered."""
    plain = refusing if reader is None else plain_reader(writer, reader, tags)
    try:
        return generated_reader(writer, reader, None, plain, tags)
    except NotGenerated:
        return None


def chooses(schema: Any) -> bool:
    """Whether a schema has a union of several types that are not null."""
    if isinstance(schema, list):
        return sum(each != "null" for each in schema) > 1 or any(map(chooses, schema))
    if not isinstance(schema, dict):
        return False
    return any(
        map(chooses, (*(each["type"] for each in schema.get("fields", ())), *map(schema.get, ("items", "values"))))
    )


def result_sorted(read: Any, raw: bytes) -> Any:
    """The value that a reader returns, as text of dicts without their order: the library moves defaults to the end."""
    return result(lambda raw: _sorted(read(raw)), raw)


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return sorted((name, _sorted(each)) for name, each in value.items())
    return [_sorted(each) for each in value] if isinstance(value, list) else value


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_corrupt_bytes_have_the_errors_of_the_plain_reader(data: Any) -> None:
    schema = data.draw(schemas(2))
    writer = parsed(schema)
    raw = bytearray(encoded(data.draw, schema))
    for _ in range(data.draw(st.integers(0, 2))):
        if len(raw) > len(HEAD):
            raw[data.draw(st.integers(len(HEAD), len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.integers(len(HEAD), len(raw)))])
    plain = plain_reader(writer, None, Tags())
    try:
        read = generated_reader(writer, None, None, plain, Tags())
    except NotGenerated:
        return
    assert result(read, cut) == result(plain, cut)


class Leg(msgspec.Struct, frozen=True):
    origin: str
    miles: float = 0.0


class Trip(msgspec.Struct, rename="camel", kw_only=True):
    flight_id: int
    at: dt.datetime
    legs: list[Leg]
    by_name: dict[str, Leg]
    note: str | None = None
    first: Leg | None = None


LEG = {
    "type": "record",
    "name": "Leg",
    "fields": [
        {"name": "gate", "type": ["null", {"type": "array", "items": "string"}]},
        {"name": "origin", "type": "string"},
        {"name": "miles", "type": "double"},
        {"name": "crew", "type": {"type": "map", "values": {"type": "fixed", "name": "Id", "size": 2}}},
    ],
}
TRIP = {
    "type": "record",
    "name": "Trip",
    "fields": [
        {"name": "legs", "type": {"type": "array", "items": LEG}},
        {"name": "flightId", "type": "long"},
        {"name": "unused", "type": ["null", "int", "Leg", {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "first", "type": ["null", "Leg"]},
        {"name": "byName", "type": {"type": "map", "values": "Leg"}},
    ],
}
A_LEG = {"gate": ["12", "B"], "origin": "JFK", "miles": 0.5, "crew": {"a": b"\0\1"}}
A_TRIP = {
    "legs": [A_LEG, {**A_LEG, "gate": None}],
    "flightId": -300,
    "unused": "B",
    "at": dt.datetime(2013, 1, 1, tzinfo=dt.UTC),
    "first": A_LEG,
    "byName": {"home": A_LEG},
}


@pytest.mark.parametrize("unused", [None, 300, A_LEG, "B"])
def test_objects_are_made_directly_and_unused_fields_skipped(unused: Any) -> None:
    writer = parse_schema(TRIP)
    read = generated_reader(writer, None, struct_of(Trip, writer), refusing)
    trip, leg = read(written(writer, {**A_TRIP, "unused": unused})), Leg("JFK", 0.5)
    at = dt.datetime(2013, 1, 1, tzinfo=dt.UTC)
    assert trip == Trip(flight_id=-300, at=at, legs=[leg, leg], by_name={"home": leg}, first=leg)


def test_a_default_of_the_readers_schema_has_the_type_of_the_field() -> None:
    writer = parse_schema({"type": "record", "name": "Leg", "fields": [{"name": "origin", "type": "string"}]})
    miles = {"name": "miles", "type": "double", "default": 3}
    reader = parse_schema({"type": "record", "name": "Leg", "fields": [{"name": "origin", "type": "string"}, miles]})
    leg = generated_reader(writer, reader, struct_of(Leg, reader), refusing)(written(writer, {"origin": "JFK"}))
    assert (leg, type(leg.miles)) == (Leg("JFK", 3.0), float)


class Kind(enum.Enum):
    A = "A"


class Checked(msgspec.Struct):
    origin: str

    def __post_init__(self) -> None:
        assert self.origin


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    origin: str


class Short(msgspec.Struct):
    origin: Annotated[str, msgspec.Meta(max_length=3)]


class Other(msgspec.Struct):
    origin: int


class Chosen(msgspec.Struct):
    origin: Kind


class Missing(msgspec.Struct):
    origin: str
    delay: int


@pytest.mark.parametrize("type_", [Checked, Strict, Short, Other, Chosen, Missing, dict[str, str], str])
def test_types_with_rules_of_their_own_are_converted(type_: Any) -> None:
    with pytest.raises(NotGenerated):
        struct_of(type_, parse_schema(LEG))


LIST = {"type": "record", "name": "List", "fields": [{"name": "next", "type": ["null", "List"], "default": None}]}


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        (LIST, None),
        (LEG, {**LEG, "name": "Other"}),
        ("string", "int"),
        (LEG, {**LEG, "fields": [*LEG["fields"], {"name": "more", "type": "int"}]}),
        (LEG, {**LEG, "fields": [{"name": "more", "type": {"type": "array", "items": "int"}, "default": []}]}),
    ],
)
def test_schemas_that_are_not_covered_are_left_to_the_plain_reader(writer: Any, reader: Any) -> None:
    with pytest.raises(NotGenerated):
        generated_reader(parse_schema(writer), reader and parse_schema(reader), None, refusing)


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        ({"type": "array", "items": "long"}, b"\x01\x02\x04\0"),
        ("long", b"\xff" * 12 + b"\1"),
        ("long", b"\x80" * 10 + b"\0"),
        ("int", b"\x80" * 5 + b"\0"),
        ("string", b"\1"),
        ({"type": "array", "items": {"type": "fixed", "name": "F", "size": 2}}, b"\xfe\xff\xff\xff\x0f"),
    ],
    ids=[
        "blocks with sizes",
        "more than 64 bits",
        "eleven bytes of zeros",
        "six of an int",
        "a negative size",
        "more items than bytes",
    ],
)
def test_rare_layouts_are_left_to_the_plain_reader(schema: Any, data: bytes) -> None:
    with pytest.raises(Plain):
        generated_reader(parse_schema(schema), None, None, refusing)(HEAD + data)


def test_names_of_a_schema_are_no_code() -> None:
    name = "\"]; raise SystemExit #\n'\\"
    writer = {"type": "record", "name": "R", "fields": [{"name": name, "type": "string"}]}
    assert generated_reader(writer, None, None, refusing)(HEAD + b"\2x") == {name: "x"}


SKIPPED = {
    "int": ("int", 5),
    "long": ("long", 10),
    "enum": ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, 5),
    "union": (["null", "int"], 5),
    "string": ("string", 10),
}


@pytest.mark.parametrize("is_read", [False, True])
@pytest.mark.parametrize("size", range(1, 13))
@pytest.mark.parametrize("kind", SKIPPED)
def test_numbers_with_too_many_bytes_are_refused_also_in_unused_fields(kind: str, size: int, *, is_read: bool) -> None:
    type_, most = SKIPPED[kind]
    fields = [{"name": "first", "type": type_}, {"name": "kept", "type": "int"}]
    writer = parsed({"type": "record", "name": "R", "fields": fields})
    reader = None if is_read else parsed({"type": "record", "name": "R", "fields": fields[1:]})
    plain = plain_reader(writer, reader, None)
    zero = b"\x80" * (size - 1) + b"\0"
    read = generated_reader(writer, reader, None, plain, None)
    assert result(read, HEAD + zero + b"\x0a") == result(plain, HEAD + zero + b"\x0a")
    found = result(plain, HEAD + zero + b"\x0a")
    assert isinstance(found, str) if size <= most else found[1].startswith("a number has more than"), found
