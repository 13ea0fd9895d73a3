"""What a task needs from its host."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from pipeline.state.api import idle

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pipeline.records import Headers
    from pipeline.state.api import StateBackend


class Collector(Protocol):
    """Where a task's records go."""

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Headers,
        partition: int | None,
    ) -> None:
        """Send one record.

        Args:
            topic: The topic's full name.
            key: Key bytes.
            value: Value bytes.
            timestamp: Event time, ms.
            headers: Headers.
            partition: The partition, or None for Kafka's default (murmur2 of the key bytes).
        """
        ...

    def partitions(self, topic: str) -> int:
        """Number of partitions of a topic.

        Raises:
            TopicError: If there is no such topic.
        """
        ...


class Clock(Protocol):
    """The host's wall clock."""

    def now_ms(self) -> int:
        """Now, in ms since the epoch."""
        ...


@dataclass(frozen=True, slots=True)
class Ports:
    """What a host hands to a task.

    Args:
        collector: Where records go.
        backend: Where state is kept.
        clock: What time it is.
        global_stores: The global stores by name, opened and filled by the host.
        pause: Called now and then while a commit is prepared: stores may be read by key meanwhile, but not scanned.
    """

    collector: Collector
    backend: StateBackend
    clock: Clock
    global_stores: Mapping[str, Any] = field(default_factory=dict)
    pause: Callable[[], None] = idle
