"""Brokers of tests: what tests do with one, and where they keep its download."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import time
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from riverrun.config import AppConfig, StreamsConfig
from riverrun.errors import BrokerError
from riverrun.hosting.application import Application
from riverrun.hosting.connected import ConnectedApplication
from riverrun.kafka.admin import Admin, TopicSpec
from riverrun.kafka.door import Kafka
from riverrun.kafka.embedded.artifacts import classes_archive, find_java
from riverrun.kafka.embedded.broker import KAFKA_VERSION, EmbeddedBroker
from riverrun.kafka.producer import IdempotentProducer
from riverrun.kafka.ranges import read_range
from riverrun.records import OffsetRange, TopicPartition
from tests.waiting import DEADLINE_S, until

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from riverrun import Topology
    from riverrun.records import RawRecord

HOME = Path("~/.cache/riverrun").expanduser()
"""Downloads are kept here."""

JAVA_HOME = Path(os.environ["JAVA_HOME"]) if "JAVA_HOME" in os.environ else None
_QUICK = ("-XX:TieredStopAtLevel=1",)
"""Brokers of tests live for minutes at most: Java's second compiler would take more time than it saves."""

Input = tuple[bytes | None, bytes | None, int]
"""Key, value, timestamp."""


@dataclass(frozen=True)
class Broker:
    """A running broker, or a cluster of several, and what tests do with it."""

    bootstrap_servers: str

    @property
    def kafka(self) -> dict[str, str]:
        return {"bootstrap.servers": self.bootstrap_servers}

    def admin(self) -> Admin:
        """A new client."""
        return Admin(Kafka(self.kafka))

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
        return Application(config, "v1", topology, Kafka(self.kafka), state)

    def create(self, partitions: int, *topics: str, config: Mapping[str, str] | None = None) -> None:
        self.admin().create_topics(TopicSpec(topic, partitions, config or {}) for topic in topics)

    def configure(self, topic: str, config: Mapping[str, str]) -> None:
        """Change settings of a topic, and wait until they hold; the others stay."""
        entries = [ConfigEntry(k, v, incremental_operation=AlterConfigOpType.SET) for k, v in config.items()]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        client, admin = AdminClient(self.kafka), self.admin()
        client.incremental_alter_configs([resource])[resource].result(DEADLINE_S)
        until(lambda: config.items() <= admin.topic_config(topic).items(), f"had {config}")

    def write(self, topic: str, records: Iterable[Input], partition: int | None = None) -> None:
        producer = IdempotentProducer(Kafka(self.kafka), admin=_asking_for_limits(self.bootstrap_servers))
        for key, value, timestamp in records:
            producer.send(topic, key, value, timestamp, (), partition)
        producer.flush()

    def read(self, topic: str) -> list[RawRecord]:
        """All committed records, partition by partition. Waits for a broker that the machine leaves no time to answer."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                return self._read(topic)
            except BrokerError as error:
                if not error.retriable or time.monotonic() > deadline:
                    raise

    def _read(self, topic: str) -> list[RawRecord]:
        admin = self.admin()
        tps = [TopicPartition(topic, n) for n in range(admin.partitions([topic])[topic])]
        first, last = admin.beginning_offsets(tps), admin.settled_end_offsets(tps)
        found: dict[TopicPartition, list[RawRecord]] = {tp: [] for tp in tps}
        for tp, records in read_range(admin, {tp: OffsetRange(first[tp], last[tp]) for tp in tps}):
            found[tp] += records
        return [record for tp in tps for record in found[tp]]


@lru_cache(maxsize=1)
def _asking_for_limits(servers: str) -> Admin:
    """A client for limits of record times, which all writers share."""
    return Admin(Kafka({"bootstrap.servers": servers}))


def free_port() -> int:
    """A port that is free, with the next one free as well.

    It lies below the range from which the kernel takes ports for outgoing connections. A client that calls a port without
    a listener could otherwise get this port as its own, and would talk to itself.
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


def embedded_broker(directory: Path, port: int, *, cluster: tuple[int, ...] = ()) -> EmbeddedBroker:
    """A broker that has not been started, and takes a third of the usual processor time to start."""
    _record_classes()
    return EmbeddedBroker(directory, HOME, port, java_home=JAVA_HOME, java_options=_QUICK, cluster=cluster)


@cache
def _record_classes() -> None:
    """Run a broker once on each machine, so that all others find an archive of its classes."""
    HOME.mkdir(parents=True, exist_ok=True)
    with (HOME / "tests.lock").open("w") as lock, TemporaryDirectory() as directory:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not classes_archive(find_java(JAVA_HOME), HOME / f"kafka-{KAFKA_VERSION}").exists():
            first = EmbeddedBroker(Path(directory, "broker"), HOME, free_port(), java_home=JAVA_HOME)
            first.start()
            first.stop()
