"""Describes a task as hosts say it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pipeline.processor.handlers import ErrorHandlers
from pipeline.records import TopicPartition
from pipeline.runtime.context import Environment
from pipeline.runtime.layout import changelog_name

if TYPE_CHECKING:
    from pipeline.processor.timestamps import TimestampExtractor
    from pipeline.records import TaskId
    from pipeline.topology.nodes import SubTopology


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """The description of a task.

    Args:
        id: Its id.
        sub_topology: What it runs.
        application_id: Prefix of internal topics.
        inputs: The partitions it reads.
        handlers: What becomes of records that cannot be read, processed or written.
        timestamp_extractor: Finds event times of inputs whose source does not say how; None takes a record's own timestamp.
            Repartition topics have theirs from the task that wrote them.
        max_task_idle_ms: How long to wait for an input without records before records of other inputs go ahead;
            0 waits only for what the broker already has, -1 not at all.
        environment: What its processors may know of the application.
        dead_letters: The topic that all dead letters go to, whatever the handlers say; None leaves it to them.
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

    @property
    def own_changelogs(self) -> dict[str, TopicPartition]:
        """Changelog partitions that the task writes, by store name."""
        return {
            builder.name: TopicPartition(changelog_name(self.application_id, builder.name), self.id.partition)
            for builder in self.sub_topology.stores
            if builder.logging
        }

    @property
    def source_changelogs(self) -> dict[str, TopicPartition]:
        """Inputs that read-only stores are restored from, by store name."""
        sources = {b.name: TopicPartition(b.source_topic or "", self.id.partition) for b in self.sub_topology.stores}
        return {store: tp for store, tp in sources.items() if tp in self.inputs}
