"""A worker that processes a skewed backlog through repartition topics, alone."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import (
    LONG,
    STRING,
    Consumed,
    Grouped,
    Materialized,
    Produced,
    Repartitioned,
    StreamsBuilder,
    TimeWindows,
    windowed,
)
from riverrun.worker.worker import Worker
from tests.skewed import GRACE_MS, SIZE_MS, counts_in, write_backlog

if TYPE_CHECKING:
    from pathlib import Path

    from riverrun import Topology
    from tests.brokers import Broker

AT_LEAST_ONCE = {"processing_guarantee": "at_least_once", "commit_interval_ms": 30_000}


def counted(unique: str, levels: int) -> Topology:
    """Counts in windows, behind so many repartition topics."""
    builder = StreamsBuilder()
    stream = builder.stream(f"{unique}.in", Consumed(STRING, STRING)).select_key(lambda _key, value: value)
    for level in range(1, levels):
        stream = stream.repartition(Repartitioned(STRING, STRING, name=f"{level}")).select_key(
            lambda _key, value: value
        )
    windows = TimeWindows.of(timedelta(milliseconds=SIZE_MS), grace=timedelta(milliseconds=GRACE_MS))
    counts = (
        stream.group_by_key(Grouped(STRING, STRING, name="last"))
        .windowed_by(windows)
        .count(Materialized(name="counts"))
    )
    counts.to_stream().to(f"{unique}.out", Produced(windowed(STRING), LONG))
    return builder.build()


@pytest.fixture
def broker(any_broker: Broker) -> Broker:
    """In memory, but for tests that are marked `broker`."""
    return any_broker


@pytest.mark.parametrize(("levels", "settings"), [(1, {}), (2, AT_LEAST_ONCE)])
def test_a_worker_counts_a_skewed_backlog_as_a_single_pass_does(
    levels: int, settings: dict[str, Any], broker: Broker, unique: str, tmp_path: Path
) -> None:
    broker.create(4, f"{unique}.in")
    broker.create(1, f"{unique}.out")
    expected = write_backlog(broker, f"{unique}.in")
    application = broker.application(unique, counted(unique, levels), tmp_path, **settings)
    summary = Worker(application).run(until_caught_up=True)
    assert (summary.dropped, counts_in(broker, f"{unique}.out")) == ({}, expected)
