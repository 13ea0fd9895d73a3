"""Messages between instances through the group's leader, in JSON, as other releases may take part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from riverrun.config.address import ServerAddress
from riverrun.config.sections.streams import MOST_THREADS
from riverrun.decoders import Line, Name, Natural, UnreadableError, Word, foreign_decoder
from riverrun.records import TaskId

if TYPE_CHECKING:
    from collections.abc import Iterable

FORMAT = 1
"""Format of introductions and orders; the leader refuses instances of another format."""
_LONGEST_MESSAGE = 8 * 2**20
"""Bytes. A broker keeps the messages of a whole group in one record, whose limit is usually 1 MiB."""

Threads = Annotated[int, msgspec.Meta(ge=1, le=MOST_THREADS)]
Partitions = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
Task = Annotated[str, msgspec.Meta(pattern=r"^(0|[1-9][0-9]{0,8})_(0|[1-9][0-9]{0,8})\Z")]
"""The text form of a task."""
Tag = Annotated[str, msgspec.Meta(max_length=1000)]


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

    instance: Word
    fingerprint: Word
    capacity: Threads
    tags: dict[Tag, Tag] = {}
    active: list[Task] = []
    positions: dict[Task, Natural] = {}
    server: Word = ""
    shuts_down: bool = False
    topics: dict[Name, Partitions] = {}
    format: int = FORMAT
    restoring: list[Task] = []
    standby: list[Task] = []
    process: Word = ""


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

    active: list[Task] = []
    standby: list[Task] = []
    warm_up: list[Task] = []
    servers: dict[Task, Word] = {}
    standby_servers: dict[Task, list[Word]] = {}
    refusal: Line | None = None
    shuts_down: bool = False
    topics: dict[Name, Partitions] = {}
    format: int = FORMAT
    process: Word = ""
    fingerprint: Word = ""


_introduction = foreign_decoder(Introduction, _LONGEST_MESSAGE)
_orders = foreign_decoder(Orders, _LONGEST_MESSAGE)


def introduction_of(data: bytes) -> Introduction:
    """Decode the introduction of a member.

    Raises:
        UnreadableError: If the bytes are no introduction of this format, or its address is not a plain one.
    """
    intro = _introduction(data)
    if intro.format != FORMAT:
        message = f"it has format {intro.format}, and this release reads format {FORMAT}"
        raise UnreadableError(message)
    if intro.server and not is_address(intro.server):
        message = "its address is not host:port"
        raise UnreadableError(message)
    return intro


def orders_of(data: bytes) -> Orders:
    """Decode orders. Leaves out addresses of members that are not plain addresses.

    Raises:
        UnreadableError: If the bytes are no orders of this format; a refusal may have any.
    """
    orders = _orders(data)
    if orders.format != FORMAT and orders.refusal is None:
        message = f"they have format {orders.format}, and this release reads format {FORMAT}"
        raise UnreadableError(message)
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
