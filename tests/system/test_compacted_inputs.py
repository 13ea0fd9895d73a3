"""Inputs whose records brokers have compacted away: offsets are missing at the start, in between, and before the end."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import STRING, Consumed, Materialized, Produced, StreamsBuilder
from riverrun.spark.bounded_runs.job import run
from riverrun.spark.options import RunOptions
from riverrun.spark.ranges import resolve
from riverrun.worker.worker import Worker
from tests.conformance.hosts import on_executor
from tests.spark_sessions import own_session

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from riverrun import Topology
    from tests.brokers import Broker

pytestmark = [pytest.mark.broker, pytest.mark.spark]

USERS = 20
ROUNDS = 40
DEADLINE_S = 180.0
COMPACTED_SOON = {
    "cleanup.policy": "compact",
    "segment.ms": "1",
    "min.cleanable.dirty.ratio": "0.0001",
    "delete.retention.ms": "0",
}


def joined(name: str, out: str) -> Callable[[StreamsBuilder], Topology]:
    """Visits joined with the users' last names."""

    def build(builder: StreamsBuilder) -> Topology:
        names = builder.table(f"{name}.names", Consumed(STRING, STRING), Materialized(name="names"))
        visits = builder.stream(f"{name}.visits", Consumed(STRING, STRING))
        visits.left_join(names, lambda visit, known: f"{visit} {known}").to(out, Produced(STRING, STRING))
        return builder.build()

    return build


def write_until_compacted(broker: Broker, name: str) -> None:
    """Rename users again and again, each a few times more than the last, delete every fifth; wait until most of that is gone.

    What is left of the users lies rounds apart, so offsets are missing in between.
    """
    topic, written = f"{name}.names", 0
    for n in range(ROUNDS):
        users = range(n // 2, USERS)
        records = [(b"u%d" % u, None if u % 5 == 0 and n > 3 else b"name-%d" % n, 1 + n) for u in users]
        broker.write(topic, records)
        written += len(records)
    end, clock = time.monotonic() + DEADLINE_S, ROUNDS + 1
    while not (len(found := broker.read(topic)) <= written // 2 and has_gaps(found)):
        assert time.monotonic() < end, f"{len(found)} of {written} records are left"
        broker.write(topic, [(b"u1", b"name-%d" % clock, clock)])  # closes the segment before it
        written, clock = written + 1, clock + 1
        time.sleep(0.5)


def has_gaps(records: list[Any]) -> bool:
    """Whether offsets are missing between two records."""
    return any(after.offset > before.offset + 1 for before, after in pairwise(records))


def test_a_worker_and_a_run_read_compacted_inputs_alike_to_their_ends(
    broker: Broker, unique: str, tmp_path: Path
) -> None:
    broker.create(2, f"{unique}.visits", f"{unique}.live", f"{unique}.bounded")
    broker.create(2, f"{unique}.names", config=COMPACTED_SOON)
    write_until_compacted(broker, unique)
    names = {record.key: record.value for record in broker.read(f"{unique}.names")}
    broker.write(f"{unique}.visits", [(b"u%d" % u, b"visit", 10_000) for u in range(USERS)])

    live, bounded = joined(unique, f"{unique}.live"), joined(unique, f"{unique}.bounded")
    worker = Worker(broker.application(f"{unique}-live", live(StreamsBuilder()), tmp_path / "live"))
    worker.run(until_caught_up=True)
    app = broker.application(f"{unique}-bounded", bounded(StreamsBuilder()), tmp_path / "bounded")
    run(
        broker.connected(app),
        resolve(broker.connected(app)),
        own_session(),
        on_executor(bounded),
        options=RunOptions(max_records_per_slice=15),
    )

    expected = {b"u%d" % u: f"visit {(names.get(b'u%d' % u) or b'None').decode()}".encode() for u in range(USERS)}
    for way in ("live", "bounded"):
        assert {r.key: r.value for r in broker.read(f"{unique}.{way}")} == expected, way
