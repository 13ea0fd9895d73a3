"""`Topology`: built by a user, through the DSL or node by node, and run by every host."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from riverrun.arguments import EXTRACTOR, PARTITIONER, SERDE, SINK_TOPIC, STORE, SUPPLIER, optional, takes
from riverrun.errors import TopologyError
from riverrun.processor.suppliers import PROCESSOR, check_supplier, connected_stores
from riverrun.records import AutoOffsetReset, is_legal_topic
from riverrun.topology.describe import describe
from riverrun.topology.fingerprint import digests_of, fingerprint, node_fingerprints
from riverrun.topology.graph import graph, mermaid
from riverrun.topology.grouping import levels, sub_topologies
from riverrun.topology.nodes import (
    GlobalStore,
    Lineage,
    Node,
    ProcessorNode,
    RepartitionTopic,
    SinkNode,
    SourceNode,
    SubTopology,
)
from riverrun.topology.parts import Parts
from riverrun.topology.svg import page, svg

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from riverrun.partitioning import StreamPartitioner
    from riverrun.processor.api import Processor
    from riverrun.records import ConsumerRecord
    from riverrun.serde.api import Serde
    from riverrun.state.api import StoreBuilder
    from riverrun.topology.graph import Graph

_PATTERN = re.compile(r"[*+?|()\[\]^$\\]")


class Topology:
    """A graph of sources, processors, stores and sinks (`org.apache.kafka.streams.Topology`).

    Each `add_…` returns the topology, so calls chain; names must be unique and parents must exist. Nodes are immutable.
    Additions to a topology that already runs have no effect on it.

    >>> from riverrun import STRING, Topology
    >>> topology = Topology().add_source("in", "words", key_serde=STRING, value_serde=STRING)
    >>> topology = topology.add_sink("out", "copy", "in", key_serde=STRING, value_serde=STRING)
    >>> print(topology.describe())
    Topologies:
       Sub-topology: 0
        Source: in (topics: [words])
          --> out
        Sink: out (topic: copy)
          <-- in
    <BLANKLINE>
    <BLANKLINE>
    """

    def __init__(self) -> None:
        self._parts = Parts()
        self._fingerprint: tuple[int, str] | None = None

    @takes(key_serde=SERDE, value_serde=SERDE, timestamp_extractor=optional(EXTRACTOR))
    def add_source(
        self,
        name: str,
        *topics: str | re.Pattern[str],
        key_serde: Serde[Any],
        value_serde: Serde[Any],
        timestamp_extractor: Callable[[ConsumerRecord[Any, Any], int], int] | None = None,
        reset: AutoOffsetReset | None = None,
    ) -> Topology:
        """Read topics, or all topics whose whole names match one pattern.

        Hosts look up matching topics when they start; workers also find topics that are created later
        (`metadata.max.age.ms`).

        Raises:
            TopologyError: If the name is taken, no topic is given, one is given twice, or a topic has, or may have,
                another source.
        """
        self._check_new_name(name)
        named = tuple(topic for topic in topics if isinstance(topic, str))
        patterns = [topic for topic in topics if not isinstance(topic, str)]
        if not topics or (patterns and len(topics) > 1):
            raise TopologyError(f"Source {name} must read at least one topic, or exactly one pattern")
        for number, topic in enumerate(named):
            self._check_topic(topic)
            if topic in named[:number]:
                raise TopologyError(f"Topic {topic} has already been registered by this source, {name}")
        pattern = patterns[0] if patterns else None
        if pattern is not None:
            self._check_pattern(pattern)
        self._parts.add(
            SourceNode(
                name=name,
                topics=named,
                key_serde=key_serde,
                value_serde=value_serde,
                timestamp_extractor=timestamp_extractor,
                reset=reset,
                pattern=pattern,
            )
        )
        return self

    def resolved(self, topics: Iterable[str]) -> Topology:
        """Return the topology with patterns replaced by the matching topics.

        Raises:
            TopologyError: If two patterns match one topic.
        """
        patterns = {n.name: n for n in self.nodes.values() if isinstance(n, SourceNode) and n.pattern is not None}
        if not patterns:
            return self
        nodes = dict(self._parts.nodes)
        source_of: dict[str, str] = {}
        for name, node in patterns.items():
            matching = self._parts.matching(node.pattern, topics) if node.pattern else ()
            for topic in matching:
                if source_of.setdefault(topic, name) != name:
                    message = f"Topic {topic} is matched by the patterns of two sources: {source_of[topic]} and {name}"
                    raise TopologyError(message)
            nodes[name] = replace(node, topics=matching)
        result = Topology()
        result._parts = replace(self._parts, nodes=nodes)
        return result

    def elsewhere(self, topics: Mapping[str, str]) -> Topology:
        """Return the topology with other topics in place of some of those that it reads and writes, by these.

        Patterns match the names of the latter, and then read the former.
        """
        result = Topology()
        result._parts = self._parts.with_stand_ins(topics)
        return result

    @property
    def has_patterns(self) -> bool:
        """Return whether topics must be looked up before it can run."""
        return any(isinstance(node, SourceNode) and node.pattern is not None for node in self.nodes.values())

    @takes(supplier=SUPPLIER)
    def add_processor(
        self,
        name: str,
        supplier: Callable[[], Processor[Any, Any]],
        *parents: str,
        functions: tuple[Any, ...] | None = None,
        lineage: Lineage = Lineage.OTHER,
    ) -> Topology:
        """Run a processor on the output of its parents.

        Args:
            name: Unique within the topology.
            supplier: Called once per task; must return a new instance each time. A class will do. If it has `stores()`
                (a static method of a class), the stores that it returns are added and connected.
            parents: Nodes from which it receives records.
            functions: The functions that the fingerprint covers; by default the supplier.
            lineage: Compares the records that it forwards with those that it receives. Releases derive from it whether
                topics are tables or logs.

        Raises:
            TopologyError: If the name is taken, a parent is missing or a sink, or the supplier returns one instance twice.
        """
        check_supplier(supplier, PROCESSOR)
        covered = (supplier,) if functions is None else functions
        self.keep_processor(ProcessorNode(name, parents, supplier, covered, lineage))
        for store in connected_stores(supplier):
            self.add_state_store(store, name)
        return self

    def keep_processor(self, node: ProcessorNode) -> Topology:
        """Add a processor from its description, without the stores that its supplier brings.

        Raises:
            TopologyError: If the name is taken, or a parent is missing or a sink.
        """
        self._check_new_name(node.name)
        self._check_parents(node.name, node.parents)
        self._parts.add(node)
        return self

    @takes(
        topic=SINK_TOPIC,
        key_serde=SERDE,
        value_serde=SERDE,
        partitioner=PARTITIONER,
    )
    def add_sink(
        self,
        name: str,
        topic: str | Callable[[Any, Any, int], str],
        *parents: str,
        key_serde: Serde[Any],
        value_serde: Serde[Any],
        partitioner: StreamPartitioner | None = None,
    ) -> Topology:
        """Write the output of the parents to a topic, or to the topic that a function chooses per record.

        Raises:
            TopologyError: If the name is taken, or a parent is missing or a sink.
        """
        self._check_new_name(name)
        self._check_parents(name, parents)
        if isinstance(topic, str) and not is_legal_topic(topic):
            raise TopologyError(f"{topic!r} is not a legal topic name")
        self._parts.add(SinkNode(name, parents, topic, key_serde, value_serde, partitioner))
        return self

    @takes(builder=STORE)
    def add_state_store(self, builder: StoreBuilder, *processors: str) -> Topology:
        """Add a store and connect it to processors. To share it, add one builder twice, or connect the others by its name.

        Raises:
            TopologyError: If a store of another builder has the name, even an equal one, or a processor is missing.
        """
        known = self._parts.stores.get(builder.name, builder)
        if known is not builder or builder.name in self._parts.global_stores:
            raise self._taken(builder.name, processors)
        self._parts.stores[builder.name] = builder
        self._parts.users.setdefault(builder.name, set())
        for processor in processors:
            self.connect_processor_and_state_stores(processor, builder.name)
        return self

    def connect_processor_and_state_stores(self, processor: str, *stores: str) -> Topology:
        """Let a processor use stores; processors that share a store share their tasks.

        Raises:
            TopologyError: If the processor or a store is missing, no store is given, or one is global.
        """
        if not stores:
            raise TopologyError(f"{processor} must be connected to at least one state store")
        if not isinstance(self._parts.nodes.get(processor), ProcessorNode):
            raise TopologyError(f"{processor} is not a processor of this topology")
        for store in stores:
            if store in self._parts.global_stores:
                raise TopologyError(f"Global store {store} can be used by {processor} without being connected")
            if store not in self._parts.users:
                raise TopologyError(f"State store {store} has not been added")
            self._parts.users[store].add(processor)
        return self

    @takes(
        builder=STORE, supplier=SUPPLIER, key_serde=SERDE, value_serde=SERDE, timestamp_extractor=optional(EXTRACTOR)
    )
    def add_global_store(
        self,
        builder: StoreBuilder,
        topic: str,
        *,
        source_name: str,
        processor_name: str,
        supplier: Callable[[], Processor[Any, Any]],
        key_serde: Serde[Any],
        value_serde: Serde[Any],
        timestamp_extractor: Callable[[ConsumerRecord[Any, Any], int], int] | None = None,
    ) -> Topology:
        """Add a store of which every worker holds a full copy. A processor fills it from all partitions of a topic.

        Every processor may read it by name, without a connection.

        Args:
            builder: The store. It has no changelog, as its topic serves as one.
            topic: The topic, all of whose partitions every worker reads.
            source_name: Name of the source that reads it.
            processor_name: Name of the processor that fills the store and forwards nothing.
            supplier: Returns that processor.
            key_serde: Reads keys.
            value_serde: Reads values.
            timestamp_extractor: `(record, partition_time_ms) -> event_time_ms`; by default the record's own timestamp.

        Raises:
            TopologyError: If a name or the topic is taken, or the supplier returns one instance twice.
        """
        source = SourceNode(source_name, (topic,), key_serde, value_serde, timestamp_extractor)
        processor = ProcessorNode(processor_name, (source_name,), supplier, (supplier,))
        return self.keep_globally(GlobalStore(source, processor, replace(builder, logging=False)))

    def keep_globally(self, global_store: GlobalStore) -> Topology:
        """Add a global store from its description.

        Raises:
            TopologyError: If a name or the topic is taken, the store has a changelog, or the processor's supplier returns one
                instance twice.
        """
        for name in (global_store.source.name, global_store.processor.name):
            self._check_new_name(name)
        if global_store.source.name == global_store.processor.name:
            message = f"Source and processor of global store {global_store.store.name} must have different names"
            raise TopologyError(message)
        if not global_store.processor.is_operator:
            check_supplier(global_store.processor.supplier, PROCESSOR)
        for topic in global_store.source.topics:
            self._check_topic(topic)
        if global_store.store.name in self._parts.users or global_store.store.name in self._parts.global_stores:
            raise self._taken(global_store.store.name, (global_store.processor.name,))
        if global_store.store.logging:
            raise TopologyError(f"Global store {global_store.store.name} must not have a changelog: its topic is one")
        _check_keeps_rows(global_store.store)
        self._parts.note(global_store.source.name)
        self._parts.note(global_store.processor.name)
        self._parts.global_stores[global_store.store.name] = global_store
        return self

    @takes(
        builder=STORE, supplier=SUPPLIER, key_serde=SERDE, value_serde=SERDE, timestamp_extractor=optional(EXTRACTOR)
    )
    def add_read_only_state_store(
        self,
        builder: StoreBuilder,
        topic: str,
        *,
        source_name: str,
        processor_name: str,
        supplier: Callable[[], Processor[Any, Any]],
        key_serde: Serde[Any],
        value_serde: Serde[Any],
        timestamp_extractor: Callable[[ConsumerRecord[Any, Any], int], int] | None = None,
    ) -> Topology:
        """Add a store that a processor fills from the beginning of a topic, which is also its changelog (KIP-813).

        Other processors may be connected to it, but must not write it. A restore applies the topic's records unchanged,
        so the processor must put each value unchanged under its own key.

        Args:
            builder: The store. It has no changelog of its own.
            topic: The topic, usually compacted.
            source_name: Name of the source that reads it.
            processor_name: Name of the processor that fills the store.
            supplier: Returns that processor.
            key_serde: Reads keys; the store's serde.
            value_serde: Reads values; the store's serde.
            timestamp_extractor: `(record, partition_time_ms) -> event_time_ms`; by default the record's own timestamp.

        Raises:
            TopologyError: If a name is taken, or rows of the store have a time to live.
        """
        _check_keeps_rows(builder)
        self.add_source(
            source_name,
            topic,
            key_serde=key_serde,
            value_serde=value_serde,
            timestamp_extractor=timestamp_extractor,
            reset=AutoOffsetReset.earliest(),
        )
        self.add_processor(processor_name, supplier, source_name)
        return self.add_state_store(replace(builder, logging=False, source_topic=topic), processor_name)

    def add_repartition_topic(self, topic: RepartitionTopic) -> Topology:
        """Declare a repartition topic; hosts create it and prefix its name.

        Raises:
            TopologyError: If it was declared with another number of partitions.
        """
        if self._parts.repartition_topics.setdefault(topic.name, topic) != topic:
            raise TopologyError(f"Repartition topic {topic.name} is declared with different numbers of partitions")
        return self

    def copartition(self, sources: Iterable[str]) -> Topology:
        """Require that the topics of these sources have equal numbers of partitions."""
        self._parts.copartitioned.append(frozenset(sources))
        return self

    @contextmanager
    def made_at(self, line: str | None) -> Iterator[None]:
        """Note that a line of the user's code makes all nodes that are added within this context."""
        before = len(self._parts.order)
        yield
        self.keep_lines(dict.fromkeys(self._parts.order[before:], line))

    def keep_lines(self, lines: Mapping[str, str | None]) -> None:
        """Note the lines of the user's code that have made nodes."""
        self._parts.lines.update(lines)

    @property
    def nodes(self) -> Mapping[str, Node]:
        """Nodes by name, in order of addition, except those of global stores."""
        return self._parts.nodes

    @property
    def stores(self) -> Mapping[str, StoreBuilder]:
        """Stores of tasks by name, except global stores."""
        return self._parts.stores

    @property
    def global_stores(self) -> tuple[GlobalStore, ...]:
        """The global stores."""
        return tuple(self._parts.global_stores.values())

    @property
    def repartition_topics(self) -> Mapping[str, RepartitionTopic]:
        """Repartition topics by their names without the application's prefix."""
        return self._parts.repartition_topics

    @property
    def source_topics(self) -> tuple[str, ...]:
        """The sorted topics that the application reads but does not own, except those of global stores."""
        topics = {t for n in self.nodes.values() if isinstance(n, SourceNode) for t in n.topics}
        return tuple(sorted(topics - self.repartition_topics.keys()))

    @property
    def external_topics(self) -> frozenset[str]:
        """All topics of others that the application reads, including those of global stores."""
        return frozenset((*self.source_topics, *(t for g in self.global_stores for t in g.source.topics)))

    @property
    def sink_topics(self) -> tuple[str, ...]:
        """The sorted topics that the application writes for others, except those chosen per record."""
        sinks = (n.topic for n in self.nodes.values() if isinstance(n, SinkNode))
        return tuple(sorted({topic for topic in sinks if isinstance(topic, str)} - self.repartition_topics.keys()))

    @property
    def choosing_sinks(self) -> tuple[str, ...]:
        """The sinks that choose a topic for each record (`TopicNameExtractor`), sorted by name."""
        sinks = (node for node in self.nodes.values() if isinstance(node, SinkNode))
        return tuple(sorted(sink.name for sink in sinks if not isinstance(sink.topic, str)))

    def sink_of(self, topic: str) -> SinkNode | None:
        """Return the sink that writes a topic; None if it is chosen per record, or not written."""
        sinks = (node for node in self.nodes.values() if isinstance(node, SinkNode))
        return next((sink for sink in sinks if sink.topic == topic), None)

    def copartitioned_topics(self) -> tuple[frozenset[str], ...]:
        """Groups of topics that need the same number of partitions."""
        return self._parts.copartitioned_topics()

    def sub_topologies(self) -> tuple[SubTopology, ...]:
        """Return the parts that run as tasks, by id."""
        return sub_topologies(self._parts)

    def levels(self) -> tuple[tuple[SubTopology, ...], ...]:
        """Return sub-topologies in the order in which bounded runs complete them; members of a cycle are together."""
        return levels(self.sub_topologies())

    def describe(self, *, lines: bool = False) -> str:
        """Return the text of Kafka Streams' `Topology.describe()`.

        Args:
            lines: Whether to add, to each node, the line of your code that makes it, if known.
        """
        return describe(self._parts, lines=lines)

    @property
    def lines(self) -> Mapping[str, str]:
        """Lines of your code that made nodes, as `file:line`, by node, as far as they are known."""
        return {name: line for name, line in self._parts.lines.items() if line is not None}

    def mermaid(self) -> str:
        """Return the topology as a Mermaid flowchart, which GitHub and many editors draw."""
        return mermaid(self._graph())

    def svg(self) -> str:
        """Return the topology as an SVG document, in light or dark colours according to the browser."""
        return svg(self._graph())

    def html(self, title: str = "Topology") -> str:
        """Return a self-contained page with the picture, a table of sub-topologies, and Kafka Streams' text.

        Args:
            title: The heading.
        """
        return page(title, self.fingerprint(), self.svg(), self.describe(), self.sub_topologies())

    def fingerprint(self) -> str:
        """Return a digest of the structure and of the user's functions. Equal digests mean equal results for equal inputs.

        The topics that a pattern currently matches, and those in place of others, are not part of it. It is computed once for
        each state of the graph.
        """
        # Once for each state of the graph: functions may change what they refer to, such as a dict of what they have looked up.
        size = self._parts.size
        if self._fingerprint is None or self._fingerprint[0] != size:
            self._fingerprint = size, fingerprint(self.resolved(()).parts().without_stand_ins())
        return self._fingerprint[1]

    def code_fingerprint(self) -> str:
        """Return a digest of the structure and of the code of functions, without the values that they capture or refer to.

        Processes that run one release compare it: values may change while they process, or differ between machines.
        """
        return digests_of(self.resolved(()).parts(), only_code=True).whole

    def node_fingerprints(self) -> dict[str, str]:
        """Return the digest of each node and store by name, which releases compare to list changes."""
        return node_fingerprints(self._parts.without_stand_ins())

    def unseen(self) -> dict[str, tuple[str, ...]]:
        """Return what no digest covers, by node: objects that cannot be digested, and what functions read from outside.

        A change of it leaves the fingerprint as it is. Releases name it in their plan.
        """
        return digests_of(self._parts).unseen

    def parts(self) -> Parts:
        """Return a copy of its parts, for optimisations to change (`put_together`)."""
        return self._parts.copy()

    def _graph(self) -> Graph:
        return graph(self.sub_topologies(), self._parts.global_stores.values(), self.repartition_topics)

    def _check_new_name(self, name: str) -> None:
        taken = name in self._parts.nodes or any(
            name in (g.source.name, g.processor.name) for g in self._parts.global_stores.values()
        )
        if taken:
            raise TopologyError(f"Processor {name} is already added.")

    def _taken(self, store: str, processors: tuple[str, ...]) -> TopologyError:
        """Return the error for a second store with a name (`InternalTopologyBuilder.addStateStore`)."""
        if store in self._parts.global_stores:
            owner = f"global, filled by {self._parts.global_stores[store].processor.name}"
        else:
            owner = f"used by {', '.join(sorted(self._parts.users.get(store, ()))) or 'no processor so far'}"
        users = f", for {', '.join(processors)}" if processors else ""
        message = f"A different state store {store} has been added already ({owner}): another{users} needs another name"
        hint = "A name alone does not share a store: add it once, or pass the same builder."
        return TopologyError(message, hint=hint)

    def _check_topic(self, topic: str) -> None:
        if not is_legal_topic(topic):
            message = f"{topic!r} is not a legal topic name"
            hint = f"re.compile({topic!r}) reads all topics that match." if _PATTERN.search(topic) else None
            raise TopologyError(message, hint=hint)
        for source in self._sources():
            if topic in source.topics or (source.pattern is not None and source.pattern.fullmatch(topic)):
                message = f"Topic {topic} has already been registered by another source."
                raise TopologyError(
                    message, hint=f"Use the output of source {source.name} instead of reading the topic again."
                )

    def _check_pattern(self, pattern: re.Pattern[str]) -> None:
        if any(pattern.fullmatch(topic) for source in self._sources() for topic in source.topics):
            raise TopologyError(
                f"Pattern {pattern.pattern} will match a topic that has already been registered by another source."
            )

    def _sources(self) -> list[SourceNode]:
        """Return all sources, including those of global stores."""
        sources = [node for node in self._parts.nodes.values() if isinstance(node, SourceNode)]
        return sources + [global_store.source for global_store in self._parts.global_stores.values()]

    def _check_parents(self, name: str, parents: tuple[str, ...]) -> None:
        if not parents:
            raise TopologyError(f"{name} must have at least one parent")
        for parent in parents:
            if parent == name or parent not in self._parts.nodes:
                raise TopologyError(f"Predecessor processor {parent} is not added yet for {name}")
            if isinstance(self._parts.nodes[parent], SinkNode):
                raise TopologyError(f"Sink {parent} cannot be the parent of {name}")


def _check_keeps_rows(builder: StoreBuilder) -> None:
    """Refuse a store that is filled from a topic and would delete rows that the topic has."""
    if builder.ttl_ms is not None:
        message = f"Store {builder.name} cannot have a ttl: a topic fills it, and keeps the rows"
        raise TopologyError(message, hint="Write tombstones to the topic, or copy its rows to a store of a processor.")
