"""`KGroupedStream` and windowed streams: a stream grouped by key, on its way to a table.

They are given the class of the tables they make, which lies above them: a table can become a stream again, and be grouped.
Bodies only append steps to the plan of the builder.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from pipeline.dsl import tables
from pipeline.dsl.cogroup import CogroupedKStream
from pipeline.dsl.emit_strategy import EmitStrategy
from pipeline.dsl.options import Materialized, name_of
from pipeline.dsl.plan import Plan, TableNode, repartition, serde_of
from pipeline.dsl.windowed import (
    SESSION_COUNT,
    SessionAggregator,
    burn_store_name,
    covered,
    session_aggregate,
    session_reducer,
    window_aggregate,
    windowed_store,
)
from pipeline.errors import TopologyError
from pipeline.operators.aggregations import Aggregator, StreamAggregate
from pipeline.operators.sessions import session_store_getter
from pipeline.operators.tables import store_getter, window_store_getter
from pipeline.serde.primitives import LONG
from pipeline.serde.windowed import session_windowed, windowed_of_size_ms
from pipeline.windows import SessionWindows, SlidingWindows, TimeWindows, UnlimitedWindows, Windowed

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.dsl.options import Named
    from pipeline.dsl.streams import KTable
    from pipeline.processor.operator import Operator
    from pipeline.serde.api import Serde
    from pipeline.state.api import StoreBuilder
    from pipeline.topology.topology import Topology

K = TypeVar("K")
V = TypeVar("V")
VO = TypeVar("VO")


@dataclass(frozen=True, slots=True)
class KGroupedStream(Generic[K, V]):
    """A stream grouped by key, to be aggregated (`org.apache.kafka.streams.kstream.KGroupedStream`).

    Records with a null key or a null value are not aggregated; they are counted as dropped. Aggregations raise `TopologyError`
    if a serde is missing.

    >>> from pipeline import STRING, Consumed, StreamsBuilder
    >>> from pipeline.testing import TopologyTestDriver
    >>> builder = StreamsBuilder()
    >>> _ = builder.stream("in", Consumed(STRING, STRING)).group_by_key().count(Materialized("counts"))
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     driver.input_topic("in", STRING, STRING).pipe_key_value_list([("a", "x"), ("a", "y")])
    ...     driver.get_state_store("counts").get("a").value
    2
    """

    _table: type[KTable[Any, Any]]
    _plan: Plan
    _node: str
    _sources: frozenset[str]
    _key_serde: Serde[K] | None
    _value_serde: Serde[V] | None
    _name: str | None
    _repartition_required: bool
    _repartitions: dict[str, str] = field(default_factory=dict, compare=False)
    """Sources that read it back, by the name given to the grouping: its aggregations share the topic."""

    def count(self, materialized: Materialized[K, int] | None = None, *, named: Named | None = None) -> KTable[K, int]:
        """Number of records per key."""
        return self._aggregate("KSTREAM-AGGREGATE-", COUNT, (), _counted(materialized), named)

    def reduce(
        self,
        reducer: Callable[[V, V], V],
        materialized: Materialized[K, V] | None = None,
        *,
        named: Named | None = None,
    ) -> KTable[K, V]:
        """Combine values per key: `reducer(aggregate, value)`; the first value is the first aggregate."""
        options = _valued(materialized, self._value_serde)
        return self._aggregate("KSTREAM-REDUCE-", _reducing(reducer), (reducer,), options, named)

    def aggregate(
        self,
        initializer: Callable[[], VO],
        aggregator: Callable[[K, V, VO], VO],
        materialized: Materialized[K, VO] | None = None,
        *,
        named: Named | None = None,
    ) -> KTable[K, VO]:
        """Combine values per key: `aggregator(key, value, aggregate)`, starting from `initializer()`.

        An aggregator that returns None deletes the key.
        """
        functions = initializer, aggregator
        options: Materialized[K, VO] = materialized or Materialized()
        return self._aggregate("KSTREAM-AGGREGATE-", Aggregator(*functions), functions, options, named)

    def cogroup(self, aggregator: Callable[[K, V, VO], VO]) -> CogroupedKStream[K, VO]:
        """Aggregate this stream together with others into one table.

        Args:
            aggregator: `(key, value, aggregate) -> aggregate` for the records of this stream; None deletes the key.
        """
        return CogroupedKStream(self._plan, ((self, aggregator),), self._table)

    @overload
    def windowed_by(self, windows: TimeWindows | SlidingWindows | UnlimitedWindows) -> TimeWindowedKStream[K, V]: ...

    @overload
    def windowed_by(self, windows: SessionWindows) -> SessionWindowedKStream[K, V]: ...

    def windowed_by(
        self, windows: TimeWindows | SlidingWindows | UnlimitedWindows | SessionWindows
    ) -> TimeWindowedKStream[K, V] | SessionWindowedKStream[K, V]:
        """Aggregate per key and window."""
        if isinstance(windows, SessionWindows):
            return SessionWindowedKStream(self, windows)
        return TimeWindowedKStream(self, windows)

    def _aggregate(
        self,
        prefix: str,
        aggregator: Aggregator,
        functions: tuple[Any, ...],
        options: Materialized[K, Any],
        named: Named | None,
    ) -> KTable[K, Any]:
        store_name = self._plan.table_name(options, prefix)
        name = self._plan.processor_name(prefix, name_of(named))
        store = tables.table_store(self._plan, store_name, options, self._key_serde, None)
        node = TableNode(
            name,
            store_name,
            lambda c: store_getter(c, store_name),
            is_materialized=True,
            is_versioned=options.is_versioned,
        )

        def operator() -> Operator:
            return StreamAggregate(store_name, aggregator, send_old_values=node.sends_old_values)

        sources = self._append(node, store, operator, functions, is_named=options.name is not None)
        return self._table(self._plan, node, sources, store.key_serde, store.value_serde)

    def _append(
        self,
        node: TableNode,
        store: StoreBuilder,
        operator: Callable[[], Operator],
        functions: tuple[Any, ...],
        *,
        is_named: bool,
    ) -> frozenset[str]:
        """Write the aggregation, behind a repartition where keys may have changed; gives its sources."""
        parent, sources = self._node, self._sources
        if self._repartition_required:
            parent = self._repartitioned(self._name or store.name, is_named=is_named or self._name is not None)
            sources = frozenset({parent})

        def write(topology: Topology) -> None:
            topology.add_processor(node.name, operator, parent, functions=functions)
            topology.add_state_store(store, node.name)

        self._plan.steps.append(write)
        return sources

    def _repartitioned(self, prefix: str, *, is_named: bool) -> str:
        """Source of the repartition topic; made once if the grouping was named (`GroupedStreamAggregateBuilder`)."""
        if prefix in self._repartitions:
            self._plan.repartition_again(prefix, is_named=is_named)
            return self._repartitions[prefix]
        keys = serde_of(self._key_serde, "keys", f"repartition topic {prefix}")
        values = serde_of(self._value_serde, "values", f"repartition topic {prefix}")
        source = repartition(self._plan, self._node, prefix, (keys, values), is_named=is_named)
        if prefix == self._name:
            self._repartitions[prefix] = source
        return source


@dataclass(frozen=True, slots=True)
class TimeWindowedKStream(Generic[K, V]):
    """A grouped stream in windows (`org.apache.kafka.streams.kstream.TimeWindowedKStream`).

    A window takes records until stream time has passed its end by the grace period; later ones are counted as dropped.
    Records with a null key are not aggregated; null values are, except in sliding windows. Aggregations raise `TopologyError`
    if a serde is missing, or the store keeps windows for less than size and grace.
    """

    _grouped: KGroupedStream[K, V]
    _windows: TimeWindows | SlidingWindows | UnlimitedWindows
    _emit: EmitStrategy = EmitStrategy.ON_WINDOW_UPDATE

    def emit_strategy(self, emit_strategy: EmitStrategy) -> TimeWindowedKStream[K, V]:
        """The same windows, forwarded at every update or once when they have closed.

        Raises:
            TopologyError: If windows without end are to be forwarded when they close.
        """
        if isinstance(self._windows, UnlimitedWindows) and emit_strategy is EmitStrategy.ON_WINDOW_CLOSE:
            message = "ON_WINDOW_CLOSE emit strategy cannot be used for UnlimitedWindows: they never close"
            raise TopologyError(message)
        return replace(self, _emit=emit_strategy)

    def count(
        self, materialized: Materialized[K, int] | None = None, *, named: Named | None = None
    ) -> KTable[Windowed[K], int]:
        """Number of records per key and window."""
        if not isinstance(self._windows, SlidingWindows):
            burn_store_name(self._grouped._plan, materialized)  # noqa: SLF001 - two halves of one operation
        return self._aggregate("KSTREAM-AGGREGATE-", COUNT, (), _counted(materialized), named)

    def reduce(
        self,
        reducer: Callable[[V, V], V],
        materialized: Materialized[K, V] | None = None,
        *,
        named: Named | None = None,
    ) -> KTable[Windowed[K], V]:
        """Combine values per key and window: `reducer(aggregate, value)`."""
        options = _valued(materialized, self._grouped._value_serde)  # noqa: SLF001 - two halves of one operation
        return self._aggregate("KSTREAM-REDUCE-", _reducing(reducer), (reducer,), options, named)

    def aggregate(
        self,
        initializer: Callable[[], VO],
        aggregator: Callable[[K, V, VO], VO],
        materialized: Materialized[K, VO] | None = None,
        *,
        named: Named | None = None,
    ) -> KTable[Windowed[K], VO]:
        """Combine values per key and window: `aggregator(key, value, aggregate)`, from `initializer()`.

        An aggregator that returns None deletes the window.
        """
        functions = initializer, aggregator
        options: Materialized[K, VO] = materialized or Materialized()
        return self._aggregate("KSTREAM-AGGREGATE-", Aggregator(*functions), functions, options, named)

    def _aggregate(
        self,
        prefix: str,
        aggregator: Aggregator,
        functions: tuple[Any, ...],
        options: Materialized[K, Any],
        named: Named | None,
    ) -> KTable[Windowed[K], Any]:
        grouped, windows = self._grouped, self._windows
        plan = grouped._plan  # noqa: SLF001 - two halves of one operation
        store_name = plan.table_name(options, prefix)
        name = plan.processor_name(prefix, name_of(named))
        store = windowed_store(plan, store_name, options, grouped._key_serde, windows, self._emit)  # noqa: SLF001 - two halves
        node = TableNode(name, store_name, lambda c: window_store_getter(c, store_name), is_materialized=True)
        plan.graces_ms[name] = windows.grace_ms

        def operator() -> Operator:
            return window_aggregate(store, windows, aggregator, send_old_values=node.sends_old_values)

        sources = grouped._append(  # noqa: SLF001 - two halves of one operation
            node, store, operator, covered(functions, windows, self._emit), is_named=options.name is not None
        )
        key_serde = windowed_of_size_ms(store.key_serde, windows.size_ms)
        table = grouped._table  # noqa: SLF001 - two halves of one operation
        return table(plan, node, sources, key_serde, store.value_serde)


@dataclass(frozen=True, slots=True)
class SessionWindowedKStream(Generic[K, V]):
    """A grouped stream in sessions (`org.apache.kafka.streams.kstream.SessionWindowedKStream`).

    A record between two sessions merges them: the old ones are deleted, with a tombstone each, and the merged one appears.
    A record that would belong to a session which ended more than gap and grace before stream time is counted as dropped.
    Records with a null key are not aggregated; null values are. Aggregations raise `TopologyError` if a serde is missing, or
    the store keeps sessions for less than gap and grace.
    """

    _grouped: KGroupedStream[K, V]
    _windows: SessionWindows
    _emit: EmitStrategy = EmitStrategy.ON_WINDOW_UPDATE

    def emit_strategy(self, emit_strategy: EmitStrategy) -> SessionWindowedKStream[K, V]:
        """The same sessions, forwarded at every update or once when they have closed."""
        return replace(self, _emit=emit_strategy)

    def count(
        self, materialized: Materialized[K, int] | None = None, *, named: Named | None = None
    ) -> KTable[Windowed[K], int]:
        """Number of records per key and session."""
        burn_store_name(self._grouped._plan, materialized)  # noqa: SLF001 - two halves of one operation
        return self._aggregate("KSTREAM-AGGREGATE-", SESSION_COUNT, (), _counted(materialized), named)

    def reduce(
        self,
        reducer: Callable[[V, V], V],
        materialized: Materialized[K, V] | None = None,
        *,
        named: Named | None = None,
    ) -> KTable[Windowed[K], V]:
        """Combine values per key and session: `reducer(aggregate, value)`; merged sessions are combined in the same way."""
        options = _valued(materialized, self._grouped._value_serde)  # noqa: SLF001 - two halves of one operation
        return self._aggregate("KSTREAM-REDUCE-", session_reducer(reducer), (reducer,), options, named)

    def aggregate(
        self,
        initializer: Callable[[], VO],
        aggregator: Callable[[K, V, VO], VO],
        merger: Callable[[K, VO, VO], VO],
        materialized: Materialized[K, VO] | None = None,
        *,
        named: Named | None = None,
    ) -> KTable[Windowed[K], VO]:
        """Combine values per key and session.

        Args:
            initializer: Gives the aggregate of nothing.
            aggregator: `(key, value, aggregate) -> aggregate`; None deletes the session.
            merger: `(key, aggregate, other_aggregate) -> aggregate`: what becomes of sessions that a record connects.
            materialized: How the sessions are stored.
            named: Name of the node.
        """
        functions = initializer, aggregator, merger
        options: Materialized[K, VO] = materialized or Materialized()
        how = SessionAggregator(Aggregator(initializer, aggregator), merger)
        return self._aggregate("KSTREAM-AGGREGATE-", how, functions, options, named)

    def _aggregate(
        self,
        prefix: str,
        aggregator: SessionAggregator,
        functions: tuple[Any, ...],
        options: Materialized[K, Any],
        named: Named | None,
    ) -> KTable[Windowed[K], Any]:
        grouped, windows = self._grouped, self._windows
        plan = grouped._plan  # noqa: SLF001 - two halves of one operation
        store_name = plan.table_name(options, prefix)
        name = plan.processor_name(prefix, name_of(named))
        store = windowed_store(plan, store_name, options, grouped._key_serde, windows, self._emit)  # noqa: SLF001 - two halves
        node = TableNode(name, store_name, lambda c: session_store_getter(c, store_name), is_materialized=True)
        plan.graces_ms[name] = windows.retention_ms

        def operator() -> Operator:
            return session_aggregate(store, windows, aggregator, send_old_values=node.sends_old_values)

        sources = grouped._append(  # noqa: SLF001 - two halves of one operation
            node, store, operator, covered(functions, windows, self._emit), is_named=options.name is not None
        )
        table = grouped._table  # noqa: SLF001 - two halves of one operation
        return table(plan, node, sources, session_windowed(store.key_serde), store.value_serde)


COUNT = Aggregator(lambda: 0, lambda _key, _value, count: count + 1)


def _reducing(reducer: Callable[[Any, Any], Any]) -> Aggregator:
    return Aggregator(None, lambda _key, value, aggregate: reducer(aggregate, value))


def _counted(materialized: Materialized[Any, int] | None) -> Materialized[Any, int]:
    options: Materialized[Any, int] = materialized or Materialized()
    return options if options.value_serde is not None else replace(options, value_serde=LONG)


def _valued(materialized: Materialized[Any, V] | None, serde: Serde[V] | None) -> Materialized[Any, V]:
    options: Materialized[Any, V] = materialized or Materialized()
    return options if options.value_serde is not None else replace(options, value_serde=serde)
