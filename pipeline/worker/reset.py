"""Makes an application begin anew (`org.apache.kafka.tools.StreamsResetter`)."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.errors import StreamsError
from pipeline.worker.local_state import locked

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from pipeline.hosting.application import Application
    from pipeline.kafka.admin import Admin
    from pipeline.records import OffsetVector

_INTERNAL = re.compile(r".*-(changelog|repartition)|.+-KTABLE-FK-JOIN-SUBSCRIPTION-(REGISTRATION|RESPONSE)-\d+-topic")
"""What follows `<application.id>-` in the names of internal topics."""


@dataclass(frozen=True, slots=True)
class Reset:
    """What a reset does.

    Args:
        application_id: To whom.
        topics: Internal topics that are deleted.
        directory: Local state that is deleted, if there is any on this machine.
        offsets: Where the application starts to read next.
    """

    application_id: str
    topics: tuple[str, ...]
    directory: Path
    offsets: OffsetVector


def plan_reset(application: Application, admin: Admin, offsets: OffsetVector, others: Collection[str] = ()) -> Reset:
    """Say what a reset would do.

    Args:
        application: What is to begin anew.
        admin: Asks the brokers.
        offsets: Where in its sources.
        others: Ids of other applications: their topics are left alone, even if their names begin like this one's.

    Raises:
        BrokerError: If the brokers do not answer.
    """
    prefix = f"{application.id}-"
    longer = tuple(f"{other}-" for other in others if other.startswith(prefix))
    topics = (topic for topic in admin.list_topics(prefix) if not topic.startswith(longer))
    internal = tuple(topic for topic in topics if _INTERNAL.fullmatch(topic.removeprefix(prefix)))
    return Reset(application.id, internal, application.directory, offsets)


def reset(plan: Reset, admin: Admin) -> None:
    """Do it: local state first, since what is left after a crash must not be taken for the state of new topics.

    Only members of the group are seen: a bounded run, or a worker that runs alone, must not be at work.

    Raises:
        StreamsError: If the group has members.
        StateError: If a worker on this machine uses the local state.
        BrokerError: If the brokers refuse.
    """
    members = admin.group(plan.application_id).members
    if members:
        message = f"{plan.application_id} cannot be reset: its group has members: {', '.join(members)}"
        raise StreamsError(message, hint="Stop its workers; one that died is a member until its session times out.")
    if plan.directory.exists():
        with locked(plan.directory):
            shutil.rmtree(plan.directory)
    admin.delete_topics(plan.topics)
    admin.delete_group(plan.application_id)
    admin.alter_offsets(plan.application_id, plan.offsets.offsets)
