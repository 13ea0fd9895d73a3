"""`KGroupedTable`: a table whose rows are grouped by a new key."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from riverrun.arguments import FLAG, NUMBER, function
from riverrun.dsl.kinds import checked
from riverrun.dsl.named_aggregates import NamedAggregates, unnamed
from riverrun.dsl.options import Materialized, Named, name_of, with_value_serde
from riverrun.dsl.plan import Plan, serde_of
from riverrun.dsl.ranking import Ranking
from riverrun.dsl.tables import TimeToLive, stored_node, table_store
from riverrun.operators.table_aggregations import TableAggregate, TableAggregator
from riverrun.processor.aggregates import FIELD
from riverrun.serde.internal import change_serde
from riverrun.serde.serdes import LONG
from riverrun.topology.assembly import add_operator
from riverrun.topology.nodes import RepartitionTopic

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.dsl.ktable import KTable
    from riverrun.dsl.options import Grouped
    from riverrun.processor.aggregates import Field, SubtractableAggregateFunction
    from riverrun.processor.operator import Operator
    from riverrun.topology.topology import Topology

K = TypeVar("K")
V = TypeVar("V")
VO = TypeVar("VO")

COUNT = TableAggregator(lambda: 0, lambda _key, _value, count: count + 1, lambda _key, _value, count: count - 1)


@dataclass(frozen=True, slots=True)
class KGroupedTable(Generic[K, V]):
    """A table grouped by a new key, to be aggregated (`org.apache.kafka.streams.kstream.KGroupedTable`).

    An update of a row removes its old value from its old group and adds its new value to its new group. Groups may be
    in different partitions, so for a moment a row may count in both groups, or in neither. Aggregations raise
    `TopologyError` if a serde is missing.
    """

    _plan: Plan
    _node: str
    _options: Grouped[K, V]
    _table: type[KTable[Any, Any]]
    _named_sources: dict[str, str] = field(default_factory=dict)

    @checked()
    def count(self, materialized: Materialized[K, int] | None = None, *, named: Named | None = None) -> KTable[K, int]:
        """Count the rows per group. A group that becomes empty stays, with 0."""
        return self._aggregate("KTABLE-AGGREGATE-", COUNT, (), with_value_serde(materialized, LONG), named)

    @checked(adder=function("aggregate, value"), subtractor=function("aggregate, value"))
    def reduce(
        self,
        adder: Callable[[V, V], V | None],
        subtractor: Callable[[V, V], V | None],
        materialized: Materialized[K, V] | None = None,
        *,
        named: Named | None = None,
    ) -> KTable[K, V]:
        """Combine the values of a group. The first value is the initial aggregate.

        Args:
            adder: `(aggregate, value) -> aggregate` that adds a new value.
            subtractor: `(aggregate, value) -> aggregate` that removes an old value. None deletes the group.
            materialized: How to store the result.
            named: Name of the node.
        """
        options = with_value_serde(materialized, self._options.value_serde)
        aggregator = TableAggregator(
            None,
            lambda _key, value, aggregate: adder(aggregate, value),
            lambda _key, value, aggregate: subtractor(aggregate, value),
        )
        return self._aggregate("KTABLE-REDUCE-", aggregator, (adder, subtractor), options, named)

    @overload
    def aggregate(
        self,
        initializer: Callable[[], VO],
        adder: Callable[[K, V, VO], VO | None],
        subtractor: Callable[[K, V, VO], VO | None],
        materialized: Materialized[K, VO] | None = None,
        *,
        named: Named | None = None,
    ) -> KTable[K, VO]: ...

    @overload
    def aggregate(
        self,
        *,
        materialized: Materialized[K, dict[str, Any]] | None = None,
        named: Named | None = None,
        **aggregates: SubtractableAggregateFunction,
    ) -> KTable[K, dict[str, Any]]: ...

    @overload
    def aggregate(
        self,
        *,
        materialized: Materialized[K, VO],
        named: Named | None = None,
        **aggregates: SubtractableAggregateFunction,
    ) -> KTable[K, VO]: ...

    @checked(adder=function("key, value, aggregate"), subtractor=function("key, value, aggregate"))
    def aggregate(
        self,
        initializer: Any = None,
        adder: Any = None,
        subtractor: Any = None,
        materialized: Materialized[K, Any] | None = None,
        *,
        named: Named | None = None,
        **aggregates: SubtractableAggregateFunction,
    ) -> KTable[K, Any]:
        """Combine the values of a group, starting from `initializer()`.

        Or by named aggregates, whose results are a row by name: `aggregate(n=Count(), total=Sum("amount"))`. `Count`, `Sum`,
        `Mean`, `Quantile` and your own with a method `undo` can take the old row of an update out.

        Args:
            initializer: Returns the aggregate of an empty group.
            adder: `(key, value, aggregate) -> aggregate` that adds a new value.
            subtractor: `(key, value, aggregate) -> aggregate` that removes an old value. None deletes the group.
            materialized: How to store the result.
            named: Name of the node.
            aggregates: Named aggregates, in place of the three functions.
        """
        prefix, functions = "KTABLE-AGGREGATE-", (initializer, adder, subtractor)
        if aggregates:
            how = NamedAggregates.of(aggregates, functions, materialized, self._options.value_serde)
            table = self._aggregate(prefix, how.table_aggregator(), how.functions, how.stored(materialized), named)
            return how.results(table, materialized, named)
        unnamed(*functions)
        return self._aggregate(prefix, TableAggregator(*functions), functions, materialized or Materialized(), named)

    @checked(n=NUMBER, by=FIELD, largest=FLAG)
    def top(
        self,
        n: int,
        by: Field = None,
        *,
        largest: bool = True,
        materialized: Materialized[K, list[V]] | None = None,
        named: Named | None = None,
    ) -> KTable[K, list[V]]:
        """List the `n` values per group with the largest ranks, the largest one first.

        The store has all values of a group, since the next one moves up when one is deleted: each update costs time in
        proportion to the size of its group. Of equal ranks, the value that arrived first is ahead, and an updated row is the
        last to arrive. Rows without a rank (None) are left out. A group without rows is deleted.

        Arguments and errors are those of `KGroupedStream.top`.
        """
        how = Ranking.of(n, by, largest=largest, values=self._options.value_serde)
        options = how.stored(materialized, self._options.value_serde)
        table = self._aggregate("KTABLE-AGGREGATE-", how.of_table, how.functions, options, named)
        name = None if named is None else Named(f"{named.name}-results")
        return table.map_values(how.first, Materialized(value_serde=options.value_serde), named=name)

    def _aggregate(
        self,
        prefix: str,
        aggregator: TableAggregator,
        functions: tuple[Any, ...],
        options: Materialized[K, Any],
        named: Named | None,
    ) -> KTable[K, Any]:
        """Add the aggregation to the plan (`KGroupedTableImpl.doAggregate`)."""
        plan, given = self._plan, name_of(named)
        store_name = plan.table_name(options, "KTABLE-AGGREGATE-")
        sink = plan.processor_name("KSTREAM-SINK-", given and f"{given}-sink")
        # Sink and source are counted even if an earlier aggregation has the topic.
        source = plan.processor_name("KSTREAM-SOURCE-", given and f"{given}-source")
        name = plan.processor_name(prefix, given)
        store = table_store(plan, store_name, options, self._options.key_serde, None, expires=True)
        source = self._repartitioned(store_name, sink, source)
        node, lived = stored_node(name, store_name, is_versioned=options.is_versioned), TimeToLive.of(options)

        def operator() -> Operator:
            table = TableAggregate(store_name, aggregator, send_old_values=node.sends_old_values)
            made: Operator = lived.applied(table, store, node)
            return made

        def write(topology: Topology) -> None:
            add_operator(topology, name, operator, source, functions=(prefix, *functions, *lived.functions))
            topology.add_state_store(store, name)

        plan.add_step(write)
        return self._table(plan, node, frozenset({source}), store.key_serde, store.value_serde)

    def _repartitioned(self, store_name: str, sink: str, source: str) -> str:
        prefix = self._options.name or store_name
        # If the user named the topic, all aggregations share it.
        if prefix in self._named_sources:
            return self._named_sources[prefix]
        topic = f"{prefix}-repartition"
        keys = serde_of(self._options.key_serde, "keys", f"repartition topic {topic}", "Grouped")
        changes = change_serde(serde_of(self._options.value_serde, "values", f"repartition topic {topic}", "Grouped"))
        parent = self._node

        def write(topology: Topology) -> None:
            topology.add_repartition_topic(RepartitionTopic(topic))
            topology.add_sink(sink, topic, parent, key_serde=keys, value_serde=changes)
            topology.add_source(source, topic, key_serde=keys, value_serde=changes)

        self._plan.add_step(write)
        self._named_sources[prefix] = source
        return source
