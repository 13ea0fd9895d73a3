"""Reads changes of rows as the table that they come from (`StreamsBuilder.table_from_changes`)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from riverrun.dsl.options import Consumed, Materialized, Named
from riverrun.errors import TopologyError
from riverrun.processor.api import Processor
from riverrun.serde.debezium import TRUNCATE, row_now, rows_serdes

if TYPE_CHECKING:
    from riverrun.dsl.kstream import KStream
    from riverrun.dsl.ktable import KTable
    from riverrun.dsl.plan import Plan
    from riverrun.processor.api import ProcessorContext
    from riverrun.records import Record
    from riverrun.topology.topology import Topology

# Keys of a truncated table that are held in memory: forwarding deletes from the store that is being iterated.
_DELETED_AT_ONCE = 10_000


class _Rows(Processor[Any, Any, Any, Any]):
    """Forwards the row after each change; for a truncation, a deletion of every row that the table has."""

    def __init__(self, store: str) -> None:
        self._store = store

    def init(self, context: ProcessorContext[Any, Any]) -> None:
        """Open the table."""
        self._context = context
        self._rows = context.get_state_store(self._store)

    def process(self, record: Record[Any, Any]) -> None:
        """Forward one change."""
        if record.value is None or record.value.op != TRUNCATE:
            self._context.forward(record.with_value(row_now(record.value)))
            return
        while keys := self._some_keys():
            for key in keys:
                self._context.forward(record.with_key(key).with_value(None))

    def _some_keys(self) -> list[Any]:
        return [key for key, _ in islice(self._rows.all(), _DELETED_AT_ONCE)]


def table_of_changes(
    plan: Plan,
    changes: KStream[Any, Any],
    consumed: Consumed[Any, Any],
    materialized: Materialized[Any, Any] | None,
    *,
    repartition: bool,
    truncates: bool,
) -> KTable[Any, Any]:
    """Read a stream of changes as a table. With `truncates`, a truncation deletes all rows; there is one partition then."""
    given: Materialized[Any, Any] = materialized or Materialized()
    try:
        keys, rows = rows_serdes(consumed.key_serde, consumed.value_serde)
    except TypeError as error:
        raise TopologyError(str(error)) from error
    options = replace(given, key_serde=given.key_serde or keys, value_serde=given.value_serde or rows)
    named = partial(_named, consumed.name)
    if not truncates:
        found = changes.map_values(row_now, named=named("rows"))
        return replace(found, _repartition_required=repartition).to_table(options, named=named("table"))
    store = options.name
    if store is None:
        message = "A table that handles truncations needs a named store"
        raise TopologyError(message, hint="Materialized(name=...)")
    node = plan.processor_name("KSTREAM-PROCESSOR-", consumed.name and f"{consumed.name}-rows")
    # In two steps: the processor reads the table's store, which the table below it adds only later.
    parent = changes._node  # noqa: SLF001 - part of the same room
    plan.add_step(lambda topology: _add(topology, node, parent, store))
    table = replace(changes, _node=node).to_table(options, named=named("table"))
    plan.add_step(lambda topology: _connect(topology, node, store))
    return table


def _named(name: str | None, part: str) -> Named | None:
    return Named(f"{name}-{part}") if name else None


def _add(topology: Topology, node: str, parent: str, store: str) -> None:
    topology.add_processor(node, lambda: _Rows(store), parent, functions=())


def _connect(topology: Topology, node: str, store: str) -> None:
    topology.connect_processor_and_state_stores(node, store)
