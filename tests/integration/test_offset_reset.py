"""The first offsets of applications without committed ones, against a real broker."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import STRING, AutoOffsetReset, Consumed, Produced, StreamsBuilder
from riverrun.errors import ConfigError
from riverrun.hosting.process import SystemClock
from riverrun.spark.bounded_runs.job import run
from riverrun.spark.ranges import resolve
from riverrun.worker.worker import Worker
from tests.conformance.hosts import SPARK_ON_DEMAND, on_executor

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from riverrun import Topology
    from riverrun.hosting.application import Application
    from tests.brokers import Broker

HOUR_MS = 3_600_000


def copying(name: str, policy: AutoOffsetReset | None) -> Callable[[StreamsBuilder], Topology]:
    """`in`, through a repartition topic, to `out`."""

    def build(builder: StreamsBuilder) -> Topology:
        texts = builder.stream(f"{name}.in", Consumed(STRING, STRING, offset_reset_policy=policy))
        texts.repartition().to(f"{name}.out", Produced(STRING, STRING))
        return builder.build()

    return build


def application(
    broker: Broker, name: str, state: Path, policy: AutoOffsetReset | None = None, configured: str = "earliest"
) -> Application:
    topology = copying(name, policy)(StreamsBuilder())
    return broker.application(name, topology, state, commit_interval_ms=100, auto_offset_reset=configured)


def write(broker: Broker, name: str, **values: int) -> None:
    """Records by their age in hours."""
    now_ms = SystemClock().now_ms()
    broker.write(f"{name}.in", [(b"k", value.encode(), now_ms - age * HOUR_MS) for value, age in values.items()])


@pytest.fixture
def broker(any_broker: Broker) -> Broker:
    """In memory, but for tests that are marked `broker`."""
    return any_broker


@pytest.fixture
def topics(broker: Broker, unique: str) -> Any:
    broker.create(1, f"{unique}.in", f"{unique}.out")
    write(broker, unique, old=5, young=1)
    return broker


@pytest.mark.parametrize(
    ("policy", "configured", "read"),
    [
        (None, "earliest", [b"old", b"young"]),
        (None, "latest", []),
        (None, "by_duration:PT3H", [b"young"]),
        (AutoOffsetReset.by_duration(timedelta(days=50_000)), "none", [b"old", b"young"]),
        (AutoOffsetReset.earliest(), "latest", [b"old", b"young"]),
    ],
)
def test_a_worker_begins_where_its_source_or_else_its_configuration_says(
    topics: Any, unique: str, tmp_path: Path, policy: AutoOffsetReset | None, configured: str, read: list[bytes]
) -> None:
    Worker(application(topics, unique, tmp_path, policy, configured)).run(until_caught_up=True)
    assert [record.value for record in topics.read(f"{unique}.out")] == read


def test_a_worker_that_may_not_choose_where_to_begin_says_so(topics: Any, unique: str, tmp_path: Path) -> None:
    chosen = application(topics, unique, tmp_path, AutoOffsetReset.none())
    with pytest.raises(ConfigError, match=rf"No valid committed offset found for input \[{unique}\.in\]") as refused:
        Worker(chosen).run(until_caught_up=True)
    assert "offset_reset_policy" in str(refused.value.hint)
    Worker(application(topics, unique, tmp_path)).run(until_caught_up=True)  # commits
    write(topics, unique, new=0)
    Worker(chosen).run(until_caught_up=True)
    assert [record.value for record in topics.read(f"{unique}.out")] == [b"old", b"young", b"new"]


def test_a_range_begins_where_a_worker_would_unless_it_is_said(topics: Any, unique: str, tmp_path: Path) -> None:
    by_duration = application(topics, unique, tmp_path, configured="by_duration:PT3H")
    assert str(resolve(topics.connected(by_duration))) == f"{unique}.in-0@1..2"
    none = application(topics, unique, tmp_path, configured="none")
    with pytest.raises(ConfigError, match="No valid committed offset"):
        resolve(topics.connected(none))
    assert str(resolve(topics.connected(none), f"{unique}.in-0@0")) == f"{unique}.in-0@0..2"


@pytest.mark.broker
def test_a_first_run_from_the_latest_offsets_notes_where_the_next_begins(
    topics: Any, unique: str, tmp_path: Path
) -> None:
    chosen = application(topics, unique, tmp_path, configured="latest")
    build = on_executor(copying(unique, None))
    assert run(topics.connected(chosen), resolve(topics.connected(chosen)), SPARK_ON_DEMAND, build).processed == 0
    write(topics, unique, new=0)
    run(topics.connected(chosen), resolve(topics.connected(chosen)), SPARK_ON_DEMAND, build)
    assert [record.value for record in topics.read(f"{unique}.out")] == [b"new"]
