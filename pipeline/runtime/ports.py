"""The interface of hosts, as a task needs it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from pipeline.state.api import idle

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pipeline.records import Headers
    from pipeline.state.api import StateBackend, StateStore, StoreBuilder


class RecordCollector(Protocol):
    """Takes a task's records to their topics."""

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


class Watch(Protocol):
    """Looks on at calls of nodes and at stores, for a host for tests. The other hosts have none."""

    def opened(self, builder: StoreBuilder, store: StateStore) -> None:
        """A store was opened, and nobody uses it yet."""
        ...

    def enter(self, node: str, key: Any, value: Any, topic: str | None) -> int:
        """A node is called with a key and a value, because of a record of a topic; returns the number of the call."""
        ...

    def leave(self, number: int) -> None:
        """A call has ended, and with it all calls within it; a call that fails does not say so."""
        ...


@dataclass(frozen=True, slots=True)
class Ports:
    """The connections that a host hands to a task.

    Args:
        collector: Where records go.
        backend: Where state is kept.
        clock: What time it is.
        global_stores: The global stores by name, opened and filled by the host.
        pause: Called now and then while a commit is prepared: stores may be read by key meanwhile, but not scanned.
        watch: Looks on at what nodes do with values, if anybody does.
    """

    collector: RecordCollector
    backend: StateBackend
    clock: Clock
    global_stores: Mapping[str, Any] = field(default_factory=dict)
    pause: Callable[[], None] = idle
    watch: Watch | None = None
