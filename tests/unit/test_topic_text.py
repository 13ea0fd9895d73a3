"""Records of topics as people read and write them in a shell."""

from __future__ import annotations

import json
import re
from datetime import date, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest
from confluent_kafka.schema_registry import Schema
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun import (
    DOUBLE,
    JSON,
    LONG,
    STRING,
    Avro,
    Consumed,
    Materialized,
    Produced,
    Protobuf,
    Serde,
    StreamsBuilder,
    TimeWindows,
    Topology,
    Window,
    Windowed,
    windowed,
)
from riverrun.errors import ConfigError
from riverrun.records import TopicPartition
from riverrun.schemas.registry import registry_of
from riverrun.serde.api import SerdePlace, placed, shown_reader
from riverrun.topics.records import LineFormat, ReadRecord, RecordFormat, shown_record
from riverrun.topics.serdes import from_text, jsonable, readable, serde_named, serdes_of
from tests.unit.schemas import tickets
from tests.unit.schemas.avro_schemas import HEAD, encoded, schemas

NOW = 7_000


def counting(*minutes: int) -> Topology:
    builder = StreamsBuilder()
    grouped = builder.stream("clicks", Consumed(STRING, JSON)).group_by_key()
    for size in minutes:
        windows = TimeWindows.of(timedelta(minutes=size), grace=timedelta())
        counts = grouped.windowed_by(windows).count(Materialized(name=f"counts-{size}"))
        counts.to_stream().to(f"counts-{size}", Produced(windowed(STRING), LONG))
    return builder.build()


def test_the_size_of_windows_is_that_of_the_table_that_is_written() -> None:
    written = windowed(STRING).serialize(Windowed("ann", Window(300_000, 600_000)))
    keys, values = serdes_of(counting(5), "counts-5")
    assert values is LONG
    assert readable(keys.deserialize(written)) == "ann [1970-01-01T00:05:00Z, 1970-01-01T00:10:00Z)"
    keys, _ = serdes_of(counting(5, 10), "counts-10")
    assert readable(keys.deserialize(written)) == "ann [1970-01-01T00:05:00Z, 1970-01-01T00:15:00Z)"
    keys, _ = serdes_of(counting(5, 10), "counts-5")
    assert jsonable(keys.deserialize(written)) == {"key": "ann", "start": 300_000, "end": 600_000}


def test_a_topic_that_an_application_reads_is_read_as_it_reads_it() -> None:
    assert serdes_of(counting(5), "clicks") == (STRING, JSON)
    with pytest.raises(ConfigError, match="neither reads nor writes orders") as refused:
        serdes_of(counting(5), "orders")
    assert refused.value.hint == "It has: clicks, counts-5. Or choose serdes with --key-serde and --value-serde."


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("string", "ann", "ann"),
        ("json", {"b": 1, "a": [None]}, '{"a":[null],"b":1}'),
        ("long", -3, "-3"),
        ("double", 0.5, "0.5"),
        ("boolean", True, "true"),
        ("bytes", b"\x00\xff", "0x00ff"),
        (
            "session-windowed-string",
            Windowed("ann", Window(0, 1)),
            "ann [1970-01-01T00:00:00Z, 1970-01-01T00:00:00.001Z)",
        ),
    ],
)
def test_values_are_read_and_shown_by_the_name_of_their_serde(name: str, value: Any, shown: str) -> None:
    serde = serde_named(name)
    assert readable(serde.deserialize(serde.serialize(value))) == shown


@pytest.mark.parametrize("name", ["text", "windowed-", "windowed-text"])
def test_a_serde_that_there_is_not_is_refused_with_those_that_there_are(name: str) -> None:
    with pytest.raises(ConfigError, match="There is no serde") as refused:
        serde_named(name)
    assert "windowed-NAME" in (refused.value.hint or "")


@pytest.mark.parametrize("size", ["5", "m", "0s", "5 minutes"])
def test_a_size_of_windows_has_a_unit(size: str) -> None:
    with pytest.raises(ConfigError, match="is not a window size"):
        serde_named("windowed-string", size)


@pytest.mark.parametrize("name", ["string", "json", "long", "double", "boolean", "bytes", "uuid"])
def test_what_is_shown_can_be_written_again(name: str) -> None:
    value = {
        "string": "a b", "json": {"n": None}, "long": 2**60, "double": 1.5, "boolean": False, "bytes": b"x",
        "uuid": __import__("uuid").UUID(int=5),
    }[name]  # fmt: skip
    shown = readable(value).strip('"') if name == "uuid" else readable(value)
    assert from_text(serde_named(name), shown) == value


@pytest.mark.parametrize("name", ["double", "float"])
@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_json_does_not_have_can_be_written_again(name: str, number: float) -> None:
    serde = serde_named(name)
    data = serde.serialize(number)
    assert serde.serialize(from_text(serde, readable(serde.deserialize(data)))) == data


SERDES_OF_JSON = [JSON, JSON(float), JSON(list[float]), JSON(dict[str, float])]
NUMBERS = st.one_of(
    st.integers(-(10**40), 10**40).map(str),
    st.decimals(allow_nan=False, allow_infinity=False).map(str),
    st.sampled_from(["12345678901234567.89", "1E+16", "1.0", "-0.0", "0.10", "1E+400"]),
)


@given(numbers=st.lists(NUMBERS, min_size=1), serde=st.sampled_from(SERDES_OF_JSON))
def test_values_of_json_keep_their_digits(numbers: list[str], serde: Serde[Any]) -> None:
    line = f'{{"v":[{",".join(numbers)}]}}'
    assert LineFormat(STRING, serde).fields(line, NOW)[:2] == (None, line.encode())
    assert RecordFormat(STRING, serde).fields(f'{{"value":{line}}}', NOW)[:2] == (None, line.encode())


def keys_of_lines(serde: Serde[Any], key: str) -> set[bytes | None]:
    """Return the keys that lines with a key of JSON get, in all forms of lines."""
    forms: list[tuple[LineFormat | RecordFormat, str]] = [
        (LineFormat(serde, JSON, key="k"), f'{{"k":{key}}}'),
        (LineFormat(serde, JSON, separator="\t"), f"{key}\t1"),
        (RecordFormat(serde, JSON), f'{{"key":{key}}}'),
    ]
    return {form.fields(line, NOW)[0] for form, line in forms}


@given(number=st.floats(allow_nan=False, allow_infinity=False), serde=st.sampled_from(SERDES_OF_JSON))
def test_keys_of_json_are_as_the_serde_writes_them(number: float, serde: Serde[Any]) -> None:
    for text in (repr(number), f"{Decimal(repr(number)):E}", f"{Decimal(repr(number)):f}"):
        if "." in text or "E" in text:
            assert keys_of_lines(serde, f'{{"b": [{text}], "a": 1.50}}') == {JSON.serialize({"a": 1.5, "b": [number]})}


@given(number=NUMBERS, serde=st.sampled_from(SERDES_OF_JSON))
def test_keys_of_json_keep_digits_that_doubles_do_not_have(number: str, serde: Serde[Any]) -> None:
    (key,) = keys_of_lines(serde, number)
    assert key is not None
    assert Decimal(key.decode()) == Decimal(number)


@pytest.mark.parametrize(
    ("form", "line", "record"),
    [
        (LineFormat(STRING, JSON), '{"n": 1}', (None, b'{"n":1}', NOW)),
        (LineFormat(STRING, JSON, key="user"), '{"user": "ann"}', (b"ann", b'{"user":"ann"}', NOW)),
        (LineFormat(STRING, JSON, timestamp="at"), '{"at": 5}', (None, b'{"at":5}', 5)),
        (LineFormat(STRING, JSON, timestamp="at"), '{"at":"1970-01-02"}', (None, b'{"at":"1970-01-02"}', 86_400_000)),
        (LineFormat(STRING, STRING, separator=":"), "ann:a:b", (b"ann", b"a:b", NOW)),
        (LineFormat(LONG, DOUBLE, separator="\t"), "1\t2.5", (b"\0" * 7 + b"\1", DOUBLE.serialize(2.5), NOW)),
        (LineFormat(STRING, JSON, separator="="), "ann=null", (b"ann", None, NOW)),
        (LineFormat(STRING, JSON, separator="\t"), "ann\t", (b"ann", None, NOW)),
        (LineFormat(STRING, STRING, separator=":"), "ann:", (b"ann", None, NOW)),
        (LineFormat(STRING, LONG, separator=":"), ":", (b"", None, NOW)),
    ],
)  # fmt: skip
def test_a_line_becomes_a_record(form: LineFormat, line: str, record: tuple[object, ...]) -> None:
    form.check()
    assert form.fields(line, NOW) == (*record, ())


SHOWN = {
    "string": st.text(),
    "json": st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ),
    "long": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(),
    "bytes": st.binary(),
    "uuid": st.uuids(),
}
HEADERS = st.lists(st.tuples(st.text(min_size=1), st.none() | st.binary())).map(tuple)


@given(
    data=st.data(), headers=HEADERS, names=st.tuples(*[st.sampled_from(sorted(SHOWN))] * 2), at=st.integers(0, 2**40)
)
def test_records_can_be_written_as_they_are_shown(data: Any, headers: Any, names: tuple[str, str], at: int) -> None:
    serdes = [serde_named(name) for name in names]
    parts = [data.draw(st.none() | SHOWN[name]) for name in names]
    written = [None if part is None else serde.serialize(part) for serde, part in zip(serdes, parts, strict=True)]
    read = [None if raw is None else shown_reader(serde)(raw) for serde, raw in zip(serdes, written, strict=True)]
    line = msgspec.json.encode(
        shown_record(ReadRecord(TopicPartition("t", 0), 7, at, read[0], read[1], headers)), enc_hook=str
    )
    found = RecordFormat(*serdes).fields(line.decode(), NOW)
    null = [None if raw == b"null" else raw for raw in written]  # JSON's null is a tombstone
    assert found == (*null, at, headers)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("[1]", "it is not a JSON object with a key or a value"),
        ("{}", "it is not a JSON object with a key or a value"),
        ('{"key": "a", "headers": [["h", 5]]}', "is not a header"),
        ('{"key": "a", "headers": [["h", "zz"]]}', "non-hexadecimal"),
        ('{"key": "a", "timestamp": -1}', "neither a number of ms"),
    ],
)
def test_records_that_are_none_are_refused(line: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        RecordFormat(STRING, JSON).fields(line, NOW)
    assert RecordFormat(STRING, JSON).fields('{"key": "a", "value": null}', NOW) == (b"a", None, NOW, ())


@pytest.mark.parametrize(
    ("form", "line", "complaint"),
    [
        (LineFormat(STRING, JSON), "{", "truncated"),
        (
            LineFormat(STRING, JSON),
            "[1e99999999999999999999]",
            "1e99999999999999999999 has an exponent that is too long",
        ),
        (LineFormat(STRING, JSON, key="user"), "[1]", "it is not a JSON object with a field 'user'"),
        (LineFormat(STRING, JSON, key="user"), "{}", "it has no field 'user'"),
        (LineFormat(STRING, JSON, timestamp="at"), '{"at": true}', "neither a number of ms since 1970"),
        (LineFormat(STRING, JSON, timestamp="at"), '{"at": "soon"}', "'soon' is not a time"),
        (LineFormat(STRING, STRING, separator=":"), "ann", "it has no separator ':'"),
    ],
)
def test_a_line_that_does_not_fit_is_refused_with_the_reason(form: LineFormat, line: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(complaint)):
        form.fields(line, NOW)


@pytest.mark.parametrize(
    ("form", "complaint"),
    [
        (LineFormat(STRING, JSON, key="user", separator=":"), "both define keys"),
        (LineFormat(STRING, LONG, key="user"), "serde long have no field user"),
    ],
)
def test_a_format_that_makes_no_sense_is_refused(form: LineFormat, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        form.check()


def shown_again(serde: Serde[Any], data: bytes, *, is_union: bool = False) -> bytes:
    """The bytes that `topic write` makes of a value as `topic read --json` shows it."""
    shown = jsonable(shown_reader(serde)(data))
    line = shown if isinstance(shown, str) and not is_union else msgspec.json.encode(shown).decode()
    return serde.serialize(from_text(serde, line))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_values_of_avro_can_be_written_as_they_are_shown(data: Any) -> None:
    schema = {"type": "record", "name": "Top", "fields": [{"name": "u", "type": data.draw(schemas())}]}
    place = SerdePlace("t", is_key=False, registry={"url": f"mock://{uuid4()}"})
    serde = placed(Avro(schema=schema), place)
    text = Schema(json.dumps(schema), "AVRO")
    known = registry_of(place.registry).registered("t-value", text, normalize=False)
    head = b"\0" + known.schema_id.to_bytes(4)
    raw = head + encoded(data.draw, schema)[len(HEAD) :]
    assert shown_again(serde, raw) == raw


ALIKE = ["string", "bytes", "double", {"type": "array", "items": "string"}, "null"]
UUID_ = {"type": "string", "logicalType": "uuid"}
DATE_ = {"type": "int", "logicalType": "date"}
MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 2}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (ALIKE, "YWI="),
        (ALIKE, b"ab"),
        (ALIKE, "NaN"),
        (ALIKE, float("inf")),
        (ALIKE, ["string", "x"]),
        (ALIKE, ["bytes", "x"]),
        (["bytes", UUID_], UUID(int=7)),
        (["string", DATE_], "2026-01-01"),
        (["string", DATE_], date(2026, 1, 1)),
        (["string", MONEY], Decimal("1234567890123456789.10")),
        (["string", MONEY], "1234567890123456789.10"),
        (["double", "long"], 5),
        (["double", "long"], 5.0),
        ([MONEY, "double"], 0.5),
        ([MONEY, "double", "long"], 5),
        ("string", "5"),
        ("bytes", b"\0"),
        ("double", float("nan")),
        (DATE_, date(2026, 1, 1)),
    ],
    ids=str,
)
def test_values_that_json_takes_for_another_branch_name_their_own(schema: Any, value: Any) -> None:
    inside = {"type": "record", "name": "Top", "fields": [{"name": "u", "type": schema}]}
    for each, whole in ((inside, {"u": value}), (schema, value)):
        serde = placed(Avro(schema=each), SerdePlace("t", is_key=False, registry={"url": f"mock://{uuid4()}"}))
        data = serde.serialize(whole)
        assert shown_again(serde, data, is_union=isinstance(each, list)) == data


def test_numbers_of_avro_keep_their_digits() -> None:
    serde = placed(Avro(schema=["null", MONEY]), SerdePlace("t", is_key=False, registry={"url": f"mock://{uuid4()}"}))
    data = serde.serialize(Decimal("1234567890123456789.10"))
    assert serde.serialize(from_text(serde, "1234567890123456789.10")) == data


@pytest.mark.parametrize("is_plain", [True, False])
@pytest.mark.parametrize("end", [b"", b"\xa2\x06\x02ab"])
def test_messages_can_be_written_as_they_are_shown(end: bytes, is_plain: bool) -> None:
    place = SerdePlace("t", is_key=False, registry={"url": f"mock://{uuid4()}"})
    serde: Serde[Any] = placed(Protobuf(tickets.Ticket, dicts=is_plain), place)
    precise = tickets.Ticket(at={"seconds": 5, "nanos": 123_456_789}, photos=[{"value": b"\xff"}], code=b"\0")
    for message in (tickets.ticket(), precise, tickets.Ticket()):
        message.MergeFromString(end)
        data = placed(Protobuf(tickets.Ticket), place).serialize(message)
        assert serde.deserialize(shown_again(serde, data)) == serde.deserialize(data)
        assert shown_again(serde, data) == serde.serialize(serde.deserialize(data))


@pytest.mark.parametrize(
    ("line", "why"),
    [('{"u": 5}', "5 fits none of"), ('{"u": ["long", 5]}', "none of"), ("{", "truncated"), ('{"u": {}}', "none of")],
)
def test_lines_that_fit_no_branch_are_refused(line: str, why: str) -> None:
    schema = {"type": "record", "name": "Top", "fields": [{"name": "u", "type": ["string", MONEY][:1]}]}
    serde = placed(Avro(schema=schema), SerdePlace("t", is_key=False, registry={"url": f"mock://{uuid4()}"}))
    with pytest.raises(ValueError, match=why):
        serde.serialize(from_text(serde, line))
