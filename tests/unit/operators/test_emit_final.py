"""Windows that are forwarded once, when they have closed; tables of `KStreamWindowAggregateTest`."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import (
    LONG,
    STRING,
    Consumed,
    EmitStrategy,
    Materialized,
    Produced,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    TimeWindows,
    TopologyError,
    UnlimitedWindows,
    session_windowed,
    windowed,
)
from riverrun.records import TopicPartition
from riverrun.runtime.times import OffsetMetadata
from riverrun.testing import TopologyTestDriver
from tests.unit.operators.restarting import Restartable

if TYPE_CHECKING:
    from riverrun.records import RawRecord
    from riverrun.topology.topology import Topology

CLOSE = EmitStrategy.on_window_close()
INPUT = TopicPartition("in", 0)


def ms(count: int) -> timedelta:
    return timedelta(milliseconds=count)


def topology(windows: Any, **stored: Any) -> Topology:
    builder = StreamsBuilder()
    grouped = builder.stream("in", Consumed(STRING, STRING)).group_by_key()
    counts = grouped.windowed_by(windows).emit_strategy(CLOSE).count(Materialized(STRING, name="counts", **stored))
    serde = session_windowed(STRING) if isinstance(windows, SessionWindows) else windowed(STRING)
    counts.to_stream().to("out", Produced(serde, LONG))
    return builder.build()


def read(records: list[RawRecord], windows: Any) -> list[tuple[str, int, int | None, int]]:
    """`(key, window start, count, timestamp)`."""
    is_session = isinstance(windows, SessionWindows)
    serde = session_windowed(STRING) if is_session else windowed(STRING, ms(windows.size_ms))
    keys = [serde.deserialize(r.key or b"") for r in records]
    counts = [None if r.value is None else LONG.deserialize(r.value) for r in records]
    return [
        (key.key, key.window.start, count, r.timestamp) for key, count, r in zip(keys, counts, records, strict=True)
    ]


def final(windows: Any, rows: list[tuple[str, int]], **stored: Any) -> list[tuple[str, int, int | None, int]]:
    with TopologyTestDriver(topology(windows, **stored)) as driver:
        topic = driver.input_topic("in", STRING, STRING)
        for key, timestamp in rows:
            topic.pipe_input(key, "v", timestamp=timestamp)
        return read(driver.read_raw("out"), windows)


HOPPING = TimeWindows.of(ms(10), grace=ms(5)).advance_by(ms(5))


def test_hopping_windows_are_forwarded_by_start_and_key_with_their_last_times() -> None:
    rows = [("A", 0), ("B", 1), ("C", 2), ("D", 3), ("A", 4), ("A", 5), ("B", 6), ("D", 7), ("B", 8), ("C", 9)]
    rows += [("A", 10), ("B", 11), ("D", 12), ("B", 13), ("C", 14), ("B", 1), ("B", 2), ("D", 15)]
    assert final(HOPPING, rows) == [("A", 0, 3, 5), ("B", 0, 5, 8), ("C", 0, 2, 9), ("D", 0, 2, 7)]


def test_nothing_is_forwarded_twice_or_out_of_grace() -> None:
    rows = [("A", 0), ("A", 14), ("A", 3), ("A", 15), ("A", 3), ("A", 16), ("A", 20), ("A", 25)]
    assert final(HOPPING, rows) == [("A", 0, 2, 3), ("A", 5, 1, 14), ("A", 10, 3, 16)]


def test_sessions_that_end_together_are_forwarded_by_their_starts() -> None:
    rows = [("B", 10), ("C", 10), ("C", 9), ("A", 30)]
    assert final(SessionWindows.of(ms(5), grace=ms(5)), rows) == [("C", 9, 2, 10), ("B", 10, 1, 10)]


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize(
    "windows",
    [TimeWindows.of(ms(10)), SlidingWindows.of(ms(10)), SessionWindows.of(ms(10)), HOPPING],
    ids=["tumbling", "sliding", "sessions", "hopping"],
)
def test_a_record_far_ahead_closes_windows_that_the_store_forgets_with_it(
    windows: Any, caching: bool, persistent: bool
) -> None:
    found = final(windows, [("A", 12), ("B", 13), ("A", 10_000_000)], caching=caching, persistent=persistent)
    assert {(key, count, timestamp) for key, _, count, timestamp in found} == {("A", 1, 12), ("B", 1, 13)}


def test_a_deleted_window_is_not_forwarded_and_one_that_came_back_is_once() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", Consumed(STRING, STRING)).group_by_key().windowed_by(TimeWindows.of(ms(10)))
    kept = stream.emit_strategy(CLOSE).aggregate(
        lambda: 0, lambda _k, v, a: None if v == "delete" else a + 1, Materialized(STRING, LONG, name="store")
    )
    kept.to_stream().to("out", Produced(windowed(STRING), LONG))
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.input_topic("in", STRING, STRING)
        for key, value in (("A", "1"), ("B", "1"), ("A", "delete"), ("B", "delete"), ("B", "2"), ("C", "tick")):
            topic.pipe_input(key, value, timestamp=10 if key == "C" else 1)
        assert read(driver.read_raw("out"), TimeWindows.of(ms(10))) == [("B", 0, 1, 1)]


def test_windows_without_end_cannot_wait_for_it() -> None:
    stream = StreamsBuilder().stream("in", Consumed(STRING, STRING)).group_by_key()
    with pytest.raises(TopologyError, match="UnlimitedWindows"):
        stream.windowed_by(UnlimitedWindows.of()).emit_strategy(CLOSE)


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        (TimeWindows.of(ms(10)), [("A", 20, 1, 25)]),
        (SlidingWindows.of(ms(10)), [("A", 15, 1, 25)]),
        (SessionWindows.of(ms(10)), [("A", 25, 1, 25)]),
    ],
    ids=["tumbling", "sliding", "sessions"],
)
def test_what_has_been_forwarded_is_known_after_a_restart(
    windows: Any, expected: list[tuple[str, int, int | None, int]], loses_state: bool
) -> None:
    task = Restartable(topology(windows, retention=ms(1000)))
    task.run(("A", 12), ("B", 13), ("A", 25))
    assert {(key, t) for key, _, _, t in read(task.written(), windows)} == {("A", 12), ("B", 13)}
    if loses_state:
        task.lose_state()
    task.run(("B", 12), ("A", 50))
    assert read(task.written(), windows) == expected, "nothing twice, nothing late, nothing lost"


def test_the_time_of_the_last_close_is_committed_under_the_stores_name() -> None:
    windows = TimeWindows.of(ms(10), grace=ms(2))
    task = Restartable(topology(windows))
    task.run(("A", 12))
    assert OffsetMetadata.decode(task.committed[INPUT][1]).processor_metadata == {}
    task.run(("A", 25))
    assert OffsetMetadata.decode(task.committed[INPUT][1]).processor_metadata == {"counts": 23}
    task.run()
    assert OffsetMetadata.decode(task.committed[INPUT][1]).processor_metadata == {"counts": 23}
