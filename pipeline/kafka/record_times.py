"""Which times a topic takes: brokers refuse a whole batch because of one record of the future, and name none."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pipeline.errors import BrokerError, RefusedRecordError
from pipeline.kafka.admin import Admin

if TYPE_CHECKING:
    from collections.abc import Mapping

USUALLY_AHEAD_MS = 3_600_000
"""How far ahead of their clock brokers take records unless told otherwise (`message.timestamp.after.max.ms`)."""
_LONGEST_MS = 2**63 - 1
_AFTER = "message.timestamp.after.max.ms"
_HINT = (
    f"Correct the event time (timestamp_extractor), or raise {_AFTER} of the topic. production.exception.handler may decide;"
    " a dead letter has that time as well."
)


class RecordTimes:
    """Looks at times that lie far ahead, before a record is sent; topics are asked about when there is such a time.

    Args:
        kafka: Client properties.
    """

    def __init__(self, kafka: Mapping[str, str]) -> None:
        """Nothing is asked."""
        self._kafka = kafka
        self._limits: dict[str, int] = {}

    def unsuspicious(self, topic: str, timestamp: int) -> int:
        """The time, ms, up to which no record needs to be looked at, for now.

        Raises:
            RefusedRecordError: If the brokers would not take this one.
        """
        now_ms = time.time_ns() // 1_000_000  # noqa: TID251 - the brokers' clock decides
        latest = now_ms + USUALLY_AHEAD_MS
        if timestamp > latest and timestamp - now_ms > self._limit(topic):
            message = f"Cannot write to {topic}: time {timestamp} lies {timestamp - now_ms} ms ahead of the clock"
            raise RefusedRecordError(message, hint=_HINT)
        return latest

    def _limit(self, topic: str) -> int:
        """How far ahead a record may lie; brokers that do not say will say so when they refuse one."""
        if topic not in self._limits:
            try:
                config = Admin(self._kafka).topic_config(topic)
            except BrokerError:
                return _LONGEST_MS
            is_fixed = config.get("message.timestamp.type") == "LogAppendTime"
            self._limits[topic] = _LONGEST_MS if is_fixed else int(config.get(_AFTER, _LONGEST_MS))
        return self._limits[topic]
