"""A producer of the cluster in memory, in place of `confluent_kafka.Producer`.

Records wait in a queue until they are flushed or committed, until enough of them wait, or until the brokers' clock ticks. Each
batch keeps its sequence number until it is answered, so one whose answer was lost is appended once.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    KafkaError,
    KafkaException,
    Message,
)
from confluent_kafka import TopicPartition as ClientTopicPartition

from riverrun.kafka import librdkafka
from riverrun.partitioning import partition_for
from riverrun.records import TopicPartition
from riverrun.simulation.brokers import NewOffset
from riverrun.simulation.group_metadata import caller_in
from riverrun.simulation.line import Line, as_kafka_error, timed_out
from riverrun.simulation.partition_log import BatchWriter, NewRecord
from riverrun.simulation.refusals import RETRIED, LostError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from confluent_kafka.admin import ClusterMetadata

    from riverrun.simulation.brokers import Brokers
    from riverrun.simulation.transactions import Owner

    OnDelivery = Callable[[KafkaError | None, Message], None]

_FOREVER_SECONDS = 365 * 86_400.0
_RECORDS, _BYTES = 10_000, 1_000_000
"""Bounds of a batch: the library's `batch.num.messages` and `batch.size`."""
_MESSAGE_TIMEOUT_MS = 300_000
_FENCING = frozenset({KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})
_LOST_COUNT = frozenset({KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, KafkaError.INVALID_PRODUCER_EPOCH})
"""Refusals after which the library asks for another epoch, and counts from 0."""
_FATAL_AT_END = frozenset({KafkaError.INVALID_PRODUCER_ID_MAPPING, KafkaError.INVALID_TXN_STATE})


class _Queued(NamedTuple):
    record: NewRecord
    on_delivery: OnDelivery | None
    until_s: float


@dataclass(slots=True)
class _Batch:
    queued: list[_Queued]
    sequence: int


@dataclass(slots=True)
class _Outbox:
    """The records that wait for one partition: a batch that may be on its way, and others after it."""

    queued: deque[_Queued] = field(default_factory=deque)
    sent: _Batch | None = None
    sequence: int = 0
    bytes: int = 0

    def __len__(self) -> int:
        return len(self.queued) + (0 if self.sent is None else len(self.sent.queued))

    def batch(self) -> _Batch:
        """Return the batch to send: the last one, unless it was answered."""
        if self.sent is None:
            taken: list[_Queued] = []
            size = 0
            while self.queued and len(taken) < _RECORDS:
                size += self.queued[0].record.size
                if taken and size > _BYTES:
                    break
                taken.append(self.queued.popleft())
            self.sent = _Batch(taken, self.sequence)
        return self.sent

    def clear(self) -> list[_Queued]:
        """Return all that waits, and forget it."""
        left = [*(self.sent.queued if self.sent else ()), *self.queued]
        self.queued.clear()
        self.sent, self.bytes = None, 0
        return left


class MemoryProducer:
    """Writes records; the methods are those of `confluent_kafka.Producer`."""

    def __init__(self, brokers: Brokers, settings: Mapping[str, Any]) -> None:
        self._brokers = brokers
        self._line = Line(brokers, str(settings.get("client.id", "rdkafka")))
        self._transactional_id: str | None = settings.get("transactional.id")
        is_idempotent = str(settings.get("enable.idempotence", False)).lower() == "true"
        self._has_ids = is_idempotent or self._transactional_id is not None
        self._timeout_ms = int(settings.get("transaction.timeout.ms", 60_000))
        longest_ms = self._timeout_ms if self._transactional_id else _MESSAGE_TIMEOUT_MS
        self._message_s = int(settings.get("message.timeout.ms", longest_ms)) / 1000
        self._most_bytes = int(settings.get("message.max.bytes", _BYTES))
        self._most_queued = int(settings.get("queue.buffering.max.messages", 100_000))
        self._is_murmur2 = str(settings.get("partitioner", "")).startswith("murmur2")
        self._on_delivery: OnDelivery | None = settings.get("on_delivery")
        self._only_errors = str(settings.get("delivery.report.only.error", False)).lower() == "true"
        self._outboxes: dict[TopicPartition, _Outbox] = {}
        self._reports: deque[Callable[[], None]] = deque()
        self._owner: Owner | None = None
        self._transaction: _Transaction | None = _Transaction() if self._transactional_id else None
        self._counts: dict[str, int] = {}
        brokers.join_background(self)

    def __len__(self) -> int:
        return sum(map(len, self._outboxes.values())) + len(self._reports)

    def produce(  # noqa: PLR0917 - as the library
        self,
        topic: str,
        value: bytes | str | None = None,
        key: bytes | str | None = None,
        partition: int = -1,
        callback: OnDelivery | None = None,
        on_delivery: OnDelivery | None = None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> None:
        """Queue a record."""
        if self._transaction is not None:
            self._transaction.check_produce()
        with self._brokers.waiting:
            count = self._partitions(topic)
            chosen = partition if partition >= 0 else self._chosen(_bytes(key), count)
            if chosen >= count:
                raise KafkaException(KafkaError(librdkafka.UNKNOWN_PARTITION))
            named = headers.items() if isinstance(headers, dict) else headers or ()
            pairs = tuple((name, _bytes(each)) for name, each in named)
            record = NewRecord(_bytes(key), _bytes(value), timestamp or self._brokers.clock.now_ms(), pairs)
            if record.size > self._most_bytes:
                raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
            if len(self) >= self._most_queued:
                raise BufferError(KafkaError(KafkaError._QUEUE_FULL).str())  # noqa: SLF001 - documented by librdkafka
            outbox = self._outboxes.setdefault(TopicPartition(topic, chosen), _Outbox())
            until_s = self._brokers.waiting.now_s() + self._message_s
            outbox.queued.append(_Queued(record, on_delivery or callback or self._on_delivery, until_s))
            outbox.bytes += record.size
            if len(outbox.queued) >= _RECORDS or outbox.bytes >= _BYTES:
                self.work()

    def poll(self, timeout: float = 0) -> int:  # noqa: ARG002 - as the library
        """Send what waits, and call the callbacks of what has arrived."""
        with self._brokers.waiting:
            self.work()
        return self._report()

    def flush(self, timeout: float = -1) -> int:
        """Send all that waits; return the number of records that have not arrived."""
        deadline = self._brokers.waiting.now_s() + (_FOREVER_SECONDS if timeout < 0 else timeout)
        while True:
            with self._brokers.waiting:
                self.work()
                left = sum(map(len, self._outboxes.values()))
            self._report()
            left_s = deadline - self._brokers.waiting.now_s()
            if not left or left_s <= 0:
                return left
            self._line.pause(left_s)

    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:  # noqa: ARG002, FBT001, FBT002 - as the library
        """Discard what waits."""
        with self._brokers.waiting:
            for tp, outbox in self._outboxes.items():
                was_sent = outbox.sent is not None
                for each in outbox.clear():
                    self._fail(tp, each, KafkaError(librdkafka.PURGE_QUEUE))
                if was_sent and self._transaction is not None:
                    self._transaction.needs_epoch = True
                elif was_sent:
                    self._forget_owner()

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> ClusterMetadata:
        """Return what the brokers say about topics."""
        return self._line.metadata(topic, _FOREVER_SECONDS if timeout < 0 else timeout)

    def work(self) -> None:
        """Send what waits, once: what is lost or refused for the moment stays."""
        for tp, outbox in tuple(self._outboxes.items()):
            while len(outbox) and self._send(tp, outbox):
                pass
            outbox.bytes = sum(each.record.size for each in outbox.queued) if outbox.queued else 0

    # Transactions

    def init_transactions(self, timeout: float = -1) -> None:
        """Become the owner of the transactional id."""
        transaction = self._required()
        transaction.raise_fatal()
        self._owner = self._new_owner(_FOREVER_SECONDS if timeout < 0 else timeout, None)
        self._reset_sequences()
        transaction.is_ready = True

    def begin_transaction(self) -> None:
        transaction = self._required()
        transaction.raise_fatal()
        if not transaction.is_ready or transaction.is_open:
            raise KafkaException(KafkaError(librdkafka.STATE))
        transaction.is_open = True

    def send_offsets_to_transaction(
        self, positions: list[ClientTopicPartition], group_metadata: bytes, timeout: float = -1
    ) -> None:
        """Commit offsets with the transaction."""
        transaction, within_s = self._open(), _FOREVER_SECONDS if timeout < 0 else timeout
        group, caller = caller_in(group_metadata)
        name, owner = self._transactional_id or "", self._owned()
        offsets = {TopicPartition(tp.topic, tp.partition): NewOffset(tp.offset, tp.metadata or "") for tp in positions}
        if not offsets:
            return
        self._in_transaction("AddOffsetsToTxn", lambda: self._brokers.add_offsets(name, owner, group), within_s)
        transaction.has_begun = True
        self._in_transaction(
            "TxnOffsetCommit",
            lambda: self._brokers.commit_offsets_in_transaction((name, owner), group, caller, offsets),
            within_s,
        )

    def commit_transaction(self, timeout: float = -1) -> None:
        """Send what waits, and commit."""
        transaction, within_s = self._open(), _FOREVER_SECONDS if timeout < 0 else timeout
        if self.flush(within_s):
            raise KafkaException(timed_out())
        transaction.raise_failure()
        if transaction.has_begun:
            self._end(within_s, commits=True)
        transaction.end()

    def abort_transaction(self, timeout: float = -1) -> None:
        """Discard what waits, and abort."""
        transaction, within_s = self._required(), _FOREVER_SECONDS if timeout < 0 else timeout
        transaction.raise_fatal()
        if not transaction.is_open:
            raise KafkaException(KafkaError(librdkafka.STATE))
        self.purge()
        self._report()
        if transaction.has_begun:
            self._end(within_s, commits=False)
        if transaction.needs_epoch:
            self._owner = self._new_owner(within_s, self._owner)
            self._reset_sequences()
        transaction.end()

    # The parts

    def _partitions(self, topic: str) -> int:
        """Return the number of partitions, by a client that looks up topics that it does not know."""
        found = self._brokers.topics.find(topic)
        if found is not None:
            self._counts[topic] = len(found.logs)
        # Records for a missing topic fail when they are sent.
        return self._counts.get(topic, 2**31)

    def _chosen(self, key: bytes | None, count: int) -> int:
        if count == 2**31:
            return 0
        if key is None or (not key and not self._is_murmur2):
            return self._brokers.random.randrange(count)
        return partition_for(key, count) if self._is_murmur2 else crc32(key) % count

    def _send(self, tp: TopicPartition, outbox: _Outbox) -> bool:
        """Send one batch. Return whether another may follow."""
        batch = outbox.batch()
        transaction = self._transaction
        if transaction is not None and transaction.failure is not None:
            self._fail_all(tp, outbox, transaction.failure)
            return False
        try:
            writer = self._writer(batch)
            if transaction is not None and tp not in transaction.partitions:
                self._add_partition(transaction, tp)
            records = [each.record for each in batch.queued]
            produce = partial(self._brokers.produce, tp, records, writer, self._transactional_id)
            appended = self._line.once("Produce", produce)
        except LostError:
            return self._drop_overdue(tp, outbox)
        except RefusedError as error:
            if error.code in RETRIED:
                return self._drop_overdue(tp, outbox)
            self._refused(tp, outbox, error)
            return False
        outbox.sent, outbox.sequence = None, (batch.sequence + len(batch.queued)) % 2**31
        for number, each in enumerate(batch.queued):
            self._deliver(tp, each, None, appended.offset + number, appended.time_ms)
        return True

    def _writer(self, batch: _Batch) -> BatchWriter:
        if not self._has_ids:
            return BatchWriter()
        if self._owner is None:
            self._owner = self._line.once("InitProducerId", lambda: self._brokers.init_producer(None, 0, None))
        return BatchWriter(*self._owner, batch.sequence, self._transactional_id is not None)

    def _add_partition(self, transaction: _Transaction, tp: TopicPartition) -> None:
        name, owner = self._transactional_id or "", self._owned()
        self._line.once("AddPartitionsToTxn", lambda: self._brokers.add_partitions(name, owner, [tp]))
        transaction.partitions.add(tp)
        transaction.has_begun = True

    def _refused(self, tp: TopicPartition, outbox: _Outbox, error: RefusedError) -> None:
        is_missing = error.code == KafkaError.UNKNOWN_TOPIC_OR_PART
        refusal = RefusedError(librdkafka.UNKNOWN_TOPIC) if is_missing else error
        if self._transaction is not None:
            is_fatal = error.code == KafkaError.PRODUCER_FENCED
            explained = RefusedError(refusal.code, self._explanation(tp, outbox.batch(), refusal))
            self._transaction.fail(as_kafka_error(explained, fatal=is_fatal, abortable=not is_fatal))
            # The library keeps counting after other refusals, so the brokers find a gap in the next transaction.
            self._transaction.needs_epoch |= error.code in _LOST_COUNT
            outbox.sequence = (outbox.sequence + len(outbox.batch().queued)) % 2**31
            self._fail_all(tp, outbox, as_kafka_error(refusal))
            return
        batch, outbox.sent = outbox.batch(), None
        for each in batch.queued:
            self._fail(tp, each, as_kafka_error(refusal))
        # The next batch would have a gap before it: the library takes another id.
        self._forget_owner()

    def _explanation(self, tp: TopicPartition, batch: _Batch, refusal: RefusedError) -> str:
        """Return the library's words, which name the batch."""
        what = f"ProduceRequest for {tp.topic} [{tp.partition}] with {len(batch.queued)} message(s) failed"
        owner = self._owned()
        whose = f"broker 1 PID{{Id:{owner.producer_id},Epoch:{owner.epoch}}}, base seq {batch.sequence}"
        return f"{what}: {KafkaError(refusal.code).str()} ({whose}): current transaction must be aborted"

    def _drop_overdue(self, tp: TopicPartition, outbox: _Outbox) -> bool:
        """Give up records that have waited for too long."""
        now_s = self._brokers.waiting.now_s()
        batch = outbox.batch()
        if batch.queued and batch.queued[0].until_s <= now_s:
            error = KafkaError(librdkafka.MSG_TIMED_OUT)
            if self._transaction is not None:
                self._transaction.needs_epoch = True
                self._transaction.fail(KafkaError(librdkafka.TIMED_OUT, error.str(), False, False, True))  # noqa: FBT003
            self._fail_all(tp, outbox, error)
            if self._transaction is None:
                self._forget_owner()
        return False

    def _fail_all(self, tp: TopicPartition, outbox: _Outbox, error: KafkaError) -> None:
        for each in outbox.clear():
            self._fail(tp, each, error)

    def _fail(self, tp: TopicPartition, queued: _Queued, error: KafkaError) -> None:
        self._deliver(tp, queued, error, -1001, None)

    def _deliver(
        self, tp: TopicPartition, queued: _Queued, error: KafkaError | None, offset: int, time_ms: int | None
    ) -> None:
        if queued.on_delivery is None or (error is None and self._only_errors):
            return
        record = queued.record
        kind = TIMESTAMP_CREATE_TIME if time_ms is None else TIMESTAMP_LOG_APPEND_TIME
        message = Message(
            topic=tp.topic,
            partition=tp.partition,
            offset=offset,
            key=record.key,
            value=record.value,
            headers=list(record.headers) or None,
            error=error,
            timestamp=(kind, record.timestamp_ms if time_ms is None else time_ms),
        )
        self._reports.append(partial(queued.on_delivery, error, message))

    def _report(self) -> int:
        count = 0
        while self._reports:
            self._reports.popleft()()
            count += 1
        return count

    def _forget_owner(self) -> None:
        self._owner = None
        self._reset_sequences()

    def _reset_sequences(self) -> None:
        for outbox in self._outboxes.values():
            outbox.sequence = 0
            if outbox.sent is not None:
                outbox.queued.extendleft(reversed(outbox.sent.queued))
                outbox.sent = None

    def _new_owner(self, within_s: float, present: Owner | None) -> Owner:
        transaction = self._required()
        make = partial(self._brokers.init_producer, self._transactional_id, self._timeout_ms, present)
        try:
            return self._line.patiently("InitProducerId", make, within_s)
        except KafkaException as error:
            if error.args[0].code() in _FENCING:
                transaction.fail(KafkaError(librdkafka.FENCED_PRODUCER, None, True))  # noqa: FBT003 - fatal
                transaction.raise_fatal()
            raise

    def _end(self, within_s: float, *, commits: bool) -> None:
        name, owner = self._transactional_id or "", self._owned()
        end = partial(self._brokers.end_transaction, name, owner, commits=commits)
        self._in_transaction("EndTxn", end, within_s, fatal=_FATAL_AT_END)

    def _in_transaction(
        self, request: str, act: Callable[[], None], within_s: float, fatal: frozenset[int] = frozenset()
    ) -> None:
        """Send a request of the transaction; a refusal makes it fail."""
        transaction = self._required()
        try:
            self._line.patiently(request, act, within_s)
        except KafkaException as error:
            code = error.args[0].code()
            if code == librdkafka.TIMED_OUT:
                raise
            if code in _FENCING:
                transaction.fail(KafkaError(librdkafka.FENCED_PRODUCER, None, True))  # noqa: FBT003 - fatal
            else:
                is_fatal = code in fatal
                transaction.needs_epoch |= code == KafkaError.INVALID_PRODUCER_ID_MAPPING
                transaction.fail(KafkaError(code, None, is_fatal, False, not is_fatal))  # noqa: FBT003 - not retriable
            transaction.raise_failure()

    def _owned(self) -> Owner:
        if self._owner is None:
            raise KafkaException(KafkaError(librdkafka.STATE))
        return self._owner

    def _required(self) -> _Transaction:
        if self._transaction is None:
            raise KafkaException(KafkaError(librdkafka.STATE))
        return self._transaction

    def _open(self) -> _Transaction:
        transaction = self._required()
        transaction.raise_failure()
        if not transaction.is_open:
            raise KafkaException(KafkaError(librdkafka.STATE))
        return transaction


@dataclass(slots=True)
class _Transaction:
    """The state of a producer's transaction.

    Args:
        has_begun: Whether brokers know of it.
        needs_epoch: Whether the sequence numbers have a gap, so that the next transaction needs another epoch.
    """

    is_ready: bool = False
    is_open: bool = False
    has_begun: bool = False
    needs_epoch: bool = False
    failure: KafkaError | None = None
    partitions: set[TopicPartition] = field(default_factory=set)

    def fail(self, error: KafkaError) -> None:
        """Note why it cannot be committed; a fatal reason replaces another."""
        if self.failure is None or (error.fatal() and not self.failure.fatal()):
            self.failure = error

    def check_produce(self) -> None:
        """Refuse records outside of a transaction, and after its failure."""
        if self.failure is not None and self.failure.fatal():
            raise KafkaException(KafkaError(librdkafka.FATAL, self.failure.str(), True))  # noqa: FBT003 - fatal
        if not self.is_open or self.failure is not None:
            raise KafkaException(KafkaError(librdkafka.STATE))

    def raise_fatal(self) -> None:
        """Raise the failure if the producer cannot be used any more."""
        if self.failure is not None and self.failure.fatal():
            raise KafkaException(self.failure)

    def raise_failure(self) -> None:
        if self.failure is not None:
            raise KafkaException(self.failure)

    def end(self) -> None:
        """Forget the transaction."""
        self.is_open = self.has_begun = self.needs_epoch = False
        self.failure = None
        self.partitions.clear()


def _bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
