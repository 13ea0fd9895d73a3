"""The steps of a release between two bounded runs: plan, reprocess, gate, promote, rollback.

The candidate computes from the earliest offsets into state of its own and publishes to staging topics; consumers of the public
topics notice nothing. At the cut, an offset vector that both versions have processed exactly, the public topics get the
corrections - what differs, and nothing else - and from then on the candidate publishes. The old version's table is kept in its
own staging topics, so that going back is the same step in the other direction.
"""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from pipeline.config import call_attribute
from pipeline.dsl.builder import StreamsBuilder
from pipeline.errors import (
    GateFailedError,
    RangeError,
    ReleaseError,
    TaskMigratedError,
    UnderWayError,
    VersionConflictError,
)
from pipeline.hosting.application import Application, load_application, prepare, with_topics
from pipeline.hosting.owned_task import fence_owners
from pipeline.kafka.admin import Admin
from pipeline.processor.handlers import may_keep_letters
from pipeline.quality.gate import CHANGE, judge
from pipeline.records import OffsetRange, OffsetVector, TopicPartition, counted
from pipeline.releases.build import build_topology
from pipeline.releases.registry import Registry, Release, Step
from pipeline.releases.tables import (
    bring,
    create_letters,
    create_staging,
    read_table,
    staging_name,
)
from pipeline.runtime.layout import own_topics
from pipeline.spark.job import run
from pipeline.spark.ranges import EARLIEST, RunRange, resolve
from pipeline.spark.runs import RUNNING, RunLog
from pipeline.worker.local_state import locked

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.config import ProjectConfig
    from pipeline.spark.job import RunSummary


log = logging.getLogger(__name__)

_BEGUN = frozenset({Step.PLANNED, Step.REPROCESSED, Step.GATED})


@dataclass(frozen=True, slots=True)
class ReleasePlan:
    """What a release would do, before anything is done.

    Args:
        app: The application.
        live: The version that is live.
        candidate: The version that is to go live.
        changed: Nodes and stores whose digest differs, with `added`, `removed` or `changed`.
        range: What the candidate has to process.
        lost: Partitions whose first records are gone already, with the first offset that is left.
    """

    app: str
    live: str
    candidate: str
    changed: dict[str, str]
    range: RunRange
    lost: dict[TopicPartition, int] = field(default_factory=dict)

    def __str__(self) -> str:
        """What it says, line by line."""
        lines = [f"{self.app}: {self.live} is live, {self.candidate} is to follow"]
        lines += [f"  {kind}: {name}" for name, kind in self.changed.items()]
        lines.append(f"{counted(self.range.size, 'offset')} to process: {self.range}")
        lines += [f"  gone already: {tp} below offset {offset}" for tp, offset in self.lost.items()]
        return "\n".join(lines)


class Releaser:
    """Takes an application from one version to another. Every step may be run again.

    Args:
        project: All applications.
        app: Which one.
        spark: Gives a Spark session when one is needed.
    """

    def __init__(self, project: ProjectConfig, app: str, spark: Callable[[], Any]) -> None:
        """Nothing is done before a step is called."""
        self._project = project
        self._config = project.app(app)
        self._spark = spark
        self._admin = Admin(project.kafka)
        self._registry = Registry(project.kafka)

    def status(self) -> Release:
        """Where the release stands."""
        return self._registry.read(self._config.name, self._config.version)

    def plan(self, candidate: str) -> ReleasePlan:
        """Say what a release of `candidate` would do, and note it down.

        A release of the same candidate that is under way begins again. What the candidate has computed already is kept, unless
        its code has changed since: then it is deleted, and computed anew.

        Raises:
            ConfigError: If there is no such version.
            ReleaseError: If it is live already, or another release is under way, or one of the two chooses topics per record.
        """
        release = self.status()
        if candidate == release.live:
            message = f"{self._config.name}: {candidate} is live already"
            raise ReleaseError(message)
        live, new = self._releasable(release.live), self._releasable(candidate)
        target = self._target(live, new)
        first = self._admin.beginning_offsets(target)
        ranges = {tp: OffsetRange(min(first[tp], end), end) for tp, end in target.items()}
        plan = ReleasePlan(
            self._config.name,
            release.live,
            candidate,
            _changes(live.topology.node_fingerprints(), new.topology.node_fingerprints()),
            RunRange(ranges),
            {tp: offset for tp, offset in first.items() if offset > 0},
        )
        digests = {release.live: live.topology.fingerprint(), candidate: new.topology.fingerprint()}
        is_noted = release.step is Step.PLANNED and release.candidate == candidate
        if not (is_noted and digests.items() <= release.digests.items()):
            self._note_plan(release, new, digests)
        return plan

    def _note_plan(self, release: Release, candidate: Application, digests: dict[str, str]) -> None:
        """Note a release down. Before that, what the candidate has computed by other code than that of now is deleted."""
        if release.step in _BEGUN and release.candidate != candidate.version:
            message = f"{release.app}: {release.candidate} is being released; {release.stands}"
            raise ReleaseError(message, hint=f"Give it up first: millrace release abort {release.app}")
        planned = release if release.step is Step.PLANNED else release.to(Step.PLANNED)
        known = release.digests.get(candidate.version)
        if known is not None and known != digests[candidate.version]:
            self._discard(candidate)
        digests = release.digests | digests
        self._registry.write(replace(planned, candidate=candidate.version, gate={}, corrections=0, digests=digests))

    def reprocess(self) -> RunSummary:
        """Compute the candidate from the earliest offsets up to where the live version stands, into staging topics.

        Run again, it goes on where the candidate stands.

        Raises:
            ReleaseError: If nothing is planned, or a version has come to choose topics per record.
        """
        release = self._at(Step.PLANNED, Step.REPROCESSED, Step.GATED)
        candidate = self._staged(_candidate(release))
        self._require_same_code(release, candidate)
        summary = self._follow(candidate, self._releasable(release.live))
        self._registry.write(release.to(Step.REPROCESSED, cut=str(summary.range.end), gate={}))
        return summary

    def gate(self) -> Release:
        """Judge the candidate's table, and its difference to the live one.

        Raises:
            GateFailedError: If an expectation of critical severity fails; the live version stays live.
            ReleaseError: If the candidate has not been computed.
        """
        release = self._at(Step.REPROCESSED, Step.GATED)
        verdict = judge(self._rows(release), self._expectations())
        if verdict.critical:
            self._registry.write(release.to(Step.REPROCESSED, gate=dict(verdict.outcomes)))
            found = "; ".join(f"{name}: {verdict.outcomes[name]}" for name in verdict.critical)
            message = f"{self._config.name} {release.candidate} does not pass: {found}"
            hint = f"{release.live} stays live. `release abort`; mend {release.candidate}, and plan it again."
            raise GateFailedError(message, hint=hint)
        return self._registry.write(release.to(Step.GATED, gate=dict(verdict.outcomes)))

    def promote(self, *, accept_warnings: bool = False) -> Release:
        """Put the candidate in the place of the live version, at an offset vector both have processed.

        Args:
            accept_warnings: Go on although expectations of warning severity failed.

        Raises:
            ReleaseError: If the gate was not passed, or has warnings nobody accepted.
            UnderWayError: If the live version is processing: a worker, or a run.
            VersionConflictError: If somebody else does the same.
        """
        release = self._at(Step.GATED, Step.CUTTING, Step.LIVE)
        if release.step is Step.LIVE:  # whoever did it has not heard of its success
            return release
        warnings = [name for name, outcome in release.gate.items() if outcome.startswith("failed")]
        if warnings and not accept_warnings:
            message = f"{self._config.name}: the gate has warnings: {', '.join(warnings)}"
            raise ReleaseError(message, hint="Somebody must accept them: --accept-warnings.")
        return self._switch(release, _candidate(release), Step.CUTTING, Step.LIVE)

    def rollback(self) -> Release:
        """Put the previous version back, at an offset vector both have processed.

        Raises:
            ReleaseError: If no release went live before.
            UnderWayError: If the live version is processing: a worker, or a run.
            VersionConflictError: If somebody else does the same.
        """
        release = self._at(Step.LIVE, Step.ROLLING_BACK, Step.ROLLED_BACK)
        if release.step is Step.ROLLED_BACK:
            return release
        if release.previous is None:
            message = f"{self._config.name}: there is no version to go back to"
            raise ReleaseError(message)
        return self._switch(release, release.previous, Step.ROLLING_BACK, Step.ROLLED_BACK)

    def abort(self) -> Release:
        """Give a release up before its cut, and delete what the candidate computed.

        Raises:
            ReleaseError: If the cut has begun.
        """
        release = self.status()
        aborted = self._registry.write(release.to(Step.ABORTED))
        self._discard(self._application(_candidate(release)))
        return aborted

    def _discard(self, candidate: Application) -> None:
        """Delete what a version that is not live has computed: its topics, its offsets, and its state on this machine."""
        if candidate.directory.exists():
            with locked(candidate.directory):
                shutil.rmtree(candidate.directory)
        topics = self._admin.list_topics()
        staging = [name for name in topics if name.startswith(staging_name(candidate.id, ""))]
        self._admin.delete_topics([*own_topics(candidate.id, topics, self._project.application_ids), *staging])
        self._admin.delete_group(candidate.id)

    def _switch(self, release: Release, new: str, during: Step, after: Step) -> Release:
        """Make `new` live.

        Before the control topic says that the switch is under way, nothing public has changed; from then on, running it again
        completes it: what has been published already does not differ any more. Of several who do this at the same time the last
        one goes on: it writes the release first, and everybody looks whether it is still his own whenever he has shut out the
        others from a topic.
        """
        old_app, new_app = self._releasable(release.live), self._staged(new)
        self._require_idle(old_app)
        mine, way_back = self._registry.write(release), True
        if mine.step is not during:
            mine = self._cut(mine, old_app, new_app, during)
        else:
            self._fence(old_app)
            way_back = self._is_at_one_place(old_app, new_app)
            mine = mine if way_back else self._cut_anew(mine, old_app, new_app)
        corrections = mine.corrections
        for topic, staging in new_app.published.items():
            corrections += self._bring(topic, staging, f"{self._config.name}-corrections-{topic}", mine)
        previous = release.live if way_back else None
        return self._registry.write(mine.to(after, live=new, previous=previous, corrections=corrections))

    def _cut(self, release: Release, old: Application, new: Application, during: Step) -> Release:
        """Bring both versions to the same offsets and note that the switch is under way: from now on nothing else begins.

        Raises:
            UnderWayError: If something has begun before that was noted. Everything is as before.
        """
        self._fence(old)
        summary = self._follow(new, old)
        self._keep_table(old, release)
        cut = self._registry.write(release.to(during, cut=str(summary.range.end), corrections=0))
        try:
            self._require_idle(old)
            self._require_same_place(old, new)
        except UnderWayError:
            self._registry.write(cut.to(release.step))
            raise
        return cut

    def _require_same_place(self, old: Application, new: Application) -> None:
        if not self._is_at_one_place(old, new):
            message = f"{old.id} has moved on during the switch"
            raise UnderWayError(message, hint="Stop its workers and runs, then try again.")

    def _cut_anew(self, release: Release, old: Application, new: Application) -> Release:
        """Let the new version follow an old one that has moved on since a cut whose switch died.

        What the old one has published since is corrected with all else, but is not in the table that was kept: there is no way
        back to it, and if it is to be released again, it is computed anew.
        """
        log.warning("%s has moved on during the switch: it cannot be rolled back to", old.id)
        summary = self._follow(new, old)
        return replace(release, cut=str(summary.range.end), digests=release.digests | {old.version: ""})

    def _require_idle(self, application: Application) -> None:
        """Make sure that nothing processes a version; being fenced, it would only take its tasks over again.

        Raises:
            UnderWayError: If a worker or a run does.
        """
        members = self._admin.group(application.id).members
        if members:
            message = f"{application.id} is processing: its group has members: {', '.join(members)}"
            raise UnderWayError(
                message, hint="Stop its workers; one that died is a member until its session times out."
            )
        for each in RunLog(self._project.kafka).runs(self._config.name):
            if each.version == application.version and each.state == RUNNING:
                since = datetime.fromtimestamp(each.started_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")
                message = f"A run of {application.id} is under way, of {each.by}, since {since}"
                raise UnderWayError(
                    message, hint=f"Wait for its end. If it died: millrace run {self._config.name} completes it."
                )

    def _require_same_code(self, release: Release, candidate: Application) -> None:
        """Make sure that the candidate's code is that which was planned.

        Raises:
            ReleaseError: If it is not: half of what it computes would be the other one's.
        """
        if release.digests.get(candidate.version, candidate.topology.fingerprint()) != candidate.topology.fingerprint():
            message = f"{release.app}: the code of {candidate.version} has changed since the release was planned"
            raise ReleaseError(
                message, hint=f"millrace release plan {release.app} --to {candidate.version} begins it again."
            )

    def _follow(self, follower: Application, leader: Application) -> RunSummary:
        """Process with `follower` what `leader` has processed."""
        target = OffsetVector(self._target(leader, follower))
        start = "committed" if self._admin.committed(follower.id, target.offsets) else EARLIEST
        wanted = resolve(follower, self._admin, start, str(target))
        return run(follower, wanted, self._spark(), build_topology)

    def _target(self, leader: Application, follower: Application) -> dict[TopicPartition, int]:
        """Up to where a version follows another one: where that stands, and the end of topics that it does not read."""
        own = self._sources(follower) - self._sources(leader)
        return self._committed(leader, follower) | self._admin.end_offsets(self._partitions(own))

    def _is_at_one_place(self, one: Application, other: Application) -> bool:
        """Whether two versions have processed the same of what both read."""
        return self._committed(one, other) == self._committed(other, one)

    def _sources(self, application: Application) -> frozenset[str]:
        return frozenset(with_topics(application, self._admin).topology.source_topics)

    def _partitions(self, topics: frozenset[str]) -> list[TopicPartition]:
        return [
            TopicPartition(topic, n) for topic, count in self._admin.partitions(topics).items() for n in range(count)
        ]

    def _committed(self, application: Application, other: Application) -> dict[TopicPartition, int]:
        """Where a version stands, in all source partitions that `other` reads as well."""
        tps = self._partitions(self._sources(application) & self._sources(other))
        known = self._admin.committed(application.id, tps)
        missing = [tp for tp in tps if tp not in known]
        if missing and len(missing) == len(tps):
            message = f"{application.id} has never run: there is nothing to release against"
            raise RangeError(message, hint=f"Run it first: millrace run {self._config.name}")
        return self._admin.beginning_offsets(missing) | {tp: c.offset for tp, c in known.items()}

    def _fence(self, application: Application) -> None:
        """Take all tasks over for a moment: whoever still runs one can commit nothing more."""
        fence_owners(application, prepare(with_topics(application, self._admin), self._admin).tasks)

    def _keep_table(self, application: Application, release: Release) -> None:
        """Bring a version's staging topics to what it has published so far: what a way back starts from."""
        for topic, staging in create_staging(self._admin, application.id, application.topology.sink_topics).items():
            self._bring(staging, topic, f"{application.id}-keep-{topic}", release)

    def _bring(self, topic: str, wanted: str, name: str, mine: Release) -> int:
        """Bring a topic to the content of another one, unless somebody else has taken the release over.

        Raises:
            VersionConflictError: If somebody has.
        """
        kafka = self._project.kafka
        try:
            return bring(self._admin, kafka, topic, wanted, name, lambda: self._registry.require(mine))
        except TaskMigratedError as error:
            message = f"{mine.app}: somebody else is switching its version"
            raise VersionConflictError(message, hint="Look at `millrace release status`.") from error

    def _rows(self, release: Release) -> list[dict[str, Any]]:
        """The candidate's table as rows, with how each compares to the live one."""
        candidate = self._application(_candidate(release))
        rows: list[dict[str, Any]] = []
        for topic in candidate.topology.sink_topics:
            sink = candidate.topology.sink_of(topic)
            if sink is None:
                continue
            live = read_table(self._admin, self._project.kafka, topic, is_settled=False)
            new = read_table(self._admin, self._project.kafka, staging_name(candidate.id, topic))
            for where, row in new.items():
                known = live.get(where)
                change = "new" if known is None else "same" if known.value == row.value else "changed"
                rows.append({**_columns(sink.value_serde.deserialize(row.value)), "topic": topic, CHANGE: change})
            rows += ({"topic": topic, CHANGE: "gone"} for where in live.keys() - new.keys())
        return rows

    def _expectations(self) -> list[Any]:
        if self._config.quality is None:
            return []
        return list(call_attribute(self._config.quality))

    def _application(self, version: str) -> Application:
        return load_application(self._project, self._config.name, StreamsBuilder, version=version)

    def _releasable(self, version: str) -> Application:
        """A version all of whose public topics are known.

        What a sink that chooses topics per record has written, and where, nobody knows: of a candidate it could not be kept
        from the public, of the live version it could not be corrected.

        Raises:
            ReleaseError: If it has such a sink.
        """
        application = self._application(version)
        if application.topology.choosing_sinks:
            sinks = ", ".join(application.topology.choosing_sinks)
            message = f"{self._config.name} {version} chooses topics per record ({sinks}): it cannot be released"
            raise ReleaseError(message, hint="Name the topics: `split()`, and one `to(topic)` per branch.")
        return application

    def _staged(self, version: str) -> Application:
        """A version that publishes to its staging topics, its dead letters as well.

        Raises:
            ReleaseError: If it chooses topics per record.
        """
        application, streams = self._releasable(version), self._config.streams
        published = create_staging(self._admin, application.id, application.topology.sink_topics)
        letters = None
        if may_keep_letters(streams):
            letters = create_letters(self._admin, application.id, streams.errors_dead_letter_queue_topic_name)
        return replace(application, published=published, dead_letters=letters)

    def _at(self, *steps: Step) -> Release:
        release = self.status()
        if release.step not in steps:
            wanted = " or ".join(step.value for step in steps)
            message = f"{self._config.name}: {release.stands}; this needs {wanted}"
            raise ReleaseError(message, hint="`millrace release status` says what may come next.")
        return release


def _candidate(release: Release) -> str:
    if release.candidate is None:
        message = f"{release.app} has no candidate"
        raise ReleaseError(message, hint="Begin with `millrace release plan`.")
    return release.candidate


def _columns(value: Any) -> dict[str, Any]:
    """A value's fields as columns; a value without fields is the column `value`."""
    plain = msgspec.to_builtins(value, builtin_types=(bytes,))
    return plain if isinstance(plain, dict) else {"value": plain}


def _changes(old: dict[str, str], new: dict[str, str]) -> dict[str, str]:
    names = sorted(old.keys() | new.keys())
    kinds = {name: "added" if name not in old else "removed" if name not in new else "changed" for name in names}
    return {name: kind for name, kind in kinds.items() if old.get(name) != new.get(name)}
