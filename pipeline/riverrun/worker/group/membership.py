"""Membership of an instance in its group: a thread that joins, receives assignments, and asks for rebalances."""

from __future__ import annotations

import logging
import queue
import threading
import time
from typing import TYPE_CHECKING

from riverrun.decoders import UnreadableError
from riverrun.errors import BrokerError, ProcessingError, StreamsError, TaskMigratedError
from riverrun.hosting.local_state import instance_id
from riverrun.runtime.layout import internal_name
from riverrun.worker.group.leadership import finds_more, give_assignments, subscriptions_of
from riverrun.worker.group.protocol import (
    AssignmentConfig,
    AssignmentInfo,
    SubscriptionInfo,
    assignment_info_of,
    packed,
    servers_by_task,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.kafka.membership import GroupMember
    from riverrun.records import TaskId

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.1
_NEVER = float("inf")
# Asking for another assignment interrupts the whole group.
_ASK_AGAIN_SECONDS = 5.0
# Brokers keep the messages of a whole group in one record, usually of 1,048,588 bytes at most.
_ROOM_BYTES = 1_000_000
# Upper bound of what brokers add to the messages of each member.
_MEMBER_BYTES = 300
# More often than for unknown topics, whose look-up takes a list of all topics.
_GLANCE_SECONDS = 2.0


class Membership:
    """Membership in the group of an application, from `start` until the instance leaves.

    Args:
        subscription_info: Returns the instance's subscription info, given the topics found; called in the thread.
        tasks_of: Returns all tasks, and whether each has state, given the topics found; called in the thread, if it leads.
    """

    def __init__(
        self,
        connected: ConnectedApplication,
        leaves: threading.Event,
        subscription_info: Callable[[dict[str, int]], SubscriptionInfo],
        tasks_of: Callable[[Mapping[str, int]], Mapping[TaskId, bool]],
    ) -> None:
        self._connected = connected
        self._application = connected.application
        self._streams = connected.application.config.streams
        self._leaves = leaves
        self._subscription_info = subscription_info
        self._tasks_of = tasks_of
        self._rejoins = threading.Event()
        self._arrived: queue.SimpleQueue[bytes | StreamsError] = queue.SimpleQueue()
        self._found: dict[str, int] = {}
        self._looked_at = self._glanced_at = time.monotonic()
        self._asks_again_at: float | None = None
        self._seen: dict[str, int] = {}
        self._has_less_room = False
        self._looks_for_servers = False
        self._servers: queue.SimpleQueue[tuple[dict[str, str], dict[str, list[str]]]] = queue.SimpleQueue()
        self.session_s = int(self._streams.consumer.get("session.timeout.ms", 45_000)) / 1000
        self._member: GroupMember | None = None
        self._thread = threading.Thread(target=self._take_part, name="membership", daemon=True)

    def look_up(self) -> None:
        """Look up the topics to read, before `start`."""
        self._connected = self._connected.resolved()
        self._application = self._connected.application
        self._found = self._seen = dict(self._connected.partitions)
        self._looked_at = self._glanced_at = time.monotonic()

    def start(self) -> None:
        self._thread.start()

    def rejoin(self) -> None:
        """Ask for a rebalance. May be called from any thread."""
        self._rejoins.set()

    @property
    def is_counted(self) -> bool:
        """Return whether brokers count this instance as a member, or did less than a session ago."""
        member = self._member
        return member is not None and member.uncounted_s <= self.session_s

    def heard(self, timeout_s: float = 0) -> AssignmentInfo | StreamsError | None:
        """Return the next assignment, or the error that has ended the membership; None if none arrives in time."""
        try:
            arrived = self._arrived.get(block=timeout_s > 0, timeout=timeout_s)
        except queue.Empty:
            return None
        if isinstance(arrived, StreamsError):
            return arrived
        try:
            assignment = assignment_info_of(arrived)
        except UnreadableError as error:
            self.pass_over(f"it cannot be read: {error}")
            return None
        if finds_more([assignment], self._found):
            # The thread looks up topics before it asks for another assignment.
            self._looked_at = -_NEVER
            self.pass_over("it names topics or partitions that this instance has not found yet")
            return None
        self._looks_for_servers = assignment.omits_servers
        return assignment

    def found_servers(self) -> tuple[dict[str, str], dict[str, list[str]]] | None:
        """Return, once, the addresses that the last assignment has left out, if they are known by now."""
        try:
            return self._servers.get_nowait()
        except queue.Empty:
            return None

    def pass_over(self, why: str) -> None:
        """Skip the last assignment, and ask for another one later. May be called from any thread."""
        log.warning("ignored an assignment by the leader of %s, and asked for another: %s", self._application.id, why)
        self._asks_again_at = time.monotonic() + _ASK_AGAIN_SECONDS

    def join(self) -> None:
        """Wait until it has left the group, if it ever joined."""
        if self._thread.ident is not None:
            self._thread.join()

    def _take_part(self) -> None:
        try:
            self._member = member = self._new_member()
            try:
                self._attend(member)
            finally:
                member.close()
        except StreamsError as error:
            self._arrived.put(error)
        # Any error must reach the instance, which would otherwise run on without a membership.
        except Exception as error:
            log.exception("membership ended")
            self._arrived.put(ProcessingError(f"Membership in {self._application.id} ended: {error!r}"))

    def _attend(self, member: GroupMember) -> None:
        was_counted = True
        while not self._leaves.is_set():
            self._look_for_topics()
            self._look_for_servers()
            if self._asks_again_at is not None and time.monotonic() > self._asks_again_at:
                self._asks_again_at = None
                self._rejoins.set()
            if self._rejoins.is_set():
                self._rejoins.clear()
                member.rejoin()
            try:
                member.poll(_POLL_SECONDS)
            except BrokerError as error:
                if not error.retriable:
                    raise
                log.warning("%s", error)
                self._has_less_room |= member.is_refused
            self._check(member)
            if self.is_counted is not was_counted:
                was_counted = self.is_counted
                self._tell(member)

    def _check(self, member: GroupMember) -> None:
        if member.is_fenced:
            message = f"Another process has joined {self._application.id} as the same static member"
            raise TaskMigratedError(message, hint="Give each instance another consumer.group.instance.id.")
        # Only before the first join: later on, the tasks notice that brokers do not answer.
        if not member.has_joined and member.unreachable_s > self._streams.task_timeout_ms / 1000:
            message = f"Cannot join group {self._application.id}: brokers do not answer"
            raise BrokerError(message, retriable=True, hint="Check that the brokers run.")

    def _tell(self, member: GroupMember) -> None:
        group, lost_s = self._application.id, member.uncounted_s
        if self.is_counted:
            log.warning("brokers count this instance as a member of group %s again", group)
        elif member.has_joined:
            message = (
                "brokers have not counted this instance as a member of group %s for %.0f s: it keeps joining, and its tasks "
                "continue until others take them over"
            )
            log.warning(message, group, lost_s)

    def _look_for_servers(self) -> None:
        if not self._looks_for_servers:
            return
        # Before asking: another assignment may arrive meanwhile, and set it again.
        self._looks_for_servers = False
        try:
            found = servers_by_task(self._connected.admin, self._application.id)
        except BrokerError as error:
            log.debug("addresses of instances cannot be looked up: %s", error)
            found = None
        if found is None:
            self._looks_for_servers = True
        else:
            self._servers.put(found)

    def _look_for_topics(self) -> None:
        """Check, if it is time, whether topics or partitions to read have changed; in that case ask for a rebalance."""
        now, interval_s = time.monotonic(), self._streams.metadata_max_age_ms / 1000
        if now - self._looked_at < interval_s and not self._differ_at_a_glance(now):
            return
        self._looked_at = now
        try:
            found = dict(self._connected.resolved().partitions)
        except BrokerError as error:
            log.warning("new topics cannot be looked up: %s", error)
            return
        if found != self._found:
            self._connected.with_partitions(found).layout  # noqa: B018 - raises if topics are missing or do not fit
            for topic in sorted(found.keys() & self._found.keys()):
                if found[topic] != self._found[topic]:
                    text = "topic %s has %d partitions, and had %d: the tasks change"
                    log.warning(text, topic, found[topic], self._found[topic])
            self._found = found
            self._rejoins.set()

    def _described(self) -> bytes:
        said = packed(self._subscription_info(self._found))
        if len(said) > _ROOM_BYTES:
            message = "the subscription info of this instance has %d bytes: brokers may need a larger message.max.bytes"
            log.warning(message, len(said))
        return said

    def _committed_topics(self) -> list[str]:
        # Brokers delete committed offsets of topics that no member subscribes to. So members subscribe to all that they commit.
        own = self._application.topology.repartition_topics
        return [*self._found, *(internal_name(self._application.id, name) for name in own)]

    def _assign(self, said: Mapping[str, bytes], config: AssignmentConfig) -> Mapping[str, bytes]:
        members, topics = subscriptions_of(said), self._found
        if finds_more(members.values(), topics):
            # Claims of members prove nothing: this instance looks itself, and asks for a rebalance if they are true.
            self._looked_at = -_NEVER
        room = _ROOM_BYTES - sum(len(each) + _MEMBER_BYTES for each in said.values())
        # Brokers have refused to keep the messages, so their limit is lower than the usual one.
        if self._has_less_room:
            room = 0
        return give_assignments(members, topics, self._tasks_of(topics), config, self._application.id, room=room)

    def _differ_at_a_glance(self, now: float) -> bool:
        if now - self._glanced_at < _GLANCE_SECONDS:
            return False
        self._glanced_at = now
        try:
            seen, before = self._connected.admin.partitions(self._found), self._seen
        except BrokerError as error:
            log.debug("known topics cannot be checked: %s", error)
            return False
        self._seen = seen
        # Twice in a row, as a broker that was just started may not know all topics.
        return seen == before != self._found

    def _new_member(self) -> GroupMember:
        from riverrun.kafka.membership import GroupMember, MemberConfig  # noqa: PLC0415 - while processes start

        client = self._streams.consumer
        config = AssignmentConfig(
            self._streams.num_standby_replicas,
            self._streams.max_warmup_replicas,
            self._streams.acceptable_recovery_lag,
            self._streams.rack_aware_assignment_tags,
        )
        return GroupMember(
            self._application.kafka,
            self._application.id,
            lambda: {*self._application.topology.source_topics, *self._committed_topics()},
            client_id=f"{self._application.id}-{instance_id(self._application)}",
            describe=self._described,
            assign=lambda said: self._assign(said, config),
            on_plan=self._arrived.put,
            config=MemberConfig(
                session_timeout_ms=int(1000 * self.session_s),
                heartbeat_interval_ms=int(client.get("heartbeat.interval.ms", 3_000)),
                rebalance_timeout_ms=self._streams.max_poll_interval_ms,
                group_instance_id=client.get("group.instance.id"),
            ),
        )
