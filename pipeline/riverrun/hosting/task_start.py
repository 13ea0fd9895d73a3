"""Starts tasks in the one correct order, on every host."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from riverrun.errors import RangeError
from riverrun.hosting.continuing import require_new
from riverrun.hosting.restoring import find_missing, lost_history, restore, silently
from riverrun.hosting.snapshots import open_state
from riverrun.hosting.topic_ids import committed_ids, found_ids, require_same
from riverrun.kafka.tombstones import oldest
from riverrun.runtime.ports import Ports
from riverrun.runtime.task import Task
from riverrun.runtime.times import OffsetMetadata

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.hosting.restoring import Missing, OnRestore
    from riverrun.kafka.admin import CommittedOffset
    from riverrun.records import Headers, TaskId, TopicPartition, Whole
    from riverrun.runtime.layout import TaskSpec
    from riverrun.runtime.ports import Clock
    from riverrun.state.api import StateBackend

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CommittedPoint:
    """The point from which a task continues, with the ids of its topics as found with the last commits."""

    commits: Mapping[TopicPartition, CommittedOffset]
    topics: Mapping[str, int]


def read_committed(
    connected: ConnectedApplication, spec: TaskSpec, inputs: Collection[TopicPartition]
) -> CommittedPoint:
    """Read committed offsets, for a host that writes nothing: owners of the task may commit further ones."""
    commits = connected.committed(inputs) if inputs else {}
    require_new(connected, (tp for tp in inputs if tp not in commits))
    return committed_point(connected, spec, commits)


def committed_point(
    connected: ConnectedApplication, spec: TaskSpec, commits: Mapping[TopicPartition, CommittedOffset]
) -> CommittedPoint:
    topics = found_ids(connected.admin, spec.topics)
    require_same(connected.application, committed_ids(commits, connected.id).items(), topics)
    return CommittedPoint(commits, topics)


@dataclass(frozen=True, slots=True, eq=False)
class OpenedTask:
    """A task whose committed offsets are known and whose local state is open: it can be restored.

    Workers, standbys, snapshots, dry runs and attempts of Spark start their tasks this way: they fence the predecessor if they
    write, read the committed offsets, then the changelogs' ends, and then restore. In any other order a predecessor could
    still commit in between.
    """

    connected: ConnectedApplication
    spec: TaskSpec
    clock: Clock
    point: CommittedPoint
    missing: Missing
    warnings: tuple[str, ...]

    @property
    def backend(self) -> StateBackend:
        return self.missing.backend

    def again(self) -> OpenedTask:
        """Find the records of the present changelogs that the state lacks."""
        opened = _with_missing(self.connected, self.spec, self.clock, self.point, self.backend)
        return replace(opened, missing=replace(opened.missing, attempt=self.missing.attempt + 1))

    def new_task(self, ports: Ports | None = None, dead_letters: str | None = None) -> Task:
        """Make the task, which then has to be restored. Without `ports`, it can be queried as well, but cannot process."""
        ports = ports or Ports(_Nowhere(), self.backend, self.clock)
        return Task(replace(self.spec, dead_letters=dead_letters), ports)

    def restored(self, ports: Ports | None = None, on_restore: OnRestore = silently) -> Task:
        """Make the task and bring its state to the committed point."""
        opened, admin, kafka = self, self.connected.admin, self.connected.application.kafka
        while True:
            task = self.new_task(ports)
            try:
                restore(task, opened.missing, admin, kafka, on_restore)
            except RangeError as error:
                log.warning("the restore of task %s starts over: %s", self.spec.id, error.message)
                task.close()
                opened = opened.again()
            else:
                return task

    def close(self) -> None:
        """Close the local state. Idempotent."""
        self.backend.close()


def open_task(
    connected: ConnectedApplication,
    spec: TaskSpec,
    clock: Clock,
    point: CommittedPoint,
    backend: StateBackend | None = None,
) -> OpenedTask:
    """Open the local state of a task, unless it is open, and find what it lacks. Closes it if that fails."""
    if backend is None:
        backend = open_state(connected, spec.id)
    try:
        opened = _with_missing(connected, spec, clock, point, backend)
        _compare_inputs(opened)
    except BaseException:
        backend.close()
        raise
    return opened


def begin_task(
    connected: ConnectedApplication,
    task_id: TaskId,
    clock: Clock,
    backend: StateBackend | None = None,
    *,
    source_changelogs: bool = False,
) -> OpenedTask:
    """Open a task for a host that writes nothing, and so fences no predecessor."""
    spec = connected.application.task_spec(task_id, connected.layout.tasks[task_id])
    # A standby needs the committed offsets of those inputs only that serve as changelogs.
    inputs = list(spec.source_changelogs.values()) if source_changelogs else spec.inputs
    with ExitStack() as opened:
        if backend is not None:
            opened.callback(backend.close)
        point = read_committed(connected, spec, inputs)
        opened.pop_all()
    return open_task(connected, spec, clock, point, backend)


def _with_missing(
    connected: ConnectedApplication, spec: TaskSpec, clock: Clock, point: CommittedPoint, backend: StateBackend
) -> OpenedTask:
    admin, offsets = connected.admin, {tp: found.offset for tp, found in point.commits.items()}
    missing = find_missing(admin, backend, spec, offsets, inputs_whole(spec, point))
    warnings = tuple(lost_history(admin, missing, spec, point.commits.values(), clock.now_ms()))
    for warning in warnings:
        log.warning("task %s: %s", spec.id, warning, extra={"task": str(spec.id)})
    # Not logged here, as `find_missing` has done that.
    if missing.lacked_deletions:
        warnings = (
            *warnings,
            f"All of its state was restored, as it was away for too long: {missing.lacked_deletions}",
        )
    return OpenedTask(connected, spec, clock, point, missing, warnings)


def inputs_whole(spec: TaskSpec, point: CommittedPoint) -> Whole | None:
    """Return when the task had read all of the inputs from which stores are restored; None if that is unknown."""
    commits = (point.commits[tp] for tp in spec.source_changelogs.values() if tp in point.commits)
    return oldest(OffsetMetadata.decode(found.metadata).whole for found in commits)


def _compare_inputs(opened: OpenedTask) -> None:
    """Compare the inputs with those that the state was made from; brokers delete committed offsets with a topic."""
    spec, backend = opened.spec, opened.backend
    # Inputs that stores are restored from are left out: `find_missing` has deleted state of an earlier one.
    inputs = {tp.topic for tp in spec.inputs} - {tp.topic for tp in spec.source_changelogs.values()}
    present = {topic: topic_id for topic, topic_id in opened.point.topics.items() if topic in inputs}
    noted = {topic: int(text) for topic, text in backend.topic_ids().items() if topic in inputs}
    # State without anything in it comes from no topic.
    if backend.tables():
        require_same(opened.connected.application, noted.items(), present)
    if not present.items() <= noted.items():
        backend.note_topic_ids({topic: str(topic_id) for topic, topic_id in present.items()})


class _Nowhere:
    """The collector of a task that only restores: it sends nothing."""

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Headers,
        partition: int | None,
    ) -> None:
        """Refuse to send, as the task processes nothing."""
        raise AssertionError(topic, key, value, timestamp, headers, partition)

    def partitions(self, topic: str) -> int:
        raise AssertionError(topic)
