"""Decides which of several hosts may process a whole application alone; plain values, without brokers.

Bounded runs, and workers that end once they have caught up, are members of a separate group. Brokers notice within a session
that a member has died, so a crash leaves no lock behind.
"""

from __future__ import annotations

import logging
import re
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import msgspec

from riverrun.decoders import UnreadableError, foreign_decoder
from riverrun.hosting.actor import this_user
from riverrun.hosting.clock import SystemClock
from riverrun.records import shortened

if TYPE_CHECKING:
    from collections.abc import Mapping

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


class Stand(StrEnum):
    """The stage that a host has reached."""

    NEW = "new"
    """It does not know yet whether there are other hosts."""
    WAITING = "waiting"
    """It knows of other hosts, and has not begun."""
    AT_WORK = "at work"
    """It has begun."""


_announcement = foreign_decoder(tuple[Annotated[str, msgspec.Meta(max_length=1000)], Stand], _LONGEST_MESSAGE)
_decision = foreign_decoder(Annotated[str, msgspec.Meta(max_length=1000)], _LONGEST_MESSAGE)


def said(host: SoleHost, stand: Stand) -> bytes:
    """Encode a member's announcement for a rebalance of its group."""
    return msgspec.json.encode([host.name, stand])


def decided(members: Mapping[str, bytes]) -> bytes:
    """Return the name of the member that may process, encoded; empty while a member may begin without a decision.

    Members whose announcements cannot be read do not count.

    Args:
        members: Announcement of each member (`said`).

    >>> ann, bob = (SoleHost(RUN, who, 0, f"{at:013d}-0") for at, who in enumerate(["ann", "bob"]))
    >>> decided({"1": said(ann, Stand.WAITING), "2": said(bob, Stand.AT_WORK)})
    b'"run/bob/0000000000001-0"'
    >>> decided({"1": said(ann, Stand.WAITING), "2": said(bob, Stand.WAITING)})
    b'"run/ann/0000000000000-0"'
    >>> decided({"1": said(ann, Stand.NEW), "2": said(bob, Stand.WAITING)})
    b'""'
    >>> decided({"1": said(ann, Stand.NEW)})
    b'"run/ann/0000000000000-0"'
    """
    stands: dict[str, Stand] = {}
    for member, announcement in members.items():
        try:
            name, stand = _announcement(announcement)
            SoleHost.parse(name)
        except ValueError as error:
            log.warning("member %s does not count, as its announcement cannot be read: %s", shortened(member), error)
            continue
        stands[name] = stand
    by_age = sorted(stands, key=lambda name: SoleHost.parse(name).id)
    at_work = [name for name in by_age if stands[name] is Stand.AT_WORK]
    is_open = len(by_age) > 1 and Stand.NEW in stands.values()
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
