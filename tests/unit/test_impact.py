"""The meaning of a change for other applications, compared with what corrections do to results, and with oracles."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun import (
    LONG,
    STRING,
    Consumed,
    CountWindows,
    Grouped,
    Joined,
    JoinWindows,
    Materialized,
    Named,
    Pattern,
    Produced,
    Repartitioned,
    Riverrun,
    RollingWindows,
    SessionWindows,
    SlidingWindows,
    StreamJoined,
    StreamsBuilder,
    TimeWindows,
    session_windowed,
    windowed,
)
from riverrun.errors import ConfigError, RangeError, ReleaseError
from riverrun.project.changes import impact_of_change
from riverrun.project.graph_pictures import impact_document, impact_text
from riverrun.project.impact import Effect, Part
from riverrun.releases.topology import load_application
from riverrun.testing import Cluster, TopologyTestDriver
from tests.depth import depth

if TYPE_CHECKING:
    from pathlib import Path

    from riverrun import KStream, KTable, Topology
    from riverrun.project.impact import Impact

    Rows = Mapping[str, str | None]

TEXTS = Consumed(STRING, STRING)
OUT = Produced(STRING, STRING)
NUMBERS = Produced(STRING, LONG)
GROUPED = Grouped(STRING, STRING)
HOUR = timedelta(hours=1)
INTERVAL: dict[str, Any] = {"start": "2026-01-01", "end": "2026-01-03"}
Built = Callable[[StreamsBuilder], object]


class Silent:
    """A processor of a user."""

    def init(self, context: Any) -> None: ...

    def process(self, record: Any) -> None: ...

    def close(self) -> None: ...


class Same:
    """A transformer of a user."""

    def init(self, context: Any) -> None: ...

    def transform(self, _key: Any, value: Any) -> Any:
        return value

    def close(self) -> None: ...


def texts(b: StreamsBuilder, topic: str = "t") -> KStream[str, str]:
    return b.stream(topic, TEXTS)


def rows(b: StreamsBuilder, topic: str = "t") -> KTable[str, str]:
    return b.table(topic, TEXTS, Materialized(STRING, STRING, name=f"rows-of-{topic}"))


def versioned_store(name: str) -> Materialized[str, str]:
    return Materialized(STRING, STRING, name=f"versions-of-{name}", history_retention=HOUR)


def versions(b: StreamsBuilder, topic: str = "t") -> KTable[str, str]:
    return b.table(topic, TEXTS, versioned_store(topic))


def waiting(grace: timedelta) -> Joined[str, str, str]:
    return Joined(STRING, STRING, grace_period=grace)


def first_letter(_key: str, value: str) -> str:
    return value[:1]


def pair(left: str, right: str | None) -> str:
    return f"{left}{right}"


def by_length(_topic: str, _key: str, value: str | None, partitions: int) -> int:
    return len(value or "") % partitions


def chosen(_key: str, value: str | None, _context: Any) -> str:
    return "out" if value == "one" else "elsewhere"


async def answer(value: str) -> str:
    return value


def by_first_letter(b: StreamsBuilder) -> Any:
    return rows(b).group_by(lambda key, value: (value[:1], key), GROUPED)


def with_global(b: StreamsBuilder) -> Any:
    table = b.global_table("t", TEXTS)
    return texts(b, "other").join(table, pair, key_selector=lambda key, _value: key)


def deduplicated(b: StreamsBuilder) -> Any:
    return texts(b).deduplicate(HOUR)


def joined_streams(b: StreamsBuilder) -> Any:
    windows = JoinWindows.of(HOUR)
    return texts(b).join(texts(b, "other"), pair, windows, joined=StreamJoined(STRING, STRING))


def cogrouped(b: StreamsBuilder) -> Any:
    groups = texts(b).group_by_key(GROUPED).cogroup(lambda _key, value, all_: all_ + value)
    return groups.aggregate(lambda: "", Materialized(STRING, STRING)).to_stream()


def silent_users(b: StreamsBuilder) -> Any:
    """A table whose store a processor of another stream reads."""
    rows(b)
    return texts(b, "other").process(Silent, "rows-of-t")


def counted(grouped: Any) -> Any:
    return grouped.count(Materialized(STRING, LONG)).to_stream()


def with_upper(table: KTable[str, str]) -> KTable[str, str]:
    return table.left_join(table.map_values(str.upper), pair)


def joined_with_itself(table: KTable[str, str], become: Callable[[KTable[str, str]], KTable[str, str]]) -> None:
    table.join(become(table), pair).to_stream().to("out", OUT)


def windows_counted(windowed_stream: Any) -> Any:
    return windowed_stream.count(Materialized(STRING, LONG)).to_stream()


NEED_NOT: dict[str, Built] = {
    "a table": lambda b: rows(b).to_stream().to("out", OUT),
    "a filtered table": lambda b: rows(b).filter(lambda _k, v: v != "no").to_stream().to("out", OUT),
    "a mapped table": lambda b: rows(b).map_values(str.upper).to_stream().to("out", OUT),
    "a table counted by another key": lambda b: (
        # A group without rows has a count of 0 once it has had rows.
        by_first_letter(b).count(Materialized(STRING, LONG)).filter(lambda _k, n: n > 0).to_stream().to("out", NUMBERS)
    ),
    "a table joined with a table": lambda b: rows(b).join(rows(b, "other"), pair).to_stream().to("out", OUT),
    "a table left joined": lambda b: rows(b, "other").left_join(rows(b), pair).to_stream().to("out", OUT),
    "a table left joined with what it becomes": lambda b: with_upper(rows(b)).to_stream().to("out", OUT),
    "a table joined by a foreign key": lambda b: (
        rows(b, "other").join(rows(b), pair, foreign_key_extractor=lambda _value: "a").to_stream().to("out", OUT)
    ),
    "a mapped stream": lambda b: texts(b).map_values(lambda v: v and v.upper()).to("out", OUT),
    "a stream merged with itself": lambda b: (
        texts(b).map_values(lambda v: v and v.upper()).merge(texts(b)).to("out", OUT)
    ),
    "a stream as a table": lambda b: texts(b).to_table(Materialized(STRING, STRING)).to_stream().to("out", OUT),
    "a repartitioned stream": lambda b: (
        texts(b).repartition().to_table(Materialized(STRING, STRING)).to_stream().to("out", OUT)
    ),
    "a table that is watched": lambda b: rows(b).to_stream().peek(lambda _k, _v: None).to("out", OUT),
    "a table without outputs": rows,
    "a global table without joins": lambda b: b.global_table("t", TEXTS, Materialized(STRING, STRING, name="all")),
}
"""Readers of a corrected table that need not take part."""

MUST: dict[str, Built] = {
    "a count": lambda b: counted(texts(b).group_by_key(GROUPED)).to("out", NUMBERS),
    "a count that expires": lambda b: (
        texts(b).group_by_key(GROUPED).count(Materialized(STRING, LONG, ttl=HOUR)).to_stream().to("out", NUMBERS)
    ),
    "a count by another key": lambda b: counted(texts(b).group_by(first_letter, GROUPED)).to("out", NUMBERS),
    "a reduction": lambda b: (
        texts(b).group_by_key(GROUPED).reduce(pair, Materialized(STRING, STRING)).to_stream().to("out", OUT)
    ),
    "a cogroup": lambda b: cogrouped(b).to("out", OUT),
    "windows": lambda b: windows_counted(texts(b).group_by_key(GROUPED).windowed_by(TimeWindows.of(HOUR))).to(
        "out", Produced(windowed(STRING, HOUR), LONG)
    ),
    "sliding windows": lambda b: windows_counted(
        texts(b).group_by_key(GROUPED).windowed_by(SlidingWindows.of(HOUR))
    ).to("out", Produced(windowed(STRING, HOUR), LONG)),
    "sessions": lambda b: windows_counted(texts(b).group_by_key(GROUPED).windowed_by(SessionWindows.of(HOUR))).to(
        "out", Produced(session_windowed(STRING), LONG)
    ),
    "windows by count": lambda b: (
        texts(b)
        .group_by_key(GROUPED)
        .windowed_by(CountWindows.of(1))
        .reduce(pair, Materialized(STRING, STRING))
        .to("out", OUT)
    ),
    "rolling windows": lambda b: (
        texts(b).group_by_key(GROUPED).windowed_by(RollingWindows.of(HOUR)).reduce(pair).to("out", OUT)
    ),
    "a pattern": lambda b: (
        texts(b)
        .match(Pattern.begin("any", bool), within=HOUR, grace=timedelta(0), materialized=Materialized(STRING))
        .map_values(str)
        .to("out", OUT)
    ),
    "a join of streams": lambda b: joined_streams(b).to("out", OUT),
    "a stream without repetitions": lambda b: deduplicated(b).to("out", OUT),
    "a count of a table's updates": lambda b: counted(rows(b).to_stream().group_by_key(GROUPED)).to("out", NUMBERS),
    "a count of records made of a table": lambda b: counted(
        rows(b).to_stream().flat_map_values(lambda v: [v]).group_by_key(GROUPED)
    ).to("out", NUMBERS),
}
"""Readers of a corrected table that must take part."""

MAY: dict[str, Built] = {
    "a filtered stream": lambda b: texts(b).filter(lambda _k, v: v != "no").to("out", OUT),
    "a flat stream": lambda b: texts(b).flat_map_values(lambda v: [v]).to("out", OUT),
    "a table filtered as a stream": lambda b: rows(b).to_stream().filter(lambda _k, v: bool(v)).to("out", OUT),
    "another key": lambda b: texts(b).select_key(first_letter).to_table(Materialized(STRING, STRING)),
    "a stream joined with the table": lambda b: (
        texts(b, "other").join(rows(b), pair, joined=Joined(STRING, STRING)).to("out", OUT)
    ),
    "a stream joined with what a table becomes": lambda b: (
        texts(b, "other").join(rows(b).map_values(str.upper), pair, joined=Joined(STRING, STRING)).to("out", OUT)
    ),
    "a stream that is joined with another table": lambda b: (
        texts(b).left_join(rows(b, "other"), pair, joined=Joined(STRING, STRING)).to("out", OUT)
    ),
    "a stream that is looked up": lambda b: texts(b).map_values_async(answer).to("out", OUT),
    "a stream joined with the global table": lambda b: with_global(b).to("out", OUT),
    "a stream in topics by its values": lambda b: texts(b).to(chosen, OUT),
    "a table in topics by its values": lambda b: rows(b).to_stream().to(chosen, OUT),
}
"""Readers of a corrected table that may take part."""

ACTS: dict[str, Built] = {
    "an action": lambda b: texts(b).foreach(print),
    "an action at the end of a table": lambda b: rows(b).to_stream().peek(print),
    "a printer": lambda b: texts(b).print(),
}
"""Readers that do something outside for each correction, and may take part."""

BY_TIME: dict[str, Built] = {
    "a versioned table": lambda b: versions(b).to_stream().to("out", OUT),
    "a versioned table, filtered": lambda b: versions(b).filter(lambda _k, v: v != "no").to_stream().to("out", OUT),
    "a versioned table counted by its values": lambda b: (
        versions(b).group_by(lambda key, value: (value, key), GROUPED).count(Materialized(STRING, LONG))
        .to_stream().to("out", NUMBERS)
    ),
    "a versioned table joined with a table": lambda b: (
        versions(b).join(rows(b, "other"), pair).to_stream().to("out", OUT)
    ),
    "a stream as a versioned table": lambda b: texts(b).to_table(versioned_store("t")).to_stream().to("out", OUT),
}  # fmt: skip
"""Readers that keep the rows of a corrected table by their times, and may take part."""

OF_THEN: dict[str, Built] = {
    "a stream joined with a versioned table": lambda b: (
        texts(b).left_join(versions(b, "other"), pair, joined=Joined(STRING, STRING)).to("out", OUT)
    ),
    "a stream that waits for a versioned table": lambda b: (
        texts(b).left_join(versions(b, "other"), pair, joined=waiting(timedelta(minutes=1))).to("out", OUT)
    ),
}
"""Readers that join the records of a corrected table with rows of their times, and may take part."""

MERGED: dict[str, Built] = {
    "a merged stream": lambda b: texts(b).merge(texts(b, "elsewhere")).to("out", OUT),
    "a stream of two topics": lambda b: (
        b.stream(["t", "elsewhere"], TEXTS).to_table(Materialized(STRING, STRING)).to_stream().to("out", OUT)
    ),
    "a stream of a pattern": lambda b: b.stream(re.compile("t|elsewhere"), TEXTS).to("out", OUT),
    "two streams to one topic": lambda b: (texts(b).to("out", OUT), texts(b, "elsewhere").to("out", OUT)),
    "two tables to one topic": lambda b: (
        rows(b).to_stream().to("out", OUT), rows(b, "elsewhere").to_stream().to("out", OUT),
    ),
    "a merged and repartitioned stream": lambda b: (
        texts(b).merge(texts(b, "elsewhere")).repartition(Repartitioned(STRING, STRING))
        .to_table(Materialized(STRING, STRING)).to_stream().to("out", OUT)
    ),
}  # fmt: skip
"""Readers that bring the rows of a corrected table under the keys of another topic, and may take part."""

FORGETFUL: dict[str, Built] = {
    "a table that expires": lambda b: (
        b.table("t", TEXTS, Materialized(STRING, STRING, ttl=HOUR)).to_stream().to("out", OUT)
    ),
    "a stream as a table that expires": lambda b: (
        texts(b).to_table(Materialized(STRING, STRING, ttl=HOUR)).to_stream().to("out", OUT)
    ),
    "a table counted in groups that expire": lambda b: (
        by_first_letter(b).count(Materialized(STRING, LONG, ttl=HOUR)).to_stream().to("out", NUMBERS)
    ),
    "a table counted in few groups": lambda b: (
        by_first_letter(b).count(Materialized(STRING, LONG, max_entries=1)).to_stream().to("out", NUMBERS)
    ),
}
"""Readers of a corrected table that forget rows, and may take part."""

WITH_ITSELF: dict[str, Built] = {
    "a table joined with what it becomes": lambda b: joined_with_itself(rows(b), lambda t: t.map_values(str.upper)),
    "a table joined with what it becomes, stored": lambda b: joined_with_itself(
        rows(b), lambda t: t.map_values(str.upper, Materialized(STRING, STRING))
    ),
}
"""Readers that join a corrected table with itself, and may take part."""

ELSEWHERE: dict[str, Built] = {
    "a stream in chosen partitions": lambda b: texts(b).to("out", Produced(STRING, STRING, partitioner=by_length)),
    "a stream repartitioned by a function": lambda b: (
        texts(b)
        .repartition(Repartitioned(STRING, STRING, partitioner=by_length))
        .to_table(Materialized(STRING, STRING))
    ),
}
"""Readers that may keep an old row in another partition than the right one, and may take part."""

UNKNOWN: dict[str, Built] = {
    "a processor": lambda b: texts(b).process(Silent),
    "a processor of values": lambda b: texts(b).process_values(Silent),
    "a table's transformer": lambda b: rows(b).transform_values(Same),
    "a processor that reads the table": silent_users,
}
"""Readers of a corrected table of which it is not known."""

READERS = {
    name: (build, part)
    for part, readers in (
        (Part.NEED_NOT, NEED_NOT),
        (Part.MUST, MUST),
        (Part.MAY, MAY | ACTS | BY_TIME | OF_THEN | MERGED | FORGETFUL | ELSEWHERE | WITH_ITSELF),
        (Part.UNKNOWN, UNKNOWN),
    )
    for name, build in readers.items()
}


def built(build: Built) -> Topology:
    builder = StreamsBuilder()
    build(builder)
    return builder.build()


def of(tmp_path: Path, **apps: Built) -> Riverrun:
    """A project, none of whose brokers exists."""
    project = Riverrun(kafka={"bootstrap.servers": "127.0.0.1:1"}, directory=tmp_path)
    for name, build in apps.items():
        project.app(name, built(build))
    return project


def table(b: StreamsBuilder) -> None:
    rows(b, "base").to_stream().to("t", OUT)


def log(b: StreamsBuilder) -> None:
    texts(b, "base").to("t", OUT)


@pytest.mark.parametrize("name", READERS)
def test_a_reader_of_a_corrected_table_has_its_part(tmp_path: Path, name: str) -> None:
    build, part = READERS[name]
    impact = of(tmp_path, first=table, reader=build).impact("first")
    assert impact.part_of("reader") is part
    (reached,) = impact.reached
    assert all(reason.topic == "t" for reason in reached.reasons)
    assert part in {Part.NEED_NOT, Part.MAY} or all(reason.node for reason in reached.reasons)


@pytest.mark.parametrize("name", READERS)
def test_a_reader_of_a_log_need_not_take_part_and_is_not_restated(tmp_path: Path, name: str) -> None:
    impact = of(tmp_path, first=log, reader=READERS[name][0]).impact("first")
    assert impact.part_of("reader") is Part.NEED_NOT
    assert not impact.reached[0].is_restated
    assert {effect for each in impact.changed for effect in each.effects} <= {Effect.STAYS}


def written(build: Built, before: Rows, after: Rows) -> list[tuple[bytes | None, bytes | None]]:
    """Return what a reader writes for rows, records of another topic, and corrections of the rows."""
    with TopologyTestDriver(built(build)) as driver:
        given: list[tuple[str, Rows]] = [("t", before), ("other", {"a": "x", "b": "y"}), ("t", after)]
        for topic, records in given:
            if topic != "other" or any(topic in sub.source_topics for sub in built(build).sub_topologies()):
                for key, value in records.items():
                    driver.input_topic(topic, STRING, STRING).pipe_input(key, value, timestamp=0)
        return [(record.key, record.value) for record in driver.read_raw("out")]


def last(records: list[tuple[bytes | None, bytes | None]]) -> dict[bytes | None, bytes]:
    return {key: value for key, value in dict(records).items() if value is not None}


KEYS = st.sampled_from("abc")
SHORT = st.sampled_from(["no", "one", "two", "three"])


@pytest.mark.parametrize("name", [name for name in NEED_NOT if "without" not in name])
@settings(max_examples=depth(10, 100), deadline=None)
@given(before=st.dictionaries(KEYS, SHORT), after=st.dictionaries(KEYS, st.none() | SHORT))
def test_whoever_need_not_take_part_has_the_rows_of_corrected_ones(name: str, before: Rows, after: Rows) -> None:
    corrections = {key: value for key, value in after.items() if before.get(key) != value}
    corrected = {key: value for key, value in {**before, **corrections}.items() if value is not None}
    assert last(written(NEED_NOT[name], before, corrections)) == last(written(NEED_NOT[name], corrected, {}))


@pytest.mark.parametrize("name", [*MUST, *(name for name in MAY if name != "another key")])
def test_whoever_must_or_may_take_part_has_written_something_else(name: str) -> None:
    build, _ = READERS[name]
    before, corrections = {"a": "one", "b": "two"}, {"a": "two"}
    assert written(build, before, corrections) != written(build, before | corrections, {})


def piped_at(build: Built, records: list[tuple[str, str, int]]) -> list[tuple[bytes | None, bytes | None]]:
    """Return what a reader writes for a value of one key in each topic, at its time (ms)."""
    return piped_under(build, [(topic, "a", value, at_ms) for topic, value, at_ms in records])


def piped_under(build: Built, records: list[tuple[str, str, str, int]]) -> list[tuple[bytes | None, bytes | None]]:
    """Return what a reader writes for values of keys in topics, at their times (ms)."""
    with TopologyTestDriver(built(build)) as driver:
        topics = {topic for sub in built(build).sub_topologies() for topic in sub.source_topics}
        for topic, key, value, at_ms in records:
            if topic in topics:
                driver.input_topic(topic, STRING, STRING).pipe_input(key, value, timestamp=at_ms)
        return [(record.key, record.value) for record in driver.read_raw("out")]


HOURS_MS = 3_600_000


# What groups or joins a versioned table drops all but the newest row, and the table itself what is older than its history.
WITHIN = [(name, 5 * HOURS_MS - 1) for name in BY_TIME if "counted" in name or "joined" in name]


@pytest.mark.parametrize(("name", "at_ms"), [*((name, 0) for name in BY_TIME), *WITHIN])
def test_a_versioned_table_may_keep_the_newer_of_two_wrong_rows(name: str, at_ms: int) -> None:
    wrong, right = ("t", "wrong", 5 * HOURS_MS), ("t", "right", at_ms)
    other = ("other", "x", 0)
    assert last(piped_at(BY_TIME[name], [other, wrong, right])) != last(piped_at(BY_TIME[name], [other, right]))


@pytest.mark.parametrize("name", OF_THEN)
def test_a_row_of_then_may_be_forgotten_when_a_correction_comes(name: str) -> None:
    early = [("other", "x", 0), ("t", "right", 1), ("t", "next", 9 * HOURS_MS), ("other", "y", 9 * HOURS_MS)]
    late = [("other", "x", 0), ("t", "next", 9 * HOURS_MS), ("other", "y", 9 * HOURS_MS), ("t", "right", 1)]
    assert set(piped_at(OF_THEN[name], late)) != set(piped_at(OF_THEN[name], early))


@pytest.mark.parametrize("name", [name for name in MERGED if "pattern" not in name])
def test_a_correction_may_replace_the_later_row_of_another_topic(name: str) -> None:
    wrong, right, later = ("t", "wrong", 0), ("t", "right", 0), ("elsewhere", "later", 1)
    assert last(piped_at(MERGED[name], [wrong, later, right])) != last(piped_at(MERGED[name], [right, later]))


@pytest.mark.parametrize("name", WITH_ITSELF)
def test_a_join_of_a_table_with_itself_keeps_what_a_deleted_row_had(name: str) -> None:
    assert last(written(WITH_ITSELF[name], {"a": "wrong"}, {"a": None})) == {b"a": b"wrongWRONG"}


@pytest.mark.parametrize("name", FORGETFUL)
def test_a_wrong_row_may_have_cost_a_reader_others(name: str) -> None:
    other, wrong, right = ("t", "b", "x", 0), ("t", "a", "wrong", 5 * HOURS_MS), ("t", "a", "right", 0)
    assert last(piped_under(FORGETFUL[name], [other, wrong, right])) != last(
        piped_under(FORGETFUL[name], [other, right])
    )


# Generated projects: each application is some pipelines from a topic to another.


class Pipe(NamedTuple):
    """A pipeline of an application."""

    kind: str
    source: int
    target: int
    other: int | None = None


def topic(number: int) -> str:
    return f"t{number}"


def piped(b: StreamsBuilder, pipe: Pipe) -> None:
    source, target = topic(pipe.source), topic(pipe.target)
    match pipe.kind:
        case "copy":
            texts(b, source).map_values(str).to(target, OUT)
        case "filter":
            texts(b, source).filter(lambda _k, _v: True).to(target, OUT)
        case "count":
            groups = Grouped(STRING, STRING)
            counts = texts(b, source).group_by_key(groups).count(Materialized(STRING, LONG, name=f"of-{source}"))
            counts.map_values(str).to_stream().to(target, OUT)
        case "table":
            rows(b, source).filter(lambda _k, _v: True).to_stream().to(target, OUT)
        case "join":
            assert pipe.other is not None
            joined: Joined[str, str, str] = Joined(STRING, STRING)
            texts(b, topic(pipe.other)).left_join(rows(b, source), pair, joined=joined).to(target, OUT)


KINDS = ("copy", "filter", "count", "table", "join")
TABLES = {"count", "table"}
C, R, S = Effect.CORRECTED, Effect.REPEATED, Effect.STAYS
FLOW: dict[tuple[str, Effect], tuple[Part, Effect]] = {
    ("copy", C): (Part.NEED_NOT, C),
    ("copy", R): (Part.MAY, R),
    ("filter", C): (Part.MAY, R),
    ("filter", R): (Part.MAY, R),
    ("count", C): (Part.MUST, C),
    ("count", R): (Part.MUST, C),
    ("table", C): (Part.NEED_NOT, C),
    ("table", R): (Part.MAY, C),
    ("join", C): (Part.MAY, S),
    ("join", R): (Part.MAY, S),
    ("looking up", C): (Part.MAY, C),
    ("looking up", R): (Part.MAY, R),
}
"""The part of a pipeline in a correction, and what becomes of its topic if it takes no part."""


@st.composite
def projects(draw: st.DrawFn, *, has_cycles: bool) -> dict[str, list[Pipe]]:
    """Applications of pipelines, each of which reads and writes a topic once; without cycles, in the order of the flow."""
    found: dict[str, list[Pipe]] = {}
    for number in range(draw(st.integers(1, 6))):
        read = draw(st.permutations(range(9 if has_cycles else number + 4)))
        targets = draw(st.permutations(range(0 if has_cycles else number + 4, 12)))
        pipes = []
        for at in range(draw(st.integers(1, 2))):
            kind = draw(st.sampled_from(KINDS))
            pipes.append(Pipe(kind, read[2 * at], targets[at], read[2 * at + 1] if kind == "join" else None))
        found[f"app-{number}"] = pipes
    return found


CHAINS = st.lists(st.sampled_from(["count", "table", "copy", "filter"]), min_size=3, max_size=5).map(
    lambda kinds: {f"app-{number}": [Pipe(kind, number, number + 1)] for number, kind in enumerate(kinds)}
)
"""Projects each of whose applications reads what the one before it writes."""


def project_of(tmp_path: Path, apps: dict[str, list[Pipe]]) -> Riverrun:
    def with_pipes(pipes: list[Pipe]) -> Built:
        def build(b: StreamsBuilder) -> None:
            for pipe in pipes:
                piped(b, pipe)

        return build

    return of(tmp_path, **{name: with_pipes(pipes) for name, pipes in apps.items()})


def inputs(pipe: Pipe) -> list[tuple[str, int]]:
    """The topics that a pipeline reads, and how."""
    return [(pipe.kind, pipe.source), *([("looking up", pipe.other)] if pipe.other is not None else [])]


def reachable(apps: dict[str, list[Pipe]], first: str) -> set[str]:
    """An oracle: the applications that read what the first one writes, or what those write of it."""
    topics, found = {pipe.target for pipe in apps[first]}, set[str]()
    while True:
        more = {
            (name, pipe.target)
            for name, pipes in apps.items()
            if name != first
            for pipe in pipes
            if topics & {source for _, source in inputs(pipe)}
        }
        if {target for _, target in more} <= topics and {name for name, _ in more} <= found:
            return found
        topics |= {target for _, target in more}
        found |= {name for name, _ in more}


@settings(max_examples=depth(30, 400), deadline=None)
@given(apps=projects(has_cycles=True))
def test_a_change_reaches_what_a_walk_over_topics_reaches(tmp_path_factory: Any, apps: dict[str, list[Pipe]]) -> None:
    project = project_of(tmp_path_factory.mktemp("p"), apps)
    graph = project.graph()
    for name in apps:
        for start, end in (("", ""), ("2026-01-01", "2026-01-03")):
            impact = impact_of_change(load_application(project.config, name), graph, start=start, end=end)
            assert {each.member.name for each in impact.reached} == reachable(apps, name)


def parts(apps: dict[str, list[Pipe]], first: str) -> dict[str, Part]:
    """An oracle for applications in the order of the flow: their parts, by name."""
    effects: dict[int, set[Effect]] = {}
    found: dict[str, Part] = {}
    for name, pipes in apps.items():
        released = {pipe: C if pipe.kind in TABLES else S for pipe in pipes}
        if name == first:
            effects = {pipe.target: {released[pipe]} for pipe in pipes}
            continue
        arrived = {
            pipe: [
                (Part.NEED_NOT, S) if effect is S else FLOW[how, effect]
                for how, source in inputs(pipe)
                for effect in effects.get(source, ())
            ]
            for pipe in pipes
        }
        every = [part for each in arrived.values() for part, _ in each]
        if not every:
            continue
        found[name] = next(part for part in (Part.MUST, Part.MAY, Part.NEED_NOT) if part in every)
        for pipe, each in arrived.items():
            left = {effect for _, effect in each}
            if each and found[name] is not Part.NEED_NOT:
                left = {released[pipe]} if found[name] is Part.MUST else left | {released[pipe]}
            effects.setdefault(pipe.target, set()).update(left)
    return found


@settings(max_examples=depth(30, 400), deadline=None)
@given(apps=projects(has_cycles=False))
def test_parts_are_those_of_pipelines_one_after_another(tmp_path_factory: Any, apps: dict[str, list[Pipe]]) -> None:
    project = project_of(tmp_path_factory.mktemp("p"), apps)
    graph = project.graph()
    for name in apps:
        impact = impact_of_change(load_application(project.config, name), graph)
        assert {each.member.name: each.part for each in impact.reached} == parts(apps, name)


def restated(apps: dict[str, list[Pipe]], first: str) -> dict[str, bool]:
    """An oracle for applications in the order of the flow: whether a backfill of the first one restates them, by name."""
    effects: dict[int, set[Effect]] = {}
    stale: set[int] = set()
    found: dict[str, bool] = {}
    for name, pipes in apps.items():
        if name == first:
            effects = {pipe.target: {C if pipe.kind in TABLES else S} for pipe in pipes}
            continue
        arrived = {
            pipe: [
                (effect is C and FLOW[how, effect][0] is Part.NEED_NOT, S if effect is S else FLOW[how, effect][1])
                for how, source in inputs(pipe)
                for effect in effects.get(source, ())
            ]
            for pipe in pipes
        }
        if any(arrived.values()):
            found[name] = all(is_right for each in arrived.values() for is_right, _ in each)
            found[name] &= stale.isdisjoint(source for pipe in pipes for _, source in inputs(pipe))
        for pipe, each in arrived.items():
            if each:
                effects.setdefault(pipe.target, set()).update(effect for _, effect in each)
                stale |= set() if found[name] else {pipe.target}
    return found


@settings(max_examples=depth(30, 400), deadline=None)
@given(apps=projects(has_cycles=False) | CHAINS)
def test_a_backfill_restates_what_reads_only_what_is_restated(
    tmp_path_factory: Any, apps: dict[str, list[Pipe]]
) -> None:
    project = project_of(tmp_path_factory.mktemp("p"), apps)
    graph = project.graph()
    for name in apps:
        impact = impact_of_change(load_application(project.config, name), graph, **INTERVAL)
        expected = restated(apps, name)
        assert {each.member.name: each.is_restated for each in impact.reached} == expected
        assert all(each.is_restated == expected[each.writer.name] for each in impact.changed)


@pytest.mark.parametrize("table", ["t", "u"])
def test_a_global_table_reaches_its_own_joins_and_all_processors(tmp_path: Path, table: str) -> None:
    def reader(b: StreamsBuilder) -> None:
        tables = {topic: b.global_table(topic, TEXTS) for topic in "tu"}
        for topic, each in tables.items():
            node = Named(f"join-{topic}")
            joined = texts(b, f"s-{topic}").join(each, pair, key_selector=lambda key, _value: key, named=node)
            joined.to(f"o-{topic}", OUT)
        texts(b, "other").process(Silent, named=Named("own")).to("of-own", OUT)

    impact = of(tmp_path, first=lambda b: rows(b, "base").to_stream().to(table, OUT), reader=reader).impact("first")
    assert impact.part_of("reader") is Part.UNKNOWN
    assert [reason.node for reason in impact.reached[0].reasons] == [f"join-{table}", "own"]
    assert [each.topic for each in impact.changed] == [f"o-{table}", "of-own"]


@settings(max_examples=depth(30, 400), deadline=None)
@given(apps=projects(has_cycles=True))
def test_nothing_is_said_twice_and_nothing_contradicts_itself(
    tmp_path_factory: Any, apps: dict[str, list[Pipe]]
) -> None:
    project = project_of(tmp_path_factory.mktemp("p"), apps)
    graph = project.graph()
    for name in apps:
        for interval in ({}, INTERVAL):
            impact = impact_of_change(load_application(project.config, name), graph, **interval)
            lines = [line.strip() for line in impact_text(impact).splitlines()]
            of_readers = [line for line in lines if line.startswith("app-") and line.count(": ") > 1]
            assert len(of_readers) == len(set(of_readers))
            for line in of_readers:
                about, stays, _ = line.partition("its records stay")
                assert not stays or [each for each in of_readers if each.startswith(about)] == [line]


def test_what_arrives_in_two_ways_is_said_once(tmp_path: Path) -> None:
    def middle(b: StreamsBuilder) -> None:
        rows(b).to_stream().filter(lambda _k, _v: True).to("out", OUT)
        rows(b, "other").join(b.table("again", TEXTS), pair).to_stream().to("out", OUT)

    def reader(b: StreamsBuilder) -> None:
        counted(texts(b, "out").group_by_key(GROUPED)).to("counts", NUMBERS)

    def first(b: StreamsBuilder) -> None:
        table(b)
        rows(b, "more").to_stream().to("again", OUT)

    text = impact_text(of(tmp_path, first=first, middle=middle, reader=reader).impact("first"))
    (line,) = [line for line in text.splitlines() if line.startswith("  reader: out: ")]
    assert line.endswith("counts corrections again")


# What is said about a change.


def counts(b: StreamsBuilder) -> None:
    counted(texts(b, "base").group_by_key(GROUPED)).to("t", NUMBERS)


def daily(b: StreamsBuilder) -> None:
    days = texts(b, "base").group_by_key(GROUPED).windowed_by(TimeWindows.of(timedelta(days=1)))
    windows_counted(days).to("t", Produced(windowed(STRING, timedelta(days=1)), LONG))


def processed(b: StreamsBuilder) -> None:
    texts(b, "base").process(Silent).to_table(Materialized(STRING, STRING)).to_stream().to("t", OUT)


def test_the_reasons_name_nodes_and_topics(tmp_path: Path) -> None:
    impact = of(tmp_path, first=table, reader=MUST["a count"], last=lambda b: b.table("out", TEXTS)).impact("first")
    (reader, last_) = impact.reached
    (reason,) = reader.reasons
    assert (reason.topic, reason.node) == ("t", "KSTREAM-AGGREGATE-0000000003")
    assert str(reason) == "t: KSTREAM-AGGREGATE-0000000003 counts corrections again"
    assert [(each.topic, each.effects) for each in impact.changed] == [("out", (Effect.CORRECTED,))]
    assert (last_.part, last_.is_restated) == (Part.NEED_NOT, True)
    assert impact.with_part(Part.MUST) == (reader,)
    assert impact.part_of("nobody") is None


def test_an_interval_changes_tables_that_can_be_computed_for_it(tmp_path: Path) -> None:
    impact = of(tmp_path, first=daily, reader=MUST["a count"]).impact("first", **INTERVAL)
    assert impact.interval == "2026-01-01T00:00:00.000+00:00 to 2026-01-03T00:00:00.000+00:00"
    assert "where their interval is computed again" in impact.outputs["t"]
    assert [(each.topic, each.is_restated) for each in impact.changed] == [("out", False)]
    assert "which does not restate it" in impact.changed[0].text


TIMES: dict[str, tuple[Built, str]] = {
    "a table": (NEED_NOT["a table"], "2026-01-01T00:00 to 2026-01-03T00:00"),
    "a kept table": (
        lambda b: rows(b).map_values(str.upper, Materialized(STRING, STRING, name="kept")).to_stream().to("out", OUT),
        "2026-01-01T00:00 to 2026-01-03T00:00",
    ),
    "a stream as a table": (NEED_NOT["a stream as a table"], "2026-01-01T00:00 to 2026-01-03T00:00"),
    "a table counted by another key": (NEED_NOT["a table counted by another key"], "2026-01-01T00:00 on"),
    "a table joined with a table": (NEED_NOT["a table joined with a table"], "2026-01-01T00:00 on"),
    "a table joined by a foreign key": (NEED_NOT["a table joined by a foreign key"], "2026-01-01T00:00 on"),
    "a count": (MUST["a count"], "2026-01-01T00:00 on"),
    "windows by count": (MUST["windows by count"], "2026-01-01T00:00 on"),
    "a stream without repetitions": (MUST["a stream without repetitions"], "2026-01-01T00:00 on"),
    "windows": (MUST["windows"], "2025-12-31T23:00 to 2026-01-03T01:00"),
    "sliding windows": (MUST["sliding windows"], "2025-12-31T23:00 to 2026-01-03T01:00:00.001"),
    "sessions": (MUST["sessions"], "the first record on"),
    "a join of streams": (MUST["a join of streams"], "2026-01-01T00:00 to 2026-01-03T01:00"),
    "a join of streams that looks back": (
        lambda b: (
            texts(b)
            .join(
                texts(b, "other"),
                pair,
                JoinWindows.of(timedelta(0)).before(2 * HOUR),
                joined=StreamJoined(STRING, STRING),
            )
            .to("out", OUT)
        ),
        "2026-01-01T00:00 to 2026-01-03T02:00",
    ),
    "windows of windows": (
        lambda b: windows_counted(
            b.stream("t", TEXTS)
            .group_by_key(GROUPED)
            .windowed_by(TimeWindows.of(HOUR))
            .reduce(pair, Materialized(STRING, STRING))
            .to_stream()
            .map(lambda key, value: (key.key, value))
            .group_by_key(GROUPED)
            .windowed_by(TimeWindows.of(24 * HOUR))
        ).to("out", Produced(windowed(STRING, 24 * HOUR), LONG)),
        "2025-12-30T23:00 to 2026-01-04T01:00",
    ),
    "a stream joined with the table": (MAY["a stream joined with the table"], "2026-01-01T00:00 on"),
    "a stream joined with the global table": (MAY["a stream joined with the global table"], "2026-01-01T00:00 on"),
    "a stream that is looked up": (MAY["a stream that is looked up"], "2026-01-01T00:00 to 2026-01-03T00:00"),
    "a processor": (lambda b: texts(b).process(Silent).to("out", OUT), "the first record on"),
}
"""Readers of a table of which an interval is computed again, and the event times of what changes."""


def moment_of(text: str) -> str:
    return re.sub(r"T\d\d:\d\d(:00.001)?", lambda found: f"{found[0]}{'' if found[1] else ':00.000'}+00:00", text)


@pytest.mark.parametrize("name", TIMES)
def test_what_changes_of_a_reader_lies_within_its_windows(tmp_path: Path, name: str) -> None:
    build, times = TIMES[name]
    impact = of(tmp_path, first=daily, reader=build).impact("first", **INTERVAL)
    assert [str(each.times) for each in impact.changed] == [f"from {moment_of(times)}"]


def test_times_add_up_along_the_flow_and_have_no_end_in_a_cycle(tmp_path: Path) -> None:
    def windows(source: str, target: str) -> Built:
        return lambda b: (
            windows_counted(texts(b, source).group_by_key(GROUPED).windowed_by(TimeWindows.of(HOUR)))
            .map(lambda key, count: (key.key, str(count)))
            .to(target, OUT)
        )

    chain = of(tmp_path, first=daily, second=windows("t", "u"), third=windows("u", "v"))
    assert [str(each.times) for each in chain.impact("first", **INTERVAL).changed] == [
        f"from {moment_of(times)}"
        for times in ("2025-12-31T23:00 to 2026-01-03T01:00", "2025-12-31T22:00 to 2026-01-03T02:00")
    ]
    cycle = of(tmp_path, first=daily, second=windows("t", "u"), third=windows("u", "t"))
    assert {str(each.times) for each in cycle.impact("first", **INTERVAL).changed} == {"from the first record on"}


def test_what_reads_results_that_are_not_restated_is_not_restated_either(tmp_path: Path) -> None:
    project = of(tmp_path, first=daily, counting=MUST["a count"], last=lambda b: b.table("out", TEXTS))
    impact = project.impact("first", **INTERVAL)
    assert [(str(each.member), each.is_restated) for each in impact.reached] == [("counting", False), ("last", False)]
    assert "last: out: its writer counting cannot be restated" in impact_text(impact).partition("restated by")[0]
    assert [each["restated"] for each in impact_document(impact)["reached"]] == [False, False]


def test_an_interval_of_a_table_of_all_records_needs_them_all(tmp_path: Path) -> None:
    impact = of(tmp_path, first=counts, reader=NEED_NOT["a table"]).impact("first", **INTERVAL)
    assert "with --from-beginning only" in impact.outputs["t"]
    assert impact.reached[0].is_restated


def test_an_interval_of_a_table_that_cannot_be_computed_changes_nothing(tmp_path: Path) -> None:
    impact = of(tmp_path, first=processed, reader=NEED_NOT["a table"]).impact("first", **INTERVAL)
    assert "a table that stays as it is: t depends on a processor of your own" in impact.outputs["t"]
    assert not impact.reached[0].is_restated


def test_topics_that_are_chosen_per_record_have_unknown_readers(tmp_path: Path) -> None:
    def choosing(b: StreamsBuilder) -> None:
        texts(b).to(lambda key, _value, _context: key, OUT)

    impact = of(tmp_path, first=table, reader=choosing).impact("first")
    assert impact.unknown == ("topics that reader chooses (KSTREAM-SINK-0000000001): who reads them is not known",)


def test_a_reader_by_a_pattern_is_reached(tmp_path: Path) -> None:
    impact = of(tmp_path, first=table, reader=lambda b: b.stream(re.compile("t|u"), TEXTS).to("out", OUT)).impact(
        "first"
    )
    assert impact.part_of("reader") is Part.MAY


def test_an_application_that_reads_its_own_output_is_not_downstream_of_itself(tmp_path: Path) -> None:
    def again(b: StreamsBuilder) -> None:
        rows(b, "base").to_stream().to("t", OUT)
        texts(b, "t").filter(lambda _k, _v: False).to("base", OUT)

    assert of(tmp_path, first=again).impact("first").reached == ()


@pytest.mark.parametrize(
    ("given_", "error", "message"),
    [
        ({"app": "nobody"}, ConfigError, "no application 'nobody'"),
        ({"app": "first", "version": "v9"}, ConfigError, "no version 'v9'"),
        ({"app": "first", "start": "2026-01-01"}, ConfigError, "has no end"),
        ({"app": "first", "end": "2026-01-01"}, ConfigError, "has no start"),
        ({"app": "first", "start": "soon", "end": "later"}, RangeError, "'soon' is not a time"),
        ({"app": "first", "start": "2026-01-02", "end": "2026-01-01"}, ReleaseError, "is empty"),
    ],
)
def test_a_change_that_cannot_be_is_refused(
    tmp_path: Path, given_: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        of(tmp_path, first=table).impact(**given_)


def test_the_versions_are_the_live_ones_if_these_are_asked_for() -> None:
    def built_by(build: Built) -> Callable[[StreamsBuilder], Topology]:
        def whole(builder: StreamsBuilder) -> Topology:
            build(builder)
            return builder.build()

        return whole

    with Cluster() as cluster:
        for name in ("base", "t", "out"):
            cluster.create_topic(name, 1)
        versions = {"v2": built_by(lambda b: rows(b, "base").filter(lambda _k, _v: True).to_stream().to("t", OUT))}
        project = cluster.project()
        app = project.app("first", built_by(table), versions=versions)
        project.app("reader", built_by(NEED_NOT["a table"]))
        cluster.input_topic("base", STRING, STRING).pipe_input("a", "one")
        app.run()
        app.release("v2").reprocess().gate().cut()
        assert project.impact("first").app.version == "v1"
        assert project.impact("first", live=True).app.version == "v2"
        assert project.impact("first", version="v1", live=True).app.version == "v1"


def test_a_version_may_write_other_topics(tmp_path: Path) -> None:
    project = Riverrun(kafka={"bootstrap.servers": "127.0.0.1:1"}, directory=tmp_path)
    project.app("first", built(table), versions={"v2": built(lambda b: rows(b, "base").to_stream().to("new", OUT))})
    project.app("reader", built(NEED_NOT["a table"]))
    assert project.impact("first").part_of("reader") is Part.NEED_NOT
    found: Impact = project.impact("first", version="v2")
    assert (found.app.version, found.reached, list(found.outputs)) == ("v2", (), ["new"])
    assert found.ended == {"t": ("reader",)}
    assert "no longer written:\n  t: readers that get nothing more: reader" in impact_text(found)
    assert impact_document(found)["ended"] == {"t": ["reader"]}
    assert project.impact("first").ended == project.impact("first", version="v2", **INTERVAL).ended == {}


def test_a_version_before_that_cannot_be_loaded_is_said(tmp_path: Path) -> None:
    project = Riverrun(kafka={"bootstrap.servers": "127.0.0.1:1"}, directory=tmp_path)
    project.app("first", "nowhere:build", versions={"v2": built(table)})
    project.app("reader", built(NEED_NOT["a table"]))
    found = project.impact("first", version="v2")
    assert found.part_of("reader") is Part.NEED_NOT
    assert "which topics are no longer written is not known: Module 'nowhere'" in found.unknown[0]
