"""Writes the nodes and stores of a stream-table join into the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from riverrun.dsl.arity import joiner_with_key
from riverrun.dsl.join_kinds import LEFT
from riverrun.dsl.options import name_of
from riverrun.dsl.versioned_joins import VersionedJoin, write_versioned_join
from riverrun.operators.joins import StreamTableJoin, StreamTableLeftJoin
from riverrun.topology.nodes import Lineage

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.dsl.join_kinds import JoinKind
    from riverrun.dsl.options import Joined, Named
    from riverrun.dsl.plan import Plan, TableNode
    from riverrun.dsl.stream_joins import JoinInput
    from riverrun.operators.tables import ValueGetter
    from riverrun.processor.operator import OperatorContext
    from riverrun.topology.topology import Topology


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
    """Look records up in a table by their key (`KStreamImpl.doStreamTableJoin`).

    Args:
        plan: Receives the steps.
        kind: Inner or left.
        stream: The stream.
        table: The table.
        sources: Sources of both.
        joiner: `(value, table_value)` or `(key, value, table_value)`.
        joined: Name and grace period.

    Returns:
        Name of the node.
    """
    is_left, operator = kind is LEFT, _operator(kind)
    name = plan.processor_name("KSTREAM-LEFTJOIN-" if is_left else "KSTREAM-JOIN-", joined.name)
    table.materialize()
    function, lineage = joiner_with_key(joiner), _lineage(kind)

    def write(topology: Topology) -> None:
        topology.add_processor(
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
    """Look records up in a global table, by any key (`KStreamImpl.doGlobalTableJoin`).

    Args:
        plan: Receives the steps.
        kind: Inner or left.
        parent: The stream's node.
        open_getter: Opens the lookup of the table's values.
        joiner: `(value, table_value)` or `(key, value, table_value)`.
        key: `(key, value) -> key` to look up.
        named: Name of the node.

    Returns:
        Name of the node.
    """
    operator, function = _operator(kind), joiner_with_key(joiner)
    name = plan.processor_name("KSTREAM-LEFTJOIN-", name_of(named))  # Kafka Streams names inner joins so as well
    plan.add_step(
        lambda topology: topology.add_processor(
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
