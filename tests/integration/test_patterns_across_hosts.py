"""Patterns and rolling windows have the results of a test driver, whichever hosts take turns and lose their state."""

from __future__ import annotations

import shutil
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from riverrun import JSON, STRING, Consumed, Pattern, Produced, RollingWindows, StreamsBuilder
from riverrun.config import AT_LEAST_ONCE
from riverrun.spark.bounded_runs.job import run
from riverrun.spark.ranges import resolve
from riverrun.testing import TopologyTestDriver
from riverrun.worker.worker import Worker
from tests.conformance.hosts import SPARK_ON_DEMAND, on_executor

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from riverrun import Topology
    from riverrun.hosting.application import Application
    from tests.brokers import Broker

START_MS = 1_767_226_240_000
Part = tuple[str, bool, list[tuple[str, int, str]]]


def seconds(count: int) -> timedelta:
    return timedelta(seconds=count)


def built(name: str) -> Callable[[StreamsBuilder], Topology]:
    def build(builder: StreamsBuilder) -> Topology:
        texts = builder.stream(f"{name}.in", Consumed(STRING, STRING))
        pair = Pattern.begin("one", lambda text: text == "a").one_or_more().followed_by("two", lambda text: text == "b")
        alone = Pattern.begin("alone", lambda text: text == "a").not_followed_by(lambda text: text == "b")
        for within, grace, pattern in ((9, 3, pair), (9, 0, pair), (5, 2, alone)):
            found = texts.match(pattern, within=seconds(within), grace=seconds(grace))
            found.to(f"{name}.out", Produced(STRING, JSON))
        rolling = texts.group_by_key().windowed_by(RollingWindows.of(seconds(8), records=3, grace=seconds(4)))
        rolling.reduce(lambda one, two: one + two).to(f"{name}.texts")
        return builder.build()

    return build


@pytest.fixture
def broker(any_broker: Broker) -> Broker:
    """In memory, but for tests that are marked `broker`."""
    return any_broker


RECORDS = st.lists(st.tuples(st.sampled_from("kl"), st.integers(0, 5), st.sampled_from("aab-")), max_size=8)
PARTS = st.lists(st.tuples(st.sampled_from(["worker", "run"]), st.booleans(), RECORDS), min_size=2, max_size=4)


AABB = [("k", 0, "a"), ("k", 2, "a"), ("l", 0, "a"), ("k", 0, "b"), ("l", 5, "b"), ("l", 1, "b")]


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(PARTS)
@example([("worker", True, AABB), ("run", False, AABB), ("run", True, AABB), ("worker", True, AABB)])
def test_hosts_that_take_turns_find_what_one_finds(
    broker: Broker, tmp_path_factory: pytest.TempPathFactory, parts: list[Part]
) -> None:
    name = f"turns{uuid.uuid4().hex[:8]}"
    broker.create(1, f"{name}.in", f"{name}.out", f"{name}.texts")
    state: Path = tmp_path_factory.mktemp("state")
    build = built(name)
    app = broker.application(name, build(StreamsBuilder()), state, processing_guarantee=AT_LEAST_ONCE)
    now_ms, everything = START_MS, list[tuple[str, int, str]]()
    for place, (host, loses, rows) in enumerate([*parts, ("worker", False, [("end", 0, "-")])]):
        # Times go on by two seconds, and back by up to five.
        given_rows = [(key, now_ms + 2000 * n - 1000 * back, text) for n, (key, back, text) in enumerate(rows)]
        now_ms += 2000 * len(rows) + (60_000 if place == len(parts) - 1 else 0)
        everything += given_rows
        broker.write(f"{name}.in", [(key.encode(), text.encode(), at_ms) for key, at_ms, text in given_rows])
        work(broker, app, build, host)
        if loses:
            shutil.rmtree(app.directory, ignore_errors=True)
    with TopologyTestDriver(build(StreamsBuilder())) as driver:
        for key, at_ms, text in everything:
            driver.input_topic(f"{name}.in", STRING, STRING).pipe_input(key, text, timestamp=at_ms)
        for topic in (f"{name}.out", f"{name}.texts"):
            expected = [(record.key, record.value, record.timestamp) for record in driver.read_raw(topic)]
            found = [(record.key, record.value, record.timestamp) for record in broker.read(topic)]
            assert found == expected


def work(broker: Broker, app: Application, build: Callable[[StreamsBuilder], Topology], host: str) -> None:
    if host == "worker":
        Worker(app).run(until_caught_up=True)
    else:
        run(broker.connected(app), resolve(broker.connected(app)), SPARK_ON_DEMAND, on_executor(build))
