"""Reads records from given offsets on: always assigned by hand, never rebalanced, committed records only."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientTopicPartition

from pipeline.errors import MissingOffsetError, StreamsError
from pipeline.kafka import librdkafka
from pipeline.kafka.client import CLIENT, quiet
from pipeline.kafka.ending import end_in_background
from pipeline.kafka.errors import BUSY, UNREACHABLE, mapped_errors, streams_error
from pipeline.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from pipeline.records import Headers, RawFields

_GONE = (
    "Retention (retention.ms, retention.bytes) has deleted records that nobody had read, or the topic was created anew."
)
_SETTINGS = {
    **CLIENT,
    "group.id": "millrace-unjoined",  # the library asks for one; nothing is ever committed under it
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",  # a lost offset must be seen, not jumped over
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
    "fetch.queue.backoff.ms": 5,
    "fetch.wait.max.ms": 50,
    "queued.min.messages": 100_000,
    "queued.max.messages.kbytes": 131_072,
}

UP_TO_AN_END = {"fetch.wait.max.ms": "5"}
"""Client properties for who reads up to an end that is there: at the end of a log, where transactions have left markers behind
the last record, brokers would answer only after `fetch.wait.max.ms` that there is nothing more."""

_METADATA_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Polled:
    """Records and ends of one poll.

    Args:
        records: Records by partition, in order of offsets.
        ends: Partitions that have been read to their end, with the offset of that end.
    """

    records: Mapping[TopicPartition, list[RawFields]]
    ends: Mapping[TopicPartition, int]


class MessageBatch:
    """Records of one partition that have keys, by columns: each is made when it is asked for, without an object per record.

    Args:
        messages: As the library gives them, in order of offsets.
    """

    def __init__(self, messages: Sequence[Message]) -> None:
        """None of them is an error."""
        self._messages = messages

    def __len__(self) -> int:
        """Number of records."""
        return len(self._messages)

    @property
    def end(self) -> int:
        """The offset after the last record; there must be one."""
        offset: int = self._messages[-1].offset()
        return offset + 1

    def split(self, offset: int) -> tuple[MessageBatch, MessageBatch]:
        """Those before an offset, and the rest."""
        if not self._messages or self._messages[-1].offset() < offset:
            return self, MessageBatch(())
        at = bisect_left(self._messages, offset, key=Message.offset)
        return MessageBatch(self._messages[:at]), MessageBatch(self._messages[at:])

    def keys(self) -> list[bytes]:
        """Keys."""
        return list(map(Message.key, self._messages))

    def values(self) -> list[bytes | None]:
        """Values."""
        return list(map(Message.value, self._messages))

    def timestamps(self) -> list[int]:
        """Times, ms."""
        return [timestamp for _, timestamp in map(Message.timestamp, self._messages)]

    def headers(self) -> list[Headers]:
        """Headers."""
        return [tuple(headers) if headers else () for headers in map(Message.headers, self._messages)]


@dataclass(frozen=True, slots=True)
class PolledBatches:
    """Records of one poll, by columns.

    Args:
        batches: Records by partition, in order of offsets.
        reached: How far each partition has been read: every record before this offset was given.
    """

    batches: Mapping[TopicPartition, MessageBatch]
    reached: Mapping[TopicPartition, int]


class RecordConsumer:
    """A consumer of given partitions.

    Args:
        kafka: Client properties; security properties pass through.
        overrides: Consumer properties of the user (`consumer.` prefix); reading committed records and the absence of a
            reset policy cannot be overridden.
    """

    def __init__(self, kafka: Mapping[str, str], overrides: Mapping[str, str] | None = None) -> None:
        forced = {key: _SETTINGS[key] for key in ("auto.offset.reset", "isolation.level", "enable.partition.eof")}
        lost: list[KafkaError] = []
        self._lost = lost  # not a method as callback: a client in a cycle lives until the collector comes round

        def connection_failed(error: KafkaError) -> None:
            if error.code() == librdkafka.ALL_BROKERS_DOWN:
                lost.append(error)

        own = {**forced, "error_cb": connection_failed}
        with mapped_errors("create a consumer"):
            self._consumer = Consumer({**_SETTINGS, **kafka, **(overrides or {}), **own}, logger=quiet)
        self._assigned: dict[TopicPartition, int] = {}
        self._ever_assigned: set[TopicPartition] = set()
        self._paused: dict[TopicPartition, int] = {}
        self._known: set[str] = set()
        self._is_closed = False

    def assign(self, starts: Mapping[TopicPartition, int]) -> None:
        """Read these partitions from these offsets on, besides those already assigned.

        The client asks for a topic's leaders only when its timer comes round, up to a second later: it is made to ask at once.
        That nobody answers is no failure: it asks again by itself.
        """
        self._assigned.update(starts)
        self._ever_assigned.update(starts)
        partitions = [ClientTopicPartition(tp.topic, tp.partition, offset) for tp, offset in starts.items()]
        with mapped_errors("assign partitions"):
            self._consumer.incremental_assign(partitions)
        with suppress(KafkaException):
            for topic in {tp.topic for tp in starts} - self._known:
                self._consumer.list_topics(topic, _METADATA_SECONDS)
                self._known.add(topic)

    def unassign(self, tps: Iterable[TopicPartition]) -> None:
        """Stop reading these partitions."""
        partitions = [ClientTopicPartition(*tp) for tp in tps if self._assigned.pop(tp, None) is not None]
        if partitions:
            with mapped_errors("unassign partitions"):
                self._consumer.incremental_unassign(partitions)

    def pause(self, tps: Iterable[TopicPartition]) -> None:
        """Read no more of these partitions for now. What was fetched ahead of the last record read is forgotten.

        The library's own pause is not used: resuming it may end in a search for committed offsets, of which there are none.
        """
        paused = [tp for tp in tps if tp in self._assigned]
        self._paused |= {tp: self._assigned[tp] for tp in paused}
        self.unassign(paused)

    def resume(self, tps: Iterable[TopicPartition]) -> None:
        """Go on after the last record read."""
        starts = {tp: self._paused.pop(tp) for tp in list(tps) if tp in self._paused}
        if starts:
            self.assign(starts)

    def poll(self, max_records: int, timeout_s: float) -> Polled:
        """Wait for a first record up to a timeout, then take what is there already.

        An error costs no record: what came together with it is read again by the next poll.

        Raises:
            MissingOffsetError: If an assigned offset does not exist (any more); the partition is read no further.
            BrokerError: If the brokers refuse. That they cannot be reached is no error here: the library reconnects.
        """
        found, ends = self._read(max_records, timeout_s)
        return Polled({tp: _fields(messages) for tp, messages in found.items()}, ends)

    def poll_batches(self, max_records: int, timeout_s: float) -> PolledBatches:
        """Poll by columns, without records that have no key.

        Raises:
            MissingOffsetError: If an assigned offset does not exist (any more).
            BrokerError: If the brokers refuse.
        """
        found, ends = self._read(max_records, timeout_s)
        reached = {tp: messages[-1].offset() + 1 for tp, messages in found.items()}
        reached |= {tp: max(end, reached.get(tp, 0)) for tp, end in ends.items()}
        return PolledBatches({tp: MessageBatch(_with_keys(messages)) for tp, messages in found.items()}, reached)

    def known_ends(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the ends of logs as the answers to fetches have said last; no broker is asked.

        Records of open transactions are before the end. Partitions that nothing was heard of yet are left out.
        """
        found = {}
        for tp in tps:
            with suppress(KafkaException):
                _, end = self._consumer.get_watermark_offsets(ClientTopicPartition(*tp), cached=True)
                if end >= 0:
                    found[tp] = end
        return found

    def has_lost_brokers(self) -> bool:
        """Whether the last connection to a broker was lost since this was asked last; they may be back already."""
        is_lost = bool(self._lost)
        self._lost.clear()
        return is_lost

    def close(self) -> None:
        """Read nothing more, and release connections in the background. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            end_in_background(self._consumer.close, "consumer")

    def _read(
        self, max_records: int, timeout_s: float
    ) -> tuple[dict[TopicPartition, list[Message]], dict[TopicPartition, int]]:
        """Poll once: records by partition, and the ends of those that have been read to their end."""
        messages = self._messages(max_records, timeout_s)
        ends: dict[TopicPartition, int] = {}
        if any(map(Message.error, messages)):
            try:
                self._note_errors(messages, ends)
            except StreamsError:
                self._read_again(messages)
                raise
            messages = [message for message in messages if message.error() is None]
        found = _by_partition(messages, self._ever_assigned)
        self._assigned |= {tp: part[-1].offset() + 1 for tp, part in found.items() if tp in self._assigned}
        return found, ends

    def _messages(self, max_records: int, timeout_s: float) -> list[Message]:
        with mapped_errors("read records"):
            messages: list[Message] = self._consumer.consume(1, timeout_s) if timeout_s else []
            if messages or not timeout_s:
                messages += self._consumer.consume(max_records - len(messages), 0)
        return messages

    def _note_errors(self, messages: list[Message], ends: dict[TopicPartition, int]) -> None:
        for message in messages:
            if (error := message.error()) is not None:
                self._note(TopicPartition(message.topic(), message.partition()), error, message.offset(), ends)

    def _read_again(self, messages: list[Message]) -> None:
        """Go back to where each partition stood before these messages, which nobody will have seen; ends are told again."""
        places = zip(map(Message.topic, messages), map(Message.partition, messages), strict=True)
        seen = {TopicPartition(topic, partition) for topic, partition in places} & self._assigned.keys()
        self.pause(seen)
        self.resume(seen)

    def _note(self, tp: TopicPartition, error: KafkaError, offset: int, ends: dict[TopicPartition, int]) -> None:
        """Handle what comes in the place of a record."""
        if error.code() == librdkafka.PARTITION_EOF:
            ends[tp] = offset
        elif error.code() not in UNREACHABLE | BUSY:
            self._refuse(tp, error)

    def _refuse(self, tp: TopicPartition, error: KafkaError) -> None:
        if error.code() in {librdkafka.AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}:
            with mapped_errors(f"look up the offsets of {tp}"):
                low, high = self._consumer.get_watermark_offsets(ClientTopicPartition(*tp), 10)
            asked = self._assigned.get(tp)
            message = f"{tp} has offsets {low} to {high}; offset {asked} was asked for and is not there"
            self.unassign([tp])
            raise MissingOffsetError(message, topic=tp.topic, partition=tp.partition, hint=_GONE)
        # what is about no partition is about the group
        what = tp if tp.topic else f"as a consumer of group {_SETTINGS['group.id']}"
        raise streams_error(error, f"read {what}")


def _by_partition(messages: list[Message], possible: Collection[TopicPartition]) -> dict[TopicPartition, list[Message]]:
    """They come in runs of one partition, mostly in a single one. If only one is possible, nobody has to look."""
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
    """Tuples of all that there is to records."""
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
    """Changelogs have no records without keys; topics of others that serve as such may."""
    if all(map(Message.key, messages)):  # neither missing nor empty
        return messages
    return [message for message in messages if message.key() is not None]
