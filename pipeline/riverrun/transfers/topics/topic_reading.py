"""Reads records of a topic for display."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.errors import DeserializationError, RangeError
from riverrun.kafka.consumer import RecordConsumer
from riverrun.kafka.ranges import offsets_at_time, read_fields
from riverrun.records import OffsetRange, OffsetVector, TopicPartition
from riverrun.serde.api import shown_reader
from riverrun.spark.ranges import time_ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from riverrun.kafka.admin import Admin
    from riverrun.records import Headers, RawFields
    from riverrun.serde.api import Serde

_BATCH = 1000
_POLL_SECONDS = 1.0
_LOST_POLLS = 5
"""Number of polls without a record after which to check that brokers answer."""


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
    """Reads the committed records of a topic.

    Args:
        admin: Asks the brokers.
        topic: The topic.
        key_serde: Reads keys.
        value_serde: Reads values.
    """

    admin: Admin
    topic: str
    key_serde: Serde[Any]
    value_serde: Serde[Any]

    def read(self, start: str, end: str) -> Iterator[ReadRecord]:
        """Return the records between two bounds.

        Args:
            start: `earliest`, `latest`, a vector of offsets, or a time: the first record at or after it.
            end: A bound in the same forms, exclusive.

        Raises:
            TopicError: If the topic does not exist.
            RangeError: If a bound is invalid, or the end is before the start.
            DeserializationError: If a serde cannot read a record.
        """
        admin, first, last = self.admin, self._bounds(start), self._bounds(end)
        for tp, offset in first.items():
            if last[tp] < offset:
                message = f"{tp}: the end, offset {last[tp]}, lies before the start, {offset}"
                raise RangeError(message)
        ranges = {tp: OffsetRange(first[tp], last[tp]) for tp in sorted(first)}
        for (
            tp,
            wanted,
        ) in ranges.items():  # one partition after the other: readers care about the order within a partition
            for _, batch in read_fields(admin, {tp: wanted}):
                yield from self._decoded(tp, batch)

    def follow(self, start: str) -> Iterator[ReadRecord]:
        """Return the records from a bound on, including future ones, endlessly.

        Args:
            start: As in `read`.

        Raises:
            TopicError: If the topic does not exist.
            RangeError: If the bound is invalid.
            DeserializationError: If a serde cannot read a record.
            BrokerError: If brokers do not answer any more.
        """
        starts = self._bounds(start)
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
        except Exception as error:  # a serde may raise anything
            message = f"{part} cannot be read with serde {serde.name}: {type(error).__name__}: {error}"
            hint = "Choose others with --key-serde, --value-serde (bytes reads anything), or --app."
            raise DeserializationError(
                message, hint=hint, topic=tp.topic, partition=tp.partition, offset=offset
            ) from error

    def _bounds(self, text: str) -> Mapping[TopicPartition, int]:
        admin = self.admin
        admin.require([self.topic], "are to be read")
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

    def _vector(self, tps: list[TopicPartition], text: str) -> Mapping[TopicPartition, int]:
        try:
            given = OffsetVector.parse(text).offsets
        except ValueError as error:
            raise RangeError(str(error)) from error
        unknown = sorted(set(given) - set(tps))
        if unknown:
            message = f"{', '.join(map(str, unknown))} is not a partition of {self.topic}"
            raise RangeError(message, hint=f"It has {tps[0]} to {tps[-1]}.")
        return {**self.admin.end_offsets([tp for tp in tps if tp not in given]), **given}

    def _at_time(self, tps: list[TopicPartition], text: str) -> Mapping[TopicPartition, int]:
        try:
            at_ms = time_ms(text)
        except RangeError as error:
            message = f"{text!r} is neither earliest, latest, a vector ({self.topic}-0@12) nor a time"
            raise RangeError(message, hint=error.hint) from error
        admin = self.admin
        first, last = admin.beginning_offsets(tps), admin.end_offsets(tps)
        return offsets_at_time(admin, {tp: OffsetRange(first[tp], last[tp]) for tp in tps}, at_ms)
