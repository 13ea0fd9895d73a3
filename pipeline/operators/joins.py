"""Joins of a stream with a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipeline.operators.stateless import OfValues
from pipeline.operators.tables import StoreGetter
from pipeline.processor.drops import DropReason
from pipeline.processor.fused import block
from pipeline.state.access import LooksUpInParts
from pipeline.state.cache import UNREAD

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.operators.tables import ValueGetter
    from pipeline.processor.fused import Site
    from pipeline.processor.operator import OperatorContext
    from pipeline.records import Headers
    from pipeline.state.access import CachedLookup


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
        self.open_table = open_table
        """Opens the lookup in a task."""
        self.key_of = key_of
        """Makes the key to look up; None for the record's own."""
        self.joiner = joiner
        self._context: OperatorContext
        self.lookup: ValueGetter
        """Gives the table's value of a key; known from `init` on."""

    def init(self, context: OperatorContext) -> None:
        """Open the table and bind the children."""
        self._context = context
        self.lookup = self.open_table(context)

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        """Join one record."""
        table_key = key if self.key_of is None or value is None else self.key_of(key, value)
        if table_key is None or value is None:
            self._context.drop(DropReason.NULL_KEY_OR_VALUE)
            return
        found = self.lookup(table_key)
        if found is not None:
            self._context.forward(key, self.joiner(key, value, found.value), timestamp, headers)

    def lines(self, at: Site) -> str:
        """Return the lines of `process`."""
        lookup = _lookup(at, self)
        if lookup is not None:
            known, unread = at.named("known", lookup.values.get), at.named("unread", UNREAD)
            refused = block(f"if {at.value} is None or {at.key} is None:", at.process)
            found = f"found = {known}({at.raw_key}, {unread})\n{_found_lines(at, lookup)}"
            joined = block("if found is not None:", _joined_lines(at, self.joiner, "found"))
            return f"{refused}\n{block('else:', found, joined)}"
        table_key = _table_key(at, self)
        if self.key_of is not None:
            table_key = f"None if {at.value} is None else {table_key}"
        refused = block(f"if {at.value} is None or table_key is None:", at.process)
        found = f"found = {at.named('operator', self)}.lookup(table_key)"
        joined = block("if found is not None:", _joined_lines(at, self.joiner, "found.value"))
        return f"table_key = {table_key}\n{refused}\n{block('else:', found, joined)}"

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
        self.open_table = open_table
        """Opens the lookup in a task."""
        self.key_of = key_of
        """Makes the key to look up; None for the record's own."""
        self.joiner = joiner
        self._context: OperatorContext
        self.lookup: ValueGetter
        """Gives the table's value of a key; known from `init` on."""

    def init(self, context: OperatorContext) -> None:
        """Open the table and bind the children."""
        self._context = context
        self.lookup = self.open_table(context)

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        """Join one record."""
        if value is None:
            self._context.drop(DropReason.NULL_VALUE)
            return
        table_key = key if self.key_of is None else self.key_of(key, value)
        found = None if table_key is None else self.lookup(table_key)
        joined = self.joiner(key, value, None if found is None else found.value)
        self._context.forward(key, joined, timestamp, headers)

    def lines(self, at: Site) -> str:
        """Return the lines of `process`."""
        lookup = _lookup(at, self)
        refused = block(f"if {at.value} is None:", at.process)
        if lookup is not None:
            known, unread = at.named("known", lookup.values.get), at.named("unread", UNREAD)
            found = f"found = None if {at.key} is None else {known}({at.raw_key}, {unread})\n{_found_lines(at, lookup)}"
            return f"{refused}\n{block('else:', found, _joined_lines(at, self.joiner, 'found'))}"
        found = (
            f"table_key = {_table_key(at, self)}\n"
            f"found = None if table_key is None else {at.named('operator', self)}.lookup(table_key)"
        )
        joined = _joined_lines(at, self.joiner, "None if found is None else found.value")
        return f"{refused}\n{block('else:', found, joined)}"

    def close(self) -> None:
        """Nothing to release."""


def _lookup(at: Site, join: StreamTableJoin | StreamTableLeftJoin) -> CachedLookup | None:
    """Return the look-ups of records' own keys in the cache of the table's store, in parts; None if it has to be called."""
    getter = join.open_table
    if at.raw_key is None or join.key_of is not None or not isinstance(getter, StoreGetter):
        return None
    store = at.stores.get(getter.store)
    return store.cached_lookup() if isinstance(store, LooksUpInParts) else None


def _table_key(at: Site, join: StreamTableJoin | StreamTableLeftJoin) -> str:
    return at.key if join.key_of is None else f"{at.named('key_of', join.key_of)}({at.key}, {at.value})"


def _found_lines(at: Site, lookup: CachedLookup) -> str:
    """Return the lines that look a value up by the bytes that the key was read from: `found`, or `unread` before."""
    find = f"found = {at.named('find', lookup.find)}({at.raw_key}, {at.key})"
    return block(f"if found is {at.named('unread', UNREAD)}:", find)


def _joined_lines(at: Site, joiner: Callable[[Any, Any, Any], Any], other: str) -> str:
    """Return the lines that join a record with the `other` value, and what is below."""
    if isinstance(joiner, OfValues):
        call = f"{at.named('joiner', joiner.joiner)}({at.value}, {other})"
    else:
        call = f"{at.named('joiner', joiner)}({at.key}, {at.value}, {other})"
    return f"{at.own('value')} = {call}\n{at.below(value=at.own('value'))}"
