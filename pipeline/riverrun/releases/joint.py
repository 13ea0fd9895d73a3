"""Several applications go live together: each candidate reads the staging topics of the candidates above it until then.

Each application keeps its own record. Nothing public changes before all of them are in the middle of the switch, and nobody
processes from then on. Both versions stand at the ends of what they read of each other, so these ends correspond: where a
candidate stands in a staging topic is where its public topic ends, behind the corrections, and likewise for the old version.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from riverrun.config import EXACTLY_ONCE_V2
from riverrun.errors import ApprovalNeededError, GateFailedError, ReleaseError, UnderWayError
from riverrun.hosting.alone import require_nobody
from riverrun.hosting.control_topic import ReleaseRegistry
from riverrun.hosting.kept_offsets import commit_and_keep
from riverrun.hosting.ownership import owning
from riverrun.hosting.release import ACTIONS, BEGUN, CUT, ROLLBACK, ReleaseStep, joint_command, named_versions
from riverrun.hosting.topic_ids import found_ids, ids_to_commit
from riverrun.kafka.tombstones import whole_now
from riverrun.records import OffsetVector, TopicPartition
from riverrun.releases.corrections import Corrections, conflicts
from riverrun.releases.gating import Gate, Point
from riverrun.releases.release_plan import Joint
from riverrun.releases.releaser import Releaser
from riverrun.releases.switch import fence
from riverrun.releases.versions import Versions, grow_staging, is_planned_code, keep_all, other_code
from riverrun.runtime.times import OffsetMetadata

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from riverrun.config import ProjectConfig
    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.hosting.release import Action, Release
    from riverrun.kafka.admin import Admin
    from riverrun.records import TaskId


@dataclass(frozen=True, slots=True)
class _Direction:
    """A switch: the steps before, during and after it."""

    action: Action
    before: ReleaseStep
    during: ReleaseStep
    after: ReleaseStep

    def new(self, release: Release) -> str:
        """Return the version that goes live, before it does."""
        return (release.candidate if self.action is CUT else release.previous) or ""


_CUT = _Direction(CUT, ReleaseStep.GATED, ReleaseStep.CUTTING, ReleaseStep.LIVE)
_ROLLBACK = _Direction(ROLLBACK, ReleaseStep.LIVE, ReleaseStep.ROLLING_BACK, ReleaseStep.ROLLED_BACK)


@dataclass(frozen=True, slots=True)
class _Pair:
    """Both versions of an application, where they stand still.

    The vector of the point has all that either of them has committed.
    """

    old: ConnectedApplication
    new: ConnectedApplication
    point: Point


class JointMember:
    """An application of a joint release."""

    def __init__(self, project: ProjectConfig, app: str, admin: Admin, spark: Callable[[], Any], by: str = "") -> None:
        self.app = app
        self.config = project.app(app)
        self._admin = admin
        self.registry = ReleaseRegistry.at(admin, by)
        self.versions = Versions(project, app, admin, spark, self.registry)
        self.releaser = Releaser(project, app, admin, spark, by, registry=self.registry, is_joint=True)
        self.corrections = Corrections(app, self.registry)
        self._gate = Gate(self.config.quality, self.versions, spark)

    def keep_all(self, release: Release, candidate: str, topics: Collection[str]) -> None:
        """Let staging topics of both versions keep every record that others of the release read."""
        live = self.versions.application(release.live)
        grow_staging(live)
        for version in (live, self.versions.application(candidate)):
            keep_all(version, topics)

    def pair(self, release: Release, new: str) -> tuple[ConnectedApplication, ConnectedApplication]:
        return self.versions.releasable(release.live), self.versions.staged(new)

    def require_startable(self, release: Release, joint: Mapping[str, str]) -> None:
        """Make sure that no other release is under way, and that this one, if it is, has no results of other code.

        Applications below may have read them.
        """
        release.require_startable(joint[self.app], joint)
        if release.step in BEGUN and not is_planned_code(release, self.versions.releasable(joint[self.app])):
            raise other_code(release, joint[self.app])

    def brought(self, release: Release, new: str) -> _Pair:
        """Bring both versions to one vector, and to the ends of what they read of others of the release."""
        old, candidate = self.pair(release, new)
        fence(old, candidate)
        self.versions.drain(old, self._read(release, old))
        # A run of the other version may have gone further than the live one.
        if self.versions.is_ahead(candidate, old):
            self.versions.bring(old, self.versions.furthest(old, candidate))
        if not self.versions.has_followed(candidate, old):
            self.versions.follow(candidate, old)
        return _Pair(old, candidate, Point(self._positions(old, candidate), self._gate.ends(candidate)))

    def require_still(self, release: Release, pair: _Pair) -> None:
        """Make sure that nothing has moved since, and that nothing is left to process of what others have written."""
        is_still = (
            self.versions.are_at_one_place(pair.old, pair.new)
            and self._positions(pair.old, pair.new) == pair.point.vector
            and self._have_drained(release, pair.old, pair.new)
            and self._gate.ends(pair.new) == pair.point.ends
        )
        if not is_still:
            message = f"{pair.old.id} or {pair.new.id} is processing, or the applications above it are"
            raise UnderWayError(message, hint="Stop their workers and runs, then try again.")

    def require_at_cut(self, release: Release, new: str) -> None:
        """Make sure that both versions stand where the switch was begun, and that nobody processes."""
        old, candidate = self.pair(release, new)
        self.corrections.interrupt(candidate)
        fence(old, candidate)
        for each in (old, candidate):
            require_nobody(each)
        is_there = str(self._positions(old, candidate)) == release.cut
        # Of inputs that both read, the vector has one offset.
        if not (is_there and self.versions.are_at_one_place(old, candidate)):
            message = f"{old.id} or {candidate.id} has processed records during the switch; nothing was published"
            raise UnderWayError(message, hint="Stop all workers and runs, then try again.")
        # Punctuations write without moving a position, and whoever is moved to an end would miss what is left before it.
        if not self._have_drained(release, old, candidate):
            message = f"{old.id} or {candidate.id} has not processed what came during the switch; nothing was published"
            raise UnderWayError(message, hint="Stop all workers and runs, then try again.")

    def move(self, release: Release, new: str) -> None:
        """Let both versions continue in the topics that they read once the other one is live."""
        for version in (release.live, new):
            staging, goes_live = release.inputs.get(version) or {}, version == new
            earlier = staging if goes_live else {name: topic for topic, name in staging.items()}
            before = self.versions.application(version)
            after = self.versions.reading(version, None if goes_live else staging).resolved()
            for task_id, inputs in after.layout.tasks.items():
                if any(tp.topic in earlier for tp in inputs):
                    with conflicts(release):
                        _move(before, after, task_id, earlier, partial(self.registry.require, release))

    def _have_drained(self, release: Release, *versions: ConnectedApplication) -> bool:
        """Return whether versions have processed all that others of the release have written for them."""
        return all(self.versions.is_drained(each, self._read(release, each)) for each in versions)

    def _positions(self, *versions: ConnectedApplication) -> OffsetVector:
        return OffsetVector({tp: at for each in versions for tp, at in self.versions.positions(each).items()})

    def _read(self, release: Release, version: ConnectedApplication) -> tuple[str, ...]:
        """Return the topics of others of the release that a version reads by now."""
        topics = release.inputs.get(version.version) or {}
        return tuple(topics if version.version == release.live else topics.values())


def _move(
    before: ConnectedApplication,
    after: ConnectedApplication,
    task_id: TaskId,
    earlier: Mapping[str, str],
    check: Callable[[], None],
) -> None:
    """Commit the ends of inputs, with the times of the topics in whose place they are: `earlier` has these by topic.

    `check` raises if another process has taken the switch over.
    """
    admin, inputs = after.admin, after.layout.tasks[task_id]
    ids = found_ids(admin, after.application.task_spec(task_id, inputs).topics)
    with owning(after, task_id) as producer:
        whole = whole_now(admin, earlier)
        ends = admin.settled_end_offsets(tp for tp in inputs if tp.topic in earlier)
        known = before.committed(TopicPartition(earlier[tp.topic], tp.partition) for tp in ends)
        known |= after.committed(tp for tp in inputs if tp not in ends)
        commits = {}
        for tp in inputs:
            found = known.get(TopicPartition(earlier.get(tp.topic, tp.topic), tp.partition))
            noted = OffsetMetadata.decode("" if found is None else found.metadata)
            noted = replace(noted, owner="", barrier=None, topics=ids_to_commit(tp, ids, after.id))
            if tp in ends:
                commits[tp] = ends[tp], replace(noted, taken=0, next_time=-1, whole=whole).encode()
            elif found is not None:
                commits[tp] = found.offset, noted.encode()
        # After the ends were read: a version that is live by now may have written more. A later owner fences this producer.
        check()
        commit_and_keep(producer, after.id, commits, commits)


class JointReleaser:
    """Takes several applications from one version to another together. Every step can be run again.

    Args:
        members: In the order of the flow.
        joint: Their candidates, in the same order.
        on_step: Called with what a switch has done, after each step that a crash may follow.
    """

    def __init__(
        self, members: Sequence[JointMember], joint: Mapping[str, str], on_step: Callable[[str], None] = lambda _: None
    ) -> None:
        self._members = members
        self._joint = dict(joint)
        self._on_step = on_step

    def statuses(self) -> dict[str, Release]:
        """Return the records of the applications, each of which has to be a part of this release."""
        found = {each.app: each.releaser.status() for each in self._members}
        if others := [app for app, release in found.items() if release.joint != self._joint]:
            message = f"{', '.join(others)}: not released together as {named_versions(self._joint)}"
            hint = "`riverrun release status` says what is released with an application, and how far it is."
            left = [each for each in found.values() if each.joint == self._joint]
            if any(each.step in BEGUN for each in left):
                # Others may be in another release by now.
                action = "abort" if any(found[app].step in BEGUN for app in others) else "start"
                hint = f"Its start was interrupted. Next: {joint_command(action, self._joint)}"
            elif left:
                versions = dict.fromkeys(found, "VERSION")
                hint = f"That release is over. Another one may start: {joint_command('start', versions)}"
            raise ReleaseError(message, hint=hint)
        return found

    def is_cutting(self) -> bool:
        """Return whether the cut is under way, or done: only another `cut` can follow then, or a rollback."""
        found = {each.app: each.releaser.status() for each in self._members}
        return all(release.joint == self._joint for release in found.values()) and any(
            release.step is ReleaseStep.CUTTING
            or (release.step is ReleaseStep.LIVE and release.live == self._joint[app])
            for app, release in found.items()
        )

    def start(self, inputs: Mapping[str, Mapping[str, Mapping[str, str]]], read: Mapping[str, Collection[str]]) -> None:
        """Begin the release of all candidates, or continue that.

        Args:
            inputs: Topics by topic that versions read while they are not live, by application and version.
            read: The topics that others of the release read, by application.
        """
        for each in self._members:
            each.require_startable(each.releaser.status(), self._joint)
        for each in self._members:
            release, candidate = each.releaser.status(), self._joint[each.app]
            if release.joint != self._joint or release.step not in {ReleaseStep.REPROCESSED, ReleaseStep.GATED}:
                release = each.releaser.start(candidate, joint=Joint(self._joint, inputs[each.app]))
            each.keep_all(release, candidate, read[each.app])

    def reprocess(self) -> None:
        """Compute the candidates, each up to where its live version stands, and what those above it have written."""
        self.statuses()
        for each in self._members:
            each.releaser.reprocess()

    def gate(self) -> dict[str, Release]:
        """Judge all candidates where everything above them stands still, at the same offsets of both versions."""
        releases = self._given_back(_CUT)
        for each in self._members:
            each.releaser.check("gate")
        pairs = self._still(releases, _CUT)
        failures = []
        for each in self._members:
            try:
                releases[each.app] = each.releaser.gate(pairs[each.app].point)
            # The parts of one verdict: what else fails is told at once.
            except GateFailedError as error:
                failures.append(error.message)
        if failures:
            hint = f"Give the release up, and correct the code: {joint_command('abort', self._joint)}"
            raise GateFailedError("; ".join(failures), hint=hint)
        return releases

    def require_approved(self) -> None:
        """Make sure that persons have approved the warnings of all parts of the verdict."""
        found = self.statuses().values()
        open_ = [each for each in found if each.verdict is not None and each.verdict.needs_approval]
        if open_:
            parts = ", ".join(f"{each.app}: {', '.join(each.verdict.warnings)}" for each in open_ if each.verdict)
            commands = ", ".join(
                ACTIONS["approve"].command(each.app, each.verdict.id) for each in open_ if each.verdict
            )
            message = f"The gate has warnings without an approval: {parts}"
            raise ApprovalNeededError(message, hint=f"Look at them, then: {commands}")

    def cut(self) -> dict[str, Release]:
        """Make all candidates live."""
        return self._switched(_CUT)

    def rollback(self) -> dict[str, Release]:
        """Make all previous versions live again."""
        return self._switched(_ROLLBACK)

    def abort(self) -> dict[str, Release]:
        """Give the release up before its cut, and delete what the candidates have computed."""
        found = {each.app: each.releaser.status() for each in self._members}
        begun = [each for each in self._members if found[each.app].joint == self._joint]
        # A start that was interrupted has not noted all of them. If none is noted, this says so.
        if len(begun) in {0, len(self._members)}:
            found = self._given_back(_CUT)
        if any(found[each.app].step in {ReleaseStep.CUTTING, ReleaseStep.LIVE} for each in begun):
            message = f"The cut of {named_versions(self._joint)} has begun"
            hint = f"Complete it: {joint_command('cut', self._joint)}. It can be rolled back."
            raise ReleaseError(message, hint=hint)
        # From below: nobody reads what is deleted.
        return {each.app: each.releaser.abort() for each in reversed(begun)}

    # Switching

    def _switched(self, way: _Direction) -> dict[str, Release]:
        releases = self.statuses()
        steps = {each.step for each in releases.values()}
        if steps == {way.after}:
            return releases
        if way.after not in steps or not steps <= {way.during, way.after}:
            if steps != {way.during}:
                releases = self._begun(way)
            if not all(each.switch for each in releases.values()):
                releases = self._entered(releases, way)
        return self._completed(releases, way)

    def _begun(self, way: _Direction) -> dict[str, Release]:
        """Let all versions stand still, and note that the switch is under way. Nothing public has changed."""
        releases = self._given_back(way)
        for each in self._members:
            each.releaser.check(way.action.name)
        # Writing takes the release over from other processes.
        releases = {each.app: each.registry.write(releases[each.app]) for each in self._members}
        pairs = self._still(releases, way)
        self._on_step("still")
        for each in self._members:
            each.corrections.keep(pairs[each.app].old, releases[each.app])
        self._on_step("kept")
        for each in self._members:
            cut = releases[each.app].to(way.during, cut=str(pairs[each.app].point.vector), switch="")
            releases[each.app] = each.registry.write(cut)
        return releases

    def _entered(self, releases: dict[str, Release], way: _Direction) -> dict[str, Release]:
        """Make sure that nobody has processed since the versions stood still, now that nobody else may."""
        try:
            for each in self._members:
                each.require_at_cut(releases[each.app], way.new(releases[each.app]))
        except UnderWayError:
            for each in self._members:
                _give_back(each, releases[each.app], way)
            raise
        switch = uuid.uuid4().hex
        for each in self._members:
            releases[each.app] = each.registry.write(replace(releases[each.app], switch=switch))
        self._on_step("entered")
        return releases

    def _completed(self, releases: dict[str, Release], way: _Direction) -> dict[str, Release]:
        """Publish corrections, move all positions behind them, and let the new versions go live."""
        left = [each for each in self._members if releases[each.app].step is way.during]
        # Writing fences an earlier attempt that sleeps.
        releases |= {each.app: each.registry.write(releases[each.app]) for each in left}
        published = {each.app: self._published(each, releases[each.app], way) for each in left}
        self._on_step("published")
        # One that is live may have written more: then all of them have moved.
        if len(left) == len(self._members):
            for each in left:
                each.move(releases[each.app], way.new(releases[each.app]))
            self._on_step("moved")
        for each in left:
            releases[each.app] = each.registry.write(published[each.app])
            self._on_step(f"{each.app} is live")
        return releases

    def _published(self, member: JointMember, mine: Release, way: _Direction) -> Release:
        old, new = member.pair(mine, way.new(mine))
        member.corrections.interrupt(new)
        count = member.corrections.publish(new, mine)
        more, published = member.corrections.publish_logs(new, old, mine)
        done = mine.to(way.after, live=new.version, previous=old.version, corrections=count + more, published=published)
        return replace(done, epoch=mine.epoch + 1, pause_ms=0, corrections_ms=0)

    def _still(self, releases: Mapping[str, Release], way: _Direction) -> dict[str, _Pair]:
        """Bring all versions to where they are compared, from above, and make sure that they stay there."""
        # Settings may have changed since the start.
        require_exactly_once(self._members)
        if running := [*self._running(releases, way)]:
            hint = "Stop these workers and runs, then try again. One that died counts until its session times out."
            raise UnderWayError("; ".join(running), hint=hint)
        pairs = {each.app: each.brought(releases[each.app], way.new(releases[each.app])) for each in self._members}
        for each in self._members:
            each.require_still(releases[each.app], pairs[each.app])
        return pairs

    def _running(self, releases: Mapping[str, Release], way: _Direction) -> Iterator[str]:
        """Yield a message for each version of these applications that is processed, with the hosts that process it."""
        for each in self._members:
            for version in each.pair(releases[each.app], way.new(releases[each.app])):
                try:
                    require_nobody(version)
                except UnderWayError as error:
                    yield error.message

    def _given_back(self, way: _Direction) -> dict[str, Release]:
        """Return the records; those of a switch that has died before it could publish are at the step before it again."""
        releases = self.statuses()
        # Before anything is published, all are in the middle of the switch, and know its id.
        if all(each.step is not way.before and each.switch for each in releases.values()):
            return releases
        return {each.app: _give_back(each, releases[each.app], way) for each in self._members}


def _give_back(member: JointMember, release: Release, way: _Direction) -> Release:
    return member.registry.write(release.to(way.before)) if release.step is way.during else release


def require_exactly_once(members: Iterable[JointMember]) -> None:
    """Make sure that a switch can fence all that the applications have sent."""
    for each in members:
        if each.config.streams.processing_guarantee != EXACTLY_ONCE_V2:
            message = f"{each.app} runs at least once: a joint switch cannot fence records that an old owner has sent"
            raise ReleaseError(message, hint='Set processing_guarantee = "exactly_once_v2", or release it alone.')
