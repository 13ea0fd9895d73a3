"""A topology as an SVG picture: sub-topologies side by side, records flow downwards."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pipeline.topology.graph import Drawn, Graph, Group

_LETTER, _LINE, _PADDING = 7.4, 18, 12
_ROW, _GAP, _MARGIN = 56, 24, 24
_STYLE = """<style>
svg{background:#fff}text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#1b2a33}.title{font-weight:bold}
.node{fill:#eef6f5;stroke:#00796b}.state{fill:#cfeae6;stroke:#00796b}.topic{fill:#fff6e5;stroke:#b26a00}
.internal{fill:#fff6e5;stroke:#b26a00;stroke-dasharray:5 4}.group{fill:none;stroke:#90a4ae}
.edge{fill:none;stroke:#50646f;marker-end:url(#head)}.far{stroke-dasharray:5 4}#head path{fill:#50646f}
@media(prefers-color-scheme:dark){svg{background:#0f171b}text{fill:#e6eef0}.node{fill:#12312e;stroke:#4db6ac}.state{fill:#1b4a45;stroke:#4db6ac}
.topic,.internal{fill:#3a2a0c;stroke:#ffb74d}.edge{stroke:#a9bcc4}#head path{fill:#a9bcc4}}
</style>
<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">
<path d="M0 0L10 5L0 10z"/></marker></defs>"""


@dataclass(frozen=True, slots=True)
class _Box:
    """A rectangle with lines of text; all lengths in pixels, from the upper left corner of the picture."""

    kind: str
    lines: tuple[str, ...]
    left: float = 0
    top: float = 0

    @property
    def width(self) -> float:
        return max(len(line) for line in self.lines) * _LETTER + 2 * _PADDING

    @property
    def height(self) -> float:
        return len(self.lines) * _LINE + _PADDING

    @property
    def middle(self) -> float:
        return self.left + self.width / 2

    def at(self, left: float, top: float) -> _Box:
        return _Box(self.kind, self.lines, left, top)

    def drawn(self) -> str:
        radius = 4 if self.kind in {"node", "state"} else self.height / 2
        shape = (
            f'<rect class="{self.kind}" x="{self.left:.0f}" y="{self.top:.0f}" width="{self.width:.0f}" '
            f'height="{self.height:.0f}" rx="{radius:.0f}"/>'
        )
        first = self.top + _LINE + 1
        texts = (_text(line, self.middle, first + number * _LINE) for number, line in enumerate(self.lines))
        return shape + "".join(texts)


@dataclass(frozen=True, slots=True)
class _Block:
    """A sub-topology with its boxes in place, the topics it reads above them and those it writes below."""

    title: str
    boxes: dict[str, _Box]
    links: tuple[tuple[str, str], ...]
    left: float
    width: float
    top: float
    bottom: float


def svg(graph: Graph) -> str:
    """Return the picture as a document of its own, in light or dark colours as the reader's browser asks for.

    Args:
        graph: What is drawn.
    """
    blocks: list[_Block] = []
    left: float = _MARGIN
    for group in graph.groups:
        blocks.append(_block(group, graph.internal, left))
        left += blocks[-1].width + _GAP
    height = max((box.top + box.height for block in blocks for box in block.boxes.values()), default=0) + _MARGIN
    parts = [part for block in blocks for part in _drawn(block)] + _between(blocks, graph.internal)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left:.0f} {height:.0f}" width="{left:.0f}" role="img">'
    )
    return "\n".join([head, "<title>Topology</title>", _STYLE, *parts, "</svg>"]) + "\n"


def _block(group: Group, internal: frozenset[str], left: float) -> _Block:
    """Place a sub-topology: each node below its parents, near the middle of these."""
    inside = _rows(group.nodes)
    ordered = [key for row in inside for key, _ in row]
    nodes = sorted(group.nodes, key=lambda node: ordered.index(f"node {node.name}"))
    read, written = (dict.fromkeys(topic for node in nodes for topic in side(node)) for side in (_reads, _writes))
    rows = [[_topic(topic, internal, "in") for topic in read], *inside]
    rows.append([_topic(topic, internal, "out") for topic in written])
    width = max(sum(box.width + _GAP for _, box in row) for row in rows) + _GAP
    width = max(width, len(group.title) * _LETTER + 2 * _GAP)
    boxes: dict[str, _Box] = {}
    top: float = _MARGIN
    tops = []
    for row in rows:
        tops.append(top)
        x = left + (width - sum(box.width + _GAP for _, box in row) + _GAP) / 2
        for key, box in row:
            boxes[key] = box.at(x, top)
            x += box.width + _GAP
        top += max((box.height for _, box in row), default=0) + _ROW
    links = tuple(link for node in group.nodes for link in _links(node))
    return _Block(group.title, boxes, links, left, width, tops[1] - 30, tops[-1] - _ROW + 14)


def _rows(nodes: Sequence[Drawn]) -> list[list[tuple[str, _Box]]]:
    depth: dict[str, int] = {}
    for node in nodes:  # parents come before children
        depth[node.name] = 1 + max((depth[parent] for parent in node.parents), default=-1)
    depth |= {node.name: max(depth.values()) for node in nodes if node.writes}
    rows: list[list[tuple[str, _Box]]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    place: dict[str, float] = {}
    for number in range(len(rows)):
        row = [node for node in nodes if depth[node.name] == number]
        row.sort(key=lambda node: sum(place[parent] for parent in node.parents) / max(1, len(node.parents)))
        for at, node in enumerate(row):
            place[node.name] = (at + 0.5) / len(row)
            kind = "state" if node.stores else "node"
            rows[number].append(
                (f"node {node.name}", _Box(kind, (node.name, *(f"[{store}]" for store in node.stores))))
            )
    return rows


def _links(node: Drawn) -> Iterable[tuple[str, str]]:
    own = f"node {node.name}"
    yield from ((f"in {topic}", own) for topic in node.reads)
    yield from ((f"node {parent}", own) for parent in node.parents)
    yield from ((own, f"out {topic}") for topic in node.writes)


def _topic(topic: str, internal: frozenset[str], side: str) -> tuple[str, _Box]:
    return f"{side} {topic}", _Box("internal" if topic in internal else "topic", (topic,))


def _reads(node: Drawn) -> tuple[str, ...]:
    return node.reads


def _writes(node: Drawn) -> tuple[str, ...]:
    return node.writes


def _drawn(block: _Block) -> Iterable[str]:
    yield (
        f'<rect class="group" x="{block.left:.0f}" y="{block.top:.0f}" width="{block.width - _GAP / 2:.0f}" '
        f'height="{block.bottom - block.top:.0f}" rx="8"/>'
    )
    yield _text(block.title, block.left + 10, block.top + 17, 'class="title" text-anchor="start"')
    yield from (_edge(block.boxes[one], block.boxes[other]) for one, other in block.links)
    yield from (box.drawn() for box in block.boxes.values())


def _between(blocks: Sequence[_Block], internal: frozenset[str]) -> list[str]:
    """Lines from where a topic of the application's own is written to where it is read."""
    return [
        _edge(writer.boxes[f"out {topic}"], reader.boxes[f"in {topic}"], "edge far")
        for topic in sorted(internal)
        for writer in blocks
        if f"out {topic}" in writer.boxes
        for reader in blocks
        if f"in {topic}" in reader.boxes
    ]


def _edge(one: _Box, other: _Box, kind: str = "edge") -> str:
    if other.top >= one.top + one.height:
        start, end = one.top + one.height, other.top - 2
        bend = (end - start) / 2
        controls = (one.middle, start + bend, other.middle, end - bend)
    else:  # back up to a topic of the next sub-topology
        start, end = one.top + one.height / 2, other.top + other.height / 2
        right = one.left + one.width if other.left > one.left else one.left
        near = other.left - 2 if other.left > one.left else other.left + other.width + 2
        middle = (right + near) / 2
        path = f"M{right:.0f} {start:.0f}C{middle:.0f} {start:.0f} {middle:.0f} {end:.0f} {near:.0f} {end:.0f}"
        return f'<path class="{kind}" d="{path}"/>'
    points = " ".join(f"{value:.0f}" for value in controls)
    return f'<path class="{kind}" d="M{one.middle:.0f} {start:.0f}C{points} {other.middle:.0f} {end:.0f}"/>'


def _text(text: str, x: float, y: float, more: str = 'text-anchor="middle"') -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" {more}>{escape(text)}</text>'
