"""Follows corrections of a topic through a topology: to nodes that would use them twice, and to topics that it writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from riverrun.operators.aggregations import StreamAggregate, StreamWindowAggregate
from riverrun.operators.count_windows import StreamCountWindows
from riverrun.operators.deduplication import StreamDeduplicate
from riverrun.operators.expiring_rows import ExpiringRows
from riverrun.operators.foreign_key_joins import ForeignTableJoin, ResponseJoin, SubscriptionJoin
from riverrun.operators.joins import (
    BufferedStreamTableJoin,
    StreamTableJoin,
    StreamTableLeftJoin,
    StreamVersionedTableJoin,
)
from riverrun.operators.late_records import LateRecords
from riverrun.operators.lookups import StreamLookup
from riverrun.operators.patterns import StreamMatch
from riverrun.operators.rolling import StreamRolling
from riverrun.operators.sessions import StreamSessionWindowAggregate
from riverrun.operators.sliding import StreamSlidingWindowAggregate
from riverrun.operators.stateless import Peek, Print
from riverrun.operators.stream_joins import JoinWindow, StreamSelfJoin, StreamStreamJoin
from riverrun.operators.table_joins import TableJoinMerge, TableJoinSide, TableTableJoin
from riverrun.operators.table_transforms import TableFilter, TableMapValues
from riverrun.operators.tables import StoreGetter, Suppress, TableSource, ToStream
from riverrun.project.graph import Arrival, Flow, Spread, Step, Use
from riverrun.serde.windowed import NO_END_MS
from riverrun.state.api import StoreKind
from riverrun.topology.nodes import Lineage, ProcessorNode, SinkNode, SourceNode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from riverrun.topology.nodes import GlobalStore, Node
    from riverrun.topology.topology import Topology

_TWICE: tuple[tuple[tuple[type, ...], Use, Arrival], ...] = (
    (
        (
            StreamAggregate,
            StreamWindowAggregate,
            StreamSlidingWindowAggregate,
            StreamSessionWindowAggregate,
            StreamCountWindows,
        ),
        Use.COUNTS,
        Arrival.ROWS,
    ),
    ((StreamStreamJoin, StreamSelfJoin), Use.JOINS, Arrival.FURTHER),
    ((StreamRolling, StreamMatch), Use.COUNTS, Arrival.FURTHER),
    ((StreamDeduplicate,), Use.REMEMBERS, Arrival.FURTHER),
)
"""Operators that keep something of each record of a stream, and how corrections leave them."""
_LOOK_UP = (StreamTableJoin, StreamTableLeftJoin, StreamVersionedTableJoin, BufferedStreamTableJoin)
_OF_ROWS = (StreamTableJoin, StreamTableLeftJoin)
_OF_TODAY = (*_OF_ROWS, StreamLookup)
"""Operators that look up what is there now."""
_OF_THEN = (StreamVersionedTableJoin, BufferedStreamTableJoin)
"""Operators that look up the row of the record's time."""
_ONLY_READ = (*_LOOK_UP, TableJoinSide, SubscriptionJoin, ForeignTableJoin, ResponseJoin)
"""Operators that do not write to some of the stores that they use."""
_AT_ONCE, _LATER, _ANY_TIME = Spread(), Spread(after_ms=None), Spread(None, None)
_OF_THE_TIME = (TableSource, TableFilter, TableMapValues, Suppress, JoinWindow, LateRecords, *_LOOK_UP)
"""Operators with stores, whose results have the times of what arrives."""


class Flows:
    """The ways of corrections through one topology; `chosen` is the name of topics that it chooses per record."""

    def __init__(self, topology: Topology, chosen: str) -> None:
        self._topology = topology
        self._chosen = chosen
        self._children: dict[str, list[str]] = {}
        self._sources: dict[str, list[str]] = {}
        for node in topology.nodes.values():
            for parent in node.parents:
                self._children.setdefault(parent, []).append(node.name)
            for topic in node.topics if isinstance(node, SourceNode) else ():
                self._sources.setdefault(topic, []).append(node.name)
        self._sinks: dict[str, list[SinkNode]] = {}
        for node in topology.nodes.values():
            if isinstance(node, SinkNode) and isinstance(node.topic, str):
                self._sinks.setdefault(node.topic, []).append(node)
        access = [sub.store_access for sub in topology.sub_topologies()]
        self._stores = {name: stores for each in access for name, stores in each.items()}
        self._versioned = {name for name, store in topology.stores.items() if store.kind is StoreKind.VERSIONED}
        self._forgetful = {
            name for name, store in topology.stores.items() if store.ttl_ms is not None or store.max_entries is not None
        }
        self._operators = {
            node.name: None if node.is_users_own else _operator_of(node)
            for node in topology.nodes.values()
            if isinstance(node, ProcessorNode)
        }

    def of_source(self, source: SourceNode, arrival: Arrival) -> Flow:
        """Return the way of corrections that arrive at a source."""
        return self._followed([(source.name, arrival, _AT_ONCE)], {})

    def of_global(self, store: GlobalStore) -> Flow:
        """Return the way of corrections of a global table."""
        table = StoreGetter(store.store.name)
        at_once = ((name, each) for name, each in self._operators.items() if isinstance(each, _OF_ROWS))
        joins = [name for name, operator in at_once if operator.open_table == table]
        # Processors need no connection to a global store.
        own = [name for name in self._operators if self._is_own(name)]
        steps = {Step(name, Use.LOOKS_UP): None for name in joins} | {Step(name, Use.MAY_LOOK_UP): None for name in own}
        if not store.processor.is_operator:
            steps[Step(store.processor.name, Use.OWN_CODE)] = None
        waiting = [(child, Arrival.LATER, _LATER) for name in joins for child in self._children.get(name, ())]
        waiting += [(child, Arrival.FURTHER, _ANY_TIME) for name in own for child in self._children.get(name, ())]
        return self._followed(waiting, steps)

    def _followed(self, waiting: list[tuple[str, Arrival, Spread]], steps: dict[Step, None]) -> Flow:
        seen: dict[tuple[str, Arrival], Spread] = {}
        outputs: dict[str, set[Arrival]] = {}
        spreads: dict[str, Spread] = {}
        while waiting:
            name, arrival, spread = waiting.pop()
            known = seen.get((name, arrival))
            spread = spread if known is None else known | spread
            if known == spread:
                continue
            seen[name, arrival] = spread
            node = self._topology.nodes[name]
            steps |= dict.fromkeys(Step(name, use) for use in self._mixed(node, arrival))
            if isinstance(node, SinkNode):
                if self._is_internal(str(node.topic)):
                    waiting += [(source, arrival, spread) for source in self._sources.get(str(node.topic), ())]
                else:
                    topic, written = self._written(node, arrival)
                    outputs.setdefault(topic, set()).add(written)
                    spreads[topic] = spreads.get(topic, spread) | spread
                continue
            leaving = arrival
            if isinstance(node, ProcessorNode):
                use, leaving = self._passed(node, arrival)
                spread = spread.then(self._spread(node))
                uses = [use] if use is not None else self._kept(node, leaving)
                steps |= dict.fromkeys(Step(name, each) for each in uses)
                for step, later in self._over_stores(node, leaving):
                    steps[step] = None
                    left = spread.then(_ANY_TIME if step.use is Use.OWN_CODE else _LATER)
                    waiting += [(child, later, left) for child in self._children.get(step.node, ())]
            waiting += [(child, leaving, spread) for child in self._children.get(name, ())]
        places = {name: place for place, name in enumerate(self._topology.nodes)}
        ordered = sorted(steps, key=lambda step: (places.get(step.node, -1), step.use.value))
        arrivals = {topic: frozenset(outputs[topic]) for topic in sorted(outputs)}
        return Flow(tuple(ordered), arrivals, spreads)

    def _spread(self, node: ProcessorNode) -> Spread:
        """Return how far the results of a node that change lie from what arrives at it."""
        operator = self._operators[node.name]
        if self._is_own(node.name) or self._writes(node, self._forgetful):
            return _ANY_TIME
        # The bounds of a session depend on all records of its key that are near each other.
        if isinstance(operator, StreamSessionWindowAggregate):
            return _ANY_TIME
        if isinstance(operator, StreamWindowAggregate):
            size_ms = operator.longest_ms
            return _ANY_TIME if size_ms >= NO_END_MS else Spread(size_ms, size_ms)
        if isinstance(operator, StreamSlidingWindowAggregate):
            # A record also makes a window that begins just after it.
            return Spread(operator.size_ms, operator.size_ms + 1)
        if isinstance(operator, StreamRolling):
            return Spread(after_ms=operator.windows.size_ms)
        if isinstance(operator, StreamStreamJoin | StreamSelfJoin):
            return Spread(after_ms=max(operator.windows.before_ms, operator.windows.after_ms))
        if isinstance(operator, _OF_THE_TIME) or not self._stores.get(node.name):
            return _AT_ONCE
        return _LATER

    def _written(self, sink: SinkNode, arrival: Arrival) -> tuple[str, Arrival]:
        if isinstance(sink.topic, str):
            return sink.topic, arrival
        # A corrected row may go to another topic than the old one, which stays.
        return self._chosen, arrival if arrival is Arrival.LATER else Arrival.FURTHER

    def _passed(self, node: ProcessorNode, arrival: Arrival) -> tuple[Use | None, Arrival]:
        """Return what a node does with corrections, and how these leave it."""
        operator = self._operators[node.name]
        if arrival is Arrival.LATER:
            return None, arrival
        if self._is_own(node.name):
            # Rows reach no users' objects but transformers of tables.
            return Use.OWN_CODE, arrival if arrival is Arrival.ROWS else Arrival.FURTHER
        for kinds, use, leaving in _TWICE:
            if isinstance(operator, kinds):
                return use, leaving
        if isinstance(operator, Peek | Print) and node.name not in self._children:
            return Use.ACTS, arrival
        if isinstance(operator, ToStream):
            return None, Arrival.KEYED
        if node.lineage in {Lineage.TABLE, Lineage.ROWS}:
            return Use.REKEYS if arrival is Arrival.FURTHER else None, Arrival.ROWS
        is_kept = arrival is Arrival.ROWS or node.lineage is Lineage.KEPT
        leaving = arrival if is_kept else Arrival.FURTHER
        if isinstance(operator, _OF_THEN):
            return Use.LOOKS_UP_THEN, leaving
        return (Use.LOOKS_UP_NOW if isinstance(operator, _OF_TODAY) else None), leaving

    def _over_stores(self, node: ProcessorNode, arrival: Arrival) -> Iterator[tuple[Step, Arrival]]:
        """Return the nodes that read stores to which a node writes, and how what they do leaves them."""
        if isinstance(self._operators[node.name], _ONLY_READ):
            return
        written = set(self._stores.get(node.name, ()))
        for name, stores in self._stores.items():
            if name == node.name or not written.intersection(stores):
                continue
            if isinstance(self._operators[name], _LOOK_UP):
                yield Step(name, Use.LOOKS_UP), Arrival.LATER
            elif self._is_own(name):
                yield Step(name, Use.OWN_CODE), Arrival.LATER if arrival is Arrival.LATER else Arrival.FURTHER

    def _kept(self, node: ProcessorNode, leaving: Arrival) -> Iterator[Use]:
        """Return how stores in which a node keeps rows take corrections."""
        if leaving is Arrival.LATER:
            return
        if self._writes(node, self._versioned):
            yield Use.BY_TIME
        if leaving is Arrival.ROWS and self._writes(node, self._forgetful):
            yield Use.FORGETS
        if isinstance(self._operators[node.name], TableJoinMerge) and self._joins_itself(node):
            yield Use.ITSELF

    def _joins_itself(self, node: ProcessorNode) -> bool:
        """Return whether one record deletes the rows of both sides, of which neither finds the other's then."""
        sides = [self._operators[name] for name in node.parents]
        if not all(isinstance(each, TableTableJoin) and each.side.requires_other for each in sides):
            return False
        one, other = (self._sources_of(name) for name in node.parents)
        return not one.isdisjoint(other)

    def _sources_of(self, name: str) -> set[str]:
        """Return the sources above a node, those of repartition topics included."""
        parents = self._topology.nodes[name].parents
        return {name} if not parents else set[str]().union(*map(self._sources_of, parents))

    def _writes(self, node: ProcessorNode, stores: set[str]) -> bool:
        if isinstance(self._operators[node.name], _ONLY_READ):
            return False
        return not stores.isdisjoint(self._stores.get(node.name, ()))

    def _mixed(self, node: Node, arrival: Arrival) -> Iterator[Use]:
        """Return how a node may bring corrections next to other rows of their keys, if they come under these keys."""
        if arrival is not Arrival.KEYED:
            return
        if isinstance(node, SinkNode):
            sinks = self._sinks.get(node.topic, ()) if isinstance(node.topic, str) else ()
            if node.partitioner is not None:
                yield Use.PARTITIONS
        else:
            topics = node.topics if isinstance(node, SourceNode) else ()
            sinks = [sink for topic in topics if self._is_internal(topic) for sink in self._sinks[topic]]
            if isinstance(node, SourceNode) and (node.pattern is not None or len(topics) > 1):
                yield Use.MERGES
        ways = {self._inputs(name) for name in (*node.parents, *(sink.name for sink in sinks))}
        if len(ways) > 1:
            yield Use.MERGES

    def _inputs(self, name: str) -> frozenset[str]:
        """Return the topics from outside whose records come to a node."""
        found, seen, waiting = set[str](), set[str](), [name]
        while waiting:
            each = waiting.pop()
            if each in seen:
                continue
            seen.add(each)
            node = self._topology.nodes[each]
            waiting += node.parents
            for topic in node.topics if isinstance(node, SourceNode) else ():
                if self._is_internal(topic):
                    waiting += [sink.name for sink in self._sinks.get(topic, ())]
                else:
                    found.add(topic)
        return frozenset(found)

    def _is_internal(self, topic: str) -> bool:
        return topic in self._topology.repartition_topics

    def _is_own(self, name: str) -> bool:
        node = self._topology.nodes[name]
        return isinstance(node, ProcessorNode) and node.is_users_own


def _operator_of(node: ProcessorNode) -> Any:
    """Return a built-in operator; the one whose rows expire if they do."""
    operator = node.supplier()
    return operator.table if isinstance(operator, ExpiringRows) else operator
