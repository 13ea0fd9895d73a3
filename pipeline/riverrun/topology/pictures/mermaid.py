"""A topology as a Mermaid flowchart, which GitHub, GitLab and many editors draw."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from riverrun.topology.pictures.graph import Drawn, Graph

_STYLES = (
    "classDef topic fill:#fff6e5,stroke:#b26a00,color:#1b2a33",
    "classDef internal fill:#fff6e5,stroke:#b26a00,color:#1b2a33,stroke-dasharray:5 4",
    "classDef state fill:#dff2ef,stroke:#00796b,color:#1b2a33",
)


def mermaid(graph: Graph) -> str:
    """Return the text of a flowchart. Users' names are only labels, so none can act as Mermaid syntax.

    Args:
        graph: The graph to draw.
    """
    topics = sorted({topic for group in graph.groups for node in group.nodes for topic in (*node.reads, *node.writes)})
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
