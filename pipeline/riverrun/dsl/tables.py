"""Adds derived tables, and joins of two tables by key, to the plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from riverrun.arguments import is_true
from riverrun.dsl.kinds import with_key
from riverrun.dsl.options import Materialized, name_of
from riverrun.dsl.plan import Plan, TableNode, connect_stores, serde_of
from riverrun.errors import TopologyError
from riverrun.operators.expiring_rows import ExpiringRows
from riverrun.operators.table_aggregations import TableRepartitionMap
from riverrun.operators.table_joins import JoinedGetter, TableJoinMerge, TableJoinSide, TableTableJoin
from riverrun.operators.table_transforms import (
    MappedGetter,
    TableFilter,
    TableMapValues,
    TableTransformValues,
    transformed_getter,
)
from riverrun.operators.tables import StoreGetter
from riverrun.processor.expressions import decision_of
from riverrun.processor.suppliers import VALUE_TRANSFORMER, check_supplier, connected_stores, supplied
from riverrun.serde.windowed import with_ends_of
from riverrun.state.api import StoreBuilder, StoreKind
from riverrun.state.builders import ttl_millis
from riverrun.topology.assembly import add_operator
from riverrun.windows import millis

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.dsl.options import JoinKind, Named
    from riverrun.operators.tables import ValueGetter
    from riverrun.processor.api import ValueTransformerWithKey
    from riverrun.processor.operator import Operator, OperatorContext
    from riverrun.serde.api import Serde
    from riverrun.topology.topology import Topology


@dataclass(frozen=True, slots=True)
class Derived:
    """A table derived from others, with the serdes that are known."""

    node: TableNode
    key_serde: Serde[Any] | None
    value_serde: Serde[Any] | None


def table_store(
    plan: Plan,
    name: str,
    options: Materialized[Any, Any],
    key_serde: Serde[Any] | None,
    value_serde: Serde[Any] | None,
    *,
    expires: bool = False,
) -> StoreBuilder:
    if not expires:
        check_without_ttl(options)
    ttl_ms = ttl_millis(options.ttl)
    check_supplied(options, StoreKind.KEY_VALUE, StoreKind.VERSIONED)
    history_ms = 0 if options.history_retention is None else millis(options.history_retention, "history retention")
    return StoreBuilder(
        name,
        StoreKind.VERSIONED if options.is_versioned else StoreKind.TIMESTAMPED_KEY_VALUE,
        with_ends_of(serde_of(options.key_serde or key_serde, "keys", f"store {name}", "Materialized"), key_serde),
        serde_of(options.value_serde or value_serde, "values", f"store {name}", "Materialized"),
        persistent=plan.persists(options.persistent) and options.max_entries is None,
        caching=options.caching and not options.is_versioned,
        logging=options.logging,
        log_config=options.log_config,
        retention_ms=history_ms,
        max_entries=options.max_entries,
        ttl_ms=ttl_ms,
        table_expires=ttl_ms is not None,
    )


class NoTtl(Enum):
    """Why rows cannot have a time to live, and what to do instead."""

    DERIVED = (
        "Rows can have a ttl in StreamsBuilder.table, to_table and aggregations without windows only",
        "Set it where the rows come from: what is derived from them expires with them.",
    )
    WINDOWS = (
        "Windows cannot have a ttl: they are kept for a time after they begin, however often they are updated",
        "Set that time: Materialized(retention=...).",
    )
    GLOBAL = (
        "A global table cannot have a ttl: its topic keeps the rows, and each instance reads it at its own pace",
        "Write tombstones to the topic, or read it with StreamsBuilder.table.",
    )


def check_without_ttl(options: Materialized[Any, Any] | None, why: NoTtl = NoTtl.DERIVED) -> None:
    """Refuse a time to live where rows cannot have one."""
    if options is not None and options.ttl is not None:
        message, hint = why.value
        raise TopologyError(message, hint=hint)


@dataclass(frozen=True, slots=True)
class TimeToLive:
    """The time to live of a table's rows, ms; None for rows that stay."""

    ttl_ms: int | None

    @classmethod
    def of(cls, options: Materialized[Any, Any]) -> TimeToLive:
        """Return that of a table's options."""
        return cls(ttl_millis(options.ttl))

    @property
    def functions(self) -> tuple[Any, ...]:
        return () if self.ttl_ms is None else ("ttl", self.ttl_ms)

    def applied(self, table: Any, store: StoreBuilder, node: TableNode) -> Any:
        """Return an operator of a table, with rows that expire."""
        if self.ttl_ms is None:
            return table
        return ExpiringRows(table, store.name, store.key_serde, self.ttl_ms, send_old_values=node.sends_old_values)


def check_supplied(options: Materialized[Any, Any], *kinds: StoreKind) -> None:
    supplier = options.supplier
    if supplier is not None and supplier.kind not in kinds:
        wanted = " or ".join(kind.value for kind in kinds)
        message = f"Store {supplier.name} is supplied as a {supplier.kind.value} store instead of a {wanted} store"
        raise TopologyError(message)


def stored_node(name: str, store: str, *, is_materialized: bool = True, is_versioned: bool) -> TableNode:
    """Return a table whose values are looked up in its store; `is_materialized` if it exists even without a lookup."""
    return TableNode(
        name,
        store,
        StoreGetter(store),
        is_materialized=is_materialized,
        is_versioned=is_versioned,
    )


def filtered(
    plan: Plan,
    parent: Derived,
    predicate: Callable[[Any, Any], bool],
    options: Materialized[Any, Any] | None,
    named: Named | None,
    *,
    negated: bool,
) -> Derived:
    """Return the rows that pass a predicate, or those that do not (`KTableImpl.doFilter`)."""
    holds = decision_of(predicate)

    def keep(key: Any, value: Any) -> Any:
        kept = holds(key, value)
        if kept is not True and kept is not False:
            kept = is_true(kept)
        return value if kept is not negated else None

    above, functions = parent.node, ("filter-not" if negated else "filter", predicate)

    def operator(node: TableNode) -> Operator:
        return TableFilter(
            keep,
            node.store if node.is_materialized else None,
            send_old_values=node.sends_old_values,
            is_versioned=above.is_versioned,
        )

    made = _derived(
        plan,
        parent,
        prefix="KTABLE-FILTER-",
        compute=keep,
        operator=operator,
        functions=functions,
        options=options,
        named=named,
        value_serde=parent.value_serde,
    )
    # With old values, a row that never passed is not deleted downstream. Not worth a store, though (`force`).
    made.node.sends_old_values = above.enable_sending_old_values(force=False)
    return made


def mapped(
    plan: Plan,
    parent: Derived,
    mapper: Callable[..., Any],
    options: Materialized[Any, Any] | None,
    named: Named | None,
) -> Derived:
    """Return the rows with mapped values (`KTableImpl.doMapValues`)."""
    function = with_key(mapper)

    def operator(node: TableNode) -> Operator:
        store = node.store if node.is_materialized else None
        return TableMapValues(function, store, send_old_values=node.sends_old_values)

    return _derived(
        plan,
        parent,
        prefix="KTABLE-MAPVALUES-",
        compute=function,
        operator=operator,
        functions=(mapper,),
        options=options,
        named=named,
        value_serde=None,
    )


def transformed(
    plan: Plan,
    parent: Derived,
    supplier: Callable[[], ValueTransformerWithKey[Any, Any, Any]],
    state_stores: tuple[str, ...],
    options: Materialized[Any, Any] | None,
    named: Named | None,
) -> Derived:
    """Return the rows with values that a transformer computes (`KTableImpl.doTransformValues`)."""
    check_without_ttl(options)
    check_supplier(supplier, VALUE_TRANSFORMER)
    name = plan.processor_name("KTABLE-TRANSFORMVALUES-", name_of(named))
    given: Materialized[Any, Any] = options or Materialized()
    key_serde, value_serde = with_ends_of(given.key_serde or parent.key_serde, parent.key_serde), given.value_serde
    store = None if given.name is None else table_store(plan, given.name, given, key_serde, value_serde)
    node = _node(name, store, transformed_getter(parent.node.open_getter, supplier), (parent.node,))
    node.used_stores = (*state_stores, *(brought.name for brought in connected_stores(supplier)))
    if options is None:
        node.is_versioned = parent.node.is_versioned

    def operator() -> Operator:
        return TableTransformValues(
            supplied(supplier, VALUE_TRANSFORMER), given.name, send_old_values=node.sends_old_values
        )

    def write(topology: Topology) -> None:
        functions = ("transform", supplier)
        add_operator(topology, name, operator, parent.node.name, functions=functions, calls_users_object=True)
        if store is not None:
            topology.add_state_store(store, name)
        connect_stores(topology, name, supplier, state_stores)

    plan.add_step(write)
    return Derived(node, key_serde, value_serde)


def grouped(
    plan: Plan, parent: TableNode, mapper: Callable[[Any, Any], tuple[Any, Any] | None], name: str | None
) -> str:
    """Key the rows by their groups, and return the node's name (`KTableImpl.groupBy`)."""
    node = plan.processor_name("KTABLE-SELECT-", name)
    plan.add_step(
        lambda topology: add_operator(
            topology,
            node,
            lambda: TableRepartitionMap(mapper, is_versioned=parent.is_versioned),
            parent.name,
            functions=("group-by", mapper),
        )
    )
    parent.enable_sending_old_values(force=True)
    return node


def joined(
    plan: Plan,
    left: Derived,
    *,
    right: TableNode,
    joiner: Callable[[Any, Any], Any],
    kind: JoinKind,
    options: Materialized[Any, Any] | None,
    named: Named | None,
    sources: frozenset[str],
) -> Derived:
    """Join rows of two tables with equal keys (`KTableImpl.doJoin`)."""
    given = name_of(named)
    # Unlike for other operators, any `Materialized`, named or not, creates a store.
    store_name = None if options is None else plan.table_name(options, "KTABLE-MERGE-")
    name = plan.processor_name("KTABLE-MERGE-", given)
    if kind.left_outer:
        left.node.enable_sending_old_values(force=True)
    if kind.right_outer:
        right.enable_sending_old_values(force=True)
    this, other = _sides(plan, left.node, right, joiner, kind, given)
    store = (
        None if options is None or store_name is None else table_store(plan, store_name, options, left.key_serde, None)
    )
    virtual = JoinedGetter(left.node.open_getter, right.open_getter, this.side)
    node = _node(name, store, virtual, (left.node, right), is_join=True)

    def merge() -> Operator:
        return TableJoinMerge(store_name, send_old_values=node.sends_old_values)

    def write(topology: Topology) -> None:
        for side in (this, other):
            add_operator(topology, side.name, side.operator(node), side.own.name, functions=(repr(kind), joiner))
        add_operator(topology, name, merge, this.name, other.name, functions=())
        if store is not None:
            topology.add_state_store(store, name)
        for side in (this, other):
            topology.connect_processor_and_state_stores(side.name, *side.other.materialize())
        topology.copartition(sources)

    plan.add_step(write)
    if store is None:
        return Derived(node, left.key_serde, None)
    return Derived(node, store.key_serde, store.value_serde)


@dataclass(frozen=True, slots=True)
class _Side:
    """One side of a join while the topology is written."""

    name: str
    own: TableNode
    other: TableNode
    side: TableJoinSide

    def operator(self, result: TableNode) -> Callable[[], Operator]:
        # Called after `build`: a later call of the DSL may still ask this table for old values.
        return lambda: TableTableJoin(
            self.other.open_getter,
            self.side,
            send_old_values=result.sends_old_values,
            is_versioned=self.own.is_versioned,
        )


def _sides(
    plan: Plan,
    left: TableNode,
    right: TableNode,
    joiner: Callable[[Any, Any], Any],
    kind: JoinKind,
    given: str | None,
) -> tuple[_Side, _Side]:
    left.materialize()
    right.materialize()
    this = plan.processor_name("KTABLE-JOINTHIS-", given and f"{given}-join-this")
    other = plan.processor_name("KTABLE-JOINOTHER-", given and f"{given}-join-other")
    from_left = TableJoinSide(joiner, requires_own=not kind.right_outer, requires_other=not kind.left_outer)
    from_right = TableJoinSide(
        lambda own, found: joiner(found, own), requires_own=not kind.left_outer, requires_other=not kind.right_outer
    )
    return _Side(this, left, right, from_left), _Side(other, right, left, from_right)


def _derived(
    plan: Plan,
    parent: Derived,
    *,
    prefix: str,
    compute: Callable[[Any, Any], Any],
    operator: Callable[[TableNode], Operator],
    functions: tuple[Any, ...],
    options: Materialized[Any, Any] | None,
    named: Named | None,
    value_serde: Serde[Any] | None,
) -> Derived:
    """Return a table that is computed value by value: with a store if the options name one, else looked up in the parent."""
    check_without_ttl(options)
    if options is not None and options.name is None:
        # Kafka Streams counts a store that it never creates.
        plan.store_name(prefix)
    name = plan.processor_name(prefix, name_of(named))
    given: Materialized[Any, Any] = options or Materialized()
    key_serde, value_serde = (
        with_ends_of(given.key_serde or parent.key_serde, parent.key_serde),
        given.value_serde or value_serde,
    )
    store = None if given.name is None else table_store(plan, given.name, given, key_serde, value_serde)
    node = _node(name, store, MappedGetter(parent.node.open_getter, compute), (parent.node,))
    if options is None:
        node.is_versioned = parent.node.is_versioned

    def write(topology: Topology) -> None:
        add_operator(topology, name, lambda: operator(node), parent.node.name, functions=functions)
        if store is not None:
            topology.add_state_store(store, name)

    plan.add_step(write)
    return Derived(node, key_serde, value_serde)


def _node(
    name: str,
    store: StoreBuilder | None,
    virtual: Callable[[OperatorContext], ValueGetter],
    parents: tuple[TableNode, ...],
    *,
    is_join: bool = False,
) -> TableNode:
    if store is None:
        return TableNode(name, "", virtual, is_materialized=False, parents=parents, is_join=is_join)
    node = stored_node(name, store.name, is_versioned=store.kind is StoreKind.VERSIONED)
    return replace(node, parents=parents, is_join=is_join)
