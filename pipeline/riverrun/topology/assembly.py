"""Adds built-in operators to a topology, and assembles one from parts that an optimisation has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from riverrun.topology.nodes import Lineage, ProcessorNode, SinkNode, SourceNode
from riverrun.topology.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.processor.operator import Operator
    from riverrun.topology.nodes import Node
    from riverrun.topology.parts import Parts


def put_together(parts: Parts) -> Topology:
    """Add the parts, one by one and in order, to a new topology, which checks each."""
    topology = Topology()
    for internal in parts.repartition_topics.values():
        topology.add_repartition_topic(internal)
    global_stores = {global_store.source.name: global_store for global_store in parts.global_stores.values()}
    for name in parts.order:
        if name in parts.nodes:
            add_node(topology, parts.nodes[name])
        elif name in global_stores:
            topology.keep_globally(global_stores[name])
    for name, store in parts.stores.items():
        topology.add_state_store(store, *sorted(parts.users[name]))
    for group in parts.copartitioned:
        topology.copartition(group)
    topology.keep_lines(parts.lines)
    return topology.elsewhere(parts.stand_ins) if parts.stand_ins else topology


def add_operator(
    topology: Topology,
    name: str,
    supplier: Callable[[], Operator],
    *parents: str,
    functions: tuple[Any, ...],
    lineage: Lineage = Lineage.OTHER,
    calls_users_object: bool = False,
) -> None:
    """Run a built-in operator on the output of its parents; the fingerprint covers the functions."""
    node = ProcessorNode(
        name, parents, supplier, functions, lineage, is_operator=True, calls_users_object=calls_users_object
    )
    topology.keep_processor(node)


def add_node(topology: Topology, node: Node) -> None:
    """Add a source, processor or sink from its description."""
    match node:
        case SourceNode():
            topology.add_source(
                node.name,
                *(node.topics if node.pattern is None else (node.pattern,)),
                key_serde=node.key_serde,
                value_serde=node.value_serde,
                timestamp_extractor=node.timestamp_extractor,
                reset=node.reset,
            )
        case ProcessorNode():
            topology.keep_processor(node)
        case SinkNode():
            topology.add_sink(
                node.name,
                node.topic,
                *node.parents,
                key_serde=node.key_serde,
                value_serde=node.value_serde,
                partitioner=node.partitioner,
            )
