"""`KTable` and `GlobalKTable`: streams of updates. Their methods only append steps to the plan of the builder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from riverrun.arguments import function, optional
from riverrun.dsl import tables
from riverrun.dsl.foreign_key_joins import ForeignKeyJoin, joined_by_foreign_key
from riverrun.dsl.grouped_tables import KGroupedTable
from riverrun.dsl.kinds import TABLE, checked
from riverrun.dsl.options import INNER, LEFT, OUTER, Grouped, Materialized, Named, TableJoined, name_of
from riverrun.dsl.suppressed import suppressed_table
from riverrun.errors import TopologyError
from riverrun.operators.tables import ToStream
from riverrun.topology.assembly import add_operator
from riverrun.topology.nodes import Lineage

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.dsl.kstream import KStream
    from riverrun.dsl.options import JoinKind
    from riverrun.dsl.plan import Plan, TableNode
    from riverrun.dsl.suppressed import Suppressed
    from riverrun.operators.tables import ValueGetter
    from riverrun.processor.api import ValueTransformerWithKey
    from riverrun.processor.operator import OperatorContext
    from riverrun.serde.api import Serde

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")
VO = TypeVar("VO")
KO = TypeVar("KO")


@dataclass(frozen=True, slots=True)
class KTable(Generic[K, V]):
    """A table: a stream of updates of which the last one per key counts (`org.apache.kafka.streams.kstream.KTable`).

    Tables are immutable: every operation returns a new stream or table. Operations that store their result raise
    `TopologyError` if a serde is missing.

    >>> from riverrun import STRING, Consumed, Produced, StreamsBuilder
    >>> from riverrun.testing import TopologyTestDriver
    >>> builder = StreamsBuilder()
    >>> names = builder.table("names", Consumed(STRING, STRING), Materialized(name="names"))
    >>> names.map_values(str.upper).to_stream().to("upper", Produced(STRING, STRING))
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     driver.input_topic("names", STRING, STRING).pipe_key_value_list([("a", "ann"), ("a", None)])
    ...     driver.output_topic("upper", STRING, STRING).read_key_values_to_list()
    [('a', 'ANN'), ('a', None)]
    """

    _plan: Plan
    _node: TableNode
    sources: frozenset[str]
    """Names of the source nodes of its records."""
    _key_serde: Serde[K] | None
    _value_serde: Serde[V] | None

    @property
    def queryable_store_name(self) -> str | None:
        """Return the name of the store that holds the table; None if there is none."""
        return self._node.store if self._node.is_materialized else None

    @checked()
    def filter(
        self,
        predicate: Callable[[K, V], bool],
        materialized: Materialized[K, V] | None = None,
        *,
        named: Named | None = None,
    ) -> KTable[K, V]:
        """Keep rows for which `predicate(key, value)` holds; a row that no longer passes is deleted.

        Args:
            predicate: Called for values, never for deletions.
            materialized: How to store the result. Without a name it is not stored, and lookups read this table.
            named: Name of the node.
        """
        return self._made(tables.filtered(self._plan, self._derived, predicate, materialized, named, negated=False))

    @checked()
    def filter_not(
        self,
        predicate: Callable[[K, V], bool],
        materialized: Materialized[K, V] | None = None,
        *,
        named: Named | None = None,
    ) -> KTable[K, V]:
        """Keep rows for which `predicate(key, value)` does not hold. Arguments are those of `filter`."""
        return self._made(tables.filtered(self._plan, self._derived, predicate, materialized, named, negated=True))

    @overload
    def map_values(
        self,
        mapper: Callable[[V], V2],
        materialized: Materialized[K, V2] | None = None,
        *,
        named: Named | None = None,
    ) -> KTable[K, V2]: ...

    @overload
    def map_values(
        self,
        mapper: Callable[[K, V], V2],
        materialized: Materialized[K, V2] | None = None,
        *,
        named: Named | None = None,
    ) -> KTable[K, V2]: ...

    @checked(mapper=function("value", "key, value"))
    def map_values(
        self,
        mapper: Callable[..., V2],
        materialized: Materialized[K, V2] | None = None,
        *,
        named: Named | None = None,
    ) -> KTable[K, V2]:
        """Replace each value by `mapper(value)` or `mapper(key, value)`, depending on its parameters.

        Args:
            mapper: Called for values, never for deletions. Rows for which it returns None are not in the result.
            materialized: How to store the result. Without a name it is not stored, and lookups call the mapper.
            named: Name of the node.
        """
        return self._made(tables.mapped(self._plan, self._derived, mapper, materialized, named))

    @checked()
    def transform_values(
        self,
        supplier: Callable[[], ValueTransformerWithKey[K, V, V2]],
        *state_stores: str,
        materialized: Materialized[K, V2] | None = None,
        named: Named | None = None,
    ) -> KTable[K, V2]:
        """Replace each value by the result of a transformer, which may use stores; deletions reach it as None.

        Args:
            supplier: Returns a new transformer on each call; a class will do. It may bring stores, as in `KStream.process`.
                Lookups in a result without a store use a separate transformer.
            state_stores: Names of stores added by `StreamsBuilder.add_state_store`.
            materialized: How to store the result. Without a name it is not stored.
            named: Name of the node.

        Raises:
            TopologyError: If the supplier returns one transformer twice; at `build()`, if a store does not exist.
        """
        return self._made(tables.transformed(self._plan, self._derived, supplier, state_stores, materialized, named))

    @overload
    def to_stream(self, mapper: None = None, *, named: Named | None = None) -> KStream[K, V]: ...

    @overload
    def to_stream(self, mapper: Callable[[K, V], K2], *, named: Named | None = None) -> KStream[K2, V]: ...

    @checked(mapper=optional(function("key, value")))
    def to_stream(self, mapper: Callable[[K, V], Any] | None = None, *, named: Named | None = None) -> KStream[Any, V]:
        """Return the updates as a stream; a deletion becomes a record with the value None.

        Args:
            mapper: `(key, value) -> key` of the stream's records; by default the table's keys.
            named: Name of the node.
        """
        from riverrun.dsl.kstream import KStream  # noqa: PLC0415 - each makes the other

        name = self._plan.processor_name("KTABLE-TOSTREAM-", name_of(named))
        parent = self._node.name
        self._plan.add_step(
            lambda topology: add_operator(topology, name, ToStream, parent, functions=(), lineage=Lineage.TABLE)
        )
        stream: KStream[K, V] = KStream(self._plan, name, self.sources, self._key_serde, self._value_serde)
        return stream if mapper is None else stream.select_key(mapper)

    @checked(mapper=function("key, value"))
    def group_by(
        self, mapper: Callable[[K, V], tuple[K2 | None, V2 | None] | None], grouped: Grouped[K2, V2] | None = None
    ) -> KGroupedTable[K2, V2]:
        """Group the rows by `mapper(key, value) -> (group, value)`, for an aggregation. Uses a repartition topic.

        Args:
            mapper: Called for values, never for deletions. Rows for which it returns None, or a group or value of None,
                are not aggregated.
            grouped: Serdes of groups and values, and the name.
        """
        options: Grouped[K2, V2] = grouped or Grouped()
        node = tables.grouped(self._plan, self._node, mapper, options.name)
        return KGroupedTable(self._plan, node, options, KTable)

    @overload
    def join(
        self,
        other: KTable[K, VO],
        joiner: Callable[[V, VO], V2],
        materialized: Materialized[K, V2] | None = None,
        *,
        named: Named | None = None,
    ) -> KTable[K, V2]: ...

    @overload
    def join(
        self,
        other: KTable[KO, VO],
        joiner: Callable[[V, VO], V2],
        materialized: Materialized[K, V2] | None = None,
        *,
        foreign_key_extractor: Callable[[V], KO | None],
        table_joined: TableJoined[K, KO] | None = None,
    ) -> KTable[K, V2]: ...

    @overload
    def join(
        self,
        other: KTable[KO, VO],
        joiner: Callable[[V, VO], V2],
        materialized: Materialized[K, V2] | None = None,
        *,
        foreign_key_extractor: Callable[[K, V], KO | None],
        table_joined: TableJoined[K, KO] | None = None,
    ) -> KTable[K, V2]: ...

    @checked(other=TABLE, joiner=function("value, other_value"))
    def join(
        self,
        other: KTable[Any, VO],
        joiner: Callable[[V, VO], V2],
        materialized: Materialized[K, V2] | None = None,
        *,
        named: Named | None = None,
        foreign_key_extractor: Callable[..., Any] | None = None,
        table_joined: TableJoined[K, Any] | None = None,
    ) -> KTable[K, V2]:
        """Join the rows of two tables by key or by a foreign key; follows updates of both tables.

        Args:
            other: The other table. It must have as many partitions, unless the join is by a foreign key.
            joiner: `(value, other_value) -> value`.
            materialized: How to store the result. By default it is not stored, and lookups join the rows of both tables.
            named: Name of the node, for a join by key.
            foreign_key_extractor: Returns the key in the other table from `(value)` or `(key, value)`, depending on its
                parameters. None means that the row has no foreign key.
            table_joined: Name and partitioners, for a join by foreign key.

        Raises:
            TopologyError: If `named` is passed for a join by foreign key, or `table_joined` for a join by key; if the
                other table belongs to another `StreamsBuilder`.
        """
        if foreign_key_extractor is not None:
            return self._joined_by_foreign_key(
                other, foreign_key_extractor, joiner, materialized, table_joined, named, left_join=False
            )
        _refuse_table_joined(table_joined)
        return self._joined(other, joiner, INNER, materialized, named)

    @overload
    def left_join(
        self,
        other: KTable[K, VO],
        joiner: Callable[[V, VO | None], V2],
        materialized: Materialized[K, V2] | None = None,
        *,
        named: Named | None = None,
    ) -> KTable[K, V2]: ...

    @overload
    def left_join(
        self,
        other: KTable[KO, VO],
        joiner: Callable[[V, VO | None], V2],
        materialized: Materialized[K, V2] | None = None,
        *,
        foreign_key_extractor: Callable[[V], KO | None],
        table_joined: TableJoined[K, KO] | None = None,
    ) -> KTable[K, V2]: ...

    @overload
    def left_join(
        self,
        other: KTable[KO, VO],
        joiner: Callable[[V, VO | None], V2],
        materialized: Materialized[K, V2] | None = None,
        *,
        foreign_key_extractor: Callable[[K, V], KO | None],
        table_joined: TableJoined[K, KO] | None = None,
    ) -> KTable[K, V2]: ...

    @checked(other=TABLE, joiner=function("value, other_value"))
    def left_join(
        self,
        other: KTable[Any, VO],
        joiner: Callable[[V, VO | None], V2],
        materialized: Materialized[K, V2] | None = None,
        *,
        named: Named | None = None,
        foreign_key_extractor: Callable[..., Any] | None = None,
        table_joined: TableJoined[K, Any] | None = None,
    ) -> KTable[K, V2]:
        """Join all rows of this table with those of the other table, or with None. Arguments and errors are those of `join`."""
        if foreign_key_extractor is not None:
            return self._joined_by_foreign_key(
                other, foreign_key_extractor, joiner, materialized, table_joined, named, left_join=True
            )
        _refuse_table_joined(table_joined)
        return self._joined(other, joiner, LEFT, materialized, named)

    @checked(other=TABLE, joiner=function("value, other_value"))
    def outer_join(
        self,
        other: KTable[K, VO],
        joiner: Callable[[V | None, VO | None], V2],
        materialized: Materialized[K, V2] | None = None,
        *,
        named: Named | None = None,
    ) -> KTable[K, V2]:
        """Join all rows of both tables by key; the joiner gets None for a missing row. Arguments are those of `join`."""
        return self._joined(other, joiner, OUTER, materialized, named)

    @checked()
    def suppress(self, suppressed: Suppressed) -> KTable[K, V]:
        """Forward fewer updates: those that `suppressed` lets through, the last one per key.

        Raises:
            TopologyError: If a serde is missing, or the table is versioned; at `build()`, if `suppressed` waits for
                windows to close and there are none.
        """
        return self._made(suppressed_table(self._plan, self._derived, suppressed))

    def _joined(
        self,
        other: KTable[Any, Any],
        joiner: Callable[..., V2],
        kind: JoinKind,
        materialized: Materialized[K, V2] | None,
        named: Named | None,
    ) -> KTable[K, V2]:
        self._plan.check_same(other._plan, self._origin, other._origin)
        sources = self.sources | other.sources
        made = tables.joined(
            self._plan,
            self._derived,
            right=other._node,
            joiner=joiner,
            kind=kind,
            options=materialized,
            named=named,
            sources=sources,
        )
        return KTable(self._plan, made.node, sources, made.key_serde, made.value_serde)

    def _joined_by_foreign_key(
        self,
        other: KTable[Any, Any],
        extractor: Callable[..., Any],
        joiner: Callable[..., V2],
        materialized: Materialized[K, V2] | None,
        table_joined: TableJoined[K, Any] | None,
        named: Named | None,
        *,
        left_join: bool,
    ) -> KTable[K, V2]:
        if named is not None:
            message = "named= belongs to a join by key"
            raise TopologyError(message, hint="Name a join by foreign key with table_joined=TableJoined(name=...).")
        self._plan.check_same(other._plan, self._origin, other._origin)
        options: TableJoined[K, Any] = table_joined or TableJoined()
        join = ForeignKeyJoin(self._derived, other._derived, extractor, joiner, left_join, options)
        made, sources = joined_by_foreign_key(self._plan, join, materialized, self.sources, other.sources)
        return KTable(self._plan, made.node, sources, made.key_serde, made.value_serde)

    @property
    def _origin(self) -> str:
        return self._plan.origin(self._node.name, self.sources)

    @property
    def _derived(self) -> tables.Derived:
        return tables.Derived(self._node, self._key_serde, self._value_serde)

    def _made(self, made: tables.Derived) -> KTable[K, Any]:
        return KTable(self._plan, made.node, self.sources, made.key_serde, made.value_serde)


@dataclass(frozen=True, slots=True)
class GlobalKTable(Generic[K, V]):
    """A table of which every instance holds a full copy (`org.apache.kafka.streams.kstream.GlobalKTable`)."""

    queryable_store_name: str
    open_getter: Callable[[OperatorContext], ValueGetter]
    """Opens the lookup of its values in a task."""
    plan: Plan
    """Plan of its builder."""

    def __repr__(self) -> str:
        """Return the store's name, which identifies the table."""
        return f"GlobalKTable({self.queryable_store_name!r})"


def _refuse_table_joined(table_joined: TableJoined[Any, Any] | None) -> None:
    if table_joined is not None:
        message = "table_joined= belongs to a join by foreign key"
        raise TopologyError(message, hint="Pass foreign_key_extractor as well, or named=Named(...) instead.")
