"""`KStream`, `KGroupedStream`, `TimeWindowedKStream`, `KTable`, `GlobalKTable`: what users chain together.

They stand in one module because each makes the others. Bodies only append steps to the plan of the builder.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from pipeline.dsl.arity import joiner_with_key, with_key
from pipeline.dsl.options import Grouped, Joined, Materialized, Produced, Repartitioned, name_of
from pipeline.dsl.plan import Plan, TableNode, repartition, serde_of
from pipeline.errors import TopologyError
from pipeline.operators.aggregations import Aggregator, StreamAggregate, StreamWindowAggregate
from pipeline.operators.joins import StreamTableJoin, StreamTableLeftJoin
from pipeline.operators.stateless import Filter, FlatMap, FlatMapValues, Map, MapKey, MapValues, PassThrough, Peek
from pipeline.operators.tables import ToStream, store_getter, window_store_getter
from pipeline.serde.primitives import LONG
from pipeline.serde.windowed import windowed
from pipeline.state.api import StoreBuilder, StoreKind
from pipeline.windows import TimeWindows, Windowed, millis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pipeline.dsl.options import Named
    from pipeline.operators.tables import ValueGetter
    from pipeline.processor.api import Processor
    from pipeline.processor.operator import Operator, OperatorContext
    from pipeline.serde.api import Serde
    from pipeline.topology.topology import Topology

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")
VO = TypeVar("VO")


@dataclass(frozen=True, slots=True)
class KStream(Generic[K, V]):
    """A stream of records (`org.apache.kafka.streams.kstream.KStream`).

    Streams are values: every operation gives a new one and leaves this one as it is. Functions passed in must be
    deterministic and must not keep state; they run in every task, in every host.

    An operation that may change the key marks the stream; the next operation that needs equal keys together (an
    aggregation, a join) then sends it through a repartition topic of the application's own.
    """

    _plan: Plan
    _node: str
    _sources: frozenset[str]
    _key_serde: Serde[K] | None
    _value_serde: Serde[V] | None
    _repartition_required: bool = False

    def filter(self, predicate: Callable[[K, V], bool], *, named: Named | None = None) -> KStream[K, V]:
        """Records for which `predicate(key, value)` holds."""
        node = self._append("KSTREAM-FILTER-", named, lambda: Filter(predicate), predicate)
        return replace(self, _node=node)

    def filter_not(self, predicate: Callable[[K, V], bool], *, named: Named | None = None) -> KStream[K, V]:
        """Records for which `predicate(key, value)` does not hold."""
        node = self._append("KSTREAM-FILTER-", named, lambda: Filter(lambda k, v: not predicate(k, v)), predicate)
        return replace(self, _node=node)

    def map(self, mapper: Callable[[K, V], tuple[K2, V2]], *, named: Named | None = None) -> KStream[K2, V2]:
        """`mapper(key, value) -> (key, value)`. May change the key; serdes are forgotten."""
        node = self._append("KSTREAM-MAP-", named, lambda: Map(mapper), mapper)
        return self._rekeyed(node, None, None)

    def map_values(self, mapper: Callable[..., V2], *, named: Named | None = None) -> KStream[K, V2]:
        """`mapper(value)` or `mapper(key, value)`, told by its parameters. The value serde is forgotten."""
        function = with_key(mapper)
        node = self._append("KSTREAM-MAPVALUES-", named, lambda: MapValues(function), mapper)
        return self._with_values(node)

    def flat_map(
        self, mapper: Callable[[K, V], Iterable[tuple[K2, V2]]], *, named: Named | None = None
    ) -> KStream[K2, V2]:
        """`mapper(key, value) -> [(key, value), …]`. May change the key; serdes are forgotten."""
        node = self._append("KSTREAM-FLATMAP-", named, lambda: FlatMap(mapper), mapper)
        return self._rekeyed(node, None, None)

    def flat_map_values(self, mapper: Callable[..., Iterable[V2]], *, named: Named | None = None) -> KStream[K, V2]:
        """`mapper(value) -> [value, …]` or `mapper(key, value) -> […]`. The value serde is forgotten."""
        function = with_key(mapper)
        node = self._append("KSTREAM-FLATMAPVALUES-", named, lambda: FlatMapValues(function), mapper)
        return self._with_values(node)

    def select_key(self, mapper: Callable[[K, V], K2], *, named: Named | None = None) -> KStream[K2, V]:
        """The same records under `mapper(key, value)` as their key. The key serde is forgotten."""
        node = self._append("KSTREAM-KEY-SELECT-", named, lambda: MapKey(mapper), mapper)
        return self._rekeyed(node, None, self._value_serde)

    def peek(self, action: Callable[[K, V], object], *, named: Named | None = None) -> KStream[K, V]:
        """Call `action(key, value)` for each record and pass it on. Actions are not part of any transaction."""
        node = self._append("KSTREAM-PEEK-", named, lambda: Peek(action), action)
        return replace(self, _node=node)

    def for_each(self, action: Callable[[K, V], object], *, named: Named | None = None) -> None:
        """Call `action(key, value)` for each record. Actions are not part of any transaction."""
        self._append("KSTREAM-FOREACH-", named, lambda: Peek(action), action)

    def merge(self, other: KStream[K, V], *, named: Named | None = None) -> KStream[K, V]:
        """The records of both streams, in no particular order between them. Serdes are forgotten."""
        name = self._plan.processor_name("KSTREAM-MERGE-", name_of(named))
        parents = self._node, other._node
        self._plan.steps.append(lambda topology: topology.add_processor(name, PassThrough, *parents, functions=()))
        sources = self._sources | other._sources
        required = self._repartition_required or other._repartition_required
        return KStream(self._plan, name, sources, None, None, required)

    def process(
        self, supplier: Callable[[], Processor[K, V]], *state_stores: str, named: Named | None = None
    ) -> KStream[Any, Any]:
        """Run a `Processor` on each record; it may use the named stores. May change the key; serdes are forgotten.

        Args:
            supplier: Gives a new processor on each call; a class will do.
            state_stores: Names of stores added by `StreamsBuilder.add_state_store`.
            named: Name of the node.
        """
        # The one operation whose name, if given, does not use up a number (`KStreamImpl.process`).
        name = name_of(named) or self._plan.processor_name("KSTREAM-PROCESSOR-")
        parent = self._node

        def write(topology: Topology) -> None:
            topology.add_processor(name, supplier, parent)
            topology.connect_processor_and_state_stores(name, *state_stores)

        self._plan.steps.append(write)
        return self._rekeyed(name, None, None)

    def repartition(self, repartitioned: Repartitioned[K, V] | None = None) -> KStream[K, V]:
        """Send the stream through a topic of the application's own, partitioned by the current key."""
        options: Repartitioned[K, V] = repartitioned or Repartitioned()
        name = options.name or self._plan.processor_name("KSTREAM-REPARTITION-")
        return self._repartitioned(
            name,
            options.key_serde,
            options.value_serde,
            partitions=options.number_of_partitions,
            partitioner=options.partitioner,
        )

    def group_by_key(self, grouped: Grouped[K, V] | None = None) -> KGroupedStream[K, V]:
        """Group by the current key, for an aggregation."""
        options: Grouped[K, V] = grouped or Grouped()
        return KGroupedStream(
            self._plan,
            self._node,
            self._sources,
            options.key_serde or self._key_serde,
            options.value_serde or self._value_serde,
            options.name,
            self._repartition_required,
        )

    def group_by(self, mapper: Callable[[K, V], K2], grouped: Grouped[K2, V] | None = None) -> KGroupedStream[K2, V]:
        """Group by `mapper(key, value)`, for an aggregation. Always goes through a repartition topic."""
        options: Grouped[K2, V] = grouped or Grouped()
        name = self._plan.processor_name("KSTREAM-KEY-SELECT-", options.name)
        self._add(name, lambda: MapKey(mapper), mapper)
        value_serde = options.value_serde or self._value_serde
        return KGroupedStream(
            self._plan, name, self._sources, options.key_serde, value_serde, options.name, _repartition_required=True
        )

    def join(
        self,
        other: KTable[Any, VO] | GlobalKTable[Any, VO],
        joiner: Callable[..., V2],
        *,
        key: Callable[[K, V], Any] | None = None,
        joined: Joined[K, V, VO] | None = None,
        named: Named | None = None,
    ) -> KStream[K, V2]:
        """Look each record up in a table; records without a match are dropped.

        Args:
            other: The table. A `KTable` must have as many partitions as this stream; a `GlobalKTable` any number.
            joiner: `(value, table_value)` or `(key, value, table_value)`, told by its parameters.
            key: `(key, value) -> key` to look up; for a `GlobalKTable`, and only there.
            joined: Serdes and name, for a `KTable`.
            named: Name of the node, for a `GlobalKTable`.

        Raises:
            TopologyError: If `key` is missing for a `GlobalKTable`, or given for a `KTable`.
        """
        if isinstance(other, GlobalKTable):
            return self._join_global(StreamTableJoin, other, joiner, key, named)
        _refuse_key(key)
        return self._join_table("KSTREAM-JOIN-", StreamTableJoin, other, joiner, joined or Joined())

    def left_join(
        self,
        other: KTable[Any, VO] | GlobalKTable[Any, VO],
        joiner: Callable[..., V2],
        *,
        key: Callable[[K, V], Any] | None = None,
        joined: Joined[K, V, VO] | None = None,
        named: Named | None = None,
    ) -> KStream[K, V2]:
        """Look each record up in a table; records without a match are joined with None.

        Arguments and errors are those of `join`.
        """
        if isinstance(other, GlobalKTable):
            return self._join_global(StreamTableLeftJoin, other, joiner, key, named)
        _refuse_key(key)
        return self._join_table("KSTREAM-LEFTJOIN-", StreamTableLeftJoin, other, joiner, joined or Joined())

    def to(self, topic: str | Callable[[K, V, int], str], produced: Produced[K, V] | None = None) -> None:
        """Write the stream to a topic, or to the topic that `topic(key, value, timestamp_ms)` names."""
        options: Produced[K, V] = produced or Produced()
        name = self._plan.processor_name("KSTREAM-SINK-", options.name)
        parent = self._node
        key_serde = serde_of(options.key_serde or self._key_serde, "keys", f"to({topic!r})")
        value_serde = serde_of(options.value_serde or self._value_serde, "values", f"to({topic!r})")
        self._plan.steps.append(
            lambda topology: topology.add_sink(
                name, topic, parent, key_serde=key_serde, value_serde=value_serde, partitioner=options.partitioner
            )
        )

    def _append(self, prefix: str, named: Named | None, supplier: Callable[[], Operator], *functions: object) -> str:
        name = self._plan.processor_name(prefix, name_of(named))
        self._add(name, supplier, *functions)
        return name

    def _add(self, name: str, supplier: Callable[[], Operator], *functions: object) -> None:
        parent = self._node
        self._plan.steps.append(lambda topology: topology.add_processor(name, supplier, parent, functions=functions))

    def _with_values(self, node: str) -> KStream[K, Any]:
        return KStream(self._plan, node, self._sources, self._key_serde, None, self._repartition_required)

    def _rekeyed(self, node: str, key_serde: Serde[Any] | None, value_serde: Serde[Any] | None) -> KStream[Any, Any]:
        return KStream(self._plan, node, self._sources, key_serde, value_serde, _repartition_required=True)

    def _repartitioned(
        self,
        prefix: str,
        key_serde: Serde[K] | None,
        value_serde: Serde[V] | None,
        *,
        keeps_null_keys: bool = False,
        partitions: int | None = None,
        partitioner: Callable[[str, Any, Any, int], int | None] | None = None,
    ) -> KStream[K, V]:
        keys = serde_of(key_serde or self._key_serde, "keys", f"repartition topic {prefix}")
        values = serde_of(value_serde or self._value_serde, "values", f"repartition topic {prefix}")
        source = repartition(
            self._plan,
            self._node,
            prefix,
            (keys, values),
            keeps_null_keys=keeps_null_keys,
            partitions=partitions,
            partitioner=partitioner,
        )
        return KStream(self._plan, source, frozenset({source}), keys, values)

    def _join_table(
        self,
        prefix: str,
        operator: type[StreamTableJoin | StreamTableLeftJoin],
        table: KTable[Any, VO],
        joiner: Callable[..., V2],
        joined: Joined[K, V, VO],
    ) -> KStream[K, V2]:
        stream = self
        if self._repartition_required:
            stream = self._repartitioned(
                joined.name or self._node,
                joined.key_serde,
                joined.value_serde,
                keeps_null_keys=operator is StreamTableLeftJoin,
            )
        return stream._joined(prefix, operator, table, joiner, joined)  # noqa: SLF001 - the same class

    def _joined(
        self,
        prefix: str,
        operator: type[StreamTableJoin | StreamTableLeftJoin],
        table: KTable[Any, VO],
        joiner: Callable[..., V2],
        joined: Joined[K, V, VO],
    ) -> KStream[K, V2]:
        name = self._plan.processor_name(prefix, joined.name)
        function = joiner_with_key(joiner)
        node = table.materialize()
        parent = self._node
        sources = self._sources | table.sources

        def write(topology: Topology) -> None:
            topology.add_processor(
                name, lambda: operator(node.open_getter, _own_key, function), parent, functions=(operator, joiner)
            )
            topology.connect_processor_and_state_stores(name, node.store)
            topology.copartition(sources)

        self._plan.steps.append(write)
        return KStream(self._plan, name, sources, joined.key_serde or self._key_serde, None, self._repartition_required)

    def _join_global(
        self,
        operator: type[StreamTableJoin | StreamTableLeftJoin],
        table: GlobalKTable[Any, VO],
        joiner: Callable[..., V2],
        key: Callable[[K, V], Any] | None,
        named: Named | None,
    ) -> KStream[K, V2]:
        if key is None:
            message = "A join with a global table needs key=, a function of (key, value) that gives the key to look up"
            raise TopologyError(message)
        function = joiner_with_key(joiner)
        mapper = cast("Callable[[Any, Any], Any]", key)
        # Inner joins are called so as well (`KStreamImpl.doGlobalTableJoin`).
        node = self._append(
            "KSTREAM-LEFTJOIN-",
            named,
            lambda: operator(table.open_getter, mapper, function),
            operator,
            joiner,
            key,
        )
        return KStream(self._plan, node, self._sources, self._key_serde, None, self._repartition_required)


@dataclass(frozen=True, slots=True)
class KGroupedStream(Generic[K, V]):
    """A stream grouped by key, to be aggregated (`org.apache.kafka.streams.kstream.KGroupedStream`).

    Records with a null key or a null value are not aggregated; they are counted as dropped.
    """

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

    def windowed_by(self, windows: TimeWindows) -> TimeWindowedKStream[K, V]:
        """Aggregate per key and window."""
        return TimeWindowedKStream(self, windows)

    def _aggregate(
        self,
        prefix: str,
        aggregator: Aggregator,
        functions: tuple[Any, ...],
        options: Materialized[K, Any],
        named: Named | None,
    ) -> KTable[K, Any]:
        store_name = options.name or self._plan.store_name(prefix)
        name = self._plan.processor_name(prefix, name_of(named))
        store = self._store(options, store_name, StoreKind.TIMESTAMPED_KEY_VALUE)
        node = TableNode(name, store_name, lambda c: store_getter(c, store_name), is_materialized=True)

        def operator() -> Operator:
            return StreamAggregate(store_name, aggregator, send_old_values=node.sends_old_values)

        sources = self._append(node, store, operator, functions)
        return KTable(self._plan, node, sources, store.key_serde, store.value_serde)

    def _store(self, options: Materialized[K, Any], name: str, kind: StoreKind) -> StoreBuilder:
        return StoreBuilder(
            name,
            kind,
            serde_of(options.key_serde or self._key_serde, "keys", f"store {name}"),
            serde_of(options.value_serde, "values", f"store {name}"),
            persistent=options.persistent,
            caching=options.caching,
            logging=options.logging,
            log_config=options.log_config,
        )

    def _append(
        self, node: TableNode, store: StoreBuilder, operator: Callable[[], Operator], functions: tuple[Any, ...]
    ) -> frozenset[str]:
        """Write the aggregation, behind a repartition where keys may have changed; gives its sources."""
        parent, sources = self._node, self._sources
        if self._repartition_required:
            parent = self._repartitioned(self._name or store.name)
            sources = frozenset({parent})

        def write(topology: Topology) -> None:
            topology.add_processor(node.name, operator, parent, functions=functions)
            topology.add_state_store(store, node.name)

        self._plan.steps.append(write)
        return sources

    def _repartitioned(self, prefix: str) -> str:
        """Source of the repartition topic; made once if the grouping was named (`GroupedStreamAggregateBuilder`)."""
        if prefix in self._repartitions:
            self._plan.counter += 3
            return self._repartitions[prefix]
        keys = serde_of(self._key_serde, "keys", f"repartition topic {prefix}")
        values = serde_of(self._value_serde, "values", f"repartition topic {prefix}")
        source = repartition(self._plan, self._node, prefix, (keys, values))
        if prefix == self._name:
            self._repartitions[prefix] = source
        return source


@dataclass(frozen=True, slots=True)
class TimeWindowedKStream(Generic[K, V]):
    """A grouped stream in windows (`org.apache.kafka.streams.kstream.TimeWindowedKStream`).

    A window takes records until stream time has passed its end by the grace period; later ones are counted as dropped.
    Records with a null key are not aggregated; null values are.
    """

    _grouped: KGroupedStream[K, V]
    _windows: TimeWindows

    def count(
        self, materialized: Materialized[K, int] | None = None, *, named: Named | None = None
    ) -> KTable[Windowed[K], int]:
        """Number of records per key and window."""
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
        store_name = options.name or plan.store_name(prefix)
        name = plan.processor_name(prefix, name_of(named))
        store = replace(
            grouped._store(options, store_name, StoreKind.TIMESTAMPED_WINDOW),  # noqa: SLF001 - two halves
            retention_ms=_retention_ms(options, windows, store_name),
            window_size_ms=windows.size_ms,
        )
        node = TableNode(name, store_name, lambda c: window_store_getter(c, store_name), is_materialized=True)

        def operator() -> Operator:
            return StreamWindowAggregate(store_name, windows, aggregator, send_old_values=node.sends_old_values)

        covered = (*functions, windows.size_ms, windows.advance_ms, windows.grace_ms)
        sources = grouped._append(node, store, operator, covered)  # noqa: SLF001 - two halves of one operation
        key_serde = windowed(store.key_serde, timedelta(milliseconds=windows.size_ms))
        return KTable(plan, node, sources, key_serde, store.value_serde)


@dataclass(frozen=True, slots=True)
class KTable(Generic[K, V]):
    """A table: a stream of updates, of which the last one per key counts (`org.apache.kafka.streams.kstream.KTable`).

    Tables are values: every operation gives a new stream or table and leaves this one as it is.
    """

    _plan: Plan
    _node: TableNode
    sources: frozenset[str]
    """Names of the source nodes its records come from."""
    _key_serde: Serde[K] | None
    _value_serde: Serde[V] | None

    @property
    def queryable_store_name(self) -> str | None:
        """Name of the store that holds the table, if there is one."""
        return self._node.store if self._node.is_materialized else None

    def to_stream(self, *, named: Named | None = None) -> KStream[K, V]:
        """The updates as a stream; a deleted key appears with the value None."""
        name = self._plan.processor_name("KTABLE-TOSTREAM-", name_of(named))
        parent = self._node.name
        self._plan.steps.append(lambda topology: topology.add_processor(name, ToStream, parent, functions=()))
        return KStream(self._plan, name, self.sources, self._key_serde, self._value_serde)

    def materialize(self) -> TableNode:
        """Make sure that there is a store to look values up in; for the operators that need one."""
        self._node.is_materialized = True
        return self._node


@dataclass(frozen=True, slots=True)
class GlobalKTable(Generic[K, V]):
    """A table that every instance holds completely (`org.apache.kafka.streams.kstream.GlobalKTable`)."""

    queryable_store_name: str
    open_getter: Callable[[OperatorContext], ValueGetter]
    """Opens the lookup of its values in a task."""

    def __repr__(self) -> str:
        """The store's name says which table it is."""
        return f"GlobalKTable({self.queryable_store_name!r})"


COUNT = Aggregator(lambda: 0, lambda _key, _value, count: count + 1)


def _reducing(reducer: Callable[[Any, Any], Any]) -> Aggregator:
    return Aggregator(None, lambda _key, value, aggregate: reducer(aggregate, value))


def _counted(materialized: Materialized[Any, int] | None) -> Materialized[Any, int]:
    options: Materialized[Any, int] = materialized or Materialized()
    return options if options.value_serde is not None else replace(options, value_serde=LONG)


def _valued(materialized: Materialized[Any, V] | None, serde: Serde[V] | None) -> Materialized[Any, V]:
    options: Materialized[Any, V] = materialized or Materialized()
    return options if options.value_serde is not None else replace(options, value_serde=serde)


def _retention_ms(options: Materialized[Any, Any], windows: TimeWindows, store: str) -> int:
    if options.retention is None:
        return windows.retention_ms
    retention_ms = millis(options.retention, "retention")
    if retention_ms < windows.retention_ms:
        message = (
            f"Store {store} keeps windows for {retention_ms} ms, less than "
            f"their size and grace together ({windows.retention_ms} ms)"
        )
        raise TopologyError(message)
    return retention_ms


def _own_key(key: Any, _value: object) -> Any:
    return key


def _refuse_key(key: object) -> None:
    if key is not None:
        message = "key= belongs to a join with a global table"
        raise TopologyError(message, hint="Use select_key() first to join a table by another key.")
