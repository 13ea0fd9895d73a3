"""Bounded runs whose outputs a gate judges before they are public: write, check, publish.

The run processes the live version as always, but into the staging topics of that version. Before it begins, its start is noted
(`releases.rewinding`), and the staging tables are made equal to the public ones. What differs afterwards is what the run has
changed. If that passes, it is published as in a switch: tables by corrections, logs as they are, exactly once. If not, it is
held back until a person publishes or discards it. Discarding takes the version back to the start.

Each step is noted in the application's record in the control topic before it is taken, and can be repeated. Whatever dies, the
next run or command completes it.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from riverrun.errors import (
    ApprovalNeededError,
    ConfigError,
    GateFailedError,
    RangeError,
    ReleaseError,
    StreamsError,
    UnderWayError,
    VersionConflictError,
)
from riverrun.hosting.alone import RUN, await_no_members, processing_alone
from riverrun.hosting.control_topic import ReleaseRegistry, known_release
from riverrun.hosting.gated import DISCARDED, PUBLISHED, GateVerdict, HeldRun, HeldState, PublishedRun
from riverrun.hosting.ownership import fence_owners
from riverrun.hosting.purge import Purge, old_before
from riverrun.quality.expectations import declared
from riverrun.records import OffsetRange, OffsetVector, TopicPartition
from riverrun.releases.check_log import GATE_OF_RUN, CheckLog, CheckRecord
from riverrun.releases.corrections import Corrections, ends_of_staged_logs
from riverrun.releases.rewinding import (
    Mark,
    compact_again,
    delete_copies,
    keep_whole,
    lost_settings,
    mark_of,
    rewind,
)
from riverrun.releases.run_quality import RunGate
from riverrun.releases.verdicts import new_id, require_approvable, suite_digest
from riverrun.releases.versions import Versions, grow_staging
from riverrun.spark.runs import RunLog, ends_of_outputs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from riverrun.config import ProjectConfig
    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.hosting.release import Release
    from riverrun.kafka.admin import Admin
    from riverrun.spark.tasks.work import TaskResult

    Ranges = Mapping[TopicPartition, OffsetRange]

log = logging.getLogger(__name__)

# Steps of a release may write the application's record between the read and the write of a change.
_ATTEMPTS = 5


class GatedRun:
    """One run of the live version with a gate. Call `begin`, then `end`, while no other host processes."""

    def __init__(self, gated: GatedRuns, version: ConnectedApplication, since_ms: int) -> None:
        self._gated = gated
        self._since_ms = since_ms
        self.version = version
        self.published: PublishedRun | None = None
        """The outcome; None if there was nothing to process."""
        self.attempt = new_id()
        """Its tasks commit only while the application's record names it."""

    def begin(self, ranges: Ranges) -> None:
        """Note that the run has begun, and the point before it."""
        self._gated.begin(self.version, ranges, self._since_ms, self.attempt)

    def end(self, tasks: Iterable[TaskResult]) -> None:
        """Judge the outputs, and publish them if they pass."""
        self._gated.judged(self.version, self.attempt)
        self.published = self._gated.publish_passed(self.version, tasks)


class GatedRuns:
    """Runs of one application with a gate, and what it holds back.

    Args:
        by: The user for the history; defaults to this user on this machine.
    """

    def __init__(self, project: ProjectConfig, app: str, admin: Admin, spark: Callable[[], Any], by: str = "") -> None:
        self._config = project.app(app)
        self._admin = admin
        self._spark = spark
        self._registry = ReleaseRegistry.at(admin, by)
        self._versions = Versions(project, app, admin, spark)
        self._corrections = Corrections(app, self._registry)
        self._runs = RunLog(admin)
        self._checks = CheckLog(admin)

    def new_run(self) -> GatedRun:
        """Return a run of the live version. First completes what an earlier one has left, unless it waits for a person."""
        name = self._config.name
        if self._config.quality is None:
            message = f"{name} has no expectations that a gate could judge by"
            raise ConfigError(message, hint=f'Declare them: [apps.{name}] quality = "module:function".')
        held = self._release().held
        if held is not None and held.state is HeldState.HELD and held.verdict is None:
            self.judge()
        if held is not None and held.state in {HeldState.HELD, HeldState.PUBLISHING}:
            self.publish()
        if held is not None and held.state is HeldState.DISCARDING:
            self.discard()
            # The caller's ranges were resolved from offsets that the rewind has changed.
            message = f"{name}: run {held.id} was being discarded; that is complete now"
            raise UnderWayError(message, hint="Start the run again: it begins at other offsets.")
        since_ms, release = self._registry.now_ms(), self._recorded()
        release.require_nothing_carried()
        # Only between runs: all that staging topics hold is public then, so no key is missed where it was before.
        if release.held is None:
            grow_staging(self._versions.releasable(release.live))
        return GatedRun(self, self._staged(release.live), since_ms)

    # What is held back

    def status(self) -> HeldRun | None:
        """Return the run whose outputs are not public yet; None if there is none."""
        return self._release().held

    def judge(self) -> GateVerdict:
        """Judge the outputs of a run that is held back again, by the present expectations. Publishes nothing."""
        version = self._staged(self._required(HeldState.HELD).version)
        with processing_alone(version, RUN, self._registry.by):
            return self.judged(version)

    def publish(self, approved: str = "") -> PublishedRun:
        """Publish the outputs of a run that is held back, or is being published.

        Args:
            approved: The id of the verdict whose warnings a person has approved; empty if it has none.
        """
        held = self._required(HeldState.HELD, HeldState.PUBLISHING)
        version = self._staged(held.version)
        with processing_alone(version, RUN, self._registry.by):
            if held.state is HeldState.HELD and approved:
                verdict = require_approvable(self._config.name, held.verdict, approved)
                now_ms = self._registry.now_ms()
                approval = replace(verdict, approved_by=self._registry.by, approved_ms=now_ms)
                self._note(held, replace(held, verdict=approval))
            return self.publish_passed(version)

    def discard(self) -> HeldRun:
        """Throw the outputs of a run away, and rewind its version to where it stood: the next run reads the same records."""
        held = self._required(HeldState.BEGUN, HeldState.HELD, HeldState.DISCARDING)
        version = self._staged(held.version)
        with processing_alone(version, RUN, self._registry.by):
            release, discarded = self._note(held, replace(held, state=HeldState.DISCARDING, attempt=new_id()))

            def check() -> None:
                self._require_present(discarded)

            # Without a mark, the run has not processed anything yet.
            if held.is_marked:
                rewind(version.resolved(), _mark_of(held), held.id, check)
                self._corrections.keep(version, release)
                self._runs.forget_begun(version.application, check)
                # Not again: once brokers compact what follows the mark, they may drop the rows from before it.
                _, discarded = self._note(discarded, replace(discarded, is_marked=False))
            self._let_compact(version, held, check)
            check()
            self._runs.decided(version.application, held.since_ms, DISCARDED, pages=_pages_of(held))
            # The discarded records stay in the staging topics of logs: count them as published, so that nobody sends them.
            ends = ends_of_staged_logs(version)
            self._write(discarded, lambda now: replace(now, held=None, published={**now.published, **ends}))
            # Only now: until the record says that the rewind is complete, another call may still need the copies.
            delete_copies(version, held.id)
        return held

    # Steps, each while no other host processes

    def begin(self, version: ConnectedApplication, ranges: Ranges, since_ms: int, attempt: str) -> None:
        """Note that a run has begun, or is continued by this attempt, and the point before it."""
        held = self._release().held
        if held is None:
            # The note comes before the look for workers: those that start later see it and are refused, the others are found.
            held = HeldRun(new_id(), version.version, since_ms=since_ms, attempt=attempt)
            self._write(None, lambda now: replace(now, held=held))
        else:
            _, present = self._present(HeldState.BEGUN)
            _, held = self._note(present, replace(present, attempt=attempt))
        try:
            await_no_members(version)
            if held.is_marked:
                # The process before may hang in the middle of a task. Once it is fenced, its tasks find the record changed.
                resolved = version.resolved()
                fence_owners(resolved, resolved.layout.tasks)
            else:
                self._mark(version, held, ranges)
        except BaseException:
            # Nothing was processed yet, and a note that is left would refuse all workers.
            if not held.is_marked:
                self._forget(version, held)
            raise

    def judged(self, version: ConnectedApplication, attempt: str = "") -> GateVerdict:
        """Judge the outputs of the present run, which `attempt` has processed if one is given, and hold them back."""
        release, held = self._present(HeldState.BEGUN, HeldState.HELD)
        # After a hang, another attempt may be under way, whose outputs are not complete yet.
        if attempt:
            release.require_attempt(attempt)
        ranges = self._read(version, held)
        check = new_id()
        _, unjudged = self._note(held, replace(held, state=HeldState.HELD, verdict=None))
        # Earlier verdicts on the same run are no measure for it.
        earlier = self._checks.earlier(self._config.name, GATE_OF_RUN, held.id)
        found = RunGate(version, self._spark, check, earlier).judge(ranges, release.published, held.since_ms)
        start = str(OffsetVector({tp: wanted.start for tp, wanted in ranges.items()}))
        at = str(OffsetVector({tp: wanted.end for tp, wanted in ranges.items()}))
        where = CheckRecord(
            id=check,
            app=self._config.name,
            version=held.version,
            by=self._registry.by,
            at_ms=self._registry.now_ms(),
            since=start,
            at=at,
            kind=GATE_OF_RUN,
            run=held.id,
        )
        self._checks.put(where.with_findings(found))
        verdict = GateVerdict(
            id=check,
            at=at,
            suite=suite_digest(declared(self._config.quality)),
            digests={version.version: version.topology.fingerprint()},
            outcomes=dict(found.outcomes),
            critical=found.critical,
            warnings=found.warnings,
            pages=dict(found.pages),
            docs=str(self._config.docs_directory or ""),
        )
        self._note(unjudged, replace(unjudged, verdict=verdict))
        return verdict

    def publish_passed(self, version: ConnectedApplication, tasks: Iterable[TaskResult] = ()) -> PublishedRun:
        """Publish the outputs of the present run, whose gate has passed or was approved."""
        _, held = self._present(HeldState.HELD, HeldState.PUBLISHING)
        verdict, public = held.verdict, self._versions.application(held.version)
        if held.state is HeldState.HELD:
            if verdict is None or verdict.critical or verdict.needs_approval:
                raise self._refusal(held)
            outputs = ends_of_outputs(public)
            _, held = self._note(held, replace(held, state=HeldState.PUBLISHING, outputs=outputs))
        release = self._require_present(held)
        # The run's id stands for the switch: an attempt that follows a crash continues the same count of corrections.
        count, published = self._corrections.publish_run(version, replace(release, switch=held.id))
        compact_again(self._admin, held.settings, lambda: self._require_present(held))
        ends = ends_of_outputs(public)
        self._require_present(held)
        self._runs.decided(version.application, held.since_ms, PUBLISHED, held.outputs, ends, pages=_pages_of(held))
        self._write(held, lambda now: replace(now, held=None, published=published))
        # All is published: records that are left only take space, so the run does not fail because of them.
        try:
            self._purge(version, tasks)
        except StreamsError as error:
            log.warning(
                "processed records of internal topics of %s could not be deleted: %s", version.id, error.message
            )
        return PublishedRun(held.id, count, verdict)

    def _mark(self, version: ConnectedApplication, held: HeldRun, ranges: Ranges) -> None:
        resolved = version.resolved()
        # Without repartition topics, no run reads, or deletes, a note that other code has left.
        if resolved.layout.repartition_topics and self._runs.begun(version.application) is not None:
            message = f"A run of {version.id} without a gate was interrupted, and has to be finished first"
            raise RangeError(message, hint=f"riverrun run {self._config.name} --no-gate")
        fence_owners(resolved, resolved.layout.tasks)
        # Left by a discard that died at its very end, after its note was gone.
        delete_copies(version, check=lambda: self._require_present(held))
        # A process that has hung may find that another one has continued the run: its outputs have to stay.
        self._corrections.keep(version, self._require_present(held))
        mark = mark_of(resolved, {tp: wanted.start for tp, wanted in ranges.items()})
        ends = ends_of_staged_logs(version)
        settings = keep_whole(self._admin, resolved.layout.changelog_topics, lambda: self._require_present(held))
        marked = replace(
            held,
            is_marked=True,
            committed={str(tp): noted for tp, noted in mark.committed.items()},
            ends={str(tp): end for tp, end in mark.ends.items()},
            topics=dict(mark.ids),
            settings=settings,
        )
        self._write(held, lambda now: replace(now, held=marked, published={**now.published, **ends}))

    def _forget(self, version: ConnectedApplication, held: HeldRun) -> None:
        """Delete the note of a run that has processed nothing, and what it has changed without noting it."""
        self._let_compact(version, held, lambda: self._require_present(held))
        self._write(held, lambda now: replace(now, held=None))

    def _let_compact(self, version: ConnectedApplication, held: HeldRun, check: Callable[[], object]) -> None:
        """Restore the settings of changelogs, also if their change was to be noted with a mark that is missing."""
        lost = {} if held.is_marked else lost_settings(self._admin, version.resolved().layout.changelog_topics)
        compact_again(self._admin, {**lost, **held.settings}, check)

    def _purge(self, version: ConnectedApplication, tasks: Iterable[TaskResult]) -> None:
        """Delete the records of internal topics that tasks of a run with a gate keep, as a discard would need them."""
        resolved = version.resolved()
        internal = {topic.name for topic in resolved.layout.repartition_topics}
        read = resolved.committed([tp for tp in resolved.inputs if tp.topic in internal])
        forgotten = {
            TopicPartition.parse(name): old_before(time_ms)
            for task in tasks
            for name, time_ms in task.forgotten.items()
        }
        Purge(self._admin).delete({tp: found.offset for tp, found in read.items()}, forgotten)

    def _read(self, version: ConnectedApplication, held: HeldRun) -> dict[TopicPartition, OffsetRange]:
        """Return the ranges of external topics that a run has read so far, without deleted records."""
        resolved = version.resolved()
        external = [tp for tp in resolved.inputs if tp.topic in resolved.topology.source_topics]
        read, first = resolved.committed(external), self._admin.beginning_offsets(external)
        starts = first | {
            tp: max(first[tp], held.committed[str(tp)][0]) for tp in external if str(tp) in held.committed
        }
        return {tp: OffsetRange(min(starts[tp], end.offset), end.offset) for tp, end in sorted(read.items())}

    # The application's record

    def _release(self) -> Release:
        return known_release(self._registry, self._config, self._admin)

    def _recorded(self) -> Release:
        # Staging topics without a record would mean that the record was lost, so it has to be there first.
        release = self._release()
        return release if release.revision else self._registry.write(release)

    def _staged(self, version: str) -> ConnectedApplication:
        found = self._versions.staged(version)
        return replace(found, application=replace(found.application, may_be_discarded=True))

    def _required(self, *states: HeldState) -> HeldRun:
        return self._present(*states)[1]

    def _present(self, *states: HeldState) -> tuple[Release, HeldRun]:
        """Return the release and its run that is held back, which must be in one of these states."""
        release = self._release()
        if release.held is None:
            message = f"{self._config.name}: no run is held back"
            raise ReleaseError(message, hint=f"Runs and what became of them: riverrun runs {self._config.name}")
        if release.held.state not in states:
            message = (
                f"{self._config.name}: the outputs of run {release.held.id} are held back: {release.held.progress}"
            )
            raise ReleaseError(message, hint=release.held.hint(self._config.name))
        return release, release.held

    def _note(self, before: HeldRun, after: HeldRun) -> tuple[Release, HeldRun]:
        return self._write(before, lambda now: replace(now, held=after)), after

    def _require_present(self, held: HeldRun | None) -> Release:
        """Return the release, while its run that is held back is the one that is known here."""
        release = self._release()
        # The record of its whole state: an attempt that continues a run keeps its id.
        if msgspec.json.encode(release.held) != msgspec.json.encode(held):
            raise release.other_attempt()
        return release

    def _write(self, held: HeldRun | None, change: Callable[[Release], Release]) -> Release:
        """Change the application's record, while it holds this run back (None for no run)."""
        for attempt in range(1, _ATTEMPTS + 1):
            release = self._require_present(held)
            try:
                return self._registry.write(change(release))
            except VersionConflictError:
                if attempt == _ATTEMPTS:
                    raise
        raise AssertionError

    def _refusal(self, held: HeldRun) -> ReleaseError:
        message = f"{self._config.name}: the outputs of run {held.id} are held back: {held.progress}"
        has_warnings = held.verdict is not None and not held.verdict.critical
        kind = ApprovalNeededError if has_warnings else GateFailedError
        return kind(message, hint=held.hint(self._config.name))


def _pages_of(held: HeldRun) -> Mapping[str, str]:
    return {} if held.verdict is None else held.verdict.pages


def _mark_of(held: HeldRun) -> Mark:
    committed = {TopicPartition.parse(name): (offset, text) for name, (offset, text) in held.committed.items()}
    return Mark(committed, {TopicPartition.parse(name): end for name, end in held.ends.items()}, held.topics)
