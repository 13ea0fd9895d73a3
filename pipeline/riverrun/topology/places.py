"""Layout of a topology's picture: sub-topologies next to each other, rows of nodes from top to bottom.

An edge that skips rows has a lane in each of them. A lane takes as much room as a box, so no edge runs behind a node.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from riverrun.topology.graph import Drawn, Graph, Group

# All lengths are pixels: width of a letter, height of a line, padding around text.
LETTER, LINE, PADDING = 7.4, 18, 12
_ROW, _GAP, MARGIN = 56, 24, 24
_LANE = 8
_TITLE = 36


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle with lines of text, from the upper left corner of the picture. A lane has no lines.

    Args:
        kind: Its kind: `node`, `state`, `topic`, `internal` or `lane`.
        floor: The lower side of the highest box of its row.
    """

    kind: str
    lines: tuple[str, ...]
    left: float = 0
    top: float = 0
    floor: float = 0

    @property
    def width(self) -> float:
        return max((len(line) for line in self.lines), default=0) * LETTER + 2 * PADDING if self.lines else _LANE

    @property
    def height(self) -> float:
        return len(self.lines) * LINE + PADDING if self.lines else 0

    @property
    def middle(self) -> float:
        return self.left + self.width / 2


Edge = tuple[str, ...]
"""Keys of the boxes that an edge passes: its start, its lanes, its end."""


@dataclass(frozen=True, slots=True)
class Block:
    """A sub-topology with its layout: input topics above it, output topics below.

    Args:
        top: The upper side of the frame around its nodes.
    """

    group: Group
    boxes: dict[str, Box]
    edges: tuple[Edge, ...]
    left: float
    width: float
    title: float
    top: float
    bottom: float


@dataclass(frozen=True, slots=True)
class Far:
    """A line from an internal topic below its writer to that topic above its reader.

    Args:
        writer: The topic's box below the sub-topology that writes it.
        floor: Vertical position of the part below everything.
        lane: Horizontal position of the rise between two sub-topologies.
        roof: Vertical position of the part that leads to the reader.
    """

    writer: Box
    reader: Box
    floor: float
    lane: float
    roof: float


@dataclass(frozen=True, slots=True)
class Picture:
    """A complete layout: sub-topologies and global stores, and the lines between them."""

    blocks: tuple[Block, ...]
    far: tuple[Far, ...]
    width: float
    height: float


def placed(graph: Graph) -> Picture:
    internal = graph.internal
    pairs = [
        (writer, reader, topic)
        for topic in sorted(internal)
        for writer, one in enumerate(graph.groups)
        if any(topic in node.writes for node in one.nodes)
        for reader, other in enumerate(graph.groups)
        if any(topic in node.reads for node in other.nodes)
    ]
    arrivals = [[pair for pair in pairs if pair[1] == number] for number in range(len(graph.groups))]
    roof = max((len(each) for each in arrivals), default=0) * _LANE
    blocks: list[Block] = []
    left: float = MARGIN
    for group, each in zip(graph.groups, arrivals, strict=True):
        left += len(each) * _LANE
        blocks.append(_block(group, internal, left, MARGIN + _TITLE + roof))
        left += blocks[-1].width + _GAP
    bottom = max((box.floor for block in blocks for box in block.boxes.values()), default=0)
    far = []
    for number, (writer, reader, topic) in enumerate(pairs):
        lane = _LANE * (1 + arrivals[reader].index((writer, reader, topic)))
        one, other = blocks[writer].boxes[f"out {topic}"], blocks[reader].boxes[f"in {topic}"]
        floor = bottom + _LANE * (number + 2)
        far.append(Far(one, other, floor, blocks[reader].left - lane, other.top - _LANE - lane))
    height = max([bottom, *(each.floor for each in far)]) + MARGIN
    return Picture(tuple(blocks), tuple(far), left, height)


def _block(group: Group, internal: frozenset[str], left: float, top: float) -> Block:
    inside, edges = _rows(group.nodes)
    ordered = [key for row in inside for key, _ in row]
    nodes = sorted(group.nodes, key=lambda node: ordered.index(f"node {node.name}"))
    read = dict.fromkeys(topic for node in nodes for topic in node.reads)
    written = dict.fromkeys(topic for node in nodes for topic in node.writes)
    rows = [[_topic(topic, internal, "in") for topic in read], *inside]
    rows.append([_topic(topic, internal, "out") for topic in written])
    width = max(_width(row) for row in rows) + 2 * _GAP
    width = max(width, len(group.title) * LETTER + 2 * _GAP)
    boxes: dict[str, Box] = {}
    tops, floors = [], []
    for row in rows:
        tops.append(top)
        floors.append(top + max((box.height for _, box in row), default=0))
        x = left + (width - _width(row)) / 2
        for key, box in row:
            boxes[key] = replace(box, left=x, top=top, floor=floors[-1])
            x += box.width + _GAP
        top = floors[-1] + _ROW
    last = len(rows) - 2
    return Block(
        group=group,
        boxes=boxes,
        edges=tuple(edges),
        left=left,
        width=width,
        title=MARGIN + LINE,
        top=tops[1] - 16,
        bottom=floors[last] + 16,
    )


def _width(row: Sequence[tuple[str, Box]]) -> float:
    return sum(box.width + _GAP for _, box in row) - _GAP


def _depths(nodes: Sequence[Drawn]) -> dict[str, int]:
    depth: dict[str, int] = {}
    # Parents come before children.
    for node in nodes:
        depth[node.name] = 1 + max((depth[parent] for parent in node.parents), default=-1)
    return depth | {node.name: max(depth.values()) for node in nodes if node.writes}


def _rows(nodes: Sequence[Drawn]) -> tuple[list[list[tuple[str, Box]]], list[Edge]]:
    """Order nodes and lanes: each below its parents, close to their middle."""
    depth = _depths(nodes)
    rows: list[list[tuple[str, Box]]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    above: dict[str, list[str]] = {}
    edges = [edge for node in nodes for edge in _edges(node, depth)]
    for edge in edges:
        for one, other in itertools.pairwise(edge):
            above.setdefault(other, []).append(one)
        for number, key in enumerate(edge[1:-1], depth[edge[0].partition(" ")[2]] + 1 if len(edge) > _DIRECT else 0):
            rows[number].append((key, Box("lane", ())))
    for node in nodes:
        kind = "state" if node.stores else "node"
        lines = (node.name, *(f"[{store}]" for store in node.stores))
        rows[depth[node.name]].append((f"node {node.name}", Box(kind, lines)))
    place: dict[str, float] = {}
    for row in rows:
        row.sort(key=lambda each: _centre([place[key] for key in above.get(each[0], ()) if key in place]))
        place |= {key: (at + 0.5) / len(row) for at, (key, _) in enumerate(row)}
    return rows, edges


_DIRECT = 2


def _centre(places: Sequence[float]) -> float:
    return sum(places) / max(1, len(places))


def _edges(node: Drawn, depth: dict[str, int]) -> Iterable[Edge]:
    own = f"node {node.name}"
    yield from ((f"in {topic}", own) for topic in node.reads)
    for parent in node.parents:
        between = range(depth[parent] + 1, depth[node.name])
        yield (f"node {parent}", *(f"lane {number} {parent} {node.name}" for number in between), own)
    yield from ((own, f"out {topic}") for topic in node.writes)


def _topic(topic: str, internal: frozenset[str], side: str) -> tuple[str, Box]:
    return f"{side} {topic}", Box("internal" if topic in internal else "topic", (topic,))
