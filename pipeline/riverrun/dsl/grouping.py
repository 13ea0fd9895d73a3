"""The common part of aggregations over a grouped stream, with and without windows: the steps that they add to the plan.

Callers pass the class of the tables to create. It is in a layer above: a table can become a stream again, and be grouped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass, field, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from riverrun.arguments import refuse_unstarted
from riverrun.dsl.event_time_stores import event_time_store
from riverrun.dsl.options import EmitStrategy, name_of
from riverrun.dsl.plan import TableNode, repartition, serde_of
from riverrun.dsl.tables import NoTtl, TimeToLive, check_supplied, check_without_ttl, stored_node, table_store
from riverrun.errors import TopologyError
from riverrun.operators.aggregations import Aggregator, ClosingWindows, StreamWindowAggregate
from riverrun.operators.count_windows import StreamCountWindows, open_windows
from riverrun.operators.late_records import LateRecords
from riverrun.operators.rolling import StreamRolling, values_of_a_time
from riverrun.operators.sessions import StreamSessionWindowAggregate, session_store_getter
from riverrun.operators.sliding import StreamSlidingWindowAggregate
from riverrun.operators.tables import window_store_getter
from riverrun.serde.windowed import session_windowed, windowed_of_size_ms, windowed_until
from riverrun.state.api import StoreKind
from riverrun.topology.assembly import add_operator
from riverrun.windows import (
    CountWindows,
    OwnWindows,
    RollingWindows,
    SessionWindows,
    SlidingWindows,
    TimeWindows,
    UnlimitedWindows,
    VaryingWindows,
    millis,
    varying,
)

if TYPE_CHECKING:
    from riverrun.dsl.kstream import KStream
    from riverrun.dsl.ktable import KTable
    from riverrun.dsl.options import Materialized, Named
    from riverrun.dsl.plan import Plan
    from riverrun.operators.rolling import OfWindow
    from riverrun.processor.operator import Operator
    from riverrun.serde.api import Serde
    from riverrun.state.api import StoreBuilder
    from riverrun.topology.topology import Topology
    from riverrun.windows import Windows as OwnGiven

K = TypeVar("K")
V = TypeVar("V")

OperatorOf = Callable[["StoreBuilder", "TableNode"], "Operator"]
"""Creates the operator of an aggregation from its store and node, when it is known what the node sends."""

FixedWindows = TimeWindows | SlidingWindows | UnlimitedWindows | VaryingWindows
"""Windows that their start identifies."""

Windows = FixedWindows | SessionWindows

_COUNT_WINDOWS = "KSTREAM-COUNT-WINDOWS-"
_ROLLING = "KSTREAM-ROLLING-"
# Windows that include their end are over this many ms after it.
_AFTER_END_MS = 1


@dataclass(frozen=True, slots=True)
class SessionAggregator:
    """The user's functions of a session aggregation: for values, and for merging sessions.

    Args:
        merger: `(key, aggregate, other_aggregate) -> aggregate`.
    """

    aggregator: Aggregator
    merger: Callable[[Any, Any, Any], Any]


def fixed(windows: FixedWindows | OwnGiven) -> FixedWindows:
    """Return a user's windows in the form that aggregations call."""
    if isinstance(windows, CountWindows | RollingWindows):
        message = f"Cogrouped streams cannot be in {type(windows).__name__}, whose results are no tables"
        raise TopologyError(message, hint="Merge the streams: one.merge(other).group_by_key().windowed_by(...).")
    return windows if isinstance(windows, FixedWindows) else varying(windows)


def reducing(reducer: Callable[[Any, Any], Any]) -> Aggregator:
    """Return the functions that reduce values: the first one is the initial aggregate."""
    return Aggregator(None, lambda _key, value, aggregate: reducer(aggregate, value))


def session_reducer(reducer: Callable[[Any, Any], Any]) -> SessionAggregator:
    """Return the functions of a session reduction, which starts from the first value (`SessionWindowedKStreamImpl.reduce`)."""

    def add(_key: Any, value: Any, aggregate: Any) -> Any:
        return value if aggregate is None else reducer(aggregate, value)

    def merge(_key: Any, one: Any, two: Any) -> Any:
        return two if one is None else reducer(one, two)

    return SessionAggregator(Aggregator(_nothing, add), merge)


def burn_store_name(plan: Plan, materialized: Materialized[Any, Any] | None) -> None:
    """Consume one more number for a `count` whose options name no store, unless windows slide."""
    # Kafka Streams does so for compatibility (`KGroupedStreamImpl.count`); later generated names depend on it.
    if materialized is not None and materialized.name is None:
        plan.store_name("KSTREAM-AGGREGATE-")


def windowed_store(
    plan: Plan,
    name: str,
    options: Materialized[Any, Any],
    key_serde: Serde[Any] | None,
    windows: Windows,
    emit: EmitStrategy = EmitStrategy.ON_WINDOW_UPDATE,
) -> StoreBuilder:
    """Return the store of a windowed aggregation, with timestamps (`WindowStoreMaterializer` and its siblings)."""
    _check_supplied(options, windows)
    check_without_ttl(options, NoTtl.WINDOWS)
    if options.is_versioned:
        raise TopologyError(f"Store {name} stores windows: it cannot be versioned", hint="Leave history_retention out.")
    if options.max_entries is not None:
        raise TopologyError(f"Store {name} stores windows: retention, not max_entries, limits it")
    retention_ms = windows.retention_ms
    if options.retention is not None:
        retention_ms = millis(options.retention, "retention")
    if retention_ms < windows.retention_ms:
        raise TopologyError(
            f"Store {name} stores windows for {retention_ms} ms, "
            f"but they can change for {windows.retention_ms} ms: {windows}"
        )
    size_ms = None if isinstance(windows, SessionWindows) else windows.size_ms
    return replace(
        table_store(plan, name, replace(options, supplier=None), key_serde, None),
        kind=StoreKind.SESSION if size_ms is None else StoreKind.TIMESTAMPED_WINDOW,
        retention_ms=retention_ms,
        window_size_ms=size_ms or 0,
        own_end_of=windows.end_of if isinstance(windows, VaryingWindows) else None,
        slack_ms=_slack_ms(windows, emit),
        emits_final=emit is EmitStrategy.ON_WINDOW_CLOSE,
        grace_ms=None if isinstance(windows, UnlimitedWindows) else windows.grace_ms,
    )


def _check_supplied(options: Materialized[Any, Any], windows: Windows) -> None:
    check_supplied(options, StoreKind.SESSION if isinstance(windows, SessionWindows) else StoreKind.WINDOW)
    supplier = options.supplier
    if supplier is None or isinstance(windows, SessionWindows):
        return
    if supplier.retain_duplicates:
        message = f"Store {supplier.name} keeps one value per window: it cannot be supplied with retain_duplicates"
        raise TopologyError(message)
    if supplier.window_size_ms != windows.size_ms:
        message = f"Store {supplier.name} is supplied for windows of {supplier.window_size_ms} ms, not for {windows}"
        raise TopologyError(message, hint=f"Supply it with a window size of {windows.size_ms} ms.")


def _slack_ms(windows: Windows, emit: EmitStrategy) -> int:
    """Return how long beyond their retention windows can still be found."""
    if isinstance(windows, SlidingWindows | OwnWindows):
        return windows.slack_ms
    if isinstance(windows, SessionWindows):
        # Not those of sessions: a record could change a session that was forwarded.
        return 0
    # Stores of closed windows find 1 ms more, as they are ordered by time (`AbstractDualSchemaRocksDBSegmentedBytesStore`).
    return int(emit is EmitStrategy.ON_WINDOW_CLOSE)


def covered(
    functions: tuple[Any, ...], windows: Windows, emit: EmitStrategy = EmitStrategy.ON_WINDOW_UPDATE
) -> tuple[Any, ...]:
    """Return the part of a windowed aggregation that the fingerprint covers."""
    if isinstance(windows, OwnWindows):
        return (*functions, *_own(windows.given), windows.size_ms, windows.grace_ms, emit.value)
    # A class derived from built-in windows may compute other windows from the same fields.
    own = () if type(windows).__module__ == TimeWindows.__module__ else (type(windows),)
    return (*functions, type(windows).__name__, *astuple(windows), *own, emit.value)


def _own(windows: object) -> tuple[Any, ...]:
    # Custom windows change with the code of their class and with its settings.
    told = asdict(windows) if is_dataclass(windows) and not isinstance(windows, type) else vars(windows)
    return type(windows), tuple(f"{name}={value}" for name, value in sorted(told.items()))


def windowed_node(plan: Plan, name: str, store: StoreBuilder, windows: Windows) -> TableNode:
    """Return a new table of windows, looked up in its store, and record in the plan when they close."""
    if isinstance(windows, SessionWindows):
        plan.closing_ms[name] = _changeable_ms(windows, store.retention_ms) + _AFTER_END_MS
        return TableNode(name, store.name, lambda c: session_store_getter(c, store.name), is_materialized=True)
    # Sliding windows include their end: a record may change them when their time of closing is reached, not after.
    plan.closing_ms[name] = windows.grace_ms + (_AFTER_END_MS if isinstance(windows, SlidingWindows) else 0)
    return TableNode(name, store.name, lambda c: window_store_getter(c, store.name), is_materialized=True)


def _changeable_ms(windows: SessionWindows, kept_ms: int) -> int:
    """Return how far stream time may pass a session's end, ms, while a record can still extend the session."""
    # A record that joins a session may end one gap after it, and counts for gap plus grace after that. By then the store
    # has usually forgotten the session.
    return min(kept_ms, windows.gap_ms + windows.retention_ms)


def windowed_key_serde(inner: Serde[Any], windows: Windows) -> Serde[Any]:
    """Return the serde of a windowed table's keys."""
    if isinstance(windows, SessionWindows):
        return session_windowed(inner)
    if isinstance(windows, VaryingWindows):
        return windowed_until(inner, windows.end_of)
    return windowed_of_size_ms(inner, windows.size_ms)


def window_aggregate(windows: FixedWindows, aggregator: Aggregator) -> OperatorOf:
    """Return a factory of operators for windows of a fixed size."""
    if isinstance(windows, SlidingWindows):
        return lambda store, node: StreamSlidingWindowAggregate(
            store.name, windows, aggregator, send_old_values=node.sends_old_values, closing=_closing(store)
        )
    return lambda store, node: StreamWindowAggregate(
        store.name, windows, aggregator, send_old_values=node.sends_old_values, closing=_closing(store)
    )


def session_aggregate(windows: SessionWindows, how: SessionAggregator) -> OperatorOf:
    return lambda store, node: StreamSessionWindowAggregate(
        store.name,
        windows,
        how.aggregator,
        how.merger,
        kept_ms=store.retention_ms,
        send_old_values=node.sends_old_values,
        closing=_closing(store),
    )


def _closing(store: StoreBuilder) -> ClosingWindows | None:
    return ClosingWindows(store.name, store.key_serde) if store.emits_final else None


def _nothing() -> None:
    """Return None, the aggregate without values."""


@dataclass(frozen=True, slots=True)
class Late:
    """The use of late records.

    Args:
        consumer: Called with the stream of late records, once for each aggregation.
    """

    consumer: Callable[[KStream[Any, Any]], object]
    name: str | None


@dataclass(frozen=True, slots=True)
class Grouping(Generic[K, V]):
    """A stream grouped by key, with everything that its aggregations need (`GroupedStreamAggregateBuilder`).

    Args:
        stream: Class of the streams to create.
        key_serde: Serde of keys; None if unknown.
        value_serde: Serde of values; None if unknown.
        repartition_required: Whether keys may have changed since the records were read.
        repartitions: Sources that read it back, by the grouping's name: its aggregations share the topic.
    """

    table: type[KTable[Any, Any]]
    stream: type[KStream[Any, Any]]
    plan: Plan
    node: str
    sources: frozenset[str]
    key_serde: Serde[K] | None
    value_serde: Serde[V] | None
    name: str | None
    repartition_required: bool
    repartitions: dict[str, str] = field(default_factory=dict, compare=False)

    @property
    def origin(self) -> str:
        """Return the stream and its topics, for messages."""
        return self.plan.origin(self.node, self.sources)

    def aggregate(
        self,
        prefix: str,
        operator: OperatorOf,
        functions: tuple[Any, ...],
        options: Materialized[Any, Any],
        named: Named | None,
    ) -> KTable[K, Any]:
        """Aggregate per key. `functions` are what the fingerprint covers, `prefix` begins generated names."""
        self._check_serdes()
        store_name = self.plan.table_name(options, prefix)
        name = self.plan.processor_name(prefix, name_of(named))
        store = table_store(self.plan, store_name, options, self.key_serde, None, expires=True)
        node, lived = stored_node(name, store_name, is_versioned=options.is_versioned), TimeToLive.of(options)

        def expiring(store: StoreBuilder, node: TableNode) -> Operator:
            made: Operator = lived.applied(operator(store, node), store, node)
            return made

        covers = (*functions, *lived.functions)
        _, sources = self._write(node, store, expiring, covers, is_named=options.name is not None)
        return self.table(self.plan, node, sources, store.key_serde, store.value_serde)

    def aggregate_windows(
        self,
        windows: Windows,
        emit: EmitStrategy,
        *,
        prefix: str,
        operator: OperatorOf,
        functions: tuple[Any, ...],
        options: Materialized[Any, Any],
        named: Named | None,
        late: Late | None,
    ) -> KTable[Any, Any]:
        """Aggregate per key and window, or session, as `aggregate` does; `late` is None to drop late records."""
        self._check_serdes()
        store_name = self.plan.table_name(options, prefix)
        name = self.plan.processor_name(prefix, name_of(named))
        store = windowed_store(self.plan, store_name, options, self.key_serde, windows, emit)
        node = windowed_node(self.plan, name, store, windows)
        covers = covered(functions, windows, emit)
        parent, sources = self._write(node, store, operator, covers, is_named=options.name is not None)
        if late is not None:
            self._add_late(late, store.name, parent, sources)
        return self.table(self.plan, node, sources, windowed_key_serde(store.key_serde, windows), store.value_serde)

    def count_windows(
        self,
        windows: CountWindows,
        aggregator: Aggregator,
        functions: tuple[Any, ...],
        options: Materialized[Any, Any],
        named: Named | None,
        *,
        result: Callable[[Any], Any],
        results: Serde[Any] | None,
    ) -> KStream[K, Any]:
        """Aggregate per key and number of records; `result` makes the result of an aggregate, with the serde `results`.

        The value serde of `options` is that of aggregates.
        """
        self._check_serdes()
        store_name = self.plan.table_name(options, _COUNT_WINDOWS)
        name = self.plan.processor_name(_COUNT_WINDOWS, name_of(named))
        if options.is_versioned or options.max_entries is not None:
            message = f"Store {store_name} has windows that are not full: their number cannot be limited"
            raise TopologyError(message, hint="Leave history_retention and max_entries out. A ttl forgets quiet keys.")
        store = table_store(self.plan, store_name, options, self.key_serde, None, expires=True)
        # The store has lists of open windows, the user's serde is one of aggregates.
        aggregates = store.value_serde
        store = replace(store, value_serde=open_windows(aggregates), table_expires=False)

        def operator(store: StoreBuilder, _node: TableNode) -> Operator:
            return StreamCountWindows(store.name, windows, aggregator, aggregates, result)

        node = stored_node(name, store_name, is_versioned=False)
        covers = (*functions, "count windows", windows.size, windows.advance)
        _, sources = self._write(node, store, operator, covers, is_named=options.name is not None)
        return self.stream(self.plan, name, sources, store.key_serde, results)

    def roll(
        self,
        windows: RollingWindows,
        of_window: OfWindow,
        functions: tuple[Any, ...],
        options: Materialized[Any, Any],
        named: Named | None,
        *,
        results: Serde[Any] | None,
        late: Late | None,
    ) -> KStream[K, Any]:
        """Forward a result of the window of each record, with the serde `results`; `late` is None to drop late records."""
        self._check_serdes()
        store_name = self.plan.table_name(options, _ROLLING)
        name = self.plan.processor_name(_ROLLING, name_of(named))
        values = serde_of(self.value_serde, "values", f"store {store_name}", "group_by or group_by_key: Grouped")
        store = event_time_store(
            self.plan,
            store_name,
            options,
            (self.key_serde, "keys"),
            values_of_a_time(values),
            content="the records of windows",
            reach_ms=windows.size_ms,
            grace_ms=windows.grace_ms,
            retention_ms=windows.retention_ms,
        )

        def operator(store: StoreBuilder, _node: TableNode) -> Operator:
            return StreamRolling(store.name, windows, values, of_window)

        node = stored_node(name, store_name, is_versioned=False)
        covers = (*functions, "rolling", windows.size_ms, windows.records, windows.grace_ms)
        parent, sources = self._write(node, store, operator, covers, is_named=options.name is not None)
        if late is not None:
            self._add_late(late, store_name, parent, sources)
        return self.stream(self.plan, name, sources, store.key_serde, results)

    def _add_late(self, late: Late, store: str, parent: str, sources: frozenset[str]) -> None:
        """Add the node of late records after that of the aggregation, below their common parent."""
        node = self.plan.processor_name("KSTREAM-LATE-", late.name)
        self.plan.add_step(
            lambda topology: add_operator(topology, node, lambda: LateRecords(store), parent, functions=("late",))
        )
        stream = self.stream(self.plan, node, sources, self.key_serde, self.value_serde)
        refuse_unstarted(late.consumer(stream), f"The consumer of {node}", TopologyError)

    def repartitioned(self, prefix: str, *, is_named: bool) -> str:
        """Write the stream to a repartition topic, and return the source that reads it back."""
        return repartition(
            self.plan, self.node, prefix, (self.key_serde, self.value_serde), is_named=is_named, option="Grouped"
        )

    def _check_serdes(self) -> None:
        if self.repartition_required:
            # Before the serdes of the store, which may take them over from it: the message must name the call to change.
            where = f"The keys of {self.origin} may have changed: the repartition topic of the grouping"
            serde_of(self.key_serde, "keys", where, "group_by or group_by_key: Grouped(key_serde, value_serde)")
            serde_of(self.value_serde, "values", where, "group_by or group_by_key: Grouped(key_serde, value_serde)")

    def _write(
        self, node: TableNode, store: StoreBuilder, operator: OperatorOf, functions: tuple[Any, ...], *, is_named: bool
    ) -> tuple[str, frozenset[str]]:
        """Write an aggregation, after a repartition if keys may have changed, and return its parent and sources."""
        parent, sources = self.node, self.sources
        if self.repartition_required:
            parent = self._shared_repartition(self.name or store.name, is_named=is_named or self.name is not None)
            sources = frozenset({parent})

        def write(topology: Topology) -> None:
            add_operator(topology, node.name, lambda: operator(store, node), parent, functions=functions)
            topology.add_state_store(store, node.name)

        self.plan.add_step(write)
        return parent, sources

    def _shared_repartition(self, prefix: str, *, is_named: bool) -> str:
        if prefix in self.repartitions:
            self.plan.repartition_again(prefix, is_named=is_named)
            return self.repartitions[prefix]
        source = self.repartitioned(prefix, is_named=is_named)
        # As in Kafka Streams: without a name, the topic is named after the store, so each aggregation has its own.
        if prefix == self.name:
            self.repartitions[prefix] = source
        return source
