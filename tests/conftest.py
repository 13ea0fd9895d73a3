"""Fixtures for all tests: a broker of the session's own, and names nobody else has."""

from __future__ import annotations

import os
import random
import signal
import socket
import statistics
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from hypothesis import settings

from pipeline.config import AppConfig, StreamsConfig
from pipeline.hosting.application import Application
from pipeline.hosting.connected import ConnectedApplication
from pipeline.kafka.admin import Admin, TopicSpec
from pipeline.kafka.embedded.broker import EmbeddedBroker
from pipeline.kafka.producer import IdempotentProducer
from pipeline.kafka.ranges import read_range
from pipeline.records import OffsetRange, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pipeline import Topology
    from pipeline.records import RawRecord

# A change is judged by what it changes: new inputs are tried while developing. No test is judged by the machine's load.
settings.register_profile("millrace", derandomize=bool(os.environ.get("CI")), deadline=None)
settings.load_profile("millrace")

# Shells start background processes with SIGINT ignored, and these would hand that down to all that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

HOME = Path("~/.cache/millrace").expanduser()

CRASHED = pytest.StashKey[bool]()

Input = tuple[bytes | None, bytes | None, int]
"""Key, value, timestamp."""


@dataclass(frozen=True)
class Broker:
    """A running broker, and what tests do with it."""

    embedded: EmbeddedBroker

    @property
    def bootstrap_servers(self) -> str:
        return self.embedded.bootstrap_servers

    @property
    def kafka(self) -> dict[str, str]:
        return {"bootstrap.servers": self.bootstrap_servers}

    def admin(self) -> Admin:
        return Admin(self.kafka)

    def connected(self, application: Application) -> ConnectedApplication:
        return ConnectedApplication(application, self.admin())

    def application(self, name: str, topology: Topology, state: Path, **streams: Any) -> Application:
        """Version `v1` of an application on this broker.

        Args:
            name: Its name.
            topology: What it runs.
            state: Its state directory.
            streams: Settings, as `StreamsConfig` names them.
        """
        config = AppConfig(name, "none:none", streams=StreamsConfig(**streams))
        return Application(config, "v1", topology, self.kafka, state)

    def create(self, partitions: int, *topics: str, config: Mapping[str, str] | None = None) -> None:
        self.admin().create_topics(TopicSpec(topic, partitions, config or {}) for topic in topics)

    def configure(self, topic: str, config: Mapping[str, str]) -> None:
        """Change settings of a topic, and wait until they hold; the others stay."""
        entries = [ConfigEntry(k, v, incremental_operation=AlterConfigOpType.SET) for k, v in config.items()]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        client, admin = AdminClient(self.kafka), self.admin()
        client.incremental_alter_configs([resource])[resource].result(30)
        while not config.items() <= admin.topic_config(topic).items():
            time.sleep(0.05)

    def write(self, topic: str, records: Iterable[Input], partition: int | None = None) -> None:
        producer = IdempotentProducer(self.kafka)
        for key, value, timestamp in records:
            producer.send(topic, key, value, timestamp, (), partition)
        producer.flush()

    def read(self, topic: str) -> list[RawRecord]:
        """All committed records, partition by partition."""
        admin = self.admin()
        tps = [TopicPartition(topic, n) for n in range(admin.partitions([topic])[topic])]
        first, last = admin.beginning_offsets(tps), admin.settled_end_offsets(tps)
        found: dict[TopicPartition, list[RawRecord]] = {tp: [] for tp in tps}
        for tp, records in read_range(admin, {tp: OffsetRange(first[tp], last[tp]) for tp in tps}):
            found[tp] += records
        return [record for tp in tps for record in found[tp]]


def free_port() -> int:
    """A port that is free, with the next one free as well.

    Below the range out of which the kernel takes ports for outgoing connections: a client that calls a port where nobody
    listens any more could be given the same port as its own, and would then be talking to itself.
    """
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as one, socket.socket() as two:
            try:
                one.bind(("127.0.0.1", port))
                two.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


@pytest.fixture(scope="session")
def new_port() -> Callable[[], int]:
    return free_port


@pytest.fixture(scope="session")
def broker_tools() -> Callable[[EmbeddedBroker], Broker]:
    """What tests do with a broker, for those that start one of their own."""
    return Broker


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    embedded = EmbeddedBroker(tmp_path_factory.mktemp("kafka"), HOME, free_port())
    embedded.start()
    yield Broker(embedded)
    embedded.stop()


@pytest.fixture
def unique() -> str:
    """A name for the topics and the application of one test."""
    return f"t{uuid.uuid4().hex[:10]}"


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    node.config.stash[CRASHED] = error is not None or node.config.stash.get(CRASHED, False)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End with the code of an interruption if a process has crashed: its other tests have not run, and pytest says `failed`."""
    if session.config.stash.get(CRASHED, False):
        session.exitstatus = pytest.ExitCode.INTERRUPTED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How long instances took, at their start and after what tests did to them, until all their tasks ran."""
    ended = [report for report in terminalreporter.getreports("") if report.when == "teardown"]
    found = {report.nodeid: dict(report.user_properties).get("recovery_s") for report in ended}
    if any(found.values()):
        terminalreporter.section("seconds until all tasks of an instance ran, after a change of its tasks")
    for test, seconds in found.items():
        if seconds:
            shown = f"median {statistics.median(seconds):.1f}, maximum {max(seconds):.1f}, of {len(seconds)}"
            terminalreporter.line(f"{shown}: {test}")
