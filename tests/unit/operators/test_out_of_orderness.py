"""A grace is what other engines call bounded out-of-orderness: windows close at the same records."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from riverrun import (
    LONG,
    STRING,
    Consumed,
    EmitStrategy,
    Materialized,
    Produced,
    StreamsBuilder,
    TimeWindows,
    windowed,
)
from riverrun.testing import TopologyTestDriver

SIZE_MS = 10
times_of_records = st.lists(st.integers(0, 60), max_size=40)


def ms(count: int) -> timedelta:
    return timedelta(milliseconds=count)


def by_watermark(times: list[int], out_of_orderness_ms: int) -> list[tuple[int, int]]:
    """The windows, by start, with the counts that Flink emits for one partition, in order.

    Its `BoundedOutOfOrdernessWatermarks` are 1 ms behind the highest time minus the bound. A window fires when the watermark
    reaches its last millisecond (`EventTimeTrigger`). Later records are dropped.
    """
    fired, counts, watermark = list[tuple[int, int]](), Counter[int](), -out_of_orderness_ms - 1
    for time in times:
        start = time - time % SIZE_MS
        if start + SIZE_MS - 1 > watermark:
            counts[start] += 1
        watermark = max(watermark, time - out_of_orderness_ms - 1)
        closed = sorted(each for each in counts if each + SIZE_MS - 1 <= watermark)
        fired += [(each, counts.pop(each)) for each in closed]
    return fired


def by_grace(times: list[int], grace_ms: int) -> list[tuple[int, int]]:
    builder = StreamsBuilder()
    windows = TimeWindows.of(ms(SIZE_MS), grace=ms(grace_ms))
    grouped = builder.stream("in", Consumed(STRING, STRING)).group_by_key().windowed_by(windows)
    counts = grouped.emit_strategy(EmitStrategy.on_window_close()).count(Materialized(name="counts"))
    serde = windowed(STRING, ms(SIZE_MS))
    counts.to_stream().to("out", Produced(serde, LONG))
    with TopologyTestDriver(builder.build()) as driver:
        source = driver.input_topic("in", STRING, STRING)
        for time in times:
            source.pipe_input("k", "v", timestamp=time)
        found = driver.output_topic("out", serde, LONG).read_key_values_to_list()
    return [(key.window.start, count) for key, count in found if key is not None and count is not None]


@given(times_of_records, st.integers(0, 30))
def test_a_grace_closes_windows_as_a_bounded_out_of_orderness_does(times: list[int], bound_ms: int) -> None:
    assert by_grace(times, bound_ms) == by_watermark(times, bound_ms)
