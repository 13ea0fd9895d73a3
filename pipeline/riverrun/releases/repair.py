"""Corrects a part of the public tables: computes it again with the live version's code, and publishes the differences.

No other version is involved, and nothing is switched. A repair computes the rows from the records of that time on, into
staging topics. The gate's expectations judge them where the live version and the repair have processed the same offsets.
"""

from __future__ import annotations

import hashlib
import logging
import re
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from riverrun.errors import ApprovalNeededError, GateFailedError, ReleaseError, UnderWayError
from riverrun.hosting.alone import await_no_sole_host, require_no_sole_host
from riverrun.hosting.control_topic import ReleaseRegistry, known_release
from riverrun.hosting.gated import GateVerdict
from riverrun.hosting.kept_offsets import KeptOffsets, kept_offsets_topic
from riverrun.hosting.release import ABORT, SETTLED, Release, staging_name
from riverrun.quality.expectations import declared
from riverrun.records import counted
from riverrun.releases.corrections import Corrections
from riverrun.releases.differ import Differ
from riverrun.releases.gating import Gate, Point
from riverrun.releases.repair_range import range_of, reach_of, repairable_part
from riverrun.releases.rows import DifferentRow, difference_rows, row_of
from riverrun.releases.switch import Switch
from riverrun.releases.topology import build_topology
from riverrun.releases.verdicts import new_id, suite_digest
from riverrun.releases.versions import Versions, require_declared
from riverrun.runtime.layout import kept_offsets_name
from riverrun.spark.bounded_runs.job import run
from riverrun.spark.ranges import COMMITTED, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from riverrun.config import ProjectConfig
    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.kafka.admin import Admin
    from riverrun.releases.difference import Pair
    from riverrun.releases.scope import Scope
    from riverrun.spark.ranges import RunRange

log = logging.getLogger(__name__)

_VERSION = "repair-"
_SHOWN = 20
# Sums of row digests wrap around at 64 bits.
_WHOLE = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """The work of a repair, before anything is done.

    Args:
        code: The version whose code computes the rows.
    """

    app: str
    live: str
    scope: str
    tables: tuple[str, ...]
    range: RunRange
    code: str

    def __str__(self) -> str:
        lines = [f"{self.app}: {self.code} would recompute {', '.join(self.tables)}, from {self.scope}"]
        return "\n".join([*lines, f"{counted(self.range.size, 'offset')} to process: {self.range}"])


@dataclass(frozen=True, slots=True)
class Repair:
    """The result of a repair.

    Args:
        code: The version whose code computed the rows.
        verdict: Findings of the gate; None if no row differed.
        compared: Number of rows of the scope that were compared, by public topic.
    """

    app: str
    live: str
    scope: str
    code: str
    corrections: int = 0
    verdict: GateVerdict | None = None
    rows: tuple[DifferentRow, ...] = ()
    compared: Mapping[str, int] = field(default_factory=dict)

    @property
    def said(self) -> str:
        """Return how many rows were compared, as text."""
        if not any(self.compared.values()):
            return f"nothing was compared, as {' and '.join(self.compared)} has no such row"
        return "compared " + ", ".join(f"{counted(rows, 'row')} of {topic}" for topic, rows in self.compared.items())

    @property
    def _nothing(self) -> str:
        return "no row differs" if any(self.compared.values()) else "nothing to repair"

    @property
    def note(self) -> str:
        """Return the line that the history keeps."""
        if self.verdict is None:
            return f"{self.scope}: {self._nothing}; {self.said}"
        return f"{self.scope}: {counted(self.corrections, 'correction')}, verdict {self.verdict.id}; {self.said}"

    def __str__(self) -> str:
        if self.verdict is None:
            return f"{self.app}: {self._nothing} from {self.scope}; {self.said}"
        published = f"{self.app}: {counted(self.corrections, 'correction')} published, {self.scope}; {self.said}"
        return "\n".join([published, *(f"  {row}" for row in self.rows), str(self.verdict)])


@dataclass(frozen=True, slots=True)
class _Found:
    """Differing rows of the scope: how many, in which topics, a digest of all of them, and some of them to show."""

    count: int
    topics: frozenset[str]
    digest: int
    rows: tuple[DifferentRow, ...]


class Repairer:
    """Repairs tables of one application, by the code of the version `code`; empty for that of the live version.

    Args:
        by: The user for the history; defaults to this user on this machine.
        registry: Where releases are recorded; defaults to the control topic.
    """

    def __init__(
        self,
        project: ProjectConfig,
        app: str,
        admin: Admin,
        spark: Callable[[], Any],
        by: str = "",
        *,
        registry: ReleaseRegistry | None = None,
    ) -> None:
        self._project = project
        self._config = project.app(app)
        self._spark = spark
        self._admin = admin
        self._registry = ReleaseRegistry.at(admin, by) if registry is None else registry
        self._corrections = Corrections(app, self._registry)

    def repairable_part(self, scope: Scope, code: str = "") -> Scope | None:
        """Return the part of a scope that the live version has processed, and whose rows would stay; None if it is empty."""
        versions, release = self._versions(), self._settled()
        return repairable_part(versions.releasable(release.live), versions.releasable(code or release.live), scope)

    def plan(self, scope: Scope, code: str = "") -> RepairPlan:
        """Describe what a repair would process. Changes nothing."""
        release, versions = self._settled(), self._versions()
        live, chosen = versions.releasable(release.live), versions.releasable(code or release.live)
        self._require_same_code(release, live)
        reach = reach_of(live, chosen, scope)
        wanted = range_of(live, chosen, scope, reach)
        return RepairPlan(self._config.name, live.version, str(scope), reach.topics, wanted, chosen.version)

    def repair(self, scope: Scope, approved: str = "", code: str = "") -> Repair:
        """Compute the rows of a scope again, judge them, and publish the differences.

        After a crash, another call completes the repair. Workers of the live version pause while rows are compared and
        published.

        Args:
            scope: The rows.
            approved: The id of a verdict whose warnings a person has approved. The data has to be what that verdict judged.
            code: The version whose code computes the rows; empty for the live one.
        """
        self._await_no_other()
        plan, release = self.plan(scope, code), self._settled()
        release = self._registry.write(replace(release, barrier=None, repaired=f"{scope}: begun"))
        version, versions = self._version(plan)
        live, repaired = versions.releasable(release.live), versions.staged(version)
        self._discard_others(versions, repaired)
        # With commits, this continues a repair that has crashed.
        if not repaired.committed(plan.range.ranges):
            self._admin.create_topics([kept_offsets_topic(repaired.application)])
            KeptOffsets(self._admin, repaired.id).begin(plan.range.start.offsets)
        wanted = resolve(repaired, COMMITTED, str(plan.range.end))
        run(repaired, wanted, self._spark, build_topology)
        release = self._unmoved(release)
        # Before the pause, so that little is left to read while nobody publishes.
        self._corrections.read_ahead(repaired)
        switch = Switch(self._config.name, versions, self._registry)
        completed = switch.barriers.pause(release, [live, repaired])
        try:
            point = Point(completed.vector, self._gate(versions).ends(repaired))
            done = self._publish(plan, scope, (live, repaired, versions), (completed.release, point), approved)
        except BaseException:
            switch.barriers.give_up(completed.release)
            raise
        ended = self._registry.write(replace(completed.release, barrier=None))
        # Reads all rows, so it comes after the pause.
        done = replace(done, compared=_compared(repaired, scope, plan.tables))
        ended = self._registry.write(replace(ended, repaired=done.note))
        self._registry.write(replace(ended, failed_pause_ms=0)) if ended.failed_pause_ms else None
        self._discard_done(versions, repaired)
        return done

    def _publish(
        self,
        plan: RepairPlan,
        scope: Scope,
        applications: tuple[ConnectedApplication, ConnectedApplication, Versions],
        paused: tuple[Release, Point],
        approved: str,
    ) -> Repair:
        """Judge and publish while nothing else writes."""
        (_, repaired, _), (release, point) = applications, paused
        found = self._differing(repaired, scope, plan, point)
        if not found.count:
            return Repair(plan.app, plan.live, plan.scope, plan.code)
        verdict = self._judged(plan, scope, applications, point, found)
        self._require_approved(verdict, found, approved)
        count = self._corrections.publish(repaired, replace(release, switch=f"repair-{verdict.id}"), scope)
        return Repair(plan.app, plan.live, plan.scope, plan.code, corrections=count, verdict=verdict, rows=found.rows)

    def _judged(
        self,
        plan: RepairPlan,
        scope: Scope,
        applications: tuple[ConnectedApplication, ConnectedApplication, Versions],
        point: Point,
        found: _Found,
    ) -> GateVerdict:
        live, repaired, versions = applications
        judged = self._gate(versions).judge(live, repaired, point, replace(scope, topics=found.topics))
        suite = suite_digest(declared(self._config.quality))
        digests = {plan.code: repaired.topology.fingerprint()}
        # The id is a digest of rows, code, expectations and outcomes: an approval is of these changes, and of no others.
        basis = repr((str(scope), found.digest, suite, sorted(digests.items()), sorted(judged.outcomes.items())))
        name = hashlib.sha256(basis.encode()).hexdigest()[:8]
        return GateVerdict(
            id=name,
            at=str(point.vector),
            suite=suite,
            digests=digests,
            outcomes=dict(judged.outcomes),
            critical=judged.critical,
            warnings=judged.warnings,
        )

    def _require_approved(self, verdict: GateVerdict, found: _Found, approved: str) -> None:
        rows = "; ".join(map(str, found.rows[:3]))
        if verdict.critical:
            failures = "; ".join(f"{name}: {verdict.outcomes[name]}" for name in verdict.critical)
            message = f"{self._config.name}: the repair does not pass: {failures}. It would change {rows}"
            raise GateFailedError(
                message, hint="Nothing was published. Correct the code or the input, and repair again."
            )
        if verdict.needs_approval and verdict.id != approved:
            message = (
                f"{self._config.name}: the repair has warnings: {', '.join(verdict.warnings)}. It would change {rows}"
            )
            hint = f"Nothing was published. Look at them, then repeat it with --approve {verdict.id}"
            raise ApprovalNeededError(message, hint=hint)

    def _differing(self, repaired: ConnectedApplication, scope: Scope, plan: RepairPlan, point: Point) -> _Found:
        count, digest, topics, rows = 0, 0, set[str](), list[DifferentRow]()
        for topic in plan.tables:
            sink = repaired.topology.sink_of(topic)
            if sink is None:
                continue
            staging, covers = staging_name(repaired.id, topic), scope.covers(sink, topic)
            with Differ.of(repaired, topic) as differ:
                differ.advance(point.of(topic), point.of(staging))
                more, their_digest = _summed(topic, filter(covers, differ.differences()))
                count, digest = count + more, (digest + their_digest) & _WHOLE
                topics.update([topic] if more else [])
                pairs = filter(covers, differ.differences())
                read = difference_rows(pairs, sink, sink, differ.topics, lambda: None)
                rows += [row_of(topic, row) for row in islice(read, _SHOWN - len(rows))]
        return _Found(count, frozenset(topics), digest, tuple(rows))

    def _require_same_code(self, release: Release, live: ConnectedApplication) -> None:
        """Make sure that the live version has the code that computed its rows, if that is known."""
        known = release.digests.get(live.version)
        if known and known != live.topology.fingerprint():
            message = f"{release.app}: the code of {live.version} has changed since it was released"
            raise ReleaseError(message, hint="Give the new code its own version, and release that.")

    def _settled(self) -> Release:
        release = known_release(self._registry, self._config, self._admin)
        if release.step not in SETTLED:
            message = f"{release.app}: {release.candidate} is being released; {release.progress}"
            raise UnderWayError(message, hint=f"Complete the release, or give it up: {release.command(ABORT)}")
        require_declared(self._config, release.live, "live")
        release.require_nothing_held()
        return release

    def _version(self, plan: RepairPlan) -> tuple[str, Versions]:
        """Declare a version that computes the rows, under the name of an interrupted repair with the same work."""
        application = self._versions().releasable(plan.code)
        # The name begins with a hash of the work, so that the next call finds what a crash has left. It ends with a new id:
        # topics that are created again under the same name can crash processes that use librdkafka.
        basis = repr((str(plan.range.start), plan.code, application.topology.fingerprint()))
        work = _VERSION + hashlib.sha256(basis.encode()).hexdigest()[:8]
        # A repair without offsets has not begun, or was deleted in part (`Versions.discard`).
        begun = re.compile(re.escape(f"{self._config.name}-") + f"({work}[0-9a-f]{{8}})" + kept_offsets_name(""))
        left = (match[1] for topic in self._admin.list_topics() if (match := begun.fullmatch(topic)))
        name = next(left, f"{work}{new_id()}")
        declared = replace(self._config, versions={**self._config.versions, name: self._config.topology_of(plan.code)})
        project = replace(self._project, apps={**self._project.apps, declared.name: declared})
        return name, Versions(project, declared.name, self._admin, self._spark, self._registry)

    def _versions(self) -> Versions:
        return Versions(self._project, self._config.name, self._admin, self._spark, self._registry)

    def _gate(self, versions: Versions) -> Gate:
        return Gate(self._config.quality, versions, self._spark)

    def _await_no_other(self) -> None:
        """Wait for up to a session until no run computes for a repair: two would end each other."""
        for repair in sorted(self._begun()):
            await_no_sole_host(self._admin, self._config, repair)

    def _unmoved(self, release: Release) -> Release:
        """Return the release as it is now, if only other repairs have noted since that they begin."""
        now = self._settled()
        # The run of such a repair was refused, as this one was computing.
        noted = {name: getattr(now, name) for name in ("repaired", "revision", "operation", "changed_by", "changed_ms")}
        return now if replace(release, **noted) == now else release

    def _begun(self) -> set[str]:
        """Return the ids of repairs of this application that have topics."""
        of_repairs = re.compile(re.escape(self._config.application_id(_VERSION)) + "[0-9a-f]+")
        return {match[0] for topic in self._admin.list_topics() if (match := of_repairs.match(topic))}

    def _discard_others(self, versions: Versions, repaired: ConnectedApplication) -> None:
        """Delete what other repairs have left: only a repair with the same work would continue them."""
        for left in self._begun() - {repaired.id}:
            # Another repair may have begun since this one looked.
            check = partial(require_no_sole_host, self._admin, left)
            check()
            version = left.removeprefix(f"{self._config.name}-")
            versions.discard(replace(repaired, application=replace(repaired.application, version=version)), check)

    def _discard_done(self, versions: Versions, repaired: ConnectedApplication) -> None:
        """Delete what a repair has computed, unless another host needs it: all is published, so that is no error."""
        try:
            versions.discard(repaired, partial(require_no_sole_host, self._admin, repaired.id))
        except UnderWayError as error:
            log.warning("topics of %s stay until the next repair: %s", repaired.id, error.message)


def _compared(repaired: ConnectedApplication, scope: Scope, tables: Iterable[str]) -> dict[str, int]:
    found = {}
    for topic in tables:
        sink = repaired.topology.sink_of(topic)
        if sink is not None:
            with Differ.of(repaired, topic) as differ:
                found[topic] = sum(map(scope.covers(sink, topic), differ.rows()))
    return found


def _summed(topic: str, pairs: Iterable[Pair]) -> tuple[int, int]:
    """Count rows that differ, and sum a digest of each: the sum does not depend on their order."""
    count = total = 0
    for pair in pairs:
        values = tuple(None if row is None else row.value for row in (pair.old, pair.new))
        row = repr((topic, pair.partition, pair.key, values)).encode()
        total = (total + int.from_bytes(hashlib.blake2b(row, digest_size=8).digest(), "big")) & _WHOLE
        count += 1
    return count, total
