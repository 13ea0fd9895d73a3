"""Switches from one version to another at an offset vector that both have processed, and corrects the public tables.

Running versions pause at the vector meanwhile. Versions that only process in bounded runs are brought to it, and fenced.
"""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from riverrun.config import EXACTLY_ONCE_V2
from riverrun.errors import ReleaseError, UnderWayError
from riverrun.hosting.alone import require_nobody
from riverrun.hosting.barrier_coordinator import BarrierCoordinator
from riverrun.hosting.ownership import fence_owners
from riverrun.records import OffsetVector
from riverrun.releases.corrections import Corrections

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.hosting.control_topic import ReleaseRegistry
    from riverrun.hosting.release import Release, ReleaseStep
    from riverrun.records import TopicPartition
    from riverrun.releases.versions import Versions

log = logging.getLogger(__name__)


class Switch:
    """Makes a version live in place of another. After a crash, another call completes the switch.

    While workers of one or both versions run, a crash changes nothing until the record says that the switch is under way: the
    next attempt or the workers give the barrier up. From then on the versions pause until the switch is completed.

    Args:
        on_step: Called with what a switch of running versions has done, after each step that a crash may follow.
    """

    def __init__(
        self,
        app: str,
        versions: Versions,
        registry: ReleaseRegistry,
        on_step: Callable[[str], None] = lambda _done: None,
    ) -> None:
        self._versions = versions
        self._registry = registry
        self._corrections = Corrections(app, registry)
        self._on_step = on_step
        self.barriers = BarrierCoordinator(registry, self._bring)

    def check(self, release: Release, new: str, during: ReleaseStep) -> None:
        """Make sure that a switch may begin, before anything has changed. `during` is the step of a switch under way."""
        old_app, new_app = self._versions.releasable(release.live), self._versions.releasable(new)
        if self._is_live(release, old_app, new_app, during):
            self._require_transactions(old_app)
        else:
            require_nobody(old_app)

    def to(self, release: Release, new: str, during: ReleaseStep, after: ReleaseStep) -> Release:
        """Make `new` live. The release is at the step `during` while the switch is under way, and at `after` once it is done.

        Nothing public changes before the control topic says that the switch is under way. From then on, another call completes
        it: rows that are already published no longer differ. If several processes do this at once, the last one wins. Each
        writes the release first, and checks that it still owns it whenever it has fenced the others from a topic.
        """
        old_app, new_app = self._versions.releasable(release.live), self._versions.staged(new)
        if self._is_live(release, old_app, new_app, during):
            return self._to_running(release, old_app, new_app, during, after)
        return self._to_idle(release, old_app, new_app, during, after)

    def _is_live(
        self, release: Release, old: ConnectedApplication, new: ConnectedApplication, during: ReleaseStep
    ) -> bool:
        """Return whether workers run or, if a switch has begun, whether it began with workers that pause."""
        if release.step is during:
            return release.barrier is not None
        return self.barriers.is_running(old) or self.barriers.is_running(new)

    # While workers run

    def _to_running(
        self,
        release: Release,
        old: ConnectedApplication,
        new: ConnectedApplication,
        during: ReleaseStep,
        after: ReleaseStep,
    ) -> Release:
        if release.step is not during:
            self._require_transactions(old)
            release = self._prepared(release, old, new)
            release = self._paused(release, old, new, during)
        else:
            # Writing takes the switch over from a process that has died, or sleeps.
            release = self._registry.write(release)
        published_at = time.monotonic()
        with self._registry.working_on(release):
            count, published = self._corrected(release, old, new)
        self._on_step("corrected")
        corrections_ms = int((time.monotonic() - published_at) * 1000)
        # By wall clocks, of two machines if another process has begun the switch: corrections are a part of it in any case.
        pause_ms = max(corrections_ms, self._registry.paused_ms(release))
        changed = release.to(after, live=new.version, previous=old.version, corrections=count, published=published)
        written = self._switched(changed, pause_ms, corrections_ms)
        self._on_step("switched")
        message = "%s is live from %s on: publication paused for %.1f s, %.1f s of it for %d corrections"
        log.info(message, new.id, written.cut, pause_ms / 1000, corrections_ms / 1000, count)
        return written

    def _require_transactions(self, old: ConnectedApplication) -> None:
        """Make sure that the live version may be replaced while it runs."""
        if not self.barriers.is_running(old):
            return
        if old.application.config.streams.processing_guarantee != EXACTLY_ONCE_V2:
            message = f"{old.id} runs at least once: a switch cannot fence records that an old owner has sent"
            hint = 'Stop its workers for the switch, or set processing_guarantee = "exactly_once_v2".'
            raise ReleaseError(message, hint=hint)

    def _prepared(self, release: Release, old: ConnectedApplication, new: ConnectedApplication) -> Release:
        """Do everything that is possible while both versions run, to shorten the pause."""
        # The old version writes to its staging topics from the switch on.
        self._versions.staged(old.version, grows=True)
        if not self.barriers.is_running(new) and not self._versions.is_ahead(new, old):
            self._versions.follow(new, old)
        # The coordinator of a barrier that is still there has died.
        mine = self._registry.write(replace(release, barrier=None))
        self._corrections.keep(old, mine, is_settled=False)
        self._corrections.read_ahead(new)
        self._on_step("prepared")
        return mine

    def _paused(
        self, release: Release, old: ConnectedApplication, new: ConnectedApplication, during: ReleaseStep
    ) -> Release:
        """Make both versions pause at one vector, and record that the switch is under way."""
        completed = self.barriers.pause(release, [old, new])
        self._on_step("paused")
        try:
            # Not later: the public tables are the old version's only until corrections are published.
            self._corrections.keep(old, completed.release)
            self._on_step("kept")
            cut = self._registry.write(
                replace(completed.release.to(during, cut=str(completed.vector)), switch=uuid.uuid4().hex)
            )
        except BaseException:
            self.barriers.give_up(completed.release)
            raise
        self._on_step("cutting")
        return cut

    # Between bounded runs

    def _to_idle(
        self,
        release: Release,
        old: ConnectedApplication,
        new: ConnectedApplication,
        during: ReleaseStep,
        after: ReleaseStep,
    ) -> Release:
        require_nobody(old)
        mine, way_back = self._registry.write(release), True
        if mine.step is not during:
            mine = self._cut(mine, old, new, during)
        else:
            # They note their progress next to the offsets that the fence waits for, and may stay open for minutes.
            self._corrections.interrupt(new)
            fence(old, new)
            way_back = self._are_at_cut(mine, old, new)
            mine = mine if way_back else self._cut_again(mine, old, new)
        count, published = self._corrected(mine, old, new)
        previous = release.live if way_back else None
        return self._switched(
            mine.to(after, live=new.version, previous=previous, corrections=count, published=published)
        )

    def _cut(
        self, release: Release, old: ConnectedApplication, new: ConnectedApplication, during: ReleaseStep
    ) -> Release:
        """Bring both versions to the same offsets, and record that the switch is under way."""
        fence(old)
        summary = self._versions.follow(new, old)
        self._corrections.keep(old, release)
        cut = self._registry.write(release.to(during, cut=str(summary.range.end), switch=uuid.uuid4().hex))
        # Again: an owner that took a task over before the cut was written does not know of it.
        fence(old, new)
        # A run joins its group first and then reads the release. This writes first and then looks for runs: one sees the other.
        try:
            require_nobody(old)
            self._require_at_cut(cut, old, new)
        except UnderWayError:
            self._registry.write(cut.to(release.step))
            raise
        return cut

    def _are_at_cut(self, cut: Release, old: ConnectedApplication, new: ConnectedApplication) -> bool:
        # Not only at one place: both may have moved on together, and the table that was kept is that of the cut.
        return self._versions.are_at(OffsetVector.parse(cut.cut or ""), old, new)

    def _require_at_cut(self, cut: Release, old: ConnectedApplication, new: ConnectedApplication) -> None:
        if not self._are_at_cut(cut, old, new):
            message = f"{old.id} or {new.id} has moved on during the switch"
            raise UnderWayError(message, hint="Stop their workers and runs, then try again.")

    def _cut_again(self, release: Release, old: ConnectedApplication, new: ConnectedApplication) -> Release:
        """Let the new version follow an old one that has processed more since the cut of an interrupted switch."""
        # What the old version has published since is corrected with all other rows, but is missing in the table that was
        # kept. So it cannot be rolled back to, and an empty digest lets another release of it compute it from scratch.
        log.warning("%s has moved on during the switch: it cannot be rolled back to", old.id)
        following = replace(new, application=replace(new.application, attempt=release.switch))
        summary = self._versions.follow(following, old)
        return replace(release, cut=str(summary.range.end), digests=release.digests | {old.version: ""})

    # Both

    def _corrected(
        self, release: Release, old: ConnectedApplication, new: ConnectedApplication
    ) -> tuple[int, dict[str, int]]:
        """Make the public topics equal to the new version's; also return how far logs are published."""
        count = self._corrections.publish(new, release)
        more, published = self._corrections.publish_logs(new, old, release)
        return count + more, published

    def _switched(self, release: Release, pause_ms: int = 0, corrections_ms: int = 0) -> Release:
        changed = replace(release, epoch=release.epoch + 1, pause_ms=pause_ms, corrections_ms=corrections_ms)
        return self._registry.write(changed)

    def _bring(self, version: ConnectedApplication, vector: Mapping[TopicPartition, int]) -> None:
        """Bring a version without workers to a vector, and fence processes that have left transactions open."""
        require_nobody(version)
        fence(version)
        self._versions.bring(version, vector)


def fence(*versions: ConnectedApplication) -> None:
    """Take all tasks over for a moment: processes that still run them can commit nothing more."""
    for version in versions:
        resolved = version.resolved()
        fence_owners(resolved, resolved.prepare().tasks)
