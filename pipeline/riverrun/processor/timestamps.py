"""Built-in timestamp extractors (`org.apache.kafka.streams.processor.TimestampExtractor`).

An extractor receives the record and the highest event time of its partition so far (-1 before the first). It returns the
record's event time in ms. A record with a negative time is dropped and counted.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from riverrun.arguments import EXTRACTOR
from riverrun.config.code import load_function
from riverrun.errors import DeserializationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.records import ConsumerRecord

    TimestampExtractor: TypeAlias = Callable[[ConsumerRecord[Any, Any], int], int]

log = logging.getLogger(__name__)

NEGATIVE = "Input record has invalid (negative) timestamp {}"
USE_ANOTHER = "Use a timestamp_extractor that takes the event time from elsewhere."


@dataclass(frozen=True, slots=True)
class FailOnInvalidTimestamp:
    """Returns the record's own timestamp; a negative one stops the task (the default)."""

    def __call__(self, record: ConsumerRecord[Any, Any], partition_time: int) -> int:  # noqa: ARG002 - as all extractors
        """Return the timestamp, ms.

        Raises:
            DeserializationError: If it is negative.
        """
        if record.timestamp < 0:
            raise DeserializationError(NEGATIVE.format(record.timestamp), hint=USE_ANOTHER)
        return record.timestamp


@dataclass(frozen=True, slots=True)
class LogAndSkipOnInvalidTimestamp:
    """Returns the record's own timestamp; logs and drops records with a negative one."""

    def __call__(self, record: ConsumerRecord[Any, Any], partition_time: int) -> int:  # noqa: ARG002 - as all extractors
        """Return the timestamp, ms."""
        if record.timestamp < 0:
            where = f"{record.topic}-{record.partition}, offset {record.offset}"
            log.warning("skipped: timestamp %d is negative (%s)", record.timestamp, where)
        return record.timestamp


@dataclass(frozen=True, slots=True)
class UsePartitionTimeOnInvalidTimestamp:
    """Returns the record's own timestamp, or the highest of its partition so far if it is negative."""

    def __call__(self, record: ConsumerRecord[Any, Any], partition_time: int) -> int:
        """Return the timestamp, ms.

        Raises:
            DeserializationError: If no earlier record had a valid one.
        """
        if record.timestamp >= 0:
            return record.timestamp
        if partition_time < 0:
            message = "Could not infer a timestamp: no record of the partition had a valid one yet"
            raise DeserializationError(message, hint=USE_ANOTHER)
        return partition_time


@dataclass(frozen=True, slots=True)
class WallclockTimestampExtractor:
    """Returns the host's clock when the record is read. Bounded runs cannot reproduce such results.

    Args:
        now_ms: Returns the current time; set by the task.
    """

    now_ms: Callable[[], int] | None = None

    def __call__(self, record: ConsumerRecord[Any, Any], partition_time: int) -> int:  # noqa: ARG002 - as all extractors
        """Return the current time, ms; -1 outside a task."""
        return -1 if self.now_ms is None else self.now_ms()


_READY_MADE = {
    kind.__name__: kind
    for kind in (
        FailOnInvalidTimestamp,
        LogAndSkipOnInvalidTimestamp,
        UsePartitionTimeOnInvalidTimestamp,
        WallclockTimestampExtractor,
    )
}


def timestamp_extractor(name: str) -> TimestampExtractor | None:
    """Return the extractor that `default.timestamp.extractor` names: Kafka Streams' class name, or `module:attribute`."""
    # None has the fastest path: loops read the time in place, without a call.
    if name == "FailOnInvalidTimestamp":
        return None
    if name in _READY_MADE:
        return _READY_MADE[name]()
    hint = "Write a function of (record, partition_time_ms) that returns a time in ms."
    return load_function(name, EXTRACTOR, role="a timestamp extractor", hint=hint)  # type: ignore[no-any-return]
