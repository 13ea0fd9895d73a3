"""Describes a task in the terms of hosts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from riverrun.processor.handlers import ErrorHandlers
from riverrun.records import TopicPartition
from riverrun.runtime.context import Environment
from riverrun.runtime.layout import changelog_name, internal_name

if TYPE_CHECKING:
    from riverrun.processor.timestamps import TimestampExtractor
    from riverrun.records import TaskId
    from riverrun.topology.nodes import SubTopology


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """The description of a task.

    Args:
        id: The task's id.
        sub_topology: The sub-topology that it runs.
        application_id: Prefix of internal topics.
        inputs: The partitions it reads.
        handlers: Handlers of records that cannot be read, processed or written.
        timestamp_extractor: Finds event times of inputs whose source has no extractor; None takes a record's own timestamp.
            In repartition topics, records have the times that the writing task set.
        max_task_idle_ms: How long to wait for an input without records before records of other inputs go ahead;
            0 waits only for records that the broker already has, -1 not at all.
        environment: The facts that its processors may know about the application.
        dead_letters: The topic of all dead letters, whatever the handlers say; None leaves it to them.
        sources: The external topics that tasks of its application read.
    """

    id: TaskId
    sub_topology: SubTopology
    application_id: str
    inputs: tuple[TopicPartition, ...]
    handlers: ErrorHandlers = field(default_factory=ErrorHandlers)
    timestamp_extractor: TimestampExtractor | None = None
    max_task_idle_ms: int = 0
    environment: Environment = field(default_factory=Environment)
    dead_letters: str | None = None
    sources: tuple[str, ...] = ()

    @property
    def topics(self) -> tuple[str, ...]:
        """Return the topics that its offsets and its state depend on.

        These are its inputs, the sources of its application, the repartition topics that it writes, and its changelogs.
        """
        inputs = (tp.topic for tp in self.inputs)
        written = (internal_name(self.application_id, name) for name in self.sub_topology.written_repartition_topics)
        own = (tp.topic for tp in self.own_changelogs.values())
        return tuple(dict.fromkeys((*inputs, *self.sources, *sorted(written), *own)))

    @property
    def own_changelogs(self) -> dict[str, TopicPartition]:
        """Return the changelog partitions that the task writes, by store name."""
        return {
            builder.name: TopicPartition(changelog_name(self.application_id, builder.name), self.id.partition)
            for builder in self.sub_topology.stores
            if builder.logging
        }

    @property
    def source_changelogs(self) -> dict[str, TopicPartition]:
        """Return the inputs from which read-only stores are restored, by store name."""
        sources = {b.name: TopicPartition(b.source_topic or "", self.id.partition) for b in self.sub_topology.stores}
        return {store: tp for store, tp in sources.items() if tp in self.inputs}
