"""Tells serdes where they are used, and finds keys whose bytes a serde would write differently.

Kafka places records by the bytes of their keys, and stores find rows by them. Sources hand on values, so from then on a key is
what its serde writes. This may differ from what was read: JSON with spaces, or with fields in another order, or the id of the
producer's schema where that is not the serde's. Then the rows of a table are not in the partition in which joins and queries
look for them. No single record is wrong.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from riverrun.records import RAW_KEY, RAW_OFFSET
from riverrun.runtime.layout import changelog_name, internal_name
from riverrun.serde.api import Serde, SerdePlace, comparing, is_placed, needs_place, placed
from riverrun.topology.assembly import put_together
from riverrun.topology.nodes import ProcessorNode, SinkNode, SourceNode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from riverrun.records import RawFields, TopicPartition
    from riverrun.runtime.ports import Watch
    from riverrun.state.api import StoreBuilder
    from riverrun.topology.nodes import Node
    from riverrun.topology.topology import Topology

log = logging.getLogger(__name__)


def with_places(topology: Topology, application_id: str, registry: Mapping[str, Any]) -> Topology:
    """Return the topology with each serde placed at a topic, a repartition topic or the changelog of a store.

    It is the same topology if none of its serdes needs its place.
    """
    parts = topology.parts()
    places = _Places(application_id, frozenset(parts.repartition_topics), registry)
    global_nodes = [declared.source for declared in parts.global_stores.values()]
    stores = [*parts.stores.values(), *(declared.store for declared in parts.global_stores.values())]
    sides = [each for each in (*parts.nodes.values(), *global_nodes, *stores) if not isinstance(each, ProcessorNode)]
    if not any(needs_place(serde) for each in sides for serde in (each.key_serde, each.value_serde)):
        return topology
    parts.nodes = {name: places.of_node(node) for name, node in parts.nodes.items()}
    parts.global_stores = {
        name: replace(
            declared,
            source=places.of_source(declared.source),
            store=places.of_store(declared.store, declared.source.topics[0]),
        )
        for name, declared in parts.global_stores.items()
    }
    parts.stores = {name: places.of_store(store, store.source_topic) for name, store in parts.stores.items()}
    return put_together(parts)


@dataclass(frozen=True, slots=True)
class _Places:
    application_id: str
    repartition_topics: frozenset[str]
    registry: Mapping[str, Any]

    def of_node(self, node: Node) -> Node:
        match node:
            case SourceNode():
                return self.of_source(node)
            case SinkNode():
                topic = self._full_name(node.topic) if isinstance(node.topic, str) else None
                key_serde, value_serde = self._both(node, topic)
                return replace(node, key_serde=key_serde, value_serde=value_serde)
            case _:
                return node

    def of_source(self, node: SourceNode) -> SourceNode:
        topic = self._full_name(node.topics[0]) if node.topics else None
        key_serde, value_serde = self._both(node, topic, writes=False)
        return replace(node, key_serde=key_serde, value_serde=value_serde)

    def of_store(self, store: StoreBuilder, topic: str | None) -> StoreBuilder:
        # A store that is filled from an external topic has no changelog: its rows are that topic's records.
        place = changelog_name(self.application_id, store.name) if topic is None else topic
        key_serde, value_serde = self._both(store, place)
        return replace(store, key_serde=key_serde, value_serde=value_serde)

    def _full_name(self, topic: str) -> str:
        return internal_name(self.application_id, topic) if topic in self.repartition_topics else topic

    def _both(
        self, owner: SourceNode | SinkNode | StoreBuilder, topic: str | None, *, writes: bool = True
    ) -> tuple[Serde[Any], Serde[Any]]:
        keys = SerdePlace(topic, is_key=True, registry=self.registry, finds_rows=writes)
        values = SerdePlace(topic, is_key=False, registry=self.registry)
        return placed(owner.key_serde, keys), placed(owner.value_serde, values)


# A serde that writes other bytes shows it in the first keys; comparing all would cost each record.
_FIRST = 100


class KeyBytes:
    """Compares the first keys of a task's inputs with the bytes of their serdes, and reports each topic that differs once."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        # Number of keys that are still to be compared.
        self.compared: dict[TopicPartition, int] = {}
        self._reported: set[str] = set()
        self._serdes: dict[str, Serde[Any]] = {}

    def watch(self, tp: TopicPartition) -> None:
        """Compare the first keys of an input."""
        self.compared[tp] = _FIRST

    def look_at(self, tp: TopicPartition, source: SourceNode, records: Sequence[RawFields]) -> None:
        """Compare the keys of the next records of an input in `compared`."""
        serde = self._serdes.get(tp.topic)
        if serde is None:
            serde = self._serdes[tp.topic] = comparing(source.key_serde)
        first = records[: self.compared[tp]]
        for record in first:
            raw = record[RAW_KEY]
            if raw is None:
                continue
            written = raw
            # The source decides about keys that cannot be read.
            with suppress(Exception):
                written = serde.serialize(serde.deserialize(raw))
            if written != raw and tp.topic not in self._reported:
                self._reported.add(tp.topic)
                for known in [known for known in self.compared if known.topic == tp.topic]:
                    del self.compared[known]
                self._tell(_message(tp, record[RAW_OFFSET], source.key_serde))
                return
        self.compared[tp] -= len(first)
        if not self.compared[tp]:
            del self.compared[tp]

    def looked_at(
        self, tp: TopicPartition, source: SourceNode, batches: Iterator[Iterable[RawFields]]
    ) -> Iterator[Iterable[RawFields]]:
        """Compare the keys of batches of an input while they are taken."""
        for batch in batches:
            if tp not in self.compared:
                yield batch
                continue
            records = list(batch)
            self.look_at(tp, source, records)
            yield records


def teller(watch: Watch | None) -> Callable[[str], None]:
    """Return the function that reports such keys: to the test that watches, or to the log."""
    return _log if watch is None else watch.tell_of_keys


def _log(message: str) -> None:
    log.warning("%s", message)


def _message(tp: TopicPartition, offset: int, serde: Serde[Any]) -> str:
    """Describe a key without showing it: keys are the user's data."""
    how = "as the serde does, with its schema" if is_placed(serde) else "as the serde does"
    return (
        f"Serde {serde.name} does not reproduce the bytes of keys of topic {tp.topic}, for example of the key at"
        f" partition {tp.partition}, offset {offset}. With several partitions, foreign-key joins, joins of repartitioned"
        " records, and queries by key miss its rows.\n"
        f"Hint: Let producers write keys {how}, or repartition the topic first: "
        "builder.stream(...).repartition().to_table()."
    )
