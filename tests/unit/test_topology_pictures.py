"""Topologies as pictures: a Mermaid flowchart and an SVG document."""

from __future__ import annotations

import re
from datetime import timedelta
from html import escape
from html.parser import HTMLParser
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, NamedTuple
from xml.etree import ElementTree as ET

import pytest

from riverrun import (
    JSON,
    LONG,
    STRING,
    Consumed,
    Grouped,
    Materialized,
    Produced,
    StreamsBuilder,
    TimeWindows,
    windowed,
)
from riverrun.topology.graph import Drawn, Graph, Group, mermaid
from riverrun.topology.svg import svg

if TYPE_CHECKING:
    from collections.abc import Iterator

    from riverrun import Topology

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = '</text><script>alert(1)</script>"]; click n0 "javascript:x" #quot;'


class Box(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float


def shop() -> Topology:
    builder = StreamsBuilder()
    clicks = builder.stream("clicks", Consumed(STRING, JSON))
    users = builder.table("users", Consumed(STRING, JSON))
    builder.global_table("countries", Consumed(STRING, STRING))
    clicks.join(users, lambda click, user: {**click, **user}).to("joined", Produced(STRING, JSON))
    clicks.filter(lambda _key, click: not click).to("bad", Produced(STRING, JSON))
    five = timedelta(minutes=5)
    pages = clicks.group_by(lambda _key, click: click["page"], Grouped(STRING, JSON, name="by-page"))
    counts = pages.windowed_by(TimeWindows.of(five)).count(Materialized(name="per-page"))
    counts.to_stream().to("page-counts", Produced(windowed(STRING, five), LONG))
    return builder.build()


def texts(picture: str) -> list[str]:
    return [text.text or "" for text in ET.fromstring(picture).iter(f"{SVG}text")]  # noqa: S314 # our own


def boxes(picture: str) -> Iterator[Box]:
    for each in ET.fromstring(picture).iter(f"{SVG}rect"):  # noqa: S314 # our own
        if each.get("class") != "group":
            left, top, width, height = (float(each.attrib[name]) for name in ("x", "y", "width", "height"))
            yield Box(left, top, left + width, top + height)


def test_a_picture_shows_each_node_store_and_topic_once_and_none_hides_another() -> None:
    topology = shop()
    picture = topology.svg()
    shown = texts(picture)
    nodes = [node.name for sub in topology.sub_topologies() for node in sub.nodes]
    assert all(shown.count(name) == 1 for name in (*nodes, "clicks", "users", "joined", "bad", "page-counts"))
    assert shown.count("by-page-repartition") == 2, "below its writer and above its reader"
    assert {"[per-page]", "Sub-topology 0", "countries"} <= set(shown)
    for one, other in combinations(boxes(picture), 2):
        assert one.right <= other.left or other.right <= one.left or one.bottom <= other.top or other.bottom <= one.top
    assert picture == shop().svg()


def points(path: str) -> Iterator[tuple[float, float]]:
    """Points along a path as it is drawn: corners, and curves in steps."""
    here = (0.0, 0.0)
    for letter, numbers in re.findall(r"([MLVCQ])([^MLVCQ]*)", path):
        values = [float(number) for number in numbers.split()]
        ends = [(here[0], values[0])] if letter == "V" else list(zip(values[::2], values[1::2], strict=True))
        course = [here, *ends] if letter != "M" else ends
        for step in range(51):
            at = course
            while len(at) > 1:  # de Casteljau
                at = [(a + (c - a) * step / 50, b + (d - b) * step / 50) for (a, b), (c, d) in pairwise(at)]
            yield at[0]
        here = ends[-1]


def edges(picture: str) -> Iterator[str]:
    for each in ET.fromstring(picture).iter(f"{SVG}path"):  # noqa: S314 # our own
        if "edge" in each.get("class", ""):
            yield each.attrib["d"]


def titles(picture: str) -> Iterator[Box]:
    for each in ET.fromstring(picture).iter(f"{SVG}text"):  # noqa: S314 # our own
        if each.get("class") == "title":
            left, bottom = float(each.attrib["x"]), float(each.attrib["y"])
            yield Box(left, bottom - 12, left + 7.4 * len(each.text or ""), bottom + 3)


SKIPPING = Graph(
    (
        Group(
            "Sub-topology 0",
            (
                Drawn("source", (), reads=("in",)),
                Drawn("tall", ("source",), stores=("one", "two", "three")),
                Drawn("middle", ("tall",)),
                Drawn("merge", ("source", "middle")),
                Drawn("sink", ("source",), writes=("between",)),
                Drawn("last", ("merge",), writes=("out",)),
            ),
        ),
        Group(
            "Sub-topology 1", (Drawn("again", (), reads=("between",)), Drawn("end", ("again",), writes=("between",)))
        ),
        Group("Global store with a title longer than its nodes", (Drawn("g", (), reads=("t",)), Drawn("p", ("g",)))),
    ),
    frozenset({"between"}),
)


@pytest.mark.parametrize("picture", [svg(SKIPPING), shop().svg()], ids=["skipped rows", "shop"])
def test_an_edge_touches_only_the_boxes_it_joins_and_no_title(picture: str) -> None:
    every = [*boxes(picture), *titles(picture)]
    assert len(list(edges(picture))) > 8
    for path in edges(picture):
        inside = {
            box
            for x, y in points(path)
            for box in every
            if box.left + 1 < x < box.right - 1 and box.top + 1 < y < box.bottom - 1
        }
        assert inside == set(), path


def test_screen_readers_get_what_a_picture_shows() -> None:
    root = ET.fromstring(svg(SKIPPING))  # noqa: S314 # our own
    assert root.get("role") == "img"
    assert [each.tag for each in list(root)[:2]] == [f"{SVG}title", f"{SVG}desc"]
    description = root.findtext(f"{SVG}desc") or ""
    assert "Sub-topology 0; reads in; has stores one, two, three; writes between, out." in description
    assert "merge after source and middle" in description


def test_rules_of_a_picture_apply_to_nothing_else_in_a_page() -> None:
    style = ET.fromstring(shop().svg()).findtext(f"{SVG}style") or ""  # noqa: S314 # our own
    selectors = [
        each.strip()
        for each in re.findall(r"([^{}]+)\{[^{}]+\}", style.replace("@media(prefers-color-scheme:dark){", ""))
    ]
    assert selectors
    assert all(part.startswith(".riverrun-topology") for each in selectors for part in each.split(","))


def test_control_characters_in_names_are_shown_as_signs() -> None:
    name = "a\x00b\x1bc\nd\x85e\ud800f\uffff"
    graph = Graph((Group("g", (Drawn(name, (), reads=(name,), stores=(name,)),)),), frozenset())
    assert texts(svg(graph)).count("a␀b␛c␊d\ufffde\ufffdf\ufffd") == 2


def test_a_flowchart_links_topics_nodes_and_the_next_sub_topology() -> None:
    text = shop().mermaid()
    ids = {label: name for name, label in re.findall(r'^ *(\w+)[(\[]+"([^"<]*)', text, re.MULTILINE)}
    assert f"  {ids['clicks']} --> {ids['KSTREAM-SOURCE-0000000000']}\n" in text
    assert f"  {ids['by-page-repartition-sink']} --> {ids['by-page-repartition']}\n" in text
    assert f"  {ids['by-page-repartition']} --> {ids['by-page-repartition-source']}\n" in text
    assert '<br/>store per-page"]:::state' in text
    assert f"{ids['by-page-repartition']}([" in text
    assert text == shop().mermaid()


def test_names_are_shown_as_they_are_and_never_run() -> None:
    nodes = (Drawn(HOSTILE, (), reads=(HOSTILE,), stores=(HOSTILE,)), Drawn("last", (HOSTILE,), writes=(HOSTILE,)))
    graph = Graph((Group(HOSTILE, nodes),), frozenset())
    assert texts(svg(graph)).count(HOSTILE) == 4
    assert "<script" not in svg(graph)
    text = mermaid(graph)
    assert "script>" not in text
    assert '"javascript' not in text
    assert len(text.splitlines()) == 12, "a line for each part, whatever names say"


class Page(HTMLParser):
    """Cells of the table, and every tag with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.cells: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "td":
            self.cells.append("")
        elif tag == "br":
            self.cells[-1] += " "

    def handle_data(self, data: str) -> None:
        if self.cells and self.tags[-1][0] in {"td", "br"}:
            self.cells[-1] += data.strip()


def test_a_page_has_picture_table_and_text_and_needs_nothing_else() -> None:
    topology = shop()
    text = topology.html(f"clicks & {HOSTILE}")
    page = Page(text)
    assert page.cells[4:8] == ["2", "by-page-repartition", "per-page (timestamped-window)", "page-counts"]
    assert escape(topology.describe()) in text
    assert topology.fingerprint() in text
    assert texts(text[text.index("<svg") : text.index("</svg>") + 6]) == texts(topology.svg())
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in page.tags}
    assert not [1 for _, attributes in page.tags if {"src", "href", "onclick"} & attributes.keys()]


def test_a_topology_without_nodes_has_an_empty_picture() -> None:
    assert list(boxes(svg(Graph((), frozenset())))) == []
    assert mermaid(Graph((), frozenset())).startswith("flowchart TB\n")
