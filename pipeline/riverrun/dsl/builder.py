"""`StreamsBuilder`: the entry point of every topology of the DSL, with the sources of its streams."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any, TypeVar

from riverrun.config import Optimization, TopologyConfig, parse_optimization
from riverrun.dsl.changes import changes_read, table_of_changes
from riverrun.dsl.kinds import checked
from riverrun.dsl.kstream import KStream
from riverrun.dsl.ktable import GlobalKTable, KTable
from riverrun.dsl.options import Materialized
from riverrun.dsl.plan import Plan
from riverrun.dsl.tables import NoTtl, TimeToLive, check_without_ttl, stored_node, table_store
from riverrun.errors import TopologyError
from riverrun.operators.tables import GlobalTableSource, StoreGetter, TableSource
from riverrun.topology.assembly import add_node, add_operator
from riverrun.topology.nodes import GlobalStore, Lineage, ProcessorNode, SourceNode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from riverrun.dsl.options import Consumed
    from riverrun.processor.api import Processor
    from riverrun.processor.operator import Operator
    from riverrun.serde.debezium import RowChange
    from riverrun.state.api import StoreBuilder
    from riverrun.topology.topology import Topology

K = TypeVar("K")
V = TypeVar("V")

Topics = frozenset[str] | tuple[str, int]
"""A set of topics, or the text and the flags of a pattern."""


@dataclass(slots=True)
class StreamSources:
    """The sources so far, one per set of topics (`InternalStreamsBuilder.mergeDuplicateSourceNodes`)."""

    _known: dict[Topics, tuple[str, Consumed[Any, Any]]] = field(default_factory=dict)

    def source_of(
        self, name: str, topics: str | tuple[str, ...] | re.Pattern[str], consumed: Consumed[Any, Any]
    ) -> str:
        """Return the source of these topics: an existing one, or a new one with this name."""
        if isinstance(topics, re.Pattern):
            key: Topics = (topics.pattern, topics.flags)
        else:
            key = frozenset({topics} if isinstance(topics, str) else topics)
        known, first = self._known.setdefault(key, (name, consumed))
        if first.offset_reset_policy != consumed.offset_reset_policy:
            raise TopologyError("Can't configure different offset reset policies on the same input topic(s)")
        # Records are deserialized once, for all streams of the source.
        for one, other in ((first.key_serde, consumed.key_serde), (first.value_serde, consumed.value_serde)):
            if one.name != other.name:
                message = f"Can't configure different serdes on the same input topic(s): {one.name} and {other.name}"
                raise TopologyError(
                    message, hint="Read the topic once, with a serde of all fields, and use that stream twice."
                )
        return known

    def check(self) -> None:
        """Check that no topic is part of two sets."""
        sets = [topics for topics in self._known if isinstance(topics, frozenset)]
        if any(one & other for one, other in combinations(sets, 2)):
            raise TopologyError("Two source nodes are subscribed to overlapping but not equal input topics")


class StreamsBuilder:
    """Builds a topology (`org.apache.kafka.streams.StreamsBuilder`).

    The order of calls determines the names of unnamed nodes, stores and internal topics. All instances and runs of an
    application must make their calls in one order.

    >>> from riverrun import Consumed, STRING, StreamsBuilder
    >>> builder = StreamsBuilder()
    >>> builder.stream("words", Consumed(STRING, STRING)).filter(lambda k, v: bool(v)).to("kept")
    >>> builder.build().source_topics
    ('words',)
    """

    def __init__(self, topology_config: TopologyConfig | None = None) -> None:
        """Start with an empty builder.

        Args:
            topology_config: The application's settings that concern its topology; hosts pass them.
        """
        self._config = topology_config or TopologyConfig()
        self._plan = Plan(is_persistent=self._config.is_persistent)
        self._sources = StreamSources()

    @checked()
    def stream(self, topics: str | Iterable[str] | re.Pattern[str], consumed: Consumed[K, V]) -> KStream[K, V]:
        """Read one topic, or several together, as a stream.

        Two reads of the same topics share one source.

        Args:
            topics: A topic, several, or a pattern that must match whole names. Workers also find topics that are
                created later (`metadata.max.age.ms`).
            consumed: Serdes of keys and values, event times, and where to start without committed offsets.

        Raises:
            TopologyError: If the topics are read twice with different offset resets or serdes; at `build()`, if there is no
                topic, a name is illegal, or a topic is part of two different sources.
        """
        chosen = topics if isinstance(topics, str | re.Pattern) else tuple(dict.fromkeys(topics))
        name = self._plan.processor_name("KSTREAM-SOURCE-", consumed.name)
        known = self._sources.source_of(name, chosen, consumed)
        if known == name:
            named = (chosen,) if isinstance(chosen, str | re.Pattern) else chosen
            self._plan.topics[name] = ", ".join(topic if isinstance(topic, str) else topic.pattern for topic in named)
            self._plan.add_step(lambda topology: _add_stream_source(topology, name, named, consumed))
        return KStream(self._plan, known, frozenset({known}), consumed.key_serde, consumed.value_serde)

    @checked()
    def table(
        self, topic: str, consumed: Consumed[K, V], materialized: Materialized[K, V] | None = None
    ) -> KTable[K, V]:
        """Read a topic as a table: the last value per key counts, a null value deletes, and null keys are dropped.

        Args:
            topic: The topic, usually compacted.
            consumed: Serdes, time and start of its records, as for `stream`.
            materialized: How to store it. Without a name, it is stored only if a downstream operator needs it.

        Raises:
            TopologyError: At `build()`, if the topic has another source.
        """
        plan = self._plan
        options: Materialized[K, V] = materialized or Materialized()
        store_name = plan.table_name(options, f"{topic}-")
        source_name = plan.processor_name("KSTREAM-SOURCE-", consumed.name and f"{consumed.name}-source")
        name = plan.processor_name("KTABLE-SOURCE-", consumed.name)
        source = _source(source_name, (topic,), consumed)
        plan.topics[source_name] = topic
        store = table_store(plan, store_name, options, consumed.key_serde, consumed.value_serde, expires=True)
        lived, is_stored = TimeToLive.of(options), options.name is not None or options.ttl is not None
        node = stored_node(name, store_name, is_materialized=is_stored, is_versioned=options.is_versioned)

        def operator() -> Operator:
            used = store_name if node.is_materialized else None
            made: Operator = lived.applied(TableSource(used, send_old_values=node.sends_old_values), store, node)
            return made

        def write(topology: Topology) -> None:
            add_node(topology, source)
            add_operator(topology, name, operator, source_name, functions=lived.functions, lineage=Lineage.TABLE)
            if node.is_materialized:
                # A table with a ttl cannot be restored from its topic, which lacks the deletions of rows that expire.
                kept = store if options.ttl is not None else _restored_from(topic, store, plan)
                topology.add_state_store(kept, name)

        plan.add_step(write)
        return KTable(plan, node, frozenset({source_name}), consumed.key_serde, consumed.value_serde)

    @checked()
    def table_from_changes(
        self,
        topic: str,
        consumed: Consumed[K, RowChange[V]],
        materialized: Materialized[K, V] | None = None,
        *,
        repartition: bool = True,
        truncates: bool = False,
        keeps_unlogged: bool = False,
    ) -> KTable[K, V]:
        """Read changes of rows as the table that they come from: the row after the last change of a key counts.

        Deletions and null values delete. Rows that a snapshot reads again replace those that are there. A change that leaves
        the row unknown goes to the processing exception handler (`processing.exception.handler`): one without a column that
        the database did not log, or a truncation. Connectors skip truncations by default (`skipped.operations`).

        >>> from riverrun import Consumed, Materialized, StreamsBuilder
        >>> builder = StreamsBuilder()
        >>> rows = builder.table_from_changes("shop.public.customers", Consumed.debezium(), Materialized(name="customers"))

        Args:
            topic: The topic of one table.
            consumed: How to read it: `Consumed.debezium()`.
            materialized: How to store it, by default as JSON. Without a name, it is stored only if a downstream operator
                needs it.
            repartition: Whether rows are sent through a repartition topic first. Their keys have other bytes in Debezium's
                topic, and with several partitions lie elsewhere than foreign-key joins and queries look for them. Tables
                that are joined by key with tables of the connector alone can do without.
            truncates: Whether a truncation deletes all rows of the partition that it is written to. A connector writes it
                to one, so the topic must have a single partition, and is not repartitioned. The store needs a name.
            keeps_unlogged: Whether columns that the database did not log keep the values that the row has in the table. The
                store needs a name. Changes, and not rows, are sent through the repartition topic `NAME-changes`.

        Raises:
            TopologyError: If the options do not read changes, or a name is missing. At `build()`, if the topic has another
                source.
        """
        read = changes_read(consumed) if keeps_unlogged else consumed
        return table_of_changes(
            self._plan,
            self.stream(topic, read),
            read,
            materialized,
            repartition=repartition,
            truncates=truncates,
            keeps_unlogged=keeps_unlogged,
        )

    @checked()
    def global_table(
        self, topic: str, consumed: Consumed[K, V], materialized: Materialized[K, V] | None = None
    ) -> GlobalKTable[K, V]:
        """Read a topic as a table of which every instance holds a full copy, for joins by any key.

        Its records are not synchronised with those of other sources: a join sees the records read so far.

        Args:
            topic: The topic, usually compacted.
            consumed: Serdes and event times of its records.
            materialized: How to store it. Only the name has an effect.

        Raises:
            TopologyError: If the options ask for a versioned store; at `build()`, if the topic has another source.
        """
        given: Materialized[K, V] = materialized or Materialized()
        # Its topic is its changelog.
        options = replace(given, caching=False, logging=False)
        if options.is_versioned:
            raise TopologyError("GlobalKTables cannot be versioned.")
        check_without_ttl(options, NoTtl.GLOBAL)
        store_name = self._plan.table_name(options, f"{topic}-")
        source_name = self._plan.processor_name("KSTREAM-SOURCE-", consumed.name and f"{consumed.name}-source")
        name = self._plan.processor_name("KTABLE-SOURCE-", consumed.name)
        source = _source(source_name, (topic,), consumed)
        store = table_store(self._plan, store_name, options, consumed.key_serde, consumed.value_serde)
        processor = ProcessorNode(name, (source_name,), lambda: GlobalTableSource(store_name), is_operator=True)
        self._plan.add_step(lambda topology: topology.keep_globally(GlobalStore(source, processor, store)))
        return GlobalKTable(store_name, StoreGetter(store_name), self._plan)

    @checked()
    def add_state_store(self, store: StoreBuilder) -> StreamsBuilder:
        """Add a store that processors can use by name (`KStream.process`), and return the builder.

        Raises:
            TopologyError: At `build()`, if another store has this name.
        """
        self._plan.add_step(lambda topology: topology.add_state_store(store))
        return self

    @checked()
    def add_global_store(
        self,
        store: StoreBuilder,
        topic: str,
        consumed: Consumed[K, V],
        processor_supplier: Callable[[], Processor[K, V]],
    ) -> StreamsBuilder:
        """Add a store of which every instance holds a full copy. A processor fills it from all partitions of a topic.

        Every processor of the topology may read it by name, without a connection.

        Args:
            store: The store. It has no changelog, as its topic serves as one.
            topic: Name of the topic, from which the store is also restored.
            consumed: Serdes and event times of its records.
            processor_supplier: Returns a processor that writes the store and forwards nothing.

        Raises:
            TopologyError: At `build()`, if another store has the name, or the topic has another source.
        """
        source_name = self._plan.processor_name("KSTREAM-SOURCE-", consumed.name and f"{consumed.name}-source")
        name = self._plan.processor_name("KTABLE-SOURCE-", consumed.name)
        source = _source(source_name, (topic,), consumed)
        processor = ProcessorNode(name, (source_name,), processor_supplier, (processor_supplier,))
        unlogged = replace(store, logging=False)
        self._plan.add_step(lambda topology: topology.keep_globally(GlobalStore(source, processor, unlogged)))
        return self

    def build(self, *, optimization: str | None = None) -> Topology:
        """Build the topology.

        Args:
            optimization: `none`, `all`, or any of `reuse.ktable.source.topics`, `merge.repartition.topics` and
                `single.store.self.join`, separated by commas (`topology.optimization`). By default the application's
                setting, which is `none` unless set. Optimisations change topics and stores, not results. An application
                that has run without one must start from scratch to use it.

        Raises:
            ConfigError: If there is no such optimisation.
            TopologyError: If the topology is empty, names collide, or a topic is read by two different sources. Also if
                internal stores or topics have generated names and `ensure.explicit.internal.resource.naming` forbids
                them.
        """
        if not self._plan.steps:
            raise TopologyError("Topology is empty: it reads no topic")
        self._sources.check()
        if self._config.ensure_explicit_internal_resource_naming:
            self._plan.unnamed.check()
        rules = self._config.optimization if optimization is None else parse_optimization(optimization)
        return self._plan.build(rules)


def _restored_from(topic: str, store: StoreBuilder, plan: Plan) -> StoreBuilder:
    """Return the store of a table, restored from its topic if the optimisation is on (`TableSourceNode`)."""
    if Optimization.REUSE_KTABLE_SOURCE_TOPICS not in plan.optimization:
        return store
    return replace(store, logging=False, source_topic=topic)


def _add_stream_source(
    topology: Topology, name: str, topics: tuple[str | re.Pattern[str], ...], consumed: Consumed[Any, Any]
) -> None:
    topology.add_source(
        name,
        *topics,
        key_serde=consumed.key_serde,
        value_serde=consumed.value_serde,
        timestamp_extractor=consumed.timestamp_extractor,
        reset=consumed.offset_reset_policy,
    )


def _source(name: str, topics: tuple[str, ...], consumed: Consumed[Any, Any]) -> SourceNode:
    return SourceNode(
        name,
        topics,
        consumed.key_serde,
        consumed.value_serde,
        consumed.timestamp_extractor,
        consumed.offset_reset_policy,
    )
