"""The steps of a release, between bounded runs or while workers run: plan, start, reprocess, gate, cut, rollback, retire.

The candidate computes from the earliest offsets into its own state and publishes to staging topics. Consumers of the public
topics notice nothing. The cut is at an offset vector that both versions have processed exactly. There, the public topics get
the rows that differ as corrections; from then on the candidate publishes. The old version's table stays in its own staging
topics, so a rollback is the same step in the other direction.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pipeline.errors import GateFailedError, ReleaseError
from pipeline.hosting.clock import SystemClock
from pipeline.hosting.ownership.fencing import require_nobody
from pipeline.quality.suites import declared
from pipeline.records import OffsetRange, OffsetVector, TopicPartition, counted
from pipeline.releases.differing import DifferentRow, different_rows
from pipeline.releases.forecast import Forecast, forecast
from pipeline.releases.gating import Gate, Point
from pipeline.releases.outputs import outputs, require_known, require_same_keys, require_same_kinds
from pipeline.releases.readiness import looking, readiness
from pipeline.releases.registry import SETTLED, Registry, Release, Step, known_release
from pipeline.releases.statements import statement_digests_of
from pipeline.releases.switch import Switch
from pipeline.releases.verdicts import (
    GateVerdict,
    Now,
    dropped_of,
    inputs_since,
    new_id,
    require_approvable,
    require_valid,
    suite_digest,
)
from pipeline.releases.versions import Versions, require_declared
from pipeline.spark.planning.runs import RunLog
from pipeline.spark.ranges import RunRange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pipeline.config import ProjectConfig
    from pipeline.hosting.connected import ConnectedApplication
    from pipeline.kafka.admin import Admin
    from pipeline.releases.history import Change
    from pipeline.releases.readiness import Readiness
    from pipeline.spark.bounded_runs.summary import RunSummary
    from pipeline.topology.outputs import Output

_BEGUN = frozenset({Step.PLANNED, Step.REPROCESSED, Step.GATED})
_TAKEN_AT: Mapping[str, tuple[Step, ...]] = {
    "reprocess": (Step.PLANNED, Step.REPROCESSED, Step.GATED),
    "gate": (Step.REPROCESSED, Step.GATED),
    "diff": (Step.REPROCESSED, Step.GATED),
    "approve": (Step.REPROCESSED, Step.GATED),
    "cut": (Step.GATED, Step.CUTTING, Step.LIVE),
    "rollback": (Step.LIVE, Step.ROLLING_BACK, Step.ROLLED_BACK),
}
"""Steps at which a release may be when an action is taken. Each action may be repeated after it is done."""


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

    def __str__(self) -> str:
        """Describe it line by line."""
        lines = [f"{self.app}: {self.live} is live, {self.candidate} is to follow"]
        lines += [f"  {kind}: {name}" for name, kind in (self.statements or self.changed).items()]
        lines += [f"  {each.topic} is a {each.kind.value}: {each.why}" for each in self.outputs]
        lines += [f"  {topic} is not written any more: its records stay" for topic in self.ended]
        lines.append(f"{counted(self.range.size, 'offset')} to process: {self.range}")
        lines += [f"  {line}" for line in self.forecast.lines]
        lines += [f"  gone already: {tp} below offset {offset}" for tp, offset in self.lost.items()]
        return "\n".join(lines)


class Releaser:
    """Takes an application from one version to another. Every step may be run again.

    Args:
        project: All applications.
        app: Name of the application.
        admin: Asks the brokers.
        spark: Returns a Spark session when one is needed.
        by: The user for the history; by default, this user on this machine.
        on_step: Called with what a switch of running versions has done, after each step that a crash may follow.
        registry: Where releases are recorded; the control topic by default.
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
        registry: Registry | None = None,
    ) -> None:
        self._project = project
        self._config = project.app(app)
        self._admin = admin
        self._registry = Registry.at(admin, by) if registry is None else registry
        self._runs = RunLog(admin)
        self._versions = Versions(project, app, self._admin, spark)
        self._gate = Gate(self._config.quality, self._versions, spark)
        self._switch = Switch(self._config.name, self._versions, self._registry, on_step)

    def status(self) -> Release:
        """Return the state of the release.

        Raises:
            ReleaseError: If the control topic has lost it.
        """
        return known_release(self._registry, self._config, self._admin)

    def log(self) -> list[Change]:
        """Return the changes of the application's releases, first to last, even if the application's own record is lost.

        Raises:
            BrokerError: If brokers do not answer.
        """
        return self._registry.history(self._config.name)

    def restore(self, live: str) -> Release:
        """Record again which version is live, after the control topic was lost.

        Raises:
            ConfigError: If there is no such version.
            ReleaseError: If the control topic knows the application.
        """
        self.check("restore", live)
        return self._registry.write(Release(self._config.name, live))

    def check(self, step: str, argument: str = "") -> Release:
        """Make sure that a step may be taken, as the step itself does before it changes anything.

        Args:
            step: The step.
            argument: The version or the verdict that it is about.

        Returns:
            The state of the release.

        Raises:
            ReleaseError: If the step cannot be taken, or `streams.toml` does not declare a version of the release.
            UnderWayError: If a worker or a run is at work that must not be.
            ConfigError: If there is no such version.
        """
        checks: Mapping[str, Callable[[str], Release]] = {
            "start": self._check_start,
            "restore": self._check_restore,
            "abort": self._check_abort,
            "retire": self._check_retire,
        }
        if step in checks:
            return checks[step](argument)
        release = self._at(*_TAKEN_AT[step])
        if release.step in _BEGUN:
            self._require_declared(release)
        if step in {"reprocess", "gate"}:
            self._require_same_code(release, self._versions.releasable(_candidate(release)))
        elif step == "approve":
            require_approvable(release.app, release.verdict, argument)
        elif step == "cut" and release.step is Step.GATED:
            self._require_valid_verdict(release)
            self._switch.check(release, _candidate(release), Step.CUTTING)
        elif step == "rollback" and release.step is Step.LIVE:
            self._require_way_back(release)
            self._switch.check(release, release.previous or "", Step.ROLLING_BACK)
        return release

    def _check_start(self, candidate: str) -> Release:
        release = self.status()
        self._pair(release, candidate)
        if release.step in _BEGUN and release.candidate != candidate:
            message = f"{release.app}: {release.candidate} is being released; {release.stands}"
            raise ReleaseError(message, hint=f"Give it up first: millrace release abort {release.app}")
        if release.step is not Step.PLANNED:
            release.to(Step.PLANNED)
        return release

    def _check_restore(self, live: str) -> Release:
        self._config.topology_of(live)
        known = self._registry.read(self._config.name, self._config.version)
        if known.revision:
            message = f"{known.app}: the control topic knows that {known.live} is live"
            raise ReleaseError(
                message, hint=f"Another version goes live by a release: millrace release start {known.app}"
            )
        return known

    def _check_abort(self, _argument: str) -> Release:
        release = self.status()
        release.to(Step.ABORTED)
        require_nobody(self._versions.application(_candidate(release)))
        return release

    def _check_retire(self, version: str) -> Release:
        release = self.status()
        chosen = _retired(release, version)
        if chosen == release.live or (release.step not in SETTLED and chosen in {release.candidate, release.previous}):
            message = f"{release.app}: {chosen} cannot be retired: {release.live} is live, and {release.stands}"
            raise ReleaseError(message, hint="Retire the version before, once the release is done.")
        require_nobody(self._versions.application(chosen))
        return release

    def _require_declared(self, release: Release) -> None:
        require_declared(self._config, release.live, "live")
        require_declared(self._config, _candidate(release), "being released")

    def _require_way_back(self, release: Release) -> None:
        if release.previous is None:
            message = f"{release.app}: there is no version to go back to"
            raise ReleaseError(message)
        require_declared(self._config, release.live, "live")
        require_declared(self._config, release.previous, "the version to go back to")

    def plan(self, candidate: str) -> ReleasePlan:
        """Describe what a release of `candidate` would do. Changes nothing: the last release can still be rolled back.

        Raises:
            ConfigError: If there is no such version.
            ReleaseError: If it is live already, or one of the two chooses topics per record.
        """
        release = self.status()
        live, new = self._pair(release, candidate)
        target = self._versions.target(live, new)
        first = self._admin.beginning_offsets(target)
        wanted = RunRange({tp: OffsetRange(min(first[tp], end), end) for tp, end in target.items()})
        written = outputs(new.application)
        old, said = statement_digests_of(live.application), statement_digests_of(new.application)
        return ReleasePlan(
            app=self._config.name,
            live=release.live,
            candidate=candidate,
            changed=_changes(live.topology.node_fingerprints(), new.topology.node_fingerprints()),
            range=wanted,
            lost={tp: offset for tp, offset in first.items() if offset > 0},
            outputs=tuple(written.values()),
            ended=tuple(sorted(outputs(live.application).keys() - written.keys())),
            forecast=forecast(self._config.name, wanted, self._admin),
            statements=_changes(old, said) if old and said else {},
        )

    def start(self, candidate: str) -> Release:
        """Begin the release of `candidate`, and record its code. The last release can no longer be rolled back.

        If a release of this candidate is under way, it begins again. The candidate's output so far is kept, unless its code
        has
        changed since: then the output is deleted and computed again.

        Raises:
            ConfigError: If there is no such version.
            ReleaseError: If it is live already, or another release is under way, or one of the two chooses topics per record.
        """
        release = self.check("start", candidate)
        live, new = self._pair(release, candidate)
        digests = {release.live: live.topology.fingerprint(), candidate: new.topology.fingerprint()}
        is_noted = release.step is Step.PLANNED and release.candidate == candidate
        if is_noted and digests.items() <= release.digests.items():
            return release
        return self._note_start(release, new, digests)

    def _pair(self, release: Release, candidate: str) -> tuple[ConnectedApplication, ConnectedApplication]:
        """Return the live version and its candidate.

        Raises:
            ReleaseError: If they are one version; if one of them chooses topics per record; if an output is a table in one of
                them
                only; or if its keys are written differently.
            ConfigError: If `streams.toml` declares a topic that no version writes.
        """
        if candidate == release.live:
            message = f"{self._config.name}: {candidate} is live already"
            raise ReleaseError(message)
        require_declared(self._config, release.live, "live")
        live, new = self._versions.releasable(release.live), self._versions.releasable(candidate)
        require_known(self._config, (version.topology for version in self._versions.all_from(live, new)))
        require_same_kinds(live.application, new.application)
        require_same_keys(live.application, new.application)
        return live, new

    def _note_start(self, release: Release, candidate: ConnectedApplication, digests: dict[str, str]) -> Release:
        """Record the start of a release. First delete the candidate's output if other code has computed it."""
        planned = release if release.step is Step.PLANNED else release.to(Step.PLANNED)
        known = release.digests.get(candidate.version)
        if known is not None and known != digests[candidate.version]:
            self._versions.discard(candidate)
        is_kept = known == digests[candidate.version] and self._admin.group(candidate.id).state != "Dead"
        return self._registry.write(
            replace(
                planned,
                candidate=candidate.version,
                verdict=None,
                corrections=0,
                digests=release.digests | digests,
                computing_since_ms=(is_kept and release.computing_since_ms) or SystemClock().now_ms(),
            )
        )

    def reprocess(self) -> RunSummary:
        """Compute the candidate from the earliest offsets up to the live version's position, into staging topics.

        Another call continues at the candidate's position. If workers of the candidate run, they do it: see `wait_ready`.

        Raises:
            ReleaseError: If nothing is planned, or a version has come to choose topics per record.
        """
        release = self.check("reprocess")
        candidate = self._versions.staged(_candidate(release))
        if self._switch.marks.is_running(candidate):
            summary = self._versions.standing(candidate)
        else:
            summary = self._versions.follow(candidate, self._versions.releasable(release.live))
        self._registry.write(release.to(Step.REPROCESSED, cut=str(summary.range.end), verdict=None))
        return summary

    def gate(self, point: Point | None = None) -> Release:
        """Judge the candidate's outputs, and their difference from the live ones, at the same offsets of both versions.

        Args:
            point: Where they are compared; by default, at the live version's position, to which the candidate is brought.

        Returns:
            The release with its verdict.

        Raises:
            GateFailedError: If an expectation of critical severity fails; the live version stays live.
            ReleaseError: If the candidate has not been computed.
            UnderWayError: If the live version goes on meanwhile.
            ConfigError: If the expectations cannot be loaded, or name an output that does not exist.
        """
        release = self.check("gate")
        live, candidate = self._versions.releasable(release.live), self._versions.staged(_candidate(release))
        if point is None:
            release, point = self._point(release, live, candidate)
        name = new_id()
        found = self._gate.judge(live, candidate, point, check=name)
        verdict = GateVerdict(
            id=name,
            at=str(point.vector),
            suite=self._suite(),
            digests=self._digests(release),
            outcomes={**found.outcomes, **self._dropped(release)},
            critical=found.critical,
            warnings=found.warnings,
            pages=dict(found.pages),
        )
        release = replace(release, cut=verdict.at)
        if verdict.critical:
            self._registry.write(release.to(Step.REPROCESSED, verdict=verdict))
            failures = "; ".join(f"{name}: {verdict.outcomes[name]}" for name in verdict.critical)
            message = f"{self._config.name} {release.candidate} does not pass: {failures}"
            hint = f"{release.live} stays live. `release abort`; mend {release.candidate}, and plan it again."
            raise GateFailedError(message, hint=hint)
        return self._registry.write(release.to(Step.GATED, verdict=verdict))

    def approve(self, verdict_id: str) -> Release:
        """Approve the warnings of a gate, by the id of its verdict. A new gate needs a new approval.

        Raises:
            ReleaseError: If it is not the verdict of the last gate, or blocks the release.
            VersionConflictError: If another process has changed the release meanwhile.
        """
        return self._registry.approve(self.check("approve", verdict_id), verdict_id)

    def diff(self, limit: int) -> list[DifferentRow]:
        """Return rows of tables that differ between the live version and the candidate in what both have written so far.

        Args:
            limit: Maximum number of rows.

        Raises:
            ReleaseError: If the candidate has not been computed.
        """
        release = self.check("diff")
        live, candidate = self._versions.releasable(release.live), self._versions.staged(_candidate(release))
        return different_rows(live, candidate, limit)

    def cut(self) -> Release:
        """Make the candidate live in place of the live version, at an offset vector that both have processed.

        Raises:
            ApprovalNeededError: If the gate has warnings nobody has approved.
            ReleaseError: If the gate was not passed, or the code, the expectations or the data have changed since.
            UnderWayError: If the versions do not reach one point in time, or a run of one is under way.
            VersionConflictError: If another process cuts as well.
        """
        release = self.check("cut")
        if release.step is Step.LIVE:  # an earlier call has done it without learning of its success
            return release
        return self._switch.to(release, _candidate(release), Step.CUTTING, Step.LIVE)

    def rollback(self) -> Release:
        """Make the previous version live again, at an offset vector that both have processed.

        Raises:
            ReleaseError: If no release went live before.
            UnderWayError: If the versions do not reach one point in time, or a run of one is under way.
            VersionConflictError: If another process rolls back as well.
        """
        release = self.check("rollback")
        if release.step is Step.ROLLED_BACK:
            return release
        return self._switch.to(release, release.previous or "", Step.ROLLING_BACK, Step.ROLLED_BACK)

    def is_followed(self) -> bool:
        """Return whether workers of the candidate run and process new records.

        Raises:
            ReleaseError: If nothing is being released.
            BrokerError: If brokers do not answer.
        """
        return self._switch.marks.is_running(self._versions.application(_candidate(self._at(*_BEGUN))))

    def wait_ready(
        self, *, max_lag: int = 1000, looks: int = 3, every_s: float = 1.0, timeout_s: float | None = None
    ) -> Iterator[Readiness]:
        """Yield how far the candidate is behind the ends of its inputs, until it is ready for a gate or a cut.

        Args:
            max_lag: Offsets that an input may be behind.
            looks: Number of consecutive looks at which no input may be further behind.
            every_s: Seconds between two looks.
            timeout_s: Seconds after which to give up; never by default.

        Raises:
            NotReadyError: If it is not ready by then.
            ReleaseError: If nothing is being released.
            BrokerError: If brokers do not answer.
        """
        candidate = self._versions.application(_candidate(self._at(*_BEGUN)))
        return readiness(looking(candidate, every_s), max_lag=max_lag, looks=looks, timeout_s=timeout_s)

    def retire(self, version: str | None = None) -> Release:
        """Delete the topics, offsets and state of a version that is not live. It can no longer be rolled back to.

        Args:
            version: The version; by default, the one that was live before, or that was rolled back from.

        Raises:
            ReleaseError: If there is none, it is live, or it is being released.
            UnderWayError: If its workers or a run of it are at work.
        """
        release = self.check("retire", version or "")
        chosen = _retired(release, version)
        retired = self._versions.application(chosen)
        previous = None if chosen == release.previous else release.previous
        digests = {name: digest for name, digest in release.digests.items() if name != chosen}
        release = self._registry.write(replace(release, previous=previous, digests=digests))
        self._versions.discard(retired)
        return release

    def abort(self) -> Release:
        """Give a release up before its cut, and delete the candidate's output.

        Raises:
            ReleaseError: If the cut has begun.
            UnderWayError: If workers or a run of the candidate are at work.
        """
        release = self.check("abort")
        candidate = self._versions.application(_candidate(release))
        aborted = self._registry.write(release.to(Step.ABORTED))
        self._versions.discard(candidate)
        return aborted

    def _point(
        self, release: Release, live: ConnectedApplication, candidate: ConnectedApplication
    ) -> tuple[Release, Point]:
        """Find the point at which two versions are compared. If workers run, they hold for a moment."""
        marks = self._switch.marks
        if not (marks.is_running(live) or marks.is_running(candidate)):
            return release, self._gate.point(live, candidate)
        marked = marks.take(release, [live, candidate])
        try:
            ends = self._gate.ends(candidate)
        except BaseException:
            marks.give_up(marked.release)
            raise
        return marks.end(marked.release), Point(marked.vector, ends)

    def _dropped(self, release: Release) -> dict[str, str]:
        """Count the records that the candidate's bounded runs have read and dropped; empty if workers have computed it."""
        runs = self._runs.runs(release.app)
        return dropped_of(runs, _candidate(release), release.computing_since_ms)

    def _require_same_code(self, release: Release, candidate: ConnectedApplication) -> None:
        """Make sure that the candidate's code is the code that was planned.

        Raises:
            ReleaseError: If it is not: the candidate would be computed half by one, half by the other.
        """
        if release.digests.get(candidate.version, candidate.topology.fingerprint()) != candidate.topology.fingerprint():
            message = f"{release.app}: the code of {candidate.version} has changed since the release was planned"
            raise ReleaseError(
                message, hint=f"millrace release start {release.app} --to {candidate.version} begins it again."
            )

    def _require_valid_verdict(self, release: Release) -> None:
        """Make sure that the last gate's verdict lets the candidate go live.

        Raises:
            ReleaseError: If it does not.
        """
        digests, inputs = self._digests(release), 0
        if self._config.max_inputs_since_gate is not None and release.verdict is not None:
            live, new = self._versions.releasable(release.live), self._versions.releasable(_candidate(release))
            inputs = inputs_since(OffsetVector.parse(release.verdict.at), self._versions.target(live, new))
        suite = self._suite()
        now = Now(_candidate(release), suite, digests, inputs, self._config.max_inputs_since_gate)
        require_valid(release.app, release.verdict, now)

    def _digests(self, release: Release) -> dict[str, str]:
        """Return digests of the present code of the live version and of the candidate."""
        versions = release.live, _candidate(release)
        return {version: self._versions.releasable(version).topology.fingerprint() for version in versions}

    def _suite(self) -> str:
        """Return a digest of the present expectations."""
        return suite_digest(declared(self._config.quality))

    def _at(self, *steps: Step) -> Release:
        release = self.status()
        if release.step not in steps:
            wanted = " or ".join(step.value for step in steps)
            message = f"{self._config.name}: {release.stands}; this needs {wanted}"
            raise ReleaseError(message, hint="`millrace release status` says what may come next.")
        return release


def _retired(release: Release, version: str | None) -> str:
    """Return the version that is to be retired: the given one, or the last that was replaced."""
    chosen = version or (release.candidate if release.step is Step.ROLLED_BACK else release.previous)
    if chosen is None:
        message = f"{release.app}: there is no version to retire"
        raise ReleaseError(message, hint="Name one: --version.")
    return chosen


def _candidate(release: Release) -> str:
    if release.candidate is None:
        message = f"{release.app} has no candidate"
        raise ReleaseError(message, hint="Begin with `millrace release start`.")
    return release.candidate


def _changes(old: dict[str, str], new: dict[str, str]) -> dict[str, str]:
    names = sorted(old.keys() | new.keys())
    kinds = {name: "added" if name not in old else "removed" if name not in new else "changed" for name in names}
    return {name: kind for name, kind in kinds.items() if old.get(name) != new.get(name)}
