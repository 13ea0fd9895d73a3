"""Writes records: in a task's transactions, or plainly."""

from __future__ import annotations

import struct
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as ClientTopicPartition

from pipeline.errors import BrokerError, RefusedRecordError, TaskMigratedError, TopicError, UnknownOutcomeError
from pipeline.kafka import librdkafka
from pipeline.kafka.client import CLIENT, quiet
from pipeline.kafka.ending import end_in_background
from pipeline.kafka.errors import FENCED, MISSING_HINT, mapped_errors, streams_error
from pipeline.kafka.record_times import RecordTimes
from pipeline.records import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pipeline.errors import StreamsError
    from pipeline.kafka.admin import Admin
    from pipeline.kafka.record_times import TimeLimits
    from pipeline.records import Headers, Send, TopicPartition

_SETTINGS = {
    **CLIENT,
    "partitioner": "murmur2_random",  # as Java's producers: equal keys go to equal partitions whoever writes
    "linger.ms": 20,
    "enable.idempotence": True,
    # With more, the library takes a batch that was refused for written as soon as the next one was: brokers accept that as the
    # first of its producer, if they have learned in between that they lead the partition.
    "max.in.flight.requests.per.connection": 1,
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 262_144,
    "compression.type": "lz4",
}
_COMMIT_SECONDS = 30.0
LONGEST_TRANSACTION_MS = 15 * 60 * 1000
"""For transactions that take long: brokers allow 15 minutes unless told otherwise (`transaction.max.timeout.ms`)."""
_METADATA_SECONDS = 15.0
_LOOK_SECONDS = 2.0
_WATCHDOG_SECONDS = 90.0
"""Longer than any call it watches: librdkafka issue 5511 lets one hang for ever, whatever its timeout."""
_FAILED_BEFORE = frozenset({librdkafka.STATE, librdkafka.FATAL})
_PURGED = frozenset({librdkafka.PURGE_QUEUE, librdkafka.PURGE_INFLIGHT})
_TOO_LARGE = "Raise producer.message.max.bytes, or let production.exception.handler decide."
_ANY_PARTITION = -1
_EARLIEST_TIME_MS = 1
"""The client library takes a timestamp of 0 for "now"; a millisecond off is better than decades."""


def group_metadata(group_id: str) -> bytes:
    """Metadata of a group without membership, as the client library serialises it (generation -1, no member)."""
    return b"CGMDv2:" + struct.pack("=i", -1) + group_id.encode() + b"\0" + b"\0" + b"\x01"


class _Client:
    """The library's producer: hands it records, waiting while its queue is full.

    The library asks for a topic's partitions only when its timer comes round, up to a second after the first record; a task
    or a test that writes little would spend its time waiting for that. So the first record of a topic makes it ask at once.

    Args:
        kafka: Client properties of all clients.
        properties: Those of this one; they come before the others.
        begin: Called before a topic's first record, and again before the first one after `end`.
        explain: What a refusal of the library means: `(error, topic)`.
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
        """Return the function that is `send` of both producers: looking up a method's attributes takes as long as counting."""
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
                target, latest = self._begin_with(topic, partition), -1  # the topic may not have been asked about
            if timestamp > latest:
                latest = self.times.unsuspicious(target, partition, timestamp)
            where = _ANY_PARTITION if partition is None else partition
            named = list(headers) if headers else None
            while True:
                try:  # by name it takes twice as long
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
        """Send the records of some topics elsewhere from now on. It costs nothing per record."""
        self._published = published
        self._targets.clear()

    def target(self, topic: str) -> str:
        """Return the topic that a topic's records go to."""
        return self._published.get(topic, topic)

    def end(self) -> None:
        """Note the end of something that has begun."""
        self._earlier = self.sent()
        self._counts.clear()
        self._targets.clear()

    def sent(self) -> dict[str, int]:
        """How many records were sent by topic, before what has begun and since."""
        sent = dict(self._earlier)
        for topic, count in self._counts.items():
            sent[topic] = sent.get(topic, 0) + count
        return sent

    def _begin_with(self, topic: str, partition: int | None) -> str:
        """Begin; gives where the topic's records go.

        A partition that is named, and that there is not, is to be refused at once and not unnamed at the commit.
        """
        self._begin()
        target = self.target(topic)
        if partition is not None:
            self._ask_for(target)
        self._targets[topic] = target
        return target

    def _failure(self, error: KafkaError, topic: str, partition: int | None) -> StreamsError:
        if error.code() == librdkafka.UNKNOWN_PARTITION:
            message = f"Cannot write to partition {partition} of {topic}: it has no such partition"
            return TopicError(message, hint="Correct the partitioner, or give the topic more partitions.")
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return RefusedRecordError(f"Cannot write to {topic}: {error.str()}", hint=_TOO_LARGE)
        return self._explain(error, topic)

    def _ask_for(self, topic: str) -> None:
        """Make the library ask for a topic's partitions. That nobody answers is no failure: it asks again by itself."""
        if topic not in self._known:
            with suppress(KafkaException):
                self.producer.list_topics(topic, _METADATA_SECONDS)
            self._known.add(topic)

    def name_missing(self, failure: StreamsError, topics: Iterable[str]) -> None:
        """Add to a failure which of the topics that were written to are not there: the library names none."""
        missing = self._missing(topics)
        if missing:
            failure.message = f"{failure.message}; the brokers know no topic {', '.join(missing)}"
            failure.hint = MISSING_HINT

    def unwritten(self, message: str) -> StreamsError:
        """Return the error of records that do not arrive: `TopicError` if topics are gone, or one that waiting may mend."""
        missing = self._missing(self._counts)
        if missing:
            return TopicError(f"{message}; the brokers know no topic {', '.join(missing)}", hint=MISSING_HINT)
        return BrokerError(message, retriable=True)

    def _missing(self, topics: Iterable[str]) -> list[str]:
        """Those of the topics that the brokers do not know; none if they do not answer."""
        try:
            known = self.producer.list_topics(timeout=_LOOK_SECONDS).topics
        except KafkaException:
            return []
        return sorted(set(topics) - known.keys())

    def close(self) -> None:
        """Write nothing more, and release connections in the background. Idempotent.

        The library has no such call: a producer ends with the last reference to it. A call that still hangs in another thread
        holds one, so that it does not lose the ground under its feet.
        """
        if hasattr(self, "producer"):
            self.producer.purge()
            references = [self.producer]
            del self.producer
            end_in_background(references.clear, "producer")


class TransactionalProducer:
    """The producer of one task: whoever has called `init` last owns the task, all others are fenced.

    A producer that raised an error is spent: close it and make a new one. (After a refused record the library goes on with
    sequence numbers that the brokers take for a gap.)

    It has no delivery callbacks: the library may call one while it raises an error of its own, which Python does not allow, and
    each takes the interpreter's lock once per record. What was refused, and why, is in the error of the transaction.

    Args:
        kafka: Client properties; security properties pass through.
        transactional_id: Names the task across all processes.
        transaction_timeout_ms: After this the brokers abort a transaction that is not ended.
        overrides: Producer properties of the user (`producer.` prefix).
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
        """How many records were sent by topic, in all transactions."""
        return self._client.sent()

    def learn_limits(self, limits: Mapping[str, TimeLimits]) -> None:
        """Take over which times topics take; the others are asked about with their first record."""
        self._client.times.learn(limits)

    def publish(self, published: Mapping[str, str]) -> None:
        """Send the records of some topics elsewhere from now on; not within a transaction, which would be in both places.

        Args:
            published: Where they go, by the topic that `send` is asked for.
        """
        self._client.publish(published)

    def target(self, topic: str) -> str:
        """Return the topic that a topic's records go to."""
        return self._client.target(topic)

    def init(self) -> None:
        """Take the task over: aborts the transaction an earlier owner left open, and fences that owner for good.

        Raises:
            BrokerError: If the brokers cannot be reached.
        """
        with mapped_errors(f"take over {self.transactional_id} at {self._servers}"):
            self._client.producer.init_transactions(_COMMIT_SECONDS)

    def flush(self) -> None:
        """Wait until everything sent has arrived. What was refused, `commit` tells.

        Raises:
            BrokerError: If brokers do not answer. Nothing is committed.
            TopicError: If a topic is there no more. Nothing is committed.
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
        """Commit what was sent and the offsets of its inputs, all or nothing.

        Args:
            offsets: Per input partition the next offset to read, and its metadata.
            group_id: The group they are committed for.

        Raises:
            TaskMigratedError: If another owner has taken over. Nothing was committed.
            UnknownOutcomeError: If it cannot be said whether it was committed: read the committed offsets. Also if the
                transaction was open longer than it may be: brokers fence its owner then as a successor would.
            BrokerError: If it was refused, with the topic and the reason if it was for a record. The transaction is aborted,
                nothing was committed.
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
            unknown = f"Cannot say whether {self.transactional_id} committed at {self._servers}: {cause.str()}"
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
            BrokerError: If the brokers cannot be reached; they will abort it by themselves.
        """
        if self.in_transaction:
            self._end()
            self._client.producer.purge()
            with mapped_errors(f"abort the transaction of {self.transactional_id} at {self._servers}"):
                self._client.producer.abort_transaction(_COMMIT_SECONDS)

    def close(self) -> None:
        """Send nothing more, and release connections. Idempotent.

        A transaction that is open stays open: the next owner aborts it, or the brokers after its timeout.
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
        """Translate an error after which the library is sure: the transaction is aborted, or belongs to another owner."""
        if error.code() in FENCED:
            self._end()
            return self._expiry() or streams_error(error, doing)
        if error.txn_requires_abort():
            self.abort()
            return streams_error(error, doing)
        return None

    def _cause_of(self, error: KafkaError) -> KafkaError:
        """A transaction that has failed takes nothing more; why it has, the library tells to whoever tries to commit it."""
        if error.code() in _FAILED_BEFORE:
            try:
                self._client.producer.commit_transaction(_COMMIT_SECONDS)
            except KafkaException as cause:
                found: KafkaError = cause.args[0]
                return found
        return error

    def _expiry(self) -> UnknownOutcomeError | None:
        """Tell whether brokers may have fenced the producer by themselves, and what follows."""
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
        self._refused = refused  # not a method as callback: a client in a cycle lives until the collector comes round
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
        """How many records were sent by topic."""
        return self._client.sent()

    def learn_limits(self, limits: Mapping[str, TimeLimits]) -> None:
        """Take over which times topics take; the others are asked about with their first record."""
        self._client.times.learn(limits)

    def publish(self, published: Mapping[str, str]) -> None:
        """Send the records of some topics elsewhere from now on.

        Args:
            published: Where they go, by the topic that `send` is asked for.
        """
        self._client.publish(published)

    def target(self, topic: str) -> str:
        """Return the topic that a topic's records go to."""
        return self._client.target(topic)

    def flush(self) -> None:
        """Wait until everything sent has arrived.

        Raises:
            BrokerError: If something did not arrive, with the topic and the reason.
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
        """Send nothing more, not even what is waiting to be sent, and release connections. Idempotent."""
        self._client.close()


class KafkaRecordCollector:
    """The `RecordCollector` of a live host: records go to a producer, partition counts come from the brokers, once each.

    Args:
        producer: Where records go.
        admin: Whom to ask.
    """

    def __init__(self, producer: TransactionalProducer | IdempotentProducer, admin: Admin) -> None:
        self.send = producer.send
        self._target = producer.target
        self._admin = admin
        self._counts: dict[str, int] = {}

    def partitions(self, topic: str) -> int:
        """As the brokers say of where the topic's records go; they are asked once per topic."""
        target = self._target(topic)
        if target not in self._counts:
            found = self._admin.partitions([target])
            if target not in found:
                raise streams_error(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), f"write to {target}")
            self._counts |= found
        return self._counts[target]


def _watched(call: Callable[[], object], name: str) -> None:
    """Run a call in a thread, and give up on it if it never returns.

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
