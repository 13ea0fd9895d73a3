"""`CogroupedKStream`: aggregates several grouped streams into one table."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from riverrun.arguments import one_of
from riverrun.dsl.grouping import (
    SessionAggregator,
    covered,
    fixed,
    session_aggregate,
    window_aggregate,
    windowed_key_serde,
    windowed_node,
    windowed_store,
)
from riverrun.dsl.kinds import checked
from riverrun.dsl.options import Materialized, name_of
from riverrun.dsl.tables import TimeToLive, stored_node, table_store
from riverrun.operators.aggregations import Aggregator, StreamAggregate
from riverrun.operators.stateless import PassThrough
from riverrun.topology.assembly import add_operator
from riverrun.windows import SessionWindows

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.dsl.grouped_streams import KGroupedStream
    from riverrun.dsl.grouping import FixedWindows, Grouping, OperatorOf
    from riverrun.dsl.ktable import KTable
    from riverrun.dsl.options import Named
    from riverrun.dsl.plan import Plan, TableNode
    from riverrun.processor.operator import Operator
    from riverrun.serde.api import Serde
    from riverrun.state.api import StoreBuilder
    from riverrun.topology.topology import Topology
    from riverrun.windows import SlidingWindows, TimeWindows, UnlimitedWindows, Windowed, Windows

K = TypeVar("K")
V = TypeVar("V")
VO = TypeVar("VO")

_PREFIX = "COGROUPKSTREAM-AGGREGATE-"

Member = tuple["Grouping[Any, Any]", "Callable[[Any, Any, Any], Any]"]
"""A grouped stream and its `(key, value, aggregate) -> aggregate`."""


@dataclass(frozen=True, slots=True)
class Cogrouping:
    """Grouped streams that share one aggregation (`CogroupedStreamAggregateBuilder`).

    Args:
        members: The streams and their aggregators, in the order in which they were first added.
        sources: Sources that read members back from repartition topics, by identity: all aggregations share them.
    """

    members: tuple[Member, ...]
    sources: dict[int, str] = field(default_factory=dict)

    @property
    def plan(self) -> Plan:
        return self.members[0][0].plan

    @property
    def key_serde(self) -> Serde[Any] | None:
        """Return the serde of the first stream's keys."""
        return self.members[0][0].key_serde

    def plus(self, member: Member) -> Cogrouping:
        """Return the streams plus another one; a stream that is added again keeps its place, and gets the new aggregator."""
        first = self.members[0][0]
        first.plan.check_same(member[0].plan, first.origin, member[0].origin)
        members = {id(each[0]): each for each in (*self.members, member)}
        return replace(self, members=tuple(members.values()))

    def aggregate(
        self,
        store: StoreBuilder,
        node_of: Callable[[str], TableNode],
        *,
        key_serde: Serde[Any],
        initializer: Callable[[], Any],
        operator_of: Callable[[Aggregator], OperatorOf],
        covers: tuple[Any, ...],
        given: str | None,
    ) -> KTable[Any, Any]:
        """Add one aggregation per stream, and the node that merges their results."""
        plan = self.plan
        parents = [self._parent(grouping, store.name) for grouping, _ in self.members]
        sources = frozenset().union(*(sources for _, sources in parents))
        names = [
            plan.processor_name(_PREFIX, given and f"{given}-cogroup-agg-{number}") for number in range(len(parents))
        ]
        node = node_of(plan.processor_name("COGROUPKSTREAM-MERGE-", given and f"{given}-cogroup-merge"))

        def aggregation(add: Callable[[Any, Any, Any], Any]) -> Callable[[], Operator]:
            return lambda: operator_of(Aggregator(initializer, add))(store, node)

        def write(topology: Topology) -> None:
            for name, (parent, _), (_, add) in zip(names, parents, self.members, strict=True):
                add_operator(topology, name, aggregation(add), parent, functions=(initializer, add, *covers))
                topology.add_state_store(store, name)
            add_operator(topology, node.name, PassThrough, *names, functions=())
            topology.copartition(sources)

        plan.add_step(write)
        table = self.members[0][0].table
        return table(plan, node, sources, key_serde, store.value_serde)

    def aggregate_windows(
        self,
        windows: FixedWindows | SessionWindows,
        initializer: Callable[[], Any],
        operator_of: Callable[[Aggregator], OperatorOf],
        functions: tuple[Any, ...],
        materialized: Materialized[Any, Any] | None,
        named: Named | None,
    ) -> KTable[Any, Any]:
        plan, options = self.plan, materialized or Materialized()
        store = windowed_store(plan, plan.table_name(options, _PREFIX), options, self.key_serde, windows)
        return self.aggregate(
            store,
            lambda name: windowed_node(plan, name, store, windows),
            key_serde=windowed_key_serde(store.key_serde, windows),
            initializer=initializer,
            operator_of=operator_of,
            covers=covered(functions, windows),
            given=name_of(named),
        )

    def _parent(self, grouping: Grouping[Any, Any], store_name: str) -> tuple[str, frozenset[str]]:
        """Return the node to aggregate, after a repartition if keys may have changed, and the sources above it."""
        if not grouping.repartition_required:
            return grouping.node, grouping.sources
        prefix = grouping.name or store_name
        is_named = store_name not in self.plan.unnamed.stores or grouping.name is not None
        # By identity: equal groupings of one stream have a topic each.
        known = self.sources.get(id(grouping))
        if known is None:
            known = self.sources[id(grouping)] = grouping.repartitioned(prefix, is_named=is_named)
        else:
            self.plan.repartition_again(prefix, is_named=is_named)
        return known, frozenset({known})


@dataclass(frozen=True, slots=True)
class CogroupedKStream(Generic[K, VO]):
    """Several grouped streams, aggregated into one table (`org.apache.kafka.streams.kstream.CogroupedKStream`).

    Each stream has its own aggregator; all share the table's store. Aggregations raise `TopologyError` if a serde is missing.
    """

    _cogrouping: Cogrouping

    @checked(grouped=one_of("KGroupedStream", wanted="a KGroupedStream"))
    def cogroup(
        self, grouped: KGroupedStream[K, V], aggregator: Callable[[K, V, VO], VO | None]
    ) -> CogroupedKStream[K, VO]:
        """Add a stream.

        Args:
            grouped: The stream. Its topics must have as many partitions as the other streams' topics.
            aggregator: `(key, value, aggregate) -> aggregate` for its records; None deletes the key.

        Raises:
            TopologyError: If it belongs to another `StreamsBuilder`.
        """
        return CogroupedKStream(self._cogrouping.plus((grouped._grouping, aggregator)))  # noqa: SLF001 - same family

    @overload
    def windowed_by(
        self, windows: TimeWindows | SlidingWindows | UnlimitedWindows | Windows
    ) -> TimeWindowedCogroupedKStream[K, VO]: ...

    @overload
    def windowed_by(self, windows: SessionWindows) -> SessionWindowedCogroupedKStream[K, VO]: ...

    @checked()
    def windowed_by(
        self, windows: TimeWindows | SlidingWindows | UnlimitedWindows | SessionWindows | Windows
    ) -> TimeWindowedCogroupedKStream[K, VO] | SessionWindowedCogroupedKStream[K, VO]:
        """Aggregate per key and window."""
        if isinstance(windows, SessionWindows):
            return SessionWindowedCogroupedKStream(self._cogrouping, windows)
        return TimeWindowedCogroupedKStream(self._cogrouping, fixed(windows))

    @checked()
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
        plan, options = self._cogrouping.plan, materialized or Materialized()
        store_name = plan.table_name(options, _PREFIX)
        store = table_store(plan, store_name, options, self._cogrouping.key_serde, None, expires=True)
        lived = TimeToLive.of(options)

        def operator_of(aggregator: Aggregator) -> OperatorOf:
            def made(store: StoreBuilder, node: TableNode) -> Operator:
                table = StreamAggregate(store.name, aggregator, send_old_values=node.sends_old_values)
                expiring: Operator = lived.applied(table, store, node)
                return expiring

            return made

        return self._cogrouping.aggregate(
            store,
            lambda name: stored_node(name, store_name, is_versioned=options.is_versioned),
            key_serde=store.key_serde,
            initializer=initializer,
            operator_of=operator_of,
            covers=lived.functions,
            given=name_of(named),
        )


@dataclass(frozen=True, slots=True)
class TimeWindowedCogroupedKStream(Generic[K, VO]):
    """Several grouped streams in windows (`org.apache.kafka.streams.kstream.TimeWindowedCogroupedKStream`)."""

    _cogrouping: Cogrouping
    _windows: FixedWindows

    @checked()
    def aggregate(
        self,
        initializer: Callable[[], VO],
        materialized: Materialized[K, VO] | None = None,
        *,
        named: Named | None = None,
    ) -> KTable[Windowed[K], VO]:
        """Combine the values of all streams per key and window, starting from `initializer()`."""
        windows = self._windows
        return self._cogrouping.aggregate_windows(
            windows, initializer, lambda aggregator: window_aggregate(windows, aggregator), (), materialized, named
        )


@dataclass(frozen=True, slots=True)
class SessionWindowedCogroupedKStream(Generic[K, VO]):
    """Several grouped streams in sessions (`org.apache.kafka.streams.kstream.SessionWindowedCogroupedKStream`)."""

    _cogrouping: Cogrouping
    _windows: SessionWindows

    @checked()
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
            initializer: Returns the initial aggregate.
            merger: `(key, aggregate, other_aggregate) -> aggregate`: merges two sessions that a record connects.
            materialized: How to store the sessions.
            named: Prefix of the names of the nodes.
        """
        windows = self._windows

        def operator_of(aggregator: Aggregator) -> OperatorOf:
            return session_aggregate(windows, SessionAggregator(aggregator, merger))

        return self._cogrouping.aggregate_windows(windows, initializer, operator_of, (merger,), materialized, named)
