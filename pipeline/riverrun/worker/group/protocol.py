"""Messages between instances through the group's leader, in JSON, as other releases may take part."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from riverrun.config.address import ServerAddress
from riverrun.decoders import json_decoder
from riverrun.records import TaskId

if TYPE_CHECKING:
    from collections.abc import Iterable

FORMAT = 1
"""Format of introductions and orders; the leader refuses instances of another format."""


class Introduction(msgspec.Struct, frozen=True, kw_only=True):
    """An instance's introduction for a rebalance of the group (`SubscriptionInfo`).

    Args:
        instance: Its id; survives restarts.
        fingerprint: Of its topology; instances with another topology cannot share its tasks.
        capacity: Number of stream threads.
        tags: Client tags.
        active: The tasks it runs.
        positions: Sum of the applied changelog offsets, per task of which it has state.
        server: `host:port` where it answers queries; empty if nowhere.
        shuts_down: Whether it asks the whole application to end.
        topics: Partitions of the topics to read that it has found.
        format: Format of this message.
        restoring: The active tasks whose state is not complete yet.
        standby: The tasks whose changelogs it follows.
        process: Names the process that introduces itself; it changes with each restart.
    """

    instance: str
    fingerprint: str
    capacity: int
    tags: dict[str, str] = {}
    active: list[str] = []
    positions: dict[str, int] = {}
    server: str = ""
    shuts_down: bool = False
    topics: dict[str, int] = {}
    format: int = FORMAT
    restoring: list[str] = []
    standby: list[str] = []
    process: str = ""


class Orders(msgspec.Struct, frozen=True):
    """The leader's orders to an instance (`AssignmentInfo`).

    Args:
        active: Tasks to process.
        standby: Tasks whose changelogs to follow.
        warm_up: The standbys that are warming up: the leader has to hear when they have caught up.
        servers: Where the active instance of each task answers queries.
        standby_servers: Where its standbys answer queries.
        refusal: Why the instance cannot take part; then it has to end.
        shuts_down: Whether the whole application has to end.
        topics: Partitions of the topics that determine the tasks; equal for all instances.
        format: Format of this message.
        process: The process that the orders are for; empty from leaders that do not name it. A restarted static member receives
            the orders of its predecessor, and the leader does not hear of the restart.
        fingerprint: Of the topology whose tasks these are.
    """

    active: list[str] = []
    standby: list[str] = []
    warm_up: list[str] = []
    servers: dict[str, str] = {}
    standby_servers: dict[str, list[str]] = {}
    refusal: str | None = None
    shuts_down: bool = False
    topics: dict[str, int] = {}
    format: int = FORMAT
    process: str = ""
    fingerprint: str = ""


_decoded = json_decoder(Orders).decode


def orders_of(data: bytes) -> Orders:
    """Decode orders. Leaves out addresses of members that are not plain addresses.

    Raises:
        msgspec.MsgspecError: If the bytes are no orders.
    """
    orders = _decoded(data)
    servers = {task: server for task, server in orders.servers.items() if is_address(server)}
    standby = {task: list(filter(is_address, named)) for task, named in orders.standby_servers.items()}
    return msgspec.structs.replace(orders, servers=servers, standby_servers=standby)


def is_address(server: str) -> bool:
    """Return whether a member's address has the form `host:port`, and nothing else."""
    try:
        ServerAddress.parse(server)
    except ValueError:
        return False
    return True


def task_ids(texts: Iterable[str]) -> frozenset[TaskId]:
    """Parse the text forms of tasks."""
    return frozenset(map(TaskId.parse, texts))


def texts(tasks: Iterable[TaskId]) -> list[str]:
    """Return the text forms of tasks, sorted."""
    return [str(task) for task in sorted(tasks)]
