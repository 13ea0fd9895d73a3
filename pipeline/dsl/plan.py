"""Notes of the DSL while a topology is being built, and how they become a `Topology`.

Each call of the DSL appends one or more steps. A step is written into the topology at `build()`, not before: only
then is it known whether a table has to be materialised or has to tell what an update replaced.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pipeline.arguments import users_line
from pipeline.config import Optimization
from pipeline.dsl.optimizable import Changes, Repartition
from pipeline.dsl.optimization import merge_repartitions, rewrite_self_joins
from pipeline.dsl.unnamed import Unnamed
from pipeline.errors import TopologyError
from pipeline.operators.stateless import Filter, has_key
from pipeline.processor.suppliers import connected_stores
from pipeline.topology.nodes import Lineage, ProcessorNode, RepartitionTopic, SinkNode, SourceNode
from pipeline.topology.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pipeline.dsl.optimizable import SelfJoin
    from pipeline.dsl.options import Materialized
    from pipeline.operators.tables import ValueGetter
    from pipeline.partitioning import StreamPartitioner
    from pipeline.processor.operator import OperatorContext
    from pipeline.serde.api import Serde


@dataclass(slots=True)
class Plan:
    """The steps of one `StreamsBuilder`, and the one counter that names processors and stores.

    Args:
        steps: What `build` does, in order, each with the line of the user's code that asked for it.
        counter: The next number.
        graces_ms: How long windows stay open after their end, by the node that aggregates them (`GracePeriodGraphNode`).
    """

    steps: list[tuple[Callable[[Topology], object], str | None]] = field(default_factory=list)
    counter: int = 0
    graces_ms: dict[str, int] = field(default_factory=dict)
    is_persistent: bool = True
    """Whether stores are kept in RocksDB unless their options say otherwise (`default.dsl.store`)."""
    null_key_joins: set[str] = field(default_factory=set)
    """Nodes of left and outer joins: they have a use for records without a key."""
    join_repartitions: dict[str, str] = field(default_factory=dict)
    """Stream node to the source that reads it back for joins; the last one, if there are several."""
    keeps_null_keys: frozenset[str] = frozenset()
    """Nodes upstream of those joins, once a build has found them."""
    optimization: frozenset[Optimization] = frozenset()
    """The rules that are in force, once a build has begun."""
    changes: Changes = field(default_factory=Changes)
    """What the nodes do to records, for the optimisations."""
    unnamed: Unnamed = field(default_factory=Unnamed)
    """The stores and topics that have generated names."""
    self_joins: list[SelfJoin] = field(default_factory=list)
    """The joins of two streams, which may turn out to be the same one."""
    topics: dict[str, str] = field(default_factory=dict)
    """What the sources read, by their names, for messages."""
    is_built: bool = False
    """Whether there is a topology of these steps already."""

    def add_step(self, step: Callable[[Topology], object]) -> None:
        """Append a step.

        Raises:
            TopologyError: If the topology has been built: it would not have what the step adds.
        """
        if self.is_built:
            message = "The topology is built already: what is added to its StreamsBuilder now would not be in it"
            raise TopologyError(message, hint="Call build() last.")
        self.steps.append((step, users_line()))

    def origin(self, node: str, sources: Iterable[str]) -> str:
        """A node, and what it reads, for messages."""
        return f"{node} (of {', '.join(sorted(self.topics.get(source, source) for source in sources))})"

    def check_same(self, other: Plan, this: str, that: str) -> None:
        """Make sure that what is brought together is of one `StreamsBuilder`. Generated names are those of another node there.

        Args:
            other: The plan of the other one.
            this: What is of this plan, as `origin` says it.
            that: What is of the other one.

        Raises:
            TopologyError: If it is not.
        """
        if other is not self:
            message = f"{this} and {that} are of different StreamsBuilders: no topology has both"
            raise TopologyError(message, hint="Read all topics with one StreamsBuilder.")

    def processor_name(self, prefix: str, given: str | None = None) -> str:
        """The given name, or a generated one. The counter moves either way (`NamedInternal`)."""
        generated = f"{prefix}{self.counter:010d}"
        self.counter += 1
        return given if given is not None else generated

    def store_name(self, prefix: str) -> str:
        """A generated store name."""
        return self.processor_name(f"{prefix}STATE-STORE-")

    def persists(self, given: bool | None) -> bool:  # noqa: FBT001 - the value of an option
        """Whether a store is kept in RocksDB, with what its options say."""
        return self.is_persistent if given is None else given

    def table_name(self, options: Materialized[Any, Any], prefix: str) -> str:
        """Name of a table's store: the one that its options give, or a generated one (`MaterializedInternal`)."""
        if options.name is not None:
            return options.name
        name = self.store_name(prefix)
        self.unnamed.add_store(name, logging=options.logging)
        return name

    def repartition_again(self, prefix: str, *, is_named: bool) -> None:
        """A repartition topic that exists is used once more: Kafka Streams counts, and notes, one that it does not make."""
        self.counter += 3
        if not is_named:
            self.unnamed.repartitions.append(f"{prefix}-repartition")

    def build(self, optimization: frozenset[Optimization]) -> Topology:
        """Write all steps, in order, into a new topology, and optimise it.

        Repartition topics keep records without a key only if a left or outer join is somewhere downstream (KIP-962,
        `NodesWithRelaxedNullKeyJoinDownstream`). That is seen when all is written; then it is written once more.

        Args:
            optimization: The rules to apply.
        """
        self.optimization, self.keeps_null_keys = optimization, frozenset()
        topology = self._written()
        if self.null_key_joins:
            self.keeps_null_keys = upstream_of(topology, self.null_key_joins)
            topology = self._written()
        self.is_built = True
        return topology

    def _written(self) -> Topology:
        topology = Topology()
        for step, line in self.steps:
            try:
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
        """The repartition that takes the place of several, and its filter."""
        topic = first.topic
        merged = replace(first, filter=f"{topic}-filter", sink=f"{topic}-sink", source=f"{topic}-source")
        accept = self.accepted_keys(merged.filter)
        return merged, ProcessorNode(merged.filter, (parent,), lambda: Filter(accept), (accept,), Lineage.KEPT)

    def accepted_keys(self, null_key_filter: str) -> Callable[[object, object], bool]:
        """Return the keys that the filter of a repartition lets through."""
        return _any_key if null_key_filter in self.keeps_null_keys else has_key


@dataclass(slots=True)
class TableNode:
    """A table while the topology is being built.

    Args:
        name: Name of the node that forwards its updates.
        store: Name of the store behind it, if it has or gets one.
        open_getter: Opens the lookup of its values in a task.
        is_materialized: Whether that store must really exist.
        sends_old_values: Whether somebody downstream wants to know what an update replaced.
        parents: The tables whose values it is computed from when it has no store of its own; none for sources and
            aggregations, which get a store when they need one.
        is_join: Whether it joins its parents: then they must know old values even if the join itself has a store.
        is_versioned: Whether it tells updates that came out of order from others (KIP-914).
        used_stores: Stores that a lookup needs beside those of the parents.
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

    def materialize(self) -> tuple[str, ...]:
        """Make sure that its values can be looked up; gives the stores that takes (`KTableImpl.valueGetterSupplier`)."""
        if self.parents and not self.is_materialized:
            below = (store for parent in self.parents for store in parent.materialize())
            return tuple(dict.fromkeys((*below, *self.used_stores)))
        self.is_materialized = True
        return (self.store,)

    def enable_sending_old_values(self, *, force: bool) -> bool:
        """Make updates carry the values they replace (`KTableImpl.enableSendingOldValues`).

        Args:
            force: Whether a store may be added for it.

        Returns:
            Whether old values will be sent.
        """
        if self.is_join:
            for parent in self.parents:
                parent.enable_sending_old_values(force=True)
        elif not self.is_materialized and not self._finds_old_values(force=force):
            return False
        self.sends_old_values = True
        return True

    def _finds_old_values(self, *, force: bool) -> bool:
        if self.parents:
            return self.parents[0].enable_sending_old_values(force=force)
        self.is_materialized = force
        return force


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
    """Write `parent` to a topic of the application's own and read it back (`KStreamImpl.createRepartitionedSource`).

    Args:
        plan: Where the steps go.
        parent: The node to repartition.
        prefix: Names the topic, with `-repartition`; generated prefixes give generated node names.
        serdes: Of keys and values.
        partitions: Fixed number of partitions.
        partitioner: Chooses partitions instead of Kafka's default.
        is_optimizable: Whether it may be merged with others.
        is_named: Whether the user gave the prefix, or what it is made of.
        option: What takes serdes that are missing, for messages.

    Returns:
        Name of the source that reads the records back.

    Raises:
        TopologyError: If a serde is missing.
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
        topic, null_key_filter, sink, source, key_serde, value_serde, is_optimizable
    )

    def write(topology: Topology) -> None:
        accept = plan.accepted_keys(null_key_filter)
        topology.add_repartition_topic(RepartitionTopic(topic, partitions))
        filtered = ProcessorNode(null_key_filter, (parent,), lambda: Filter(accept), (accept,), Lineage.KEPT)
        topology.keep_processor(filtered)  # rows of tables have keys
        topology.add_sink(
            sink, topic, null_key_filter, key_serde=key_serde, value_serde=value_serde, partitioner=partitioner
        )
        topology.add_source(source, topic, key_serde=key_serde, value_serde=value_serde)

    plan.add_step(write)
    return source


def repartition_for_join(
    plan: Plan, parent: str, prefix: str, serdes: tuple[Serde[Any] | None, Serde[Any] | None], *, is_named: bool
) -> str:
    """Repartition a stream for a join (`KStreamImpl.repartitionForJoin`).

    Joins without a name share one topic per stream: the last one that was made for it. Names are counted all the same.

    Args:
        plan: Where the steps go.
        parent: The stream's node.
        prefix: Names the topic, with `-repartition`: the stream's node, or what the join is named.
        serdes: Of keys and values.
        is_named: Whether the join is named.

    Returns:
        Name of the source that reads the records back.

    Raises:
        TopologyError: If a serde is missing.
    """
    known = plan.join_repartitions.get(parent)
    if known is not None and prefix == parent:
        plan.repartition_again(prefix, is_named=is_named)
        return known
    source = repartition(plan, parent, prefix, serdes, is_named=is_named, option="the join's joined=")
    plan.join_repartitions[parent] = source
    return source


def connect_stores(topology: Topology, name: str, supplier: Callable[[], Any], given: tuple[str, ...]) -> None:
    """Let a user's processor use the stores it was given by name, and those that its supplier brings."""
    for store in connected_stores(supplier):
        topology.add_state_store(store, name)
    if given:
        topology.connect_processor_and_state_stores(name, *given)


def upstream_of(topology: Topology, nodes: Iterable[str]) -> frozenset[str]:
    """The nodes that records pass before they reach `nodes`, also through repartition topics; with `nodes` themselves."""
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


TABLE_OPTION = "Materialized(None, key_serde, value_serde) of the operator that makes the table"
"""What takes the serdes of a table, for messages about those that an operation on it needs."""


def serde_of(serde: Serde[Any] | None, what: str, where: str, option: str) -> Serde[Any]:
    """The serde, or a clear complaint that there is none, which names the option that takes it.

    Raises:
        TopologyError: If no serde was given where one is needed.
    """
    if serde is None:
        message = f"{where} needs a serde for its {what}"
        raise TopologyError(message, hint=f"Pass it in {option}.")
    return serde


def _is_generated(prefix: str) -> bool:
    return prefix.startswith("KSTREAM") and prefix[-11:-10] == "-" and prefix[-10:].isdecimal()


def _any_key(_key: object, _value: object) -> bool:
    return True
