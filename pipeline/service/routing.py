"""Where the answer to a question about a store is: in which task, and on which instance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.partitioning import partition_for

if TYPE_CHECKING:
    from collections.abc import Collection

    from pipeline.records import TaskId
    from pipeline.runtime.layout import Layout
    from pipeline.state.api import StoreBuilder
    from pipeline.topology.topology import Topology
    from pipeline.worker.protocol import Orders


@dataclass(frozen=True, slots=True)
class StorePlace:
    """A store, and the tasks it is spread over.

    Args:
        builder: The store.
        tasks: The tasks that each have a part of it, by partition; empty for global stores, which everybody has.
    """

    builder: StoreBuilder
    tasks: tuple[TaskId, ...]

    def task_of(self, key: bytes) -> TaskId | None:
        """The task that has a key, as Kafka's default partitioner has it (`KafkaStreams.queryMetadataForKey`)."""
        return self.tasks[partition_for(key, len(self.tasks))] if self.tasks else None


def store_places(topology: Topology, layout: Layout) -> dict[str, StorePlace]:
    """All stores by name."""
    tasks: dict[int, list[TaskId]] = {}
    for task in sorted(layout.tasks):
        tasks.setdefault(task.sub_topology, []).append(task)
    places = {
        store.name: StorePlace(store, tuple(tasks.get(sub.id, ())))
        for sub in topology.sub_topologies()
        for store in sub.stores
    }
    return places | {declared.store.name: StorePlace(declared.store, ()) for declared in topology.global_stores}


@dataclass(frozen=True, slots=True)
class Here:
    """This instance can answer."""


@dataclass(frozen=True, slots=True)
class There:
    """Other instances can, each at `host:port`; the first one best."""

    servers: tuple[str, ...]


def route(
    task: TaskId | None,
    active: Collection[TaskId],
    standby: Collection[TaskId],
    orders: Orders | None,
    *,
    own_server: str,
    allows_standby: bool,
) -> Here | There:
    """Who is to answer: whoever runs the task or, if that will do, whoever follows it; this instance, rather than another.

    If nobody is known who could, this instance: it knows best why not.

    Args:
        task: The task that is asked about; None for global stores.
        active: Tasks that run here.
        standby: Tasks that are followed here.
        orders: The leader's last orders, which say where everything is.
        own_server: `host:port` of this instance.
        allows_standby: Whether a standby's answer, which may be old, will do.
    """
    if task is None or task in active or (allows_standby and task in standby) or orders is None:
        return Here()
    servers = [orders.servers.get(str(task), "")]
    if allows_standby:
        servers += orders.standby_servers.get(str(task), [])
    others = tuple(server for server in servers if server not in {"", own_server})
    return There(others) if others else Here()
