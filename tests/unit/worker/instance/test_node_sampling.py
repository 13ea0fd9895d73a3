"""Samples of where a stream thread's time goes: nodes of frames, and signals to processes."""

from __future__ import annotations

import io
import multiprocessing
import pdb  # noqa: T100 - a debugger is tested
import signal
import sys
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import (
    STRING,
    Consumed,
    Grouped,
    JoinWindows,
    Materialized,
    Named,
    Produced,
    PunctuationType,
    Record,
    Serde,
    SessionWindows,
    StreamJoined,
    StreamsBuilder,
    session_windowed,
)
from riverrun.runtime.node_frames import node_at
from riverrun.testing import TopologyTestDriver
from riverrun.worker.node_sampling import SIGNAL, NodeTimes, sampled, signalled
from riverrun.worker.spawning import start_child
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from multiprocessing.connection import Connection

    from riverrun import ProcessorContext, Topology
    from riverrun.runtime.task import Task

FIVE = timedelta(minutes=5)
DEADLINE_S = 60


class Places:
    """Remembers at which node each of its functions is called."""

    def __init__(self) -> None:
        self.seen: dict[str, set[str]] = {}
        self.tasks: Collection[Task] = ()

    def at(self, place: str, result: Any) -> Any:
        self.seen.setdefault(place, set()).add(node_at(sys._getframe(), self._node_of))
        return result

    def _node_of(self, thing: object) -> str:
        return next(filter(None, (task.node_of(thing) for task in self.tasks)), "")

    def serde(self, place: str) -> Serde[str]:
        return Serde(
            place,
            lambda text: self.at(f"{place} writes", text.encode()),
            lambda data: self.at(f"{place} reads", data.decode()),
        )


class Punctuating:
    """Forwards each record, and one at each punctuation."""

    def __init__(self, places: Places) -> None:
        self._places = places

    def init(self, context: ProcessorContext) -> None:
        self._context = context
        context.schedule(timedelta(milliseconds=1), PunctuationType.STREAM_TIME, self._punctuate)

    def process(self, record: Record[str, str]) -> None:
        self._places.at("processor", None)
        self._context.forward(record)

    def _punctuate(self, time_ms: int) -> None:
        self._places.at("punctuator", None)
        self._context.forward(Record("k", "p", time_ms))

    def close(self) -> None:
        """Do nothing."""


def many(places: Places) -> Topology:
    """Functions of users in nodes of all kinds, each below others."""
    builder, at = StreamsBuilder(), places.at
    texts = builder.stream("in", Consumed(STRING, places.serde("source"), name="the-source"))
    kept = texts.filter(lambda _k, _v: at("filter", result=True), named=Named("the-filter"))
    mapped = kept.map_values(lambda v: at("mapper", v), named=Named("the-mapper"))
    made = mapped.process(lambda: Punctuating(places), named=Named("the-processor"))
    below = made.map_values(lambda v: at("below", v), named=Named("below"))
    below.to("out", Produced(STRING, places.serde("sink"), name="the-sink"))
    below.to(lambda _k, _v, _context: at("topic", "out"), Produced(STRING, STRING, name="choosing-sink"))
    grouped = mapped.group_by_key(Grouped(STRING, STRING))
    totals = grouped.aggregate(
        str,
        lambda _k, _v, all_: at("aggregator", all_),
        Materialized(name="all", value_serde=STRING),
        named=Named("the-sum"),
    )
    changed = totals.to_stream().map_values(lambda v: at("below a store", v), named=Named("below-a-store"))
    changed.to("totals", Produced(STRING, places.serde("sink of totals"), name="sink-of-totals"))
    windows = grouped.windowed_by(SessionWindows.of(FIVE)).reduce(
        lambda one, _other: at("reducer", one),
        Materialized(name="sessions", value_serde=STRING),
        named=Named("the-sessions"),
    )
    windows.to_stream().to("sessions", Produced(session_windowed(STRING), STRING))
    other = builder.stream("other", Consumed(STRING, STRING))
    joined = kept.join(
        other,
        lambda one, _other: at("joiner", one),
        JoinWindows.of(FIVE),
        joined=StreamJoined(STRING, STRING, STRING, name="the-join"),
    )
    joined.to("joined", Produced(STRING, STRING))
    return builder.build()


NODES = {
    "source reads": "the-source",
    "filter": "the-filter",
    "mapper": "the-mapper",
    "processor": "the-processor",
    "punctuator": "the-processor",
    "below": "below",
    "sink writes": "the-sink",
    "topic": "choosing-sink",
    "aggregator": "the-sum",
    "below a store": "below-a-store",
    "sink of totals writes": "sink-of-totals",
    "reducer": "the-sessions",
}


@pytest.mark.parametrize("handler", ["", "processing.exception.handler", "production.exception.handler"])
def test_a_sample_within_a_users_function_names_its_node_fused_or_not(handler: str) -> None:
    places = Places()
    driver = TopologyTestDriver(many(places), {handler: "continue"} if handler else {})
    places.tasks = driver._tasks.values()
    driver.input_topic("other", STRING, STRING).pipe_input("k", "o", timestamp=5)
    for number in range(3):
        driver.input_topic("in", STRING, STRING).pipe_input("k", "v", timestamp=10 + number)
    (joiner,) = places.seen.pop("joiner")
    assert joiner in {"the-join-this-join", "the-join-other-join"}
    assert places.seen == {place: {node} for place, node in NODES.items()}


def test_code_outside_of_nodes_has_none() -> None:
    assert node_at(sys._getframe(), lambda _thing: "") == ""
    assert node_at(None, lambda _thing: "") == ""


def sampling(topology: Topology, pipe: Callable[[TopologyTestDriver], None]) -> NodeTimes:
    """Process with samples, with another process as the clock."""
    driver = TopologyTestDriver(topology)
    times = NodeTimes(lambda thing: next(iter(driver._tasks.values())).node_of(thing))
    with sampled(times, 1):
        pipe(driver)
    return times


def test_the_node_that_computes_most_has_most_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine, one node may be blamed for the time in which the process does not run.
    monkeypatch.setattr(time, "perf_counter", time.process_time)
    builder = StreamsBuilder()
    texts = builder.stream("in", Consumed(STRING, STRING)).filter(lambda _k, v: v != "", named=Named("cheap"))
    dear = texts.map_values(lambda v: str(sum(range(20_000))) + v, named=Named("dear"))
    dear.to("out", Produced(STRING, STRING, name="the-sink"))

    def pipe(driver: TopologyTestDriver) -> None:
        topic = driver.input_topic("in", STRING, STRING)
        for number in range(1_000):
            topic.pipe_input("k", str(number))

    times = sampling(builder.build(), pipe)
    seconds, shares = times.seconds(), times.shares()
    assert [*shares] == sorted(seconds, key=seconds.__getitem__, reverse=True)
    assert sum(shares.values()) <= 1
    assert "" not in seconds
    assert max(seconds, key=seconds.__getitem__) == "dear"
    assert seconds["dear"] > 2 * sum(spent for node, spent in seconds.items() if node != "dear")


def test_a_recursion_without_end_fails_as_it_does_without_samples() -> None:
    def deep(value: str) -> str:
        return deep(value)

    def caught(value: str) -> str:
        for _ in range(50):
            with pytest.raises(RecursionError):
                deep(value)
        return value

    builder = StreamsBuilder()
    builder.stream("in", Consumed(STRING, STRING)).map_values(caught).to("out", Produced(STRING, STRING))
    sampling(builder.build(), lambda driver: driver.input_topic("in", STRING, STRING).pipe_input("k", "v"))


def counting(line: Connection) -> None:
    """Count signals until there were a few; then say how many."""
    counted = 0

    def count(_signal: int, _frame: object) -> None:
        nonlocal counted
        counted += 1

    signal.signal(SIGNAL, count)
    line.send(0)
    while counted < 3:
        line.poll(0.05)
    line.send(counted)
    line.recv()


def deaf(line: Connection) -> None:
    """Never handle the signal."""
    line.send(0)
    line.recv()


@pytest.mark.parametrize("function", [counting, deaf])
def test_processes_are_signalled_from_their_start_to_after_their_end(function: Callable[[Connection], None]) -> None:
    ours, theirs = multiprocessing.Pipe()
    child = start_child("sampled", function, [theirs], ())
    with signalled(1, lambda: [child]):
        assert ours.poll(DEADLINE_S)
        assert ours.recv() == 0
        if function is counting:
            assert ours.poll(DEADLINE_S)
            assert ours.recv() >= 3
        ours.send("end")
        child.join(DEADLINE_S)
        assert child.exitcode == 0, "the signal ends no process"


def test_an_interval_of_zero_sends_nothing() -> None:
    def refuse() -> list[Any]:
        raise AssertionError

    with signalled(0, refuse):
        assert "node-samples" not in [thread.name for thread in threading.enumerate()]


class Patient(io.StringIO):
    """Types the next command when the signal has come, as it does while a person thinks."""

    def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override] # both bases of `StringIO` have it
        until(lambda: signal.getsignal(SIGNAL) is signal.SIG_IGN, "ended the samples", lambda: "")
        return super().readline(-1 if size is None else size)


def test_steps_of_a_debugger_do_not_lead_into_samples() -> None:
    shown = io.StringIO()
    with sampled(NodeTimes(lambda _thing: ""), 1):
        debugger = pdb.Pdb(stdin=Patient("step\n" * 5 + "continue\n"), stdout=shown, nosigint=True, readrc=False)
        debugger.set_trace()
        for _ in range(3):
            str(sum(range(100_000)))
    assert shown.getvalue().count("(Pdb)") == 6
    assert "node_sampling.py(" not in shown.getvalue().replace("test_node_sampling.py(", "")


@pytest.mark.parametrize("interval_ms", [0, 1])
def test_what_handles_the_signal_is_restored_after_samples_of_this_process(interval_ms: int) -> None:
    def own(_signal: int, _frame: object) -> None:
        """Do nothing."""

    before = signal.signal(SIGNAL, own)
    with sampled(NodeTimes(lambda _thing: ""), interval_ms):
        assert (signal.getsignal(SIGNAL) is own) == (interval_ms == 0)
    assert signal.signal(SIGNAL, before) is own
