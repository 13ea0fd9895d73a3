"""The brokers' clock, which decides when tombstones are removed. Clocks of hosts differ from it, and from each other."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException
from confluent_kafka.admin import NewTopic

from riverrun.errors import BrokerError
from riverrun.kafka import librdkafka
from riverrun.kafka.errors import DENIED, MISSING_TOPIC, UNREACHABLE
from riverrun.kafka.requests import REQUEST_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.kafka.requests import Requests

log = logging.getLogger(__name__)

CLOCK_TOPIC = "riverrun-clock"
"""Brokers stamp its records, and report the time in their answer. Nothing reads them."""
_CONFIG = {
    "message.timestamp.type": "LogAppendTime",
    "cleanup.policy": "delete",
    "retention.ms": "3600000",
    "segment.bytes": "1048576",
}
# Then the brokers are asked again: the clocks of a virtual machine stand still while it is suspended.
_FRESH_SECONDS = 60.0
# Shorter than the first wait: callers that only note the time continue without an answer.
_AGAIN_SECONDS = 3.0


def _elapsed() -> float:
    # On Linux, the monotonic clock stands still while the machine sleeps; this one does not.
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class BrokersClock:
    """Returns the time of the brokers' clock. Threads may share one.

    Args:
        monotonic: Returns seconds that only rise, also while the machine sleeps.
        wall: Returns the seconds of the host's clock.
        writes: Whether brokers may be asked; otherwise the host's clock is used.
    """

    def __init__(
        self,
        requests: Requests,
        monotonic: Callable[[], float] = _elapsed,
        wall: Callable[[], float] = time.time,  # noqa: TID251 - compared with the brokers' clock
        *,
        writes: bool = True,
    ) -> None:
        self._requests = requests
        self._monotonic = monotonic
        self._wall = wall
        self._asked: tuple[int, float, float] | None = None
        self._apart_ms = 0
        self._failed_at: float | None = None
        self._uses_host = not writes

    def now_ms(self) -> int:
        """Return the time by the brokers' last answer; asks them again after a minute. Never later than the true time."""
        if self._asked is not None:
            _told, at, wall = self._asked
            # Both clocks have to agree: either one may stand still, and the wall clock may be set back.
            if 0 <= self._wall() - wall < _FRESH_SECONDS and self._monotonic() - at < _FRESH_SECONDS:
                return self.reckoned_ms()
        before_ms = int(self._wall() * 1000)
        try:
            told_ms = self._ask(REQUEST_SECONDS if self._asked is None else _AGAIN_SECONDS)
        except BrokerError:
            self._failed_at = self._monotonic()
            raise
        # The clocks are read after the answer, so what is reckoned from them is too early, never too late.
        self._asked = told_ms, self._monotonic(), self._wall()
        self._failed_at = None
        # The brokers' time is one between request and answer, which may take seconds.
        self._apart_ms = max(0, before_ms - told_ms, told_ms - int(self._asked[2] * 1000))
        return told_ms

    def noted_ms(self) -> int:
        """Return the time up to which something has been read: too early if brokers do not answer.

        It is an error only if brokers have never answered.
        """
        # Callers process records: they wait at most once a minute for brokers that do not answer.
        failed_at = -_FRESH_SECONDS if self._failed_at is None else self._failed_at
        if self._asked is not None and self._monotonic() - failed_at < _FRESH_SECONDS:
            return self.reckoned_ms()
        try:
            return self.now_ms()
        except BrokerError:
            if self._asked is None:
                raise
            return self.reckoned_ms()

    def reckoned_ms(self) -> int:
        """Return the time by the last answer and the host's monotonic clock. Asks only if there was no answer yet."""
        if self._asked is None:
            return self.now_ms()
        told_ms, at, _wall = self._asked
        return told_ms + int((self._monotonic() - at) * 1000)

    def apart_ms(self) -> int:
        """Return by how much the brokers' clock and this host's differed at the last answer; 0 if there was none."""
        return self._apart_ms

    def _ask(self, within_s: float) -> int:
        if not self._uses_host:
            told: list[int] = []
            failed = self._create(within_s) or self._send(told, within_s)
            if told:
                return told[0]
            failed = failed or KafkaError(librdkafka.TIMED_OUT)
            if failed.code() in UNREACHABLE or failed.retriable():
                raise self._requests.error(failed, f"ask for the brokers' time with topic {CLOCK_TOPIC}")
            # No application ends because this topic may not be used.
            self._uses_host = True
            log.warning(
                "this host's clock is used instead of the brokers' to judge the age of local state: %s of topic %s",
                failed.str(),
                CLOCK_TOPIC,
            )
        return int(self._wall() * 1000)

    def _send(self, told: list[int], within_s: float) -> KafkaError | None:
        """Write a record, and add the time at which a broker appended it. Returns why it was refused."""
        # No answer to another request has the brokers' time.
        failed: list[KafkaError] = []

        def delivered(error: KafkaError | None, message: Any) -> None:
            kind, time_ms = message.timestamp()
            if error is not None:
                failed.append(error)
            elif kind == TIMESTAMP_LOG_APPEND_TIME:
                told.append(time_ms)
            else:
                failed.append(KafkaError(KafkaError.INVALID_TIMESTAMP))

        settings = {
            "linger.ms": 0,
            # The leader has the time, whatever its replicas do.
            "acks": 1,
            "enable.idempotence": False,
            "message.timeout.ms": int(within_s * 1000),
            "allow.auto.create.topics": False,
        }
        try:
            producer = self._requests.kafka.producer(settings)
            producer.produce(CLOCK_TOPIC, b"", partition=0, on_delivery=delivered)
            producer.flush(within_s)
        except KafkaException as error:
            return error.args[0]
        return failed[0] if failed else None

    def _create(self, within_s: float) -> KafkaError | None:
        """Create the topic unless it exists. Returns why it was refused."""
        client = self._requests.client
        try:
            found = client.list_topics(CLOCK_TOPIC, timeout=within_s).topics[CLOCK_TOPIC].error
            if found is not None and found.code() in MISSING_TOPIC:
                new = [NewTopic(CLOCK_TOPIC, 1, -1, config=_CONFIG)]
                client.create_topics(new, request_timeout=within_s)[CLOCK_TOPIC].result(within_s + 5)
            elif found is not None and found.code() in DENIED:
                return found
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                return error.args[0]
        except TimeoutError:
            return KafkaError(librdkafka.TIMED_OUT)
        return None
