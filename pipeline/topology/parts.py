"""Everything a topology is made of, for others to read, and for optimisations to change before it is put together again."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pipeline.topology.nodes import SourceNode

if TYPE_CHECKING:
    from pipeline.state.api import StoreBuilder
    from pipeline.topology.nodes import GlobalStore, Node, RepartitionTopic


@dataclass(slots=True)
class Parts:
    """The parts of one topology. Whoever changes them keeps them consistent; `put_together` checks.

    Args:
        order: Names of all nodes, parents before children, with those of global stores.
        nodes: Nodes by name; without those of global stores.
        stores: Stores by name, in the order in which they were added; without global ones.
        users: The processors connected to each store.
        global_stores: Global stores by name.
        repartition_topics: Repartition topics by name, without the application's prefix.
        copartitioned: Groups of sources whose topics need the same number of partitions.
    """

    order: list[str] = field(default_factory=list)
    nodes: dict[str, Node] = field(default_factory=dict)
    stores: dict[str, StoreBuilder] = field(default_factory=dict)
    users: dict[str, set[str]] = field(default_factory=dict)
    global_stores: dict[str, GlobalStore] = field(default_factory=dict)
    repartition_topics: dict[str, RepartitionTopic] = field(default_factory=dict)
    copartitioned: list[frozenset[str]] = field(default_factory=list)

    def copy(self) -> Parts:
        """Return a copy, to be changed."""
        return Parts(
            list(self.order),
            dict(self.nodes),
            dict(self.stores),
            {name: set(users) for name, users in self.users.items()},
            dict(self.global_stores),
            dict(self.repartition_topics),
            list(self.copartitioned),
        )

    def copartitioned_topics(self) -> tuple[frozenset[str], ...]:
        """Groups of topics that need the same number of partitions."""
        groups = []
        for group in self.copartitioned:
            nodes = (self.nodes[name] for name in group)
            groups.append(frozenset(t for node in nodes if isinstance(node, SourceNode) for t in node.topics))
        return tuple(groups)

    def add(self, node: Node) -> None:
        """Add a node, as the last one."""
        self.nodes[node.name] = node
        self.order.append(node.name)

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
