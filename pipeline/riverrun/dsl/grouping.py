"""The common part of aggregations over a grouped stream: the origin of their records, and the steps they add to the plan.

Callers pass the class of the tables to create, which is in a layer above: a table can become a stream again, and be grouped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from riverrun.dsl.options import name_of
from riverrun.dsl.plan import repartition, serde_of
from riverrun.dsl.tables import stored_node, table_store
from riverrun.dsl.windowed import covered, windowed_key_serde, windowed_node, windowed_store

if TYPE_CHECKING:
    from riverrun.dsl.emit_strategy import EmitStrategy
    from riverrun.dsl.ktable import KTable
    from riverrun.dsl.options import Materialized, Named
    from riverrun.dsl.plan import Plan, TableNode
    from riverrun.dsl.windowed import OperatorOf, Windows
    from riverrun.serde.api import Serde
    from riverrun.state.api import StoreBuilder
    from riverrun.topology.topology import Topology

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Grouping(Generic[K, V]):
    """A stream grouped by key, with everything that its aggregations need (`GroupedStreamAggregateBuilder`).

    Args:
        table: Class of the tables to create.
        plan: Receives the steps.
        node: Name of the stream's node.
        sources: The sources above it.
        key_serde: Serde of its keys.
        value_serde: Serde of its values.
        name: The user's name of the grouping.
        repartition_required: Whether keys may have changed since the records were read.
        repartitions: Sources that read it back, by the grouping's name: its aggregations share the topic.
    """

    table: type[KTable[Any, Any]]
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
        """Aggregate per key.

        Args:
            prefix: Prefix of generated names.
            operator: Creates the operator.
            functions: The functions that the fingerprint covers.
            options: How to store the result.
            named: Name of the node.

        Raises:
            TopologyError: If a serde is missing.
        """
        self._check_serdes()
        store_name = self.plan.table_name(options, prefix)
        name = self.plan.processor_name(prefix, name_of(named))
        store = table_store(self.plan, store_name, options, self.key_serde, None)
        node = stored_node(name, store_name, is_versioned=options.is_versioned)
        sources = self._write(node, store, operator, functions, is_named=options.name is not None)
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
    ) -> KTable[Any, Any]:
        """Aggregate per key and window, or session; otherwise as `aggregate`.

        Args:
            windows: The windows.
            emit: When to forward them.
            prefix: Prefix of generated names.
            operator: Creates the operator.
            functions: The functions that the fingerprint covers, in addition to the windows.
            options: How to store the result.
            named: Name of the node.

        Raises:
            TopologyError: If a serde is missing, or the options do not fit the windows.
        """
        self._check_serdes()
        store_name = self.plan.table_name(options, prefix)
        name = self.plan.processor_name(prefix, name_of(named))
        store = windowed_store(self.plan, store_name, options, self.key_serde, windows, emit)
        node = windowed_node(self.plan, name, store, windows)
        covers = covered(functions, windows, emit)
        sources = self._write(node, store, operator, covers, is_named=options.name is not None)
        return self.table(self.plan, node, sources, windowed_key_serde(store.key_serde, windows), store.value_serde)

    def repartitioned(self, prefix: str, *, is_named: bool) -> str:
        """Write the stream to a repartition topic, and return the source that reads it back.

        Raises:
            TopologyError: If a serde is missing.
        """
        return repartition(
            self.plan, self.node, prefix, (self.key_serde, self.value_serde), is_named=is_named, option="Grouped"
        )

    def _check_serdes(self) -> None:
        """Ask for the serdes of a repartition topic before those of the store, which may take them over from it.

        Raises:
            TopologyError: If one is missing.
        """
        if self.repartition_required:
            where = f"The keys of {self.origin} may have changed: the repartition topic of the grouping"
            serde_of(self.key_serde, "keys", where, "group_by or group_by_key: Grouped(key_serde, value_serde)")
            serde_of(self.value_serde, "values", where, "group_by or group_by_key: Grouped(key_serde, value_serde)")

    def _write(
        self, node: TableNode, store: StoreBuilder, operator: OperatorOf, functions: tuple[Any, ...], *, is_named: bool
    ) -> frozenset[str]:
        """Write an aggregation, after a repartition if keys may have changed, and return its sources."""
        parent, sources = self.node, self.sources
        if self.repartition_required:
            parent = self._shared_repartition(self.name or store.name, is_named=is_named or self.name is not None)
            sources = frozenset({parent})

        def write(topology: Topology) -> None:
            topology.add_processor(node.name, lambda: operator(store, node), parent, functions=functions)
            topology.add_state_store(store, node.name)

        self.plan.add_step(write)
        return sources

    def _shared_repartition(self, prefix: str, *, is_named: bool) -> str:
        """Return the source of the repartition topic, which is created once if the grouping has a name."""
        if prefix in self.repartitions:
            self.plan.repartition_again(prefix, is_named=is_named)
            return self.repartitions[prefix]
        source = self.repartitioned(prefix, is_named=is_named)
        if prefix == self.name:
            self.repartitions[prefix] = source
        return source
