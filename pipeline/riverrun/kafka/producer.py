"""Writes records: in transactions, or without them."""

from __future__ import annotations

import struct
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientTopicPartition

from riverrun.errors import TaskMigratedError, UnknownOutcomeError
from riverrun.kafka import librdkafka
from riverrun.kafka.errors import FENCED, mapped_errors, streams_error
from riverrun.kafka.sending import SendingClient
from riverrun.records import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from riverrun.errors import StreamsError
    from riverrun.kafka.admin import Admin
    from riverrun.kafka.door import Kafka
    from riverrun.kafka.sending import RecordSender
    from riverrun.records import TopicPartition

_COMMIT_SECONDS = 30.0
# Brokers refuse more by default (`transaction.max.timeout.ms`).
LONGEST_TRANSACTION_MS = 15 * 60 * 1000
# `send_offsets_to_transaction` ignores its timeout, and may never return if the group's coordinator has left the
# cluster (librdkafka issues 5456 and 5511).
_WATCHDOG_SECONDS = _COMMIT_SECONDS + 5
_FLUSH_SECONDS = 90.0
# Kafka's topic of transactions, which brokers have or make: an answer about one topic is short.
_TRANSACTIONS = "__transaction_state"
_LOOK_SECONDS = 2.0
_FAILED_BEFORE = frozenset({librdkafka.STATE, librdkafka.FATAL})
_PURGED = frozenset({librdkafka.PURGE_QUEUE, librdkafka.PURGE_INFLIGHT})


def group_metadata(group_id: str) -> bytes:
    """Serialize the metadata of a group without membership as the client library does (generation -1, no member)."""
    # The library takes it from a consumer only, which each producer would need for this alone.
    return b"CGMDv2:" + struct.pack("=i", -1) + group_id.encode() + b"\0" + b"\0" + b"\x01"


class TransactionalProducer:
    """A producer with transactions. The latest caller of `init` owns its transactional id; all earlier ones are fenced.

    A producer that raised an error must be closed and replaced. (After a refused record the library continues with
    sequence numbers that the brokers see as a gap.)

    Args:
        transactional_id: The id that `init` takes over.
        transaction_timeout_ms: Brokers abort a transaction that is open for longer, and fence this producer.
        overrides: Producer properties of the user (`producer.` prefix).
        admin: Asks the brokers for limits of record times. Defaults to a new client.
    """

    def __init__(
        self,
        kafka: Kafka,
        transactional_id: str,
        *,
        transaction_timeout_ms: int = 60_000,
        overrides: Mapping[str, str] | None = None,
        admin: Admin | None = None,
    ) -> None:
        forced = {"transactional.id": transactional_id, "transaction.timeout.ms": transaction_timeout_ms}
        self.transactional_id = transactional_id
        self.in_transaction = False
        self._servers = kafka.servers
        self._timeout_ms = transaction_timeout_ms
        self._began = 0.0
        # No delivery callbacks: the library may call one while it raises an error, which Python does not allow, and each
        # call takes the interpreter's lock. The transaction's error names the refused record's topic and the reason.
        self._client = SendingClient(kafka, {**(overrides or {}), **forced}, self._begin, self._refusal, admin)
        self.new_sender = self._client.new_sender
        self._sender = self.new_sender()
        self.learn_limits = self._sender.learn_limits
        self.send = self._sender.send
        """Sends a record within the current transaction, which begins with its first record: see `RecordCollector.send`.

        A `BrokerError` may be about an earlier record of the transaction.
        """

    def init(self) -> None:
        """Take the transactional id over: abort the open transaction of an earlier owner, and fence that owner for good."""
        with mapped_errors(f"take over {self.transactional_id} at {self._servers}"):
            self._client.ask_for(_TRANSACTIONS, _LOOK_SECONDS)
            self._client.producer.init_transactions(_COMMIT_SECONDS)

    def flush(self) -> None:
        """Wait until everything sent has arrived. `commit` reports refusals."""
        left: list[int] = []
        # The library reveals the reason of a failed transaction at its commit only, which reports it. A SystemError is of the
        # library, too: with its own error set, it calls the logger, in which Python then does not allow a call to succeed.
        with suppress(KafkaException, SystemError):
            _watched(lambda: left.append(self._client.producer.flush(_COMMIT_SECONDS)), self.transactional_id)
        if any(left):
            what = f"{counted(left[0], 'record')} of {self.transactional_id} to {self._servers}"
            failure = self._client.unwritten(f"Cannot write {what} within {_COMMIT_SECONDS:.0f} s")
            raise failure

    def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]], group_id: str) -> None:
        """Commit the records sent and the offsets of their inputs, all or nothing."""
        self._begin()
        partitions = [
            ClientTopicPartition(tp.topic, tp.partition, offset, metadata) for tp, (offset, metadata) in offsets.items()
        ]

        producer = self._client.producer

        def send_offsets() -> None:
            producer.send_offsets_to_transaction(partitions, group_metadata(group_id), _COMMIT_SECONDS)

        # Two watched calls, one after the other: if the first one hangs and returns late, it commits nothing.
        try:
            if partitions:
                _watched(send_offsets, self.transactional_id)
            _watched(lambda: producer.commit_transaction(_COMMIT_SECONDS), self.transactional_id)
        except KafkaException as error:
            doing = f"commit the transaction of {self.transactional_id} at {self._servers}"
            cause = self._cause_of(error.args[0])
            unknown = f"It is unknown whether {self.transactional_id} committed at {self._servers}: {cause.str()}"
            # Read first: `_failure` may end the transaction, which forgets the topics.
            written = self._client.open_topics()
            failure = self._failure(cause, doing) or UnknownOutcomeError(unknown)
            self._end()
            if not isinstance(failure, TaskMigratedError):
                self._client.name_missing(failure, written)
            raise failure from error
        self._end()

    def abort(self) -> None:
        """Abort the current transaction, if there is one."""
        if self.in_transaction:
            # Ended here whatever brokers answer: if they cannot be reached, they abort it after its timeout.
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
        doing, cause = f"write to {topic} within {self.transactional_id}", self._cause_of(error)
        return self._failure(cause, doing) or streams_error(cause, doing)

    def _failure(self, error: KafkaError, doing: str) -> StreamsError | None:
        """Translate an error with a known outcome: the transaction is aborted, or belongs to another owner."""
        if error.code() in FENCED:
            self._end()
            # Brokers fence a producer whose transaction was open for too long just as a successor would.
            return self._expiry() or streams_error(error, doing)
        if error.txn_requires_abort():
            self.abort()
            return streams_error(error, doing)
        return None

    def _cause_of(self, error: KafkaError) -> KafkaError:
        """Return the cause of a failed transaction, which the library reveals only on an attempt to commit."""
        if error.code() in _FAILED_BEFORE:
            # This commits nothing: the transaction has failed.
            try:
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
        overrides: Producer properties of the user (`producer.` prefix).
        admin: Asks the brokers for limits of record times; without it, a client is made for that.
    """

    def __init__(self, kafka: Kafka, overrides: Mapping[str, str] | None = None, *, admin: Admin | None = None) -> None:
        # The callback is no method: a client in a reference cycle would live until garbage collection.
        refused: list[tuple[str, KafkaError]] = []
        self._refused = refused
        self._servers = kafka.servers

        def delivered(error: KafkaError | None, message: Any) -> None:
            # Purged records are those that `close` discards.
            if error is not None and error.code() not in _PURGED:
                refused.append((message.topic(), error))

        own = {"delivery.report.only.error": True, "on_delivery": delivered}
        begin, explain = lambda: None, lambda error, topic: streams_error(error, f"write to {topic}")
        self._client = SendingClient(kafka, {**(overrides or {}), **own}, begin, explain, admin)
        self.new_sender = self._client.new_sender
        self._sender = self.new_sender()
        self.learn_limits = self._sender.learn_limits
        self.send = self._sender.send
        """Sends a record; `flush` reports whether it arrived. Arguments as of `RecordCollector.send`."""

    def sent(self) -> dict[str, int]:
        """Return the number of records sent by topic, with `send`."""
        return self._sender.sent()

    def flush(self) -> None:
        """Wait until everything sent has arrived."""
        with mapped_errors(f"write to {self._servers}"):
            left = self._client.producer.flush(_FLUSH_SECONDS)
        if self._refused:
            topic, error = self._refused[0]
            self._refused.clear()
            raise streams_error(error, f"write to {topic}")
        if left:
            what = f"{left} records could not be written to {self._servers} within {_FLUSH_SECONDS:.0f} s"
            raise self._client.unwritten(what)

    def close(self) -> None:
        """Stop sending, discard queued records, and release connections. Idempotent."""
        self._client.close()


class KafkaRecordCollector:
    """The `RecordCollector` of a live host: sends records, and asks brokers for partition counts once each."""

    def __init__(self, sender: RecordSender, admin: Admin) -> None:
        self.send = sender.send
        self._target = sender.target
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
    """Run a call in a thread, and give up if it never returns: its producer must then be discarded."""
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
