"""Takes part in the group of an application for an instance: describes it, receives its assignment, and asks for rebalances."""

from __future__ import annotations

import threading
import time
import uuid
from typing import TYPE_CHECKING, Protocol

import msgspec

from riverrun.errors import StreamsError, TopicError, TopologyError
from riverrun.hosting.local_state import instance_id, left_positions
from riverrun.worker.group.membership import Membership
from riverrun.worker.group.protocol import SubscriptionInfo, ranges, task_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.records import TaskId
    from riverrun.runtime.layout import Layout
    from riverrun.worker.group.protocol import AssignmentInfo

# An instance that ends the application stays in the group for so long, so that the others learn of it.
_LINGER_SECONDS = 60.0
# Reports are repeated: the leader compares positions up to a second old, and may see a false lag under load.
_AGAIN_SECONDS = 30.0


class LocalTasks(Protocol):
    """The tasks of an instance (`StreamThreads`)."""

    def active(self) -> frozenset[TaskId]:
        """Return the tasks that it runs, or may run."""

    def restoring(self) -> Mapping[TaskId, int | None]:
        """Return the tasks that are being taken over."""

    def positions(self) -> Mapping[TaskId, int]:
        """Return the sum of applied changelog offsets, per open task."""

    def lags(self) -> Mapping[TaskId, int]:
        """Return the number of missing records per standby."""


class WarmUps:
    """The tasks that are warming up here."""

    def __init__(self, acceptable_lag: int) -> None:
        self._acceptable_lag = acceptable_lag
        self._ready: frozenset[TaskId] = frozenset()
        self._reported_at = 0.0

    def are_news(self, warm_ups: Collection[TaskId], lags: Mapping[TaskId, int], now_s: float) -> bool:
        """Return whether to ask for a probing rebalance: more tasks have caught up, or some did long ago and still wait."""
        before = self._ready
        self._ready = frozenset(
            task for task in warm_ups if lags.get(task, self._acceptable_lag + 1) <= self._acceptable_lag
        )
        if self._ready <= before and not (self._ready and now_s - self._reported_at >= _AGAIN_SECONDS):
            return False
        self._reported_at = now_s
        return True


class GroupClient:
    """The part of an instance that the other instances of its group see.

    Args:
        server: `host:port` where it answers queries; empty if it does not.
        capacity: Returns the wanted number of its stream threads.
    """

    def __init__(
        self, connected: ConnectedApplication, tasks: LocalTasks, *, server: str, capacity: Callable[[], int]
    ) -> None:
        streams = connected.application.config.streams
        self.id = instance_id(connected.application)
        self.server = server
        self.connected = connected
        """The application, with the topics of the last assignment."""
        self.layout: Layout | None = None
        """The existing tasks; None before the topics have been looked up."""
        self.stateful = _stateful(connected)
        """The sub-topologies whose tasks have state to restore."""
        self.assignment: AssignmentInfo | None = None
        """The last assignment that applies; None before the first."""
        self.is_current = False
        """True if it still holds: not once another owner has taken over a task."""
        self.is_told_to_end = False
        self._tasks = tasks
        self._capacity = capacity
        self._tags = dict(streams.client_tag)
        self._process_name = uuid.uuid4().hex
        self._leaves = threading.Event()
        self._membership = Membership(connected, self._leaves, self._subscription_info, self._tasks_of)
        self._warm_ups = WarmUps(streams.acceptable_recovery_lag)
        self._positions: Mapping[TaskId, int] = {}
        self._announced_active: frozenset[TaskId] = frozenset()
        self._is_heard_of = True
        self._refused_at: float | None = None
        self._ends_application = False

    # Membership

    def prepare(self) -> None:
        """Look up the topics, and create internal ones."""
        self.connected = self.connected.resolved()
        self.layout = self.connected.prepare()
        self._membership.look_up()

    def join(self) -> None:
        """Join the group; instances with state of earlier processes announce it."""
        self._positions = left_positions(self.connected.application)
        self._membership.start()

    def leave(self) -> None:
        """Leave the group, and wait for that; tasks must be closed, as others take them over at once."""
        self._leaves.set()
        self._membership.join()

    @property
    def is_counted(self) -> bool:
        """Return whether brokers count this instance as a member of the group, or did less than a session ago."""
        return self._membership.is_counted

    def end_application(self) -> None:
        """Ask all instances to end, and stay in the group until they have learned of it."""
        self._ends_application = True
        self.request_rebalance()
        deadline = time.monotonic() + _LINGER_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            arrived = self._membership.heard(left)
            # The next assignment shows that the leader has told all of them.
            if arrived is None or isinstance(arrived, StreamsError) or arrived.shuts_down:
                return

    # Assignments

    def receive(self) -> None:
        """Apply the assignments that have arrived; raises if the membership has ended, or the leader refuses this instance."""
        while (arrived := self._membership.heard()) is not None:
            self._take(arrived)
        found = self._membership.found_servers()
        if found is not None and self.assignment is not None and self.assignment.omits_servers:
            active, standby = found
            self.assignment = msgspec.structs.replace(self.assignment, servers=active, standby_servers=standby)

    def _take(self, arrived: AssignmentInfo | StreamsError) -> None:
        if isinstance(arrived, StreamsError):
            raise arrived
        self._is_heard_of = arrived.process in ("", self._process_name)
        # Brokers send a restarted static member its predecessor's assignment. Its tasks are continued; a refusal or a
        # request to end was not meant for this process.
        if not self._is_heard_of and self._is_obsolete(arrived):
            self.request_rebalance()
            return
        if arrived.refusal is not None:
            # A process that has had tasks has no dead predecessor: it is one of two that live.
            if arrived.may_pass and self.assignment is None and self._may_pass():
                self._membership.pass_over(arrived.refusal)
                return
            raise TopologyError(
                arrived.refusal, hint="Stop the other instances, or start this version under its own name."
            )
        self._refused_at = None
        if arrived.shuts_down:
            self.is_told_to_end = True
        connected = self.connected.with_partitions(arrived.topics) if arrived.topics else self.connected
        wrong = _wrong_in(arrived, connected)
        if wrong is not None:
            self._membership.pass_over(wrong)
            return
        self.connected, self.layout, self.stateful = connected, connected.layout, _stateful(connected)
        self.assignment = arrived
        self.is_current = True

    def _may_pass(self) -> bool:
        """Return whether a predecessor that has died may still count as a member: it does until its session ends."""
        self._refused_at = self._refused_at or time.monotonic()
        return time.monotonic() - self._refused_at <= self._membership.session_s

    def _is_obsolete(self, assignment: AssignmentInfo) -> bool:
        """Return whether an assignment to this process's predecessor, a static member, does not apply to this process."""
        return (
            assignment.refusal is not None
            or assignment.shuts_down
            or assignment.fingerprint != self.connected.fingerprint
        )

    # Rebalances

    def request_rebalance(self) -> None:
        """Ask for a rebalance. May be called from any thread."""
        self._membership.rejoin()

    def request_rebalance_if_needed(self, assignment: AssignmentInfo) -> None:
        """Request a rebalance if the leader must learn of this process, of released tasks, or of a warm-up."""
        if not self._is_heard_of:
            self._is_heard_of = True
            self.request_rebalance()
        # Released tasks are assigned again only once the leader has learned that they are closed.
        if self._announced_active - self._tasks.active():
            self.request_rebalance()
        if self._warm_ups.are_news(task_ids(assignment.warm_up), self._tasks.lags(), time.monotonic()):
            self.request_rebalance()

    def note_losses(self) -> None:
        """Ask for another assignment, as other owners have taken over tasks: the leader has to assign them."""
        self.is_current = False
        self.request_rebalance()

    # Subscriptions

    def note_positions(self) -> None:
        """Record the present positions of tasks; those of tasks that have moved away stay known with their state."""
        self._positions = {**self._positions, **self._tasks.positions()}

    def forget_positions(self, gone: Collection[TaskId]) -> None:
        """No longer announce the state of tasks: it is deleted."""
        self._positions = {task: position for task, position in self._positions.items() if task not in gone}

    def _subscription_info(self, topics: dict[str, int]) -> SubscriptionInfo:
        """Return the subscription info for the leader; called by the membership thread."""
        # Remembered, to notice which of the announced tasks are released afterwards.
        active = self._tasks.active()
        self._announced_active = active
        return SubscriptionInfo(
            instance=self.id,
            fingerprint=self.connected.fingerprint,
            capacity=self._capacity(),
            tags=self._tags,
            active=ranges(active),
            known=ranges(self._positions),
            positions=[position for _, position in sorted(self._positions.items())],
            server=self.server,
            shuts_down=self._ends_application,
            topics=topics,
            restoring=ranges(self._tasks.restoring()),
            standby=self.assignment.standby if self.assignment else "",
            process=self._process_name,
        )

    def _tasks_of(self, topics: Mapping[str, int]) -> Mapping[TaskId, bool]:
        """Return whether each task has state, for the leader, from the topics that this instance has found."""
        connected = self.connected.with_partitions(topics) if topics else self.connected
        stateful = _stateful(connected)
        return {task: task.sub_topology in stateful for task in connected.layout.tasks}


def _stateful(connected: ConnectedApplication) -> frozenset[int]:
    # A store without a changelog cannot be restored, so such a task may run anywhere.
    return frozenset(sub.id for sub in connected.topology.sub_topologies() if any(s.logging for s in sub.stores))


def _wrong_in(assignment: AssignmentInfo, connected: ConnectedApplication) -> str | None:
    """Return why an assignment cannot be carried out; None if it can be."""
    # Any member of the group may lead, also one with other topics, or a faulty one.
    try:
        tasks = connected.layout.tasks.keys()
    except (TopicError, TopologyError) as error:
        return error.message
    unknown = (task_ids(assignment.active) | task_ids(assignment.standby)) - tasks
    return f"it names tasks that do not exist, such as {min(unknown)}" if unknown else None
