"""Finds the task that can answer a question about a store, and its instance."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from riverrun.errors import USER_ERRORS, RegistryError, as_exception
from riverrun.partitioning import partition_for
from riverrun.runtime.layout import full_name
from riverrun.topology.nodes import SinkNode

if TYPE_CHECKING:
    from collections.abc import Collection

    from riverrun.partitioning import Partitions, StreamPartitioner
    from riverrun.records import TaskId
    from riverrun.runtime.layout import Layout
    from riverrun.state.api import StoreBuilder
    from riverrun.topology.nodes import SubTopology
    from riverrun.topology.topology import Topology
    from riverrun.worker.group.protocol import AssignmentInfo

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StorePlace:
    """A store, and the tasks that have its partitions.

    Args:
        tasks: The task of each partition; empty for global stores, which every instance has.
        partitioner: Custom partitioning of that topic, if the topology writes it itself.
    """

    builder: StoreBuilder
    tasks: tuple[TaskId, ...]
    topic: str = ""
    partitioner: StreamPartitioner | None = None

    def task_of(self, key: bytes, partitioner: StreamPartitioner | None = None) -> TaskId | None:
        """Return the task that has a key (`StreamsMetadataState.keyQueryMetadataForKey`); None for global stores.

        Raises ValueError if the partitioner fails, which is called without a value, or does not return exactly one partition.
        """
        if not self.tasks:
            return None
        custom, serde = partitioner or self.partitioner, self.builder.key_serde
        found: Partitions = None
        if custom is not None:
            found = self._chosen(custom, serde.deserialize(key))
        if found is None:
            # A windowed key lies in the partition of its key without the window: that is what the input was partitioned by.
            inner = serde.partition_key
            found = partition_for(key if inner is None else inner(serde.deserialize(key)), len(self.tasks))
        if not isinstance(found, int):
            if len(found) != 1:
                raise ValueError(f"The partitioner of {self.topic} must return one partition per key, not {found!r}")
            (found,) = found
        if found not in range(len(self.tasks)):
            message = f"The partitioner of {self.topic} returned partition {found}, but the topic has {len(self.tasks)}"
            raise ValueError(message)
        return self.tasks[found]

    def partitions_of(self, key: bytes | None) -> list[int]:
        everywhere = list(range(max(len(self.tasks), 1)))
        try:
            task = self.task_of(key) if key is not None else None
        except (ValueError, RegistryError) as error:
            # A partitioner that needs the value, or an absent registry, cannot be asked: the key may be in any partition.
            log.info("all partitions of %s are queried: %s", self.builder.name, error)
            return everywhere
        return [task.partition] if task is not None else everywhere

    def _chosen(self, partitioner: StreamPartitioner, key: object) -> Partitions:
        try:
            return partitioner(self.topic, key, None, len(self.tasks))
        except RegistryError:  # it asks a schema registry, which does not answer
            raise
        except USER_ERRORS as error:
            failed = as_exception(error)
            message = f"The partitioner of {self.topic} failed without a value: {type(failed).__name__}: {failed}"
            raise ValueError(message) from error


def store_places(topology: Topology, layout: Layout, application_id: str) -> dict[str, StorePlace]:
    tasks: dict[int, list[TaskId]] = {}
    for task in sorted(layout.tasks):
        tasks.setdefault(task.sub_topology, []).append(task)
    places: dict[str, StorePlace] = {}
    for sub in topology.sub_topologies():
        topic, partitioner = _input(topology, sub, layout, application_id)
        own = tuple(tasks.get(sub.id, ()))
        places |= {store.name: StorePlace(store, own, topic, partitioner) for store in sub.stores}
    return places | {declared.store.name: StorePlace(declared.store, ()) for declared in topology.global_stores}


def _input(
    topology: Topology, sub: SubTopology, layout: Layout, application_id: str
) -> tuple[str, StreamPartitioner | None]:
    """Return a topic that all tasks read, and the topology's partitioner for it; all such topics are partitioned alike."""
    last = max((task for task in layout.tasks if task.sub_topology == sub.id), default=None)
    read = () if last is None else tuple(tp.topic for tp in layout.tasks[last])
    for node in topology.nodes.values():
        # Only topics that the topology writes itself: how others partition theirs is not known here.
        if isinstance(node, SinkNode) and isinstance(node.topic, str) and node.partitioner is not None:
            name = full_name(sub, application_id, node.topic)
            if name in read:
                return name, node.partitioner
    return (read[0] if read else "", None)


@dataclass(frozen=True, slots=True)
class KeyQueryMetadata:
    """The place of a key (`org.apache.kafka.streams.KeyQueryMetadata`).

    Args:
        partition: The partition of the store that holds the key, if it is there; -1 for global stores.
        active: `host:port` of the instance that has it; empty if no instance that answers queries is known.
        standby: `host:port` of instances that have a copy.
    """

    partition: int
    active: str
    standby: tuple[str, ...] = ()


def key_query_metadata(
    place: StorePlace, task: TaskId | None, assignment: AssignmentInfo | None, own_server: str
) -> KeyQueryMetadata:
    """Return the place of a task's partition of a store; `task` is None for global stores, which every instance has."""
    if task is None:
        return KeyQueryMetadata(-1, own_server)
    if assignment is None:
        return KeyQueryMetadata(place.tasks.index(task), "")
    name = str(task)
    return KeyQueryMetadata(
        place.tasks.index(task), assignment.servers.get(name, ""), tuple(assignment.standby_servers.get(name, ()))
    )


@dataclass(frozen=True, slots=True)
class Here:
    """This instance can answer."""


@dataclass(frozen=True, slots=True)
class There:
    """Other instances can answer, each at `host:port`; the best one first."""

    servers: tuple[str, ...]


def route(
    task: TaskId | None,
    active: Collection[TaskId],
    standby: Collection[TaskId],
    assignment: AssignmentInfo | None,
    *,
    own_server: str,
    allows_standby: bool,
) -> Here | There:
    """Return the instance to ask: one that runs the task or, if allowed, follows it. This instance is preferred."""
    if task is None or task in active or (allows_standby and task in standby) or assignment is None:
        return Here()
    servers = [assignment.servers.get(str(task), "")]
    if allows_standby:
        servers += assignment.standby_servers.get(str(task), [])
    others = tuple(server for server in servers if server not in {"", own_server})
    # Nobody else is known: this instance refuses best, as it knows the reason.
    return There(others) if others else Here()
