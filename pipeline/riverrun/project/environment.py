"""Environments: changed applications, and all that follows from them, next to the live ones, and never public."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from riverrun.errors import ConfigError, ReleaseError, StreamsError
from riverrun.hosting.alone import await_no_sole_host, group_of, require_no_sole_host
from riverrun.hosting.state_schemas import forget
from riverrun.kafka.ranges import check_ranges
from riverrun.project.chosen_version import ChosenVersion
from riverrun.project.environment_differences import EnvironmentComparison, left
from riverrun.project.environment_plan import EnvironmentPlanner, partitions_of, require_name, starts_of
from riverrun.project.environment_records import EnvironmentRecord, EnvironmentRegistry, EnvironmentState
from riverrun.records import OffsetRange, OffsetVector, counted
from riverrun.releases.topology import build_topology
from riverrun.runtime.layout import environment_name
from riverrun.spark.bounded_runs.job import RunSummary, run
from riverrun.spark.ranges import RunRange
from riverrun.spark.runs import RunLog
from riverrun.worker.reset import clean_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from riverrun.config import ProjectConfig
    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.kafka.admin import Admin
    from riverrun.project.cluster import ProjectCluster
    from riverrun.project.environment_differences import MemberDifference
    from riverrun.project.environment_plan import EnvironmentMember, EnvironmentPlan


@dataclass(frozen=True, slots=True)
class EnvironmentOutcome:
    """The result of computing an environment.

    Args:
        plan: What was to be done.
        runs: The bounded run of each application.
    """

    plan: EnvironmentPlan
    runs: Mapping[str, RunSummary]

    def __str__(self) -> str:
        """Describe it line by line."""
        return "\n".join(f"{app}: {summary}" for app, summary in self.runs.items())


@dataclass(frozen=True, slots=True)
class EnvironmentStatus:
    """An environment, and what it takes up.

    Args:
        behind: By application, the offsets of its inputs that it has not processed.
        sizes: Topics with their size in bytes, internal ones included; None where brokers do not say.
    """

    record: EnvironmentRecord
    behind: Mapping[str, int]
    sizes: Mapping[str, int | None]

    def __str__(self) -> str:
        """Describe it line by line."""
        record = self.record
        lines = [f"environment {record.name}: {record.state.value}, by {record.by}", f"up to {record.vector}"]
        for app, version in record.members.items():
            behind = f"{counted(self.behind[app], 'offset')} behind" if app in self.behind else "not known"
            lines.append(f"  {app} {version}: {behind}")
        for topic, size in self.sizes.items():
            lines.append(f"  {topic}: {'size not known' if size is None else f'{size} bytes'}")
        return "\n".join(lines)


class Environment:
    """Changed applications and all that follows from them, computed from the first records into topics of their own.

    If a method is interrupted, another call continues.
    """

    def __init__(self, cluster: ProjectCluster, project: ProjectConfig, name: str) -> None:
        require_name(project, name)
        self._cluster = cluster
        self._project = project
        self.name = name
        """Its name."""

    def plan(self, apps: Mapping[str, str | None], *, without: Iterable[str] = ()) -> EnvironmentPlan:
        """Say what `create` would make. Changes nothing.

        Args:
            apps: As in `create`.
            without: As in `create`.

        Raises:
            ConfigError: If there is no such application or version, or it cannot be loaded.
            ReleaseError: If records return to an application that has written them; if an application chooses topics per
                record; if others write a topic as well; or if the environment has other members.
            TopicError: If a topic is missing.
        """
        return self._planned(self._found(), apps, tuple(without))

    def create(
        self,
        apps: Mapping[str, str | None],
        *,
        without: Iterable[str] = (),
        allow_lost: bool = False,
        on_plan: Callable[[EnvironmentPlan], None] = lambda _plan: None,
    ) -> EnvironmentOutcome:
        """Create the environment, and compute its members in the order of the flow. Once it exists, this updates it.

        Args:
            apps: Applications by name, each with its version; None for the live one.
            without: Applications that follow from them, and are left out.
            allow_lost: Whether to compute from the records that are left, if brokers have deleted some.
            on_plan: Called with the plan before anything is done.

        Raises:
            ReleaseError: As `plan`; or if brokers have deleted records of inputs.
            UnderWayError: If another command computes or drops it.
            StreamsError: As a bounded run.
        """
        before = self._found()
        plan = self._planned(before, apps, tuple(without))
        if not (allow_lost or (before is not None and before.allows_lost)):
            plan.require_whole()
        on_plan(plan)
        record = self._begun(before, plan, apps, tuple(without), allow_lost=allow_lost)
        return self._computed(plan, record)

    def update(self, on_plan: Callable[[EnvironmentPlan], None] = lambda _plan: None) -> EnvironmentOutcome:
        """Bring the environment to where the live versions stand now, after completing what was interrupted.

        Args:
            on_plan: As in `create`; called twice if something was interrupted.

        Raises:
            ConfigError: If there is no such environment.
            StreamsError: As `create`.
        """
        record = self._registry.read(self.name)
        named = {app: record.members[app] for app in record.named}
        # Some members may stand at the offsets of that time, and others before them.
        if record.state is EnvironmentState.COMPUTING:
            self.create(named, without=record.without, on_plan=on_plan)
        return self.create(named, without=record.without, on_plan=on_plan)

    def differences(self, app: str | None = None, *, limit: int = 10) -> list[MemberDifference]:
        """Compare the tables of the environment with the public ones; of logs, the numbers of records.

        Args:
            app: The application; None for all.
            limit: Rows to return of each table, at most.

        Raises:
            ConfigError: If there is no such environment, or the application is not in it.
        """
        record = self._registry.read(self.name)
        if app is not None and app not in record.members:
            message = f"{app} is not in environment {self.name}"
            raise ConfigError(message, hint=f"Applications in it: {', '.join(record.members)}.")
        self._require_not_dropping(record)
        plan = self._planner(record).plan(OffsetVector.parse(record.vector))
        self._require_topics(record, plan)
        self._require_equal(plan)
        return [*EnvironmentComparison(plan.members, self._live, self._cluster.admin).compare(app, limit)]

    def status(self) -> EnvironmentStatus:
        """Return its members, how far they are behind, and its topics with their sizes.

        Raises:
            ConfigError: If there is no such environment.
        """
        record = self._registry.read(self.name)
        return EnvironmentStatus(record, self._behind(record), self._sizes(self._cluster.admin))

    def drop(self) -> tuple[str, ...]:
        """Delete the environment: its topics, offsets, groups and records, and its state on this machine.

        Returns:
            The names of all topics that were deleted.

        Raises:
            ConfigError: If there is nothing of such an environment.
            UnderWayError: If a command computes it.
        """
        before, admin = self._registry.find(self.name), self._cluster.admin
        if before is None and not (self._own_topics() or self._directories()):
            self._registry.read(self.name)
        # Written before it is looked who processes: a run that begins later finds this record, and ends.
        dropping = replace(before or EnvironmentRecord(self.name, {}), state=EnvironmentState.DROPPING)
        record = self._registry.write(dropping, before)
        self._require_nobody(record)
        topics = self._own_topics()
        clean_up(self._directories())
        admin.delete_topics(topics)
        forget(admin, topics)
        self._forget(record)
        return topics

    def _live(self, member: EnvironmentMember) -> ConnectedApplication:
        return ChosenVersion(self._cluster, self._project, member.app, member.live).connected().resolved()

    # Plans

    @property
    def _registry(self) -> EnvironmentRegistry:
        return EnvironmentRegistry(self._cluster.admin, self._cluster.by or "")

    def _found(self) -> EnvironmentRecord | None:
        """Return the record; None if there is nothing of such an environment."""
        # Looked for first: a record is written before its topics are created.
        topics = self._own_topics()
        record = self._registry.find(self.name)
        if record is None and topics:
            message = f"Environment {self.name} has no record, although it has topics: {', '.join(topics)}"
            raise ReleaseError(message, hint=f"riverrun env drop {self.name} deletes them.")
        return record

    def _planner(self, record: EnvironmentRecord) -> EnvironmentPlanner:
        return EnvironmentPlanner(self._cluster, self._project, self.name, record.members, record.named, record.without)

    def _planned(
        self, record: EnvironmentRecord | None, apps: Mapping[str, str | None], without: tuple[str, ...]
    ) -> EnvironmentPlan:
        if not apps:
            raise ConfigError(f"Environment {self.name} needs an application", hint="For example --from orders=v2.")
        versions = {app: version for app, version in apps.items() if version is not None}
        if record is None:
            return EnvironmentPlanner(self._cluster, self._project, self.name, versions, tuple(apps), without).plan()
        self._require_not_dropping(record)
        other = {app: version for app, version in versions.items() if record.members.get(app) != version}
        if other or {*apps} != {*record.named} or {*without} != {*record.without}:
            members = ", ".join(f"{app} {version}" for app, version in record.members.items())
            message = f"Environment {self.name} exists, with other members: {members}"
            raise ReleaseError(message, hint=f"riverrun env drop {self.name}, or choose another name.")
        is_under_way = record.state is EnvironmentState.COMPUTING
        plan = self._planner(record).plan(OffsetVector.parse(record.vector) if is_under_way else None)
        self._require_same(record, plan)
        self._require_equal(plan)
        if not is_under_way:
            self._require_topics(record, plan)
        return plan

    def _require_not_dropping(self, record: EnvironmentRecord) -> None:
        if record.state is EnvironmentState.DROPPING:
            message = f"Environment {self.name} is being dropped"
            raise ReleaseError(message, hint=f"riverrun env drop {self.name} completes that.")

    def _require_same(self, record: EnvironmentRecord, plan: EnvironmentPlan) -> None:
        """Make sure that an environment is not computed half by one code, half by another."""
        changed = [app for app, digest in _digests(plan).items() if record.digests.get(app) != digest]
        changed += [app for app in record.members if app not in {each.app for each in plan.members}]
        if changed:
            message = (
                f"{', '.join(changed)}: members or their code have changed since environment {self.name} was created"
            )
            raise ReleaseError(message, hint=f"riverrun env drop {self.name}, then create it again.")

    def _require_equal(self, plan: EnvironmentPlan) -> None:
        """Make sure that topics have as many partitions as the public ones, which may have grown."""
        found = self._cluster.admin.partitions(each.name for each in plan.topics)
        for each in plan.topics:
            if found.get(each.name, each.partitions) != each.partitions:
                message = f"{each.public} has {each.partitions} partitions by now, and {each.name} {found[each.name]}"
                raise ReleaseError(message, hint=f"riverrun env drop {self.name}, then create it again.")

    def _require_topics(self, record: EnvironmentRecord, plan: EnvironmentPlan) -> None:
        missing = ", ".join(sorted(self._missing(plan)))
        if missing and record.state is EnvironmentState.READY:
            message = f"Topics of environment {self.name} have been deleted: {missing}"
            raise ReleaseError(message, hint=f"riverrun env drop {self.name}, then create it again.")
        if missing:
            message = f"Environment {self.name} has not been computed: there is no {missing}"
            raise ReleaseError(message, hint=f"riverrun env update {self.name} completes it.")

    # Computing

    def _begun(
        self,
        before: EnvironmentRecord | None,
        plan: EnvironmentPlan,
        apps: Mapping[str, str | None],
        without: tuple[str, ...],
        *,
        allow_lost: bool,
    ) -> EnvironmentRecord:
        """Return the record of the work: that of a command which was interrupted, or a new one."""
        allows_lost = allow_lost or (before is not None and before.allows_lost)
        if before is not None and before.state is EnvironmentState.COMPUTING:
            is_changed = before.allows_lost != allows_lost
            return self._registry.write(replace(before, allows_lost=True), before) if is_changed else before
        record = EnvironmentRecord(
            self.name,
            {each.app: each.version for each in plan.members},
            tuple(apps),
            without,
            vector=str(plan.vector),
            digests=_digests(plan),
            allows_lost=allows_lost,
        )
        return self._registry.write(record, before)

    def _computed(self, plan: EnvironmentPlan, record: EnvironmentRecord) -> EnvironmentOutcome:
        registry = self._registry

        def check() -> None:
            registry.require(self.name, record)

        check()
        try:
            self._cluster.admin.create_topics(each.spec for each in plan.topics)
            runs = {each.app: self._brought(each, plan.vector, record, check) for each in plan.members}
        except StreamsError:
            # Once another command drops the environment, its topics go missing: that is the cause to be told.
            if registry.find(self.name) is None:
                self._cluster.admin.delete_topics(self._own_topics())
            check()
            raise
        registry.write(replace(record, state=EnvironmentState.READY), record)
        return EnvironmentOutcome(plan, {app: summary for app, summary in runs.items() if summary is not None})

    def _brought(
        self, member: EnvironmentMember, vector: OffsetVector, record: EnvironmentRecord, check: Callable[[], None]
    ) -> RunSummary | None:
        """Process with a member up to the vector, and its other inputs up to their ends."""
        connected = member.connected(self._cluster.admin)
        admin = connected.admin
        tps = partitions_of(admin, connected.topology.source_topics)
        # A global table is read by each host for itself.
        if not tps:
            return None
        inner = [tp for tp in tps if tp.topic.startswith(environment_name(self.name, ""))]
        ends, starts = {**vector.offsets, **admin.stable_end_offsets(inner)}, starts_of(connected, tps)
        if record.allows_lost:
            starts = {tp: max(starts[tp], first) for tp, first in admin.beginning_offsets(tps).items()}
        ranges = {tp: OffsetRange(starts[tp], max(starts[tp], ends.get(tp, 0))) for tp in tps}
        check_ranges(admin, ranges)
        by = self._cluster.by
        return run(connected, RunRange(ranges), self._cluster.sessions.on_demand, build_topology, by=by, check=check)

    # What there is

    def _behind(self, record: EnvironmentRecord) -> dict[str, int]:
        """Return what members have not processed, without those whose topics are not there yet or any more."""
        if record.state is EnvironmentState.DROPPING:
            return {}
        plan = self._planner(record).plan(OffsetVector.parse(record.vector))
        missing, admin = self._missing(plan), self._cluster.admin
        there = [each for each in plan.members if missing.isdisjoint(each.application.topology.source_topics)]
        connected = {each.app: each.connected(admin) for each in there}
        return {app: left(each, each.topology.source_topics) for app, each in connected.items()}

    def _missing(self, plan: EnvironmentPlan) -> set[str]:
        names = {each.name for each in plan.topics}
        return names - self._cluster.admin.partitions(names).keys()

    def _sizes(self, admin: Admin) -> dict[str, int | None]:
        topics = self._own_topics()
        sizes: dict[str, int | None] = dict.fromkeys(topics)
        for tp, size in admin.log_sizes(topics).items():
            sizes[tp.topic] = (sizes[tp.topic] or 0) + size
        return sizes

    # Deleting

    def _own_topics(self) -> tuple[str, ...]:
        return tuple(sorted(self._cluster.admin.list_topics(environment_name(self.name, ""))))

    def _directories(self) -> list[Path]:
        places = {self._project.state_directory(self._project.app(app)) for app in self._project.apps}
        return sorted(found for place in places for found in place.glob(f"{environment_name(self.name, '')}*"))

    def _require_nobody(self, record: EnvironmentRecord) -> None:
        for app, application_id in record.application_ids.items():
            if app in self._project.apps:
                await_no_sole_host(self._cluster.admin, self._project.app(app), application_id)
            else:
                require_no_sole_host(self._cluster.admin, application_id)

    def _forget(self, record: EnvironmentRecord) -> None:
        admin, runs = self._cluster.admin, RunLog(self._cluster.admin)
        for app, application_id in record.application_ids.items():
            admin.delete_group(application_id)
            admin.delete_group(group_of(application_id))
            runs.forget(environment_name(self.name, app))
        # The last of all: until then, another call finds what is left.
        self._registry.delete(record)


def _digests(plan: EnvironmentPlan) -> dict[str, str]:
    return {each.app: each.application.topology.fingerprint() for each in plan.members}
