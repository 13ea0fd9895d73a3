"""A function that never returns is named with its record, and fails once it has been tried often enough."""

from __future__ import annotations

import signal
import sys
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import STRING, Consumed, ProcessingError, Produced, StreamsBuilder
from riverrun.runtime import stuck_records as named
from riverrun.runtime.stuck_records import StuckRecord, named_if_stuck, stuck_at
from riverrun.testing import TopologyTestDriver
from riverrun.worker.stuck_records import TRIES, RecordWatch, Tries, named_after_s
from tests.unit.runtime.test_exits import CASES, present, run
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from riverrun import Topology

LIMIT_S = 20.0
RECORD = StuckRecord("0_0", "", "in", 0, 1, 0.0)


@pytest.fixture
def found() -> Iterator[list[StuckRecord | None]]:
    places: list[StuckRecord | None] = []
    present.append(lambda: places.append(stuck_at(sys._getframe(1), lambda _thing: "")))
    yield places
    present.clear()


@pytest.mark.parametrize("case", CASES)
def test_the_record_is_found_whatever_kind_of_function_is_stuck(case: str, found: list[StuckRecord | None]) -> None:
    topology, _, place = CASES[case]
    try:
        run(topology)
    except ProcessingError:  # the partitioner names no partition
        assert case == "a partitioner"
    record = found[0]
    assert record is not None
    assert record.task == "0_0"
    if place.endswith("offset 1"):
        assert (record.topic, record.partition, record.offset) == ("in", 0, 1)


def test_a_host_that_replaces_no_thread_names_the_record_in_its_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(named, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(named, "NAMED_SECONDS", 0.05)

    def wait(value: str) -> str:
        until(lambda: value != "stuck" or "has not returned" in caplog.text, "named")
        return value

    builder = StreamsBuilder()
    builder.stream("in", Consumed(STRING, STRING)).map_values(wait).to("out", Produced(STRING, STRING))
    with TopologyTestDriver(builder.build()) as driver, named_if_stuck(lambda _thing: ""):
        for value in ("quick", "stuck", "quick"):
            driver.input_topic("in", STRING, STRING).pipe_input("k", value)
    assert "s: task 0_0, record in-0@1, node KSTREAM-MAPVALUES-0000000001" in caplog.text


@pytest.mark.parametrize("ordered", [False, True])
def test_a_look_up_that_does_not_return_is_named_where_records_wait_for_it(
    ordered: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(named, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(named, "NAMED_SECONDS", 0.05)

    async def blocks_the_loop(value: str) -> str:
        until(lambda: value != "stuck" or "has not returned" in caplog.text, "named")
        return value

    builder = StreamsBuilder()
    asked = builder.stream("in", Consumed(STRING, STRING)).map_values_async(blocks_the_loop, ordered=ordered)
    asked.to("out", Produced(STRING, STRING))
    with TopologyTestDriver(builder.build()) as driver, named_if_stuck(lambda _thing: ""):
        for value in ("quick", "stuck", "quick"):
            driver.input_topic("in", STRING, STRING).pipe_input("k", value)
    assert "s: task 0_0, record in-0@1, node KSTREAM-MAPVALUESASYNC-0000000001" in caplog.text


class Watched:
    """A thread that has been silent for so long, and what it tells its instance."""

    def __init__(self) -> None:
        self.silent_s = 0.0
        self.told: list[StuckRecord] = []
        self.watch = RecordWatch(lambda _thing: "", lambda: self.silent_s, self.told.append, LIMIT_S)

    def look(self, _number: int, frame: Any) -> None:
        self.watch.look(frame)


def mapping(function: Callable[[str], str]) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("in", Consumed(STRING, STRING)).map_values(function)
    stream.to("out", Produced(STRING, STRING))
    return builder.build()


def asks(_value: str) -> str:
    signal.raise_signal(signal.SIGURG)
    return "returned"


def loops(_value: str) -> str:
    while True:
        signal.raise_signal(signal.SIGURG)


def waits(_value: str) -> str:
    threading.Timer(0.05, signal.pthread_kill, (threading.main_thread().ident, signal.SIGURG)).start()
    threading.Event().wait()
    return ""


def sleeps(_value: str) -> str:
    threading.Timer(0.05, signal.pthread_kill, (threading.main_thread().ident, signal.SIGURG)).start()
    time.sleep(1000)
    return ""


@pytest.fixture
def watched() -> Iterator[Watched]:
    some = Watched()
    before = signal.signal(signal.SIGURG, some.look)
    yield some
    signal.signal(signal.SIGURG, before)


def piped(function: Callable[[str], str], **settings: str) -> TopologyTestDriver:
    driver = TopologyTestDriver(mapping(function), {name.replace("_", "."): value for name, value in settings.items()})
    topic = driver.input_topic("in", STRING, STRING)
    topic.pipe_input("k", "first")
    return driver


def test_a_record_that_takes_long_is_told_and_goes_on(watched: Watched) -> None:
    piped(asks)
    assert watched.told == []
    watched.silent_s = named_after_s(LIMIT_S)
    driver = piped(asks)
    assert [(each.task, each.topic, each.offset) for each in watched.told] == [("0_0", "in", 0)]
    assert watched.told[0].node.startswith("KSTREAM-MAPVALUES")
    assert driver.output_topic("out", STRING, STRING).read_value() == "returned"


@pytest.mark.parametrize("function", [loops, waits, sleeps])
def test_a_function_that_was_tried_often_enough_fails_and_the_handler_decides(
    watched: Watched, function: Callable[[str], str]
) -> None:
    watched.silent_s = LIMIT_S
    watched.watch.tried = [replace(RECORD, offset=0)]
    with pytest.raises(ProcessingError, match=r"not returned within 20 s.*task 0_0, topic in, partition 0, offset 0"):
        piped(function)
    watched.watch._next_at = 0.0
    driver = piped(function, processing_exception_handler="continue")
    assert driver.dropped() == {"processing-failed": 1}


def test_another_record_than_the_one_that_was_tried_is_left_alone(watched: Watched) -> None:
    watched.silent_s = LIMIT_S
    watched.watch.tried = [RECORD]
    assert piped(asks).output_topic("out", STRING, STRING).read_value() == "returned"
    assert len(watched.told) == 1


def test_a_record_is_tried_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    tries, other, nowhere = Tries(LIMIT_S), replace(RECORD, offset=2), replace(RECORD, topic="")
    for number in range(1, TRIES + 1):
        assert not tries.is_over(RECORD)
        tries.note(replace(RECORD, node=f"node-{number}"))
        assert bool(tries.enough()) == (number >= TRIES - 1)
    assert tries.is_over(RECORD)
    assert not any(map(tries.is_over, (other, nowhere, None)))
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 11 * LIMIT_S)
    tries.note(other)
    assert not tries.is_over(RECORD)
