"""Reads committed records from given offsets, with manual assignment and without rebalancing."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby, starmap
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientTopicPartition

from riverrun.errors import MissingOffsetError, StreamsError
from riverrun.kafka import librdkafka
from riverrun.kafka.errors import BUSY, UNREACHABLE, mapped_errors, streams_error
from riverrun.kafka.librdkafka import end_in_background
from riverrun.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from riverrun.kafka.door import Kafka
    from riverrun.records import Headers, RawFields

_GONE = "Retention (retention.ms, retention.bytes) has deleted unread records, or the topic was recreated."
_SHORTENED = (
    "Brokers have lost records that they had confirmed, as after a crash without replicas or an unclean election of a "
    "leader. Others may have their offsets now."
)
_SETTINGS = {
    # The library requires a group; nothing is committed for it.
    "group.id": "riverrun-unjoined",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    # A lost offset must be an error: a reset would skip records silently.
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
    "fetch.queue.backoff.ms": 5,
    "fetch.wait.max.ms": 50,
    "queued.min.messages": 100_000,
    "queued.max.messages.kbytes": 131_072,
}

# For reading up to a known end. After the last record of a log comes a transaction's marker, and brokers would
# otherwise wait `fetch.wait.max.ms` before they answer that there is nothing more.
UP_TO_AN_END = {"fetch.wait.max.ms": "5"}

_METADATA_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Polled:
    """Records and ends of partitions from one poll.

    Args:
        records: Records by partition, in order of offsets.
        ends: End offsets (exclusive) of the partitions that have been read to their end.
    """

    records: Mapping[TopicPartition, list[RawFields]]
    ends: Mapping[TopicPartition, int]


class MessageBatch:
    """Records with keys of one partition, by columns: each column is built on demand, without an object per record.

    Args:
        messages: The library's messages, in order of offsets; none is an error.
    """

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self._messages)

    @property
    def end(self) -> int:
        """Return the end offset (exclusive); the batch must not be empty."""
        offset: int = self._messages[-1].offset()
        return offset + 1

    def split(self, offset: int) -> tuple[MessageBatch, MessageBatch]:
        """Return the records before an offset, and the rest."""
        if not self._messages or self._messages[-1].offset() < offset:
            return self, MessageBatch(())
        at = bisect_left(self._messages, offset, key=Message.offset)
        return MessageBatch(self._messages[:at]), MessageBatch(self._messages[at:])

    def keys(self) -> list[bytes]:
        return list(map(Message.key, self._messages))

    def values(self) -> list[bytes | None]:
        return list(map(Message.value, self._messages))

    def timestamps(self) -> list[int]:
        """Return the timestamps, ms."""
        return [timestamp for _, timestamp in map(Message.timestamp, self._messages)]

    def headers(self) -> list[Headers]:
        return [tuple(headers) if headers else () for headers in map(Message.headers, self._messages)]


@dataclass(frozen=True, slots=True)
class PolledBatches:
    """Records of one poll, by columns.

    Args:
        batches: Records by partition, in order of offsets.
        reached: The offset up to which each partition has been read: all earlier records have been returned.
    """

    batches: Mapping[TopicPartition, MessageBatch]
    reached: Mapping[TopicPartition, int]


class RecordConsumer:
    """A consumer of given partitions.

    Args:
        overrides: Consumer properties of the user (`consumer.` prefix); reading committed records and the absence of a
            reset policy cannot be overridden.
    """

    def __init__(self, kafka: Kafka, overrides: Mapping[str, str] | None = None) -> None:
        forced = {key: _SETTINGS[key] for key in ("auto.offset.reset", "isolation.level", "enable.partition.eof")}
        # The callback is no method: a client in a reference cycle would live until garbage collection.
        lost: list[KafkaError] = []
        self._lost = lost

        def connection_failed(error: KafkaError) -> None:
            if error.code() == librdkafka.ALL_BROKERS_DOWN:
                lost.append(error)

        own = {**forced, "error_cb": connection_failed}
        with mapped_errors("create a consumer"):
            self._consumer = kafka.consumer({**(overrides or {}), **own}, _SETTINGS)
        self._assigned: dict[TopicPartition, int] = {}
        self._ever_assigned: set[TopicPartition] = set()
        self._paused: set[TopicPartition] = set()
        self._known: set[str] = set()
        self._is_closed = False

    def assign(self, starts: Mapping[TopicPartition, int]) -> None:
        """Read these partitions from these offsets, in addition to those already assigned."""
        self._assigned.update(starts)
        self._ever_assigned.update(starts)
        partitions = [ClientTopicPartition(tp.topic, tp.partition, offset) for tp, offset in starts.items()]
        with mapped_errors("assign partitions"):
            self._consumer.incremental_assign(partitions)
        # The client looks up a topic's leaders by a timer of up to a second; this does it at once. Without an answer,
        # nothing is lost: the client retries by its timer.
        with suppress(KafkaException):
            for topic in {tp.topic for tp in starts} - self._known:
                self._consumer.list_topics(topic, _METADATA_SECONDS)
                self._known.add(topic)

    def unassign(self, tps: Iterable[TopicPartition]) -> None:
        """Stop reading these partitions."""
        gone = [tp for tp in tps if self._assigned.pop(tp, None) is not None]
        # Otherwise the library keeps them paused when they are assigned again.
        self.resume(gone)
        if gone:
            with mapped_errors("unassign partitions"):
                self._consumer.incremental_unassign(_named(gone))

    def pause(self, tps: Iterable[TopicPartition]) -> None:
        """Pause these partitions. Records fetched ahead are discarded."""
        paused = (set(tps) & self._assigned.keys()) - self._paused
        if paused:
            self._paused |= paused
            with mapped_errors("pause partitions"):
                self._consumer.pause(_named(paused))

    def resume(self, tps: Iterable[TopicPartition]) -> None:
        """Resume after the last record read. A partition that was read to its end reports that end again."""
        resumed = set(tps) & self._paused
        if resumed:
            self._paused -= resumed
            with mapped_errors("resume partitions"):
                self._consumer.resume(_named(resumed))

    def poll(self, max_records: int, timeout_s: float) -> Polled:
        """Wait for a first record up to a timeout, then return what has arrived.

        An error loses no record: the next poll reads records again that came with it.
        """
        found, ends = self._read(max_records, timeout_s)
        return Polled({tp: _fields(messages) for tp, messages in found.items()}, ends)

    def poll_batches(self, max_records: int, timeout_s: float) -> PolledBatches:
        """Poll by columns, without records that have no key."""
        found, ends = self._read(max_records, timeout_s)
        reached = {tp: messages[-1].offset() + 1 for tp, messages in found.items()}
        reached |= {tp: max(end, reached.get(tp, 0)) for tp, end in ends.items()}
        return PolledBatches({tp: MessageBatch(_with_keys(messages)) for tp, messages in found.items()}, reached)

    def known_ends(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the ends of logs from the latest fetch responses, without a request.

        Records of open transactions are before the end. Partitions without a response so far are left out.
        """
        found = {}
        for tp in tps:
            with suppress(KafkaException):
                _, end = self._consumer.get_watermark_offsets(ClientTopicPartition(*tp), cached=True)
                if end >= 0:
                    found[tp] = end
        return found

    def has_lost_brokers(self) -> bool:
        """Return whether the last connection to a broker was lost since the previous call; brokers may be back already."""
        is_lost = bool(self._lost)
        self._lost.clear()
        return is_lost

    def close(self) -> None:
        """Stop reading, and release connections in the background. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            end_in_background(self._consumer.close, "consumer")

    def _read(
        self, max_records: int, timeout_s: float
    ) -> tuple[dict[TopicPartition, list[Message]], dict[TopicPartition, int]]:
        """Poll once: return records by partition, and the ends of partitions that have been read to their end."""
        messages = self._messages(max_records, timeout_s)
        ends: dict[TopicPartition, int] = {}
        if any(map(Message.error, messages)):
            try:
                is_outdated = self._note_errors(messages, ends)
            except StreamsError:
                self._read_again(messages)
                raise
            if is_outdated:
                self._read_again(messages)
                return {}, {}
            messages = [message for message in messages if message.error() is None]
        found = _by_partition(messages, self._ever_assigned)
        self._assigned |= {tp: part[-1].offset() + 1 for tp, part in found.items() if tp in self._assigned}
        return found, ends

    def _messages(self, max_records: int, timeout_s: float) -> list[Message]:
        with mapped_errors("read records"):
            # Two calls: one for all records would wait for the whole number until the timeout.
            messages: list[Message] = self._consumer.consume(1, timeout_s) if timeout_s else []
            if messages or not timeout_s:
                messages += self._consumer.consume(max_records - len(messages), 0)
        return messages

    def _note_errors(self, messages: list[Message], ends: dict[TopicPartition, int]) -> bool:
        """Handle errors and ends of partitions; return whether an error is about an earlier assignment."""
        is_outdated = False
        for message in messages:
            error = message.error()
            if error is None:
                continue
            tp = TopicPartition(message.topic(), message.partition())
            if error.code() == librdkafka.PARTITION_EOF:
                ends[tp] = message.offset()
            elif error.code() in {librdkafka.AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}:
                self._require_offset(tp, message.offset())
                is_outdated = True
            # The library reconnects to unreachable brokers by itself.
            elif error.code() not in UNREACHABLE | BUSY:
                # Errors without a partition concern the group.
                what = tp if tp.topic else f"as a consumer of group {_SETTINGS['group.id']}"
                raise streams_error(error, f"read {what}")
        return is_outdated

    def _read_again(self, messages: list[Message]) -> None:
        """Seek back to the positions before these messages, which are discarded; ends will be reported again."""
        places = zip(map(Message.topic, messages), map(Message.partition, messages), strict=True)
        starts = {tp: self._assigned[tp] for tp in set(starmap(TopicPartition, places)) & self._assigned.keys()}
        paused = starts.keys() & self._paused
        self.unassign(starts)
        self.assign(starts)
        self.pause(paused)

    def _require_offset(self, tp: TopicPartition, missed: int | None) -> None:
        """Require that nothing is missing at the position of a partition, of which the library has reported an error.

        The library delivers this error to a later assignment, too, unlike all others and records (librdkafka,
        `rd_kafka_offset_reset`: version 0). Such an error says nothing about the position now.
        """
        asked = self._assigned.get(tp)
        # Fetches only move forwards, so an error of a smaller offset is of an earlier assignment.
        if asked is None or (missed is not None and missed < asked):
            return
        # The log may have grown over the position since. A new leader with another log is reported without an offset.
        message = f"{tp} was shorter than what had been read or committed, up to offset {missed or asked}"
        hint = _SHORTENED
        # Without an answer, too: nothing would tell of the loss again.
        with suppress(KafkaException):
            low, high = self._consumer.get_watermark_offsets(ClientTopicPartition(*tp), 10)
            if not low <= asked <= high:
                message, hint = f"{tp} has offsets {low} to {high}; offset {asked} does not exist", _GONE
        # `_read_again` must not assign it once more: it would only fail again.
        self.unassign([tp])
        raise MissingOffsetError(message, topic=tp.topic, partition=tp.partition, hint=hint)


def _named(tps: Iterable[TopicPartition]) -> list[ClientTopicPartition]:
    return [ClientTopicPartition(*tp) for tp in tps]


def _by_partition(messages: list[Message], possible: Collection[TopicPartition]) -> dict[TopicPartition, list[Message]]:
    """Group messages by partition. They arrive in runs, and with one possible partition none is inspected."""
    if len(possible) == 1:
        return dict.fromkeys(possible, messages) if messages else {}
    topics, partitions = set(map(Message.topic, messages)), set(map(Message.partition, messages))
    if len(topics) == len(partitions) == 1:
        return {TopicPartition(topics.pop(), partitions.pop()): messages}
    found: dict[TopicPartition, list[Message]] = defaultdict(list)
    start = 0
    places = zip(map(Message.topic, messages), map(Message.partition, messages), strict=True)
    for (topic, partition), run in groupby(places):
        end = start + sum(1 for _ in run)
        found[TopicPartition(topic, partition)] += messages[start:end]
        start = end
    return found


def _fields(messages: list[Message]) -> list[RawFields]:
    return [
        (
            message.key(),
            message.value(),
            message.timestamp()[1],
            message.offset(),
            tuple(headers) if (headers := message.headers()) else (),
        )
        for message in messages
    ]


def _with_keys(messages: list[Message]) -> list[Message]:
    """Return messages with keys. Changelogs have no others, but topics of others that serve as changelogs may."""
    # True for keys that are neither missing nor empty; an empty key is a key, so the slow path decides.
    if all(map(Message.key, messages)):
        return messages
    return [message for message in messages if message.key() is not None]
