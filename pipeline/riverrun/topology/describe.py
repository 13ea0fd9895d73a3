"""Produces the text of Kafka Streams' `Topology.describe()`, character by character, with times to live in addition.

Kafka Streams prints some names in the iteration order of Java's `HashSet` of strings, so that order is reproduced.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from riverrun.topology.grouping import group_ids, sub_topologies
from riverrun.topology.nodes import GlobalStore, Node, SinkNode, SourceNode, SubTopology, TreeSet

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from riverrun.topology.parts import Parts

_SMALLEST_TABLE = 16


def hash_order(names: Collection[str], *, room_for_all: bool = False) -> list[str]:
    """Return names in the iteration order of a `HashSet` to which they were added one by one.

    With `room_for_all`, the set was created from a collection, with a table of sufficient size.

    >>> hash_order(["in", "other"])
    ['other', 'in']
    """
    buckets = _SMALLEST_TABLE
    # Java's load factor is 0.75. A copy of a set has room for all from the start; other tables double as they fill.
    while buckets < int(len(names) / 0.75) + 1 if room_for_all else len(names) > 0.75 * buckets:
        buckets *= 2
    # Sorting is stable: within a bucket, the order of insertion decides.
    return sorted(names, key=lambda name: _spread(name) & (buckets - 1))


def _spread(name: str) -> int:
    """Compute `HashMap.hash` of a string."""
    code = 0
    for unit in memoryview(name.encode("utf-16-le")).cast("H"):
        code = (31 * code + unit) & 0xFFFFFFFF
    return code ^ code >> 16


def describe(parts: Parts, *, lines: bool = False) -> str:
    """Describe a topology as `InternalTopologyBuilder.TopologyDescription.toString` does; with the users' lines, if asked."""
    _, global_ids = group_ids(parts)
    texts = {sub.id: _describe_sub_topology(sub) for sub in sub_topologies(parts)}
    texts |= {number: _describe_global_store(number, parts.global_stores[name]) for name, number in global_ids.items()}
    text = "Topologies:\n " + "".join(texts[number] for number in sorted(texts))
    return _with_lines(text, parts.lines) if lines else text


def _with_lines(text: str, lines: Mapping[str, str | None]) -> str:
    """Add to the head of each node the line that makes it."""

    def added(head: re.Match[str]) -> str:
        line = lines.get(head["name"])
        return head[0] if line is None else f"{head[0]}  # {line}"

    return re.sub(r"^    (?:Source|Processor|Sink): (?P<name>\S+) .*$", added, text, flags=re.MULTILINE)


def _describe_global_store(number: int, store: GlobalStore) -> str:
    return (
        f"  Sub-topology: {number} for global store (will not generate tasks)\n"
        f"    Source: {store.source.name} (topics: [{', '.join(store.source.topics)}])\n"
        f"      --> {store.processor.name}\n"
        f"    Processor: {store.processor.name} (stores: [{store.store.name}])\n"
        f"      --> none\n"
        f"      <-- {store.source.name}\n"
    )


def _describe_sub_topology(sub: SubTopology) -> str:
    family = _Family.of(sub)
    nodes = sorted(sub.nodes, key=lambda node: (-family.sizes[node.name], node.name))
    lines = (_describe_node(node, family, sub) for node in nodes)
    return f"  Sub-topology: {sub.id}\n" + "".join(lines) + "\n"


def _describe_node(node: Node, family: _Family, sub: SubTopology) -> str:
    children, parents = _names(family.children[node.name]), _names(family.parents[node.name])
    match node:
        case SourceNode():
            named = f"[{', '.join(hash_order(node.topics, room_for_all=True))}]"
            topics = named if node.pattern is None else node.pattern.pattern
            return f"    Source: {node.name} (topics: {topics})\n      --> {children}\n"
        case SinkNode():
            where = f"topic: {node.topic}" if isinstance(node.topic, str) else f"extractor class: {node.topic!r}"
            return f"    Sink: {node.name} ({where})\n      <-- {parents}\n"
        case _:
            accessed = sub.store_access.get(node.name, ())
            added = hash_order([store.name for store in sub.stores if store.name in accessed])
            lives = {store.name: f" (ttl: {store.ttl_ms} ms)" for store in sub.stores if store.ttl_ms is not None}
            # Kafka Streams prints a copy of the set that it has filled.
            names = hash_order(added, room_for_all=True)
            stores = ", ".join(name + lives.get(name, "") for name in names)
            head = f"    Processor: {node.name} (stores: [{stores}])\n"
            return f"{head}      --> {children}\n      <-- {parents}\n"


def _names(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


@dataclass(frozen=True, slots=True)
class _Family:
    """Parents and children of each node in the order in which Kafka Streams prints them.

    Kafka Streams keeps them in sets sorted by the size of the subtree, largest first, then by name. Sizes still grow
    while the sets are filled, in the order of a hash table. So the order within a line depends on the sizes at that moment.
    """

    sizes: dict[str, int]
    parents: dict[str, TreeSet]
    children: dict[str, TreeSet]

    @classmethod
    def of(cls, sub: SubTopology) -> _Family:
        nodes = {node.name: node for node in sub.nodes}
        sizes = dict.fromkeys(nodes, 1)

        def rank(name: str) -> tuple[int, str]:
            return -sizes[name], name

        family = cls(sizes, {name: TreeSet(rank) for name in nodes}, {name: TreeSet(rank) for name in nodes})
        names = tuple(nodes)
        places = {name: number for number, name in enumerate(names)}
        for name in hash_order(names):
            for parent in nodes[name].parents:
                family.parents[name].add(parent)
                family.children[parent].add(name)
                family._grow(parent, family.sizes[name], names, places)
        return family

    def _grow(self, name: str, by: int, names: Sequence[str], places: Mapping[str, int]) -> None:
        """Add to the size of a node, and of those above it once per path."""
        # Parents have places before their children's, so the highest place first adds to each node once.
        grown, waiting = {name: by}, [-places[name]]
        while waiting:
            lowest = names[-heappop(waiting)]
            growth = grown.pop(lowest)
            self.sizes[lowest] += growth
            for parent in self.parents[lowest]:
                if parent not in grown:
                    heappush(waiting, -places[parent])
                grown[parent] = grown.get(parent, 0) + growth
