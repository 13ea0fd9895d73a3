"""The interface of built-in operators: no object per record, one call per hop.

An operator gets key, value, timestamp and headers as arguments and calls `context.forward` with the same four. The
task binds `forward` to the children once, so a chain of operators is a chain of plain calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, runtime_checkable

from riverrun.processor.api import ProcessingContext

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from riverrun.processor.drops import DropReason
    from riverrun.records import Headers
    from riverrun.state.api import CachedUpdate, Place

T = TypeVar("T")


class OperatorContext(ProcessingContext, Protocol):
    """An operator's view of its task. The attributes of the current record change with every record."""

    @property
    def forward(self) -> Callable[[Any, Any, int, Headers], None]:
        """Sends key, value, timestamp (ms) and headers to all children."""
        ...

    @property
    def headers(self) -> Headers:
        """Headers of the current record; empty within a punctuation."""
        ...

    @property
    def timestamp(self) -> int:
        """Event time of the current record, or the time of the punctuation, ms."""
        ...

    def forward_to(self, child: str) -> Callable[[Any, Any, int, Headers], None]:
        """Forward to one child.

        Raises:
            TopologyError: If there is no child of that name.
        """
        ...

    def forward_as(
        self,
        metadata: Place | None,
        key: Any,
        value: Any,
        timestamp: int,
        headers: Headers,
    ) -> None:
        """Forward a held-back update as if its original record were the current one."""
        ...

    def forward_flushed(self, updates: Sequence[CachedUpdate], key_of: Callable[[Any], Any]) -> None:
        """Forward updates that a cache held back, as `Change`s.

        Args:
            updates: The updates from the cache.
            key_of: Converts a store's key to the forwarded key.
        """
        ...

    def processor_metadata(self, key: str) -> int | None:
        """Return a time (ms) stored with the committed offsets (`InternalProcessorContext.processorMetadataForKey`)."""
        ...

    def set_processor_metadata(self, key: str, time_ms: int) -> None:
        """Store a time with the offsets of the next commit. `key`, the name of a store, is unique within the task."""
        ...

    def shared(self, name: str, make: Callable[[], T]) -> T:
        """Return an object that operators of one task share. The first caller creates it; it lives as long as the task."""
        ...

    def close_with(self, close: Callable[[], None]) -> None:
        """Register a function to call when the operator closes, to close what it opened (`KTableValueGetter.close`)."""
        ...

    def drop(self, reason: DropReason) -> None:
        """Count a record that is dropped."""
        ...


class Operator(Protocol):
    """One node of a running task."""

    def init(self, context: OperatorContext) -> None:
        """Called once, before the first record."""
        ...

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        """Process one record."""
        ...

    def close(self) -> None:
        """Called once, after the last record."""
        ...


@runtime_checkable
class FollowsStreamTime(Protocol):
    """An operator that holds back results until stream time reaches a point. Hosts may advance its time without a record."""

    def advance_stream_time(self, time_ms: int) -> None:
        """Advance as if a record with this event time (ms) had been seen; earlier times have no effect."""
        ...


@runtime_checkable
class MaySchedule(Protocol):
    """An operator that may ask for punctuations: behind each record its task looks whether one is due."""

    may_schedule: ClassVar[bool]
