"""Control topics store values by name, in one compacted partition; the latest value of a name is valid.

The one of releases says which version of each application is live, how far its release has come, and at which barrier versions
pause.
"""

from __future__ import annotations

import logging
import random
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeVar
from weakref import WeakKeyDictionary

from riverrun.decoders import UnreadableError
from riverrun.errors import (
    ReleaseError,
    StreamsError,
    TaskMigratedError,
    UnknownOutcomeError,
    VersionConflictError,
)
from riverrun.hosting.process import SystemClock, this_user
from riverrun.hosting.release import (
    CONTROL_TOPIC,
    SWITCHING,
    Release,
    ReleaseChange,
    changes_in,
    encoded,
    history_in,
    last_revision_in,
    release_in,
    staging_name,
)
from riverrun.intervals import repeating
from riverrun.kafka.admin import TopicSpec
from riverrun.kafka.producer import IdempotentProducer, TransactionalProducer
from riverrun.kafka.ranges import read_range
from riverrun.kafka.sending import TimeLimits
from riverrun.records import OffsetRange, TopicPartition, shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from riverrun.config import AppConfig
    from riverrun.kafka.admin import Admin
    from riverrun.runtime.ports import Clock

T = TypeVar("T")
log = logging.getLogger(__name__)

_LONGEST_NAME = 10_000
_CONFIG = {"cleanup.policy": "compact", "retention.ms": "-1"}
# Short, as a writer that dies within a transaction hides later records of all names from readers for this time.
_TRANSACTION_MS = 10_000
_ATTEMPTS = 12
_APART_SECONDS = 0.1
# Then a topic is read from its beginning again: brokers forget that names were deleted (`kafka.tombstones`).
_TRUSTED_SECONDS = 600.0
BEAT_SECONDS = 15.0
"""Interval at which the process that works on a switch shows that it is alive."""
_CONFLICT_HINT = "Check `riverrun release status`, then decide again."


@dataclass(frozen=True, slots=True)
class _Known:
    """The values of a topic up to an offset, and when all of it was read (monotonic seconds)."""

    topic_id: str
    end: int
    values: Mapping[str, bytes]
    begun_at: float


# Commands and servers read a topic again and again, and nearly always nothing is new.
_KNOWN: WeakKeyDictionary[Admin, dict[str, _Known]] = WeakKeyDictionary()


def _known_to(admin: Admin) -> dict[str, _Known]:
    return _KNOWN.setdefault(admin, {})


class ControlTopic:
    """A topic of values by name, created at the first write; `config` adds to its settings then."""

    def __init__(self, admin: Admin, topic: str, config: Mapping[str, str] | None = None) -> None:
        self._admin = admin
        self._topic = topic
        self._config = {**_CONFIG, **(config or {})}
        self._tp = TopicPartition(topic, 0)

    def read(self) -> dict[str, bytes]:
        topic_id = self._admin.topic_ids([self._topic]).get(self._topic)
        if topic_id is None:
            return {}
        known, begun_at = _known_to(self._admin).get(self._topic), time.monotonic()
        if known is not None and (known.topic_id != topic_id or begun_at >= known.begun_at + _TRUSTED_SECONDS):
            known = None
        written = self._admin.written_offsets([self._tp])
        # No record was written after those that are known, so no transaction is open either.
        if known is not None and written[self._tp] == known.end:
            return dict(known.values)
        # Not the settled end: writers with other locks may write without a break.
        end = self._admin.stable_end_offsets([self._tp], written)[self._tp]
        start = self._admin.beginning_offsets([self._tp])[self._tp]
        found: dict[str, bytes] = {}
        if known is not None and start <= known.end <= end:
            found, start, begun_at = dict(known.values), known.end, known.begun_at
        if start < end:
            self._read_on(found, OffsetRange(start, end))
        _known_to(self._admin)[self._topic] = _Known(topic_id, end, dict(found), begun_at)
        return found

    def _read_on(self, found: dict[str, bytes], offsets: OffsetRange) -> None:
        for _, records in read_range(self._admin, {self._tp: offsets}):
            for record in records:
                name = _name_in(record.key)
                if name is None:
                    continue
                # Names are in the order of their latest values.
                found.pop(name, None)
                if record.value is not None:
                    found[name] = record.value

    def write(self, lock: str, values: Mapping[str, bytes | None], check: Callable[[], None] = lambda: None) -> None:
        """Write values atomically (None deletes a name); of several concurrent writers with one lock, one succeeds."""
        self.create()
        name = lock_name(self._topic, lock)
        producer = TransactionalProducer(
            self._admin.kafka, name, transaction_timeout_ms=_TRANSACTION_MS, admin=self._admin
        )
        try:
            # This takes the lock: it fences the previous holder. What `check` finds then holds until the commit.
            producer.init()
            check()
            self._send(producer, values)
            producer.commit({}, "")
        finally:
            producer.close()

    def put(self, values: Mapping[str, bytes | None]) -> None:
        """Write values of names that have only one writer, without the lock."""
        self.create()
        producer = IdempotentProducer(self._admin.kafka, admin=self._admin)
        try:
            self._send(producer, values)
            producer.flush()
        finally:
            producer.close()

    def _send(self, producer: TransactionalProducer | IdempotentProducer, values: Mapping[str, bytes | None]) -> None:
        # The records are of now, so no limits of record times have to be asked for.
        producer.learn_limits({self._topic: TimeLimits()})
        for name, value in values.items():
            producer.send(self._topic, name.encode(), value, SystemClock().now_ms(), (), 0)

    def create(self) -> None:
        self._admin.create_topics([TopicSpec(self._topic, 1, self._config)])


def readable(topic: str, values: Mapping[str, bytes], decode: Callable[[bytes], T]) -> list[T]:
    """Decode the records of a history. A record that cannot be read is left out with a warning."""
    found = []
    for name, value in values.items():
        try:
            found.append(decode(value))
        except UnreadableError as error:
            log.warning("ignored record %s of topic %s, which cannot be read: %s", shortened(name), topic, error)
    return found


def _name_in(key: bytes | None) -> str | None:
    """Return the name that a record is kept under; None if Riverrun cannot have written it."""
    try:
        return None if key is None or len(key) > _LONGEST_NAME else key.decode()
    except UnicodeDecodeError:
        return None


def lock_name(topic: str, lock: str) -> str:
    """Return the transactional id of the writers that exclude each other."""
    return f"{topic}-{lock}"


class Notes(Protocol):
    """Stores the records of releases: in the control topic, or in a test's memory."""

    def read(self) -> dict[str, bytes]:
        """Return all stored values by name."""

    def write(self, lock: str, values: Mapping[str, bytes | None], check: Callable[[], None]) -> None:
        """Store values, all or nothing, if `check` does not raise under the lock of this name."""


class ReleaseRegistry:
    """Reads and writes releases.

    All writers of an application use one transactional id, so writing is a compare-and-set. Take the lock (which fences the
    previous holder), read under it, compare, write, commit. A writer that was fenced tries again while the revision is the one
    that it knows.
    """

    def __init__(self, notes: Notes, by: str = "", *, clock: Clock | None = None) -> None:
        self._notes = notes
        self._clock: Clock = SystemClock() if clock is None else clock
        self.by = by or this_user()
        self._operations: set[str] = set()
        self._known: dict[str, Release | None] = {}

    @classmethod
    def at(cls, admin: Admin, by: str = "") -> ReleaseRegistry:
        """Return the registry of a cluster: its control topic, which is created by the first write."""
        return cls(ControlTopic(admin, CONTROL_TOPIC), by)

    def now_ms(self) -> int:
        """Return the present time, ms since the epoch."""
        return self._clock.now_ms()

    def find(self, app: str) -> Release | None:
        """Return the release of an application; None if it was never released."""
        self._known[app] = found = release_in(self._notes.read(), app)
        return found

    def read(self, app: str, default_version: str) -> Release:
        """Return the release of an application; one that was never released is live in its configured version."""
        return self.find(app) or Release(app, default_version)

    def elsewhere(self, app: str, version: str) -> Mapping[str, str] | None:
        """Return the topics that a version reads in place of public ones (`Release.elsewhere`), by the record last seen here.

        Steps load versions several times. A task makes sure that the topics are still these when it is taken over.
        """
        release = self._known[app] if app in self._known else self.find(app)
        return None if release is None else release.elsewhere(version)

    def find_with_last_change(self, app: str) -> tuple[Release | None, ReleaseChange | None]:
        """Return the release of an application, and the last change of one whose record is lost, of the same moment."""
        notes = self._notes.read()
        self._known[app] = release = release_in(notes, app)
        is_known = release is not None and release.revision
        done = [] if is_known else history_in(notes, app)
        return release, done[-1] if done else None

    def history(self, app: str) -> list[ReleaseChange]:
        """Return all changes of an application's release, first to last."""
        return history_in(self._notes.read(), app)

    def write(self, release: Release) -> Release:
        """Write a release that was read before, unless another process has written it since. Returns the written release."""
        notes, now_ms = self._notes.read(), self.now_ms()
        before = release_in(notes, release.app)
        written = replace(
            _timed(before, release, self.by, now_ms),
            # The record of the application may be lost, and its history not.
            revision=max(release.revision, last_revision_in(notes, release.app)) + 1,
            operation=uuid.uuid4().hex,
            changed_by=self.by,
            changed_ms=now_ms,
        )
        self._operations.add(written.operation)
        # In one transaction: the history has a record of each change.
        values = encoded(written, ReleaseChange.between(before, written))
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._notes.write(release.app, values, lambda: self.require(release))
                break
            except (TaskMigratedError, UnknownOutcomeError, VersionConflictError) as error:
                now = self.read(release.app, release.live)
                # The attempt that failed, or one before it, has written it.
                if now.operation == written.operation:
                    break
                if attempt == _ATTEMPTS or now.revision != release.revision:
                    raise _conflict(release, now, error) from error
            time.sleep(random.uniform(0, _APART_SECONDS * attempt))  # noqa: S311 - two writers in step would fence each other for ever
        self._known[release.app] = written
        return written

    def has_written(self, release: Release) -> bool:
        """Return whether the last change of a release was written here, and not by another process."""
        return release.operation in self._operations

    @contextmanager
    def working_on(self, release: Release) -> Iterator[None]:
        """Show in the record, at intervals, that a process works on a switch. Without a sign, a worker completes it."""
        with repeating(lambda: self._has_lost(release), BEAT_SECONDS, "working-on-switch"):
            yield

    def _has_lost(self, release: Release) -> bool:
        """Show that this process works on the switch. Return True if another one has written the record meanwhile."""
        # The same revision, without a record of a change: nothing has changed but the time.
        at_work = encoded(replace(release, changed_ms=self.now_ms()))
        try:
            self._notes.write(release.app, at_work, lambda: self.require(release))
        except VersionConflictError:
            return True
        except StreamsError as error:
            log.warning("cannot record that the switch of %s is still running: %s", release.app, error.message)
        return False

    def paused_ms(self, release: Release) -> int:
        """Return how long publication has paused for a switch that is under way, in all its attempts, ms."""
        barrier = release.barrier
        return release.failed_pause_ms + (0 if barrier is None else max(0, self.now_ms() - barrier.since_ms))

    def require(self, release: Release) -> None:
        """Make sure that a release is still as it was read or written."""
        found = self.read(release.app, release.live)
        if found.revision != release.revision:
            raise VersionConflictError(f"{release.app}: {_other_revision(found, release)}", hint=_CONFLICT_HINT)

    def forget(self, app: str) -> None:
        """Delete the record and the history of an application, as if it had never been released."""
        self._notes.write(app, dict.fromkeys([app, *changes_in(self._notes.read(), app)]), lambda: None)


def release_of(admin: Admin, app: AppConfig) -> Release:
    """Return the release of an application; one that was never released is live in its configured version."""
    return known_release(ReleaseRegistry.at(admin), app, admin)


def known_release(registry: ReleaseRegistry, app: AppConfig, admin: Admin) -> Release:
    """Return the release that a registry knows; an application that was never released is live in its configured version."""
    release, last = registry.find_with_last_change(app.name)
    if release is not None and release.revision:
        return release
    if last is not None:
        raise _lost(app.name, str(last))
    require_never_released(admin, app)
    return release or Release(app.name, app.version)


def require_never_released(admin: Admin, app: AppConfig) -> None:
    """Make sure that an application without a record in the control topic has no staging topics."""
    # Only releases make staging topics, so these prove that a record is lost.
    prefixes = tuple(staging_name(app.application_id(version), "") for version in {app.version, *app.versions})
    if found := [topic for topic in admin.list_topics() if topic.startswith(prefixes)]:
        raise _lost(app.name, f"{found[0]} exists")


def _lost(app: str, proof: str) -> ReleaseError:
    message = f"The control topic {CONTROL_TOPIC} has no record of {app}, although it was released: {proof}"
    hint = f"Restore the topic, or say which version is live: riverrun release restore {app} --live VERSION"
    return ReleaseError(message, hint=hint)


def _timed(before: Release | None, release: Release, by: str, now_ms: int) -> Release:
    """Return a release with the times of its pauses as they are once it is written."""
    barrier, last = release.barrier, None if before is None else before.barrier
    if barrier is not None:
        first = last or replace(barrier, since_ms=now_ms, by=by)
        return replace(release, barrier=replace(barrier, since_ms=first.since_ms, by=first.by))
    if before is None or last is None:
        return release
    is_done = before.step in SWITCHING and release.step not in SWITCHING
    failed_ms = 0 if is_done else release.failed_pause_ms + max(0, now_ms - last.since_ms)
    return replace(release, failed_pause_ms=failed_ms)


def _conflict(release: Release, now: Release, error: StreamsError) -> StreamsError:
    is_same = now.revision == release.revision
    if is_same and not isinstance(error, TaskMigratedError):
        return error
    reason = "another process is writing its release" if is_same else _other_revision(now, release)
    return VersionConflictError(f"{release.app}: {reason}", hint=_CONFLICT_HINT)


def _other_revision(now: Release, release: Release) -> str:
    return f"revision {now.revision} was written meanwhile, {release.revision} expected"
