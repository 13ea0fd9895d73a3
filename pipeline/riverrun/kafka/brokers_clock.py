"""The brokers' clock, which decides when tombstones are removed. Clocks of hosts differ from it, and from each other."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, Producer
from confluent_kafka.admin import NewTopic

from riverrun.kafka import librdkafka
from riverrun.kafka.errors import DENIED, MISSING_TOPIC
from riverrun.kafka.librdkafka import CLIENT, quiet
from riverrun.kafka.requests import REQUEST_SECONDS
from riverrun.kafka.tokens import client_properties

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.kafka.requests import Requests

log = logging.getLogger(__name__)

CLOCK_TOPIC = "riverrun-clock"
"""Brokers stamp its records, and tell the time in their answer. Nothing reads them."""
_CONFIG = {
    "message.timestamp.type": "LogAppendTime",
    "cleanup.policy": "delete",
    "retention.ms": "3600000",
    "segment.bytes": "1048576",
}
_FRESH_SECONDS = 60.0
"""After this time the brokers are asked again: the clocks of a machine stand still while it is suspended."""


class BrokersClock:
    """Tells the time by the brokers' clock.

    Asks with a record in a topic, as no answer to another request has the time. Threads may share one.

    Args:
        requests: Creates the topic.
        monotonic: Returns seconds that only rise.
        wall: Returns the seconds of the host's clock.
    """

    def __init__(
        self,
        requests: Requests,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,  # noqa: TID251 - compared with the brokers' clock
    ) -> None:
        self._requests = requests
        self._monotonic = monotonic
        self._wall = wall
        self._asked: tuple[int, float, float] | None = None
        self._is_denied = False

    def now_ms(self) -> int:
        """Return the time, as the brokers told it within the last minute; asks them if need be. Never later than the true time.

        Raises:
            BrokerError: If they do not answer.
        """
        if self._asked is not None:
            _told, at, wall = self._asked
            if 0 <= self._wall() - wall < _FRESH_SECONDS and self._monotonic() - at < _FRESH_SECONDS:
                return self.reckoned_ms()
        at, wall = self._monotonic(), self._wall()  # before the question: the answer is not later than this
        self._asked = self._ask(), at, wall
        return self._asked[0]

    def reckoned_ms(self) -> int:
        """Return the time by the last answer and the host's monotonic clock. Asks only if there was no answer yet."""
        if self._asked is None:
            return self.now_ms()
        told_ms, at, _wall = self._asked
        return told_ms + int((self._monotonic() - at) * 1000)

    def _ask(self) -> int:
        if not self._is_denied:
            told: list[int] = []
            failed = self._create() or self._send(told)
            if told:
                return told[0]
            failed = failed or KafkaError(librdkafka.TIMED_OUT)
            if failed.code() not in DENIED:
                raise self._requests.error(failed, f"ask for the brokers' time with topic {CLOCK_TOPIC}")
            self._is_denied = True
            log.warning(
                "this host's clock is used instead of the brokers' to judge the age of local state: %s of topic %s",
                failed.str(),
                CLOCK_TOPIC,
            )
        return int(self._wall() * 1000)

    def _send(self, told: list[int]) -> KafkaError | None:
        """Write a record, and add the time at which a broker appended it. Returns why it was refused."""
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
            "message.timeout.ms": int(REQUEST_SECONDS * 1000),
            "allow.auto.create.topics": False,
        }
        try:
            producer = Producer({**CLIENT, **client_properties(self._requests.kafka), **settings}, logger=quiet)
            producer.produce(CLOCK_TOPIC, b"", partition=0, on_delivery=delivered)
            producer.flush(REQUEST_SECONDS)
        except KafkaException as error:
            return error.args[0]
        return failed[0] if failed else None

    def _create(self) -> KafkaError | None:
        """Create the topic unless it exists. Returns why it was refused."""
        client = self._requests.client
        try:
            found = client.list_topics(CLOCK_TOPIC, timeout=REQUEST_SECONDS).topics[CLOCK_TOPIC].error
            if found is not None and found.code() in MISSING_TOPIC:
                client.create_topics([NewTopic(CLOCK_TOPIC, 1, -1, config=_CONFIG)])[CLOCK_TOPIC].result(
                    REQUEST_SECONDS
                )
            elif found is not None and found.code() in DENIED:
                return found
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                return error.args[0]
        return None
