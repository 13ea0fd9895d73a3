"""Real hosts of an application as actors of one process, on brokers in memory."""

from __future__ import annotations

import importlib
import multiprocessing
import multiprocessing.connection
import pkgutil
import signal
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from riverrun.config import AppConfig, StreamsConfig
from riverrun.hosting.application import Application
from riverrun.hosting.connected import ConnectedApplication
from riverrun.kafka.admin import Admin
from riverrun.kafka.door import Kafka
from riverrun.spark.bounded_runs.job import run
from riverrun.spark.options import RunOptions
from riverrun.spark.ranges import resolve
from riverrun.testing.cluster.brokers import SERVERS, Brokers
from riverrun.testing.cluster.clients import clients_of
from riverrun.testing.cluster.processes import Processes
from riverrun.testing.cluster.simulated import Namespace, RequestLock, simulated
from riverrun.testing.cluster.turns import Turns
from riverrun.worker.queries import readiness
from riverrun.worker.spawning import start_child
from riverrun.worker.stream_thread.process import obey_instance, run_stream_thread
from riverrun.worker.streams_instance import StreamsInstance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from riverrun.testing.cluster.faults import Faults
    from riverrun.testing.cluster.processes import Connection
    from riverrun.testing.cluster.turns import Host
    from riverrun.topology.topology import Topology

_TICK_SECONDS = 0.05
_ROOMS = "config", "hosting", "kafka", "records", "runtime", "schemas", "serde", "spark", "state", "worker"


def _load_all() -> None:
    """Load the modules of hosts, as functions import some later: only loaded ones are simulated."""
    for room in _ROOMS:
        package = importlib.import_module(f"riverrun.{room}")
        for found in pkgutil.walk_packages(getattr(package, "__path__", ()), f"{package.__name__}."):
            importlib.import_module(found.name)


class BrokersClock:
    """The clock of the turns, for brokers."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def now_ms(self) -> int:
        return self._turns.now_ns // 1_000_000


class HostedBrokers(Brokers):
    """Brokers whose clients do nothing more in the background once their host has ended."""

    turns: Turns

    def join_background(self, client: Any) -> None:
        super().join_background(client)

        def leave() -> None:
            self._clients = [known for known in self._clients if known() is not client]

        self.turns.host.at_end.append(leave)


@dataclass
class World:
    """A cluster with the hosts of one application."""

    turns: Turns
    brokers: Brokers
    kafka: Kafka
    build: Callable[[], Topology]
    directory: Path
    streams: StreamsConfig
    instances: dict[Host, StreamsInstance] = field(default_factory=dict)
    began_ns: int = 0

    def __post_init__(self) -> None:
        self.began_ns = self.turns.now_ns

    def application(self, host: str) -> Application:
        """Return the application, with local state of the host."""
        config = AppConfig("app", "tests:build", streams=self.streams)
        return Application(config, "v1", self.build(), self.kafka, self.directory / host)

    def start_worker(self, name: str) -> Host:
        """Start an instance. The same name means the same local state."""
        instance = StreamsInstance(self.application(name), lambda _job: self.build())
        host = self.turns.start_host(name, instance.run)
        self.instances[host] = instance
        return host

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
            application = self.application(name).with_engine("local")
            connected = ConnectedApplication(application, Admin(self.kafka))
            run(connected, resolve(connected, may_be_passed=True), None, lambda _job: self.build(), RunOptions())

        return self.turns.start_host(name, process)


@contextmanager
def world(
    seed: int,
    build: Callable[[], Topology],
    directory: Path,
    *,
    faults: Faults | None = None,
    streams: StreamsConfig | None = None,
) -> Iterator[World]:
    """Return a cluster in which the body is the actor `main`."""
    _load_all()
    with ExitStack() as stack:
        turns = stack.enter_context(Turns(seed, stuck_s=10))
        stack.enter_context(simulated(turns, also=_processes(turns)))
        brokers = HostedBrokers(BrokersClock(turns), waiting=RequestLock(turns), faults=faults, seed=seed)
        brokers.turns = turns
        clients = clients_of(brokers, f"history-{seed}")
        kafka = Kafka({"bootstrap.servers": SERVERS}, clients)

        def tick() -> None:
            while True:
                turns.sleep(_TICK_SECONDS)
                brokers.tick()

        turns.start_host("brokers", tick)
        yield World(turns, brokers, kafka, build, directory, streams or StreamsConfig())


def _processes(turns: Turns) -> list[tuple[object, object]]:
    """Return what stands in for processes of stream threads, with what it replaces."""
    processes = Processes(turns)

    def ready(pipe: Connection) -> Callable[[float | None], object]:
        return lambda ms: turns.wait_until(pipe.is_readable, None if ms is None else ms / 1000)

    def obey(pipe: Any, queries: Any, job: Any, build: Any, _logs: object) -> None:
        obey_instance(pipe, queries, job, build)

    return [
        (multiprocessing, Namespace(multiprocessing, {"Pipe": processes.pipe})),
        (multiprocessing.connection.wait, processes.wait),
        (start_child, processes.start),
        (run_stream_thread, obey),
        (readiness, ready),
        # Handlers belong to the process.
        (signal, Namespace(signal, {"signal": lambda _number, _handler: None})),
    ]
