"""Decides whether a step of a release may be taken, and whether a candidate is close enough to the ends of its inputs."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from riverrun.errors import ApprovalNeededError, NotReadyError, ReleaseError
from riverrun.hosting.alone import require_nobody
from riverrun.hosting.control_topic import known_release
from riverrun.hosting.inputs import SHORTER, beyond_warning, input_lags
from riverrun.hosting.release import (
    ABORT,
    APPROVE,
    BEGUN,
    CUT,
    DIFF,
    GATE,
    REPROCESS,
    ROLLBACK,
    SETTLED,
    START,
    ReleaseStep,
)
from riverrun.quality.expectations import declared
from riverrun.records import OffsetVector
from riverrun.releases.topology import require_known, require_same_keys, require_same_kinds
from riverrun.releases.verdicts import Now, inputs_since, require_approvable, require_valid, suite_digest
from riverrun.releases.versions import is_planned_code, other_code, require_declared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from riverrun.config import AppConfig
    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.hosting.control_topic import ReleaseRegistry
    from riverrun.hosting.inputs import InputLag
    from riverrun.hosting.release import Action, Release
    from riverrun.kafka.admin import Admin
    from riverrun.releases.switch import Switch
    from riverrun.releases.versions import Versions


# Twice the longest default of `commit.interval.ms`.
_RATES_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Readiness:
    """The position of a candidate at one poll.

    Args:
        lag: Offsets left to process, of all inputs together.
        largest: Offsets left in the input that is furthest behind.
        processed_per_s: Offsets processed per second in the last minute; 0 at the first poll.
        arriving_per_s: New offsets per second in the last minute.
        is_ready: Whether it was close to all ends at the last polls.
        rates_s: Seconds in which these rates were measured; 0 at the first poll.
    """

    lag: int
    largest: int
    processed_per_s: float
    arriving_per_s: float
    is_ready: bool
    rates_s: float = 0.0

    @property
    def left_s(self) -> float | None:
        """Seconds until nothing is left at these rates; None if that is never."""
        gained = self.processed_per_s - self.arriving_per_s
        if not self.lag:
            return 0.0
        return self.lag / gained if gained > 0 else None

    def __str__(self) -> str:
        if self.is_ready:
            return f"ready: {self.lag} offsets behind"
        if not self.rates_s:
            return f"{self.lag} offsets behind (rates are not known yet)"
        left = self.left_s
        when = "never at this rate" if left is None else f"about {left:.0f} s"
        if not self.processed_per_s:
            when = f"nothing was processed in the last {self.rates_s:.0f} s"
        rates = f"{_rate(self.processed_per_s)} processed, {_rate(self.arriving_per_s)} arriving"
        return f"{self.lag} offsets behind ({rates}): {when}"


def _rate(per_s: float) -> str:
    return f"{f'{per_s:.2f}'.rstrip('0').rstrip('.')}/s"


def readiness(
    look: Callable[[], tuple[float, list[InputLag]]], *, max_lag: int, looks: int, timeout_s: float | None = None
) -> Iterator[Readiness]:
    """Yield the candidate's distance at each poll, until it is ready.

    It is ready after `looks` polls in a row at which no input was more than `max_lag` offsets behind. `look` waits, then
    returns the time in seconds and the lags of all inputs.
    """
    began: float | None = None
    close, earlier = 0, deque[tuple[float, int, int]]()
    while close < looks:
        at, lags = look()
        if (beyond := beyond_warning(lags)) is not None:
            raise NotReadyError(f"The candidate cannot catch up: {beyond}", hint=SHORTER)
        began = at if began is None else began
        done, ends = sum(_position(each) for each in lags), sum(each.end for each in lags)
        largest = max((each.lag for each in lags), default=0)
        close = close + 1 if largest <= max_lag else 0
        earlier.append((at, done, ends))
        # Tasks commit in steps: between two polls, nothing may seem to be processed.
        while len(earlier) > 1 and earlier[1][0] <= at - _RATES_SECONDS:
            earlier.popleft()
        then, done_then, ends_then = earlier[0]
        passed_s = at - then
        rates = ((done - done_then) / passed_s, (ends - ends_then) / passed_s) if passed_s > 0 else (0.0, 0.0)
        found = Readiness(sum(each.lag for each in lags), largest, *rates, is_ready=close >= looks, rates_s=passed_s)
        yield found
        if timeout_s is not None and at - began >= timeout_s and not found.is_ready:
            message = f"The candidate has not caught up within {timeout_s:g} s: {found}"
            raise NotReadyError(message, hint="Wait longer, or give it more workers.")


def looking(connected: ConnectedApplication, every_s: float) -> Callable[[], tuple[float, list[InputLag]]]:
    """Return a function that waits, except at first, then returns the time and an application's lags."""
    seen = False

    def look() -> tuple[float, list[InputLag]]:
        nonlocal seen
        if seen:
            time.sleep(every_s)
        seen = True
        return time.monotonic(), input_lags(connected)

    return look


def _position(each: InputLag) -> int:
    return each.start if each.committed is None else each.committed


class StepChecks:
    """Makes sure that a step may be taken, before it changes anything.

    Args:
        is_joint: Whether the steps are those of a joint release, with which other applications take them as well.
    """

    def __init__(
        self,
        config: AppConfig,
        versions: Versions,
        registry: ReleaseRegistry,
        switch: Switch,
        admin: Admin,
        *,
        is_joint: bool = False,
    ) -> None:
        self._is_joint = is_joint
        self._config = config
        self._versions = versions
        self._registry = registry
        self._switch = switch
        self._admin = admin

    def status(self) -> Release:
        return known_release(self._registry, self._config, self._admin)

    def at(self, *steps: ReleaseStep) -> Release:
        """Return the state of the release, which must be one of these."""
        release = self.status()
        if release.step not in steps:
            wanted = " or ".join(step.value for step in steps)
            message = f"{self._config.name}: {release.progress}; this needs {wanted}"
            raise ReleaseError(message, hint="`riverrun release status` says what may come next.")
        return release

    def check(self, action: Action, argument: str = "") -> Release:
        """Make sure that an action may be taken; `argument` is the version or the verdict that it is about."""
        checks: Mapping[str, Callable[[str], Release]] = {
            "start": self._check_start,
            "restore": self._check_restore,
            "abort": self._check_abort,
            "retire": self._check_retire,
        }
        if action.name in checks:
            return checks[action.name](argument)
        release = self.at(*action.taken_at)
        if action not in {APPROVE, DIFF}:
            self._require_alone(release, action)
        if release.step in BEGUN:
            self._require_declared(release)
        if action in {GATE, CUT, ROLLBACK}:
            release.require_nothing_held()
        if action in {REPROCESS, GATE}:
            release.require_carried(candidate_of(release))
            self._require_same_code(release, self._versions.releasable(candidate_of(release)))
        elif action is APPROVE:
            require_approvable(release.app, release.verdict, argument)
        elif action is CUT and release.step is ReleaseStep.GATED:
            self._require_valid_verdict(release)
            self._switch.check(release, candidate_of(release), ReleaseStep.CUTTING)
        elif action is ROLLBACK and release.step is ReleaseStep.LIVE:
            self._require_way_back(release)
            self._require_same_code(release, self._versions.releasable(release.previous or ""))
            self._switch.check(release, release.previous or "", ReleaseStep.ROLLING_BACK)
        return release

    def pair(self, release: Release, candidate: str) -> tuple[ConnectedApplication, ConnectedApplication]:
        if candidate == release.live:
            raise ReleaseError(f"{self._config.name}: {candidate} is live already")
        require_declared(self._config, release.live, "live")
        live, new = self._versions.releasable(release.live), self._versions.releasable(candidate)
        require_known(self._config, (version.topology for version in self._versions.all_from(live, new)))
        require_same_kinds(live.application, new.application)
        require_same_keys(live.application, new.application)
        return live, new

    def digests(self, release: Release) -> dict[str, str]:
        """Return digests of the present code of the live version and of the candidate."""
        versions = release.live, candidate_of(release)
        return {version: self._versions.releasable(version).topology.fingerprint() for version in versions}

    def is_valid(self, release: Release) -> bool:
        """Return whether the last gate's verdict lets the candidate go live, or will once it is approved."""
        try:
            self._require_valid_verdict(release)
        except ApprovalNeededError:
            return True
        except ReleaseError:
            return False
        return True

    def suite(self) -> str:
        """Return a digest of the present expectations."""
        return suite_digest(declared(self._config.quality))

    def _check_start(self, candidate: str) -> Release:
        release = self.status()
        self.pair(release, candidate)
        if release.step not in SETTLED:
            self._require_alone(release, START)
        if not self._is_joint:
            release.require_startable(candidate, {})
        # The result is dropped: this raises if no release can start at this step.
        if release.step is not ReleaseStep.PLANNED:
            release.to(ReleaseStep.PLANNED)
        return release

    def _check_restore(self, live: str) -> Release:
        self._config.topology_of(live)
        known = self._registry.read(self._config.name, self._config.version)
        if known.revision:
            message = f"{known.app}: the control topic says that {known.live} is live"
            raise ReleaseError(
                message, hint=f"Another version goes live by a release: riverrun release start {known.app}"
            )
        return known

    def _check_abort(self, _argument: str) -> Release:
        release = self.status()
        self._require_alone(release, ABORT)
        # As above: this raises once the cut has begun.
        release.to(ReleaseStep.ABORTED)
        require_nobody(self._versions.application(candidate_of(release)))
        return release

    def _check_retire(self, version: str) -> Release:
        release = self.status()
        chosen = retired_of(release, version)
        if chosen == release.live or (release.step not in SETTLED and chosen in {release.candidate, release.previous}):
            message = f"{release.app}: {chosen} cannot be retired: {release.live} is live, and {release.progress}"
            raise ReleaseError(message, hint="Retire the previous version once the release is complete.")
        require_nobody(self._versions.application(chosen))
        return release

    def _require_alone(self, release: Release, action: Action) -> None:
        if not self._is_joint:
            release.require_alone(action)

    def _require_declared(self, release: Release) -> None:
        require_declared(self._config, release.live, "live")
        require_declared(self._config, candidate_of(release), "being released")

    def _require_way_back(self, release: Release) -> None:
        if release.previous is None:
            message = f"{release.app}: there is no version to roll back to"
            again = START.command(release.app, "VERSION")
            raise ReleaseError(message, hint=f"Another release brings an earlier version back: {again}")
        require_declared(self._config, release.live, "live")
        require_declared(self._config, release.previous, "the version to roll back to")

    @staticmethod
    def _require_same_code(release: Release, version: ConnectedApplication) -> None:
        """Make sure that a version is whole, and not computed half by the planned code, half by other code."""
        release.require_results(version.version)
        if not is_planned_code(release, version):
            raise other_code(release, version.version)

    def _require_valid_verdict(self, release: Release) -> None:
        """Make sure that the last gate's verdict lets the candidate go live."""
        digests, inputs = self.digests(release), 0
        if self._config.max_inputs_since_gate is not None and release.verdict is not None:
            live, new = self._versions.releasable(release.live), self._versions.releasable(candidate_of(release))
            inputs = inputs_since(OffsetVector.parse(release.verdict.at), self._versions.target(live, new))
        suite = self.suite()
        now = Now(candidate_of(release), suite, digests, inputs, self._config.max_inputs_since_gate)
        require_valid(release, now)


def retired_of(release: Release, version: str | None) -> str:
    """Return the version that is to be retired: the given one, or the last that was replaced."""
    chosen = version or (release.candidate if release.step is ReleaseStep.ROLLED_BACK else release.previous)
    if chosen is None:
        raise ReleaseError(f"{release.app}: there is no version to retire", hint="Name one: --version.")
    return chosen


def candidate_of(release: Release) -> str:
    if release.candidate is None:
        raise ReleaseError(f"{release.app} has no candidate", hint="Begin with `riverrun release start`.")
    return release.candidate
