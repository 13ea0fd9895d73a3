"""A consumer of the cluster in memory, in place of `confluent_kafka.Consumer`.

It fetches nothing ahead: records are read from the logs when they are asked for.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    KafkaError,
    KafkaException,
    Message,
)
from confluent_kafka import TopicPartition as ClientTopicPartition

from riverrun.kafka import librdkafka
from riverrun.records import TopicPartition
from riverrun.simulation.brokers import NewOffset
from riverrun.simulation.group_metadata import as_metadata
from riverrun.simulation.line import PAUSE_SECONDS, Line, as_kafka_error
from riverrun.simulation.refusals import LostError, RefusedError
from riverrun.simulation.subscriber import OUTSIDE, Subscriber

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from confluent_kafka.admin import ClusterMetadata

    from riverrun.simulation.brokers import Brokers
    from riverrun.simulation.groups import Caller
    from riverrun.simulation.partition_log import LogEntry, PartitionLog
    from riverrun.simulation.subscriber import OnRebalance
    from riverrun.simulation.waiting import WaitingLock

_FOREVER_SECONDS = 365 * 86_400.0
_RESETS: Mapping[str, int] = {
    "smallest": OFFSET_BEGINNING,
    "earliest": OFFSET_BEGINNING,
    "beginning": OFFSET_BEGINNING,
    "largest": OFFSET_END,
    "latest": OFFSET_END,
    "end": OFFSET_END,
}


@dataclass(slots=True)
class _Reader:
    """The position of a consumer in one partition.

    Args:
        delivered: The position after the last record that was returned.
        eof: The end that was reported last; None if none was since the last record.
        is_stopped: An error was reported, after which nothing is read.
        known: First offset and end of the log by the last answer.
    """

    position: int
    delivered: int = OFFSET_INVALID
    is_paused: bool = False
    is_stopped: bool = False
    eof: int | None = None
    known: tuple[int, int] = (OFFSET_INVALID, OFFSET_INVALID)


class MemoryConsumer:
    """Reads records, and offsets of a group; the methods are those of `confluent_kafka.Consumer`."""

    def __init__(self, brokers: Brokers, settings: Mapping[str, Any]) -> None:
        self._brokers = brokers
        self._line = Line(brokers, str(settings.get("client.id", "rdkafka")))
        self._group = str(settings.get("group.id", ""))
        self._reads_committed = settings.get("isolation.level", "read_committed") == "read_committed"
        self._reports_ends = _is_true(settings.get("enable.partition.eof", False))
        self._commits = _is_true(settings.get("enable.auto.commit", True))
        self._reset = str(settings.get("auto.offset.reset", "largest"))
        self._on_commit: Callable[[KafkaError | None, list[ClientTopicPartition]], None] | None
        self._on_commit = settings.get("on_commit")
        self._session_s = int(settings.get("session.timeout.ms", 45_000)) / 1000
        self._readers: dict[TopicPartition, _Reader] = {}
        self._events: deque[Message] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._subscriber = Subscriber(brokers, self._line.client_id, self._group, settings)
        self._pauses_until_s = 0.0
        self._is_closed = False

    # Positions

    def assign(self, partitions: list[ClientTopicPartition]) -> None:
        """Read these partitions instead of all others."""
        with self._brokers.waiting:
            self._readers = {}
            self.incremental_assign(partitions)

    def incremental_assign(self, partitions: list[ClientTopicPartition]) -> None:
        """Read these partitions as well."""
        self._check_open()
        with self._brokers.waiting:
            for each in partitions:
                tp, reader = TopicPartition(each.topic, each.partition), _Reader(each.offset)
                self._readers[tp] = reader
                # The library asks in the background: it may miss what exists once records are asked for.
                self._note_loss(tp, reader)

    def unassign(self) -> None:
        """Stop reading all partitions."""
        with self._brokers.waiting:
            self._readers = {}

    def incremental_unassign(self, partitions: list[ClientTopicPartition]) -> None:
        """Stop reading these partitions."""
        with self._brokers.waiting:
            for tp in _named(partitions):
                reader = self._readers.pop(tp, None)
                if reader is not None:
                    self._note_loss(tp, reader)

    def pause(self, partitions: list[ClientTopicPartition]) -> None:
        """Return no records of these partitions."""
        for tp in _named(partitions):
            self._assigned(tp).is_paused = True

    def resume(self, partitions: list[ClientTopicPartition]) -> None:
        """Return their records again; ends are reported again, too."""
        for tp in _named(partitions):
            reader = self._assigned(tp)
            reader.is_paused, reader.eof = False, None

    def seek(self, partition: ClientTopicPartition) -> None:
        """Continue at another offset."""
        reader = self._assigned(TopicPartition(partition.topic, partition.partition))
        reader.position, reader.eof, reader.is_stopped = partition.offset, None, False

    def assignment(self) -> list[ClientTopicPartition]:
        """Return what is read."""
        return [ClientTopicPartition(*tp) for tp in self._readers]

    def position(self, partitions: list[ClientTopicPartition]) -> list[ClientTopicPartition]:
        """Return where to continue after the records that were returned."""
        readers = [(tp, self._readers.get(tp)) for tp in _named(partitions)]
        return [ClientTopicPartition(*tp, OFFSET_INVALID if r is None else r.delivered) for tp, r in readers]

    # Records

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """Return messages: what is there, or what arrives before the timeout."""
        self._check_open()
        deadline = self._brokers.waiting.now_s() + (_FOREVER_SECONDS if timeout < 0 else timeout)
        found: list[Message] = []
        while True:
            self._serve()
            with self._brokers.waiting as waiting:
                while self._events and len(found) < num_messages:
                    found.append(self._events.popleft())
                self._fetch(found, num_messages)
                left_s = deadline - waiting.now_s()
                if len(found) >= num_messages or left_s <= 0:
                    return found
                self._await_news(waiting, left_s)

    def poll(self, timeout: float = -1) -> Message | None:
        """Return one message, if there is one before the timeout."""
        messages = self.consume(1, timeout)
        return messages[0] if messages else None

    def get_watermark_offsets(
        self, partition: ClientTopicPartition, timeout: float = -1, *, cached: bool = False
    ) -> tuple[int, int]:
        """Return the first offset and the end of a partition."""
        tp = TopicPartition(partition.topic, partition.partition)
        if cached:
            reader = self._readers.get(tp)
            return (OFFSET_INVALID, OFFSET_INVALID) if reader is None else reader.known
        ask = partial(self._ends, tp)
        return self._line.patiently("ListOffsets", ask, _FOREVER_SECONDS if timeout < 0 else timeout)

    def offsets_for_times(
        self, partitions: list[ClientTopicPartition], timeout: float = -1
    ) -> list[ClientTopicPartition]:
        """Return the first offsets with the times that the partitions have as offsets, or with later ones."""
        ask = partial(self._look_up, partitions)
        return self._line.patiently("ListOffsets", ask, _FOREVER_SECONDS if timeout < 0 else timeout)

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> ClusterMetadata:
        """Return what the brokers say about topics."""
        return self._line.metadata(topic, _FOREVER_SECONDS if timeout < 0 else timeout)

    # The group

    def committed(self, partitions: list[ClientTopicPartition], timeout: float = -1) -> list[ClientTopicPartition]:
        """Return committed offsets; with `read_committed`, waits for transactions that will replace them."""
        tps = _named(partitions)
        ask = partial(self._brokers.fetch_offsets, self._group, tps, stable=self._reads_committed)
        found = self._line.patiently("OffsetFetch", ask, _FOREVER_SECONDS if timeout < 0 else timeout)
        return [
            ClientTopicPartition(*tp, found[tp].offset, found[tp].metadata)
            if tp in found
            else ClientTopicPartition(*tp, OFFSET_INVALID)
            for tp in tps
        ]

    def commit(
        self,
        message: Message | None = None,
        *,
        offsets: list[ClientTopicPartition] | None = None,
        asynchronous: bool = True,
    ) -> Any:
        """Commit offsets; by default those after the records that were returned."""
        if message is not None:
            offsets = [ClientTopicPartition(message.topic(), message.partition(), message.offset() + 1)]
        chosen = self._delivered() if offsets is None else offsets
        if not chosen:
            raise KafkaException(KafkaError(KafkaError._NO_OFFSET))  # noqa: SLF001 - documented by librdkafka
        if not asynchronous:
            self._commit(chosen)
            return chosen
        refused: KafkaError | None = None
        try:
            self._commit(chosen)
        except KafkaException as raised:
            refused = raised.args[0]
        if self._on_commit is not None:
            self._calls.append(partial(self._on_commit, refused, chosen))
        return None

    def subscribe(
        self,
        topics: list[str],
        on_assign: OnRebalance | None = None,
        on_revoke: OnRebalance | None = None,
        on_lost: OnRebalance | None = None,
    ) -> None:
        """Join the group with the next polls."""
        self._check_open()
        self._subscriber.subscribe(topics, on_assign, on_revoke, on_lost)

    def unsubscribe(self) -> None:
        """Leave the group."""
        self._subscriber.unsubscribe(self)

    def consumer_group_metadata(self) -> bytes:
        """Return the membership, for a transactional producer."""
        return as_metadata(self._group, self._subscriber.caller or OUTSIDE)

    def close(self) -> None:
        """Leave the group, and end."""
        if self._is_closed:
            return
        if self._commits and self._group and (offsets := self._delivered()):
            self.commit(offsets=offsets, asynchronous=True)
        self._subscriber.unsubscribe(self)
        self._is_closed = True
        self._readers = {}

    # The parts

    def _check_open(self) -> None:
        if self._is_closed:
            message = "Consumer closed"
            raise RuntimeError(message)

    def _assigned(self, tp: TopicPartition) -> _Reader:
        reader = self._readers.get(tp)
        if reader is None:
            raise KafkaException(KafkaError(librdkafka.UNKNOWN_PARTITION))
        return reader

    def _serve(self) -> None:
        """Call callbacks that are due, outside of the lock, and take part in the group."""
        while self._calls:
            self._calls.popleft()()
        error = self._subscriber.take_part(self)
        if self._subscriber.must_pause:
            self._pause()
        if error is not None:
            self._events.append(Message(topic=None, partition=-1, error=error))

    def _has_something(self) -> bool:
        if self._events or self._calls or self._subscriber.has_news:
            return True
        return any(self._is_ready(tp, reader) for tp, reader in self._readers.items())

    def _is_ready(self, tp: TopicPartition, reader: _Reader) -> bool:
        if reader.is_paused or reader.is_stopped:
            return False
        if reader.position < 0 or not self._brokers.topics.has(*tp):
            return True
        if self._has_lost_its_offset(tp, reader):
            return True
        end = self._brokers.topics.log(*tp).readable_end(committed=self._reads_committed)
        if reader.position < end:
            return True
        return self._reports_ends and reader.eof != reader.position

    def _note_loss(self, tp: TopicPartition, reader: _Reader) -> None:
        """Report an offset that does not exist, unless the position is then reset."""
        if self._reset not in _RESETS and self._has_lost_its_offset(tp, reader):
            reader.is_stopped = True
            self._events.append(_lost(tp, reader))

    def _has_lost_its_offset(self, tp: TopicPartition, reader: _Reader) -> bool:
        if reader.is_stopped or reader.position < 0 or not self._brokers.topics.has(*tp):
            return False
        log = self._brokers.topics.log(*tp)
        return not log.start <= reader.position <= log.end

    def _fetch(self, found: list[Message], count: int) -> None:
        """Read of one partition after the other, beginning with the one that has waited longest."""
        if not self._readers or len(found) >= count:
            return
        try:
            self._line.once("Fetch", partial(self._read_all, found, count))
        except (LostError, RefusedError):
            self._pause()

    def _pause(self) -> None:
        """Try again a moment later, as the library does."""
        self._pauses_until_s = self._brokers.waiting.now_s() + PAUSE_SECONDS

    def _await_news(self, waiting: WaitingLock, at_most_s: float) -> None:
        pause_s = self._pauses_until_s - waiting.now_s()
        if pause_s > 0:
            waiting.wait_until(lambda: bool(self._events or self._calls), min(at_most_s, pause_s))
        else:
            waiting.wait_until(self._has_something, at_most_s)

    def _read_all(self, found: list[Message], count: int) -> None:
        for tp, reader in tuple(self._readers.items()):
            if len(found) >= count:
                return
            if not self._is_ready(tp, reader):
                continue
            before = len(found)
            self._read(tp, reader, found, count)
            if len(found) > before:
                # The next call begins with others.
                self._readers[tp] = self._readers.pop(tp)

    def _read(self, tp: TopicPartition, reader: _Reader, found: list[Message], count: int) -> None:
        try:
            log = self._brokers.topics.log(*tp)
            self._resolve(tp, reader, log)
            most = min(count - len(found), self._brokers.most_fetched)
            entries, position = log.read(reader.position, most, committed=self._reads_committed)
        except RefusedError as error:
            self._fail(tp, reader, error, found)
            return
        reader.known = log.start, log.end
        kind = self._time_kind(tp.topic)
        found += [_message(tp, entry, kind) for entry in entries]
        reader.position = position
        if entries:
            reader.delivered, reader.eof = entries[-1].offset + 1, None
        end = log.readable_end(committed=self._reads_committed)
        if self._reports_ends and position >= end and reader.eof != position and len(found) < count:
            reader.eof = position
            at_end = KafkaError(librdkafka.PARTITION_EOF)
            found.append(Message(topic=tp.topic, partition=tp.partition, offset=position, error=at_end))

    def _resolve(self, tp: TopicPartition, reader: _Reader, log: PartitionLog) -> None:
        """Find the offset that the position stands for."""
        if reader.position in {OFFSET_STORED, OFFSET_INVALID}:
            stored = self._brokers.fetch_offsets(self._group, [tp], stable=self._reads_committed)
            reader.position = stored[tp].offset if tp in stored else self._reset_position()
        if reader.position in {OFFSET_BEGINNING, OFFSET_END}:
            end = log.readable_end(committed=self._reads_committed)
            reader.position = log.start if reader.position == OFFSET_BEGINNING else end

    def _reset_position(self) -> int:
        if self._reset not in _RESETS:
            raise RefusedError(librdkafka.AUTO_OFFSET_RESET)
        return _RESETS[self._reset]

    def _fail(self, tp: TopicPartition, reader: _Reader, error: RefusedError, found: list[Message]) -> None:
        """Reset the position, or report an error, after which nothing more is read."""
        if error.code == KafkaError.OFFSET_OUT_OF_RANGE and self._reset in _RESETS:
            reader.position = _RESETS[self._reset]
            self._read(tp, reader, found, len(found) + 1)
            return
        if error.code == KafkaError.UNSTABLE_OFFSET_COMMIT:
            return
        reader.is_stopped = True
        is_lost = error.code == KafkaError.OFFSET_OUT_OF_RANGE
        found.append(_lost(tp, reader) if is_lost else _failed(tp, reader, error))

    def _time_kind(self, topic: str) -> int:
        stamps = self._brokers.topics.topic(topic).config["message.timestamp.type"] == "LogAppendTime"
        return int(TIMESTAMP_LOG_APPEND_TIME if stamps else TIMESTAMP_CREATE_TIME)

    def _ends(self, tp: TopicPartition) -> tuple[int, int]:
        log = self._brokers.topics.log(*tp)
        return log.start, log.readable_end(committed=self._reads_committed)

    def _look_up(self, partitions: list[ClientTopicPartition]) -> list[ClientTopicPartition]:
        return [
            ClientTopicPartition(
                tp.topic, tp.partition, self._offset_at(TopicPartition(tp.topic, tp.partition), tp.offset)
            )
            for tp in partitions
        ]

    def _offset_at(self, tp: TopicPartition, time_ms: int) -> int:
        start, end = self._ends(tp)
        if time_ms in {OFFSET_BEGINNING, OFFSET_END}:
            return start if time_ms == OFFSET_BEGINNING else end
        found = self._brokers.topics.log(*tp).offset_at(time_ms, committed=self._reads_committed)
        return int(OFFSET_END) if found is None else found

    def _delivered(self) -> list[ClientTopicPartition]:
        return [
            ClientTopicPartition(*tp, reader.delivered) for tp, reader in self._readers.items() if reader.delivered >= 0
        ]

    def _commit(self, offsets: list[ClientTopicPartition]) -> None:
        caller: Caller = self._subscriber.caller or OUTSIDE
        new = {TopicPartition(tp.topic, tp.partition): NewOffset(tp.offset, tp.metadata or "") for tp in offsets}
        commit = partial(self._brokers.commit_offsets, self._group, caller, new)
        self._line.patiently("OffsetCommit", commit, self._session_s)


def _lost(tp: TopicPartition, reader: _Reader) -> Message:
    return _failed(tp, reader, RefusedError(librdkafka.AUTO_OFFSET_RESET))


def _failed(tp: TopicPartition, reader: _Reader, error: RefusedError) -> Message:
    return Message(topic=tp.topic, partition=tp.partition, offset=reader.position, error=as_kafka_error(error))


def _message(tp: TopicPartition, entry: LogEntry, kind: int) -> Message:
    return Message(
        topic=tp.topic,
        partition=tp.partition,
        offset=entry.offset,
        key=entry.key,
        value=entry.value,
        headers=list(entry.headers) or None,
        timestamp=(kind, entry.timestamp_ms),
    )


def _named(partitions: Iterable[ClientTopicPartition]) -> list[TopicPartition]:
    return [TopicPartition(tp.topic, tp.partition) for tp in partitions]


def _is_true(value: object) -> bool:
    return str(value).lower() == "true"
