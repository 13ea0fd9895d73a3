"""Rights of a task of a running version, as the application's record says: publish, write to staging topics, hold.

A task learns it when it has been taken over, after its predecessor is fenced, and from each record that comes later. One
that has said to hold obeys until it reads a record without the mark; one that is taken over afterwards reads it then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.hosting.control.publication import not_live, staging_name
from pipeline.processor.handlers import may_keep_letters
from pipeline.records import TopicPartition
from pipeline.runtime.holding import Hold

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.hosting.application import Application
    from pipeline.hosting.connected import ConnectedApplication
    from pipeline.hosting.control.publication import LiveVersion


@dataclass(frozen=True, slots=True)
class Right:
    """The right of a task.

    Args:
        published: Where its outputs go instead, by the name the topology uses (staging); empty if it publishes.
        dead_letters: Where all its dead letters go; None leaves it to the handlers.
        hold: For which mark it holds; None if it runs freely.
        revision: Counts the records that said so; 0 if there is none.
    """

    published: Mapping[str, str]
    dead_letters: str | None
    hold: Hold | None = None
    revision: int = 0


def right_at_start(application: Application) -> Right:
    """The right of an application that was never released: it does what it was started for."""
    return Right(application.published or {}, application.dead_letters)


def right_by(application: Application, record: LiveVersion) -> Right:
    """Return the right by a record: the live version publishes, and any other one writes to its staging topics."""
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
    """Read which right a task has that has just been taken over.

    Raises:
        NotLiveError: If the version is not live, and has no topics to write to instead.
        UnderWayError: If a switch to another version is under way, and no mark says how far this one may go.
        BrokerError: If brokers do not answer.
        ReleaseError: If the control topic holds something else, or its record of the application is lost.
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
    """Make sure that a version that is not live can be kept from the public: releases make its staging topics."""
    application = connected.application
    wanted = {*right.published.values(), *filter(None, [right.dead_letters])}
    if application.topology.choosing_sinks or wanted - connected.admin.partitions(wanted).keys():
        raise not_live(application.config.name, application.version, record)
