"""Counts of windows, as a consumer of committed records reads them from an output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientTopicPartition
from outputs import adapted

from riverrun.kafka.librdkafka import quiet
from riverrun.serde.serdes import LONG

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from riverrun.records import TopicPartition

_BATCH = 5_000
_SETTINGS = {
    "group.id": "looks-on",
    "enable.auto.commit": False,
    "isolation.level": "read_committed",
    "fetch.wait.max.ms": 10,
    "fetch.queue.backoff.ms": 5,  # else it waits for a second whenever it has read far ahead
}


class PublishedCounts:
    """Reads an output from its beginning.

    Args:
        kafka: Client properties.
        side: Whose output it is.
        output: All partitions of its topic.
    """

    def __init__(self, kafka: Mapping[str, str], side: str, output: Iterable[TopicPartition]) -> None:
        self._client = Consumer({**kafka, **_SETTINGS}, logger=quiet)
        self._client.assign([ClientTopicPartition(*tp, 0) for tp in output])
        self._side = side

    def read(self, seconds: float) -> list[tuple[bytes, int]]:
        """Return keys of windows, and their counts, as they were published next; waits so long for the first ones."""
        messages = self._client.consume(1, seconds)
        messages += self._client.consume(_BATCH, 0)
        found = [
            adapted(self._side, "windowed-count", message.key(), message.value())
            for message in messages
            if message.error() is None
        ]
        return [
            (key, LONG.deserialize(value))
            for key, value in filter(None, found)
            if key is not None and value is not None
        ]

    def close(self) -> None:
        """Release connections."""
        self._client.close()


class PublishedProgress:
    """The records that a side is done with, if it commits no offsets: those that its published counts have in them.

    Args:
        counts: What it publishes.
        total: Records in the source.
    """

    def __init__(self, counts: PublishedCounts, total: int) -> None:
        self._counts = counts
        self._latest: dict[bytes, int] = {}
        self._done = 0
        self.total = total

    def records(self) -> int:
        """How many."""
        while found := self._counts.read(0):
            for key, count in found:
                self._done += count - self._latest.get(key, 0)
                self._latest[key] = count
        return self._done

    def close(self) -> None:
        """Release connections."""
        self._counts.close()
