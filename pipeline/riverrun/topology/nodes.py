"""The immutable nodes of a topology, and `TreeSet`, in whose order Kafka Streams prints children and parents."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterator, Mapping

    from riverrun.partitioning import StreamPartitioner
    from riverrun.processor.api import Processor
    from riverrun.processor.operator import Operator
    from riverrun.records import AutoOffsetReset, ConsumerRecord
    from riverrun.serde.api import Serde
    from riverrun.state.api import StoreBuilder


@dataclass(eq=False, slots=True)
class _Entry:
    name: str
    parent: _Entry | None
    is_black: bool = True
    children: list[_Entry | None] = field(default_factory=lambda: [None, None])

    @property
    def side(self) -> int:
        return int(self.parent is not None and self.parent.children[1] is self)


class TreeSet:
    """Names in the order of their ranks, as Java's `TreeSet` keeps them while ranks change.

    A red-black tree compares a new name only with those on its way down, by their ranks at that moment. So the resulting order
    depends on the earlier shape of the tree.

    >>> names = TreeSet(lambda name: name)
    >>> for name in ["b", "a", "b", "c"]:
    ...     names.add(name)
    >>> list(names)
    ['a', 'b', 'c']
    """

    def __init__(self, rank: Callable[[str], Any]) -> None:
        self._rank = rank
        self._root: _Entry | None = None

    def __iter__(self) -> Iterator[str]:
        return _names_below(self._root)

    def add(self, name: str) -> None:
        """Add a name, unless the search for its place meets an equal one (`TreeMap.put`)."""
        rank, parent, entry, side = self._rank(name), None, self._root, 0
        while entry is not None:
            if entry.name == name:
                return
            parent, side = entry, int(rank > self._rank(entry.name))
            entry = entry.children[side]
        added = _Entry(name, parent)
        if parent is None:
            self._root = added
            return
        parent.children[side] = added
        self._balance(added)

    def _balance(self, entry: _Entry) -> None:
        """Restore the balance (`TreeMap.fixAfterInsertion`)."""
        entry.is_black = False
        while (parent := entry.parent) is not None and not parent.is_black:
            grandparent = parent.parent
            if grandparent is None:
                break
            side = parent.side
            uncle = grandparent.children[1 - side]
            if uncle is not None and not uncle.is_black:
                parent.is_black = uncle.is_black = True
                grandparent.is_black = False
                entry = grandparent
                continue
            if entry.side != side:
                entry = parent
                self._rotate(entry, side)
            top = entry.parent
            if top is not None and top.parent is not None:
                top.is_black, top.parent.is_black = True, False
                self._rotate(top.parent, 1 - side)
        if self._root is not None:
            self._root.is_black = True

    def _rotate(self, entry: _Entry, side: int) -> None:
        """Let the child on the other side take its place; the entry moves down to this side."""
        child, parent, own_side = entry.children[1 - side], entry.parent, entry.side
        if child is None:
            return
        moved = child.children[side]
        entry.children[1 - side] = moved
        if moved is not None:
            moved.parent = entry
        child.parent = parent
        if parent is None:
            self._root = child
        else:
            parent.children[own_side] = child
        child.children[side] = entry
        entry.parent = child


def _names_below(entry: _Entry | None) -> Iterator[str]:
    if entry is not None:
        yield from _names_below(entry.children[0])
        yield entry.name
        yield from _names_below(entry.children[1])


@dataclass(frozen=True, slots=True)
class SourceNode:
    """Reads topics.

    Args:
        topics: Topics to read; repartition topics without the application's prefix. With a pattern, the topics found.
        timestamp_extractor: `(record, partition_time_ms) -> event_time_ms`; None for `default.timestamp.extractor`. Records
            with a negative result are dropped.
        reset: Where to start without committed offsets; None for `auto.offset.reset`. Repartition topics are read from their
            beginning.
        pattern: Matches the whole names of topics to read, as hosts find them.
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
        return ()


class Lineage(Enum):
    """Compares the records that a processor forwards with those that it receives."""

    TABLE = "table"
    """Updates of a table: the last one of each key is a row."""
    ROWS = "rows"
    """Updates of a table that is made of a stream's records, which may have changed on the way."""
    KEPT = "kept"
    """Exactly one record per input record, with its key."""
    OTHER = "other"
    """Anything else: fewer or more records, or other keys."""


@dataclass(frozen=True, slots=True)
class ProcessorNode:
    """Runs a built-in operator or a user's processor.

    Args:
        supplier: Returns a new instance on each call.
        is_operator: Whether it is a built-in operator, which takes the parts of a record; a user's processor takes one record.
        calls_users_object: Whether it is an operator that calls a user's object, such as a transformer.
    """

    name: str
    parents: tuple[str, ...]
    supplier: Callable[[], Operator] | Callable[[], Processor[Any, Any]]
    functions: tuple[Any, ...] = ()
    lineage: Lineage = Lineage.OTHER
    is_operator: bool = False
    calls_users_object: bool = False

    @property
    def is_users_own(self) -> bool:
        """True if a user's object runs here, which may remember records and write to stores."""
        return self.calls_users_object or not self.is_operator


@dataclass(frozen=True, slots=True)
class SinkNode:
    """Writes to a topic.

    Args:
        topic: A topic, or `(key, value, timestamp_ms) -> topic` for a choice per record.
        partitioner: `(topic, key, value, number_of_partitions) -> partition`, or several; None for Kafka's default.
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
    """A store of which every worker holds a full copy, and the source that fills it."""

    source: SourceNode
    processor: ProcessorNode
    store: StoreBuilder


def _is_table(node: Node) -> bool:
    return isinstance(node, ProcessorNode) and node.lineage is Lineage.TABLE and len(node.parents) == 1


@dataclass(frozen=True, slots=True)
class SubTopology:
    """Nodes that share tasks: connected with each other directly or through a store.

    Args:
        repartition_topics: The application's repartition topics, without its prefix.
        lines: The lines of the user's code that made nodes, as `file:line`, by node, as far as they are known.
    """

    id: int
    nodes: tuple[Node, ...]
    stores: tuple[StoreBuilder, ...]
    store_access: dict[str, tuple[str, ...]] = field(default_factory=dict)
    repartition_topics: frozenset[str] = frozenset()
    lines: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def sources(self) -> tuple[SourceNode, ...]:
        return tuple(node for node in self.nodes if isinstance(node, SourceNode))

    @property
    def table_sources(self) -> Mapping[str, str]:
        """Return the external topics that are read as tables, each with the node that does."""
        parents = {node.parents[0]: node.name for node in self.nodes if _is_table(node)}
        topics = ((topic, parents[each.name]) for each in self.sources if each.name in parents for topic in each.topics)
        return {topic: name for topic, name in topics if topic not in self.repartition_topics}

    @property
    def source_topics(self) -> tuple[str, ...]:
        return tuple(sorted({topic for source in self.sources for topic in source.topics}))

    @property
    def sink_topics(self) -> tuple[str, ...]:
        """The sorted topics that it writes and that are known in advance."""
        sinks = (node for node in self.nodes if isinstance(node, SinkNode))
        return tuple(sorted({sink.topic for sink in sinks if isinstance(sink.topic, str)}))

    @property
    def written_repartition_topics(self) -> frozenset[str]:
        """The internal topics that it writes, for other sub-topologies or for itself."""
        return self.repartition_topics.intersection(self.sink_topics)
