"""Resets an application so that it starts from scratch (`org.apache.kafka.tools.StreamsResetter`)."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from riverrun.errors import StreamsError
from riverrun.hosting.alone import sole_hosts
from riverrun.hosting.kept_offsets import KeptOffsets, kept_offsets_topic
from riverrun.hosting.local_state import directories_of, locked
from riverrun.hosting.state_schemas import forget
from riverrun.runtime.layout import own_topics

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.kafka.admin import Admin, TopicSpec
    from riverrun.records import OffsetVector


@dataclass(frozen=True, slots=True)
class Reset:
    """The effects of a reset.

    Args:
        directories: Local state on this machine to delete, including that of instances on Spark.
        offsets: Where the application starts to read next.
        kept: The topic of copies of committed offsets, which is created again.
        members: Members of the group, as `client-id@host`, and bounded runs; a reset is refused while there are any.
    """

    application_id: str
    topics: tuple[str, ...]
    directories: tuple[Path, ...]
    offsets: OffsetVector
    kept: TopicSpec
    members: tuple[str, ...] = ()

    def require_nobody(self) -> None:
        """Make sure that no worker and no run processes the application.

        Raises:
            StreamsError: If one does.
        """
        if self.members:
            message = f"{self.application_id} cannot be reset: its group has members: {', '.join(self.members)}"
            hint = "Stop its workers and runs; one that died is a member until its session times out."
            raise StreamsError(message, hint=hint)


def plan_reset(connected: ConnectedApplication, offsets: OffsetVector, others: Collection[str] = ()) -> Reset:
    """Return the effects that a reset would have; topics of applications named in `others` stay."""
    application, admin = connected.application, connected.admin
    # Names of another application's topics may begin with this application's id.
    topics = own_topics(application.id, admin.list_topics(), others)
    directories = directories_of(application.id, application.state_directory)
    kept = kept_offsets_topic(application)
    return Reset(application.id, topics, directories, offsets, kept, _at_work(application.id, admin))


def reset(plan: Reset, admin: Admin) -> None:
    """Carry out a reset; refused while workers or bounded runs are active."""
    replace(plan, members=_at_work(plan.application_id, admin)).require_nobody()
    # First: leftovers of a reset that crashed must not count as the state of new topics.
    clean_up(plan.directories)
    admin.delete_topics(plan.topics)
    forget(admin, plan.topics)
    admin.delete_group(plan.application_id)
    admin.create_topics([plan.kept])
    # Last, as all of a group's committed offsets are deleted with it.
    KeptOffsets(admin, plan.application_id).begin(plan.offsets.offsets)


def _at_work(application_id: str, admin: Admin) -> tuple[str, ...]:
    """Return the members of the group, with runs and workers that process alone."""
    alone = sole_hosts(admin, application_id)
    return (*admin.group(application_id).members, *map(str, alone))


def clean_up(directories: Iterable[Path]) -> None:
    """Delete local state of an application (`KafkaStreams.cleanUp`)."""
    for directory in directories:
        # Refuses while a worker on this machine uses the state.
        with locked(directory):
            shutil.rmtree(directory)
