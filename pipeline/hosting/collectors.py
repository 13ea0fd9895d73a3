"""The collector (`RecordCollector`) of tasks whose records go nowhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.records import Headers


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
