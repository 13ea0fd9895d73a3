"""The plan of a release: its work and its effects, before anything is done."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from riverrun.hosting.control.publication import staging_name
from riverrun.records import OffsetRange, TopicPartition, counted
from riverrun.releases.steps.forecast import Forecast, forecast
from riverrun.releases.steps.statements import statement_digests_of
from riverrun.releases.versions.outputs import outputs
from riverrun.spark.ranges import RunRange

if TYPE_CHECKING:
    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.releases.versions.versions import Versions
    from riverrun.topology.outputs import Output


@dataclass(frozen=True, slots=True)
class ReleasePlan:
    """The work and the effects of a release, before anything is done.

    Args:
        app: The application.
        live: The version that is live.
        candidate: The version that is to go live.
        changed: Nodes and stores whose digest differs, with `added`, `removed` or `changed`.
        range: Input that the candidate has to process.
        lost: Partitions whose first records have been deleted, with the first offset that is left.
        outputs: Outputs of the candidate: tables, which are corrected, and logs, of which no record is sent again.
        ended: Topics that the live version writes and the candidate does not; their records stay.
        forecast: Bytes, time, and records that retention may delete before they are read.
        statements: SQL statements whose digest differs, likewise; empty if one of the versions has none.
        new: Topics that the candidate writes and the live version does not. With each, the number of offsets that the candidate
            has written so far, and of those that the topic has already.
        unseen: What no digest of the candidate covers, by node: a change of it is not noticed.
    """

    app: str
    live: str
    candidate: str
    changed: dict[str, str]
    range: RunRange
    lost: dict[TopicPartition, int] = field(default_factory=dict)
    outputs: tuple[Output, ...] = ()
    ended: tuple[str, ...] = ()
    forecast: Forecast = field(default_factory=Forecast)
    statements: dict[str, str] = field(default_factory=dict)
    unseen: dict[str, tuple[str, ...]] = field(default_factory=dict)
    new: dict[str, tuple[int, int]] = field(default_factory=dict)

    def __str__(self) -> str:
        """Describe it line by line."""
        lines = [f"{self.app}: {self.live} is live, {self.candidate} is to follow"]
        lines += [f"  {kind}: {name}" for name, kind in (self.statements or self.changed).items()]
        lines += [f"  a change is not noticed in {node}: {', '.join(names)}" for node, names in self.unseen.items()]
        lines += [f"  {each.topic} is a {each.kind.value}: {each.why}" for each in self.outputs]
        lines += [f"  {topic} is new: {_told(*counts)}" for topic, counts in self.new.items()]
        lines += [f"  {topic} is not written any more: its records stay" for topic in self.ended]
        lines.append(f"{counted(self.range.size, 'offset')} to process: {self.range}")
        lines += [f"  {line}" for line in self.forecast.lines]
        lines += [f"  gone already: {tp} below offset {offset}" for tp, offset in self.lost.items()]
        return "\n".join(lines)


def plan_release(live: ConnectedApplication, new: ConnectedApplication, versions: Versions) -> ReleasePlan:
    """Return the plan of a release.

    Args:
        live: The live version.
        new: The candidate.
        versions: The application's versions.
    """
    app, target = live.application.config.name, versions.target(live, new)
    first = live.admin.beginning_offsets(target)
    wanted = RunRange({tp: OffsetRange(min(first[tp], end), end) for tp, end in target.items()})
    ended, written = outputs(live.application), outputs(new.application)
    old, said = statement_digests_of(live.application), statement_digests_of(new.application)
    return ReleasePlan(
        app=app,
        live=live.version,
        candidate=new.version,
        changed=_changes(live.topology.node_fingerprints(), new.topology.node_fingerprints()),
        range=wanted,
        lost={tp: offset for tp, offset in first.items() if offset > 0},
        outputs=tuple(written.values()),
        ended=tuple(sorted(ended.keys() - written.keys())),
        forecast=forecast(app, wanted, live.admin),
        statements=_changes(old, said) if old and said else {},
        unseen=new.topology.unseen(),
        new=new_outputs(live, new),
    )


def new_outputs(live: ConnectedApplication, new: ConnectedApplication) -> dict[str, tuple[int, int]]:
    """Return the topics that a version writes and the live one does not.

    Returns:
        By topic, the offsets in the version's staging topic and those in the public topic.
    """
    topics = sorted(outputs(new.application).keys() - outputs(live.application).keys())
    return {topic: (_offsets(new, staging_name(new.id, topic)), _offsets(new, topic)) for topic in topics}


def _offsets(version: ConnectedApplication, topic: str) -> int:
    tps = [TopicPartition(topic, number) for number in range(version.admin.partitions([topic]).get(topic, 0))]
    first = version.admin.beginning_offsets(tps)
    return sum(end - first[tp] for tp, end in version.admin.end_offsets(tps).items())


def _told(computed: int, there: int) -> str:
    computed_so_far = f" ({counted(computed, 'offset')} so far)" if computed else ""
    held = f"; it has {counted(there, 'offset')} already, which stay" if there else ""
    return f"the cut publishes all records that the candidate has computed by then{computed_so_far}{held}"


def _changes(old: dict[str, str], new: dict[str, str]) -> dict[str, str]:
    names = sorted(old.keys() | new.keys())
    kinds = {name: "added" if name not in old else "removed" if name not in new else "changed" for name in names}
    return {name: kind for name, kind in kinds.items() if old.get(name) != new.get(name)}
