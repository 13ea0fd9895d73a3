"""User code that calls `sys.exit` fails like any other: it ends no process, and its handler is asked."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from pipeline import (
    STRING,
    Consumed,
    Grouped,
    Materialized,
    Processor,
    Produced,
    PunctuationType,
    Serde,
    StreamsBuilder,
    StreamsError,
)
from pipeline.testing import TopologyTestDriver
from tests import handlers

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline import Topology

STRINGS, TO_STRINGS = Consumed(STRING, STRING), Produced(STRING, STRING)
PLACE = "task 0_0, topic in, partition 0, offset 1"


def leave(value: Any) -> Any:
    """Of "bad" it ends the program."""
    if value in {"bad", b"bad"}:
        sys.exit("enough")
    return value


READING = Serde("leaving", lambda value: value.encode(), lambda data: leave(data).decode())
WRITING = Serde("leaving", lambda value: leave(value).encode(), bytes.decode)


def build(operate: Callable[[Any], Any], consumed: Any = STRINGS, produced: Any = TO_STRINGS) -> Topology:
    builder = StreamsBuilder()
    operate(builder.stream("in", consumed)).to("out", produced)
    return builder.build()


class Punctuating(Processor[str, str]):
    def init(self, context: Any) -> None:
        self._values: list[str] = []
        context.schedule(timedelta(milliseconds=1), PunctuationType.STREAM_TIME, lambda _ms: leave(self._values[-1]))

    def process(self, record: Any) -> None:
        self._values.append(record.value)


def counted(stream: Any) -> Any:
    stored = Materialized("last", STRING, WRITING, caching=False)
    return stream.group_by_key(Grouped(STRING, STRING)).reduce(lambda _old, new: new, stored).to_stream()


def cached(stream: Any) -> Any:
    table = stream.group_by_key(Grouped(STRING, STRING)).reduce(lambda _old, new: new, Materialized("last"))
    return table.to_stream().map_values(leave)


def leaves_by_time(record: Any, _partition_time: int) -> int:
    leave(record.value)
    return int(record.timestamp)


CASES: dict[str, tuple[Topology, str, str]] = {
    "an operator": (build(lambda s: s.map_values(leave)), "processing", PLACE),
    "a source's serde": (build(lambda s: s, Consumed(STRING, READING)), "deserialization", PLACE),
    "an extractor": (build(lambda s: s, Consumed(STRING, STRING, leaves_by_time)), "deserialization", PLACE),
    "a sink's serde": (build(lambda s: s, produced=Produced(STRING, WRITING)), "production", PLACE),
    "a store's serde": (build(counted), "processing", PLACE),
    "behind a cache": (build(cached), "processing", "task 0_0"),
    "a punctuation": (build(lambda s: s.process(Punctuating)), "processing", PLACE),
}


def run(topology: Topology, **settings: str) -> TopologyTestDriver:
    driver = TopologyTestDriver(topology, settings)
    for number, value in enumerate([b"good", b"bad"]):
        driver._pipe("in", b"k", value, number + 10, ())
    return driver


@pytest.mark.parametrize("case", CASES)
def test_an_exit_in_user_code_is_an_error_that_names_the_record(case: str) -> None:
    topology, _, place = CASES[case]
    with pytest.raises(StreamsError, match=rf"sys\.exit\('enough'\) was called.*\({place}"):
        run(topology)


@pytest.mark.parametrize("case", CASES)
def test_a_handler_is_asked_about_an_exit_as_about_any_error(case: str) -> None:
    topology, kind, _ = CASES[case]
    handlers.asked.clear()
    driver = run(topology, **{f"{kind}.exception.handler": "tests.handlers:skip"})
    assert sum(driver.dropped().values()) == len(handlers.asked) == 1
    exception = handlers.asked[0][2]
    assert "sys.exit('enough') was called" in str(exception)


def test_a_handler_that_exits_is_fatal_as_one_that_raises() -> None:
    topology = CASES["an operator"][0]
    with pytest.raises(
        StreamsError, match=r"Fatal user code error in processing error callback: RuntimeError: sys\.exit"
    ):
        run(topology, **{"processing.exception.handler": "tests.handlers:exiting"})


def test_an_interrupt_in_user_code_goes_on_its_way() -> None:
    def interrupted(_value: str) -> str:
        raise KeyboardInterrupt

    for settings in ({}, {"processing.exception.handler": "continue"}):
        with pytest.raises(KeyboardInterrupt):
            run(build(lambda s: s.map_values(interrupted)), **settings)
