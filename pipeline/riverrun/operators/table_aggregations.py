"""Aggregations of a table: an update subtracts its old value from one group and adds its new value to another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.errors import ProcessingError
from riverrun.operators.stateless import pair_of
from riverrun.operators.tables import TableStore
from riverrun.records import Change
from riverrun.state.folds import step

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.processor.operator import OperatorContext
    from riverrun.records import Headers
    from riverrun.state.codec import Folded

# Half the time of calling the class.
_made = tuple.__new__


class TableRepartitionMap:
    """Sends both sides of each update to the groups they belong to (`KTableRepartitionMap`).

    It sends one record if both sides belong to one group (KIP-904), otherwise the old side first. Sides whose group or value is
    null are left out.

    Args:
        mapper: `(key, value) -> (group, value)`, or None to leave the row out; not called for deletions.
        is_versioned: Whether the table is versioned; then only updates with the highest timestamp of their key count.
    """

    def __init__(self, mapper: Callable[[Any, Any], tuple[Any, Any] | None], *, is_versioned: bool) -> None:
        self._mapper = mapper
        self._is_versioned = is_versioned
        self._forward: Callable[[Any, Any, int, Headers], None]

    def init(self, context: OperatorContext) -> None:
        self._forward = context.forward

    def process(self, key: Any, value: Change[Any], timestamp: int, headers: Headers) -> None:
        """Send the sides of one update to their groups; a null key is an error."""
        if key is None:
            raise ProcessingError("Record key for the grouping KTable should not be null.")
        if self._is_versioned and not value.is_latest:
            return
        new_key, new = self._group_of(key, value.new)
        old_key, old = self._group_of(key, value.old)
        if new is not None and old is not None and new_key == old_key:
            self._forward(new_key, Change(new, old, value.is_latest), timestamp, headers)
            return
        if old is not None:
            self._forward(old_key, Change(None, old, value.is_latest), timestamp, headers)
        if new is not None:
            self._forward(new_key, Change(new, None, value.is_latest), timestamp, headers)

    def _group_of(self, key: Any, value: Any) -> tuple[Any, Any]:
        pair = None if value is None else self._mapper(key, value)
        return (None, None) if pair is None or pair_of(pair)[0] is None else pair


@dataclass(frozen=True, slots=True)
class TableAggregator:
    """The user's functions for the two sides of an update of a table.

    Args:
        initializer: Returns the initial aggregate; None if the first value is the aggregate (`reduce`).
        add: `(key, value, aggregate) -> aggregate` for new values; None deletes.
        subtract: `(key, value, aggregate) -> aggregate` for old values; None deletes.
    """

    initializer: Callable[[], Any] | None
    add: Callable[[Any, Any, Any], Any]
    subtract: Callable[[Any, Any, Any], Any]

    def added(self, key: Any, value: Any, aggregate: Any) -> Any:
        """Return the aggregate with a value added, starting from the initial one if there is none."""
        if aggregate is None:
            if self.initializer is None:
                return value
            aggregate = self.initializer()
        return self.add(key, value, aggregate)


@dataclass(frozen=True, slots=True)
class UpdateFold:
    """Treats both sides of an update as one step of an aggregation, for stores that fold."""

    aggregator: TableAggregator

    def first(self, key: Any, update: Change[Any]) -> Any:
        """Return the aggregate of a group's first update, which has nothing to subtract from."""
        return None if update.new is None else self.aggregator.added(key, update.new, None)

    def add(self, key: Any, update: Change[Any], aggregate: Any) -> Any:
        """Return the aggregate after an update; None deletes."""
        new, old, _ = update
        if old is not None:
            aggregate = self.aggregator.subtract(key, old, aggregate)
        return aggregate if new is None else self.aggregator.added(key, new, aggregate)


class TableAggregate:
    """Aggregates the rows of a table per group (`KTableAggregate`, `KTableReduce`): subtracts first, then adds.

    The result's timestamp is the highest of the group so far.
    """

    def __init__(self, store: str, aggregator: TableAggregator, *, send_old_values: bool) -> None:
        self.rows_in = store
        self.update = UpdateFold(aggregator)
        self._send_old_values = send_old_values
        self._store: TableStore
        self._forward: Callable[[Any, Any, int, Headers], None]
        self._writing_fold: Callable[[Any, Any, int], Folded] | None

    def init(self, context: OperatorContext) -> None:
        self._forward = context.forward
        self._store = TableStore(context, self.rows_in, send_old_values=self._send_old_values)
        self._writing_fold = self._store.writing_fold(self.update)

    def process(self, key: Any, value: Change[Any], timestamp: int, headers: Headers) -> None:
        """Aggregate one update; a null key is an error."""
        if key is None:
            message = f"Record key for KTable aggregate operator with state {self.rows_in} should not be null."
            raise ProcessingError(message)
        if self._writing_fold is not None:
            _, _, new, old, timestamp = self._writing_fold(key, value, timestamp)
            self._forward(key, _made(Change, (new, old, True)), timestamp, headers)
            return
        stored = self._store.get(key)
        new, touched_at = step(self.update, key, value, timestamp, *(stored or (None, -1)))
        self._store.update(key, new, self._store.replaced(key), touched_at, headers)
