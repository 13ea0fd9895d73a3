"""The interface of hosts that a task needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from riverrun.state.api import idle

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from riverrun.processor.lookups import LookupExecutor
    from riverrun.records import Headers
    from riverrun.state.api import StateBackend, StateStore, StoreBuilder


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
        """Send a record with its event time (ms); a partition of None is Kafka's default, murmur2 of the key bytes."""

    def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic, or raise `TopicError` if there is none."""


class Clock(Protocol):
    """The host's wall clock."""

    def now_ms(self) -> int:
        """Return the current time, in ms since the epoch."""


class Watch(Protocol):
    """Observes calls of nodes and the stores, for hosts that run tests. Other hosts have none."""

    def opened(self, builder: StoreBuilder, store: StateStore) -> None:
        """Observe that a store was opened; it is not in use yet."""

    def enter(self, node: str, key: Any, value: Any, topic: str | None) -> int:
        """Observe a call of a node with a key and a value, caused by a record of a topic; return the number of the call."""

    def leave(self, number: int) -> None:
        """Observe the end of a call, and so of all calls within it; a call that fails does not report its end."""

    def tell_of_keys(self, message: str) -> None:
        """Observe that a serde does not reproduce the bytes of an input's keys."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The connections that a host hands to a task.

    Args:
        global_stores: The global stores by name, opened and filled by the host.
        pause: Called now and then while a commit is prepared; meanwhile stores may be read by key, but not scanned.
        lookups: Runs look-ups; None for the event loop of this process (`runtime.event_loop`).
    """

    collector: RecordCollector
    backend: StateBackend
    clock: Clock
    global_stores: Mapping[str, Any] = field(default_factory=dict)
    pause: Callable[[], None] = idle
    watch: Watch | None = None
    lookups: LookupExecutor | None = None
