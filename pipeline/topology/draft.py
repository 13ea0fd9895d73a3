"""A topology taken apart, for optimisations to change before it is put together again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pipeline.topology.nodes import Node, ProcessorNode, SinkNode, SourceNode
from pipeline.topology.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.state.api import StoreBuilder
    from pipeline.topology.nodes import GlobalStore, InternalTopic


@dataclass(slots=True)
class Draft:
    """Everything a topology is made of.

    Args:
        order: Names of all nodes, parents before children, with those of global stores.
        nodes: Nodes by name; without those of global stores.
        stores: Stores by name, in the order in which they were added.
        users: The processors connected to each store.
        global_stores: Global stores by the name of their source.
        internal: Repartition topics by name.
        copartitioned: Groups of sources whose topics need the same number of partitions.
    """

    order: list[str]
    nodes: dict[str, Node]
    stores: dict[str, StoreBuilder]
    users: dict[str, set[str]]
    global_stores: Mapping[str, GlobalStore]
    internal: dict[str, InternalTopic]
    copartitioned: list[frozenset[str]]

    @classmethod
    def of(cls, topology: Topology) -> Draft:
        """Take a topology apart; it stays as it is."""
        return cls(
            list(topology.node_order),
            dict(topology.nodes),
            dict(topology.stores),
            {name: set(users) for name, users in topology.store_users.items()},
            {global_store.source.name: global_store for global_store in topology.global_stores},
            dict(topology.internal_topics),
            list(topology.copartitioned_sources),
        )

    def insert(self, node: Node, after: str) -> None:
        """Add a node, behind another one in the order."""
        self.nodes[node.name] = node
        self.order.insert(self.order.index(after) + 1, node.name)

    def remove(self, *names: str) -> None:
        """Drop nodes, and their use of stores. Their children are the caller's to move."""
        for name in names:
            del self.nodes[name]
            self.order.remove(name)
            for users in self.users.values():
                users.discard(name)

    def remove_stores(self, *names: str) -> None:
        """Drop stores."""
        for name in names:
            del self.stores[name], self.users[name]

    def move(self, name: str, parents: tuple[str, ...]) -> None:
        """Let a processor or a sink receive from other parents."""
        node = self.nodes[name]
        if not isinstance(node, SourceNode):
            self.nodes[name] = replace(node, parents=parents)

    def rename_source(self, old: str, new: str) -> None:
        """Let another source take the place of one among those that need equal partitions."""
        self.copartitioned = [
            frozenset(new if source == old else source for source in group) for group in self.copartitioned
        ]

    def topology(self) -> Topology:
        """Put it together.

        Raises:
            TopologyError: If a node lacks its parents.
        """
        topology = Topology()
        for internal in self.internal.values():
            topology.add_internal_topic(internal)
        for name in self.order:
            if name in self.nodes:
                _add(topology, self.nodes[name])
            elif name in self.global_stores:
                topology.add_global_store(self.global_stores[name])
        for name, store in self.stores.items():
            topology.add_state_store(store, *sorted(self.users[name]))
        for group in self.copartitioned:
            topology.copartition(group)
        return topology


def _add(topology: Topology, node: Node) -> None:
    match node:
        case SourceNode():
            topology.add_source(
                node.name,
                *(node.topics if node.pattern is None else (node.pattern,)),
                key_serde=node.key_serde,
                value_serde=node.value_serde,
                timestamp_extractor=node.timestamp_extractor,
                reset=node.reset,
            )
        case ProcessorNode():
            topology.add_processor(node.name, node.supplier, *node.parents, functions=node.functions)
        case SinkNode():
            topology.add_sink(
                node.name,
                node.topic,
                *node.parents,
                key_serde=node.key_serde,
                value_serde=node.value_serde,
                partitioner=node.partitioner,
            )
