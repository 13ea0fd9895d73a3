"""Compacted inputs that a version aggregates as streams: what follows from records that brokers have removed is missing.

A table needs the last record of each key, which compaction keeps. So does an aggregation of its rows, whose subtractor takes
back what its adder has added. An aggregation of a stream needs all records, also of a stream of a table's updates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverrun.kafka.ranges import read_range
from riverrun.operators.joins import (
    BufferedStreamTableJoin,
    StreamTableJoin,
    StreamTableLeftJoin,
    StreamVersionedTableJoin,
)
from riverrun.operators.tables import ToStream
from riverrun.records import OffsetRange, TopicPartition
from riverrun.topology.nodes import Lineage, ProcessorNode, SinkNode

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from riverrun.kafka.admin import Admin
    from riverrun.records import RawRecord
    from riverrun.topology.nodes import Node, SubTopology
    from riverrun.topology.topology import Topology

# Brokers clean a log from its first record on. So it is read up to a key that comes again, or up to so many keys.
_MOST_KEYS = 100_000
_TABLES = {Lineage.TABLE, Lineage.ROWS}
# They read rows, and keep nothing of a record once it is joined.
_LOOK_UPS = StreamTableJoin, StreamTableLeftJoin, StreamVersionedTableJoin, BufferedStreamTableJoin


def thinned_inputs(
    admin: Admin, topology: Topology, topics: Collection[str], others: Iterable[Topology] = ()
) -> list[str]:
    """Return those topics that are aggregated as streams, and from which compaction may have removed records.

    They are aggregated by the topology, or by `others` that read what it writes.
    """
    configs = admin.topic_configs(streams_of_aggregations(topology, others).intersection(topics))
    compacted = sorted(topic for topic, config in configs.items() if "compact" in config["cleanup.policy"])
    counts = admin.partitions(compacted)
    return [
        topic
        for topic in compacted
        if any(_is_thinned(admin, TopicPartition(topic, number)) for number in range(counts.get(topic, 0)))
    ]


def streams_of_aggregations(topology: Topology, others: Iterable[Topology] = ()) -> set[str]:
    """Return the external topics whose records, or the updates of tables made of them, are aggregated as streams."""
    subs = topology.sub_topologies()
    all_ = [subs, *(each.sub_topologies() for each in others)]
    read = [(sub, _external(sub, source.topics)) for sub in subs for source in sub.sources]
    return {topic for sub, topics in read if topics and _is_aggregated(all_, sub, topics) for topic in topics}


def _external(sub: SubTopology, topics: Iterable[str]) -> set[str]:
    return {*topics} - sub.repartition_topics


def _is_aggregated(all_: Sequence[Sequence[SubTopology]], sub: SubTopology, topics: set[str]) -> bool:
    """Return whether records of topics, or updates of tables made of them, reach a store as a stream.

    A topology of `all_` reads no repartition topics of another one; `sub` is a part of the first.
    """
    seen, waiting = set[tuple[int, str, bool]](), [(0, sub, topics, False)]
    while waiting:
        of, here, read, as_table = waiting.pop()
        # Users' processors look rows up in the store of a table.
        tables = {name for node in here.nodes if _makes_rows(node) for name in here.store_access.get(node.name, ())}
        for node, is_table in _reached(here, read, as_table=as_table):
            kept = {*here.store_access.get(node.name, ())} - tables
            if kept and not is_table and not isinstance(_operator(node), _LOOK_UPS):
                return True
            if isinstance(node, SinkNode) and isinstance(node.topic, str) and (of, node.topic, is_table) not in seen:
                seen.add((of, node.topic, is_table))
                waiting += [(to, each, {node.topic}, is_table) for to, each in _readers(all_, of, node.topic)]
    return False


def _readers(all_: Sequence[Sequence[SubTopology]], of: int, topic: str) -> Iterator[tuple[int, SubTopology]]:
    """Yield what reads a topic that a topology writes: its own parts if it repartitions, and parts of the others."""
    for to, subs in enumerate(all_):
        for each in subs:
            external = (name for source in each.sources for name in _external(each, source.topics))
            if topic in (each.repartition_topics if to == of else external):
                yield to, each


def _reached(sub: SubTopology, topics: set[str], *, as_table: bool) -> Iterator[tuple[Node, bool]]:
    """Yield the nodes that get records of topics, each with whether it gets updates of a table alone."""
    reached = {source.name: as_table for source in sub.sources if not topics.isdisjoint(source.topics)}
    # Parents come before their children.
    for node in sub.nodes:
        before = [reached[parent] for parent in node.parents if parent in reached]
        if before:
            is_table = all(before) or _makes_rows(node)
            yield node, is_table
            reached[node.name] = is_table and not isinstance(_operator(node), ToStream)


def _makes_rows(node: Node) -> bool:
    return isinstance(node, ProcessorNode) and node.lineage in _TABLES


def _operator(node: Node) -> object:
    """Return the built-in operator of a node; None if users' code runs there."""
    return node.supplier() if isinstance(node, ProcessorNode) and not node.is_users_own else None


def _is_thinned(admin: Admin, tp: TopicPartition) -> bool:
    log = OffsetRange(admin.beginning_offsets([tp])[tp], admin.end_offsets([tp])[tp])
    return may_lack_records(log, (record for _, batch in read_range(admin, {tp: log}) for record in batch))


def may_lack_records(log: OffsetRange, records: Iterable[RawRecord]) -> bool:
    """Return whether offsets lack a record before a key comes again, or whether too many keys come before that."""
    expected, keys = log.start, set[bytes | None]()
    for record in records:
        if _lacks_records(expected, record.offset):
            return True
        # What is cleaned has each key once.
        if record.key in keys:
            return False
        if len(keys) == _MOST_KEYS:
            return True
        keys.add(record.key)
        expected = record.offset + 1
    return _lacks_records(expected, log.end)


def _lacks_records(expected: int, found: int) -> bool:
    """Return whether offsets without a record are more than the marker of a transaction, which is never the first one."""
    return found > expected + (expected > 0)
