"""The code under a live store changes: a start reads its rows, or refuses before the first record."""

from __future__ import annotations

import dataclasses
import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from riverrun import (
    JSON,
    STRING,
    Avro,
    Consumed,
    Grouped,
    JsonSchema,
    Materialized,
    Produced,
    Protobuf,
    Serde,
    SessionWindows,
    StreamsBuilder,
    TimeWindows,
    Topology,
)
from riverrun.errors import StateSchemaError
from riverrun.hosting.control_topic import ControlTopic
from riverrun.hosting.state_schemas import STATE_TOPIC, StateSchemas
from riverrun.runtime.serde_places import with_places
from riverrun.schemas.protobuf_files import add_file, file_of
from riverrun.spark.bounded_runs.job import run as bounded_run
from riverrun.spark.ranges import resolve
from riverrun.worker.reset import plan_reset, reset
from riverrun.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.brokers import Broker

Visit = dataclasses.make_dataclass("Visit", [("clicks", int)])
Longer = dataclasses.make_dataclass(
    "Visit", [("clicks", float), ("country", str | None, dataclasses.field(default=None))]
)
Renamed = dataclasses.make_dataclass("Visit", [("seen", int, dataclasses.field(default=0))])
Required = dataclasses.make_dataclass("Visit", [("clicks", int), ("country", str)])
Bounded = dataclasses.make_dataclass("Visit", [("clicks", bool)])

Build = "Callable[[str, Any], Topology]"


def per_key(name: str, type_: Any) -> Topology:
    builder = StreamsBuilder()
    grouped = builder.stream(f"{name}.in", Consumed(STRING, STRING)).group_by_key()
    kept: Any = Materialized(name="visits", value_serde=JSON(type_))
    made = grouped.aggregate(lambda: None, lambda _k, _v, last: last or sample(type_), kept)
    made.to_stream().to(f"{name}.out", Produced(STRING, JSON(type_)))
    return builder.build()


def per_window(name: str, type_: Any) -> Topology:
    builder = StreamsBuilder()
    grouped = builder.stream(f"{name}.in", Consumed(STRING, STRING)).group_by_key()
    windows = grouped.windowed_by(TimeWindows.of(timedelta(minutes=1), grace=timedelta(hours=1)))
    windows.aggregate(
        lambda: None, lambda _k, _v, last: last or sample(type_), Materialized(name="visits", value_serde=JSON(type_))
    )
    return builder.build()


def per_session(name: str, type_: Any) -> Topology:
    builder = StreamsBuilder()
    grouped = builder.stream(f"{name}.in", Consumed(STRING, STRING)).group_by_key()
    sessions = grouped.windowed_by(SessionWindows.of(timedelta(minutes=1), grace=timedelta(hours=1)))
    sessions.aggregate(
        lambda: None,
        lambda _k, _v, last: last or sample(type_),
        lambda _k, one, _two: one,
        Materialized(name="visits", value_serde=JSON(type_)),
    )
    return builder.build()


def sample(type_: Any) -> Any:
    return type_(
        **{each.name: {"clicks": 3, "seen": 3, "country": "x"}[each.name] for each in dataclasses.fields(type_)}
    )


STORES = {"key-value": per_key, "window": per_window, "session": per_session}


def run(broker: Broker, name: str, state: Path, topology: Topology) -> int:
    return Worker(broker.application(name, topology, state)).run(until_caught_up=True).processed


@pytest.fixture
def broker(any_broker: Broker) -> Broker:
    """In memory, but for tests that are marked `broker`."""
    return any_broker


@pytest.fixture(params=STORES)
def begun(
    request: pytest.FixtureRequest, broker: Broker, unique: str, tmp_path: Path
) -> Callable[[str, Any], Topology]:
    """An application that has kept a visit of Ann's; returns what builds its topology with a class of visits."""
    build: Callable[[str, Any], Topology] = STORES[request.param]
    broker.create(2, f"{unique}.in", f"{unique}.out")
    broker.write(f"{unique}.in", [(b"ann", b"1", 1000)])
    assert run(broker, unique, tmp_path, build(unique, Visit)) == 1
    broker.write(f"{unique}.in", [(b"ann", b"1", 2000)])
    return build


def test_rows_of_a_longer_class_are_read(
    begun: Callable[[str, Any], Topology], broker: Broker, unique: str, tmp_path: Path
) -> None:
    assert run(broker, unique, tmp_path, begun(unique, Longer)) == 1
    known = StateSchemas(broker.connected(broker.application(unique, begun(unique, Longer), tmp_path))).known()
    assert len(known["Store visits"]) == 2, "rows of both classes may be there"


def test_a_class_that_cannot_read_the_rows_is_refused_at_start(
    begun: Callable[[str, Any], Topology], broker: Broker, unique: str, tmp_path: Path
) -> None:
    with pytest.raises(StateSchemaError, match=r"Store visits .*json\[Visit\].*`country`.*key 'ann'") as raised:
        run(broker, unique, tmp_path, begun(unique, Required))
    assert f"riverrun state accept {unique} visits --version v1" in str(raised.value.hint)
    assert run(broker, unique, tmp_path, begun(unique, Visit)) == 1, "the earlier code goes on"


def test_a_fresh_machine_refuses_as_well(broker: Broker, unique: str, tmp_path: Path) -> None:
    broker.create(2, f"{unique}.in", f"{unique}.out")
    broker.write(f"{unique}.in", [(b"ann", b"1", 1000)])
    run(broker, unique, tmp_path / "one", per_key(unique, Visit))
    with pytest.raises(StateSchemaError):
        run(broker, unique, tmp_path / "two", per_key(unique, Bounded))


def test_a_bounded_run_refuses_before_its_first_record(broker: Broker, unique: str, tmp_path: Path) -> None:
    broker.create(2, f"{unique}.in", f"{unique}.out")
    broker.write(f"{unique}.in", [(b"ann", b"1", 1000)])
    run(broker, unique, tmp_path, per_key(unique, Visit))
    broker.write(f"{unique}.in", [(b"ann", b"1", 1000)])
    app = broker.application(unique, per_key(unique, Required), tmp_path, bounded_engine="local")
    connected = broker.connected(app)
    before = connected.committed()
    with pytest.raises(StateSchemaError, match=r"key 'ann'"):
        bounded_run(connected, resolve(connected, "committed", "latest"), no_spark, lambda _job: app.topology)
    assert connected.committed() == before


def no_spark() -> Any:
    pytest.fail("Spark was started")


@pytest.mark.broker
def test_a_reset_forgets_the_forms_of_the_rows_that_it_deletes(broker: Broker, unique: str, tmp_path: Path) -> None:
    broker.create(1, f"{unique}.in", f"{unique}.out")
    broker.write(f"{unique}.in", [(b"ann", b"1", 1000)])
    run(broker, unique, tmp_path, per_key(unique, Visit))
    connected = broker.connected(broker.application(unique, per_key(unique, Required), tmp_path))
    reset(plan_reset(connected, resolve(connected, "earliest", "latest").start), broker.admin())
    assert not [topic for topic in ControlTopic(broker.admin(), STATE_TOPIC).read() if topic.startswith(unique)]
    assert run(broker, unique, tmp_path, per_key(unique, Required)) == 1


def test_all_forms_that_rows_may_have_are_compared(broker: Broker, unique: str, tmp_path: Path) -> None:
    broker.create(1, f"{unique}.in", f"{unique}.out")
    for key, type_ in ((b"ann", Visit), (b"bob", Longer)):
        broker.write(f"{unique}.in", [(key, b"1", 1000)])
        run(broker, unique, tmp_path, per_key(unique, type_))
    later = dataclasses.make_dataclass("Visit", [("clicks", float), ("country", str | None)])
    with pytest.raises(StateSchemaError, match=r"`country`.*key 'ann'"):
        run(broker, unique, tmp_path, per_key(unique, later))


def test_a_store_without_rows_takes_any_class(broker: Broker, unique: str, tmp_path: Path) -> None:
    broker.create(1, f"{unique}.in", f"{unique}.out")
    run(broker, unique, tmp_path, per_key(unique, Visit))
    broker.write(f"{unique}.in", [(b"ann", b"1", 1000)])
    assert run(broker, unique, tmp_path, per_key(unique, Required)) == 1


def test_rows_that_a_narrower_class_reads_are_no_reason_to_refuse_it(
    broker: Broker, unique: str, tmp_path: Path
) -> None:
    """All rows are here to be read: no float has a fraction."""
    broker.create(1, f"{unique}.in", f"{unique}.out")
    broker.write(f"{unique}.in", [(b"ann", b"1", 1000)])
    run(broker, unique, tmp_path, per_key(unique, Longer))
    assert run(broker, unique, tmp_path, per_key(unique, Visit)) == 0


def test_a_renamed_field_is_told(broker: Broker, unique: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broker.create(1, f"{unique}.in", f"{unique}.out")
    broker.write(f"{unique}.in", [(b"ann", b"1", 1000)])
    run(broker, unique, tmp_path, per_key(unique, Visit))
    with caplog.at_level(logging.WARNING):
        run(broker, unique, tmp_path, per_key(unique, Renamed))
    assert "Store visits: clicks of earlier rows is no longer read" in caplog.text


def test_a_person_can_accept_what_was_refused(broker: Broker, unique: str, tmp_path: Path) -> None:
    broker.create(1, f"{unique}.in", f"{unique}.out")
    broker.write(f"{unique}.in", [(b"ann", b"1", 1000)])
    run(broker, unique, tmp_path, per_key(unique, Visit))
    changed = per_key(unique, Required)
    with pytest.raises(StateSchemaError):
        run(broker, unique, tmp_path, changed)
    schemas = StateSchemas(broker.connected(broker.application(unique, changed, tmp_path)))
    assert schemas.accept("visits") == ["string to json[Visit]"]
    broker.write(f"{unique}.in", [(b"bob", b"1", 1000)])
    assert run(broker, unique, tmp_path, changed) == 1
    with pytest.raises(StateSchemaError, match="It has: visits"):
        schemas.accept("visit")


def test_a_changed_serde_of_ones_own_is_tried_on_the_rows(broker: Broker, unique: str, tmp_path: Path) -> None:
    def topology(write: Callable[[int], bytes], read: Callable[[bytes], int]) -> Topology:
        builder = StreamsBuilder()
        texts = builder.stream(f"{unique}.in", Consumed(STRING, STRING))
        kept: Any = Materialized(name="sums", value_serde=Serde("own", write, read))
        texts.group_by_key().aggregate(lambda: 0, lambda _k, v, total: total + int(v), kept)
        return builder.build()

    broker.create(1, f"{unique}.in")
    broker.write(f"{unique}.in", [(b"ann", b"700", 1000)])
    run(broker, unique, tmp_path, topology(lambda n: b"%d" % n, int))
    assert run(broker, unique, tmp_path, topology(lambda n: b"%05d" % n, int)) == 0
    with pytest.raises(StateSchemaError, match=r"key 'ann': .*not one digit"):
        run(broker, unique, tmp_path, topology(lambda n: b"%d" % n, one_digit))


def one_digit(data: bytes) -> int:
    if len(data) > 1:
        message = f"{data!r} is not one digit"
        raise ValueError(message)
    return int(data)


def test_records_that_wait_in_a_repartition_topic_are_compared(broker: Broker, unique: str, tmp_path: Path) -> None:
    def topology(type_: Any) -> Topology:
        builder = StreamsBuilder()
        visits = builder.stream(f"{unique}.in", Consumed(STRING, STRING)).map_values(lambda _: sample(type_))
        visits.group_by(lambda key, _: key, Grouped(STRING, JSON(type_), name="again")).count()
        return builder.build()

    broker.create(1, f"{unique}.in")
    broker.write(f"{unique}.in", [(b"ann", b"1", 1000)])
    run(broker, unique, tmp_path, topology(Visit))
    assert run(broker, unique, tmp_path, topology(Required)) == 0, "all of them are processed"
    broker.write(f"{unique}-v1-again-repartition", [(b"ann", b'{"clicks":3}', 1000)], 0)
    with pytest.raises(StateSchemaError, match=r"Repartition topic again-repartition .*key 'ann'"):
        run(broker, unique, tmp_path, topology(dataclasses.make_dataclass("Visit", [("clicks", str)])))


@dataclasses.dataclass(frozen=True)
class Person:
    name: str


@pytest.mark.parametrize("serde", [Avro, JsonSchema])
def test_rows_with_a_schema_are_read_by_the_one_that_wrote_them(
    broker: Broker, unique: str, tmp_path: Path, serde: Callable[[Any], Serde[Any]]
) -> None:
    def topology(type_: Any) -> Topology:
        builder = StreamsBuilder()
        texts = builder.stream(f"{unique}.in", Consumed(STRING, STRING))
        kept: Any = Materialized(name="visits", value_serde=serde(type_))
        grouped = texts.group_by(lambda key, _: Person(key), Grouped(serde(Person), STRING, name="people"))
        grouped.aggregate(lambda: None, lambda _k, _v, last: last or sample(type_), kept)
        return on_registry(builder.build(), unique)

    broker.create(1, f"{unique}.in")
    broker.write(f"{unique}.in", [(b"ann", b"1", 1000)])
    assert run(broker, unique, tmp_path, topology(Visit)) == 2
    broker.write(f"{unique}.in", [(b"ann", b"1", 1000)])
    with pytest.raises(StateSchemaError, match=r"Store visits .*key Person\(name='ann'\).*country"):
        run(broker, unique, tmp_path, topology(Required))
    assert run(broker, unique, tmp_path, topology(Longer)) == 2


def on_registry(topology: Topology, unique: str) -> Topology:
    return with_places(topology, f"{unique}-v1", {"url": f"mock://{unique}", "auto.register.schemas": True})


def message(name: str, fields: str) -> Any:
    """A class of Protobuf messages, as protoc would generate it."""
    file = file_of(f'syntax = "proto3"; package riverrun.test; message {name} {{ {fields} }}', "visits.proto")
    return GetMessageClass(add_file(DescriptorPool(), file).message_types_by_name[name])


def test_rows_in_protobuf_are_read_by_the_numbers_of_fields(broker: Broker, unique: str, tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []

    def topology(type_: Any, field: str) -> Topology:
        def updated(key: str, value: str, last: Any) -> Any:
            seen.append((key, getattr(last, field)))
            return type_(**{field: value})

        builder = StreamsBuilder()
        texts = builder.stream(f"{unique}.in", Consumed(STRING, STRING))
        kept: Any = Materialized(name="visits", value_serde=Protobuf(type_))
        texts.group_by_key().aggregate(type_, updated, kept)
        return on_registry(builder.build(), unique)

    broker.create(1, f"{unique}.in")
    broker.write(f"{unique}.in", [(b"ann", b"home", 1000)])
    assert run(broker, unique, tmp_path, topology(message("Visit", "string page = 1;"), "page")) == 1
    broker.write(f"{unique}.in", [(b"ann", b"cart", 1000)])
    later = message("Visit", "string country = 2; string place = 1;")
    assert run(broker, unique, tmp_path, topology(later, "place")) == 1
    assert seen == [("ann", ""), ("ann", "home")]
