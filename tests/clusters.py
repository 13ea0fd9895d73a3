"""Clusters for tests of what brokers do: one in memory, and a real one, by the same clients."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from riverrun.kafka.admin import Admin, TopicSpec
from riverrun.kafka.consumer import RecordConsumer
from riverrun.kafka.door import Kafka
from riverrun.kafka.membership import GroupMember, MemberConfig
from riverrun.kafka.producer import IdempotentProducer, TransactionalProducer
from riverrun.records import RawRecord, TopicPartition
from riverrun.simulation.brokers import SERVERS, Brokers
from riverrun.simulation.clients import clients_of
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from riverrun.simulation.faults import Faults

_NAMES = itertools.count()
_POLLS = 300


@dataclass
class ManualClock:
    """A clock that advances when a test says so."""

    time_ms: int

    def now_ms(self) -> int:
        return self.time_ms


class Cluster(Protocol):
    """Brokers, for tests."""

    kafka: Kafka

    def pass_time(self, ms: int) -> None:
        """Let time pass, for brokers and all clients."""

    def now_ms(self) -> int:
        """The brokers' time, about."""

    def raw_producer(self, **settings: Any) -> Any:
        """A producer of the client library."""

    def raw_consumer(self, **settings: Any) -> Any:
        """A consumer of the client library."""

    def raw_admin(self) -> Any:
        """An admin client of the client library."""


@dataclass
class RealCluster:
    """The embedded broker."""

    kafka: Kafka

    def pass_time(self, ms: int) -> None:
        time.sleep(ms / 1000)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def raw_producer(self, **settings: Any) -> Any:
        return Producer({**self.kafka.properties, "log_level": 0, **_dotted(settings)})

    def raw_consumer(self, **settings: Any) -> Any:
        return Consumer({**self.kafka.properties, "log_level": 0, "group.id": "raw", **_dotted(settings)})

    def raw_admin(self) -> Any:
        return AdminClient(dict(self.kafka.properties))


@dataclass
class MemoryCluster:
    """Brokers in memory, whose clock tests move."""

    brokers: Brokers
    clock: ManualClock

    def __post_init__(self) -> None:
        """Make its clients."""
        self.clients = clients_of(self.brokers, f"cluster-{next(_NAMES)}")
        self.kafka = Kafka({"bootstrap.servers": SERVERS}, self.clients)

    def pass_time(self, ms: int) -> None:
        self.clock.time_ms += ms
        self.brokers.tick()

    def now_ms(self) -> int:
        return self.clock.now_ms()

    def raw_producer(self, **settings: Any) -> Any:
        return self.clients.producer(_dotted(settings))

    def raw_consumer(self, **settings: Any) -> Any:
        return self.clients.consumer({"group.id": "raw", **_dotted(settings)})

    def raw_admin(self) -> Any:
        return self.clients.admin({})


def memory_cluster(faults: Faults | None = None, **config: str) -> MemoryCluster:
    clock = ManualClock(time.time_ns() // 1_000_000)
    return MemoryCluster(Brokers(clock, config=_dotted(config), faults=faults), clock)


def _dotted(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "."): value for name, value in settings.items()}


@dataclass
class Partition:
    """One partition of a cluster, and what tests do with it."""

    cluster: Cluster
    tp: TopicPartition

    @property
    def admin(self) -> Admin:
        return Admin(self.cluster.kafka)

    def write(self, *records: tuple[bytes | None, bytes | None, int]) -> None:
        producer = IdempotentProducer(self.cluster.kafka)
        for key, value, time_ms in records:
            producer.send(self.tp.topic, key, value, time_ms, (), self.tp.partition)
        producer.flush()
        producer.close()

    def read(self, start: int = 0, **settings: str) -> list[RawRecord]:
        """All records that may be read, from an offset to the end."""
        consumer = RecordConsumer(self.cluster.kafka, settings)
        consumer.assign({self.tp: start})
        try:
            return until_end(consumer, self.tp)[0]
        finally:
            consumer.close()

    def values(self, start: int = 0) -> list[bytes | None]:
        return [record.value for record in self.read(start)]

    def stable_end(self) -> int:
        return self.admin.end_offsets([self.tp])[self.tp]

    def end(self) -> int:
        return self.admin.written_offsets([self.tp])[self.tp]

    def start(self) -> int:
        return self.admin.log_starts([self.tp])[self.tp]


def new_partition(cluster: Cluster, topic: str, **config: str) -> Partition:
    Admin(cluster.kafka).create_topics([TopicSpec(topic, 1, _dotted(config))])
    return Partition(cluster, TopicPartition(topic, 0))


def owner(cluster: Cluster, name: str, timeout_ms: int = 60_000) -> TransactionalProducer:
    producer = TransactionalProducer(cluster.kafka, name, transaction_timeout_ms=timeout_ms)
    producer.init()
    return producer


def send(producer: TransactionalProducer, partition: Partition, *values: bytes) -> None:
    for value in values:
        producer.send(partition.tp.topic, b"k", value, partition.cluster.now_ms(), (), partition.tp.partition)
    producer.flush()


def until_end(consumer: RecordConsumer, tp: TopicPartition) -> tuple[list[RawRecord], int]:
    """Everything up to the end of the log, and that end."""
    found: list[RawRecord] = []
    for _ in range(_POLLS):
        polled = consumer.poll(100, 0.2)
        found += map(RawRecord._make, polled.records.get(tp, []))
        if tp in polled.ends:
            return found, polled.ends[tp]
    message = f"no end of {tp} was reported"
    raise AssertionError(message)


@dataclass
class Member:
    """A member of a group that says something, and its plans; a leader plans everything for everybody."""

    cluster: Cluster
    group: str
    says: bytes
    instance: str | None = None
    session_ms: int = 6_000
    topics: Collection[str] = ()
    plans: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.place = GroupMember(
            self.cluster.kafka,
            self.group,
            lambda: self.topics,
            client_id=f"says-{self.says.decode()}",
            describe=lambda: self.says,
            assign=lambda said: dict.fromkeys(said, b" ".join(sorted(said.values()))),
            on_plan=self.plans.append,
            config=MemberConfig(
                session_timeout_ms=self.session_ms, heartbeat_interval_ms=100, group_instance_id=self.instance
            ),
        )
        self.place.poll(0)

    def knows(self, *said: bytes) -> bool:
        return bool(self.plans) and self.plans[-1].split() == sorted(said)

    def until_knows(self, *said: bytes) -> None:
        until(lambda: self.knows(*said), f"knew {said!r}", lambda: repr(self.plans))


def code_of(error: KafkaException) -> int:
    return int(error.args[0].code())


def raised_code(call: Callable[[], object]) -> int:
    """The code of the library's error that a call raises; 0 if it raises none."""
    try:
        call()
    except KafkaException as error:
        return code_of(error)
    return 0


def delivery_codes(producer: Any, topic: str, records: Iterable[dict[str, Any]]) -> list[int]:
    """The code of each record's delivery; 0 for those that arrive."""
    codes: list[int] = []

    def delivered(error: Any, _message: object) -> None:
        codes.append(0 if error is None else int(error.code()))

    for record in records:
        producer.produce(topic, on_delivery=delivered, **record)
    producer.flush(30)
    return codes
