"""Rows that expire: a table whose rows are deleted when event time has passed their last update by a time to live."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from riverrun.operators.tables import TableStore
from riverrun.processor.operator import Closes
from riverrun.state.waiting_rows import WaitingRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from riverrun.processor.operator import Operator, OperatorContext
    from riverrun.records import Headers
    from riverrun.serde.api import Serde


@dataclass(slots=True)
class _Waiting:
    """The rows of a store that wait for their expiry, for all operators that write it.

    Args:
        rows: The rows; None until those that the store had at the start are among them.
    """

    observed: int = -1
    rows: WaitingRows | None = None


class ExpiringRows:
    """Deletes rows when stream time has passed their last update by `ttl_ms`, before the next record is processed.

    A deletion is an update of the table like others: its time is that of the expiry, and it has no headers. Rows expire in
    order of these times, then of the bytes of their keys, so restarts and bounded runs change nothing.

    Each row waits in a heap, which is made of the store when a task starts. A row that was updated meanwhile is added again
    when it is due. So a record costs as much as the rows that expire by it; an update costs one look-up in a dict.
    """

    def __init__(
        self, table: Operator, store: str, key_serde: Serde[Any], ttl_ms: int, *, send_old_values: bool
    ) -> None:
        self.rows_in = store
        self.table = table
        """The operator whose rows these are."""
        self._key_bytes, self._key_of = key_serde.serialize, key_serde.deserialize
        self._ttl_ms = ttl_ms
        self._send_old_values = send_old_values
        self._waiting = _Waiting()
        self._due: WaitingRows
        self._store: Any
        self._rows: TableStore
        self._context: OperatorContext

    def init(self, context: OperatorContext) -> None:
        """Open the store, and let its rows wait. Operators of one store (`cogroup`) share them, and the highest time."""
        self._context = context
        self._rows = TableStore(context, self.rows_in, send_old_values=self._send_old_values)
        self.table.init(context)
        self._store = context.get_state_store(self.rows_in)
        own = self._waiting
        self._waiting = waiting = context.shared(f"rows that expire in {self.rows_in}", lambda: own)
        # `resume` comes before `init`, and has set only this operator's own time.
        waiting.observed = max(waiting.observed, own.observed)
        if waiting.rows is None:
            due = {self._key_bytes(key): row.timestamp + self._ttl_ms for key, row in self._store.all()}
            waiting.rows = WaitingRows(due)
        self._due = waiting.rows

    def times(self) -> tuple[int, ...]:
        return (self._waiting.observed,)

    def resume(self, times: Sequence[int]) -> None:
        """Continue from the committed times, so that rows expire as they would have."""
        self._waiting.observed = times[0]

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        waiting = self._waiting
        if timestamp > waiting.observed:
            waiting.observed = timestamp
            self._expire()
        self.table.process(key, value, timestamp, headers)
        if key is None or value is None:
            return
        # A late record's own row may have expired on arrival.
        due_ms = timestamp + self._ttl_ms
        if self._due.add(self._key_bytes(key), due_ms) and due_ms <= waiting.observed:
            self._expire()

    def advance_stream_time(self, time_ms: int) -> None:
        """Let the rows expire that a record of this time would let expire."""
        if time_ms > self._waiting.observed:
            self._waiting.observed = time_ms
            self._expire()

    def _expire(self) -> None:
        for looked_at_ms, key_bytes in self._due.due(self._waiting.observed):
            key = self._key_of(key_bytes)
            row = self._store.get(key)
            if row is None:
                continue
            due_ms = row.timestamp + self._ttl_ms
            # Otherwise the row was updated while it waited.
            if due_ms == looked_at_ms:
                self._context.acting_at(due_ms, partial(self._delete, key, due_ms))
            else:
                self._due.add(key_bytes, due_ms)

    def _delete(self, key: Any, time_ms: int) -> None:
        self._rows.update(key, None, self._rows.replaced(key), time_ms, ())

    def close(self) -> None:
        if isinstance(self.table, Closes):
            self.table.close()
