"""The right to publish: only the live version of an application writes to its public topics.

A switch writes the control topic first, and then fences the tasks of the version that loses the right. A task that starts
fences its previous owner first, and then reads the control topic. So a switch fences every owner from before it, and every
later owner knows of the switch.

Tells a worker at once about changes in the control topic: where to hold, and which version publishes.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Mapping  # noqa: TC003 - msgspec reads the annotations
from typing import TYPE_CHECKING, Any

import msgspec

from riverrun.decoders import Name, Natural, Small, UnreadableError, Word, foreign_decoder
from riverrun.errors import (
    NotLiveError,
    ReleaseError,
    StreamsError,
    TaskMigratedError,
    UnderWayError,
    UnknownOutcomeError,
    VersionConflictError,
)
from riverrun.hosting.control_topic import ControlTopic
from riverrun.hosting.process import SystemClock
from riverrun.kafka.consumer import RecordConsumer
from riverrun.records import TopicPartition
from riverrun.runtime.times import OffsetMetadata

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.config import AppConfig
    from riverrun.kafka.admin import Admin

log = logging.getLogger(__name__)

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


_TP = TopicPartition(CONTROL_TOPIC, 0)
_fields = foreign_decoder(dict[str, Any])
_RETRY_SECONDS = 1.0
"""How often to look for a control topic, and to try again after a failure."""
_POLL_SECONDS = 0.2
_RECORDS_PER_POLL = 500
ORPHANED_SECONDS = 60.0
"""Time without a sign of work after which an instance completes a switch: several signs of its coordinator (`BEAT_SECONDS`)."""
_END_SECONDS = 1.0
"""How long to wait for the thread to end. It may be waiting for absent brokers, and holds no resources."""


class ControlTail:
    """Reads the control topic in its own thread, from its start, for as long as a worker runs.

    Gives up a mark that is older than its `hold_ms`: its coordinator has died, and nothing has changed. During a switch
    the mark stays; only the completed switch ends the hold. If its coordinator shows no sign of work, `complete` is called.

    Args:
        admin: Asks the brokers.
        app: The application.
        on_change: Called with each new record, in the thread of the tail.
        complete: Completes a switch whose coordinator has died, in a thread of its own; None to leave that to others.
    """

    def __init__(
        self,
        admin: Admin,
        app: str,
        on_change: Callable[[LiveVersion], None],
        complete: Callable[[], None] | None = None,
    ) -> None:
        self._complete = complete
        self._completing: threading.Thread | None = None
        self._complete_at = math.inf
        self._admin = admin
        self._app = app
        self._on_change = on_change
        self._consumer: RecordConsumer | None = None
        self._newest: bytes | None = None
        self._told: bytes | None = None
        self._deadline: tuple[str, float] = ("", 0.0)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="control-tail", daemon=True)
        self.latest: LiveVersion | None = None
        """The last record of the topic; None if there is none."""

    def start(self) -> None:
        """Begin reading."""
        self._thread.start()

    def close(self) -> None:
        """Stop reading. Idempotent."""
        self._ends.set()
        if self._thread.is_alive():
            self._thread.join(_END_SECONDS)

    def _run(self) -> None:
        is_told = False
        while not self._ends.is_set():
            try:
                self._turn()
                is_told = False
            except StreamsError as error:
                log.log(
                    logging.DEBUG if is_told else logging.WARNING,
                    "the control topic is not read, which is tried again: %s",
                    error,
                )
                is_told = True
                self._let_go()
                self._ends.wait(_RETRY_SECONDS)
        self._let_go()

    def _turn(self) -> None:
        consumer = self._consumer or self._open()
        if consumer is None:
            self._ends.wait(_RETRY_SECONDS)
            return
        polled = consumer.poll(_RECORDS_PER_POLL, _POLL_SECONDS)
        name = self._app.encode()
        for record in polled.records.get(_TP, []):
            key, value, *_ = record
            if key == name:
                self._newest = value
        if _TP in polled.ends:  # earlier records may be outdated
            self._tell()
        if self.latest is not None and self.latest.mark is not None:
            self._give_up_if_due(self.latest)
            self._complete_if_due(self.latest)

    def _open(self) -> RecordConsumer | None:
        if CONTROL_TOPIC not in self._admin.partitions([CONTROL_TOPIC]):
            return None
        self._consumer = RecordConsumer(self._admin.kafka)
        self._consumer.assign(self._admin.beginning_offsets([_TP]))
        return self._consumer

    def _let_go(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _tell(self) -> None:
        if self._newest is None or self._newest == self._told:
            return
        self._told = self._newest
        self._complete_at = time.monotonic() + ORPHANED_SECONDS * random.uniform(1, 1.5)  # noqa: S311 - instances differ
        self.latest = record = decoded(self._newest, self._app)
        if record.mark is not None and record.mark.id != self._deadline[0]:
            self._deadline = record.mark.id, time.monotonic() + record.mark.hold_ms / 1000
        self._on_change(record)

    def _give_up_if_due(self, record: LiveVersion) -> None:
        assert record.mark is not None, "there is a mark"  # noqa: S101 - the caller has looked
        if record.step in SWITCHING or time.monotonic() < self._deadline[1]:
            return
        log.warning("mark %s was not completed within %d ms: it is given up", record.mark.id, record.mark.hold_ms)
        try:
            remove_mark(self._admin, self._app, record)
        except (VersionConflictError, TaskMigratedError, UnknownOutcomeError) as error:
            log.info("another process has written to the control topic, which is read again: %s", error)
        # Checked again then, unless the topic says meanwhile that the mark is gone.
        self._deadline = record.mark.id, time.monotonic() + _RETRY_SECONDS

    def _complete_if_due(self, record: LiveVersion) -> None:
        """Complete a switch on which no process has shown work for long: its versions hold, so nothing is published."""
        if record.step not in SWITCHING or self._complete is None or time.monotonic() < self._complete_at:
            return
        if self._completing is not None and self._completing.is_alive():
            return
        log.warning(
            "the release of %s is %s, but no process works on it: this instance completes it", self._app, record.step
        )
        self._complete_at = time.monotonic() + ORPHANED_SECONDS * random.uniform(1, 1.5)  # noqa: S311 - as above
        self._completing = threading.Thread(target=self._completed, args=(self._complete,), name="switch", daemon=True)
        self._completing.start()

    def _completed(self, complete: Callable[[], None]) -> None:
        try:
            complete()
        except Exception as error:  # noqa: BLE001 - whatever ended it, it is tried again, here or by another instance
            log.warning("the release of %s is not completed, which is tried again: %s", self._app, error)


def remove_mark(admin: Admin, app: str, record: LiveVersion) -> None:
    """Remove the mark from an application's record, unless the record has changed since; the rest stays as it is.

    Raises:
        VersionConflictError: If the record has changed.
        TaskMigratedError: If another writer is active at this moment. Nothing was written.
        UnknownOutcomeError: If it is unknown whether the record was written.
        ReleaseError: If the record has become unreadable.
        BrokerError: If brokers refuse or do not answer.
    """
    topic = ControlTopic(admin, CONTROL_TOPIC)
    found = topic.read().get(app)
    try:
        known: dict[str, Any] = {} if found is None else _fields(found)
    except UnreadableError as error:
        raise unreadable(app, error) from error

    def check() -> None:
        if known.get("revision") != record.revision or topic.read().get(app) != found:
            message = f"{app}: revision {known.get('revision')} was written meanwhile, {record.revision} expected"
            raise VersionConflictError(message)

    now_ms, since_ms = SystemClock().now_ms(), known.get("held_since_ms", 0)
    written = {
        "mark": None,
        "held_since_ms": 0,
        "held_by": "",
        "held_ms": known.get("held_ms", 0) + (max(0, now_ms - since_ms) if since_ms else 0),
        "revision": record.revision + 1,
        "operation": "",
        "changed_by": "a worker, which gave a mark up",
    }
    value = msgspec.json.encode(known | written | {"changed_ms": now_ms})
    topic.write(app, {app: value}, check)
