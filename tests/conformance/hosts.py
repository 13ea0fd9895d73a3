"""Hosts of one case: the driver in memory, a worker, and Spark."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pyspark import cloudpickle

from riverrun import StreamsBuilder
from riverrun.config import EXACTLY_ONCE_V2, AppConfig, StreamsConfig
from riverrun.hosting.application import Application
from riverrun.spark.bounded_runs.job import run
from riverrun.spark.ranges import resolve
from riverrun.spark.session import on_demand
from riverrun.testing import TopologyTestDriver
from riverrun.worker.worker import Worker
from tests.spark_sessions import own_session

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from riverrun.records import RawRecord
    from riverrun.spark.tasks.work import Job
    from riverrun.topology.topology import Topology
    from tests.brokers import Broker


SPARK_ON_DEMAND = on_demand(own_session, None, {})
"""Spark on this machine, as programs have it: bounded runs of tests are small, and do without it."""


class Host(Protocol):
    """Runs a topology over inputs and returns its output."""

    name: str

    def topic(self, name: str) -> str:
        """Return the name of a case's topic on this host."""
        ...

    def run(
        self,
        build: Callable[[StreamsBuilder], Topology],
        inputs: Mapping[str, Any],
        *outputs: str,
        partitions: int = 1,
        **streams: Any,
    ) -> dict[str, list[RawRecord]]:
        """Records per output topic, partition by partition; `streams` are fields of `StreamsConfig`."""
        ...


@dataclass
class DriverHost:
    name: str = "driver"

    def topic(self, name: str) -> str:
        return name

    def run(
        self,
        build: Callable[[StreamsBuilder], Topology],
        inputs: Mapping[str, Any],
        *outputs: str,
        partitions: int = 1,  # noqa: ARG002 - the driver has one
        **streams: Any,
    ) -> dict[str, list[RawRecord]]:
        with TopologyTestDriver(build(StreamsBuilder()), StreamsConfig(**streams)) as driver:
            for topic, records in inputs.items():
                for key, value, timestamp in records:
                    driver._pipe(topic, key, value, timestamp, ())
            return {topic: driver.read_raw(topic) for topic in outputs}


@dataclass
class KafkaHost:
    """The parts that hosts on a broker share. Topics are never used twice: clients remember those of their name."""

    broker: Broker
    unique: str
    state: Path
    guarantee: str = EXACTLY_ONCE_V2
    name: str = "worker"

    def topic(self, name: str) -> str:
        return f"{self.unique}.{name}"

    def application(self, topology: Topology, **streams: Any) -> Application:
        config = AppConfig(
            self.unique,
            "none:none",
            streams=StreamsConfig(processing_guarantee=self.guarantee, commit_interval_ms=100, **streams),
        )
        return Application(config, "v1", topology, self.broker.door, self.state)

    def run(
        self,
        build: Callable[[StreamsBuilder], Topology],
        inputs: Mapping[str, Any],
        *outputs: str,
        partitions: int = 1,
        **streams: Any,
    ) -> dict[str, list[RawRecord]]:
        self.broker.create(partitions, *map(self.topic, [*inputs, *outputs]))
        for topic, records in inputs.items():
            self.broker.write(self.topic(topic), records)
        self.process(self.application(build(StreamsBuilder()), **streams), build)
        return {topic: self.broker.read(self.topic(topic)) for topic in outputs}

    def process(self, application: Application, build: Callable[[StreamsBuilder], Topology]) -> None:  # noqa: ARG002
        Worker(application).run(until_caught_up=True)


@dataclass
class SparkHost(KafkaHost):
    """One bounded run from the beginning to the end of the topics."""

    name: str = "spark"

    def process(self, application: Application, build: Callable[[StreamsBuilder], Topology]) -> None:
        connected = self.broker.connected(application)
        run(connected, resolve(connected), own_session(), on_executor(build))


def on_executor(build: Callable[[StreamsBuilder], Topology]) -> Callable[[Job], Topology]:
    """Test modules cannot be imported by executors: what they define travels by value."""
    for module in {sys.modules[build.__module__], sys.modules[__name__]}:
        cloudpickle.register_pickle_by_value(module)
    return lambda _job: build(StreamsBuilder())
