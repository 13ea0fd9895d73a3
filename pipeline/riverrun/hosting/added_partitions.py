"""Partitions and topics that an application has got since it began to read, where `auto.offset.reset` would skip records.

`latest` and `by_duration` skip records from before the application began. A partition that was added later has none of them,
so it is read from its first record; in Kafka Streams, records that precede its discovery are lost. Likewise with topics that a
pattern matches since. Hosts note the partitions that there are before they commit where the first one is begun, next to the
copies of commits. Without a note, an application has begun with the partitions of which it has commits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverrun.hosting.kept_offsets import KeptOffsets
from riverrun.records import AutoOffsetReset, ResetStrategy, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from riverrun.hosting.application import Application
    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.topology.nodes import SourceNode

_SKIPPING = {ResetStrategy.LATEST, ResetStrategy.BY_DURATION}


def reset_policies(application: Application) -> dict[str, AutoOffsetReset]:
    """Return the policy for reading without a committed offset, per external topic; patterns are resolved."""
    return {topic: policy for source, policy in _policies(application) for topic in source.topics}


def note_begun(connected: ConnectedApplication) -> None:
    """Note the partitions with which an application begins, before it commits any; it may have begun already."""
    sources = _skipping(connected.application)
    if sources:
        # A pattern's topics have notes, so the pattern needs one only if it has none.
        empty = {pattern: 0 for source in sources if not source.topics and (pattern := _pattern(source)) is not None}
        KeptOffsets(connected.admin, connected.id).note_begun(_begun(connected, sources) | empty)


def note_unmatched(connected: ConnectedApplication) -> None:
    """Note the patterns without topics, of which no task is taken over that would note them."""
    if any(not source.topics for source in _skipping(connected.application)):
        note_begun(connected)


def added_partitions(connected: ConnectedApplication, tps: Collection[TopicPartition]) -> set[TopicPartition]:
    """Return those partitions that the application did not begin with, and of which its policy would skip records."""
    sources = _skipping(connected.application) if tps else []
    counts = _begun(connected, sources) if sources else {}
    return {tp for tp in tps if tp.partition >= counts.get(tp.topic, tp.partition + 1)}


def _begun(connected: ConnectedApplication, sources: Collection[SourceNode]) -> dict[str, int]:
    """Return the number of partitions of each topic with which the application has begun, or begins now."""
    partitions = connected.partitions
    topics = [topic for source in sources for topic in source.topics]
    tps = [TopicPartition(topic, number) for topic in topics for number in range(partitions.get(topic, 0))]
    copies = KeptOffsets(connected.admin, connected.id)
    # The notes are read last: they are written before the first commit.
    committed = counts_of([*connected.noted(tps), *copies.read()])
    notes, begun = copies.begun(), dict[str, int]()
    for source in sources:
        pattern = _pattern(source)
        # Before the first commit, notes are those of a start that failed.
        if committed.keys().isdisjoint(source.topics):
            begun |= {topic: 0 if pattern in notes else partitions.get(topic, 0) for topic in source.topics}
            continue
        for topic in source.topics:
            new = partitions.get(topic, 0) if pattern is None else 0
            begun[topic] = notes.get(topic, committed.get(topic, new))
    return begun


def counts_of(tps: Iterable[TopicPartition]) -> dict[str, int]:
    """Return the number of partitions by topic, up to the last one."""
    counts: dict[str, int] = {}
    for tp in tps:
        counts[tp.topic] = max(counts.get(tp.topic, 0), tp.partition + 1)
    return counts


def _skipping(application: Application) -> list[SourceNode]:
    return [source for source, policy in _policies(application) if policy.strategy in _SKIPPING]


def _policies(application: Application) -> Iterator[tuple[SourceNode, AutoOffsetReset]]:
    configured = AutoOffsetReset.parse(application.config.streams.auto_offset_reset)
    for sub in application.topology.sub_topologies():
        for source in sub.sources:
            if sub.repartition_topics.isdisjoint(source.topics):
                yield source, source.reset or configured


def _pattern(source: SourceNode) -> str | None:
    """Return a name for the source's pattern that no topic has, whatever the source is called."""
    return None if source.pattern is None else f"/{source.pattern.pattern}"
