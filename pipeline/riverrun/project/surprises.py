"""Finds what is wrong or surprising in the graph of a project: only what topologies and declarations show."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING

from riverrun.config import OutputKind
from riverrun.hosting.release import staging_name
from riverrun.project.graph import ReaderKind
from riverrun.runtime.layout import own_topics

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from riverrun.project.graph import Member, ProjectGraph, Read, Write

_MOST = 3
"""Names that a message lists."""


class SurpriseKind(Enum):
    """A kind of surprise, as JSON names it."""

    SEVERAL_WRITERS = "several-writers"
    CYCLE = "cycle"
    STAGING = "staging"
    INTERNAL = "internal"
    TABLE_OF_A_LOG = "table-of-a-log"
    NO_KEYS = "no-keys"


@dataclass(frozen=True, slots=True)
class Surprise:
    """Something in a project that is wrong, or that its author may not expect."""

    kind: SurpriseKind
    text: str

    def __str__(self) -> str:
        return self.text


def surprises(graph: ProjectGraph) -> tuple[Surprise, ...]:
    """Return what is wrong or surprising in a project."""
    return (*_several_writers(graph), *_cycles(graph), *_private_topics(graph), *_tables(graph))


def _several_writers(graph: ProjectGraph) -> Iterator[Surprise]:
    """Find topics that several members write. Letters of several applications may share a topic."""
    for topic in graph.topics:
        edges = graph.writers(topic)
        writers = tuple(dict.fromkeys(edge.writer for edge in edges))
        if len(writers) > 1 and not all(edge.is_letters for edge in edges):
            yield Surprise(SurpriseKind.SEVERAL_WRITERS, f"{_joined(writers)} write to {topic}")


def _cycles(graph: ProjectGraph) -> Iterator[Surprise]:
    for members in graph.cycles():
        way = _way_back(graph, members)
        text = ", ".join(f"{writer} writes {topic}, which {reader} reads" for writer, topic, reader in way)
        yield Surprise(SurpriseKind.CYCLE, f"a cycle: {text}")


def _way_back(graph: ProjectGraph, members: Sequence[Member]) -> list[tuple[Member, str, Member]]:
    """Return a shortest way from the first member of a cycle back to it: writers, topics and readers."""
    first = members[0]
    ways = [[first]]
    for way in ways:
        for after in graph.after(way[-1]):
            if after == first:
                return [(one, _between(graph, one, other), other) for one, other in pairwise([*way, first])]
            if after in members and after not in way:
                ways.append([*way, after])
    return []


def _between(graph: ProjectGraph, writer: Member, reader: Member) -> str:
    read = {edge.topic for edge in graph.reads_of(reader)}
    return next(edge.topic for edge in graph.writes_of(writer) if edge.topic in read)


def _private_topics(graph: ProjectGraph) -> Iterator[Surprise]:
    """Find readers of topics that belong to one version of an application."""
    staged = {
        staging_name(application_id, edge.topic): application_id
        for edge in graph.writes
        if edge.is_known
        for application_id, name in graph.application_ids.items()
        if edge.writer.is_application and edge.writer.name == name
    }
    for edge in graph.reads:
        if edge.pattern is not None and not edge.is_known:
            matching = [topic for topic in staged if edge.pattern.fullmatch(topic)]
            if matching:
                text = f"{edge.reader} reads {edge.topic}: also staging topics of versions that are not live"
                yield Surprise(SurpriseKind.STAGING, f"{text}, such as {matching[0]}")
            continue
        yield from _private_topic(graph, edge)


def _private_topic(graph: ProjectGraph, edge: Read) -> Iterator[Surprise]:
    ids = sorted(graph.application_ids, key=len, reverse=True)
    owner = next((each for each in ids if edge.topic.startswith(staging_name(each, ""))), None)
    if owner is not None:
        text = f"{edge.reader} reads {edge.topic}, a staging topic of {owner}: it is deleted with that version"
        yield Surprise(SurpriseKind.STAGING, text)
        return
    owner = next((each for each in ids if own_topics(each, [edge.topic], ids)), None)
    if owner is not None:
        text = f"{edge.reader} reads {edge.topic}, an internal topic of {owner}: its records are no interface"
        yield Surprise(SurpriseKind.INTERNAL, text)


def _tables(graph: ProjectGraph) -> Iterator[Surprise]:
    """Find tables that are read from topics which are written as streams."""
    for edge in graph.reads:
        if edge.kind in {ReaderKind.TABLE, ReaderKind.GLOBAL_TABLE}:
            for write in graph.writers(edge.topic):
                yield from _table_of(edge, write)


def _table_of(read: Read, write: Write) -> Iterator[Surprise]:
    whole = f"{read.reader} reads {read.topic} as a table"
    if write.kind is OutputKind.LOG:
        text = f"{whole}, but {write.writer} writes it as a log: {write.why}"
        yield Surprise(SurpriseKind.TABLE_OF_A_LOG, text)
    if not write.has_keys:
        text = f"{whole}, but records of {write.writer} have no keys: a table drops them"
        yield Surprise(SurpriseKind.NO_KEYS, text)


def _joined(members: Sequence[Member]) -> str:
    named = [str(member) for member in members[:_MOST]]
    if len(members) > _MOST:
        named.append(f"{len(members) - _MOST} more")
    return f"{', '.join(named[:-1])} and {named[-1]}"
