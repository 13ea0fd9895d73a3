"""Writes the nodes and stores of a join of a stream with a versioned table into the topology."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.dsl.arity import joiner_with_key
from riverrun.dsl.plan import serde_of
from riverrun.errors import TopologyError
from riverrun.operators.versioned_joins import BufferedStreamTableJoin, StreamVersionedTableJoin
from riverrun.serde.primitives import BYTES
from riverrun.state.api import StoreBuilder, StoreKind
from riverrun.topology.nodes import Lineage
from riverrun.windows import millis

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from riverrun.dsl.plan import TableNode
    from riverrun.processor.operator import Operator
    from riverrun.serde.api import Serde
    from riverrun.topology.topology import Topology


@dataclass(frozen=True, slots=True)
class VersionedJoin:
    """A join of a stream with a versioned table.

    Args:
        name: Name of the node.
        table: The table.
        joiner: `(value, table_value)` or `(key, value, table_value)`.
        grace_period: How long records wait; None if they do not.
        left_join: Whether records without a match are joined with None.
        key_serde: Serde of the stream's keys, if known.
        value_serde: Serde of the stream's values, if known.
    """

    name: str
    table: TableNode
    joiner: Callable[..., Any]
    grace_period: timedelta | None
    left_join: bool
    key_serde: Serde[Any] | None
    value_serde: Serde[Any] | None

    @property
    def buffer(self) -> str:
        """Return the name of the store in which records wait."""
        return f"{self.name}-Buffer"


def write_versioned_join(topology: Topology, join: VersionedJoin, parent: str, sources: frozenset[str]) -> None:
    """Write the join below `parent`.

    Raises:
        TopologyError: If there is a grace period and the table is not versioned, or its history is shorter.
    """
    open_table, function, left_join = join.table.open_getter, joiner_with_key(join.joiner), join.left_join
    covered = ("left" if left_join else "inner", "versioned", join.joiner)
    lineage = Lineage.KEPT if left_join else Lineage.OTHER

    def at_once() -> StreamVersionedTableJoin:
        return StreamVersionedTableJoin(open_table, function, left_join=left_join)

    if join.grace_period is None:
        topology.add_processor(join.name, at_once, parent, functions=covered, lineage=lineage)
    else:
        grace_ms = millis(join.grace_period, "grace period")
        _check_history(topology, join, grace_ms)
        serdes = (
            serde_of(join.key_serde, "keys", join.buffer, "Joined"),
            serde_of(join.value_serde, "values", join.buffer, "Joined"),
        )
        name = join.buffer

        def buffered() -> Operator:
            return BufferedStreamTableJoin(at_once(), name, serdes, grace_ms)

        topology.add_processor(join.name, buffered, parent, functions=(*covered, grace_ms), lineage=lineage)
        topology.add_state_store(StoreBuilder(name, StoreKind.KEY_VALUE, BYTES, BYTES), join.name)
    topology.connect_processor_and_state_stores(join.name, *join.table.materialize())
    topology.copartition(sources)


def _check_history(topology: Topology, join: VersionedJoin, grace_ms: int) -> None:
    for store in (topology.stores[name] for name in join.table.materialize()):
        if store.kind is not StoreKind.VERSIONED:
            message = "KTable must be versioned to use a grace period in a stream table join."
            raise TopologyError(message, hint="Give the table Materialized(name, history_retention=...).")
        if grace_ms > store.retention_ms:
            message = f"History retention must be at least grace period: {store.retention_ms} ms < {grace_ms} ms."
            raise TopologyError(message)
