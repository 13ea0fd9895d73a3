"""Finds what a replay of dead letters would repeat, or would set back to an earlier value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from riverrun.hosting.progress import counted_batches
from riverrun.kafka.ranges import read_fields
from riverrun.records import RAW_KEY, RAW_OFFSET, OffsetRange, TopicPartition
from riverrun.runtime.layout import full_name
from riverrun.topology.nodes import Lineage, ProcessorNode, SinkNode, SourceNode

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping

    from riverrun.kafka.admin import Admin
    from riverrun.topology.nodes import Node, SubTopology
    from riverrun.topology.topology import Topology

    Row = tuple[TopicPartition, bytes | None, int]
    """Partition, key and offset."""

_CHOSEN = "topics that a function chooses"


@dataclass(frozen=True, slots=True)
class Repeats:
    """The stores and topics that may have got records before these failed, and would get them again."""

    stores: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.stores or self.topics)

    def __str__(self) -> str:
        """Return the names, as a message shows them.

        >>> str(Repeats(("counts",), ("prices", "totals")))
        'store counts, topics prices, totals'
        """
        parts = (("store", self.stores), ("topic", self.topics))
        return ", ".join(f"{kind}{'s' if len(names) > 1 else ''} {', '.join(names)}" for kind, names in parts if names)


def repeated(topology: Topology, application_id: str, origins: Iterable[str]) -> Repeats:
    """Return what would see records of topics twice, if these have failed somewhere in the topology."""
    stores, topics = set[str](), set[str]()
    for sub, source in _reading(topology, application_id, origins):
        above = _ancestors(sub, source)
        # Joins only read the tables of other sources.
        others = (node for node in sub.nodes if _is_table(node) and node.name not in above)
        read = {store for node in others for store in _stores(sub, node)}
        for node in _before_others(sub, above):
            stores |= _stores(sub, node) - read
            if isinstance(node, SinkNode):
                topics.add(full_name(sub, application_id, node.topic) if isinstance(node.topic, str) else _CHOSEN)
    return Repeats(tuple(sorted(stores)), tuple(sorted(topics)))


def tables(topology: Topology, application_id: str, origins: Iterable[str]) -> frozenset[str]:
    return frozenset(
        full_name(sub, application_id, topic)
        for sub, source in _reading(topology, application_id, origins)
        if any(_is_table(node) and node.parents == (source.name,) for node in sub.nodes)
        for topic in source.topics
    )


def set_back(topology: Topology, application_id: str, origins: Iterable[str]) -> tuple[str, ...]:
    """Return the tables, made of streams of these topics, in which a late record may replace a newer row."""
    left, seen, found = set(origins), set[str](), set[str]()
    while left - seen:
        topics = left - seen
        seen |= topics
        for sub, source in _reading(topology, application_id, topics):
            above = _ancestors(sub, source)
            for node in (node for node in sub.nodes if node.name in above):
                if isinstance(node, ProcessorNode) and node.lineage is Lineage.ROWS:
                    found |= _stores(sub, node) or {node.name}
                elif isinstance(node, SinkNode) and node.topic in sub.repartition_topics:
                    left.add(full_name(sub, application_id, node.topic))
    return tuple(sorted(found))


def newest_rows(
    admin: Admin, rows: Iterable[Row], ignored: Container[tuple[TopicPartition, int]] = ()
) -> Mapping[tuple[TopicPartition, bytes | None], int]:
    """Return the offset of the last record of each key after the given rows; a key without later records is left out.

    Ignored offsets are those of records that have become no rows.
    """
    asked = set[tuple[TopicPartition, bytes | None]]()
    first: dict[TopicPartition, int] = {}
    for tp, key, offset in rows:
        asked.add((tp, key))
        first[tp] = min(offset, first.get(tp, offset))
    begins, ends = admin.beginning_offsets(first), admin.end_offsets(first)
    later = {tp: OffsetRange(min(max(offset + 1, begins[tp]), ends[tp]), ends[tp]) for tp, offset in first.items()}
    newest: dict[tuple[TopicPartition, bytes | None], int] = {}
    everything = sum(part.size for part in later.values())
    for tp, batch in counted_batches("look for newer rows", read_fields(admin, later), everything):
        newest |= {
            (tp, fields[RAW_KEY]): fields[RAW_OFFSET]
            for fields in batch
            if (tp, fields[RAW_KEY]) in asked and (tp, fields[RAW_OFFSET]) not in ignored
        }
    return newest


def _reading(
    topology: Topology, application_id: str, origins: Iterable[str]
) -> Iterator[tuple[SubTopology, SourceNode]]:
    wanted = frozenset(origins)
    for sub in topology.sub_topologies():
        for source in sub.sources:
            names = {full_name(sub, application_id, topic) for topic in source.topics}
            if wanted & names or (source.pattern and any(map(source.pattern.fullmatch, wanted))):
                yield sub, source


def _ancestors(sub: SubTopology, source: SourceNode) -> Mapping[str, frozenset[str]]:
    """Return, by each node that records of a source reach, the nodes above it that they reach."""
    found = {source.name: frozenset[str]()}
    # Parents come before children.
    for node in sub.nodes:
        reached = [parent for parent in node.parents if parent in found]
        if reached:
            found[node.name] = frozenset(reached).union(*(found[parent] for parent in reached))
    return found


def _before_others(sub: SubTopology, above: Mapping[str, frozenset[str]]) -> Iterator[Node]:
    """Yield the nodes that may have done something before they, or other nodes, failed; `above` as `_ancestors` returns it."""
    nodes = {node.name: node for node in sub.nodes if node.name in above}
    for name, node in nodes.items():
        # Nodes above it have processed the record before. They may fail at another part of the record, if they make several.
        is_before = nodes.keys() - above[name] - {name} or not all(_makes_one(nodes[each]) for each in above[name])
        if is_before or _may_do_a_part(node):
            yield node


def _may_do_a_part(node: Node) -> bool:
    # A user's processor may write to its stores, and an aggregation to some windows, before a function fails.
    return isinstance(node, ProcessorNode) and bool(node.functions) and not _is_table(node)


def _is_table(node: Node) -> bool:
    return isinstance(node, ProcessorNode) and node.lineage is Lineage.TABLE


def _stores(sub: SubTopology, node: Node) -> set[str]:
    return set(sub.store_access.get(node.name, ()))


def _makes_one(node: Node) -> bool:
    return isinstance(node, SourceNode) or (isinstance(node, ProcessorNode) and node.lineage is not Lineage.OTHER)
