"""Everything that Riverrun calls of the client libraries: an implementation of it can take the place of brokers.

Names, arguments and answers are the libraries'. Messages, partitions, errors and answers are confluent-kafka's own values, and
requests to coordinators kafka-python's. A refusal is a `KafkaException` with a `KafkaError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from concurrent.futures import Future

    from confluent_kafka import KafkaError, Message, TopicCollection, TopicPartition
    from confluent_kafka.admin import ClusterMetadata, ConfigResource, NewPartitions, NewTopic

    from riverrun import records

    OnDelivery = Callable[[KafkaError | None, Message], None]
    OnRebalance = Callable[[Any, list[TopicPartition]], None]


class ProducerClient(Protocol):
    """Writes records (`confluent_kafka.Producer`). It has no `close`, and ends with its last reference.

    Its settings may have `on_delivery`, for records that are produced without their own.
    """

    def produce(  # noqa: PLR0917 - the library takes the parts of a record by position
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        partition: int = -1,
        callback: OnDelivery | None = None,
        on_delivery: OnDelivery | None = None,
        timestamp: int = 0,
        headers: list[Any] | None = None,
    ) -> None:
        """Queue a record; raises BufferError while the queue is full."""

    def poll(self, timeout: float) -> int:
        """Call the callbacks that are due."""

    def flush(self, timeout: float) -> int:
        """Wait until records have arrived; returns the number of those that have not."""

    def purge(self) -> None:
        """Discard the records that have not arrived."""

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> ClusterMetadata:
        """Look up topics and brokers."""

    def init_transactions(self, timeout: float) -> None:
        """Take over the transactional id of the settings, and fence its earlier owners."""

    def begin_transaction(self) -> None:
        """Begin a transaction."""

    def send_offsets_to_transaction(
        self, positions: list[TopicPartition], group_metadata: bytes, timeout: float
    ) -> None:
        """Add offsets of a group without membership, which `producer.group_metadata` encodes."""

    def commit_transaction(self, timeout: float) -> None:
        """Commit; errors say by `txn_requires_abort` and their code what has happened."""

    def abort_transaction(self, timeout: float) -> None:
        """Abort."""


class ConsumerClient(Protocol):
    """Reads records, and reads or commits offsets of a group (`confluent_kafka.Consumer`).

    Its settings may have `error_cb` and `on_commit`. `isolation.level` holds for records and offsets.
    """

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        """Read these partitions as well, from their offsets."""

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        """Stop reading these partitions."""

    def pause(self, partitions: list[TopicPartition]) -> None:
        """Return no records of these partitions."""

    def resume(self, partitions: list[TopicPartition]) -> None:
        """Return their records again, after the last one returned."""

    def consume(self, num_messages: int, timeout: float) -> list[Message]:
        """Return messages: records, ends of partitions (`enable.partition.eof`), and errors."""

    def poll(self, timeout: float) -> Message | None:
        """Call the callbacks that are due, and return a message if there is one."""

    def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float = -1, *, cached: bool = False
    ) -> tuple[int, int]:
        """Return the first offset and the end of a partition; an unknown cached end is negative."""

    def offsets_for_times(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        """Look offsets up by times, which each partition has as its offset, or by `OFFSET_BEGINNING` and `OFFSET_END`."""

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> ClusterMetadata:
        """Look up topics and brokers."""

    def committed(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        """Return the group's committed offsets, with metadata."""

    def commit(self, *, offsets: list[TopicPartition], asynchronous: Literal[True]) -> None:
        """Commit offsets of the group; `on_commit` gets the answer during a later poll."""

    def subscribe(
        self, topics: list[str], on_assign: OnRebalance, on_revoke: OnRebalance, on_lost: OnRebalance
    ) -> None:
        """Join the group; the callbacks are called during polls."""

    def unsubscribe(self) -> None:
        """Leave the group."""

    def assign(self, partitions: list[TopicPartition]) -> None:
        """Read these partitions instead of all others; called within `on_assign`."""

    def unassign(self) -> None:
        """Stop reading all partitions; called within `on_revoke`."""

    def close(self) -> None:
        """Leave the group, and end the client."""


class AdminRequests(Protocol):
    """Asks about and changes topics (`confluent_kafka.admin.AdminClient`). Its settings have `error_cb`."""

    def poll(self, timeout: float) -> int:
        """Call the callbacks that are due."""

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> ClusterMetadata:
        """Look up topics and brokers."""

    def describe_topics(self, topics: TopicCollection, *, request_timeout: float) -> dict[str, Future[Any]]:
        """Return `TopicDescription`s by name."""

    def create_topics(self, new_topics: list[NewTopic], *, request_timeout: float) -> dict[str, Future[None]]:
        """Create topics."""

    def create_partitions(
        self, new_partitions: list[NewPartitions], *, request_timeout: float
    ) -> dict[str, Future[None]]:
        """Add partitions."""

    def delete_topics(self, topics: list[str], *, request_timeout: float) -> dict[str, Future[None]]:
        """Delete topics."""

    def delete_records(
        self, topic_partition_offsets: list[TopicPartition], *, request_timeout: float
    ) -> dict[TopicPartition, Future[Any]]:
        """Delete the records before offsets."""

    def describe_configs(
        self, resources: list[ConfigResource], *, request_timeout: float
    ) -> dict[ConfigResource, Future[Any]]:
        """Return `ConfigEntry`s by name, of topics or brokers."""

    def incremental_alter_configs(
        self, resources: list[ConfigResource], *, request_timeout: float
    ) -> dict[ConfigResource, Future[None]]:
        """Set or delete settings of topics."""

    def list_consumer_groups(self, *, request_timeout: float) -> Future[Any]:
        """Return a `ListConsumerGroupsResult`."""


class Connection(Protocol):
    """A connection to the coordinator of a group (`CoordinatorConnection`).

    Requests and answers are kafka-python's: `JoinGroup`, `SyncGroup`, `Heartbeat`, `LeaveGroup`, `DescribeGroups` and
    `DeleteGroups`.
    """

    def find(self, within_s: float, gives_up: Callable[[], bool]) -> None:
        """Look up the coordinator, unless it is known."""

    def ask(self, request: Any, within_s: float, gives_up: Callable[[], bool]) -> Any:
        """Return the answer to a request."""

    def close(self) -> None:
        """Close it; the next request opens it again."""


class Clients(Protocol):
    """Makes clients. Processes and Spark tasks get a copy, so it can be pickled, hashed and compared."""

    def producer(self, settings: Mapping[str, Any]) -> ProducerClient:
        """Make a producer."""

    def consumer(self, settings: Mapping[str, Any]) -> ConsumerClient:
        """Make a consumer."""

    def admin(self, settings: Mapping[str, Any]) -> AdminRequests:
        """Make a client that asks about topics."""

    def coordinator(self, properties: Mapping[str, str], client_id: str, group: str, attempt: int) -> Connection:
        """Make a connection to the coordinator of a group; each attempt asks another bootstrap server for it."""

    def log_sizes(
        self, properties: Mapping[str, str], client_id: str, topics: Iterable[str], within_s: float
    ) -> dict[records.TopicPartition, int]:
        """Return the size of partitions on brokers' disks in bytes, as far as it is known."""
