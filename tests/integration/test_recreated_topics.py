"""Topics that are deleted and created again, or grow, under an application: it stops and names them."""

from __future__ import annotations

import re
import shutil
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import STRING, Consumed, Grouped, Materialized, Produced, StreamsBuilder
from riverrun.errors import StreamsError, TopicError
from riverrun.records import OffsetVector, TopicPartition
from riverrun.runtime.times import OffsetMetadata
from riverrun.serde.serdes import LONG
from riverrun.spark.bounded_runs.job import run
from riverrun.spark.ranges import resolve
from riverrun.worker.reset import plan_reset, reset
from riverrun.worker.worker import Worker
from tests.conformance.hosts import SPARK_ON_DEMAND, on_executor
from tests.spark_sessions import own_session
from tests.waiting import DEADLINE_S, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from riverrun import Topology
    from riverrun.hosting.application import Application
    from tests.brokers import Broker

PARTITIONS = 2
RECORDS = 60
TEXTS = Consumed(STRING, STRING)


def copied(name: str) -> Topology:
    builder = StreamsBuilder()
    builder.stream(f"{name}.in", TEXTS).to(f"{name}.out", Produced(STRING, STRING))
    return builder.build()


def matched(name: str) -> Topology:
    builder = StreamsBuilder()
    builder.stream(re.compile(rf"{re.escape(name)}\.(in|other)"), TEXTS).to(f"{name}.out", Produced(STRING, STRING))
    return builder.build()


def counted(name: str) -> Topology:
    """Counts behind a repartition topic."""
    builder = StreamsBuilder()
    counts = (
        builder.stream(f"{name}.in", TEXTS).group_by(lambda key, _: key, Grouped(STRING, STRING, name="again")).count()
    )
    counts.to_stream().to(f"{name}.out", Produced(STRING, LONG))
    return builder.build()


def counted_in_place(name: str) -> Topology:
    builder = StreamsBuilder()
    builder.stream(f"{name}.in", TEXTS).group_by_key().count().to_stream().to(f"{name}.out", Produced(STRING, LONG))
    return builder.build()


def joined(name: str) -> Topology:
    """A stream that is joined with a table of `in`."""
    builder = StreamsBuilder()
    table = builder.table(f"{name}.in", TEXTS, materialized=Materialized(name="rows"))
    joined = builder.stream(f"{name}.other", TEXTS).join(table, lambda one, two: f"{one}{two}")
    joined.to(f"{name}.out", Produced(STRING, STRING))
    return builder.build()


def joined_globally(name: str) -> Topology:
    builder = StreamsBuilder()
    table = builder.global_table(f"{name}.in", TEXTS)
    joined = builder.stream(f"{name}.other", TEXTS).join(
        table, lambda one, two: f"{one}{two}", key_selector=lambda key, _: key
    )
    joined.to(f"{name}.out", Produced(STRING, STRING))
    return builder.build()


TOPOLOGIES: dict[str, Callable[[str], Topology]] = {
    "stream": copied,
    "pattern": matched,
    "aggregated": counted_in_place,
    "repartitioned": counted,
    "table": joined,
    "global table": joined_globally,
}
EVENTS = {"shorter": (0.5, 0.0), "longer": (2.0, 0.0), "away": (2.0, 2.0)}
"""Length of the new log, as a multiple of the old one, and for how many seconds there is no topic."""


class Case:
    """An application and its inputs `in` and `other`."""

    def __init__(self, broker: Broker, name: str, topology: str, state: Path) -> None:
        self.broker, self.name = broker, name
        broker.create(PARTITIONS, f"{name}.in", f"{name}.other", f"{name}.out")
        settings = {"commit_interval_ms": 50}
        self.app: Application = broker.application(name, TOPOLOGIES[topology](name), state, **settings)

    @property
    def repartition(self) -> str:
        return f"{self.name}-v1-again-repartition"

    def write(self, topic: str, count: int) -> None:
        records = [(b"k%d" % (n % 7), b"%d" % n, n + 1) for n in range(count)]
        self.broker.write(topic, records)

    def recreate(self, topic: str, event: str) -> None:
        factor, pause_s = EVENTS[event]
        admin = self.broker.admin()
        admin.delete_topics([topic])
        time.sleep(pause_s)
        self.broker.create(PARTITIONS, topic)
        self.write(topic, int(RECORDS * factor))

    def is_read(self) -> bool:
        """Whether all inputs and repartition topics are committed at their ends."""
        connected = self.broker.connected(self.app).resolved()
        committed, ends = connected.committed(), connected.admin.end_offsets(connected.inputs)
        return all(tp in committed and committed[tp].offset >= end for tp, end in ends.items() if end)


@pytest.fixture
def broker(any_broker: Broker) -> Broker:
    """In memory, but for tests that are marked `broker`."""
    return any_broker


@pytest.fixture
def running() -> Iterator[Callable[[Application], Running]]:
    started: list[Running] = []

    def start(app: Application) -> Running:
        started.append(Running(app))
        return started[-1]

    yield start
    for each in started:
        each.worker.stop()
        each.thread.join(DEADLINE_S)


class Running:
    """A worker in a thread."""

    def __init__(self, app: Application) -> None:
        self.worker = Worker(app)
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.worker.run()
        except StreamsError as error:
            self.error = error

    def end(self) -> BaseException | None:
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive(), "it has not noticed"
        return self.error


@pytest.mark.broker
@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_worker_stops_when_an_input_is_created_again(
    broker: Broker, unique: str, tmp_path: Path, running: Any, topology: str, event: str
) -> None:
    case = Case(broker, unique, topology, tmp_path)
    case.write(f"{unique}.in", RECORDS)
    case.write(f"{unique}.other", RECORDS)
    worker = running(case.app)
    until(case.is_read, "read its inputs")
    case.recreate(f"{unique}.in", event)
    error = worker.end()
    assert isinstance(error, TopicError), repr(error)
    assert f"{unique}.in has been deleted and created again" in error.message
    assert ("Start again" if topology == "global table" else f"riverrun reset {unique} --version v1") in (
        error.hint or ""
    )
    if topology == "global table":  # filled at each start
        Worker(case.app).run(until_caught_up=True)
        return
    with pytest.raises(TopicError, match=rf"{unique}\.in has been deleted and created again"):
        Worker(case.app).run(until_caught_up=True)


# The client library knows the topic that was there, and numbers its batches.
@pytest.mark.parametrize("event", [pytest.param("shorter", marks=pytest.mark.broker), "longer"])
def test_a_worker_stops_when_its_repartition_topic_is_created_again(
    broker: Broker, unique: str, tmp_path: Path, running: Any, event: str
) -> None:
    case = Case(broker, unique, "repartitioned", tmp_path)
    case.write(f"{unique}.in", RECORDS)
    worker = running(case.app)
    until(case.is_read, "read its inputs")
    case.recreate(case.repartition, event)
    error = worker.end()
    assert isinstance(error, TopicError)
    assert case.repartition in error.message


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_worker_that_was_down_notices_the_new_input_without_its_state(
    broker: Broker, unique: str, tmp_path: Path, topology: str
) -> None:
    """Brokers delete committed offsets with a topic."""
    case = Case(broker, unique, topology, tmp_path)
    case.write(f"{unique}.in", RECORDS)
    case.write(f"{unique}.other", RECORDS)
    Worker(case.app).run(until_caught_up=True)
    case.recreate(f"{unique}.in", "longer")
    shutil.rmtree(case.app.directory, ignore_errors=True)
    if topology == "global table":  # filled at each start
        Worker(case.app).run(until_caught_up=True)
        return
    with pytest.raises(TopicError, match=rf"{unique}\.in has been deleted and created again"):
        Worker(case.app).run(until_caught_up=True)


ON_SPARK = pytest.param("table", marks=[pytest.mark.broker, pytest.mark.spark])


@pytest.mark.parametrize("moment", ["after a worker", "after the plan", "between two runs"])
@pytest.mark.parametrize("topology", ["stream", "aggregated", "repartitioned", ON_SPARK])
def test_a_bounded_run_stops_when_an_input_is_created_again(
    broker: Broker, unique: str, tmp_path: Path, running: Any, topology: str, moment: str
) -> None:
    case = Case(broker, unique, topology, tmp_path)
    case.write(f"{unique}.in", RECORDS)
    case.write(f"{unique}.other", RECORDS)
    connected, topic = broker.connected(case.app), f"{unique}.in"
    build, begun = TOPOLOGIES[topology], threading.Event()
    spark = own_session() if topology == "table" else SPARK_ON_DEMAND

    def run_it(check: Callable[[], None] = begun.set) -> int:
        built = on_executor(lambda _builder: build(unique))
        return run(connected, resolve(connected), spark, built, check=check).processed

    if moment == "after the plan":
        with pytest.raises(TopicError, match=rf"{unique}\.in has been deleted and created again"):
            run_it(lambda: case.recreate(topic, "longer"))
        return
    if moment == "after a worker":
        worker = running(case.app)
        until(case.is_read, "read its inputs")
        case.recreate(topic, "longer")
        worker.end()
    else:
        run_it()
        case.recreate(topic, "longer")
    with pytest.raises(TopicError, match=rf"{unique}\.in has been deleted and created again"):
        run_it()


def test_the_hint_leads_out(broker: Broker, unique: str, tmp_path: Path) -> None:
    case = Case(broker, unique, "aggregated", tmp_path)
    case.write(f"{unique}.in", RECORDS)
    Worker(case.app).run(until_caught_up=True)
    case.recreate(f"{unique}.in", "longer")
    with pytest.raises(TopicError):
        Worker(case.app).run(until_caught_up=True)
    connected = broker.connected(case.app)
    start = OffsetVector({TopicPartition(f"{unique}.in", n): 0 for n in range(PARTITIONS)})
    reset(plan_reset(connected, start), broker.admin())
    assert Worker(case.app).run(until_caught_up=True).processed == 2 * RECORDS


@pytest.mark.broker
def test_partitions_that_an_input_is_given_are_read_within_seconds(
    broker: Broker, unique: str, tmp_path: Path, running: Any, caplog: pytest.LogCaptureFixture
) -> None:
    case = Case(broker, unique, "stream", tmp_path)
    case.write(f"{unique}.in", RECORDS)
    running(case.app)
    until(case.is_read, "read its input")
    broker.grow(f"{unique}.in", PARTITIONS + 1)
    broker.write(f"{unique}.in", [(b"k", b"new", 1)], PARTITIONS)
    until(lambda: b"new" in {record.value for record in broker.read(f"{unique}.out")}, "read the new partition")
    assert f"topic {unique}.in has {PARTITIONS + 1} partitions, and had {PARTITIONS}" in caplog.text


def test_an_input_that_outgrows_the_state_of_its_keys_ends_the_worker(
    broker: Broker, unique: str, tmp_path: Path, running: Any
) -> None:
    case = Case(broker, unique, "aggregated", tmp_path)
    case.write(f"{unique}.in", RECORDS)
    worker = running(case.app)
    until(case.is_read, "read its input")
    broker.grow(f"{unique}.in", PARTITIONS + 1)
    assert "partitions, not 3" in str(worker.end())


def test_offsets_are_committed_with_ids_and_accepted_without(broker: Broker, unique: str, tmp_path: Path) -> None:
    case = Case(broker, unique, "table", tmp_path)
    case.write(f"{unique}.in", RECORDS)
    Worker(case.app).run(until_caught_up=True)
    admin, tp = broker.admin(), TopicPartition(f"{unique}.in", 0)
    found = OffsetMetadata.decode(admin.committed(case.app.id, [tp])[tp].metadata)
    assert list(found.topics) == [f"{unique}.in", f"{unique}.other", "-rows-changelog"]
    admin.alter_offsets(case.app.id, {tp: 0})  # as a reset does, and as earlier releases have committed
    Worker(case.app).run(until_caught_up=True)
    assert list(OffsetMetadata.decode(admin.committed(case.app.id, [tp])[tp].metadata).topics)
