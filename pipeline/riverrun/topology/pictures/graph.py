"""A topology as a graph to draw: sub-topologies, their nodes and stores, and the topics between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from riverrun.topology.nodes import SinkNode, SourceNode

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from riverrun.topology.nodes import GlobalStore, Node, SubTopology

CHOSEN = "a topic per record"
"""Stands for the topics of a sink that chooses one per record."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """One node.

    Args:
        name: Its name.
        parents: Nodes of its sub-topology from which it receives records.
        reads: Topics that it reads, or the pattern of their names.
        writes: Topics that it writes.
        stores: Names of the stores it may use.
    """

    name: str
    parents: tuple[str, ...]
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """A sub-topology, or the nodes of a global store.

    Args:
        title: Its name.
        nodes: Its nodes, parents before children.
    """

    title: str
    nodes: tuple[Drawn, ...]


@dataclass(frozen=True, slots=True)
class Graph:
    """A topology to draw.

    Args:
        groups: Sub-topologies, then global stores.
        internal: Internal topics, without the application's prefix.
    """

    groups: tuple[Group, ...]
    internal: frozenset[str]


def graph(subs: Sequence[SubTopology], global_stores: Iterable[GlobalStore], internal: Iterable[str]) -> Graph:
    """Return a topology as a graph.

    Args:
        subs: Its sub-topologies.
        global_stores: Its global stores.
        internal: Its repartition topics.
    """
    groups = [Group(f"Sub-topology {sub.id}", tuple(_drawn(node, sub) for node in sub.nodes)) for sub in subs]
    groups += [_global(store) for store in global_stores]
    return Graph(tuple(groups), frozenset(internal))


def _drawn(node: Node, sub: SubTopology) -> Drawn:
    match node:
        case SourceNode():
            return Drawn(node.name, (), reads=_topics(node))
        case SinkNode():
            return Drawn(node.name, node.parents, writes=(node.topic if isinstance(node.topic, str) else CHOSEN,))
        case _:
            return Drawn(node.name, node.parents, stores=tuple(sorted(sub.store_access.get(node.name, ()))))


def _global(store: GlobalStore) -> Group:
    source = Drawn(store.source.name, (), reads=_topics(store.source))
    processor = Drawn(store.processor.name, (store.source.name,), stores=(store.store.name,))
    return Group(f"Global store {store.store.name}", (source, processor))


def _topics(source: SourceNode) -> tuple[str, ...]:
    return (source.pattern.pattern,) if source.pattern is not None else tuple(sorted(source.topics))
