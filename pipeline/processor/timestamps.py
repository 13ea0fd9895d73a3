"""Ready-made timestamp extractors (`org.apache.kafka.streams.processor.TimestampExtractor`).

An extractor gets the record and the highest event time of its partition so far (-1 before the first), and gives the record's
event time in ms. A record whose time is negative is dropped and counted.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from pipeline.config import load_attribute
from pipeline.errors import ConfigError, DeserializationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.records import ConsumerRecord

    TimestampExtractor: TypeAlias = Callable[[ConsumerRecord[Any, Any], int], int]

log = logging.getLogger(__name__)

NEGATIVE = "Input record has invalid (negative) timestamp {}"
"""The complaint, for whoever knows the record's coordinates."""
USE_ANOTHER = "Use a timestamp_extractor that finds the event time elsewhere."


@dataclass(frozen=True, slots=True)
class FailOnInvalidTimestamp:
    """The record's own timestamp; a negative one stops the task (the default)."""

    def __call__(self, record: ConsumerRecord[Any, Any], partition_time: int) -> int:  # noqa: ARG002 - as all extractors
        """The timestamp, ms.

        Raises:
            DeserializationError: If it is negative.
        """
        if record.timestamp < 0:
            raise DeserializationError(NEGATIVE.format(record.timestamp), hint=USE_ANOTHER)
        return record.timestamp


@dataclass(frozen=True, slots=True)
class LogAndSkipOnInvalidTimestamp:
    """The record's own timestamp; a record with a negative one is logged and dropped."""

    def __call__(self, record: ConsumerRecord[Any, Any], partition_time: int) -> int:  # noqa: ARG002 - as all extractors
        """The timestamp, ms."""
        if record.timestamp < 0:
            where = f"{record.topic}-{record.partition}, offset {record.offset}"
            log.warning("skipped: timestamp %d is negative (%s)", record.timestamp, where)
        return record.timestamp


@dataclass(frozen=True, slots=True)
class UsePartitionTimeOnInvalidTimestamp:
    """The record's own timestamp; in place of a negative one, the highest of its partition so far."""

    def __call__(self, record: ConsumerRecord[Any, Any], partition_time: int) -> int:
        """The timestamp, ms.

        Raises:
            DeserializationError: If there was no valid one before.
        """
        if record.timestamp >= 0:
            return record.timestamp
        if partition_time < 0:
            message = "Could not infer a timestamp: no record of the partition had a valid one yet"
            raise DeserializationError(message, hint=USE_ANOTHER)
        return partition_time


@dataclass(frozen=True, slots=True)
class WallclockTimestampExtractor:
    """The time at which the record is read, by the clock of its host. Results cannot be reproduced by a bounded run.

    Args:
        now_ms: What time it is; set by the task.
    """

    now_ms: Callable[[], int] | None = None

    def __call__(self, record: ConsumerRecord[Any, Any], partition_time: int) -> int:  # noqa: ARG002 - as all extractors
        """Now, ms; -1 outside of a task."""
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
    """The extractor that `default.timestamp.extractor` names: Kafka Streams' class name, or `module:attribute`.

    None is the quickest way to say `FailOnInvalidTimestamp`.

    Raises:
        ConfigError: If there is none of that name, or it cannot be called.
    """
    if name == "FailOnInvalidTimestamp":
        return None
    found = _READY_MADE[name] if name in _READY_MADE else load_attribute(name)
    extractor = found() if isinstance(found, type) else found
    if not callable(extractor):
        message = f"{name} is {extractor!r}, which cannot be called as a timestamp extractor"
        raise ConfigError(message, hint="Write a function of (record, partition_time_ms) that gives a time in ms.")
    return extractor  # type: ignore[no-any-return]  # what a name stands for is not known beforehand
