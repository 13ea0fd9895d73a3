"""Plans a release before anything is done: what has changed, what has to be reprocessed, and how long that takes.

The forecast also names records that retention may delete before the candidate has read them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from riverrun.config import load_attribute
from riverrun.config.checks import read_text
from riverrun.hosting.process import SystemClock
from riverrun.hosting.release import staging_name
from riverrun.hosting.serde_changes import compare, described
from riverrun.records import OffsetRange, TopicPartition, counted
from riverrun.releases.thinned_inputs import thinned_inputs
from riverrun.releases.topology import outputs
from riverrun.spark.ranges import RunRange
from riverrun.spark.runs import DONE, RunLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from riverrun.hosting.application import Application
    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.kafka.admin import Admin
    from riverrun.releases.carry_plan import CarryPlan
    from riverrun.releases.versions import Versions
    from riverrun.spark.runs import RunRecord
    from riverrun.topology.outputs import Output
    from riverrun.topology.topology import Topology


def statement_digests_of(application: Application) -> dict[str, str]:
    """Return a digest per statement of a version; empty if its topology is not a file of statements."""
    loader = application.config.loader_of(application.version)
    if loader is None or loader.digests is None:
        return {}
    path = str(application.config.topology_of(application.version))
    digests: dict[str, str] = load_attribute(loader.digests)(read_text(Path(path)), path)
    return digests


# How often the position of a reprocessing is compared with that of retention; each comparison asks brokers once per topic.
_LOOKS = 16
# So few records take less time than the start of a run, so their rate says nothing about many.
_FEW = 10_000


@dataclass(frozen=True, slots=True)
class RunRate:
    """Speed of a bounded run: its input records, and its duration including its start."""

    records: int
    seconds: float
    run: str

    @property
    def records_per_s(self) -> float:
        return self.records / self.seconds

    @property
    def is_of_few(self) -> bool:
        """Return whether the run measured little but its start."""
        return self.records < _FEW

    def seconds_for(self, offsets: int) -> float | None:
        """Return how long a number of offsets may take; None if the run was too small to estimate it."""
        if not self.is_of_few:
            return offsets / self.records_per_s
        return self.seconds if offsets < _FEW else None


@dataclass(frozen=True, slots=True)
class Race:
    """A partition whose records may be deleted before a reprocessing has read them.

    Args:
        deleted_below: The offset below which records are older than `retention.ms` by then.
        read_below: The end offset (exclusive) of what is read by then.
    """

    tp: TopicPartition
    within_s: float
    deleted_below: int
    read_below: int

    def __str__(self) -> str:
        when = span(self.within_s)
        return (
            f"{self.tp} may lose offsets below {self.deleted_below} to retention within {when}, "
            f"and those below {self.read_below} are read by then"
        )


@dataclass(frozen=True, slots=True)
class Forecast:
    """Cost of a reprocessing.

    Args:
        bytes: Bytes to read, as stored on brokers; None if brokers do not report them.
        rate: The measured rate behind the estimate; None if no bounded run of the application has read anything.
        seconds: Estimated duration; None without a rate, or if it comes from a run of few records.
        races: Partitions that may lose records before they are read, at the moment of the largest loss.
    """

    bytes: int | None = None
    rate: RunRate | None = None
    seconds: float | None = None
    races: tuple[Race, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """Return the forecast as text; the first line has size and time, the others a race each."""
        size = "" if self.bytes is None else f"{_size(self.bytes)} on the brokers' disks"
        if self.rate is None:
            time = "how long it takes is not known: no bounded run of the application has been measured"
        elif self.seconds is None:
            time = f"how long it takes is not known: the largest bounded run, {self.rate.run}, had few records"
        elif self.rate.is_of_few:
            time = f"about {span(self.seconds)}, as in run {self.rate.run}"
        else:
            time = f"about {span(self.seconds)} at {self.rate.records_per_s:,.0f} records/s, as in run {self.rate.run}"
        races = (f"{race}: raise retention.ms first" for race in self.races)
        return ("; ".join(filter(None, (size, time))), *races)


def forecast(app: str, wanted: RunRange, admin: Admin) -> Forecast:
    rate = measured_rate(RunLog(admin).runs(app))
    seconds = None if rate is None else rate.seconds_for(wanted.size)
    return Forecast(_bytes(wanted, admin), rate, seconds, () if seconds is None else _races(wanted, seconds, admin))


def measured_rate(runs: Iterable[RunRecord]) -> RunRate | None:
    """Return the rate of the completed run that read the most; None if none has read anything."""
    # Not the latest or the mean: shorter runs mostly measure the start of Spark.
    largest = max((run for run in runs if run.state == DONE and run.records_in), key=_records, default=None)
    if largest is None or largest.ended_ms is None or largest.ended_ms <= largest.started_ms:
        return None
    return RunRate(largest.records_in, (largest.ended_ms - largest.started_ms) / 1_000, largest.id)


def _records(run: RunRecord) -> int:
    return run.records_in


def _bytes(wanted: RunRange, admin: Admin) -> int | None:
    """Estimate the bytes to read. A range's share of its partition's bytes is its share of the offsets."""
    sizes = admin.log_sizes({tp.topic for tp in wanted.ranges})
    # To ask for sizes takes the right to describe the cluster, which a user of topics may lack; a partial sum would mislead.
    if wanted.ranges.keys() - sizes.keys():
        return None
    first, last = admin.beginning_offsets(wanted.ranges), admin.end_offsets(wanted.ranges)
    parts = ((sizes[tp], each.size, last[tp] - first[tp]) for tp, each in wanted.ranges.items())
    return sum(size * part // offsets for size, part, offsets in parts if offsets)


def _races(wanted: RunRange, seconds: float, admin: Admin) -> tuple[Race, ...]:
    retained = _retention_ms(admin.topic_configs({tp.topic for tp in wanted.ranges}))
    return races(
        RunRange({tp: each for tp, each in wanted.ranges.items() if tp.topic in retained and each.size}),
        seconds,
        retained,
        SystemClock().now_ms(),
        admin.offsets_for_time,
    )


def _retention_ms(configs: Mapping[str, Mapping[str, str]]) -> dict[str, int]:
    """Return the topics that delete by time, with their retention in ms."""
    # A negative `retention.ms` keeps records forever.
    return {
        topic: int(config["retention.ms"])
        for topic, config in configs.items()
        if "delete" in config["cleanup.policy"] and int(config["retention.ms"]) >= 0
    }


def races(
    wanted: RunRange,
    seconds: float,
    retention_ms: Mapping[str, int],
    now_ms: int,
    offsets_for_time: Callable[[Iterable[TopicPartition], int], Mapping[TopicPartition, int]],
) -> tuple[Race, ...]:
    """Find the partitions whose records may exceed their topic's retention before they are read.

    They need not be lost: brokers delete whole segments, and never the newest one.
    """
    worst: dict[TopicPartition, Race] = {}
    for look in range(1, _LOOKS + 1):
        at_s = seconds * look / _LOOKS
        for topic, kept_ms in retention_ms.items():
            tps = [tp for tp in wanted.ranges if tp.topic == topic]
            deleted = offsets_for_time(tps, now_ms + int(at_s * 1_000) - kept_ms)
            for tp in tps:
                each = wanted.ranges[tp]
                # Assumes that all partitions are read evenly.
                race = Race(tp, at_s, min(deleted[tp], each.end), each.start + each.size * look // _LOOKS)
                if _lost(race) > (_lost(worst[tp]) if tp in worst else 0):
                    worst[tp] = race
    return tuple(worst[tp] for tp in sorted(worst))


def _lost(race: Race) -> int:
    return race.deleted_below - race.read_below


def span(seconds: float) -> str:
    """Return a time in a suitable unit.

    >>> span(0.2), span(90), span(5_400), span(200_000)
    ('1 s', '90 s', '90 min', '56 h')
    """
    if seconds < 120:  # noqa: PLR2004 # two of the larger unit
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 7_200 else f"{round(seconds / 3_600)} h"  # noqa: PLR2004


def _size(number: int) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if number < 1_000:  # noqa: PLR2004 # three digits
            return f"{number:,} {unit}"
        number //= 1_000
    return f"{number:,} TB"


@dataclass(frozen=True, slots=True)
class Joint:
    """The applications with which one is released.

    Args:
        members: All of them with their candidates, in the order of the flow; empty if it is released alone.
        inputs: Topics by topic that versions of this one read while they are not live (`Release.inputs`).
    """

    members: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


ALONE = Joint()


@dataclass(frozen=True, slots=True)
class ReleasePlan:
    """The work and the effects of a release, before anything is done.

    Args:
        changed: Nodes and stores whose digest differs, with `added`, `removed` or `changed`.
        lost: Partitions whose first records have been deleted, with the first offset that is left.
        thinned: Compacted topics that the candidate aggregates as streams, if brokers may have removed records.
        archived: What the archive has of partitions, with the first offset that brokers have.
        outputs: Outputs of the candidate: tables, which are corrected, and logs, of which no record is sent again.
        ended: Topics that the live version writes and the candidate does not; their records stay.
        statements: SQL statements whose digest differs, in the same form as `changed`; empty if one of the versions has none.
        new: Topics that the candidate writes and the live version does not. With each, the number of offsets that the candidate
            has written so far, and of those that the topic has already.
        carry: What the candidate takes over from the live version; None if it computes everything.
        unseen: What no digest of the candidate covers, by node: changes there are not noticed.
        rows: Whether the candidate's serdes can read the rows of the live version, by name of the stores where they differ.
    """

    app: str
    live: str
    candidate: str
    changed: dict[str, str]
    range: RunRange
    lost: dict[TopicPartition, int] = field(default_factory=dict)
    thinned: tuple[str, ...] = ()
    archived: dict[TopicPartition, tuple[OffsetRange, int]] = field(default_factory=dict)
    outputs: tuple[Output, ...] = ()
    ended: tuple[str, ...] = ()
    forecast: Forecast = field(default_factory=Forecast)
    statements: dict[str, str] = field(default_factory=dict)
    unseen: dict[str, tuple[str, ...]] = field(default_factory=dict)
    new: dict[str, tuple[int, int]] = field(default_factory=dict)
    carry: CarryPlan | None = None
    rows: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{self.app}: {self.live} is live, {self.candidate} is the candidate"]
        lines += [f"  {kind}: {name}" for name, kind in (self.statements or self.changed).items()]
        lines += [f"  store {name}: {how}" for name, how in self.rows.items()]
        lines += [
            f"  a change would not be noticed in {node}: {', '.join(names)}" for node, names in self.unseen.items()
        ]
        lines += [f"  {each.topic} is a {each.kind.value}: {each.why}" for each in self.outputs]
        lines += [f"  {topic} is new: {_describe(*counts)}" for topic, counts in self.new.items()]
        lines += [f"  {topic} is not written any more: its records stay" for topic in self.ended]
        lines += [f"  {line}" for line in (self.carry.lines if self.carry is not None else ())]
        lines.append(f"{counted(self.range.size, 'offset')} to process: {self.range}")
        lines += [f"  {line}" for line in self.forecast.lines]
        lines += [
            f"  deleted already: {tp} below offset {offset}; what follows from these records cannot be computed"
            for tp, offset in self.lost.items()
        ]
        lines += [
            f"  maybe removed already: records of {topic}, which is compacted; what follows from them cannot be computed"
            for topic in self.thinned
        ]
        lines += [
            f"  {tp}: the archive has {found}, the topic begins at {start}"
            for tp, (found, start) in self.archived.items()
        ]
        return "\n".join(lines)


def plan_release(
    live: ConnectedApplication,
    new: ConnectedApplication,
    versions: Versions,
    carry: CarryPlan | None = None,
    joint: Joint = ALONE,
) -> ReleasePlan:
    """Compare two versions, and ask brokers what the candidate would have to read; changes nothing."""
    app, target = live.application.config.name, versions.target(live, new)
    if carry is not None:
        read = carry.read_by(new.topology)
        target = {tp: end for tp, end in target.items() if tp.topic in read}
    first = live.admin.beginning_offsets(target)
    # Nobody deletes records of the staging topics that it reads in place of others.
    public = {tp.topic for tp in target} - joint.inputs.get(new.version, {}).keys()
    # Retention may have deleted records beyond the live version's position: then the range is empty, not negative.
    wanted = RunRange({tp: OffsetRange(min(first[tp], end), end) for tp, end in target.items()})
    ended, written = outputs(live.application), outputs(new.application)
    old, said = statement_digests_of(live.application), statement_digests_of(new.application)
    return ReleasePlan(
        app=app,
        live=live.version,
        candidate=new.version,
        changed=_changes(live.topology.node_fingerprints(), new.topology.node_fingerprints()),
        range=wanted,
        lost={tp: offset for tp, offset in first.items() if offset > 0 and tp.topic in public},
        thinned=tuple(thinned_inputs(live.admin, new.resolved().topology, public, versions.others(joint.members, new))),
        archived=_archived(live.admin, target),
        outputs=tuple(written.values()),
        ended=tuple(sorted(ended.keys() - written.keys())),
        forecast=forecast(app, wanted, live.admin),
        statements=_changes(old, said) if old and said else {},
        unseen=new.topology.unseen(),
        new=new_outputs(live, new),
        carry=carry,
        rows=readable_rows(live.topology, new.topology, new.version),
    )


def readable_rows(live: Topology, new: Topology, version: str) -> dict[str, str]:
    """Return, for stores of both topologies whose serdes differ, whether the new serdes can read the old rows.

    A release reads none of these rows: this shows whether the live version could have continued with the new code.
    """
    found = {}
    for name in sorted(live.stores.keys() & new.stores.keys()):
        old, now = live.stores[name], new.stores[name]
        both = [(described(old.key_serde), now.key_serde, True), (described(old.value_serde), now.value_serde, False)]
        if all(before == described(serde) for before, serde, _ in both):
            continue
        results = [compare(before, serde, is_key=is_key) for before, serde, is_key in both]
        reasons = [reason for result in results for reason in result.reasons]
        if reasons:
            found[name] = f"{version} cannot read its rows: {'; '.join(reasons)}"
        elif all(result.is_sure for result in results):
            found[name] = f"{version} can read its rows"
        else:
            found[name] = f"its rows alone tell whether {version} can read them"
    return found


def _archived(admin: Admin, tps: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[OffsetRange, int]]:
    if admin.earlier is None:
        return {}
    starts = admin.log_starts(tps)
    return {tp: (found, starts[tp]) for tp, found in sorted(admin.earlier.ranges(admin, starts).items())}


def new_outputs(live: ConnectedApplication, new: ConnectedApplication) -> dict[str, tuple[int, int]]:
    """Return the topics that only the new version writes, with the offsets in its staging topic and in the public topic."""
    topics = sorted(outputs(new.application).keys() - outputs(live.application).keys())
    return {topic: (_offsets(new, staging_name(new.id, topic)), _offsets(new, topic)) for topic in topics}


def _offsets(version: ConnectedApplication, topic: str) -> int:
    tps = [TopicPartition(topic, number) for number in range(version.admin.partitions([topic]).get(topic, 0))]
    first = version.admin.beginning_offsets(tps)
    return sum(end - first[tp] for tp, end in version.admin.end_offsets(tps).items())


def _describe(computed: int, there: int) -> str:
    computed_so_far = f" ({counted(computed, 'offset')} so far)" if computed else ""
    held = f"; it has {counted(there, 'offset')} already, which stay" if there else ""
    return f"the cut publishes all records that the candidate has computed by then{computed_so_far}{held}"


def _changes(old: dict[str, str], new: dict[str, str]) -> dict[str, str]:
    names = sorted(old.keys() | new.keys())
    kinds = {name: "added" if name not in old else "removed" if name not in new else "changed" for name in names}
    return {name: kind for name, kind in kinds.items() if old.get(name) != new.get(name)}
