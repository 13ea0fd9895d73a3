"""Finds what is wrong or surprising in the graph of a project: only what topologies and declarations show."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING

from riverrun.config import OutputKind
from riverrun.hosting.release import staging_name
from riverrun.project.graph import ReaderKind
from riverrun.runtime.layout import is_internal_topic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

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
    for topics in graph.cycles():
        way = _way_back(graph.leads, topics[0])
        text = ", ".join(f"{writer} writes {topic}, which {reader} reads" for writer, topic, reader in way)
        yield Surprise(SurpriseKind.CYCLE, f"a cycle: {text}")


def _way_back(leads: Mapping[str, Mapping[str, Member]], first: str) -> list[tuple[Member, str, Member]]:
    """Return a shortest way from a topic of a cycle back to it: writers, topics and readers."""
    before: dict[str, str] = {}
    waiting = deque([first])
    while first not in before:
        topic = waiting.popleft()
        new = [after for after in leads[topic] if after not in before]
        before |= dict.fromkeys(new, topic)
        waiting += new
    way = [first, before[first]]
    while way[-1] != first:
        way.append(before[way[-1]])
    way.reverse()
    readers = [leads[one][other] for one, other in pairwise(way)]
    return list(zip([readers[-1], *readers[:-1]], way[:-1], readers, strict=True))


def _private_topics(graph: ProjectGraph) -> Iterator[Surprise]:
    """Find readers of topics that belong to one version of an application."""
    ids: dict[str, list[str]] = {}
    for application_id, name in graph.application_ids.items():
        ids.setdefault(name, []).append(application_id)
    written = [edge for edge in graph.writes if edge.is_known and edge.writer.is_application]
    staged = [staging_name(each, edge.topic) for edge in written for each in ids.get(edge.writer.name, ())]
    for edge in graph.reads:
        if edge.pattern is not None and not edge.is_known:
            found = next((topic for topic in staged if edge.pattern.fullmatch(topic)), None)
            if found is not None:
                text = f"{edge.reader} reads {edge.topic}: also staging topics of versions that are not live"
                yield Surprise(SurpriseKind.STAGING, f"{text}, such as {found}")
            continue
        yield from _private_topic(graph, edge)


def _private_topic(graph: ProjectGraph, edge: Read) -> Iterator[Surprise]:
    ends = (at for at, letter in enumerate(edge.topic) if letter == "-")
    # An id may begin with another one: the longest comes first.
    owners = [edge.topic[:end] for end in ends if edge.topic[:end] in graph.application_ids][::-1]
    owner = next((each for each in owners if edge.topic.startswith(staging_name(each, ""))), None)
    if owner is not None:
        text = f"{edge.reader} reads {edge.topic}, a staging topic of {owner}: it is deleted with that version"
        yield Surprise(SurpriseKind.STAGING, text)
        return
    if owners and is_internal_topic(owners[0], edge.topic):
        text = f"{edge.reader} reads {edge.topic}, an internal topic of {owners[0]}: its records are no interface"
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
