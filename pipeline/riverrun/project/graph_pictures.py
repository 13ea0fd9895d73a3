"""The graph of a project as text for a terminal, as a picture, and as JSON; the impact of a change as text and JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from riverrun.project.graph import Read, ReaderKind, Write
from riverrun.project.impact import Effect, Part
from riverrun.topology.graph import Drawn, Graph, Group
from riverrun.topology.svg import svg

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from riverrun.project.graph import Member, ProjectGraph
    from riverrun.project.impact import Impact, Reached
    from riverrun.project.surprises import Surprise

_AGAIN = "(see above)"
_MOST_BOXES = 3000
"""Parts of a picture that browsers and readers can bear; also `page.js` has this number."""
_TITLES = {
    Part.MUST: "must take part",
    Part.UNKNOWN: "not known",
    Part.MAY: "may take part",
    Part.NEED_NOT: "need not take part",
}


def as_text(graph: ProjectGraph, found: Sequence[Surprise]) -> str:
    """Return the graph as a tree: topics, below each its readers, and below these what they write."""
    lines = list(_tree(graph))
    lines += _unknown(graph)
    if found:
        lines += ["", "Surprising:", *(f"  {each}" for each in found)]
    return "\n".join(lines) or "No application is declared."


def neighbours_text(graph: ProjectGraph, app: str) -> str:
    """Return the writers of what an application reads, and the readers of what it writes, as text."""
    member = graph.application(app)
    lines: list[str] = []
    for read in graph.reads_of(member) if member else ():
        writers = dict.fromkeys(str(edge.writer) for edge in graph.writers(read.topic))
        how = " ".join(filter(None, (read.topic, _kind(read))))
        lines += [f"reads {how}, from {', '.join(writers)}"] if writers else []
    for write in graph.writes_of(member) if member else ():
        readers = dict.fromkeys(str(edge.reader) for edge in graph.readers(write.topic))
        lines += [f"writes {_topic(write)}, for {', '.join(readers)}"] if readers else []
    lines += _unknown(graph)
    return "\n".join(["Neighbours:", *(f"  {line}" for line in lines or ["none"])])


def _unknown(graph: ProjectGraph) -> list[str]:
    return [f"{name} is not known: {why}" for name, why in graph.unknown.items()]


class _Branch(NamedTuple):
    """A line of the tree that is to be drawn: an edge, and the lines to the left of it."""

    edge: Read | Write
    indent: str
    is_last: bool


def _tree(graph: ProjectGraph) -> Iterator[str]:
    """Draw members below what they read. Each is drawn once in full, where its first topic is, and so is each topic."""
    drawn: set[Member | str] = set()
    order = graph.ordered()
    outside = [edge.topic for member in order for edge in graph.reads_of(member) if not graph.writers(edge.topic)]
    for topic in dict.fromkeys(outside):
        yield f"{topic}, from outside"
        yield from _below(graph, graph.readers(topic), drawn)
    # Members without an input, and those of cycles to which nothing else leads.
    for member in order:
        if member not in drawn:
            drawn.add(member)
            yield _named(member)
            yield from _below(graph, graph.writes_of(member), drawn)


def _below(graph: ProjectGraph, edges: Sequence[Read | Write], drawn: set[Member | str]) -> Iterator[str]:
    """Draw edges, and all that they lead to and is not drawn yet."""
    waiting = _branches(edges, "")
    while waiting:
        edge, indent, is_last = waiting.pop()
        if isinstance(edge, Read):
            thing: Member | str = edge.reader
            text, further = f" {_reader(edge)}", _edges(graph.writes_of(edge.reader))
        else:
            thing, text, further = edge.topic, f"> {_topic(edge)}", _edges(graph.readers(edge.topic))
        is_again = thing in drawn and bool(further)
        yield f"{indent}{'└─' if is_last else '├─'}{text}{f' {_AGAIN}' if is_again else ''}"
        if not is_again:
            waiting += _branches(further, f"{indent}{'   ' if is_last else '│  '}")
        drawn.add(thing)


def _edges(edges: Iterable[Read | Write]) -> tuple[Read | Write, ...]:
    return tuple(edges)


def _branches(edges: Sequence[Read | Write], indent: str) -> list[_Branch]:
    """Return branches, the first one last: they are taken from the end."""
    return [_Branch(edge, indent, number == len(edges)) for number, edge in enumerate(edges, 1)][::-1]


def _named(member: Member) -> str:
    return f"{member} {member.version}".rstrip()


def _reader(edge: Read) -> str:
    return f"{_named(edge.reader)} ({_kind(edge)})" if edge.kind else _named(edge.reader)


def _kind(edge: Read) -> str:
    return f"as a {edge.kind.value}" if edge.kind else ""


def _topic(edge: Write) -> str:
    if edge.is_letters:
        return f"{edge.topic}, letters"
    return edge.topic if edge.kind is None else f"{edge.topic}, a {edge.kind.value}"


def as_picture(graph: ProjectGraph) -> Graph:
    """Return the graph as topologies are drawn: members next to each other, with lines between those that share topics."""
    read = {edge.topic for edge in graph.reads}
    shared = frozenset(edge.topic for edge in graph.writes if edge.topic in read)
    return Graph(tuple(_group(graph, member) for member in graph.ordered()), shared)


def page_picture(graph: ProjectGraph) -> tuple[str, str]:
    """Return the picture for a page as SVG, or else the reason why there is none."""
    picture = as_picture(graph)
    boxes = sum(1 + len(node.reads) + len(node.writes) for group in picture.groups for node in group.nodes)
    if boxes > _MOST_BOXES:
        return "", f"There are {boxes} parts: this is too large for a picture here. riverrun plan shows them as text."
    return svg(picture, "Topics between applications"), ""


def _group(graph: ProjectGraph, member: Member) -> Group:
    sources = []
    for kind in (*ReaderKind, None):
        edges = [edge for edge in graph.reads_of(member) if edge.kind is kind]
        read = tuple(dict.fromkeys(edge.topic for edge in edges))
        sources += [Drawn(_kind(edges[0]) or "reads", (), reads=read)] if read else []
    written = tuple(dict.fromkeys(edge.topic for edge in graph.writes_of(member)))
    parents = tuple(source.name for source in sources)
    return Group(_named(member), (*sources, Drawn(member.kind, parents, writes=written)))


def graph_document(graph: ProjectGraph, found: Iterable[Surprise]) -> dict[str, Any]:
    """Return the graph as a JSON object."""
    members = [
        {
            "name": member.name,
            "kind": member.kind,
            "version": member.version or None,
            "reads": [_read_document(edge) for edge in graph.reads_of(member)],
            "writes": [_write_document(edge) for edge in graph.writes_of(member)],
        }
        for member in graph.members
    ]
    told = [{"kind": each.kind.value, "text": each.text} for each in found]
    return {"members": members, "unknown": dict(graph.unknown), "surprising": told}


def _read_document(edge: Read) -> dict[str, Any]:
    return {"topic": edge.topic, "as": None if edge.kind is None else edge.kind.value, "known": edge.is_known}


def _write_document(edge: Write) -> dict[str, Any]:
    kind = None if edge.kind is None else edge.kind.value
    return {"topic": edge.topic, "kind": kind, "known": edge.is_known, "letters": edge.is_letters}


def impact_text(impact: Impact) -> str:
    """Return the impact of a change line by line."""
    what = f"a backfill of {impact.interval}" if impact.interval else "a release"
    about = f"{_named(impact.app)}: {what}"
    lines = [about, *(f"  {topic}: {text}" for topic, text in impact.outputs.items())]
    ended = [
        f"  {topic}: readers that get nothing more: {', '.join(names) or 'none'}"
        for topic, names in impact.ended.items()
    ]
    lines += ["topics that are no longer written:", *ended] if ended else []
    groups = _restated(impact) if impact.interval else [(_TITLES[part], impact.with_part(part)) for part in Part]
    changed = [
        f"  {each.topic} of {each.writer}: {each.text}" for each in impact.changed if each.effects != (Effect.STAYS,)
    ]
    lines += ["topics of others that change:", *changed] if changed else []
    for title, members in groups:
        told = [f"{each.member}: {reason}" for each in members for reason in each.told]
        told += impact.unknown if title == _TITLES[Part.UNKNOWN] else ()
        lines += [f"{title}:", *(f"  {line}" for line in told)] if told else []
    is_read = impact.reached or any(impact.ended.values())
    return "\n".join(lines if is_read else [*lines, "  no member of the project reads what it writes"])


def _restated(impact: Impact) -> list[tuple[str, tuple[Reached, ...]]]:
    restated = tuple(each for each in impact.reached if each.is_restated)
    others = tuple(each for each in impact.reached if each not in restated)
    unknown = tuple(each for each in others if each.part is Part.UNKNOWN)
    left = tuple(each for each in others if each.part is not Part.UNKNOWN)
    return [("cannot be restated", left), (_TITLES[Part.UNKNOWN], unknown), ("restated by corrections", restated)]


def impact_document(impact: Impact) -> dict[str, Any]:
    """Return the impact of a change as a JSON object."""
    return {
        "app": impact.app.name,
        "version": impact.app.version,
        "interval": impact.interval or None,
        "outputs": dict(impact.outputs),
        "changed": [
            {
                "topic": each.topic,
                "writer": str(each.writer),
                "effects": [effect.value for effect in each.effects],
                "times": None if each.times is None else str(each.times),
            }
            for each in impact.changed
        ],
        "reached": [
            {
                "member": str(each.member),
                "part": each.part.value,
                "restated": each.is_restated,
                "reasons": [
                    {"topic": why.topic, "node": why.node or None, "effect": why.effect.value, "text": why.text}
                    for why in each.reasons
                ],
            }
            for each in impact.reached
        ],
        "ended": {topic: list(names) for topic, names in impact.ended.items()},
        "unknown": list(impact.unknown),
    }
