"""Holds a table's updates back until a time limit, or until their window has closed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.errors import StreamsError
from riverrun.records import ValueAndTimestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from riverrun.operators.tables import ValueGetter
    from riverrun.processor.operator import OperatorContext
    from riverrun.records import Change, Headers
    from riverrun.state.store_types import ChangeBuffer

_UNKNOWN_TIME = -1


@dataclass(frozen=True, slots=True)
class SuppressRules:
    """How long updates wait, and how many may wait.

    Args:
        wait_ms: When an update is due: this long after its time, in stream time; with `waits_for_close` this long after the
            end of its window.
        waits_for_close: Whether an update's time is the end of its window, and deletions are dropped, because downstream does
            not know the window. Otherwise the time is the record's, and deletions are forwarded.
        max_records: Highest number of keys.
        max_bytes: Highest size, bytes.
        emits_early: Whether the oldest updates are forwarded if the buffer is full; otherwise the task fails.
    """

    wait_ms: int
    waits_for_close: bool
    max_records: int
    max_bytes: int
    emits_early: bool


class Suppress:
    """Buffers updates and forwards the last one per key when it is due (`KTableSuppressProcessorSupplier`).

    An update is forwarded with its own timestamp, headers and origin. A key keeps the position of its first update.

    Args:
        node: Name of the node, for the error message.
        store: Name of the buffer.
        rules: When updates are forwarded.
    """

    def __init__(self, node: str, store: str, rules: SuppressRules) -> None:
        self._node = node
        self._store_name = store
        self._rules = rules
        self._observed = -1
        self._buffer: ChangeBuffer[Any, Any]
        self._context: OperatorContext

    def init(self, context: OperatorContext) -> None:
        """Open the buffer and bind the children."""
        self._context = context
        self._buffer = context.get_state_store(self._store_name)

    def times(self) -> tuple[int, ...]:
        """Return the highest time so far, ms."""
        return (self._observed,)

    def resume(self, times: Sequence[int]) -> None:
        """Continue from the committed times, so that due results stay due."""
        self._observed = times[0]

    def process(self, key: Any, value: Change[Any], timestamp: int, headers: Headers) -> None:
        """Buffer one update, and forward those that are due.

        Raises:
            StreamsError: If the buffer is full, and updates may not be forwarded early.
        """
        rules, buffer = self._rules, self._buffer
        self._observed = max(self._observed, timestamp)
        buffer.put(key.window.end if rules.waits_for_close else timestamp, key, value, timestamp, headers)
        self._forward_due()
        while self._is_over_capacity():
            if not rules.emits_early:
                raise self._full()
            self._forward_first()

    def advance_stream_time(self, time_ms: int) -> None:
        """Forward the updates that a record of this time would make due."""
        self._observed = max(self._observed, time_ms)
        self._forward_due()

    def _forward_due(self) -> None:
        expiry_ms = self._observed - self._rules.wait_ms
        while (first_time := self._buffer.first_time) is not None and first_time <= expiry_ms:
            self._forward_first()

    def _forward_first(self) -> None:
        key, change, entry = self._buffer.pop()
        if change.new is not None or not self._rules.waits_for_close:
            self._context.forward_as(entry.metadata, key, change, entry.timestamp, entry.headers)

    def _is_over_capacity(self) -> bool:
        return len(self._buffer) > self._rules.max_records or self._buffer.size_bytes > self._rules.max_bytes

    def _full(self) -> StreamsError:
        records, size, rules = len(self._buffer), self._buffer.size_bytes, self._rules
        message = (
            f"{self._node} buffer exceeded its max capacity. Currently [{records}/{rules.max_records}] records and "
            f"[{size}/{rules.max_bytes}] bytes."
        )
        return StreamsError(message, hint="Allow more, or let the oldest updates go early: emit_early_when_full().")

    def close(self) -> None:
        """Leave the buffer open: the task closes it."""


def suppressed_getter(
    context: OperatorContext, store: str, open_parent: Callable[[OperatorContext], ValueGetter]
) -> ValueGetter:
    """Return a function that reads a suppressed table: a buffered key's value as downstream knows it, else the parent's."""
    buffer: ChangeBuffer[Any, Any] = context.get_state_store(store)
    parent = open_parent(context)

    def get(key: Any, *as_of: int) -> ValueAndTimestamp[Any] | None:
        is_buffered, prior = buffer.prior_value(key)
        if not is_buffered:
            return parent(key, *as_of)
        return None if prior is None else ValueAndTimestamp(prior, _UNKNOWN_TIME)

    return get
