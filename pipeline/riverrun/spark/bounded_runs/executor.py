"""Runs one task over its part of a slice, in one transaction. Imports no pyspark, so any process can run it.

An attempt begins by fencing the task's earlier owners. An earlier attempt, or a speculative copy of Spark's, can then no
longer write. The offsets committed by then show whether the work is done already.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from riverrun.errors import BrokerError, RangeError, SnapshotError, StreamsError, TaskError
from riverrun.hosting.active_task import send_commits, start_task
from riverrun.hosting.claim import Claim
from riverrun.hosting.local_state import after_predecessor
from riverrun.hosting.process import SystemClock
from riverrun.hosting.purge import Purge
from riverrun.hosting.snapshots import has_snapshots
from riverrun.hosting.standby_tasks import open_global_state
from riverrun.kafka.producer import LONGEST_TRANSACTION_MS
from riverrun.processor.metrics import totals
from riverrun.runtime.layout import full_name
from riverrun.runtime.stuck_records import named_if_stuck
from riverrun.spark.bounded_runs.packing import PACK_BYTES, Packing
from riverrun.spark.ranges import AGAIN
from riverrun.spark.tasks.inputs import Inputs, check_wall_clock, punctuate_wall_clock, retry_until_available
from riverrun.spark.tasks.reporting import reporting
from riverrun.spark.tasks.setting_aside import without_set_aside
from riverrun.spark.tasks.work import TaskResult, connected_here, require_same_topics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from riverrun.hosting.active_task import ActiveTask
    from riverrun.hosting.application import Application
    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.kafka.admin import Admin
    from riverrun.runtime.failures import SetAside
    from riverrun.runtime.ports import RecordCollector
    from riverrun.spark.tasks.work import Job, SliceWork
    from riverrun.topology.topology import Topology

# A fenced attempt on the same machine has this long to release the local state.
_PREDECESSOR_SECONDS = 60.0
_RETRY_SECONDS = 0.5
_ELSEWHERE = (
    "If --from was not given, another run or a worker has continued the task meanwhile: riverrun runs and riverrun status"
    f" show it. Wait for its end, or stop it, and start again without --from. {AGAIN}"
)
_DONE_BEFORE = "an attempt died after its commit: statistics leave out the part of the range that it processed"


def run_task(work: SliceWork, build: Callable[[Job], Topology], admin: Admin | None = None) -> TaskResult:
    """Do one task's work, unless it is done. Retries for `task.timeout.ms` while brokers are away."""
    connected = connected_here(work.job, build, admin)
    # Outlives the tries: if the answer to a commit is lost, the next try finds the work done and reports these counts.
    sent: list[_Done] = []
    timeout_ms = connected.application.config.streams.task_timeout_ms

    # The time to wait for brokers begins anew with each repeat, of which each may be long.
    return without_set_aside(
        lambda aside: retry_until_available(lambda: _take_on(work, connected, sent, aside), connected.admin, timeout_ms)
    )


def _take_on(
    work: SliceWork, connected: ConnectedApplication, sent: list[_Done], aside: Iterable[SetAside]
) -> TaskResult:
    """Take the task over, and do its work unless it is done, without the records that were set aside."""
    clock, application, admin = SystemClock(), connected.application, connected.admin
    written = _handed_over(work, connected)
    global_state = open_global_state(connected, clock, work.job.global_ends)
    packing: list[Packing] = []

    def decorate(collector: RecordCollector) -> RecordCollector:
        if not written:
            return collector
        # Replaced, not added: `after_predecessor` may start the task several times.
        packing[:] = [Packing(collector, work.task_id, written, _pack_bytes(application))]
        return packing[0]

    # A slice is one transaction, and takes minutes.
    claim = Claim(connected, work.task_id, clock, transaction_timeout_ms=LONGEST_TRANSACTION_MS)
    claim.aside = tuple(aside)
    began = time.monotonic()
    active = after_predecessor(
        lambda: start_task(claim, global_state.stores, decorate=decorate),
        within_s=_PREDECESSOR_SECONDS,
        retry_s=_RETRY_SECONDS,
    )
    try:
        restored = time.monotonic()
        check_wall_clock(application, active.task)
        with named_if_stuck(active.task.node_of):
            done = _Processing(work, connected, active, packing).run(sent)
        ended = time.monotonic()
        snapshot, warnings = _snapshot(application, active)
        # Each task reads the tables up to the same ends, so that these warnings are one.
        warnings += tuple(filter(None, (global_state.left_out(),)))
        # Of a run that may be taken back, nothing may be deleted that its state came from.
        if not application.may_be_discarded:
            warnings += _purge(active, admin, frozenset(topic.name for topic in connected.layout.repartition_topics))
        return replace(
            _result(active, done),
            forgotten={str(tp): time_ms for tp, time_ms in active.task.forgotten.items()},
            restore_ms=round((restored - began) * 1000),
            compute_ms=round((ended - restored) * 1000),
            snapshot=snapshot,
            warnings=(*_warnings(active, done), *warnings),
        )
    finally:
        active.close()


def _result(active: ActiveTask, done: _Done) -> TaskResult:
    return TaskResult(
        str(active.id),
        done.processed,
        active.restored_records,
        done.dropped,
        read=done.read,
        written=done.written,
        published=done.published,
        commits=done.commits,
        totals=done.totals,
    )


def _warnings(active: ActiveTask, done: _Done) -> Iterator[str]:
    return (f"Task {active.id}: {warning}" for warning in (*active.warnings, *done.warnings))


def _handed_over(work: SliceWork, connected: ConnectedApplication) -> dict[str, int]:
    """Return the partition counts of the repartition topics that a task writes to."""
    sub = connected.application.sub_topology(work.task_id.sub_topology)
    names = {full_name(sub, connected.id, topic) for topic in sub.written_repartition_topics}
    return {topic.name: topic.partitions for topic in connected.layout.repartition_topics if topic.name in names}


def _pack_bytes(application: Application) -> int:
    """Return the maximum size of a pack, bytes: a pack must fit into a message."""
    # A malformed number is left to the client, which refuses it.
    largest = {**application.kafka.properties, **application.config.streams.producer}.get("message.max.bytes", "")
    return min(PACK_BYTES, int(largest) // 2) if largest.isdecimal() else PACK_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class _Done:
    """Counts of the records processed and committed; fields as in `TaskResult`."""

    read: int = 0
    processed: int = 0
    commits: int = 0
    written: int = 0
    published: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


class _Processing:
    """The work of a task that this process has taken over; `packing` is empty if it writes to no repartition topics."""

    def __init__(
        self,
        work: SliceWork,
        connected: ConnectedApplication,
        active: ActiveTask,
        packing: Sequence[Packing],
    ) -> None:
        self._work = work
        self._connected = connected
        self._active = active
        self._repartitions = frozenset(topic.name for topic in connected.layout.repartition_topics)
        self._changelogs = frozenset(topic.name for topic in connected.layout.changelog_topics)
        self._packing = packing

    def run(self, sent: list[_Done]) -> _Done:
        """Process the ranges, unless that is done, and then move event time, which is safe to repeat.

        `sent` holds the counts of earlier tries of this process whose commit got no answer; this try adds its own.
        """
        work, task = self._work, self._active.task
        is_done = _is_done(work, self._active, self._connected.admin)
        if is_done and work.advance_to_ms is None:
            # Such a try, or an attempt that died before it could report, has committed the work.
            return sent[-1] if sent else _Done(warnings=(_DONE_BEFORE,) if work.size else ())
        read = processed = 0
        if not is_done:
            with (
                Inputs(self._connected, work.ranges, self._repartitions) as inputs,
                reporting(self._connected.admin, work.job.progress, work.ranges, work.turn, lambda: inputs.handed),
            ):
                processed = self._process(inputs)
            read = inputs.read
            punctuate_wall_clock(self._connected.application, task)
        if work.advance_to_ms is not None:
            task.advance_stream_time(work.advance_to_ms)
        # Offsets without records (markers of transactions, compacted records) count as well: `_is_done` compares with the ends.
        for tp, wanted in work.ranges.items():
            task.advance(tp, wanted.end)
        self._active.prepare_commit()
        for packing in self._packing:
            packing.flush()
        # Before the commit, whose answer may be lost.
        if not (is_done and sent):
            sent.append(self._done(read, processed))
        # After reading and before the commit: records of a topic that was recreated meanwhile must not count as processed.
        require_same_topics(work.job, self._connected, self._active.topics)
        send_commits(self._active.producer, [self._active])
        self._active.finish_commit()
        return sent[-1]

    def _process(self, inputs: Inputs) -> int:
        try:
            inputs.feed(self._active.task)
            return self._active.task.process_all()
        except RangeError:
            # Records are gone: lost, unless another owner has processed and deleted them. That raises its own error.
            self._active.claim.check_owner()
            raise

    def _done(self, read: int, processed: int) -> _Done:
        sent = self._active.sent()
        for packing in self._packing:
            sent |= packing.sent
        written = {topic: count for topic, count in sent.items() if topic not in self._changelogs}
        return _Done(
            read=read,
            processed=processed,
            commits=1,
            written=sum(written.values()),
            published={topic: count for topic, count in written.items() if topic not in self._repartitions},
            dropped=dict(self._active.task.dropped),
            totals=totals(self._active.measured()),
        )


def _snapshot(application: Application, active: ActiveTask) -> tuple[str | None, tuple[str, ...]]:
    """Publish a snapshot of the committed state; return its name, and warnings."""
    if not has_snapshots(application, active.id):
        return None, ()
    try:
        return active.publish_snapshot().name, ()
    except (SnapshotError, BrokerError, TaskError) as error:
        # Only a warning: the work is committed, and the changelogs hold the whole state.
        return None, (f"Task {active.id}: {error.message}",)


def _purge(active: ActiveTask, admin: Admin, repartitions: frozenset[str]) -> tuple[str, ...]:
    """Delete records that no task needs any more. A failure is only a warning: the next run tries again."""
    try:
        Purge(admin).run([active], repartitions)
    except StreamsError as error:
        return (f"Task {active.id}: processed records of repartition topics could not be deleted: {error.message}",)
    return ()


def _is_done(work: SliceWork, active: ActiveTask, admin: Admin) -> bool:
    """Return whether an earlier attempt committed this slice; refuse a task that is elsewhere."""
    starts = active.starts()
    # A transaction moves all inputs at once, or none: an attempt is never half done.
    if all(starts[tp] >= wanted.end for tp, wanted in work.ranges.items()):
        return True
    elsewhere = [tp for tp, wanted in work.ranges.items() if starts[tp] != wanted.start]
    # A task may be before the slice if no records are left in between.
    first = admin.beginning_offsets(elsewhere)
    elsewhere = [tp for tp in elsewhere if not starts[tp] < work.ranges[tp].start <= first[tp]]
    if elsewhere:
        tp = elsewhere[0]
        message = f"Task {work.task_id} is at offset {starts[tp]} of {tp}, but this run would process {work.ranges[tp]}"
        raise RangeError(message, hint=_ELSEWHERE)
    return False
