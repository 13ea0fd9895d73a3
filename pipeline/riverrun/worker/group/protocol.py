"""Reports of instances about themselves, and assignments by the leader: plain values, and their messages as JSON.

Other releases may take part. Tasks are ranges of partitions, so that messages grow with instances rather than with tasks.
"""

from __future__ import annotations

import time
import zlib
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import msgspec

from riverrun.config.address import ServerAddress
from riverrun.config.streams import MOST_THREADS
from riverrun.decoders import Line, Name, Natural, UnreadableError, Word, foreign_decoder
from riverrun.records import TaskId

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from riverrun.kafka.admin import Admin

RUNNING = -1
"""The lag of the instance that runs a task (`Task.LATEST_OFFSET`): less than any other."""


@dataclass(frozen=True, slots=True)
class Instance:
    """An instance's description of itself.

    Args:
        id: Survives restarts, as long as its state directory does.
        tags: Client tags, such as rack or zone.
        positions: Sum of the applied changelog offsets, per task of which it has local state.
        restoring: The active tasks whose state is not complete yet.
    """

    id: str
    capacity: int
    tags: Mapping[str, str] = field(default_factory=dict)
    active: frozenset[TaskId] = frozenset()
    positions: Mapping[TaskId, int] = field(default_factory=dict)
    restoring: frozenset[TaskId] = frozenset()
    standby: frozenset[TaskId] = frozenset()


@dataclass(frozen=True, slots=True)
class AssignmentConfig:
    """Kafka Streams' settings of the same names.

    Args:
        num_standby_replicas: Copies of each state in addition to the active one.
        max_warmup_replicas: How many tasks may warm up elsewhere at a time, in addition to the standbys.
        acceptable_recovery_lag: The most changelog records that a caught-up instance may lack.
        rack_aware_assignment_tags: Tags in whose values the copies of a state should differ.
    """

    num_standby_replicas: int = 0
    max_warmup_replicas: int = 2
    acceptable_recovery_lag: int = 10_000
    rack_aware_assignment_tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class InstanceTasks:
    """The tasks that one instance is to have.

    Args:
        warm_up: The standbys that are warming up: once these have caught up, tasks can move to their intended places.
    """

    active: frozenset[TaskId] = frozenset()
    standby: frozenset[TaskId] = frozenset()
    warm_up: frozenset[TaskId] = frozenset()


class Lags:
    """Computes how many changelog records of each task each instance lacks: `RUNNING` for the instance that runs it."""

    def __init__(self, instances: Iterable[Instance], acceptable: int) -> None:
        # The furthest position that any instance has reported counts as the end: the leader asks no broker.
        everyone = list(instances)
        ends: dict[TaskId, int] = {}
        for instance in everyone:
            for task, position in instance.positions.items():
                ends[task] = max(ends.get(task, 0), position)
        self._acceptable = acceptable
        self._ends = ends
        self._known: defaultdict[TaskId, dict[str, int]] = defaultdict(dict)
        for instance in everyone:
            for task in instance.active.union(instance.positions):
                lag = ends.get(task, 0) - instance.positions.get(task, 0)
                # An instance that restores a task counts as running it only if it lacks few records; otherwise
                # another may suit better.
                runs = task in instance.active and (task not in instance.restoring or lag <= acceptable)
                self._known[task][instance.id] = RUNNING if runs else lag

    def __call__(self, task: TaskId, instance: str) -> int:
        """Return how many records of a task an instance lacks."""
        return self.known(task).get(instance, self.end(task))

    def end(self, task: TaskId) -> int:
        """Return how many records of a task an instance lacks that has no state of it."""
        return self._ends.get(task, 0)

    def known(self, task: TaskId) -> Mapping[str, int]:
        """Return how many records each instance lacks that has any state of a task."""
        return self._known.get(task, {})

    def is_caught_up(self, task: TaskId, instance: str) -> bool:
        """Return whether an instance could run a task without a long restore."""
        return self(task, instance) <= self._acceptable


FORMAT = 2
"""Format of subscriptions and assignments; the leader refuses instances of another format."""
# Bytes of JSON, unpacked. A broker keeps the messages of a whole group in one record, usually of 1 MiB at most.
_LONGEST_MESSAGE = 8 * 2**20
# JSON begins with another byte.
_COMPRESSED = zlib.compress(b"")[:1]

Threads = Annotated[int, msgspec.Meta(ge=1, le=MOST_THREADS)]
Partitions = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
_NUMBER = "(0|[1-9][0-9]{0,8})"
_RANGE = f"{_NUMBER}(-{_NUMBER})?"
_RANGES = f"{_NUMBER}:{_RANGE}(,{_RANGE})*"
Task = Annotated[str, msgspec.Meta(pattern=rf"^{_NUMBER}_{_NUMBER}\Z")]
Tasks = Annotated[str, msgspec.Meta(pattern=rf"^({_RANGES}( {_RANGES})*)?\Z")]
"""Tasks as `ranges` has them."""
# A short text can name very many tasks, and members are not trusted.
_MOST_TASKS = 200_000
Tag = Annotated[str, msgspec.Meta(max_length=1000)]


class SubscriptionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An instance's description of itself, for a rebalance of the group (`SubscriptionInfo`).

    Args:
        fingerprint: Of its topology; instances with another one cannot share its tasks.
        positions: Sum of the applied changelog offsets of each task of `known`, in its order.
        server: `host:port` where it answers queries; empty if it does not.
        shuts_down: Whether it asks the whole application to end.
        restoring: The active tasks whose state is not complete yet.
        process: Names its process; it changes with each restart.
    """

    instance: Word
    fingerprint: Word
    capacity: Threads
    tags: dict[Tag, Tag] = {}
    active: Tasks = ""
    known: Tasks = ""
    positions: list[Natural] = []
    server: Word = ""
    shuts_down: bool = False
    topics: dict[Name, Partitions] = {}
    format: int = FORMAT
    restoring: Tasks = ""
    standby: Tasks = ""
    process: Word = ""


class Addresses(msgspec.Struct, frozen=True, array_like=True):
    """Addresses at which instances answer queries about tasks. Each is named once, as every message of a group has them.

    Args:
        servers: `host:port` each; numbered from 1.
        active: The number of the address of each task's active instance, in the tasks' order; 0 if it answers no queries.
    """

    servers: list[Word] = []
    tasks: Tasks = ""
    active: list[Natural] = []
    standby: list[list[Natural]] = []


class AssignmentInfo(msgspec.Struct, frozen=True):
    """The leader's assignment to an instance (`AssignmentInfo`).

    Args:
        warm_up: The standbys that are warming up: the leader must learn when they have caught up.
        servers: Where the active instance of each task answers queries. Messages have these as `addresses`.
        standby_servers: Where its standbys answer queries. Messages have these as `addresses`.
        refusal: Why the instance cannot take part; then it has to end.
        may_pass: Whether the refusal may pass: the instance's predecessor, which has died, may still count as a member.
        topics: Number of partitions of each topic that determines the tasks; equal for all instances.
        process: The process that it is for; empty from leaders that do not name it. Brokers send a restarted static member
            its predecessor's assignment, and the leader does not learn of the restart.
        omits_servers: Whether addresses were left out, as the messages of the group would be too large with them
            (`servers_by_task` finds them).
    """

    active: Tasks = ""
    standby: Tasks = ""
    warm_up: Tasks = ""
    servers: dict[Task, Word] = {}
    standby_servers: dict[Task, list[Word]] = {}
    refusal: Line | None = None
    shuts_down: bool = False
    topics: dict[Name, Partitions] = {}
    format: int = FORMAT
    process: Word = ""
    fingerprint: Word = ""
    omits_servers: bool = False
    addresses: Addresses = Addresses()
    may_pass: bool = False


_subscription_info = foreign_decoder(SubscriptionInfo, _LONGEST_MESSAGE)
_assignment_info = foreign_decoder(AssignmentInfo, _LONGEST_MESSAGE)


def packed(message: SubscriptionInfo | AssignmentInfo) -> bytes:
    """Encode a message, compressed if that is shorter."""
    # Brokers keep the messages of all members in one record, usually of 1 MiB at most.
    plain = msgspec.json.encode(message)
    return min(zlib.compress(plain), plain, key=len)


def _unpacked(data: bytes) -> bytes:
    if data[:1] != _COMPRESSED:
        return data
    unpacking = zlib.decompressobj()
    try:
        # Limited, as a short message of another program could expand to gigabytes.
        plain = unpacking.decompress(data, _LONGEST_MESSAGE)
    except zlib.error as error:
        raise UnreadableError(f"it cannot be decompressed: {error}") from error
    if not unpacking.eof:
        raise UnreadableError(f"it is cut off, or has more than {_LONGEST_MESSAGE} bytes")
    return plain


def subscription_info_of(data: bytes) -> SubscriptionInfo:
    info = _subscription_info(_unpacked(data))
    if info.format != FORMAT:
        raise UnreadableError(f"it has format {info.format}, and this release reads format {FORMAT}")
    if info.server and not is_address(info.server):
        raise UnreadableError("its address is not host:port")
    for tasks in (info.active, info.known, info.restoring, info.standby):
        _check_number(tasks)
    if len(in_order(info.known)) != len(info.positions):
        raise UnreadableError("it has another number of positions than of tasks")
    return info


def assignment_info_of(data: bytes) -> AssignmentInfo:
    """Decode an assignment. Leaves out addresses of members that are not plain addresses."""
    assignment = _assignment_info(_unpacked(data))
    # A refusal may have any format: a leader of another release refuses in its own.
    if assignment.format != FORMAT and assignment.refusal is None:
        raise UnreadableError(f"it has format {assignment.format}, and this release reads format {FORMAT}")
    for tasks in (assignment.active, assignment.standby, assignment.warm_up):
        _check_number(tasks)
    servers, standby = _by_task(assignment.addresses)
    return msgspec.structs.replace(assignment, servers=servers, standby_servers=standby, addresses=Addresses())


def addresses_of(active: Mapping[str, str], standby: Mapping[str, Collection[str]]) -> Addresses:
    """Return the addresses of tasks, each of which is named once.

    >>> addresses_of({"0_0": "a:1", "0_1": "b:1"}, {"0_1": ["a:1"]})
    Addresses(servers=['a:1', 'b:1'], tasks='0:0-1', active=[1, 2], standby=[[], [1]])
    """
    servers = sorted({*active.values(), *(server for named in standby.values() for server in named)})
    numbers = {server: number for number, server in enumerate(servers, 1)}
    tasks = ranges(map(TaskId.parse, {*active, *standby}))
    named = list(map(str, in_order(tasks)))
    return Addresses(
        servers,
        tasks,
        [numbers[active[task]] if task in active else 0 for task in named],
        [sorted(numbers[server] for server in standby.get(task, ())) for task in named],
    )


def _by_task(addresses: Addresses) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Return the addresses of active instances and of standbys by task."""
    _check_number(addresses.tasks)
    named = list(map(str, in_order(addresses.tasks)))
    if not len(named) == len(addresses.active) == len(addresses.standby):
        raise UnreadableError("it has addresses of another number of tasks than it names")
    # Addresses come from members, and requests are sent to them: anything but host:port is dropped.
    plain = {number: server for number, server in enumerate(addresses.servers, 1) if is_address(server)}
    active = {task: plain[number] for task, number in zip(named, addresses.active, strict=True) if number in plain}
    standby = {
        task: [plain[number] for number in each if number in plain]
        for task, each in zip(named, addresses.standby, strict=True)
        if each
    }
    return active, standby


def is_address(server: str) -> bool:
    """Return whether a member's address has the form `host:port`, and nothing else."""
    try:
        ServerAddress.parse(server)
    except ValueError:
        return False
    return True


def ranges(tasks: Iterable[TaskId]) -> str:
    """Return tasks as a text: of each sub-topology, ranges of partitions.

    >>> ranges([TaskId(0, 2), TaskId(0, 1), TaskId(0, 4), TaskId(1, 7)])
    '0:1-2,4 1:7'
    """
    found: defaultdict[int, list[list[int]]] = defaultdict(list)
    for sub_topology, partition in sorted(set(tasks)):
        runs = found[sub_topology]
        if runs and runs[-1][-1] == partition - 1:
            runs[-1][1:] = [partition]
        else:
            runs.append([partition])
    return " ".join(f"{sub}:{','.join('-'.join(map(str, run)) for run in runs)}" for sub, runs in found.items())


def in_order(text: str) -> list[TaskId]:
    """Return the tasks of a text of ranges, in its order.

    >>> in_order("0:1-2,4")
    [TaskId(sub_topology=0, partition=1), TaskId(sub_topology=0, partition=2), TaskId(sub_topology=0, partition=4)]
    """
    return [TaskId(sub_topology, partition) for sub_topology, run in _runs(text) for partition in run]


def task_ids(text: str) -> frozenset[TaskId]:
    return frozenset(in_order(text))


def _runs(text: str) -> Iterator[tuple[int, range]]:
    for each in text.split():
        sub_topology, _, runs = each.partition(":")
        for run in runs.split(","):
            first, _, last = run.partition("-")
            yield int(sub_topology), range(int(first), int(last or first) + 1)


def _check_number(tasks: str) -> None:
    if sum(len(run) for _, run in _runs(tasks)) > _MOST_TASKS:
        raise UnreadableError(f"it names more than {_MOST_TASKS} tasks")


_PAUSE_SECONDS = 0.1


def servers_of(admin: Admin, group: str, *, within_s: float = 0.0) -> list[str]:
    """Return `host:port` of each instance of a group that answers queries; empty if a rebalance does not end in time."""
    deadline = time.monotonic() + within_s
    while (members := admin.member_messages(group)) is None and time.monotonic() < deadline:
        # Members announce themselves during a rebalance, so nothing is known before its end.
        time.sleep(_PAUSE_SECONDS)
    found = []
    for subscription, _ in members or ():
        try:
            found.append(subscription_info_of(subscription).server)
        # Such as a member that another program has started.
        except UnreadableError:
            continue
    return sorted(filter(None, found))


def servers_by_task(admin: Admin, group: str) -> tuple[dict[str, str], dict[str, list[str]]] | None:
    """Return where the active instance and the standbys of each task answer queries; None during a rebalance."""
    members = admin.member_messages(group)
    if members is None:
        return None
    active: dict[str, str] = {}
    standby: dict[str, list[str]] = {}
    for subscription, plan in members:
        try:
            server, assignment = subscription_info_of(subscription).server, assignment_info_of(plan)
        except UnreadableError:
            continue
        if server:
            active |= dict.fromkeys(map(str, in_order(assignment.active)), server)
            for task in in_order(assignment.standby):
                standby.setdefault(str(task), []).append(server)
    return active, standby
