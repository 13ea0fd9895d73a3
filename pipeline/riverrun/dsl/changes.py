"""Reads changes of rows as the table that they come from (`StreamsBuilder.table_from_changes`)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from riverrun.dsl.options import Consumed, Materialized, Named, Repartitioned
from riverrun.errors import TopologyError
from riverrun.processor.api import Processor
from riverrun.serde.debezium import TRUNCATE, keeping_columns, row_filled, row_now, rows_serdes

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.dsl.kstream import KStream
    from riverrun.dsl.ktable import KTable
    from riverrun.dsl.plan import Plan
    from riverrun.processor.api import ProcessorContext
    from riverrun.records import Record
    from riverrun.serde.debezium import RowChange

# Keys of a truncated table that are held in memory: forwarding deletes from the store that is being iterated.
_DELETED_AT_ONCE = 10_000


class _Rows(Processor[Any, Any, Any, Any]):
    """Forwards the row after each change; for a truncation, a deletion of every row that the table has.

    Args:
        filled: Makes a row of a change without all columns, and the row that the table has; None to refuse such changes.
    """

    def __init__(self, store: str, filled: Callable[[RowChange[Any], Any], Any] | None, *, truncates: bool) -> None:
        self._store = store
        self._filled = filled
        self._truncates = truncates

    def init(self, context: ProcessorContext[Any, Any]) -> None:
        self._context = context
        self._rows = context.get_state_store(self._store)

    def process(self, record: Record[Any, Any]) -> None:
        change = record.value
        if self._truncates and change is not None and change.op == TRUNCATE:
            while keys := self._some_keys():
                for key in keys:
                    self._context.forward(record.with_key(key).with_value(None))
            return
        if self._filled is not None and change is not None and change.unavailable:
            self._context.forward(record.with_value(self._filled(change, self._row(record.key))))
            return
        self._context.forward(record.with_value(row_now(change)))

    def _row(self, key: Any) -> Any:
        found = None if key is None else self._rows.get(key)
        return None if found is None else found.value

    def _some_keys(self) -> list[Any]:
        return [key for key, _ in islice(self._rows.all(), _DELETED_AT_ONCE)]


def changes_read(consumed: Consumed[Any, Any]) -> Consumed[Any, Any]:
    """Return the options that read changes without all columns, to be filled in from the table."""
    try:
        return replace(consumed, value_serde=keeping_columns(consumed.value_serde))
    except TypeError as error:
        raise TopologyError(str(error)) from error


def table_of_changes(
    plan: Plan,
    changes: KStream[Any, Any],
    consumed: Consumed[Any, Any],
    materialized: Materialized[Any, Any] | None,
    *,
    repartition: bool,
    truncates: bool,
    keeps_unlogged: bool,
) -> KTable[Any, Any]:
    """Read a stream of changes as a table.

    With `truncates`, a truncation deletes all rows; there is one partition then. With `keeps_unlogged`, columns that were not
    logged stay as they are in the table.
    """
    given: Materialized[Any, Any] = materialized or Materialized()
    try:
        keys, rows = rows_serdes(consumed.key_serde, consumed.value_serde)
    except TypeError as error:
        raise TopologyError(str(error)) from error
    options = replace(given, key_serde=given.key_serde or keys, value_serde=given.value_serde or rows)
    named = partial(_named, consumed.name)
    if not truncates and not keeps_unlogged:
        found = changes.map_values(row_now, named=named("rows"))
        return replace(found, _repartition_required=repartition).to_table(options, named=named("table"))
    store = options.name
    if store is None:
        what = "handles truncations" if truncates else "keeps columns that were not logged"
        raise TopologyError(f"A table that {what} needs a named store", hint="Materialized(name=...)")
    node = plan.processor_name("KSTREAM-PROCESSOR-", consumed.name and f"{consumed.name}-rows")
    if repartition and not truncates:
        # The changes are sent: the row that the table has is only known where its key belongs.
        changes = changes.repartition(Repartitioned(options.key_serde, consumed.value_serde, name=f"{store}-changes"))
    filled = row_filled(consumed.value_serde) if keeps_unlogged else None
    # In two steps: the processor reads the table's store, which the table below it adds only later.
    parent = changes._node  # noqa: SLF001 - part of the same room
    rows_of = partial(_Rows, store, filled, truncates=truncates)
    plan.add_step(lambda topology: topology.add_processor(node, rows_of, parent, functions=()))
    table = replace(changes, _node=node).to_table(options, named=named("table"))
    plan.add_step(lambda topology: topology.connect_processor_and_state_stores(node, store))
    return table


def _named(name: str | None, part: str) -> Named | None:
    return Named(f"{name}-{part}") if name else None
