"""Ownership: of a task by the producer that last initialised its id, of an application by one of several hosts.

Hosts that process an application alone, which are bounded runs and workers that end once they have caught up, are members of
a separate group. Brokers notice within a session that a member has died, so a crash leaves no lock behind.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import msgspec

from riverrun.decoders import UnreadableError, foreign_decoder
from riverrun.errors import OpenTransactionError, UnderWayError
from riverrun.hosting.process import SystemClock, this_user
from riverrun.kafka.producer import TransactionalProducer
from riverrun.records import shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from riverrun.hosting.application import Application
    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.kafka.admin import CommittedOffset
    from riverrun.records import TaskId, TopicPartition

log = logging.getLogger(__name__)

RUN, WORKER = "run", "worker"
"""Kinds of hosts that process alone."""
_LONGEST_USER = 300
_NAME = re.compile(rf"(run|worker)/([^\x00-\x1f\x7f]{{0,{_LONGEST_USER}}})/(([0-9]{{13,14}})-[0-9a-z]{{1,12}})")
_LONGEST_MESSAGE = 10_000


@dataclass(frozen=True, slots=True)
class SoleHost:
    """One host that processes all tasks of an application alone.

    Args:
        kind: Its kind: `RUN` or `WORKER`.
        by: The user who started it.
        since_ms: When it was started, ms since the epoch.
        id: Names it; sorts by time.

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
        """Parse a member's client id.

        Raises:
            ValueError: If it is not the name of a host.
        """
        found = _NAME.fullmatch(name)
        if found is None:
            message = f"not a host that processes alone: {shortened(name)}"
            raise ValueError(message)
        return cls(found[1], found[2], int(found[4]), found[3])

    def __str__(self) -> str:
        """Return its kind, its user, and since when it runs."""
        since = datetime.fromtimestamp(self.since_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")
        return f"a {self.kind} of {self.by}, since {since}"


def group_of(application_id: str) -> str:
    """Return the group of the hosts that process an application alone; no application's own group has such a name."""
    return f"{application_id}:run"


def hosts_in(members: tuple[str, ...]) -> tuple[SoleHost, ...]:
    """Return the hosts among the members of such a group, the oldest first; members have the form `client-id@host`.

    Leaves out members with other names, such as those of other programs.
    """
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

    Args:
        members: Announcement of each member (`said`).

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
    is_open = len(by_age) > 1 and MembershipState.NEW in states.values()
    chosen = at_work or ([] if is_open else by_age)
    return msgspec.json.encode(chosen[0] if chosen else "")


def chosen_in(plan: bytes) -> str:
    """Return the name in a plan (`decided`); empty if nothing is decided.

    Raises:
        UnreadableError: If the plan is not one.
    """
    name: str = _decision(plan)
    if name:
        try:
            SoleHost.parse(name)
        except ValueError as error:
            raise UnreadableError(str(error)) from error
    return name


_COMMIT_SECONDS = 10.0
"""How long a live owner may take to end a commit, which usually takes milliseconds."""
SOLE_SESSION_MS = 10_000
"""After this time without heartbeats, a bounded run or a worker without a group counts as dead."""
_WORKER_SESSION_MS = 45_000
_LOOK_SECONDS = 0.5


def transactional_id(application_id: str, task_id: TaskId) -> str:
    """Return the transactional id of a task; it allows only one owner among all processes."""
    return f"{application_id}-{task_id}"


def fence_owners(application: Application, task_ids: Iterable[TaskId]) -> None:
    """Fence the owners of tasks and abort their open transactions, without processing the tasks.

    Raises:
        BrokerError: If the brokers do not answer.
    """
    for task_id in task_ids:
        owner = TransactionalProducer(application.kafka, transactional_id(application.id, task_id))
        try:
            owner.init()
        finally:
            owner.close()


def session_ms(application: Application, default: int) -> int:
    """Return how long (ms) hosts of an application stay members after their last heartbeat: the default unless configured."""
    return int(application.config.streams.consumer.get("session.timeout.ms", default))


def under_way(application_id: str, host: SoleHost) -> UnderWayError:
    """Make the error that a bounded run, or a worker without a group, processes an application."""
    hint = "Wait for its end, or stop it. One that died counts until its session times out, within seconds."
    return UnderWayError(f"{application_id} is being processed by {host}", hint=hint)


def require_no_members(connected: ConnectedApplication) -> None:
    """Make sure that no worker processes an application: a fenced worker would only re-initialise its tasks.

    Raises:
        UnderWayError: If its group has members.
        BrokerError: If the brokers do not answer.
    """
    members = connected.admin.group(connected.id).members
    if members:
        message = f"{connected.id} is processing: its group has members: {', '.join(members)}"
        raise UnderWayError(message, hint="Stop its workers; one that died is a member until its session times out.")


def require_no_sole_host(connected: ConnectedApplication) -> None:
    """Make sure that no bounded run and no worker without a group processes an application.

    Raises:
        UnderWayError: If one does.
        BrokerError: If the brokers do not answer.
    """
    for host in hosts_in(connected.admin.group(group_of(connected.id)).members):
        raise under_way(connected.id, host)


def require_nobody(connected: ConnectedApplication) -> None:
    """Make sure that no worker and no bounded run processes an application.

    Raises:
        UnderWayError: If one does.
        BrokerError: If the brokers do not answer.
    """
    require_no_members(connected)
    require_no_sole_host(connected)


def await_no_members(connected: ConnectedApplication) -> None:
    """Wait until workers that have died are no longer members.

    Raises:
        UnderWayError: If the group still has members after a session.
        BrokerError: If the brokers do not answer.
    """
    _wait(lambda: require_no_members(connected), session_ms(connected.application, _WORKER_SESSION_MS))


def await_no_sole_host(connected: ConnectedApplication) -> None:
    """Wait for up to a session until no bounded run and no worker without a group processes an application.

    Raises:
        UnderWayError: If one still does after a session.
        BrokerError: If the brokers do not answer.
    """
    _wait(lambda: require_no_sole_host(connected), session_ms(connected.application, SOLE_SESSION_MS))


def _wait(check: Callable[[], None], session: int) -> None:
    """Repeat a check until it passes, for as long as dead members may still count as alive."""
    deadline, is_told = time.monotonic() + session / 1000 + 2 * _LOOK_SECONDS, False
    while True:
        try:
            check()
        except UnderWayError as error:
            if time.monotonic() > deadline:
                raise
            if not is_told:
                is_told = True
                log.warning("%s; waiting for its end for %d s, as it may have died", error.message, session // 1000)
        else:
            return
        time.sleep(_LOOK_SECONDS)


def settled_offsets(
    connected: ConnectedApplication, tps: Iterable[TopicPartition]
) -> dict[TopicPartition, CommittedOffset]:
    """Return the committed offsets of some inputs.

    They are unknown after an owner has died during a commit. In that case fences all tasks, which ends the commit.

    Raises:
        TopicError: If topics are missing.
        BrokerError: If the brokers do not answer.
    """
    asked = list(tps)
    try:
        return connected.admin.committed(connected.id, asked, _COMMIT_SECONDS)
    except OpenTransactionError as error:
        log.warning("a commit of %s was left open, and is ended now: %s", connected.id, error.message)
        fence_owners(connected.application, connected.resolved().layout.tasks)
        return connected.committed(asked)
