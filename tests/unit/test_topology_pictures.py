"""Topologies as pictures: a Mermaid flowchart and an SVG document."""

from __future__ import annotations

import re
from datetime import timedelta
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple
from xml.etree import ElementTree as ET

from pipeline import (
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
from pipeline.topology.graph import Drawn, Graph, Group
from pipeline.topology.mermaid import mermaid
from pipeline.topology.svg import svg

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pipeline import Topology

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
    counts = pages.windowed_by(TimeWindows.of(five)).count(Materialized("per-page"))
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


def test_a_topology_without_nodes_has_an_empty_picture() -> None:
    assert list(boxes(svg(Graph((), frozenset())))) == []
    assert mermaid(Graph((), frozenset())).startswith("flowchart TB\n")
