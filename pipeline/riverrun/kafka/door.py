"""The door to Kafka: the only module that makes clients of the libraries, for all that a cluster's properties are given to."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from riverrun.kafka.librdkafka import CLIENT, LASTING, quiet
from riverrun.kafka.tokens import client_properties

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from riverrun.kafka.clients import AdminRequests, Clients, Connection, ConsumerClient, ProducerClient
    from riverrun.records import TopicPartition

_NO_DEFAULTS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class LibraryClients:
    """Makes clients of confluent-kafka and kafka-python."""

    def producer(self, settings: Mapping[str, Any]) -> ProducerClient:
        """See `Clients.producer`."""
        client: ProducerClient = Producer(dict(settings), logger=quiet)
        return client

    def consumer(self, settings: Mapping[str, Any]) -> ConsumerClient:
        """See `Clients.consumer`."""
        client: ConsumerClient = Consumer(dict(settings), logger=quiet)
        return client

    def admin(self, settings: Mapping[str, Any]) -> AdminRequests:
        """See `Clients.admin`."""
        client: AdminRequests = AdminClient(dict(settings), logger=quiet)
        return client

    def coordinator(self, properties: Mapping[str, str], client_id: str, group: str, attempt: int) -> Connection:
        """See `Clients.coordinator`."""
        from riverrun.kafka.kafka_python import CoordinatorConnection  # noqa: PLC0415 - loads for long, and few ask

        return CoordinatorConnection(properties, client_id, group, attempt)

    def log_sizes(
        self, properties: Mapping[str, str], client_id: str, topics: Iterable[str], within_s: float
    ) -> dict[TopicPartition, int]:
        """See `Clients.log_sizes`."""
        from riverrun.kafka.kafka_python import log_sizes  # noqa: PLC0415 - as above

        return log_sizes(properties, client_id, topics, within_s)


@dataclass(frozen=True, slots=True)
class Kafka:
    """A cluster, as everything knows it that makes clients.

    Args:
        properties: Client properties with librdkafka's names. Never printed: they may hold secrets.
        clients: Makes the clients.
    """

    properties: Mapping[str, str] = field(repr=False, hash=False)
    clients: Clients = LibraryClients()

    @property
    def servers(self) -> str:
        """Return the bootstrap servers."""
        return self.properties.get("bootstrap.servers", "")

    def with_defaults(self, defaults: Mapping[str, str]) -> Kafka:
        """Return a copy with further properties, which those of the cluster override."""
        return replace(self, properties={**defaults, **self.properties})

    def lasting(self) -> Kafka:
        """Return a copy for hosts that wait for brokers for long."""
        return self.with_defaults(LASTING)

    def producer(self, own: Mapping[str, Any], defaults: Mapping[str, Any] = _NO_DEFAULTS) -> ProducerClient:
        """Return a producer. Its own settings override the cluster's properties, and these the defaults."""
        return self.clients.producer(self._settings(own, defaults))

    def consumer(self, own: Mapping[str, Any], defaults: Mapping[str, Any] = _NO_DEFAULTS) -> ConsumerClient:
        """Return a consumer; see `producer`."""
        return self.clients.consumer(self._settings(own, defaults))

    def admin(self, own: Mapping[str, Any]) -> AdminRequests:
        """Return a client that asks about topics; see `producer`."""
        return self.clients.admin(self._settings(own, _NO_DEFAULTS))

    def coordinator(self, client_id: str, group: str, attempt: int = 0) -> Connection:
        """Return a connection to the coordinator of a group; each attempt asks another bootstrap server for it."""
        return self.clients.coordinator(self.properties, client_id, group, attempt)

    def log_sizes(self, client_id: str, topics: Iterable[str], within_s: float) -> dict[TopicPartition, int]:
        """Return the size of partitions on brokers' disks in bytes; see `Admin.log_sizes`."""
        return self.clients.log_sizes(self.properties, client_id, topics, within_s)

    def _settings(self, own: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
        return {**CLIENT, **defaults, **client_properties(self.properties), **own}
