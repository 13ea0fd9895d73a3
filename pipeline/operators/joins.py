"""Joins of a stream with a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipeline.operators.table_store import key_value_lookup
from pipeline.operators.tables import StoreGetter
from pipeline.processor.drops import DropReason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pipeline.operators.tables import ValueGetter
    from pipeline.processor.operator import OperatorContext
    from pipeline.records import Headers
    from pipeline.state.cache import CachedLookup


class StreamTableJoin:
    """Looks each record's key up in a table, inner join (`KStreamKTableJoinProcessor`).

    Records whose looked-up key or whose value is null are dropped. Timestamp and headers are the stream's.

    Args:
        open_table: Opens the table's lookup in a task.
        key_of: `(key, value) -> key` to look up; None for the record's own.
        joiner: `(key, value, table_value) -> value`.
    """

    def __init__(
        self,
        open_table: Callable[[OperatorContext], ValueGetter],
        key_of: Callable[[Any, Any], Any] | None,
        joiner: Callable[[Any, Any, Any], Any],
    ) -> None:
        self._open_table = open_table
        self.key_of = key_of
        self.joiner = joiner
        self._context: OperatorContext
        self.lookup: ValueGetter
        """Gives the table's value of a key; known from `init` on."""

    def init(self, context: OperatorContext) -> None:
        """Open the table and bind the children."""
        self._context = context
        self.lookup = self._open_table(context)

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        """Join one record."""
        table_key = key if self.key_of is None or value is None else self.key_of(key, value)
        if table_key is None or value is None:
            self._context.drop(DropReason.NULL_KEY_OR_VALUE)
            return
        found = self.lookup(table_key)
        if found is not None:
            self._context.forward(key, self.joiner(key, value, found.value), timestamp, headers)

    def cached_lookup(self, stores: Mapping[str, Any]) -> CachedLookup | None:
        """How it looks up records' own keys in the cache of its table's store, in parts; None if it has to be called."""
        return _cached_lookup(self._open_table, stores) if self.key_of is None else None

    def close(self) -> None:
        """Nothing to release."""


class StreamTableLeftJoin:
    """Joins as `StreamTableJoin` does, but records without a match are joined with None.

    A record whose looked-up key is null is joined with None as well (KIP-962); only null values are dropped.

    Args:
        open_table: Opens the table's lookup in a task.
        key_of: `(key, value) -> key` to look up; None for the record's own.
        joiner: `(key, value, table_value or None) -> value`.
    """

    def __init__(
        self,
        open_table: Callable[[OperatorContext], ValueGetter],
        key_of: Callable[[Any, Any], Any] | None,
        joiner: Callable[[Any, Any, Any], Any],
    ) -> None:
        self._open_table = open_table
        self.key_of = key_of
        self.joiner = joiner
        self._context: OperatorContext
        self.lookup: ValueGetter
        """Gives the table's value of a key; known from `init` on."""

    def init(self, context: OperatorContext) -> None:
        """Open the table and bind the children."""
        self._context = context
        self.lookup = self._open_table(context)

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        """Join one record."""
        if value is None:
            self._context.drop(DropReason.NULL_VALUE)
            return
        table_key = key if self.key_of is None else self.key_of(key, value)
        found = None if table_key is None else self.lookup(table_key)
        joined = self.joiner(key, value, None if found is None else found.value)
        self._context.forward(key, joined, timestamp, headers)

    def cached_lookup(self, stores: Mapping[str, Any]) -> CachedLookup | None:
        """How it looks up records' own keys in the cache of its table's store, in parts; None if it has to be called."""
        return _cached_lookup(self._open_table, stores) if self.key_of is None else None

    def close(self) -> None:
        """Nothing to release."""


def _cached_lookup(
    open_table: Callable[[OperatorContext], ValueGetter], stores: Mapping[str, Any]
) -> CachedLookup | None:
    return key_value_lookup(stores.get(open_table.store)) if isinstance(open_table, StoreGetter) else None
