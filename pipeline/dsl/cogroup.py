"""`CogroupedKStream`: several grouped streams that are aggregated into one table."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from pipeline.dsl.options import Materialized, name_of
from pipeline.dsl.plan import Plan, TableNode, repartition, serde_of
from pipeline.dsl.tables import table_store
from pipeline.dsl.windowed import SessionAggregator, covered, session_aggregate, window_aggregate, windowed_store
from pipeline.operators.aggregations import Aggregator, StreamAggregate
from pipeline.operators.sessions import session_store_getter
from pipeline.operators.stateless import PassThrough
from pipeline.operators.tables import store_getter, window_store_getter
from pipeline.serde.windowed import session_windowed, windowed_of_size_ms
from pipeline.windows import SessionWindows

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.dsl.grouped_streams import KGroupedStream
    from pipeline.dsl.options import Named
    from pipeline.dsl.streams import KTable
    from pipeline.dsl.windowed import Windows
    from pipeline.processor.operator import Operator
    from pipeline.state.api import StoreBuilder
    from pipeline.topology.topology import Topology
    from pipeline.windows import SlidingWindows, TimeWindows, UnlimitedWindows, Windowed

K = TypeVar("K")
V = TypeVar("V")
VO = TypeVar("VO")

_PREFIX = "COGROUPKSTREAM-AGGREGATE-"

Member = tuple["KGroupedStream[Any, Any]", "Callable[[Any, Any, Any], Any]"]
"""A grouped stream and its `(key, value, aggregate) -> aggregate`."""


@dataclass(frozen=True, slots=True)
class CogroupedKStream(Generic[K, VO]):
    """Several grouped streams, aggregated into one table (`org.apache.kafka.streams.kstream.CogroupedKStream`).

    Each stream has an aggregator of its own; all share the table's store. Aggregations raise `TopologyError` if a serde is
    missing.
    """

    _plan: Plan
    _members: tuple[Member, ...]
    _table: type[KTable[Any, Any]]
    _sources: dict[int, str] = field(default_factory=dict)

    def cogroup(self, grouped: KGroupedStream[K, V], aggregator: Callable[[K, V, VO], VO]) -> CogroupedKStream[K, VO]:
        """Add a stream.

        Args:
            grouped: The stream; its topics must have as many partitions as those of the others.
            aggregator: `(key, value, aggregate) -> aggregate` for its records; None deletes the key.
        """
        others = tuple(member for member in self._members if member[0] is not grouped)
        return replace(self, _members=(*others, (grouped, aggregator)))

    @overload
    def windowed_by(
        self, windows: TimeWindows | SlidingWindows | UnlimitedWindows
    ) -> TimeWindowedCogroupedKStream[K, VO]: ...

    @overload
    def windowed_by(self, windows: SessionWindows) -> SessionWindowedCogroupedKStream[K, VO]: ...

    def windowed_by(
        self, windows: TimeWindows | SlidingWindows | UnlimitedWindows | SessionWindows
    ) -> TimeWindowedCogroupedKStream[K, VO] | SessionWindowedCogroupedKStream[K, VO]:
        """Aggregate per key and window."""
        if isinstance(windows, SessionWindows):
            return SessionWindowedCogroupedKStream(self, windows)
        return TimeWindowedCogroupedKStream(self, windows)

    def aggregate(
        self,
        initializer: Callable[[], VO],
        materialized: Materialized[K, VO] | None = None,
        *,
        named: Named | None = None,
    ) -> KTable[K, VO]:
        """Combine the values of all streams per key, starting from `initializer()`.

        Records with a null key or a null value are not aggregated.
        """
        options: Materialized[K, VO] = materialized or Materialized()
        store_name = self._plan.table_name(options, _PREFIX)
        store = table_store(self._plan, store_name, options, self._members[0][0]._key_serde, None)  # noqa: SLF001 - same family

        def operator(aggregator: Aggregator, node: TableNode) -> Operator:
            return StreamAggregate(store_name, aggregator, send_old_values=node.sends_old_values)

        node = TableNode(
            "",
            store_name,
            lambda c: store_getter(c, store_name),
            is_materialized=True,
            is_versioned=options.is_versioned,
        )
        sources = self._write(node, store, initializer, operator, name_of(named))
        return self._table(self._plan, node, sources, store.key_serde, store.value_serde)

    def _windowed_store(self, materialized: Materialized[K, VO] | None, windows: Windows) -> StoreBuilder:
        options: Materialized[K, VO] = materialized or Materialized()
        store_name = self._plan.table_name(options, _PREFIX)
        return windowed_store(self._plan, store_name, options, self._members[0][0]._key_serde, windows)  # noqa: SLF001 - same family

    def _write(
        self,
        node: TableNode,
        store: StoreBuilder,
        initializer: Callable[[], VO],
        operator: Callable[[Aggregator, TableNode], Operator],
        given: str | None,
        *covered: object,
    ) -> frozenset[str]:
        """One aggregation per stream, and the node that brings them together (`CogroupedStreamAggregateBuilder`)."""
        plan = self._plan
        parents = [self._parent(grouped, store.name) for grouped, _ in self._members]
        sources = frozenset().union(*(sources for _, sources in parents))
        names = [
            plan.processor_name(_PREFIX, given and f"{given}-cogroup-agg-{number}") for number in range(len(parents))
        ]
        node.name = plan.processor_name("COGROUPKSTREAM-MERGE-", given and f"{given}-cogroup-merge")

        def aggregation(add: Callable[[Any, Any, Any], Any]) -> Callable[[], Operator]:
            return lambda: operator(Aggregator(initializer, add), node)

        def write(topology: Topology) -> None:
            for name, (parent, _), (_, add) in zip(names, parents, self._members, strict=True):
                topology.add_processor(name, aggregation(add), parent, functions=(initializer, add, *covered))
                topology.add_state_store(store, name)
            topology.add_processor(node.name, PassThrough, *names, functions=())
            topology.copartition(sources)

        plan.steps.append(write)
        return sources

    def _parent(self, grouped: KGroupedStream[Any, Any], store_name: str) -> tuple[str, frozenset[str]]:
        """The node to aggregate, behind a repartition where keys may have changed, and the sources above it."""
        if not grouped._repartition_required:  # noqa: SLF001 - same family
            return grouped._node, grouped._sources  # noqa: SLF001 - same family
        prefix = grouped._name or store_name  # noqa: SLF001 - same family
        is_named = store_name not in self._plan.unnamed.stores or grouped._name is not None  # noqa: SLF001
        if id(grouped) in self._sources:
            source = self._sources[id(grouped)]
            self._plan.repartition_again(prefix, is_named=is_named)
            return source, frozenset({source})
        keys = serde_of(grouped._key_serde, "keys", f"repartition topic {prefix}")  # noqa: SLF001 - same family
        values = serde_of(grouped._value_serde, "values", f"repartition topic {prefix}")  # noqa: SLF001 - same family
        source = repartition(self._plan, grouped._node, prefix, (keys, values), is_named=is_named)  # noqa: SLF001
        self._sources[id(grouped)] = source
        return source, frozenset({source})


@dataclass(frozen=True, slots=True)
class TimeWindowedCogroupedKStream(Generic[K, VO]):
    """Several grouped streams in windows (`org.apache.kafka.streams.kstream.TimeWindowedCogroupedKStream`)."""

    _cogrouped: CogroupedKStream[K, VO]
    _windows: TimeWindows | SlidingWindows | UnlimitedWindows

    def aggregate(
        self,
        initializer: Callable[[], VO],
        materialized: Materialized[K, VO] | None = None,
        *,
        named: Named | None = None,
    ) -> KTable[Windowed[K], VO]:
        """Combine the values of all streams per key and window, starting from `initializer()`."""
        cogrouped, windows = self._cogrouped, self._windows
        store = cogrouped._windowed_store(materialized, windows)  # noqa: SLF001 - two halves of one operation

        def operator(aggregator: Aggregator, node: TableNode) -> Operator:
            return window_aggregate(store, windows, aggregator, send_old_values=node.sends_old_values)

        node = TableNode("", store.name, lambda c: window_store_getter(c, store.name), is_materialized=True)
        sources = cogrouped._write(node, store, initializer, operator, name_of(named), *covered((), windows))  # noqa: SLF001
        cogrouped._plan.graces_ms[node.name] = windows.grace_ms  # noqa: SLF001 - two halves of one operation
        key_serde = windowed_of_size_ms(store.key_serde, windows.size_ms)
        return cogrouped._table(cogrouped._plan, node, sources, key_serde, store.value_serde)  # noqa: SLF001


@dataclass(frozen=True, slots=True)
class SessionWindowedCogroupedKStream(Generic[K, VO]):
    """Several grouped streams in sessions (`org.apache.kafka.streams.kstream.SessionWindowedCogroupedKStream`)."""

    _cogrouped: CogroupedKStream[K, VO]
    _windows: SessionWindows

    def aggregate(
        self,
        initializer: Callable[[], VO],
        merger: Callable[[K, VO, VO], VO],
        materialized: Materialized[K, VO] | None = None,
        *,
        named: Named | None = None,
    ) -> KTable[Windowed[K], VO]:
        """Combine the values of all streams per key and session.

        Args:
            initializer: Gives the aggregate of nothing.
            merger: `(key, aggregate, other_aggregate) -> aggregate`: what becomes of sessions that a record connects.
            materialized: How the sessions are stored.
            named: Prefix of the names of the nodes.
        """
        cogrouped, windows = self._cogrouped, self._windows
        store = cogrouped._windowed_store(materialized, windows)  # noqa: SLF001 - two halves of one operation

        def operator(aggregator: Aggregator, node: TableNode) -> Operator:
            how = SessionAggregator(aggregator, merger)
            return session_aggregate(store, windows, how, send_old_values=node.sends_old_values)

        node = TableNode("", store.name, lambda c: session_store_getter(c, store.name), is_materialized=True)
        sources = cogrouped._write(  # noqa: SLF001 - two halves of one operation
            node, store, initializer, operator, name_of(named), *covered((merger,), windows)
        )
        cogrouped._plan.graces_ms[node.name] = windows.retention_ms  # noqa: SLF001 - two halves of one operation
        key_serde = session_windowed(store.key_serde)
        return cogrouped._table(cogrouped._plan, node, sources, key_serde, store.value_serde)  # noqa: SLF001
