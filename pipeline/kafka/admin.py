"""Topics, offsets and groups: everything that is asked of brokers beside records."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    TopicCollection,
)
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import ConfigResource, NewTopic, ResourceType

from pipeline.errors import OpenTransactionError, TopicError
from pipeline.kafka.ending import end_in_background
from pipeline.kafka.errors import DENIED, MISSING_TOPIC, UNREACHABLE
from pipeline.kafka.group_progress import GroupProgress
from pipeline.kafka.groups import Groups, GroupState
from pipeline.kafka.leaders import Leaders
from pipeline.kafka.requests import REQUEST_SECONDS, Requests
from pipeline.records import TopicPartition, counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_STABLE_SECONDS = 90.0
"""How long to wait for an open transaction to end; longer than `transaction.timeout.ms`."""
_NOT_YET = frozenset(
    {
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    }
)
"""A transaction is just being committed, or a broker that was just started still reads its log."""
_OTHER_PARTITIONS = (
    "If an input was given more partitions, release a new version: state is kept by partition, and that of this version stays"
    " as it is. If the topic is of another application, give this one another name."
)

_HANGING = (
    "If it stays so, the brokers have forgotten a transaction: see `kafka-transactions.sh find-hanging` and `abort`. "
    "A broker that is alone forgets some when it is killed."
)


class CommittedOffset(NamedTuple):
    """A partition's position as a group has committed it: the next offset to read, and the metadata beside it."""

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

    Whatever goes wrong is a `BrokerError` that names the bootstrap servers; that they do not answer at all is `retriable`.

    Args:
        kafka: Client properties; security properties pass through.
    """

    def __init__(self, kafka: Mapping[str, str]) -> None:
        self.kafka = kafka
        self._requests = Requests(kafka)
        self._client = self._requests.client
        self._leaders = Leaders(self._requests)
        self._groups = Groups(self._requests)

    def partitions(self, topics: Iterable[str]) -> dict[str, int]:
        """Number of partitions of those of the topics that exist."""
        return {name: len(answer.partitions) for name, answer in self._described(topics).items()}

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Ids of those of the topics that exist: a topic that is deleted and created anew gets another one."""
        return {name: str(answer.topic_id) for name, answer in self._described(topics).items()}

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

    def is_answered(self, within_s: float) -> bool:
        """Whether any broker answers within so many seconds."""
        try:
            self._client.list_topics(timeout=within_s)
        except KafkaException:
            return False
        return True

    def list_topics(self, prefix: str = "") -> list[str]:
        """Names of all topics that begin with `prefix`, sorted."""
        with self._requests.asking("list topics"):
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
            with self._requests.asking("create topics"):
                futures = self._client.create_topics(new, request_timeout=REQUEST_SECONDS)
            for name, future in futures.items():
                self._requests.result(future, f"create topic {name}", ignore={KafkaError.TOPIC_ALREADY_EXISTS})

            def are_seen() -> bool:
                known.update(self.partitions(wanted))  # not every broker hears of them at the same time
                return known.keys() == wanted.keys()

            self._requests.until(are_seen, "see the topics that were created")
        for name, spec in wanted.items():
            if known[name] != spec.partitions:
                message = f"Existing topic {name} has {counted(known[name], 'partition')}, not {spec.partitions}"
                raise TopicError(message, hint=_OTHER_PARTITIONS)

    def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics, and wait until they are gone. Idempotent."""
        known = list(self.partitions(names))
        if not known:
            return
        with self._requests.asking("delete topics"):
            futures = self._client.delete_topics(known, request_timeout=REQUEST_SECONDS)
        for name, future in futures.items():
            self._requests.result(future, f"delete topic {name}", ignore=MISSING_TOPIC)
        self._requests.until(lambda: not self.partitions(known), "see that the deleted topics are gone")

    def end_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Last stable offsets: the ends for whoever reads committed records only."""
        return self._leaders.offsets(tps, OFFSET_END)

    def has_open_transactions(self, tps: Iterable[TopicPartition]) -> bool:
        """Whether something has been written to partitions that is neither committed nor aborted at this moment."""
        partitions = list(tps)
        return self.end_offsets(partitions) != self.written_offsets(partitions)

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
            return found == self.written_offsets(partitions)

        self._requests.until(
            is_settled, "see the end of all transactions", _STABLE_SECONDS, OpenTransactionError, _HANGING
        )
        return found

    def written_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Ends of partitions with what is not committed, or was aborted (high watermarks)."""
        return self._leaders.offsets(tps, OFFSET_END, "read_uncommitted")

    def stable_end_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Ends of partitions to which somebody may write: all that is being committed now lies before them.

        The last stable offsets, once the transactions that are open now have ended; later ones are not waited for.

        Raises:
            BrokerError: If a transaction stays open.
        """
        partitions = list(tps)
        written = self.written_offsets(partitions)
        found: dict[TopicPartition, int] = {}

        def have_ended() -> bool:
            found.update(self.end_offsets(partitions))
            return all(found[tp] >= written[tp] for tp in partitions)

        self._requests.until(
            have_ended, "see the end of open transactions", _STABLE_SECONDS, OpenTransactionError, _HANGING
        )
        return found

    def beginning_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """First offsets that still exist."""
        return self._leaders.offsets(tps, OFFSET_BEGINNING)

    def offsets_for_time(self, tps: Iterable[TopicPartition], timestamp_ms: int) -> dict[TopicPartition, int]:
        """Per partition the first offset at or after a time; past the last record, the last stable offset.

        A transaction's end has a place in the log and the broker's time, and may be what is found. Before 1970 there is
        nothing: negative times, which the protocol uses for other questions, count as 0.
        """
        partitions = list(tps)
        ends = self.end_offsets(partitions)
        found = self._leaders.offsets(partitions, max(0, timestamp_ms))
        return {tp: ends[tp] if found[tp] < 0 else min(found[tp], ends[tp]) for tp in partitions}

    def committed(
        self, group: str, tps: Iterable[TopicPartition], patience_s: float = _STABLE_SECONDS
    ) -> dict[TopicPartition, CommittedOffset]:
        """Committed offsets of a group; partitions without one are left out.

        Waits for transactions that are just being committed: the offset they replace must not be seen.

        Args:
            group: The group.
            tps: The partitions.
            patience_s: How long to wait for them.

        Raises:
            OpenTransactionError: If such a transaction stays open.
            BrokerError: If the brokers do not answer.
        """
        partitions = [ClientTopicPartition(*tp) for tp in tps]
        if not partitions:
            return {}
        consumer = self._requests.consumer(group)
        try:
            found = self._stable_offsets(consumer, group, partitions, patience_s)
        finally:
            end_in_background(consumer.close, group)
        return {
            TopicPartition(tp.topic, tp.partition): CommittedOffset(tp.offset, tp.metadata or "")
            for tp in found
            if tp.offset >= 0
        }

    def progress_of(self, group: str) -> GroupProgress:
        """Asks for a group's committed offsets again and again; whoever takes it ends it."""
        return GroupProgress(self._requests, group)

    def _stable_offsets(
        self, consumer: Consumer, group: str, partitions: list[ClientTopicPartition], patience_s: float
    ) -> list[Any]:
        found: list[Any] = []

        def is_stable() -> bool:
            try:
                found[:] = consumer.committed(partitions, min(REQUEST_SECONDS, patience_s))
            except KafkaException as error:
                if error.args[0].code() in UNREACHABLE | _NOT_YET:
                    self.partitions([partitions[0].topic])  # raises if nobody answers at all
                    return False
                raise self._requests.error(error.args[0], f"read committed offsets of {group}") from error
            return not any(tp.error and tp.error.code() in _NOT_YET for tp in found)

        self._requests.until(is_stable, f"read stable offsets of {group}", patience_s, OpenTransactionError, _HANGING)
        return found

    def group(self, group: str) -> GroupState:
        """A group as the brokers know it; one that does not exist is dead, and has no members."""
        return self._groups.state(group)

    def said_in(self, group: str) -> tuple[bytes, ...]:
        """Return what each member of a group said of itself when it joined; empty for an unknown group."""
        return self._groups.said_in(group)

    def alter_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set a group's committed offsets; the group must have no members."""
        self._groups.alter_offsets(group, offsets)

    def delete_group(self, group: str) -> None:
        """Delete a group and its committed offsets; the group must have no members. Idempotent."""
        self._groups.delete(group)

    def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        """Delete the records before the given offsets."""
        for topic in {tp.topic for tp in before}:
            with self._requests.asking(f"find the leaders of {topic}"):  # else one that died is asked until it is back
                self._client.list_topics(topic, timeout=REQUEST_SECONDS)
        request = [ClientTopicPartition(tp.topic, tp.partition, offset) for tp, offset in before.items()]
        # The library gives back a reference to the list that it never took (`Admin_delete_records`, confluent-kafka 2.9.0):
        # without another one the list would be freed while it is still in use here, which corrupts the process.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(request))
        futures = self._client.delete_records(request, request_timeout=REQUEST_SECONDS)
        for tp, future in futures.items():
            self._requests.result(future, f"delete records of {tp.topic}-{tp.partition}")

    def topic_config(self, topic: str) -> dict[str, str]:
        """Settings of a topic."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        future = self._client.describe_configs([resource], request_timeout=REQUEST_SECONDS)[resource]
        entries = self._requests.result(future, f"read settings of topic {topic}")
        return {name: entry.value for name, entry in entries.items()}

    def topic_configs(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        """Settings of those of the topics that exist, and that may be asked about; brokers are asked once."""
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in sorted(set(topics))]
        if not resources:
            return {}
        futures = self._client.describe_configs(resources, request_timeout=REQUEST_SECONDS)
        answers = {
            resource.name: self._requests.result(future, "read settings of topics", ignore=MISSING_TOPIC | DENIED)
            for resource, future in futures.items()
        }
        return {
            topic: {name: entry.value for name, entry in entries.items()}
            for topic, entries in answers.items()
            if entries is not None
        }

    def _described(self, topics: Iterable[str]) -> dict[str, Any]:
        names = sorted(set(topics))
        if not names:
            return {}
        doing = "look up topics"
        with self._requests.asking(doing):
            self._client.list_topics(names[0], timeout=REQUEST_SECONDS)  # from any broker: else one that died is asked
            futures = self._client.describe_topics(TopicCollection(names), request_timeout=REQUEST_SECONDS)
        answers = {name: self._requests.result(future, doing, ignore=MISSING_TOPIC) for name, future in futures.items()}
        return {name: answer for name, answer in answers.items() if answer is not None}
