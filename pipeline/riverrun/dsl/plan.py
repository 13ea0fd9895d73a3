"""The DSL's record of its calls while a topology is being built, and their conversion to a `Topology`.

Each call of the DSL appends one or more steps. Steps are written into the topology at `build()`, because only then is
it known whether a table must be materialised or must forward old values.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from riverrun.arguments import users_line
from riverrun.config import Optimization
from riverrun.dsl.optimization import Effects, Repartition, merge_repartitions, rewrite_self_joins
from riverrun.errors import TopologyError
from riverrun.operators.stateless import Filter, has_key
from riverrun.processor.suppliers import connected_stores
from riverrun.topology.assembly import add_operator
from riverrun.topology.nodes import Lineage, ProcessorNode, RepartitionTopic, SinkNode, SourceNode
from riverrun.topology.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from riverrun.dsl.optimization import SelfJoin
    from riverrun.dsl.options import Materialized
    from riverrun.operators.tables import ValueGetter
    from riverrun.partitioning import StreamPartitioner
    from riverrun.processor.operator import OperatorContext
    from riverrun.serde.api import Serde


@dataclass(slots=True)
class Unnamed:
    """Stores and topics with generated names, in order of creation (`InternalResourcesNaming`, KIP-1111).

    Generated names contain a number that changes when operators are added upstream: the application then loses its state.

    Args:
        stores: State stores. A table counts even if no store is needed.
    """

    changelogs: list[str] = field(default_factory=list)
    stores: list[str] = field(default_factory=list)
    repartitions: list[str] = field(default_factory=list)

    def add_store(self, name: str, *, logging: bool) -> None:
        """Record a store, and its changelog if it has one."""
        self.stores.append(name)
        if logging:
            self.add_changelog(name)

    def add_changelog(self, store: str) -> None:
        self.changelogs.append(f"{store}-changelog")

    def check(self) -> None:
        """Refuse generated names (`ensure.explicit.internal.resource.naming`)."""
        kinds = (
            ("changelog topic(s)", self.changelogs),
            ("state store(s)", self.stores),
            ("repartition topic(s)", self.repartitions),
        )
        lines = [f"Following {kind} has not been named: {', '.join(names)}" for kind, names in kinds if names]
        if lines:
            hint = "Name them in Materialized, Grouped, Joined, StreamJoined, Repartitioned, Suppressed or Named."
            raise TopologyError("\n".join(lines), hint=hint)


@dataclass(slots=True)
class Plan:
    """The steps of one `StreamsBuilder`, and the one counter that names processors and stores.

    Args:
        steps: The steps of `build`, in order, each with the line of the user's code that caused it.
        closing_ms: How long after its end a window may still change, by the node that aggregates it (`GracePeriodGraphNode`).
        is_persistent: Whether stores are in RocksDB unless their options say otherwise (`default.dsl.store`).
        null_key_joins: Nodes of left and outer joins, which use records without a key.
        join_repartitions: Source that reads a stream back for joins, by stream node; the latest one if there are several.
        keeps_null_keys: Nodes upstream of those joins; known during a build.
        optimization: The active rules; known during a build.
    """

    steps: list[tuple[Callable[[Topology], object], str | None]] = field(default_factory=list)
    counter: int = 0
    closing_ms: dict[str, int] = field(default_factory=dict)
    is_persistent: bool = True
    """True if stores are in RocksDB unless their options say otherwise (`default.dsl.store`)."""
    null_key_joins: set[str] = field(default_factory=set)
    """Nodes of left and outer joins, which use records without a key."""
    join_repartitions: dict[str, str] = field(default_factory=dict)
    """Source that reads a stream back for joins, by stream node; the latest one if there are several."""
    keeps_null_keys: frozenset[str] = frozenset()
    """Nodes upstream of those joins; known during a build."""
    optimization: frozenset[Optimization] = frozenset()
    changes: Effects = field(default_factory=Effects)
    unnamed: Unnamed = field(default_factory=Unnamed)
    self_joins: list[SelfJoin] = field(default_factory=list)
    topics: dict[str, str] = field(default_factory=dict)
    is_built: bool = False

    def add_step(self, step: Callable[[Topology], object]) -> None:
        # The steps are written once: the built topology would silently lack this one.
        if self.is_built:
            message = "The topology is already built: it would lack operators that are added to its StreamsBuilder now"
            raise TopologyError(message, hint="Call build() last.")
        self.steps.append((step, users_line()))

    def origin(self, node: str, sources: Iterable[str]) -> str:
        """Return a node and its topics, for messages."""
        return f"{node} (of {', '.join(sorted(self.topics.get(source, source) for source in sources))})"

    def check_same(self, other: Plan, this: str, that: str) -> None:
        """Check that two inputs belong to one `StreamsBuilder`; `this` and `that` are descriptions from `origin`."""
        # In another builder, generated names belong to other nodes.
        if other is not self:
            message = f"{this} and {that} belong to different StreamsBuilders: one topology cannot have both"
            raise TopologyError(message, hint="Read all topics with one StreamsBuilder.")

    def processor_name(self, prefix: str, given: str | None = None) -> str:
        """Return the given name, or a generated one. The counter advances either way (`NamedInternal`)."""
        # The number is used up even if the name is not: names that follow must be those of Kafka Streams.
        generated = f"{prefix}{self.counter:010d}"
        self.counter += 1
        return given if given is not None else generated

    def store_name(self, prefix: str) -> str:
        return self.processor_name(f"{prefix}STATE-STORE-")

    def persists(self, given: bool | None) -> bool:  # noqa: FBT001 - the value of an option
        """Return whether a store is in RocksDB, given its options."""
        return self.is_persistent if given is None else given

    def table_name(self, options: Materialized[Any, Any], prefix: str) -> str:
        """Return the name of a table's store: from its options, or a generated one (`MaterializedInternal`)."""
        if options.name is not None:
            return options.name
        name = self.store_name(prefix)
        self.unnamed.add_store(name, logging=options.logging)
        return name

    def repartition_again(self, prefix: str, *, is_named: bool) -> None:
        """Count another use of an existing repartition topic."""
        # Kafka Streams numbers a sink, a filter and a source, and lists the topic, although it creates none of them again.
        self.counter += 3
        if not is_named:
            self.unnamed.repartitions.append(f"{prefix}-repartition")

    def build(self, optimization: frozenset[Optimization]) -> Topology:
        """Write all steps, in order, into a new topology, and optimise it."""
        self.optimization, self.keeps_null_keys = optimization, frozenset()
        topology = self._written()
        # Repartition topics keep records without a key only if a left or outer join is downstream (KIP-962,
        # `NodesWithRelaxedNullKeyJoinDownstream`). That is known once everything is written: then it is written again.
        if self.null_key_joins:
            self.keeps_null_keys = upstream_of(topology, self.null_key_joins)
            topology = self._written()
        self.is_built = True
        return topology

    def _written(self) -> Topology:
        topology = Topology()
        for step, line in self.steps:
            try:
                with topology.made_at(line):
                    step(topology)
            except TopologyError as error:
                error.locate(line)
                raise
        if Optimization.MERGE_REPARTITION_TOPICS in self.optimization:
            topology = merge_repartitions(topology, self.changes, self._merged)
        if Optimization.SINGLE_STORE_SELF_JOIN in self.optimization:
            topology = rewrite_self_joins(topology, tuple(self.self_joins))
        return topology

    def _merged(self, parent: str, first: Repartition) -> tuple[Repartition, ProcessorNode]:
        """Return the repartition that replaces several, and its filter."""
        topic = first.topic
        merged = replace(first, filter=f"{topic}-filter", sink=f"{topic}-sink", source=f"{topic}-source")
        accept = self.accepted_keys(merged.filter)
        return merged, ProcessorNode(
            merged.filter, (parent,), lambda: Filter(accept), (accept,), Lineage.KEPT, is_operator=True
        )

    def accepted_keys(self, null_key_filter: str) -> Callable[[object, object], bool]:
        """Return the predicate of a repartition's filter."""
        return _any_key if null_key_filter in self.keeps_null_keys else has_key


@dataclass(slots=True)
class TableNode:
    """A table while the topology is being built.

    Args:
        store: Name of its store, if it has or gets one.
        is_materialized: Whether the store must exist.
        sends_old_values: Whether a downstream node needs the value that an update replaced.
        parents: The tables from which its values are computed while it has no store. Empty for sources and
            aggregations, which get a store when needed.
        is_join: Whether it joins its parents. They must then send old values even if the join has a store.
        is_versioned: Whether it marks updates that arrived out of order (KIP-914).
        used_stores: Stores that a lookup needs in addition to its parents' stores.
    """

    name: str
    store: str
    open_getter: Callable[[OperatorContext], ValueGetter]
    is_materialized: bool
    sends_old_values: bool = False
    parents: tuple[TableNode, ...] = ()
    is_join: bool = False
    is_versioned: bool = False
    used_stores: tuple[str, ...] = ()

    @property
    def looks_up_versions(self) -> bool:
        """True if a lookup may take a time, because its store is versioned (`KTableValueGetter.isVersioned`)."""
        if self.parents and not self.is_materialized:
            return not self.is_join and self.parents[0].looks_up_versions
        return self.is_versioned

    def materialize(self) -> tuple[str, ...]:
        """Make its values available to lookups, and return the stores that these need (`KTableImpl.valueGetterSupplier`)."""
        if self.parents and not self.is_materialized:
            below = (store for parent in self.parents for store in parent.materialize())
            return tuple(dict.fromkeys((*below, *self.used_stores)))
        self.is_materialized = True
        return (self.store,)

    def enable_sending_old_values(self, *, force: bool) -> bool:
        """Make updates carry the values that they replace (`KTableImpl.enableSendingOldValues`). Return whether they will.

        `force` adds a store if that is needed for it.
        """
        # Old values come from the nearest store above. Nodes in between pass them on, so all must know, but only if
        # one has them.
        chain = [self]
        while (top := chain[-1]).parents and not (top.is_join or top.is_materialized):
            chain.append(top.parents[0])
        if top.is_join:
            for parent in top.parents:
                parent.enable_sending_old_values(force=True)
        elif not top.is_materialized:
            top.is_materialized = force
            if not force:
                return False
        for node in chain:
            node.sends_old_values = True
        return True


def repartition(
    plan: Plan,
    parent: str,
    prefix: str,
    serdes: tuple[Serde[Any] | None, Serde[Any] | None],
    *,
    partitions: int | None = None,
    partitioner: StreamPartitioner | None = None,
    is_optimizable: bool = True,
    is_named: bool,
    option: str,
) -> str:
    """Write `parent` to an internal topic and read it back (`KStreamImpl.createRepartitionedSource`). Return its source.

    Args:
        plan: Receives the steps.
        parent: The node to repartition.
        prefix: Name of the topic before `-repartition`; generated prefixes lead to generated node names.
        serdes: Serdes of keys and values.
        partitions: Fixed number of partitions; None for as many as upstream.
        partitioner: Chooses partitions instead of Kafka's default.
        is_optimizable: Whether it may be merged with others.
        is_named: Whether the prefix comes from the user.
        option: The option that takes missing serdes, for messages.
    """
    where = f"repartition topic {prefix}"
    key_serde, value_serde = serde_of(serdes[0], "keys", where, option), serde_of(serdes[1], "values", where, option)
    topic = prefix if prefix.endswith("-repartition") else f"{prefix}-repartition"
    if not is_named:
        plan.unnamed.repartitions.append(topic)
    generated = [plan.processor_name(kind) for kind in ("KSTREAM-SINK-", "KSTREAM-FILTER-", "KSTREAM-SOURCE-")]
    if not _is_generated(prefix):
        generated = [f"{topic}-sink", f"{topic}-filter", f"{topic}-source"]
    sink, null_key_filter, source = generated
    plan.topics[source] = topic
    plan.changes.repartitions[source] = Repartition(
        topic=topic,
        filter=null_key_filter,
        sink=sink,
        source=source,
        key_serde=key_serde,
        value_serde=value_serde,
        is_optimizable=is_optimizable,
    )

    def write(topology: Topology) -> None:
        accept = plan.accepted_keys(null_key_filter)
        if topic in topology.repartition_topics and null_key_filter == f"{topic}-filter":
            message = f"Processor {null_key_filter} is already added: two streams are repartitioned through {topic}"
            raise TopologyError(
                message, hint="Name each topic: Grouped, Joined, StreamJoined and Repartitioned take names."
            )
        topology.add_repartition_topic(RepartitionTopic(topic, partitions))
        # `KEPT`: the filter drops no row of a table, since rows have keys.
        add_operator(
            topology, null_key_filter, lambda: Filter(accept), parent, functions=(accept,), lineage=Lineage.KEPT
        )
        topology.add_sink(
            sink, topic, null_key_filter, key_serde=key_serde, value_serde=value_serde, partitioner=partitioner
        )
        topology.add_source(source, topic, key_serde=key_serde, value_serde=value_serde)

    plan.add_step(write)
    return source


def repartition_for_join(
    plan: Plan, parent: str, prefix: str, serdes: tuple[Serde[Any] | None, Serde[Any] | None], *, is_named: bool
) -> str:
    """Repartition a stream for a join (`KStreamImpl.repartitionForJoin`). Return the source that reads it back."""
    known = plan.join_repartitions.get(parent)
    # Joins without a name share the latest topic of a stream. Kafka Streams' counter advances nevertheless.
    if known is not None and prefix == parent:
        plan.repartition_again(prefix, is_named=is_named)
        return known
    source = repartition(plan, parent, prefix, serdes, is_named=is_named, option="the join's joined=")
    plan.join_repartitions[parent] = source
    return source


def connect_stores(topology: Topology, name: str, supplier: Callable[[], Any], given: tuple[str, ...]) -> None:
    """Connect a user's processor to the named stores, and to the stores that its supplier brings."""
    for store in connected_stores(supplier):
        topology.add_state_store(store, name)
    if given:
        topology.connect_processor_and_state_stores(name, *given)


def upstream_of(topology: Topology, nodes: Iterable[str]) -> frozenset[str]:
    """Return `nodes` and all nodes upstream of them, also through repartition topics."""
    above = {name: set(node.parents) for name, node in topology.nodes.items()}
    sinks = [node for node in topology.nodes.values() if isinstance(node, SinkNode)]
    for node in topology.nodes.values():
        if isinstance(node, SourceNode):
            above[node.name] |= {
                sink.name for sink in sinks if sink.topic in topology.repartition_topics.keys() & node.topics
            }
    found: set[str] = set()
    waiting = list(nodes)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += above[name]
    return frozenset(found)


TABLE_OPTION = "Materialized(key_serde, value_serde) of the operator that creates the table"


def serde_of(serde: Serde[Any] | None, what: str, where: str, option: str) -> Serde[Any]:
    """Return the serde, or raise an error that names the option for it."""
    if serde is None:
        raise TopologyError(f"{where} needs a serde for its {what}", hint=f"Pass it in {option}.")
    return serde


def _is_generated(prefix: str) -> bool:
    return prefix.startswith("KSTREAM") and prefix[-11:-10] == "-" and prefix[-10:].isdecimal()


def _any_key(_key: object, _value: object) -> bool:
    return True
