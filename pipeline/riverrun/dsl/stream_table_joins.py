"""Writes the nodes and stores of stream-table joins, also with versioned tables, and of `KStream.to_table` into the plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.dsl.kinds import joiner_with_key
from riverrun.dsl.options import LEFT, name_of
from riverrun.dsl.plan import serde_of
from riverrun.dsl.tables import TimeToLive, stored_node, table_store
from riverrun.errors import TopologyError
from riverrun.operators.joins import (
    BufferedStreamTableJoin,
    StreamTableJoin,
    StreamTableLeftJoin,
    StreamVersionedTableJoin,
)
from riverrun.operators.tables import TableSource
from riverrun.serde.serdes import BYTES
from riverrun.state.api import StoreBuilder, StoreKind
from riverrun.topology.assembly import add_operator
from riverrun.topology.nodes import Lineage
from riverrun.windows import millis

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from riverrun.dsl.options import Joined, JoinKind, Materialized, Named
    from riverrun.dsl.plan import Plan, TableNode
    from riverrun.dsl.stream_joins import JoinInput
    from riverrun.operators.tables import ValueGetter
    from riverrun.processor.operator import Operator, OperatorContext
    from riverrun.serde.api import Serde
    from riverrun.topology.topology import Topology


@dataclass(frozen=True, slots=True)
class VersionedJoin:
    """A join of a stream with a versioned table.

    Args:
        table: The versioned table, in which records are looked up by key and time.
        joiner: `(value, table_value)` or `(key, value, table_value)`.
        grace_period: How long records wait; None if they do not.
        left_join: Whether records without a match are joined with None.
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
    """Write the join below `parent`."""
    open_table, function, left_join = join.table.open_getter, joiner_with_key(join.joiner), join.left_join
    covered = ("left" if left_join else "inner", "versioned", join.joiner)
    lineage = Lineage.KEPT if left_join else Lineage.OTHER

    def at_once() -> StreamVersionedTableJoin:
        return StreamVersionedTableJoin(open_table, function, left_join=left_join)

    if join.grace_period is None:
        add_operator(topology, join.name, at_once, parent, functions=covered, lineage=lineage)
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

        add_operator(topology, join.name, buffered, parent, functions=(*covered, grace_ms), lineage=lineage)
        topology.add_state_store(StoreBuilder(name, StoreKind.KEY_VALUE, BYTES, BYTES), join.name)
    topology.connect_processor_and_state_stores(join.name, *join.table.materialize())
    topology.copartition(sources)


def _check_history(topology: Topology, join: VersionedJoin, grace_ms: int) -> None:
    for store in (topology.stores[name] for name in join.table.materialize()):
        if store.kind is not StoreKind.VERSIONED:
            message = "KTable must be versioned to use a grace period in a stream table join."
            raise TopologyError(message, hint="Give the table Materialized(name=name, history_retention=...).")
        if grace_ms > store.retention_ms:
            message = f"History retention must be at least grace period: {store.retention_ms} ms < {grace_ms} ms."
            raise TopologyError(message)


def join_table(
    plan: Plan,
    kind: JoinKind,
    *,
    stream: JoinInput,
    table: TableNode,
    sources: frozenset[str],
    joiner: Callable[..., Any],
    joined: Joined[Any, Any, Any],
) -> str:
    """Look records up in a table by their key (`KStreamImpl.doStreamTableJoin`), and return the node's name."""
    is_left, operator = kind is LEFT, _operator(kind)
    name = plan.processor_name("KSTREAM-LEFTJOIN-" if is_left else "KSTREAM-JOIN-", joined.name)
    table.materialize()
    function, lineage = joiner_with_key(joiner), _lineage(kind)

    def write(topology: Topology) -> None:
        add_operator(
            topology,
            name,
            lambda: operator(table.open_getter, None, function),
            stream.node,
            functions=(operator, joiner),
            lineage=lineage,
        )
        topology.connect_processor_and_state_stores(name, *table.materialize())
        topology.copartition(sources)

    if table.looks_up_versions or joined.grace_period is not None:
        if joined.name is None and joined.grace_period is not None:
            plan.unnamed.add_store(f"{name}-Buffer", logging=True)
        join = VersionedJoin(
            name=name,
            table=table,
            joiner=joiner,
            grace_period=joined.grace_period,
            left_join=is_left,
            key_serde=stream.key_serde,
            value_serde=stream.value_serde,
        )
        plan.add_step(lambda topology: write_versioned_join(topology, join, stream.node, sources))
    else:
        plan.add_step(write)
    if is_left:
        plan.null_key_joins.add(name)
    return name


def join_global_table(
    plan: Plan,
    kind: JoinKind,
    *,
    parent: str,
    open_getter: Callable[[OperatorContext], ValueGetter],
    joiner: Callable[..., Any],
    key: Callable[[Any, Any], Any],
    named: Named | None,
) -> str:
    """Look records up in a global table by any key (`KStreamImpl.doGlobalTableJoin`), and return the node's name."""
    operator, function = _operator(kind), joiner_with_key(joiner)
    # Kafka Streams names inner joins so as well.
    name = plan.processor_name("KSTREAM-LEFTJOIN-", name_of(named))
    plan.add_step(
        lambda topology: add_operator(
            topology,
            name,
            lambda: operator(open_getter, key, function),
            parent,
            functions=(operator, joiner, key),
            lineage=_lineage(kind),
        )
    )
    if kind is LEFT:
        plan.null_key_joins.add(name)
    return name


def _lineage(kind: JoinKind) -> Lineage:
    """Return whether each record has a result (left join) or may be dropped (inner join)."""
    return Lineage.KEPT if kind is LEFT else Lineage.OTHER


def _operator(kind: JoinKind) -> type[StreamTableJoin | StreamTableLeftJoin]:
    return StreamTableLeftJoin if kind is LEFT else StreamTableJoin


def read_as_table(
    plan: Plan,
    parent: str,
    name: str,
    store_name: str,
    serdes: tuple[Serde[Any] | None, Serde[Any] | None],
    options: Materialized[Any, Any],
) -> TableNode:
    """Read the output of `parent` as updates of a table, which is stored if it has a name or a downstream operator needs it."""
    lived, is_stored = TimeToLive.of(options), options.name is not None or options.ttl is not None
    node = stored_node(name, store_name, is_materialized=is_stored, is_versioned=options.is_versioned)

    def write(topology: Topology) -> None:
        store = table_store(plan, store_name, options, *serdes, expires=True) if node.is_materialized else None

        def operator() -> Operator:
            source = TableSource(None if store is None else store.name, send_old_values=node.sends_old_values)
            made: Operator = source if store is None else lived.applied(source, store, node)
            return made

        add_operator(topology, name, operator, parent, functions=lived.functions, lineage=Lineage.ROWS)
        if store is not None:
            topology.add_state_store(store, name)

    plan.add_step(write)
    return node
