"""A worker's wall clock: punctuations and commits."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import (
    STRING,
    Consumed,
    EmitStrategy,
    Grouped,
    Produced,
    PunctuationType,
    Record,
    StreamsBuilder,
    TimeWindows,
)
from riverrun.hosting.process import SystemClock
from riverrun.worker.worker import Worker
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from riverrun import Cancellable, ProcessorContext
    from tests.brokers import Broker

INTERVAL = timedelta(milliseconds=1)


class Ticking:
    """Forwards one record and fails in its first punctuation by the wall clock, then never again."""

    def init(self, context: ProcessorContext) -> None:
        self._context = context
        self._ticks: Cancellable = context.schedule(INTERVAL, PunctuationType.WALL_CLOCK_TIME, self._tick)

    def process(self, record: Record[str, str]) -> None:
        """Records are not forwarded."""

    def _tick(self, now_ms: int) -> None:
        self._ticks.cancel()
        self._context.forward(Record("tick", str(now_ms), now_ms))
        message = "after the tick"
        raise RuntimeError(message)

    def close(self) -> None:
        """Do nothing."""


@pytest.fixture
def broker(any_broker: Broker) -> Broker:
    """In memory, but for tests that are marked `broker`."""
    return any_broker


@pytest.mark.broker
def test_a_worker_punctuates_commits_the_output_and_asks_the_handler(
    broker: Broker, unique: str, tmp_path: Path
) -> None:
    builder = StreamsBuilder()
    ticks = builder.stream(f"{unique}.in", Consumed(STRING, STRING)).process(Ticking)
    ticks.to(f"{unique}.out", Produced(STRING, STRING))
    broker.create(1, f"{unique}.in", f"{unique}.out", f"{unique}.letters")
    application = broker.application(
        unique,
        builder.build(),
        tmp_path,
        commit_interval_ms=100,
        processing_exception_handler="continue",
        errors_dead_letter_queue_topic_name=f"{unique}.letters",
    )
    summary = Worker(application).run(until_caught_up=True)
    assert summary.dropped == {"processing-failed": 1}
    (tick,) = broker.read(f"{unique}.out")
    assert (tick.key, tick.value) == (b"tick", str(tick.timestamp).encode())
    (letter,) = broker.read(f"{unique}.letters")
    assert (letter.key, letter.value, letter.timestamp) == (None, None, tick.timestamp)


def test_the_last_window_closes_when_the_inputs_of_a_worker_are_silent(
    broker: Broker, unique: str, tmp_path: Path
) -> None:
    builder = StreamsBuilder()
    grouped = builder.stream(f"{unique}.in", Consumed(STRING, STRING)).group_by(
        lambda _key, word: word, Grouped(STRING, STRING)
    )
    windows = grouped.windowed_by(TimeWindows.of(timedelta(seconds=1))).emit_strategy(EmitStrategy.on_window_close())
    counts = windows.count().to_stream(lambda key, _count: key.key).map_values(str)
    counts.to(f"{unique}.out", Produced(STRING, STRING))
    broker.create(1, f"{unique}.in", f"{unique}.out")
    broker.write(f"{unique}.in", [(b"1", b"a", 100), (b"2", b"a", 200)])
    worker = Worker(broker.application(unique, builder.build(), tmp_path, window_idle_close_ms=200))
    running = threading.Thread(target=worker.run)
    running.start()
    try:
        until(lambda: bool(broker.read(f"{unique}.out")), "closed the window")
    finally:
        worker.stop()
        running.join()
    assert [(record.key, record.value) for record in broker.read(f"{unique}.out")] == [(b"a", b"2")]


def test_a_worker_goes_on_committing_when_the_clock_of_its_machine_is_set_back(
    broker: Broker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = StreamsBuilder()
    builder.stream(f"{unique}.in", Consumed(STRING, STRING)).to(f"{unique}.out", Produced(STRING, STRING))
    broker.create(1, f"{unique}.in", f"{unique}.out")
    worker = Worker(broker.application(unique, builder.build(), tmp_path, commit_interval_ms=50))
    running = threading.Thread(target=worker.run)

    def write(value: bytes) -> None:
        broker.write(f"{unique}.in", [(b"a", value, 1)])
        until(lambda: value in [record.value for record in broker.read(f"{unique}.out")], "committed it")

    running.start()
    try:
        for value in (b"before", b"after"):
            write(value)
            monkeypatch.setattr(SystemClock, "now_ms", lambda _clock: time.time_ns() // 1_000_000 - 3_600_000)
    finally:
        worker.stop()
        running.join()


@pytest.fixture
def commits_of(broker: Broker, unique: str, tmp_path: Path) -> Any:
    """How often a worker without caches, whose interval is never over, commits to count so many different words."""

    def count(words: int) -> int:
        builder = StreamsBuilder()
        counts = builder.stream(f"{unique}.in", Consumed(STRING, STRING)).group_by_key(Grouped(STRING, STRING)).count()
        counts.to_stream().map_values(str).to(f"{unique}.out", Produced(STRING, STRING))
        settings = {"commit_interval_ms": 3_600_000, "statestore_cache_max_bytes": 0}
        broker.create(1, f"{unique}.in", f"{unique}.out")
        broker.write(f"{unique}.in", [(b"w%d" % n, b"", n + 1) for n in range(words)])
        application = broker.application(unique, builder.build(), tmp_path, **settings)
        return Worker(application).run(until_caught_up=True).commits

    return count


def test_without_caches_a_worker_commits_when_its_interval_says(commits_of: Any) -> None:
    assert commits_of(words=5_000) == 1


def test_what_is_not_committed_does_not_grow_without_bound_even_without_caches(commits_of: Any) -> None:
    assert commits_of(words=60_000) == 2
