"""Writes the nodes and stores of `KStream.to_table` into a topology (`StreamToTableNode`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from riverrun.dsl.tables import stored_node, table_store
from riverrun.operators.tables import TableSource

if TYPE_CHECKING:
    from riverrun.dsl.options import Materialized
    from riverrun.dsl.plan import Plan, TableNode
    from riverrun.serde.api import Serde
    from riverrun.topology.topology import Topology


def read_as_table(
    plan: Plan,
    parent: str,
    name: str,
    store_name: str,
    serdes: tuple[Serde[Any] | None, Serde[Any] | None],
    options: Materialized[Any, Any],
) -> TableNode:
    """Read the output of `parent` as updates of a table.

    Args:
        plan: Receives the step.
        parent: The stream's node.
        name: Name of the table's node.
        store_name: Name of its store. Unless the options have a name, the store exists only if a downstream operator
            needs it.
        serdes: Serdes of keys and values.
        options: How to store it.
    """
    node = stored_node(name, store_name, is_materialized=options.name is not None, is_versioned=options.is_versioned)

    def operator() -> TableSource:
        return TableSource(store_name if node.is_materialized else None, send_old_values=node.sends_old_values)

    def write(topology: Topology) -> None:
        topology.add_processor(name, operator, parent, functions=())
        if node.is_materialized:
            topology.add_state_store(table_store(plan, store_name, options, *serdes), name)

    plan.add_step(write)
    return node
