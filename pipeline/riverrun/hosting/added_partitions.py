"""Partitions and topics that an application has got since it began to read, where `auto.offset.reset` would skip records.

`latest` and `by_duration` skip records from before the application began. A partition that was added later has none of them,
so it is read from its first record; in Kafka Streams, records that precede its discovery are lost. Likewise with topics that a
pattern matches since. Hosts note the partitions that there are before they take the first task over, next to the copies of
commits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverrun.records import AutoOffsetReset, ResetStrategy

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from riverrun.hosting.application import Application
    from riverrun.hosting.kept_offsets import KeptOffsets
    from riverrun.records import TopicPartition
    from riverrun.topology.nodes import SourceNode

_SKIPPING = {ResetStrategy.LATEST, ResetStrategy.BY_DURATION}


def reset_policies(application: Application) -> dict[str, AutoOffsetReset]:
    """Return the policy for reading without a committed offset, per external topic; patterns are resolved."""
    return {topic: policy for source, policy in _policies(application) for topic in source.topics}


def note_partitions(copies: KeptOffsets, application: Application, partitions: Mapping[str, int]) -> None:
    """Note the partitions with which an application begins, unless they were noted before."""
    sources = _skipping(application)
    if not sources:
        return
    begun, counts = copies.begun(), dict[str, int]()
    for source in sources:
        if (pattern := _pattern(source)) is not None:
            if pattern in begun:
                continue
            counts[pattern] = 0
        counts |= {topic: partitions[topic] for topic in source.topics}
    copies.note_begun(counts)


def added_partitions(
    copies: KeptOffsets, application: Application, tps: Iterable[TopicPartition]
) -> set[TopicPartition]:
    """Return those partitions that the application did not begin with, and of which its policy would skip records."""
    counts: dict[str, int] = {}
    if sources := _skipping(application):
        begun = copies.begun()
        for source in sources:
            known = begun if _pattern(source) not in begun else dict.fromkeys(source.topics, 0) | begun
            counts |= {topic: known[topic] for topic in source.topics if topic in known}
    return {tp for tp in tps if tp.topic in counts and tp.partition >= counts[tp.topic]}


def _skipping(application: Application) -> list[SourceNode]:
    return [source for source, policy in _policies(application) if policy.strategy in _SKIPPING]


def _policies(application: Application) -> Iterator[tuple[SourceNode, AutoOffsetReset]]:
    configured = AutoOffsetReset.parse(application.config.streams.auto_offset_reset)
    for sub in application.topology.sub_topologies():
        for source in sub.sources:
            if sub.repartition_topics.isdisjoint(source.topics):
                yield source, source.reset or configured


def _pattern(source: SourceNode) -> str | None:
    """Return a name for the source's pattern that no topic has."""
    return None if source.pattern is None else f"{source.name}/{source.pattern.pattern}"
