"""The side of a command: makes running versions pause at one offset vector that all of them have processed exactly.

The application's record asks for it phase by phase (`Barrier`). The owners of tasks answer in the metadata of the offsets they
commit. Bounded runs bring versions without workers to the vector.
"""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from riverrun.errors import UnderWayError, VersionConflictError
from riverrun.records import OffsetVector, TopicPartition
from riverrun.runtime.barrier import Barrier
from riverrun.runtime.times import OffsetMetadata

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.hosting.control_topic import ReleaseRegistry
    from riverrun.hosting.release import Release

    _Offsets = Mapping[TopicPartition, int]

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.02
_ANSWER_SECONDS = 30.0
"""Time that workers have to acknowledge a phase: to commit, and to process records before the vector."""
_ATTEMPTS = 3
_TIMEOUT_MS = 120_000
# Longer, as other versions pause while a bounded run brings a version without workers up to date.
_TIMEOUT_OF_RUNS_MS = 300_000


@dataclass(frozen=True, slots=True)
class CompletedBarrier:
    """A barrier at which its versions pause: its record, and the source offsets that all have processed exactly."""

    release: Release
    vector: OffsetVector


@dataclass(frozen=True, slots=True)
class _Inputs:
    """Inputs of a version's tasks: partitions of others' topics, and of its own repartition topics."""

    connected: ConnectedApplication
    sources: frozenset[TopicPartition]
    internal: frozenset[TopicPartition]

    @classmethod
    def of(cls, connected: ConnectedApplication) -> _Inputs:
        found = connected.resolved()
        own = {topic.name for topic in found.layout.repartition_topics}
        internal = frozenset(tp for tp in found.inputs if tp.topic in own)
        return cls(connected, found.inputs - internal, internal)

    @property
    def version(self) -> str:
        return self.connected.version

    def positions(self) -> dict[TopicPartition, int]:
        """Return the source offsets that the version has committed."""
        known = self.connected.committed(self.sources)
        first = self.connected.admin.beginning_offsets(self.sources - known.keys())
        return first | {tp: committed.offset for tp, committed in known.items()}


class BarrierCoordinator:
    """Makes versions pause at one vector, and resume. `bring` brings a version without workers to given source offsets."""

    def __init__(self, registry: ReleaseRegistry, bring: Callable[[ConnectedApplication, _Offsets], None]) -> None:
        self._registry = registry
        self._bring = bring

    @staticmethod
    def is_running(version: ConnectedApplication) -> bool:
        return bool(version.admin.group(version.id).members)

    def pause(self, release: Release, versions: Sequence[ConnectedApplication]) -> CompletedBarrier:
        """Make versions pause at one vector (those without workers must be idle). If that fails, all of them resume."""
        inputs = [_Inputs.of(version) for version in versions]
        for _ in range(_ATTEMPTS):
            running = [each for each in inputs if self.is_running(each.connected)]
            timeout_ms = _TIMEOUT_MS if len(running) == len(inputs) else _TIMEOUT_OF_RUNS_MS
            attempt = _Attempt(self._registry, release, timeout_ms)
            try:
                completed = self._complete(attempt, inputs, running)
            except BaseException:
                if attempt.is_open:
                    self.give_up(attempt.release)
                raise
            if completed is not None:
                return completed
            release = attempt.release
        message = f"Workers of {release.app} keep starting while its versions are to pause"
        raise UnderWayError(message, hint="Try again once they have started.")

    def resume(self, release: Release) -> Release:
        """Let all versions that pause resume."""
        return self._registry.write(replace(release, barrier=None))

    def give_up(self, release: Release) -> None:
        """Let all versions that pause resume, unless another process has written the record meanwhile."""
        try:
            self.resume(release)
        except VersionConflictError as error:
            log.warning("another process has already given up or changed the barrier: %s", error.message)

    def _complete(self, attempt: _Attempt, inputs: list[_Inputs], running: list[_Inputs]) -> CompletedBarrier | None:
        """Try to complete the barrier; return None if workers of a version appeared that had none."""
        attempt.ask(0, {each.version: {} for each in running})
        attempt.wait([(each.connected, each.sources) for each in running])
        # One version has processed the records up to these offsets, so they exist: no task waits for input.
        vector = _furthest(inputs)
        for each in inputs:
            if each not in running:
                # Its workers have just started, and have not stopped for phase 0: the vector may be too low for them.
                if self.is_running(each.connected):
                    return None
                self._bring(each.connected, {tp: vector[tp] for tp in each.sources})
        limits = {each.version: {tp: vector[tp] for tp in each.sources} for each in inputs}
        attempt.ask(1, limits)
        attempt.wait([(each.connected, each.sources) for each in inputs if self.is_running(each.connected)])
        self._drain(attempt, inputs, limits)
        for each in inputs:
            beyond = [tp for tp, offset in each.positions().items() if offset != vector[tp]]
            if beyond:
                message = f"{each.connected.id} is not at the offset of the barrier in {beyond[0]}"
                raise UnderWayError(
                    message, hint="Another process has processed records of it. Try again once that process has ended."
                )
        return CompletedBarrier(attempt.release, OffsetVector(vector))

    def _drain(self, attempt: _Attempt, inputs: list[_Inputs], limits: dict[str, dict[TopicPartition, int]]) -> None:
        """Wait until nothing is left between sub-topologies; each phase advances at least one level."""
        draining = [each for each in inputs if each.internal and self.is_running(each.connected)]
        known: dict[str, dict[TopicPartition, int]] = {}
        phase = 2
        while True:
            ends = {each.version: each.connected.admin.stable_end_offsets(each.internal) for each in draining}
            if ends == known:
                return
            known = ends
            attempt.ask(phase, {version: found | ends.get(version, {}) for version, found in limits.items()})
            attempt.wait([(each.connected, each.internal) for each in draining])
            phase += 1


def _furthest(inputs: Iterable[_Inputs]) -> dict[TopicPartition, int]:
    vector: dict[TopicPartition, int] = {}
    for each in inputs:
        for tp, offset in each.positions().items():
            vector[tp] = max(offset, vector.get(tp, 0))
    return vector


class _Attempt:
    """One barrier, from its first phase on."""

    def __init__(self, registry: ReleaseRegistry, release: Release, timeout_ms: int) -> None:
        self.release = release
        self._registry = registry
        self._barrier = Barrier(uuid.uuid4().hex[:12], timeout_ms=timeout_ms)

    def ask(self, phase: int, limits: Mapping[str, _Offsets]) -> None:
        named = {version: {str(tp): offset for tp, offset in where.items()} for version, where in limits.items()}
        self._barrier = replace(self._barrier, phase=phase, limits=named)
        self.release = self._registry.write(replace(self.release, barrier=self._barrier))

    def wait(self, wanted: Iterable[tuple[ConnectedApplication, frozenset[TopicPartition]]]) -> None:
        """Wait until all owners have acknowledged the phase."""
        deadline = time.monotonic() + _ANSWER_SECONDS
        for version, tps in wanted:
            while missing := self._missing(version, tps):
                if time.monotonic() > deadline:
                    message = f"{version.id} does not pause: {missing[0]} has not reached the offset of the barrier"
                    hint = "A worker may hang, or process one record slowly. See `riverrun status`, then try again."
                    raise UnderWayError(message, hint=hint)
                time.sleep(_POLL_SECONDS)

    @property
    def is_open(self) -> bool:
        """True if its first phase was written."""
        return self.release.barrier is not None and self.release.barrier.id == self._barrier.id

    def _missing(self, version: ConnectedApplication, tps: frozenset[TopicPartition]) -> list[TopicPartition]:
        known = version.committed(tps)
        reached = {tp: OffsetMetadata.decode(found.metadata).barrier for tp, found in known.items()}
        return sorted(tp for tp in tps if not self._is_acknowledged(reached.get(tp)))

    def _is_acknowledged(self, reached: tuple[str, int] | None) -> bool:
        return reached is not None and reached[0] == self._barrier.id and reached[1] >= self._barrier.phase
