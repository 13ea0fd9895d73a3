"""Topologies that are put together node by node: what is refused, and which nodes share tasks (`InternalTopologyBuilder`)."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import (
    LONG,
    STRING,
    AutoOffsetReset,
    Consumed,
    Grouped,
    JoinWindows,
    Materialized,
    Processor,
    Produced,
    Record,
    Stores,
    StreamJoined,
    StreamsBuilder,
    Topology,
    TopologyError,
)
from riverrun.errors import InvalidStateStoreError
from riverrun.runtime.layout import plan_layout
from riverrun.testing import TopologyTestDriver
from riverrun.topology.nodes import RepartitionTopic

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun import ProcessorContext
    from riverrun.state.api import StoreBuilder


class Ignore(Processor[str, str]):
    def process(self, record: Record[str, str]) -> None: ...


ONE_FOR_ALL = Ignore()


class OfParts:
    """Takes the parts of a record, as built-in operators do."""

    def init(self, context: Any) -> None: ...

    def process(self, key: str, value: str, timestamp: int, headers: Any) -> None: ...

    def close(self) -> None: ...


def store(name: str = "store") -> StoreBuilder:
    return Stores.key_value_store(name, STRING, STRING)


def read(topology: Topology, name: str, *topics: str | re.Pattern[str]) -> Topology:
    return topology.add_source(name, *topics, key_serde=STRING, value_serde=STRING)


def write(topology: Topology, name: str, topic: str, *parents: str) -> Topology:
    return topology.add_sink(name, topic, *parents, key_serde=STRING, value_serde=STRING)


def process(topology: Topology, name: str, *parents: str) -> Topology:
    return topology.add_processor(name, Ignore, *parents)


def keep_globally(topology: Topology, source: str, topic: str, processor: str, name: str) -> Topology:
    return topology.add_global_store(
        store(name),
        topic,
        source_name=source,
        processor_name=processor,
        supplier=Ignore,
        key_serde=STRING,
        value_serde=STRING,
    )


def chain() -> Topology:
    """`source`, `processor`, `sink`; and a store that nobody uses."""
    topology = process(read(Topology(), "source", "topic-1"), "processor", "source")
    return write(topology, "sink", "topic-2", "processor").add_state_store(store())


REFUSED: dict[str, tuple[Callable[[Topology], Any], str]] = {
    "a source without topics": (lambda t: read(t, "s"), "at least one topic"),
    "a source of one topic twice": (lambda t: read(t, "s", "a", "a"), "a has already been registered"),
    "two sources of a name": (lambda t: read(t, "source", "a"), "source is already added"),
    "two sources of a topic": (lambda t: read(t, "s", "topic-1"), "topic-1 has already been registered"),
    "a pattern that matches what is read": (lambda t: read(t, "s", re.compile("top.*")), "will match a topic"),
    "two processors of a name": (lambda t: process(t, "processor", "source"), "processor is already added"),
    "a processor without parents": (lambda t: process(t, "p"), "at least one parent"),
    "a processor of an unknown parent": (lambda t: process(t, "p", "none"), "none is not added yet"),
    "a processor that is its own parent": (lambda t: process(t, "p", "p"), "p is not added yet"),
    "a processor that all tasks share": (
        lambda t: t.add_processor("p", lambda: ONE_FOR_ALL, "source"),
        "must return a new object",
    ),
    "a processor of the parts of a record": (
        lambda t: t.add_processor("p", OfParts, "source", functions=()),  # type: ignore[arg-type] # refused
        "OfParts: process",
    ),
    "two sinks of a name": (lambda t: write(t, "sink", "a", "source"), "sink is already added"),
    "a sink without parents": (lambda t: write(t, "s", "a"), "at least one parent"),
    "a sink of an unknown parent": (lambda t: write(t, "s", "a", "none"), "none is not added yet"),
    "a sink that is its own parent": (lambda t: write(t, "s", "a", "s"), "s is not added yet"),
    "a sink as a parent": (lambda t: write(t, "s", "a", "sink"), "sink cannot be the parent"),
    "a store of an unknown processor": (lambda t: t.add_state_store(store("s"), "none"), "none is not a processor"),
    "a store of a source": (lambda t: t.add_state_store(store("s"), "source"), "source is not a processor"),
    "a store of a sink": (lambda t: t.add_state_store(store("s"), "sink"), "sink is not a processor"),
    "another store of a name": (
        lambda t: t.add_state_store(Stores.key_value_store("store", STRING, LONG)),
        "A different state store store has been added",
    ),
    "a store that another builder describes alike": (
        lambda t: t.connect_processor_and_state_stores("processor", "store").add_state_store(store(), "processor"),
        r"store has been added already \(used by processor\): another, for processor",
    ),
    "a connection with no store": (
        lambda t: t.connect_processor_and_state_stores("processor"),
        "at least one state store",
    ),
    "a connection with an unknown store": (
        lambda t: t.connect_processor_and_state_stores("processor", "none"),
        "none has not been added",
    ),
    "a connection with a global store": (
        lambda t: keep_globally(t, "g", "a", "p", "global").connect_processor_and_state_stores("processor", "global"),
        "without being connected",
    ),
    "a global store with the name of another": (
        lambda t: keep_globally(t, "g", "a", "p", "store"),
        "store has been added already",
    ),
    "two global stores of a name": (
        lambda t: keep_globally(keep_globally(t, "g", "a", "p", "global"), "g2", "a2", "p2", "global"),
        "global has been added already",
    ),
    "a store with the name of a global one": (
        lambda t: keep_globally(t, "g", "a", "p", "global").add_state_store(store("global")),
        "global has been added already",
    ),
    "a global store with one name for source and processor": (
        lambda t: keep_globally(t, "same", "a", "same", "global"),
        "must have different names",
    ),
    "a global store of a topic that is read": (
        lambda t: keep_globally(t, "g", "topic-1", "p", "global"),
        "topic-1 has already been registered",
    ),
    "a source of a global store's topic": (
        lambda t: read(keep_globally(t, "g", "a", "p", "global"), "s", "a"),
        "a has already been registered",
    ),
    "a child of a global store's processor": (
        lambda t: process(keep_globally(t, "g", "a", "p", "global"), "child", "p"),
        "p is not added yet",
    ),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_what_cannot_be_put_together_is_refused(wrong: str) -> None:
    add, message = REFUSED[wrong]
    with pytest.raises(TopologyError, match=message):
        add(chain())


def test_a_global_store_needs_a_processor_of_its_own_on_each_instance() -> None:
    builder = StreamsBuilder()
    builder.add_global_store(store(), "topic", Consumed(STRING, STRING), lambda: ONE_FOR_ALL)
    with pytest.raises(TopologyError, match="must return a new object"):
        builder.build()


def test_one_builder_may_be_added_again_for_another_processor() -> None:
    shared = store("shared")
    topology = chain().add_state_store(shared, "processor")
    process(topology, "other", "source").add_state_store(shared, "other")
    (sub,) = topology.sub_topologies()
    assert [found.name for found in sub.stores] == ["shared"]
    assert topology.parts().users == {"store": set(), "shared": {"processor", "other"}}


TEXTS: Consumed[str, str] = Consumed(STRING, STRING)


class BringsItsOwn(Ignore):
    @staticmethod
    def stores() -> tuple[StoreBuilder, ...]:
        return (store("same"),)


def _two_joins(builder: StreamsBuilder) -> None:
    orders, bills = builder.stream("orders", TEXTS), builder.stream("bills", TEXTS)
    for _ in range(2):
        options = StreamJoined(STRING, STRING, STRING, store_name="same")
        orders.join(bills, str.__add__, JoinWindows.of(timedelta(seconds=1)), joined=options)


def _two_suppliers(builder: StreamsBuilder) -> None:
    supplied = Stores.in_memory_key_value_store("same")
    for topic in ("a", "b"):
        builder.table(topic, TEXTS, Materialized(supplier=supplied))


def _two_filters(builder: StreamsBuilder) -> None:
    table, options = builder.table("a", TEXTS), Materialized(STRING, STRING, name="same")
    for _ in range(2):
        table.filter(lambda _k, _v: True, materialized=options)


ONE_NAME_FOR_TWO: dict[str, Callable[[StreamsBuilder], Any]] = {
    "two counts": lambda b: [
        b.stream(topic, TEXTS).group_by_key().count(Materialized(name="same")) for topic in ("a", "b")
    ],
    "two joins of streams": _two_joins,
    "two filters of a table": _two_filters,
    "two streams as tables": lambda b: [
        b.stream(topic, TEXTS).to_table(Materialized(name="same")) for topic in ("a", "b")
    ],
    "two tables with one supplier": _two_suppliers,
    "two stores for processors": lambda b: [b.add_state_store(store("same")) for _ in range(2)],
    "a store for processors and a table": lambda b: b.add_state_store(store("same")).table(
        "a", TEXTS, Materialized(name="same")
    ),
    "two processors that bring stores of their own": lambda b: [
        b.stream(topic, TEXTS).process(BringsItsOwn) for topic in ("a", "b")
    ],
    "a table and a global table": lambda b: [
        b.table("a", TEXTS, Materialized(name="same")),
        b.global_table("b", TEXTS, Materialized(name="same")),
    ],
}


@pytest.mark.parametrize("wrong", ONE_NAME_FOR_TWO)
def test_operators_do_not_share_a_store_by_its_name(wrong: str) -> None:
    builder = StreamsBuilder()
    ONE_NAME_FOR_TWO[wrong](builder)
    with pytest.raises(TopologyError, match=r"A different state store same.* has been added already"):
        builder.build()


@pytest.mark.parametrize("optimization", ["none", "all"])
def test_a_processor_may_make_the_store_it_brings_at_each_question(optimization: str) -> None:
    builder = StreamsBuilder()
    builder.stream("in", TEXTS).process(BringsItsOwn)
    (sub,) = builder.build(optimization=optimization).sub_topologies()
    assert [found.name for found in sub.stores] == ["same"]


def test_a_store_that_nobody_uses_is_in_no_task() -> None:
    (sub,) = chain().sub_topologies()
    assert sub.stores == ()
    assert plan_layout(chain(), "app", {"topic-1": 1}).changelog_topics == ()


def test_a_processor_cannot_use_a_store_that_it_is_not_connected_to() -> None:
    class Use(Ignore):
        def init(self, context: ProcessorContext) -> None:
            context.get_state_store("store")

    topology = chain().connect_processor_and_state_stores("processor", "store")
    topology.add_processor("other", Use, "source")
    with pytest.raises(InvalidStateStoreError, match="other has no access to StateStore store"):
        TopologyTestDriver(topology)


def test_nodes_with_a_common_descendant_share_tasks() -> None:
    topology = Topology().add_repartition_topic(RepartitionTopic("topic-1x", 1))
    read(topology, "source-1", "topic-1", "topic-1x")
    for number in (2, 3, 4, 5):
        read(topology, f"source-{number}", f"topic-{number}")
    process(process(topology, "processor-1", "source-1"), "processor-2", "source-2", "processor-1")
    process(topology.copartition(["source-1", "source-2"]), "processor-3", "source-3", "source-4")
    assert [{node.name for node in sub.nodes} for sub in topology.sub_topologies()] == [
        {"source-1", "source-2", "processor-1", "processor-2"},
        {"source-3", "source-4", "processor-3"},
        {"source-5"},
    ]
    assert [sub.source_topics for sub in topology.sub_topologies()] == [
        ("topic-1", "topic-1x", "topic-2"),
        ("topic-3", "topic-4"),
        ("topic-5",),
    ]
    assert topology.copartitioned_topics() == (frozenset({"topic-1", "topic-1x", "topic-2"}),)


def test_processors_with_a_common_store_share_tasks() -> None:
    topology = Topology()
    for number in range(1, 6):
        process(read(topology, f"source-{number}", f"topic-{number}"), f"processor-{number}", f"source-{number}")
    topology.add_state_store(store("store-1"), "processor-1", "processor-2")
    topology.add_state_store(store("store-2"), "processor-3", "processor-4")
    topology.add_state_store(store("store-3")).connect_processor_and_state_stores("processor-5", "store-3")
    assert [(sub.source_topics, [found.name for found in sub.stores]) for sub in topology.sub_topologies()] == [
        (("topic-1", "topic-2"), ["store-1"]),
        (("topic-3", "topic-4"), ["store-2"]),
        (("topic-5",), ["store-3"]),
    ]
    changelogs = plan_layout(topology, "X", {f"topic-{number}": 1 for number in range(1, 6)}).changelog_topics
    assert [topic.name for topic in changelogs] == [f"X-store-{number}-changelog" for number in (1, 2, 3)]


def test_sub_topologies_are_those_of_what_was_added_so_far() -> None:
    topology = read(read(Topology(), "source-1", "topic-1"), "source-2", "topic-2")
    assert [sub.id for sub in topology.sub_topologies()] == [0, 1]
    process(process(topology, "processor-1", "source-1"), "processor-2", "source-2")
    assert [len(sub.nodes) for sub in topology.sub_topologies()] == [2, 2]
    topology.add_state_store(store(), "processor-1", "processor-2")
    assert [len(sub.nodes) for sub in topology.sub_topologies()] == [4]


def test_topics_that_patterns_find_belong_to_the_sub_topology_of_the_pattern() -> None:
    topology = read(Topology(), "source-1", "topic-foo")
    read(read(topology, "source-2", re.compile("topic-[A-C]")), "source-3", re.compile(r"topic-\d"))
    found = topology.resolved(["topic-B", "topic-3", "topic-A"])
    assert [sub.source_topics for sub in found.sub_topologies()] == [
        ("topic-foo",),
        ("topic-A", "topic-B"),
        ("topic-3",),
    ]


DESCRIBED: dict[str, tuple[Callable[[Topology], Any], str]] = {
    "nothing": (lambda _t: None, ""),
    "several topics": (
        lambda t: read(t, "source", "topic1", "topic2", "topic3"),
        """\
  Sub-topology: 0
    Source: source (topics: [topic1, topic2, topic3])
      --> none

""",
    ),
    "a pattern": (
        lambda t: read(t, "source", re.compile("topic[0-9]")),
        """\
  Sub-topology: 0
    Source: source (topics: topic[0-9])
      --> none

""",
    ),
    "global stores": (
        lambda t: keep_globally(
            keep_globally(t, "source1", "topic1", "p1", "store1"), "source2", "topic2", "p2", "store2"
        ),
        """\
  Sub-topology: 0 for global store (will not generate tasks)
    Source: source1 (topics: [topic1])
      --> p1
    Processor: p1 (stores: [store1])
      --> none
      <-- source1
  Sub-topology: 1 for global store (will not generate tasks)
    Source: source2 (topics: [topic2])
      --> p2
    Processor: p2 (stores: [store2])
      --> none
      <-- source2
""",
    ),
}


@pytest.mark.parametrize("what", DESCRIBED)
def test_a_description_shows(what: str) -> None:
    add, text = DESCRIBED[what]
    topology = Topology()
    add(topology)
    assert topology.describe() == f"Topologies:\n {text}"


def test_a_description_has_nodes_with_more_below_them_first() -> None:
    topology = read(read(Topology(), "source1", "topic1"), "source2", "topic2")
    process(process(topology, "processor1", "source1"), "processor2", "source1", "source2")
    write(process(topology, "processor3", "processor2"), "sink1", "topic2", "processor1", "processor3")
    nodes = re.findall(r"(?:Source|Processor|Sink): (\w+)", topology.describe())
    assert nodes == ["source1", "source2", "processor2", "processor1", "processor3", "sink1"]


def test_a_read_only_store_is_a_sub_topology_that_reads_its_whole_topic() -> None:
    topology = Topology().add_read_only_state_store(
        store(),
        "topic",
        source_name="source",
        processor_name="processor",
        supplier=Ignore,
        key_serde=STRING,
        value_serde=STRING,
    )
    (sub,) = topology.sub_topologies()
    assert [node.name for node in sub.nodes] == ["source", "processor"]
    assert (sub.stores[0].logging, sub.stores[0].source_topic) == (False, "topic")
    assert sub.sources[0].reset == AutoOffsetReset.earliest()


def test_a_chain_of_thousands_of_nodes_is_described_drawn_and_run() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", Consumed(STRING, STRING)).map(lambda key, value: (key, value))
    for _ in range(2_000):
        stream = stream.map_values(lambda value: value)
    stream.group_by_key(Grouped(STRING, STRING)).count().to_stream().to("out", Produced(STRING, LONG))
    topology = builder.build(optimization="all")
    names = [line.split()[1] for line in topology.describe().splitlines() if "Processor:" in line]
    assert names[1:2001] == [f"KSTREAM-MAPVALUES-{number:010}" for number in range(2, 2_002)]
    assert names[-1] in topology.svg()
    assert names[-1] in topology.mermaid()
    with TopologyTestDriver(topology) as driver:
        driver.input_topic("in", STRING, STRING).pipe_input("a", "b")
        assert driver.output_topic("out", STRING, LONG).read_value() == 1


def test_a_chain_of_thousands_of_filtered_tables_is_built() -> None:
    builder = StreamsBuilder()
    table = builder.table("in", Consumed(STRING, STRING))
    for _ in range(2_000):
        table = table.filter(lambda _key, _value: True)
    table.to_stream().to("out", Produced(STRING, STRING))
    assert builder.build().describe().count("KTABLE-FILTER") > 2_000


def test_many_streams_that_part_and_meet_again_are_described() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", Consumed(STRING, STRING))
    for _ in range(60):  # 2**60 paths
        stream = stream.merge(stream.map_values(lambda value: value))
    assert "KSTREAM-MERGE-0000000120" in builder.build().describe()
