"""Switches between running versions: both hold at one vector, public tables are corrected, and the other version publishes."""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from riverrun.config import EXACTLY_ONCE_V2
from riverrun.errors import ReleaseError

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.releases.control_topic.registry import Registry, Release, Step
    from riverrun.releases.switching.corrections import Corrections
    from riverrun.releases.switching.marks import Marks
    from riverrun.releases.versions.versions import Versions

log = logging.getLogger(__name__)


class LiveSwitch:
    """Replaces the live version while workers of one or both versions run.

    A crash changes nothing until the record says that the switch is under way: the next attempt or the workers give the mark
    up.
    From then on the versions hold until the switch is completed.

    Args:
        versions: The application's versions.
        registry: Where the release is recorded.
        marks: Makes the versions hold.
        corrections: Makes the public tables equal to the new version's.
        on_step: Called with what was done, after each step that a crash may follow.
    """

    def __init__(
        self,
        versions: Versions,
        registry: Registry,
        marks: Marks,
        corrections: Corrections,
        on_step: Callable[[str], None] = lambda _done: None,
    ) -> None:
        self._versions = versions
        self._registry = registry
        self._marks = marks
        self._corrections = corrections
        self._on_step = on_step

    def is_wanted(self, release: Release, old: ConnectedApplication, new: ConnectedApplication, during: Step) -> bool:
        """Return whether workers run or, if a switch has begun, whether it began with workers that hold."""
        if release.step is during:
            return release.mark is not None
        return self._marks.is_running(old) or self._marks.is_running(new)

    def check(self, old: ConnectedApplication) -> None:
        """Make sure that the live version may be replaced while it runs.

        Raises:
            ReleaseError: If it runs and commits at least once: nothing can fence the records it has sent.
        """
        if self._marks.is_running(old):
            _require_transactions(old)

    def to(
        self, release: Release, old: ConnectedApplication, new: ConnectedApplication, during: Step, after: Step
    ) -> Release:
        """Make `new` live in place of `old`. After a crash, another call completes the switch.

        Args:
            release: The release, as it was written last.
            old: The version that is live.
            new: The version to make live; it writes to staging topics.
            during: The step that says that the switch is under way.
            after: The step that says that it is done.

        Returns:
            The release after the switch.

        Raises:
            ReleaseError: If a running version commits at least once: nothing can fence the records it has sent.
            UnderWayError: If the versions do not reach one point in time.
            VersionConflictError: If another process switches as well.
        """
        if release.step is not during:
            self.check(old)
            release = self._prepared(release, old, new)
            release = self._held(release, old, new, during)
        else:
            release = self._registry.write(release)  # takes over from a process that has died, or sleeps
        published_at = time.monotonic()
        with self._registry.working_on(release):
            count = self._corrections.publish(new, release)
            more, published = self._corrections.publish_logs(new, old, release)
        count += more
        self._on_step("corrected")
        corrections_ms = int((time.monotonic() - published_at) * 1000)
        pause_ms = max(corrections_ms, self._registry.paused_ms(release))
        changed = replace(
            release.to(after, live=new.version, previous=old.version, corrections=count, published=published),
            epoch=release.epoch + 1,
            pause_ms=pause_ms,
            corrections_ms=corrections_ms,
        )
        written = self._registry.write(changed)
        self._on_step("switched")
        message = "%s is live from %s on: publication paused for %.1f s, %.1f s of it for %d corrections"
        log.info(message, new.id, written.cut, pause_ms / 1000, corrections_ms / 1000, count)
        return written

    def _prepared(self, release: Release, old: ConnectedApplication, new: ConnectedApplication) -> Release:
        """Do everything that is possible while both versions run, to shorten the pause."""
        self._versions.staged(old.version)  # it writes there from the switch on
        if not self._marks.is_running(new) and not self._versions.is_ahead(new, old):
            self._versions.follow(new, old)
        mine = self._registry.write(replace(release, mark=None))  # the coordinator of an old mark has died
        self._corrections.keep(old, mine, is_settled=False)
        self._corrections.read_ahead(new)
        self._on_step("prepared")
        return mine

    def _held(self, release: Release, old: ConnectedApplication, new: ConnectedApplication, during: Step) -> Release:
        """Make both versions hold at one vector, and record that the switch is under way."""
        marked = self._marks.take(release, [old, new])
        self._on_step("marked")
        try:
            # Not later: the public tables are the old version's only until corrections are published.
            self._corrections.keep(old, marked.release)
            self._on_step("kept")
            cut = self._registry.write(
                replace(marked.release.to(during, cut=str(marked.vector)), switch=uuid.uuid4().hex)
            )
        except BaseException:
            self._marks.give_up(marked.release)
            raise
        self._on_step("cutting")
        return cut


def _require_transactions(running: ConnectedApplication) -> None:
    if running.application.config.streams.processing_guarantee != EXACTLY_ONCE_V2:
        message = f"{running.id} runs at least once: what an old owner has sent cannot be shut out at the switch"
        hint = 'Stop its workers for the switch, or set processing_guarantee = "exactly_once_v2".'
        raise ReleaseError(message, hint=hint)
