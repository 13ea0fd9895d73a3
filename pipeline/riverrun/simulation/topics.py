"""The topics of the brokers: their ids, partitions and settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, Uuid

from riverrun.records import is_legal_topic
from riverrun.simulation.partition_log import PartitionLog
from riverrun.simulation.refusals import RefusedError
from riverrun.simulation.settings import check_topic_settings, topic_defaults

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from random import Random


@dataclass(slots=True)
class ClusterTopic:
    """A topic.

    Args:
        config: All settings, those of the brokers included.
        own: The settings that the topic has set.
    """

    name: str
    id: Uuid
    logs: list[PartitionLog]
    config: dict[str, str]
    own: dict[str, str] = field(default_factory=dict)


class ClusterTopics:
    """All topics by name. A topic that is deleted and created again has another id."""

    def __init__(self, broker: Mapping[str, str], random: Random) -> None:
        self._broker = broker
        self._random = random
        self._topics: dict[str, ClusterTopic] = {}

    def __iter__(self) -> Iterator[ClusterTopic]:
        return iter(tuple(self._topics.values()))

    def find(self, name: str) -> ClusterTopic | None:
        """Return a topic; None if it does not exist."""
        return self._topics.get(name)

    def topic(self, name: str) -> ClusterTopic:
        """Return a topic that must exist."""
        found = self._topics.get(name)
        if found is None:
            raise RefusedError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        return found

    def log(self, name: str, partition: int) -> PartitionLog:
        """Return the log of a partition that must exist."""
        logs = self.topic(name).logs
        if not 0 <= partition < len(logs):
            raise RefusedError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        return logs[partition]

    def has(self, name: str, partition: int) -> bool:
        """Return whether a partition exists."""
        topic = self._topics.get(name)
        return topic is not None and 0 <= partition < len(topic.logs)

    def create(self, name: str, partitions: int, replicas: int, config: Mapping[str, str]) -> ClusterTopic:
        """Create a topic; -1 stands for the brokers' default."""
        if name in self._topics:
            raise RefusedError(KafkaError.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        if not is_legal_topic(name):
            raise RefusedError(KafkaError.TOPIC_EXCEPTION)
        count = int(self._broker["num.partitions"]) if partitions == -1 else partitions
        if count < 1:
            raise RefusedError(KafkaError.INVALID_PARTITIONS)
        if replicas not in {-1, 1}:
            text = f"Unable to replicate the partition {replicas} time(s): The target replication factor of {replicas}"
            raise RefusedError(KafkaError.INVALID_REPLICATION_FACTOR, text)
        check_topic_settings(config)
        topic_id = Uuid(*(self._random.getrandbits(64) - 2**63 for _ in range(2)))
        topic = ClusterTopic(name, topic_id, [PartitionLog() for _ in range(count)], {}, dict(config))
        self._settle(topic)
        self._topics[name] = topic
        return topic

    def add_partitions(self, name: str, count: int) -> None:
        """Raise the number of a topic's partitions."""
        logs = self.topic(name).logs
        if count <= len(logs):
            raise RefusedError(KafkaError.INVALID_PARTITIONS)
        logs += [PartitionLog() for _ in range(count - len(logs))]

    def delete(self, name: str) -> None:
        """Delete a topic with its records."""
        self.topic(name)
        del self._topics[name]

    def configure(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Change some settings of a topic; None restores the default."""
        topic = self.topic(name)
        own = {**topic.own, **changes}
        check_topic_settings({key: value for key, value in own.items() if value is not None})
        topic.own = {key: value for key, value in own.items() if value is not None}
        self._settle(topic)

    def _settle(self, topic: ClusterTopic) -> None:
        topic.config = {**topic_defaults(self._broker), **topic.own}
