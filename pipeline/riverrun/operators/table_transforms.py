"""Operators that change a table value by value: by filters, by functions, or by a user's transformer with stores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from riverrun.errors import ProcessingError
from riverrun.operators.process import UserContext
from riverrun.operators.tables import TableStore, open_forwarded
from riverrun.processor.suppliers import VALUE_TRANSFORMER, supplied
from riverrun.records import Change, ValueAndTimestamp

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.operators.tables import ValueGetter
    from riverrun.processor.api import ValueTransformerWithKey
    from riverrun.processor.operator import OperatorContext
    from riverrun.records import Headers, Record


@dataclass(frozen=True, slots=True)
class MappedGetter:
    """Opens the lookup of a table without a store, which computes `compute(key, value)` from the parent's value.

    Values for which it returns None are not in the table.
    """

    open_parent: Callable[[OperatorContext], ValueGetter]
    compute: Callable[[Any, Any], Any]

    def __call__(self, context: OperatorContext) -> ValueGetter:
        return self._computed(self.open_parent(context))

    def open_forwarded(self, context: OperatorContext) -> ValueGetter | None:
        """Open the lookup of what the parent has forwarded."""
        parent = open_forwarded(self.open_parent, context)
        return None if parent is None else self._computed(parent)

    def _computed(self, parent: ValueGetter) -> ValueGetter:
        compute = self.compute

        def get(key: Any, *as_of: int) -> ValueAndTimestamp[Any] | None:
            found = parent(key, *as_of)
            value = None if found is None else compute(key, found.value)
            return None if found is None or value is None else ValueAndTimestamp(value, found.timestamp)

        return get


class TableFilter:
    """Keeps the rows for which a predicate holds (`KTableFilter`).

    A row that does not pass is forwarded as a deletion, unless old values are sent and show that the row was not there before.

    Args:
        keep: `(key, value) -> value` if the row passes, else None; not called for deletions.
        store: Name of the store, or None if the rows are looked up in the parent.
        is_versioned: Whether the parent is a versioned table; then every deletion is forwarded.
    """

    def __init__(
        self, keep: Callable[[Any, Any], Any], store: str | None, *, send_old_values: bool, is_versioned: bool
    ) -> None:
        self._keep = keep
        self.rows_in = store
        self._send_old_values = send_old_values
        self._skips_nothing = send_old_values and not is_versioned
        self._store: TableStore | None = None
        self._forward: Callable[[Any, Any, int, Headers], None]

    def init(self, context: OperatorContext) -> None:
        self._forward = context.forward
        if self.rows_in is not None:
            self._store = TableStore(context, self.rows_in, send_old_values=self._send_old_values)

    def for_rows(self) -> TableFilter:
        """Return a filter that forwards each row that does not pass as a deletion."""
        return TableFilter(self._keep, None, send_old_values=False, is_versioned=False)

    def process(self, key: Any, value: Change[Any], timestamp: int, headers: Headers) -> None:
        new = None if value.new is None else self._keep(key, value.new)
        old = self._old(key, value.old)
        if self._skips_nothing and new is None and old is None:
            return
        if self._store is not None:
            self._store.update(key, new, old, timestamp, headers)
        else:
            self._forward(key, Change(new, old, value.is_latest), timestamp, headers)

    def _old(self, key: Any, old: Any) -> Any:
        if not self._send_old_values:
            return None
        if self._store is None:
            return None if old is None else self._keep(key, old)
        found = self._store.get(key)
        return None if found is None else found.value


class TableMapValues:
    """Maps each value of a table (`KTableMapValues`); deletions stay deletions.

    Args:
        mapper: `(key, value) -> value`; not called for deletions.
        store: Name of the store, or None if values are computed from the parent's.
    """

    def __init__(self, mapper: Callable[[Any, Any], Any], store: str | None, *, send_old_values: bool) -> None:
        self.mapper = mapper
        self.rows_in = store
        self.send_old_values = send_old_values
        self._store: TableStore | None = None
        self._forward: Callable[[Any, Any, int, Headers], None]

    def init(self, context: OperatorContext) -> None:
        self._forward = context.forward
        if self.rows_in is not None:
            self._store = TableStore(context, self.rows_in, send_old_values=self.send_old_values)

    def for_rows(self) -> TableMapValues:
        """Return an operator that maps rows which come without the values that they replace."""
        return TableMapValues(self.mapper, None, send_old_values=False)

    def process(self, key: Any, value: Change[Any], timestamp: int, headers: Headers) -> None:
        new = None if value.new is None else self.mapper(key, value.new)
        if self._store is not None:
            self._store.update(key, new, self._store.replaced(key), timestamp, headers)
            return
        old = None if not self.send_old_values or value.old is None else self.mapper(key, value.old)
        self._forward(key, Change(new, old, value.is_latest), timestamp, headers)


def transformed_getter(
    open_parent: Callable[[OperatorContext], ValueGetter],
    supplier: Callable[[], ValueTransformerWithKey[Any, Any, Any]],
) -> Any:
    """Return the opener of the lookup of a table without a store, whose own transformer gets the parent's value, or None."""

    def open_getter(context: OperatorContext) -> ValueGetter:
        parent, transformer = open_parent(context), supplied(supplier, VALUE_TRANSFORMER)
        transformer.init(UserContext(context, _refuse, is_lookup=True))
        context.close_with(transformer.close)

        def get(key: Any, *as_of: int) -> ValueAndTimestamp[Any] | None:
            found = parent(key, *as_of)
            value = transformer.transform(key, None if found is None else found.value)
            return None if value is None else ValueAndTimestamp(value, -1 if found is None else found.timestamp)

        return get

    return open_getter


class TableTransformValues:
    """Transforms each value of a table, deletions included (`KTableTransformValues`).

    Args:
        store: Name of the store, or None if values are computed from the parent's.
        send_old_values: Whether updates carry the values they replaced; without a store the old value is transformed as well.
    """

    may_schedule: ClassVar[bool] = True

    def __init__(
        self, transformer: ValueTransformerWithKey[Any, Any, Any], store: str | None, *, send_old_values: bool
    ) -> None:
        self._transformer = transformer
        self._store_name = store
        self._send_old_values = send_old_values
        self._store: TableStore | None = None
        self._forward: Callable[[Any, Any, int, Headers], None]

    def init(self, context: OperatorContext) -> None:
        """Hand the transformer its context, open the store and bind the children."""
        self._forward = context.forward
        self._transformer.init(UserContext(context, _refuse))
        if self._store_name is not None:
            self._store = TableStore(context, self._store_name, send_old_values=self._send_old_values)

    def process(self, key: Any, value: Change[Any], timestamp: int, headers: Headers) -> None:
        new = self._transformer.transform(key, value.new)
        if self._store is not None:
            self._store.update(key, new, self._store.replaced(key), timestamp, headers)
            return
        old = self._transformer.transform(key, value.old) if self._send_old_values else None
        self._forward(key, Change(new, old, value.is_latest), timestamp, headers)

    def close(self) -> None:
        self._transformer.close()


def _refuse(record: Record[Any, Any], child: str | None = None) -> None:
    message = f"A transformer of values must not forward records ({record.key!r} to {child or 'all children'})"
    raise ProcessingError(message, hint="Return the new value instead.")
