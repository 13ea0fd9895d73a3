"""The parts of a topology, which optimisations change before it is put together again."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from riverrun.arguments import users_line
from riverrun.topology.nodes import SinkNode, SourceNode

if TYPE_CHECKING:
    import re
    from collections.abc import Iterable, Mapping

    from riverrun.state.api import StoreBuilder
    from riverrun.topology.nodes import GlobalStore, Node, RepartitionTopic


@dataclass(slots=True)
class Parts:
    """The parts of one topology. Code that changes them keeps them consistent; `put_together` checks.

    Args:
        order: Names of all nodes, including those of global stores, parents before children.
        nodes: Nodes by name, except those of global stores.
        stores: Stores by name, in order of addition, except global stores.
        repartition_topics: Repartition topics by name, without the application's prefix.
        copartitioned: Groups of sources whose topics need the same number of partitions.
        lines: The line of the user's code that made each node, as `file:line`; None if it is not known.
        stand_ins: Topics in place of those that nodes named, by these; patterns match the latter.
    """

    order: list[str] = field(default_factory=list)
    nodes: dict[str, Node] = field(default_factory=dict)
    stores: dict[str, StoreBuilder] = field(default_factory=dict)
    users: dict[str, set[str]] = field(default_factory=dict)
    global_stores: dict[str, GlobalStore] = field(default_factory=dict)
    repartition_topics: dict[str, RepartitionTopic] = field(default_factory=dict)
    copartitioned: list[frozenset[str]] = field(default_factory=list)
    lines: dict[str, str | None] = field(default_factory=dict)
    stand_ins: Mapping[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Return the number of parts and of connections between them, which grows with each step of building."""
        connections = sum(map(len, self.users.values()))
        topics = len(self.repartition_topics) + len(self.copartitioned)
        return len(self.order) + len(self.nodes) + len(self.stores) + len(self.global_stores) + connections + topics

    def copy(self) -> Parts:
        """Return a copy that may be changed."""
        return Parts(
            order=list(self.order),
            nodes=dict(self.nodes),
            stores=dict(self.stores),
            users={name: set(users) for name, users in self.users.items()},
            global_stores=dict(self.global_stores),
            repartition_topics=dict(self.repartition_topics),
            copartitioned=list(self.copartitioned),
            lines=dict(self.lines),
            stand_ins=dict(self.stand_ins),
        )

    def with_stand_ins(self, topics: Mapping[str, str]) -> Parts:
        """Return a copy that reads and writes other topics in place of some."""
        topics = {topic: stand_in for topic, stand_in in topics.items() if topic not in self.repartition_topics}
        found = self.copy()
        found.stand_ins = {**self.stand_ins, **topics}
        found.nodes = {name: _elsewhere(node, topics) for name, node in self.nodes.items()}
        found.stores = {
            name: replace(store, source_topic=topics.get(store.source_topic, store.source_topic))
            if store.source_topic is not None
            else store
            for name, store in self.stores.items()
        }
        found.global_stores = {
            name: replace(declared, source=_source_elsewhere(declared.source, topics))
            for name, declared in self.global_stores.items()
        }
        return found

    def without_stand_ins(self) -> Parts:
        """Return a copy that reads and writes the topics that nodes named."""
        found = self.with_stand_ins({stand_in: topic for topic, stand_in in self.stand_ins.items()})
        found.stand_ins = {}
        return found

    def matching(self, pattern: re.Pattern[str], topics: Iterable[str]) -> tuple[str, ...]:
        """Return the topics that a pattern matches, sorted, with stand-ins in place of those that have one."""
        named = {stand_in: topic for topic, stand_in in self.stand_ins.items()}
        found = {topic for topic in (named.get(each, each) for each in topics) if pattern.fullmatch(topic)}
        return tuple(sorted(self.stand_ins.get(topic, topic) for topic in found))

    def copartitioned_topics(self) -> tuple[frozenset[str], ...]:
        """Groups of topics that need the same number of partitions."""
        groups = []
        for group in self.copartitioned:
            nodes = (self.nodes[name] for name in group)
            groups.append(frozenset(t for node in nodes if isinstance(node, SourceNode) for t in node.topics))
        return tuple(groups)

    def add(self, node: Node) -> None:
        self.nodes[node.name] = node
        self.note(node.name)

    def note(self, name: str) -> None:
        """Add a name to the order, with the line of the user's code that leads here."""
        self.order.append(name)
        self.lines[name] = users_line()

    def insert(self, node: Node, after: str, line: str | None) -> None:
        """Add a node after another one; `line` is the line of the user's code that makes it."""
        self.nodes[node.name] = node
        self.lines[node.name] = line
        self.order.insert(self.order.index(after) + 1, node.name)

    def remove(self, *names: str) -> None:
        """Remove nodes, and their connections to stores. The caller moves their children."""
        for name in names:
            del self.nodes[name]
            self.order.remove(name)
            self.lines.pop(name, None)
            for users in self.users.values():
                users.discard(name)

    def remove_stores(self, *names: str) -> None:
        for name in names:
            del self.stores[name], self.users[name]

    def move(self, name: str, parents: tuple[str, ...]) -> None:
        """Connect a processor or a sink to other parents."""
        node = self.nodes[name]
        if not isinstance(node, SourceNode):
            self.nodes[name] = replace(node, parents=parents)

    def rename_source(self, old: str, new: str) -> None:
        """Replace one source by another in the groups that need equal partitions."""
        self.copartitioned = [
            frozenset(new if source == old else source for source in group) for group in self.copartitioned
        ]


def _elsewhere(node: Node, topics: Mapping[str, str]) -> Node:
    match node:
        case SourceNode():
            return _source_elsewhere(node, topics)
        case SinkNode(topic=str() as topic):
            return replace(node, topic=topics.get(topic, topic))
        case _:
            return node


def _source_elsewhere(source: SourceNode, topics: Mapping[str, str]) -> SourceNode:
    return replace(source, topics=tuple(topics.get(topic, topic) for topic in source.topics))
