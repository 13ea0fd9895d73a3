"""Rows that expire: a table whose rows are deleted when event time has passed their last update by a time to live."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any

from riverrun.operators.tables import TableStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from riverrun.processor.operator import Operator, OperatorContext
    from riverrun.records import Headers
    from riverrun.serde.api import Serde


@dataclass(slots=True)
class _Waiting:
    """The rows of a store that wait for their expiry, for all operators that write it.

    Args:
        observed: The highest time so far, ms.
        heap: When rows are looked at, ms, with the bytes of their keys.
        due: By key, the time at which it is looked at next, ms.
        is_loaded: Whether the rows that the store had at the start wait as well.
    """

    observed: int = -1
    heap: list[tuple[int, bytes]] = field(default_factory=list)
    due: dict[bytes, int] = field(default_factory=dict)
    is_loaded: bool = False

    def add(self, key_bytes: bytes, due_ms: int) -> None:
        """Let a row wait until a time, ms."""
        self.due[key_bytes] = due_ms
        heappush(self.heap, (due_ms, key_bytes))


class ExpiringRows:
    """Deletes rows when stream time has passed their last update by `ttl_ms`, before the next record is processed.

    A deletion is an update of the table like others: its time is that of the expiry, and it has no headers. Rows expire in
    order of these times, then of the bytes of their keys, so restarts and bounded runs change nothing.

    Each row waits in a heap, which is made of the store when a task starts. A row that was updated meanwhile waits again when
    its turn comes. So a record costs as much as the rows that expire by it; an update is one look at a dict.

    Args:
        table: The operator of the table.
        store: Name of its store, which has the times of rows.
        key_serde: Serde of the keys.
        ttl_ms: The time to live, ms.
        send_old_values: Whether updates carry the values that they replaced.
    """

    def __init__(
        self, table: Operator, store: str, key_serde: Serde[Any], ttl_ms: int, *, send_old_values: bool
    ) -> None:
        self.rows_in = store
        self._table = table
        self._key_bytes, self._key_of = key_serde.serialize, key_serde.deserialize
        self._ttl_ms = ttl_ms
        self._send_old_values = send_old_values
        self._waiting = _Waiting()
        self._store: Any
        self._rows: TableStore
        self._context: OperatorContext

    def init(self, context: OperatorContext) -> None:
        """Open the store, and let its rows wait. Operators of one store (`cogroup`) share them, and the highest time."""
        self._context = context
        self._rows = TableStore(context, self.rows_in, send_old_values=self._send_old_values)
        self._table.init(context)
        self._store = context.get_state_store(self.rows_in)
        own = self._waiting
        self._waiting = waiting = context.shared(f"rows that expire in {self.rows_in}", lambda: own)
        waiting.observed = max(waiting.observed, own.observed)
        if not waiting.is_loaded:
            waiting.is_loaded = True
            waiting.due = {self._key_bytes(key): row.timestamp + self._ttl_ms for key, row in self._store.all()}
            waiting.heap = [(due_ms, key) for key, due_ms in waiting.due.items()]
            heapify(waiting.heap)

    def times(self) -> tuple[int, ...]:
        """Return the highest time so far, ms."""
        return (self._waiting.observed,)

    def resume(self, times: Sequence[int]) -> None:
        """Continue from the committed times, so that rows expire as they would have."""
        self._waiting.observed = times[0]

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        """Let rows expire, then process a record, whose own row may have expired on arrival."""
        waiting = self._waiting
        if timestamp > waiting.observed:
            waiting.observed = timestamp
            self._expire()
        self._table.process(key, value, timestamp, headers)
        if key is None or value is None:
            return
        key_bytes, due_ms = self._key_bytes(key), timestamp + self._ttl_ms
        known = waiting.due.get(key_bytes)
        if known is None or due_ms < known:
            waiting.add(key_bytes, due_ms)
            if due_ms <= waiting.observed:
                self._expire()

    def advance_stream_time(self, time_ms: int) -> None:
        """Let the rows expire that a record of this time would let expire."""
        if time_ms > self._waiting.observed:
            self._waiting.observed = time_ms
            self._expire()

    def _expire(self) -> None:
        waiting = self._waiting
        heap, due = waiting.heap, waiting.due
        while heap and heap[0][0] <= waiting.observed:
            looked_at_ms, key_bytes = heappop(heap)
            if due.get(key_bytes) != looked_at_ms:
                continue  # it was updated by an older record, and is looked at earlier
            del due[key_bytes]
            key = self._key_of(key_bytes)
            row = self._store.get(key)
            if row is None:
                continue
            due_ms = row.timestamp + self._ttl_ms
            if due_ms == looked_at_ms:
                self._context.acting_at(due_ms, partial(self._delete, key, due_ms))
            else:
                waiting.add(key_bytes, due_ms)

    def _delete(self, key: Any, time_ms: int) -> None:
        self._rows.update(key, None, self._rows.replaced(key), time_ms, ())

    def close(self) -> None:
        """Close the operator of the table."""
        self._table.close()
