"""Input and output topics of a `TopologyTestDriver`, with serdes; and the settings that tests pass."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from riverrun.config import StreamsConfig, streams_config
from riverrun.errors import DeserializationError, SerializationError, StreamsError
from riverrun.records import Record, check_headers
from riverrun.serde.api import hint_of, refusal
from riverrun.windows import MAX_TIME_MS, millis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from riverrun.records import Headers, RawRecord
    from riverrun.serde.api import Serde

K = TypeVar("K")
V = TypeVar("V")


def given_settings(config: StreamsConfig | Mapping[str, Any] | None, reader: str) -> StreamsConfig:
    """Return the settings of a test, also from Kafka Streams' dotted names; `reader` names their receiver in messages."""
    if config is None or isinstance(config, StreamsConfig):
        return config or StreamsConfig()
    return streams_config(reader, "config", config)


@dataclass(slots=True)
class TestInputTopic(Generic[K, V]):
    """Writes records into one input topic (`org.apache.kafka.streams.TestInputTopic`).

    Records without a timestamp get the topic's time, which starts at `start_ms` and advances by `auto_advance` after each of
    them.
    """

    # pytest would collect a class whose name begins with Test.
    __test__ = False

    topic: str
    key_serde: Serde[K]
    value_serde: Serde[V]
    _pipe: Callable[[str, bytes | None, bytes | None, int, Headers], None]
    time_ms: int = 0
    auto_advance_ms: int = 0
    _now_ms: Callable[[], int] = lambda: 0
    """A clock to which the topic's time is added."""

    def pipe_input(
        self, key: K | None, value: V | None, *, timestamp: int | None = None, headers: Headers = ()
    ) -> None:
        """Write one record, and process it with all records that follow from it.

        Args:
            key: Key of the record; None if it has none.
            value: Value of the record; None deletes the row of a table.
            timestamp: Event time, ms since the epoch, or -1 for none; defaults to the topic's time, which then advances.
            headers: Pairs of name and bytes (or None), in order; defaults to none.

        Raises:
            RecordError: If the record, or one that follows from it, cannot be handled and no handler skips it. Also if
                headers cannot be written.
        """
        check_headers(headers)
        if not isinstance(timestamp, int | None):
            message = f"timestamp must be ms since the epoch, an int, not {timestamp!r}"
            raise StreamsError(message, hint="Use round(moment.timestamp() * 1000) for a datetime with a time zone.")
        # Records that old clients wrote have no timestamp: brokers return -1.
        if timestamp is not None and not -1 <= timestamp <= MAX_TIME_MS:
            message = f"timestamp {timestamp} {'is negative' if timestamp < 0 else 'does not fit into 64 bits'}"
            raise StreamsError(message, hint="Times are ms since the epoch.")
        at = timestamp
        if at is None:
            at = self._now_ms() + self.time_ms
            self.time_ms += self.auto_advance_ms
        raw_key = self._bytes("key", self.key_serde, key)
        raw_value = self._bytes("value", self.value_serde, value)
        self._pipe(self.topic, raw_key, raw_value, at, headers)

    def _bytes(self, part: str, serde: Serde[Any], given: Any) -> bytes | None:
        try:
            return None if given is None else serde.serialize(given)
        except Exception as error:  # a serde may raise anything
            refused = refusal(serde, error)
            message = f"Topic {self.topic} cannot take the {type(given).__name__} {part} {given!r}: {refused}"
            raise SerializationError(message, hint=hint_of(error)) from error

    def pipe_record_list(self, records: Iterable[Record[K, V]]) -> None:
        """Write several records in order. Raises as `pipe_input` does."""
        for record in records:
            self.pipe_input(record.key, record.value, timestamp=record.timestamp, headers=record.headers)

    def pipe_key_value_list(
        self,
        pairs: Iterable[tuple[K | None, V | None]],
        *,
        start_ms: int | None = None,
        advance: timedelta = timedelta(),
    ) -> None:
        """Write several records in order.

        Args:
            pairs: Key and value of each record.
            start_ms: Event time of the first record, ms since the epoch; by default, each has the topic's time.
            advance: Difference between the times of two successive records; it counts only with `start_ms`.
        """
        if start_ms is None:
            for key, value in pairs:
                self.pipe_input(key, value)
            return
        for number, (key, value) in enumerate(pairs):
            self.pipe_input(key, value, timestamp=start_ms + number * millis(advance))

    def pipe_value_list(
        self, values: Iterable[V | None], *, start_ms: int | None = None, advance: timedelta = timedelta()
    ) -> None:
        """Write records without keys; arguments as for `pipe_key_value_list`."""
        self.pipe_key_value_list(((None, value) for value in values), start_ms=start_ms, advance=advance)

    def advance_time(self, by: timedelta) -> None:
        """Advance the topic's time."""
        self.time_ms += millis(by)


@dataclass(slots=True)
class TestOutputTopic(Generic[K, V]):
    """Reads records from one output topic (`org.apache.kafka.streams.TestOutputTopic`)."""

    # As above, for pytest.
    __test__ = False

    topic: str
    key_serde: Serde[K]
    value_serde: Serde[V]
    _take: Callable[[str], RawRecord | None]
    _size: Callable[[str], int]
    _hint: Callable[[str], str | None] = lambda _topic: None
    """Explains why a topic may have no records."""

    def read_record(self) -> Record[K | None, V | None]:
        """Return the next record.

        Raises:
            StreamsError: If there is none.
            DeserializationError: If a serde cannot read it.
        """
        raw = self._take(self.topic)
        if raw is None:
            message = f"Output topic {self.topic} has no more records"
            raise StreamsError(message, hint=self._hint(self.topic))
        key = self._read("key", self.key_serde, raw.key)
        value = self._read("value", self.value_serde, raw.value)
        return Record(key, value, raw.timestamp, raw.headers)

    def _read(self, part: str, serde: Serde[Any], data: bytes | None) -> Any:
        try:
            return None if data is None else serde.deserialize(data)
        except Exception as error:
            refused = refusal(serde, error)
            message = f"The {part} {data!r} of a record of output topic {self.topic} cannot be read: {refused}"
            raise DeserializationError(message, hint="Pass the serde with which the topology writes.") from error

    def read_key_value(self) -> tuple[K | None, V | None]:
        """Return key and value of the next record.

        Raises:
            StreamsError: If there is none.
        """
        record = self.read_record()
        return record.key, record.value

    def read_value(self) -> V | None:
        """Return the value of the next record.

        Raises:
            StreamsError: If there is none.
        """
        return self.read_record().value

    def read_records_to_list(self) -> list[Record[K | None, V | None]]:
        """Return all unread records."""
        return [self.read_record() for _ in range(self.queue_size())]

    def read_values_to_list(self) -> list[V | None]:
        """Return the values of all unread records."""
        return [record.value for record in self.read_records_to_list()]

    def read_key_values_to_list(self) -> list[tuple[K | None, V | None]]:
        """Return keys and values of all unread records."""
        return [(record.key, record.value) for record in self.read_records_to_list()]

    def read_key_values_to_map(self) -> dict[K, V | None]:
        """Return the last value of each key among the unread records.

        Raises:
            StreamsError: If a record has no key.
        """
        found: dict[K, V | None] = {}
        for key, value in self.read_key_values_to_list():
            if key is None:
                message = f"A record of output topic {self.topic} has no key"
                raise StreamsError(message, hint="Read it with read_key_values_to_list.")
            found[key] = value
        return found

    def queue_size(self) -> int:
        """Return the number of unread records."""
        return self._size(self.topic)

    def is_empty(self) -> bool:
        """Return whether all records have been read."""
        return self.queue_size() == 0
