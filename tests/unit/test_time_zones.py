"""A time means the same on every machine, in each place that takes one."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from riverrun import Avro, Protobuf, UnlimitedWindows
from riverrun.serde.api import SerdePlace, placed
from riverrun.spark.ranges import time_ms

ZONES = ["UTC", "America/New_York", "Pacific/Apia"]


def printed(zone: str) -> list[str]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.unit.times"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | {"TZ": zone})
    return done.stdout.splitlines()


def test_no_place_asks_for_the_zone_of_the_machine() -> None:
    with ThreadPoolExecutor() as threads:
        first, *others = threads.map(printed, ZONES)
    results = [line for line in first if "Error: " not in line]
    assert len(results) > 400
    assert not any(wrong in line for wrong in ("AttributeError", "NameError", "() ") for line in first)
    for zone, lines in zip(ZONES[1:], others, strict=True):
        assert lines == first, zone


NOON = dt.datetime(2020, 7, 1, 12, tzinfo=dt.UTC)


def avro(logical: str) -> Any:
    kind = {"type": "long", "logicalType": logical}
    own = {"type": "record", "name": "R", "fields": [{"name": "at", "type": ["null", kind]}]}
    return Avro(schema=own), lambda time: {"at": time}


@pytest.mark.parametrize("time", [NOON, NOON.replace(tzinfo=None), NOON.astimezone(ZoneInfo("Asia/Tokyo"))], ids=str)
def test_a_time_without_a_zone_is_in_utc(time: dt.datetime) -> None:
    for serde, make in (
        avro("timestamp-millis"),
        avro("timestamp-micros"),
        (Protobuf(Timestamp, dicts=True), lambda t: t),
    ):
        own = placed(serde, SerdePlace("t", is_key=False, registry={"url": "mock://zones"}))
        assert own.deserialize(own.serialize(make(time))) == make(NOON)
    assert UnlimitedWindows.of(start=time).start_ms == time_ms(time.isoformat()) == round(NOON.timestamp() * 1000)


@pytest.mark.parametrize("logical", ["local-timestamp-millis", "local-timestamp-micros"])
def test_a_local_time_has_no_zone(logical: str) -> None:
    serde, make = avro(logical)
    own = placed(serde, SerdePlace("t", is_key=False, registry={"url": "mock://local"}))
    local = NOON.replace(tzinfo=None)
    assert own.deserialize(own.serialize(make(local))) == make(local)
    with pytest.raises(ValueError, match="has a time zone, and a local timestamp has none"):
        own.serialize(make(NOON))
