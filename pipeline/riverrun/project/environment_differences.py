"""Compares the topics of an environment with the public ones."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from riverrun.config import OutputKind
from riverrun.hosting.control_topic import release_of
from riverrun.kafka.ranges import read_fields
from riverrun.project.environment_plan import partitions_of, starts_of
from riverrun.records import OffsetRange, counted
from riverrun.releases.differ import Differ
from riverrun.releases.rows import difference_rows, row_of
from riverrun.releases.topology import outputs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.kafka.admin import Admin
    from riverrun.project.environment_plan import EnvironmentMember
    from riverrun.releases.rows import DifferentRow

_DIFFERENCES = "differences"


@dataclass(frozen=True, slots=True)
class OutputDifference:
    """The comparison of a topic of an environment with the public one.

    Args:
        topic: The public topic.
        changes: For a table: the number of rows that are `changed`, `new` or `gone` in the environment.
        rows: Some of these rows: `old` is the public one.
        records: For a log: the numbers of public records, and of those of the environment. None for a table.
    """

    topic: str
    changes: Mapping[str, int] = field(default_factory=dict)
    rows: tuple[DifferentRow, ...] = ()
    records: tuple[int, int] | None = None

    def __str__(self) -> str:
        if self.records is not None:
            public, here = self.records
            return f"{self.topic}: {counted(here, 'record')}; public: {counted(public, 'record')}"
        told = ", ".join(f"{count} {change}" for change, count in sorted(self.changes.items()))
        return "\n".join([f"{self.topic}: {told or 'no row differs'}", *(f"  {row}" for row in self.rows)])


@dataclass(frozen=True, slots=True)
class MemberDifference:
    """The comparison of a member of an environment with its live version.

    Args:
        is_at_one_place: Whether both have processed the same offsets, and no gate holds back what the live version has made.
            Otherwise rows may differ for that reason alone.
    """

    app: str
    version: str
    live: str
    is_at_one_place: bool
    outputs: tuple[OutputDifference, ...]

    def __str__(self) -> str:
        """Describe it line by line."""
        place = "stand at the same place" if self.is_at_one_place else "do not stand at the same place"
        lines = [f"{self.app}: {self.version} here and {self.live}, which is live, {place}"]
        return "\n".join([*lines, *(f"  {line}" for each in self.outputs for line in str(each).splitlines())])


class EnvironmentComparison:
    """Compares members of an environment with their live versions.

    Args:
        members: All members, in the order of the flow.
        live: Returns the live version of a member.
    """

    def __init__(
        self,
        members: Sequence[EnvironmentMember],
        live: Callable[[EnvironmentMember], ConnectedApplication],
        admin: Admin,
    ) -> None:
        self._members = members
        self._live = live
        self._admin = admin

    def compare(self, app: str | None, limit: int) -> Iterator[MemberDifference]:
        """Compare a member (None: all of them); up to `limit` rows of each table are listed."""
        elsewhere: set[str] = set()
        for member in self._members:
            live, here = self._live(member), member.connected(self._admin)
            # What follows from other records is another result, even if it has processed all of them.
            is_at_one_place = elsewhere.isdisjoint(member.reads) and _is_at_one_place(member, live, here)
            if not is_at_one_place:
                elsewhere |= {member.public[name] for name in here.topology.sink_topics}
            if app in {None, member.app}:
                found = tuple(self._output(member, live, here, name, limit) for name in outputs(here.application))
                yield MemberDifference(member.app, member.version, member.live, is_at_one_place, found)

    def _output(
        self, member: EnvironmentMember, live: ConnectedApplication, here: ConnectedApplication, name: str, limit: int
    ) -> OutputDifference:
        topic = member.public[name]
        if outputs(here.application)[name].kind is OutputKind.TABLE:
            return _table_difference(live, here, topic, name, limit)
        return OutputDifference(topic, records=(_count(self._admin, topic), _count(self._admin, name)))


def _table_difference(
    live: ConnectedApplication, here: ConnectedApplication, topic: str, name: str, limit: int
) -> OutputDifference:
    new = here.topology.sink_of(name)
    assert new is not None, "outputs are those of sinks"  # noqa: S101 - a mistake of this package
    old = live.topology.sink_of(topic) or new
    with Differ("", topic, name, here.application.directory / _DIFFERENCES / topic, here.admin) as differ:
        differ.advance(*differ.stable_ends())
        changes = Counter(pair.change.value for pair in differ.differences())
        rows = difference_rows(differ.differences(), old, new, differ.topics, lambda: None)
        return OutputDifference(topic, dict(changes), tuple(row_of(topic, row) for row in islice(rows, limit)))


def _count(admin: Admin, topic: str) -> int:
    tps = partitions_of(admin, [topic])
    starts, ends = admin.beginning_offsets(tps), admin.stable_end_offsets(tps)
    ranges = {tp: OffsetRange(starts[tp], ends[tp]) for tp in tps}
    return sum(len(records) for _, records in read_fields(admin, ranges))


def _is_at_one_place(member: EnvironmentMember, live: ConnectedApplication, here: ConnectedApplication) -> bool:
    """Return whether both have processed the same offsets of external inputs, and everything of the others."""
    # What a gate holds back follows from offsets that are processed.
    if release_of(live.admin, live.application.config).held is not None:
        return False
    read, public = {*here.topology.source_topics}, member.public
    inner, outer = read & public.keys(), read - public.keys()
    if outer | {public[name] for name in inner} != {*live.topology.source_topics}:
        return False
    if left(here, inner) or left(live, {public[name] for name in inner}):
        return False
    tps = partitions_of(live.admin, outer)
    return starts_of(live, tps) == starts_of(here, tps)


def left(connected: ConnectedApplication, topics: Iterable[str]) -> int:
    """Return the number of offsets of some topics that an application has not processed."""
    tps = partitions_of(connected.admin, topics)
    starts, ends = starts_of(connected, tps), connected.admin.stable_end_offsets(tps)
    return sum(max(0, ends[tp] - starts[tp]) for tp in tps)
