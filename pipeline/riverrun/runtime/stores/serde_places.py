"""Tells the serdes of a topology where they are used, once its application is known; schema registries need this."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from riverrun.runtime.layout import changelog_name, internal_name
from riverrun.serde.api import Serde, SerdePlace, needs_place, placed
from riverrun.topology.assembly import put_together
from riverrun.topology.nodes import ProcessorNode, SinkNode, SourceNode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from riverrun.state.api import StoreBuilder
    from riverrun.topology.nodes import Node
    from riverrun.topology.topology import Topology


def with_places(topology: Topology, application_id: str, registry: Mapping[str, Any]) -> Topology:
    """Return the topology with each serde placed at a topic, a repartition topic or the changelog of a store.

    Args:
        topology: The topology as users have built it.
        application_id: Prefix of internal topics.
        registry: Settings of the schema registry.

    Returns:
        The topology itself, if none of its serdes needs its place.
    """
    parts = topology.parts()
    places = _Places(application_id, frozenset(parts.repartition_topics), registry)
    global_nodes = [declared.source for declared in parts.global_stores.values()]
    stores = [*parts.stores.values(), *(declared.store for declared in parts.global_stores.values())]
    sides = [each for each in (*parts.nodes.values(), *global_nodes, *stores) if not isinstance(each, ProcessorNode)]
    if not any(needs_place(serde) for each in sides for serde in (each.key_serde, each.value_serde)):
        return topology
    parts.nodes = {name: places.of_node(node) for name, node in parts.nodes.items()}
    parts.global_stores = {
        name: replace(
            declared,
            source=places.of_source(declared.source),
            store=places.of_store(declared.store, declared.source.topics[0]),
        )
        for name, declared in parts.global_stores.items()
    }
    parts.stores = {name: places.of_store(store, store.source_topic) for name, store in parts.stores.items()}
    return put_together(parts)


@dataclass(frozen=True, slots=True)
class _Places:
    application_id: str
    repartition_topics: frozenset[str]
    registry: Mapping[str, Any]

    def of_node(self, node: Node) -> Node:
        match node:
            case SourceNode():
                return self.of_source(node)
            case SinkNode():
                topic = self._full_name(node.topic) if isinstance(node.topic, str) else None
                key_serde, value_serde = self._both(node, topic)
                return replace(node, key_serde=key_serde, value_serde=value_serde)
            case _:
                return node

    def of_source(self, node: SourceNode) -> SourceNode:
        key_serde, value_serde = self._both(node, self._full_name(node.topics[0]) if node.topics else None)
        return replace(node, key_serde=key_serde, value_serde=value_serde)

    def of_store(self, store: StoreBuilder, topic: str | None) -> StoreBuilder:
        """Place a store's serdes; a store filled from an external topic, without a changelog, is placed at that topic."""
        place = changelog_name(self.application_id, store.name) if topic is None else topic
        key_serde, value_serde = self._both(store, place)
        return replace(store, key_serde=key_serde, value_serde=value_serde)

    def _full_name(self, topic: str) -> str:
        return internal_name(self.application_id, topic) if topic in self.repartition_topics else topic

    def _both(self, owner: SourceNode | SinkNode | StoreBuilder, topic: str | None) -> tuple[Serde[Any], Serde[Any]]:
        keys, values = (SerdePlace(topic, is_key, self.registry) for is_key in (True, False))
        return placed(owner.key_serde, keys), placed(owner.value_serde, values)
