"""However user code ends, it fails like any other: it ends no process, and its handler is asked."""

from __future__ import annotations

import re
import signal
import sys
import threading
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
from tests.unit.ends import ENDS, OwnError, interrupted, own

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from riverrun import Topology

STRINGS, TO_STRINGS = Consumed(STRING, STRING), Produced(STRING, STRING)
PLACE = "task 0_0, topic in, partition 0, offset 1"


present: list[Callable[[], Any]] = []


@pytest.fixture(params=ENDS, ids=lambda end: end.__name__)
def message(request: pytest.FixtureRequest) -> Iterator[str]:
    """Return the words for the way in which `leave` ends."""
    present.append(request.param)
    yield ENDS[request.param]
    present.clear()


def leave(value: Any) -> Any:
    """Of "bad" it ends in the present way, or ends the program."""
    if value in {"bad", b"bad"}:
        present[0]() if present else sys.exit("enough")
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


def grouped(stream: Any) -> Any:
    return stream.group_by_key(Grouped(STRING, STRING))


def aggregated(stream: Any) -> Any:
    stored = Materialized(STRING, STRING, name="last", caching=False)
    return grouped(stream).aggregate(str, lambda _key, value, _old: leave(value), stored).to_stream()


def joined(stream: Any) -> Any:
    table = grouped(stream).reduce(lambda _old, new: new, Materialized(STRING, STRING, name="last"))
    return stream.join(table, lambda value, _last: leave(value))


def generated(stream: Any) -> Any:
    return stream.flat_map_values(lambda value: (leave(each) for each in [value]))


CASES: dict[str, tuple[Topology, str, str]] = {
    # what fails, the kind of handler that is asked (none about partitioners), and where
    "an operator": (build(lambda s: s.map_values(leave)), "processing", PLACE),
    "a source's serde": (build(lambda s: s, Consumed(STRING, READING)), "deserialization", PLACE),
    "an extractor": (build(lambda s: s, Consumed(STRING, STRING, leaves_by_time)), "deserialization", PLACE),
    "a sink's serde": (build(lambda s: s, produced=Produced(STRING, WRITING)), "production", PLACE),
    "a store's serde": (build(counted), "processing", PLACE),
    "behind a cache": (build(cached), "processing", "task 0_0"),
    "an aggregator": (build(aggregated), "processing", PLACE),
    "a joiner": (build(joined), "processing", PLACE),
    "a generator": (build(generated), "processing", PLACE),
    "a filter": (build(lambda s: s.filter(lambda _key, value: bool(leave(value)))), "processing", PLACE),
    "an action": (build(lambda s: s.peek(lambda _key, value: leave(value))), "processing", PLACE),
    "a partitioner": (
        build(lambda s: s, produced=Produced(STRING, STRING, partitioner=lambda _t, _k, v, _n: leave(v) and 0)),
        "",
        PLACE,
    ),
    "a punctuation": (build(lambda s: s.process(Punctuating)), "processing", PLACE),
}


def run(topology: Topology, **settings: str) -> TopologyTestDriver:
    driver = TopologyTestDriver(topology, settings)
    for number, value in enumerate([b"good", b"bad"]):
        driver._pipe("in", b"k", value, number + 10, ())
    return driver


@pytest.mark.parametrize("case", CASES)
def test_however_user_code_ends_the_error_names_the_record(case: str, message: str) -> None:
    topology, _, place = CASES[case]
    with pytest.raises(StreamsError, match=rf"(?s){message}.*\({place}"):
        run(topology)


@pytest.mark.parametrize("case", [case for case, (_, kind, _) in CASES.items() if kind])
def test_a_handler_is_asked_however_user_code_ends(case: str, message: str) -> None:
    topology, kind, _ = CASES[case]
    handlers.asked.clear()
    driver = run(topology, **{f"{kind}.exception.handler": "tests.handlers:skip"})
    assert sum(driver.dropped().values()) == len(handlers.asked) == 1
    exception = handlers.asked[0][2]
    assert re.search(message, f"{type(exception).__name__}: {exception}")


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


SIGNALS = {
    "the default handler": signal.default_int_handler,
    "a function": lambda _number, _frame: own(),
    "a function that interrupts": lambda _number, _frame: interrupted(),
}


@pytest.mark.parametrize("handler", SIGNALS)
@pytest.mark.parametrize("settings", [{}, {"processing.exception.handler": "continue"}], ids=["plain", "handler"])
@pytest.mark.parametrize("case", CASES)
def test_a_signal_that_interrupts_user_code_goes_on_its_way(case: str, settings: dict[str, str], handler: str) -> None:
    before = signal.signal(signal.SIGINT, SIGNALS[handler])
    present.append(lambda: signal.raise_signal(signal.SIGINT))
    try:
        with pytest.raises((KeyboardInterrupt, OwnError)):
            run(CASES[case][0], **settings)
    finally:
        present.clear()
        signal.signal(signal.SIGINT, before)


def test_what_another_thread_raises_interrupts_nothing() -> None:
    found: list[BaseException] = []

    def works() -> None:
        try:
            run(CASES["an operator"][0])
        except BaseException as error:  # noqa: BLE001 - it is what is looked at
            found.append(error)

    present.append(interrupted)
    thread = threading.Thread(target=works)
    thread.start()
    thread.join()
    present.clear()
    assert isinstance(found[0], ProcessingError)
