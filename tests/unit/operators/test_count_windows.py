"""Windows by count: a full window has the result of its records, whatever restarts; one that is never full has none."""

from __future__ import annotations

from collections import defaultdict
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
    CollectList,
    Consumed,
    Count,
    CountWindows,
    Grouped,
    Materialized,
    Named,
    Produced,
    StreamsBuilder,
)
from riverrun.errors import TopologyError
from riverrun.testing import TopologyTestDriver
from tests.unit.operators.restarting import Restartable

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun import KStream, Topology

TEXTS: Consumed[str, str] = Consumed(STRING, STRING)
LISTS: Materialized[Any, Any] = Materialized(STRING, JSON, name="open")
Row = tuple[str, int, bytes]


def listed(size: int, advance: int, kind: str = "aggregate", **options: Any) -> Topology:
    """A topology whose results are the texts of a window, one after the other."""
    builder = StreamsBuilder()
    windows = builder.stream("in", TEXTS).group_by_key().windowed_by(CountWindows.of(size).advance_by(advance))
    made: KStream[str, Any]
    if kind == "reduce":
        made = windows.reduce(lambda one, two: one + two, Materialized(STRING, STRING, name="open", **options))
    elif kind == "named":
        stored: Materialized[str, Any] = Materialized(STRING, name="open", **options)
        rows = windows.aggregate(all=CollectList(limit=99), n=Count(), materialized=stored)
        made = rows.map_values(lambda row: "".join(row["all"]))
    else:
        kept: Materialized[str, list[str]] = Materialized(STRING, JSON(list[str]), name="open", **options)
        made = windows.aggregate(list, appended, kept).map_values("".join)
    made.to("out", Produced(STRING, STRING))
    return builder.build()


def appended(_key: str, value: str, values: list[str]) -> list[str]:
    values.append(value)
    return values


def plainly(rows: list[Row], size: int, advance: int) -> list[tuple[str, str, int]]:
    """All windows of each key, cut out of all its records; each is full with its last record."""
    of_key: dict[str, list[tuple[str, int]]] = defaultdict(list)
    found = []
    for key, time, value in rows:
        seen = of_key[key]
        seen.append((value.decode(), time))
        first = len(seen) - size
        if first >= 0 and first % advance == 0:
            text = "".join(each for each, _ in seen[first:])
            found.append((key, text, max(at for _, at in seen)))
    return found


@pytest.mark.parametrize("kind", ["aggregate", "reduce", "named"])
@given(
    rows=st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 60), st.sampled_from([b"x", b"y", b"z"])), max_size=30
    ),
    size=st.integers(1, 5),
    advance=st.integers(1, 5),
    cuts=st.sets(st.integers(0, 30), max_size=3),
    loses=st.booleans(),
    caching=st.booleans(),
)
@example(rows=[("a", n, b"x") for n in range(7)], size=3, advance=2, cuts={2, 4}, loses=True, caching=True)
def test_a_full_window_has_the_result_of_its_records_whatever_restarts(
    kind: str, rows: list[Row], size: int, advance: int, cuts: set[int], loses: bool, caching: bool
) -> None:
    advance = min(advance, size)
    task = Restartable(listed(size, advance, kind, caching=caching))
    places = [0, *sorted(cut for cut in cuts if 0 < cut < len(rows)), len(rows)]
    for start, end in pairwise(places):
        task.run(*rows[start:end])
        if loses:
            task.lose_state()
    found = [
        ((record.key or b"").decode(), (record.value or b"").decode(), record.timestamp) for record in task.written()
    ]
    assert found == plainly(rows, size, advance)


@given(
    rows=st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 60), st.sampled_from([b"x", b"y", b"z"])), max_size=30
    ),
    cuts=st.sets(st.integers(0, 30), max_size=3),
    loses=st.booleans(),
)
@example(rows=[("a", 0, b"x"), ("b", 10, b"x"), ("a", 10, b"y"), ("a", 11, b"z")], cuts={2}, loses=True)
def test_windows_of_quiet_keys_are_forgotten_whatever_restarts(rows: list[Row], cuts: set[int], loses: bool) -> None:
    task = Restartable(listed(2, 1, ttl=timedelta(milliseconds=10)))
    places = [0, *sorted(cut for cut in cuts if 0 < cut < len(rows)), len(rows)]
    for start, end in pairwise(places):
        task.run(*rows[start:end])
        if loses:
            task.lose_state()
    expected, seen, now = [], dict[str, tuple[str, int]](), 0
    for key, time, value in rows:
        now = max(now, time)
        seen = {each: (text, at) for each, (text, at) in seen.items() if now - at < 10}
        before, at = seen.get(key, ("", time))
        if before:
            expected.append((key, before + value.decode(), max(time, at)))
        seen[key] = value.decode(), max(time, at)
    assert [((r.key or b"").decode(), (r.value or b"").decode(), r.timestamp) for r in task.written()] == expected
    if rows and not loses:
        left = {key for key, (_, at) in seen.items() if now - at < 10}
        assert {key.decode() for key, _ in task.backend.table("open").scan(None, None)} == left


def test_the_changelog_has_the_windows_that_are_not_full() -> None:
    with TopologyTestDriver(listed(3, 2, "reduce"), application_id="app") as driver:
        driver.input_topic("in", STRING, STRING).pipe_key_value_list([("a", each) for each in "xyz"])
        log = driver.read_raw("app-open-changelog")
    assert (log[-1].key, log[-1].value) == (b"a", bytes.fromhex("00000001 00000001 00000001") + b"z")


def test_null_keys_and_values_are_in_no_window_and_are_counted() -> None:
    with TopologyTestDriver(listed(2, 2)) as driver:
        driver.input_topic("in", STRING, STRING).pipe_key_value_list([(None, "x"), ("a", "x"), ("a", None), ("a", "y")])
        assert driver.output_topic("out", STRING, STRING).read_key_values_to_list() == [("a", "xy")]
        assert driver.dropped() == {"null-key-or-value": 2}


def test_an_aggregator_that_deletes_leaves_a_window_without_a_result() -> None:
    builder = StreamsBuilder()
    windows = builder.stream("in", TEXTS).group_by_key().windowed_by(CountWindows.of(2))
    stored: Materialized[str, str] = Materialized(STRING, STRING, name="open")
    windows.aggregate(str, lambda _k, v, all_: None if v == "stop" else all_ + v, stored).to(
        "out", Produced(STRING, STRING)
    )
    with TopologyTestDriver(builder.build()) as driver:
        piped = driver.input_topic("in", STRING, STRING)
        piped.pipe_key_value_list([("a", each) for each in ("x", "stop", "stop", "y", "x", "y")])
        assert driver.output_topic("out", STRING, STRING).read_values_to_list() == ["y", "xy"]


def test_a_group_by_another_key_is_repartitioned_and_names_are_the_users() -> None:
    builder = StreamsBuilder()
    grouped = builder.stream("in", TEXTS).group_by(lambda _k, value: value[0], Grouped(STRING, STRING, name="first"))
    pairs = grouped.windowed_by(CountWindows.of(2)).reduce(lambda one, two: one + two, LISTS, named=Named("pairs"))
    pairs.to("out", Produced(STRING, JSON))
    topology = builder.build()
    assert "pairs" in topology.nodes
    with TopologyTestDriver(topology) as driver:
        driver.input_topic("in", STRING, STRING).pipe_key_value_list([("1", "xa"), ("2", "yb"), ("3", "xc")])
        assert driver.output_topic("out", STRING, JSON).read_key_values_to_list() == [("x", "xaxc")]


def test_the_fingerprint_tells_windows_apart() -> None:
    assert len({listed(size, advance).fingerprint() for size, advance in [(2, 1), (2, 2), (3, 1), (3, 3)]}) == 4


def test_mistakes_have_clear_errors() -> None:
    windows = StreamsBuilder().stream("in", TEXTS).group_by_key().windowed_by(CountWindows.of(2))
    mistakes: list[tuple[Callable[[], Any], str]] = [
        (lambda: CountWindows.of(0), "at least one record"),
        (lambda: CountWindows.of(timedelta(1)), "size must be an int"),  # type: ignore[arg-type]
        (lambda: CountWindows.of(2).advance_by(3), "must advance by 1 to 2, not 3"),
        (windows.aggregate, "nothing to aggregate by"),
        (lambda: windows.aggregate(int, lambda _k, _v, n: n + 1), "needs a serde for its values"),
        (lambda: windows.reduce(max, Materialized(STRING, STRING, max_entries=3)), "cannot be limited"),
        (lambda: windows.aggregate(n=Count(), materialized=Materialized(value_serde=LONG)), "has the fields"),
    ]
    for call, message in mistakes:
        with pytest.raises(TopologyError, match=message):
            call()
