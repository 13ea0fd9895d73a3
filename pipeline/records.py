"""The values that travel between all layers: records, tasks, partitions and offsets."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from pipeline.errors import ConfigError, ProcessingError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

K = TypeVar("K")
V = TypeVar("V")

Headers = tuple[tuple[str, bytes | None], ...]
"""Record headers in order; a name may occur more than once. Immutable, so forwarding shares them safely."""

Send: TypeAlias = "Callable[[str, bytes | None, bytes | None, int, Headers, int | None], None]"
"""Sends a record: topic, key, value, timestamp (ms), headers, and the partition or None. `RecordCollector.send` as a value."""


def check_headers(headers: object) -> None:
    """Make sure that headers can be written as they are, whatever host is to write them.

    The client library alters some names (numbers, those with a NUL), and one that is not Unicode crashes the process.

    >>> check_headers((("trace", b"7"), ("empty", None)))
    >>> check_headers((("trace", 7),))
    Traceback (most recent call last):
    pipeline.errors.ProcessingError: Malformed record: ('trace', 7) is no header: that is a name and bytes, or None

    Raises:
        ProcessingError: If they cannot.
    """
    if not isinstance(headers, tuple | list):
        message = f"Malformed record: headers {headers!r} are no tuple of names and values"
        raise ProcessingError(message)
    for header in headers:
        if not _is_header(header):
            message = f"Malformed record: {header!r} is no header: that is a name and bytes, or None"
            raise ProcessingError(message)


def _is_header(header: object) -> bool:
    if not isinstance(header, tuple):  # the client takes no lists
        return False
    try:
        name, value = header
    except ValueError:
        return False
    return isinstance(name, str) and (value is None or isinstance(value, bytes)) and _is_writable(name)


@lru_cache(maxsize=1000)
def _is_writable(name: str) -> bool:
    """Whether a header's name arrives as it is: records with headers have a few names, over and over."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in name


class TopicPartition(NamedTuple):
    """One partition of one topic; prints as `topic-partition` (`org.apache.kafka.common.TopicPartition`)."""

    topic: str
    partition: int

    def __str__(self) -> str:
        """`topic-partition`, as Kafka prints it."""
        return f"{self.topic}-{self.partition}"

    @classmethod
    def parse(cls, text: str) -> TopicPartition:
        """Read `topic-partition` back.

        >>> TopicPartition.parse("late-orders-3")
        TopicPartition(topic='late-orders', partition=3)

        Raises:
            ValueError: If there is no `-<number>` at the end.
        """
        topic, dash, partition = text.rpartition("-")
        if not (topic and dash and partition.isdecimal()):
            message = f"not a topic-partition: {text!r}"
            raise ValueError(message)
        return cls(topic, int(partition))


class TaskId(NamedTuple):
    """Sub-topology and partition; prints and sorts as in Kafka Streams: `0_3`."""

    sub_topology: int
    partition: int

    def __str__(self) -> str:
        """`<sub-topology>_<partition>`."""
        return f"{self.sub_topology}_{self.partition}"

    @classmethod
    def parse(cls, text: str) -> TaskId:
        """Read `0_3` back.

        >>> str(TaskId.parse("0_3"))
        '0_3'
        """
        sub_topology, _, partition = text.partition("_")
        return cls(int(sub_topology), int(partition))


class RawRecord(NamedTuple):
    """A record as it lies in a topic, before its serdes have seen it. Times in ms since the epoch."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    offset: int
    headers: Headers = ()


RawFields: TypeAlias = "tuple[bytes | None, bytes | None, int, int, Headers]"
"""The same without names: what consumers give and tasks take, since named tuples take half as long again to make."""
RAW_VALUE: Final = 1
RAW_TIMESTAMP: Final = 2
RAW_OFFSET: Final = 3
RAW_HEADERS: Final = 4


class ConsumerRecord(NamedTuple, Generic[K, V]):
    """A record as a timestamp extractor sees it: decoded, with its place in the log. Times in ms since the epoch.

    Named after `org.apache.kafka.clients.consumer.ConsumerRecord`.
    """

    key: K
    value: V
    timestamp: int
    headers: Headers
    topic: str
    partition: int
    offset: int


class ValueAndTimestamp(NamedTuple, Generic[V]):
    """A stored value and the event time (ms) it was last changed at (`org.apache.kafka.streams.state.ValueAndTimestamp`)."""

    value: V
    timestamp: int


class VersionedRecord(NamedTuple, Generic[V]):
    """A value of a versioned store (`org.apache.kafka.streams.state.VersionedRecord`).

    It held from `timestamp` until before `valid_to` (ms since the epoch); None: it is the latest.
    """

    value: V
    timestamp: int
    valid_to: int | None


class Change(NamedTuple, Generic[V]):
    """An update of a table: the new value and, only where downstream asked for it, the old one.

    `is_latest` is False for an update of a versioned table that came after one with a higher timestamp (KIP-914).
    """

    new: V | None
    old: V | None
    is_latest: bool = True


class RecordMetadata(NamedTuple):
    """The place that the record being processed came from."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True)
class Record(Generic[K, V]):
    """A record as a `Processor` receives and forwards it (`org.apache.kafka.streams.processor.api.Record`).

    >>> Record("ann", 1, 1000).with_value(2).with_timestamp(2000)
    Record(key='ann', value=2, timestamp=2000, headers=())

    Args:
        key: Key, or None.
        value: Value, or None (a tombstone, for a table).
        timestamp: Event time in ms since the epoch; never negative.
        headers: Headers, shared with the record this one was made from.

    Raises:
        ProcessingError: If the timestamp is negative (Kafka Streams: `StreamsException`), or no whole number; or if headers are
            no names with bytes or None.
    """

    key: K
    value: V
    timestamp: int
    headers: Headers = ()

    def __post_init__(self) -> None:
        """Refuse negative timestamps, as `org.apache.kafka.streams.processor.api.Record` does, and what are no headers."""
        if not isinstance(self.timestamp, int):
            message = f"Malformed record: timestamp {self.timestamp!r} is no whole number of ms"
            raise ProcessingError(message)
        if self.timestamp < 0:
            message = f"Malformed record: timestamp {self.timestamp} is negative"
            raise ProcessingError(message)
        if self.headers != ():
            check_headers(self.headers)

    def with_key(self, key: Any) -> Record[Any, V]:
        """Return a copy under another key."""
        return replace(self, key=key)

    def with_value(self, value: Any) -> Record[K, Any]:
        """Return a copy with another value."""
        return replace(self, value=value)

    def with_timestamp(self, timestamp: int) -> Record[K, V]:
        """Return a copy at another event time (ms).

        Raises:
            ProcessingError: If it is negative.
        """
        return replace(self, timestamp=timestamp)

    def with_headers(self, headers: Headers) -> Record[K, V]:
        """Return a copy with other headers."""
        return replace(self, headers=headers)


def counted(number: int, noun: str) -> str:
    """A number and its noun, for messages.

    >>> counted(1, "slice"), counted(2, "slice"), counted(0, "batch")
    ('1 slice', '2 slices', '0 batches')
    """
    if number == 1:
        return f"{number} {noun}"
    return f"{number} {noun}es" if noun.endswith("ch") else f"{number} {noun}s"


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The records of one partition with `start <= offset < end`.

    >>> OffsetRange(3, 10).size
    7
    >>> print(OffsetRange(3, 10))
    3..10
    """

    start: int
    end: int

    def __str__(self) -> str:
        """As ranges are written in text."""
        return f"{self.start}..{self.end}"

    def __post_init__(self) -> None:
        """Refuse reversed and negative ranges."""
        if not 0 <= self.start <= self.end:
            message = f"not a range of offsets: [{self.start}, {self.end})"
            raise ValueError(message)

    @property
    def size(self) -> int:
        """Number of offsets; an upper bound of the records, since markers and compaction leave gaps."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class OffsetVector:
    """One offset per partition: a point in the history of several topics.

    Its text form sorts partitions and reads back: `orders-0@12,orders-1@7`.

    >>> str(OffsetVector.parse("orders-1@7,orders-0@12"))
    'orders-0@12,orders-1@7'
    """

    offsets: Mapping[TopicPartition, int]

    def __str__(self) -> str:
        """The text form."""
        return ",".join(f"{tp}@{offset}" for tp, offset in sorted(self.offsets.items()))

    @classmethod
    def parse(cls, text: str) -> OffsetVector:
        """Read the text form.

        Raises:
            ValueError: If an entry is not `topic-partition@offset`, or a partition occurs twice.
        """
        offsets: dict[TopicPartition, int] = {}
        for entry in filter(None, (part.strip() for part in text.split(","))):
            name, at, offset = entry.rpartition("@")
            if not (at and offset.isdecimal()):
                message = f"not topic-partition@offset: {entry!r}"
                raise ValueError(message)
            tp = TopicPartition.parse(name)
            if tp in offsets:
                message = f"{tp} occurs twice in {text!r}"
                raise ValueError(message)
            offsets[tp] = int(offset)
        return cls(offsets)


class ResetStrategy(Enum):
    """Kinds of `AutoOffsetReset` (`AutoOffsetResetStrategy.StrategyType`)."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"
    BY_DURATION = "by_duration"


_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d{1,9})?)S)?)?")


@dataclass(frozen=True, slots=True)
class AutoOffsetReset:
    """The start of a source without a committed offset (`org.apache.kafka.streams.AutoOffsetReset`, KIP-1106).

    >>> print(AutoOffsetReset.latest(), AutoOffsetReset.by_duration(timedelta(minutes=90)))
    latest by_duration:PT5400S

    Args:
        strategy: Which kind it is.
        duration: How far back from now, where that is what it says.
    """

    strategy: ResetStrategy
    duration: timedelta | None = None

    @classmethod
    def earliest(cls) -> AutoOffsetReset:
        """At the first record there is."""
        return cls(ResetStrategy.EARLIEST)

    @classmethod
    def latest(cls) -> AutoOffsetReset:
        """Behind the last record there is."""
        return cls(ResetStrategy.LATEST)

    @classmethod
    def none(cls) -> AutoOffsetReset:
        """Nowhere: without a committed offset the application does not start."""
        return cls(ResetStrategy.NONE)

    @classmethod
    def by_duration(cls, duration: timedelta) -> AutoOffsetReset:
        """At the first record that is not older than this, as the clock stands when it starts; behind the last if all are.

        Raises:
            ConfigError: If the duration is negative.
        """
        if duration < timedelta(0):
            message = "Duration cannot be negative"
            raise ConfigError(message)
        return cls(ResetStrategy.BY_DURATION, duration)

    @classmethod
    def parse(cls, text: str) -> AutoOffsetReset:
        """Read a value of `auto.offset.reset`.

        >>> AutoOffsetReset.parse("by_duration:P1DT2H").duration
        datetime.timedelta(days=1, seconds=7200)

        Raises:
            ConfigError: If it is none.
        """
        strategy, _, duration = text.partition(":")
        found = _DURATION.fullmatch(duration)
        if strategy == ResetStrategy.BY_DURATION.value and found and found.lastindex:
            days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
            return cls.by_duration(timedelta(days, seconds, hours=hours, minutes=minutes))
        if text in {"earliest", "latest", "none"}:
            return cls(ResetStrategy(text))
        message = f"{text!r} is no auto.offset.reset"
        hint = (
            "Allowed: earliest, latest, none, or by_duration: and a duration as in by_duration:PT1H or by_duration:P7D"
        )
        raise ConfigError(message, hint=hint)

    def __str__(self) -> str:
        """As it is written in a configuration."""
        if self.duration is None:
            return self.strategy.value
        return f"{self.strategy.value}:PT{self.duration.total_seconds():g}S"
