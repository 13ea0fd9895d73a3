"""Writes records: in a task's transactions, or without transactions."""

from __future__ import annotations

import struct
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as ClientTopicPartition

from riverrun.errors import BrokerError, RefusedRecordError, TaskMigratedError, TopicError, UnknownOutcomeError
from riverrun.kafka import librdkafka
from riverrun.kafka.errors import FENCED, MISSING_HINT, mapped_errors, streams_error
from riverrun.kafka.librdkafka import CLIENT, end_in_background, quiet
from riverrun.kafka.record_times import RecordTimes
from riverrun.records import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from riverrun.errors import StreamsError
    from riverrun.kafka.admin import Admin
    from riverrun.kafka.record_times import TimeLimits
    from riverrun.records import Headers, Send, TopicPartition

_SETTINGS = {
    **CLIENT,
    "partitioner": "murmur2_random",  # as Java's producers do, so that all writers send equal keys to equal partitions
    "linger.ms": 20,
    "enable.idempotence": True,
    # With more, the library counts a refused batch as written once the next one is: brokers accept that as the
    # first of its producer, if they have learned in between that they lead the partition.
    "max.in.flight.requests.per.connection": 1,
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 262_144,
    "compression.type": "lz4",
}
_COMMIT_SECONDS = 30.0
LONGEST_TRANSACTION_MS = 15 * 60 * 1000
"""For long transactions: brokers allow 15 minutes by default (`transaction.max.timeout.ms`)."""
_METADATA_SECONDS = 15.0
_LOOK_SECONDS = 2.0
_WATCHDOG_SECONDS = 90.0
"""Longer than any watched call: by librdkafka issue 5511, a call may hang forever, whatever its timeout."""
_FAILED_BEFORE = frozenset({librdkafka.STATE, librdkafka.FATAL})
_PURGED = frozenset({librdkafka.PURGE_QUEUE, librdkafka.PURGE_INFLIGHT})
_TOO_LARGE = (
    "Raise producer.message.max.bytes in [apps.NAME.config], and the topic's max.message.bytes (of internal topics:"
    " topic.max.message.bytes)."
    " Or let production.exception.handler decide: it handles records of sinks, but not of changelogs."
)
_ANY_PARTITION = -1
_EARLIEST_TIME_MS = 1
"""The client library reads a timestamp of 0 as "now"; an error of 1 ms is better than one of decades."""


def group_metadata(group_id: str) -> bytes:
    """Serialize the metadata of a group without membership as the client library does (generation -1, no member).

    The library itself takes it from a consumer only, which each producer would need for this alone.
    """
    return b"CGMDv2:" + struct.pack("=i", -1) + group_id.encode() + b"\0" + b"\0" + b"\x01"


class _Client:
    """Wraps the library's producer, and waits while its queue is full.

    The library looks up a topic's partitions by a timer, up to a second after the first record. A task or a test that
    writes little would spend its time waiting. So the first record of a topic triggers the look-up at once.

    Args:
        kafka: Properties of all clients.
        properties: Properties of this client, which override the others.
        begin: Called before a topic's first record, and again before the first one after `end`.
        explain: Translates a refusal of the library: `(error, topic)`.
    """

    def __init__(
        self,
        kafka: Mapping[str, str],
        properties: Mapping[str, Any],
        begin: Callable[[], None],
        explain: Callable[[KafkaError, str], StreamsError],
    ) -> None:
        self._begin = begin
        self._explain = explain
        self._counts: dict[str, int] = {}
        self._targets: dict[str, str] = {}
        self._published: Mapping[str, str] = {}
        self._earlier: dict[str, int] = {}
        self._known: set[str] = set()
        self.times = RecordTimes(kafka)
        with mapped_errors("create a producer"):
            self.producer = Producer({**_SETTINGS, **kafka, **properties}, logger=quiet)

    def sending(self) -> Send:
        """Return the `send` of both producers as a function: a method's attribute look-ups take as long as counting."""
        counts, targets, latest = self._counts, self._targets, -1

        def send(
            topic: str,
            key: bytes | None,
            value: bytes | None,
            timestamp: int,
            headers: Headers,
            partition: int | None,
        ) -> None:
            nonlocal latest
            try:
                target = targets[topic]
            except KeyError:
                target, latest = self._begin_with(topic, partition), -1  # the topic may not have been looked up yet
            if timestamp > latest:
                latest = self.times.unsuspicious(target, partition, timestamp)
            where = _ANY_PARTITION if partition is None else partition
            named = list(headers) if headers else None
            while True:
                try:  # by name, it takes twice as long
                    self.producer.produce(target, value, key, where, None, None, timestamp or _EARLIEST_TIME_MS, named)
                    break
                except BufferError:
                    self.producer.poll(0.1)
                except KafkaException as error:
                    raise self._failure(error.args[0], target, partition) from error
            try:
                counts[target] += 1
            except KeyError:
                self._ask_for(target)
                counts[target] = 1

        return send

    def publish(self, published: Mapping[str, str]) -> None:
        """Redirect the records of some topics from now on, at no cost per record."""
        self._published = published
        self._targets.clear()

    def target(self, topic: str) -> str:
        """Return the topic that receives a topic's records."""
        return self._published.get(topic, topic)

    def end(self) -> None:
        """Mark the end of a transaction."""
        self._earlier = self.sent()
        self._counts.clear()
        self._targets.clear()

    def sent(self) -> dict[str, int]:
        """Return the number of records sent by topic, in finished transactions and in the current one."""
        sent = dict(self._earlier)
        for topic, count in self._counts.items():
            sent[topic] = sent.get(topic, 0) + count
        return sent

    def _begin_with(self, topic: str, partition: int | None) -> str:
        """Begin if necessary, and return the topic that receives the records.

        An explicit partition that does not exist is refused here, rather than without a name at the commit.
        """
        self._begin()
        target = self.target(topic)
        if partition is not None:
            self._ask_for(target)
        self._targets[topic] = target
        return target

    def _failure(self, error: KafkaError, topic: str, partition: int | None) -> StreamsError:
        if error.code() == librdkafka.UNKNOWN_PARTITION:
            message = f"Cannot write to partition {partition} of {topic}: the topic has no such partition"
            return TopicError(message, hint="Correct the partitioner, or give the topic more partitions.")
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return RefusedRecordError(f"Cannot write to {topic}: {error.str()}", hint=_TOO_LARGE)
        return self._explain(error, topic)

    def _ask_for(self, topic: str) -> None:
        """Make the library look up a topic's partitions. Without an answer, the library retries."""
        if topic not in self._known:
            with suppress(KafkaException):
                self.producer.list_topics(topic, _METADATA_SECONDS)
            self._known.add(topic)

    def name_missing(self, failure: StreamsError, topics: Iterable[str]) -> None:
        """Add to a failure the missing ones among the topics written to, as the library names none."""
        missing = self._missing(topics)
        if missing:
            failure.message = f"{failure.message}; the brokers do not know topic {', '.join(missing)}"
            failure.hint = MISSING_HINT

    def unwritten(self, message: str) -> StreamsError:
        """Return the error for records that do not arrive: `TopicError` if topics are missing, otherwise a retriable one."""
        missing = self._missing(self._counts)
        if missing:
            return TopicError(f"{message}; the brokers do not know topic {', '.join(missing)}", hint=MISSING_HINT)
        return BrokerError(message, retriable=True)

    def _missing(self, topics: Iterable[str]) -> list[str]:
        """Return the topics that the brokers do not know; empty if they do not answer."""
        try:
            known = self.producer.list_topics(timeout=_LOOK_SECONDS).topics
        except KafkaException:
            return []
        return sorted(set(topics) - known.keys())

    def close(self) -> None:
        """Stop writing, and release connections in the background. Idempotent.

        The library has no such call: a producer ends with its last reference. A call that hangs in another thread holds
        a reference, so the producer stays valid for it.
        """
        if hasattr(self, "producer"):
            self.producer.purge()
            references = [self.producer]
            del self.producer
            end_in_background(references.clear, "producer")


class TransactionalProducer:
    """The producer of one task. The latest caller of `init` owns the task; all earlier ones are fenced.

    A producer that raised an error must be closed and replaced. (After a refused record the library continues with
    sequence numbers that the brokers see as a gap.)

    It has no delivery callbacks. The library may call one while it raises an error, which Python does not allow, and
    each call takes the interpreter's lock once per record. The transaction's error contains the refused record's topic
    and the reason.
    """

    def __init__(
        self,
        kafka: Mapping[str, str],
        transactional_id: str,
        *,
        transaction_timeout_ms: int = 60_000,
        overrides: Mapping[str, str] | None = None,
    ) -> None:
        forced = {"transactional.id": transactional_id, "transaction.timeout.ms": transaction_timeout_ms}
        self.transactional_id = transactional_id
        self.in_transaction = False
        self._servers = kafka.get("bootstrap.servers", "")
        self._timeout_ms = transaction_timeout_ms
        self._began = 0.0
        self._client = _Client(kafka, {**(overrides or {}), **forced}, self._begin, self._refusal)
        self.send = self._client.sending()
        """Sends a record within the current transaction, which begins with its first record: see `RecordCollector.send`.

        Raises:
            TaskMigratedError: If another owner has taken over.
            UnknownOutcomeError: If this producer cannot be used any more for another reason.
            BrokerError: If this record, or one before it, was refused: abort.
        """

    def sent(self) -> dict[str, int]:
        """Return the number of records sent by topic, in all transactions."""
        return self._client.sent()

    def learn_limits(self, limits: Mapping[str, TimeLimits]) -> None:
        """Add known limits of record times; other topics are looked up with their first record."""
        self._client.times.learn(limits)

    def publish(self, published: Mapping[str, str]) -> None:
        """Redirect the records of some topics from now on. Not within a transaction, which would write to both topics.

        Args:
            published: The receiving topic by requested topic.
        """
        self._client.publish(published)

    def target(self, topic: str) -> str:
        """Return the topic that receives a topic's records."""
        return self._client.target(topic)

    def init(self) -> None:
        """Take over the task: abort the open transaction of an earlier owner, and fence that owner for good.

        Raises:
            BrokerError: If the brokers cannot be reached.
        """
        with mapped_errors(f"take over {self.transactional_id} at {self._servers}"):
            self._client.producer.init_transactions(_COMMIT_SECONDS)

    def flush(self) -> None:
        """Wait until everything sent has arrived. `commit` reports refusals.

        Raises:
            BrokerError: If brokers do not answer. Nothing is committed.
            TopicError: If a topic no longer exists. Nothing is committed.
            UnknownOutcomeError: If the library does not return; the producer must be discarded.
        """
        left: list[int] = []
        with suppress(KafkaException):
            _watched(lambda: left.append(self._client.producer.flush(_COMMIT_SECONDS)), self.transactional_id)
        if any(left):
            what = f"{counted(left[0], 'record')} of {self.transactional_id} to {self._servers}"
            failure = self._client.unwritten(f"Cannot write {what} within {_COMMIT_SECONDS:.0f} s")
            raise failure

    def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]], group_id: str) -> None:
        """Commit the records sent and the offsets of their inputs, all or nothing.

        Args:
            offsets: By input partition, the next offset to read, and its metadata.
            group_id: The group of the offsets.

        Raises:
            TaskMigratedError: If another owner has taken over. Nothing was committed.
            UnknownOutcomeError: If it is unknown whether it was committed: read the committed offsets. Also if the
                transaction exceeded its time limit, as brokers then fence its owner like a successor would.
            BrokerError: If it was refused, with the topic and the reason if a record was the cause. The transaction is
                aborted, and nothing was committed.
        """
        self._begin()
        partitions = [
            ClientTopicPartition(tp.topic, tp.partition, offset, metadata) for tp, (offset, metadata) in offsets.items()
        ]

        def commit() -> None:
            if partitions:
                self._client.producer.send_offsets_to_transaction(partitions, group_metadata(group_id), _COMMIT_SECONDS)
            self._client.producer.commit_transaction(_COMMIT_SECONDS)

        try:
            _watched(commit, self.transactional_id)
        except KafkaException as error:
            doing = f"commit the transaction of {self.transactional_id} at {self._servers}"
            cause = self._cause_of(error.args[0])
            unknown = f"It is unknown whether {self.transactional_id} committed at {self._servers}: {cause.str()}"
            written = self._client.sent()
            failure = self._failure(cause, doing) or UnknownOutcomeError(unknown)
            self._end()
            if not isinstance(failure, TaskMigratedError):
                self._client.name_missing(failure, written)
            raise failure from error
        self._end()

    def abort(self) -> None:
        """Abort the current transaction, if there is one.

        Raises:
            TaskMigratedError: If another owner has taken over.
            BrokerError: If the brokers cannot be reached; they will abort the transaction by themselves.
        """
        if self.in_transaction:
            self._end()
            self._client.producer.purge()
            with mapped_errors(f"abort the transaction of {self.transactional_id} at {self._servers}"):
                self._client.producer.abort_transaction(_COMMIT_SECONDS)

    def close(self) -> None:
        """Stop sending, and release connections. Idempotent.

        An open transaction stays open: the next owner aborts it, or the brokers after its timeout.
        """
        self._client.close()

    def _begin(self) -> None:
        if self.in_transaction:
            return
        with mapped_errors(f"begin a transaction of {self.transactional_id}"):
            self._client.producer.begin_transaction()
        self._began = time.monotonic()
        self.in_transaction = True

    def _end(self) -> None:
        self.in_transaction = False
        self._client.end()

    def _refusal(self, error: KafkaError, topic: str) -> StreamsError:
        """Translate the library's refusal of a record."""
        doing, cause = f"write to {topic} within {self.transactional_id}", self._cause_of(error)
        return self._failure(cause, doing) or streams_error(cause, doing)

    def _failure(self, error: KafkaError, doing: str) -> StreamsError | None:
        """Translate an error with a known outcome: the transaction is aborted, or belongs to another owner."""
        if error.code() in FENCED:
            self._end()
            return self._expiry() or streams_error(error, doing)
        if error.txn_requires_abort():
            self.abort()
            return streams_error(error, doing)
        return None

    def _cause_of(self, error: KafkaError) -> KafkaError:
        """Return the cause of a failed transaction, which the library reveals only on an attempt to commit."""
        if error.code() in _FAILED_BEFORE:
            try:  # commits nothing: the transaction has failed
                self._client.producer.commit_transaction(_COMMIT_SECONDS)
            except KafkaException as cause:
                found: KafkaError = cause.args[0]
                return found
        return error

    def _expiry(self) -> UnknownOutcomeError | None:
        """Return an error if brokers may have fenced the producer because of the transaction's time limit; None otherwise."""
        open_ms = (time.monotonic() - self._began) * 1000
        if open_ms <= self._timeout_ms:
            return None
        message = (
            f"The transaction of {self.transactional_id} was open for {open_ms / 1000:.0f} s: the brokers aborted it"
        )
        return UnknownOutcomeError(message)


class IdempotentProducer:
    """A producer without transactions, for `at_least_once`.

    Args:
        kafka: Client properties; security properties pass through.
        overrides: Producer properties of the user (`producer.` prefix).
    """

    def __init__(self, kafka: Mapping[str, str], overrides: Mapping[str, str] | None = None) -> None:
        refused: list[tuple[str, KafkaError]] = []
        self._refused = refused  # not a method as callback: a client in a cycle would live until garbage collection
        self._servers = kafka.get("bootstrap.servers", "")

        def delivered(error: KafkaError | None, message: Any) -> None:
            if error is not None and error.code() not in _PURGED:
                refused.append((message.topic(), error))

        own = {"delivery.report.only.error": True, "on_delivery": delivered}
        begin, explain = lambda: None, lambda error, topic: streams_error(error, f"write to {topic}")
        self._client = _Client(kafka, {**(overrides or {}), **own}, begin, explain)
        self.send = self._client.sending()
        """Sends a record; `flush` tells whether it arrived. Arguments as of `RecordCollector.send`."""

    def sent(self) -> dict[str, int]:
        """Return the number of records sent by topic."""
        return self._client.sent()

    def learn_limits(self, limits: Mapping[str, TimeLimits]) -> None:
        """Add known limits of record times; other topics are looked up with their first record."""
        self._client.times.learn(limits)

    def publish(self, published: Mapping[str, str]) -> None:
        """Redirect the records of some topics from now on.

        Args:
            published: The receiving topic by requested topic.
        """
        self._client.publish(published)

    def target(self, topic: str) -> str:
        """Return the topic that receives a topic's records."""
        return self._client.target(topic)

    def flush(self) -> None:
        """Wait until everything sent has arrived.

        Raises:
            BrokerError: If a record did not arrive, with the topic and the reason.
        """
        with mapped_errors(f"write to {self._servers}"):
            left = self._client.producer.flush(_WATCHDOG_SECONDS)
        if self._refused:
            topic, error = self._refused[0]
            self._refused.clear()
            raise streams_error(error, f"write to {topic}")
        if left:
            what = f"{left} records could not be written to {self._servers} within {_WATCHDOG_SECONDS:.0f} s"
            raise self._client.unwritten(what)

    def close(self) -> None:
        """Stop sending, discard queued records, and release connections. Idempotent."""
        self._client.close()


class KafkaRecordCollector:
    """The `RecordCollector` of a live host: sends records to a producer, and asks brokers for partition counts once each.

    Args:
        producer: Receives the records.
        admin: Asks the brokers.
    """

    def __init__(self, producer: TransactionalProducer | IdempotentProducer, admin: Admin) -> None:
        self.send = producer.send
        self._target = producer.target
        self._admin = admin
        self._counts: dict[str, int] = {}

    def partitions(self, topic: str) -> int:
        """Return the partition count of the topic that receives the records; brokers are asked once per topic."""
        target = self._target(topic)
        if target not in self._counts:
            found = self._admin.partitions([target])
            if target not in found:
                raise streams_error(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), f"write to {target}")
            self._counts |= found
        return self._counts[target]


def _watched(call: Callable[[], object], name: str) -> None:
    """Run a call in a thread, and give up if it never returns.

    Raises:
        UnknownOutcomeError: If it did not return in time; its producer must be discarded.
    """
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - handed to the caller, whatever it is
            raised.append(error)

    thread = threading.Thread(target=run, name=f"commit-{name}", daemon=True)
    thread.start()
    thread.join(_WATCHDOG_SECONDS)
    if thread.is_alive():
        message = f"The commit of {name} did not return within {_WATCHDOG_SECONDS:.0f} s"
        raise UnknownOutcomeError(message)
    if raised:
        raise raised[0]
