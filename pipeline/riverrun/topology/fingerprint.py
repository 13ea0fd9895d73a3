"""Digests of a topology: its structure, and the user's functions in it with everything that they refer to."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from riverrun.topology.digests import Digester
from riverrun.topology.nodes import Node, ProcessorNode, SinkNode, SourceNode

if TYPE_CHECKING:
    from riverrun.state.api import StoreBuilder
    from riverrun.topology.parts import Parts


@dataclass(frozen=True, slots=True)
class TopologyDigests:
    """Digests of a topology, each 16 hex digits.

    Args:
        groups: Topics that need equal numbers of partitions.
        unseen: What no digest covers, by name of the node or store: objects that cannot be digested, and what functions read
            outside of the program.
    """

    nodes: dict[str, str]
    groups: list[list[str]]
    unseen: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def whole(self) -> str:
        return _digest(sorted(self.nodes.items()), self.groups)


def digests_of(parts: Parts, *, only_code: bool = False) -> TopologyDigests:
    """Return the digests of a topology; with `only_code`, without the values that its functions refer to."""
    work = _Work(only_code=only_code)
    users = parts.users
    for name, node in parts.nodes.items():
        work.note(name, *_node(work, node, tuple(sorted(s for s in users if name in users[s]))))
    for name, builder in parts.stores.items():
        work.note(f"store {name}", *_store(work, builder))
    for name, global_store in parts.global_stores.items():
        source, processor = _node(work, global_store.source, ()), _node(work, global_store.processor, ())
        work.note(f"global store {name}", *source, *processor, *_store(work, global_store.store))
    groups = sorted(sorted(group) for group in parts.copartitioned_topics())
    return TopologyDigests(work.nodes, groups, work.unseen)


def fingerprint(parts: Parts) -> str:
    """Return one digest of the whole topology, 16 hex digits."""
    return digests_of(parts).whole


def node_fingerprints(parts: Parts) -> dict[str, str]:
    """Return a digest per node, store and global store, by name."""
    return digests_of(parts).nodes


def code_of(function: Any) -> str:
    """Return a digest of everything that determines a function's behaviour: code, defaults, captured values and globals."""
    return Digester().digest(function)[0]


class _Work:
    """Digests of one topology while they are computed."""

    def __init__(self, *, only_code: bool) -> None:
        self.nodes: dict[str, str] = {}
        self.unseen: dict[str, tuple[str, ...]] = {}
        self._digester = Digester(only_code=only_code)
        self._unseen: set[str] = set()

    def code(self, value: Any) -> str:
        text, unseen = self._digester.digest(value)
        self._unseen |= unseen
        return text

    def note(self, name: str, *parts: object) -> None:
        """Add the digest of a node, and what could not be digested since the last one."""
        self.nodes[name] = _digest(*parts)
        if self._unseen:
            self.unseen[name] = tuple(sorted(self._unseen))
        self._unseen = set()


def _node(work: _Work, node: Node, stores: tuple[str, ...]) -> tuple[object, ...]:
    match node:
        case SourceNode():
            serdes = work.code(node.key_serde), work.code(node.value_serde)
            topics = sorted(node.topics) if node.pattern is None else (node.pattern.pattern, node.pattern.flags)
            return "source", topics, *serdes, work.code(node.timestamp_extractor), str(node.reset)
        case ProcessorNode():
            return "processor", node.parents, stores, [work.code(function) for function in node.functions]
        case SinkNode():
            topic = node.topic if isinstance(node.topic, str) else work.code(node.topic)
            serdes = work.code(node.key_serde), work.code(node.value_serde)
            return "sink", node.parents, topic, *serdes, work.code(node.partitioner)


def _store(work: _Work, builder: StoreBuilder) -> tuple[object, ...]:
    serdes = work.code(builder.key_serde), work.code(builder.value_serde)
    limit = () if builder.max_entries is None else (builder.max_entries,)
    # Of a table whose rows expire, the digest of its node has the time to live.
    lives = () if builder.ttl_ms is None or builder.table_expires else ("ttl", builder.ttl_ms)
    return builder.kind.value, *serdes, builder.logging, builder.retention_ms, builder.window_size_ms, *limit, *lives


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
