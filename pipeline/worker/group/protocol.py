"""Messages of instances to each other through the group's leader, in JSON: other releases may be at the other end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from pipeline.config.address import ServerAddress
from pipeline.records import TaskId

if TYPE_CHECKING:
    from collections.abc import Iterable

FORMAT = 1
"""Of introductions and orders; instances of another format are refused."""


class Introduction(msgspec.Struct, frozen=True, kw_only=True):
    """An instance's introduction when the group is rebalanced (`SubscriptionInfo`).

    Args:
        instance: Its id; survives restarts.
        fingerprint: Of its topology: instances of another one cannot share its tasks.
        capacity: Number of stream threads.
        tags: Client tags.
        active: The tasks it runs.
        positions: Changelog offsets applied, summed up, per task of which it has state.
        server: `host:port` where it answers queries; empty if nowhere.
        shuts_down: Whether it asks the whole application to end.
        topics: Partitions of the topics to read that it has found.
        format: Of this message.
        restoring: Those of the active tasks whose state is not complete yet.
        standby: The tasks whose changelogs it follows.
        process: Names the process that says so; after a restart it is another one.
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
        warm_up: Those of the standbys that are waited for: the leader is to hear when they have caught up.
        servers: Where the active instance of each task answers queries.
        standby_servers: Where its standbys do.
        refusal: Why it cannot take part; then it has to end.
        shuts_down: Whether the whole application is to end.
        topics: Partitions of the topics that these tasks are made of: the same for everybody.
        format: Of this message.
        process: For which process they are. A static member that was restarted is told what its predecessor was, and the leader
            does not hear of it; empty from leaders that do not say so.
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


_decoded = msgspec.json.Decoder(Orders).decode


def orders_of(data: bytes) -> Orders:
    """Orders, out of their bytes. What members have named as their addresses is left out if it is more, or less.

    Raises:
        msgspec.MsgspecError: If they are none.
    """
    orders = _decoded(data)
    servers = {task: server for task, server in orders.servers.items() if is_address(server)}
    standby = {task: list(filter(is_address, named)) for task, named in orders.standby_servers.items()}
    return msgspec.structs.replace(orders, servers=servers, standby_servers=standby)


def is_address(server: str) -> bool:
    """Whether what a member names as its address is one: `host:port`, and nothing else."""
    try:
        ServerAddress.parse(server)
    except ValueError:
        return False
    return True


def task_ids(texts: Iterable[str]) -> frozenset[TaskId]:
    """Tasks, out of their text forms."""
    return frozenset(map(TaskId.parse, texts))


def texts(tasks: Iterable[TaskId]) -> list[str]:
    """Text forms of tasks, in order."""
    return [str(task) for task in sorted(tasks)]
