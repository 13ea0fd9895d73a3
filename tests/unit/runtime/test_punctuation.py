"""Punctuations: when they are called, by either clock (`PunctuationQueueTest`, `StreamTaskTest`)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from riverrun import STRING, Consumed, Produced, PunctuationType, Record, StreamsBuilder, TopologyError
from riverrun.runtime.times import Punctuations
from riverrun.testing import TopologyTestDriver

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun import Cancellable, ProcessorContext

STREAM, WALL = PunctuationType.STREAM_TIME, PunctuationType.WALL_CLOCK_TIME


def ms(count: int) -> timedelta:
    return timedelta(milliseconds=count)


class Scheduling:
    """Runs a function in `init`; forwards nothing by itself."""

    def __init__(self, schedule: Callable[[ProcessorContext], object]) -> None:
        self._schedule = schedule

    def init(self, context: ProcessorContext) -> None:
        self._schedule(context)

    def process(self, record: Record[str, str]) -> None:
        """Records only move time."""

    def close(self) -> None:
        """Do nothing."""


def driver_with(schedule: Callable[[ProcessorContext], object], wall_clock_ms: int = 0) -> TopologyTestDriver:
    builder = StreamsBuilder()
    builder.stream("in", Consumed(STRING, STRING)).process(lambda: Scheduling(schedule)).to(
        "out", Produced(STRING, STRING)
    )
    return TopologyTestDriver(builder.build(), initial_wall_clock_time_ms=wall_clock_ms)


def stream_times(driver: TopologyTestDriver, *times: int) -> None:
    for time in times:
        driver.input_topic("in", STRING, STRING).pipe_input("k", "v", timestamp=time)


@pytest.mark.parametrize("first_ms", [0, 50])
def test_the_grid_is_kept_and_missed_intervals_are_not_caught_up(first_ms: int) -> None:
    """The tables of `testPunctuationInterval` and `testPunctuationIntervalCustomAlignment`."""
    called: list[int] = []
    punctuations = Punctuations()
    punctuations.schedule(first_ms, ms(100), called.append)
    counts = []
    for since_first_ms in (-100, -1, 0, 99, 100, 901, 902, 1000):
        punctuations.fire(first_ms + since_first_ms)
        counts.append(len(called))
    assert counts == [0, 0, 1, 1, 2, 3, 3, 4]


@pytest.mark.parametrize("back_ms", [1, 99, 100, 250, 3_600_049, 86_400_000])
def test_a_wall_clock_that_is_set_back_delays_a_punctuation_by_an_interval_at_most(back_ms: int) -> None:
    called: list[int] = []
    punctuations = Punctuations()
    punctuations.schedule(100_000_000, ms(100), called.append)
    later = punctuations.schedule(100_000_750, ms(100), lambda _: None)

    def until(times: range) -> None:
        for now_ms in times:
            if punctuations.is_due(now_ms):
                punctuations.fire(now_ms)

    until(range(100_000_000, 100_000_520))
    assert called == [100_000_000 + n * 100 for n in range(6)]
    called.clear()
    back = 100_000_519 - back_ms
    until(range(back, back + 200))
    assert len(called) == 2
    assert all(time_ms % 100 == 0 for time_ms in called), "on the grid of the first one"
    assert later.due_ms == 100_000_750, "what has not begun yet waits for its time"


@pytest.mark.parametrize("forward_ms", [100, 3_600_010])
def test_a_wall_clock_that_is_set_forward_punctuates_once(forward_ms: int) -> None:
    called: list[int] = []
    punctuations = Punctuations()
    punctuations.schedule(100, ms(100), called.append)
    for now_ms in (100, 150 + forward_ms, 151 + forward_ms):
        if punctuations.is_due(now_ms):
            punctuations.fire(now_ms)
    assert called == [100, 150 + forward_ms]


def test_stream_time_punctuates_at_the_first_record_and_once_per_interval() -> None:
    called: list[int] = []
    driver = driver_with(lambda context: context.schedule(ms(10), STREAM, called.append))
    assert called == []
    stream_times(driver, 3, 9, 10, 12, 47, 49, 50, 20)
    assert called == [3, 10, 47, 50]


def test_the_wall_clock_punctuates_after_an_interval_and_without_bursts() -> None:
    called: list[int] = []
    driver = driver_with(lambda context: context.schedule(ms(10), WALL, called.append))
    for step in (9, 1, 5, 40, 4, 1):
        driver.advance_wall_clock_time(ms(step))
    stream_times(driver, 1_000)
    assert called == [10, 55, 60]


def test_a_punctuation_that_cancels_itself_is_not_called_again() -> None:
    called: list[int] = []

    def schedule(context: ProcessorContext) -> None:
        def punctuate(time_ms: int) -> None:
            called.append(time_ms)
            own[0].cancel()

        own: list[Cancellable] = [context.schedule(ms(10), STREAM, punctuate)]

    stream_times(driver_with(schedule), 0, 10, 20)
    assert called == [0]


def test_a_punctuation_cancelled_by_one_that_is_due_at_the_same_time_is_not_called() -> None:
    called: list[str] = []
    own: list[Cancellable] = []

    def schedule(context: ProcessorContext) -> None:
        def first(_time_ms: int) -> None:
            called.append("first")
            own[0].cancel()

        context.schedule(ms(10), STREAM, first)
        own.append(context.schedule(ms(10), STREAM, lambda _time_ms: called.append("second")))

    stream_times(driver_with(schedule), 0, 10)
    assert called == ["first", "first"]


def test_what_a_punctuation_schedules_is_called_at_once_if_it_is_due() -> None:
    called: list[str] = []

    def schedule(context: ProcessorContext) -> None:
        def once(time_ms: int) -> None:
            called.append(f"outer@{time_ms}")
            own[0].cancel()
            context.schedule(ms(100), STREAM, lambda at_ms: called.append(f"inner@{at_ms}"))

        own: list[Cancellable] = [context.schedule(ms(10), STREAM, once)]

    stream_times(driver_with(schedule), 5, 6)
    assert called == ["outer@5", "inner@5"]


def test_a_punctuation_has_no_record_and_its_own_time() -> None:
    def schedule(context: ProcessorContext) -> None:
        def punctuate(time_ms: int) -> None:
            stream_ms, system_ms = context.current_stream_time_ms(), context.current_system_time_ms()
            context.forward(Record("k", f"{context.record_metadata} {stream_ms} {system_ms}", time_ms))

        context.schedule(ms(10), WALL, punctuate)

    driver = driver_with(schedule)
    stream_times(driver, 7)
    driver.advance_wall_clock_time(ms(10))
    assert driver.output_topic("out", STRING, STRING).read_record() == Record("k", "None 7 10", 10)


def test_an_interval_below_a_millisecond_is_refused() -> None:
    with pytest.raises(TopologyError, match="minimum supported scheduling interval"):
        driver_with(lambda context: context.schedule(ms(0), STREAM, print))


@pytest.mark.parametrize(("start_ms", "called_at"), [(70, [70, 170]), (0, [100, 200]), (10, [110, 210])])
def test_a_punctuation_with_a_start_keeps_to_the_grid_that_begins_there(start_ms: int, called_at: list[int]) -> None:
    called: list[int] = []

    def schedule(context: ProcessorContext) -> None:
        context.schedule(ms(100), WALL, called.append, start_ms=start_ms)

    with driver_with(schedule, wall_clock_ms=50) as driver:
        for _ in range(17):
            driver.advance_wall_clock_time(ms(10))
    assert called == called_at


def test_by_stream_time_the_start_is_waited_for() -> None:
    called: list[int] = []
    with driver_with(lambda context: context.schedule(ms(100), STREAM, called.append, start_ms=150)) as driver:
        stream_times(driver, 10, 149, 160, 249, 260)
    assert called == [160, 260]


def test_a_start_before_the_epoch_is_refused() -> None:
    with pytest.raises(TopologyError, match="start time is the epoch, not -1 ms"):
        driver_with(lambda context: context.schedule(ms(100), WALL, print, start_ms=-1))
