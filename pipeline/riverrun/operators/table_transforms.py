"""Tables whose values a user's transformer makes, possibly with stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from riverrun.errors import ProcessingError
from riverrun.operators.table_store import TableStore
from riverrun.operators.user_context import UserContext
from riverrun.processor.suppliers import VALUE_TRANSFORMER, supplied
from riverrun.records import Change, ValueAndTimestamp

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.operators.tables import ValueGetter
    from riverrun.processor.api import ValueTransformerWithKey
    from riverrun.processor.operator import OperatorContext
    from riverrun.records import Headers, Record


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
        transformer: The transformer, which belongs to this task alone.
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
        """Transform one update."""
        new = self._transformer.transform(key, value.new)
        if self._store is not None:
            self._store.update(key, new, self._store.replaced(key), timestamp, headers)
            return
        old = self._transformer.transform(key, value.old) if self._send_old_values else None
        self._forward(key, Change(new, old, value.is_latest), timestamp, headers)

    def close(self) -> None:
        """Close the transformer."""
        self._transformer.close()


def _refuse(record: Record[Any, Any], child: str | None = None) -> None:
    message = f"A transformer of values must not forward records ({record.key!r} to {child or 'all children'})"
    raise ProcessingError(message, hint="Return the new value instead.")
