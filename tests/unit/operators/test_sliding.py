"""Sliding windows; the tables are those of `KStreamSlidingWindowAggregateTest`."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun import (
    JSON,
    STRING,
    Consumed,
    EmitStrategy,
    Materialized,
    Produced,
    SlidingWindows,
    StreamsBuilder,
    TopologyError,
    windowed,
)
from riverrun.testing import TopologyTestDriver
from tests.presence import present

UPDATE, CLOSE = EmitStrategy.on_window_update(), EmitStrategy.on_window_close()
Row = tuple[str, str | None, int]


def ms(count: int) -> timedelta:
    return timedelta(milliseconds=count)


def aggregated(
    windows: SlidingWindows,
    rows: list[Row],
    emit: EmitStrategy = UPDATE,
    *,
    caching: bool = True,
    reduced: bool = False,
) -> list[tuple[str, int, str | None, int]]:
    """`(key, window start, value, timestamp)` in the order of forwarding."""
    builder = StreamsBuilder()
    stream = builder.stream("in", Consumed(STRING, STRING)).group_by_key().windowed_by(windows).emit_strategy(emit)
    stored = Materialized(STRING, STRING, name="store", caching=caching)
    if reduced:
        table = stream.reduce(lambda aggregate, value: f"{aggregate}+{value}", stored)
    else:
        table = stream.aggregate(lambda: "0", lambda _k, value, aggregate: f"{aggregate}+{value}", stored)
    table.to_stream().to("out", Produced(windowed(STRING), STRING))
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.input_topic("in", STRING, STRING)
        for key, value, timestamp in rows:
            topic.pipe_input(key, value, timestamp=timestamp)
        found = driver.output_topic("out", windowed(STRING, ms(windows.size_ms)), STRING).read_records_to_list()
        return [(present(r.key).key, present(r.key).window.start, r.value, r.timestamp) for r in found]


def by_start(found: list[tuple[str, int, str | None, int]]) -> dict[int, set[tuple[str | None, int]]]:
    sets = defaultdict(set)
    for _, start, value, timestamp in found:
        sets[start].add((value, timestamp))
    return dict(sets)


@pytest.fixture(params=[True, False], ids=["cached", "uncached"])
def caching(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


SMALL: list[Row] = [
    ("A", "1", 10),
    ("A", "2", 10),
    ("A", "3", 14),
    ("A", "4", 15),
    ("A", "5", 20),
    ("A", "6", 22),
    ("A", "7", 30),
]


def test_a_record_updates_the_windows_around_it_and_makes_those_it_is_missing(caching: bool) -> None:
    found = aggregated(SlidingWindows.of(ms(10), grace=ms(5)), SMALL, caching=caching)
    assert by_start(found) == {
        0: {("0+1", 10), ("0+1+2", 10)},
        4: {("0+1+2+3", 14)},
        5: {("0+1+2+3+4", 15)},
        10: {("0+1+2+3+4+5", 20)},
        11: {("0+3", 14), ("0+3+4", 15), ("0+3+4+5", 20)},
        12: {("0+3+4+5+6", 22)},
        15: {("0+4", 15), ("0+4+5", 20), ("0+4+5+6", 22)},
        16: {("0+5", 20), ("0+5+6", 22)},
        20: {("0+5+6+7", 30)},
        21: {("0+6", 22), ("0+6+7", 30)},
        23: {("0+7", 30)},
    }


def test_each_window_is_forwarded_once_when_it_has_closed() -> None:
    found = aggregated(SlidingWindows.of(ms(10), grace=ms(5)), SMALL, CLOSE)
    assert found == [
        ("A", 0, "0+1+2", 10),
        ("A", 4, "0+1+2+3", 14),
        ("A", 5, "0+1+2+3+4", 15),
        ("A", 10, "0+1+2+3+4+5", 20),
        ("A", 11, "0+3+4+5", 20),
        ("A", 12, "0+3+4+5+6", 22),
    ]


def test_the_first_value_of_a_window_is_its_first_aggregate_when_values_are_reduced(caching: bool) -> None:
    rows: list[Row] = [("A", str(n), t) for n, t in enumerate((10, 14, 15, 22, 26, 30), 1)]
    found = aggregated(SlidingWindows.of(ms(10), grace=ms(5)), rows, caching=caching, reduced=True)
    assert by_start(found) == {
        0: {("1", 10)},
        4: {("1+2", 14)},
        5: {("1+2+3", 15)},
        11: {("2", 14), ("2+3", 15)},
        12: {("2+3+4", 22)},
        15: {("3", 15), ("3+4", 22)},
        16: {("4", 22), ("4+5", 26)},
        20: {("4+5+6", 30)},
        23: {("5", 26), ("5+6", 30)},
        27: {("6", 30)},
    }


def test_out_of_order_records_join_the_windows_that_later_ones_have_made(caching: bool) -> None:
    rows: list[Row] = [("A", "1", 10), ("A", "2", 20), ("A", "3", 22), ("A", "4", 15)]
    found = aggregated(SlidingWindows.of(ms(10), grace=ms(50)), rows, caching=caching)
    assert by_start(found) == {
        0: {("0+1", 10)},
        5: {("0+1+4", 15)},
        10: {("0+1+2", 20), ("0+1+2+4", 20)},
        11: {("0+2", 20), ("0+2+4", 20)},
        12: {("0+2+3", 22), ("0+2+3+4", 22)},
        16: {("0+2+3", 22)},
        21: {("0+3", 22)},
    }


def test_records_of_the_first_time_difference_share_a_window_from_zero(caching: bool) -> None:
    rows: list[Row] = [("A", str(n), t) for n, t in enumerate((0, 5, 6, 3, 13, 10, 70), 1)]
    found = aggregated(SlidingWindows.of(ms(50)), rows, caching=caching)
    last = {start: value for _, start, value, _ in found}
    assert last == {
        0: "0+1+2+3+4+5+6",
        1: "0+2+3+4+5+6",
        4: "0+2+3+5+6",
        6: "0+3+5+6",
        7: "0+5+6",
        11: "0+5",
        20: "0+7",
    }
    closed = aggregated(SlidingWindows.of(ms(50)), rows, CLOSE, caching=caching)
    assert {start: value for _, start, value, _ in closed} == {k: v for k, v in last.items() if k != 20}


def test_repeated_early_times_update_and_make_nothing_twice(caching: bool) -> None:
    rows: list[Row] = [("A", str(n), t) for n, t in enumerate((0, 2, 4, 0, 2, 2, 0, 7), 1)]
    found = aggregated(SlidingWindows.of(ms(5)), rows, caching=caching)
    assert {start: value for _, start, value, _ in found} == {
        0: "0+1+2+3+4+5+6+7",
        1: "0+2+3+5+6",
        2: "0+2+3+5+6+8",
        3: "0+3+8",
        5: "0+8",
    }


def test_windows_that_have_closed_take_no_more_records_and_those_are_counted() -> None:
    builder = StreamsBuilder()
    windows = SlidingWindows.of(ms(10), grace=ms(90))
    counts = builder.stream("in", Consumed(STRING, STRING)).group_by_key().windowed_by(windows)
    counts.count(Materialized(name="store")).to_stream().to("out", Produced(windowed(STRING), JSON))
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.input_topic("in", STRING, STRING)
        for key, value, timestamp in (
            ("k", "100", 200),
            ("k", "0", 0),
            ("k", "2", 99),
            (None, "v", 200),
            ("k", None, 200),
        ):
            topic.pipe_input(key, value, timestamp=timestamp)
        assert driver.dropped() == {"late": 2, "null-key-or-value": 2}


def test_an_aggregator_that_changes_its_aggregate_in_place_does_not_mix_up_windows(caching: bool) -> None:
    def add(_key: str, value: str, aggregate: list[str]) -> list[str]:
        aggregate.append(value)
        return aggregate

    builder = StreamsBuilder()
    stream = builder.stream("in", Consumed(STRING, STRING)).group_by_key()
    windows = SlidingWindows.of(ms(10), grace=ms(100))
    table = stream.windowed_by(windows).aggregate(list, add, Materialized(STRING, JSON, name="store", caching=caching))
    table.to_stream().to("out", Produced(windowed(STRING), JSON))
    rows = [("A", str(t), t) for t in (20, 30, 25, 24, 3, 28, 24, 6, 5)]
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.input_topic("in", STRING, STRING)
        for row in rows:
            topic.pipe_input(row[0], row[1], timestamp=row[2])
        records = driver.output_topic("out", windowed(STRING, ms(10)), JSON).read_records_to_list()
    last = {present(r.key).window.start: sorted(present(r.value)) for r in records}
    times = [t for _, _, t in rows]
    assert last == {start: sorted(str(t) for t in held) for start, held in brute_force(times, 10).items()}


def brute_force(times: list[int], size: int) -> dict[int, list[int]]:
    """The windows that must exist: ending with a record, or beginning 1 ms after one and holding another."""
    starts = {max(0, t - size) for t in times} | {t + 1 for t in times}
    held = {start: [t for t in times if start <= t <= start + size] for start in starts}
    return {start: times for start, times in held.items() if times}


@settings(max_examples=60, deadline=None)
@given(times=st.lists(st.integers(0, 40), min_size=1, max_size=14), size=st.integers(1, 12), caching=st.booleans())
def test_whatever_the_order_every_window_ends_up_with_exactly_the_records_it_spans(
    times: list[int], size: int, caching: bool
) -> None:
    rows: list[Row] = [("A", str(n), t) for n, t in enumerate(times)]
    found = aggregated(SlidingWindows.of(ms(size), grace=ms(100)), rows, caching=caching)
    last = {start: (value, timestamp) for _, start, value, timestamp in found}
    expected = {}
    for start, held in brute_force(times, size).items():
        members = {str(n) for n, t in enumerate(times) if start <= t <= start + size}
        expected[start] = (members, max(held))
    assert {s: (set((value or "").split("+")[1:]), t) for s, (value, t) in last.items()} == expected


@settings(max_examples=60, deadline=None)
@given(times=st.lists(st.integers(0, 60), min_size=1, max_size=14), size=st.integers(1, 12), grace=st.integers(0, 9))
def test_a_closed_window_is_forwarded_with_the_last_update_it_ever_got(times: list[int], size: int, grace: int) -> None:
    rows: list[Row] = [("A", str(n), t) for n, t in enumerate(times)]
    windows = SlidingWindows.of(ms(size), grace=ms(grace))
    last = {(key, start): (value, t) for key, start, value, t in aggregated(windows, rows, caching=False)}
    found = aggregated(windows, rows, CLOSE)
    close_ms = max(times) - grace
    assert {(key, start): (value, t) for key, start, value, t in found} == {
        (key, start): result for (key, start), result in last.items() if start + size < close_ms
    }
    assert len(found) == len({start for _, start, _, _ in found}), "each window once"


def test_a_late_record_finds_the_windows_it_follows_from_however_small_the_cache(caching: bool) -> None:
    rows: list[Row] = [("B", "1", 9), ("A", "2", 12), ("A", "3", 11), ("B", "4", 10), ("A", "5", 20)]
    found = aggregated(SlidingWindows.of(ms(3)), rows, caching=caching)
    assert ("B", 10, "0+4", 10) in found, "the window that begins after B's first record"


def test_a_store_that_forgets_windows_while_they_can_change_is_refused() -> None:
    stream = StreamsBuilder().stream("in", Consumed(STRING, STRING)).group_by_key()
    with pytest.raises(TopologyError, match="25 ms"):
        stream.windowed_by(SlidingWindows.of(ms(10), grace=ms(5))).count(Materialized(name="s", retention=ms(24)))


def test_windows_of_other_keys_are_left_alone(caching: bool) -> None:
    rows: list[Row] = [("A", "1", 20), ("AA", "2", 25), ("A", "3", 25), ("B", "4", 21)]
    found: list[Any] = aggregated(SlidingWindows.of(ms(10), grace=ms(50)), rows, caching=caching)
    assert {(key, value) for key, _, value, _ in found} == {
        ("A", "0+1"),
        ("A", "0+3"),
        ("A", "0+1+3"),
        ("AA", "0+2"),
        ("B", "0+4"),
    }
