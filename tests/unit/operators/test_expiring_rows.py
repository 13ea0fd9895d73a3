"""Rows with a time to live: they are deleted when event time has passed their last update, whatever restarts."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from riverrun import (
    JSON,
    LONG,
    STRING,
    Consumed,
    Count,
    Grouped,
    Materialized,
    Named,
    Produced,
    StreamsBuilder,
    TimeWindows,
)
from riverrun.errors import TopologyError
from riverrun.records import Change, TopicPartition
from riverrun.serde.internal import change_serde
from riverrun.testing import TopologyTestDriver
from tests.unit.operators.restarting import Restartable

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun import KTable, Topology

TEXTS: Consumed[str, str] = Consumed(STRING, STRING)
Row = tuple[str, int, bytes]
Found = list[tuple[str, bytes | None, int]]
KINDS = ("table", "to_table", "count", "reduce", "cogroup")


def ms(count: int) -> timedelta:
    return timedelta(milliseconds=count)


def given_rows(rows: list[Row]) -> list[Any]:
    """The rows as records: without bytes, the value is null."""
    return [(key, time, data or None) for key, time, data in rows]


def joined(_key: str, value: str, known: str) -> str:
    return (known + value)[-4:]


def expiring(kind: str, ttl_ms: int, **options: Any) -> Topology:
    builder = StreamsBuilder()
    stored: Materialized[Any, Any] = Materialized(
        STRING, LONG if kind == "count" else STRING, name="rows", ttl=ms(ttl_ms), **options
    )
    made: KTable[str, Any]
    if kind == "table":
        made = builder.table("in", TEXTS, stored)
    elif kind == "to_table":
        made = builder.stream("in", TEXTS).to_table(stored)
    elif kind == "count":
        made = builder.stream("in", TEXTS).group_by_key().count(stored)
    elif kind == "reduce":
        made = builder.stream("in", TEXTS).group_by_key().reduce(lambda one, two: (one + two)[-4:], stored)
    else:
        stream = builder.stream("in", TEXTS)
        some, others = stream.filter(lambda _k, v: v != "y"), stream.filter(lambda _k, v: v == "y")
        both = some.group_by_key().cogroup(joined).cogroup(others.group_by_key(), joined)
        made = both.aggregate(str, stored)
    texts: Any = made.to_stream().map_values(lambda value: value and str(value))
    texts.to("out", Produced(STRING, STRING))
    return builder.build()


def plainly(kind: str, rows: list[Row], ttl_ms: int) -> Found:
    """Look at all rows before and after each record, as the operator must not."""
    table: dict[str, tuple[str, int]] = {}
    found: Found = []
    observed = -1

    def expire() -> None:
        for due_ms, key in sorted((time + ttl_ms, key) for key, (_, time) in table.items()):
            if due_ms <= observed:
                del table[key]
                found.append((key, None, due_ms))

    for key, time, data in rows:
        observed = max(observed, time)
        expire()
        known, at = table.get(key, ("0" if kind == "count" else "", -1))
        if data == b"":  # stands for a null value, which is a deletion of a table's row
            if kind in {"table", "to_table"}:
                table.pop(key, None)
                found.append((key, None, time))
            continue
        value = data.decode()
        if kind == "count":
            value = str(int(known) + 1)
        elif kind in {"reduce", "cogroup"}:
            value = (known + value)[-4:]
        updated = time if kind in {"table", "to_table"} else max(time, at)
        table[key] = value, updated
        found.append((key, value.encode(), updated))
        expire()
    return found


ROWS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60), st.sampled_from([b"x", b"y", b""])), max_size=30)


@pytest.mark.parametrize("kind", KINDS)
@given(rows=ROWS, ttl_ms=st.integers(1, 25), cuts=st.sets(st.integers(0, 30), max_size=3), loses=st.booleans())
@example(rows=[("a", 50, b"x"), ("a", 5, b"y"), ("b", 51, b"x")], ttl_ms=10, cuts={2}, loses=True)
@example(rows=[("a", 0, b"x"), ("b", 1, b"x"), ("a", 9, b"x"), ("c", 30, b"x")], ttl_ms=10, cuts={3}, loses=False)
def test_rows_expire_as_a_plain_model_says_whatever_restarts(
    kind: str, rows: list[Row], ttl_ms: int, cuts: set[int], loses: bool
) -> None:
    task = Restartable(expiring(kind, ttl_ms, caching=False))
    places = [0, *sorted(cut for cut in cuts if 0 < cut < len(rows)), len(rows)]
    for start, end in pairwise(places):
        task.run(*given_rows(rows[start:end]))
        if loses:
            task.lose_state()
    found = [((record.key or b"").decode(), record.value, record.timestamp) for record in task.written()]
    assert found == plainly(kind, rows, ttl_ms)


GROUPS = TopicPartition("app-rows-repartition", 0)
CHANGES = change_serde(STRING)
Update = tuple[str, int, "str | None", "str | None"]
"""A group, a time, the new value of a row, and its old one."""


def text_of(value: Any) -> str | None:
    return None if value is None else str(value)


def expiring_groups(kind: str, ttl_ms: int, **options: Any) -> Topology:
    builder = StreamsBuilder()
    stored: Materialized[Any, Any] = Materialized(
        STRING, LONG if kind == "count" else STRING, name="rows", ttl=ms(ttl_ms), **options
    )
    rows = builder.table("in", TEXTS, Materialized(name="table"))
    groups = rows.group_by(lambda key, value: (value, key), Grouped(STRING, STRING))
    made: KTable[str, Any]
    if kind == "count":
        made = groups.count(stored)
    else:
        made = groups.reduce(lambda one, two: (one + two)[-4:], lambda one, two: one.replace(two, "", 1), stored)
    texts: Any = made.to_stream().map_values(text_of)
    texts.to("out", Produced(STRING, STRING))
    return builder.build()


def plain_groups(kind: str, updates: list[Update], ttl_ms: int) -> Found:
    """Look at all groups before and after each update: a group that has expired begins again with the next new value."""
    groups: dict[str, tuple[Any, int]] = {}
    found: Found = []
    observed = -1

    def expire() -> None:
        for due_ms, key in sorted((time + ttl_ms, key) for key, (_, time) in groups.items()):
            if due_ms <= observed:
                del groups[key]
                found.append((key, None, due_ms))

    for key, time, new, old in updates:
        observed = max(observed, time)
        expire()
        known, at = groups.pop(key, (None, -1))
        if known is not None and old is not None:
            known = known - 1 if kind == "count" else known.replace(old, "", 1)
        if new is not None:
            known = (known or 0) + 1 if kind == "count" else new if known is None else (known + new)[-4:]
        updated = max(time, at)
        if known is not None:
            groups[key] = known, updated
        found.append((key, None if known is None else str(known).encode(), updated))
        expire()
    return found


SIDES = st.sampled_from(["x", "y"])
UPDATES = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 60), SIDES, st.none() | SIDES)
    | st.tuples(st.sampled_from("ab"), st.integers(0, 60), st.none(), SIDES),
    max_size=30,
)


@pytest.mark.parametrize("kind", ["count", "reduce"])
@given(updates=UPDATES, ttl_ms=st.integers(1, 25), cuts=st.sets(st.integers(0, 30), max_size=3), loses=st.booleans())
@example(updates=[("a", 0, "x", None), ("b", 20, "x", None), ("a", 21, None, "x")], ttl_ms=9, cuts={2}, loses=True)
def test_groups_of_a_table_expire_as_a_plain_model_says_whatever_restarts(
    kind: str, updates: list[Update], ttl_ms: int, cuts: set[int], loses: bool
) -> None:
    task = Restartable(expiring_groups(kind, ttl_ms, caching=False), GROUPS)
    rows: list[Any] = [(key, time, CHANGES.serialize(Change(new, old))) for key, time, new, old in updates]
    for start, end in pairwise([0, *sorted(cut for cut in cuts if 0 < cut < len(rows)), len(rows)]):
        task.run(*rows[start:end])
        if loses:
            task.lose_state()
    found = [((record.key or b"").decode(), record.value, record.timestamp) for record in task.written()]
    assert found == plain_groups(kind, updates, ttl_ms)


def test_only_empty_groups_expire_if_the_rows_expire_first() -> None:
    builder = StreamsBuilder()
    users = builder.table("in", TEXTS, Materialized(name="users", ttl=ms(10)))
    groups = users.group_by(lambda key, country: (country, key), Grouped(STRING, STRING))
    groups.count(Materialized(STRING, LONG, name="n", ttl=ms(11), caching=False)).to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        for key, country, time in [("ann", "NO", 0), ("bob", "NO", 5), ("eva", "SE", 16), ("eva", "SE", 30)]:
            driver.input_topic("in", STRING, STRING).pipe_input(key, country, timestamp=time)
        found = driver.output_topic("out", STRING, LONG).read_records_to_list()
    assert [(each.key, each.value, each.timestamp) for each in found if each.key == "NO"] == [
        ("NO", 1, 0),
        ("NO", 2, 5),
        ("NO", 1, 10),
        ("NO", 0, 15),
        ("NO", None, 26),
    ]


def test_named_aggregates_and_lists_of_groups_expire() -> None:
    builder = StreamsBuilder()
    groups = builder.table("in", TEXTS).group_by(lambda key, country: (country, key), Grouped(STRING, STRING))
    groups.aggregate(n=Count(), materialized=Materialized(name="n", ttl=ms(10))).to_stream().to("n")
    groups.top(1, materialized=Materialized(value_serde=JSON, name="top", ttl=ms(10))).to_stream().to("top")
    with TopologyTestDriver(builder.build()) as driver:
        for key, country, time in [("ann", "NO", 0), ("eva", "SE", 10)]:
            driver.input_topic("in", STRING, STRING).pipe_input(key, country, timestamp=time)
        assert driver.output_topic("n", STRING, JSON).read_key_values_to_list() == [
            ("NO", {"n": 1}),
            ("NO", None),
            ("SE", {"n": 1}),
        ]
        assert driver.output_topic("top", STRING, JSON).read_key_values_to_list() == [
            ("NO", ["ann"]),
            ("NO", None),
            ("SE", ["eva"]),
        ]


def test_streams_that_are_aggregated_together_share_the_rows_that_expire() -> None:
    builder = StreamsBuilder()
    clicks, visits = (builder.stream(topic, TEXTS).group_by_key() for topic in ("clicks", "visits"))
    both = clicks.cogroup(lambda _key, value, known: known + value).cogroup(
        visits, lambda _key, value, known: known + value
    )
    both.aggregate(str, Materialized(STRING, STRING, name="rows", ttl=ms(10), caching=False)).to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        for topic, key, value, time in [
            ("clicks", "a", "c", 0),
            ("visits", "a", "v", 4),
            ("visits", "b", "v", 14),
            ("clicks", "a", "c", 15),
            ("visits", "d", "v", 24),
        ]:
            driver.input_topic(topic, STRING, STRING).pipe_input(key, value, timestamp=time)
        found = driver.output_topic("out", STRING, STRING).read_records_to_list()
    assert [(each.key, each.value, each.timestamp) for each in found] == [
        ("a", "c", 0),
        ("a", "cv", 4),
        ("a", None, 14),
        ("b", "v", 14),
        ("a", "c", 15),
        ("b", None, 24),
        ("d", "v", 24),
    ]


def test_the_description_tells_times_to_live() -> None:
    assert "(stores: [rows (ttl: 10 ms)])" in expiring("count", 10).describe()


@pytest.mark.parametrize("kind", KINDS)
@given(rows=ROWS, ttl_ms=st.integers(1, 25))
def test_a_cache_ends_with_the_rows_that_are_left_and_forwards_their_deletions(
    kind: str, rows: list[Row], ttl_ms: int
) -> None:
    task = Restartable(expiring(kind, ttl_ms))
    task.run(*given_rows(rows))
    found = {(record.key or b"").decode(): (record.value, record.timestamp) for record in task.written()}
    last = {key: (value, time) for key, value, time in plainly(kind, rows, ttl_ms)}
    assert {key: value for key, value in found.items() if value[0] is not None} == {
        key: value for key, value in last.items() if value[0] is not None
    }
    assert found.keys() <= last.keys()


def test_the_changelog_has_the_deletion_of_a_row_and_no_more() -> None:
    with TopologyTestDriver(expiring("table", 10), application_id="app") as driver:
        piped = driver.input_topic("in", STRING, STRING)
        piped.pipe_input("a", "x", timestamp=0)
        piped.pipe_input("b", "y", timestamp=9)
        piped.pipe_input("c", "z", timestamp=10)
        log = [(record.key, record.value) for record in driver.read_raw("app-rows-changelog")]
        assert dict(log) == {b"a": None, b"b": b"y", b"c": b"z"}
        assert sorted(key for key, _ in driver.get_state_store("rows").all()) == ["b", "c"]


def test_groups_of_a_table_and_joins_see_rows_expire() -> None:
    builder = StreamsBuilder()
    users = builder.table("users", TEXTS, Materialized(name="users", ttl=ms(10)))
    users.group_by(lambda key, country: (country, key), Grouped(STRING, STRING)).aggregate(n=Count()).to_stream().to(
        "n"
    )
    builder.stream("in", TEXTS).left_join(users, lambda one, two: f"{one}{two}").to("out", Produced(STRING, STRING))
    with TopologyTestDriver(builder.build()) as driver:
        for key, time in [("ann", 0), ("bob", 5), ("eva", 12)]:
            driver.input_topic("users", STRING, STRING).pipe_input(key, "NO", timestamp=time)
        assert driver.output_topic("n", STRING, JSON).read_values_to_list()[-1] == {"n": 2}
        for key in ("ann", "bob"):
            driver.input_topic("in", STRING, STRING).pipe_input(key, "?", timestamp=12)
        assert driver.output_topic("out", STRING, STRING).read_values_to_list() == ["?None", "?NO"]


def test_a_table_with_a_ttl_is_not_restored_from_its_topic() -> None:
    builder = StreamsBuilder()
    builder.table("in", TEXTS, Materialized(name="rows", ttl=ms(10)))
    plain = StreamsBuilder()
    plain.table("in", TEXTS, Materialized(name="rows"))
    assert builder.build(optimization="all").stores["rows"].logging
    assert not plain.build(optimization="all").stores["rows"].logging


def test_the_fingerprint_tells_times_to_live() -> None:
    for kind in KINDS:
        found = {expiring(kind, ttl_ms).fingerprint() for ttl_ms in (1, 2)}
        assert len(found) == 2


def test_named_aggregates_expire_with_their_states() -> None:
    builder = StreamsBuilder()
    grouped = builder.stream("in", TEXTS).group_by_key()
    rows = grouped.aggregate(n=Count(), materialized=Materialized(name="rows", ttl=ms(10)))
    rows.to_stream(named=Named("rows-stream")).to("out", Produced(STRING, JSON))
    with TopologyTestDriver(builder.build()) as driver:
        for key, time in [("a", 0), ("a", 5), ("b", 15), ("a", 16)]:
            driver.input_topic("in", STRING, STRING).pipe_input(key, "v", timestamp=time)
        found = driver.output_topic("out", STRING, JSON).read_key_values_to_list()
    assert found == [("a", {"n": 1}), ("a", {"n": 2}), ("a", None), ("b", {"n": 1}), ("a", {"n": 1})]


def test_a_ttl_where_rows_cannot_expire_is_refused() -> None:
    living: Materialized[Any, Any] = Materialized(STRING, STRING, ttl=ms(10))
    table = StreamsBuilder().table("in", TEXTS, Materialized(name="rows"))
    stream = StreamsBuilder().stream("in", TEXTS)
    mistakes: list[tuple[Callable[[], Any], str]] = [
        (lambda: table.filter(lambda _k, _v: True, living), "can have a ttl in"),
        (lambda: table.map_values(str, living), "can have a ttl in"),
        (lambda: table.join(table, lambda one, _two: one, living), "can have a ttl in"),
        (
            lambda: (
                stream.group_by_key().windowed_by(TimeWindows.of(ms(5))).count(Materialized(STRING, LONG, ttl=ms(1)))
            ),
            "Windows cannot have a ttl",
        ),
        (lambda: StreamsBuilder().global_table("in", TEXTS, living), "A global table cannot have a ttl"),
        (lambda: stream.deduplicate(ms(5), materialized=Materialized(ttl=ms(1))), "ttl does not fit it"),
        (lambda: Materialized(ttl=ms(1), max_entries=3), "neither max_entries nor history_retention"),
        (lambda: stream.to_table(Materialized(ttl=ms(0))), "ttl must be positive"),
        (lambda: stream.to_table(Materialized(ttl=ms(-1))), "ttl"),
        (lambda: Materialized(ttl=5), "must be a timedelta"),  # type: ignore[arg-type]
    ]
    for call, message in mistakes:
        with pytest.raises(TopologyError, match=message):
            call()
