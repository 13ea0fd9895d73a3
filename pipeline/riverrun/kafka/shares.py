"""A process's share of topics: a member of a consumer group that learns which partitions are its own, and reads nothing.

Any member with Kafka's range assignor can share the group. Offsets are kept elsewhere; the group has a copy for tools that
show lag.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as ClientTopicPartition

from riverrun.kafka.errors import BUSY, UNREACHABLE, mapped_errors, streams_error
from riverrun.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from riverrun.kafka.door import Kafka

log = logging.getLogger(__name__)

_SETTINGS = {
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "group.protocol": "classic",
    "partition.assignment.strategy": "range",
}


class _Heard:
    """Holds the last assignment."""

    # Not in the share itself: its client would be in a reference cycle, and live until garbage collection.
    def __init__(self) -> None:
        self.given: frozenset[TopicPartition] | None = None
        self.give_up: Callable[[], None] = lambda: None
        self.failure: BaseException | None = None

    def assigned(self, consumer: Any, partitions: list[ClientTopicPartition]) -> None:
        """Take the partitions."""
        self.given = frozenset(TopicPartition(tp.topic, tp.partition) for tp in partitions)
        # The client itself reads none of them.
        consumer.assign([])

    def revoked(self, consumer: Any, _partitions: list[ClientTopicPartition]) -> None:
        """Let the owner commit before others get the partitions."""
        self.given = None
        try:
            self.give_up()
        except BaseException as error:  # noqa: BLE001 - raised by `poll`; the library's thread would lose it
            self.failure = error
        consumer.unassign()


class PartitionShare:
    """A member of a consumer group that shares the partitions of topics.

    Args:
        overrides: Consumer properties of the user, such as `session.timeout.ms`.
    """

    def __init__(self, kafka: Kafka, group: str, topics: Iterable[str], overrides: Mapping[str, str]) -> None:
        self._topics = list(topics)
        self._heard = _Heard()
        forced = {
            key: _SETTINGS[key] for key in ("enable.auto.commit", "group.protocol", "partition.assignment.strategy")
        }
        with mapped_errors(f"join group {group}"):
            self._consumer = kafka.consumer({**overrides, "group.id": group, **forced}, _SETTINGS)
        self._group = group
        self._subscribe()

    def poll(self, give_up: Callable[[], None]) -> frozenset[TopicPartition] | None:
        """Take part in the group: return the partitions of a new assignment; None if there is none.

        `give_up` is called before the present partitions belong to others.
        """
        heard = self._heard
        heard.give_up = give_up
        try:
            with mapped_errors(f"take part in group {self._group}"):
                message = self._consumer.poll(0)
        finally:
            heard.give_up = lambda: None
        failure, heard.failure = heard.failure, None
        if failure is not None:
            raise failure
        # Unreachable brokers are no error here: the library reconnects.
        if message is not None and message.error() and message.error().code() not in UNREACHABLE | BUSY:
            raise streams_error(message.error(), f"take part in group {self._group}")
        given, heard.given = heard.given, None
        return given

    def rejoin(self) -> None:
        """Give up all partitions, and join the group again with the next polls."""
        with mapped_errors(f"leave group {self._group}"):
            self._consumer.unsubscribe()
        self._subscribe()

    def note(self, offsets: Mapping[TopicPartition, int], metadata: str = "") -> None:
        """Commit a copy of offsets, for tools that show lag, with metadata."""
        copies = [ClientTopicPartition(tp.topic, tp.partition, offset, metadata) for tp, offset in offsets.items()]
        # Nothing depends on the copy, so a failure has no effect.
        with suppress(KafkaException):
            self._consumer.commit(offsets=copies, asynchronous=True)

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()

    def _subscribe(self) -> None:
        heard = self._heard
        with mapped_errors(f"join group {self._group}"):
            self._consumer.subscribe(
                self._topics, on_assign=heard.assigned, on_revoke=heard.revoked, on_lost=heard.revoked
            )
