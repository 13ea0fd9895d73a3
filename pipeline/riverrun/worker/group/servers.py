"""Finds the addresses of a group's instances, for processes that are not members."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from riverrun.decoders import UnreadableError
from riverrun.worker.group.protocol import introduction_of

if TYPE_CHECKING:
    from riverrun.kafka.admin import Admin

_PAUSE_SECONDS = 0.1


def servers_of(admin: Admin, group: str, *, within_s: float = 0.0) -> list[str]:
    """Return `host:port` of each instance of a group that answers queries, from its introduction.

    Leaves out members with other introductions, such as those of other programs.

    Args:
        admin: Asks the brokers.
        group: The group: an `application.id`.
        within_s: Longest wait for the end of a rebalance, in seconds.

    Returns:
        The addresses in order; none if a rebalance does not end in time.

    Raises:
        BrokerError: If the brokers refuse or do not answer.
    """
    deadline = time.monotonic() + within_s
    while (introductions := admin.said_in(group)) is None and time.monotonic() < deadline:
        time.sleep(_PAUSE_SECONDS)
    found = []
    for said in introductions or ():
        try:
            found.append(introduction_of(said).server)
        except UnreadableError:
            continue
    return sorted(filter(None, found))
