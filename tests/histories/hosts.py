"""Hosts of an application, as actors of a cluster in memory."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from riverrun.config import AppConfig, StreamsConfig
from riverrun.errors import RangeError
from riverrun.hosting.application import Application
from riverrun.hosting.connected import ConnectedApplication
from riverrun.hosting.skipping import carry_out, plan_skip
from riverrun.kafka.admin import Admin
from riverrun.spark.bounded_runs.job import run
from riverrun.spark.options import RunOptions
from riverrun.spark.ranges import resolve
from riverrun.worker.streams_instance import StreamsInstance

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from riverrun.records import TopicPartition
    from riverrun.simulation.cluster import Cluster
    from riverrun.simulation.turns import Host, Turns
    from riverrun.topology.topology import Topology


@dataclass
class World:
    """A cluster with the hosts of one application."""

    cluster: Cluster
    build: Callable[[], Topology]
    directory: Path
    streams: StreamsConfig
    has_static_members: bool = False
    instances: dict[Host, StreamsInstance] = field(default_factory=dict)
    began_ns: int = 0

    def __post_init__(self) -> None:
        self.began_ns = self.turns.now_ns

    @property
    def turns(self) -> Turns:
        return self.cluster.turns

    def application(self, host: str) -> Application:
        """Return the application, with local state of the host."""
        config = AppConfig("app", "tests:build", streams=self.streams)
        return Application(config, "v1", self.build(), self.cluster.kafka, self.directory / host)

    def start_worker(self, name: str) -> Host:
        """Start an instance. The same name means the same local state."""
        build = self.build
        # Stream threads get a copy: not of the world.
        instance = StreamsInstance(self._member(name), lambda _job: build())
        host = self.turns.start_host(name, instance.run)
        self.instances[host] = instance
        return host

    def _member(self, name: str) -> Application:
        application = self.application(name)
        if not self.has_static_members:
            return application
        consumer = {**self.streams.consumer, "group.instance.id": name}
        return replace(
            application, config=replace(application.config, streams=replace(self.streams, consumer=consumer))
        )

    def stop(self, worker: Host) -> None:
        """Ask a worker to stop."""
        self.instances[worker].stop()

    def scale(self, worker: Host, threads: int) -> None:
        """Set a worker's number of stream threads."""
        self.instances[worker].scale(threads)

    def now_s(self) -> float:
        """Return the seconds since the start."""
        return (self.turns.now_ns - self.began_ns) / 1e9

    def start_run(self, name: str) -> Host:
        """Start a bounded run with the engine `local`, from the committed offsets to the latest."""

        def process() -> None:
            connected = self._connected(self.application(name).with_engine("local"))
            run(connected, resolve(connected, may_be_passed=True), None, lambda _job: self.build(), RunOptions())

        return self.turns.start_host(name, process)

    def start_skip(self, name: str, tp: TopicPartition) -> Host:
        """Start a process that skips the next record of a partition."""

        def skip() -> None:
            connected = self._connected(self.application(name))
            done = connected.noted([tp]).get(tp)
            # There may be none, or others may have processed it meanwhile.
            with suppress(RangeError):
                carry_out(connected, plan_skip(connected, tp, 0 if done is None else done.offset))

        return self.turns.start_host(name, skip)

    def _connected(self, application: Application) -> ConnectedApplication:
        return ConnectedApplication(application, Admin(self.cluster.kafka))
