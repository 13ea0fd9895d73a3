"""Messages between the driver of a deployment and its instances, over a topic.

All of them are known to reach the brokers, and perhaps nothing else. Executors may not reach a client of Spark Connect,
and Spark ends tasks by killing their processes.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from riverrun.decoders import Line, Natural, Small, UnreadableError, Word, foreign_decoder
from riverrun.errors import RangeError, StreamsError
from riverrun.hosting.clock import SystemClock
from riverrun.kafka.admin import TopicSpec
from riverrun.kafka.consumer import RecordConsumer
from riverrun.kafka.producer import IdempotentProducer
from riverrun.records import TopicPartition

if TYPE_CHECKING:
    from riverrun.kafka.admin import Admin

DEPLOYMENTS_TOPIC = "riverrun-deployments"
log = logging.getLogger(__name__)

_CONFIG = {"cleanup.policy": "delete", "retention.ms": str(24 * 3600 * 1000)}
_TP = TopicPartition(DEPLOYMENTS_TOPIC, 0)
_BATCH = 1_000


class Stop(msgspec.Struct, frozen=True, tag=True):
    """A message to the instances: commit, hand over tasks, and end."""


class InstanceReport(msgspec.Struct, frozen=True, tag=True):
    """A message from an instance about its progress.

    Args:
        number: Number of the instance within the deployment, from 0.
        host: The machine on which it runs.
        state: Name of its `WorkerState`.
        server: `host:port` where it answers queries; empty if it has no server.
        processed: Records processed since its start on this machine.
        commits: Commits of tasks since then.
    """

    number: Small
    host: Line
    state: Word
    server: Word
    processed: Natural
    commits: Natural


Message = Stop | InstanceReport
_message = foreign_decoder(Message)


class Channel:
    """The messages of one deployment, from its beginning on.

    Args:
        admin: Client for requests to the brokers.
        deployment: Name of the deployment.
    """

    def __init__(self, admin: Admin, deployment: str) -> None:
        self._admin = admin
        self._key = deployment.encode()
        self._consumer: RecordConsumer | None = None
        self._producer: IdempotentProducer | None = None

    def tell(self, message: Message) -> None:
        """Send a message to all. After an error it may be sent again: receivers act on a repeated message only once.

        Raises:
            BrokerError: If brokers refuse or do not answer.
            UnknownOutcomeError: If a producer became unusable; the next call makes a new one.
        """
        if self._producer is None:
            _create(self._admin)
            self._producer = IdempotentProducer(self._admin.kafka)
        now_ms = SystemClock().now_ms()
        try:
            self._producer.send(DEPLOYMENTS_TOPIC, self._key, msgspec.json.encode(message), now_ms, (), 0)
            self._producer.flush()
        except StreamsError:
            self._fall_silent()
            raise

    def hear(self, timeout_s: float) -> list[Message]:
        """Return the messages since the last call; wait for them up to a timeout.

        Raises:
            BrokerError: If brokers refuse or do not answer.
        """
        consumer = self._consumer or self._listen()
        try:
            polled = consumer.poll(_BATCH, timeout_s)
        except RangeError:  # the next record to read has been deleted meanwhile
            self._forget()
            return []
        except StreamsError:
            self._forget()
            raise
        return [
            message
            for key, value, *_ in polled.records.get(_TP, [])
            if key == self._key and value is not None and (message := self._read(value)) is not None
        ]

    def _read(self, value: bytes) -> Message | None:
        try:
            found: Message = _message(value)
        except UnreadableError as error:
            log.warning("a message in topic %s is passed over, as it cannot be read: %s", DEPLOYMENTS_TOPIC, error)
            return None
        return found

    def close(self) -> None:
        """Release connections."""
        self._forget()
        self._fall_silent()

    def _fall_silent(self) -> None:
        if self._producer is not None:
            self._producer.close()
            self._producer = None

    def _listen(self) -> RecordConsumer:
        """Return a consumer from the oldest record on: an instance that starts late must still read the order to stop."""
        _create(self._admin)
        start = self._admin.beginning_offsets([_TP])
        self._consumer = consumer = RecordConsumer(self._admin.kafka)
        consumer.assign(start)
        return consumer

    def _forget(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None


def _create(admin: Admin) -> None:
    admin.create_topics([TopicSpec(DEPLOYMENTS_TOPIC, 1, _CONFIG)])
