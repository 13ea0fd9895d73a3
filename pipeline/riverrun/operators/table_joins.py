"""Joins of two tables by their keys."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.operators.tables import StoreGetter, TableStore, open_forwarded
from riverrun.processor.handlers import DropReason
from riverrun.records import Change, ValueAndTimestamp
from riverrun.state.values import is_atom

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.operators.tables import ValueGetter
    from riverrun.processor.operator import OperatorContext
    from riverrun.records import Headers


@dataclass(frozen=True, slots=True)
class TableJoinSide:
    """Rules by which one side of a join turns its own and the other side's value into a result.

    Args:
        joiner: `(own, other) -> result`; either may be None if it is not required.
        requires_own: Whether a result needs this side's value: inner joins, and the left side of left joins.
        requires_other: Whether a result needs the other side's value: inner joins, and the right side of left joins.
    """

    joiner: Callable[[Any, Any], Any]
    requires_own: bool
    requires_other: bool

    def result(self, own: Any, other: Any) -> Any:
        """Return the joined value; None if there is none."""
        if own is None and (self.requires_own or other is None):
            return None
        if other is None and self.requires_other:
            return None
        return self.joiner(own, other)


@dataclass(frozen=True, slots=True)
class JoinedGetter:
    """Opens the lookup of a join without a store, at the later one of both tables' timestamps, by the left side's rules."""

    open_left: Callable[[OperatorContext], ValueGetter]
    open_right: Callable[[OperatorContext], ValueGetter]
    side: TableJoinSide

    def __call__(self, context: OperatorContext) -> ValueGetter:
        return self._joined(self.open_left(context), self.open_right(context))

    def open_forwarded(self, context: OperatorContext) -> ValueGetter | None:
        """Open the lookup of what both tables have forwarded."""
        left, right = open_forwarded(self.open_left, context), open_forwarded(self.open_right, context)
        return None if left is None or right is None else self._joined(left, right)

    def _joined(self, left: ValueGetter, right: ValueGetter) -> ValueGetter:
        def get(key: Any, *_as_of: int) -> ValueAndTimestamp[Any] | None:
            own, other = left(key), right(key)
            value = self.side.result(own and own.value, other and other.value)
            if value is None:
                return None
            return ValueAndTimestamp(value, max(found.timestamp for found in (own, other) if found is not None))

        return get


class TableTableJoin:
    """One side of a join: looks up the other table for each update (`KTableKTable{Inner,Left,Right,Outer}Join`).

    The result's timestamp is the later one of both. Null keys are dropped.

    Args:
        is_versioned: Whether this side is a versioned table; then updates older than the latest of their key are dropped.
    """

    def __init__(
        self,
        open_other: Callable[[OperatorContext], ValueGetter],
        side: TableJoinSide,
        *,
        send_old_values: bool,
        is_versioned: bool,
    ) -> None:
        self._open_other = open_other
        self.side = side
        self._send_old_values = send_old_values
        self._is_versioned = is_versioned
        self._context: OperatorContext
        self._lookup: ValueGetter

    def init(self, context: OperatorContext) -> None:
        self._context = context
        # As its updates have been forwarded: one that waits in a cache is joined when its turn comes. Kafka Streams reads the
        # cache, so a result stays if both rows are deleted before a commit, or counts twice if both are added (KAFKA-4609).
        self._lookup = open_forwarded(self._open_other, context) or self._open_other(context)

    def process(self, key: Any, value: Change[Any], timestamp: int, headers: Headers) -> None:
        if key is None:
            self._context.drop(DropReason.NULL_KEY)
            return
        if self._is_versioned and not value.is_latest:
            self._context.drop(DropReason.OUT_OF_ORDER)
            return
        found = self._lookup(key)
        if found is None:
            if self.side.requires_other or (value.new is None and value.old is None):
                return
            other = None
        else:
            other, timestamp = found.value, max(timestamp, found.timestamp)
        of_old = self._again(key, other) if self._send_old_values and value.old is not None else other
        new = self.side.result(value.new, other)
        old = self.side.result(value.old, of_old) if self._send_old_values else None
        self._context.forward(key, Change(new, old, value.is_latest), timestamp, headers)

    def _again(self, key: Any, other: Any) -> Any:
        """Return the other table's value for a second call."""
        # The joiner may change its arguments in the first call.
        if is_atom(other):
            return other
        if not isinstance(self._open_other, StoreGetter):
            return deepcopy(other)
        found = self._lookup(key)
        return None if found is None else found.value


class TableJoinMerge:
    """Merges the results of both sides, and stores them if the table has a store (`KTableKTableJoinMerger`)."""

    def __init__(self, store: str | None, *, send_old_values: bool) -> None:
        self.rows_in = store
        self._send_old_values = send_old_values
        self._store: TableStore | None = None
        self._forward: Callable[[Any, Any, int, Headers], None]

    def init(self, context: OperatorContext) -> None:
        self._forward = context.forward
        if self.rows_in is not None:
            self._store = TableStore(context, self.rows_in, send_old_values=self._send_old_values)

    def process(self, key: Any, value: Change[Any], timestamp: int, headers: Headers) -> None:
        if self._store is not None:
            self._store.update(key, value.new, value.old, timestamp, headers)
        else:
            self._forward(key, value, timestamp, headers)
