"""The graph of a project: readers and writers of its topics, what is surprising about it, and how it is shown."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from riverrun import (
    LONG,
    STRING,
    Consumed,
    Grouped,
    Materialized,
    Produced,
    Riverrun,
    StreamsBuilder,
    TimeWindows,
)
from riverrun.cli.main import app
from riverrun.config import OutputKind, ProjectConfig
from riverrun.errors import ConfigError
from riverrun.project.flows import Flows
from riverrun.project.graph import Arrival, Flow, Member, ProjectGraph, Read, ReaderKind, Write
from riverrun.project.graph_pictures import as_picture, as_text, graph_document, neighbours_text, page_picture
from riverrun.project.surprises import SurpriseKind, surprises
from riverrun.runtime.layout import own_topics
from riverrun.topology.graph import mermaid
from riverrun.topology.svg import svg
from tests.depth import depth

if TYPE_CHECKING:
    from collections.abc import Mapping

    from riverrun.topology.nodes import GlobalStore

TEXTS = Consumed(STRING, STRING)
OUT = Produced(STRING, STRING)
STREAM, TABLE, GLOBAL = ReaderKind.STREAM, ReaderKind.TABLE, ReaderKind.GLOBAL_TABLE
SHOP = """
from riverrun import LONG, STRING, Consumed, Grouped, Materialized, Produced

def orders(builder):
    builder.stream("raw", Consumed(STRING, STRING)).filter(lambda key, value: value != "").to("orders")
    return builder.build()

def totals(builder):
    groups = builder.stream("orders", Consumed(STRING, STRING)).group_by(lambda key, value: value, Grouped(STRING, STRING))
    groups.count(Materialized(name="totals")).to_stream().to("totals", Produced(STRING, LONG))
    return builder.build()

def alerts(builder):
    rows = builder.table("totals", Consumed(STRING, LONG), Materialized(name="totals"))
    rows.filter(lambda key, count: count > 100).to_stream().to("alerts")
    return builder.build()
"""
FILE = """
[kafka]
"bootstrap.servers" = "127.0.0.1:1"
[apps.orders]
topology = "{module}:orders"
[apps.totals]
topology = "{module}:totals"
[apps.totals.config]
"errors.dead.letter.queue.topic.name" = "letters"
[apps.totals.versions]
v2 = "{module}:totals"
[apps.alerts]
topology = "{module}:alerts"
[exports.lake]
topic = "totals"
format = "parquet"
target = "lake"
[exports.shelf]
topic = "totals"
table = "totals"
target = "sqlite:///shelf.db"
mode = "upsert"
[imports.shop]
topic = "raw"
source = "sqlite:///shop.db"
table = "orders"
incremental = ["id"]
[archives.all]
topics = ["raw", "orders"]
url = "kept"
[neighbours.billing]
reads = ["totals"]
writes = ["invoices"]
"""


def shop(tmp_path: Path, more: str = "") -> Path:
    """Write a small project, and return its file. No other test has its module's name: modules are imported once."""
    module = f"shop_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text(SHOP)
    path = tmp_path / "streams.toml"
    path.write_text(FILE.format(module=module) + more)
    return path


def run(path: Path, *arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["--config", str(path), *arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


def of(tmp_path: Path, **apps: Any) -> ProjectGraph:
    return of_apps(tmp_path, **apps).graph()


def of_apps(tmp_path: Path, **apps: Any) -> Riverrun:
    project = Riverrun(kafka={"bootstrap.servers": "127.0.0.1:1"}, directory=tmp_path)
    for name, build in apps.items():
        builder = StreamsBuilder()
        build(builder)
        project.app(name, builder.build())
    return project


def texts(graph: ProjectGraph) -> dict[SurpriseKind, list[str]]:
    found: dict[SurpriseKind, list[str]] = {}
    for each in surprises(graph):
        found.setdefault(each.kind, []).append(str(each))
    return found


# The value


def test_readers_have_the_kind_in_which_they_read(tmp_path: Path) -> None:
    def build(b: StreamsBuilder) -> None:
        stream = b.stream(["s", "more"], TEXTS)
        stream.group_by(lambda _k, v: v, Grouped(STRING, STRING, name="by-value")).count(Materialized(name="counts"))
        b.table("t", TEXTS)
        b.global_table("g", TEXTS)

    graph = of(tmp_path, reader=build)
    assert {(each.topic, each.kind) for each in graph.reads} == {
        ("s", STREAM), ("more", STREAM), ("t", TABLE), ("g", GLOBAL),
    }  # fmt: skip
    assert graph.writes == (), "internal topics are no part of it"


def test_writers_have_the_kind_of_their_topics(tmp_path: Path) -> None:
    def build(b: StreamsBuilder) -> None:
        b.stream("s", TEXTS).to("log", OUT)
        b.table("t", TEXTS).to_stream().to("table", OUT)

    writes = {each.topic: each for each in of(tmp_path, writer=build).writes}
    assert {topic: each.kind for topic, each in writes.items()} == {"log": OutputKind.LOG, "table": OutputKind.TABLE}
    assert writes["table"].why == "it has the updates of a table"
    assert writes["table"].node == "KSTREAM-SINK-0000000006"


def test_patterns_and_chosen_topics_are_edges_that_are_not_known(tmp_path: Path) -> None:
    def by_pattern(b: StreamsBuilder) -> None:
        b.stream(re.compile("SHOP-.*", re.IGNORECASE), TEXTS).to(lambda key, _value, _context: key, OUT)

    graph = of(tmp_path, writer=lambda b: b.stream("s", TEXTS).to("shop-eu", OUT), reader=by_pattern)
    reader = Member("reader", version="v1")
    assert [(each.topic, each.is_known) for each in graph.reads_of(reader)] == [
        ("topics that match SHOP-.*", False),
        ("shop-eu", True),
    ]
    assert [(each.topic, each.is_known) for each in graph.writes_of(reader)] == [("topics that reader chooses", False)]


def test_declarations_of_the_project_are_members_with_their_topics(tmp_path: Path) -> None:
    graph = Riverrun(shop(tmp_path)).graph()
    edges = {(str(each.reader), each.topic, each.kind) for each in graph.reads if not each.reader.is_application}
    assert edges == {
        ("export lake", "totals", STREAM),
        ("export shelf", "totals", TABLE),
        ("archive all", "raw", STREAM),
        ("archive all", "orders", STREAM),
        ("neighbour billing", "totals", None),
    }
    written = {(str(each.writer), each.topic, each.is_letters) for each in graph.writes}
    assert written == {
        ("orders", "orders", False),
        ("totals", "totals", False),
        ("totals", "letters", True),
        ("alerts", "alerts", False),
        ("import shop", "raw", False),
        ("neighbour billing", "invoices", False),
    }


def test_what_cannot_be_loaded_is_named_and_hides_nothing_else(tmp_path: Path) -> None:
    more = '[apps.broken]\ntopology = "nowhere:build"\n[apps.wrong]\ntopolgy = "x"\n[exports.none]\ntopic = "t"\n'
    path = shop(tmp_path, more)
    graph = Riverrun(path).graph()
    assert sorted(graph.unknown) == ["broken", "export none", "wrong"]
    assert "Module 'nowhere' cannot be imported" in graph.unknown["broken"]
    assert {"orders", "totals", "alerts"} == {member.name for member in graph.applications}
    code, output = run(path, "plan")
    assert code == 0
    assert "broken is not known: Module 'nowhere' cannot be imported" in output
    output = run(path, "plan", "orders")[1]
    assert "\nnot known:\n" in output
    assert "  export none is not known" in output.partition("not known:")[2].partition("need not")[0]


class Raising:
    """A processor and transformer of a user, of which no object can be made without its service."""

    def __init__(self) -> None:
        raise ConnectionError("the service is away")

    def init(self, context: Any) -> None: ...

    def process(self, record: Any) -> None: ...

    def transform(self, _key: Any, value: Any) -> Any: ...

    def close(self) -> None: ...


@pytest.mark.parametrize("users", ["process", "process_values", "transform_values"])
def test_no_object_of_a_user_is_made(tmp_path: Path, users: str) -> None:
    def build(b: StreamsBuilder) -> None:
        rows = b.table("t", TEXTS)
        getattr(rows if users == "transform_values" else rows.to_stream(), users)(Raising)
        rows.to_stream().to("out", OUT)

    def windows(b: StreamsBuilder) -> None:
        days = b.stream("s", TEXTS).process_values(Raising).group_by_key(Grouped(STRING, STRING))
        days.windowed_by(TimeWindows.of(timedelta(days=1))).count(Materialized(STRING, LONG)).to_stream().to("t")

    project = of_apps(tmp_path, own=build, windows=windows)
    graph = project.graph()
    assert graph.unknown == {}
    assert [edge.topic for edge in graph.writes] == ["out", "t"]
    told = project.impact("windows", start="2026-01-01", end="2026-01-02").outputs["t"]
    assert "depends on a processor of your own, KSTREAM-PROCESSVALUES-" in told


def test_an_application_whose_edges_cannot_be_found_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(store: GlobalStore) -> Any:
        raise SystemExit(store.source.topics[0])

    monkeypatch.setattr(Flows, "of_global", lambda _self, store: broken(store))
    graph = of(tmp_path, one=lambda b: b.global_table("g", TEXTS), other=lambda b: b.table("t", TEXTS))
    assert graph.unknown == {"one": "SystemExit: sys.exit('g') was called"}
    assert [member.name for member in graph.members] == ["other"]


def test_members_come_after_those_that_they_read_from() -> None:
    graph = chain("c", "b", "a")
    assert [member.name for member in replace(graph, members=graph.members[::-1]).ordered()] == ["c", "b", "a"]


def test_members_of_a_cycle_come_before_those_that_only_read_from_it() -> None:
    cycle, last = chain("a", "b", closed=True), chain("b", "c")
    graph = replace(cycle, members=(last.members[1], *cycle.members), reads=(*cycle.reads, *last.reads))
    assert [member.name for member in graph.ordered()] == ["a", "b", "c"]


def chain(*names: str, closed: bool = False) -> ProjectGraph:
    """Applications, each of which reads what the one before it writes."""
    members = tuple(map(Member, names))
    pairs = [*pairwise(members), *([(members[-1], members[0])] if closed else [])]
    ways = {name: passed_on(name, [(name, name)]) for name in names}
    reads = tuple(Read(after, before.name, STREAM, rows=ways[after.name]) for before, after in pairs)
    return ProjectGraph(members, reads, tuple(Write(member, member.name) for member in members))


# What is surprising


def test_a_plain_project_has_no_surprise(tmp_path: Path) -> None:
    assert surprises(Riverrun(shop(tmp_path)).graph()) == ()


def test_two_writers_of_a_topic_are_said_and_those_of_letters_are_not(tmp_path: Path) -> None:
    more = '[neighbours.other]\nwrites = ["raw", "orders"]\n'
    graph = Riverrun(shop(tmp_path, more)).graph()
    assert texts(graph) == {
        SurpriseKind.SEVERAL_WRITERS: [
            "orders and neighbour other write to orders",
            "import shop and neighbour other write to raw",
        ]
    }
    letters = tuple(Write(Member(name), "letters", is_letters=True) for name in "abc")
    assert surprises(ProjectGraph(writes=letters)) == ()
    mixed = (*letters, Write(Member("d"), "letters"))
    assert str(surprises(ProjectGraph(writes=mixed))[0]) == "a, b, c and 1 more write to letters"


def test_a_cycle_is_said_with_its_topics() -> None:
    found = texts(chain("a", "b", "c", closed=True))
    way = "a writes a, which b reads, b writes b, which c reads, c writes c, which a reads"
    assert found == {SurpriseKind.CYCLE: [f"a cycle: {way}"]}
    assert texts(chain("a", closed=True)) == {SurpriseKind.CYCLE: ["a cycle: a writes a, which a reads"]}
    assert texts(chain("a", "b", "c")) == {}


def test_an_application_that_reads_what_it_writes_without_a_way_back_is_no_cycle(tmp_path: Path) -> None:
    def steps(b: StreamsBuilder) -> None:
        b.stream("a", TEXTS).to("b", OUT)
        b.stream("b", TEXTS).to("c", OUT)

    def back(b: StreamsBuilder) -> None:
        b.stream("c", TEXTS).filter(lambda _k, _v: False).to("a", OUT)

    assert SurpriseKind.CYCLE not in texts(of(tmp_path, steps=steps))
    assert texts(of(tmp_path / "closed", steps=steps, back=back))[SurpriseKind.CYCLE] == [
        "a cycle: back writes a, which steps reads, steps writes b, which steps reads, steps writes c, which back reads"
    ]


def test_a_cycle_with_many_ways_through_it_is_said() -> None:
    # Twenty layers of three members, each of which reads what the layer before writes: a thousand million ways.
    layers = [[Member(f"m-{layer}-{number}") for number in range(3)] for layer in range(20)]
    reads = tuple(
        Read(member, before.name, STREAM, rows=passed_on(member.name, [(member.name, member.name)]))
        for above, layer in zip([layers[-1], *layers], layers, strict=False)
        for member in layer
        for before in above
    )
    members = tuple(member for layer in layers for member in layer)
    graph = ProjectGraph(members, reads, tuple(Write(member, member.name) for member in members))
    (said,) = texts(graph)[SurpriseKind.CYCLE]
    assert said.count(", which ") == len(layers)


def test_readers_of_staging_and_internal_topics_are_said(tmp_path: Path) -> None:
    more = """
[neighbours.early]
reads = ["totals-v2-staging-totals", "totals-v1-totals-changelog", "totals-v3-staging-totals", "orders-changelog"]
"""
    found = texts(Riverrun(shop(tmp_path, more)).graph())
    assert found == {
        SurpriseKind.STAGING: [
            "neighbour early reads totals-v2-staging-totals, a staging topic of totals-v2: it is deleted with that version"
        ],
        SurpriseKind.INTERNAL: [
            "neighbour early reads totals-v1-totals-changelog, an internal topic of totals-v1: its records are no interface"
        ],
    }


IDS = st.text("a-", min_size=1, max_size=6).filter(lambda text: not text.startswith("-") and not text.endswith("-"))
ENDS = st.sampled_from(["", "-staging-t", "-s-changelog", "-s-repartition", "-staging-s-changelog", "-t"])


@settings(max_examples=depth(100, 1000), deadline=None)
@given(ids=st.sets(IDS, max_size=4), topics=st.sets(st.tuples(IDS, ENDS).map("".join), max_size=4))
def test_the_owner_of_a_private_topic_is_the_one_that_layouts_know(ids: set[str], topics: set[str]) -> None:
    reads = tuple(Read(Member("reader"), topic, STREAM) for topic in sorted(topics))
    graph = ProjectGraph((Member("reader"),), reads, application_ids={each: each for each in ids})
    said = texts(graph)
    for topic in topics:
        staged = max((each for each in ids if topic.startswith(f"{each}-staging-")), key=len, default="")
        (owner,) = [each for each in ids if own_topics(each, [topic], ids)] or [""]
        found = [text for kind in said.values() for text in kind if f" {topic}, " in text]
        what = f"a staging topic of {staged}:" if staged else f"an internal topic of {owner}:"
        assert len(found) == bool(staged or owner)
        assert all(what in text for text in found)


@pytest.mark.parametrize(("pattern", "is_said"), [("t|.*-t", True), (".*", True), ("t|u", False)])
def test_a_pattern_that_matches_staging_topics_is_said(tmp_path: Path, pattern: str, is_said: bool) -> None:
    graph = of(
        tmp_path,
        writer=lambda b: b.stream("s", TEXTS).to("t", OUT),
        reader=lambda b: b.stream(re.compile(pattern), TEXTS).to("out", OUT),
    )
    said = texts(graph).get(SurpriseKind.STAGING, [])
    assert bool(said) == is_said
    assert all("also staging topics of versions that are not live, such as" in each for each in said)


def test_a_table_of_a_log_is_said_with_the_reason(tmp_path: Path) -> None:
    graph = of(
        tmp_path,
        writer=lambda b: b.stream("s", TEXTS).filter(lambda _k, _v: True, named=None).to("t", OUT),
        reader=lambda b: b.table("t", TEXTS),
        everywhere=lambda b: b.global_table("t", TEXTS),
    )
    why = "KSTREAM-FILTER-0000000001 may send fewer or more records than it gets, or under other keys"
    assert texts(graph) == {
        SurpriseKind.TABLE_OF_A_LOG: [
            f"reader reads t as a table, but writer writes it as a log: {why}",
            f"everywhere reads t as a table, but writer writes it as a log: {why}",
        ]
    }


def test_a_table_of_an_import_without_keys_is_said(tmp_path: Path) -> None:
    more = '[imports.rows]\ntopic = "totals"\nsource = "files"\nformat = "json"\n[exports.raw]\ntopic = "raw"\n'
    more += 'table = "raw"\ntarget = "sqlite:///x.db"\nmode = "upsert"\n'
    found = texts(Riverrun(shop(tmp_path, more)).graph())
    assert found[SurpriseKind.NO_KEYS] == [
        "alerts reads totals as a table, but records of import rows have no keys: a table drops them",
        "export shelf reads totals as a table, but records of import rows have no keys: a table drops them",
        "export raw reads raw as a table, but records of import shop have no keys: a table drops them",
    ]


# The page


PAGE = Path(__file__).parents[2] / "docs" / "run" / "graph.md"
OF_THE_PAGE = """
[kafka]
"bootstrap.servers" = "127.0.0.1:1"
[apps.orders]
topology = "of_the_page:orders"
[apps.totals]
topology = "of_the_page:totals"
[apps.totals.versions]
v2 = "of_the_page:totals"
[apps.alerts]
topology = "of_the_page:alerts"
[apps.visits]
topology = "of_the_page:visits"
[exports.lake]
topic = "totals"
format = "parquet"
target = "lake"
[imports.shop]
topic = "raw"
source = "sqlite:///shop.db"
table = "orders"
incremental = ["id"]
[archives.all]
topics = ["raw"]
url = "kept"
"""


def test_the_page_shows_what_the_commands_print(tmp_path: Path) -> None:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    of_kind = {kind: [text for each, text in blocks if each == kind] for kind in ("", "toml", "python")}
    orders = """
def orders(builder):
    builder.stream("raw", Consumed(STRING, STRING)).filter(lambda _key, order: order).to("orders")
    return builder.build()
"""
    (tmp_path / "of_the_page.py").write_text(of_kind["python"][0].partition("project = ")[0] + orders)
    path = tmp_path / "streams.toml"
    path.write_text(OF_THE_PAGE + of_kind["toml"][0])
    assert [run(path, "plan")[1], run(path, "plan", "totals", "--version", "v2")[1]] == of_kind[""][1:]


# Neighbours in streams.toml


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("[neighbours.x]", r"\[neighbours.x\] needs reads or writes"),
        ('[neighbours.x]\nreads = "totals"', "neighbours.x.reads is"),
        ("[neighbours.x]\nreads = [5]", "neighbours.x.reads is"),
        ('[neighbours.x]\nreads = ["a topic"]', "which is not the name of a topic"),
        ('[neighbours.x]\ntopics = ["t"]', "unknown key neighbours.x.topics"),
        ('[neighbours]\nx = "t"', "neighbours.x is"),
        ('[neighbours."a b"]\nreads = ["t"]', "neighbour"),
    ],
)
def test_a_neighbour_with_a_mistake_is_refused_when_it_is_asked_for(tmp_path: Path, table: str, message: str) -> None:
    path = tmp_path / "streams.toml"
    path.write_text(f'[kafka]\n"bootstrap.servers" = "127.0.0.1:1"\n{table}\n')
    project = ProjectConfig.load(path, {})
    (name,) = project.section("neighbours")
    with pytest.raises(ConfigError, match=message):
        project.declared("neighbours", name)


# How it is shown


TREE = """\
import shop
└─> raw
   ├─ orders v1 (as a stream)
   │  └─> orders, a log
   │     ├─ totals v1 (as a stream)
   │     │  ├─> totals, a table
   │     │  │  ├─ alerts v1 (as a table)
   │     │  │  │  └─> alerts, a table
   │     │  │  ├─ export lake (as a stream)
   │     │  │  ├─ export shelf (as a table)
   │     │  │  └─ neighbour billing
   │     │  │     └─> invoices
   │     │  └─> letters, letters
   │     └─ archive all (as a stream)
   └─ archive all (as a stream)
"""


def test_a_project_is_drawn_in_the_terminal(tmp_path: Path) -> None:
    assert run(shop(tmp_path), "plan") == (0, TREE)


def test_a_cycle_is_drawn_once() -> None:
    assert (
        as_text(chain("a", "b", closed=True), ())
        == "a\n└─> a\n   └─ b (as a stream)\n      └─> b\n         └─ a (as a stream) (see above)"
    )


def test_a_long_chain_is_drawn() -> None:
    names = [f"app-{number}" for number in range(600)]
    assert len(as_text(chain(*names), ()).splitlines()) == 2 * len(names)


def test_a_page_has_no_picture_that_is_too_large() -> None:
    picture, lack = page_picture(chain("a", "b"))
    assert (picture.startswith("<svg"), lack) == (True, "")
    picture, lack = page_picture(chain(*(f"app-{number}" for number in range(1000))))
    assert picture == ""
    assert lack == "There are 3998 parts: this is too large for a picture here. riverrun plan shows them as text."


def test_surprises_are_below_the_picture(tmp_path: Path) -> None:
    output = run(shop(tmp_path, '[neighbours.other]\nwrites = ["orders"]\n'), "plan")[1]
    assert output.endswith("\nSurprising:\n  orders and neighbour other write to orders\n")


def test_json_has_members_edges_and_surprises(tmp_path: Path) -> None:
    path = shop(tmp_path)
    found = json.loads(run(path, "plan", "--json")[1])
    graph = Riverrun(path).graph()
    assert found == graph_document(graph, surprises(graph))
    totals = next(each for each in found["members"] if each["name"] == "totals")
    assert totals["reads"] == [{"topic": "orders", "as": "stream", "known": True}]
    assert totals["writes"][0] == {"topic": "totals", "kind": "table", "known": True, "letters": False}


def test_a_release_and_a_backfill_are_shown_with_reasons(tmp_path: Path) -> None:
    path = shop(tmp_path)
    assert (
        run(path, "plan", "totals", "--version", "v2")[1]
        == """\
totals v2: a release
  totals: a table: rows that differ are published as corrections
topics of others that change:
  alerts of alerts: rows that differ are corrected
  invoices of neighbour billing: not known
not known:
  neighbour billing: totals: is outside the project: its use of records is not known
may take part:
  export lake: totals: adds a row for each correction
need not take part:
  alerts: totals: corrections arrive as updates of rows
  export shelf: totals: corrections arrive as updates of rows
"""
    )
    output = run(path, "plan", "totals", "--from", "2026-01-01", "--to", "2026-01-02")[1]
    assert "cannot be restated:\n  export lake: totals: adds a row for each correction\n" in output
    assert "restated by corrections:\n  alerts: totals:" in output
    assert output.endswith("unless --version says otherwise. --live takes those that are live.\n")
    assert "  no member of the project reads what it writes" in run(path, "plan", "alerts")[1]
    document = json.loads(run(path, "plan", "totals", "--json")[1])
    assert {each["member"]: each["part"] for each in document["reached"]} == {
        "alerts": "need not", "export lake": "may", "export shelf": "need not", "neighbour billing": "unknown",
    }  # fmt: skip


@pytest.mark.parametrize(
    "arguments",
    [["--from", "2026-01-01"], ["--version", "v2"], ["--format", "svg", "--json"], ["totals", "--format", "svg"]],
)
def test_options_that_do_not_fit_together_are_refused(tmp_path: Path, arguments: list[str]) -> None:
    assert run(shop(tmp_path), "plan", *arguments)[0] == 2


def test_describe_names_the_neighbours_of_an_application(tmp_path: Path) -> None:
    output = run(shop(tmp_path), "describe", "totals", "--version", "v1", "--neighbours")[1]
    assert output.endswith("""\
Neighbours:
  reads orders as a stream, from orders
  writes totals, a table, for alerts, export lake, export shelf, neighbour billing
""")
    assert neighbours_text(chain("a"), "a") == neighbours_text(chain("a"), "b") == "Neighbours:\n  none"


def test_describe_says_of_what_nothing_is_known(tmp_path: Path) -> None:
    path = shop(tmp_path, '[apps.broken]\ntopology = "nowhere:build"\n')
    output = run(path, "describe", "totals", "--version", "v1", "--neighbours")[1]
    assert "\n  broken is not known: Module 'nowhere' cannot be imported" in output.partition("Neighbours:")[2]
    assert "broken" not in run(path, "describe", "totals", "--version", "v1")[1]


@pytest.mark.parametrize("form", ["mermaid", "svg", "html"])
def test_a_picture_of_one_application_has_no_neighbours(tmp_path: Path, form: str) -> None:
    arguments = ("describe", "totals", "--version", "v1", "--neighbours", "--format", form)
    assert run(shop(tmp_path), *arguments)[0] == 2


@pytest.mark.parametrize(
    ("arguments", "built"),
    [
        (["describe", "totals", "--version", "v1"], ["totals"]),
        (["describe", "totals", "--version", "v1", "--neighbours"], ["totals", "orders", "alerts"]),
        (["plan"], ["orders", "totals", "alerts"]),
        (["plan", "totals"], ["totals", "orders", "alerts"]),
        # Two versions, one of which is replaced.
        (["plan", "totals", "--version", "v2"], ["totals", "orders", "alerts", "totals"]),
    ],
)
def test_a_command_builds_each_application_once(tmp_path: Path, arguments: list[str], built: list[str]) -> None:
    path, noted = shop(tmp_path), tmp_path / "built"
    (module,) = tmp_path.glob("*.py")
    told = re.sub(r"def (\w+)\(builder\):\n", rf"\g<0>    open({str(noted)!r}, 'a').write('\1 ')\n", module.read_text())
    module.write_text(told)
    assert run(path, *arguments)[0] == 0
    assert noted.read_text().split() == built


@pytest.mark.parametrize("form", ["mermaid", "svg"])
def test_a_picture_has_members_topics_and_kinds_of_readers(tmp_path: Path, form: str) -> None:
    picture = run(shop(tmp_path), "plan", "--format", form)[1]
    shown = ["import shop", "totals v1", "as a table", "neighbour billing", "invoices", "letters"]
    assert [each for each in shown if each not in picture] == []


NAMES = st.sampled_from(["a", "b", "c", "d"])
EDGES = st.lists(st.tuples(NAMES, st.sampled_from(["t", "u", "v"])), max_size=8, unique=True)


@settings(max_examples=depth(100, 1000), deadline=None)
@given(reads=EDGES, writes=EDGES)
def test_any_graph_can_be_shown_and_each_edge_is_in_it(reads: Any, writes: Any) -> None:
    members: Mapping[str, Member] = {name: Member(name) for name in "abcd"}
    graph = ProjectGraph(
        tuple(members.values()),
        tuple(Read(members[name], topic, STREAM, rows=passed_on(name, writes)) for name, topic in reads),
        tuple(Write(members[name], topic) for name, topic in writes),
    )
    lines = [line.lstrip("│├└─ ") for line in as_text(graph, ()).splitlines()]
    for name in members:
        assert any(line.split()[0] == name for line in lines)
    # A topic or member is drawn in full once: then each of its edges is a line.
    assert sum(line.startswith(">") for line in lines) >= len(writes)
    picture = as_picture(graph)
    assert {(group.title, topic) for group in picture.groups for node in group.nodes for topic in node.reads} == set(
        reads
    )
    assert mermaid(picture).count(" --> ") >= len(reads) + len(writes)
    assert svg(picture, "all").count('class="group"') == len(members)
    after: dict[str, set[str]] = {topic: set() for topic in graph.topics}
    for reader, topic in reads:
        after[topic] |= {written for writer, written in writes if writer == reader}
    in_cycles = {topic for topic in after if _reaches(after, topic, topic, frozenset())}
    assert {topic for cycle in graph.cycles() for topic in cycle} == in_cycles
    assert len([each for each in surprises(graph) if each.kind is SurpriseKind.CYCLE]) == len(graph.cycles())


def passed_on(name: str, writes: Any) -> Flow:
    """The way of a reader that passes everything on to all topics that it writes."""
    return Flow(outputs={topic: frozenset({Arrival.KEYED}) for writer, topic in writes if writer == name})


def _reaches(below: dict[str, set[str]], start: str, end: str, seen: frozenset[str]) -> bool:
    return any(each == end or (each not in seen and _reaches(below, each, end, seen | {each})) for each in below[start])
