"""Reads the records of a topic for display, and writes lines of text as records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.decoders import exact_json
from riverrun.errors import (
    USER_ERRORS,
    ConfigError,
    DeserializationError,
    RangeError,
    RegistryError,
    SerializationError,
    as_exception,
)
from riverrun.hosting.process import SystemClock
from riverrun.kafka.consumer import RecordConsumer
from riverrun.kafka.producer import IdempotentProducer
from riverrun.kafka.ranges import offsets_at_time, read_fields
from riverrun.records import Headers, OffsetRange, OffsetVector, TopicPartition, counted
from riverrun.serde.api import shown_reader
from riverrun.serde.serdes import BYTES, JSON, STRING, UUID, is_json
from riverrun.spark.ranges import time_ms
from riverrun.topics.serdes import bytes_of, exactly, from_text, jsonable, key_bytes_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from riverrun.kafka.admin import Admin
    from riverrun.records import RawFields
    from riverrun.serde.api import Serde

_BATCH = 1000
_POLL_SECONDS = 1.0
# A consumer is silent alike if there are no records, no brokers or no topic: after so many polls, ask which.
_LOST_POLLS = 5


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """A decoded record with its place; the time is in ms."""

    tp: TopicPartition
    offset: int
    timestamp: int
    key: Any
    value: Any
    headers: Headers


@dataclass(frozen=True, slots=True)
class TopicReader:
    """Reads the committed records of a topic."""

    admin: Admin
    topic: str
    key_serde: Serde[Any]
    value_serde: Serde[Any]

    def read(self, start: str, end: str) -> Iterator[ReadRecord]:
        """Yield the records between two bounds (`bounds`), the second one exclusive."""
        # First, so that a missing topic hides no mistake in them.
        for bound in (start, end):
            self._check_bound(bound)
        admin, first, last = self.admin, self.bounds(start), self.bounds(end)
        for tp, offset in first.items():
            if last[tp] < offset:
                raise RangeError(f"{tp}: the end, offset {last[tp]}, lies before the start, {offset}")
        ranges = {tp: OffsetRange(first[tp], last[tp]) for tp in sorted(first)}
        # One partition after the other: readers care about the order within a partition.
        for tp, wanted in ranges.items():
            for _, batch in read_fields(admin, {tp: wanted}):
                yield from self._decoded(tp, batch)

    def follow(self, start: str) -> Iterator[ReadRecord]:
        """Yield the records from a bound on, including future ones, endlessly."""
        starts = self.bounds(start)
        consumer, silent = RecordConsumer(self.admin.kafka), 0
        try:
            consumer.assign(starts)
            while True:
                polled = consumer.poll(_BATCH, _POLL_SECONDS)
                silent = 0 if polled.records else silent + 1
                if silent % _LOST_POLLS == _LOST_POLLS - 1:
                    self.admin.require([self.topic], "are followed")
                for tp, batch in polled.records.items():
                    yield from self._decoded(tp, batch)
        finally:
            consumer.close()

    def _decoded(self, tp: TopicPartition, batch: Iterable[RawFields]) -> Iterator[ReadRecord]:
        for key, value, timestamp, offset, headers in batch:
            decoded_key = self._of(self.key_serde, "Key", key, tp, offset)
            decoded_value = self._of(self.value_serde, "Value", value, tp, offset)
            yield ReadRecord(tp, offset, timestamp, decoded_key, decoded_value, headers)

    @staticmethod
    def _of(serde: Serde[Any], part: str, data: bytes | None, tp: TopicPartition, offset: int) -> Any:
        if data is None:
            return None
        try:
            return shown_reader(serde)(data)
        except RegistryError:  # a registry that does not answer
            raise
        except USER_ERRORS as error:  # a serde may raise anything
            message = f"{part} cannot be read with serde {serde.name}: {type(error).__name__}: {as_exception(error)}"
            hint = "Choose others with --key-serde, --value-serde (bytes reads anything), or --app."
            raise DeserializationError(
                message, hint=hint, topic=tp.topic, partition=tp.partition, offset=offset
            ) from error

    def bounds(self, text: str) -> Mapping[TopicPartition, int]:
        """Return the offset of a bound in each partition.

        A bound is `earliest`, `latest`, a vector of offsets, or a time: the first record that is not earlier.
        """
        admin = self.admin
        self._check_bound(text)
        admin.require([self.topic], "this command reads")
        tps = [TopicPartition(self.topic, n) for n in range(admin.partitions([self.topic])[self.topic])]
        match text:
            case "earliest":
                return admin.beginning_offsets(tps)
            case "latest":
                return admin.end_offsets(tps)
            case _ if "@" in text:
                return self._vector(tps, text)
            case _:
                return self._at_time(tps, text)

    def _check_bound(self, text: str) -> None:
        if "@" in text:
            _parsed(text)
        elif text not in {"earliest", "latest"}:
            self._time_ms(text)

    def _vector(self, tps: list[TopicPartition], text: str) -> Mapping[TopicPartition, int]:
        given = _parsed(text).offsets
        unknown = sorted(set(given) - set(tps))
        if unknown:
            message = f"{', '.join(map(str, unknown))} is not a partition of {self.topic}"
            raise RangeError(message, hint=f"It has {tps[0]} to {tps[-1]}.")
        return {**self.admin.end_offsets([tp for tp in tps if tp not in given]), **given}

    def _at_time(self, tps: list[TopicPartition], text: str) -> Mapping[TopicPartition, int]:
        at_ms, admin = self._time_ms(text), self.admin
        first, last = admin.beginning_offsets(tps), admin.end_offsets(tps)
        return offsets_at_time(admin, {tp: OffsetRange(first[tp], last[tp]) for tp in tps}, at_ms)

    def _time_ms(self, text: str) -> int:
        try:
            return time_ms(text)
        except RangeError as error:
            message = f"{text!r} is neither earliest, latest, a vector ({self.topic}-0@12) nor a time"
            raise RangeError(message, hint=error.hint) from error


def _parsed(text: str) -> OffsetVector:
    try:
        return OffsetVector.parse(text)
    except ValueError as error:
        raise RangeError(str(error)) from error


_Fields = tuple[bytes | None, bytes | None, int, Headers]


@dataclass(frozen=True, slots=True)
class LineFormat:
    """Form of the lines. Each line is a value; records without a key go to partitions in turn.

    Args:
        value_serde: Writes values. JSON's null is a tombstone.
        key: A field of JSON values that is also the key; None for none.
        timestamp: A field of JSON values with the event time, in ms or as text; None for the current time.
        separator: Separates a line's key from its value; None for lines without keys. Nothing after it is a tombstone,
            whatever the serde.
    """

    key_serde: Serde[Any]
    value_serde: Serde[Any]
    key: str | None = None
    timestamp: str | None = None
    separator: str | None = None

    def check(self) -> None:
        """Check that the options fit together."""
        if self.key is not None and self.separator is not None:
            raise ConfigError("--key and --separator both define keys", hint="Leave out one of them.")
        if self.separator == "":
            raise ConfigError("--separator is empty", hint="Leave it out for lines without keys.")
        fields = [field for field in (self.key, self.timestamp) if field is not None]
        if fields and not self.value_serde.name.startswith(JSON.name):
            message = f"Values with serde {self.value_serde.name} have no field {', '.join(fields)}"
            raise ConfigError(message, hint="Fields are those of JSON values: --value-serde json.")

    def fields(self, line: str, now_ms: int) -> _Fields:
        """Return the key, value and time of a line, without headers."""
        text_of_key, text = self._split(line)
        is_tombstone = self.separator is not None and not text
        value = None if is_tombstone else from_text(self.value_serde, text)
        key = None if text_of_key is None else from_text(self.key_serde, text_of_key)
        if self.key is not None:
            key = _field(value, self.key)
        at_ms = now_ms if self.timestamp is None else _time(_field(value, self.timestamp))
        return _key(self.key_serde, key), _value(self.value_serde, value), at_ms, ()

    def _split(self, line: str) -> tuple[str | None, str]:
        if self.separator is None:
            return None, line
        key, found, value = line.partition(self.separator)
        if not found:
            raise ValueError(f"it has no separator {self.separator!r}")
        return key, value


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """Form of lines that are records as `shown_record` returns them: JSON objects with key, value, time and headers."""

    key_serde: Serde[Any]
    value_serde: Serde[Any]

    def check(self) -> None:
        """Do nothing: all options fit together."""

    def fields(self, line: str, now_ms: int) -> _Fields:
        """Return the key, value, time and headers of a line; its time defaults to `now_ms`."""
        found = exact_json(line)
        if not isinstance(found, dict) or not found.keys() & {"key", "value"}:
            raise ValueError("it is not a JSON object with a key or a value")
        key = _key(self.key_serde, _of_json(self.key_serde, found.get("key")))
        value = _value(self.value_serde, _of_json(self.value_serde, found.get("value")))
        at_ms = now_ms if found.get("timestamp") is None else _time(found["timestamp"])
        return key, value, at_ms, tuple(map(_header, found.get("headers") or ()))


def shown_record(record: ReadRecord) -> dict[str, Any]:
    """Return a record as a JSON object: bytes in hexadecimal digits, headers as pairs of name and value."""
    return {
        "topic": record.tp.topic,
        "partition": record.tp.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": jsonable(record.key),
        "value": jsonable(record.value),
        "headers": [[name, jsonable(value)] for name, value in record.headers],
    }


def _of_json(serde: Serde[Any], value: Any) -> Any:
    if value is None or is_json(serde):
        return value
    is_text = isinstance(value, str) and serde in {STRING, BYTES, UUID}
    return from_text(serde, value if is_text else exactly(value).decode())


def _header(given: Any) -> tuple[str, bytes | None]:
    match given:
        case [str(name), None]:
            return name, None
        case [str(name), str(value)]:
            return name, bytes.fromhex(value)
    raise ValueError(f"{given!r} is not a header: a name, and a value in hexadecimal digits or null")


def write_lines(admin: Admin, topic: str, lines: Iterable[bytes], form: LineFormat | RecordFormat) -> int:
    """Write lines in UTF-8 to a topic, each once, and return their number. Empty lines are skipped."""
    form.check()
    if topic.startswith("__"):
        raise ConfigError(f"{topic} is an internal topic of the brokers: writing to it would damage their data")
    admin.require([topic], "this command writes to")
    producer, clock = IdempotentProducer(admin.kafka, admin=admin), SystemClock()
    try:
        for number, line in enumerate(lines, 1):
            raw = line.rstrip(b"\r\n")
            if not raw:
                continue
            try:
                key, value, at_ms, headers = form.fields(_text(raw), clock.now_ms())
            except USER_ERRORS as error:  # a serde may raise anything
                reason = as_exception(error)
                # The hint says how many lines were written, so all before this one have to arrive.
                producer.flush()
                written = f"{counted(producer.sent().get(topic, 0), 'record')} before line {number} were written."
                if isinstance(reason, RegistryError):  # a registry that does not answer
                    reason.hint = " ".join(filter(None, (reason.hint, written, "Continue from there.")))
                    raise
                message = f"Line {number} cannot be written: {reason}: {raw[:100].decode(errors='replace')!r}"
                hint = f"{written} Correct the line, and continue from there."
                raise SerializationError(message, hint=hint) from error
            producer.send(topic, key, value, at_ms, headers, None)
        producer.flush()
        return producer.sent().get(topic, 0)
    finally:
        producer.close()


def _text(raw: bytes) -> str:
    # Editors may begin a file with a byte order mark.
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start + 1} is not UTF-8 ({raw[error.start]:#04x})") from error


def _key(serde: Serde[Any], key: Any) -> bytes | None:
    return None if key is None else key_bytes_of(serde, key)


def _value(serde: Serde[Any], value: Any) -> bytes | None:
    return None if value is None else bytes_of(serde, value)


def _field(value: Any, name: str) -> Any:
    if not isinstance(value, dict):
        message = f"it is not a JSON object with a field {name!r}"
        raise ValueError(message)  # noqa: TRY004 - what the line says, not what the code does
    if name not in value:
        raise ValueError(f"it has no field {name!r}")
    return value[name]


def _time(value: Any) -> int:
    """Return a time in ms; text without a zone is in UTC."""
    try:
        found = time_ms(value) if isinstance(value, str) else value
    except RangeError as error:
        raise ValueError(error.message) from error
    # Not `isinstance`: in Python, a bool is an int.
    if type(found) is int and found >= 0:
        return found
    raise ValueError(f"{value!r} is neither a number of ms since 1970 nor a time from then on")
