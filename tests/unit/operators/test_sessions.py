"""Sessions; the tables are those of `KStreamSessionWindowAggregateProcessorTest` (inactivity gap: 300 000 ms)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun import (
    JSON,
    LONG,
    STRING,
    Consumed,
    EmitStrategy,
    Materialized,
    Processor,
    ProcessorContext,
    Produced,
    Record,
    SessionWindows,
    Stores,
    StreamsBuilder,
    TopologyError,
    Window,
    Windowed,
    session_windowed,
)
from riverrun.testing import TopologyTestDriver

UPDATE, CLOSE = EmitStrategy.on_window_update(), EmitStrategy.on_window_close()
GAP = 300_000
Row = tuple[str | None, str | None, int]
Result = tuple[str | None, tuple[int, int], int | None, int]


def ms(count: int) -> timedelta:
    return timedelta(milliseconds=count)


def counting(windows: SessionWindows, emit: EmitStrategy = UPDATE, *, caching: bool = True) -> TopologyTestDriver:
    builder = StreamsBuilder()
    stream = builder.stream("in", Consumed(STRING, STRING)).group_by_key().windowed_by(windows).emit_strategy(emit)
    counts = stream.count(Materialized(STRING, name="store", caching=caching))
    counts.to_stream().to("out", Produced(session_windowed(STRING), LONG))
    return TopologyTestDriver(builder.build())


def pipe(driver: TopologyTestDriver, rows: list[Row]) -> list[Result]:
    topic = driver.input_topic("in", STRING, STRING)
    for key, value, timestamp in rows:
        topic.pipe_input(key, value, timestamp=timestamp)
    found = driver.output_topic("out", session_windowed(STRING), LONG).read_records_to_list()
    return [(r.key.key, (r.key.window.start, r.key.window.end), r.value, r.timestamp) for r in found if r.key]


@pytest.fixture(params=[True, False], ids=["cached", "uncached"])
def caching(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_records_within_the_gap_are_one_session(caching: bool) -> None:
    with counting(SessionWindows.of(ms(GAP)), caching=caching) as driver:
        pipe(driver, [("john", "first", 0), ("john", "second", 500)])
        assert list(driver.get_state_store("store").find_sessions("john", 0, 2000)) == [
            (Windowed("john", Window(0, 500)), 2)
        ]


def test_a_record_between_two_sessions_merges_them(caching: bool) -> None:
    with counting(SessionWindows.of(ms(GAP), grace=ms(GAP)), caching=caching) as driver:
        pipe(driver, [("mel", "first", 0), ("mel", "second", GAP + 1)])
        store = driver.get_state_store("store")
        assert [s.window for s, _ in store.fetch("mel")] == [Window(0, 0), Window(GAP + 1, GAP + 1)]
        pipe(driver, [("mel", "third", GAP // 2)])
        assert list(store.find_sessions("mel", 0, GAP + 1)) == [(Windowed("mel", Window(0, GAP + 1)), 3)]


def test_a_merged_session_is_deleted_before_the_new_one_appears(caching: bool) -> None:
    with counting(SessionWindows.of(ms(GAP)), caching=caching) as driver:
        assert pipe(driver, [("a", "1", 0), ("a", "1", 5)]) == [
            ("a", (0, 0), 1, 0),
            ("a", (0, 0), None, 0),
            ("a", (0, 5), 2, 5),
        ]


def test_records_of_one_time_update_their_session_without_a_deletion(caching: bool) -> None:
    with counting(SessionWindows.of(ms(GAP)), caching=caching) as driver:
        assert pipe(driver, [("mel", "1", 0), ("mel", "2", 0)]) == [("mel", (0, 0), 1, 0), ("mel", (0, 0), 2, 0)]


def test_records_further_apart_than_the_gap_are_sessions_of_their_own(caching: bool) -> None:
    second, third = GAP + 1, 2 * (GAP + 1)
    rows: list[Row] = [("mel", "1", 0), *[("mel", "2", second)] * 2, *[("mel", "3", third)] * 3]
    with counting(SessionWindows.of(ms(GAP)), caching=caching) as driver:
        last = {window: count for _, window, count, _ in pipe(driver, rows)}
        assert last == {(0, 0): 1, (second, second): 2, (third, third): 3}
    with counting(SessionWindows.of(ms(GAP)), CLOSE, caching=caching) as driver:
        assert pipe(driver, rows) == [("mel", (0, 0), 1, 0), ("mel", (second, second), 2, second)]


def test_closed_sessions_are_forwarded_by_end_and_key(caching: bool) -> None:
    half = GAP // 2
    rows: list[Row] = [("a", "1", 0), ("b", "1", 0), ("c", "1", 0), ("d", "1", 0), ("d", "2", half)]
    rows += [("a", "2", GAP + 1), ("b", "2", GAP + 1), ("a", "3", GAP + 1 + half), ("c", "3", GAP + 1 + half)]
    with counting(SessionWindows.of(ms(GAP)), CLOSE, caching=caching) as driver:
        assert pipe(driver, rows) == [
            ("a", (0, 0), 1, 0),
            ("b", (0, 0), 1, 0),
            ("c", (0, 0), 1, 0),
            ("d", (0, half), 2, half),
        ]


def test_a_session_that_two_sessions_grew_into_is_forwarded_once(caching: bool) -> None:
    rows: list[Row] = [("a", "1", 0), ("a", "2", GAP + 2), ("a", "3", 2), ("a", "4", 4 * GAP)]
    with counting(SessionWindows.of(ms(GAP), grace=ms(GAP)), CLOSE, caching=caching) as driver:
        assert pipe(driver, rows) == [("a", (0, GAP + 2), 3, GAP + 2)]


def test_a_record_is_late_once_its_session_ended_gap_and_grace_ago(caching: bool) -> None:
    with counting(SessionWindows.of(ms(10), grace=ms(1)), caching=caching) as driver:
        rows: list[Row] = [("dummy", "", 0), ("on time", "1", 0), ("dummy", "", 11), ("on time 2", "1", 0)]
        assert len(pipe(driver, rows)) == 4
        assert pipe(driver, [("dummy", "", 12), ("late", "1", 0)])[-1][0] == "dummy"
        assert driver.dropped() == {"late": 1}


def test_null_keys_are_dropped_and_null_values_are_counted(caching: bool) -> None:
    with counting(SessionWindows.of(ms(10)), caching=caching) as driver:
        assert pipe(driver, [(None, "x", 0), ("a", None, 0)]) == [("a", (0, 0), 1, 0)]
        assert driver.dropped() == {"null-key": 1}


def test_a_late_record_may_extend_a_session_that_is_still_open(caching: bool) -> None:
    rows: list[Row] = [("a", "1", 0), ("a", "2", 9), ("b", "1", 19), ("a", "3", 2)]
    with counting(SessionWindows.of(ms(10)), caching=caching) as driver:
        assert pipe(driver, rows)[-1] == ("a", (0, 9), 3, 9)


def test_values_are_reduced_within_and_across_sessions(caching: bool) -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", Consumed(STRING, STRING)).group_by_key()
    windows = SessionWindows.of(ms(10), grace=ms(100))
    reduced = stream.windowed_by(windows).reduce(lambda a, b: f"{a}+{b}", Materialized(name="store", caching=caching))
    reduced.to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.input_topic("in", STRING, STRING)
        for value, timestamp in (("1", 0), ("2", 20), ("3", 10)):
            topic.pipe_input("a", value, timestamp=timestamp)
        assert list(driver.get_state_store("store").fetch("a")) == [(Windowed("a", Window(0, 20)), "1+2+3")]


def test_an_aggregator_that_returns_none_deletes_the_session(caching: bool) -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", Consumed(STRING, STRING)).group_by_key().windowed_by(SessionWindows.of(ms(10)))
    table = stream.aggregate(
        lambda: 0,
        lambda _k, v, a: None if v == "delete" else a + 1,
        lambda _k, a, b: a + b,
        Materialized(STRING, LONG, name="store", caching=caching),
    )
    table.to_stream().to("out", Produced(session_windowed(STRING), LONG))
    with TopologyTestDriver(builder.build()) as driver:
        found = pipe(driver, [("a", "1", 0), ("a", "delete", 0), ("a", "3", 1)])
        assert found == [("a", (0, 0), 1, 0), ("a", (0, 0), None, 0), ("a", (1, 1), 1, 1)]


def sessions_of(times: list[int], gap: int) -> set[tuple[int, int, int]]:
    """Start, end and number of records of the sessions of a key, if nothing is late."""
    found: list[list[int]] = []
    for time in sorted(times):
        if found and time - found[-1][-1] <= gap:
            found[-1].append(time)
        else:
            found.append([time])
    return {(session[0], session[-1], len(session)) for session in found}


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(st.sampled_from(["a", "ab"]), st.integers(0, 60)), min_size=1, max_size=20),
    gap=st.integers(0, 10),
    caching=st.booleans(),
)
def test_whatever_the_order_sessions_end_up_as_if_records_had_come_in_order(
    rows: list[tuple[str, int]], gap: int, caching: bool
) -> None:
    with counting(SessionWindows.of(ms(gap), grace=ms(100)), caching=caching) as driver:
        results = pipe(driver, [(key, "v", t) for key, t in rows])
        store: Any = driver.get_state_store("store")
        for name in ("a", "ab"):
            expected = sessions_of([t for key, t in rows if key == name], gap)
            assert {(s.window.start, s.window.end, n) for s, n in store.fetch(name)} == expected
            last = {window: count for key, window, count, _ in results if key == name}
            assert {(*window, n) for window, n in last.items() if n is not None} == expected


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 80)), min_size=1, max_size=20),
    gap=st.integers(0, 10),
    grace=st.integers(0, 10),
)
def test_every_session_that_closes_is_forwarded_once_with_its_last_update(
    rows: list[tuple[str, int]], gap: int, grace: int
) -> None:
    windows = SessionWindows.of(ms(gap), grace=ms(grace))
    given_rows: list[Row] = [(key, "v", t) for key, t in rows]
    with counting(windows, caching=False) as driver:
        last = {(key, window): (count, t) for key, window, count, t in pipe(driver, given_rows)}
    with counting(windows, CLOSE) as driver:
        found = pipe(driver, given_rows)
    close_ms = max(t for _, t in rows) - gap - grace
    expected = {s: r for s, r in last.items() if r[0] is not None and s[1][1] < close_ms}
    assert {(key, window): (count, t) for key, window, count, t in found} == expected
    assert len(found) == len(expected)


def test_a_store_that_forgets_sessions_while_they_can_change_is_refused() -> None:
    stream = StreamsBuilder().stream("in", Consumed(STRING, STRING)).group_by_key()
    with pytest.raises(TopologyError, match="15 ms"):
        stream.windowed_by(SessionWindows.of(ms(10), grace=ms(5))).count(Materialized(name="s", retention=ms(14)))


def test_sessions_can_be_aggregated_into_any_value(caching: bool) -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", Consumed(STRING, STRING)).group_by_key().windowed_by(SessionWindows.of(ms(10)))
    stream.aggregate(
        list,
        lambda _k, v, a: [*a, v],
        lambda _k, a, b: sorted(a + b),
        Materialized(STRING, JSON, name="store", caching=caching),
    )
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.input_topic("in", STRING, STRING)
        for value, timestamp in (("1", 0), ("2", 10), ("3", 5)):
            topic.pipe_input("a", value, timestamp=timestamp)
        assert driver.get_state_store("store").fetch_session("a", 0, 10) == ["1", "2", "3"]


class LastVisit(Processor[str, str]):
    """Keeps one session per key and value: a store of sessions needs no aggregation."""

    def init(self, context: ProcessorContext) -> None:
        self.store = context.get_state_store("visits")

    def process(self, record: Record[str, str]) -> None:
        self.store.put(Windowed(record.key, Window(record.timestamp, record.timestamp + 5)), record.value)


def test_a_processor_can_keep_sessions(caching: bool) -> None:
    builder = StreamsBuilder()
    builder.add_state_store(Stores.session_store("visits", STRING, STRING, retention=ms(100), caching=caching))
    builder.stream("in", Consumed(STRING, STRING)).process(LastVisit, "visits")
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.input_topic("in", STRING, STRING)
        for value, timestamp in (("x", 0), ("y", 50), ("z", 101)):
            topic.pipe_input("a", value, timestamp=timestamp)
        store = driver.get_state_store("visits")
        assert [value for _, value in store.fetch("a")] == ["y", "z"]
        assert [value for _, value in store.find_sessions("a", 0, 60)] == ["y"]
