"""The impact of a change: what it means for all that reads what an application writes, directly or through others.

A release corrects rows of tables, and sends no record of a log again. So readers of tables as tables get what has changed,
and readers that count records count corrections as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING

from riverrun.config import OutputKind
from riverrun.project.graph import Arrival, ReaderKind, Use

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from riverrun.project.graph import Flow, Member, ProjectGraph, Read, Write
    from riverrun.project.stretches import Stretch


class Part(Enum):
    """Says if a member has to take part in a release of another one."""

    MUST = "must"
    UNKNOWN = "unknown"
    MAY = "may"
    NEED_NOT = "need not"


_ORDER = tuple(Part)
_PARTS = {
    Use.COUNTS: Part.MUST,
    Use.JOINS: Part.MUST,
    Use.REMEMBERS: Part.MUST,
    Use.LOOKS_UP: Part.MAY,
    Use.LOOKS_UP_NOW: Part.MAY,
    Use.LOOKS_UP_THEN: Part.MAY,
    Use.BY_TIME: Part.MAY,
    Use.FORGETS: Part.MAY,
    Use.MERGES: Part.MAY,
    Use.PARTITIONS: Part.MAY,
    Use.ITSELF: Part.MAY,
    Use.REKEYS: Part.MAY,
    Use.ADDS: Part.MAY,
    Use.ACTS: Part.MAY,
    Use.OWN_CODE: Part.UNKNOWN,
    Use.MAY_LOOK_UP: Part.UNKNOWN,
    Use.UNKNOWN: Part.UNKNOWN,
}


class Effect(Enum):
    """The effect of a change on a topic."""

    CORRECTED = "corrected"
    """Rows that differ are written again, under their keys."""
    REPEATED = "repeated"
    """Further records are written for corrections, next to earlier ones."""
    STAYS = "stays"
    """Its records stay; only later ones differ."""


_TOLD = {
    Effect.CORRECTED: "rows that differ are corrected",
    Effect.REPEATED: "further records for corrections",
    Effect.STAYS: "only later records differ",
}


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason for the part of a member in a change.

    Args:
        topic: The topic through which the change arrives.
        node: The node that decides; empty for the whole member.
        effect: What the change does to the topic.
    """

    topic: str
    node: str
    effect: Effect
    part: Part
    text: str

    def __str__(self) -> str:
        return f"{self.topic}: {f'{self.node} ' if self.node else ''}{self.text}"


@dataclass(frozen=True, slots=True)
class Reached:
    """A member that reads what a change may reach.

    Args:
        part: Whether it has to take part; the strongest of its reasons.
        is_restated: Whether its results are those of the corrected rows without more ado.
    """

    member: Member
    part: Part
    reasons: tuple[Reason, ...]
    is_restated: bool

    @property
    def told(self) -> tuple[str, ...]:
        """Return the reasons that count, as text."""
        # Some records of a topic may stay while others are corrected: then the corrections count.
        corrected = {reason.topic for reason in self.reasons if reason.effect is not Effect.STAYS}
        told = (each for each in self.reasons if each.effect is not Effect.STAYS or each.topic not in corrected)
        return tuple(dict.fromkeys(map(str, told)))


@dataclass(frozen=True, slots=True)
class Changed:
    """A topic that a change reaches.

    Args:
        effects: What the change does to it; all of them if this is not known.
        is_restated: Whether its records are then those that a computation from the beginning would return.
        times: The event times of what changes; None if that is not known, as in a release.
    """

    topic: str
    writer: Member
    effects: tuple[Effect, ...]
    is_restated: bool
    times: Stretch | None = None

    @property
    def text(self) -> str:
        """Return the effects as text."""
        if self.effects == tuple(Effect):
            return "not known"
        told = " and ".join(_TOLD[each] for each in self.effects)
        told = told if self.times is None else f"{told}, {self.times}"
        return told if self.is_restated else f"{told}, which does not restate it"


@dataclass(frozen=True, slots=True)
class Impact:
    """The meaning of a change of an application for others.

    Args:
        app: The application that changes.
        interval: The interval of event time that is computed again; empty for a release.
        outputs: What happens to each topic of the application, as text.
        changed: The topics of others that the change reaches.
        reached: The members that it reaches, nearest first.
        unknown: What is not known about it, as text.
        ended: Topics that the released version no longer writes, with their readers: these get nothing more.
        corrected: All topics that get corrections, or records that follow from these.
    """

    app: Member
    interval: str
    outputs: Mapping[str, str]
    changed: tuple[Changed, ...] = ()
    reached: tuple[Reached, ...] = ()
    unknown: tuple[str, ...] = ()
    ended: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    corrected: frozenset[str] = frozenset()

    def part_of(self, name: str) -> Part | None:
        """Return the part of an application, or of another member such as `export lake`; None if it is not reached."""
        return next((each.part for each in self.reached if str(each.member) == name), None)

    def with_part(self, part: Part) -> tuple[Reached, ...]:
        """Return the members that have a part."""
        return tuple(each for each in self.reached if each.part is part)


_Effects = dict[str, frozenset[Effect]]


def impact_of(
    graph: ProjectGraph,
    app: Member,
    outputs: Mapping[str, tuple[Effect, str]],
    interval: str = "",
    times: Mapping[str, Stretch] = MappingProxyType({}),
) -> Impact:
    """Return what a change of an application means.

    Args:
        graph: The graph of the project.
        app: The application.
        outputs: What the change does to each topic of the application, also as text.
        interval: The interval of event time that is computed again. Others take no part then; in a release they may.
        times: The event times of what changes, by topic.
    """
    first: _Effects = {topic: frozenset({effect}) for topic, (effect, _) in outputs.items()}
    effects = _spread(graph, app, first, takes_part=not interval)
    reached = tuple(_reached(graph, app, effects, takes_part=not interval))
    changed = tuple(
        Changed(
            edge.topic,
            each.member,
            _sorted(effects[edge.topic]),
            is_restated=each.is_restated or not interval,
            times=times.get(edge.topic),
        )
        for each in reached
        for edge in graph.writes_of(each.member)
        if edge.topic in effects
    )
    told = {topic: text for topic, (_, text) in outputs.items()}
    corrected = frozenset(topic for topic, each in effects.items() if each - {Effect.STAYS})
    unknown = tuple(_unknown(graph, app, reached))
    return Impact(app, interval, told, changed, reached, unknown, corrected=corrected)


def _sorted(effects: frozenset[Effect]) -> tuple[Effect, ...]:
    return tuple(each for each in Effect if each in effects)


def _spread(graph: ProjectGraph, app: Member, first: _Effects, *, takes_part: bool) -> _Effects:
    """Return the effects on all topics."""
    effects = first
    # A member that has to take part spreads less than before that was known, so each round begins with the first topics. In a
    # cycle this may not come to rest: then later rounds only add.
    for number in range(2 * len(graph.members) + 2):
        found = dict(effects) if number > len(graph.members) else dict(first)
        for member in graph.members:
            for topic, more in _written(graph, member, effects, takes_part=takes_part) if member != app else ():
                found[topic] = found.get(topic, frozenset()) | more
        if found == effects:
            break
        effects = found
    return effects


def _written(
    graph: ProjectGraph, member: Member, effects: _Effects, *, takes_part: bool
) -> Iterator[tuple[str, frozenset[Effect]]]:
    """Return what a member does to the topics that it writes."""
    kinds = {edge.topic: edge for edge in graph.writes_of(member)}
    part = _part(_reasons(graph, member, effects))
    for read in graph.reads_of(member):
        for effect in effects.get(read.topic, ()):
            for topic, arrivals in _flow(read, effect).outputs.items():
                if topic not in kinds:
                    continue
                found = frozenset(map(_effect, arrivals)) if effect is not Effect.STAYS else frozenset({effect})
                if takes_part and part is not Part.NEED_NOT:
                    released = frozenset({_released(kinds[topic])})
                    found = released if part is Part.MUST else found | released
                yield topic, found


def _flow(read: Read, effect: Effect) -> Flow:
    return read.records if effect is Effect.REPEATED else read.rows


def _effect(arrival: Arrival) -> Effect:
    match arrival:
        case Arrival.ROWS | Arrival.KEYED:
            return Effect.CORRECTED
        case Arrival.FURTHER:
            return Effect.REPEATED
        case Arrival.LATER:
            return Effect.STAYS


def _released(write: Write) -> Effect:
    """Return what a release of a topic's writer does to it."""
    return Effect.CORRECTED if write.kind is OutputKind.TABLE else Effect.STAYS


def _reached(graph: ProjectGraph, app: Member, effects: _Effects, *, takes_part: bool) -> Iterator[Reached]:
    """Return the members that read one of the topics, in the order of the flow."""
    every = {member: _reasons(graph, member, effects) for member in graph.ordered() if member != app}
    # What takes part is computed again, and so are its topics.
    stale = {} if takes_part else _stale(graph, {member: found for member, found in every.items() if found}, effects)
    for member, found in every.items():
        carried = {
            read.topic: Reason(
                read.topic, "", Effect.STAYS, Part.NEED_NOT, f"its writer {stale[read.topic]} cannot be restated"
            )
            for read in graph.reads_of(member)
            if read.topic in stale
        }
        own = [each for each in found if each.topic not in carried or each.part is not Part.NEED_NOT]
        reasons = tuple(dict.fromkeys([*own, *carried.values()]))
        if reasons:
            yield Reached(member, _part(reasons), reasons, is_restated=_is_restated(reasons))


def _stale(graph: ProjectGraph, reasons: Mapping[Member, Sequence[Reason]], effects: _Effects) -> dict[str, Member]:
    """Return the topics that members write whose results are not restated, each with such a writer."""
    found: dict[str, Member] = {}
    waiting = [member for member, each in reasons.items() if not _is_restated(each)]
    while waiting:
        writer = waiting.pop()
        for edge in graph.writes_of(writer):
            if edge.topic in effects and edge.topic not in found:
                found[edge.topic] = writer
                waiting += [read.reader for read in graph.readers(edge.topic) if read.reader in reasons]
    return found


def _is_restated(reasons: Iterable[Reason]) -> bool:
    return all(each.part is Part.NEED_NOT and each.effect is Effect.CORRECTED for each in reasons)


def _part(reasons: Iterable[Reason]) -> Part:
    return min((each.part for each in reasons), key=_ORDER.index, default=Part.NEED_NOT)


def _reasons(graph: ProjectGraph, member: Member, effects: _Effects) -> list[Reason]:
    return [
        reason
        for read in graph.reads_of(member)
        for effect in Effect
        if effect in effects.get(read.topic, ())
        for reason in _reasons_of(read, effect, {edge.topic for edge in graph.writes_of(member)})
    ]


def _reasons_of(read: Read, effect: Effect, written: frozenset[str] | set[str]) -> Iterator[Reason]:
    if effect is Effect.STAYS:
        yield Reason(read.topic, "", effect, Part.NEED_NOT, "its records stay, and none is sent again")
        return
    flow = _flow(read, effect)
    further = [topic for topic, arrivals in flow.outputs.items() if Arrival.FURTHER in arrivals and topic in written]
    for step in flow.steps:
        # A member that is no application is its only node.
        node = "" if step.node == str(read.reader) else step.node
        yield Reason(read.topic, node, effect, _PARTS[step.use], step.use.value)
    for topic in further if not flow.steps else ():
        text = f"corrections become further records of {topic}, next to earlier ones"
        yield Reason(read.topic, "", effect, Part.MAY, text)
    if not flow.steps and not further:
        yield Reason(read.topic, "", effect, Part.NEED_NOT, f"corrections arrive as {_arrives(read)}")


def _arrives(read: Read) -> str:
    return "records under their keys" if read.kind is ReaderKind.STREAM else "updates of rows"


def _unknown(graph: ProjectGraph, app: Member, reached: Iterable[Reached]) -> Iterator[str]:
    """Return what is not known: readers of topics that are chosen per record, and members that cannot be loaded."""
    for member in (app, *(each.member for each in reached)):
        for edge in graph.writes_of(member):
            if not edge.is_known:
                yield f"{edge.topic} ({edge.node}): who reads them is not known"
    yield from (f"{name} is not known: {why}" for name, why in graph.unknown.items())
