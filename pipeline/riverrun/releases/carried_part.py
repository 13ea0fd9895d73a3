"""The part of a candidate's topology that computes what cannot be carried, as a separate topology.

A bounded run processes it once, before the candidate begins: from the beginning of the inputs up to the mark. A table that is
made from the rows of a carried store reads these from the store's changelog, instead of what feeds the store.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from riverrun.operators.tables import TableSource
from riverrun.processor.operator import TakesRows
from riverrun.releases.topology import build_topology
from riverrun.runtime.layout import changelog_name
from riverrun.topology.assembly import put_together
from riverrun.topology.nodes import ProcessorNode, SinkNode, SourceNode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from riverrun.processor.operator import Operator
    from riverrun.releases.topology import VersionedJob
    from riverrun.topology.parts import Parts
    from riverrun.topology.topology import Topology


@dataclass(frozen=True, slots=True)
class CarriedPart:
    """Builds the part of an application's topology; executors call it where they run.

    Args:
        fed: Nodes that forward the rows of a carried store instead, with the store.
    """

    nodes: frozenset[str]
    fed: Mapping[str, str]

    def __call__(self, job: VersionedJob) -> Topology:
        """Return the part of the topology of a job's application and version."""
        return self.of(build_topology(job), job.config.application_id(job.version))

    def of(self, topology: Topology, application_id: str) -> Topology:
        """Return the part of a candidate's topology; the names of its changelogs begin with the application's id."""
        parts = topology.parts()
        parts.remove(*(name for name in list(parts.nodes) if name not in self.nodes))
        for node, store in self.fed.items():
            self._feed(parts, node, changelog_name(application_id, store), store)
        parts.remove_stores(*(name for name in list(parts.stores) if not parts.users[name]))
        read = {topic for node in parts.nodes.values() if isinstance(node, SourceNode) for topic in node.topics}
        written = {node.topic for node in parts.nodes.values() if isinstance(node, SinkNode)}
        parts.repartition_topics = {
            name: topic for name, topic in parts.repartition_topics.items() if name in read & written
        }
        groups = [group & parts.nodes.keys() for group in parts.copartitioned]
        parts.copartitioned = [group for group in groups if len(group) > 1]
        return put_together(parts)

    def _feed(self, parts: Parts, name: str, changelog: str, store: str) -> None:
        """Let a node forward the rows of a changelog, and let the nodes below it take them."""
        builder, at = parts.stores[store], parts.order.index(name)
        source = SourceNode(f"{name}-rows", (changelog,), builder.key_serde, builder.value_serde)
        parts.nodes[source.name] = source
        parts.order.insert(at, source.name)
        forwarding = partial(TableSource, None, send_old_values=False)
        parts.nodes[name] = ProcessorNode(name, (source.name,), forwarding, is_operator=True)
        # The node keeps no store any more; stores without users are removed afterwards.
        for users in parts.users.values():
            users.discard(name)
        below = {name}
        for child in parts.order[at:]:
            node = parts.nodes.get(child)
            if isinstance(node, ProcessorNode) and below & set(node.parents):
                below.add(child)
                parts.nodes[child] = replace(node, supplier=partial(_for_rows, node.supplier))


def _for_rows(supplier: Callable[[], object]) -> Operator:
    made = supplier()
    return made.for_rows() if isinstance(made, TakesRows) else made  # type: ignore[return-value]
