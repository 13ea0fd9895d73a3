"""The outputs of two versions, from `streams.toml` and their topologies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from riverrun import (
    BYTES,
    JSON,
    LONG,
    STRING,
    UUID,
    Consumed,
    Produced,
    Serde,
    StreamsBuilder,
    session_windowed,
    windowed,
)
from riverrun.config import AppConfig, OutputKind
from riverrun.errors import ConfigError, ReleaseError
from riverrun.hosting.application import Application
from riverrun.kafka.door import Kafka
from riverrun.releases.topology import outputs, require_known, require_same_keys, require_same_kinds, tables

if TYPE_CHECKING:
    from riverrun import Topology


class Before(msgspec.Struct, frozen=True):
    id: str


class Renamed(msgspec.Struct, frozen=True):
    id: str


def topology(*, is_table: bool, topic: str = "out") -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("in", Consumed(STRING, STRING))
    (stream.to_table().to_stream() if is_table else stream).to(topic, Produced(STRING, STRING))
    return builder.build()


def version(name: str, *, is_table: bool, **declared: OutputKind) -> Application:
    return Application(AppConfig("app", "m:f", outputs=declared), name, topology(is_table=is_table), Kafka({}), Path())


def test_what_is_declared_counts_more_than_what_the_topology_says() -> None:
    assert tables(version("v1", is_table=True)) == ["out"]
    assert tables(version("v1", is_table=True, out=OutputKind.LOG)) == []
    assert tables(version("v1", is_table=False, out=OutputKind.TABLE)) == ["out"]
    assert outputs(version("v1", is_table=True, out=OutputKind.LOG))["out"].why == "streams.toml says so"


def test_a_table_that_becomes_a_log_is_refused_until_somebody_says_what_it_is() -> None:
    one, other = version("v1", is_table=True), version("v2", is_table=False)
    with pytest.raises(
        ReleaseError, match=r"out is a table in v1 \(.*\) and a log in v2 \(it has the records of"
    ) as raised:
        require_same_kinds(one, other)
    assert '[apps.app.outputs] "out" = "table" or "log"' in str(raised.value)
    declared = (version(name, is_table=name == "v1", out=OutputKind.LOG) for name in ("v1", "v2"))
    require_same_kinds(*declared)


def test_a_topic_that_no_version_writes_is_refused_with_the_nearest() -> None:
    config = AppConfig("app", "m:f", outputs={"alerts": OutputKind.LOG})
    written = [topology(is_table=True), topology(is_table=True, topic="alert")]
    with pytest.raises(ConfigError, match=r"apps.app.outputs.alerts: no version of app writes") as raised:
        require_known(config, written)
    assert "Did you mean 'alert'?" in str(raised.value)
    require_known(AppConfig("app", "m:f", outputs={"alert": OutputKind.LOG}), written)


def keyed(version: str, key_serde: Serde[Any], topic: str = "out") -> Application:
    builder = StreamsBuilder()
    builder.stream("in", Consumed(key_serde, STRING)).to(topic, Produced(key_serde, STRING))
    return Application(AppConfig("app", "m:f"), version, builder.build(), Kafka({}), Path())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (STRING, LONG),
        (STRING, JSON(str)),
        (windowed(STRING), STRING),
        (windowed(STRING), session_windowed(STRING)),
        (windowed(STRING), windowed(LONG)),
    ],
)
def test_versions_that_write_other_keys_to_one_topic_are_refused(one: Serde[Any], other: Serde[Any]) -> None:
    with pytest.raises(ReleaseError) as raised:
        require_same_keys(keyed("v1", one), keyed("v2", other))
    assert f"out has keys of {one.name} in v1 and of {other.name} in v2" in str(raised.value)
    assert "its own topic" in str(raised.value)
    require_same_keys(keyed("v1", one), keyed("v2", other, topic="other"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (STRING, UUID),
        (STRING, BYTES),
        (JSON(Renamed), JSON(Before)),
        (windowed(JSON(Renamed)), windowed(JSON(Before))),
        (STRING, Serde("own", str.encode, bytes.decode)),
    ],
)
def test_keys_whose_bytes_may_be_equal_are_not_refused(one: Serde[Any], other: Serde[Any]) -> None:
    require_same_keys(keyed("v1", one), keyed("v2", other))
