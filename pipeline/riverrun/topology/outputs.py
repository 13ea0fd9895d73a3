"""Derives whether an output topic is a table or a log from the nodes that write it.

In a table's topic, the last record of each key is the current row. That holds below `KTable.to_stream()` as long as
each update leads to exactly one record with its key. A filter breaks it: a row that no longer passes leaves its last
record behind, where `KTable.filter` deletes it. So do new keys, several records for one, and records of another stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from riverrun.config import OutputKind
from riverrun.topology.nodes import Lineage, ProcessorNode, SinkNode, SourceNode

if TYPE_CHECKING:
    from riverrun.topology.topology import Topology


@dataclass(frozen=True, slots=True)
class Output:
    """A topic that an application writes for others.

    Args:
        why: The reason for its kind, as `riverrun` shows it.
    """

    topic: str
    kind: OutputKind
    why: str


def outputs_of(topology: Topology) -> dict[str, Output]:
    """Return the outputs of a topology by topic, sorted; without topics that are chosen per record."""
    writers = _writers(topology)
    return {topic: _output(topology, writers, topic) for topic in topology.sink_topics}


def _output(topology: Topology, writers: dict[str, list[SinkNode]], topic: str) -> Output:
    why = _breach(topology, writers, topic, frozenset())
    if why is None:
        return Output(topic, OutputKind.TABLE, "it has the updates of a table")
    return Output(topic, OutputKind.LOG, why)


def _breach(topology: Topology, writers: dict[str, list[SinkNode]], topic: str, seen: frozenset[str]) -> str | None:
    """Return why a topic is not a table; None if it is."""
    sinks = writers.get(topic, [])
    if topic in seen or not sinks:
        return f"it has the records of {topic}"
    parents = tuple(dict.fromkeys(parent for sink in sinks for parent in sink.parents))
    return _several(parents) or _breach_above(topology, writers, parents[0], seen | {topic})


def _breach_above(
    topology: Topology, writers: dict[str, list[SinkNode]], name: str, seen: frozenset[str]
) -> str | None:
    node = topology.nodes[name]
    if not isinstance(node, ProcessorNode):
        read = sorted(topology.repartition_topics.keys() & node.topics) if isinstance(node, SourceNode) else []
        return _breach(topology, writers, read[0], seen) if read else f"it has the records of {name}"
    match node.lineage:
        case Lineage.TABLE | Lineage.ROWS:
            return None
        case Lineage.KEPT:
            return _several(node.parents) or _breach_above(topology, writers, node.parents[0], seen)
        case Lineage.OTHER:
            return f"{name} may send fewer or more records than it gets, or under other keys"


def _several(parents: tuple[str, ...]) -> str | None:
    return f"{' and '.join(parents)} write to it" if len(parents) > 1 else None


def _writers(topology: Topology) -> dict[str, list[SinkNode]]:
    found: dict[str, list[SinkNode]] = {}
    for node in topology.nodes.values():
        if isinstance(node, SinkNode) and isinstance(node.topic, str):
            found.setdefault(node.topic, []).append(node)
    return found
