"""Samples charge the node whose function computes, of whatever kind it is, below a chain of fused operators."""

from __future__ import annotations

import signal
import threading
import time
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from riverrun import (
    STRING,
    Branched,
    BufferConfig,
    Consumed,
    GlobalKTable,
    Grouped,
    Joined,
    JoinWindows,
    KStream,
    Materialized,
    Named,
    Produced,
    Record,
    Serde,
    SlidingWindows,
    StreamJoined,
    StreamsBuilder,
    Suppressed,
    TableJoined,
    TimeWindows,
    windowed,
)
from riverrun.testing import TopologyTestDriver
from riverrun.worker import node_sampling
from riverrun.worker.node_sampling import SIGNAL, NodeTimes, clocked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from riverrun import KTable, ProcessorContext

    Burn = Callable[[], str]
    Texts = KStream[str, str]
    Kind = Callable[[StreamsBuilder, Texts, Burn], None]

FIVE = timedelta(minutes=5)
MOST_RECORDS = 2_000
ENOUGH_S = 0.01
DEAR = "dear"
STORED: Materialized[str, str] = Materialized(name="stored", value_serde=STRING)
MANY = list(range(20_000))


def loops() -> str:
    """Compute in Python."""
    total = 0
    for number in range(8_000):
        total += number
    return str(total % 7)


def calls() -> str:
    """Compute in one call of a function in C."""
    return str(sum(range(20_000)) % 7)


def operates() -> str:
    """Compute in an operator, after which Python handles no signal before the next call."""
    return "1" if -1 in MANY else "0"


BURNS = (loops, calls, operates)


class Forwarding:
    """Computes, then forwards, then computes no more."""

    def __init__(self, burn: Burn) -> None:
        self._burn = burn

    def init(self, context: ProcessorContext) -> None:
        self._context = context

    def process(self, record: Record[str, str]) -> None:
        self._context.forward(record.with_value(self._burn()))

    def close(self) -> None:
        """Do nothing."""


class Ending(Forwarding):
    """Forwards first."""

    def process(self, record: Record[str, str]) -> None:
        self._context.forward(record)
        self._burn()


def below(stream: Texts) -> None:
    """Cheap nodes below."""
    stream.map_values(lambda v: v, named=Named("below")).filter(lambda _k, _v: True, named=Named("kept")).to(
        "out", Produced(STRING, STRING, name="the-sink")
    )


def mapper(_builder: StreamsBuilder, texts: Texts, burn: Burn) -> None:
    below(texts.map_values(lambda _v: burn(), named=Named(DEAR)))


def predicate(_builder: StreamsBuilder, texts: Texts, burn: Burn) -> None:
    below(texts.filter(lambda _k, _v: burn() != "", named=Named(DEAR)))


def predicate_that_drops(_builder: StreamsBuilder, texts: Texts, burn: Burn) -> None:
    below(texts.filter(lambda _k, _v: burn() == "", named=Named(DEAR)))


def branch(_builder: StreamsBuilder, texts: Texts, burn: Burn) -> None:
    split = texts.split(named=Named("split-")).branch(lambda _k, v: v == "none", Branched("one"))
    others = split.default_branch(Branched("others"))["split-others"]
    below(others.map_values(lambda _v: burn(), named=Named(DEAR)))


def sibling(_builder: StreamsBuilder, texts: Texts, burn: Burn) -> None:
    texts.map_values(lambda v: v, named=Named("first")).to("first", Produced(STRING, STRING))
    texts.map_values(lambda _v: burn(), named=Named(DEAR)).to("second", Produced(STRING, STRING))
    texts.map_values(lambda v: v, named=Named("last")).to("last", Produced(STRING, STRING))


def flat_mapper(_builder: StreamsBuilder, texts: Texts, burn: Burn) -> None:
    below(texts.flat_map_values(lambda v: (burn(), v), named=Named(DEAR)))


def generator(_builder: StreamsBuilder, texts: Texts, burn: Burn) -> None:
    def each(value: str) -> Iterator[str]:
        yield value
        yield burn()

    below(texts.flat_map_values(each, named=Named(DEAR)))


def processor(_builder: StreamsBuilder, texts: Texts, burn: Burn) -> None:
    below(texts.process(lambda: Forwarding(burn), named=Named(DEAR)))


def processor_after_forwarding(_builder: StreamsBuilder, texts: Texts, burn: Burn) -> None:
    below(texts.process(lambda: Ending(burn), named=Named(DEAR)))


def below_a_processor(_builder: StreamsBuilder, texts: Texts, burn: Burn) -> None:
    made = texts.process(lambda: Forwarding(str), named=Named("forwards"))
    below(made.map_values(lambda _v: burn(), named=Named(DEAR)))


def table_join(builder: StreamsBuilder, texts: Texts, burn: Burn) -> None:
    table = builder.table("table", Consumed(STRING, STRING))
    below(texts.join(table, lambda _v, _row: burn(), joined=Joined(STRING, STRING, name=DEAR)))


def left_table_join(builder: StreamsBuilder, texts: Texts, burn: Burn) -> None:
    table = builder.table("nothing", Consumed(STRING, STRING))
    below(texts.left_join(table, lambda _v, _row: burn(), joined=Joined(STRING, STRING, name=DEAR)))


def global_join(builder: StreamsBuilder, texts: Texts, burn: Burn) -> None:
    table: GlobalKTable[str, str] = builder.global_table("table", Consumed(STRING, STRING))
    below(texts.join(table, lambda _v, _row: burn(), key_selector=lambda k, _v: k, named=Named(DEAR)))


def stream_join(builder: StreamsBuilder, texts: Texts, burn: Burn) -> None:
    other = builder.stream("table", Consumed(STRING, STRING))
    joined = StreamJoined(STRING, STRING, STRING, name=DEAR)
    below(texts.join(other, lambda _v, _other: burn(), JoinWindows.of(FIVE), joined=joined))


def self_join(_builder: StreamsBuilder, texts: Texts, burn: Burn) -> None:
    joined = StreamJoined(STRING, STRING, STRING, name=DEAR)
    windows = JoinWindows.of(timedelta(milliseconds=1))
    below(texts.join(texts, lambda _v, _other: burn(), windows, joined=joined))


def foreign_join(builder: StreamsBuilder, texts: Texts, burn: Burn) -> None:
    table = builder.table("table", Consumed(STRING, STRING))
    rows: KTable[str, str] = texts.to_table(STORED)
    named: TableJoined[str, str] = TableJoined(name=DEAR)
    joined = rows.join(table, lambda _v, _row: burn(), foreign_key_extractor=lambda _v: "k", table_joined=named)
    below(joined.to_stream())


def foreign_key_of(builder: StreamsBuilder, texts: Texts, burn: Burn) -> None:
    table = builder.table("table", Consumed(STRING, STRING))
    rows: KTable[str, str] = texts.to_table(STORED)
    named: TableJoined[str, str] = TableJoined(name=DEAR)
    joined = rows.join(table, lambda v, _row: v, foreign_key_extractor=lambda _v: "k" + burn()[:0], table_joined=named)
    below(joined.to_stream())


def tables_joined(builder: StreamsBuilder, texts: Texts, burn: Burn) -> None:
    table = builder.table("table", Consumed(STRING, STRING))
    joined = texts.to_table(STORED).join(table, lambda _v, _row: burn(), named=Named(DEAR))
    below(joined.to_stream())


def aggregate(_builder: StreamsBuilder, texts: Texts, burn: Burn) -> None:
    grouped = texts.group_by_key(Grouped(STRING, STRING))
    below(grouped.aggregate(str, lambda _k, _v, _all: burn(), STORED, named=Named(DEAR)).to_stream())


def aggregate_of_a_repartition(_builder: StreamsBuilder, texts: Texts, burn: Burn) -> None:
    grouped = texts.group_by(lambda k, _v: k, Grouped(STRING, STRING))
    below(grouped.aggregate(str, lambda _k, _v, _all: burn(), STORED, named=Named(DEAR)).to_stream())


def window(_builder: StreamsBuilder, texts: Texts, burn: Burn) -> None:
    windows = texts.group_by_key(Grouped(STRING, STRING)).windowed_by(TimeWindows.of(FIVE))
    counted = windows.aggregate(str, lambda _k, _v, _all: burn(), STORED, named=Named(DEAR))
    below(counted.to_stream().select_key(lambda k, _v: k.key, named=Named("rekeyed")))


def sliding_window(_builder: StreamsBuilder, texts: Texts, burn: Burn) -> None:
    slides = SlidingWindows.of(timedelta(milliseconds=2), grace=FIVE)
    windows = texts.group_by_key(Grouped(STRING, STRING)).windowed_by(slides)
    counted = windows.aggregate(str, lambda _k, _v, _all: burn(), STORED, named=Named(DEAR))
    below(counted.to_stream().select_key(lambda k, _v: k.key, named=Named("rekeyed")))


def below_suppressed(_builder: StreamsBuilder, texts: Texts, burn: Burn) -> None:
    windows = texts.group_by_key(Grouped(STRING, STRING)).windowed_by(TimeWindows.of(timedelta(milliseconds=1)))
    final = Suppressed.until_window_closes(BufferConfig.unbounded()).with_name("final")
    results = windows.reduce(lambda one, _other: one, STORED).suppress(final).to_stream()
    results.map_values(lambda _v: burn(), named=Named(DEAR)).to("out", Produced(windowed(STRING), STRING))


def suppressed(_builder: StreamsBuilder, texts: Texts, burn: Burn) -> None:
    waits = Suppressed.until_time_limit(timedelta(milliseconds=1), BufferConfig.max_records(1000)).with_name(DEAR)
    dear = Serde("dear", lambda text: (text + burn()[:0]).encode(), bytes.decode)
    rows = texts.to_table(Materialized(name="stored", value_serde=STRING))
    stored: Materialized[str, str] = Materialized(name="mapped", value_serde=dear)
    below(rows.map_values(lambda v: v, stored, named=Named("dear-rows")).suppress(waits).to_stream())


def sink(_builder: StreamsBuilder, texts: Texts, burn: Burn) -> None:
    dear = Serde("dear", lambda text: (text + burn()[:0]).encode(), bytes.decode)
    texts.to("out", Produced(STRING, dear, name=DEAR))


def sink_that_chooses(_builder: StreamsBuilder, texts: Texts, burn: Burn) -> None:
    texts.to(lambda _k, _v, _time: "out" + burn()[:0], Produced(STRING, STRING, name=DEAR))


def flat_lookup(_builder: StreamsBuilder, texts: Texts, burn: Burn) -> None:
    async def fetch(value: str) -> Iterator[str]:
        return (burn() for _ in value[:1])

    below(texts.flat_map_values_async(fetch, named=Named(DEAR)))


def below_a_lookup(_builder: StreamsBuilder, texts: Texts, burn: Burn) -> None:
    async def fetch(value: str) -> str:
        return value

    below(texts.map_values_async(fetch, named=Named("asks")).map_values(lambda _v: burn(), named=Named(DEAR)))


def deduplicated(_builder: StreamsBuilder, texts: Texts, burn: Burn) -> None:
    below(
        texts.deduplicate(
            FIVE, by=lambda _k, v: v + burn()[:0], materialized=Materialized(key_serde=STRING), named=Named(DEAR)
        )
    )


KINDS: tuple[Kind, ...] = (
    mapper,
    predicate,
    predicate_that_drops,
    branch,
    sibling,
    flat_mapper,
    generator,
    processor,
    processor_after_forwarding,
    below_a_processor,
    table_join,
    left_table_join,
    global_join,
    stream_join,
    self_join,
    foreign_join,
    foreign_key_of,
    tables_joined,
    aggregate,
    aggregate_of_a_repartition,
    window,
    sliding_window,
    below_suppressed,
    suppressed,
    sink,
    sink_that_chooses,
    flat_lookup,
    below_a_lookup,
    deduplicated,
)


@pytest.fixture(scope="module", autouse=True)
def clock() -> Iterator[None]:
    """Samples of the time of this thread alone: it waits for others that compute at the next call, below what it computed."""
    before = signal.getsignal(SIGNAL)
    with pytest.MonkeyPatch.context() as patched, clocked(1):
        patched.setattr(node_sampling, "time", SimpleNamespace(perf_counter=time.thread_time))
        yield
    signal.signal(SIGNAL, before)


def running(kind: Kind, burn: Burn) -> Iterator[dict[str, float]]:
    """Return the time so far at each node, s, again and again while records pass through a topology."""
    builder = StreamsBuilder()
    texts = builder.stream("in", Consumed(STRING, STRING, name="the-source"))
    kept = texts.filter(lambda _k, v: v != "", named=Named("the-filter"))
    kind(builder, kept.map_values(lambda v: v, named=Named("the-mapper")), burn)
    topology = builder.build()
    driver = TopologyTestDriver(topology)
    if "table" in topology.external_topics:
        driver.input_topic("table", STRING, STRING).pipe_input("k", "row", timestamp=0)
    tasks = driver._tasks.values()
    times = NodeTimes(lambda thing: next(filter(None, (task.node_of(thing) for task in tasks)), ""))
    topic = driver.input_topic("in", STRING, STRING)
    times.start()
    for number in range(MOST_RECORDS):
        topic.pipe_input("k", str(number), timestamp=10 + 10 * number)
        yield dict(times.seconds())


@pytest.fixture
def busy() -> Iterator[None]:
    """Another thread of the process that computes."""
    ends = threading.Event()

    def compute() -> None:
        while not ends.is_set():
            loops()

    thread = threading.Thread(target=compute, daemon=True)
    thread.start()
    yield
    ends.set()
    thread.join()


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("kind", [flat_mapper, global_join])
def test_another_thread_that_computes_shifts_no_time(kind: Kind) -> None:
    test_the_node_whose_function_computes_is_charged(kind, operates)


@pytest.mark.parametrize("burn", BURNS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_node_whose_function_computes_is_charged(kind: Kind, burn: Burn) -> None:
    found: dict[str, float] = {}
    for found in running(kind, burn):
        dear = sum(seconds for node, seconds in found.items() if DEAR in node)
        if dear > max(ENOUGH_S, sum(found.values()) / 2):  # a sample alone says little: the machine may have paused
            return
    pytest.fail(f"{found}")
