"""Loads and checks versions of an application, creates their topics, and publishes candidates elsewhere."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from riverrun.config import OutputKind
from riverrun.errors import ConfigError, RangeError, ReleaseError, VersionConflictError
from riverrun.hosting.connected import ConnectedApplication
from riverrun.hosting.continuing import require_new
from riverrun.hosting.control_topic import ReleaseRegistry, release_of
from riverrun.hosting.earlier_records import with_archive
from riverrun.hosting.inputs import input_lags, reset_offsets
from riverrun.hosting.kept_offsets import KeptOffsets
from riverrun.hosting.local_state import locked
from riverrun.hosting.process import SystemClock
from riverrun.hosting.release import ABORT, DELETED, RETIRE, ReleaseStep, staging_name
from riverrun.hosting.state_schemas import forget
from riverrun.kafka.admin import TopicSpec
from riverrun.processor.handlers import may_keep_letters
from riverrun.records import OffsetRange, OffsetVector, TopicPartition
from riverrun.releases.thinned_inputs import thinned_inputs
from riverrun.releases.topology import build_topology, load_application, outputs
from riverrun.runtime.layout import kept_offsets_name, own_topics
from riverrun.spark.bounded_runs.job import RunSummary, run
from riverrun.spark.ranges import COMMITTED, EARLIEST, RunRange, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from riverrun.config import AppConfig, ProjectConfig
    from riverrun.hosting.application import Application
    from riverrun.hosting.release import Release
    from riverrun.kafka.admin import Admin
    from riverrun.topology.topology import Topology

_ATTEMPTS = 5
# Brokers may stamp records of other topics with their own time (`log.message.timestamp.type`).
_ALL = {"retention.ms": "-1", "message.timestamp.type": "CreateTime"}
_EVERYTHING = {"cleanup.policy": "delete", **_ALL}
SETTINGS = {OutputKind.TABLE: {"cleanup.policy": "compact", **_ALL}, OutputKind.LOG: _EVERYTHING}
"""Settings of topics that hold results which are not public, by the kind of the public topic."""


def create_staging(connected: ConnectedApplication, *, grows: bool = False) -> dict[str, str]:
    """Create the staging topics of a version, each with as many partitions as its public topic.

    Staging topics of tables are compacted. Those of logs keep every record. Those of the live version may have fewer partitions
    since an earlier release: with `grows`, they get more, as by `grow_staging`.
    """
    admin, kinds = connected.admin, outputs(connected.application)
    admin.require(kinds, f"{connected.id} publishes to")
    counts = admin.partitions(kinds)
    names = {topic: staging_name(connected.id, topic) for topic in kinds}
    existing = admin.partitions(names[topic] for topic, output in kinds.items() if output.kind is OutputKind.LOG)
    for name in existing:
        _require_all_kept(connected, name)
    staging = admin.partitions(names.values())
    if grows:
        grown = _grown(names, counts | staging)
        admin.add_partitions(grown)
        staging |= grown
    _require_equal(connected, counts, staging, names)
    admin.create_topics(TopicSpec(names[t], counts[t], SETTINGS[output.kind]) for t, output in kinds.items())
    return names


def keep_all(connected: ConnectedApplication, topics: Iterable[str]) -> None:
    """Let the staging topics of a version keep every record, as other applications read them."""
    admin = connected.admin
    counts = admin.partitions(topics)
    names = {topic: staging_name(connected.id, topic) for topic in counts}
    configs = admin.topic_configs(names.values())
    others = [name for name, found in configs.items() if not _EVERYTHING.items() <= found.items()]
    admin.alter_topic_configs(dict.fromkeys(others, _EVERYTHING))
    admin.create_topics(TopicSpec(names[topic], count, _EVERYTHING) for topic, count in counts.items())


def grow_staging(live: ConnectedApplication) -> None:
    """Give staging topics of the live version as many partitions as their public topics have by now.

    Call it only while all that these topics hold is public: then no key is missed in the partition where it is now.
    """
    names = {topic: staging_name(live.id, topic) for topic in outputs(live.application)}
    counts = live.admin.partitions({*names, *names.values()})
    live.admin.add_partitions(_grown(names, counts))


def _grown(names: Mapping[str, str], counts: Mapping[str, int]) -> dict[str, int]:
    """Return the staging topics that have fewer partitions than their public topics, with the number of these."""
    both = {topic: name for topic, name in names.items() if topic in counts and name in counts}
    return {name: counts[topic] for topic, name in both.items() if counts[name] < counts[topic]}


def _require_equal(
    connected: ConnectedApplication, counts: Mapping[str, int], staging: Mapping[str, int], names: Mapping[str, str]
) -> None:
    """Make sure that staging topics have as many partitions as their public topics: keys would be in others."""
    for topic, name in names.items():
        if staging.get(name, counts[topic]) != counts[topic]:
            message = f"{topic} has {counts[topic]} partitions, and its staging topic {name} has {staging[name]}"
            raise ReleaseError(message, hint=_deletes_staging(connected))


def _require_all_kept(connected: ConnectedApplication, staging: str) -> None:
    if "compact" in connected.admin.topic_config(staging)["cleanup.policy"]:
        message = f"{staging} was made for a table, and is compacted: it does not keep every record of a log"
        raise ReleaseError(message, hint=_deletes_staging(connected))


def _deletes_staging(connected: ConnectedApplication) -> str:
    app, version = connected.application.config.name, connected.version
    abort, retire = ABORT.command(app), RETIRE.command(app, version)
    return f"If {version} is a candidate, `{abort}` deletes it, otherwise `{retire}`. Then start again."


def create_letters(connected: ConnectedApplication, topic: str | None) -> str:
    """Create the dead letter topic of a version that is not live, and return its name.

    It has as many partitions as the public one, or one if handlers choose topics themselves. It keeps everything: dead
    letters are not a table, and are not published when the version goes live.
    """
    admin = connected.admin
    name, partitions = staging_name(connected.id, topic or "dead-letters"), 1
    if topic is not None:
        admin.require([topic], f"{connected.id} copies failures to")
        partitions = admin.partitions([topic])[topic]
    admin.create_topics([TopicSpec(name, partitions, _EVERYTHING)])
    return name


def processing_application(project: ProjectConfig, admin: Admin, name: str, version: str | None = None) -> Application:
    """Load an application for processing: the live version (the default) publishes, others write to their staging topics."""
    config = project.app(name)
    release = release_of(admin, config)
    chosen = version or release.live
    if chosen == release.live:
        require_declared(config, chosen, "live")
        return load_application(project, name, version=chosen, kafka=admin.kafka)
    versions = Versions(project, name, admin, _no_spark)
    staged = _releasable(versions.reading(chosen, release.elsewhere(chosen)))
    release.require_results(chosen)
    _require_planned_code(release, staged)
    release.require_carried(chosen)
    registry = ReleaseRegistry.at(admin)
    # Staging topics without a record would mean that the control topic is lost, so the record comes first.
    if not release.revision:
        release = registry.write(release)
    staged = versions.staged(staged.version)
    _note_begin(registry, release, versions, staged)
    return staged.application


def _note_begin(registry: ReleaseRegistry, release: Release, versions: Versions, version: ConnectedApplication) -> None:
    """Note where a version begins. Several hosts may start at the same time: the first note stands."""
    for attempt in range(1, _ATTEMPTS + 1):
        noted = versions.begun(release, version, by_policy=True)
        if noted == release:
            return
        try:
            registry.write(noted)
        except VersionConflictError:
            if attempt == _ATTEMPTS:
                raise
            release = registry.read(release.app, release.live)
            release.require_results(version.version)


def _require_planned_code(release: Release, version: ConnectedApplication) -> None:
    """Make sure that a version whose results are needed is not computed half by the planned code, half by other code."""
    needed = release.previous if release.step is ReleaseStep.LIVE else release.candidate
    is_needed = needed == version.version and release.step not in {ReleaseStep.NONE, ReleaseStep.ABORTED}
    if is_needed and not is_planned_code(release, version):
        raise other_code(release, version.version, " Then start this again.")


def is_planned_code(release: Release, version: ConnectedApplication) -> bool:
    """Return whether no other code has computed the results of a version, as far as they are left."""
    return release.digests.get(version.version, "") in {"", DELETED, version.fingerprint}


def other_code(release: Release, version: str, more: str = "") -> ReleaseError:
    """Make the error that a version's results are those of other code than its present one."""
    message = f"{release.app}: the code of {version} has changed since the release was planned"
    return ReleaseError(message, hint=release.hint_of_other_code(version) + more)


def require_declared(config: AppConfig, version: str, role: str) -> None:
    """Make sure that `streams.toml` still declares a version that the control topic names: else its code is unknown."""
    if version not in {config.version, *config.versions}:
        message = f"{config.name}: {version} is {role}, but streams.toml does not declare it"
        hint = f'Declare it again: [apps.{config.name}.versions] {version} = "module:function".'
        raise ReleaseError(message, hint=hint)


def _releasable(version: ConnectedApplication) -> ConnectedApplication:
    # The topics that such a sink has written to are unknown: a candidate's records could not be kept from the public,
    # and those of the live version could not be corrected.
    if version.topology.choosing_sinks:
        sinks, name = ", ".join(version.topology.choosing_sinks), version.application.config.name
        message = f"{name} {version.version} chooses topics per record ({sinks}): it cannot be released"
        raise ReleaseError(message, hint="Name the topics: `split()`, and one `to(topic)` per branch.")
    return version


def _no_spark() -> Any:
    raise AssertionError("an application is only loaded here")


class Versions:
    """The versions of an application, as a release needs them; `registry` defaults to the control topic."""

    def __init__(
        self,
        project: ProjectConfig,
        app: str,
        admin: Admin,
        spark: Callable[[], Any],
        registry: ReleaseRegistry | None = None,
    ) -> None:
        self._project = project
        self._registry = ReleaseRegistry.at(admin) if registry is None else registry
        self._config = project.app(app)
        self._admin = with_archive(admin, self._config.streams.archive_url)
        self._spark = spark

    @property
    def spark(self) -> Callable[[], Any]:
        """Returns a Spark session when one is needed."""
        return self._spark

    def application(self, version: str) -> ConnectedApplication:
        return self.reading(version, self._registry.elsewhere(self._config.name, version))

    def reading(self, version: str, elsewhere: Mapping[str, str] | None) -> ConnectedApplication:
        """Return a version that reads given topics in place of those that its topology names."""
        application = load_application(self._project, self._config.name, version=version, kafka=self._admin.kafka)
        return ConnectedApplication(application.reading(elsewhere), self._admin)

    def releasable(self, version: str) -> ConnectedApplication:
        """Return a version all of whose public topics are known."""
        return _releasable(self.application(version))

    def all_from(self, *loaded: ConnectedApplication) -> Iterator[ConnectedApplication]:
        """Return the versions that are loaded already, then load the others one by one."""
        yield from loaded
        known = {each.version for each in loaded}
        for version in {self._config.version: None} | dict.fromkeys(self._config.versions):
            if version not in known:
                yield self.application(version)

    def staged(self, version: str, *, grows: bool = False) -> ConnectedApplication:
        """Return a version that publishes to its staging topics, including its dead letters; `grows` as in `create_staging`."""
        found, streams = self.releasable(version), self._config.streams
        published = create_staging(found, grows=grows)
        letters = None
        if may_keep_letters(streams):
            letters = create_letters(found, streams.errors_dead_letter_queue_topic_name)
        return replace(found, application=replace(found.application, published=published, dead_letters=letters))

    def target(self, leader: ConnectedApplication, follower: ConnectedApplication) -> dict[TopicPartition, int]:
        """Return the offsets up to which a version follows another: the leader's position, and the ends of other topics."""
        own = _sources(follower) - _sources(leader)
        return self._committed(leader, follower) | self._admin.end_offsets(self._partitions(own))

    def are_at_one_place(self, one: ConnectedApplication, other: ConnectedApplication) -> bool:
        """Return whether two versions have processed the same offsets in topics that both read."""
        return self._committed(one, other) == self._committed(other, one)

    def are_at(self, vector: OffsetVector, one: ConnectedApplication, other: ConnectedApplication) -> bool:
        """Return whether two versions have processed exactly the offsets of a vector in topics that both read."""
        place = self._committed(one, other)
        return self._committed(other, one) == place and place.items() <= vector.offsets.items()

    def is_ahead(self, one: ConnectedApplication, other: ConnectedApplication) -> bool:
        """Return whether a version has processed something that another has not.

        Then workers may be processing it, even if none is a member of its group at the moment.
        """
        reached = self._committed(other, one)
        return any(offset > reached[tp] for tp, offset in self._committed(one, other).items())

    def place(self, one: ConnectedApplication, other: ConnectedApplication) -> OffsetVector:
        """Return the position of the first of two versions, in the source topics that both read."""
        return OffsetVector(self._committed(one, other))

    def follow(self, follower: ConnectedApplication, leader: ConnectedApplication) -> RunSummary:
        """Process with `follower` up to the offsets that `leader` has processed."""
        target = OffsetVector(self.target(leader, follower))
        start = COMMITTED if follower.committed(target.offsets) else EARLIEST
        return run(follower, resolve(follower, start, str(target)), self._spark, build_topology)

    def furthest(self, one: ConnectedApplication, other: ConnectedApplication) -> dict[TopicPartition, int]:
        """Return how far the one of two versions is that is ahead, in each partition that both read."""
        reached = self._committed(other, one)
        return {tp: max(offset, reached[tp]) for tp, offset in self._committed(one, other).items()}

    def has_followed(self, follower: ConnectedApplication, leader: ConnectedApplication) -> bool:
        """Return whether a version has processed what `follow` would process, with nothing left between its sub-topologies."""
        target = self.target(leader, follower)
        return target.items() <= self.positions(follower).items() and self.is_drained(follower, ())

    def drain(self, version: ConnectedApplication, topics: Collection[str]) -> None:
        """Process some topics to their ends with a version, and what is left between its sub-topologies."""
        ends = self._admin.stable_end_offsets(self._partitions(frozenset(topics)))
        # Whether or not anything is left: a topic that was created again may be as long as the one that was read.
        left = resolve(version, COMMITTED, str(OffsetVector(ends)) or COMMITTED)
        if not self.is_drained(version, topics):
            run(version, left, self._spark, build_topology)

    def is_drained(self, version: ConnectedApplication, topics: Collection[str]) -> bool:
        """Return whether a version stands at the ends of some topics, with nothing left between its sub-topologies."""
        lags = input_lags(version)
        return not any(each.lag for each in lags if each.is_internal or each.tp.topic in topics)

    def positions(self, version: ConnectedApplication) -> dict[TopicPartition, int]:
        """Return the committed offsets of a version in all topics of others that it reads."""
        found = version.committed(self._partitions(_sources(version)))
        return {tp: committed.offset for tp, committed in found.items()}

    def empty_run(self, version: ConnectedApplication) -> RunSummary:
        """Return the summary of a run over nothing, at a version's position: its workers process it already."""
        tps = self._partitions(_sources(version))
        known = version.committed(tps)
        first = self._admin.beginning_offsets(tp for tp in tps if tp not in known)
        positions = first | {tp: committed.offset for tp, committed in known.items()}
        return RunSummary(RunRange({tp: OffsetRange(offset, offset) for tp, offset in sorted(positions.items())}), 0)

    def has_begun(self, version: ConnectedApplication) -> bool:
        """Return whether a version has ever committed offsets, even if brokers have deleted them since."""
        tps = self._partitions(_sources(version))
        return bool(version.committed(tps)) or not KeptOffsets(self._admin, version.id).read().keys().isdisjoint(tps)

    def begun(
        self,
        release: Release,
        version: ConnectedApplication,
        topics: Collection[str] | None = None,
        *,
        by_policy: bool = False,
    ) -> Release:
        """Return the release with a note of where a version begins, unless it has processed something already.

        It begins at the first records of `topics` (defaults to all inputs) or, with `by_policy`, where hosts begin.
        """
        # Once something is committed, brokers no longer show where it began, as retention continues.
        if self.has_begun(version):
            return release
        tps, below = self._partitions(_sources(version)), self.others(release.joint, version)
        if not self._needs_history(release, version, below):
            tps = []
        wanted = [tp for tp in tps if topics is None or tp.topic in topics]
        starts = self._admin.beginning_offsets(wanted)
        if by_policy:
            # The policy `none` chooses nothing: the user has to set the offsets before a host starts.
            with suppress(ConfigError):
                starts = reset_offsets(version.resolved(), wanted, SystemClock().now_ms())
        begins = {str(tp): offset for tp, offset in sorted(starts.items()) if offset}
        others = {name: each for name, each in release.begins.items() if name != version.version}
        thinned = {name: each for name, each in release.thinned.items() if name != version.version}
        if found := thinned_inputs(self._admin, version.resolved().topology, {tp.topic for tp in wanted}, below):
            thinned[version.version] = tuple(found)
        return replace(release, begins=others | ({version.version: begins} if begins else {}), thinned=thinned)

    def others(self, joint: Mapping[str, str], version: ConnectedApplication) -> list[Topology]:
        """Return the topologies of the other candidates of a joint release; none for versions that are no candidates."""
        name = version.application.config.name
        if joint.get(name) != version.version:
            return []
        others = [(app, to) for app, to in joint.items() if app != name]
        return [
            load_application(self._project, app, version=to, kafka=self._admin.kafka).topology for app, to in others
        ]

    def _needs_history(self, release: Release, version: ConnectedApplication, others: Iterable[Topology]) -> bool:
        """Return whether a version has state, or results that others read or a release publishes, from earlier records."""
        new = outputs(version.application)
        known = outputs(self.application(release.live).application)
        is_corrected = any(each.kind is OutputKind.TABLE or topic not in known for topic, each in new.items())
        is_corrected = is_corrected or any(new.keys() & each.source_topics for each in others)
        return is_corrected or bool(version.topology.stores)

    def bring(self, version: ConnectedApplication, vector: Mapping[TopicPartition, int]) -> None:
        """Bring a version to given source offsets, in a bounded run. If it is there already, nothing runs."""
        known = version.committed(vector)
        if {tp: committed.offset for tp, committed in known.items()} == dict(vector):
            return
        wanted = resolve(version, COMMITTED if known else EARLIEST, str(OffsetVector(dict(vector))))
        run(version, wanted, self._spark, build_topology)

    def discard(self, version: ConnectedApplication, check: Callable[[], object]) -> None:
        """Delete the topics, the offsets, and the state on this machine of a version that is not live.

        `check` raises if the version may have new results by now, which another process has let it compute.
        """
        # Local state first, under its lock: while a process uses it, nothing is deleted.
        directory = version.application.directory
        if directory.exists():
            with locked(directory):
                shutil.rmtree(directory)
        own, staging = self.topics_of(version)
        # The offsets alone first: a repair continues what an earlier one has left only with them (`repair`).
        self._admin.delete_topics({kept_offsets_name(version.id)}.intersection(own), check)
        self._admin.delete_topics([*own, *staging], check)
        check()
        forget(self._admin, own)
        check()
        self._admin.delete_group(version.id)

    def topics_of(self, version: ConnectedApplication) -> tuple[list[str], list[str]]:
        """Return the internal topics and the staging topics of a version that exist."""
        topics = self._admin.list_topics()
        staging = [name for name in topics if name.startswith(staging_name(version.id, ""))]
        return [*own_topics(version.id, topics, self._project.application_ids)], staging

    def _partitions(self, topics: frozenset[str]) -> list[TopicPartition]:
        return [
            TopicPartition(topic, n) for topic, count in self._admin.partitions(topics).items() for n in range(count)
        ]

    def _committed(self, version: ConnectedApplication, other: ConnectedApplication) -> dict[TopicPartition, int]:
        """Return the committed offsets of a version, in all source partitions that `other` reads as well."""
        tps = self._partitions(_sources(version) & _sources(other))
        known = version.committed(tps)
        # Partitions without a commit, such as new ones, count from their beginning.
        missing = [tp for tp in tps if tp not in known]
        if missing and len(missing) == len(tps):
            require_new(version.resolved(), missing)
            message = f"{version.id} has never run: there is nothing to release against"
            raise RangeError(message, hint=f"Run it first: riverrun run {self._config.name}")
        return self._admin.beginning_offsets(missing) | {tp: c.offset for tp, c in known.items()}


def _sources(version: ConnectedApplication) -> frozenset[str]:
    return frozenset(version.resolved().topology.source_topics)
