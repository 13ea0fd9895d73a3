"""Lets one host at a time process an application alone; brokers free its place when it dies.

Hosts that process an application alone are bounded runs, and workers that end once they have caught up. They are members of a
separate group. Brokers notice within a session that a member has died, so a crash leaves no lock behind.
"""

from __future__ import annotations

import logging
import queue
import re
import threading
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import msgspec

from riverrun.decoders import UnreadableError, foreign_decoder
from riverrun.errors import BrokerError, StreamsError, UnderWayError
from riverrun.hosting.process import SystemClock, this_user
from riverrun.records import shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from riverrun.config import AppConfig
    from riverrun.hosting.application import Application
    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.kafka.admin import Admin
    from riverrun.kafka.membership import GroupMember

log = logging.getLogger(__name__)

RUN, WORKER = "run", "worker"
_LONGEST_USER = 300
_NAME = re.compile(rf"(run|worker)/([^\x00-\x1f\x7f]{{0,{_LONGEST_USER}}})/(([0-9]{{13,14}})-[0-9a-z]{{1,12}})")
_LONGEST_MESSAGE = 10_000


@dataclass(frozen=True, slots=True)
class SoleHost:
    """One host that processes all tasks of an application alone.

    Args:
        kind: `RUN` or `WORKER`.
        id: Sorts by time.

    >>> host = SoleHost(RUN, "ann@laptop", 1767225600000, "1767225600000-c0ffee")
    >>> SoleHost.parse(host.name) == host
    True
    >>> print(host)
    a run of ann@laptop, since 2026-01-01 00:00:00+00:00
    """

    kind: str
    by: str
    since_ms: int
    id: str

    @classmethod
    def new(cls, kind: str, by: str | None = None) -> SoleHost:
        """Make a host that begins now, of this user on this machine if no user is named."""
        now_ms = SystemClock().now_ms()
        who = "".join(each if each.isprintable() else "?" for each in (by or this_user())[:_LONGEST_USER])
        return cls(kind, who, now_ms, f"{now_ms:013d}-{uuid.uuid4().hex[:6]}")

    @property
    def name(self) -> str:
        """Return the client id of its member, which brokers list with the members."""
        return f"{self.kind}/{self.by}/{self.id}"

    @classmethod
    def parse(cls, name: str) -> SoleHost:
        """Parse a member's client id."""
        found = _NAME.fullmatch(name)
        if found is None:
            raise ValueError(f"not a host that processes alone: {shortened(name)}")
        return cls(found[1], found[2], int(found[4]), found[3])

    def __str__(self) -> str:
        """Return its kind, its user, and since when it runs."""
        since = datetime.fromtimestamp(self.since_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")
        return f"a {self.kind} of {self.by}, since {since}"


def group_of(application_id: str) -> str:
    """Return the group of the hosts that process an application alone; no application's own group has such a name."""
    return f"{application_id}:run"


def hosts_in(members: tuple[str, ...]) -> tuple[SoleHost, ...]:
    """Return the hosts among the members (`client-id@host`) of such a group, the oldest first."""
    found = []
    for member in members:
        try:
            found.append(SoleHost.parse(member.rpartition("@")[0]))
        except ValueError as error:
            log.warning("a member of a group of bounded runs is not counted: %s", error)
    return tuple(sorted(found, key=lambda host: host.id))


class MembershipState(StrEnum):
    """The stage that a host has reached."""

    NEW = "new"
    """It does not know yet whether there are other hosts."""
    WAITING = "waiting"
    """It knows of other hosts, and has not begun."""
    AT_WORK = "at work"
    """It has begun."""


_announcement = foreign_decoder(tuple[Annotated[str, msgspec.Meta(max_length=1000)], MembershipState], _LONGEST_MESSAGE)
_decision = foreign_decoder(Annotated[str, msgspec.Meta(max_length=1000)], _LONGEST_MESSAGE)


def said(host: SoleHost, state: MembershipState) -> bytes:
    """Encode a member's announcement for a rebalance of its group."""
    return msgspec.json.encode([host.name, state])


def decided(members: Mapping[str, bytes]) -> bytes:
    """Return the name of the member that may process, encoded; empty while a member may begin without a decision.

    Members whose announcements cannot be read do not count.

    >>> ann, bob = (SoleHost(RUN, who, 0, f"{at:013d}-0") for at, who in enumerate(["ann", "bob"]))
    >>> decided({"1": said(ann, MembershipState.WAITING), "2": said(bob, MembershipState.AT_WORK)})
    b'"run/bob/0000000000001-0"'
    >>> decided({"1": said(ann, MembershipState.WAITING), "2": said(bob, MembershipState.WAITING)})
    b'"run/ann/0000000000000-0"'
    >>> decided({"1": said(ann, MembershipState.NEW), "2": said(bob, MembershipState.WAITING)})
    b'""'
    >>> decided({"1": said(ann, MembershipState.NEW)})
    b'"run/ann/0000000000000-0"'
    """
    states: dict[str, MembershipState] = {}
    for member, announcement in members.items():
        try:
            name, state = _announcement(announcement)
            SoleHost.parse(name)
        except ValueError as error:
            log.warning("member %s does not count, as its announcement cannot be read: %s", shortened(member), error)
            continue
        states[name] = state
    by_age = sorted(states, key=lambda name: SoleHost.parse(name).id)
    at_work = [name for name in by_age if states[name] is MembershipState.AT_WORK]
    # A new member may just have found itself alone, and begun without a decision. So it has to say what it does first.
    is_open = len(by_age) > 1 and MembershipState.NEW in states.values()
    chosen = at_work or ([] if is_open else by_age)
    return msgspec.json.encode(chosen[0] if chosen else "")


def chosen_in(plan: bytes) -> str:
    """Return the name in a plan (`decided`); empty if nothing is decided."""
    name: str = _decision(plan)
    if name:
        try:
            SoleHost.parse(name)
        except ValueError as error:
            raise UnreadableError(str(error)) from error
    return name


SOLE_SESSION_MS = 10_000
"""After this time without heartbeats, a bounded run or a worker without a group counts as dead."""
_WORKER_SESSION_MS = 45_000
_HEARTBEAT_MS = 1_000
_LOOK_SECONDS = 0.1
_MEMBERS_LOOK_SECONDS = 0.5
# Live hosts usually answer within this time; later, the log names those that are waited for.
_PATIENCE_SECONDS = 3.0


def session_ms(config: AppConfig, default: int) -> int:
    """Return how long (ms) hosts of an application stay members after their last heartbeat: the default unless configured."""
    return int(config.streams.consumer.get("session.timeout.ms", default))


def under_way(application_id: str, host: SoleHost) -> UnderWayError:
    """Make the error that a bounded run, or a worker without a group, processes an application."""
    hint = "Wait for its end, or stop it. One that died counts until its session times out, within seconds."
    return UnderWayError(f"{application_id} is being processed by {host}", hint=hint)


def require_no_members(connected: ConnectedApplication) -> None:
    """Make sure that no worker processes an application: a fenced worker would only re-initialise its tasks."""
    members = connected.admin.group(connected.id).members
    if members:
        message = f"{connected.id} is processing: its group has members: {', '.join(members)}"
        raise UnderWayError(message, hint="Stop its workers; one that died is a member until its session times out.")


def sole_hosts(admin: Admin, application_id: str) -> tuple[SoleHost, ...]:
    """Return the bounded runs, and the workers without a group, that process an application."""
    return hosts_in(admin.group(group_of(application_id)).members)


def require_no_sole_host(admin: Admin, application_id: str) -> None:
    """Make sure that no bounded run and no worker without a group processes an application."""
    for host in sole_hosts(admin, application_id):
        raise under_way(application_id, host)


def require_nobody(connected: ConnectedApplication) -> None:
    """Make sure that no worker and no bounded run processes an application."""
    require_no_members(connected)
    require_no_sole_host(connected.admin, connected.id)


def await_no_members(connected: ConnectedApplication) -> None:
    """Wait until workers that have died are no longer members."""
    _wait(lambda: require_no_members(connected), session_ms(connected.application.config, _WORKER_SESSION_MS))


def await_no_sole_host(admin: Admin, config: AppConfig, application_id: str) -> None:
    """Wait for up to a session until no bounded run and no worker without a group processes a version of an application."""
    _wait(lambda: require_no_sole_host(admin, application_id), session_ms(config, SOLE_SESSION_MS))


def _wait(check: Callable[[], None], session: int) -> None:
    """Repeat a check until it passes, for as long as dead members may still count as alive."""
    deadline, is_logged = time.monotonic() + session / 1000 + 2 * _MEMBERS_LOOK_SECONDS, False
    while True:
        try:
            check()
        except UnderWayError as error:
            if time.monotonic() > deadline:
                raise
            if not is_logged:
                is_logged = True
                log.warning("%s; waiting up to %d s for its end, as it may have died", error.message, session // 1000)
        else:
            return
        # Nothing announces the end of a dead member's session, so it is polled for.
        time.sleep(_MEMBERS_LOOK_SECONDS)


@contextmanager
def processing_alone(connected: ConnectedApplication, kind: str, by: str | None = None) -> Iterator[SoleHost]:
    """Process all tasks of an application while no other host does.

    Exact results do not depend on this: each task has one owner anyway.
    """
    place = _Place(connected.application, SoleHost.new(kind, by))
    try:
        # Both wait for hosts that have died: brokers free their places when their sessions time out.
        place.take(connected.admin)
        await_no_members(connected)
        yield place.host
    finally:
        place.leave()


class _Place:
    """Membership, in its own thread, in the group of hosts that process alone."""

    def __init__(self, application: Application, host: SoleHost) -> None:
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
        """Wait for the decision that this host may process."""
        # One session of a host that has died, and more for the group to rebalance.
        sessions_ms = 3 * session_ms(self._application.config, SOLE_SESSION_MS)
        patience_s = max(self._application.config.streams.task_timeout_ms, sessions_ms) / 1000
        began, is_logged = time.monotonic(), False
        while (decision := self._next_decision(admin)) != self.host.name:
            if decision:
                raise under_way(self._application.id, SoleHost.parse(decision))
            waited_s = time.monotonic() - began
            if waited_s > patience_s:
                message = f"Group {self._group} has not decided which host may process within {waited_s:.0f} s"
                raise BrokerError(message, retriable=True, hint="Check that the brokers run.")
            if waited_s > _PATIENCE_SECONDS and not is_logged:
                is_logged = True
                self._tell_who_is_waited_for(admin)

    def leave(self) -> None:
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
        """Return whether this host is the only member and may begin."""
        # Spares the seconds that brokers take to announce that (`group.initial.rebalance.delay.ms`).
        if self._state is not MembershipState.NEW or sole_hosts(admin, self._application.id) != (self.host,):
            return False
        # The thread of the membership may have announced meanwhile that this host waits: then the leader decides.
        with self._lock:
            if self._state is MembershipState.NEW:
                self._state = MembershipState.AT_WORK
        return self._state is MembershipState.AT_WORK

    def _hear(self, plan: bytes) -> None:
        """Receive the leader's plan; while it decides nothing, announce that this host is waiting."""
        try:
            name = chosen_in(plan)
        except UnreadableError as error:
            log.warning("ignored a decision of the leader of group %s: %s", self._group, error)
            return
        with self._lock:
            if name == self.host.name:
                self._state = MembershipState.AT_WORK
            elif not name:
                self._state = MembershipState.WAITING if self._state is MembershipState.NEW else self._state
                self._rejoins.set()
        self._decisions.put(name)

    def _tell_who_is_waited_for(self, admin: Admin) -> None:
        others = [host for host in sole_hosts(admin, self._application.id) if host != self.host]
        for other in others:
            log.warning(
                "%s was processed by %s, which does not answer; if it has died, brokers know within %d s",
                self._application.id,
                other,
                session_ms(self._application.config, SOLE_SESSION_MS) // 1000,
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
                    "no longer a member of the group of %s, so other runs are not refused: %s",
                    self._application.id,
                    error.message,
                )
        except Exception as error:
            log.exception("membership ended")
            self._decisions.put(BrokerError(f"Membership in {self._group} ended: {error!r}"))

    def _attend(self, member: GroupMember) -> None:
        if self._rejoins.is_set():
            self._rejoins.clear()
            member.rejoin()
        try:
            member.poll(0)
        except BrokerError as error:
            if not error.retriable:
                raise
            log.info("%s", error)

    def _member(self) -> GroupMember:
        from riverrun.kafka.membership import GroupMember, MemberConfig  # noqa: PLC0415 - loads in this thread

        session = session_ms(self._application.config, SOLE_SESSION_MS)
        return GroupMember(
            self._application.kafka,
            self._group,
            client_id=self.host.name,
            describe=lambda: said(self.host, self._state),
            assign=lambda members: dict.fromkeys(members, decided(members)),
            on_plan=self._hear,
            config=MemberConfig(session, _HEARTBEAT_MS, rebalance_timeout_ms=2 * session),
        )
