"""Rights of a task of a running version, by the application's record: publish, write to staging topics, hold.

A task reads the record when it is taken over, after its predecessor is fenced, and receives each later record. A task that
has acknowledged a hold obeys until it reads a record without the mark. A task that is taken over later reads it then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from riverrun.hosting.control.publication import not_live, staging_name
from riverrun.processor.handlers import may_keep_letters
from riverrun.records import TopicPartition
from riverrun.runtime.inputs.holding import Hold

if TYPE_CHECKING:
    from collections.abc import Mapping

    from riverrun.hosting.application import Application
    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.hosting.control.publication import LiveVersion


@dataclass(frozen=True, slots=True)
class Right:
    """The right of a task.

    Args:
        published: Staging topics by the name that the topology uses; empty if it publishes.
        dead_letters: Topic of all its dead letters; None if the handlers decide.
        hold: The mark for which it holds; None if it runs freely.
        revision: Revision of the record that says so; 0 if there is none.
    """

    published: Mapping[str, str]
    dead_letters: str | None
    hold: Hold | None = None
    revision: int = 0


def right_at_start(application: Application) -> Right:
    """Return the right of an application that was never released: it does what it was started for."""
    return Right(application.published or {}, application.dead_letters)


def right_by(application: Application, record: LiveVersion) -> Right:
    """Return the right by a record: the live version publishes, and any other version writes to its staging topics."""
    hold = None
    if record.mark is not None and application.version in record.mark.limits:
        limits = record.mark.limits[application.version]
        hold = Hold(
            record.mark.id,
            record.mark.phase,
            {TopicPartition.parse(name): offset for name, offset in limits.items()},
        )
    if record.live == application.version:
        return Right({}, None, hold, record.revision)
    topics = {topic: staging_name(application.id, topic) for topic in application.topology.sink_topics}
    streams = application.config.streams
    letters = None
    if may_keep_letters(streams):
        letters = staging_name(application.id, streams.errors_dead_letter_queue_topic_name or "dead-letters")
    return Right(topics, letters, hold, record.revision)


def take_right(connected: ConnectedApplication) -> Right:
    """Read the right of a task that has just been taken over.

    Raises:
        NotLiveError: If the version is not live, and has no staging topics.
        UnderWayError: If a switch to another version is under way, and no mark says how far this version may process.
        BrokerError: If brokers do not answer.
        ReleaseError: If the control topic's record of the application cannot be read, or is lost.
    """
    application, record = connected.application, connected.live_version()
    if record is None:
        return right_at_start(application)
    right = right_by(application, record)
    if right.hold is None:
        record.require_no_switch()
    if record.live != application.version:
        _require_staging(connected, record, right)
    return right


def _require_staging(connected: ConnectedApplication, record: LiveVersion, right: Right) -> None:
    """Make sure that a version that is not live can write to staging topics only; releases create them."""
    application = connected.application
    wanted = {*right.published.values(), *filter(None, [right.dead_letters])}
    if application.topology.choosing_sinks or wanted - connected.admin.partitions(wanted).keys():
        raise not_live(application.config.name, application.version, record)
