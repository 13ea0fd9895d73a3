"""`ConnectedApplication`: one version of an application, with the brokers it runs on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from riverrun.errors import TopicError, VersionConflictError
from riverrun.hosting.control_topic import ReleaseRegistry, require_never_released
from riverrun.hosting.kept_offsets import KeptOffsets, kept_offsets_topic
from riverrun.hosting.release import START, staging_name
from riverrun.kafka.admin import STABLE_SECONDS, TopicSpec
from riverrun.processor.handlers import error_handlers, may_keep_letters
from riverrun.processor.timestamps import timestamp_extractor
from riverrun.runtime.layout import ENVIRONMENTS, changelog_name, internal_name, is_internal_topic, plan_layout
from riverrun.runtime.times import OffsetMetadata
from riverrun.state.snapshots import check_url

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from pathlib import Path

    from riverrun.hosting.application import Application
    from riverrun.hosting.release import Release
    from riverrun.kafka.admin import Admin, CommittedOffset
    from riverrun.records import TopicPartition
    from riverrun.runtime.barrier import Limits
    from riverrun.runtime.layout import Layout
    from riverrun.topology.topology import Topology

_LOST_HINT = (
    "If brokers were just restarted, start again: a broker may not know all topics yet. If this is another topology than the"
    " one that has run, release it as a new version. If the topics were deleted, their records are lost: a new version"
    " computes them again."
)


@dataclass(frozen=True, slots=True)
class Publication:
    """The topics to which the tasks of a version publish, and the offsets at which they pause.

    Only the live version writes to public topics. A switch writes the control topic first, and then fences the tasks of the
    version that was live. A task that starts fences its previous owner first, and then reads the control topic. So a switch
    fences every owner from before it, and every later owner knows of the switch.

    A running task receives each later record. A task that has acknowledged a barrier pauses until it reads a record without it;
    one that is taken over later reads it then.

    Args:
        topics: Staging topics by the name that the topology uses; empty if it publishes.
        dead_letters: Topic of all its dead letters; None if the handlers decide.
        limits: Where its tasks pause at a barrier; None if they run freely.
        revision: Revision of the record of this; 0 if there is none.
    """

    topics: Mapping[str, str]
    dead_letters: str | None
    limits: Limits | None = None
    revision: int = 0

    @classmethod
    def at_start(cls, application: Application) -> Publication:
        """Return the publication of an application that was never released: it publishes as it was started."""
        return cls(application.published or {}, application.dead_letters)

    @classmethod
    def by(cls, application: Application, release: Release) -> Publication:
        """Return the publication by a release: the live version publishes, any other writes to its staging topics."""
        limits = None if release.barrier is None else release.barrier.limits_of(application.version)
        if release.live == application.version:
            return cls({}, None, limits, release.revision)
        topics = {topic: staging_name(application.id, topic) for topic in application.topology.sink_topics}
        streams = application.config.streams
        letters = None
        if may_keep_letters(streams):
            letters = staging_name(application.id, streams.errors_dead_letter_queue_topic_name or "dead-letters")
        return cls(topics, letters, limits, release.revision)


@dataclass(frozen=True)
class ConnectedApplication:
    """One version of an application on its brokers: its tasks, its topics, and where it publishes.

    Partitions and tasks are looked up once; `resolved` returns an object that looks again. Threads may share one.
    """

    application: Application
    admin: Admin
    # By source topic, if another instance or process has found them; None to ask the brokers.
    known_partitions: Mapping[str, int] | None = field(default=None, repr=False)

    @property
    def id(self) -> str:
        """Return the application id: `<name>-<version>`."""
        return self.application.id

    @property
    def version(self) -> str:
        return self.application.version

    @property
    def topology(self) -> Topology:
        """Return its topology, with the patterns of topics that are resolved by now."""
        return self.application.topology

    def in_directory(self, directory: Path) -> ConnectedApplication:
        """Return a copy with its local state in another directory, and with the topics that are known by now."""
        return replace(self, application=self.application.in_directory(directory), known_partitions=self.partitions)

    # Tasks

    def resolved(self) -> ConnectedApplication:
        """Return a copy that reads the topics that its patterns match now, except internal ones."""
        if not self.application.topology.has_patterns:
            return ConnectedApplication(self.application, self.admin)
        others = (topic for topic in self.admin.list_topics() if not is_internal_topic(self.id, topic))
        return self.reading([topic for topic in others if not topic.startswith(("__", ENVIRONMENTS))])

    def reading(self, topics: Collection[str]) -> ConnectedApplication:
        """Return a copy that reads those of the given topics that its patterns match."""
        topology = self.application.topology.resolved(topics)
        return ConnectedApplication(replace(self.application, topology=topology), self.admin)

    def with_partitions(self, partitions: Mapping[str, int]) -> ConnectedApplication:
        """Return a copy with the source topics that another instance or process has found."""
        return replace(self.reading(partitions), known_partitions=partitions)

    @cached_property
    def fingerprint(self) -> str:
        """Return the fingerprint of its topology, which takes longer the more code and data its functions refer to."""
        return self.application.topology.fingerprint()

    @cached_property
    def partitions(self) -> Mapping[str, int]:
        """Return the number of partitions of each external topic that it reads; its patterns are resolved."""
        if self.known_partitions is not None:
            return self.known_partitions
        return self.admin.partitions(self.application.topology.external_topics)

    @cached_property
    def layout(self) -> Layout:
        """Return its tasks and internal topics; its patterns are resolved."""
        return plan_layout(self.application.topology, self.id, self.partitions)

    @cached_property
    def inputs(self) -> frozenset[TopicPartition]:
        """Return all partitions that its tasks read, including those of repartition topics."""
        return frozenset(tp for inputs in self.layout.tasks.values() for tp in inputs)

    def committed(
        self, tps: Iterable[TopicPartition] | None = None, patience_s: float = STABLE_SECONDS
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return committed offsets by partition, of all inputs by default; partitions without one are left out."""
        wanted = list(self.inputs if tps is None else tps)
        found = self.admin.committed(self.id, wanted, patience_s)
        missing = [tp for tp in wanted if tp not in found]
        # Brokers delete committed offsets of a group that nobody uses. The copies of the last commits take their place.
        return found | KeptOffsets(self.admin, self.id).last(missing)

    def noted(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        """Return committed offsets by partition as they are now: an open transaction may be about to replace them."""
        return self.admin.committed(self.id, tps, isolation="read_uncommitted")

    # Topics

    def prepare(self) -> Layout:
        """Check handlers, the snapshot store and topics; create missing internal topics."""
        application, streams = self.application, self.application.config.streams
        error_handlers(streams)
        timestamp_extractor(streams.default_timestamp_extractor)
        if streams.snapshot_url:
            check_url(streams.snapshot_url)
        self.require_topics("Source topics", application.topology.external_topics - self.partitions.keys())
        layout = self.layout
        # Before missing topics are created: if they have existed, their records are lost.
        self._require_nothing_lost()
        topics = (
            TopicSpec(t.name, t.partitions, {**streams.topic, **t.config}, streams.replication_factor)
            for t in layout.internal_topics
        )
        self.admin.create_topics([*topics, kept_offsets_topic(application)])
        return layout

    def require_topics(self, what: str, sources: Iterable[str]) -> None:
        """Check that sources exist, and all topics that are written; the error names all that are missing."""
        application, sources = self.application, set(sources)
        staging = sources & {*(application.config.elsewhere or {}).values()}
        if staging and (gone := staging - self.admin.partitions(staging).keys()):
            message = f"{self.id} reads results that have been deleted: {', '.join(sorted(gone))} do not exist"
            hint = f"Release it again: {START.command(application.config.name, self.version)} computes it from scratch."
            raise TopicError(message, hint=hint)
        published = application.published or {}
        letters = application.dead_letters or application.config.streams.errors_dead_letter_queue_topic_name
        staged = {published[topic] for topic in application.topology.sink_topics & published.keys()}
        sinks = application.topology.sink_topics - published.keys()
        self.admin.require_all(
            {
                what: sources,
                f"Topics that application {self.id} writes to": sinks,
                f"Topics that application {self.id} keeps failures in": [letters] if letters is not None else [],
            }
        )
        if staged and (gone := staged - self.admin.partitions(staged).keys()):
            message = f"Results of {self.id} have been deleted meanwhile: {', '.join(sorted(gone))} do not exist"
            raise VersionConflictError(message, hint="Check `riverrun release status`, then start the version again.")

    def _require_nothing_lost(self) -> None:
        # Kafka Streams creates missing internal topics again (`InternalTopicManager.makeReady`), and continues without the
        # state that was in them.
        own = {topic.name for topic in self.layout.internal_topics}
        if own == self.admin.partitions(own).keys():
            return
        used = self._used_topics()
        # The topics are looked up after the commits: another instance may have just created them.
        lost = used - self.admin.partitions(used).keys()
        if lost:
            names = ", ".join(sorted(lost))
            message = f"{self.id} has run before, but some of its internal topics are missing: {names}"
            raise TopicError(message, hint=_LOST_HINT)

    def _used_topics(self) -> set[str]:
        """Return the internal topics of tasks that have processed something."""
        committed = self.committed()
        worked = {
            task_id.sub_topology
            for task_id, inputs in self.layout.tasks.items()
            if any(tp in committed and _is_of_work(committed[tp].metadata) for tp in inputs)
        }
        used = set()
        for sub in self.application.topology.sub_topologies():
            if sub.id in worked:
                used |= {changelog_name(self.id, store.name) for store in sub.stores if store.logging}
                used |= {internal_name(self.id, name) for name in sub.written_repartition_topics}
        return used

    # Publication

    def release(self) -> Release | None:
        """Return the application's record in the control topic; None if it was never released."""
        found = ReleaseRegistry.at(self.admin).find(self.application.config.name)
        # Staging topics of a version that would publish prove that its record is lost.
        if found is None and self.application.published is None:
            require_never_released(self.admin, self.application.config)
        return found

    def publication(self) -> Publication:
        """Read where a task that has just been taken over publishes, and up to which offsets."""
        application, release = self.application, self.release()
        if release is None:
            return Publication.at_start(application)
        found = Publication.by(application, release)
        release.require_inputs(application.version, application.config.elsewhere)
        # In the middle of a switch, the barrier's limits say how far this version may process.
        if found.limits is None:
            release.require_no_switch()
        if release.live == application.version:
            release.require_nothing_held()
        else:
            release.require_results(application.version)
            release.require_carried(application.version)
            # Releases create staging topics.
            wanted = {*found.topics.values(), *filter(None, [found.dead_letters])}
            if application.topology.choosing_sinks or wanted - self.admin.partitions(wanted).keys():
                raise release.not_live(application.version)
        return found

    def require_publishing(self) -> None:
        """Make sure that a bounded run may write to its output topics."""
        application, found = self.application, self.release()
        if found is None:
            return
        # Also to staging topics: the run would pass the barrier.
        found.require_no_barrier(application.version)
        found.require_results(application.version)
        found.require_inputs(application.version, application.config.elsewhere)
        if application.attempt:
            found.require_attempt(application.attempt)
        if application.published is not None:
            if not application.attempt:
                found.require_not_live(application.version)
            return
        found.require_no_switch()
        if found.live != application.version:
            raise found.not_live(application.version)
        found.require_nothing_held()


def _is_of_work(metadata: str) -> bool:
    """Return whether a commit is not the one with which an input is begun."""
    return bool(metadata) and replace(OffsetMetadata.decode(metadata), topics={}) != OffsetMetadata(-1)
