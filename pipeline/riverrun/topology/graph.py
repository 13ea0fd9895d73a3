"""A topology as a graph to draw, and as a Mermaid flowchart, which GitHub, GitLab and many editors draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from riverrun.topology.nodes import SinkNode, SourceNode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from riverrun.topology.nodes import GlobalStore, Node, SubTopology

CHOSEN = "a topic per record"


@dataclass(frozen=True, slots=True)
class Drawn:
    """One node.

    Args:
        parents: Nodes of its sub-topology from which it receives records.
    """

    name: str
    parents: tuple[str, ...]
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """A sub-topology, or the nodes of a global store; parents come before children."""

    title: str
    nodes: tuple[Drawn, ...]


@dataclass(frozen=True, slots=True)
class Graph:
    """A topology to draw: sub-topologies, then global stores, and internal topics without the application's prefix."""

    groups: tuple[Group, ...]
    internal: frozenset[str]


def graph(subs: Sequence[SubTopology], global_stores: Iterable[GlobalStore], internal: Iterable[str]) -> Graph:
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


_STYLES = (
    "classDef topic fill:#fff6e5,stroke:#b26a00,color:#1b2a33",
    "classDef internal fill:#fff6e5,stroke:#b26a00,color:#1b2a33,stroke-dasharray:5 4",
    "classDef state fill:#dff2ef,stroke:#00796b,color:#1b2a33",
)


def mermaid(graph: Graph) -> str:
    """Return the text of a flowchart."""
    topics = sorted({topic for group in graph.groups for node in group.nodes for topic in (*node.reads, *node.writes)})
    # Users' names are only labels, so none can act as Mermaid syntax.
    ids = {topic: f"t{number}" for number, topic in enumerate(topics)}
    lines = ["flowchart TB"]
    for topic in topics:
        kind = "internal" if topic in graph.internal else "topic"
        lines.append(f'  {ids[topic]}(["{_label(topic)}"]):::{kind}')
    links: list[str] = []
    for number, group in enumerate(graph.groups):
        lines.append(f'  subgraph g{number}["{_label(group.title)}"]')
        nodes = {node.name: f"n{number}_{place}" for place, node in enumerate(group.nodes)}
        lines += [f"    {line}" for node in group.nodes for line in _node(nodes[node.name], node)]
        lines.append("  end")
        links += [link for node in group.nodes for link in _links(node, nodes, ids)]
    return "\n".join([*lines, *links, *(f"  {style}" for style in _STYLES)]) + "\n"


def _node(id_: str, node: Drawn) -> Iterator[str]:
    label = "<br/>".join([_label(node.name), *(f"store {_label(store)}" for store in node.stores)])
    yield f'{id_}["{label}"]{":::state" if node.stores else ""}'


def _links(node: Drawn, nodes: dict[str, str], topics: dict[str, str]) -> Iterator[str]:
    own = nodes[node.name]
    yield from (f"  {topics[topic]} --> {own}" for topic in node.reads)
    yield from (f"  {nodes[parent]} --> {own}" for parent in node.parents)
    yield from (f"  {own} --> {topics[topic]}" for topic in node.writes)


def _label(text: str) -> str:
    """Escape a text so that neither Mermaid nor the surrounding page interprets any of it."""
    return "".join(each if each.isalnum() or each in " .-_" else f"#{ord(each)};" for each in text)
