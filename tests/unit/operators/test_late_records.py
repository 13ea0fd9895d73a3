"""Late records are a stream: exactly those that count as dropped because they are late, as they came, whatever restarts."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from riverrun import (
    STRING,
    Consumed,
    Count,
    EmitStrategy,
    Grouped,
    JoinWindows,
    Materialized,
    Named,
    Produced,
    SessionWindows,
    SlidingWindows,
    StreamJoined,
    StreamsBuilder,
    TimeWindows,
    UnlimitedWindows,
    Window,
)
from riverrun.errors import TopologyError
from riverrun.testing import TopologyTestDriver
from tests.unit.operators.restarting import Restartable

if TYPE_CHECKING:
    from riverrun import KGroupedStream, KStream, Topology

Rows = list[tuple[str, int]]


def ms(count: int) -> timedelta:
    return timedelta(milliseconds=count)


class Odd:
    """Windows of the user's own, every second of which is longer."""

    size_ms = 10
    grace_ms = 5

    def windows_for(self, timestamp: int) -> list[Window]:
        start = timestamp - timestamp % 25
        return [Window(start, start + 10) if timestamp < start + 10 else Window(start + 10, start + 25)]


WINDOWS: dict[str, Any] = {
    "tumbling": TimeWindows.of(ms(10), grace=ms(5)),
    "hopping": TimeWindows.of(ms(10), grace=ms(5)).advance_by(ms(4)),
    "sliding": SlidingWindows.of(ms(10), grace=ms(5)),
    "sessions": SessionWindows.of(ms(4), grace=ms(5)),
    "own": Odd(),
}
ROWS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 80)), max_size=40)


def topology(windows: Any, *, is_final: bool = False, is_new_key: bool = False) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("in", Consumed(STRING, STRING))
    grouped = stream.group_by(lambda key, _value: key, Grouped(STRING, STRING)) if is_new_key else stream.group_by_key()
    in_windows: Any = grouped.windowed_by(windows).late(lambda late: late.to("out"), named=Named("too-late"))
    if is_final:
        in_windows = in_windows.emit_strategy(EmitStrategy.on_window_close())
    counts: Any = in_windows.count(Materialized(STRING, name="counts"))
    counts.to_stream(lambda key, _count: str(key)).map_values(str).to("counts", Produced(STRING, STRING))
    return builder.build()


@pytest.mark.parametrize("is_new_key", [False, True])
@pytest.mark.parametrize("is_final", [False, True])
@pytest.mark.parametrize("kind", sorted(WINDOWS))
@given(rows=ROWS)
def test_late_records_are_those_that_count_as_dropped(kind: str, is_final: bool, is_new_key: bool, rows: Rows) -> None:
    with TopologyTestDriver(topology(WINDOWS[kind], is_final=is_final, is_new_key=is_new_key)) as driver:
        source, expected, before = driver.input_topic("in", STRING, STRING), [], 0
        for number, (key, time) in enumerate(rows):
            source.pipe_input(key, f"v{number}", timestamp=time, headers=(("h", b"1"),))
            dropped = driver.dropped().get("late", 0)
            if dropped > before:
                expected.append((key.encode(), f"v{number}".encode(), time, (("h", b"1"),)))
            before = dropped
        found = [(record.key, record.value, record.timestamp, record.headers) for record in driver.read_raw("out")]
    assert found == expected


def plainly(rows: Rows, grace_ms: int) -> Rows:
    """The records that are late for one of their windows of 10 ms, which begin every 5 ms."""
    late, observed = [], -1
    for key, time in rows:
        observed = max(observed, time)
        first = max(0, time - time % 5 - 5)
        if first + 10 <= observed - grace_ms:
            late.append((key, time))
    return late


@given(rows=ROWS, grace_ms=st.integers(0, 20), cuts=st.sets(st.integers(0, 40), max_size=3), loses=st.booleans())
@example(rows=[("a", 0), ("a", 20), ("a", 1)], grace_ms=5, cuts={2}, loses=True)
def test_late_records_stay_late_whatever_restarts(rows: Rows, grace_ms: int, cuts: set[int], loses: bool) -> None:
    task = Restartable(topology(TimeWindows.of(ms(10), grace=ms(grace_ms)).advance_by(ms(5))))
    places = [0, *sorted(cut for cut in cuts if 0 < cut < len(rows)), len(rows)]
    for start, end in pairwise(places):
        task.run(*rows[start:end])
        if loses:
            task.lose_state()
    assert [((record.key or b"").decode(), record.timestamp) for record in task.written()] == plainly(rows, grace_ms)


def grouped(builder: StreamsBuilder) -> KGroupedStream[str, str]:
    return builder.stream("in", Consumed(STRING, STRING)).group_by_key()


def test_each_aggregation_has_a_stream_of_its_own() -> None:
    builder = StreamsBuilder()
    found: list[KStream[str, str]] = []
    windows = grouped(builder).windowed_by(WINDOWS["tumbling"]).late(found.append)
    windows.count()
    windows.aggregate(n=Count())
    assert len(found) == 2
    found[0].merge(found[1]).to("late", Produced(STRING, STRING))
    described = str(builder.build().describe())
    assert "Processor: KSTREAM-LATE-0000000003 (stores: [])" in described
    with TopologyTestDriver(builder.build()) as driver:
        for time in (20, 1):
            driver.input_topic("in", STRING, STRING).pipe_input("a", "v", timestamp=time)
        assert [record.timestamp for record in driver.read_raw("late")] == [1, 1]


def test_names_and_fingerprints_without_a_stream_of_late_records_stay() -> None:
    def built(*, has_late: bool) -> Topology:
        builder = StreamsBuilder()
        windows = grouped(builder).windowed_by(WINDOWS["sessions"])
        (windows.late(lambda _late: None) if has_late else windows).count()
        return builder.build()

    assert "LATE" not in str(built(has_late=False).describe())
    assert built(has_late=True).fingerprint() != built(has_late=False).fingerprint()


def test_windows_without_end_have_no_late_records() -> None:
    with pytest.raises(TopologyError, match="cannot be used for UnlimitedWindows: they never close"):
        grouped(StreamsBuilder()).windowed_by(UnlimitedWindows.of()).late(lambda late: late.to("late"))


@pytest.mark.parametrize(
    ("consumer", "message"),
    [
        ("late", r"consumer must be a function of \(stream\), not 'late'"),
        (lambda: None, r"consumer must be a function of \(stream\), but .* takes no arguments"),
    ],
)
def test_a_consumer_takes_a_stream(consumer: Any, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        grouped(StreamsBuilder()).windowed_by(WINDOWS["tumbling"]).late(consumer)


BOTH = st.lists(st.tuples(st.sampled_from(["in", "other"]), st.sampled_from("ab"), st.integers(0, 60)), max_size=30)


@given(rows=BOTH, kind=st.sampled_from(["join", "left_join", "outer_join"]))
def test_joins_have_the_late_records_of_each_side_as_streams(rows: list[tuple[str, str, int]], kind: str) -> None:
    size_ms, grace_ms = 10, 5
    builder = StreamsBuilder()
    left, right = (builder.stream(topic, Consumed(STRING, STRING)) for topic in ("in", "other"))
    joined: StreamJoined[str, str, str] = StreamJoined(
        STRING, STRING, STRING, late=lambda late: late.to("late"), other_late=lambda late: late.to("other-late")
    )
    windows = JoinWindows.of(ms(size_ms), grace=ms(grace_ms))
    made = getattr(left, kind)(right, lambda one, two: f"{one}{two}", windows, joined=joined)
    made.to("out", Produced(STRING, STRING))
    observed, expected = {"in": -1, "other": -1}, {"in": list[Any](), "other": list[Any]()}
    with TopologyTestDriver(builder.build()) as driver:
        for number, (topic, key, time) in enumerate(rows):
            driver.input_topic(topic, STRING, STRING).pipe_input(key, str(number), timestamp=time)
            observed[topic] = max(observed[topic], time)
            if time <= observed[topic] - (2 * size_ms + grace_ms):
                expected[topic].append((key, str(number), time))
        for topic, late in (("in", "late"), ("other", "other-late")):
            found = driver.output_topic(late, STRING, STRING).read_records_to_list()
            assert [(record.key, record.value, record.timestamp) for record in found] == expected[topic]


def test_a_stream_joined_with_itself_has_its_late_records_once() -> None:
    stream = StreamsBuilder().stream("in", Consumed(STRING, STRING))
    joined: StreamJoined[str, str, str] = StreamJoined(other_late=lambda late: late.to("late"))
    with pytest.raises(TopologyError, match="has its late records once"):
        stream.join(stream, lambda one, _two: one, JoinWindows.of(ms(5)), joined=joined)
    with pytest.raises(TopologyError, match="late must be a function"):
        StreamJoined(late=5)  # type: ignore[arg-type]
