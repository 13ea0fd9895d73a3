"""Prints what each place that takes a time makes of times with and without a zone: equal on every machine."""

from __future__ import annotations

import base64
import datetime as dt
import json
import uuid
from itertools import product
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import msgspec
from google.protobuf.timestamp_pb2 import Timestamp

from riverrun import (
    BYTES,
    JSON,
    STRING,
    Avro,
    Consumed,
    JsonSchema,
    Materialized,
    Produced,
    Protobuf,
    StreamsBuilder,
    UnlimitedWindows,
)
from riverrun.serde.api import SerdePlace, placed
from riverrun.spark.columns import Columns, columns_of
from riverrun.spark.ranges import time_ms
from riverrun.sql import build_sql
from riverrun.testing import TopologyTestDriver
from riverrun.topics.records import LineFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from riverrun import Serde

BERLIN, TOKYO = ZoneInfo("Europe/Berlin"), ZoneInfo("Asia/Tokyo")
# ruff: noqa: DTZ001 - times without a zone are what this is about

TIMES: list[Any] = [
    dt.datetime(2020, 7, 1, 12, 0, 0, 1500),
    dt.datetime(2020, 7, 1, 12, tzinfo=dt.UTC),
    dt.datetime(2020, 7, 1, 12, tzinfo=TOKYO),
    dt.datetime(2020, 10, 25, 2, 30),  # twice in Berlin, by daylight saving
    dt.datetime(2020, 10, 25, 2, 30, fold=1),
    dt.datetime(2020, 10, 25, 2, 30, tzinfo=BERLIN),
    dt.datetime(2020, 10, 25, 2, 30, tzinfo=BERLIN, fold=1),
    dt.datetime(2020, 3, 29, 2, 30),  # never in Berlin
    dt.datetime(2011, 12, 30, 12),  # never in Apia
    dt.datetime(1901, 1, 1),
    dt.datetime(1, 1, 1),
    dt.datetime(9999, 12, 31, 23, 59, 59, 999_999),
    dt.datetime(9999, 12, 31, 23, tzinfo=dt.timezone(dt.timedelta(hours=-12))),
    dt.date(2020, 7, 1),
    dt.time(12, 30, 0, 1500),
    dt.time(12, 30, tzinfo=TOKYO),
    dt.time(2, 30, fold=1),
]
TEXTS = [
    "2020-07-01T12:00:00.0015",
    "2020-07-01T12:00:00Z",
    "2020-07-01 12:00:00+09:00",
    "2020-10-25T02:30:00",
    "2020-03-29T02:30",
    "2011-12-30T12:00",
    "2020-07-01",
    "1969-12-31T23:59:59.999Z",
    "2020-07-01T12:00:00 Europe/Berlin",
    "12:30:00",
    "0001-01-01T00:00:00+14:00",
]
LOGICAL = {
    f"{prefix}-{unit}": {
        "type": "int" if (prefix, unit) == ("time", "millis") else "long",
        "logicalType": f"{prefix}-{unit}",
    }
    for prefix in ("timestamp", "local-timestamp", "time")
    for unit in ("millis", "micros")
} | {"date": {"type": "int", "logicalType": "date"}}
LINES = LineFormat(STRING, JSON, timestamp="at")


class At(msgspec.Struct):
    at: dt.datetime


class Frozen(msgspec.Struct, frozen=True):
    at: dt.datetime | None


class Day(msgspec.Struct):
    at: dt.date


class OfDay(msgspec.Struct):
    at: dt.time


def serdes() -> Iterator[tuple[str, Serde[Any], Callable[[Any], Any]]]:
    """Serdes, and the functions that make their values of a time."""
    for name, schema in LOGICAL.items():
        field = {"name": "at", "type": schema}
        record = {"type": "record", "name": "R", "fields": [field]}
        itself = {**record, "fields": [field, {"name": "next", "type": ["null", "R"], "default": None}]}
        for shape, whole, make in (
            ("field", record, lambda time: {"at": time}),
            ("plain path", itself, lambda time: {"at": time, "next": {"at": time, "next": None}}),
            ("optional", {**record, "fields": [{"name": "at", "type": ["null", schema]}]}, lambda time: {"at": time}),
            ("union", {**record, "fields": [{"name": "at", "type": [schema, "string"]}]}, lambda time: {"at": time}),
            ("array", {"type": "array", "items": schema}, lambda time: [time]),
            ("map", {"type": "map", "values": schema}, lambda time: {"at": time}),
        ):
            yield f"Avro {name} {shape}", Avro(schema=whole), make
    for cls in (At, Frozen, Day, OfDay):
        yield f"Avro({cls.__name__})", Avro(cls), cls
        yield f"JsonSchema({cls.__name__})", JsonSchema(cls), cls
        yield f"JSON({cls.__name__})", JSON(cls), cls
    yield "JSON", JSON, lambda time: {"at": time}
    yield "Protobuf", Protobuf(Timestamp, dicts=True), lambda time: time


def shown(make: Callable[..., Any], *given: Any) -> str:
    """Return the text of the result of a call, or of its error."""
    try:
        return repr(make(*given))
    except Exception as error:  # noqa: BLE001 - whatever a place raises
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def of_made(own: Serde[Any], columns: Columns, make: Callable[[Any], Any], time: Any) -> Any:
    """Return the bytes of a value, the value that comes back, and its columns."""
    data = own.serialize(make(time))
    return base64.b16encode(data), own.deserialize(data), columns.arrays([data], lambda _: {})[0].to_pylist()


def of_store(serde: Serde[Any], make: Callable[[Any], Any], time: Any) -> Any:
    """Return the bytes that a value has behind a table."""
    builder = StreamsBuilder()
    stream = builder.stream("in", Consumed(STRING, STRING)).map_values(lambda _: make(time))
    stream.to_table(Materialized(STRING, serde, name="t")).to_stream().to("out", Produced(STRING, serde))
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic("in", STRING, STRING).pipe_input("k", "x", timestamp=1)
        return driver.output_topic("out", STRING, BYTES).read_value()


def of_sql(text: str) -> Any:
    """Return the rows that SQL makes of a text, and of the moment that it stands for."""
    statements = (
        "CREATE STREAM s (k STRING KEY, at TIMESTAMP, said STRING) WITH (kafka_topic='s', value_format='DELIMITED');"
        "CREATE STREAM o WITH (value_format='JSON') AS SELECT k, at, CAST(said AS TIMESTAMP) AS cast_at, "
        "FORMAT_TIMESTAMP(at, 'yyyy-MM-dd HH:mm:ss z') AS formatted, CAST(at AS STRING) AS text, "
        "PARSE_TIMESTAMP(said, 'yyyy-MM-dd''T''HH:mm:ss') AS parsed FROM s;"
    )
    with TopologyTestDriver(build_sql(statements, StreamsBuilder())) as driver:
        driver.input_topic("s", STRING, STRING).pipe_input("k", f"{time_ms(text)},{text}", timestamp=1)
        return driver.output_topic("O", STRING, BYTES).read_values_to_list()


def main() -> None:
    """Print a line for each place and time."""
    for name, serde, make in serdes():
        own = placed(serde, SerdePlace("t", is_key=False, registry={"url": f"mock://{uuid.uuid4()}"}))
        columns = columns_of("value", own)
        for time in TIMES:
            print(name, time, shown(of_made, own, columns, make, time))
    for (name, serde, make), time in product(serdes(), TIMES[:3]):
        if name in {
            "Avro timestamp-micros union",
            "Avro local-timestamp-millis field",
            "Avro(At)",
            "JSON(At)",
            "Protobuf",
        }:
            print("table", name, time, shown(of_store, serde, make, time))
    for time in TIMES:
        print("UnlimitedWindows", time, shown(lambda start: UnlimitedWindows.of(start=start), time))
    for text in TEXTS:
        print("--from, --to", text, shown(time_ms, text))
        print("topic write", text, shown(LINES.fields, json.dumps({"at": text}), 0))
        print("SQL", text, shown(of_sql, text))


if __name__ == "__main__":
    main()
