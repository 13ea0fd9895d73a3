"""Joins of a stream with a table, or with a versioned table, whose value at the record's own time it meets (KIP-914)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from riverrun.operators.waiting_records import WaitingRecords
from riverrun.processor.handlers import DropReason

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from riverrun.operators.tables import ValueGetter
    from riverrun.processor.operator import OperatorContext
    from riverrun.records import Headers
    from riverrun.serde.api import Serde


class StreamTableJoin:
    """Looks up each record's key in a table, as an inner join (`KStreamKTableJoinProcessor`).

    Records whose looked-up key or whose value is null are dropped. Timestamp and headers are the stream's.

    Args:
        key_of: `(key, value) -> key` to look up; None for the record's own key.
        joiner: `(key, value, table_value) -> value`.
    """

    def __init__(
        self,
        open_table: Callable[[OperatorContext], ValueGetter],
        key_of: Callable[[Any, Any], Any] | None,
        joiner: Callable[[Any, Any, Any], Any],
    ) -> None:
        self.open_table = open_table
        """Opens the lookup in a task."""
        self.key_of = key_of
        """Returns the key to look up; None for the record's own key."""
        self.joiner = joiner
        self.lookup: ValueGetter
        """Returns the table's value of a key; set by `init`."""
        self._context: OperatorContext

    def init(self, context: OperatorContext) -> None:
        self._context = context
        self.lookup = self.open_table(context)

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        table_key = None if value is None else key if self.key_of is None else self.key_of(key, value)
        if table_key is None:
            self._context.drop(DropReason.NULL_KEY_OR_VALUE)
            return
        found = self.lookup(table_key)
        if found is not None:
            self._context.forward(key, self.joiner(key, value, found.value), timestamp, headers)


class StreamTableLeftJoin:
    """Joins as `StreamTableJoin` does, but records without a match are joined with None.

    A record whose looked-up key is null is joined with None as well (KIP-962); only null values are dropped.
    """

    def __init__(
        self,
        open_table: Callable[[OperatorContext], ValueGetter],
        key_of: Callable[[Any, Any], Any] | None,
        joiner: Callable[[Any, Any, Any], Any],
    ) -> None:
        self.open_table = open_table
        """Opens the lookup in a task."""
        self.key_of = key_of
        """Returns the key to look up; None for the record's own key."""
        self.joiner = joiner
        self.lookup: ValueGetter
        """Returns the table's value of a key; set by `init`."""
        self._context: OperatorContext

    def init(self, context: OperatorContext) -> None:
        self._context = context
        self.lookup = self.open_table(context)

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if value is None:
            self._context.drop(DropReason.NULL_VALUE)
            return
        table_key = key if self.key_of is None else self.key_of(key, value)
        found = None if table_key is None else self.lookup(table_key)
        joined = self.joiner(key, value, None if found is None else found.value)
        self._context.forward(key, joined, timestamp, headers)


class StreamVersionedTableJoin:
    """Looks up each record's key as of the record's time (`KStreamKTableJoinProcessor`).

    Null keys and null values are dropped; left joins drop only null values.

    Args:
        open_table: Opens the table's lookup in a task; the lookup takes `(key, as_of_ms)`.
        joiner: `(key, value, table_value or None) -> value`.
    """

    def __init__(
        self,
        open_table: Callable[[OperatorContext], ValueGetter],
        joiner: Callable[[Any, Any, Any], Any],
        *,
        left_join: bool,
    ) -> None:
        self._open_table = open_table
        self._joiner = joiner
        self._left_join = left_join
        self._context: OperatorContext
        self._lookup: ValueGetter

    def init(self, context: OperatorContext) -> None:
        self._context = context
        self._lookup = self._open_table(context)

    def accepts(self, key: Any, value: Any) -> bool:
        """Return whether a record is joined; count it as dropped if not."""
        if value is None or (key is None and not self._left_join):
            self._context.drop(DropReason.NULL_KEY_OR_VALUE)
            return False
        return True

    def join(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        """Forward the result of a record that is accepted, if it has one."""
        found = None if key is None else self._lookup(key, timestamp)
        if found is not None or self._left_join:
            result = self._joiner(key, value, None if found is None else found.value)
            self._context.forward(key, result, timestamp, headers)

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if self.accepts(key, value):
            self.join(key, value, timestamp, headers)


class BufferedStreamTableJoin:
    """Keeps records back until no update of the table is expected for their time (KIP-923).

    A record waits until stream time has passed its own by the grace period. One that is older on arrival is joined at once.
    Waiting records are forwarded in order of time, key and arrival, with their own headers and place.
    """

    def __init__(
        self, join: StreamVersionedTableJoin, store: str, serdes: tuple[Serde[Any], Serde[Any]], grace_ms: int
    ) -> None:
        self._join = join
        self._waiting = WaitingRecords(store, *serdes)
        self._grace_ms = grace_ms
        self._observed = -1
        self._context: OperatorContext

    def init(self, context: OperatorContext) -> None:
        """Open the table and the buffer; records that waited before a restart wait on."""
        self._context = context
        self._join.init(context)
        self._waiting.open(context)
        self._observed = max(self._observed, self._waiting.latest_ms)

    def times(self) -> tuple[int, ...]:
        """Return the highest time so far, ms, and how many records have waited, which orders records of one time."""
        return (self._observed, self._waiting.sequence)

    def resume(self, times: Sequence[int]) -> None:
        self._observed, self._waiting.sequence = times

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        """Let one record wait, or join it if it is late; then join the records that have waited long enough."""
        if not self._join.accepts(key, value):
            return
        # Kafka Streams fails on a null key here; without a grace period it joins it at once, as this does.
        if key is None or timestamp < self._observed - self._grace_ms:
            self._join.join(key, value, timestamp, headers)
            return
        self._observed = max(self._observed, timestamp)
        self._waiting.add(key, value, timestamp, headers, self._context.record_metadata)
        for waited in self._waiting.until(self._observed - self._grace_ms):
            self._context.acting_as(
                waited.place, self._join.join, waited.key, waited.value, waited.timestamp, waited.headers
            )
