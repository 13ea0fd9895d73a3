"""Keys whose bytes a serde does not reproduce are reported once, wherever tables depend on them."""

from __future__ import annotations

import json
import logging
import uuid
import warnings
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun import (
    BYTES,
    JSON,
    LONG,
    STRING,
    Avro,
    Consumed,
    Grouped,
    Joined,
    JsonSchema,
    Materialized,
    Processor,
    Produced,
    Protobuf,
    Record,
    Serde,
    Stores,
    StreamsBuilder,
    Window,
    Windowed,
    session_windowed,
)
from riverrun.records import RawRecord, TaskId, TopicPartition
from riverrun.runtime.layout import TaskSpec
from riverrun.runtime.ports import Ports
from riverrun.runtime.task import Task
from riverrun.schemas.protobuf_files import add_file, file_of
from riverrun.schemas.registry import registry_of
from riverrun.serde.api import SerdePlace, placed
from riverrun.state.memory import MemoryBackend
from riverrun.testing import KeyBytesWarning, TopologyTestDriver
from riverrun.testing.driver import MemoryTopics, MockClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun import Topology

READ: Consumed[Any, Any] = Consumed(JSON, JSON)
SPACED, COMPACT = b'{"id": 1}', b'{"id":1}'
INPUT = TopicPartition("in", 3)


class Storing(Processor[Any, Any]):
    @staticmethod
    def stores() -> list[Any]:
        return [Stores.key_value_store("own", JSON, JSON)]

    def process(self, record: Record[Any, Any]) -> None: ...


def of_a_global_store(builder: StreamsBuilder) -> None:
    class Filling(Processor[Any, Any]):
        def process(self, record: Record[Any, Any]) -> None: ...

    builder.add_global_store(Stores.key_value_store("global", JSON, JSON), "in", READ, Filling)


def of_a_join_after_select_key(builder: StreamsBuilder) -> None:
    stream = builder.stream("others", Consumed(STRING, JSON)).select_key(lambda _k, v: v)
    stream.join(builder.table("in", READ), lambda a, _b: a, joined=Joined(JSON, JSON)).to("out", Produced(JSON, JSON))


def of_a_foreign_key_join(builder: StreamsBuilder) -> None:
    left, right = builder.table("left", Consumed(STRING, JSON)), builder.table("in", READ)
    left.join(right, lambda a, _b: a, foreign_key_extractor=lambda v: v).to_stream().to("out", Produced(STRING, JSON))


DEPENDING: dict[str, Callable[[StreamsBuilder], Any]] = {
    "a table": lambda b: b.table("in", READ, Materialized(name="rows")),
    "a count": lambda b: b.stream("in", READ).group_by_key().count(Materialized(name="counts")),
    "a global table": lambda b: b.global_table("in", READ),
    "a global store": of_a_global_store,
    "a processor's store": lambda b: b.stream("in", READ).process(Storing),
    "a join after select_key": of_a_join_after_select_key,
    "a foreign-key join": of_a_foreign_key_join,
}


def topology_of(build: Callable[[StreamsBuilder], Any]) -> Topology:
    builder = StreamsBuilder()
    build(builder)
    return builder.build()


def warned(topology: Topology, *keys: bytes | None) -> list[str]:
    with warnings.catch_warnings(record=True) as caught, TopologyTestDriver(topology) as driver:
        warnings.simplefilter("always")
        for key in keys:
            driver.input_topic("in", BYTES, JSON).pipe_input(key, 1)
    return [str(warning.message) for warning in caught if warning.category is KeyBytesWarning]


@pytest.mark.parametrize("what", DEPENDING)
def test_the_driver_warns_once_of_keys_that_are_not_reproduced(what: str) -> None:
    (message,) = warned(topology_of(DEPENDING[what]), COMPACT, SPACED, SPACED)
    assert "Serde json" in message
    assert "topic in, for example of the key at partition 0, offset 1" in message
    assert "repartition()" in message
    assert "{" not in message, "keys are the user's data"


@pytest.mark.parametrize("what", DEPENDING)
def test_keys_that_are_reproduced_are_not_reported(what: str) -> None:
    assert warned(topology_of(DEPENDING[what]), COMPACT, b'"text"', b"17", None) == []


@pytest.mark.parametrize(
    "build",
    [
        lambda b: b.stream("in", READ).to("out", Produced(JSON, JSON)),
        lambda b: (
            b.stream("in", READ).group_by(lambda _k, v: v, Grouped(JSON, JSON)).count(Materialized(name="counts"))
        ),
        lambda b: b.stream("in", Consumed(BYTES, JSON)).group_by_key().count(Materialized(name="counts")),
    ],
    ids=["without a store", "by another key", "bytes"],
)
def test_keys_on_which_no_table_depends_are_not_reported(build: Callable[[StreamsBuilder], Any]) -> None:
    assert warned(topology_of(build), SPACED) == []


values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=4,
)
written = st.builds(
    lambda value, indent, spaces, ascii_only, ordered: json.dumps(
        value, indent=indent, separators=spaces, ensure_ascii=ascii_only, sort_keys=ordered
    ).encode(),
    values,
    st.none() | st.integers(0, 2),
    st.sampled_from([(",", ":"), (", ", ": ")]),
    st.booleans(),
    st.booleans(),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(written.filter(lambda key: key != b"null"), max_size=6))
def test_any_key_is_reported_if_and_only_if_its_bytes_differ(keys: list[bytes]) -> None:
    differ = [n for n, key in enumerate(keys) if JSON.serialize(JSON.deserialize(key)) != key]
    messages = warned(TABLE, *keys)
    assert [f"offset {n}." in message for n, message in zip(differ, messages, strict=False)] == [True] * len(differ[:1])
    assert len(messages) == len(differ[:1])


TABLE = topology_of(DEPENDING["a table"])


@pytest.mark.parametrize("in_batches", [False, True])
def test_a_worker_logs_it_once_and_looks_at_the_first_keys_only(
    in_batches: bool, caplog: pytest.LogCaptureFixture
) -> None:
    looked: list[int] = []

    def encode(value: Any) -> bytes:
        looked.append(1)
        return JSON.serialize(value)

    serde: Serde[Any] = Serde("own", encode, JSON.deserialize)
    builder = StreamsBuilder()
    builder.stream("in", Consumed(serde, JSON)).group_by(lambda k, v: (k, v), Grouped(JSON, JSON))
    builder.stream("in", Consumed(serde, JSON)).process(Storing)
    sub = next(sub for sub in builder.build().sub_topologies() if "in" in sub.source_topics)
    with caplog.at_level(logging.WARNING):
        for keys in ([COMPACT] * 1000, [COMPACT] * 40 + [SPACED] * 960):
            looked.clear()
            task = Task(
                TaskSpec(TaskId(sub.id, 3), sub, "app", (INPUT,)), Ports(MemoryTopics(), MemoryBackend(), MockClock())
            )
            task.start({})
            log = [RawRecord(key, LONG.serialize(1), 0, n) for n, key in enumerate(keys)]
            if in_batches:
                task.add_batches(INPUT, iter([log[:10], log[10:]]))
                assert task._queue(INPUT).has_waiting()
                task._queue(INPUT).waiting.clear()
                assert task._queue(INPUT).has_waiting()
            else:
                for at in range(0, 1000, 30):
                    task.add_records(INPUT, log[at : at + 30])
            assert len(looked) <= 100
    (message,) = [r.getMessage() for r in caplog.records if "does not reproduce" in r.getMessage()]
    assert "topic in, for example of the key at partition 3, offset 40" in message


def record_of(name: str, kind: Any = "long", **more: Any) -> Any:
    return {"type": "record", "name": name, "fields": [{"name": "id", "type": kind}], **more}


AVRO_SCHEMAS = {
    "equal": record_of("Key"),
    "equal, ordered otherwise": dict(reversed(record_of("Key").items())),
    "with a comment": record_of("Key", doc="Keys"),
    "of another namespace": record_of("Key", namespace="n"),
    "of a shorter number": record_of("Key", "int"),
    "that may be null": record_of("Key", ["null", "long"]),
    "with another field": {
        **record_of("Key"),
        "fields": [*record_of("Key")["fields"], {"name": "b", "type": "string"}],
    },
}
JSON_SCHEMAS = {
    "equal": {"title": "Key", "type": "object", "properties": {"id": {"type": "integer"}}},
    "with a comment": {"title": "Key", "type": "object", "properties": {"id": {"type": "integer", "description": "x"}}},
}
VALUES: dict[str, dict[str, Any]] = {"with another field": {"id": 7, "b": ""}}


class KeyOf(msgspec.Struct):
    id: int


MESSAGES = {
    "equal": 'syntax = "proto3"; package p; message Key { int64 id = 1; }',
    "with another field": 'syntax = "proto3"; package p; message Key { int64 id = 1; string b = 2; }',
    "of a shorter number": 'syntax = "proto3"; package p; message Key { int32 id = 1; }',
    "behind another": 'syntax = "proto3"; package p; message First { } message Key { int64 id = 1; }',
}


def message_class(what: str) -> Any:
    pool = DescriptorPool()
    add_file(pool, file_of(MESSAGES[what], "keys.proto"))
    return GetMessageClass(pool.FindMessageTypeByName("p.Key"))


OF_AVRO, OF_JSON = AVRO_SCHEMAS["equal"], JSON_SCHEMAS["equal"]
KEYS: dict[str, tuple[Serde[Any], Serde[Any]]] = {
    **{f"avro {each}": (Avro(schema=OF_AVRO), Avro(schema=made)) for each, made in AVRO_SCHEMAS.items()},
    **{f"type {each}": (Avro(KeyOf, schema=OF_AVRO), Avro(schema=made)) for each, made in AVRO_SCHEMAS.items()},
    **{f"json {each}": (JsonSchema(schema=OF_JSON), JsonSchema(schema=made)) for each, made in JSON_SCHEMAS.items()},
    **{
        f"message {each}": (Protobuf(message_class("equal"), dicts=True), Protobuf(message_class(each), dicts=True))
        for each in MESSAGES
    },
}
"""The application's serde of keys, and that of producers."""


@pytest.mark.parametrize("windows", [False, True])
@pytest.mark.parametrize("what", KEYS)
def test_keys_with_a_schema_are_reported_if_the_application_writes_others(what: str, *, windows: bool) -> None:
    own, producers = (session_windowed(each) if windows else each for each in KEYS[what])
    builder = StreamsBuilder()
    counts = (
        builder.stream("in", Consumed(own, JSON))
        .group_by_key(Grouped(own, JSON))
        .count(Materialized(own, name="counts"))
    )
    counts.to_stream().to("out", Produced(own, LONG))
    registry = {"url": f"mock://{uuid.uuid4()}"}
    place = SerdePlace("in", is_key=True, registry=registry)
    value: Any = VALUES.get(what.partition(" ")[2], {"id": 7})
    raw = placed(producers, place).serialize(Windowed(value, Window(0, 5)) if windows else value)
    client = registry_of(registry)
    before = client.latest("in-key").version
    with (
        warnings.catch_warnings(record=True) as caught,
        TopologyTestDriver(builder.build(), schema_registry=registry) as driver,
    ):
        warnings.simplefilter("always")
        for _ in range(3):
            driver.input_topic("in", BYTES, JSON).pipe_input(raw, 1)
        (written,) = {record.key for record in driver.read_raw("out")}
    messages = [str(warning.message) for warning in caught if warning.category is KeyBytesWarning]
    is_ordered_otherwise = "otherwise" in what  # the registry in memory has two ids for them, others have one
    assert len(messages) == (written != raw and not is_ordered_otherwise)
    assert not messages or "with its schema, or repartition" in messages[0]
    assert client.latest("in-key").version == before, "nothing is registered for a topic that is only read"
    assert is_ordered_otherwise or (written == raw) == what.endswith(" equal")
