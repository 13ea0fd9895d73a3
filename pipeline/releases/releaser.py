"""The steps of a release between two bounded runs: plan, reprocess, gate, promote, rollback.

The candidate computes from the earliest offsets into state of its own and publishes to staging topics; consumers of the public
topics notice nothing. At the cut, an offset vector that both versions have processed exactly, the public topics get the
corrections - what differs, and nothing else - and from then on the candidate publishes. The old version's table is kept in its
own staging topics, so that going back is the same step in the other direction.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec

from pipeline.config import load_attribute
from pipeline.dsl.builder import StreamsBuilder
from pipeline.errors import GateFailedError, RangeError, ReleaseError
from pipeline.hosting.application import Application, load_application, prepare, with_topics
from pipeline.hosting.owned_task import fence_owners
from pipeline.kafka.admin import Admin
from pipeline.processor.handlers import may_keep_letters
from pipeline.quality.gate import CHANGE, judge
from pipeline.records import OffsetRange, OffsetVector, TopicPartition
from pipeline.releases.build import build_topology
from pipeline.releases.registry import Registry, Release, Step
from pipeline.releases.tables import (
    Difference,
    create_letters,
    create_staging,
    difference,
    publish,
    read_table,
    staging_name,
)
from pipeline.spark.job import run
from pipeline.spark.ranges import EARLIEST, RunRange, resolve

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.config import ProjectConfig
    from pipeline.spark.job import RunSummary


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

        Raises:
            ConfigError: If there is no such version.
            ReleaseError: If it is live already, or another release is under way, or one of the two chooses topics per record.
        """
        release = self.status()
        if candidate == release.live:
            message = f"{self._config.name}: {candidate} is live already"
            raise ReleaseError(message)
        live, new = self._releasable(release.live), self._releasable(candidate)
        target = self._committed(live, new)
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
        if not (release.step is Step.PLANNED and release.candidate == candidate):
            self._registry.write(release.to(Step.PLANNED, candidate=candidate, gate={}, corrections=0))
        return plan

    def reprocess(self) -> RunSummary:
        """Compute the candidate from the earliest offsets up to where the live version stands, into staging topics.

        Run again, it goes on where the candidate stands.

        Raises:
            ReleaseError: If nothing is planned, or a version has come to choose topics per record.
        """
        release = self._at(Step.PLANNED, Step.REPROCESSED, Step.GATED)
        candidate = self._staged(_candidate(release))
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
            self._registry.write(replace(release, gate=dict(verdict.outcomes)))
            found = "; ".join(f"{name}: {verdict.outcomes[name]}" for name in verdict.critical)
            message = f"{self._config.name} {release.candidate} does not pass: {found}"
            raise GateFailedError(message, hint=f"{release.live} stays live. Mend the version, or `release abort`.")
        return self._registry.write(release.to(Step.GATED, gate=dict(verdict.outcomes)))

    def promote(self, *, accept_warnings: bool = False) -> Release:
        """Put the candidate in the place of the live version, at an offset vector both have processed.

        Args:
            accept_warnings: Go on although expectations of warning severity failed.

        Raises:
            ReleaseError: If the gate was not passed, or has warnings nobody accepted.
        """
        release = self._at(Step.GATED, Step.CUTTING)
        warnings = [name for name, outcome in release.gate.items() if outcome.startswith("failed")]
        if warnings and not accept_warnings:
            message = f"{self._config.name}: the gate has warnings: {', '.join(warnings)}"
            raise ReleaseError(message, hint="Somebody must accept them: --accept-warnings.")
        return self._switch(release, _candidate(release), Step.CUTTING, Step.LIVE)

    def rollback(self) -> Release:
        """Put the previous version back, at an offset vector both have processed.

        Raises:
            ReleaseError: If no release went live before.
        """
        release = self._at(Step.LIVE, Step.ROLLING_BACK)
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
        candidate = self._application(_candidate(release))
        self._admin.delete_topics(self._admin.list_topics(f"{candidate.id}-"))
        self._admin.delete_group(candidate.id)
        return aborted

    def _switch(self, release: Release, new: str, during: Step, after: Step) -> Release:
        """Make `new` live.

        Before the control topic says that the switch is under way, nothing public has changed; from then on, running it again
        completes it: what has been published already does not differ any more.
        """
        old_app, new_app = self._releasable(release.live), self._staged(new)
        if release.step is not during:
            self._fence(old_app)
            summary = self._follow(new_app, old_app)
            self._keep_table(old_app)
            release = self._registry.write(release.to(during, cut=str(summary.range.end), corrections=0))
        if self._committed(old_app, new_app) != self._committed(new_app, new_app):
            message = f"{self._config.name}: {release.live} has moved on during the switch"
            raise ReleaseError(message, hint="Stop its workers and runs, then try again.")
        corrections = release.corrections
        for topic, staging in new_app.published.items():
            change = self._difference(topic, staging)
            publish(self._project.kafka, topic, change, f"{self._config.name}-corrections-{topic}")
            corrections += change.size
        return self._registry.write(release.to(after, live=new, previous=release.live, corrections=corrections))

    def _follow(self, follower: Application, leader: Application) -> RunSummary:
        """Process with `follower` what `leader` has processed."""
        target = OffsetVector(self._committed(leader, follower))
        start = "committed" if self._admin.committed(follower.id, target.offsets) else EARLIEST
        wanted = resolve(follower, self._admin, start, str(target))
        return run(follower, wanted, self._spark(), build_topology)

    def _committed(self, application: Application, reader: Application) -> dict[TopicPartition, int]:
        """Where a version stands, in all source partitions of `reader`."""
        topics = with_topics(reader, self._admin).topology.source_topics
        counts = self._admin.partitions(topics)
        tps = [TopicPartition(topic, n) for topic in topics for n in range(counts.get(topic, 0))]
        known = self._admin.committed(application.id, tps)
        missing = [tp for tp in tps if tp not in known]
        if missing and len(missing) == len(tps):
            message = f"{application.id} has never run: there is nothing to release against"
            raise RangeError(message, hint=f"Run it first: millrace run {self._config.name}")
        return self._admin.beginning_offsets(missing) | {tp: c.offset for tp, c in known.items()}

    def _fence(self, application: Application) -> None:
        """Take all tasks over for a moment: whoever still runs one can commit nothing more."""
        fence_owners(application, prepare(with_topics(application, self._admin), self._admin).tasks)

    def _keep_table(self, application: Application) -> None:
        """Bring a version's staging topics to what it has published so far: what a way back starts from."""
        for topic, staging in create_staging(self._admin, application.id, application.topology.sink_topics).items():
            change = self._difference(staging, topic)
            publish(self._project.kafka, staging, change, f"{application.id}-keep-{topic}")

    def _difference(self, topic: str, wanted: str) -> Difference:
        """What `topic` lacks of the content of `wanted`."""
        kafka = self._project.kafka
        return difference(read_table(self._admin, kafka, topic), read_table(self._admin, kafka, wanted))

    def _rows(self, release: Release) -> list[dict[str, Any]]:
        """The candidate's table as rows, with how each compares to the live one."""
        candidate = self._application(_candidate(release))
        rows: list[dict[str, Any]] = []
        for topic in candidate.topology.sink_topics:
            sink = candidate.topology.sink_of(topic)
            if sink is None:
                continue
            live = read_table(self._admin, self._project.kafka, topic)
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
        return list(load_attribute(self._config.quality)())

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
            message = f"{self._config.name} is {release.step.value}; this needs {wanted}"
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
