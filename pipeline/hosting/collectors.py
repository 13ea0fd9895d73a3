"""Collectors (`RecordCollector`) of tasks whose records go elsewhere than to the topics they are written to, or nowhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.records import Headers
    from pipeline.runtime.ports import Collector


class PublishedCollector:
    """A collector that sends some topics elsewhere: public outputs of a version that is not live go to staging topics."""

    def __init__(self, inner: Collector, published: Mapping[str, str]) -> None:
        """The mapping is by the name the topology uses."""
        self._inner = inner
        self._published = published

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Headers,
        partition: int | None,
    ) -> None:
        """Send to where the topic's records go."""
        self._inner.send(self._published.get(topic, topic), key, value, timestamp, headers, partition)

    def partitions(self, topic: str) -> int:
        """Number of partitions of where the topic's records go."""
        return self._inner.partitions(self._published.get(topic, topic))


class Nowhere:
    """The collector of a task that only restores: it sends nothing."""

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Headers,
        partition: int | None,
    ) -> None:
        """Never called: nothing is processed."""
        raise AssertionError(topic, key, value, timestamp, headers, partition)

    def partitions(self, topic: str) -> int:
        """Never called either."""
        raise AssertionError(topic)
