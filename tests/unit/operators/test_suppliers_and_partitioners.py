"""Suppliers that bring stores, and partitioners that send a record to several partitions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import (
    LONG,
    STRING,
    Consumed,
    FixedKeyProcessor,
    FixedKeyProcessorContext,
    ProcessingError,
    Processor,
    ProcessorContext,
    Produced,
    Record,
    Repartitioned,
    Response,
    SerializationExceptionOrigin,
    Stores,
    StreamsBuilder,
    Topology,
    TopologyError,
    ValueTransformerWithKey,
)
from riverrun.processor.handlers import ErrorHandlers
from riverrun.records import TaskId
from riverrun.runtime.compile import sink
from riverrun.runtime.context import TaskContext
from riverrun.runtime.failures import Failures
from riverrun.testing import TopologyTestDriver
from riverrun.testing.driver import MockClock
from riverrun.topology.nodes import SinkNode
from tests.presence import present

if TYPE_CHECKING:
    from riverrun import ErrorHandlerContext, FixedKeyRecord, ProducerRecord, StoreBuilder
    from riverrun.partitioning import Partitions

TEXTS: Consumed[str, str] = Consumed(STRING, STRING)
TO_TEXTS: Produced[str, str] = Produced(STRING, STRING)
SEEN = Stores.key_value_store("seen", STRING, STRING)


class Remember(Processor[str, str]):
    """Forwards the value that the key had before, from a store that it brings itself."""

    @staticmethod
    def stores() -> tuple[StoreBuilder, ...]:
        return (SEEN,)

    def init(self, context: ProcessorContext) -> None:
        self.context, self.seen = context, context.get_state_store("seen")

    def process(self, record: Record[str, str]) -> None:
        before = self.seen.get(record.key)
        self.seen.put(record.key, record.value)
        self.context.forward(Record(record.key, f"{before}>{record.value}", record.timestamp))


class RememberValue(FixedKeyProcessor[str, str]):
    def init(self, context: FixedKeyProcessorContext) -> None:
        self.context, self.seen = context, context.get_state_store("seen")

    def process(self, record: FixedKeyRecord[str, str]) -> None:
        before = self.seen.get(record.key)
        self.seen.put(record.key, record.value)
        self.context.forward(record.with_value(f"{before}>{record.value}"))


class RememberRow(ValueTransformerWithKey[str, str, str]):
    def init(self, context: ProcessorContext) -> None:
        self.seen = context.get_state_store("seen")

    def transform(self, key: str, value: str | None) -> str:
        before = self.seen.get(key)
        self.seen.put(key, value)
        return f"{before}>{value}"


@dataclass
class WithStores:
    """A supplier that is not a class, with the stores that its processors need."""

    kind: Any

    def __call__(self) -> Any:
        return self.kind()

    def stores(self) -> tuple[StoreBuilder, ...]:
        return (SEEN,)


def results(topology: Topology) -> list[tuple[str, str]]:
    with TopologyTestDriver(topology) as driver:
        for value in "xyz":
            driver.input_topic("in", STRING, STRING).pipe_input("k", value)
        found = driver.output_topic("out", STRING, STRING).read_records_to_list()
    return [(present(record.key), present(record.value)) for record in found]


EXPECTED = [("k", "None>x"), ("k", "x>y"), ("k", "y>z")]


@pytest.mark.parametrize("supplier", [Remember, WithStores(Remember)])
def test_a_supplier_of_processors_brings_its_stores(supplier: Any) -> None:
    builder = StreamsBuilder()
    builder.stream("in", TEXTS).process(supplier).to("out", TO_TEXTS)
    assert results(builder.build()) == EXPECTED
    topology = Topology().add_source("source", "in", key_serde=STRING, value_serde=STRING)
    topology.add_processor("remember", supplier, "source")
    assert results(topology.add_sink("sink", "out", "remember", key_serde=STRING, value_serde=STRING)) == EXPECTED


def test_so_do_suppliers_of_processors_of_values_and_of_transformers() -> None:
    values, rows = StreamsBuilder(), StreamsBuilder()
    values.stream("in", TEXTS).process_values(WithStores(RememberValue)).to("out", TO_TEXTS)
    rows.table("in", TEXTS).transform_values(WithStores(RememberRow)).to_stream().to("out", TO_TEXTS)
    assert results(values.build()) == results(rows.build()) == EXPECTED


def test_two_processors_that_bring_the_same_store_share_it() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", TEXTS)
    stream.process(Remember).to("out", TO_TEXTS)
    stream.process(Remember).to("second", TO_TEXTS)
    topology = builder.build()
    assert [len(users) for users in topology.parts().users.values()] == [2]
    assert results(topology) == [("k", "None>x"), ("k", "x>y"), ("k", "y>z")]


def test_different_stores_of_one_name_are_refused() -> None:
    builder = StreamsBuilder().add_state_store(Stores.key_value_store("seen", STRING, STRING, caching=True))
    builder.stream("in", TEXTS).process(Remember)
    with pytest.raises(TopologyError, match="different state store seen"):
        builder.build()


def test_a_supplier_that_gives_one_instance_twice_is_refused() -> None:
    stream, table = StreamsBuilder().stream("in", TEXTS), StreamsBuilder().table("in", TEXTS)
    value, row = RememberValue(), RememberRow()
    with pytest.raises(TopologyError, match="must return a new object each time"):
        stream.process_values(lambda: value)
    with pytest.raises(TopologyError, match="must return a new object each time"):
        table.transform_values(lambda: row)
    topology = Topology().add_source("source", "in", key_serde=STRING, value_serde=STRING)
    processor = Remember()
    with pytest.raises(TopologyError, match="must return a new object each time"):
        topology.add_processor("remember", lambda: processor, "source")


@dataclass
class Sent:
    """A collector of three partitions per topic."""

    partitions_sent: list[int | None] = field(default_factory=list)

    def send(self, _topic: str, _key: Any, _value: Any, _timestamp: int, _headers: Any, partition: int | None) -> None:
        self.partitions_sent.append(partition)

    def partitions(self, topic: str) -> int:
        return 3 if topic == "out" else 1


@pytest.mark.parametrize(
    ("chosen", "sent"),
    [(None, [None]), (2, [2]), ({1}, [1]), (range(3), [0, 1, 2]), (frozenset(), []), ([2, 0], [2, 0])],
)
def test_a_partitioner_may_name_one_partition_several_or_none(chosen: Partitions, sent: list[int | None]) -> None:
    def partitioner(topic: str, key: str, value: str, partitions: int) -> Partitions:
        assert (topic, key, value, partitions) == ("out", "k", "v", 3)
        return chosen

    collector = Sent()
    failures = Failures(ErrorHandlers(), TaskContext(MockClock()), TaskId(0, 0), collector.send)
    sink(SinkNode("sink", (), "out", STRING, STRING, partitioner), "out", collector, failures)("k", "v", 5, ())
    assert collector.partitions_sent == sent


@pytest.mark.parametrize("chosen", [-1, "1", 1.0, [0, None], {-2}])
def test_what_is_no_partition_is_refused_and_named(chosen: Any) -> None:
    builder = StreamsBuilder()
    builder.stream("in", TEXTS).to("out", Produced(STRING, STRING, partitioner=lambda *_: chosen))
    with (
        TopologyTestDriver(builder.build()) as driver,
        pytest.raises(ProcessingError, match=r"chose .* for out: a part"),
    ):
        driver.input_topic("in", STRING, STRING).pipe_input("k", "v")


@pytest.mark.parametrize("chosen", [None, 7, ["out"], "", "no name", "..", "a" * 250])
def test_what_is_no_topics_name_is_refused_and_named(chosen: Any) -> None:
    builder = StreamsBuilder()
    builder.stream("in", TEXTS).to(lambda *_: chosen, TO_TEXTS)
    with (
        TopologyTestDriver(builder.build()) as driver,
        pytest.raises(ProcessingError, match="is not a legal topic name"),
    ):
        driver.input_topic("in", STRING, STRING).pipe_input("k", "v")


def test_a_record_for_no_partition_is_dropped_also_between_sub_topologies() -> None:
    builder = StreamsBuilder()
    dropping: Repartitioned[str, str] = Repartitioned(partitioner=lambda _t, _k, v, n: range(n) if v != "y" else ())
    builder.stream("in", TEXTS).repartition(dropping).to("out", TO_TEXTS)
    assert results(builder.build()) == [("k", "x"), ("k", "z")]


def test_a_record_for_no_partition_is_counted_and_not_even_serialised() -> None:
    builder = StreamsBuilder()
    nowhere: Produced[str, Any] = Produced(STRING, LONG, partitioner=lambda _t, _k, _v, _n: ())
    builder.stream("in", TEXTS).to("out", nowhere)
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic("in", STRING, STRING).pipe_input("k", "no number")
        assert driver.dropped() == {"no-partition": 1}


def test_each_partition_of_a_record_is_the_production_handlers_on_its_own() -> None:
    asked = []

    def skip(context: ErrorHandlerContext, record: ProducerRecord, _error: Exception) -> Response:
        asked.append((context.serialization_origin, record.partition))
        return Response.resume()

    failures = Failures(ErrorHandlers(production=skip), TaskContext(MockClock()), TaskId(0, 0), Sent().send)
    node = SinkNode("sink", (), "out", LONG, STRING, lambda _t, _k, _v, _n: {0, 2})
    sink(node, "out", Sent(), failures)("no number", "v", 5, ())
    assert asked == [(SerializationExceptionOrigin.KEY, 0), (SerializationExceptionOrigin.KEY, 2)]
