"""Brokers that die under a running worker, come back, or stay away."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from riverrun import LONG
from riverrun.worker.states import WorkerState
from riverrun.worker.stream_thread import stream_thread
from riverrun.worker.worker import Worker
from tests.brokers import Broker, embedded_broker
from tests.integration.test_alignment import counted
from tests.skewed import SIZE_MS, counts_in
from tests.system.groups import PARTITIONS, Group
from tests.waiting import DEADLINE_S, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from riverrun.kafka.embedded.broker import EmbeddedBroker
    from riverrun.records import RawRecord
    from riverrun.worker.states import WorkerSummary

pytestmark = pytest.mark.broker

WORDS = [f"w{n}" for n in range(7)]
APP = """
from riverrun import *
def build(builder):
    counts = builder.stream("{unique}.in", Consumed(STRING, STRING)).group_by(
        lambda k, v: v, Grouped(STRING, STRING)).count(Materialized(name="counts"))
    counts.to_stream().to("{unique}.out", Produced(STRING, LONG))
    return builder.build()
"""
PROJECT = """
[kafka]
"bootstrap.servers" = "{servers}"
[apps.{unique}]
topology = "{unique}:build"
[apps.{unique}.config]
"processing.guarantee" = "{guarantee}"
"commit.interval.ms" = 50
"task.timeout.ms" = {task_timeout_ms}
"""


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory, new_port: Callable[[], int]) -> Iterator[EmbeddedBroker]:
    """A broker of this module's own: it is killed."""
    embedded = embedded_broker(tmp_path_factory.mktemp("mortal"), new_port())
    yield embedded
    embedded.stop()


class RunningWorker:
    """`riverrun worker`, as users start it."""

    def __init__(
        self,
        directory: Path,
        unique: str,
        servers: str,
        *,
        task_timeout_ms: int = 300_000,
        guarantee: str = "exactly_once_v2",
    ) -> None:
        directory.mkdir(exist_ok=True)
        (directory / f"{unique}.py").write_text(APP.format(unique=unique))
        project = PROJECT.format(unique=unique, servers=servers, task_timeout_ms=task_timeout_ms, guarantee=guarantee)
        (directory / "streams.toml").write_text(project)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "riverrun.cli", "worker", unique],
            cwd=directory,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def until_running(self) -> RunningWorker:
        assert self.process.stdout is not None
        assert any(line.strip() == "Worker is running" for line in iter(self.process.stdout.readline, "")), self.end()
        return self

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(DEADLINE_S)

    def end(self) -> tuple[int, str]:
        """Exit code and what it printed as errors, once it has ended by itself."""
        _, shown = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, shown


@pytest.fixture
def workers() -> Iterator[list[RunningWorker]]:
    started: list[RunningWorker] = []
    yield started
    for worker in started:
        worker.process.kill()
        worker.process.communicate()


def write(broker: Broker, unique: str, start: int, end: int) -> None:
    broker.write(f"{unique}.in", [(b"%d" % n, WORDS[n % 7].encode(), n + 1) for n in range(start, end)])


def totals(records: list[RawRecord]) -> dict[bytes | None, int]:
    return {r.key: LONG.deserialize(r.value or b"") for r in records}


def read_until(broker: Broker, unique: str, total: int, worker: RunningWorker) -> list[RawRecord]:
    """The words written once that many records are counted; some may be counted twice (`at_least_once`)."""

    def is_there() -> bool:
        found = totals(broker.read(f"{unique}.out"))
        is_counted = all(found.get(word, 0) >= count for word, count in expected(total).items())
        return is_counted or worker.process.poll() is not None

    until(is_there, f"counted {total} records")
    return broker.read(f"{unique}.out")


def expected(records: int) -> dict[bytes, int]:
    return {word.encode(): len(range(n, records, 7)) for n, word in enumerate(WORDS)}


def assert_nothing_came_twice(records: list[RawRecord]) -> None:
    for word in WORDS:
        counts = [LONG.deserialize(r.value or b"") for r in records if r.key == word.encode()]
        assert counts == sorted(set(counts)), "a count went back or came twice"


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", pytest.param("at_least_once", marks=pytest.mark.slow)])
def test_a_worker_outlives_its_broker_and_loses_and_duplicates_nothing(
    mortal: EmbeddedBroker, unique: str, tmp_path: Path, workers: list[RunningWorker], guarantee: str
) -> None:
    mortal.start()
    broker = Broker(mortal.bootstrap_servers)
    broker.create(2, f"{unique}.in", f"{unique}.out")
    write(broker, unique, 0, 60_000)
    worker = RunningWorker(tmp_path, unique, mortal.bootstrap_servers, guarantee=guarantee).until_running()
    workers.append(worker)
    read_until(broker, unique, 1000, worker)
    mortal.kill()  # in mid work
    mortal.start()
    read_until(broker, unique, 60_000, worker)
    mortal.kill()  # while there is nothing to do
    mortal.start()
    write(broker, unique, 60_000, 61_000)
    records = read_until(broker, unique, 61_000, worker)
    assert worker.stop() == 0
    if guarantee == "exactly_once_v2":
        assert totals(records) == expected(61_000)
        assert_nothing_came_twice(records)
    else:
        assert all(totals(records)[word] >= count for word, count in expected(61_000).items())


@pytest.mark.parametrize("levels", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_backlog_across_restarts_of_the_broker_counts_as_without(
    mortal: EmbeddedBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, levels: int
) -> None:
    """However little patience tasks have: this process itself knows why they do not progress."""
    monkeypatch.setattr(stream_thread, "PATIENCE_SECONDS", 1 - 300)  # a second more than `task.timeout.ms`
    chosen = random.Random(unique)
    mortal.start()
    broker = Broker(mortal.bootstrap_servers)
    broker.create(4, f"{unique}.in")
    broker.create(1, f"{unique}.out")
    expected: Counter[tuple[str, int]] = Counter()
    parts: list[list[tuple[bytes, bytes, int]]] = [[] for _ in range(4)]
    for n in range(20_000):  # ordered by time across partitions
        parts[chosen.randrange(4)].append((b"k", b"%d" % (n % 7), n * 10))
        expected[str(n % 7), n * 10 // SIZE_MS * SIZE_MS] += 1
    for partition, records in enumerate(parts):
        broker.write(f"{unique}.in", records, partition)
    worker = Worker(broker.application(unique, counted(unique, levels), tmp_path))
    ended: list[WorkerSummary] = []
    running = threading.Thread(target=lambda: ended.append(worker.run(until_caught_up=True)))
    running.start()
    until(lambda: worker.state is WorkerState.RUNNING, "took its tasks over")
    for _ in range(2):
        running.join(chosen.uniform(0.0, 3.0))
        chosen.choice([mortal.kill, mortal.stop])()
        running.join(chosen.uniform(0.0, 3.0))
        mortal.start()
    running.join(2 * DEADLINE_S)
    assert [summary.dropped for summary in ended] == [{}]
    assert counts_in(broker, f"{unique}.out") == expected


def test_a_replaced_stream_thread_waits_for_brokers_that_are_away(
    mortal: EmbeddedBroker, unique: str, tmp_path: Path
) -> None:
    mortal.start()
    broker = Broker(mortal.bootstrap_servers)
    broker.create(PARTITIONS, f"{unique}.in", f"{unique}.out")
    group = Group(broker, unique, tmp_path)
    instance = group.start(settings='"max.poll.interval.ms" = 25000')  # a request that nobody answers takes 15 s

    def waits() -> bool:
        replaced = group.log(0).partition("stream thread 1 ended")[2]
        return replaced.count("waiting for brokers") > 1 or instance.poll() is not None

    try:
        group.write(1000)
        group.until_done()
        mortal.kill()
        (thread,) = group.children(instance)
        os.kill(thread, signal.SIGKILL)
        group.until(waits, "waited")
        assert instance.poll() is None, group.log(0)
        mortal.start()
        group.write(1000)
        group.until_done()
        assert group.stop(instance) == 0
    finally:
        instance.kill()
        instance.wait()
    group.check()
    assert "silent" not in group.log(0)


@pytest.mark.parametrize("backlog", [0, pytest.param(300_000, marks=pytest.mark.slow)])
def test_a_worker_whose_brokers_stay_away_ends_with_their_names(
    mortal: EmbeddedBroker, unique: str, tmp_path: Path, workers: list[RunningWorker], backlog: int
) -> None:
    mortal.start()
    broker = Broker(mortal.bootstrap_servers)
    broker.create(1, f"{unique}.in", f"{unique}.out")
    write(broker, unique, 0, backlog)
    worker = RunningWorker(tmp_path, unique, mortal.bootstrap_servers, task_timeout_ms=1000).until_running()
    workers.append(worker)
    read_until(broker, unique, min(backlog, 1000), worker)
    mortal.kill()
    code, shown = worker.end()
    assert code == 1
    assert "Error: Cannot " in shown
    assert mortal.bootstrap_servers in shown
    assert "Traceback" not in shown


def test_a_worker_told_to_stop_does_not_wait_for_brokers_that_are_away(
    mortal: EmbeddedBroker, unique: str, tmp_path: Path, workers: list[RunningWorker]
) -> None:
    mortal.start()
    broker = Broker(mortal.bootstrap_servers)
    broker.create(1, f"{unique}.in", f"{unique}.out")
    worker = RunningWorker(tmp_path, unique, mortal.bootstrap_servers).until_running()
    workers.append(worker)
    write(broker, unique, 0, 2000)
    mortal.kill()
    assert worker.stop() in {0, 1}  # 0 if it had not noticed yet
    assert "Traceback" not in worker.end()[1]


def test_a_worker_without_any_broker_ends_with_the_name_of_what_it_looked_for(
    unique: str, tmp_path: Path, new_port: Callable[[], int], workers: list[RunningWorker]
) -> None:
    servers = f"127.0.0.1:{new_port()}"
    worker = RunningWorker(tmp_path, unique, servers)
    workers.append(worker)
    code, shown = worker.end()
    assert code == 1
    assert f"Error: No broker can be reached: nothing listens at {servers}" in shown
    assert "bootstrap.servers" in shown
    assert "Traceback" not in shown
