"""The text of Kafka Streams' `Topology.describe()`, to the letter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.topology.grouping import group_ids, sub_topologies
from pipeline.topology.nodes import GlobalStore, Node, SinkNode, SourceNode, SubTopology

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pipeline.topology.topology import Topology


def describe(topology: Topology) -> str:
    """Describe a topology as `InternalTopologyBuilder.TopologyDescription.toString` does."""
    _, global_ids = group_ids(topology)
    parts = {sub.id: _describe_sub_topology(sub) for sub in sub_topologies(topology)}
    parts |= {
        global_ids[g.store.name]: _describe_global_store(global_ids[g.store.name], g) for g in topology.global_stores
    }
    return "Topologies:\n " + "".join(parts[number] for number in sorted(parts))


def _describe_global_store(number: int, store: GlobalStore) -> str:
    return (
        f"  Sub-topology: {number} for global store (will not generate tasks)\n"
        f"    Source: {store.source.name} (topics: [{', '.join(sorted(store.source.topics))}])\n"
        f"      --> {store.processor.name}\n"
        f"    Processor: {store.processor.name} (stores: [{store.store.name}])\n"
        f"      --> none\n"
        f"      <-- {store.source.name}\n\n"
    )


def _describe_sub_topology(sub: SubTopology) -> str:
    children: dict[str, list[str]] = {node.name: [] for node in sub.nodes}
    for node in sub.nodes:
        for parent in node.parents:
            children[parent].append(node.name)
    size: dict[str, int] = {}
    for node in reversed(sub.nodes):
        size[node.name] = 1 + sum(size[child] for child in children[node.name])
    nodes = sorted(sub.nodes, key=lambda node: (-size[node.name], node.name))
    lines = (_describe_node(node, children[node.name], sub) for node in nodes)
    return f"  Sub-topology: {sub.id}\n" + "".join(lines) + "\n"


def _describe_node(node: Node, children: list[str], sub: SubTopology) -> str:
    match node:
        case SourceNode():
            topics = f"[{', '.join(sorted(node.topics))}]" if node.pattern is None else node.pattern.pattern
            head = f"    Source: {node.name} (topics: {topics})\n"
            return f"{head}      --> {_names(children)}\n"
        case SinkNode():
            where = f"topic: {node.topic}" if isinstance(node.topic, str) else f"extractor class: {node.topic!r}"
            return f"    Sink: {node.name} ({where})\n      <-- {_names(node.parents)}\n"
        case _:
            stores = ", ".join(sub.store_access.get(node.name, ()))
            head = f"    Processor: {node.name} (stores: [{stores}])\n"
            return f"{head}      --> {_names(children)}\n      <-- {_names(node.parents)}\n"


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
