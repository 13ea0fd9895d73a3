"""User code that calls `sys.exit` fails like any other: it ends no process, and its handler is asked."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import (
    STRING,
    Consumed,
    Grouped,
    KTable,
    Materialized,
    Named,
    ProcessingError,
    Processor,
    ProcessorContext,
    Produced,
    PunctuationType,
    Serde,
    StreamsBuilder,
    StreamsError,
    ValueTransformerWithKey,
)
from riverrun.state.api import StoreBuilder, StoreKind
from riverrun.testing import TopologyTestDriver
from tests import handlers

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun import Topology

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
    def init(self, context: ProcessorContext) -> None:
        self._values: list[str] = []
        context.schedule(timedelta(milliseconds=1), PunctuationType.STREAM_TIME, lambda _ms: leave(self._values[-1]))

    def process(self, record: Any) -> None:
        self._values.append(record.value)


def counted(stream: Any) -> Any:
    stored = Materialized(STRING, WRITING, name="last", caching=False)
    return stream.group_by_key(Grouped(STRING, STRING)).reduce(lambda _old, new: new, stored).to_stream()


def cached(stream: Any) -> Any:
    table = stream.group_by_key(Grouped(STRING, STRING)).reduce(lambda _old, new: new, Materialized(name="last"))
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


class Leaving(Processor[str, str], ValueTransformerWithKey[str, str, str]):
    """Ends the program in one of its methods."""

    def __init__(self, where: str) -> None:
        self._where = where

    def init(self, _context: Any) -> None:
        self._end("init")

    def process(self, record: Any) -> None: ...

    def close(self) -> None:
        self._end("close")

    def transform(self, _key: str, value: str | None) -> str | None:
        return value

    def _end(self, method: str) -> None:
        if method == self._where:
            sys.exit("enough")


def processing(supplier: Callable[[], Any]) -> Topology:
    return build(lambda s: s.process(supplier, named=Named("own")))


def transforming(where: str) -> Topology:
    builder = StreamsBuilder()
    table: KTable[str, str] = builder.table("in", STRINGS).transform_values(lambda: Leaving(where), named=Named("own"))
    table.to_stream().to("out", TO_STRINGS)
    return builder.build()


def filling(where: str) -> Topology:
    builder = StreamsBuilder()
    store = StoreBuilder("all", StoreKind.KEY_VALUE, STRING, STRING)
    builder.add_global_store(store, "in", STRINGS, lambda: Leaving(where))
    return builder.build()


AT_START: dict[str, tuple[Callable[[str], Topology], str]] = {
    "a processor": (lambda where: processing(lambda: Leaving(where)), r"of own failed.*\(task 0_0\)"),
    "a transformer": (transforming, r"of own failed.*\(task 0_0\)"),
    "a global store's processor": (filling, r"of KSTREAM-SOURCE-\d+|of KTABLE-SOURCE-\d+"),
}


@pytest.mark.parametrize("case", AT_START)
@pytest.mark.parametrize("where", ["init", "close"])
@pytest.mark.parametrize("settings", [{}, {"processing.exception.handler": "continue"}], ids=["plain", "handler"])
def test_an_exit_where_there_is_no_record_names_the_method_and_its_processor(
    case: str, where: str, settings: dict[str, str]
) -> None:
    make, place = AT_START[case]
    with pytest.raises(ProcessingError, match=rf"{where}\(\) {place}"), TopologyTestDriver(make(where), settings):
        pass


def test_an_exit_in_a_supplier_names_the_processor() -> None:
    is_built = False

    def supplied() -> Leaving:
        return sys.exit("enough") if is_built else Leaving("")

    topology = processing(supplied)
    is_built = True
    with pytest.raises(ProcessingError, match=r"supplier of own failed: RuntimeError: sys\.exit\('enough'\)"):
        TopologyTestDriver(topology)


def test_all_processors_are_closed_even_if_one_of_them_fails() -> None:
    closed = []

    class Closing(Leaving):
        def close(self) -> None:
            closed.append(True)
            sys.exit("enough")

    topology = build(lambda s: s.process(lambda: Closing("")).process(lambda: Closing("")))
    with pytest.raises(ProcessingError, match=r"close\(\) of"), TopologyTestDriver(topology):
        pass
    assert len(closed) == 2


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
