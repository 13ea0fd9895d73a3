"""The interface of built-in operators: no object per record, one call per hop.

An operator gets key, value, timestamp and headers as arguments and calls `context.forward` with the same four. The
task binds `forward` to the children once, so a chain of operators is a chain of plain calls.

`process` is the definition of an operator. `riverrun.codegen` writes many operators as lines of one generated function, in
addition: tests compare the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, TypeVar, runtime_checkable

from riverrun.processor.api import ProcessingContext

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from riverrun.processor.handlers import DropReason
    from riverrun.records import Headers
    from riverrun.state.api import CachedUpdate, Place

T = TypeVar("T")
Forward: TypeAlias = "Callable[[Any, Any, int, Headers], None]"
"""Takes key, value, timestamp (ms) and headers of a record."""


class OperatorContext(ProcessingContext, Protocol):
    """An operator's view of its task. The attributes of the current record change with every record."""

    @property
    def forward(self) -> Callable[[Any, Any, int, Headers], None]:
        """Sends key, value, timestamp (ms) and headers to all children."""

    @property
    def headers(self) -> Headers:
        """Headers of the current record; empty within a punctuation."""

    @property
    def timestamp(self) -> int:
        """Event time of the current record, or the time of the punctuation, ms."""

    def forward_to(self, child: str) -> Callable[[Any, Any, int, Headers], None]:
        """Return the function that forwards to one child; raise `TopologyError` if there is no child of that name."""

    def acting_as(
        self,
        metadata: Place | None,
        act: Callable[[Any, Any, int, Headers], None],
        key: Any,
        value: Any,
        timestamp: int,
        headers: Headers,
    ) -> None:
        """Call a function with a record that was held back, as if the record of that place were the current one."""

    def by_time(self, act: Callable[[], None]) -> None:
        """Call a function that processes what time has brought out and not the current record."""

    def acting_at(self, time_ms: int, act: Callable[[], None]) -> None:
        """Act as if the current record had another time, ms, and no headers."""

    def forward_flushed(self, updates: Sequence[CachedUpdate], key_of: Callable[[Any], Any]) -> None:
        """Forward updates that a cache held back, as `Change`s; `key_of` converts a store's key to the forwarded one."""

    def processor_metadata(self, key: str) -> int | None:
        """Return a time (ms) stored with the committed offsets (`InternalProcessorContext.processorMetadataForKey`)."""

    def set_processor_metadata(self, key: str, time_ms: int) -> None:
        """Store a time with the offsets of the next commit. `key`, the name of a store, is unique within the task."""

    def shared(self, name: str, make: Callable[[], T]) -> T:
        """Return an object that operators of one task share. The first caller creates it; it lives as long as the task."""

    def close_with(self, close: Callable[[], None]) -> None:
        """Register a function to call when the operator closes, to close what it opened (`KTableValueGetter.close`)."""

    def drop(self, reason: DropReason) -> None:
        """Count a record that is dropped."""


class Operator(Protocol):
    """One node of a running task."""

    def init(self, context: OperatorContext) -> None:
        """Called once, before the first record."""

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        """Process one record."""


@runtime_checkable
class Closes(Protocol):
    """An operator that holds resources other than stores, which its task closes."""

    def close(self) -> None:
        """Called once, after the last record."""


@runtime_checkable
class FollowsStreamTime(Protocol):
    """An operator that holds back results until stream time reaches a point. Hosts may advance its time without a record."""

    def advance_stream_time(self, time_ms: int) -> None:
        """Advance as if a record with this event time (ms) had been seen; earlier times have no effect."""


@runtime_checkable
class MaySchedule(Protocol):
    """An operator that can schedule punctuations; its task checks for due ones after every record."""

    may_schedule: ClassVar[bool]


@runtime_checkable
class ForwardsRows(Protocol):
    """An operator that forwards the updates of a table, and may keep its rows in a store."""

    # The store that has the last update of each key; None if the rows are looked up elsewhere.
    rows_in: str | None


@runtime_checkable
class TakesRows(Protocol):
    """An operator whose results for a table's rows depend on these alone, in whatever order they come."""

    def for_rows(self) -> Operator:
        """Return an operator for rows that come without the values that they replace."""
