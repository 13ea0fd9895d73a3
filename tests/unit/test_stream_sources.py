"""The topics of streams: collections, patterns, some of them twice; and stores filled from topics."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest

from riverrun import (
    LONG,
    STRING,
    AutoOffsetReset,
    Consumed,
    Grouped,
    JoinWindows,
    Named,
    Processor,
    ProcessorContext,
    Produced,
    Record,
    Stores,
    StreamJoined,
    StreamsBuilder,
    StreamsError,
    Topology,
    TopologyError,
)
from riverrun.records import RawRecord, TaskId, TopicPartition
from riverrun.runtime.layout import TaskSpec, plan_layout
from riverrun.runtime.ports import Ports
from riverrun.runtime.task import Task
from riverrun.state.memory import MemoryBackend
from riverrun.testing import TopologyTestDriver
from riverrun.testing.driver import MemoryTopics, MockClock
from tests.changelogs import Batch
from tests.presence import present
from tests.read_only_stores import looking_up

STRINGS: Consumed[str, str] = Consumed(STRING, STRING)
TEXT: Produced[str, str] = Produced(STRING, STRING)


def pipe(driver: TopologyTestDriver, topic: str, *records: tuple[str | None, str | None, int]) -> None:
    source = driver.input_topic(topic, STRING, STRING)
    for key, value, timestamp in records:
        source.pipe_input(key, value, timestamp=timestamp)


def read(driver: TopologyTestDriver, topic: str = "out") -> list[tuple[Any, Any, int]]:
    records = driver.output_topic(topic, STRING, STRING).read_records_to_list()
    return [(r.key, r.value, r.timestamp) for r in records]


def test_several_topics_are_one_stream() -> None:
    builder = StreamsBuilder()
    builder.stream(["one", "two"], STRINGS).to("out", TEXT)
    with TopologyTestDriver(builder.build()) as driver:
        pipe(driver, "one", ("a", "1", 1))
        pipe(driver, "two", ("b", "2", 2))
        assert read(driver) == [("a", "1", 1), ("b", "2", 2)]


def test_the_same_topics_read_twice_have_one_source_whatever_their_order() -> None:
    builder = StreamsBuilder()
    builder.stream(["one", "two"], STRINGS).to("out1", TEXT)
    builder.stream(("two", "one"), STRINGS).to("out2", TEXT)
    builder.stream(re.compile("x.*"), STRINGS).to("out3", TEXT)
    builder.stream(re.compile("x.*"), STRINGS).to("out4", TEXT)
    sources = [name for name in builder.build().nodes if "SOURCE" in name]
    assert sources == ["KSTREAM-SOURCE-0000000000", "KSTREAM-SOURCE-0000000004"]


def test_overlapping_sets_of_topics_are_refused() -> None:
    builder = StreamsBuilder()
    builder.stream(["one", "two"], STRINGS).to("out1", TEXT)
    builder.stream("one", STRINGS).to("out2", TEXT)
    message = "Two source nodes are subscribed to overlapping but not equal input topics"
    with pytest.raises(TopologyError, match=message):
        builder.build()


@pytest.mark.parametrize("topics", ["one", re.compile("one.*")])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (AutoOffsetReset.earliest(), AutoOffsetReset.latest()),
        (AutoOffsetReset.earliest(), None),
        (None, AutoOffsetReset.latest()),
    ],
)
def test_the_same_topics_cannot_start_at_different_offsets(
    topics: str | re.Pattern[str], first: AutoOffsetReset | None, second: AutoOffsetReset | None
) -> None:
    builder = StreamsBuilder()
    builder.stream(topics, Consumed(STRING, STRING, offset_reset_policy=first))
    with pytest.raises(TopologyError, match="different offset reset policies"):
        builder.stream(topics, Consumed(STRING, STRING, offset_reset_policy=second))


@pytest.mark.parametrize("second", [Consumed(STRING, LONG), Consumed(LONG, STRING)])
def test_the_same_topics_cannot_be_read_with_different_serdes(second: Consumed[Any, Any]) -> None:
    """They are deserialized once: one of the streams would have values of the other."""
    builder = StreamsBuilder()
    builder.stream("one", Consumed(STRING, STRING))
    with pytest.raises(TopologyError, match="different serdes on the same input"):
        builder.stream("one", second)


@pytest.mark.parametrize(
    "reset",
    [
        None,
        AutoOffsetReset.none(),
        AutoOffsetReset.earliest(),
        AutoOffsetReset.latest(),
        AutoOffsetReset.by_duration(timedelta(seconds=42)),
    ],
)
def test_each_source_starts_where_it_was_told_to(reset: AutoOffsetReset | None) -> None:
    builder = StreamsBuilder()
    consumed: Consumed[str, str] = Consumed(STRING, STRING, offset_reset_policy=reset)
    builder.stream("one", consumed)
    builder.stream(re.compile("x.*"), consumed)
    builder.table("table", consumed)
    sources = [source for sub in builder.build().sub_topologies() for source in sub.sources]
    assert [source.reset for source in sources] == [reset] * 3


class Where(Processor[str, str]):
    """Forwards the topic each record came from."""

    def init(self, context: ProcessorContext) -> None:
        self.context = context

    def process(self, record: Record[str, str]) -> None:
        self.context.forward(Record(record.key, present(self.context.record_metadata).topic, record.timestamp))


def test_a_pattern_reads_every_topic_that_it_matches_as_a_whole() -> None:
    builder = StreamsBuilder()
    builder.stream(re.compile(r"in-\d"), STRINGS).process(Where).to("out", TEXT)
    builder.stream("other", STRINGS).to("out2", TEXT)
    with TopologyTestDriver(builder.build()) as driver:
        pipe(driver, "in-1", ("a", "x", 1))
        pipe(driver, "in-2", ("b", "y", 2))
        assert read(driver) == [("a", "in-1", 1), ("b", "in-2", 2)]
        with pytest.raises(StreamsError, match="No source reads topic in-10"):
            pipe(driver, "in-10")


def test_streams_of_a_pattern_can_be_repartitioned_and_joined() -> None:
    builder = StreamsBuilder()
    left = builder.stream(re.compile("left.*"), STRINGS).select_key(lambda _k, v: v[0])
    right = builder.stream("right", STRINGS)
    joined = StreamJoined(STRING, STRING, STRING)
    left.join(right, lambda v, o: v + o, windows=JoinWindows(10, 10), joined=joined).to("out", TEXT)
    with TopologyTestDriver(builder.build()) as driver:
        pipe(driver, "left-a", ("?", "k1", 1))
        pipe(driver, "right", ("k", "2", 2))
        assert read(driver) == [("k", "k12", 2)]


def test_hosts_replace_patterns_by_the_topics_that_exist() -> None:
    builder = StreamsBuilder()
    builder.stream(re.compile(r"in-\d"), STRINGS).group_by(lambda _k, v: v, Grouped(STRING, STRING)).count()
    topology = builder.build()
    found = topology.resolved(["in-2", "in-1", "in-10", "other"])
    assert (topology.source_topics, found.source_topics) == ((), ("in-1", "in-2"))
    assert found.fingerprint() == topology.fingerprint()
    assert "(topics: in-\\d)" in found.describe()
    layout = plan_layout(found, "app", {"in-1": 1, "in-2": 2})
    assert layout.tasks[TaskId(0, 0)] == (TopicPartition("in-1", 0), TopicPartition("in-2", 0))
    assert [t.partitions for t in layout.repartition_topics] == [2]


def test_a_pattern_must_not_match_what_another_source_reads() -> None:
    def read_topic(topology: Topology, name: str, topic: str | re.Pattern[str]) -> None:
        topology.add_source(name, topic, key_serde=STRING, value_serde=STRING)

    named_first, pattern_first, both = Topology(), Topology(), Topology()
    read_topic(named_first, "a", "in-1")
    with pytest.raises(TopologyError, match="will match a topic that has already been registered"):
        read_topic(named_first, "b", re.compile("in-.*"))
    read_topic(pattern_first, "a", re.compile("in-.*"))
    with pytest.raises(TopologyError, match="already been registered by another source"):
        read_topic(pattern_first, "b", "in-1")
    read_topic(both, "a", re.compile("in-.*"))
    read_topic(both, "b", re.compile(".*-1"))
    with pytest.raises(TopologyError, match="in-1 is matched by the patterns of two sources"):
        both.resolved(["in-1"])
    with pytest.raises(TopologyError, match="exactly one pattern"):
        Topology().add_source("a", "x", re.compile("y"), key_serde=STRING, value_serde=STRING)


class KeepLength(Processor[str, str]):
    """Fills a global store with the lengths of values."""

    def init(self, context: ProcessorContext) -> None:
        self.lengths = context.get_state_store("lengths")

    def process(self, record: Record[str, str]) -> None:
        self.lengths.put(record.key, None if record.value is None else len(record.value))


class AddLength(Processor[str, str]):
    """Forwards what the global store has for each key."""

    def init(self, context: ProcessorContext) -> None:
        self.context = context
        self.lengths = context.get_state_store("lengths")

    def process(self, record: Record[str, str]) -> None:
        self.context.forward(Record(record.key, str(self.lengths.get(record.key)), record.timestamp))


def test_a_global_store_is_filled_by_its_processor_and_read_by_all_others() -> None:
    builder = StreamsBuilder()
    store = Stores.key_value_store("lengths", STRING, LONG)
    builder.add_global_store(store, "words", STRINGS, KeepLength)
    builder.stream("in", STRINGS).process(AddLength, named=Named("add")).to("out", TEXT)
    topology = builder.build()
    assert topology.global_stores[0].source.name == "KSTREAM-SOURCE-0000000000"
    assert topology.global_stores[0].processor.name == "KTABLE-SOURCE-0000000001"
    with TopologyTestDriver(topology) as driver:
        pipe(driver, "words", ("a", "xyz", 1), ("b", "x", 1), ("b", None, 2))
        pipe(driver, "in", ("a", "", 3), ("b", "", 4))
        assert read(driver) == [("a", "3", 3), ("b", "None", 4)]


def test_a_global_store_added_node_by_node_is_that_of_the_builder() -> None:
    topology = Topology().add_global_store(
        Stores.key_value_store("lengths", STRING, LONG),
        "words",
        source_name="words-source",
        processor_name="keep-length",
        supplier=KeepLength,
        key_serde=STRING,
        value_serde=STRING,
        timestamp_extractor=lambda record, _: 7 if record.value else -1,
    )
    topology.add_source("source", "in", key_serde=STRING, value_serde=STRING)
    topology.add_processor("add", AddLength, "source")
    topology.add_sink("sink", "out", "add", key_serde=STRING, value_serde=STRING)
    assert plan_layout(topology, "app", {"words": 1, "in": 1}).internal_topics == ()
    with TopologyTestDriver(topology) as driver:
        pipe(driver, "words", ("a", "xyz", 1), ("b", "x", 1), ("b", None, 2))
        pipe(driver, "in", ("a", "", 3), ("b", "", 4))
        assert read(driver) == [("a", "3", 3), ("b", "1", 4)]


def test_a_read_only_store_is_filled_from_its_topic_and_has_no_changelog() -> None:
    topology = looking_up()
    assert plan_layout(topology, "app", {"changes": 1, "in": 1}).changelog_topics == ()
    with TopologyTestDriver(topology) as driver:
        pipe(driver, "changes", ("a", "x", 1), ("b", "y", 2), ("b", None, 3))
        pipe(driver, "in", ("a", "", 4), ("b", "", 5))
        assert read(driver) == [("a", "x", 4), ("b", None, 5)]
        assert driver.produced_topic_names() == {"out"}


def test_a_read_only_store_is_restored_from_its_topic() -> None:
    changes, other = TopicPartition("changes", 0), TopicPartition("in", 0)
    (sub,) = looking_up().sub_topologies()
    backend = MemoryBackend()

    def task() -> Task:
        return Task(TaskSpec(TaskId(0, 0), sub, "app", (changes, other)), Ports(MemoryTopics(), backend, MockClock()))

    first = task()
    assert first.restore_starts() == {changes: 0}
    first.restore(changes, Batch([RawRecord(b"a", b"x", 1, 0), RawRecord(b"b", b"y", 2, 1)]), 2)
    first.start({changes: (2, "")})
    assert dict(first.store("kept").all()) == {"a": "x", "b": "y"}
    first.add_records(changes, [RawRecord(b"a", b"z", 3, 2)])
    first.process_all()
    commit = first.prepare_commit()
    assert (commit.offsets[changes][0], commit.changelogs) == (3, ())
    first.post_commit({})
    assert task().restore_starts() == {changes: 3}


def test_a_topic_that_is_named_twice_is_read_once() -> None:
    builder = StreamsBuilder()
    builder.stream(["one", "two", "one"], STRINGS).to("out", TEXT)
    assert "(topics: [one, two])" in builder.build().describe()
