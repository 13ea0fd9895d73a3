"""Topics, offsets and groups: all requests to brokers other than reading and writing records."""

from __future__ import annotations

import copy
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    KafkaError,
    KafkaException,
    TopicCollection,
)
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic, ResourceType

from riverrun.errors import BrokerError, OpenTransactionError, TopicError
from riverrun.kafka.brokers_clock import BrokersClock
from riverrun.kafka.errors import DENIED, MISSING_TOPIC, UNREACHABLE
from riverrun.kafka.groups import GroupClients, GroupProgress, Groups, GroupState
from riverrun.kafka.reaching import require_answer
from riverrun.kafka.requests import CLIENT_ID, REQUEST_SECONDS, Leaders, Requests
from riverrun.records import TopicPartition, counted, is_legal_topic, shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from riverrun.kafka.clients import ConsumerClient
    from riverrun.kafka.door import Kafka
    from riverrun.records import OffsetRange, RawFields

log = logging.getLogger(__name__)

# Longer than the `transaction.timeout.ms` of workers (60 s), after which brokers abort an abandoned transaction.
STABLE_SECONDS = 90.0
# Other groups are only named: a cluster may have thousands, and coordinators that are away.
_GROUP_SECONDS, _ALL_GROUPS_SECONDS = 3.0, 30.0
# A transaction is being committed, or a broker that was just started is still reading its log.
_NOT_YET = frozenset(
    {
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    }
)
_OTHER_PARTITIONS = (
    "If an input has got more partitions, release a new version: state belongs to partitions, and this version's "
    "stays unchanged. If the topic belongs to another application, give this one another name."
)

_HANGING = (
    "If this persists, the brokers have lost track of a transaction: see `kafka-transactions.sh find-hanging` and "
    "`abort`. That can happen when a single broker is killed."
)


_AGAIN = "The brokers have accepted the request, and are slow: run it again. What is done is not repeated."


class CommittedOffset(NamedTuple):
    """The committed position of a group in a partition: the next offset to read, and its metadata."""

    offset: int
    metadata: str


_LONGEST = 300
# The bound of librdkafka's `rd_kafka_NewTopic_new`.
_MOST_PARTITIONS = 100_000
_MOST_REPLICAS = 2**15 - 1


class Topic(NamedTuple):
    """An existing topic: its id, which a topic that is deleted and created again does not keep, and its partitions."""

    id: str
    partitions: int


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A required topic. A `replication_factor` of -1 is the brokers' default."""

    name: str
    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)
    replication_factor: int = -1


def _check_spec(spec: TopicSpec) -> None:
    if not is_legal_topic(spec.name):
        message = f"{spec.name[:_LONGEST]!r} is not a legal topic name"
        raise TopicError(
            message, hint="Names are 1 to 249 characters out of a-z A-Z 0-9 . _ -, and neither '.' nor '..'."
        )
    if not 1 <= spec.partitions <= _MOST_PARTITIONS:
        message = f"Topic {spec.name} cannot have {spec.partitions} partitions"
        raise TopicError(message, hint=f"Clients create at most {_MOST_PARTITIONS}.")
    if spec.replication_factor == 0 or not -1 <= spec.replication_factor <= _MOST_REPLICAS:
        message = f"Topic {spec.name} cannot have {spec.replication_factor} replicas"
        raise TopicError(message, hint="-1 leaves their number to the brokers' default.replication.factor.")


class EarlierRecords(Protocol):
    """Records in front of those that brokers have: an archive of topics."""

    def ranges(self, admin: Admin, starts: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, OffsetRange]:
        """Return the ranges that reach the logs of partitions without a hole; `starts` are the brokers' first offsets."""
        ...

    def read(self, tp: TopicPartition, wanted: OffsetRange) -> Iterator[list[RawFields]]:
        """Yield the records of a part of such a range, in batches."""
        ...

    def check_seam(self, admin: Admin, tp: TopicPartition) -> None:
        """Make sure that brokers still have the deletions that follow the last of these records."""
        ...

    def offset_at(self, tp: TopicPartition, wanted: OffsetRange, time_ms: int) -> int | None:
        """Return the offset of the first record of such a part with a time or a later one; None if there is none."""
        ...


class Admin:
    """Sends requests to brokers. Every call has a deadline; none creates a topic by accident.

    Failures are `BrokerError`s that name the bootstrap servers. If no broker answers at all, they are `retriable`.
    """

    def __init__(self, kafka: Kafka) -> None:
        self.kafka = kafka
        self.earlier: EarlierRecords | None = None
        self._requests = Requests(kafka)
        self._client = self._requests.client
        self._leaders = Leaders(self._requests)
        self._groups = Groups(self._requests)
        self._group_clients = GroupClients(self._requests)
        self.clock = BrokersClock(self._requests)

    def behind(self, earlier: EarlierRecords | None) -> Admin:
        """Return a client, on the same connections, for which these records come first in the logs of topics."""
        found = copy.copy(self)
        found.earlier = earlier
        return found

    def alone(self) -> Admin:
        """Return a client, on the same connections, for the records that brokers have."""
        return self.behind(None)

    def silent(self) -> Admin:
        """Return a client, on the same connections, that uses the host's clock: to ask for the brokers' time is to write."""
        found = copy.copy(self)
        found.clock = BrokersClock(self._requests, writes=False)
        return found

    def topics(self, topics: Iterable[str]) -> dict[str, Topic]:
        """Return the id and the number of partitions of those topics that exist, with one request."""
        found = self._described(topics).items()
        return {name: Topic(str(answer.topic_id), len(answer.partitions)) for name, answer in found}

    def partitions(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the number of partitions of those topics that exist."""
        names = set(topics)
        if len(names) != 1:
            return {name: topic.partitions for name, topic in self.topics(names).items()}
        # Any broker answers this, from what it knows now. Descriptions add ids, and may ask for several topics.
        doing, (name,) = "look up topics", names
        with self._requests.asking(doing):
            found = self._client.list_topics(name, timeout=REQUEST_SECONDS).topics[name]
        if found.error is None:
            return {name: len(found.partitions)}
        if found.error.code() in MISSING_TOPIC:
            return {}
        raise self._requests.error(found.error, doing)

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the ids of those topics that exist. A topic that is deleted and recreated gets a new id."""
        return {name: topic.id for name, topic in self.topics(topics).items()}

    def require(self, topics: Iterable[str], why: str) -> None:
        """Check that topics exist."""
        self.require_all({f"Topics that {why}": topics})

    def require_all(self, wanted: Mapping[str, Iterable[str]]) -> None:
        """Check that topics exist, by what they are for; the error names all that are missing."""
        named = {what: set(topics) for what, topics in wanted.items()}
        known = self.partitions(set().union(*named.values())).keys()
        missing = [
            f"{what} do not exist: {', '.join(sorted(names - known))}" for what, names in named.items() if names - known
        ]
        if missing:
            message = ". ".join(missing)
            raise TopicError(message, hint="Create them; Riverrun creates only an application's internal topics.")

    def is_answered(self, within_s: float) -> bool:
        """Return whether any broker answers within this number of seconds."""
        try:
            self._client.list_topics(timeout=within_s)
        except KafkaException:
            return False
        return True

    def require_answer(self, on_wait: Callable[[str], None] = lambda _servers: None) -> None:
        """Check that brokers answer, and diagnose within seconds if they do not."""
        require_answer(self._requests, on_wait)

    def list_topics(self, prefix: str = "") -> list[str]:
        """Return the sorted names of all topics that begin with `prefix`."""
        with self._requests.asking("list topics"):
            topics = self._client.list_topics(timeout=REQUEST_SECONDS).topics
        return sorted(name for name in topics if name.startswith(prefix))

    def create_topics(self, specs: Iterable[TopicSpec]) -> set[str]:
        """Create the topics that do not exist, and wait until they can be used. Return the names of those that existed."""
        wanted = {spec.name: spec for spec in specs}
        for spec in wanted.values():
            _check_spec(spec)
        known = self.partitions(wanted)
        existed = set(known)
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
                # Brokers learn of new topics at different times, so each answer adds to the earlier ones.
                known.update(self.partitions(wanted))
                return known.keys() == wanted.keys()

            self._requests.until(are_seen, "confirm that the created topics exist", hint=_AGAIN)
        for name, spec in wanted.items():
            if known[name] != spec.partitions:
                message = f"Existing topic {name} has {counted(known[name], 'partition')}, not {spec.partitions}"
                raise TopicError(message, hint=_OTHER_PARTITIONS)
        return existed

    def add_partitions(self, counts: Mapping[str, int]) -> None:
        """Raise topics' partition counts to those given, and wait until all brokers that answer know them."""
        if not counts:
            return
        request = [NewPartitions(topic, count) for topic, count in sorted(counts.items())]
        with self._requests.asking("add partitions"):
            futures = self._client.create_partitions(request, request_timeout=REQUEST_SECONDS)
        for topic, future in futures.items():
            self._requests.result(future, f"add partitions to topic {topic}")
        self._requests.until(
            lambda: self.partitions(counts) == dict(counts), "confirm that partitions were added", hint=_AGAIN
        )

    def delete_topics(self, names: Iterable[str], check: Callable[[], object] = lambda: None) -> None:
        """Delete topics, and wait until they are gone. Idempotent.

        `check` raises if they may no longer be deleted. Brokers delete by name, so it is called just before they are asked.
        """
        known = list(self.partitions(names))
        if not known:
            return
        check()
        with self._requests.asking("delete topics"):
            futures = self._client.delete_topics(known, request_timeout=REQUEST_SECONDS)
        for name, future in futures.items():
            self._requests.result(future, f"delete topic {name}", ignore=MISSING_TOPIC)
        self._requests.until(lambda: not self.partitions(known), "confirm that topics were deleted", hint=_AGAIN)

    def end_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the last stable offsets: the ends for readers of committed records."""
        return self._leaders.offsets(tps, OFFSET_END)

    def has_open_transactions(self, tps: Iterable[TopicPartition]) -> bool:
        """Return whether partitions have records that are neither committed nor aborted at present."""
        partitions = list(tps)
        return self.end_offsets(partitions) != self.written_offsets(partitions)

    def settled_end_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the ends of partitions without active writers, once their transactions have ended."""
        partitions = list(tps)
        found: dict[TopicPartition, int] = {}

        def is_settled() -> bool:
            # A commit is acknowledged before its markers are in the log. Until then, the last stable offset is before them.
            found.update(self.end_offsets(partitions))
            return found == self.written_offsets(partitions)

        self._requests.until(
            is_settled, "confirm the end of all transactions", STABLE_SECONDS, OpenTransactionError, _HANGING
        )
        return found

    def written_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the ends of partitions including records that are uncommitted or aborted (high watermarks)."""
        return self._leaders.offsets(tps, OFFSET_END, "read_uncommitted")

    def stable_end_offsets(
        self, tps: Iterable[TopicPartition], written: Mapping[TopicPartition, int] | None = None
    ) -> dict[TopicPartition, int]:
        """Return the last stable offsets of partitions with active writers, once the currently open transactions have ended.

        `written` has their `written_offsets`, if the caller has just asked for these.
        """
        partitions = list(tps)
        # Active writers begin one transaction after the other: only those that began before this are awaited.
        written = self.written_offsets(partitions) if written is None else written
        found: dict[TopicPartition, int] = {}

        def have_ended() -> bool:
            found.update(self.end_offsets(partitions))
            return all(found[tp] >= written[tp] for tp in partitions)

        self._requests.until(
            have_ended, "confirm the end of open transactions", STABLE_SECONDS, OpenTransactionError, _HANGING
        )
        return found

    def log_sizes(self, topics: Iterable[str]) -> dict[TopicPartition, int]:
        """Return the size of partitions on brokers' disks in bytes: compressed, without indexes.

        With several replicas, the largest counts. Partitions whose size brokers do not report are left out. The request
        needs the right to describe the cluster, which a user of topics may lack.
        """
        return self.kafka.log_sizes(CLIENT_ID, topics, REQUEST_SECONDS)

    def log_starts(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offsets that brokers still have."""
        return self._leaders.offsets(tps, OFFSET_BEGINNING)

    def beginning_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offsets that still exist, at brokers or in front of them."""
        starts = self.log_starts(tps)
        if self.earlier is None:
            return starts
        return starts | {tp: min(starts[tp], found.start) for tp, found in self.earlier.ranges(self, starts).items()}

    def offsets_for_time(self, tps: Iterable[TopicPartition], timestamp_ms: int) -> dict[TopicPartition, int]:
        """Return, per partition, the first offset at or after a time; past the last record, the last stable offset.

        The result may be the marker of a transaction, which has an offset and the broker's time.
        """
        partitions = list(tps)
        ends = self.end_offsets(partitions)
        # Negative times have other meanings in the protocol. They count as 0: no record is older.
        found = self._leaders.offsets(partitions, max(0, timestamp_ms))
        known = {tp: ends[tp] if found[tp] < 0 else min(found[tp], ends[tp]) for tp in partitions}
        if self.earlier is not None:
            for tp, archived in self.earlier.ranges(self, self.log_starts(partitions)).items():
                offset = self.earlier.offset_at(tp, archived, timestamp_ms)
                known[tp] = known[tp] if offset is None else min(known[tp], offset)
        return known

    def committed(
        self,
        group: str,
        tps: Iterable[TopicPartition],
        patience_s: float = STABLE_SECONDS,
        *,
        isolation: str = "read_committed",
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return the committed offsets of a group; partitions without one are left out.

        Waits for transactions that are being committed, so that the replaced offsets are not returned.
        """
        partitions = [ClientTopicPartition(*tp) for tp in tps]
        if not partitions:
            return {}
        # With `read_uncommitted`, brokers answer at once, perhaps with offsets that an open transaction replaces.
        with self._group_clients.client(group, isolation) as consumer:
            found = self._stable_offsets(consumer, group, partitions, patience_s)
        return {
            TopicPartition(tp.topic, tp.partition): CommittedOffset(tp.offset, tp.metadata or "")
            for tp in found
            if tp.offset >= 0
        }

    def progress_of(self, group: str) -> GroupProgress:
        """Return a reader that asks for a group's committed offsets repeatedly. The caller closes it."""
        return GroupProgress(self._requests, group)

    def _stable_offsets(
        self, consumer: ConsumerClient, group: str, partitions: list[ClientTopicPartition], patience_s: float
    ) -> list[Any]:
        found: list[Any] = []

        def is_stable() -> bool:
            try:
                found[:] = consumer.committed(partitions, min(REQUEST_SECONDS, patience_s))
            except KafkaException as error:
                if error.args[0].code() in UNREACHABLE | _NOT_YET:
                    # Raises if no broker answers: only a missing coordinator is worth the wait.
                    self.partitions([partitions[0].topic])
                    return False
                raise self._requests.error(error.args[0], f"read committed offsets of {group}") from error
            return not any(tp.error and tp.error.code() in _NOT_YET for tp in found)

        self._requests.until(is_stable, f"read stable offsets of {group}", patience_s, OpenTransactionError, _HANGING)
        return found

    def group(self, group: str) -> GroupState:
        """Return a group's state; an unknown group is dead, without members."""
        return self._groups.state(group)

    def groups_of(self, tps: Collection[TopicPartition]) -> list[str]:
        """Return the sorted groups that have committed offsets of any of these partitions, if brokers answer in time."""
        read = ", ".join(map(str, sorted(tps)))
        try:
            names = sorted(self._groups.names()) if tps else []
        except BrokerError as error:
            log.warning("which groups read %s is not known: %s", read, error)
            return []
        deadline = time.monotonic() + _ALL_GROUPS_SECONDS
        known = {name: self._has_offsets(name, tps) for name in names if time.monotonic() < deadline}
        unknown = [name for name in names if known.get(name) is None]
        if unknown:
            count, verb = counted(len(unknown), "group"), "reads" if len(unknown) == 1 else "read"
            log.warning("whether %s %s %s is not known: %s", count, verb, read, shortened(", ".join(unknown)))
        return [name for name in names if known.get(name)]

    def _has_offsets(self, group: str, tps: Collection[TopicPartition]) -> bool | None:
        try:
            return bool(self.committed(group, tps, _GROUP_SECONDS, isolation="read_uncommitted"))
        # Another group's coordinator may be away, or refuse this client.
        except BrokerError as error:
            log.debug("offsets of group %s are not known: %s", group, error)
            return None

    def member_messages(self, group: str) -> tuple[tuple[bytes, bytes], ...] | None:
        """Return what each member joined a group with, and its plan; empty for an unknown group, None during a rebalance."""
        return self._groups.member_messages(group)

    def alter_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set a group's committed offsets; the group must have no members."""
        self._groups.alter_offsets(group, offsets)

    def delete_group(self, group: str) -> None:
        """Delete a group and its committed offsets; the group must have no members. Idempotent."""
        self._groups.delete(group)

    def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        """Delete the records before the given offsets."""
        for topic in {tp.topic for tp in before}:
            # Refreshes the current leaders: otherwise the library asks a dead broker until it is back.
            with self._requests.asking(f"find the leaders of {topic}"):
                self._client.list_topics(topic, timeout=REQUEST_SECONDS)
        request = [ClientTopicPartition(tp.topic, tp.partition, offset) for tp, offset in before.items()]
        futures = self._client.delete_records(request, request_timeout=REQUEST_SECONDS)
        for tp, future in futures.items():
            self._requests.result(future, f"delete records of {tp.topic}-{tp.partition}")

    def topic_config(self, topic: str) -> dict[str, str]:
        """Return the settings of a topic."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        future = self._client.describe_configs([resource], request_timeout=REQUEST_SECONDS)[resource]
        entries = self._requests.result(future, f"read settings of topic {topic}")
        return {name: entry.value for name, entry in entries.items()}

    def broker_config(self, name: str) -> str:
        """Return a setting of the brokers, as one of them reports it; `unknown` if it may not be described."""
        with self._requests.asking("look up brokers"):
            brokers = self._client.list_topics(timeout=REQUEST_SECONDS).brokers
        resource = ConfigResource(ResourceType.BROKER, str(min(brokers)))
        future = self._client.describe_configs([resource], request_timeout=REQUEST_SECONDS)[resource]
        entries = self._requests.result(future, f"read setting {name} of the brokers", ignore=DENIED)
        return "unknown" if entries is None else str(entries[name].value)

    def topic_configs(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        """Return the settings of those topics that exist and may be described, with one request."""
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

    def alter_topic_configs(self, settings: Mapping[str, Mapping[str, str | None]]) -> None:
        """Change settings of topics (None restores the brokers' default); all their other settings stay as they are."""
        if not settings:
            return
        resources = [
            ConfigResource(
                ResourceType.TOPIC,
                topic,
                incremental_configs=[
                    ConfigEntry(
                        name,
                        value,
                        incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
                    )
                    for name, value in values.items()
                ],
            )
            for topic, values in sorted(settings.items())
        ]
        futures = self._client.incremental_alter_configs(resources, request_timeout=REQUEST_SECONDS)
        for resource, future in futures.items():
            self._requests.result(future, f"change settings of topic {resource.name}")

    def _described(self, topics: Iterable[str]) -> dict[str, Any]:
        names = sorted(set(topics))
        if not names:
            return {}
        doing = "look up topics"
        with self._requests.asking(doing):
            # Any broker answers this, and refreshes the metadata: otherwise a dead broker may be asked.
            self._client.list_topics(names[0], timeout=REQUEST_SECONDS)
            futures = self._client.describe_topics(TopicCollection(names), request_timeout=REQUEST_SECONDS)
        answers = {name: self._requests.result(future, doing, ignore=MISSING_TOPIC) for name, future in futures.items()}
        return {name: answer for name, answer in answers.items() if answer is not None}
