"""Topologies of the Processor API from end to end (`ProcessorTopologyTest`, `TopologyTestDriverTest`)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import (
    STRING,
    DeserializationError,
    FixedKeyRecord,
    ProcessingError,
    Processor,
    ProducerRecord,
    PunctuationType,
    Record,
    StateError,
    Stores,
    Topology,
)
from riverrun.testing import TopologyTestDriver

if TYPE_CHECKING:
    from riverrun import ConsumerRecord, ProcessorContext

HEADERS = (("key", b"value"),)
Rows = list[tuple[str | None, str | None, int]]


class Forwarding(Processor[str, str]):
    def init(self, context: ProcessorContext) -> None:
        self.context = context

    def process(self, record: Record[str, str]) -> None:
        self.context.forward(record)

    def close(self) -> None:
        """Do nothing."""


class TenLater(Forwarding):
    def process(self, record: Record[str, str]) -> None:
        self.context.forward(record.with_timestamp(record.timestamp + 10))


class FanningOut(Forwarding):
    def process(self, record: Record[str, str]) -> None:
        self.context.forward(record)
        self.context.forward(record.with_timestamp(record.timestamp + 5), "child-1")
        self.context.forward(record, "child-2")
        self.context.forward(record.with_timestamp(record.timestamp + 2))


class AddingHeaders(Forwarding):
    def process(self, record: Record[str, str]) -> None:
        self.context.forward(record.with_headers(HEADERS))


class GivingHeadersOfItsOwn(Forwarding):
    given: Any = None

    def process(self, record: Record[str, str]) -> None:
        self.context.forward(record.with_headers(self.given))


class WithoutTimeInTheValue(Forwarding):
    def process(self, record: Record[str, str]) -> None:
        self.context.forward(record.with_value(record.value.split("@")[0]))


class Keeping(Forwarding):
    def init(self, context: ProcessorContext) -> None:
        self.store = context.get_state_store("entries")

    def process(self, record: Record[str, str]) -> None:
        self.store.put(record.key, record.value)


class KeepingFromTheStart(Keeping):
    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        self.store.put("key1", "value1")


class KeepingTheLargest(Keeping):
    """Forwards all entries every ten seconds of the records' time and every minute of the clock's."""

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        self.context = context
        context.schedule(timedelta(minutes=1), PunctuationType.WALL_CLOCK_TIME, self.flush)
        context.schedule(timedelta(seconds=10), PunctuationType.STREAM_TIME, self.flush)

    def process(self, record: Record[str, str]) -> None:
        if record.value > (self.store.get(record.key) or ""):
            self.store.put(record.key, record.value)

    def flush(self, now_ms: int) -> None:
        for key, value in self.store.all():
            self.context.forward(Record(key, value, now_ms))


class Recursing(Forwarding):
    def process(self, record: Record[str, str]) -> None:
        if not record.value.startswith("recurse-"):
            self.context.forward(record.with_value(f"recurse-{record.value}"), "again")
        self.context.forward(record, "sink")


def source(topology: Topology, name: str, topic: str, extractor: Any = None) -> Topology:
    return topology.add_source(name, topic, key_serde=STRING, value_serde=STRING, timestamp_extractor=extractor)


def sink(topology: Topology, name: str, topic: str, *parents: str, partitioner: Any = None) -> Topology:
    return topology.add_sink(name, topic, *parents, key_serde=STRING, value_serde=STRING, partitioner=partitioner)


def through(processor: type[Forwarding]) -> Topology:
    topology = source(Topology(), "source", "in").add_processor("processor", processor, "source")
    return sink(topology, "sink", "out", "processor")


def pipe(driver: TopologyTestDriver, *rows: tuple[str, str, int], topic: str = "in") -> None:
    given = driver.input_topic(topic, STRING, STRING)
    for key, value, timestamp in rows:
        given.pipe_input(key, value, timestamp=timestamp)


def read(driver: TopologyTestDriver, topic: str = "out") -> Rows:
    records = driver.output_topic(topic, STRING, STRING).read_records_to_list()
    return [(record.key, record.value, record.timestamp) for record in records]


ROWS = [("key1", "value1", 10), ("key2", "value2", 20), ("key3", "value3", 30)]


def test_records_keep_their_times_unless_a_processor_forwards_them_with_others() -> None:
    for processor, later in ((Forwarding, 0), (TenLater, 10)):
        with TopologyTestDriver(through(processor)) as driver:
            pipe(driver, *ROWS)
            assert read(driver) == [(key, value, timestamp + later) for key, value, timestamp in ROWS]


def test_children_get_what_is_forwarded_to_all_and_to_them_each_with_its_own_time() -> None:
    topology = source(Topology(), "source", "in").add_processor("processor", FanningOut, "source")
    topology.add_processor("child-1", Forwarding, "processor").add_processor("child-2", TenLater, "processor")
    sink(sink(topology, "sink-1", "out-1", "child-1"), "sink-2", "out-2", "child-2")
    with TopologyTestDriver(topology) as driver:
        for key, value, at in ROWS:
            pipe(driver, (key, value, at))
            assert read(driver, "out-1") == [(key, value, at), (key, value, at + 5), (key, value, at + 2)]
            assert read(driver, "out-2") == [(key, value, at + 10), (key, value, at + 10), (key, value, at + 12)]


NO_HEADERS = [
    None,
    {"name": b"value"},
    "name",
    (b"value",),
    ("ab",),
    (["name", b"value"],),
    (("name", b"value", 1),),
    ((1, b"value"),),
    ((b"name", b"value"),),
    ((None, b"value"),),
    (("name", 1),),
    (("name", "value"),),
    (("name", bytearray(b"value")),),
    (("name\0", b"value"),),
    (("\ud800", b"value"),),
]
"""Values that the client library refuses, alters, or crashes at."""


@pytest.mark.parametrize("headers", NO_HEADERS, ids=repr)
def test_headers_that_cannot_be_written_as_they_are_are_refused_everywhere(headers: Any) -> None:
    class Giving(GivingHeadersOfItsOwn):
        given = headers

    with TopologyTestDriver(through(Giving)) as driver:
        source = driver.input_topic("in", STRING, STRING)
        with pytest.raises(ProcessingError, match="Malformed record"):
            source.pipe_input("key1", "value1", headers=headers)
        with pytest.raises(ProcessingError, match=r"Malformed record.*task 0_0"):
            source.pipe_input("key1", "value1")
    for new in (FixedKeyRecord, Record):
        with pytest.raises(ProcessingError, match="Malformed record"):
            new("key1", "value1", 1, headers)
    with pytest.raises(ProcessingError, match="Malformed record"):
        ProducerRecord("out", b"key1", b"value1", 1, headers)


@pytest.mark.parametrize("headers", [(("", b""),), (("näme", None), ("näme", b"2")), [("name", b"value")]])
def test_headers_that_can_be_written_stay_as_they_are(headers: Any) -> None:
    with TopologyTestDriver(through(Forwarding)) as driver:
        driver.input_topic("in", STRING, STRING).pipe_input("key1", "value1", headers=headers)
        assert driver.output_topic("out", STRING, STRING).read_record().headers == headers


@pytest.mark.parametrize(("processor", "given"), [(Forwarding, HEADERS), (AddingHeaders, ())])
def test_headers_are_those_of_the_record_or_those_a_processor_gives_it(
    processor: type[Forwarding], given: tuple[tuple[str, bytes], ...]
) -> None:
    with TopologyTestDriver(through(processor)) as driver:
        driver.input_topic("in", STRING, STRING).pipe_input("key1", "value1", timestamp=10, headers=given)
        assert driver.output_topic("out", STRING, STRING).read_record() == Record("key1", "value1", 10, HEADERS)


def test_a_partitioner_that_names_no_partition_drops_the_record() -> None:
    topology = sink(source(Topology(), "source", "in"), "sink", "out", "source", partitioner=lambda *_: [])
    with TopologyTestDriver(topology) as driver:
        pipe(driver, *ROWS)
        assert read(driver) == []


def test_a_topology_reads_what_it_has_written_itself() -> None:
    topology = sink(source(Topology(), "source-1", "in"), "sink-1", "between", "source-1")
    sink(source(topology, "source-2", "between"), "sink-2", "out", "source-2")
    with TopologyTestDriver(topology) as driver:
        pipe(driver, *ROWS)
        assert read(driver) == ROWS
        assert read(driver, "between") == ROWS


@pytest.mark.parametrize("chosen", [None, 1.5, "7", 2**63])
def test_what_is_no_time_is_refused_where_an_extractor_gives_it(chosen: Any) -> None:
    topology = sink(source(Topology(), "source", "in", lambda *_: chosen), "sink", "out", "source")
    with (
        TopologyTestDriver(topology) as driver,
        pytest.raises(DeserializationError, match="extractor of source returned"),
    ):
        pipe(driver, ("k", "v", 1))


@pytest.mark.parametrize("made", [Record, FixedKeyRecord])
@pytest.mark.parametrize("chosen", [None, 1.5, "7"])
def test_a_record_cannot_have_what_is_no_time(made: Any, chosen: Any) -> None:
    with pytest.raises(ProcessingError, match="is not a whole number of ms"):
        made("k", "v", 1).with_timestamp(chosen)


def test_the_time_an_extractor_has_found_is_kept_from_one_sub_topology_to_the_next() -> None:
    def extract(record: ConsumerRecord[str, str], _partition_time: int) -> int:
        return int(record.value.partition("@")[2] or record.timestamp)

    topology = source(Topology(), "source", "in", extract)
    topology.add_processor("processor", WithoutTimeInTheValue, "source")
    sink(
        source(sink(topology, "sink", "between", "processor"), "source-1", "between", extract),
        "sink-1",
        "out",
        "source-1",
    )
    with TopologyTestDriver(topology) as driver:
        pipe(driver, ("key1", "value1@1000", 0), ("key2", "value2@2000", 0), ("key3", "value3@3000", 0))
        assert read(driver) == [("key1", "value1", 1000), ("key2", "value2", 2000), ("key3", "value3", 3000)]


@pytest.mark.parametrize("caching", [False, True])
def test_processors_of_several_sources_share_a_store_that_each_of_them_brings(caching: bool) -> None:
    topology, builder = Topology(), Stores.key_value_store("entries", STRING, STRING, caching=caching)
    for number in ("1", "2"):
        source(topology, f"source-{number}", f"in-{number}")
        topology.add_processor(f"processor-{number}", Keeping, f"source-{number}")
        topology.add_state_store(builder, f"processor-{number}")
    with TopologyTestDriver(topology) as driver:
        pipe(driver, *ROWS, topic="in-1")
        pipe(driver, ("key1", "value4", 40), topic="in-2")
        store = driver.get_key_value_store("entries")
        assert list(store.prefix_scan(b"key")) == [("key1", "value4"), ("key2", "value2"), ("key3", "value3")]
        assert store.get("key4") is None


@pytest.mark.parametrize("caching", [False, True])
def test_what_a_processor_writes_while_it_starts_has_the_time_of_the_clock(caching: bool) -> None:
    topology = source(Topology(), "source", "in").add_processor("processor", KeepingFromTheStart, "source")
    topology.add_state_store(Stores.key_value_store("entries", STRING, STRING, caching=caching), "processor")
    with TopologyTestDriver(topology, initial_wall_clock_time_ms=5) as driver:
        assert list(driver.get_key_value_store("entries").all()) == [("key1", "value1")]
        pipe(driver, ("key2", "value2", 20))
        changelog = driver.output_topic("test-entries-changelog", STRING, STRING).read_records_to_list()
    assert [(r.key, r.value, r.timestamp) for r in changelog] == [("key1", "value1", 5), ("key2", "value2", 20)]


@pytest.mark.parametrize("caching", [False, True])
def test_a_store_that_a_test_has_filled_is_forwarded_as_time_goes_on(caching: bool) -> None:
    topology = through(KeepingTheLargest)
    topology.add_state_store(Stores.key_value_store("entries", STRING, STRING, caching=caching), "processor")
    with TopologyTestDriver(topology) as driver:
        store = driver.get_key_value_store("entries")
        store.put("a", "21")
        pipe(driver, ("a", "01", 9_999))
        assert read(driver) == [("a", "21", 9_999)]
        pipe(driver, ("a", "42", 9_999))
        assert (read(driver), store.get("a")) == ([], "42")
        pipe(driver, ("b", "21", 10_000))
        assert read(driver) == [("a", "42", 10_000), ("b", "21", 10_000)]
        driver.advance_wall_clock_time(timedelta(minutes=1))
        assert read(driver) == [("a", "42", 60_000), ("b", "21", 60_000)]


def test_what_a_processor_sends_back_comes_after_what_it_forwards_on() -> None:
    topology = source(Topology(), "source", "in").add_processor("processor", Recursing, "source")
    sink(sink(topology, "again", "in", "processor"), "sink", "out", "processor")
    with TopologyTestDriver(topology) as driver:
        pipe(driver, ("B", "beta", 0))
        assert read(driver) == [("B", "beta", 0), ("B", "recurse-beta", 0)]


def test_a_store_is_not_there_for_processors_it_is_not_connected_to() -> None:
    topology = source(Topology(), "source", "in").add_processor("processor", Keeping, "source")
    topology.add_state_store(Stores.key_value_store("entries", STRING, STRING))
    with pytest.raises(StateError, match="has no access to StateStore entries"):
        TopologyTestDriver(topology)
