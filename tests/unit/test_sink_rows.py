"""Rows of sinks: the columns of keys and values of every kind, and records as Arrow batches."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass, make_dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec
import pytest

from riverrun import BYTES, JSON, LONG, STRING, Serde, Window, Windowed, session_windowed, windowed
from riverrun.config import StreamsConfig
from riverrun.errors import BrokerError, ConfigError, DeserializationError, ProcessingError, RegistryError
from riverrun.processor.handlers import ProducerRecord, error_handlers
from riverrun.processor.sinks import JSON_FIELD, RefusedRecordsError, SinkBatch
from riverrun.records import RAW_VALUE, TopicPartition
from riverrun.serde.windowed import NO_END_MS
from riverrun.transfers.sink_rows import SinkRows
from riverrun.transfers.unreadable import ReadableRows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from riverrun.records import RawFields

TP = TopicPartition("t", 2)
PLACE = {"_timestamp": dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC), "_partition": 2, "_offset": 7}


class Key(TypedDict):
    user: str
    n: int


@dataclass
class Total:
    n: int
    at: dt.datetime | None = None
    tags: list[str] | None = None
    extra: Any = None


def rows_of(
    key_serde: Serde[Any],
    value_serde: Serde[Any],
    key: Any,
    value: Any,
    declared: Mapping[str, str] | None = None,
    names: tuple[str, ...] = (),
) -> list[dict[str, Any]]:
    rows = SinkRows.of(key_serde, value_serde, declared or {}, names)
    raw = None if value is None else value if isinstance(value, bytes) else value_serde.serialize(value)
    key = None if key is None else key_serde.serialize(key)
    return [
        {name: each for name, each in row.items() if name not in PLACE}
        for row in rows.batch(TP, [(key, raw, 1_000, 7, ())]).rows()
    ]


def test_values_without_fields_are_one_column() -> None:
    assert rows_of(STRING, LONG, "a", 5) == [{"_key": "a", "value": 5}]
    assert rows_of(LONG, STRING, 7, None) == [{"_key": 7, "value": None}]
    assert rows_of(BYTES, BYTES, b"\xff", b"\0") == [{"_key": b"\xff", "value": b"\0"}]
    assert rows_of(STRING, Serde("own", str.encode, bytes.decode), None, b"x") == [{"_key": None, "value": b"x"}]


def test_every_row_has_the_place_and_the_time_of_its_record() -> None:
    batch = SinkRows.of(STRING, STRING, {}).batch(TP, [(b"a", b"x", 1_000, 7, ()), (b"b", None, 1_000, 9, ())])
    assert batch.rows()[0] == {"_key": "a", "value": "x", **PLACE}
    assert batch.rows()[1] == {"_key": "b", "value": None, **PLACE, "_offset": 9}
    assert batch.tombstones == [False, True]
    assert len(batch) == 2


def test_typed_values_have_a_column_for_each_field() -> None:
    value = b'{"n":1,"at":"2026-01-02T03:04:05Z","tags":["x"],"extra":{"b":1},"unknown":2}'
    at = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    expected = {"_key": "a", "n": 1, "at": at, "tags": ["x"], "extra": '{"b":1}'}
    assert rows_of(STRING, JSON(Total), "a", value) == [expected]
    assert rows_of(STRING, JSON(Total), "a", None) == [dict.fromkeys(expected) | {"_key": "a"}]
    schema = SinkRows.of(STRING, JSON(Total), {}).schema
    assert [field.name for field in schema if field.metadata == JSON_FIELD] == ["extra"]


def test_keys_with_fields_are_a_column_each_apart_from_those_of_values() -> None:
    assert rows_of(JSON(Key), JSON(Total), {"user": "u", "n": 3}, b'{"n":1}') == [
        {"user": "u", "_key_n": 3, "n": 1, "at": None, "tags": None, "extra": None}
    ]
    assert SinkRows.of(JSON(Key), JSON(Total), {}).key_names == ("user", "_key_n")


def test_windowed_keys_have_their_window_whatever_its_end() -> None:
    moment = dt.datetime(1970, 1, 1, 0, 1, tzinfo=dt.UTC)
    key = Windowed("a", Window(60_000, 90_000))
    expected = [{"_key": "a", "_window_start": moment, "_window_end": moment + timedelta(seconds=30), "value": 1}]
    assert rows_of(windowed(STRING, timedelta(seconds=30)), LONG, key, 1) == expected
    assert rows_of(session_windowed(STRING), LONG, key, 1) == expected
    (row,) = rows_of(windowed(STRING), LONG, Windowed("a", Window(60_000, NO_END_MS)), 1)
    assert row["_window_end"] == dt.datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=dt.UTC)


def test_columns_of_the_key_may_have_other_names() -> None:
    assert rows_of(STRING, LONG, "a", 5, names=("user",)) == [{"user": "a", "value": 5}]
    with pytest.raises(ConfigError, match="key has 1 names, but the key of the topic has the columns user, n"):
        SinkRows.of(JSON(Key), LONG, {}, ["id"])
    with pytest.raises(ConfigError, match="Two columns have the name value"):
        SinkRows.of(STRING, LONG, {}, ["value"])


def test_untyped_json_is_one_column_or_those_that_are_declared() -> None:
    assert rows_of(STRING, JSON, "a", b'{"n": 1.10}') == [{"_key": "a", "value": '{"n":1.1}'}]
    declared = {"n": "double", "user": "string", "at": "timestamp", "on": "date", "all": "json", "is": "boolean"}
    value = b'{"n":1,"at":"2026-01-02T03:04:05","on":"2026-01-02","all":[1],"other":9}'
    at = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    expected = {"_key": "a", "n": 1.0, "user": None, "at": at, "on": dt.date(2026, 1, 2), "all": "[1]", "is": None}
    assert rows_of(STRING, JSON, "a", value, declared) == [expected]
    assert rows_of(STRING, JSON, "a", None, declared) == [dict.fromkeys(expected) | {"_key": "a"}]
    with pytest.raises(ConfigError, match="columns are declared, but values have serde long"):
        SinkRows.of(STRING, LONG, declared)


def test_what_does_not_fit_is_refused_with_its_place() -> None:
    place = r"\(topic t, partition 2, offset 7\)"
    with pytest.raises(DeserializationError, match=rf"A value cannot be read: .*{place}"):
        rows_of(STRING, JSON(Total), "a", b'{"n":"many"}')
    with pytest.raises(
        DeserializationError, match=rf"A value cannot be read: Expected `int \| float \| null`, got `str`.*{place}"
    ):
        rows_of(STRING, JSON, "a", b'{"n":"many"}', {"n": "double"})
    with pytest.raises(DeserializationError, match=rf"A key cannot be read: .*{place}"):
        SinkRows.of(LONG, LONG, {}).batch(TP, [(b"short", None, 0, 7, ())])
    with pytest.raises(DeserializationError, match=rf"{2**70} is not of type int64, as column n requires: .*{place}"):
        rows_of(STRING, JSON(Total), "a", b'{"n":%d}' % 2**70)


GOOD, BAD = b'{"n":1}', b'{"n":"many"}'


def readable(
    letters: list[ProducerRecord], handler: str = "continue", topic: str | None = None
) -> tuple[ReadableRows, SinkRows]:
    config = StreamsConfig(deserialization_exception_handler=handler, errors_dead_letter_queue_topic_name=topic)
    rows = SinkRows.of(STRING, JSON(Total), {})
    return ReadableRows("totals", rows.batch, error_handlers(config).deserialization, letters.extend), rows


def raws(*values: bytes) -> list[RawFields]:
    return [(b"k", value, 1_000, 7 + number, (("h", b"1"),)) for number, value in enumerate(values)]


def test_records_that_cannot_be_read_are_skipped_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    found, rows = readable(letters := list[ProducerRecord]())
    batch = found.batch(TP, raws(GOOD, BAD, GOOD, BAD))
    assert batch is not None
    assert batch.rows() == rows.batch(TP, [raws(GOOD, BAD, GOOD)[place] for place in (0, 2)]).rows()
    assert found.batch(TP, raws(BAD)) is None
    assert (found.skipped, letters) == (3, [])
    assert "export totals in task 0_2 failed: DeserializationError: A value cannot be read" in caplog.text
    assert "(topic t, partition 2, offset 10)" in caplog.text


def away(_letters: object) -> None:
    message = "no broker answers"
    raise BrokerError(message)


def test_a_record_that_is_read_again_before_its_commit_is_skipped_once() -> None:
    letters = list[ProducerRecord]()
    found, _rows = readable(letters, topic="letters")
    write, found.write = found.write, away
    with pytest.raises(BrokerError):
        found.batch(TP, raws(GOOD, BAD))
    # Its letter may be lost, so it is decided again.
    found.write = write
    for _ in range(2):
        found.batch(TP, raws(GOOD, BAD))
        assert (found.skipped, len(letters)) == (1, 1)
    found.refuse(RefusedRecordsError("no", {(TP, 7): "no"}))
    for _ in range(2):
        assert found.batch(TP, raws(GOOD, BAD)) is None
        assert (found.skipped, len(letters)) == (2, 2)
    found.committed({TP: 8})
    batch = found.batch(TP, raws(GOOD, BAD))
    assert batch is not None
    assert (found.skipped, len(letters)) == (2, 2)
    found.committed({TP: 9})
    found.batch(TP, raws(GOOD, BAD))
    assert (found.skipped, len(letters)) == (3, 3)


def test_an_outage_of_a_registry_writes_no_letter_of_what_is_read_again() -> None:
    letters = list[ProducerRecord]()
    found, _rows = readable(letters, topic="letters")
    rows, outages = found.rows, iter(range(3))

    def unreachable(tp: TopicPartition, records: Sequence[RawFields]) -> SinkBatch:
        if records[-1][RAW_VALUE] == GOOD and next(outages, None) is not None:
            raise RegistryError("no registry answers", retriable=True)
        return rows(tp, records)

    found.rows = unreachable
    for _ in range(3):
        with pytest.raises(RegistryError):
            found.batch(TP, raws(BAD, GOOD))
    assert (found.skipped, letters) == (0, [])
    assert found.batch(TP, raws(BAD, GOOD)) is not None
    assert (found.skipped, len(letters)) == (1, 1)


@pytest.mark.parametrize(
    ("handler", "why"),
    [
        (dict[object, Any]().__getitem__, "Fatal user code error in deserialization error callback: KeyError"),
        (id, "The deserialization exception handler returned .*, not a Response"),
    ],
)
def test_a_handler_that_cannot_decide_about_a_record_is_named(handler: Callable[[object], Any], why: str) -> None:
    rows = readable(list[ProducerRecord]())[1]
    found = ReadableRows("totals", rows.batch, lambda where, _record, _error: handler(where), lambda _letters: None)
    with pytest.raises(ProcessingError, match=why):
        found.batch(TP, raws(GOOD, BAD))


@pytest.mark.parametrize("handler", ["continue", "fail"])
def test_records_that_cannot_be_read_become_dead_letters(handler: str) -> None:
    found, _rows = readable(letters := list[ProducerRecord](), handler, "letters")
    if handler == "fail":
        with pytest.raises(DeserializationError, match=r"offset 8"):
            found.batch(TP, raws(GOOD, BAD, BAD))
    else:
        found.batch(TP, raws(GOOD, BAD))
    (letter,) = letters
    headers = dict(letter.headers)
    assert (letter.topic, letter.key, letter.value, headers["h"]) == ("letters", b"k", BAD, b"1")
    assert (headers["__streams.errors.topic"], headers["__streams.errors.offset"]) == (b"t", b"8")


def test_without_a_handler_a_record_that_cannot_be_read_is_an_error() -> None:
    found, _rows = readable(letters := list[ProducerRecord](), "fail")
    with pytest.raises(DeserializationError, match=r"offset 8"):
        found.batch(TP, raws(GOOD, BAD, GOOD))
    assert letters == []


class Odd(TypedDict):
    _offset: int


def test_fields_with_names_of_riverruns_own_columns_are_refused() -> None:
    with pytest.raises(ConfigError, match="Values have a field _offset"):
        SinkRows.of(STRING, JSON(Odd), {})
    with pytest.raises(ConfigError, match="Values have a field _key"):
        SinkRows.of(STRING, JSON, {"_key": "string"})


class Part(TypedDict, total=False):
    n: int
    at: str | None


@pytest.mark.parametrize(
    ("serde", "declared", "head"),
    [
        (JSON, {"n": "bigint", "at": "string"}, b""),
        (JSON(Part), {}, b""),
        (JSON(make_dataclass("Flat", [("n", int, 3), ("at", str | None, None)])), {}, b""),
        (JSON(msgspec.defstruct("Own", [("n", int, 3), ("at", str | None, None)], omit_defaults=True)), {}, b""),
        (
            replace(JSON(Part), name="json_schema[Part]", deserialize=lambda data: json.loads(data[5:])),
            {},
            b"\0\0\0\0\7",
        ),
    ],
)
def test_absent_fields_are_those_that_the_json_does_not_have(serde: Any, declared: Any, head: bytes) -> None:
    rows = SinkRows.of(STRING, serde, declared, keeps_absent=True)
    values = [b"{}", b'{"n":3}', b'{"at":null,"n":1}', b'{"other":1,"at":"x"}']
    records: list[RawFields] = [(b"a", head + value, 1, at, ()) for at, value in enumerate(values)]
    found = rows.batch(TP, [*records, (b"a", None, 1, 9, ())])
    assert [set(names) for names in found.absent] == [{"n", "at"}, {"at"}, set(), {"n"}, set()]
    assert [row.keys() & {"n", "at"} for row in found.rows()] == [set(), {"n"}, {"n", "at"}, {"at"}, {"n", "at"}]
    assert found.rows()[2]["at"] is None


@pytest.mark.parametrize("serde", [LONG, STRING, JSON, JSON(int), Serde("own", str.encode, bytes.decode)])
def test_values_without_fields_in_json_cannot_keep_absent_ones(serde: Any) -> None:
    with pytest.raises(ConfigError, match='absent_fields = "keep" needs JSON with fields, and values have serde'):
        SinkRows.of(STRING, serde, {}, keeps_absent=True)
