"""A topology as an SVG picture, and as one page of HTML with its picture, its sub-topologies and its description."""

from __future__ import annotations

import itertools
import re
from html import escape
from typing import TYPE_CHECKING

from riverrun.topology.nodes import SinkNode
from riverrun.topology.places import LINE, placed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from riverrun.topology.graph import Graph, Group
    from riverrun.topology.nodes import SubTopology
    from riverrun.topology.places import Block, Box, Far

_STYLE = """<style>
.riverrun-topology{background:#fff}
.riverrun-topology text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#1b2a33}
.riverrun-topology .title{font-weight:bold}
.riverrun-topology .node{fill:#eef6f5;stroke:#00796b}
.riverrun-topology .state{fill:#cfeae6;stroke:#00796b}
.riverrun-topology .topic{fill:#fff6e5;stroke:#b26a00}
.riverrun-topology .internal{fill:#fff6e5;stroke:#b26a00;stroke-dasharray:5 4}
.riverrun-topology .group{fill:none;stroke:#90a4ae}
.riverrun-topology .edge{fill:none;stroke:#50646f;marker-end:url(#riverrun-head)}
.riverrun-topology .far{stroke-dasharray:5 4}
.riverrun-topology .head{fill:#50646f}
@media(prefers-color-scheme:dark){
.riverrun-topology{background:#0f171b}
.riverrun-topology text{fill:#e6eef0}
.riverrun-topology .node{fill:#12312e;stroke:#4db6ac}
.riverrun-topology .state{fill:#1b4a45;stroke:#4db6ac}
.riverrun-topology .topic,.riverrun-topology .internal{fill:#3a2a0c;stroke:#ffb74d}
.riverrun-topology .edge{stroke:#a9bcc4}
.riverrun-topology .head{fill:#a9bcc4}
}
</style>
"""
_HEAD = """<defs>
<marker id="riverrun-head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">
<path class="head" d="M0 0L10 5L0 10z"/></marker></defs>"""
# XML cannot hold these, or they break a line.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
# Unicode's visible pictures of control characters begin here.
_PICTURES = 0x2400
_FIRST_PRINTED = 0x20
_CORNER = 6


def svg(graph: Graph, title: str = "Topology") -> str:
    """Return the picture as a document, in light or dark colours according to the reader's browser.

    It may also be embedded in a page: its rules apply to nothing else there. Screen readers read its title and its content as
    text.
    """
    picture = placed(graph)
    size = f'viewBox="0 0 {picture.width:.0f} {picture.height:.0f}" width="{picture.width:.0f}"'
    name = f'role="img" aria-label="{_escaped(title)}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" class="riverrun-topology" {size} {name}>'
    description = f"<desc>{_escaped(' '.join(map(_description_of, graph.groups)))}</desc>"
    parts = [part for block in picture.blocks for part in _drawn(block)]
    parts += [_far(each) for each in picture.far]
    return "\n".join([head, f"<title>{_escaped(title)}</title>", description, _STYLE + _HEAD, *parts, "</svg>"]) + "\n"


def _description_of(group: Group) -> str:
    """Describe the content of the picture as text."""
    said = [group.title]
    for verb, things in (
        ("reads", [topic for node in group.nodes for topic in node.reads]),
        ("has stores", [store for node in group.nodes for store in node.stores]),
        ("writes", [topic for node in group.nodes for topic in node.writes]),
    ):
        if things:
            said.append(f"{verb} {', '.join(dict.fromkeys(things))}")
    nodes = ", ".join(
        f"{node.name} after {' and '.join(node.parents)}" if node.parents else node.name for node in group.nodes
    )
    return f"{'; '.join(said)}. Nodes: {nodes}."


def _drawn(block: Block) -> Iterable[str]:
    yield (
        f'<rect class="group" x="{block.left:.0f}" y="{block.top:.0f}" width="{block.width:.0f}" '
        f'height="{block.bottom - block.top:.0f}" rx="8"/>'
    )
    yield _text(block.group.title, block.left, block.title, 'class="title" text-anchor="start"')
    yield from (_edge([block.boxes[key] for key in edge]) for edge in block.edges)
    yield from (_box(key, box) for key, box in block.boxes.items() if box.kind != "lane")


def _box(key: str, box: Box) -> str:
    """Draw a box with its key: `node NAME`, `in TOPIC` or `out TOPIC`."""
    radius = 4 if box.kind in {"node", "state"} else box.height / 2
    # Pages that add statistics find the box by its key.
    shape = (
        f'<rect class="{box.kind}" data-key="{_escaped(key)}" x="{box.left:.0f}" y="{box.top:.0f}" width="{box.width:.0f}" '
        f'height="{box.height:.0f}" rx="{radius:.0f}"/>'
    )
    first = box.top + LINE + 1
    return shape + "".join(_text(line, box.middle, first + at * LINE) for at, line in enumerate(box.lines))


def _edge(stops: Sequence[Box]) -> str:
    """Draw an edge: straight along boxes and lanes of a row, curved between two rows."""
    x, y = stops[0].middle, stops[0].top + stops[0].height
    path = [f"M{x:.0f} {y:.0f}V{stops[0].floor:.0f}"]
    for one, other in itertools.pairwise(stops):
        top = other.top if other.kind == "lane" else other.top - 2
        bend = (one.floor + top) / 2
        path.append(f"C{one.middle:.0f} {bend:.0f} {other.middle:.0f} {bend:.0f} {other.middle:.0f} {top:.0f}")
        if other.kind == "lane":
            path.append(f"V{other.floor:.0f}")
    return f'<path class="edge" d="{"".join(path)}"/>'


def _far(far: Far) -> str:
    """Draw a line below all sub-topologies, up between two of them, and down to a topic: it crosses no node."""
    corners = [
        (far.writer.middle, far.floor),
        (far.lane, far.floor),
        (far.lane, far.roof),
        (far.reader.middle, far.roof),
    ]
    points = [
        (far.writer.middle, far.writer.top + far.writer.height),
        *corners,
        (far.reader.middle, far.reader.top - 2),
    ]
    path = [f"M{points[0][0]:.0f} {points[0][1]:.0f}"]
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        one, other = _towards(corner, before), _towards(corner, after)
        path.append(f"L{one[0]:.0f} {one[1]:.0f}Q{corner[0]:.0f} {corner[1]:.0f} {other[0]:.0f} {other[1]:.0f}")
    return f'<path class="edge far" d="{"".join(path)}L{points[-1][0]:.0f} {points[-1][1]:.0f}"/>'


def _towards(corner: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    """Return the point where a rounded corner begins; lines are horizontal or vertical."""

    def step(own: float, far: float) -> float:
        return own + max(-_CORNER, min(_CORNER, (far - own) / 2))

    return step(corner[0], other[0]), step(corner[1], other[1])


def _text(text: str, x: float, y: float, more: str = 'text-anchor="middle"') -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" {more}>{_escaped(text)}</text>'


def _escaped(text: str) -> str:
    return escape(_CONTROL.sub(_shown, text))


def _shown(control: re.Match[str]) -> str:
    code = ord(control.group())
    return chr(_PICTURES + code) if code < _FIRST_PRINTED else "\ufffd"


_PAGE_STYLE = """
:root{color-scheme:light dark}
body{margin:2rem auto;max-width:72rem;padding:0 1rem;font:16px/1.5 system-ui,sans-serif}
h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2rem}
figure{margin:1rem 0;overflow-x:auto}
table{border-collapse:collapse;width:100%}
th,td{text-align:left;vertical-align:top;padding:.4rem .8rem;border-bottom:1px solid #90a4ae}
pre{overflow-x:auto;padding:1rem;border:1px solid #90a4ae}
"""
_COLUMNS = "Sub-topology", "Reads", "Keeps", "Writes"


def page(title: str, fingerprint: str, picture: str, description: str, subs: Iterable[SubTopology]) -> str:
    """Return a self-contained page: no script, no external picture or style."""
    rows = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in _cells(sub))}</tr>\n" for sub in subs)
    heads = "".join(f'<th scope="col">{name}</th>' for name in _COLUMNS)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<title>{escape(title)}</title>
<style>{_PAGE_STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<p>Fingerprint: <code>{escape(fingerprint)}</code></p>
<figure>
{picture}</figure>
<h2>Sub-topologies</h2>
<table>
<thead><tr>{heads}</tr></thead>
<tbody>
{rows}</tbody>
</table>
<h2>Description</h2>
<pre>{escape(description)}</pre>
</body>
</html>
"""


def _cells(sub: SubTopology) -> tuple[str, ...]:
    chosen = ["a topic per record" for node in sub.nodes if isinstance(node, SinkNode) and callable(node.topic)]
    stores = [f"{store.name} ({store.kind.value})" for store in sub.stores]
    return str(sub.id), _lines(sub.source_topics), _lines(sorted(stores)), _lines([*sub.sink_topics, *chosen])


def _lines(names: Iterable[str]) -> str:
    return "<br>".join(map(escape, names))
