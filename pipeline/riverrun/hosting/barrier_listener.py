"""The worker's side of barriers: follows the control topic, and has running tasks pause and publish as its records require."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from riverrun.errors import StreamsError, TaskMigratedError, UnknownOutcomeError, VersionConflictError
from riverrun.hosting.connected import Publication
from riverrun.hosting.control_topic import ReleaseRegistry
from riverrun.hosting.release import CONTROL_TOPIC, SWITCHING, release_in
from riverrun.kafka.consumer import RecordConsumer
from riverrun.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.hosting.active_task import ActiveTask
    from riverrun.hosting.application import Application
    from riverrun.hosting.release import Release
    from riverrun.kafka.admin import Admin
    from riverrun.runtime.barrier import Barrier, Limits

log = logging.getLogger(__name__)

_TP = TopicPartition(CONTROL_TOPIC, 0)
_RETRY_SECONDS = 1.0
"""Interval at which a missing control topic is looked up, and pause after a failure."""
_QUIET_SECONDS = 60.0
"""Interval at which failures are warned of."""
_POLL_SECONDS = 0.2
_RECORDS_PER_POLL = 500
# Several signs of life of a coordinator (`BEAT_SECONDS`) must be missing before an instance completes its switch.
ORPHANED_SECONDS = 60.0
# Short, as the thread may be waiting for absent brokers, and holds no resources.
_END_SECONDS = 1.0


class Pauses:
    """The pauses of a version, by the records of its application."""

    def __init__(self, version: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._version = version
        self._clock = clock
        self._since = 0.0
        self.barrier: str | None = None
        """Id of the barrier at which it pauses; None if it does not."""
        self.last_s: float | None = None
        """Duration of the last pause, s; None before its end."""

    def note(self, record: Release) -> None:
        """Take note of a record of the control topic."""
        barrier = record.barrier
        wanted = barrier.id if barrier is not None and self._version in barrier.limits else None
        if wanted == self.barrier:
            return
        now = self._clock()
        if self.barrier is not None:
            self.last_s = now - self._since
            log.info("paused at barrier %s for %.3f s", self.barrier, self.last_s)
        if wanted is not None:
            log.info("pausing at barrier %s", wanted)
        self.barrier, self._since = wanted, now


class OrphanWatch:
    """Notices a switch on which no process works any more: its versions pause, so nothing is published."""

    def __init__(self) -> None:
        self._seen: Release | None = None
        self._orphaned_at = math.inf

    def has_found(self, release: Release) -> bool:
        """Return whether a switch has shown no sign of work for long; if so, the caller completes it, and asks again."""
        now = time.monotonic()
        # Any change of the record is a sign of work. The time in it is of another machine's clock, which may differ.
        is_new = release != self._seen
        # A joint switch concerns other applications as well, so its own command completes it.
        is_own = release.step in SWITCHING and not release.joint
        is_orphaned = not is_new and is_own and now >= self._orphaned_at
        if is_orphaned:
            message = "the release of %s is %s, but no process works on it: this instance completes it"
            log.warning(message, release.app, release.step.value)
        if is_new or is_orphaned:
            self._seen = release
            self._orphaned_at = now + ORPHANED_SECONDS * random.uniform(1, 1.5)  # noqa: S311 - instances differ
        return is_orphaned


class BarrierListener:
    """Reads the control topic in its own thread, from its start, for as long as a worker runs.

    Gives up a barrier that is older than its `timeout_ms`: its coordinator has died, and nothing has changed. During a switch
    the barrier stays; only the completed switch ends the pause. If its coordinator shows no sign of work, `complete` is called.

    Args:
        on_change: Called with each new record, in the thread of the listener.
        complete: Completes a switch whose coordinator has died, in a separate thread; None to leave that to others.
    """

    def __init__(
        self,
        admin: Admin,
        app: str,
        version: str,
        on_change: Callable[[Release], None],
        complete: Callable[[], None] | None = None,
    ) -> None:
        self._admin = admin
        self._app = app
        self._on_change = on_change
        self._complete = complete
        self._completing: threading.Thread | None = None
        self._orphans = OrphanWatch()
        self._consumer: RecordConsumer | None = None
        self._newest: bytes | None = None
        self._noted: bytes | None = None
        self._deadline: tuple[str, float] = ("", 0.0)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="barrier-listener", daemon=True)
        self.latest: Release | None = None
        """The last record of the topic; None if there is none."""
        self.pauses = Pauses(version)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop reading. Idempotent."""
        self._ends.set()
        if self._thread.is_alive():
            self._thread.join(_END_SECONDS)

    def _run(self) -> None:
        quiet_until = 0.0
        while not self._ends.is_set():
            try:
                self._turn()
            except StreamsError as error:
                is_quiet = time.monotonic() < quiet_until
                level = logging.DEBUG if is_quiet else logging.WARNING
                log.log(level, "cannot read the control topic, trying again: %s", error)
                quiet_until = quiet_until if is_quiet else time.monotonic() + _QUIET_SECONDS
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
        # Only at the end of the topic: earlier records may be outdated.
        if _TP in polled.ends:
            self._tell()
        if self.latest is not None and self.latest.barrier is not None:
            self._give_up_if_due(self.latest, self.latest.barrier)
            self._complete_if_orphaned(self.latest)

    def _open(self) -> RecordConsumer | None:
        if CONTROL_TOPIC not in self._admin.partitions([CONTROL_TOPIC]):
            return None
        # A record that was deleted may have left no trace.
        self._newest = None
        self._consumer = RecordConsumer(self._admin.kafka)
        self._consumer.assign(self._admin.beginning_offsets([_TP]))
        return self._consumer

    def _let_go(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _tell(self) -> None:
        if self._newest == self._noted:
            return
        before, record = self.latest, release_in({} if self._newest is None else {self._app: self._newest}, self._app)
        # Not before it was read: one that cannot be read is tried again, and nobody acts by an older one meanwhile.
        self._noted, self.latest = self._newest, record
        if record is None:
            log.warning("the record of %s was deleted: restart this instance before the next release", self._app)
            assert before is not None, "it was noted"  # noqa: S101 - for types
            # Tasks publish as before. Nobody can end their pause any more.
            record = replace(before, barrier=None, revision=before.revision + 1)
        barrier = record.barrier
        # From when this process first sees the barrier: the coordinator's clock may differ.
        if barrier is not None and barrier.id != self._deadline[0]:
            self._deadline = barrier.id, time.monotonic() + barrier.timeout_ms / 1000
        self.pauses.note(record)
        self._on_change(record)

    def _give_up_if_due(self, record: Release, barrier: Barrier) -> None:
        if record.step in SWITCHING or time.monotonic() < self._deadline[1]:
            return
        log.warning("giving up barrier %s: it was not completed within %d ms", barrier.id, barrier.timeout_ms)
        try:
            ReleaseRegistry.at(self._admin, "a worker, which gave a barrier up").write(replace(record, barrier=None))
        except (VersionConflictError, TaskMigratedError, UnknownOutcomeError) as error:
            log.info("reading the control topic again, as another process has written to it: %s", error)
        # Checked again then, unless the topic says meanwhile that the barrier is gone.
        self._deadline = barrier.id, time.monotonic() + _RETRY_SECONDS

    def _complete_if_orphaned(self, record: Release) -> None:
        is_busy = self._completing is not None and self._completing.is_alive()
        if self._complete is not None and not is_busy and self._orphans.has_found(record):
            self._completing = threading.Thread(
                target=self._completed, args=(self._complete,), name="switch", daemon=True
            )
            self._completing.start()

    def _completed(self, complete: Callable[[], None]) -> None:
        try:
            complete()
        except Exception as error:  # noqa: BLE001 - whatever ended it, it is tried again, here or by another instance
            log.warning("cannot complete the release of %s, trying again: %s", self._app, error)


class ReleaseFollower:
    """Has running tasks follow the newest record of their application, each between two commits."""

    def __init__(self, application: Callable[[], Application], pause_at: Callable[[Limits | None], None]) -> None:
        self._application = application
        self._pause_at = pause_at
        self._newest: Publication | None = None

    @property
    def is_pausing(self) -> bool:
        """Return whether tasks have to pause at a barrier."""
        return self._newest is not None and self._newest.limits is not None

    def learn(self, record: Release) -> None:
        """Take note of a record; ignores older records."""
        if self._newest is None or record.revision > self._newest.revision:
            self._newest = Publication.by(self._application(), record)
            self._pause_at(self._newest.limits)

    def let_process(self, active: ActiveTask) -> bool:
        """Apply the newest record to a task whose commit is not under way. Returns whether the task may process now."""
        newest, present = self._newest, active.publication
        # A task that was taken over later has read a newer record itself.
        if newest is None or newest is present or newest.revision <= present.revision:
            return True
        if not active.may_follow(newest):
            active.task.request_commit()
            return False
        if present.topics != newest.topics:
            where = "staging" if newest.topics else "public"
            log.info("task %s writes to %s topics from now on", active.id, where, extra={"task": str(active.id)})
        active.follow(newest)
        return True
