"""Stores values by name in a compacted topic of one partition; the latest value of a name is valid."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar

from riverrun.decoders import UnreadableError
from riverrun.hosting.process import SystemClock
from riverrun.kafka.admin import TopicSpec
from riverrun.kafka.producer import IdempotentProducer, TransactionalProducer
from riverrun.kafka.ranges import read_range
from riverrun.records import OffsetRange, TopicPartition, shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from riverrun.kafka.admin import Admin

T = TypeVar("T")
log = logging.getLogger(__name__)

_LONGEST_NAME = 10_000
_CONFIG = {"cleanup.policy": "compact", "retention.ms": "-1"}
_TRANSACTION_MS = 10_000
"""A writer that dies within a transaction hides later records of all names from readers for this time, ms."""


class ControlTopic:
    """A topic of values by name, created at the first write.

    Args:
        admin: Asks the brokers.
        topic: Its name, with which the names of its locks begin.
    """

    def __init__(self, admin: Admin, topic: str) -> None:
        self._admin = admin
        self._topic = topic
        self._tp = TopicPartition(topic, 0)

    def read(self) -> dict[str, bytes]:
        """Return the latest value of each name.

        Raises:
            BrokerError: If brokers do not answer.
        """
        if self._topic not in self._admin.partitions([self._topic]):
            return {}
        end = self._admin.stable_end_offsets([self._tp])[self._tp]  # writers with other locks may go on
        start = self._admin.beginning_offsets([self._tp])[self._tp]
        found: dict[str, bytes] = {}
        for _, records in read_range(self._admin, {self._tp: OffsetRange(start, end)}):
            for record in records:
                name = _name_in(record.key)
                if name is None:
                    continue
                found.pop(name, None)
                if record.value is not None:
                    found[name] = record.value
        return found

    def write(self, lock: str, values: Mapping[str, bytes | None], check: Callable[[], None] = lambda: None) -> None:
        """Write values atomically; of several concurrent writers with one lock, one succeeds.

        Args:
            lock: The application, import or export that the values are about. Writers with different locks do not meet.
            values: By name; None deletes a name.
            check: Called under the lock before anything is written; an error that it raises ends the attempt.

        Raises:
            TaskMigratedError: If another writer has taken the lock. Nothing was written.
            UnknownOutcomeError: If it is unknown whether the values were written.
            BrokerError: If brokers refuse or do not answer.
        """
        self._create()
        name = lock_name(self._topic, lock)
        producer = TransactionalProducer(self._admin.kafka, name, transaction_timeout_ms=_TRANSACTION_MS)
        try:
            producer.init()
            check()
            for name, value in values.items():
                producer.send(self._topic, name.encode(), value, SystemClock().now_ms(), (), 0)
            producer.commit({}, "")
        finally:
            producer.close()

    def put(self, values: Mapping[str, bytes | None]) -> None:
        """Write values of names that have only one writer, without the lock.

        Raises:
            BrokerError: If brokers refuse or do not answer.
        """
        self._create()
        producer = IdempotentProducer(self._admin.kafka)
        try:
            for name, value in values.items():
                producer.send(self._topic, name.encode(), value, SystemClock().now_ms(), (), 0)
            producer.flush()
        finally:
            producer.close()

    def _create(self) -> None:
        self._admin.create_topics([TopicSpec(self._topic, 1, _CONFIG)])


def readable(topic: str, values: Mapping[str, bytes], decode: Callable[[bytes], T]) -> list[T]:
    """Decode the records of a history. A record that cannot be read is left out with a warning.

    Args:
        topic: The topic, for the warning.
        values: The records by name.
        decode: Decodes one; raises `UnreadableError`.
    """
    found = []
    for name, value in values.items():
        try:
            found.append(decode(value))
        except UnreadableError as error:
            log.warning("record %s of topic %s is left out, as it cannot be read: %s", shortened(name), topic, error)
    return found


def _name_in(key: bytes | None) -> str | None:
    """Return the name that a record is kept under; None if Riverrun cannot have written it."""
    try:
        return None if key is None or len(key) > _LONGEST_NAME else key.decode()
    except UnicodeDecodeError:
        return None


def lock_name(topic: str, lock: str) -> str:
    """Return the transactional id of the writers that exclude each other."""
    return f"{topic}-{lock}"
