"""An admin client of the cluster in memory, in place of `confluent_kafka.admin.AdminClient`."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from confluent_kafka import ConsumerGroupState, ConsumerGroupType, KafkaError, KafkaException, Node, TopicPartitionInfo
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigSource,
    ConsumerGroupListing,
    DeletedRecords,
    ListConsumerGroupsResult,
    ResourceType,
    TopicDescription,
)

from riverrun.records import TopicPartition
from riverrun.simulation.brokers import SERVERS
from riverrun.simulation.groups import State
from riverrun.simulation.line import Line
from riverrun.simulation.refusals import RefusedError
from riverrun.simulation.settings import TOPIC_DEFAULTS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from confluent_kafka import TopicCollection
    from confluent_kafka import TopicPartition as ClientTopicPartition
    from confluent_kafka.admin import ClusterMetadata, ConfigResource, NewPartitions, NewTopic

    from riverrun.simulation.brokers import Brokers

_FOREVER_SECONDS = 365 * 86_400.0
_REQUEST_SECONDS = 60.0
_STATES = {
    State.EMPTY: ConsumerGroupState.EMPTY,
    State.JOINING: ConsumerGroupState.PREPARING_REBALANCING,
    State.SYNCING: ConsumerGroupState.COMPLETING_REBALANCING,
    State.STABLE: ConsumerGroupState.STABLE,
    State.DEAD: ConsumerGroupState.DEAD,
}


class MemoryAdminClient:
    """Asks about and changes topics; the methods are those of `confluent_kafka.admin.AdminClient`. Futures are done."""

    def __init__(self, brokers: Brokers, settings: Mapping[str, Any]) -> None:
        self._brokers = brokers
        self._line = Line(brokers, str(settings.get("client.id", "rdkafka")))

    def poll(self, timeout: float = 0) -> int:  # noqa: ARG002 - as the library
        """Return that nothing was due."""
        return 0

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> ClusterMetadata:
        """Return what the brokers say about topics."""
        return self._line.metadata(topic, _FOREVER_SECONDS if timeout < 0 else timeout)

    def describe_topics(
        self, topics: TopicCollection, *, request_timeout: float = _REQUEST_SECONDS
    ) -> dict[str, Future[Any]]:
        return self._each("DescribeTopicPartitions", topics.topic_names, self._description, request_timeout)

    def create_topics(
        self, new_topics: list[NewTopic], *, request_timeout: float = _REQUEST_SECONDS
    ) -> dict[str, Future[None]]:
        new = {topic.topic: topic for topic in new_topics}
        return self._each("CreateTopics", list(new), lambda name: self._create(new[name]), request_timeout)

    def create_partitions(
        self, new_partitions: list[NewPartitions], *, request_timeout: float = _REQUEST_SECONDS
    ) -> dict[str, Future[None]]:
        """Add partitions to topics."""
        counts = {new.topic: new.new_total_count for new in new_partitions}
        add = self._brokers.topics.add_partitions
        return self._each("CreatePartitions", list(counts), lambda name: add(name, counts[name]), request_timeout)

    def delete_topics(self, topics: list[str], *, request_timeout: float = _REQUEST_SECONDS) -> dict[str, Future[None]]:
        return self._each("DeleteTopics", topics, self._brokers.delete_topic, request_timeout)

    def delete_records(
        self, topic_partition_offsets: list[ClientTopicPartition], *, request_timeout: float = _REQUEST_SECONDS
    ) -> dict[ClientTopicPartition, Future[DeletedRecords]]:
        """Delete the records before offsets."""

        def delete(tp: ClientTopicPartition) -> DeletedRecords:
            return DeletedRecords(self._brokers.delete_records(TopicPartition(tp.topic, tp.partition), tp.offset))

        return self._each("DeleteRecords", topic_partition_offsets, delete, request_timeout)

    def describe_configs(
        self, resources: list[ConfigResource], *, request_timeout: float = _REQUEST_SECONDS
    ) -> dict[ConfigResource, Future[Any]]:
        """Return settings of topics or brokers."""
        return self._each("DescribeConfigs", resources, self._settings, request_timeout)

    def incremental_alter_configs(
        self, resources: list[ConfigResource], *, request_timeout: float = _REQUEST_SECONDS
    ) -> dict[ConfigResource, Future[None]]:
        """Change settings of topics."""
        return self._each("IncrementalAlterConfigs", resources, self._configure, request_timeout)

    def list_consumer_groups(self, *, request_timeout: float = _REQUEST_SECONDS) -> Future[ListConsumerGroupsResult]:
        return self._each("ListGroups", [""], lambda _all: self._groups(), request_timeout)[""]

    def _each(
        self, request: str, named: list[Any], act: Callable[[Any], Any], within_s: float
    ) -> dict[Any, Future[Any]]:
        """Send one request, and return an answer for each of what it names."""
        if not named:
            message = "expected non-empty list"
            raise ValueError(message)
        try:
            return self._line.patiently(
                request, lambda: {each: _answered(partial(act, each)) for each in named}, within_s
            )
        except KafkaException as error:
            return {each: _failed(error) for each in named}

    def _create(self, new: NewTopic) -> None:
        if not new.topic:
            raise RefusedError(KafkaError.TOPIC_EXCEPTION)
        config = {name: str(value) for name, value in new.config.items()} if new.config else {}
        self._brokers.topics.create(new.topic, new.num_partitions, new.replication_factor, config)

    def _description(self, name: str) -> TopicDescription:
        topic = self._brokers.topics.topic(name)
        host, port = SERVERS.split(":")
        node = Node(1, host, int(port))
        partitions = [TopicPartitionInfo(number, node, [node], [node]) for number in range(len(topic.logs))]
        return TopicDescription(name, topic.id, False, partitions)  # noqa: FBT003 - not internal

    def _settings(self, resource: ConfigResource) -> dict[str, ConfigEntry]:
        if resource.restype == ResourceType.BROKER:
            return {
                name: ConfigEntry(name, value, ConfigSource.STATIC_BROKER_CONFIG)
                for name, value in self._brokers.config.items()
            }
        topic = self._brokers.topics.topic(resource.name)
        return {name: _entry(name, value, is_own=name in topic.own) for name, value in topic.config.items()}

    def _configure(self, resource: ConfigResource) -> None:
        name = resource.name
        changes: dict[str, str | None] = {}
        present = self._brokers.topics.topic(name).config
        for entry in resource.incremental_configs:
            operation = entry.incremental_operation
            if operation is AlterConfigOpType.DELETE:
                changes[entry.name] = None
            elif operation is AlterConfigOpType.SET:
                changes[entry.name] = str(entry.value)
            else:
                listed = [each for each in present.get(entry.name, "").split(",") if each and each != entry.value]
                listed += [str(entry.value)] if operation is AlterConfigOpType.APPEND else []
                changes[entry.name] = ",".join(listed)
        self._brokers.topics.configure(name, changes)

    def _groups(self) -> ListConsumerGroupsResult:
        listed = [
            ConsumerGroupListing(name, not group.protocol_type, _STATES[group.state], ConsumerGroupType.CLASSIC)
            for name, group in sorted(self._brokers.groups.items())
            if group.protocol_type in {None, "consumer"}
        ]
        return ListConsumerGroupsResult(listed, [])


def _entry(name: str, value: str, *, is_own: bool) -> ConfigEntry:
    is_default = not is_own and value == TOPIC_DEFAULTS.get(name)
    own = ConfigSource.DYNAMIC_TOPIC_CONFIG if is_own else ConfigSource.STATIC_BROKER_CONFIG
    return ConfigEntry(name, value, ConfigSource.DEFAULT_CONFIG if is_default else own, is_default=is_default)


def _answered(act: Callable[[], Any]) -> Future[Any]:
    answer: Future[Any] = Future()
    try:
        answer.set_result(act())
    except RefusedError as error:
        return _failed(KafkaException(KafkaError(error.code, error.text)))
    return answer


def _failed(error: KafkaException) -> Future[Any]:
    answer: Future[Any] = Future()
    answer.set_exception(error)
    return answer
