"""Makes an application begin anew (`org.apache.kafka.tools.StreamsResetter`)."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.errors import StreamsError
from pipeline.hosting.ownership.sole_host import group_of, hosts_in
from pipeline.hosting.restoring.local_state import directories_of, locked
from pipeline.runtime.layout import own_topics

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from pipeline.hosting.connected import ConnectedApplication
    from pipeline.kafka.admin import Admin
    from pipeline.records import OffsetVector


@dataclass(frozen=True, slots=True)
class Reset:
    """The effects of a reset.

    Args:
        application_id: To whom.
        topics: Internal topics that are deleted.
        directories: Local state that is deleted: what there is on this machine, that of instances on Spark included.
        offsets: Where the application starts to read next.
        members: Members of the group, as `client-id@host`, and runs: it is refused as long as there are any.
    """

    application_id: str
    topics: tuple[str, ...]
    directories: tuple[Path, ...]
    offsets: OffsetVector
    members: tuple[str, ...] = ()


def plan_reset(connected: ConnectedApplication, offsets: OffsetVector, others: Collection[str] = ()) -> Reset:
    """Say what a reset would do.

    Args:
        connected: What is to begin anew.
        offsets: Where in its sources.
        others: Ids of other applications: their topics are left alone, even if their names begin like this one's.

    Raises:
        BrokerError: If the brokers do not answer.
    """
    application, admin = connected.application, connected.admin
    topics = own_topics(application.id, admin.list_topics(), others)
    directories = directories_of(application.id, application.state_directory)
    return Reset(application.id, topics, directories, offsets, _at_work(application.id, admin))


def reset(plan: Reset, admin: Admin) -> None:
    """Do it: local state first, since what is left after a crash must not be taken for the state of new topics.

    Raises:
        StreamsError: If workers or a run are at work.
        StateError: If a worker on this machine uses the local state.
        BrokerError: If the brokers refuse.
    """
    members = _at_work(plan.application_id, admin)
    if members:
        message = f"{plan.application_id} cannot be reset: its group has members: {', '.join(members)}"
        hint = "Stop its workers and runs; one that died is a member until its session times out."
        raise StreamsError(message, hint=hint)
    clean_up(plan.directories)
    admin.delete_topics(plan.topics)
    admin.delete_group(plan.application_id)
    admin.alter_offsets(plan.application_id, plan.offsets.offsets)


def _at_work(application_id: str, admin: Admin) -> tuple[str, ...]:
    """Members of the group, and runs and workers that process alone."""
    alone = hosts_in(admin.group(group_of(application_id)).members)
    return (*admin.group(application_id).members, *map(str, alone))


def clean_up(directories: Iterable[Path]) -> None:
    """Delete local state of an application (`KafkaStreams.cleanUp`).

    Args:
        directories: What there is of it on this machine, as `local_state.directories_of` says.

    Raises:
        StateError: If a worker on this machine uses it.
    """
    for directory in directories:
        with locked(directory):
            shutil.rmtree(directory)
