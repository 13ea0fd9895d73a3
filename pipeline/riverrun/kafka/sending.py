"""Sends records through the client library: in topics that are known, with times that brokers accept.

Brokers refuse a whole batch for one time, and name no record. So times are checked before sending.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from weakref import ref

from confluent_kafka import KafkaError, KafkaException

from riverrun.errors import BrokerError, RefusedRecordError, TopicError
from riverrun.kafka import librdkafka
from riverrun.kafka.admin import Admin
from riverrun.kafka.errors import MISSING_HINT, mapped_errors
from riverrun.kafka.librdkafka import end_in_background

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from riverrun.errors import StreamsError
    from riverrun.kafka.door import Kafka
    from riverrun.records import Headers, Send

_SETTINGS = {
    # As Java's producers do, so that all writers send equal keys to equal partitions.
    "partitioner": "murmur2_random",
    "linger.ms": 20,
    "enable.idempotence": True,
    # With more, the library counts a refused batch as written once the next one is: brokers accept that as the
    # first of its producer, if they have learned in between that they lead the partition.
    "max.in.flight.requests.per.connection": 1,
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 262_144,
    "compression.type": "lz4",
}
_METADATA_SECONDS = 15.0
_LOOK_SECONDS = 2.0
_TOO_LARGE = (
    "Raise producer.message.max.bytes in [apps.NAME.config], and the topic's max.message.bytes (of internal topics:"
    " topic.max.message.bytes)."
    " Or let production.exception.handler decide: it handles records of sinks, but not of changelogs."
)
_ANY_PARTITION = -1
# The client library reads a timestamp of 0 as "now"; an error of 1 ms is better than one of decades.
_EARLIEST_TIME_MS = 1
# How far ahead of their clock brokers accept records by default (`message.timestamp.after.max.ms`).
USUALLY_AHEAD_MS = 3_600_000
_ANY_MS = 2**63 - 1
_AFTER, _BEFORE = "message.timestamp.after.max.ms", "message.timestamp.before.max.ms"
_ALL_ARE_LOOKED_AT = -1


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """How far a record's time may be before and after the brokers' clock."""

    before_ms: int = _ANY_MS
    after_ms: int = _ANY_MS

    @property
    def narrow(self) -> dict[str, int]:
        """Return the settings that refuse event times which brokers accept by default, with their values."""
        limits = {_BEFORE: (self.before_ms, _ANY_MS), _AFTER: (self.after_ms, USUALLY_AHEAD_MS)}
        return {name: found for name, (found, usual) in limits.items() if found < usual}


def time_limits(admin: Admin, topics: Iterable[str]) -> dict[str, TimeLimits]:
    """Return the limits of record times by topic; topics that do not exist or may not be described are left out."""
    return {topic: _limits(config) for topic, config in admin.topic_configs(topics).items()}


def _limits(config: Mapping[str, str]) -> TimeLimits:
    # Brokers replace the times of records in such a topic, so they refuse none.
    if config.get("message.timestamp.type") == "LogAppendTime":
        return TimeLimits()
    return TimeLimits(int(config.get(_BEFORE, _ANY_MS)), int(config.get(_AFTER, _ANY_MS)))


class RecordTimes:
    """Checks times before a record is sent; nearly all records need no check."""

    def __init__(self, admin: Callable[[], Admin]) -> None:
        self._admin = admin
        self._limits: dict[str, TimeLimits] = {}
        self._are_old_refused = False
        self._ahead_ms = USUALLY_AHEAD_MS

    def learn(self, limits: Mapping[str, TimeLimits]) -> None:
        """Add limits that are already known."""
        self._limits |= limits
        self._are_old_refused = any(known.before_ms < _ANY_MS for known in self._limits.values())
        self._ahead_ms = min((known.after_ms for known in self._limits.values()), default=USUALLY_AHEAD_MS)

    def unsuspicious(self, topic: str, partition: int | None, timestamp: int) -> int:
        """Return the time (ms) up to which records of all topics known so far need no check at present.

        A topic is looked up with its first record, unless its limits are known.
        """
        if topic not in self._limits:
            self.learn({topic: self._asked(topic)})
        limits, now_ms = self._limits[topic], time.time_ns() // 1_000_000  # noqa: TID251 - the brokers' clock decides
        where = topic if partition is None else f"{topic}-{partition}"
        if timestamp - now_ms > limits.after_ms:
            raise _refused(where, timestamp, f"{timestamp - now_ms} ms ahead of the clock", _AFTER, limits.after_ms)
        if now_ms - timestamp > limits.before_ms:
            raise _refused(where, timestamp, f"{now_ms - timestamp} ms behind the clock", _BEFORE, limits.before_ms)
        # Brokers' clocks only advance, so a time that is not too late now stays so. One that is not too early may become it.
        return _ALL_ARE_LOOKED_AT if self._are_old_refused else now_ms + self._ahead_ms

    def _asked(self, topic: str) -> TimeLimits:
        try:
            return time_limits(self._admin(), [topic]).get(topic, TimeLimits())
        # Without limits, nothing is refused here: brokers will refuse the batch at the commit.
        except BrokerError:
            return TimeLimits()


def _refused(where: str, timestamp: int, distance: str, setting: str, limit_ms: int) -> RefusedRecordError:
    message = (
        f"Cannot write to {where}: time {timestamp}{_as_text(timestamp)} is {distance}, and {setting} is {limit_ms}"
    )
    hint = (
        f"Correct the event time (timestamp_extractor), or raise {setting} of the topic. For a sink's record, "
        "production.exception.handler may decide; a dead letter has that time as well."
    )
    return RefusedRecordError(message, hint=hint)


def _as_text(timestamp: int) -> str:
    """Return a readable form of a time, if the calendar has it."""
    try:
        return f" ({datetime.fromtimestamp(timestamp / 1000, UTC).isoformat(timespec='seconds')})"
    except (ValueError, OverflowError, OSError):
        return ""


class RecordSender:
    """Sends records through a client, which other senders may share: redirects them, checks their times, and counts them."""

    def __init__(self, client: SendingClient) -> None:
        self._client = client
        self._counts: dict[str, int] = {}
        self._targets: dict[str, str] = {}
        self._published: Mapping[str, str] = {}
        self._earlier: dict[str, int] = {}
        self._times = RecordTimes(client.admin)
        self.send = self._sending()
        """Sends a record: see `RecordCollector.send`. Errors are those of the producer."""

    def learn_limits(self, limits: Mapping[str, TimeLimits]) -> None:
        """Add known limits of record times; other topics are looked up with their first record."""
        self._times.learn(limits)

    def publish(self, published: Mapping[str, str]) -> None:
        """Redirect the records of some topics to others from now on, at no cost per record.

        Not between two records of one transaction, which would write to both topics.
        """
        self._published = published
        self._targets.clear()

    def target(self, topic: str) -> str:
        """Return the topic that receives a topic's records."""
        return self._published.get(topic, topic)

    def sent(self) -> dict[str, int]:
        """Return the number of records sent by topic, in finished transactions and in the current one."""
        sent = dict(self._earlier)
        for topic, count in self._counts.items():
            sent[topic] = sent.get(topic, 0) + count
        return sent

    def end(self) -> None:
        """Mark the end of a transaction."""
        self._earlier = self.sent()
        self._counts.clear()
        # So the next record of each topic takes the slow path, which begins a transaction.
        self._targets.clear()

    @property
    def open_topics(self) -> Iterable[str]:
        """Return the topics written to in the current transaction."""
        return tuple(self._counts)

    def _sending(self) -> Send:
        # A closure, as the attribute look-ups of a method take as long as counting.
        client, counts, targets, latest = self._client, self._counts, self._targets, -1

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
                # -1, as the limits of this topic may not have been looked up yet.
                target, latest = self._begin_with(topic, partition), -1
            if timestamp > latest:
                latest = self._times.unsuspicious(target, partition, timestamp)
            where = _ANY_PARTITION if partition is None else partition
            named = list(headers) if headers else None
            while True:
                # Arguments by name would take twice as long.
                try:
                    client.producer.produce(
                        target, value, key, where, None, None, timestamp or _EARLIEST_TIME_MS, named
                    )
                    break
                except BufferError:
                    client.producer.poll(0.1)
                except KafkaException as error:
                    raise client.failure(error.args[0], target, partition) from error
            try:
                counts[target] += 1
            except KeyError:
                client.ask_for(target)
                counts[target] = 1

        return send

    def _begin_with(self, topic: str, partition: int | None) -> str:
        """Begin if necessary, and return the topic that receives the records."""
        self._client.begin()
        target = self.target(topic)
        # With the metadata, a partition that does not exist is refused by `produce`, rather than without a name at the commit.
        if partition is not None:
            self._client.ask_for(target)
        self._targets[topic] = target
        return target


class SendingClient:
    """Wraps the library's producer for one or more senders. They wait while its queue is full.

    Args:
        properties: Properties of this client, which override the cluster's.
        begin: Called before a sender's first record of a topic, and again before the first one after `end`.
        explain: Translates a refusal of the library: `(error, topic)`.
        admin: Asks the brokers. Without it, each sender that needs an answer makes a client for that.
    """

    def __init__(
        self,
        kafka: Kafka,
        properties: Mapping[str, Any],
        begin: Callable[[], None],
        explain: Callable[[KafkaError, str], StreamsError],
        admin: Admin | None = None,
    ) -> None:
        self.admin: Callable[[], Admin] = (lambda: Admin(kafka)) if admin is None else lambda: admin
        self.begin = begin
        self._explain = explain
        # Weak: the sender of a task that was closed must not be kept by a producer that lives on.
        self._senders: list[ref[RecordSender]] = []
        self._known: set[str] = set()
        with mapped_errors("create a producer"):
            self.producer = kafka.producer(properties, _SETTINGS)

    def new_sender(self) -> RecordSender:
        """Return a new sender, for one task."""
        sender = RecordSender(self)
        self._senders.append(ref(sender))
        return sender

    def end(self) -> None:
        """Mark the end of a transaction."""
        for sender in self._living():
            sender.end()
        self._senders = [kept for kept in self._senders if kept() is not None]

    def open_topics(self) -> set[str]:
        """Return the topics written to in the current transaction."""
        return {topic for sender in self._living() for topic in sender.open_topics}

    def _living(self) -> list[RecordSender]:
        # Of a copy: a sender may be made while another thread commits.
        return [sender for kept in tuple(self._senders) if (sender := kept()) is not None]

    def failure(self, error: KafkaError, topic: str, partition: int | None) -> StreamsError:
        """Translate the library's refusal of a record."""
        if error.code() == librdkafka.UNKNOWN_PARTITION:
            message = f"Cannot write to partition {partition} of {topic}: the topic has no such partition"
            return TopicError(message, hint="Correct the partitioner, or give the topic more partitions.")
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return RefusedRecordError(f"Cannot write to {topic}: {error.str()}", hint=_TOO_LARGE)
        return self._explain(error, topic)

    def ask_for(self, topic: str, seconds: float = _METADATA_SECONDS) -> None:
        """Make the library look up a topic's partitions. Without an answer, the library retries."""
        # By its own timer, it may look them up a second after the first record: most of the time of a task that writes little.
        if topic not in self._known:
            with suppress(KafkaException):
                # The first answer comes over the connection to the bootstrap address, which the library then replaces. If there
                # is none while it wants an id for this producer, it waits for half a second.
                for _ in range(1 if self._known else 2):
                    self.producer.list_topics(topic, seconds)
            self._known.add(topic)

    def name_missing(self, failure: StreamsError, topics: Iterable[str]) -> None:
        """Add to a failure the missing ones among the topics written to, as the library names none."""
        missing = self._missing(topics)
        if missing:
            failure.message = f"{failure.message}; the brokers do not know topic {', '.join(missing)}"
            failure.hint = MISSING_HINT

    def unwritten(self, message: str) -> StreamsError:
        """Return the error for records that do not arrive: `TopicError` if topics are missing, otherwise a retriable one."""
        missing = self._missing(self.open_topics())
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
        """Stop writing, and release connections in the background. Idempotent."""
        if hasattr(self, "producer"):
            self.producer.purge()
            # The library has no call for this: a producer ends with its last reference. A call that hangs in another thread
            # holds one, so the producer stays valid for it.
            references = [self.producer]
            del self.producer
            end_in_background(references.clear, "producer")
