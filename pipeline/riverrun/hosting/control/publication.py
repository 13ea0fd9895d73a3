"""The right to publish: only the live version of an application writes to its public topics.

A switch writes the control topic first, and then fences the tasks of the version that loses the right. A task that starts
fences its previous owner first, and then reads the control topic. So a switch fences every owner from before it, and every
later owner knows of the switch.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - msgspec reads the annotations
from typing import TYPE_CHECKING

import msgspec

from riverrun.decoders import Name, Natural, Small, UnreadableError, Word, foreign_decoder
from riverrun.errors import NotLiveError, ReleaseError, UnderWayError
from riverrun.hosting.control.control_topic import ControlTopic
from riverrun.records import TopicPartition
from riverrun.runtime.times.offset_metadata import OffsetMetadata

if TYPE_CHECKING:
    from riverrun.config import AppConfig
    from riverrun.kafka.admin import Admin

CONTROL_TOPIC = "riverrun-releases"
SWITCHING: Mapping[str, str] = {"cutting": "cut", "rolling-back": "rollback"}
"""Steps of a release in which no version may publish, with the command that completes each."""

_STAGING_HINT = "Started again, it processes without publishing, into staging topics."


class Mark(msgspec.Struct, frozen=True):
    """Asks the tasks of some versions to process exactly up to given offsets, commit there, and hold.

    It has phases. In phase 0, tasks that read external topics stop wherever they are. In phase 1 they process up to the offsets
    that the mark then names, and hold. Each further phase names the ends of the repartition topics one level below. A task
    acknowledges a hold with a commit whose metadata names the mark and its phase. Holds end when the record has no mark.

    Args:
        id: Names the mark.
        phase: The current phase.
        limits: Offset per `topic-partition` at which to hold, by version; other versions do not hold.
        hold_ms: Time after which an incomplete mark is given up, ms; it does not apply once a switch is under way.
    """

    id: Word
    phase: Small = 0
    limits: Mapping[Name, Mapping[str, Natural]] = {}
    hold_ms: Natural = 30_000

    def check(self) -> None:
        """Make sure that a mark of another process names partitions.

        Raises:
            UnreadableError: If it does not.
        """
        for name in (name for limits in self.limits.values() for name in limits):
            try:
                TopicPartition.parse(name)
            except ValueError as error:
                raise UnreadableError(str(error)) from error


class LiveVersion(msgspec.Struct, frozen=True):
    """The right to publish, as the control topic records it; releases own the other fields of a record.

    Args:
        app: The application.
        live: The version that has the right.
        step: The current step of its release.
        epoch: Counts the switches.
        mark: Where versions hold; None if no version holds.
        revision: Counts the writes.
    """

    app: Name
    live: Name
    step: Word = "none"
    epoch: Natural = 0
    mark: Mark | None = None
    revision: Natural = 0

    def require_no_switch(self) -> None:
        """Make sure that no switch is under way.

        Raises:
            UnderWayError: If a switch is under way.
        """
        if self.step in SWITCHING:
            message = f"{self.app}: the release is {self.step}; until that is completed, nothing else may process"
            hint = f"Wait for it. If it died: riverrun release {SWITCHING[self.step]} {self.app}"
            raise UnderWayError(message, hint=hint)

    def require_no_mark(self, version: str) -> None:
        """Make sure that no mark asks a version to hold.

        Raises:
            UnderWayError: If a mark does.
        """
        if self.mark is not None and version in self.mark.limits:
            message = f"{self.app} {version} holds for mark {self.mark.id}; until that is over, no run may process"
            raise UnderWayError(
                message,
                hint="Try again in a minute: a release compares, switches or repairs. If that has died, repeat its command.",
            )


_record = foreign_decoder(LiveVersion)


def acknowledged_mark(metadata: str) -> tuple[str, int] | None:
    """Return the mark for which a task holds, and its phase, from the metadata of an offset that the task has committed.

    Args:
        metadata: Metadata of the committed offset.

    Returns:
        The mark's id and the phase; None if the task did not hold at that commit.
    """
    return OffsetMetadata.decode(metadata).mark


def staging_name(application_id: str, topic: str) -> str:
    """Return the staging topic to which a version that is not live writes, instead of a public topic."""
    return f"{application_id}-staging-{topic}"


def require_never_released(admin: Admin, app: AppConfig) -> None:
    """Make sure that an application without a record in the control topic has no staging topics.

    Releases make staging topics, so these prove that a record is lost.

    Raises:
        ReleaseError: If it has staging topics: it is unknown which version is live.
        BrokerError: If brokers do not answer.
    """
    prefixes = tuple(staging_name(app.application_id(version), "") for version in {app.version, *app.versions})
    found = [topic for topic in admin.list_topics() if topic.startswith(prefixes)]
    if found:
        message = f"The control topic {CONTROL_TOPIC} knows nothing of {app.name}, although it was released: {found[0]} exists"
        hint = f"Restore the topic, or say which version is live: riverrun release restore {app.name} --live VERSION"
        raise ReleaseError(message, hint=hint)


def live_version_of(admin: Admin, app: str) -> LiveVersion | None:
    """Return the version of an application that has the right to publish; None if it was never released.

    Raises:
        BrokerError: If brokers do not answer.
        ReleaseError: If the record cannot be read.
    """
    found = ControlTopic(admin, CONTROL_TOPIC).read().get(app)
    return None if found is None else decoded(found, app)


def decoded(value: bytes, app: str) -> LiveVersion:
    """Decode the record of an application.

    Raises:
        ReleaseError: If the record cannot be read.
    """
    try:
        found = _record(value)
        if found.mark is not None:
            found.mark.check()
        require_about(app, found.app)
    except UnreadableError as error:
        raise unreadable(app, error) from error
    return found


def require_about(app: str, said: str) -> None:
    """Make sure that a record of the control topic is about the application that it is kept under.

    Raises:
        UnreadableError: If it is about another.
    """
    if said != app:
        message = f"it is about {said}"
        raise UnreadableError(message)


def unreadable(name: str, error: UnreadableError) -> ReleaseError:
    """Make the error that a record of the control topic cannot be read."""
    message = f"The control topic {CONTROL_TOPIC} holds a record of {name} that cannot be read: {error}"
    hint = "Was it written by a newer version of Riverrun? If not, look at who may write to that topic."
    return ReleaseError(message, hint=hint)


def not_live(app: str, version: str, record: LiveVersion) -> NotLiveError:
    """Make the error that a version may not publish."""
    return NotLiveError(f"{app} {version} may not publish: {record.live} is live", hint=_STAGING_HINT)
