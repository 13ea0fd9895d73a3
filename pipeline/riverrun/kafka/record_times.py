"""Checks record times before sending: brokers refuse a whole batch for one time, and name no record."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from riverrun.errors import BrokerError, RefusedRecordError
from riverrun.kafka.admin import Admin

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

USUALLY_AHEAD_MS = 3_600_000
"""How far ahead of their clock brokers accept records by default (`message.timestamp.after.max.ms`)."""
_ANY_MS = 2**63 - 1
_AFTER, _BEFORE = "message.timestamp.after.max.ms", "message.timestamp.before.max.ms"
_ALL_ARE_LOOKED_AT = -1


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """How far a record's time may be from the brokers' clock.

    Args:
        before_ms: How far behind it (`message.timestamp.before.max.ms`).
        after_ms: How far ahead of it (`message.timestamp.after.max.ms`).
    """

    before_ms: int = _ANY_MS
    after_ms: int = _ANY_MS

    @property
    def narrow(self) -> dict[str, int]:
        """Return the settings, with their ms, that refuse event times which brokers accept by default."""
        limits = {_BEFORE: (self.before_ms, _ANY_MS), _AFTER: (self.after_ms, USUALLY_AHEAD_MS)}
        return {name: found for name, (found, usual) in limits.items() if found < usual}


def time_limits(admin: Admin, topics: Iterable[str]) -> dict[str, TimeLimits]:
    """Return the limits of record times by topic.

    Args:
        admin: Asks the brokers, once for all topics.
        topics: Their names; topics that do not exist or may not be described are left out.
    """
    return {topic: _limits(config) for topic, config in admin.topic_configs(topics).items()}


def _limits(config: Mapping[str, str]) -> TimeLimits:
    if config.get("message.timestamp.type") == "LogAppendTime":
        return TimeLimits()
    return TimeLimits(int(config.get(_BEFORE, _ANY_MS)), int(config.get(_AFTER, _ANY_MS)))


class RecordTimes:
    """Checks times before a record is sent; nearly all records need no check.

    Args:
        kafka: Client properties.
    """

    def __init__(self, kafka: Mapping[str, str]) -> None:
        self._kafka = kafka
        self._limits: dict[str, TimeLimits] = {}
        self._are_old_refused = False
        self._ahead_ms = USUALLY_AHEAD_MS

    def learn(self, limits: Mapping[str, TimeLimits]) -> None:
        """Add limits that are already known."""
        self._limits |= limits
        self._are_old_refused = any(known.before_ms < _ANY_MS for known in self._limits.values())
        self._ahead_ms = min((known.after_ms for known in self._limits.values()), default=USUALLY_AHEAD_MS)

    def unsuspicious(self, topic: str, partition: int | None, timestamp: int) -> int:
        """Return the time (ms) up to which records of all topics known so far need no check at present.

        A topic is looked up with its first record, unless its limits are known.

        Args:
            topic: The topic.
            partition: Its partition; None if the client chooses.
            timestamp: The record's time, ms.

        Raises:
            RefusedRecordError: If the brokers would refuse it.
        """
        if topic not in self._limits:
            self.learn({topic: self._asked(topic)})
        limits, now_ms = self._limits[topic], time.time_ns() // 1_000_000  # noqa: TID251 - the brokers' clock decides
        where = topic if partition is None else f"{topic}-{partition}"
        if timestamp - now_ms > limits.after_ms:
            raise _refused(where, timestamp, f"{timestamp - now_ms} ms ahead of the clock", _AFTER, limits.after_ms)
        if now_ms - timestamp > limits.before_ms:
            raise _refused(where, timestamp, f"{now_ms - timestamp} ms behind the clock", _BEFORE, limits.before_ms)
        return _ALL_ARE_LOOKED_AT if self._are_old_refused else now_ms + self._ahead_ms

    def _asked(self, topic: str) -> TimeLimits:
        """Look up a topic's limits. Without an answer, brokers will report refused records."""
        try:
            return time_limits(Admin(self._kafka), [topic]).get(topic, TimeLimits())
        except BrokerError:
            return TimeLimits()


def _refused(where: str, timestamp: int, distance: str, setting: str, limit_ms: int) -> RefusedRecordError:
    message = (
        f"Cannot write to {where}: time {timestamp}{_as_text(timestamp)} is {distance}, and {setting} is {limit_ms}"
    )
    hint = (
        f"Correct the event time (timestamp_extractor), or raise {setting} of the topic. For a sink's record, "
        "production.exception.handler may decide; a dead letter has that time as well."
    )
    return RefusedRecordError(message, hint=hint)


def _as_text(timestamp: int) -> str:
    """Return a readable form of a time, if the calendar has it."""
    try:
        return f" ({datetime.fromtimestamp(timestamp / 1000, UTC).isoformat(timespec='seconds')})"
    except (ValueError, OverflowError, OSError):
        return ""
