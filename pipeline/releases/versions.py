"""Loads and checks the versions of an application, publishes candidates elsewhere, and lets one version follow another."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pipeline.dsl.builder import StreamsBuilder
from pipeline.errors import RangeError, ReleaseError
from pipeline.hosting.application import Application, load_application
from pipeline.hosting.connected import ConnectedApplication
from pipeline.hosting.control.publication import staging_name
from pipeline.hosting.restoring.local_state import locked
from pipeline.processor.handlers import may_keep_letters
from pipeline.records import OffsetRange, OffsetVector, TopicPartition
from pipeline.releases.build import build_topology
from pipeline.releases.registry import Registry, release_of
from pipeline.releases.tables import create_letters, create_staging
from pipeline.runtime.layout import own_topics
from pipeline.spark.bounded_runs.job import run
from pipeline.spark.bounded_runs.summary import RunSummary
from pipeline.spark.ranges import COMMITTED, EARLIEST, RunRange, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pipeline.config import AppConfig, ProjectConfig
    from pipeline.kafka.admin import Admin


def processing_application(project: ProjectConfig, admin: Admin, name: str, version: str | None = None) -> Application:
    """Load an application for processing: the live version publishes, any other one writes to its staging topics.

    Args:
        project: All applications.
        admin: Asks the brokers.
        name: Name of the application.
        version: The version; None for the live one.

    Raises:
        ConfigError: If there is no such application or version.
        ReleaseError: If the version is not live, and chooses topics per record; if the control topic is lost.
        TopicError: If a public topic does not exist.
        BrokerError: If brokers do not answer.
    """
    config = project.app(name)
    release = release_of(admin, config)
    chosen = version or release.live
    if chosen == release.live:
        require_declared(config, chosen, "live")
        return load_application(project, name, StreamsBuilder, version=chosen)
    versions = Versions(project, name, admin, _no_spark)
    staged = versions.releasable(chosen)
    if not release.revision:  # staging topics without a record mean that the control topic is lost
        Registry.at(admin).write(release)
    return versions.staged(staged.version)


def require_declared(config: AppConfig, version: str, role: str) -> None:
    """Make sure that `streams.toml` still declares a version that the control topic names.

    Args:
        config: The application.
        version: The version.
        role: The version's role in the release, for messages.

    Raises:
        ReleaseError: If it does not: the version's code is unknown then.
    """
    if version not in {config.version, *config.versions}:
        message = f"{config.name}: {version} is {role}, and streams.toml does not declare it"
        hint = f'Declare it again: [apps.{config.name}.versions] {version} = "module:function".'
        raise ReleaseError(message, hint=hint)


def _no_spark() -> Any:
    message = "an application is only loaded here"
    raise AssertionError(message)


class Versions:
    """The versions of an application, as a release needs them.

    Args:
        project: All applications.
        app: Name of the application.
        admin: Asks the brokers.
        spark: Returns a Spark session when one is needed.
    """

    def __init__(self, project: ProjectConfig, app: str, admin: Admin, spark: Callable[[], Any]) -> None:
        self._project = project
        self._config = project.app(app)
        self._admin = admin
        self._spark = spark

    def application(self, version: str) -> Application:
        """Return a version as it is configured."""
        return load_application(self._project, self._config.name, StreamsBuilder, version=version)

    def releasable(self, version: str) -> Application:
        """Return a version all of whose public topics are known.

        The topics and records of a sink that chooses topics per record are unknown. A candidate's could not be kept from the
        public, and the live version's could not be corrected.

        Raises:
            ReleaseError: If it has such a sink.
        """
        application = self.application(version)
        if application.topology.choosing_sinks:
            sinks = ", ".join(application.topology.choosing_sinks)
            message = f"{self._config.name} {version} chooses topics per record ({sinks}): it cannot be released"
            raise ReleaseError(message, hint="Name the topics: `split()`, and one `to(topic)` per branch.")
        return application

    def all_from(self, *loaded: Application) -> Iterator[Application]:
        """Return the versions that are loaded already, then load the others one by one."""
        yield from loaded
        known = {application.version for application in loaded}
        for version in {self._config.version: None} | dict.fromkeys(self._config.versions):
            if version not in known:
                yield self.application(version)

    def staged(self, version: str) -> Application:
        """Return a version that publishes to its staging topics, including its dead letters.

        Raises:
            ReleaseError: If it chooses topics per record.
        """
        application, streams = self.releasable(version), self._config.streams
        published = create_staging(self._admin, application)
        letters = None
        if may_keep_letters(streams):
            letters = create_letters(self._admin, application.id, streams.errors_dead_letter_queue_topic_name)
        return replace(application, published=published, dead_letters=letters)

    def target(self, leader: Application, follower: Application) -> dict[TopicPartition, int]:
        """Return the offsets up to which a version follows another.

        These are the leader's position, and the ends of topics that it does not read.
        """
        own = self._sources(follower) - self._sources(leader)
        return self._committed(leader, follower) | self._admin.end_offsets(self._partitions(own))

    def are_at_one_place(self, one: Application, other: Application) -> bool:
        """Return whether two versions have processed the same offsets in topics that both read."""
        return self._committed(one, other) == self._committed(other, one)

    def is_ahead(self, one: Application, other: Application) -> bool:
        """Return whether a version has processed something that another has not.

        Its workers may be at work, though they have lost their membership for a moment.
        """
        reached = self._committed(other, one)
        return any(offset > reached[tp] for tp, offset in self._committed(one, other).items())

    def place(self, one: Application, other: Application) -> OffsetVector:
        """Return the position of the first of two versions, in the source topics that both read."""
        return OffsetVector(self._committed(one, other))

    def follow(self, follower: Application, leader: Application) -> RunSummary:
        """Process with `follower` up to the offsets that `leader` has processed."""
        target = OffsetVector(self.target(leader, follower))
        start = COMMITTED if self._admin.committed(follower.id, target.offsets) else EARLIEST
        connected = self._connected(follower)
        return run(connected, resolve(connected, start, str(target)), self._spark, build_topology)

    def standing(self, application: Application) -> RunSummary:
        """Return the summary of a run over nothing, at a version's position: its workers process it already."""
        tps = self._partitions(self._sources(application))
        known = self._admin.committed(application.id, tps)
        first = self._admin.beginning_offsets(tp for tp in tps if tp not in known)
        stands = first | {tp: committed.offset for tp, committed in known.items()}
        return RunSummary(RunRange({tp: OffsetRange(offset, offset) for tp, offset in sorted(stands.items())}), 0)

    def bring(self, application: Application, vector: Mapping[TopicPartition, int]) -> None:
        """Bring a version to given source offsets, in a bounded run. If it is there already, nothing runs."""
        known = self._admin.committed(application.id, vector)
        if {tp: committed.offset for tp, committed in known.items()} == dict(vector):
            return
        connected = self._connected(application)
        wanted = resolve(connected, COMMITTED if known else EARLIEST, str(OffsetVector(dict(vector))))
        run(connected, wanted, self._spark, build_topology)

    def discard(self, version: Application) -> None:
        """Delete the topics, the offsets, and the state on this machine of a version that is not live.

        Raises:
            StateInUseError: If its state is in use.
            BrokerError: If brokers do not answer.
        """
        if version.directory.exists():
            with locked(version.directory):
                shutil.rmtree(version.directory)
        topics = self._admin.list_topics()
        staging = [name for name in topics if name.startswith(staging_name(version.id, ""))]
        self._admin.delete_topics([*own_topics(version.id, topics, self._project.application_ids), *staging])
        self._admin.delete_group(version.id)

    def _sources(self, application: Application) -> frozenset[str]:
        return frozenset(self._connected(application).resolved().application.topology.source_topics)

    def _connected(self, application: Application) -> ConnectedApplication:
        return ConnectedApplication(application, self._admin)

    def _partitions(self, topics: frozenset[str]) -> list[TopicPartition]:
        return [
            TopicPartition(topic, n) for topic, count in self._admin.partitions(topics).items() for n in range(count)
        ]

    def _committed(self, application: Application, other: Application) -> dict[TopicPartition, int]:
        """Return the committed offsets of a version, in all source partitions that `other` reads as well."""
        tps = self._partitions(self._sources(application) & self._sources(other))
        known = self._admin.committed(application.id, tps)
        missing = [tp for tp in tps if tp not in known]
        if missing and len(missing) == len(tps):
            message = f"{application.id} has never run: there is nothing to release against"
            raise RangeError(message, hint=f"Run it first: millrace run {self._config.name}")
        return self._admin.beginning_offsets(missing) | {tp: c.offset for tp, c in known.items()}
