"""Publication: only the live version of an application writes to its public topics.

A switch writes the control topic first, and then fences the tasks of the version that was live. A task that starts
fences its previous owner first, and then reads the control topic. So a switch fences every owner from before it, and every
later owner knows of the switch.

A running task receives each later record. A task that has acknowledged a barrier pauses until it reads a record without it;
one that is taken over later reads it then.

Tells a worker at once about changes in the control topic: where to pause, and which version publishes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping  # noqa: TC003 - msgspec reads the annotations
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from riverrun.decoders import Name, Natural, UnreadableError, Word, foreign_decoder
from riverrun.errors import (
    NotLiveError,
    ReleaseError,
    UnderWayError,
)
from riverrun.hosting.control_topic import ControlTopic
from riverrun.processor.handlers import may_keep_letters
from riverrun.runtime.barrier import Barrier  # noqa: TC001 - as above

if TYPE_CHECKING:
    from riverrun.config import AppConfig
    from riverrun.hosting.application import Application
    from riverrun.kafka.admin import Admin
    from riverrun.runtime.barrier import Limits

log = logging.getLogger(__name__)

CONTROL_TOPIC = "riverrun-releases"
SWITCHING: Mapping[str, str] = {"cutting": "cut", "rolling-back": "rollback"}
"""Steps of a release in which no version may publish, with the command that completes each."""

_STAGING_HINT = "Started again, it processes without publishing, into staging topics."


class LiveVersion(msgspec.Struct, frozen=True):
    """The version that publishes, as the control topic records it; releases own the other fields of a record.

    Args:
        app: The application.
        live: The version that publishes.
        step: The current step of its release.
        epoch: Counts the switches.
        barrier: Where versions pause; None if no version does.
        revision: Counts the writes.
    """

    app: Name
    live: Name
    step: Word = "none"
    epoch: Natural = 0
    barrier: Barrier | None = None
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

    def require_no_barrier(self, version: str) -> None:
        """Make sure that a version does not pause at a barrier.

        Raises:
            UnderWayError: If it does.
        """
        if self.barrier is not None and version in self.barrier.limits:
            message = (
                f"{self.app} {version} pauses at barrier {self.barrier.id}; until that is over, no run may process"
            )
            raise UnderWayError(
                message,
                hint="Try again in a minute: a release compares, switches or repairs. If that has died, repeat its command.",
            )


@dataclass(frozen=True, slots=True)
class Publication:
    """The topics to which the tasks of a version publish, and the offsets at which they pause.

    Args:
        topics: Staging topics by the name that the topology uses; empty if it publishes.
        dead_letters: Topic of all its dead letters; None if the handlers decide.
        limits: Where its tasks pause at a barrier; None if they run freely.
        revision: Revision of the record that says so; 0 if there is none.
    """

    topics: Mapping[str, str]
    dead_letters: str | None
    limits: Limits | None = None
    revision: int = 0

    @classmethod
    def at_start(cls, application: Application) -> Publication:
        """Return that of an application that was never released: it does what it was started for."""
        return cls(application.published or {}, application.dead_letters)

    @classmethod
    def by(cls, application: Application, record: LiveVersion) -> Publication:
        """Return that by a record: the live version publishes, and any other version writes to its staging topics."""
        limits = None if record.barrier is None else record.barrier.limits_of(application.version)
        if record.live == application.version:
            return cls({}, None, limits, record.revision)
        topics = {topic: staging_name(application.id, topic) for topic in application.topology.sink_topics}
        streams = application.config.streams
        letters = None
        if may_keep_letters(streams):
            letters = staging_name(application.id, streams.errors_dead_letter_queue_topic_name or "dead-letters")
        return cls(topics, letters, limits, record.revision)


_record = foreign_decoder(LiveVersion)


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
    """Return the live version of an application; None if it was never released.

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
