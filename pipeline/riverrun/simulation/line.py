"""The line between a client and the brokers: repeats requests, and translates refusals to the client library's errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import BrokerMetadata, ClusterMetadata, PartitionMetadata, TopicMetadata

from riverrun.kafka import librdkafka
from riverrun.simulation.brokers import SERVERS
from riverrun.simulation.refusals import RETRIED, LostError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.simulation.brokers import Brokers

T = TypeVar("T")

PAUSE_SECONDS = 0.1
"""The library's `retry.backoff.ms`."""


@dataclass(frozen=True, slots=True)
class Line:
    """The requests of one client."""

    brokers: Brokers
    client_id: str

    def once(self, request: str, act: Callable[[], T]) -> T:
        """Send a request once. May raise `LostError` and `RefusedError`."""
        return self.brokers.ask(self.client_id, request, act)

    def patiently(self, request: str, act: Callable[[], T], within_s: float) -> T:
        """Send a request until it is answered; a refusal is a `KafkaException`."""
        deadline = self.brokers.waiting.now_s() + within_s
        while True:
            try:
                return self.once(request, act)
            except LostError:
                pass
            except RefusedError as error:
                if error.code not in RETRIED:
                    raise KafkaException(as_kafka_error(error)) from error
            left_s = deadline - self.brokers.waiting.now_s()
            if left_s <= 0:
                raise KafkaException(timed_out())
            self.pause(left_s)

    def pause(self, at_most_s: float) -> None:
        """Wait before another attempt."""
        with self.brokers.waiting as waiting:
            waiting.wait_until(lambda: False, min(PAUSE_SECONDS, at_most_s))

    def metadata(self, topic: str | None, within_s: float) -> ClusterMetadata:
        """Return what the brokers say about a topic; by default about all."""
        return self.patiently("Metadata", lambda: _metadata(self.brokers, topic), within_s)


def timed_out() -> KafkaError:
    """Return the library's error for requests that were not answered in time; they may be repeated."""
    return KafkaError(librdkafka.TIMED_OUT, None, False, True)  # noqa: FBT003 - not fatal, retriable


def as_kafka_error(error: RefusedError, *, fatal: bool = False, abortable: bool = False) -> KafkaError:
    """Return a refusal as the library reports it."""
    code = librdkafka.FENCED_PRODUCER if fatal and error.code == KafkaError.PRODUCER_FENCED else error.code
    return KafkaError(code, error.text, fatal, error.code in RETRIED, abortable)


def _metadata(brokers: Brokers, topic: str | None) -> ClusterMetadata:
    found = ClusterMetadata()
    found.cluster_id, found.controller_id, found.orig_broker_id = "memory", 1, 1
    broker = BrokerMetadata()
    broker.id, (broker.host, port) = 1, SERVERS.split(":")
    broker.port = int(port)
    found.brokers = {1: broker}
    names = [each.name for each in brokers.topics] if topic is None else [topic]
    found.topics = {name: _topic_metadata(brokers, name) for name in names}
    return found


def _topic_metadata(brokers: Brokers, name: str) -> TopicMetadata:
    described, topic = TopicMetadata(), brokers.topics.find(name)
    described.topic = name
    if topic is None:
        described.error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
    for number in range(0 if topic is None else len(topic.logs)):
        partition = PartitionMetadata()
        partition.id, partition.leader, partition.replicas, partition.isrs = number, 1, [1], [1]
        described.partitions[number] = partition
    return described
