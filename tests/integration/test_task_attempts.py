"""A task of a bounded run without Spark: brokers that go away, lost answers, wrong settings."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import LONG, STRING, Consumed, Grouped, Materialized, Produced, StreamsBuilder
from riverrun.errors import BrokerError, ConfigError, UnknownOutcomeError
from riverrun.hosting.ownership import StreamsProducer
from riverrun.kafka import producer
from riverrun.records import OffsetRange, TaskId, TopicPartition
from riverrun.spark.bounded_runs.attempts import attempt
from riverrun.spark.bounded_runs.executor import run_task
from riverrun.spark.failures import rebuilt_error
from riverrun.spark.tasks.work import SliceWork, job_of
from tests.brokers import Broker, embedded_broker
from tests.presence import present

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from riverrun import Topology
    from riverrun.kafka.embedded.broker import EmbeddedBroker

pytestmark = pytest.mark.broker

RECORDS = 1000


class Case:
    """Words to count, and the one task that does."""

    def __init__(self, broker: Broker, name: str, state: Path, **streams: Any) -> None:
        self.broker, self.name = broker, name
        self.seen: Callable[[int], object] = lambda _number: None
        broker.create(1, f"{name}.in", f"{name}.out")
        broker.write(f"{name}.in", [(b"k", b"%d" % n, n + 1) for n in range(RECORDS)])
        app = broker.application(name, self.build(), state, **streams)
        connected = broker.connected(app)
        connected.prepare()
        ranges = {TopicPartition(f"{name}.in", 0): OffsetRange(0, RECORDS)}
        self.work = SliceWork(job_of(connected), TaskId(0, 0), ranges)

    def build(self, _job: Any = None) -> Topology:
        builder = StreamsBuilder()
        words = builder.stream(f"{self.name}.in", Consumed(STRING, STRING)).peek(lambda _k, v: self.seen(int(v)))
        counts = words.group_by_key(Grouped(STRING, STRING)).count(Materialized(name="counts"))
        counts.to_stream().to(f"{self.name}.out", Produced(STRING, LONG))
        return builder.build()

    def counts(self) -> list[int]:
        return [LONG.deserialize(present(record.value)) for record in self.broker.read(f"{self.name}.out")]


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory, new_port: Callable[[], int]) -> Iterator[EmbeddedBroker]:
    """A broker of this module's own: it is killed."""
    embedded = embedded_broker(tmp_path_factory.mktemp("mortal"), new_port())
    yield embedded
    embedded.stop()


class Waiting(logging.Handler):
    """Notes that somebody waits for brokers."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()

    def emit(self, _record: logging.LogRecord) -> None:
        self.begun.set()


@pytest.fixture
def waiting() -> Iterator[threading.Event]:
    """Set once somebody waits for brokers."""
    handler = Waiting()
    logging.getLogger("riverrun.spark.tasks.inputs").addHandler(handler)
    yield handler.begun
    logging.getLogger("riverrun.spark.tasks.inputs").removeHandler(handler)


def test_an_attempt_whose_brokers_go_away_waits_for_them_and_tells_what_it_has_done(
    mortal: EmbeddedBroker, unique: str, tmp_path: Path, waiting: threading.Event
) -> None:
    pid = present(mortal.start().pid)
    broker = Broker(mortal.bootstrap_servers)
    case = Case(broker, unique, tmp_path)

    def kill_once(number: int) -> None:
        if number == RECORDS // 2 and not waiting.is_set():
            os.kill(pid, signal.SIGKILL)

    case.seen = kill_once
    with ThreadPoolExecutor(1) as thread:
        result = thread.submit(run_task, case.work, case.build)
        assert waiting.wait(240)
        mortal.start()
        done = result.result()
    assert (done.read, done.processed, sum(done.published.values()), done.commits) == (RECORDS, RECORDS, 1, 1)
    assert case.counts() == [RECORDS]


def test_an_attempt_whose_brokers_stay_away_names_them_and_is_not_retried(
    mortal: EmbeddedBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer, "_COMMIT_SECONDS", 5.0)
    mortal.start()
    broker = Broker(mortal.bootstrap_servers)
    case = Case(broker, unique, tmp_path, task_timeout_ms=1000)
    mortal.kill()
    error = rebuilt_error(json.loads(attempt(case.work, case.build))["error"])
    assert isinstance(error, BrokerError)
    assert f"Cannot take over {unique}-v1-0_0 at {mortal.bootstrap_servers}" in error.message


def test_an_attempt_without_an_answer_to_its_commit_tells_what_was_committed(
    broker: Broker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, commit = Case(broker, unique, tmp_path), StreamsProducer.commit

    def lose_the_answer(producer: StreamsProducer, *commits: Any) -> None:
        commit(producer, *commits)
        monkeypatch.undo()
        message = "the answer is lost"
        raise UnknownOutcomeError(message)

    monkeypatch.setattr(StreamsProducer, "commit", lose_the_answer)
    done = run_task(case.work, case.build)
    assert (done.read, done.processed, sum(done.published.values()), done.commits) == (RECORDS, RECORDS, 1, 1)
    assert (case.counts(), done.warnings) == ([RECORDS], ())


def test_an_attempt_whose_work_is_done_already_cannot_tell_how_much_it_was(
    broker: Broker, unique: str, tmp_path: Path
) -> None:
    case = Case(broker, unique, tmp_path)
    assert run_task(case.work, case.build).read == RECORDS
    done = run_task(case.work, case.build)
    assert (done.read, done.commits, case.counts()) == (0, 0, [RECORDS])
    assert "statistics leave out the part of the range that it processed" in done.warnings[0]


def test_a_property_of_producers_that_is_wrong_is_refused_as_by_the_client(
    broker: Broker, unique: str, tmp_path: Path
) -> None:
    case = Case(broker, unique, tmp_path, producer={"message.max.bytes": "many"})
    with pytest.raises(ConfigError, match=r"message\.max\.bytes"):
        run_task(case.work, case.build)
