"""Copies of state that follow topics: standbys of tasks elsewhere, global tables, and snapshots made of changelogs."""

from __future__ import annotations

import logging
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from riverrun.errors import BrokerError, CorruptStateError, RangeError
from riverrun.hosting.process import monotonic_ms
from riverrun.hosting.progress import report_progress
from riverrun.hosting.snapshots import has_snapshots, publish_checkpoint, take_checkpoint
from riverrun.hosting.task_start import begin_task, inputs_whole
from riverrun.kafka.consumer import MessageBatch, RecordConsumer
from riverrun.kafka.ranges import read_range
from riverrun.kafka.tombstones import FOREVER_MS, Following, oldest, require_recent, whole_now
from riverrun.processor.handlers import global_error_handlers
from riverrun.records import OffsetRange, TopicPartition, Whole
from riverrun.runtime.state_manager import GlobalState
from riverrun.runtime.times import OffsetMetadata
from riverrun.state.memory import MemoryBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.kafka.consumer import PolledBatches
    from riverrun.records import TaskId
    from riverrun.runtime.ports import Clock
    from riverrun.runtime.task import Task
    from riverrun.state.api import StateBackend
    from riverrun.state.snapshots import Manifest

log = logging.getLogger(__name__)

_RECORDS_PER_POLL = 10_000
_NO_RECORDS = MessageBatch(())


@dataclass(slots=True)
class StandbyTask:
    """A task that runs elsewhere, whose changelogs this process follows (`StandbyTask`).

    Args:
        positions: Per changelog, the next offset to apply.
        limits: Committed offsets of inputs that serve as changelogs. They are followed up to these: records that the task has
            not processed yet are not part of its state.
        held: Records read beyond the limits.
        following: When its state was whole.
        limits_whole: When the task had read all of the inputs with limits; None if that is unknown.
        kept_ms: How long brokers keep tombstones in its changelogs, ms.
    """

    task: Task
    backend: StateBackend
    following: Following
    limits_whole: Whole | None
    kept_ms: int
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    limits: dict[TopicPartition, int] = field(default_factory=dict)
    held: dict[TopicPartition, MessageBatch] = field(default_factory=dict)

    def apply(self, tp: TopicPartition, batch: MessageBatch, reached: int) -> int:
        """Apply records up to the limit and keep the others. Returns the number of applied records."""
        limit = self.limits.get(tp, reached)
        kept, rest = batch.split(limit)
        self.positions[tp] = max(self.positions[tp], min(reached, limit))
        if kept:
            self.task.restore(tp, kept, self.positions[tp])
        if rest:
            self.held[tp] = rest
        return len(kept)

    def look(self, now_ms: int, ends: Mapping[TopicPartition, int]) -> None:
        """Note how far it has read. `ends` were asked for after `now_ms`, a time by the brokers' clock."""
        wanted = {tp: self.limits.get(tp, ends.get(tp, at)) for tp, at in self.positions.items()}
        before = self.following.whole
        self.following.look(Whole(now_ms, self.kept_ms), wanted, self.positions)
        if self.following.whole != before:
            found = [self.following.whole, *([self.limits_whole] if self.limits else [])]
            self.backend.write({}, {}, whole=oldest(found))


class StandbyTasks:
    """Follows the changelogs of tasks that run elsewhere (`StoreChangelogReader`)."""

    def __init__(self, connected: ConnectedApplication, clock: Clock) -> None:
        self._connected = connected
        self._clock = clock
        self._standbys: dict[TaskId, StandbyTask] = {}
        self._reader: dict[TopicPartition, StandbyTask] = {}
        self._limits_at_ms = 0
        self._ends: Mapping[TopicPartition, int] = {}
        self._consumer: RecordConsumer | None = None

    @property
    def tasks(self) -> frozenset[TaskId]:
        return frozenset(self._standbys)

    def follow(self, task_id: TaskId) -> None:
        """Open a task's local state and follow its changelogs from there."""
        self._begin(task_id)

    def release(self, task_id: TaskId) -> StateBackend:
        """Stop following a task. Returns its state, which is still open."""
        standby = self._standbys.pop(task_id)
        self._reading.unassign(standby.positions)
        for tp in standby.positions:
            del self._reader[tp]
        standby.task.close()
        return standby.backend

    def run_once(self, timeout_s: float) -> int:
        """Apply new changelog records, and return their number. After an error, some tasks may no longer be followed."""
        if not self._standbys:
            return 0
        try:
            polled = self._reading.poll_batches(_RECORDS_PER_POLL, timeout_s)
        # A changelog was truncated below the local position: its remaining records are valid.
        except RangeError:
            followed = self.tasks
            for task_id in followed:
                self.release(task_id).close()
            for task_id in followed:
                self.follow(task_id)
            return 0
        try:
            return self._apply_held() + self._apply_polled(polled)
        # The rest of what was polled is lost: its tasks begin again from what they have applied.
        except BrokerError:
            for task_id in {self._reader[tp].task.spec.id for tp in polled.reached if tp in self._reader}:
                self.release(task_id).close()
            raise

    def _apply_polled(self, polled: PolledBatches) -> int:
        applied, readers = 0, dict(self._reader)
        for tp, reached in polled.reached.items():
            standby = readers.get(tp)
            # For a standby that has begun again meanwhile, what was polled is from another position.
            begun_again = standby is not self._reader.get(tp)
            if standby is not None and not begun_again and tp not in standby.held:
                applied += self._apply(standby, tp, polled.batches.get(tp, _NO_RECORDS), reached)
                # Until the held records are applied: the next ones would replace them.
                if tp in standby.held:
                    self._reading.pause([tp])
        return applied

    def task(self, task_id: TaskId) -> Task:
        """Return a standby task, for reading its stores; they contain the applied changelog records."""
        return self._standbys[task_id].task

    def applied(self, task_id: TaskId) -> dict[TopicPartition, int]:
        """Return the next offset to apply per changelog of a task."""
        return dict(self._standbys[task_id].positions)

    def positions(self) -> dict[TaskId, int]:
        """Return the sum of applied changelog offsets per task."""
        return {task_id: sum(standby.positions.values()) for task_id, standby in self._standbys.items()}

    def lags(self) -> dict[TaskId, int]:
        """Return the number of missing offsets per task; the last known number while brokers do not answer."""
        try:
            admin = self._connected.admin
            judged = [standby for standby in self._standbys.values() if standby.kept_ms != FOREVER_MS]
            # Before the ends are asked for, as `Following` requires.
            now_ms = admin.clock.noted_ms() if judged else 0
            self._raise_limits()
            self._ends = admin.end_offsets(self._reader)
            for standby in judged:
                standby.look(now_ms, self._ends)
        except BrokerError as error:
            if not error.retriable:
                raise
        ends = self._ends
        return {
            task_id: sum(max(standby.limits.get(tp, ends.get(tp, at)) - at, 0) for tp, at in standby.positions.items())
            for task_id, standby in self._standbys.items()
        }

    def _follow_again(self, task_id: TaskId) -> None:
        self.release(task_id).close()
        self.follow(task_id)

    def close(self) -> None:
        """Stop following all tasks. Idempotent."""
        for task_id in list(self._standbys):
            self.release(task_id).close()
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    @property
    def _reading(self) -> RecordConsumer:
        # On demand: most stream threads follow nothing.
        if self._consumer is None:
            application = self._connected.application
            self._consumer = RecordConsumer(application.kafka, application.config.streams.consumer)
        return self._consumer

    def _apply(self, standby: StandbyTask, tp: TopicPartition, batch: MessageBatch, reached: int) -> int:
        try:
            require_recent(self._connected.admin, standby.following.whole)
            return standby.apply(tp, batch, reached)
        except RangeError as error:
            task_id = standby.task.spec.id
            log.warning("standby of task %s starts over: %s", task_id, error.message, extra={"task": str(task_id)})
            self._follow_again(task_id)
            return 0
        except CorruptStateError as error:
            task_id = standby.task.spec.id
            log.warning("standby of task %s starts over: %s", task_id, error.message, extra={"task": str(task_id)})
            self.release(task_id)
            standby.held.clear()
            standby.backend.wipe()
            self._begin(task_id, standby.backend)
            return 0

    def _apply_held(self) -> int:
        """Apply those held records that are committed by now. Returns the number of records."""
        held = [(tp, standby) for standby in self._standbys.values() for tp in standby.held]
        now_ms = monotonic_ms()
        # The owner commits once per `commit.interval.ms`, so to read committed offsets more often finds nothing new.
        if not held or now_ms - self._limits_at_ms < self._connected.application.config.streams.commit_interval_ms:
            return 0
        self._raise_limits()
        applied = 0
        for tp, standby in held:
            batch = standby.held.pop(tp, _NO_RECORDS)
            if batch:
                applied += self._apply(standby, tp, batch, batch.end)
                if tp not in standby.held:
                    self._reading.resume([tp])
        return applied

    def _raise_limits(self) -> None:
        """Read the committed offsets of inputs that serve as changelogs (`updateLimitOffsetsForStandbyChangelogs`)."""
        self._limits_at_ms = monotonic_ms()
        limited = [tp for standby in self._standbys.values() for tp in standby.limits]
        for tp, found in self._connected.committed(limited).items() if limited else ():
            standby = self._reader[tp]
            standby.limits[tp] = max(standby.limits[tp], found.offset)
            standby.limits_whole = OffsetMetadata.decode(found.metadata).whole

    def _begin(self, task_id: TaskId, backend: StateBackend | None = None) -> None:
        """Follow changelogs from the position of the local state; closes the state if that position cannot be determined."""
        begun = begin_task(self._connected, task_id, self._clock, backend, source_changelogs=True)
        ranges, limited = begun.missing.ranges, begun.spec.source_changelogs.values()
        starts, limits = {tp: r.start for tp, r in ranges.items()}, {tp: ranges[tp].end for tp in limited}
        whole = begun.missing.since
        self._standbys[task_id] = standby = StandbyTask(
            begun.new_task(),
            begun.backend,
            Following(whole),
            inputs_whole(begun.spec, begun.point),
            kept_ms=whole.kept_ms,
            positions=starts,
            limits=limits,
        )
        self._reader |= dict.fromkeys(standby.positions, standby)
        self._reading.assign(standby.positions)


def global_partitions(connected: ConnectedApplication) -> list[TopicPartition]:
    """Return all partitions of the topics that global stores are filled from."""
    topics = [topic for g in connected.topology.global_stores for topic in g.source.topics]
    counts = connected.admin.partitions(topics)
    return [TopicPartition(topic, number) for topic in topics for number in range(counts[topic])]


def open_global_state(
    connected: ConnectedApplication,
    clock: Clock,
    ends: Mapping[TopicPartition, int] | None = None,
    on_restore: Callable[[TopicPartition, int, int], None] | None = None,
) -> GlobalState:
    """Open the global stores and fill them up to the given ends, or to the present ones."""
    application, admin = connected.application, connected.admin
    handlers = global_error_handlers(application.config.streams)
    state = GlobalState(
        application.topology,
        application.id,
        # Filled at every start: their topics are compacted, and hosts need no local files for them.
        backend=MemoryBackend(),
        clock=clock,
        handlers=handlers,
        environment=application.environment("global"),
    )
    tps = global_partitions(connected)
    now = whole_now(admin, {tp.topic for tp in tps})
    wanted = ends if ends is not None else admin.end_offsets(tps)
    first = admin.beginning_offsets(wanted)
    ranges = {tp: OffsetRange(min(first[tp], end), end) for tp, end in wanted.items()}
    expected, done = sum(r.size for r in ranges.values()), 0
    for tp, records in read_range(admin, ranges):
        if records:
            require_recent(admin, now)
            state.apply(tp, records, records[-1].offset + 1)
            done += len(records)
            if on_restore is not None:
                on_restore(tp, done, expected)
    # The last offsets may be transaction markers, without records: the position is the end all the same.
    for tp, end in wanted.items():
        state.apply(tp, [], end)
    return state


def publish_snapshots(connected: ConnectedApplication, clock: Clock, scratch: Path | None = None) -> list[Manifest]:
    """Publish snapshots of all tasks, made of the newest ones and the changelogs' records since. Workers may run meanwhile."""
    published = []
    for task_id in sorted(connected.layout.tasks):
        if has_snapshots(connected.application, task_id):
            # Not in the directory of the application, where running tasks have their state open.
            with tempfile.TemporaryDirectory(prefix="riverrun-snapshot-", dir=scratch) as directory:
                published.append(_publish_from_log(connected, task_id, clock, Path(directory)))
    return published


def _publish_from_log(connected: ConnectedApplication, task_id: TaskId, clock: Clock, directory: Path) -> Manifest:
    elsewhere = connected.in_directory(directory)
    begun = begin_task(elsewhere, task_id, clock)
    try:
        begun.restored(
            on_restore=lambda _tp, done, expected: report_progress(f"restore {task_id}", done, expected)
        ).close()
        offsets = {tp: found.offset for tp, found in begun.point.commits.items()}
        return publish_checkpoint(take_checkpoint(elsewhere, task_id, clock, begun.backend, offsets))
    finally:
        begun.close()
