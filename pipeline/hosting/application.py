"""One version of one application, ready to run: its topology, its topics, its tasks."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pipeline.config import BOUNDED_WALL_CLOCK, load_attribute
from pipeline.errors import ConfigError, TopologyError
from pipeline.kafka.admin import Admin, TopicSpec
from pipeline.processor.handlers import error_handlers
from pipeline.processor.timestamps import timestamp_extractor
from pipeline.runtime.context import Environment
from pipeline.runtime.layout import Layout, plan_layout, without_caches
from pipeline.runtime.task import TaskSpec
from pipeline.topology.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pipeline.config import AppConfig, ProjectConfig, TopologyConfig
    from pipeline.processor.handlers import ErrorHandlers
    from pipeline.records import TaskId, TopicPartition
    from pipeline.topology.nodes import SubTopology


@dataclass(frozen=True, slots=True)
class Application:
    """One version of one application.

    Args:
        config: How it is configured.
        version: Which version this is.
        topology: What it runs.
        kafka: Client properties.
        state_directory: Where local state of all applications is kept.
        published: Public output topics by the name the topology uses, where records go elsewhere for now (staging).
        dead_letters: Where all dead letters go for now (staging); None leaves it to the handlers.
    """

    config: AppConfig
    version: str
    topology: Topology
    kafka: Mapping[str, str] = field(repr=False)
    state_directory: Path
    published: Mapping[str, str] = field(default_factory=dict)
    dead_letters: str | None = None

    @property
    def id(self) -> str:
        """The application id: `<name>-<version>`."""
        return self.config.application_id(self.version)

    @property
    def directory(self) -> Path:
        """Where this version's local state is kept."""
        return self.state_directory / self.id

    @property
    def handlers(self) -> ErrorHandlers:
        """What becomes of records that cannot be read, processed or written.

        Raises:
            ConfigError: If one cannot be imported.
        """
        return error_handlers(self.config.streams)

    def in_directory(self, directory: Path) -> Application:
        """The same with its local state elsewhere."""
        return replace(self, state_directory=directory)

    def with_wall_clock_punctuation(self, policy: str) -> Application:
        """The same with another policy for bounded runs (`bounded.wall.clock.punctuation`).

        Raises:
            ConfigError: If there is no such policy.
        """
        if policy not in BOUNDED_WALL_CLOCK:
            message = f"{policy!r} is no way to treat punctuations by the wall clock"
            raise ConfigError(message, hint=f"Allowed: {', '.join(BOUNDED_WALL_CLOCK)}")
        streams = replace(self.config.streams, bounded_wall_clock_punctuation=policy)
        return replace(self, config=replace(self.config, streams=streams))

    def sub_topology(self, number: int) -> SubTopology:
        """A sub-topology by its id."""
        return next(sub for sub in self.topology.sub_topologies() if sub.id == number)

    def task_spec(self, task_id: TaskId, inputs: tuple[TopicPartition, ...]) -> TaskSpec:
        """What a task of this application is, as it is configured.

        Raises:
            ConfigError: If a handler or extractor cannot be imported.
        """
        streams = self.config.streams
        sub = self.sub_topology(task_id.sub_topology)
        return TaskSpec(
            task_id,
            without_caches(sub) if streams.statestore_cache_max_bytes == 0 else sub,
            self.id,
            inputs,
            handlers=self.handlers,
            timestamp_extractor=timestamp_extractor(streams.default_timestamp_extractor),
            max_task_idle_ms=streams.max_task_idle_ms,
            environment=self.environment(str(task_id)),
            dead_letters=self.dead_letters,
        )

    def environment(self, task: str) -> Environment:
        """What the processors of a task may know of this application."""
        own = {"application.id": self.id, "processing.guarantee": self.config.processing_guarantee}
        return Environment({**self.config.streams.settings(), **own}, self.directory / task)


def load_application(
    project: ProjectConfig,
    name: str,
    new_builder: Callable[[TopologyConfig], object],
    *,
    version: str | None = None,
    published: Mapping[str, str] | None = None,
) -> Application:
    """Build an application's topology.

    Args:
        project: All applications.
        name: Which one.
        new_builder: Makes the `StreamsBuilder` its function is given; hosts do not know the DSL.
        version: Which version; the configured one if left out.
        published: Where public outputs go instead, by the name the topology uses.

    Raises:
        ConfigError: If there is no such application, version or function.
        TopologyError: If the function does not give a topology.
    """
    config = project.app(name)
    chosen = version or config.version
    reference = config.topology_of(chosen)
    topology = load_attribute(reference)(new_builder(config.streams.topology_config))
    if not isinstance(topology, Topology):
        message = f"{reference} gave {topology!r}, not a Topology"
        raise TopologyError(message, hint="End the function with `return builder.build()`.")
    directory = project.state_directory(config)
    return Application(config, chosen, topology, project.kafka, directory, published or {})


def with_topics(application: Application, admin: Admin) -> Application:
    """The application with the topics that its patterns match now; without patterns, itself.

    Kafka's internal topics and the application's own are left out.
    """
    if not application.topology.has_patterns:
        return application
    own = re.compile(rf"{re.escape(application.id)}-.*-(changelog|repartition)")
    topics = [topic for topic in admin.list_topics() if not topic.startswith("__") and not own.fullmatch(topic)]
    return replace(application, topology=application.topology.resolved(topics))


def source_partitions(application: Application, admin: Admin) -> dict[str, int]:
    """Number of partitions of each topic of others that it reads, with those that its patterns match now.

    Raises:
        BrokerError: If the brokers do not answer.
    """
    topology = with_topics(application, admin).topology
    return admin.partitions({*topology.source_topics, *(t for g in topology.global_stores for t in g.source.topics)})


def with_partitions(application: Application, partitions: Mapping[str, int]) -> tuple[Application, Layout]:
    """The application with its patterns resolved to those of the given topics that match, and its tasks.

    Args:
        application: The application.
        partitions: As `source_partitions` gives them, here or on another instance.

    Raises:
        TopicError: If topics that are joined differ in partitions.
    """
    resolved = replace(application, topology=application.topology.resolved(partitions))
    return resolved, plan_layout(resolved.topology, resolved.id, partitions)


def prepare(application: Application, admin: Admin) -> Layout:
    """Check the handlers of an application and the topics it reads and writes, and create its own.

    Raises:
        ConfigError: If a handler or extractor cannot be imported.
        TopicError: If a topic is missing, or has the wrong number of partitions.
    """
    topology = application.topology
    error_handlers(application.config.streams)
    timestamp_extractor(application.config.streams.default_timestamp_extractor)
    external = {*topology.source_topics, *(t for g in topology.global_stores for t in g.source.topics)}
    layout = plan_layout(topology, application.id, admin.partitions(external))
    sinks = [application.published.get(topic, topic) for topic in topology.sink_topics]
    admin.require(sinks, f"application {application.id} writes to")
    streams = application.config.streams
    letters = application.dead_letters or streams.errors_dead_letter_queue_topic_name
    if letters is not None:
        admin.require([letters], f"application {application.id} keeps failures in")
    admin.create_topics(
        TopicSpec(t.name, t.partitions, {**streams.topic, **t.config}, streams.replication_factor)
        for t in layout.internal_topics
    )
    return layout
