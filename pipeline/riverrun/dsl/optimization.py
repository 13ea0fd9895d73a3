"""`topology.optimization`: Kafka Streams' rewrites of a topology before it is built (`InternalStreamsBuilder`).

`StreamsBuilder.table` decides about restoring a table from its source topic. The other two rules rewrite the finished
topology, by descriptions of its nodes (the flags of `GraphNode`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from riverrun.errors import TopologyError
from riverrun.topology.assembly import put_together
from riverrun.topology.nodes import ProcessorNode, RepartitionTopic, SinkNode, SourceNode

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.processor.operator import Operator
    from riverrun.serde.api import Serde
    from riverrun.topology.parts import Parts
    from riverrun.topology.topology import Topology


@dataclass(frozen=True, slots=True)
class Repartition:
    """An internal topic between two parts of the topology, and the nodes around it.

    Args:
        topic: Its name, without the application's prefix.
        filter: Name of the node that drops records without a key, unless a downstream node uses them.
        is_optimizable: Whether it may be merged with others. Topics that users asked for are not
            (`OptimizableRepartitionNode`).
    """

    topic: str
    filter: str
    sink: str
    source: str
    key_serde: Serde[Any]
    value_serde: Serde[Any]
    is_optimizable: bool = True


@dataclass(frozen=True, slots=True)
class SelfJoin:
    """A join of two streams that may be one, and what replaces its nodes then."""

    this_windowed: str
    other_windowed: str
    this_join: str
    other_join: str
    merge: str
    this_store: str
    other_stores: tuple[str, ...]
    supplier: Callable[[], Operator]
    functions: tuple[Any, ...]


@dataclass(slots=True)
class Effects:
    """Effects of nodes on records.

    Args:
        of_values: Nodes that change values: a repartition may not move above them.
        merges: Nodes that merge streams, in order.
    """

    of_keys: dict[str, None] = field(default_factory=dict)
    of_values: set[str] = field(default_factory=set)
    merges: list[str] = field(default_factory=list)
    repartitions: dict[str, Repartition] = field(default_factory=dict)


def merge_repartitions(
    topology: Topology, changes: Effects, new: Callable[[str, Repartition], tuple[Repartition, ProcessorNode]]
) -> Topology:
    """Merge the repartition topics below a change of keys into one, if values do not change in between.

    The topic is directly below the change of keys, and keeps the name of the first topic that it replaces
    (`InternalStreamsBuilder.mergeRepartitionTopics`).
    """
    graph = _Graph.of(topology, changes)
    parts = topology.parts()
    names: dict[str, str] = {}
    for parent, replaced in graph.below_changes(changes).items():
        merged, null_key_filter = new(parent, replaced[0])
        line = parts.lines.get(replaced[0].source)
        # Not its own name: it may have that of a repartition that it replaces.
        mark = f"{merged.source} below {parent}"
        names[mark], graph.parents[mark] = merged.source, {}
        for repartition in replaced:
            graph.replace(repartition.source, parent, mark)
            parts.remove(repartition.filter, repartition.sink, repartition.source)
            parts.repartition_topics.pop(repartition.topic, None)
            parts.rename_source(repartition.source, merged.source)
        graph.parents[mark] = {parent: None}
        _insert(parts, parent, merged, null_key_filter, line)
    for name in graph.parents.keys() - names.keys():
        above = graph.parents[name]
        inner = changes.repartitions[name].filter if name in changes.repartitions else name
        parts.move(inner, tuple(names.get(parent, parent) for parent in above))
    return put_together(parts)


def rewrite_self_joins(topology: Topology, joins: tuple[SelfJoin, ...]) -> Topology:
    """Rewrite joins of a stream with itself to use one store (`InternalStreamsBuilder.rewriteSingleStoreSelfJoin`)."""
    parts = topology.parts()
    for join in joins:
        this, other = parts.nodes[join.this_windowed], parts.nodes[join.other_windowed]
        # `joins` has all joins of two streams: only now it is known whether both sides have the same parents.
        if this.parents != other.parents:
            continue
        parts.remove(join.other_windowed, join.this_join, join.other_join)
        parts.remove_stores(*join.other_stores)
        parts.nodes[join.merge] = ProcessorNode(
            join.merge, (join.this_windowed,), join.supplier, join.functions, is_operator=True
        )
        parts.users[join.this_store].add(join.merge)
    return put_together(parts)


def _insert(parts: Parts, parent: str, merged: Repartition, null_key_filter: ProcessorNode, line: str | None) -> None:
    keys, values = merged.key_serde, merged.value_serde
    parts.repartition_topics[merged.topic] = RepartitionTopic(merged.topic)
    parts.insert(null_key_filter, parent, line)
    parts.insert(SinkNode(merged.sink, (merged.filter,), merged.topic, keys, values), merged.filter, line)
    parts.insert(SourceNode(merged.source, (merged.topic,), keys, values), merged.sink, line)


@dataclass(slots=True)
class _Graph:
    """The graph below each node, like Kafka Streams' graph nodes: a repartition is one node, with its source's name."""

    parents: dict[str, dict[str, None]] = field(default_factory=dict)

    @classmethod
    def of(cls, topology: Topology, changes: Effects) -> _Graph:
        inner = {name for r in changes.repartitions.values() for name in (r.filter, r.sink)}
        writers: dict[str, list[str]] = {}
        for node in topology.nodes.values():
            if isinstance(node, SinkNode) and isinstance(node.topic, str):
                writers.setdefault(node.topic, []).append(node.name)
        graph = cls()
        for node in topology.nodes.values():
            if node.name in changes.repartitions:
                above = topology.nodes[changes.repartitions[node.name].filter].parents
            elif isinstance(node, SourceNode):
                internal = [topic for topic in node.topics if topic in topology.repartition_topics]
                above = tuple(sink for topic in internal for sink in writers.get(topic, ()))
            else:
                above = node.parents
            if node.name not in inner:
                graph.parents[node.name] = dict.fromkeys(above)
        return graph

    def below_changes(self, changes: Effects) -> dict[str, list[Repartition]]:
        """Return the repartitions that can be merged, by the node directly above the replacing topic."""
        below: dict[str, list[Repartition]] = {name: [] for name in changes.of_keys}
        for source, repartition in changes.repartitions.items():
            if repartition.is_optimizable:
                above = self._key_change_above(source, changes)
                if above is not None:
                    below[above].append(repartition)
        self._raise_to_merges(below, changes.merges)
        return {name: repartitions for name, repartitions in below.items() if repartitions}

    def _key_change_above(self, source: str, changes: Effects) -> str | None:
        any_change = self._find(source, lambda name: name in changes.of_keys or name in changes.of_values)
        # If a node that changes values comes first, the topic must not move above it.
        key_change = self._find(source, lambda name: name in changes.of_keys)
        return key_change if key_change == any_change else None

    def _raise_to_merges(self, below: dict[str, list[Repartition]], merges: list[str]) -> None:
        """Move repartitions below merges of streams whose keys change above (`maybeUpdateKeyChangingRepartitionNodeMap`)."""
        above: dict[str, list[str]] = {}
        for merge in merges:
            above[merge] = [
                change
                for change, repartitions in below.items()
                if all(self._has_parent_above(r.source, merge) for r in repartitions)
                and self._has_parent_above(merge, change)
            ]
        for merge, key_changes in above.items():
            found = (r for change in key_changes for r in below[change])
            below[merge] = list({r.source: r for r in found}.values())
        for change in {change for key_changes in above.values() for change in key_changes}:
            del below[change]

    def _has_parent_above(self, start: str, parent: str) -> bool:
        return self._child_of(parent, start) is not None

    def _child_of(self, parent: str, start: str) -> str | None:
        return self._find(start, lambda name: parent in self.parents[name])

    def _find(self, start: str, accept: Callable[[str], bool]) -> str | None:
        """Return the first accepted node from `start` upwards, depth first (`findParentNodeMatching`)."""
        waiting, seen = [start], set[str]()
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            if accept(name):
                return name
            seen.add(name)
            # Reversed onto the stack: Kafka Streams recurses into the first parent first.
            waiting += reversed(tuple(self.parents[name]))
        return None

    def replace(self, source: str, parent: str, merged: str) -> None:
        """Remove a repartition, and connect the path from `parent` to the merged one instead."""
        child = self._child_of(parent, source)
        # Otherwise it moved together with another repartition.
        if child is not None:
            del self.parents[child][parent]
            self.parents[child][merged] = None
        elif self._find(source, lambda name: merged in self.parents[name]) is None:
            raise TopologyError(f"Repartition {source} cannot be merged with others below {parent}")
        above = self.parents.pop(source)
        for parents in self.parents.values():
            if source in parents:
                del parents[source]
                parents.update(above)
