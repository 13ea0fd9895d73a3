"""Late records stay late when another host continues, a worker or a run, with and without local state."""

from __future__ import annotations

import shutil
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from riverrun import LONG, STRING, Consumed, Produced, StreamsBuilder, TimeWindows
from riverrun.config import AT_LEAST_ONCE, EXACTLY_ONCE_V2
from riverrun.spark.bounded_runs.job import run
from riverrun.spark.ranges import resolve
from riverrun.worker.worker import Worker
from tests.conformance.hosts import SPARK_ON_DEMAND, on_executor

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from riverrun import Topology
    from tests.brokers import Broker

START_MS = 1_767_226_240_000


def counting(name: str) -> Callable[[StreamsBuilder], Topology]:
    def build(builder: StreamsBuilder) -> Topology:
        windows = TimeWindows.of(timedelta(seconds=10), grace=timedelta(seconds=5))
        counts = builder.stream(f"{name}.in", Consumed(STRING, STRING)).group_by_key().windowed_by(windows).count()
        counts.to_stream().map(lambda key, count: (key.key, count)).to(f"{name}.out", Produced(STRING, LONG))
        return builder.build()

    return build


@pytest.fixture
def broker(any_broker: Broker) -> Broker:
    """In memory, but for tests that are marked `broker`."""
    return any_broker


@pytest.mark.parametrize("hosts", [("worker", "run"), ("run", "worker")], ids=" then ".join)
@pytest.mark.parametrize("guarantee", [pytest.param(EXACTLY_ONCE_V2, marks=pytest.mark.broker), AT_LEAST_ONCE])
def test_a_record_is_late_whichever_host_continues(
    broker: Broker, unique: str, tmp_path: Path, hosts: tuple[str, str], guarantee: str
) -> None:
    broker.create(1, f"{unique}.in", f"{unique}.out")
    build = counting(unique)
    app = broker.application(unique, build(StreamsBuilder()), tmp_path / "state", processing_guarantee=guarantee)

    def work(host: str, *records: tuple[bytes, int]) -> None:
        broker.write(f"{unique}.in", [(key, b"", START_MS + at_ms) for key, at_ms in records])
        if host == "worker":
            Worker(app).run(until_caught_up=True)
        else:
            run(broker.connected(app), resolve(broker.connected(app)), SPARK_ON_DEMAND, on_executor(build))

    work(hosts[0], (b"k", 1000), (b"other", 17_900))
    if guarantee == AT_LEAST_ONCE:
        shutil.rmtree(app.directory)
    work(hosts[1], (b"k", 9000), (b"last", 20_000))
    assert [record.key for record in broker.read(f"{unique}.out")] == [b"k", b"other", b"last"], "9 s is late at 17.9 s"
