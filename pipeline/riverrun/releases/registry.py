"""The control topic: which version of each application is live, and where its release stands.

It has one compacted partition, with one record per application, and one per revision of it (`releases.verdicts`). All writers
of an application use one transactional id, so writing is a compare-and-set. Take the lock (which fences the previous holder),
read under it, compare, write, commit. A writer that was fenced tries again while the revision is the one that it knows.
"""

from __future__ import annotations

import logging
import random
import threading
import time
import uuid
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from enum import Enum
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from riverrun.decoders import Line, Name, Natural, UnreadableError, Word, foreign_decoder
from riverrun.errors import (
    ReleaseError,
    StreamsError,
    TaskMigratedError,
    UnderWayError,
    UnknownOutcomeError,
    VersionConflictError,
)
from riverrun.hosting.control_topic import ControlTopic
from riverrun.hosting.process import SystemClock, this_user
from riverrun.hosting.publication import (
    CONTROL_TOPIC,
    SWITCHING,
    LiveVersion,
    require_about,
    require_never_released,
    unreadable,
)
from riverrun.releases.verdicts import (
    Change,
    GateVerdict,
    encoded,
    history,
    last_revision,
    names_of,
    require_approvable,
)
from riverrun.runtime.barrier import Barrier  # noqa: TC001 - msgspec reads the annotations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from riverrun.config import AppConfig
    from riverrun.kafka.admin import Admin
    from riverrun.runtime.ports import Clock

log = logging.getLogger(__name__)

_ATTEMPTS = 12
BEAT_SECONDS = 15.0
"""How often a switch shows that it is at work."""
_APART_SECONDS = 0.1
_BOOKKEEPING = frozenset(
    {"app", "revision", "operation", "changed_by", "changed_ms", "held_since_ms", "held_by", "held_ms"}
)


class Step(Enum):
    """The step that a release has reached."""

    NONE = "none"
    PLANNED = "planned"
    REPROCESSED = "reprocessed"
    GATED = "gated"
    CUTTING = "cutting"
    LIVE = "live"
    ROLLING_BACK = "rolling-back"
    ROLLED_BACK = "rolled-back"
    ABORTED = "aborted"


TRANSITIONS: Mapping[Step, frozenset[Step]] = {
    Step.NONE: frozenset({Step.PLANNED}),
    Step.PLANNED: frozenset({Step.REPROCESSED, Step.ABORTED}),
    Step.REPROCESSED: frozenset({Step.PLANNED, Step.REPROCESSED, Step.GATED, Step.ABORTED}),
    Step.GATED: frozenset({Step.PLANNED, Step.REPROCESSED, Step.GATED, Step.CUTTING, Step.ABORTED}),
    Step.CUTTING: frozenset({Step.GATED, Step.LIVE}),
    Step.LIVE: frozenset({Step.PLANNED, Step.ROLLING_BACK}),
    Step.ROLLING_BACK: frozenset({Step.LIVE, Step.ROLLED_BACK}),
    Step.ROLLED_BACK: frozenset({Step.PLANNED}),
    Step.ABORTED: frozenset({Step.PLANNED, Step.ABORTED}),
}
"""The legal steps. Before `cutting` a release may be planned again or aborted; afterwards it can only be rolled back. A
switch returns to the step before it if the live version turns out to be running before anything is published.
"""

SETTLED = frozenset({Step.NONE, Step.LIVE, Step.ROLLED_BACK, Step.ABORTED})
"""Steps at which no release is under way."""


@dataclass(frozen=True, slots=True)
class Release:
    """A release as the control topic knows it.

    Args:
        app: The application.
        live: The version whose outputs are public.
        step: Where the release of `candidate` stands.
        candidate: The version that is to go live, or that went live last.
        previous: The version that was live before, to roll back to.
        cut: The offset vector, as text. Outputs below it are the old version's, and the rest the new version's.
        verdict: Findings of the last gate; None if the present state was not judged.
        corrections: Number of records that the last switch published.
        switch: Identifies the last switch, even if another process completes it.
        pause_ms: Time without publishing during the last switch of running versions, in all its attempts, ms.
        corrections_ms: The part of it that corrections took, ms.
        digests: Digests of the code that computed each version's outputs, where known.
        published: How far the records of staging topics of logs are published: offset by the topic's id and the partition.
        repaired: The last repair of the public tables: which rows, and by which verdict; empty if there was none.
        computing_since_ms: When the candidate began to compute its outputs, ms since the epoch; 0 if it has none.
        held_since_ms: Since when versions pause at the barrier, ms since the epoch; 0 if there is none.
        held_by: The user whose command made them hold.
        held_ms: How long they held in attempts to switch that came to nothing, since the last gate, ms.
        epoch: Counts the switches.
        barrier: Where running versions are to pause; None if they need not.
        revision: Counts the writes; compare-and-set compares it.
        operation: Identifies one write, to recognise it after an unknown outcome.
        changed_by: The user who wrote it.
        changed_ms: Time of the write by the clock of the writing machine, ms since the epoch.
    """

    app: Name
    live: Name
    step: Step = Step.NONE
    candidate: Name | None = None
    previous: Name | None = None
    cut: str | None = None
    verdict: GateVerdict | None = None
    corrections: Natural = 0
    switch: Line = ""
    pause_ms: Natural = 0
    corrections_ms: Natural = 0
    digests: dict[Name, Word] = field(default_factory=dict)
    published: dict[Word, Natural] = field(default_factory=dict)
    repaired: str = ""
    computing_since_ms: Natural = 0
    epoch: Natural = 0
    held_since_ms: Natural = 0
    held_by: Line = ""
    held_ms: Natural = 0
    barrier: Barrier | None = None
    revision: Natural = 0
    operation: Word = ""
    changed_by: Line = ""
    changed_ms: Natural = 0

    def __str__(self) -> str:
        """Describe it line by line."""
        lines = [f"{self.app}: {self.live} is live; release: {self.step.value} {self.candidate or ''}".rstrip()]
        if self.verdict is not None:
            lines.append(str(self.verdict))
        if self.step in {Step.LIVE, Step.ROLLED_BACK}:
            lines.append(f"{self.corrections} corrections were published, at {self.cut}")
            if self.pause_ms:
                lines.append(
                    f"publication paused for {self.pause_ms} ms, {self.corrections_ms} ms of it for corrections"
                )
        if self.repaired:
            lines.append(f"repaired: {self.repaired}")
        if self.held_since_ms:
            since = datetime.fromtimestamp(self.held_since_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")
            lines.append(f"publication pauses since {since}, for {self.held_by}; last at work: {self.changed_by}")
        return "\n".join(lines)

    @property
    def stands(self) -> str:
        """The step that it has reached, for messages."""
        return "no release is planned" if self.step is Step.NONE else f"the release is {self.step.value}"

    def to(self, step: Step, **changes: Any) -> Release:
        """Return the release at its next step. The barrier ends, except in the middle of a switch.

        Raises:
            ReleaseError: If that step does not follow this one.
        """
        if step not in TRANSITIONS[self.step]:
            allowed = ", ".join(sorted(s.value for s in TRANSITIONS[self.step]))
            message = f"{self.app}: {self.stands}; {step.value} cannot be the next step"
            raise ReleaseError(message, hint=f"Possible next steps: {allowed}.")
        barrier = self.barrier if step.value in SWITCHING else None
        return replace(self, step=step, **{"barrier": barrier, **changes})


class Notes(Protocol):
    """Stores the records of releases: in the control topic, or in a test's memory."""

    def read(self) -> dict[str, bytes]:
        """Return all stored values by name."""

    def write(self, lock: str, values: Mapping[str, bytes | None], check: Callable[[], None]) -> None:
        """Store values, all or nothing, if `check` does not raise under the lock of this name."""


class Registry:
    """Reads and writes releases.

    Args:
        notes: Where they are recorded.
        by: The user who writes; by default, this user on this machine.
        clock: Returns the time of a write.
    """

    def __init__(self, notes: Notes, by: str = "", *, clock: Clock | None = None) -> None:
        self._notes = notes
        self._by = by or this_user()
        self._clock: Clock = SystemClock() if clock is None else clock

    @classmethod
    def at(cls, admin: Admin, by: str = "") -> Registry:
        """Return the registry of a cluster: its control topic, which is created by the first write.

        Args:
            admin: Asks the brokers.
            by: The user who writes; by default, this user on this machine.
        """
        return cls(ControlTopic(admin, CONTROL_TOPIC), by)

    def read(self, app: str, default_version: str) -> Release:
        """Return the release of an application; one that was never released is live in its configured version."""
        found = self._notes.read().get(app)
        return Release(app, default_version) if found is None else _decoded(found, app)

    def history(self, app: str) -> list[Change]:
        """Return all changes of an application's release, first to last.

        Raises:
            ReleaseError: If one of them cannot be read.
            BrokerError: If brokers do not answer.
        """
        return history(app, self._notes.read())

    def write(self, release: Release) -> Release:
        """Write a release that was read before, unless another process has written it since. Returns the written release.

        A record of the change is written with it, or neither is.

        Raises:
            VersionConflictError: If another process has written since. Nothing was written.
            UnknownOutcomeError: If brokers left it unknown, time and again, whether it was written.
        """
        notes = self._notes.read()
        found = notes.get(release.app)
        before, now_ms = None if found is None else _decoded(found, release.app), self._clock.now_ms()
        written = replace(
            _held(before, release, self._by, now_ms),
            revision=max(release.revision, last_revision(release.app, notes)) + 1,
            operation=uuid.uuid4().hex,
            changed_by=self._by,
            changed_ms=now_ms,
        )
        done = _change(before, written)
        values = {release.app: msgspec.json.encode(asdict(written)), **encoded(done)}
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._notes.write(release.app, values, lambda: self.require(release))
                break
            except (TaskMigratedError, UnknownOutcomeError, VersionConflictError) as error:
                now = self.read(release.app, release.live)
                if now.operation == written.operation:  # the attempt that failed, or one before it, has written it
                    break
                if attempt == _ATTEMPTS or now.revision != release.revision:
                    raise _conflict(release, now, error) from error
            time.sleep(random.uniform(0, _APART_SECONDS * attempt))  # noqa: S311 - two writers in step would fence each other for ever
        return written

    @contextmanager
    def working_on(self, release: Release) -> Iterator[None]:
        """Show in the record, now and then, that a process works on a switch. Without a sign, a worker completes it.

        Ends if another process has written the record meanwhile.

        Args:
            release: The release, as it was written last.
        """
        ends = threading.Event()
        beating = threading.Thread(target=self._beat, args=(release, ends), name="working-on-switch", daemon=True)
        beating.start()
        try:
            yield
        finally:
            ends.set()
            beating.join()

    def _beat(self, release: Release, ends: threading.Event) -> None:
        while not ends.wait(BEAT_SECONDS):
            at_work = replace(release, changed_ms=self._clock.now_ms())
            values = {release.app: msgspec.json.encode(asdict(at_work))}
            try:
                self._notes.write(release.app, values, lambda: self.require(release))
            except VersionConflictError:
                return
            except StreamsError as error:
                log.warning("brokers are not told that the switch of %s goes on: %s", release.app, error.message)

    def paused_ms(self, release: Release) -> int:
        """Return how long publication has paused for a switch that is under way, in all its attempts, ms."""
        return release.held_ms + _elapsed_ms(release, self._clock.now_ms())

    def approve(self, release: Release, verdict_id: str) -> Release:
        """Record that the user approves a verdict, and when. A verdict that is approved, or needs no approval, stays as it is.

        Raises:
            ReleaseError: If it is not the verdict of the last gate, or blocks the release.
            VersionConflictError: If another process has written since.
        """
        verdict = require_approvable(release.app, release.verdict, verdict_id)
        if not verdict.needs_approval:
            return release
        approved = replace(verdict, approved_by=self._by, approved_ms=self._clock.now_ms())
        return self.write(replace(release, verdict=approved))

    def require(self, release: Release) -> None:
        """Make sure that a release is still as it was read or written.

        Raises:
            VersionConflictError: If another process has written since.
        """
        found = self.read(release.app, release.live)
        if found.revision != release.revision:
            message = f"{release.app}: revision {found.revision} was written meanwhile, {release.revision} expected"
            raise VersionConflictError(message, hint="Look at `riverrun release status`, then decide again.")

    def require_no_history(self, app: str) -> None:
        """Make sure that an application without a record was never written.

        Raises:
            ReleaseError: If it was: its record is lost, so the live version is unknown.
        """
        if done := self.history(app):
            message = f"The control topic {CONTROL_TOPIC} has no record of {app}, although it was released: {done[-1]}"
            hint = f"Restore the topic, or say which version is live: riverrun release restore {app} --live VERSION"
            raise ReleaseError(message, hint=hint)

    def forget(self, app: str) -> None:
        """Delete the record and the history of an application, as if it had never been released."""
        self._notes.write(app, dict.fromkeys([app, *names_of(app, self._notes.read())]), lambda: None)


def release_of(admin: Admin, app: AppConfig) -> Release:
    """Return the release of an application; one that was never released is live in its configured version.

    Raises:
        ReleaseError: If it was released, and the control topic has lost it.
        BrokerError: If brokers do not answer.
    """
    return known_release(Registry.at(admin), app, admin)


def known_release(registry: Registry, app: AppConfig, admin: Admin) -> Release:
    """Return the release that a registry knows; an application that was never released is live in its configured version.

    Raises:
        ReleaseError: If it was released, and its record is lost.
        BrokerError: If brokers do not answer.
    """
    release = registry.read(app.name, app.version)
    if not release.revision:
        registry.require_no_history(app.name)
        require_never_released(admin, app)
    return release


def live_version(admin: Admin, app: AppConfig) -> str:
    """Return the version whose outputs are public.

    Raises:
        ReleaseError: If the control topic has lost the application.
        BrokerError: If brokers do not answer.
    """
    return release_of(admin, app).live


def require_no_switch(admin: Admin, app: AppConfig, live: str | None = None) -> None:
    """Make sure that a version may process. The other version would not get what this one commits in the middle of a switch.

    Args:
        admin: Asks the brokers.
        app: The application.
        live: The version that is to process because it was live when last looked up; None if it was named.

    Raises:
        UnderWayError: If a switch is under way, or has taken place since.
    """
    release = release_of(admin, app)
    LiveVersion(app.name, release.live, release.step.value).require_no_switch()
    if live is not None and release.live != live:
        message = f"{app.name}: {release.live} has just replaced {live}"
        raise UnderWayError(message, hint="Try again.")


def _held(before: Release | None, release: Release, by: str, now_ms: int) -> Release:
    """Return a release with the times of its holds as they are once it is written."""
    if release.barrier is not None and not release.held_since_ms:
        return replace(release, held_since_ms=now_ms, held_by=by)
    if release.barrier is None and release.held_since_ms:
        is_done = before is not None and before.step.value in SWITCHING and release.step.value not in SWITCHING
        held_ms = 0 if is_done else release.held_ms + _elapsed_ms(release, now_ms)
        return replace(release, held_since_ms=0, held_by="", held_ms=held_ms)
    return release


def _elapsed_ms(release: Release, now_ms: int) -> int:
    return max(0, now_ms - release.held_since_ms) if release.held_since_ms else 0


def _conflict(release: Release, now: Release, error: StreamsError) -> StreamsError:
    """Return the error for a release that could not be written."""
    if now.revision == release.revision and not isinstance(error, TaskMigratedError):
        return error
    told = f"revision {now.revision} was written meanwhile, {release.revision} expected"
    message = f"{release.app}: {told if now.revision != release.revision else 'another process is writing its release'}"
    return VersionConflictError(message, hint="Look at `riverrun release status`, then decide again.")


def _change(before: Release | None, after: Release) -> Change:
    names = [each.name for each in fields(after) if each.name not in _BOOKKEEPING]
    return Change(
        app=after.app,
        revision=after.revision,
        by=after.changed_by,
        at_ms=after.changed_ms,
        riverrun=version("riverrun"),
        before="none" if before is None else before.step.value,
        step=after.step.value,
        live=after.live,
        candidate=after.candidate,
        epoch=after.epoch,
        digests=after.digests,
        cut=after.cut,
        verdict=after.verdict.id if after.verdict else "",
        corrections=after.corrections,
        repaired=after.repaired,
        changed=tuple(name for name in names if before is None or getattr(before, name) != getattr(after, name)),
    )


_release = foreign_decoder(Release)


def _decoded(value: bytes, app: str) -> Release:
    try:
        found = _release(value)
        require_about(app, found.app)
    except UnreadableError as error:
        raise unreadable(app, error) from error
    return found
