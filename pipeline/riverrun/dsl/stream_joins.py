"""Writes the nodes and stores of a stream-stream join into a topology (`KStreamImplJoin`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from riverrun.dsl.kinds import joiner_with_key
from riverrun.dsl.optimization import SelfJoin
from riverrun.dsl.options import Joined, StreamJoined, validate_name
from riverrun.dsl.plan import serde_of
from riverrun.errors import TopologyError
from riverrun.operators.late_records import LateRecords
from riverrun.operators.stateless import PassThrough
from riverrun.operators.stream_joins import JoinWindow, StreamJoinSide, StreamSelfJoin, StreamStreamJoin
from riverrun.serde.internal import join_side_key, join_side_value
from riverrun.state.api import StoreBuilder, StoreKind
from riverrun.topology.assembly import add_operator

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.dsl.options import JoinKind, Named
    from riverrun.dsl.plan import Plan
    from riverrun.serde.api import Serde
    from riverrun.state.suppliers import StoreSupplier
    from riverrun.topology.topology import Topology
    from riverrun.windows import JoinWindows


@dataclass(frozen=True, slots=True)
class JoinArguments:
    """Arguments of a join apart from the other side and the joiner. The kind of the other side decides which of them fit."""

    windows: JoinWindows | None
    key_selector: Callable[[Any, Any], Any] | None
    joined: Joined[Any, Any, Any] | StreamJoined[Any, Any, Any] | None
    named: Named | None

    def of_stream(self) -> tuple[JoinWindows, StreamJoined[Any, Any, Any]]:
        self._refuse(
            "stream", "select_key() first to join by another key", key_selector=self.key_selector, named=self.named
        )
        if self.windows is None:
            message = "A join of two streams needs windows=, which limits how far apart records may be"
            raise TopologyError(message, hint="Use JoinWindows.of(...).")
        if isinstance(self.joined, Joined):
            raise TopologyError("A join of two streams takes StreamJoined, not Joined")
        return self.windows, self.joined or StreamJoined()

    def of_table(self) -> Joined[Any, Any, Any]:
        hint = "select_key() first to join a table by another key"
        self._refuse("table", hint, windows=self.windows, key_selector=self.key_selector, named=self.named)
        if isinstance(self.joined, StreamJoined):
            raise TopologyError("A join with a table takes Joined, not StreamJoined")
        return self.joined or Joined()

    def of_global_table(self) -> tuple[Callable[[Any, Any], Any], Named | None]:
        """Return the key function and the name of a join with a global table."""
        self._refuse("global table", "named= to name it", windows=self.windows, joined=self.joined)
        if self.key_selector is None:
            message = "A join with a global table needs key_selector=, a function of (key, value) that returns a key"
            raise TopologyError(message)
        return self.key_selector, self.named

    def _refuse(self, other: str, hint: str, **arguments: object) -> None:
        for name, given in arguments.items():
            if given is not None:
                raise TopologyError(f"{name}= does not belong to a join with a {other}", hint=f"Use {hint}.")


@dataclass(frozen=True, slots=True)
class JoinInput:
    """One input of the join: its node, the sources of its records, and its serdes."""

    node: str
    sources: frozenset[str]
    key_serde: Serde[Any] | None
    value_serde: Serde[Any] | None


@dataclass(frozen=True, slots=True)
class _Names:
    """Names of a join's nodes and stores.

    Args:
        shared: The store of records without a partner so far; None if both sides are inner.
    """

    this_windowed: str
    other_windowed: str
    this_join: str
    other_join: str
    merge: str
    this_store: str
    other_store: str
    shared: str | None


def join_streams(
    plan: Plan,
    kind: JoinKind,
    *,
    left: JoinInput,
    right: JoinInput,
    joiner: Callable[..., Any],
    windows: JoinWindows,
    joined: StreamJoined[Any, Any, Any],
) -> tuple[str, str, str]:
    """Join two co-partitioned streams (the right one may be the left one).

    Returns the names of the node that forwards the results, and of the stores of both sides.
    """
    names, persistent = _names(plan, kind, joined), joined.persistent
    joined = replace(joined, persistent=plan.persists(persistent))
    keys = serde_of(left.key_serde or right.key_serde, "keys", f"store {names.this_store}", "StreamJoined")
    values = serde_of(left.value_serde, "values", f"store {names.this_store}", "StreamJoined")
    other_values = serde_of(right.value_serde, "values", f"store {names.other_store}", "StreamJoined")
    this_store = _window_store(names.this_store, keys, values, windows, joined, joined.this_store_supplier)
    other_store = _window_store(names.other_store, keys, other_values, windows, joined, joined.other_store_supplier)
    function = joiner_with_key(joiner)
    left_outer, right_outer = kind.left_outer, kind.right_outer
    this = StreamJoinSide(True, left_outer, names.other_store, names.shared, windows, function)  # noqa: FBT003 - the left one
    other = StreamJoinSide(False, right_outer, names.this_store, names.shared, windows, function)  # noqa: FBT003
    # As `OuterStreamJoinStoreFactory.builder`: without the user's choice, it is stored like the left stream.
    shared_persistent = this_store.persistent if persistent is None else persistent
    covered = (joiner, (left_outer, right_outer), windows.before_ms, windows.after_ms, windows.grace_ms)

    def write(topology: Topology) -> None:
        this_kept, other_kept = (
            partial(JoinWindow, store, tells_late=late is not None)
            for store, late in ((names.this_store, joined.late), (names.other_store, joined.other_late))
        )
        add_operator(topology, names.this_windowed, this_kept, left.node, functions=())
        topology.add_state_store(this_store, names.this_windowed)
        add_operator(topology, names.other_windowed, other_kept, right.node, functions=())
        topology.add_state_store(other_store, names.other_windowed)
        add_operator(topology, names.this_join, lambda: StreamStreamJoin(this), names.this_windowed, functions=covered)
        add_operator(
            topology, names.other_join, lambda: StreamStreamJoin(other), names.other_windowed, functions=covered
        )
        topology.connect_processor_and_state_stores(names.this_join, names.other_store)
        topology.connect_processor_and_state_stores(names.other_join, names.this_store)
        if names.shared is not None:
            both_values = join_side_value(values, other_values)
            shared = _shared_store(names.shared, keys, both_values, joined, persistent=shared_persistent)
            topology.add_state_store(shared, names.this_join, names.other_join)
        add_operator(topology, names.merge, PassThrough, names.this_join, names.other_join, functions=())
        topology.copartition(left.sources | right.sources)

    plan.add_step(write)
    _note_unnamed(plan, names, joined)
    alone = StreamJoinSide(True, False, names.this_store, None, windows, function)  # noqa: FBT003
    plan.self_joins.append(_self_join(names, alone, covered))
    # A full outer join is a left join, too. Their records without a key have results, so repartitions must keep them.
    if left_outer:
        plan.null_key_joins.add(names.merge)
    return names.merge, names.this_store, names.other_store


def add_late_records(plan: Plan, store: str, parent: str) -> str:
    """Add the node of records that a store refuses as late, after the operator of the store, and return its name."""
    node = plan.processor_name("KSTREAM-LATE-")
    plan.add_step(
        lambda topology: add_operator(topology, node, lambda: LateRecords(store), parent, functions=("late",))
    )
    return node


def _note_unnamed(plan: Plan, names: _Names, joined: StreamJoined[Any, Any, Any]) -> None:
    """Record the stores that neither the join nor a supplier names."""
    if joined.store_name is not None:
        return
    this_named, other_named = joined.this_store_supplier is not None, joined.other_store_supplier is not None
    stores = (names.this_store, this_named), (names.other_store, other_named), (names.shared, this_named)
    for store, is_named in stores:
        if store is not None and not is_named:
            plan.unnamed.add_store(store, logging=joined.logging)


def _self_join(names: _Names, side: StreamJoinSide, covered: tuple[Any, ...]) -> SelfJoin:
    """Describe the join as one of a stream with itself, for `topology.optimization`."""
    return SelfJoin(
        this_windowed=names.this_windowed,
        other_windowed=names.other_windowed,
        this_join=names.this_join,
        other_join=names.other_join,
        merge=names.merge,
        this_store=names.this_store,
        other_stores=(names.other_store,) if names.shared is None else (names.other_store, names.shared),
        supplier=lambda: StreamSelfJoin(side),
        functions=covered,
    )


def _names(plan: Plan, kind: JoinKind, joined: StreamJoined[Any, Any, Any]) -> _Names:
    """Return the names in the order in which Kafka Streams counts them."""
    left_outer, right_outer = kind.left_outer, kind.right_outer
    this_suffix = "-outer-this-join" if right_outer else "-this-join"
    other_suffix = "-outer-other-join" if left_outer else "-other-join"
    this_windowed = _named(plan, joined.name, "-this-windowed", "KSTREAM-WINDOWED-")
    other_windowed = _named(plan, joined.name, "-other-windowed", "KSTREAM-WINDOWED-")
    # The shared store has the number of the next node: Kafka Streams does not count it.
    number = f"{plan.counter:010d}"
    this_generated = plan.processor_name("KSTREAM-OUTERTHIS-" if right_outer else "KSTREAM-JOINTHIS-")
    other_generated = plan.processor_name("KSTREAM-OUTEROTHER-" if left_outer else "KSTREAM-JOINOTHER-")
    base = joined.store_name
    shared_suffix = "-outer-shared-join" if right_outer else "-left-shared-join"
    this, other = joined.this_store_supplier, joined.other_store_supplier
    # `OuterStreamJoinStoreFactory.buildOuterJoinWindowStoreName`.
    shared_base = base if this is None else this.name
    shared = f"{shared_base}{shared_suffix}-store" if shared_base else f"KSTREAM-OUTERSHARED-{number}-store"
    this_store = f"{base}{this_suffix}-store" if base else f"{this_generated}-store"
    other_store = f"{base}{other_suffix}-store" if base else f"{other_generated}-store"
    return _Names(
        this_windowed=this_windowed,
        other_windowed=other_windowed,
        this_join=f"{joined.name}{this_suffix}" if joined.name else this_generated,
        other_join=f"{joined.name}{other_suffix}" if joined.name else other_generated,
        merge=_named(plan, joined.name, "-merge", "KSTREAM-MERGE-"),
        this_store=this_store if this is None else this.name,
        other_store=other_store if other is None else other.name,
        shared=shared if left_outer else None,
    )


def _named(plan: Plan, name: str | None, suffix: str, prefix: str) -> str:
    given = None if name is None else f"{name}{suffix}"
    validate_name(given)
    return plan.processor_name(prefix, given)


def _window_store(
    name: str,
    keys: Serde[Any],
    values: Serde[Any],
    windows: JoinWindows,
    joined: StreamJoined[Any, Any, Any],
    supplier: StoreSupplier | None,
) -> StoreBuilder:
    if supplier is not None:
        _check_supplied(supplier, windows)
    return StoreBuilder(
        name,
        StoreKind.JOIN_WINDOW,
        keys,
        values,
        persistent=bool(joined.persistent) if supplier is None else supplier.persistent,
        logging=joined.logging,
        log_config=joined.log_config,
        retention_ms=windows.retention_ms,
        window_size_ms=windows.size_ms,
        grace_ms=windows.grace_ms,
    )


def _check_supplied(supplier: StoreSupplier, windows: JoinWindows) -> None:
    """Check suppliers of a join as Kafka Streams does (`KStreamImplJoin.assertWindowSettings`)."""
    if supplier.kind is not StoreKind.WINDOW:
        message = f"Store {supplier.name} is supplied as a {supplier.kind.value} store instead of a window store"
        raise TopologyError(message)
    if not supplier.retain_duplicates:
        message = "The StoreSupplier must set retainDuplicates=true, found retainDuplicates=false"
        raise TopologyError(
            message, hint=f"Stores.persistent_window_store({supplier.name!r}, ..., retain_duplicates=True)"
        )
    if (supplier.retention_ms, supplier.window_size_ms) != (windows.retention_ms, windows.size_ms):
        message = (
            f"Window settings mismatch. WindowBytesStoreSupplier settings {supplier} must match JoinWindows settings {windows} "
            "for the window size and retention period"
        )
        hint = f"Here the window size is {windows.size_ms} ms, and the retention {windows.retention_ms} ms."
        raise TopologyError(message, hint=hint)


def _shared_store(
    name: str, keys: Serde[Any], values: Serde[Any], joined: StreamJoined[Any, Any, Any], *, persistent: bool
) -> StoreBuilder:
    return StoreBuilder(
        name,
        StoreKind.LIST_VALUE,
        join_side_key(keys),
        values,
        persistent=persistent,
        logging=joined.logging,
        log_config=joined.log_config,
    )
