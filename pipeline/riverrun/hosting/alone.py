"""Lets one host at a time process an application alone; brokers free its place when it dies."""

from __future__ import annotations

import logging
import queue
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from riverrun.decoders import UnreadableError
from riverrun.errors import BrokerError, StreamsError
from riverrun.hosting.ownership import (
    SOLE_SESSION_MS,
    MembershipState,
    SoleHost,
    await_no_members,
    chosen_in,
    decided,
    group_of,
    hosts_in,
    said,
    session_ms,
    under_way,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from riverrun.hosting.application import Application
    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.kafka.admin import Admin
    from riverrun.kafka.membership import GroupMember

log = logging.getLogger(__name__)

_HEARTBEAT_MS = 1_000
_JOIN_SECONDS = 0.5
_LOOK_SECONDS = 0.1
_PATIENCE_SECONDS = 3.0
"""Live hosts usually answer within this time."""


@contextmanager
def processing_alone(connected: ConnectedApplication, kind: str, by: str | None = None) -> Iterator[SoleHost]:
    """Process all tasks of an application while no other host does.

    Waits for hosts that have died: brokers free their places when their sessions time out. Exact results do not depend on
    this: each task has one owner anyway.

    Args:
        connected: The application.
        kind: The kind of host: `sole_host.RUN` or `WORKER`.
        by: The user who starts it; this user on this machine if left out.

    Yields:
        The host that has the place.

    Raises:
        UnderWayError: If another bounded run or worker of the application is alive.
        BrokerError: If the brokers refuse or do not answer.
    """
    place = _Place(connected.application, SoleHost.new(kind, by))
    try:
        place.take(connected.admin)
        await_no_members(connected)
        yield place.host
    finally:
        place.leave()


class _Place:
    """Membership, in its own thread, in the group of hosts that process alone."""

    def __init__(self, application: Application, host: SoleHost) -> None:
        """Join the group."""
        self.host = host
        self._application = application
        self._group = group_of(application.id)
        self._state = MembershipState.NEW
        self._lock = threading.Lock()
        self._decisions: queue.SimpleQueue[str | StreamsError] = queue.SimpleQueue()
        self._rejoins = threading.Event()
        self._leaves = threading.Event()
        self._thread = threading.Thread(target=self._take_part, name="sole-host", daemon=True)
        self._thread.start()

    def take(self, admin: Admin) -> None:
        """Wait for the decision that this host may process.

        Raises:
            UnderWayError: If another host may.
            BrokerError: If brokers refuse, or there is no decision within `task.timeout.ms` plus some sessions.
        """
        # One session of a host that has died, and more for the group to rebalance.
        sessions_ms = 3 * session_ms(self._application, SOLE_SESSION_MS)
        patience_s = max(self._application.config.streams.task_timeout_ms, sessions_ms) / 1000
        began, is_told = time.monotonic(), False
        while (decision := self._next_decision(admin)) != self.host.name:
            if decision:
                raise under_way(self._application.id, SoleHost.parse(decision))
            waited_s = time.monotonic() - began
            if waited_s > patience_s:
                message = f"Group {self._group} has not decided which host may process within {waited_s:.0f} s"
                raise BrokerError(message, retriable=True, hint="Check that the brokers run.")
            if waited_s > _PATIENCE_SECONDS and not is_told:
                is_told = True
                self._tell_who_is_waited_for(admin)

    def leave(self) -> None:
        """Free the place."""
        self._leaves.set()
        self._thread.join()

    def _next_decision(self, admin: Admin) -> str:
        """Return the host that may process; empty if that is not decided yet."""
        try:
            decision = self._decisions.get(timeout=_LOOK_SECONDS)
        except queue.Empty:
            return self.host.name if self._is_found_alone(admin) else ""
        if isinstance(decision, StreamsError):
            raise decision
        return decision

    def _is_found_alone(self, admin: Admin) -> bool:
        """Return whether this host is the only member and may begin.

        Spares the seconds that brokers take to announce that (`group.initial.rebalance.delay.ms`).
        """
        if self._state is not MembershipState.NEW or hosts_in(admin.group(self._group).members) != (self.host,):
            return False
        with self._lock:
            if self._state is MembershipState.NEW:
                self._state = MembershipState.AT_WORK
        return self._state is MembershipState.AT_WORK

    def _hear(self, plan: bytes) -> None:
        """Receive the leader's plan; while it decides nothing, announce that this host is waiting."""
        try:
            name = chosen_in(plan)
        except UnreadableError as error:
            log.warning("a plan of the leader of group %s is passed over: %s", self._group, error)
            return
        with self._lock:
            if name == self.host.name:
                self._state = MembershipState.AT_WORK
            elif not name:
                self._state = MembershipState.WAITING if self._state is MembershipState.NEW else self._state
                self._rejoins.set()
        self._decisions.put(name)

    def _tell_who_is_waited_for(self, admin: Admin) -> None:
        others = [host for host in hosts_in(admin.group(self._group).members) if host != self.host]
        for other in others:
            log.warning(
                "%s was processed by %s, which does not answer; if it has died, brokers know within %d s",
                self._application.id,
                other,
                session_ms(self._application, SOLE_SESSION_MS) // 1000,
            )

    def _take_part(self) -> None:
        try:
            member = self._member()
            try:
                while not self._leaves.wait(_LOOK_SECONDS):
                    self._attend(member)
            finally:
                member.close()
        except StreamsError as error:
            self._decisions.put(error)
            if self._state is MembershipState.AT_WORK:
                log.warning(
                    "runs of %s that begin now do not know of this one: %s", self._application.id, error.message
                )
        except Exception as error:
            log.exception("membership ended")
            self._decisions.put(BrokerError(f"Membership in {self._group} ended: {error!r}"))

    def _attend(self, member: GroupMember) -> None:
        if self._rejoins.is_set():
            self._rejoins.clear()
            member.rejoin()
        try:
            member.poll(_JOIN_SECONDS if member.is_joining else 0)
        except BrokerError as error:
            if not error.retriable:
                raise
            log.info("%s", error)

    def _member(self) -> GroupMember:
        from riverrun.kafka.membership import GroupMember  # noqa: PLC0415 - loads in this thread

        session = session_ms(self._application, SOLE_SESSION_MS)
        return GroupMember(
            self._application.kafka,
            self._group,
            [],
            client_id=self.host.name,
            describe=lambda: said(self.host, self._state),
            assign=lambda members: dict.fromkeys(members, decided(members)),
            on_plan=self._hear,
            session_timeout_ms=session,
            heartbeat_interval_ms=_HEARTBEAT_MS,
            max_poll_interval_ms=2 * session,
        )
