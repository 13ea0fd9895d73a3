"""Timers of keys: they are called in order, once, and outlive the tasks that set them."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import STRING, Consumed, KeyTimers, Processor, Produced, PunctuationType, Record, StreamsBuilder
from riverrun.errors import ProcessingError
from riverrun.testing import TopologyTestDriver
from tests.restarts import Restarts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from riverrun import Topology

pytestmark = pytest.mark.driver


class Reminders(Processor[str, str, str, str]):
    """Sets a timer for each number, cancels it for `stop`, and tells it for `ask`."""

    clock = PunctuationType.STREAM_TIME

    def init(self, context: Any) -> None:
        self.context = context
        self.timers = KeyTimers(context, "reminders", STRING, self.remind, self.clock)

    def process(self, record: Record[str, str]) -> None:
        if record.value == "stop":
            self.timers.cancel(record.key)
        elif record.value == "ask":
            self.context.forward(Record(record.key, str(self.timers.time_of(record.key)), record.timestamp))
        else:
            self.timers.set(record.key, int(record.value))

    def remind(self, key: str, at_ms: int) -> None:
        self.context.forward(Record(key, f"at {at_ms}", at_ms))
        if key == "again" and at_ms < 50:
            self.timers.set(key, at_ms + 20)


class WallReminders(Reminders):
    clock = PunctuationType.WALL_CLOCK_TIME


def topology(supplier: type[Reminders] = Reminders) -> Topology:
    builder = StreamsBuilder()
    builder.add_state_store(KeyTimers.store("reminders"))
    stream = builder.stream("in", Consumed(STRING, STRING))
    stream.process(supplier, "reminders").to("out", Produced(STRING, STRING))
    return builder.build()


@pytest.fixture
def driver() -> Iterator[TopologyTestDriver]:
    with TopologyTestDriver(topology()) as driver:
        yield driver


def piped(driver: TopologyTestDriver, key: str, value: str, at_ms: int) -> list[tuple[Any, Any]]:
    """Pipe a record, and return what has been forwarded since the last one."""
    driver.input_topic("in", STRING, STRING).pipe_input(key, value, timestamp=at_ms)
    return driver.output_topic("out", STRING, STRING).read_key_values_to_list()


def test_timers_are_called_once_in_the_order_of_their_times_and_keys(driver: TopologyTestDriver) -> None:
    assert piped(driver, "b", "30", 0) == []
    assert piped(driver, "c", "20", 1) == []
    assert piped(driver, "a", "30", 2) == []
    assert piped(driver, "z", "1000", 19) == []
    assert piped(driver, "z", "1000", 35) == [("c", "at 20"), ("a", "at 30"), ("b", "at 30")]
    assert piped(driver, "z", "1000", 999) == []


def test_a_key_has_one_timer_which_a_later_one_replaces(driver: TopologyTestDriver) -> None:
    piped(driver, "a", "10", 0)
    piped(driver, "a", "40", 1)
    assert piped(driver, "a", "ask", 20) == [("a", "40")]
    assert piped(driver, "b", "90", 40) == [("a", "at 40")]
    assert piped(driver, "a", "ask", 41) == [("a", "None")]


def test_a_cancelled_timer_is_not_called(driver: TopologyTestDriver) -> None:
    piped(driver, "a", "10", 0)
    piped(driver, "a", "stop", 1)
    assert piped(driver, "b", "stop", 20) == []


def test_a_call_may_set_timers_also_for_times_that_have_passed(driver: TopologyTestDriver) -> None:
    piped(driver, "again", "10", 0)
    piped(driver, "b", "45", 1)
    assert piped(driver, "z", "stop", 60) == [
        ("again", "at 10"), ("b", "at 45"), ("again", "at 30"), ("again", "at 50"),
    ]  # fmt: skip


def test_more_timers_than_are_read_together_are_all_called(driver: TopologyTestDriver) -> None:
    keys = [f"{n:04}" for n in range(2500)]
    for key in keys:
        piped(driver, key, "10", 0)
    assert [key for key, _ in piped(driver, "z", "stop", 10)] == keys


@pytest.mark.parametrize("loses_state", [False, True])
def test_timers_are_restored_with_their_task(driver: TopologyTestDriver, *, loses_state: bool) -> None:
    piped(driver, "a", "30", 0)
    piped(driver, "b", "20", 1)
    restarts = Restarts(driver, loses_state=loses_state)
    restarts.restart()
    assert piped(driver, "z", "stop", 25) == [("b", "at 20")]
    restarts.restart()
    assert piped(driver, "z", "stop", 35) == [("a", "at 30")]


def test_timers_may_follow_the_wall_clock() -> None:
    with TopologyTestDriver(topology(WallReminders), initial_wall_clock_time_ms=0) as driver:
        assert piped(driver, "a", "250", 5_000) == []
        driver.advance_wall_clock_time(timedelta(milliseconds=200))
        assert driver.output_topic("out", STRING, STRING).is_empty()
        driver.advance_wall_clock_time(timedelta(milliseconds=100))
        assert driver.output_topic("out", STRING, STRING).read_key_value() == ("a", "at 250")


def test_a_time_that_does_not_exist_is_refused(driver: TopologyTestDriver) -> None:
    with pytest.raises(ProcessingError, match="a timer of 'a' is set to -1 ms, which is not between 0 and"):
        piped(driver, "a", "-1", 0)
