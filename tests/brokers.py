"""Brokers of tests: what tests do with one, and where they keep its download."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import time
import uuid
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from confluent_kafka.admin import NewPartitions
from kafka import TopicPartition as KafkaTopicPartition
from kafka.admin import KafkaAdminClient

from riverrun.config import AppConfig, StreamsConfig
from riverrun.errors import BrokerError
from riverrun.hosting.application import Application
from riverrun.hosting.connected import ConnectedApplication
from riverrun.intervals import repeating
from riverrun.kafka.admin import Admin, TopicSpec
from riverrun.kafka.door import Kafka, LibraryClients
from riverrun.kafka.embedded.artifacts import classes_archive, find_java
from riverrun.kafka.embedded.broker import KAFKA_VERSION, EmbeddedBroker
from riverrun.kafka.producer import IdempotentProducer
from riverrun.kafka.ranges import read_range
from riverrun.project.riverrun import Riverrun
from riverrun.records import OffsetRange, TopicPartition
from riverrun.simulation.brokers import SERVERS, Brokers
from riverrun.simulation.clients import clients_of
from tests.waiting import DEADLINE_S, until

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from riverrun import Topology
    from riverrun.kafka.clients import Clients
    from riverrun.records import RawRecord

HOME = Path("~/.cache/riverrun").expanduser()
"""Downloads are kept here."""

JAVA_HOME = Path(os.environ["JAVA_HOME"]) if "JAVA_HOME" in os.environ else None

_TICK_S = 0.05
"""Time limits of a broker in memory are looked at so often."""

_LIBRARY = LibraryClients()

Input = tuple[bytes | None, bytes | None, int]
"""Key, value, timestamp."""


@dataclass(frozen=True)
class Broker:
    """A running broker, or a cluster of several, and what tests do with it."""

    bootstrap_servers: str
    clients: Clients = _LIBRARY
    memory: Brokers | None = None
    """The brokers themselves, if they are in memory."""

    @property
    def kafka(self) -> dict[str, str]:
        return {"bootstrap.servers": self.bootstrap_servers}

    @property
    def door(self) -> Kafka:
        """The door through which Riverrun's clients are made."""
        return Kafka(self.kafka, self.clients)

    def admin(self) -> Admin:
        """A new client."""
        return Admin(self.door)

    def project(self, **given: Any) -> Riverrun:
        """A project without a file. Arguments are those of `Riverrun`."""
        return Riverrun(kafka=self.kafka, clients=self.clients, **given)

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
        return Application(config, "v1", topology, self.door, state)

    def create(self, partitions: int, *topics: str, config: Mapping[str, str] | None = None) -> None:
        self.admin().create_topics(TopicSpec(topic, partitions, config or {}) for topic in topics)

    def configure(self, topic: str, config: Mapping[str, str]) -> None:
        """Change settings of a topic, and wait until they hold; the others stay."""
        admin = self.admin()
        admin.alter_topic_configs({topic: config})
        until(lambda: config.items() <= admin.topic_config(topic).items(), f"had {config}")

    def grow(self, topic: str, partitions: int) -> None:
        """Let a topic have this number of partitions."""
        client, admin = self.door.admin({}), self.admin()  # requests end with their client
        client.create_partitions([NewPartitions(topic, partitions)], request_timeout=DEADLINE_S)[topic].result(
            DEADLINE_S
        )
        until(lambda: admin.partitions([topic]) == {topic: partitions}, f"had {partitions} partitions")

    def forget_offsets(self, group: str, tps: Iterable[TopicPartition]) -> None:
        """Delete committed offsets, as brokers do when nobody is a member of a group for long."""
        if self.memory is not None:
            with self.memory.waiting:
                for tp in tps:
                    del self.memory.groups[group].offsets.present[tp]
            return
        with closing(KafkaAdminClient(bootstrap_servers=self.bootstrap_servers)) as client:
            answers = client.delete_group_offsets(group, [KafkaTopicPartition(*tp) for tp in tps])
        assert all(error.errno == 0 for error in answers.values()), answers

    def write(self, topic: str, records: Iterable[Input], partition: int | None = None) -> None:
        producer = IdempotentProducer(self.door, admin=self._asker)
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
        admin = self._asker
        tps = [TopicPartition(topic, n) for n in range(admin.partitions([topic])[topic])]
        first, last = admin.beginning_offsets(tps), admin.settled_end_offsets(tps)
        found: dict[TopicPartition, list[RawRecord]] = {tp: [] for tp in tps}
        for tp, records in read_range(admin, {tp: OffsetRange(first[tp], last[tp]) for tp in tps}):
            found[tp] += records
        return [record for tp in tps for record in found[tp]]

    @cached_property
    def _asker(self) -> Admin:
        """A client that all writes and reads share: tests that wait read again and again."""
        return self.admin()

    def __getstate__(self) -> dict[str, Any]:
        """Leave the client behind: functions of tests bring their broker to Spark's tasks."""
        return {name: value for name, value in self.__dict__.items() if name != "_asker"}


@contextmanager
def memory_broker() -> Iterator[Broker]:
    """A broker in memory, by the machine's clock, for hosts in threads of this process."""
    brokers = Brokers(_MachineClock())
    with repeating(brokers.tick, _TICK_S, "brokers"):
        yield Broker(SERVERS, clients_of(brokers, f"broker-{uuid.uuid4().hex}"), brokers)


class _MachineClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


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
    """A broker that has not been started, and starts with an archive of its classes."""
    _record_classes()
    return EmbeddedBroker(directory, HOME, port, java_home=JAVA_HOME, cluster=cluster)


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
