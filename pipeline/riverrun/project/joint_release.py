"""The joint release of several applications: each step is taken with all of them, in the order of the flow."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from riverrun.errors import ReleaseError
from riverrun.project.chosen_version import ChosenVersion
from riverrun.project.joint_plan import plan_joint
from riverrun.releases.joint import JointMember, JointReleaser, require_exactly_once
from riverrun.releases.release_plan import Joint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from riverrun.config import ProjectConfig
    from riverrun.hosting.release import Release
    from riverrun.kafka.admin import Admin
    from riverrun.project.cluster import ProjectCluster
    from riverrun.project.joint_plan import JointPlan


STEPS = ("start", "reprocess", "gate", "cut")
"""The steps from the start to the cut."""


class JointRelease:
    """Switches several applications to other versions together. Each step returns this object, so that steps can be chained.

    ```python
    project.joint_release({"orders": "v2", "totals": "v2"}).start().reprocess().gate().cut()
    ```

    Args:
        cluster: Brokers and Spark.
        project: The project that declares them.
        versions: The versions to release, by application.
        on_step: Called with what a switch has done, after each step that a crash may follow.

    Raises:
        ConfigError: If an application or a version is not declared.
    """

    def __init__(
        self,
        cluster: ProjectCluster,
        project: ProjectConfig,
        versions: Mapping[str, str],
        on_step: Callable[[str], None] = lambda _: None,
    ) -> None:
        for app, version in versions.items():
            project.app(app).topology_of(version)
        self._cluster = cluster
        self._project = project
        self._versions = dict(versions)
        self._on_step = on_step

    @property
    def status(self) -> Mapping[str, Release]:
        """The state of the release of each application, in the order of the flow.

        Raises:
            ReleaseError: If they are not released together, or the control topic has lost one.
        """
        return self._releaser().statuses()

    def plan(self) -> JointPlan:
        """Return the plan: the order, what each candidate reads until the cut, and the plan of each. Changes nothing.

        Raises:
            ConfigError: If an application cannot be loaded, or only one is named.
            ReleaseError: If they cannot be released together.
        """
        return self._planned()[0]

    def start(self) -> JointRelease:
        """Start the release. The previous releases of these applications can no longer be rolled back.

        What the candidates have computed before is deleted: they begin from scratch.

        Raises:
            ReleaseError: As `plan`; or if one of them is being released already.
            UnderWayError: If a host of a candidate is running.
        """
        plan, members = self._planned()
        ordered = [members[app] for app in plan.members]
        JointReleaser(ordered, plan.members, self._on_step).start(plan.inputs, plan.read)
        return self

    def reprocess(self) -> JointRelease:
        """Compute the candidates from the beginning, one after the other, into fresh state and staging topics.

        Raises:
            ReleaseError: If this step does not follow the release's current step.
            EngineError: If Spark fails.
        """
        self._releaser().reprocess()
        return self

    def gate(self) -> JointRelease:
        """Check the data of all candidates, where everything above them stands still; `status` has the verdicts.

        Live versions first process what is left of the topics of others of the release.

        Raises:
            GateFailedError: If one of them must not go live.
            UnderWayError: If workers or runs of them process.
        """
        self._releaser().gate()
        return self

    def cut(self) -> JointRelease:
        """Make all candidates live, and correct the rows of public tables that differ.

        Raises:
            ApprovalNeededError: If a gate has warnings that no person has approved.
            UnderWayError: If workers or runs of them process.
            ReleaseError: If they cannot be cut.
        """
        self._releaser().cut()
        return self

    def rollback(self) -> JointRelease:
        """Make all previous versions live again.

        Raises:
            UnderWayError: If workers or runs of them process.
            ReleaseError: If a rollback is no longer possible.
        """
        self._releaser().rollback()
        return self

    def abort(self) -> JointRelease:
        """Abandon the release before its cut, and delete what the candidates have computed.

        Raises:
            ReleaseError: If it is past its cut.
        """
        self._releaser().abort()
        return self

    def take_through(self, last: str, tell: Callable[[str], None] = lambda _line: None) -> JointRelease:
        """Take all steps from the start through one. After a crash, another call continues.

        Args:
            last: The last step, one of `start`, `reprocess`, `gate` and `cut`.
            tell: Called with each finished step.

        Raises:
            ApprovalNeededError: If a gate has warnings: a person approves them, and cuts.
            StreamsError: If a step fails; the earlier ones are done.
        """
        steps = STEPS[: STEPS.index(last) + 1]
        # Another start would begin a release anew that is live, or in the middle of its cut.
        for step in steps[-1:] if last == "cut" and self._releaser().is_cutting() else steps:
            getattr(self, step)()
            tell(f"{step}: done for {', '.join(self.status)}")
            if step == "gate":
                self._releaser().require_approved()
        return self

    def _releaser(self) -> JointReleaser:
        """Return the steps; the order is that of the start."""
        members = self._members()
        known = (release.joint for each in members.values() for release in [each.releaser.status()])
        joint = next((joint for joint in known if joint == self._versions), self._versions)
        return JointReleaser([members[app] for app in joint], joint, self._on_step)

    def _members(self) -> dict[str, JointMember]:
        cluster = self._cluster
        return {
            app: JointMember(self._project, app, cluster.admin, cluster.sessions.session, cluster.by or "")
            for app in self._versions
        }

    def _planned(self) -> tuple[JointPlan, dict[str, JointMember]]:
        members = self._members()
        live = {app: ChosenVersion(self._cluster, self._project, app).version for app in self._project.apps}
        plan = plan_joint(self._project, self._versions, live, self._cluster.kafka)
        require_exactly_once(members.values())
        _require_own_times(self._cluster.admin, plan)
        for each in members.values():
            self._require_simple(each, plan)
        plans = {
            app: members[app].releaser.plan(version, joint=Joint(plan.members, plan.inputs[app]))
            for app, version in plan.members.items()
        }
        return replace(plan, plans=plans), members

    def _require_simple(self, member: JointMember, plan: JointPlan) -> None:
        """Refuse applications of kinds that no joint release takes."""
        config, app = member.config, member.app
        reasons = {
            "has outputs that a gate holds back (gate = true)": config.gate,
            "reads an archive (archive.url)": bool(config.streams.archive_url),
        }
        for version in (plan.live[app], plan.members[app]):
            reasons[f"is SQL in {version}"] = config.loader_of(version) is not None
            stores = member.versions.releasable(version).topology.stores.values()
            restored = {each.source_topic for each in stores if each.source_topic is not None}
            reused = sorted(restored & plan.inputs[app][version].keys())
            reasons[f"restores a table of {version} from {', '.join(reused)} (reuse.ktable.source.topics)"] = bool(
                reused
            )
        for reason, is_given in reasons.items():
            if is_given:
                message = f"{app} {reason}: it cannot be in a joint release"
                raise ReleaseError(message, hint="Release it alone, after the others.")


def _require_own_times(admin: Admin, plan: JointPlan) -> None:
    """Refuse topics between the applications in which records have other times than in staging topics."""
    between = {topic for versions in plan.inputs.values() for topics in versions.values() for topic in topics}
    settings = admin.topic_configs(between)
    stamped = sorted(
        topic for topic, found in settings.items() if found.get("message.timestamp.type") == "LogAppendTime"
    )
    if stamped:
        message = f"Brokers replace the times of records in {', '.join(stamped)}: candidates would read other times"
        hint = "Set its message.timestamp.type to CreateTime, or release the applications alone."
        raise ReleaseError(message, hint=hint)
