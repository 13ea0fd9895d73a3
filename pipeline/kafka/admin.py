"""Topics, offsets and groups: everything that is asked of brokers beside records."""

from __future__ import annotations

import ctypes
import logging
import threading
import time
import weakref
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    ConsumerGroupTopicPartitions,
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
    ResourceType,
)

from pipeline.errors import BrokerError, OpenTransactionError, TopicError
from pipeline.kafka.ending import end_in_background
from pipeline.kafka.errors import MISSING_TOPIC, REFUSED_LOGIN, UNREACHABLE, mapped_errors, streams_error
from pipeline.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from concurrent.futures import Future

    from pipeline.errors import StreamsError

REQUEST_SECONDS = 15.0
"""How long one request may take before the brokers count as unreachable."""
_STABLE_SECONDS = 90.0
"""How long to wait for an open transaction to end; longer than `transaction.timeout.ms`."""
_PAUSE_SECONDS = 0.05
_LEADER_SECONDS = 3.0
"""How long a partition's leader may take to answer before it is asked anew who leads: the client itself would go on asking a
broker that died, for minutes."""
_NOT_YET = frozenset(
    {
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    }
)
"""A transaction is just being committed, or a broker that was just started still reads its log."""
_NO_LEADER = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError._NOENT,  # noqa: SLF001 - how the library names its own codes
    }
)
"""The topic was just created, or its broker just started or died."""
MISSING_PARTITION = MISSING_TOPIC | {KafkaError._UNKNOWN_PARTITION}  # noqa: SLF001 - how the library names its own codes

RECONNECT = {"reconnect.backoff.max.ms": 1000}
"""How often to look whether brokers are back, as Java's clients do; the library's default is 10 s."""

quiet = logging.getLogger("millrace.kafka.client")
"""Where the client library's own chatter goes: nowhere, unless somebody listens."""
quiet.addHandler(logging.NullHandler())
quiet.propagate = False


class CommittedOffset(NamedTuple):
    """What a group has committed for a partition: the next offset to read, and the metadata beside it."""

    offset: int
    metadata: str


class GroupState(NamedTuple):
    """What brokers know of a group: its state in Kafka's words, and each member's `client-id@host`."""

    state: str
    members: tuple[str, ...]


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
        """Nothing is asked before the first call."""
        self.kafka = kafka
        self._servers = kafka.get("bootstrap.servers", "")
        refusals: list[KafkaError] = []
        self._refusals = refusals  # not a method as callback: a client in a cycle lives until the collector comes round

        def connection_failed(error: KafkaError) -> None:
            if error.code() in REFUSED_LOGIN:
                refusals[:] = [error]

        own = {"client.id": "millrace-admin", "error_cb": connection_failed}
        self._askers: dict[str, Consumer] = {}
        self._making_asker = threading.Lock()
        weakref.finalize(self, _end_all, self._askers).atexit = False
        with mapped_errors("use the client properties"):
            self._client = AdminClient({**RECONNECT, **kafka, **own}, logger=quiet)

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

    def list_topics(self, prefix: str = "") -> list[str]:
        """Names of all topics that begin with `prefix`, sorted."""
        with self._asking("list topics"):
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
            with self._asking("create topics"):
                futures = self._client.create_topics(new, request_timeout=REQUEST_SECONDS)
            for name, future in futures.items():
                self._result(future, f"create topic {name}", ignore={KafkaError.TOPIC_ALREADY_EXISTS})

            def are_seen() -> bool:
                known.update(self.partitions(wanted))  # not every broker hears of them at the same time
                return known.keys() == wanted.keys()

            self._until(are_seen, "see the topics that were created")
        for name, spec in wanted.items():
            if known[name] != spec.partitions:
                message = f"Existing topic {name} has {known[name]} partitions, not {spec.partitions}"
                raise TopicError(message, hint="Delete it if it is left from another version, or change the version.")

    def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics, and wait until they are gone. Idempotent."""
        known = list(self.partitions(names))
        if not known:
            return
        with self._asking("delete topics"):
            futures = self._client.delete_topics(known, request_timeout=REQUEST_SECONDS)
        for name, future in futures.items():
            self._result(future, f"delete topic {name}", ignore=MISSING_TOPIC)
        self._until(lambda: not self.partitions(known), "see that the deleted topics are gone")

    def end_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Last stable offsets: the ends for whoever reads committed records only."""
        return self._offsets(tps, OFFSET_END)

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

        self._until(is_settled, "see the end of all transactions", _STABLE_SECONDS, OpenTransactionError)
        return found

    def written_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Ends of partitions with what is not committed, or was aborted (high watermarks)."""
        return self._offsets(tps, OFFSET_END, "read_uncommitted")

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

        self._until(have_ended, "see the end of open transactions", _STABLE_SECONDS, OpenTransactionError)
        return found

    def beginning_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """First offsets that still exist."""
        return self._offsets(tps, OFFSET_BEGINNING)

    def offsets_for_time(self, tps: Iterable[TopicPartition], timestamp_ms: int) -> dict[TopicPartition, int]:
        """Per partition the first offset at or after a time; past the last record, the last stable offset.

        A transaction's end has a place in the log and the broker's time, and may be what is found. Before 1970 there is
        nothing: negative times, which the protocol uses for other questions, count as 0.
        """
        partitions = list(tps)
        ends = self.end_offsets(partitions)
        found = self._offsets(partitions, max(0, timestamp_ms))
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
        consumer = self._asker_of(group)
        try:
            found = self._stable_offsets(consumer, group, partitions, patience_s)
        finally:
            end_in_background(consumer.close, group)
        return {
            TopicPartition(tp.topic, tp.partition): CommittedOffset(tp.offset, tp.metadata or "")
            for tp in found
            if tp.offset >= 0
        }

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
                raise self._error(error.args[0], f"read committed offsets of {group}") from error
            return not any(tp.error and tp.error.code() in _NOT_YET for tp in found)

        self._until(is_stable, f"read stable offsets of {group}", patience_s, OpenTransactionError)
        return found

    def group(self, group: str) -> GroupState:
        """A group as the brokers know it; one that does not exist is dead, and has no members."""
        doing = f"describe group {group}"
        with self._asking(doing):
            futures = self._client.describe_consumer_groups([group], request_timeout=REQUEST_SECONDS)
        found = self._result(futures[group], doing, ignore={KafkaError.GROUP_ID_NOT_FOUND})
        if found is None:
            return GroupState("dead", ())
        members = sorted(f"{member.client_id}@{member.host.lstrip('/')}" for member in found.members)
        return GroupState(found.state.name.lower(), tuple(members))

    def alter_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set a group's committed offsets; the group must have no members."""
        partitions = [ClientTopicPartition(tp.topic, tp.partition, offset) for tp, offset in offsets.items()]
        request = [ConsumerGroupTopicPartitions(group, partitions)]
        doing = f"set offsets of {group}"
        with self._asking(doing):
            futures = self._client.alter_consumer_group_offsets(request, request_timeout=REQUEST_SECONDS)
        answer = self._result(futures[group], doing)
        for tp in answer.topic_partitions:
            if tp.error is not None:
                raise self._error(tp.error, doing)

    def delete_group(self, group: str) -> None:
        """Delete a group and its committed offsets. Idempotent."""
        futures = self._client.delete_consumer_groups([group], request_timeout=REQUEST_SECONDS)
        ignore = {KafkaError.GROUP_ID_NOT_FOUND}
        self._result(futures[group], f"delete group {group}", ignore=ignore)

    def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        """Delete the records before the given offsets."""
        request = [ClientTopicPartition(tp.topic, tp.partition, offset) for tp, offset in before.items()]
        # The library gives back a reference to the list that it never took (`Admin_delete_records`, confluent-kafka 2.9.0):
        # without another one the list would be freed while it is still in use here, which corrupts the process.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(request))
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
        """Change settings of a topic, and wait until they hold; the others stay."""
        entries = [ConfigEntry(k, v, incremental_operation=AlterConfigOpType.SET) for k, v in config.items()]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        future = self._client.incremental_alter_configs([resource], request_timeout=REQUEST_SECONDS)[resource]
        self._result(future, f"change settings of topic {topic}")
        self._until(
            lambda: config.items() <= self.topic_config(topic).items(), f"see the new settings of topic {topic}"
        )

    def _described(self, topics: Iterable[str]) -> dict[str, Any]:
        names = sorted(set(topics))
        if not names:
            return {}
        doing = "look up topics"
        with self._asking(doing):
            self._client.list_topics(names[0], timeout=REQUEST_SECONDS)  # from any broker: else one that died is asked
            futures = self._client.describe_topics(TopicCollection(names), request_timeout=REQUEST_SECONDS)
        answers = {name: self._result(future, doing, ignore=MISSING_TOPIC) for name, future in futures.items()}
        return {name: answer for name, answer in answers.items() if answer is not None}

    def _offsets(
        self, tps: Iterable[TopicPartition], time_ms: int, isolation: str = "read_committed"
    ) -> dict[TopicPartition, int]:
        """What the leaders say to `ListOffsets`: the first offset of a time, ms, or of `OFFSET_BEGINNING` and `OFFSET_END`.

        A consumer asks, whose requests end when they should even if a leader has died.
        """
        request = [ClientTopicPartition(*tp, time_ms) for tp in tps]
        if not request:
            return {}
        found: dict[TopicPartition, int] = {}

        def has_leaders() -> bool:
            asker = self._asker(isolation)
            try:
                answers = asker.offsets_for_times(request, _LEADER_SECONDS)
            except KafkaException as error:
                return self._leader_comes(asker, error.args[0], request[0])
            for tp in answers:
                if tp.error is not None:
                    return self._leader_comes(asker, tp.error, tp)
                found[TopicPartition(tp.topic, tp.partition)] = tp.offset
            return True

        self._until(has_leaders, "find the leaders of partitions")
        return found

    def _leader_comes(self, asker: Consumer, error: KafkaError, tp: ClientTopicPartition) -> bool:
        """That a partition has no leader at present, or one that does not answer, passes: False, the answer is not there yet.

        Raises:
            TopicError: If there is no such partition.
            BrokerError: If it is another error, or no broker answers.
        """
        if error.code() not in _NO_LEADER | UNREACHABLE | MISSING_PARTITION:
            raise self._error(error, f"look up offsets of {tp.topic}-{tp.partition}")
        self._check_exists(asker, TopicPartition(tp.topic, tp.partition))
        return False

    def _asker(self, isolation: str) -> Consumer:
        with self._making_asker:  # tasks ask at the same time
            if isolation not in self._askers:
                self._askers[isolation] = self._asker_of("millrace-unjoined", isolation)
            return self._askers[isolation]

    def _check_exists(self, asker: Consumer, tp: TopicPartition) -> None:
        """Tell a partition that does not exist from one without a leader for the moment; the asker knows who leads afterwards.

        Raises:
            TopicError: If it does not exist.
            BrokerError: If no broker answers.
        """
        with self._asking(f"find the leader of {tp}"):
            known = asker.list_topics(timeout=REQUEST_SECONDS).topics
        count = len(known[tp.topic].partitions) if tp.topic in known else 0
        if tp.partition >= count:
            has = f"has {count} partitions, and no number {tp.partition}" if count else "does not exist"
            message = f"Topic {tp.topic} {has}"
            raise TopicError(message, hint="Create the topic, or correct its name.")

    def _asker_of(self, group: str, isolation: str = "read_committed") -> Consumer:
        """A consumer that asks for a group's offsets, and never joins it.

        The admin client is not asked: it crashes the process if the coordinator has just moved or started (librdkafka
        issue 5040).
        """
        own = {"group.id": group, "enable.auto.commit": False, "isolation.level": isolation}
        with mapped_errors("create a consumer"):
            return Consumer({**RECONNECT, **self.kafka, **own}, logger=quiet)

    def _result(self, future: Future[Any], doing: str, *, ignore: Collection[int] = ()) -> Any:
        """A request's answer. The client must outlive its requests: a future of a collected one never ends."""
        with self._asking(doing):
            try:
                return future.result(REQUEST_SECONDS + 5)
            except KafkaException as error:
                if error.args[0].code() not in ignore:
                    raise
        return None

    @contextmanager
    def _asking(self, doing: str) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            raise self._error(error.args[0], doing) from error
        except TimeoutError as error:  # the future's own: the library should have given up before
            raise self._error(KafkaError(KafkaError._TIMED_OUT), doing) from error  # noqa: SLF001

    def _error(self, error: KafkaError, doing: str) -> StreamsError:
        """The error, with its true cause: a login that is refused looks like a broker that does not answer."""
        if error.code() in UNREACHABLE:
            self._client.poll(0)
            error = self._refusals.pop() if self._refusals else error
        return streams_error(error, f"{doing} at {self._servers}")

    def _until(
        self,
        condition: Callable[[], bool],
        doing: str,
        seconds: float = REQUEST_SECONDS,
        error: type[BrokerError] = BrokerError,
    ) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                message = f"Cannot {doing} at {self._servers} within {seconds:.0f} s"
                raise error(message, retriable=True)
            time.sleep(_PAUSE_SECONDS)


def _end_all(askers: dict[str, Consumer]) -> None:
    """End the consumers of an `Admin` that is gone."""
    for consumer in askers.values():
        end_in_background(consumer.close, "asker")
