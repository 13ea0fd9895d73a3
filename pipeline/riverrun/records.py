"""The values that travel between all layers: records, tasks, partitions and offsets."""

from __future__ import annotations

import decimal
import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from riverrun.errors import ConfigError, ProcessingError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

K = TypeVar("K")
V = TypeVar("V")

# Of a topic that is created: a broker takes minutes for them, if it does not fail.
MOST_PARTITIONS: Final = 100_000
_INT, _LONG = 2**31 - 1, 2**63 - 1
_WHOLE_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")

Headers = tuple[tuple[str, bytes | None], ...]
"""Record headers in order; a name may occur more than once. Immutable, so forwarding shares them safely."""

Send: TypeAlias = "Callable[[str, bytes | None, bytes | None, int, Headers, int | None], None]"
"""Sends a record: topic, key, value, timestamp (ms), headers, and the partition or None (`RecordCollector.send`)."""


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment(time: datetime) -> datetime:
    """Return a time with its zone. One without a zone is in UTC, so that it means the same on every machine.

    >>> moment(datetime(2026, 1, 1)).isoformat()
    '2026-01-01T00:00:00+00:00'
    """
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def malformed_timestamp(timestamp: Any) -> ProcessingError:
    """Return the error for an event time that is negative, or not a whole number of ms."""
    if isinstance(timestamp, int):
        return ProcessingError(f"Malformed record: timestamp {timestamp} is negative")
    return ProcessingError(f"Malformed record: timestamp {timestamp!r} is not a whole number of ms")


def check_headers(headers: object) -> None:
    """Check that every host can write headers unchanged.

    >>> check_headers((("trace", b"7"), ("empty", None)))
    >>> check_headers((("trace", 7),))
    Traceback (most recent call last):
    riverrun.errors.ProcessingError: Malformed record: ('trace', 7) is not a header: a name with bytes or None

    Raises:
        ProcessingError: If they would be altered or refused.
    """
    if not isinstance(headers, tuple | list):
        raise ProcessingError(f"Malformed record: headers {headers!r} are not a tuple of names and values")
    for header in headers:
        if not _is_header(header):
            raise ProcessingError(f"Malformed record: {header!r} is not a header: a name with bytes or None")


def _is_header(header: object) -> bool:
    # confluent-kafka does not accept lists.
    if not isinstance(header, tuple):
        return False
    try:
        name, value = header
    except ValueError:
        return False
    return isinstance(name, str) and (value is None or isinstance(value, bytes)) and _is_writable(name)


# The same few names recur.
@lru_cache(maxsize=1000)
def _is_writable(name: str) -> bool:
    """Return whether a header's name arrives unchanged."""
    # The client library alters names with a NUL, and a name that is not Unicode crashes the process.
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in name


_LEGAL_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def is_legal_topic(name: str) -> bool:
    """Return whether a topic may have the name, and so whatever becomes part of one (`Topic.validate`), or of a path.

    >>> is_legal_topic("late-orders"), is_legal_topic("../late"), is_legal_topic("..")
    (True, False, False)
    """
    return _LEGAL_TOPIC.fullmatch(name) is not None and name not in {".", ".."}


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
            ValueError: If it is not the name of a topic that Kafka allows, with `-<number>` behind it.
        """
        topic, _, partition = text.rpartition("-")
        number = whole_number(partition, _INT)
        if number is None or not is_legal_topic(topic):
            raise ValueError(f"not a topic-partition: {shortened(text)}")
        return cls(topic, number)


def whole_number(text: str, highest: int = _LONG) -> int | None:
    """Return the number that a text consists of, as Riverrun writes numbers; None if it is another text, or too high.

    >>> whole_number("12"), whole_number("012"), whole_number("1_2"), whole_number("9" * 5000)
    (12, None, None, None)
    """
    if _WHOLE_NUMBER.fullmatch(text) is None:
        return None
    number = int(text)
    return number if number <= highest else None


def shortened(text: object, longest: int = 100) -> str:
    r"""Return a foreign text or value for messages: without control characters, on one line of limited length.

    >>> shortened("two\nlines"), shortened(decimal.Decimal("1.10")), shortened("abcdef", 4)
    ("'two\\nlines'", '1.10', "'abc...")
    """
    if isinstance(text, decimal.Decimal):
        shown = str(text)
    else:
        shown = repr(text[: longest + 1] if isinstance(text, str | bytes) else text)
    return shown if len(shown) <= longest else f"{shown[:longest]}..."


# C0, C1, marks that change the direction of text or end a line, and halves of surrogate pairs.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    r"""Return text for a terminal: characters that control it become JSON escapes; tabs and ends of lines stay.

    >>> visible("red \x1b[31m"), visible("\u202etxt.exe"), visible("tab\tend\n")
    ('red \\u001b[31m', '\\u202etxt.exe', 'tab\tend\n')
    """
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


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
        first, _, second = text.partition("_")
        sub_topology, partition = whole_number(first, _INT), whole_number(second, _INT)
        if sub_topology is None or partition is None:
            raise ValueError(f"not a task: {shortened(text)}")
        return cls(sub_topology, partition)


class RawRecord(NamedTuple):
    """A record as stored in a topic, before deserialization. Times in ms since the epoch."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    offset: int
    headers: Headers = ()


# A `RawRecord` as a plain tuple: consumers and tasks exchange these, as a named tuple takes 50 % longer to create.
RawFields: TypeAlias = "tuple[bytes | None, bytes | None, int, int, Headers]"
RAW_KEY: Final = 0
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
    """A stored value and the event time (ms) of its last change (`org.apache.kafka.streams.state.ValueAndTimestamp`)."""

    value: V
    timestamp: int


class VersionedRecord(NamedTuple, Generic[V]):
    """A value of a versioned store (`org.apache.kafka.streams.state.VersionedRecord`).

    It is valid from `timestamp` (inclusive) to `valid_to` (exclusive), ms since the epoch; None for the latest version.
    """

    value: V
    timestamp: int
    valid_to: int | None


class Change(NamedTuple, Generic[V]):
    """An update of a table: the new value and, if a downstream operator needs it, the old one.

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
        ProcessingError: If the timestamp is negative (Kafka Streams: `StreamsException`) or not a whole number, or if a
            header is not a name with bytes or None.
    """

    key: K
    value: V
    timestamp: int
    headers: Headers = ()

    def __post_init__(self) -> None:
        """Refuse negative timestamps, as `org.apache.kafka.streams.processor.api.Record` does, and malformed headers."""
        if not isinstance(self.timestamp, int):
            raise malformed_timestamp(self.timestamp)
        if self.timestamp < 0:
            raise malformed_timestamp(self.timestamp)
        if self.headers != ():
            check_headers(self.headers)

    def with_key(self, key: Any) -> Record[Any, V]:
        """Return a copy with another key."""
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
    """Return a number and its noun, for messages.

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
        """Return the range as `start..end`."""
        return f"{self.start}..{self.end}"

    def __post_init__(self) -> None:
        """Refuse reversed and negative ranges."""
        if not 0 <= self.start <= self.end:
            raise ValueError(f"not a range of offsets: [{self.start}, {self.end})")

    @property
    def size(self) -> int:
        """Return the number of offsets: an upper bound of the records, since markers and compaction leave gaps."""
        return self.end - self.start


class Whole(NamedTuple):
    """When a copy of compacted topics was whole: it lacks nothing that brokers have not removed until then.

    Args:
        time_ms: The time by the brokers' clock, ms.
        kept_ms: How long brokers kept tombstones then, ms (`delete.retention.ms`).
    """

    time_ms: int
    kept_ms: int

    def encode(self) -> str:
        """Return it as text, for the metadata of offsets.

        >>> Whole.decode(Whole(1700000000000, 86400000).encode())
        Whole(time_ms=1700000000000, kept_ms=86400000)
        """
        return f"whole:{self.time_ms}:{self.kept_ms}"

    @classmethod
    def decode(cls, text: str) -> Whole | None:
        """Read the text; None if it is another one.

        >>> Whole.decode("")
        """
        kind, *numbers = text.split(":")
        found = [whole_number(number) for number in numbers]
        match kind, found:
            case "whole", [int(time_ms), int(kept_ms)]:
                return cls(time_ms, kept_ms)
        return None


@dataclass(frozen=True, slots=True)
class OffsetVector:
    """One offset per partition: a point in the history of several topics.

    Its text form sorts partitions and reads back: `orders-0@12,orders-1@7`.

    >>> str(OffsetVector.parse("orders-1@7,orders-0@12"))
    'orders-0@12,orders-1@7'
    """

    offsets: Mapping[TopicPartition, int]

    def __str__(self) -> str:
        return ",".join(f"{tp}@{offset}" for tp, offset in sorted(self.offsets.items()))

    @classmethod
    def parse(cls, text: str) -> OffsetVector:
        """Read the text form.

        Raises:
            ValueError: If an entry is not `topic-partition@offset`, or a partition occurs twice.
        """
        offsets: dict[TopicPartition, int] = {}
        for entry in filter(None, (part.strip() for part in text.split(","))):
            name, at, last = entry.rpartition("@")
            offset = whole_number(last)
            if not at or offset is None:
                raise ValueError(f"not topic-partition@offset: {shortened(entry)}")
            tp = TopicPartition.parse(name)
            if tp in offsets:
                raise ValueError(f"{tp} occurs twice in {shortened(text)}")
            offsets[tp] = offset
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
        strategy: Kind of reset.
        duration: How far back from now, for `by_duration`.
    """

    strategy: ResetStrategy
    duration: timedelta | None = None

    @classmethod
    def earliest(cls) -> AutoOffsetReset:
        """Start at the first record."""
        return cls(ResetStrategy.EARLIEST)

    @classmethod
    def latest(cls) -> AutoOffsetReset:
        """Start after the last record."""
        return cls(ResetStrategy.LATEST)

    @classmethod
    def none(cls) -> AutoOffsetReset:
        """Refuse to start the application without a committed offset."""
        return cls(ResetStrategy.NONE)

    @classmethod
    def by_duration(cls, duration: timedelta) -> AutoOffsetReset:
        """Start at the first record that is at most this old at start-up, or after the last one if all are older.

        Raises:
            ConfigError: If the duration is negative.
        """
        if duration < timedelta(0):
            raise ConfigError("Duration cannot be negative")
        return cls(ResetStrategy.BY_DURATION, duration)

    @classmethod
    def parse(cls, text: str) -> AutoOffsetReset:
        """Read a value of `auto.offset.reset`.

        >>> AutoOffsetReset.parse("by_duration:P1DT2H").duration
        datetime.timedelta(days=1, seconds=7200)

        Raises:
            ConfigError: If it is not such a value.
        """
        strategy, _, duration = text.partition(":")
        found = _DURATION.fullmatch(duration)
        if strategy == ResetStrategy.BY_DURATION.value and found and found.lastindex:
            days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
            return cls.by_duration(timedelta(days, seconds, hours=hours, minutes=minutes))
        if text in {"earliest", "latest", "none"}:
            return cls(ResetStrategy(text))
        message = f"{text!r} is not a value of auto.offset.reset"
        hint = "Allowed: earliest, latest, none, or by_duration: with a duration, as in by_duration:PT1H or by_duration:P7D"
        raise ConfigError(message, hint=hint)

    def __str__(self) -> str:
        """Return the value as configurations spell it."""
        if self.duration is None:
            return self.strategy.value
        return f"{self.strategy.value}:PT{self.duration.total_seconds():g}S"
