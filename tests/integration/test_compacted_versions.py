"""Versions of last year, of which brokers would leave one per key at once: they compare event times with their own clock."""

from __future__ import annotations

import shutil
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import STRING, Consumed, Processor, Produced, Stores, StreamsBuilder
from riverrun.hosting.process import SystemClock
from riverrun.worker.worker import Worker

if TYPE_CHECKING:
    from pathlib import Path

    from riverrun import ProcessorContext, Record, Topology
    from tests.brokers import Broker

pytestmark = pytest.mark.broker

VERSIONS = 40
DEADLINE_S = 180.0
COMPACTED_SOON = {"segment.ms": "1", "min.cleanable.dirty.ratio": "0.0001", "delete.retention.ms": "0"}
LOG_CONFIGS = {"kept": COMPACTED_SOON, "thinned": {**COMPACTED_SOON, "min.compaction.lag.ms": "0"}}


class Remembering(Processor[str, str]):
    """Keeps what each record says; one that says `?` asks what was said 1 s before it."""

    def init(self, context: ProcessorContext) -> None:
        self.context = context
        self.stores: list[Any] = [context.get_state_store(name) for name in LOG_CONFIGS]

    def process(self, record: Record[str, str]) -> None:
        for store in self.stores:
            if record.value != "?":
                store.put(record.key, record.value, record.timestamp)
        if record.value == "?":
            found = self.stores[0].get(record.key, record.timestamp - 1000)
            self.context.forward(record.with_value(found.value if found is not None else "nothing"))


def remembering(name: str) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream(f"{name}.in", Consumed(STRING, STRING))
    for store, log_config in LOG_CONFIGS.items():
        history = timedelta(days=1)
        builder.add_state_store(
            Stores.versioned_key_value_store(store, STRING, STRING, history_retention=history, log_config=log_config)
        )
    stream.process(Remembering, *LOG_CONFIGS).to(f"{name}.out", Produced(STRING, STRING))
    return builder.build()


def test_old_versions_are_restored_and_missed_aloud_where_brokers_thin_them(
    broker: Broker, unique: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create(1, f"{unique}.in", f"{unique}.out")
    app = broker.application(unique, remembering(unique), tmp_path / "state")
    then_ms = SystemClock().now_ms() - 400 * 86_400_000

    def work(*records: tuple[int, bytes]) -> None:
        broker.write(f"{unique}.in", [(b"k", said, then_ms + at_ms) for at_ms, said in records])
        Worker(app).run(until_caught_up=True)

    work(*((1000 * n, b"%d" % n) for n in range(VERSIONS)))
    end, written = time.monotonic() + DEADLINE_S, VERSIONS
    while len(broker.read(f"{app.id}-thinned-changelog")) > written // 2:
        assert time.monotonic() < end, "brokers compact nothing"
        work((1000 * written, b"%d" % written))  # closes the segment before it
        written += 1
    assert len(broker.read(f"{app.id}-kept-changelog")) == written
    caplog.clear()
    shutil.rmtree(app.directory)
    work((30_500, b"?"))
    assert [record.value for record in broker.read(f"{unique}.out")] == [b"29"]
    assert "Versions of store thinned may be lost: event time is at" in caplog.text
    assert "Versions of store kept" not in caplog.text
