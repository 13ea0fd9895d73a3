"""One version of one application, ready to run: its topology, topics and tasks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from riverrun.config import BOUNDED_ENGINES, BOUNDED_WALL_CLOCK
from riverrun.errors import ConfigError
from riverrun.processor.handlers import error_handlers
from riverrun.processor.timestamps import timestamp_extractor
from riverrun.runtime.context import TaskEnvironment
from riverrun.runtime.layout import TaskSpec, without_caches

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from riverrun.config import AppConfig
    from riverrun.kafka.door import Kafka
    from riverrun.processor.handlers import ErrorHandlers
    from riverrun.records import TaskId, TopicPartition
    from riverrun.topology.nodes import SubTopology
    from riverrun.topology.topology import Topology


@dataclass(frozen=True, slots=True)
class Application:
    """One version of one application.

    Args:
        published: Staging topics by the name that the topology uses; None if the version publishes.
        dead_letters: Topic of all dead letters for now (staging); None if the handlers decide.
        may_be_discarded: Whether the work may be taken back: then nothing that its state came from may be deleted.
        attempt: The attempt of a run with a gate, while it processes (`HeldRun.attempt`), or the switch that a run completes
            (`Release.switch`); empty for all others.
    """

    config: AppConfig
    version: str
    topology: Topology
    kafka: Kafka
    state_directory: Path
    published: Mapping[str, str] | None = None
    dead_letters: str | None = None
    may_be_discarded: bool = False
    attempt: str = ""

    def __post_init__(self) -> None:
        """Compute the fingerprint before the first record, which may change what functions refer to."""
        self.topology.fingerprint()

    @property
    def id(self) -> str:
        """Return the application id: `<name>-<version>`."""
        return self.config.application_id(self.version)

    @property
    def directory(self) -> Path:
        """Return the directory of this version's local state."""
        return self.state_directory / self.id

    @property
    def handlers(self) -> ErrorHandlers:
        """Return the handlers of records that cannot be read, processed or written."""
        return error_handlers(self.config.streams)

    def lasting(self) -> Application:
        """Return a copy for a host that outlives its brokers: its clients take less CPU while these are away."""
        return replace(self, kafka=self.kafka.lasting())

    def reading(self, elsewhere: Mapping[str, str] | None) -> Application:
        """Return a copy that reads topics in place of others (`Release.elsewhere`), in whichever process it is built."""
        if not elsewhere:
            return self
        config = replace(self.config, elsewhere=elsewhere)
        return replace(self, config=config, topology=self.topology.elsewhere(elsewhere))

    def in_directory(self, directory: Path) -> Application:
        """Return a copy with its local state in another directory."""
        return replace(self, state_directory=directory)

    def with_wall_clock_punctuation(self, policy: str) -> Application:
        """Return a copy with another policy for bounded runs (`bounded.wall.clock.punctuation`)."""
        if policy not in BOUNDED_WALL_CLOCK:
            message = f"Wall-clock punctuation of bounded runs cannot be {policy!r}"
            raise ConfigError(message, hint=f"Allowed: {', '.join(BOUNDED_WALL_CLOCK)}")
        return self._with(bounded_wall_clock_punctuation=policy)

    def with_engine(self, engine: str) -> Application:
        """Return a copy whose bounded runs have another engine (`bounded.engine`)."""
        if engine not in BOUNDED_ENGINES:
            raise ConfigError(f"A bounded run has no engine {engine!r}", hint=f"Allowed: {', '.join(BOUNDED_ENGINES)}")
        return self._with(bounded_engine=engine)

    def _with(self, **settings: Any) -> Application:
        streams = replace(self.config.streams, **settings)
        return replace(self, config=replace(self.config, streams=streams))

    def sub_topology(self, number: int) -> SubTopology:
        return next(sub for sub in self.topology.sub_topologies() if sub.id == number)

    def task_spec(self, task_id: TaskId, inputs: tuple[TopicPartition, ...]) -> TaskSpec:
        """Describe a task of this application as it is configured."""
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
            sources=self.topology.source_topics,
        )

    def environment(self, task: str) -> TaskEnvironment:
        """Return the facts about this application that are available to processors of a task."""
        settings = {**self.config.streams.settings(), "application.id": self.id}
        return TaskEnvironment(settings, self.directory / task)
