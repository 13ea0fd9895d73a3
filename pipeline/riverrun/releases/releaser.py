"""The steps of a release, between bounded runs or while workers run: plan, start, reprocess, gate, cut, rollback, retire.

The candidate computes from the earliest offsets into its own state and publishes to staging topics, unnoticed by consumers of
the public topics. The cut is at an offset vector that both versions have processed exactly. There, the public topics get the
rows that differ as corrections; from then on the candidate publishes. The old version's table stays in its own staging topics,
so a rollback is the same step in the other direction.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from riverrun.errors import GateFailedError, RangeError, TopicError, VersionConflictError
from riverrun.hosting.alone import require_nobody, sole_hosts
from riverrun.hosting.control_topic import ReleaseRegistry
from riverrun.hosting.gated import GateVerdict
from riverrun.hosting.inputs import dropped_so_far
from riverrun.hosting.process import SystemClock
from riverrun.hosting.release import ACTIONS, BEGUN, DELETED, SWITCHING, Release, ReleaseStep
from riverrun.releases.carrying import Carrying
from riverrun.releases.check_log import GATE_OF_RELEASE, CheckLog, CheckRecord
from riverrun.releases.corrections import Corrections
from riverrun.releases.gating import Gate, Point
from riverrun.releases.release_plan import ALONE, Joint, ReleasePlan, plan_release
from riverrun.releases.rows import DifferentRow, different_rows
from riverrun.releases.step_checks import StepChecks, candidate_of, looking, readiness, retired_of
from riverrun.releases.switch import Switch
from riverrun.releases.topology import tables
from riverrun.releases.verdicts import approve, compare_dropped, compare_inputs, dropped_of, new_id
from riverrun.releases.versions import Versions
from riverrun.spark.runs import RunLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from riverrun.config import ProjectConfig
    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.hosting.release import ReleaseChange
    from riverrun.kafka.admin import Admin
    from riverrun.releases.step_checks import Readiness
    from riverrun.spark.bounded_runs.job import RunSummary

    Dropped = tuple[Mapping[str, int], Mapping[str, int]]

T = TypeVar("T")


class Releaser:
    """Takes an application from one version to another. Every step can be run again.

    Args:
        by: The user for the history; defaults to this user on this machine.
        on_step: Called with what a switch of running versions has done, after each step that a crash may follow.
        registry: Where releases are recorded; defaults to the control topic.
        is_joint: As in `StepChecks`.
    """

    def __init__(
        self,
        project: ProjectConfig,
        app: str,
        admin: Admin,
        spark: Callable[[], Any],
        by: str = "",
        on_step: Callable[[str], None] = lambda _done: None,
        *,
        registry: ReleaseRegistry | None = None,
        is_joint: bool = False,
    ) -> None:
        self._config = project.app(app)
        self._admin = admin
        self._registry = ReleaseRegistry.at(admin, by) if registry is None else registry
        self._runs = RunLog(admin)
        self._history = CheckLog(admin)
        self._versions = Versions(project, app, admin, spark, self._registry)
        self._gate = Gate(self._config.quality, self._versions, spark)
        self._switch = Switch(self._config.name, self._versions, self._registry, on_step)
        self._checks = StepChecks(self._config, self._versions, self._registry, self._switch, admin, is_joint=is_joint)
        corrections = Corrections(self._config.name, self._registry)
        self._carrying = Carrying(self._versions, self._registry, self._switch.barriers, corrections)

    def status(self) -> Release:
        return self._checks.status()

    def check(self, step: str, argument: str = "") -> Release:
        """Make sure that a step may be taken, as the step itself does first; `argument` is the version or the verdict."""
        return self._checks.check(ACTIONS[step], argument)

    def log(self) -> list[ReleaseChange]:
        """Return the changes of the application's releases, first to last, even if the application's own record is lost."""
        return self._registry.history(self._config.name)

    def restore(self, live: str) -> Release:
        """Record again which version is live, after the control topic was lost."""
        self.check("restore", live)
        return self._registry.write(Release(self._config.name, live))

    def plan(self, candidate: str, *, carry: bool = False, joint: Joint = ALONE) -> ReleasePlan:
        """Describe what a release of `candidate` would do. Changes nothing: the last release can still be rolled back."""
        live, new = self._checks.pair(self.status(), candidate)
        return plan_release(live, new, self._versions, self._carrying.plan(live, new) if carry else None, joint)

    def start(self, candidate: str, *, carry: bool = False, joint: Joint = ALONE) -> Release:
        """Begin the release of `candidate`, and record its code. The last release can no longer be rolled back.

        If a release of this candidate is under way, it begins again. The candidate's output so far is kept, unless its
        code has changed since: then the output is deleted and computed again. Likewise if it is released with others now.
        """
        release = self.check("start", candidate)
        release.require_startable(candidate, joint.members)
        live, new = self._checks.pair(release, candidate)
        digests = {release.live: live.topology.fingerprint(), candidate: new.topology.fingerprint()}
        is_noted = release.step is ReleaseStep.PLANNED and release.candidate == candidate
        is_noted = is_noted and (release.carry is not None) == carry and digests.items() <= release.digests.items()
        is_noted = is_noted and release.joint == joint.members
        # Both checks fail here, before anything changes.
        if carry:
            is_noted = self._carrying.is_begun(release, live, new) and is_noted
            require_nobody(new)
        if not is_noted:
            release = self._note_start(release, live, new, digests, joint)
            if carry:
                release = self._carrying.start(release, live, new)
        return self._carrying.complete(release, live, new) if carry else release

    def resumed(self, candidate: str) -> ReleaseStep | None:
        """Return the step that an earlier release of a version has reached; None if it has to start, or to start again.

        It starts again if the code of a version has changed, or the last gate does not let it go live. If its cut has begun,
        or is done, that counts whatever the code is now.
        """
        release = self.status()
        if release.candidate != candidate or (release.carry is not None and not release.carry.is_done):
            return None
        if release.step is ReleaseStep.CUTTING or (release.step is ReleaseStep.LIVE and release.live == candidate):
            return release.step
        if release.step not in BEGUN or not self._checks.digests(release).items() <= release.digests.items():
            return None
        if release.step is ReleaseStep.GATED and not self._checks.is_valid(release):
            return ReleaseStep.REPROCESSED
        return release.step

    def _note_start(
        self,
        release: Release,
        live: ConnectedApplication,
        candidate: ConnectedApplication,
        digests: dict[str, str],
        joint: Joint,
    ) -> Release:
        """Record the start of a release.

        First delete the candidate's output if it was carried, if other code computed it, or if it may come from other inputs.
        """
        planned = release if release.step is ReleaseStep.PLANNED else release.to(ReleaseStep.PLANNED)
        # What the live version has carried over goes back further than its own beginning.
        if release.carry is not None:
            planned = replace(planned, begins=_without(planned.begins, release.live))
        planned = replace(
            planned,
            candidate=candidate.version,
            verdict=None,
            corrections=0,
            carry=None,
            failed_pause_ms=0,
            joint=dict(joint.members),
            inputs=_without(release.inputs, candidate.version, live.version)
            | {name: dict(topics) for name, topics in joint.inputs.items()},
        )
        known = release.digests.get(candidate.version)
        is_other = known is not None and known != digests[candidate.version]
        is_other = is_other or candidate.version in release.inputs
        is_other = is_other or (bool(joint.members) and any(self._versions.topics_of(candidate)))
        if is_other or (release.carry is not None and release.candidate == candidate.version):
            require_nobody(candidate)
            self._carrying.give_up(release, live)
            # The record first: other code, or a rollback, may not find a part of the results if this is interrupted.
            deleted = release.digests | {candidate.version: DELETED}
            planned = self._registry.write(replace(planned, digests=deleted))
            self._versions.discard(candidate, partial(self._require_deleted, planned, candidate.version))
        is_kept = not is_other and known is not None and self._versions.has_begun(candidate)
        planned = replace(
            planned,
            digests=release.digests | digests,
            computing_since_ms=(is_kept and release.computing_since_ms) or SystemClock().now_ms(),
        )
        reading = self._versions.reading(candidate.version, planned.elsewhere(candidate.version))
        return self._registry.write(self._versions.begun(planned, reading))

    def reprocess(self) -> RunSummary:
        """Compute the candidate from the earliest offsets up to the live version's position, into staging topics.

        Another call continues at the candidate's position. If workers of the candidate run, they do it: see `wait_ready`.
        """
        release = self.check("reprocess")
        candidate = self._versions.staged(candidate_of(release))
        begun = self._versions.begun(release, candidate)
        release = release if begun == release else self._registry.write(begun)
        if self._switch.barriers.is_running(candidate):
            summary = self._versions.empty_run(candidate)
        else:
            with self._unless_deleted(release):
                summary = self._versions.follow(candidate, self._versions.releasable(release.live))
        self._registry.write(release.to(ReleaseStep.REPROCESSED, cut=str(summary.range.end), verdict=None))
        return summary

    def gate(self, point: Point | None = None) -> Release:
        """Judge the candidate's outputs, and their difference from the live ones, at the same offsets of both versions.

        By default, the candidate is brought to the live version's position for this.
        """
        release = self.check("gate")
        live, candidate = self._versions.releasable(release.live), self._versions.staged(candidate_of(release))
        if point is None:
            with self._unless_deleted(release):
                release, point, dropped = self._point(release, live, candidate)
        else:
            dropped = _dropped_by(live, candidate)
        outcomes, warnings = compare_dropped(*dropped)
        lost, incomplete = compare_inputs(release.lost_records)
        name = new_id()
        earlier = self._history.earlier(self._config.name, GATE_OF_RELEASE)
        has_all_logs = release.carry is None and not release.lost_records
        found = self._gate.judge(live, candidate, point, check=name, has_all_logs=has_all_logs, earlier=earlier)
        where = CheckRecord(name, self._config.name, candidate.version, self._registry.by, self._registry.now_ms())
        self._history.put(replace(where, at=str(point.vector), kind=GATE_OF_RELEASE).with_findings(found))
        verdict = GateVerdict(
            id=name,
            at=str(point.vector),
            suite=self._checks.suite(),
            digests=self._checks.digests(release),
            outcomes={**found.outcomes, **lost, **outcomes, **self._dropped(release)},
            critical=found.critical,
            warnings=(*found.warnings, *incomplete, *warnings),
            pages=dict(found.pages),
            docs=str(self._config.docs_directory or ""),
        )
        # The pause of the gate itself is no pause of a switch.
        release = replace(release, cut=verdict.at, failed_pause_ms=0)
        # A verdict that blocks is recorded as well: the status shows what failed.
        if verdict.critical:
            self._registry.write(release.to(ReleaseStep.REPROCESSED, verdict=verdict))
            failures = "; ".join(f"{name}: {verdict.outcomes[name]}" for name in verdict.critical)
            message = f"{self._config.name} {release.candidate} does not pass: {failures}"
            hint = f"{release.live} stays live. Run `riverrun release abort`, correct {release.candidate}, and start again."
            raise GateFailedError(message, hint=hint)
        return self._registry.write(release.to(ReleaseStep.GATED, verdict=verdict))

    def approve(self, verdict_id: str) -> Release:
        """Approve the warnings of a gate, by the id of its verdict. A new gate needs a new approval."""
        return approve(self._registry, self.check("approve", verdict_id), verdict_id)

    def diff(self, limit: int) -> list[DifferentRow]:
        """Return rows of tables that differ between the live version and the candidate in what both have written so far."""
        release = self.check("diff")
        live, candidate = self._versions.releasable(release.live), self._versions.staged(candidate_of(release))
        return different_rows(live, candidate, limit)

    def compared(self) -> str:
        """Return what `diff` compares, as text: the tables, and whether both versions have processed the same offsets."""
        release = self.check("diff")
        live, candidate = self._versions.releasable(release.live), self._versions.releasable(candidate_of(release))
        topics = tables(candidate.application)
        if not topics:
            return f"nothing was compared: {candidate.version} writes no table"
        same = "the same" if self._versions.are_at_one_place(live, candidate) else "different"
        return f"{', '.join(topics)}: {live.version} and {candidate.version} have processed {same} offsets"

    def cut(self) -> Release:
        """Make the candidate live in place of the live version, at an offset vector that both have processed."""
        release = self.check("cut")
        # An earlier call has done it, and died before it learned of its success.
        if release.step is ReleaseStep.LIVE:
            return release
        with self._unless_deleted(release):
            return self._switch.to(release, candidate_of(release), ReleaseStep.CUTTING, ReleaseStep.LIVE)

    def rollback(self) -> Release:
        """Make the previous version live again, at an offset vector that both have processed."""
        release = self.check("rollback")
        if release.step is ReleaseStep.ROLLED_BACK:
            return release
        with self._unless_deleted(release):
            return self._switch.to(release, release.previous or "", ReleaseStep.ROLLING_BACK, ReleaseStep.ROLLED_BACK)

    def complete(self) -> Release:
        """Complete the switch of a process that has died, if one is under way."""
        release = self.status()
        # A joint switch concerns other applications as well: the command that takes it completes it.
        is_own = release.step in SWITCHING and not release.joint
        return SWITCHING[release.step].take(self) if is_own else release

    def has_written(self, release: Release) -> bool:
        """Return whether the last change of a release is a step of this releaser, and not of another process."""
        return self._registry.has_written(release)

    def is_followed(self) -> bool:
        """Return whether workers of the candidate run and process new records."""
        return self._switch.barriers.is_running(self._versions.application(candidate_of(self._checks.at(*BEGUN))))

    def is_computed(self, candidate: str) -> bool:
        """Return whether a bounded run of a version lives, and the version is the candidate."""
        if self.status().candidate != candidate:
            return False
        return bool(sole_hosts(self._admin, self._config.application_id(candidate)))

    def wait_ready(
        self, *, max_lag: int = 1000, looks: int = 3, every_s: float = 1.0, timeout_s: float | None = None
    ) -> Iterator[Readiness]:
        """Yield how far the candidate is behind the ends of its inputs, until it is ready for a gate or a cut.

        It is ready after `looks` polls in a row at which no input was more than `max_lag` offsets behind.
        """
        candidate = self._versions.application(candidate_of(self._checks.at(*BEGUN)))
        return readiness(looking(candidate, every_s), max_lag=max_lag, looks=looks, timeout_s=timeout_s)

    def retire(self, version: str | None = None) -> Release:
        """Delete the topics, offsets and state of a version; defaults to the one that was replaced, or rolled back from."""
        release = self.check("retire", version or "")
        chosen = retired_of(release, version)
        retired = self._versions.application(chosen)
        previous = None if chosen == release.previous else release.previous
        digests = release.digests | {chosen: DELETED}
        # The record first: nobody may roll back to a version that is deleted in part, or continue its results.
        left = replace(
            release,
            previous=previous,
            digests=digests,
            begins=_without(release.begins, chosen),
            thinned=_without(release.thinned, chosen),
            inputs=_without(release.inputs, chosen),
        )
        return self._deleted(self._registry.write(left), retired)

    def abort(self) -> Release:
        """Give a release up before its cut, and delete the candidate's output."""
        release = self.check("abort")
        candidate = self._versions.application(candidate_of(release))
        self._carrying.give_up(release, self._versions.application(release.live))
        digests = release.digests | {candidate.version: DELETED}
        return self._deleted(
            self._registry.write(release.to(ReleaseStep.ABORTED, carry=None, digests=digests)), candidate
        )

    @contextmanager
    def _unless_deleted(self, release: Release) -> Iterator[None]:
        """Report what is missing as a conflict if another process has taken a step meanwhile: that may have deleted it."""
        try:
            yield
        except (RangeError, TopicError):
            if not self.has_written(self.status()):
                self._registry.require(release)
            raise

    def _deleted(self, release: Release, version: ConnectedApplication) -> Release:
        """Delete the results of a version, and record that they are gone: what it computes from now on is whole."""
        self._versions.discard(version, partial(self._require_deleted, release, version.version))
        digests = _without(release.digests, version.version)
        try:
            return self._registry.write(replace(release, digests=digests))
        except VersionConflictError:
            # Another process has begun a step meanwhile, and another write would end it. The next start, abort or retire of
            # this version deletes once more. Until then, its hosts are refused.
            return self.status()

    def _require_deleted(self, release: Release, version: str) -> None:
        """Make sure that the results of a version are still to be deleted: others may have done so, and computed new ones."""
        if self.status().digests.get(version) != DELETED:
            self._registry.require(release)

    def _point(
        self, release: Release, live: ConnectedApplication, candidate: ConnectedApplication
    ) -> tuple[Release, Point, Dropped]:
        """Find the point at which two versions are compared, and what they had dropped. Running workers pause for a moment."""
        barriers = self._switch.barriers
        if not (barriers.is_running(live) or barriers.is_running(candidate)):
            point = self._gate.point(live, candidate)
            return release, point, _dropped_by(live, candidate)
        completed = barriers.pause(release, [live, candidate])
        # Both describe the moment of the pause; judging takes longer, and comes after it.
        try:
            ends, dropped = self._gate.ends(candidate), _dropped_by(live, candidate)
        except BaseException:
            barriers.give_up(completed.release)
            raise
        return barriers.resume(completed.release), Point(completed.vector, ends), dropped

    def _dropped(self, release: Release) -> dict[str, str]:
        """Count the records that the candidate's bounded runs have read and dropped; empty if workers have computed it."""
        runs = self._runs.runs(release.app)
        return dropped_of(runs, candidate_of(release), release.computing_since_ms)


def _without(by_version: Mapping[str, T], *versions: str) -> dict[str, T]:
    return {version: each for version, each in by_version.items() if version not in versions}


def _dropped_by(live: ConnectedApplication, candidate: ConnectedApplication) -> Dropped:
    """Return how many records the candidate and the live version have dropped, by reason."""
    return dropped_so_far(candidate.resolved()), dropped_so_far(live.resolved())
