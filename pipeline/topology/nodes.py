"""The nodes of a topology: immutable, and nothing in them is running."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import re
    from collections.abc import Callable

    from pipeline.partitioning import StreamPartitioner
    from pipeline.processor.api import Processor
    from pipeline.processor.operator import Operator
    from pipeline.records import AutoOffsetReset, ConsumerRecord
    from pipeline.serde.api import Serde
    from pipeline.state.api import StoreBuilder


@dataclass(frozen=True, slots=True)
class SourceNode:
    """Reads topics.

    Args:
        name: Unique within the topology.
        topics: Topics it reads; repartition topics without the application's prefix. With a pattern, those that were found.
        key_serde: How keys are read.
        value_serde: How values are read.
        timestamp_extractor: `(record, partition_time_ms) -> event_time_ms`; None leaves it to
            `default.timestamp.extractor`. A record with a negative result is dropped.
        reset: Where to start without committed offsets; None leaves it to `auto.offset.reset`. Repartition topics are read from
            their beginning.
        pattern: Reads all topics whose whole name it matches, as hosts find them.
    """

    name: str
    topics: tuple[str, ...]
    key_serde: Serde[Any]
    value_serde: Serde[Any]
    timestamp_extractor: Callable[[ConsumerRecord[Any, Any], int], int] | None = None
    reset: AutoOffsetReset | None = None
    pattern: re.Pattern[str] | None = None

    @property
    def parents(self) -> tuple[str, ...]:
        """Sources have none."""
        return ()


class Lineage(Enum):
    """The records that a processor forwards, compared with those that it receives."""

    TABLE = "table"
    """The updates of a table: the last one of each key is its row."""
    KEPT = "kept"
    """Exactly one record for each that it receives, under its key."""
    OTHER = "other"
    """Anything else: records less or more, or under other keys."""


@dataclass(frozen=True, slots=True)
class ProcessorNode:
    """Runs a built-in operator or a user's processor.

    Args:
        name: Unique within the topology.
        parents: Names of the nodes it receives records from.
        supplier: Gives a new instance on each call.
        functions: The user's functions within it; part of the fingerprint.
        lineage: What it forwards, compared with what it receives.
    """

    name: str
    parents: tuple[str, ...]
    supplier: Callable[[], Operator] | Callable[[], Processor[Any, Any]]
    functions: tuple[Any, ...] = ()
    lineage: Lineage = Lineage.OTHER


@dataclass(frozen=True, slots=True)
class SinkNode:
    """Writes to a topic.

    Args:
        name: Unique within the topology.
        parents: Names of the nodes it receives records from.
        topic: A topic, or `(key, value, timestamp_ms) -> topic` for a choice per record.
        key_serde: How keys are written.
        value_serde: How values are written.
        partitioner: `(topic, key, value, number_of_partitions) -> partition`, or several; None means Kafka's default.
    """

    name: str
    parents: tuple[str, ...]
    topic: str | Callable[[Any, Any, int], str]
    key_serde: Serde[Any]
    value_serde: Serde[Any]
    partitioner: StreamPartitioner | None = None


Node = SourceNode | ProcessorNode | SinkNode


@dataclass(frozen=True, slots=True)
class RepartitionTopic:
    """A repartition topic: its name without the application's prefix, and its number of partitions if fixed."""

    name: str
    partitions: int | None = None


@dataclass(frozen=True, slots=True)
class GlobalStore:
    """A store that every instance holds completely, and the source that fills it."""

    source: SourceNode
    processor: ProcessorNode
    store: StoreBuilder


@dataclass(frozen=True, slots=True)
class SubTopology:
    """Nodes that share tasks: connected with each other directly or through a store.

    Args:
        id: The first part of its tasks' ids.
        nodes: Its nodes, parents before children.
        stores: Its stores.
        store_access: Node name to the names of the stores it may use.
        repartition_topics: Which of its topics are internal, without the application's prefix.
    """

    id: int
    nodes: tuple[Node, ...]
    stores: tuple[StoreBuilder, ...]
    store_access: dict[str, tuple[str, ...]] = field(default_factory=dict)
    repartition_topics: frozenset[str] = frozenset()

    @property
    def sources(self) -> tuple[SourceNode, ...]:
        """Its sources."""
        return tuple(node for node in self.nodes if isinstance(node, SourceNode))

    @property
    def source_topics(self) -> tuple[str, ...]:
        """The topics it reads, sorted."""
        return tuple(sorted({topic for source in self.sources for topic in source.topics}))

    @property
    def sink_topics(self) -> tuple[str, ...]:
        """The topics it writes and that are known beforehand, sorted."""
        sinks = (node for node in self.nodes if isinstance(node, SinkNode))
        return tuple(sorted({sink.topic for sink in sinks if isinstance(sink.topic, str)}))

    @property
    def written_repartition_topics(self) -> frozenset[str]:
        """The topics of the application's own that it writes; others, or itself, read them."""
        return self.repartition_topics.intersection(self.sink_topics)
