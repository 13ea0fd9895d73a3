"""Marks: one offset vector that running versions of an application have processed exactly, and hold at.

The application's record asks for it phase by phase (`hosting.publication.Mark`). The owners of tasks answer in the
metadata of the offsets they commit. Bounded runs bring versions without workers to the vector.
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
    from riverrun.releases.registry import Registry, Release

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.02
_ANSWER_SECONDS = 30.0
"""Time that workers have to answer a phase: to commit, and to process records before the vector."""
_ATTEMPTS = 3
_HOLD_MS = 120_000
_HOLD_FOR_RUNS_MS = 300_000
"""Time that other versions hold while a bounded run brings a version without workers up to date."""


@dataclass(frozen=True, slots=True)
class Marked:
    """A complete mark: its versions hold.

    Args:
        release: The record that says so.
        vector: The source offsets that all of them have processed exactly.
    """

    release: Release
    vector: OffsetVector


@dataclass(frozen=True, slots=True)
class _Inputs:
    """Inputs of a version's tasks: partitions of others' topics, and of its own repartition topics."""

    connected: ConnectedApplication
    sources: frozenset[TopicPartition]
    internal: frozenset[TopicPartition]


class Marks:
    """Makes versions stop at one vector, and go on.

    Args:
        registry: Where the record is.
        bring: Brings a version without workers to given source offsets.
    """

    def __init__(
        self, registry: Registry, bring: Callable[[ConnectedApplication, Mapping[TopicPartition, int]], None]
    ) -> None:
        self._registry = registry
        self._bring = bring

    @staticmethod
    def is_running(version: ConnectedApplication) -> bool:
        """Return whether workers of a version run."""
        return bool(version.admin.group(version.id).members)

    def take(self, release: Release, versions: Sequence[ConnectedApplication]) -> Marked:
        """Make versions hold at one vector. If that fails, all of them go on, and nothing has changed.

        Args:
            release: The record as it was read or written last.
            versions: The versions; those without workers must be idle.

        Returns:
            The mark, once all versions hold.

        Raises:
            UnderWayError: If they do not reach one point in time.
            VersionConflictError: If another process has written the record meanwhile.
        """
        inputs = [_inputs_of(version) for version in versions]
        for _ in range(_ATTEMPTS):
            running = [each for each in inputs if self.is_running(each.connected)]
            hold_ms = _HOLD_MS if len(running) == len(inputs) else _HOLD_FOR_RUNS_MS
            attempt = _Attempt(self._registry, release, hold_ms)
            try:
                marked = self._take(attempt, inputs, running)
            except BaseException:
                if attempt.is_open:
                    self.give_up(attempt.release)
                raise
            if marked is not None:
                return marked
            release = attempt.release
        message = f"Workers of {release.app} come and go"
        raise UnderWayError(message, hint="Try again once they run.")

    def end(self, release: Release) -> Release:
        """Let all versions that hold go on.

        Raises:
            VersionConflictError: If another process has written the record meanwhile: a worker has given the mark up.
        """
        return self._registry.write(replace(release, barrier=None))

    def give_up(self, release: Release) -> None:
        """Let all versions that hold go on, unless another process has written the record meanwhile."""
        try:
            self.end(release)
        except VersionConflictError as error:
            log.warning("the mark is not given up here: %s", error.message)

    def _take(self, attempt: _Attempt, inputs: list[_Inputs], running: list[_Inputs]) -> Marked | None:
        """Try to take the mark; return None if workers of a version appeared that had none."""
        attempt.ask(0, {each.connected.version: {} for each in running})
        attempt.wait([(each.connected, each.sources) for each in running])
        vector = self._vector(inputs)
        for each in inputs:
            if each not in running:
                if self.is_running(each.connected):
                    return None
                self._bring(each.connected, {tp: vector[tp] for tp in each.sources})
        limits = {each.connected.version: {tp: vector[tp] for tp in each.sources} for each in inputs}
        attempt.ask(1, limits)
        attempt.wait([(each.connected, each.sources) for each in inputs if self.is_running(each.connected)])
        self._drain(attempt, inputs, limits)
        for each in inputs:
            self._require_at(each, vector)
        return Marked(attempt.release, OffsetVector(vector))

    def _drain(self, attempt: _Attempt, inputs: list[_Inputs], limits: dict[str, dict[TopicPartition, int]]) -> None:
        """Wait until nothing is left between sub-topologies; each phase advances at least one level."""
        draining = [each for each in inputs if each.internal and self.is_running(each.connected)]
        known: dict[str, dict[TopicPartition, int]] = {}
        phase = 2
        while True:
            ends = {each.connected.version: each.connected.admin.stable_end_offsets(each.internal) for each in draining}
            if ends == known:
                return
            known = ends
            attempt.ask(phase, {version: found | ends.get(version, {}) for version, found in limits.items()})
            attempt.wait([(each.connected, each.internal) for each in draining])
            phase += 1

    def _vector(self, inputs: Iterable[_Inputs]) -> dict[TopicPartition, int]:
        """Return the position of the version that is furthest ahead, per source partition."""
        vector: dict[TopicPartition, int] = {}
        for each in inputs:
            for tp, offset in self._positions(each).items():
                vector[tp] = max(offset, vector.get(tp, 0))
        return vector

    def _require_at(self, inputs: _Inputs, vector: Mapping[TopicPartition, int]) -> None:
        beyond = [tp for tp, offset in self._positions(inputs).items() if offset != vector[tp]]
        if beyond:
            message = f"{inputs.connected.id} is not at the offset of the mark in {beyond[0]}"
            raise UnderWayError(message, hint="Another process processes it. Try again once that has ended.")

    def _positions(self, inputs: _Inputs) -> dict[TopicPartition, int]:
        known = inputs.connected.committed(inputs.sources)
        first = inputs.connected.admin.beginning_offsets(inputs.sources - known.keys())
        return first | {tp: committed.offset for tp, committed in known.items()}


class _Attempt:
    """One mark, from its first phase on."""

    def __init__(self, registry: Registry, release: Release, hold_ms: int) -> None:
        self.release = release
        self._registry = registry
        self._id = uuid.uuid4().hex[:12]
        self._hold_ms = hold_ms
        self._phase = 0

    def ask(self, phase: int, limits: Mapping[str, Mapping[TopicPartition, int]]) -> None:
        """Write the next phase."""
        named = {version: {str(tp): offset for tp, offset in where.items()} for version, where in limits.items()}
        barrier = Barrier(self._id, phase, named, self._hold_ms)
        self.release = self._registry.write(replace(self.release, barrier=barrier))
        self._phase = phase

    def wait(self, wanted: Iterable[tuple[ConnectedApplication, frozenset[TopicPartition]]]) -> None:
        """Wait until all owners have answered.

        Raises:
            UnderWayError: If they do not answer in time.
        """
        deadline = time.monotonic() + _ANSWER_SECONDS
        for version, tps in wanted:
            while missing := self._missing(version, tps):
                if time.monotonic() > deadline:
                    message = (
                        f"{version.id} does not hold: {missing[0]} has not reached the offset at which it is to stop"
                    )
                    hint = "Is a worker asleep, or a record slow? See `riverrun status`, then try again."
                    raise UnderWayError(message, hint=hint)
                time.sleep(_POLL_SECONDS)

    @property
    def is_open(self) -> bool:
        """Whether its first phase was written."""
        return self.release.barrier is not None and self.release.barrier.id == self._id

    def _missing(self, version: ConnectedApplication, tps: frozenset[TopicPartition]) -> list[TopicPartition]:
        known = version.committed(tps)
        reached = {tp: OffsetMetadata.decode(found.metadata).barrier for tp, found in known.items()}
        return sorted(tp for tp in tps if not self._has_answered(reached.get(tp)))

    def _has_answered(self, said: tuple[str, int] | None) -> bool:
        return said is not None and said[0] == self._id and said[1] >= self._phase


def _inputs_of(connected: ConnectedApplication) -> _Inputs:
    found = connected.resolved()
    own = {topic.name for topic in found.layout.repartition_topics}
    internal = frozenset(tp for tp in found.inputs if tp.topic in own)
    return _Inputs(connected, found.inputs - internal, internal)
