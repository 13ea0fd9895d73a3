"""Any topology, any input, however it is cut into slices, commits and restarts: the same tables on every host.

Topologies are drawn from a small grammar. The driver commits after every record, so nothing is ever held back; the other host
holds updates back between commits, restores, does work twice, and splits keys among partitions. A few dozen of them then run on
a real broker as one application, by a worker and on Spark.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from riverrun import (
    LONG,
    STRING,
    BufferConfig,
    CollectList,
    Consumed,
    Count,
    Grouped,
    Joined,
    JoinWindows,
    KStream,
    KTable,
    Latest,
    Materialized,
    Mean,
    Pattern,
    Produced,
    Quantile,
    Repartitioned,
    RollingWindows,
    SessionWindows,
    SlidingWindows,
    StreamJoined,
    StreamsBuilder,
    Sum,
    Suppressed,
    TimeWindows,
    Topology,
    Windowed,
)
from riverrun.testing import TopologyTestDriver
from tests.conformance.levelled import Input, LevelledHost, Slice, last_values

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.records import RawRecord
    from tests.conformance.hosts import Host

TEXTS: Consumed[str, str] = Consumed(STRING, STRING)
BY_TEXT: Grouped[str, str] = Grouped(STRING, STRING)
STORED: Materialized[str, str] = Materialized(key_serde=STRING, value_serde=STRING)
TO_TEXTS: Produced[str, str] = Produced(STRING, STRING)


VERSIONED: Materialized[str, str] = Materialized(
    STRING, STRING, name="versions", history_retention=timedelta(milliseconds=80)
)
VALUES = "w", "w1", "w2", "w3", "x1", "y1", "y2", "d1", "d2"


def ms(count: int) -> timedelta:
    return timedelta(milliseconds=count)


def both(left: object, right: object) -> str:
    return f"{left}+{right}"[-12:]


@dataclass(frozen=True)
class Made:
    """Part of a topology: how to build it, what it is called, which topics it reads."""

    build: Callable[[StreamsBuilder | Numbered], Any]
    name: str
    topics: frozenset[str]

    def then(self, name: str, step: Callable[[Any], Any]) -> Made:
        return Made(lambda builder: step(self.build(builder)), f"{self.name}.{name}", self.topics)

    def __repr__(self) -> str:
        return self.name


def source(topic: str) -> Made:
    return Made(lambda builder: builder.stream(topic, TEXTS), topic, frozenset({topic}))


def table_source(*, versioned: bool) -> Made:
    stored = VERSIONED if versioned else None
    return Made(lambda builder: builder.table("table", TEXTS, stored), f"table({versioned=})", frozenset({"table"}))


STATELESS: dict[str, Callable[[KStream[str, str]], KStream[str, str]]] = {
    "filter": lambda stream: stream.filter(lambda _k, v: v is not None and "x" not in v),
    "map_values": lambda stream: stream.map_values(lambda v: f"{v}!"[-5:]),
    "select_key": lambda stream: stream.select_key(lambda k, v: (v or k)[0]),
    "flat_map_values": lambda stream: stream.flat_map_values(lambda v: [v, v] if v == "w" else [v]),
    "peek": lambda stream: stream.peek(lambda _k, _v: None),
}

TABLES: dict[str, Callable[[KTable[str, str]], KTable[str, str]]] = {
    "filter": lambda table: table.filter(lambda _k, v: "y" not in v),
    "map_values": lambda table: table.map_values(lambda v: f"{v}?"[-5:], STORED),
    "group_aggregate": lambda table: table.group_by(lambda k, v: (v[0], k), BY_TEXT).aggregate(
        lambda: "", add_letter, remove_letter, STORED
    ),
    "group_named": lambda table: (
        table.group_by(lambda _k, v: (v[0], v), BY_TEXT)
        .aggregate(n=Count(), length=Sum(len), half=Quantile(len, 0.5))
        .filter(lambda _k, row: row["n"] > 0)
        .map_values(str, STORED)
    ),
    "group_top": lambda table: table.group_by(lambda k, v: (v[0], f"{v}{k}"), BY_TEXT).top(2).map_values(str, STORED),
    "group_count": lambda table: (
        table.group_by(lambda _k, v: (v[0], v), BY_TEXT)
        .count(Materialized(key_serde=STRING, value_serde=LONG))
        .filter(lambda _k, count: count > 0)  # with a cache, a group may come and go unseen
        .map_values(str, STORED)
    ),
}

WINDOWS = {
    "tumbling": TimeWindows.of(ms(20), grace=ms(30)),
    "hopping": TimeWindows.of(ms(30), grace=ms(10)).advance_by(ms(10)),
    "sessions": SessionWindows.of(ms(10), grace=ms(20)),
    "sliding": SlidingWindows.of(ms(15), grace=ms(25)),
}


def add_letter(_key: str, value: str, aggregate: str) -> str:
    return "".join(sorted(aggregate + value))


def remove_letter(_key: str, value: str, aggregate: str) -> str | None:
    return aggregate.replace(value, "", 1) or None


def concatenated(stream: KStream[str, str]) -> KTable[str, str]:
    return stream.group_by_key(BY_TEXT).aggregate(lambda: "", lambda _k, v, all_: (all_ + v)[-9:], STORED)


def deduplicated(stream: KStream[str, str]) -> KStream[str, str]:
    stored: Materialized[str, Any] = Materialized(STRING)
    named = stream.repartition(Repartitioned(STRING, STRING))
    return named.deduplicate(ms(20), by=lambda key, value: f"{key}{value}", grace=ms(30), materialized=stored)


def matched(stream: KStream[str, str]) -> KStream[str, str]:
    pattern = (
        Pattern.begin("w", lambda value: "w" in value).times(1, 2).followed_by("other", lambda value: "w" not in value)
    )
    named = stream.repartition(Repartitioned(STRING, STRING))
    found = named.match(pattern, within=ms(80), grace=ms(20))
    return found.map_values(lambda match: "".join([*match["w"], *match["other"]])[-5:])


def rolled(stream: KStream[str, str]) -> KStream[str, str]:
    windows = RollingWindows.of(ms(40), records=3, grace=ms(30))
    return stream.group_by_key(BY_TEXT).windowed_by(windows).reduce(lambda one, two: (one + two)[-6:])


BY_TIME = (deduplicated, matched, rolled)
"""Operators that choose or combine records of a key by their event times."""


def named_rows(stream: KStream[str, str]) -> KTable[str, str]:
    rows = stream.group_by_key(BY_TEXT).aggregate(n=Count(), last=Latest(), length=Sum(len))
    return rows.map_values(lambda row: f"{row['n']} {row['last']} {row['length']}", STORED)


def shortest(stream: KStream[str, str]) -> KTable[str, str]:
    return stream.group_by_key(BY_TEXT).top(2, len, largest=False).map_values(",".join, STORED)


def in_windows(
    stream: KStream[str, str], windows: Any, *, suppressed: bool, named: bool = False, late: bool = False
) -> KStream[str, str]:
    grouped: Any = stream.group_by_key(BY_TEXT).windowed_by(windows)
    found: list[KStream[str, str]] = []
    if late:
        grouped = grouped.late(found.append)
    counts = grouped.aggregate(n=Count(), all=CollectList(limit=9), mean=Mean(len)) if named else grouped.count()
    if suppressed:
        counts = counts.suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
    texts: KStream[str, str] = counts.to_stream(flat).map_values(lambda count: None if count is None else str(count))
    return texts.merge(found[0]) if late else texts


def flat(key: Windowed[str], _value: object) -> str:
    return f"{key.key}@{key.window.start}/{key.window.end}"


@st.composite
def streams(draw: st.DrawFn, topics: tuple[str, ...]) -> Made:
    """A stream of some of the topics, each at most once."""
    made = source(topics[0])
    if len(topics) > 1 and draw(st.booleans()):
        other = draw(streams(topics[1:]))
        made = merged(draw(stateless(made)), other) if draw(st.booleans()) else joined(draw(stateless(made)), other)
    made = draw(stateless(made))
    if "table" not in made.topics and draw(st.booleans()):
        made = draw(stateless(looked_up(made, left=draw(st.booleans()), versioned=draw(st.booleans()))))
    return made


@st.composite
def stateless(draw: st.DrawFn, made: Made, *, rekeyed: bool = True) -> Made:
    names = sorted(STATELESS if rekeyed else STATELESS.keys() - {"select_key"})
    for name in draw(st.lists(st.sampled_from(names), max_size=3)):
        made = made.then(name, STATELESS[name])
    return made


def merged(left: Made, right: Made) -> Made:
    return Made(
        lambda builder: left.build(builder).merge(right.build(builder)),
        f"merge({left}, {right})",
        left.topics | right.topics,
    )


def joined(left: Made, right: Made, kind: str = "join") -> Made:
    def build(builder: StreamsBuilder | Numbered) -> KStream[str, str]:
        options: StreamJoined[str, str, str] = StreamJoined(STRING, STRING, STRING)
        windows = JoinWindows.of(ms(25), grace=ms(50))
        join = getattr(left.build(builder), kind)
        result: KStream[str, str] = join(right.build(builder), both, windows, joined=options)
        return result

    return Made(build, f"{kind}({left}, {right})", left.topics | right.topics)


@st.composite
def outer_joins(draw: st.DrawFn) -> Made:
    """How often each result of a left or outer join came: when it comes depends on the other records of its partition."""
    left, right = (draw(stateless(source(topic), rekeyed=False)) for topic in ("left", "right"))
    made = joined(left, right, draw(st.sampled_from(["left_join", "outer_join"])))
    return draw(stateless(made)).then("counted", counted_results)


def counted_results(stream: KStream[str, str]) -> KStream[str, str]:
    counts = stream.select_key(lambda k, v: f"{k}:{v}").group_by_key(BY_TEXT).count()
    return counts.to_stream().map_values(str)


def looked_up(stream: Made, *, left: bool, versioned: bool) -> Made:
    table_made = table_source(versioned=versioned)

    def build(builder: StreamsBuilder | Numbered) -> KStream[str, str]:
        made, table = stream.build(builder), table_made.build(builder)
        join = made.left_join if left else made.join
        result: KStream[str, str] = join(table, both, joined=Joined(STRING, STRING))
        return result

    return Made(build, f"look_up({stream}, {table_made}, {left=})", stream.topics | {"table"})


@st.composite
def tables(draw: st.DrawFn, topics: tuple[str, ...]) -> Made:
    made = draw(streams(topics)).then("concatenated", concatenated)
    if "table" not in made.topics and draw(st.booleans()):
        aggregated = made
        made = Made(
            lambda builder: aggregated.build(builder).outer_join(builder.table("table", TEXTS), both, STORED),
            f"outer_join({aggregated}, table())",
            aggregated.topics | {"table"},
        )
    elif draw(st.booleans()):
        made = table_source(versioned=draw(st.booleans()))
    return draw(steps_of_tables(made))


@st.composite
def steps_of_tables(draw: st.DrawFn, made: Made) -> Made:
    for name in draw(st.lists(st.sampled_from(sorted(TABLES)), max_size=2)):
        made = made.then(name, TABLES[name])
    return made.then("to_stream", lambda table: table.to_stream())


@st.composite
def cases(draw: st.DrawFn) -> tuple[Made, tuple[Input, ...], int]:
    """A topology, its input and a number of partitions.

    Records of several topics or partitions come in order of time: else the order in which a task reads them, and with it what
    is late, is the host's choice. What waits for time to pass is over one partition, or has a last record in each.
    """
    kind = draw(st.sampled_from(["stream", "table", "windows", "late", "versions", "suppressed", "outer"]))
    is_ordered = kind not in {"late", "versions"}
    if kind == "table":
        made = draw(tables(("left", "right")))
    elif kind == "versions":
        made = draw(steps_of_tables(table_source(versioned=True)))
    elif kind == "late":
        chosen, options = draw(st.sampled_from(sorted(WINDOWS))), ("suppressed", "named", "late")
        windows = windowed_by(chosen, **{option: draw(st.booleans()) for option in options})
        made = draw(stateless(source("left")))
        for step in draw(st.lists(st.sampled_from(BY_TIME), max_size=1)):
            made = made.then(step.__name__, step)
        made = made.then("windows", windows)
    elif kind == "outer":
        made = draw(outer_joins())
    else:
        made = draw(streams(("left", "right")))
        if kind == "stream":
            reduced = draw(st.sampled_from([concatenated, named_rows, shortest]))
            made = made.then(reduced.__name__, reduced).then("to_stream", lambda table: table.to_stream())
        else:
            windows = windowed_by(draw(st.sampled_from(sorted(WINDOWS))), suppressed=kind == "suppressed")
            made = made.then(kind, windows)
    records = draw(inputs(sorted(made.topics), is_ordered=is_ordered))
    if kind == "outer":
        records += tuple(("left", key, "w", 10_000 + time) for time, key in enumerate("adg"))
    return made, records, draw(st.sampled_from([1, 2])) if is_ordered and kind != "suppressed" else 1


def windowed_by(name: str, **options: bool) -> Callable[[KStream[str, str]], KStream[str, str]]:
    return lambda stream: in_windows(stream, WINDOWS[name], **{"suppressed": False, **options})


@st.composite
def inputs(draw: st.DrawFn, topics: list[str], *, is_ordered: bool) -> tuple[Input, ...]:
    """Records, no two of the same time; their keys lie in both of two partitions."""
    records, now = [], 100
    for topic, key, value, step in draw(
        st.lists(
            st.tuples(st.sampled_from(topics), st.sampled_from("adg"), st.sampled_from(VALUES), st.integers(1, 30)),
            max_size=25,
        )
    ):
        now += step
        deletes = topic == "table" and draw(st.integers(0, 4)) == 0
        late_ms = 0 if is_ordered else draw(st.sampled_from([0, 0, 5, 20, 60]))
        records.append((topic, key, None if deletes else value, now - late_ms))
    return tuple(records)


@st.composite
def slices(draw: st.DrawFn, records: tuple[Input, ...]) -> list[Slice]:
    cuts = sorted(draw(st.sets(st.integers(0, len(records)), max_size=3)) | {0, len(records)})
    parts = [records[start:end] for start, end in pairwise(cuts)] or [records]
    return [Slice(part, draw(st.integers(1, 12)), draw(st.booleans()), draw(st.booleans())) for part in parts]


def topology_of(made: Made, optimization: str) -> Topology:
    builder = StreamsBuilder()
    made.build(builder).to("out", TO_TEXTS)
    return builder.build(optimization=optimization)


def by_driver(topology: Topology, records: tuple[Input, ...]) -> list[RawRecord]:
    with TopologyTestDriver(topology, application_id="app") as driver:
        for topic, key, value, timestamp in records:
            driver.input_topic(topic, STRING, STRING).pipe_input(key, value, timestamp=timestamp)
        return driver.read_raw("out")


@pytest.mark.driver
@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), case=cases(), optimization=st.sampled_from(["none", "all"]))
def test_the_tables_are_the_same_however_the_input_is_cut(
    data: st.DataObject, case: tuple[Made, tuple[Input, ...], int], optimization: str
) -> None:
    made, records, partitions = case
    expected = last_values(by_driver(topology_of(made, "none"), records))
    assert last_values(by_driver(topology_of(made, optimization), records)) == expected
    host = LevelledHost(topology_of(made, optimization), partitions)
    for part in data.draw(slices(records), "slices"):
        host.run(part)
    assert last_values(host.outputs("out")) == expected


@dataclass(frozen=True)
class Numbered:
    """A builder that names topics and stores uniquely, so that many topologies fit into one."""

    builder: StreamsBuilder
    topic: Callable[[str], str]
    number: int

    def stream(self, topic: str, consumed: Consumed[str, str]) -> KStream[str, str]:
        return self.builder.stream(self.topic(f"{topic}-{self.number}"), consumed)

    def table(
        self, topic: str, consumed: Consumed[str, str], stored: Materialized[str, str] | None = None
    ) -> KTable[str, str]:
        own = None if stored is None else replace(stored, name=f"{stored.name}-{self.number}")
        return self.builder.table(self.topic(f"{topic}-{self.number}"), consumed, own)


MOST = 20
"""How many topologies a host gets at once."""


def drawn(partitions: int) -> list[tuple[Made, tuple[Input, ...]]]:
    """Some topologies for so many partitions, with their inputs: the same ones each time."""
    found = []

    @settings(max_examples=60 * partitions, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
    @given(case=cases())
    def draw(case: tuple[Made, tuple[Input, ...], int]) -> None:
        made, records, count = case
        if records and count == partitions:
            found.append((made, records))

    draw()
    return found[:MOST]


def is_alike_live(made: Made) -> bool:
    """Whether tasks of one partition read the same in the same order, even if they process at the same time.

    What several tasks write to a repartition topic comes in any order, and so do the records of several such topics.
    """
    downstream = [
        sub
        for sub in topology_of(made, "none").sub_topologies()
        if sub.repartition_topics.intersection(sub.source_topics)
    ]
    return all(len(sub.source_topics) == 1 for sub in downstream)


@pytest.mark.parametrize(
    ("host", "partitions"),
    [
        pytest.param("worker", 1, marks=[pytest.mark.worker, pytest.mark.broker]),
        pytest.param("spark", 1, marks=[pytest.mark.spark, pytest.mark.broker]),
        pytest.param("spark", 2, marks=[pytest.mark.spark, pytest.mark.broker]),
    ],
    indirect=["host"],
)
def test_the_tables_are_the_same_on_every_host(host: Host, partitions: int) -> None:
    chosen = [
        (number, *case)
        for number, case in enumerate(drawn(partitions))
        if host.name == "spark" or is_alike_live(case[0])
    ]
    assert len(chosen) >= 8
    mades = {number: made for number, made, _ in chosen}
    inputs: dict[str, list[tuple[bytes, bytes | None, int]]] = {}
    for number, made, records in chosen:
        inputs |= {f"{topic}-{number}": [] for topic in made.topics}
        for topic, key, value, timestamp in records:
            inputs[f"{topic}-{number}"].append((key.encode(), None if value is None else value.encode(), timestamp))

    def build(builder: StreamsBuilder) -> Topology:
        for number, made in mades.items():
            made.build(Numbered(builder, host.topic, number)).to(host.topic(f"out-{number}"), TO_TEXTS)
        return builder.build()

    found = host.run(build, inputs, *(f"out-{number}" for number in mades), partitions=partitions)
    for number, made, records in chosen:
        expected = last_values(by_driver(topology_of(made, "none"), records))
        assert last_values(found[f"out-{number}"]) == expected, made
