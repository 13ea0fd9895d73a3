"""Rows that global tables cannot read: told on every host, kept in their topic, and there once they can be read."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun import JSON, STRING, Consumed, Materialized, Produced, StreamsBuilder
from riverrun.processor.handlers import ErrorHandlers, Response
from riverrun.records import TopicPartition
from riverrun.runtime.state_manager import GlobalState
from riverrun.state.memory import MemoryBackend
from riverrun.testing import Cluster, TopologyTestDriver
from riverrun.testing.driver import MockClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from riverrun.topology.topology import Topology

SKIPS = {"deserialization.exception.handler": "continue", "errors.dead.letter.queue.topic.name": "letters"}
LEFT_OUT = "Global tables lack 1 record of their topics (undecodable 1), the first one countries-0@1"


def build(builder: StreamsBuilder) -> Topology:
    """Add names of countries to orders."""
    countries = builder.global_table("countries", Consumed(STRING, JSON), Materialized(name="countries"))
    orders = builder.stream("orders", Consumed(STRING, STRING))
    joined = orders.join(countries, lambda order, country: f"{order} {country}", key_selector=lambda key, _value: key)
    joined.to("named", Produced(STRING, STRING))
    return builder.build()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(seed=1) as opened:
        for topic in ("countries", "orders", "named", "letters"):
            opened.create_topic(topic, 1)
        yield opened


def app(cluster: Cluster) -> Any:
    return cluster.project().app("names", build, config=SKIPS)


def write(cluster: Cluster) -> None:
    names = cluster.input_topic("countries", STRING, STRING)
    names.pipe_key_value_list([("de", '"Germany"'), ("fr", "no JSON")])
    cluster.input_topic("orders", STRING, STRING).pipe_key_value_list([("de", "1"), ("fr", "2")])


def test_a_run_warns_once_of_rows_that_global_tables_lack(cluster: Cluster) -> None:
    write(cluster)
    summary = app(cluster).run()
    (warning,) = summary.warnings
    assert warning.startswith(LEFT_OUT)
    assert cluster.output_topic("letters", STRING, STRING).is_empty()


def test_a_record_without_a_key_is_no_row_to_warn_of(cluster: Cluster) -> None:
    cluster.input_topic("countries", STRING, STRING).pipe_input(None, '"nowhere"')
    cluster.input_topic("orders", STRING, STRING).pipe_input("de", "1")
    assert app(cluster).run().warnings == ()


@given(st.permutations(range(3)), st.permutations(range(3)))
def test_partitions_that_are_read_in_any_order_have_one_warning(one: list[int], other: list[int]) -> None:
    def warning(order: list[int]) -> str:
        handlers = ErrorHandlers(deserialization=lambda *_failure: Response.resume())
        topology = build(StreamsBuilder())
        state = GlobalState(topology, "names", backend=MemoryBackend(), clock=MockClock(), handlers=handlers)
        # More than are kept until somebody asks for them.
        records: list[Any] = [(b"de", b"no JSON", 0, offset, ()) for offset in range(30)]
        for partition in order:
            state.apply(TopicPartition("countries", partition), records, 30)
        return state.left_out()

    assert warning(one) == warning(other)
    assert "(undecodable 90), the first one countries-0@0" in warning(one)


def test_a_row_that_a_table_lacks_is_there_once_it_can_be_read(cluster: Cluster) -> None:
    write(cluster)
    app(cluster).run()
    cluster.input_topic("countries", STRING, STRING).pipe_input("fr", '"France"')
    cluster.input_topic("orders", STRING, STRING).pipe_input("fr", "3")
    app(cluster).run()
    named = cluster.output_topic("named", STRING, STRING).read_key_values_to_list()
    assert named == [("de", "1 Germany"), ("fr", "3 France")]


def test_the_driver_counts_and_warns(caplog: pytest.LogCaptureFixture) -> None:
    builder = StreamsBuilder()
    with caplog.at_level(logging.WARNING), TopologyTestDriver(build(builder), SKIPS) as driver:
        names = driver.input_topic("countries", STRING, STRING)
        names.pipe_key_value_list([("de", '"Germany"'), ("fr", "no JSON")])
        assert driver.dropped() == {"undecodable": 1}
    assert LEFT_OUT in caplog.text


def test_a_worker_shows_the_failure_once(cluster: Cluster, tmp_path: Path) -> None:
    write(cluster)
    worker = app(cluster).worker(threads=2, state_dir=tmp_path)

    def failures() -> Any:
        return worker._instance.failed() if worker._instance else ()

    cluster.start("worker", lambda: (worker.start(), worker.wait()))
    cluster.wait_until(lambda: bool(failures()), timedelta(minutes=5))
    cluster.advance(timedelta(minutes=1))
    (failed,) = failures()
    assert (failed.topic, failed.offset, failed.outcome) == ("countries", 1, "skipped")
