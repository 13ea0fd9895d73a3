"""The graph of a project: its applications and all else that shares topics with them, as a value.

Topics that an application chooses per record, or finds by a pattern, are edges whose topics are not known. Internal topics are
no part of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from riverrun.config import OutputKind

APPLICATION = "application"


@dataclass(frozen=True, slots=True)
class Member:
    """An application, or an import, export, archive or neighbour of the project.

    Args:
        kind: `application`, or the section that declares it, such as `export`.
        version: The version of an application; empty for others.
    """

    name: str
    kind: str = APPLICATION
    version: str = ""

    def __str__(self) -> str:
        return self.name if self.is_application else f"{self.kind} {self.name}"

    @property
    def is_application(self) -> bool:
        return self.kind == APPLICATION


class ReaderKind(Enum):
    """How a topic is read."""

    STREAM = "stream"
    TABLE = "table"
    GLOBAL_TABLE = "global table"


class Arrival(Enum):
    """How corrections of a topic's rows arrive at a later place."""

    ROWS = "rows"
    """As updates of a table."""
    KEYED = "keyed"
    """As one record for each, under its key."""
    FURTHER = "further"
    """As further records, perhaps of other keys, next to earlier ones."""
    LATER = "later"
    """Not at all: only results of later records differ."""


class Use(Enum):
    """A use of corrections by a node, beyond passing them on."""

    COUNTS = "counts corrections again"
    JOINS = "joins corrections again"
    REMEMBERS = "may take corrections for repetitions, and drop them"
    LOOKS_UP = "has joined earlier records with the old rows"
    LOOKS_UP_NOW = "joins corrections with present rows or answers, not with those of then"
    LOOKS_UP_THEN = "joins corrections with rows of their times, as far as these are still known"
    BY_TIME = "keeps rows by their times, and may pass no correction of older ones on"
    FORGETS = "forgets rows by time or number, so wrong ones may have cost it others"
    MERGES = "merges corrections with other topics, whose later rows they may replace"
    PARTITIONS = "chooses partitions by a function, and may keep old rows in others"
    ITSELF = "joins a table with itself, and keeps what a deleted row had"
    REKEYS = "may keep old rows under other keys"
    ADDS = "adds a row for each correction"
    ACTS = "acts on each correction as well"
    OWN_CODE = "is a processor of your own, which may remember records"
    MAY_LOOK_UP = "is a processor of your own, which may look up its rows"
    UNKNOWN = "is outside the project: its use of records is not known"


@dataclass(frozen=True, slots=True)
class Step:
    """A node that does more with corrections than to pass them on."""

    node: str
    use: Use


@dataclass(frozen=True, slots=True)
class Spread:
    """How far in time from a correction the results lie that change with it.

    Args:
        before_ms: How far before it, ms; None if nothing limits that.
        after_ms: Likewise, after it.
    """

    before_ms: int | None = 0
    after_ms: int | None = 0

    def then(self, later: Spread) -> Spread:
        """Return the spread of this way and a later one, one after the other."""
        return Spread(_both(sum, self.before_ms, later.before_ms), _both(sum, self.after_ms, later.after_ms))

    def __or__(self, other: Spread) -> Spread:
        """Return the spread of two ways next to each other."""
        return Spread(_both(max, self.before_ms, other.before_ms), _both(max, self.after_ms, other.after_ms))


def _both(of: Callable[[tuple[int, int]], int], one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else of((one, other))


@dataclass(frozen=True, slots=True)
class Flow:
    """The way of a topic's corrections through a reader.

    Args:
        outputs: How they arrive at each topic that the reader writes.
        spreads: How far they spread in time on the way to each of these topics.
    """

    steps: tuple[Step, ...] = ()
    outputs: Mapping[str, frozenset[Arrival]] = field(default_factory=dict)
    spreads: Mapping[str, Spread] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Read:
    """An edge from a topic to its reader.

    Args:
        kind: How it is read; None if that is not known.
        node: The source of an application; empty for other readers.
        is_known: Whether it is the topic's name, and not a pattern.
        pattern: The pattern by which the topic is read; None if it is named.
        rows: The way of corrections that replace rows, each under its key.
        records: The way of corrections that are further records.
    """

    reader: Member
    topic: str
    kind: ReaderKind | None
    node: str = ""
    is_known: bool = True
    pattern: re.Pattern[str] | None = None
    rows: Flow = Flow()
    records: Flow = Flow()


@dataclass(frozen=True, slots=True)
class Write:
    """An edge from a writer to a topic.

    Args:
        node: The sink of an application; empty for other writers.
        kind: `table` or `log`; None for writers other than applications, and for letters.
        why: The reason for that kind.
        is_known: Whether it is the topic's name, and not chosen per record.
        has_keys: Whether records have keys, as far as is known.
        is_letters: Whether it is a topic of records that could not be handled.
    """

    writer: Member
    topic: str
    node: str = ""
    kind: OutputKind | None = None
    why: str = ""
    is_known: bool = True
    has_keys: bool = True
    is_letters: bool = False


@dataclass(frozen=True)
class ProjectGraph:
    """All members of a project, and the topics between them.

    Args:
        members: Applications first, in the order of their declaration.
        unknown: Applications and declarations of which nothing is known, with the reason.
        application_ids: The id of each version of each application, with the application's name.
    """

    members: tuple[Member, ...] = ()
    reads: tuple[Read, ...] = ()
    writes: tuple[Write, ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)
    application_ids: Mapping[str, str] = field(default_factory=dict)

    @property
    def topics(self) -> tuple[str, ...]:
        """All topics, sorted; also patterns, and those chosen per record."""
        return tuple(sorted({edge.topic for edge in self.reads} | {edge.topic for edge in self.writes}))

    @property
    def applications(self) -> tuple[Member, ...]:
        """The applications of the project."""
        return tuple(member for member in self.members if member.is_application)

    def application(self, name: str) -> Member | None:
        """Return an application by name; None if it is not known."""
        return next((member for member in self.applications if member.name == name), None)

    def reads_of(self, member: Member) -> Sequence[Read]:
        """Return the edges by which a member reads."""
        return self._reads_of.get(member, ())

    def writes_of(self, member: Member) -> Sequence[Write]:
        """Return the edges by which a member writes."""
        return self._writes_of.get(member, ())

    def readers(self, topic: str) -> Sequence[Read]:
        """Return the edges by which a topic is read."""
        return self._readers.get(topic, ())

    def writers(self, topic: str) -> Sequence[Write]:
        """Return the edges by which a topic is written."""
        return self._writers.get(topic, ())

    def after(self, member: Member) -> tuple[Member, ...]:
        """Return the members that read what a member writes."""
        readers = (read.reader for write in self.writes_of(member) for read in self.readers(write.topic))
        return tuple(dict.fromkeys(readers))

    def ordered(self) -> tuple[Member, ...]:
        """Return the members so that each comes after those that it reads from; members of a cycle stay as declared."""
        # Fewer members are upstream of a writer than of its reader. Members of its cycle do not count.
        upstream = {
            member: sum(member in found and other not in self._below[member] for other, found in self._below.items())
            for member in self.members
        }
        return tuple(sorted(self.members, key=upstream.__getitem__))

    def part(self, members: Collection[Member], topics: Collection[str]) -> ProjectGraph:
        """Return the graph of some members, and of their topics among some."""
        return ProjectGraph(
            tuple(member for member in self.members if member in members),
            tuple(edge for edge in self.reads if edge.reader in members and edge.topic in topics),
            tuple(edge for edge in self.writes if edge.writer in members and edge.topic in topics),
        )

    def returning(self) -> tuple[Member, ...]:
        """Return the members that read what follows from what they write."""
        return tuple(member for member in self.members if member in self._below[member])

    @cached_property
    def leads(self) -> Mapping[str, Mapping[str, Member]]:
        """The topics that what is read of a topic reaches through one reader, by topic, with that reader."""
        found: dict[str, dict[str, Member]] = {topic: {} for topic in self.topics}
        for edge in self.reads:
            for topic in (*edge.rows.outputs, *edge.records.outputs):
                if topic in found:
                    found[edge.topic].setdefault(topic, edge.reader)
        return found

    def cycles(self) -> tuple[tuple[str, ...], ...]:
        """Return the topics whose records return to them, directly or through others, cycle by cycle."""
        topics = {topic: tuple(after) for topic, after in self.leads.items()}
        below = {topic: _reached(topics, topic) for topic in topics}
        found = [
            tuple(other for other in topics if other in below[topic] and topic in below[other])
            for topic in topics
            if topic in below[topic]
        ]
        return tuple(dict.fromkeys(found))

    @cached_property
    def _below(self) -> Mapping[Member, frozenset[Member]]:
        """All members that read what a member writes, directly or through others."""
        after = {member: self.after(member) for member in self.members}
        return {member: _reached(after, member) for member in self.members}

    @cached_property
    def _reads_of(self) -> Mapping[Member, Sequence[Read]]:
        return _grouped((edge.reader, edge) for edge in self.reads)

    @cached_property
    def _writes_of(self) -> Mapping[Member, Sequence[Write]]:
        return _grouped((edge.writer, edge) for edge in self.writes)

    @cached_property
    def _readers(self) -> Mapping[str, Sequence[Read]]:
        return _grouped((edge.topic, edge) for edge in self.reads)

    @cached_property
    def _writers(self) -> Mapping[str, Sequence[Write]]:
        return _grouped((edge.topic, edge) for edge in self.writes)


_Key = TypeVar("_Key")
_Edge = TypeVar("_Edge")


def _grouped(edges: Iterable[tuple[_Key, _Edge]]) -> dict[_Key, list[_Edge]]:
    found: dict[_Key, list[_Edge]] = {}
    for key, edge in edges:
        found.setdefault(key, []).append(edge)
    return found


def _reached(after: Mapping[_Key, Sequence[_Key]], start: _Key) -> frozenset[_Key]:
    found: set[_Key] = set()
    waiting = [*after[start]]
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            waiting += after[each]
    return frozenset(found)
