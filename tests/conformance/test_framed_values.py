"""Values on a schema registry pass every host and every transfer with equal bytes: branches, nanoseconds, unknown fields."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from riverrun import (
    STRING,
    Avro,
    Consumed,
    Grouped,
    Joined,
    Materialized,
    Produced,
    Protobuf,
    Repartitioned,
    Serde,
    StreamsBuilder,
)
from riverrun.runtime.serde_places import with_places
from riverrun.schemas.protobuf_files import add_file, file_of
from riverrun.schemas.registry import registry_of
from riverrun.serde.api import SerdePlace, placed
from riverrun.spark.columns import columns_of, with_variants
from riverrun.spark.dry_run import dry_run
from riverrun.spark.ranges import resolve
from riverrun.topics.records import LineFormat, TopicReader, write_lines
from riverrun.topics.serdes import jsonable
from riverrun.transfers.exports import ExportSpec, run_export
from riverrun.transfers.imports import ImportSpec, run_import
from tests.conformance.hosts import SparkHost, on_executor
from tests.registries import running_registry
from tests.spark_sessions import own_session
from tests.unit.schemas.avro_schemas import HEAD, encoded, schemas_together
from tests.unit.schemas.tickets import TEXT, ticket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame

    from riverrun import Topology
    from tests.brokers import Broker
    from tests.conformance.hosts import Host

_SCHEMAS = 4
_FIELDS = 6
_VALUES = 8


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_registry() as url:
        yield url


@dataclass(frozen=True)
class Case:
    """A serde that can be made anywhere, and bytes of its values behind the head."""

    serde: Callable[[], Serde[Any]]
    payloads: list[bytes]
    schema: Callable[[], Schema]


def avro_case(schema: Any, payloads: list[bytes]) -> Case:
    text = json.dumps(schema)
    return Case(lambda: Avro(schema=text), payloads, lambda: Schema(text, "AVRO"))


def drawn() -> list[Case]:
    """Some schemas full of unions, with values that were encoded without the serdes: the same ones each time."""
    found: list[Case] = []

    @settings(max_examples=_SCHEMAS, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
    @given(st.data())
    def draw(data: st.DataObject) -> None:
        types = data.draw(schemas_together(_FIELDS))
        fields = [{"name": f"f{number}", "type": each} for number, each in enumerate(types)]
        schema = {"type": "record", "name": "Top", "fields": fields}
        found.append(avro_case(schema, [encoded(data.draw, schema)[len(HEAD) :] for _ in range(_VALUES)]))

    draw()
    assert len({case.schema().schema_str for case in found}) > 1
    return found


def tickets(finest_ns: int) -> Case:
    """Messages as dicts: times with so many nanoseconds, all kinds of fields, and fields of a later version of the class."""

    def serde() -> Serde[Any]:
        return Protobuf(_ticket_class(), dicts=True)

    def schema() -> Schema:
        at = SerdePlace("any", is_key=False, registry={"url": "mock://schema-of-tickets"})
        data = placed(Protobuf(_ticket_class(), dicts=True), at).serialize({})
        return registry_of(at.registry).schema(int.from_bytes(data[1:5]))

    plain = _ticket_class()()
    plain.ParseFromString(ticket().SerializeToString())
    precise = _ticket_class()(at={"seconds": 5, "nanos": 123_456_000}, stops=[{"seconds": -1, "nanos": finest_ns}, {}])
    unknown = _ticket_class()(gate=1, traded={"row": "1"}).SerializeToString(deterministic=True) + b"\xa2\x06\x02ab"
    messages = [each.SerializeToString(deterministic=True) for each in (plain, precise, _ticket_class()())]
    return Case(serde, [b"\2\2" + each for each in [*messages, unknown]], schema)


def _ticket_class() -> Any:
    """The class in a pool of its own, since executors cannot import the tests' modules."""
    pool = DescriptorPool()
    add_file(pool, file_of(TEXT, "riverrun/tickets.proto"))
    return GetMessageClass(pool.FindMessageTypeByName("riverrun.test.Ticket"))


def topology_of(
    builder: StreamsBuilder, cases: Mapping[str, Case], topic: Callable[[str], str], application_id: str, url: str
) -> Topology:
    """A topology in which values pass a repartition topic, stores with and without caches, and a join."""
    for name, case in cases.items():
        serde = case.serde
        again = builder.stream(topic(f"{name}-in"), Consumed(STRING, serde())).repartition(
            Repartitioned(STRING, serde(), name=f"{name}-again")
        )
        grouped = again.group_by_key(Grouped(STRING, serde()))
        for caches in (True, False):
            stored = Materialized(STRING, serde(), name=f"{name}-{caches}", caching=caches)
            last = grouped.reduce(lambda _total, value: value, stored)
            last.to_stream().to(topic(f"{name}-{caches}"), Produced(STRING, serde()))
        table = again.to_table(Materialized(STRING, serde(), name=f"{name}-table"))
        joined = again.join(table, lambda _value, row: row, joined=Joined(STRING, serde()))
        joined.to(topic(f"{name}-joined"), Produced(STRING, serde()))
    return with_places(builder.build(), application_id, {"url": url})


@dataclass(frozen=True)
class Run:
    """The cases, ready for a host."""

    cases: dict[str, Case]
    build: Callable[[StreamsBuilder], Topology]
    inputs: dict[str, list[tuple[bytes, bytes, int]]]
    outputs: tuple[str, ...]


def run_on(host: Host, application_id: str, url: str, *, finest_ns: int = 1) -> Run:
    cases = {f"c{number}": case for number, case in enumerate([*drawn(), tickets(finest_ns)])}
    inputs = {}
    for name, case in cases.items():
        subject = f"{host.topic(f'{name}-in')}-value"
        found = registry_of({"url": url}).registered(subject, case.schema(), normalize=False)
        head = b"\0" + found.schema_id.to_bytes(4)
        rows = [(b"k%d" % number, head + each, 1 + number) for number, each in enumerate(case.payloads)]
        inputs[f"{name}-in"] = rows
    topic = host.topic

    def build(builder: StreamsBuilder) -> Topology:
        return topology_of(builder, cases, topic, application_id, url)

    return Run(cases, build, inputs, tuple(f"{name}-{kind}" for name in cases for kind in ("True", "False", "joined")))


def test_values_pass_every_host_with_equal_bytes(host: Host, unique: str, url: str) -> None:
    run = run_on(host, unique, url)
    found = host.run(run.build, run.inputs, *run.outputs)
    for name in run.outputs:
        wanted = {key: value for key, value, _ in run.inputs[f"{name.partition('-')[0]}-in"]}
        assert {record.key: record.value for record in found[name]} == wanted, name


@pytest.mark.broker
@pytest.mark.spark
def test_dry_runs_and_transfers_keep_values_as_they_are(broker: Broker, unique: str, url: str, tmp_path: Path) -> None:
    host = SparkHost(broker, unique, tmp_path / "state")
    run, spark = run_on(host, unique, url, finest_ns=1000), own_session()  # columns have microseconds
    topics = {name: host.topic(name) for name in (*run.inputs, *run.outputs)}
    broker.create(1, *topics.values())
    for name, records in run.inputs.items():
        broker.write(topics[name], records)
    connected = broker.connected(host.application(run.build(StreamsBuilder())))
    frames = dry_run(connected, resolve(connected), spark, on_executor(run.build))
    for name in run.outputs:
        case, records = run.cases[name.partition("-")[0]], run.inputs[f"{name.partition('-')[0]}-in"]
        serde = placed(case.serde(), SerdePlace(topics[name], is_key=False, registry={"url": url}))
        columns = columns_of("value", serde)
        (values,) = columns.arrays([value for _, value, _ in records], lambda _: {})
        table = pa.table({"key": [key.decode() for key, _, _ in records], "value": values})
        wanted = with_variants(spark.createDataFrame(table), columns.columns)
        assert as_json(frames[topics[name]]) == as_json(wanted), name

    for name, records in run.inputs.items():
        copy = f"{topics[name]}-copy"
        again = f"{topics[name]}-again"
        broker.create(1, copy, again)
        run_export(ExportSpec(topics[name], str(tmp_path / name), "parquet", is_binary=True), broker.admin(), spark)
        spec = ImportSpec(copy, str(tmp_path / name), "parquet", key=("_key",), value="value", timestamp="_timestamp")
        run_import(spec, broker.admin(), spark)
        assert [record[:3] for record in broker.read(copy)] == records

        serde = placed(
            run.cases[name.partition("-")[0]].serde(), SerdePlace(again, is_key=False, registry={"url": url})
        )
        place = TopicReader(broker.admin(), topics[name], STRING, serde)
        lines = [
            f"{record.key}:{msgspec.json.encode(jsonable(record.value)).decode()}\n".encode()
            for record in place.read("earliest", "latest")
        ]
        assert write_lines(broker.admin(), again, lines, LineFormat(STRING, serde, separator=":")) == len(records)
        assert [(record.key, record.value) for record in broker.read(again)] == [each[:2] for each in records]


def as_json(frame: DataFrame) -> dict[str, str]:
    """The values of a frame by key, whatever their type."""
    return {row.key: row.value for row in frame.selectExpr("key", "to_json(struct(value)) value").collect()}
