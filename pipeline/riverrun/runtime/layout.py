"""Derives the tasks of a topology and its internal topics from partition counts, and describes each task to hosts."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from riverrun.errors import TopicError, TopologyError
from riverrun.processor.handlers import ErrorHandlers
from riverrun.records import TaskId, TopicPartition
from riverrun.runtime.context import TaskEnvironment
from riverrun.state.suppliers import changelog_config

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from riverrun.processor.timestamps import TimestampExtractor
    from riverrun.topology.nodes import SubTopology
    from riverrun.topology.topology import Topology

_INTERNAL = re.compile(
    r".*-(changelog|repartition|committed-offsets|subscription-registration-topic|subscription-response-topic)"
    r"|.+-KTABLE-FK-JOIN-SUBSCRIPTION-(REGISTRATION|RESPONSE)-\d+-topic"
)
# As Kafka Streams' `RepartitionTopicConfig`. Records carry historical event times, so none may be deleted by age.
REPARTITION_CONFIG = {
    "cleanup.policy": "delete",
    "message.timestamp.type": "CreateTime",
    "retention.ms": "-1",
    "segment.bytes": "52428800",
}

ENVIRONMENTS = "riverrun-env."
"""First part of the names of all that belongs to an environment: topics, groups, transactional ids and local state."""


@dataclass(frozen=True, slots=True)
class TopicRequirement:
    """An internal topic that must exist: full name, partitions, settings."""

    name: str
    partitions: int
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Layout:
    """The tasks of a topology over topics with certain numbers of partitions.

    Args:
        tasks: The input partitions of each task, by full topic names, sorted.
    """

    tasks: Mapping[TaskId, tuple[TopicPartition, ...]]
    repartition_topics: tuple[TopicRequirement, ...]
    changelog_topics: tuple[TopicRequirement, ...]

    @property
    def internal_topics(self) -> tuple[TopicRequirement, ...]:
        """Return all internal topics that must exist: repartition topics and changelogs."""
        return self.repartition_topics + self.changelog_topics


def internal_name(application_id: str, name: str) -> str:
    """Return the full name of a repartition topic."""
    return f"{application_id}-{name}"


def changelog_name(application_id: str, store: str) -> str:
    """Return the full name of a store's changelog topic."""
    return f"{application_id}-{store}-changelog"


def environment_name(environment: str, name: str) -> str:
    """Return the name of what stands in an environment for a topic or an application."""
    # Names of environments have no dots, so those of two never begin alike.
    return f"{ENVIRONMENTS}{environment}.{name}"


def kept_offsets_name(application_id: str) -> str:
    """Return the full name of the topic with copies of committed offsets."""
    return f"{application_id}-committed-offsets"


def is_internal_topic(application_id: str, topic: str) -> bool:
    """Return whether a topic is named like an application's internal topics (`StreamsResetter.matchesInternalTopicFormat`)."""
    return topic.startswith(f"{application_id}-") and _INTERNAL.fullmatch(topic) is not None


def own_topics(application_id: str, topics: Iterable[str], others: Iterable[str]) -> tuple[str, ...]:
    """Return the internal topics of an application among all topics."""
    # An id may begin with another one: topics of `shop-eu` also begin with `shop-`.
    longer = tuple(f"{other}-" for other in others if other.startswith(f"{application_id}-"))
    return tuple(name for name in topics if is_internal_topic(application_id, name) and not name.startswith(longer))


def full_name(sub: SubTopology, application_id: str, topic: str) -> str:
    """Return a topic's name in Kafka, with the application's prefix if it is internal."""
    return internal_name(application_id, topic) if topic in sub.repartition_topics else topic


def without_caches(sub: SubTopology) -> SubTopology:
    """Return a copy whose stores forward every update at once, as with `statestore.cache.max.bytes = 0`."""
    return replace(sub, stores=tuple(replace(store, caching=False) for store in sub.stores))


def plan_layout(topology: Topology, application_id: str, partitions: Mapping[str, int]) -> Layout:
    """Return the tasks of a topology, and the topics that must be created."""
    missing = sorted(topology.external_topics - partitions.keys())
    if missing:
        message = f"Source topics do not exist: {', '.join(missing)}"
        raise TopicError(message, hint="Create them, or correct the topology's topic names.")
    counts = _repartition_counts(topology, dict(partitions))
    _copartition(topology, counts)
    tasks: dict[TaskId, tuple[TopicPartition, ...]] = {}
    changelogs: list[TopicRequirement] = []
    for sub in topology.sub_topologies():
        size = max((counts[topic] for topic in sub.source_topics), default=0)
        for number in range(size):
            tasks[TaskId(sub.id, number)] = tuple(
                TopicPartition(full_name(sub, application_id, topic), number)
                for topic in sub.source_topics
                if number < counts[topic]
            )
        changelogs += [
            TopicRequirement(changelog_name(application_id, store.name), size, changelog_config(store))
            for store in sub.stores
            if store.logging and size
        ]
    repartitions = tuple(
        TopicRequirement(internal_name(application_id, name), counts[name], REPARTITION_CONFIG)
        for name in topology.repartition_topics
    )
    return Layout(tasks, repartitions, tuple(changelogs))


def _repartition_counts(topology: Topology, counts: dict[str, int]) -> dict[str, int]:
    """Add the counts of repartition topics: fixed, demanded by joined topics, or the largest among the writers' inputs."""
    counts |= {t.name: t.partitions for t in topology.repartition_topics.values() if t.partitions is not None}
    waiting = set(topology.repartition_topics) - counts.keys()
    demanded = {name: count for name in waiting if (count := _demanded(topology, name, counts)) is not None}
    counts |= demanded
    waiting -= demanded.keys()
    # Repeated until no count grows: a sub-topology may read a topic that it writes, and the order of topics must not matter.
    grown = True
    while grown:
        found = {name: _of_writers(topology, name, counts) for name in waiting}
        grown = any(count > counts.get(name, 0) for name, count in found.items())
        counts |= {name: count for name, count in found.items() if count}
    missing = sorted(waiting - counts.keys())
    if missing:
        message = f"Number of partitions cannot be decided for repartition topics {', '.join(missing)}"
        raise TopologyError(message, hint="Set number_of_partitions in Repartitioned.")
    return counts


def _demanded(topology: Topology, name: str, counts: Mapping[str, int]) -> int | None:
    for group in topology.copartitioned_topics():
        known = [counts[topic] for topic in group if topic in counts and topic not in topology.repartition_topics]
        if name in group and known:
            return max(known)
    return None


def _of_writers(topology: Topology, name: str, counts: Mapping[str, int]) -> int:
    """Return the largest known count among the inputs of a topic's writers; 0 if none is known."""
    writers = [sub for sub in topology.sub_topologies() if name in sub.sink_topics]
    inputs = {topic for sub in writers for topic in sub.source_topics}
    if not inputs and any(source.pattern is not None for sub in writers for source in sub.sources):
        # No topic matches the pattern yet.
        return 1
    return max((counts[topic] for topic in inputs if topic in counts), default=0)


def _copartition(topology: Topology, counts: dict[str, int]) -> None:
    """Set equal partition counts for joined topics, or raise if that is impossible (`CopartitionedTopicsEnforcer`).

    External topics decide, and must be equal; without any, fixed numbers decide; otherwise the highest number.
    """
    internal = topology.repartition_topics
    for group in topology.copartitioned_topics():
        external = {topic: counts[topic] for topic in group if topic not in internal}
        fixed = {t: counts[t] for t in group if t in internal and internal[t].partitions is not None}
        _check_equal(external, "Topics not co-partitioned")
        _check_equal(external | fixed, "Following topics do not have the same number of partitions")
        deciding = external or fixed or {topic: counts[topic] for topic in group}
        counts |= dict.fromkeys(group, max(deciding.values(), default=0))


def _check_equal(counts: Mapping[str, int], problem: str) -> None:
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{topic}: {counts[topic]}" for topic in sorted(counts))
        message = f"{problem}: [{found}]"
        raise TopicError(
            message, hint="Topics that are joined need equal partitions: repartition() one, or recreate it."
        )


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """The description of a task.

    Args:
        timestamp_extractor: Finds event times of inputs whose source has no extractor; None takes a record's own timestamp.
            In repartition topics, records have the times that the writing task set.
        max_task_idle_ms: How long to wait for an input without records before records of other inputs go ahead;
            0 waits only for records that the broker already has, -1 not at all.
        dead_letters: The topic of all dead letters, whatever the handlers say; None leaves it to them.
        sources: The external topics that all tasks of its application read.
    """

    id: TaskId
    sub_topology: SubTopology
    application_id: str
    inputs: tuple[TopicPartition, ...]
    handlers: ErrorHandlers = field(default_factory=ErrorHandlers)
    timestamp_extractor: TimestampExtractor | None = None
    max_task_idle_ms: int = 0
    environment: TaskEnvironment = field(default_factory=TaskEnvironment)
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
