"""Finds the addresses of a group's instances, for processes that are not members."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from pipeline.worker.group.protocol import Introduction

if TYPE_CHECKING:
    from pipeline.kafka.admin import Admin

_decode = msgspec.json.Decoder(Introduction).decode


def servers_of(admin: Admin, group: str) -> list[str]:
    """Return `host:port` of each instance of a group that answers queries, from its introduction.

    Leaves out members with other introductions, such as those of other programs.

    Args:
        admin: Asks the brokers.
        group: The group: an `application.id`.

    Raises:
        BrokerError: If the brokers refuse or do not answer.
    """
    found = []
    for said in admin.said_in(group):
        try:
            found.append(_decode(said).server)
        except msgspec.MsgspecError:
            continue
    return sorted(filter(None, found))
