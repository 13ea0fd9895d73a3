"""Topics, offsets and groups: everything that is asked of brokers beside records."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
)
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from pipeline.errors import BrokerError, TopicError
from pipeline.kafka.errors import MISSING_TOPIC, mapped_errors, streams_error
from pipeline.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from concurrent.futures import Future

REQUEST_SECONDS = 15.0
"""How long one request may take before the brokers count as unreachable."""
_STABLE_SECONDS = 90.0
"""How long to wait for an open transaction to end; longer than `transaction.timeout.ms`."""
_PAUSE_SECONDS = 0.05
_NOT_YET = frozenset(
    {
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    }
)
"""A transaction is just being committed, or a broker that was just started still reads its log."""
_NO_LEADER = frozenset({KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE})
"""The topic was just created, or its broker just started."""

quiet = logging.getLogger("millrace.kafka.client")
"""Where the client library's own chatter goes: nowhere, unless somebody listens."""
quiet.addHandler(logging.NullHandler())
quiet.propagate = False


class CommittedOffset(NamedTuple):
    """What a group has committed for a partition: the next offset to read, and the metadata beside it."""

    offset: int
    metadata: str


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic that must exist.

    Args:
        name: Its name.
        partitions: Its number of partitions.
        config: Its settings.
        replication_factor: -1 for the brokers' default.
    """

    name: str
    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)
    replication_factor: int = -1


class Admin:
    """Asks brokers. Every call has a deadline; none creates a topic by accident.

    Args:
        kafka: Client properties; security properties pass through.
    """

    def __init__(self, kafka: Mapping[str, str]) -> None:
        """Nothing is asked before the first call."""
        self._kafka = kafka
        self._servers = kafka.get("bootstrap.servers", "")
        self._readers: dict[str, Consumer] = {}
        with mapped_errors("use the client properties"):
            self._client = AdminClient({**kafka, "client.id": "millrace-admin"}, logger=quiet)

    def partitions(self, topics: Iterable[str]) -> dict[str, int]:
        """Number of partitions of those of the topics that exist."""
        names = sorted(set(topics))
        if not names:
            return {}
        doing = f"look up topics at {self._servers}"
        with mapped_errors(doing):
            futures = self._client.describe_topics(TopicCollection(names), request_timeout=REQUEST_SECONDS)
        found = {}
        for name, future in futures.items():
            try:
                found[name] = len(future.result(REQUEST_SECONDS + 5).partitions)
            except KafkaException as error:
                if error.args[0].code() not in MISSING_TOPIC:
                    raise streams_error(error.args[0], doing) from error
        return found

    def require(self, topics: Iterable[str], why: str) -> None:
        """Make sure that topics exist.

        Args:
            topics: The topics.
            why: Why they are needed, for the message.

        Raises:
            TopicError: If one does not exist.
        """
        names = set(topics)
        missing = sorted(names - self.partitions(names).keys())
        if missing:
            message = f"Topics that {why} do not exist: {', '.join(missing)}"
            raise TopicError(message, hint="Create them; Millrace creates only an application's internal topics.")

    def list_topics(self, prefix: str = "") -> list[str]:
        """Names of all topics that begin with `prefix`, sorted."""
        with mapped_errors(f"list topics at {self._servers}"):
            topics = self._client.list_topics(timeout=REQUEST_SECONDS).topics
        return sorted(name for name in topics if name.startswith(prefix))

    def create_topics(self, specs: Iterable[TopicSpec]) -> None:
        """Create the topics that do not exist, and wait until they can be used.

        Raises:
            TopicError: If one exists with another number of partitions.
        """
        wanted = {spec.name: spec for spec in specs}
        known = self.partitions(wanted)
        new = [
            NewTopic(s.name, s.partitions, s.replication_factor, config=dict(s.config))
            for s in wanted.values()
            if s.name not in known
        ]
        if new:
            with mapped_errors("create topics"):
                futures = self._client.create_topics(new, request_timeout=REQUEST_SECONDS)
            for name, future in futures.items():
                self._result(future, f"create topic {name}", ignore={KafkaError.TOPIC_ALREADY_EXISTS})
            self._until(lambda: self.partitions(wanted).keys() == wanted.keys(), "see the topics that were created")
            known = self.partitions(wanted)
        for name, spec in wanted.items():
            if known[name] != spec.partitions:
                message = f"Existing topic {name} has {known[name]} partitions, not {spec.partitions}"
                raise TopicError(message, hint="Delete it if it is left from another version, or change the version.")

    def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics, and wait until they are gone. Idempotent."""
        known = list(self.partitions(names))
        if not known:
            return
        with mapped_errors("delete topics"):
            futures = self._client.delete_topics(known, request_timeout=REQUEST_SECONDS)
        for name, future in futures.items():
            self._result(future, f"delete topic {name}", ignore=MISSING_TOPIC)
        self._until(lambda: not self.partitions(known), "see that the deleted topics are gone")

    def end_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Last stable offsets: the ends for whoever reads committed records only."""
        return self._offsets(tps, OffsetSpec.latest())

    def settled_end_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Ends of partitions to which nobody writes at present, once their transactions have ended.

        A commit is acknowledged before its markers are in the log: until they are, the last stable offset lies before it.

        Raises:
            BrokerError: If a transaction stays open.
        """
        partitions = list(tps)
        found: dict[TopicPartition, int] = {}

        def is_settled() -> bool:
            found.update(self.end_offsets(partitions))
            return found == self._offsets(partitions, OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)

        self._until(is_settled, "see the end of all transactions", _STABLE_SECONDS)
        return found

    def beginning_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """First offsets that still exist."""
        return self._offsets(tps, OffsetSpec.earliest())

    def offsets_for_time(self, tps: Iterable[TopicPartition], timestamp_ms: int) -> dict[TopicPartition, int]:
        """Per partition the first offset at or after a time; past the last record, the last stable offset.

        A transaction's end has a place in the log and the broker's time, and may be what is found.
        """
        partitions = list(tps)
        ends = self.end_offsets(partitions)
        found = self._offsets(partitions, OffsetSpec.for_timestamp(timestamp_ms))
        return {tp: ends[tp] if found[tp] < 0 else min(found[tp], ends[tp]) for tp in partitions}

    def committed(self, group: str, tps: Iterable[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        """Committed offsets of a group; partitions without one are left out.

        Waits for transactions that are just being committed: the offset they replace must not be seen.

        Raises:
            BrokerError: If a transaction stays open longer than any may.
        """
        partitions = [ClientTopicPartition(*tp) for tp in tps]
        if not partitions:
            return {}
        found: list[Any] = []

        def is_stable() -> bool:
            try:
                found[:] = self._committed(group, partitions)
            except KafkaException as error:
                if error.args[0].code() in _NOT_YET:
                    return False
                raise streams_error(error.args[0], f"read committed offsets of {group}") from error
            return not any(tp.error and tp.error.code() in _NOT_YET for tp in found)

        self._until(is_stable, f"read stable offsets of {group}", _STABLE_SECONDS)
        return {
            TopicPartition(tp.topic, tp.partition): CommittedOffset(tp.offset, tp.metadata or "")
            for tp in found
            if tp.offset >= 0
        }

    def alter_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set a group's committed offsets; the group must have no members."""
        partitions = [ClientTopicPartition(tp.topic, tp.partition, offset) for tp, offset in offsets.items()]
        request = [ConsumerGroupTopicPartitions(group, partitions)]
        futures = self._client.alter_consumer_group_offsets(request, request_timeout=REQUEST_SECONDS)
        answer = self._result(futures[group], f"set offsets of {group}")
        for tp in answer.topic_partitions:
            if tp.error is not None:
                raise streams_error(tp.error, f"set offsets of {group}")

    def delete_group(self, group: str) -> None:
        """Delete a group and its committed offsets. Idempotent."""
        futures = self._client.delete_consumer_groups([group], request_timeout=REQUEST_SECONDS)
        ignore = {KafkaError.GROUP_ID_NOT_FOUND}
        self._result(futures[group], f"delete group {group}", ignore=ignore)

    def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        """Delete the records before the given offsets."""
        request = [ClientTopicPartition(tp.topic, tp.partition, offset) for tp, offset in before.items()]
        futures = self._client.delete_records(request, request_timeout=REQUEST_SECONDS)
        for tp, future in futures.items():
            self._result(future, f"delete records of {tp.topic}-{tp.partition}")

    def topic_config(self, topic: str) -> dict[str, str]:
        """Settings of a topic."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        future = self._client.describe_configs([resource], request_timeout=REQUEST_SECONDS)[resource]
        entries = self._result(future, f"read settings of topic {topic}")
        return {name: entry.value for name, entry in entries.items()}

    def alter_topic_config(self, topic: str, config: Mapping[str, str]) -> None:
        """Change settings of a topic; the others stay."""
        entries = [ConfigEntry(k, v, incremental_operation=AlterConfigOpType.SET) for k, v in config.items()]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        future = self._client.incremental_alter_configs([resource], request_timeout=REQUEST_SECONDS)[resource]
        self._result(future, f"change settings of topic {topic}")

    def _offsets(
        self,
        tps: Iterable[TopicPartition],
        spec: OffsetSpec,
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[TopicPartition, int]:
        request = {ClientTopicPartition(*tp): spec for tp in tps}
        if not request:
            return {}
        found: dict[TopicPartition, int] = {}

        def has_leaders() -> bool:
            futures = self._client.list_offsets(request, isolation_level=isolation, request_timeout=REQUEST_SECONDS)
            for tp, future in futures.items():
                answer = self._result(future, f"look up offsets at {self._servers}", ignore=_NO_LEADER)
                if answer is None:
                    return False
                found[TopicPartition(tp.topic, tp.partition)] = answer.offset
            return True

        self._until(has_leaders, f"find leaders at {self._servers}")
        return found

    def _committed(self, group: str, partitions: list[ClientTopicPartition]) -> list[Any]:
        """Asked by a consumer that never joins; reading committed records only, it is told stable offsets only.

        The admin client's way to ask takes the process down when a broker is no coordinator (any more), as one that was just
        started (librdkafka issue 5040).
        """
        if group not in self._readers:
            settings = {"group.id": group, "enable.auto.commit": False, "isolation.level": "read_committed"}
            self._readers[group] = Consumer({**self._kafka, **settings}, logger=quiet)
        answer: list[Any] = self._readers[group].committed(partitions, REQUEST_SECONDS)
        return answer

    def _result(self, future: Future[Any], doing: str, *, ignore: Collection[int] = ()) -> Any:
        """A request's answer. The client must outlive its requests: a future of a collected one never ends."""
        try:
            return future.result(REQUEST_SECONDS + 5)
        except KafkaException as error:
            if error.args[0].code() in ignore:
                return None
            raise streams_error(error.args[0], doing) from error

    def _until(self, condition: Callable[[], bool], doing: str, seconds: float = REQUEST_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                message = f"Cannot {doing} within {seconds:.0f} s"
                raise BrokerError(message, retriable=True)
            time.sleep(_PAUSE_SECONDS)
