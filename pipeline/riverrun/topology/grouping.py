"""Splits a topology into sub-topologies, and sub-topologies into levels."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from riverrun.topology.nodes import Node, ProcessorNode, SubTopology

if TYPE_CHECKING:
    from collections.abc import Collection

    from riverrun.topology.parts import Parts

# Repartition topics of joins by a foreign key, whose results do not depend on the time of the answers.
_FOREIGN_KEY = re.compile("-subscription-(registration|response)-topic$|KTABLE-FK-JOIN-SUBSCRIPTION-")


def group_ids(parts: Parts) -> tuple[dict[str, int], dict[str, int]]:
    """Number the groups of connected nodes.

    Groups are numbered by their first member, in the order in which nodes were added
    (`InternalTopologyBuilder.makeNodeGroups`). Groups of global stores count as well.
    """
    root = _connected_roots(parts)
    global_sources = {g.source.name: store for store, g in parts.global_stores.items()}
    number: dict[str, int] = {}
    for name in parts.order:
        if name in root or name in global_sources:
            number.setdefault(root.get(name, name), len(number))
    nodes = {name: number[root[name]] for name in parts.nodes}
    return nodes, {store: number[source] for source, store in global_sources.items()}


def _connected_roots(parts: Parts) -> dict[str, str]:
    root = {name: name for name in parts.nodes}

    def find(name: str) -> str:
        while root[name] != name:
            root[name] = root[root[name]]
            name = root[name]
        return name

    for node in parts.nodes.values():
        for parent in node.parents:
            root[find(node.name)] = find(parent)
    for users in parts.users.values():
        first, *rest = sorted(users) or [""]
        for user in rest:
            root[find(user)] = find(first)
    return {name: find(name) for name in root}


def sub_topologies(parts: Parts) -> tuple[SubTopology, ...]:
    """Return the groups that run as tasks, by id."""
    ids, _ = group_ids(parts)
    members: dict[int, list[Node]] = {}
    for name, node in parts.nodes.items():
        members.setdefault(ids[name], []).append(node)
    return tuple(_sub_topology(parts, group, tuple(members[group])) for group in sorted(members))


def _sub_topology(parts: Parts, group: int, nodes: tuple[Node, ...]) -> SubTopology:
    names = {node.name for node in nodes}
    users = parts.users
    access = {
        node.name: tuple(sorted(store for store, who in users.items() if node.name in who))
        for node in nodes
        if isinstance(node, ProcessorNode)
    }
    return SubTopology(
        id=group,
        nodes=nodes,
        stores=tuple(builder for name, builder in parts.stores.items() if users[name] & names),
        store_access=access,
        repartition_topics=frozenset(parts.repartition_topics),
        lines={name: line for name in names if (line := parts.lines.get(name)) is not None},
    )


def levels(subs: Collection[SubTopology]) -> tuple[tuple[SubTopology, ...], ...]:
    """Return sub-topologies in levels, so that readers of a repartition topic come after all of its writers.

    Sub-topologies that write to each other (both sides of foreign-key joins) are in one level; see `is_cyclic`.
    """
    waiting = list(subs)
    above = _ancestors(waiting)
    result: list[tuple[SubTopology, ...]] = []
    done: set[int] = set()
    while waiting:
        ready = tuple(sub for sub in waiting if all(other in done or sub.id in above[other] for other in above[sub.id]))
        result.append(ready)
        done |= {sub.id for sub in ready}
        waiting = [sub for sub in waiting if sub not in ready]
    return tuple(result)


def is_cyclic(level: tuple[SubTopology, ...]) -> bool:
    """Return whether sub-topologies of a level write to each other, so that it ends only when nothing is left to read."""
    return any(sub.written_repartition_topics.intersection(other.source_topics) for sub in level for other in level)


def loops(subs: Collection[SubTopology]) -> tuple[tuple[int, ...], ...]:
    """Return, per level whose sub-topologies write to each other or to themselves, their sorted ids.

    Foreign-key joins are left out.
    """
    mended = [
        replace(sub, repartition_topics=frozenset(t for t in sub.repartition_topics if not _FOREIGN_KEY.search(t)))
        for sub in subs
    ]
    return tuple(tuple(sorted(sub.id for sub in level)) for level in levels(mended) if is_cyclic(level))


def upstream(subs: Collection[SubTopology], sub: SubTopology) -> tuple[SubTopology, ...]:
    """Return a sub-topology and those that write to its repartition topics, directly or indirectly, by id."""
    wanted = _ancestors(subs)[sub.id] | {sub.id}
    return tuple(other for other in subs if other.id in wanted)


def _ancestors(subs: Collection[SubTopology]) -> dict[int, set[int]]:
    """Return, per sub-topology, all that write to its inputs, directly or indirectly; itself only if in a cycle."""
    above = {
        sub.id: {other.id for other in subs if other.written_repartition_topics.intersection(sub.source_topics)}
        for sub in subs
    }
    for middle, further in above.items():
        for writers in above.values():
            if middle in writers:
                writers.update(further)
    return above
