"""Active tasks: restored, then processed and committed, until another process takes them over."""

from __future__ import annotations

import logging
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from riverrun.errors import RangeError, StreamsError
from riverrun.hosting.restoring import restore, silently
from riverrun.hosting.snapshots import TaskCheckpoint, publish_checkpoint, take_checkpoint
from riverrun.hosting.topic_ids import ids_to_commit
from riverrun.kafka.producer import KafkaRecordCollector
from riverrun.kafka.tombstones import FOREVER_MS, oldest
from riverrun.records import Whole
from riverrun.runtime.ports import Ports
from riverrun.runtime.task import TaskCommit
from riverrun.state.api import idle

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Mapping, Sequence

    from riverrun.hosting.claim import Claim, ClaimedTask
    from riverrun.hosting.connected import Publication
    from riverrun.hosting.ownership import StreamsProducer
    from riverrun.hosting.restoring import Missing, OnRestore
    from riverrun.hosting.task_start import OpenedTask
    from riverrun.processor.metrics import Measurement
    from riverrun.records import TopicPartition
    from riverrun.runtime.context import FailedRecord
    from riverrun.runtime.ports import RecordCollector
    from riverrun.runtime.task import Task
    from riverrun.runtime.times import Lateness
    from riverrun.state.api import StateBackend
    from riverrun.state.snapshots import Manifest

log = logging.getLogger(__name__)


class TaskState(Enum):
    """The state of an active task (`Task.State`)."""

    # Taken over; nothing is restored yet.
    CREATED = "created"
    RESTORING = "restoring"
    # It processes; while a commit waits for brokers, it rests.
    RUNNING = "running"
    # It processes nothing more, and its producer and its state are still open.
    SUSPENDED = "suspended"
    # Everything is released; another process may own the task.
    CLOSED = "closed"


# A task that fails is not revived, unlike in Kafka Streams: the claim to it makes another one.
TRANSITIONS: Mapping[TaskState, frozenset[TaskState]] = {
    TaskState.CREATED: frozenset({TaskState.RESTORING, TaskState.SUSPENDED}),
    TaskState.RESTORING: frozenset({TaskState.RUNNING, TaskState.SUSPENDED}),
    TaskState.RUNNING: frozenset({TaskState.SUSPENDED}),
    TaskState.SUSPENDED: frozenset({TaskState.CLOSED}),
    TaskState.CLOSED: frozenset(),
}


class ActiveTask:
    """A task that this process runs, from its takeover until it is closed (`StreamTask`).

    Args:
        decorate: Wraps the collector, for hosts that add to records that are sent.
        pause: Called repeatedly while a commit is prepared, for hosts that answer queries meanwhile (`Ports`).
    """

    def __init__(
        self,
        claimed: ClaimedTask,
        global_stores: Mapping[str, Any],
        *,
        decorate: Callable[[RecordCollector], RecordCollector] = lambda collector: collector,
        pause: Callable[[], None] = idle,
    ) -> None:
        self.claim = claimed.claim
        """The claim to it, which outlives it."""
        self.id = claimed.claim.id
        self.inputs = claimed.claim.spec.inputs
        self.state = TaskState.CREATED
        self.restored_records = 0
        self.publication = claimed.publication
        self.counts_since_ms = self.claim.clock.now_ms()
        """When its counts began: when it was started, ms of the wall clock."""
        self._connected = claimed.claim.connected
        self._clock = claimed.claim.clock
        self.producer = claimed.producer
        """The producer, which other tasks of a stream thread share."""
        self._is_sole = claimed.is_sole
        self._starts = claimed.starts
        self._opened = claimed.opened
        self._sender = self.producer.new_sender()
        self._sender.publish(self.publication.topics)
        self._sender.learn_limits(claimed.limits)
        collector = decorate(KafkaRecordCollector(self._sender, self._connected.admin))
        self._ports = Ports(collector, self._opened.backend, self._clock, global_stores, pause)
        self.task = self._new_task(self._opened)
        """The engine's task; the restore makes another one if it starts over."""
        self._commit = TaskCommit({}, ())
        self._changelog_ends: Mapping[TopicPartition, int] = {}
        self._whole: Whole | None = None
        self.tables = claimed.tables

    # States

    def initialize(self) -> Missing:
        """Begin to restore. Returns the changelog records that its state lacks (`initializeIfNeeded`)."""
        self._move_to(TaskState.RESTORING)
        return self._opened.missing

    def start_over(self) -> Missing:
        """Begin to restore once more, as records have been deleted meanwhile. Returns the records that its state lacks now."""
        self.task.close()
        self._opened = self._opened.again()
        self.task = self._new_task(self._opened)
        return self._opened.missing

    def restore(self, on_restore: OnRestore = silently) -> None:
        """Bring its state to the committed point, and wait for that."""
        missing, admin, kafka = self.initialize(), self._connected.admin, self._connected.application.kafka
        while True:
            try:
                self.restored_records = restore(self.task, missing, admin, kafka, on_restore)
            except RangeError as error:
                log.warning("the restore of task %s starts over: %s", self.id, error.message)
                missing = self.start_over()
            else:
                return

    def start(self) -> None:
        """Continue from the committed offsets, once the state is complete (`completeRestoration`)."""
        self.counts_since_ms = self._clock.now_ms()
        committed = {tp: (c.offset, c.metadata) for tp, c in self._opened.point.commits.items()}
        topics = {tp: ids_to_commit(tp, self.topics, self._connected.id) for tp in self.inputs}
        self.task.start(committed, topics, self.producer.owner)
        self.task.leave_out(self.claim.aside)
        self.tables.remove_rows(self.task)
        self.task.pause_at(self.publication.limits)
        self._move_to(TaskState.RUNNING)

    def suspend(self) -> None:
        """Process nothing more (`suspend`)."""
        self._move_to(TaskState.SUSPENDED)

    def close(self, *, abort: bool = True) -> None:
        """Close the task, and discard uncommitted work. A task with its own producer closes it. Idempotent."""
        if self.state is TaskState.CLOSED:
            return
        if self.state is not TaskState.SUSPENDED:
            self.suspend()
        self._move_to(TaskState.CLOSED)
        # Without `abort`, the next owner or the brokers abort the open transaction.
        if self._is_sole and abort:
            self.producer.abort()
        try:
            self.task.close()
        # Commits stay valid, and the task ends for another reason.
        except StreamsError as error:
            log.error("%s", error, extra={"task": str(self.id)})  # noqa: TRY400 - the message says what happened
        self._opened.close()
        if self._is_sole:
            self.producer.close()

    def _new_task(self, opened: OpenedTask) -> Task:
        return opened.new_task(self._ports, self.publication.dead_letters)

    def _move_to(self, state: TaskState) -> None:
        if state not in TRANSITIONS[self.state]:
            raise StreamsError(f"Task {self.id} cannot go from {self.state.value} to {state.value}")
        self.state = state

    # Figures

    @property
    def committed_offsets(self) -> Mapping[TopicPartition, int]:
        """Return the last committed offset per input."""
        return _offsets(self.claim.last_commit)

    @property
    def last_commit(self) -> Mapping[TopicPartition, tuple[int, str]]:
        """Return offset and metadata of the last commit per input: a new object after each commit."""
        return self.claim.last_commit

    @property
    def topics(self) -> Mapping[str, int]:
        """Return the ids of the topics that it depends on, as they were when it was taken over."""
        return self._opened.point.topics

    @property
    def warnings(self) -> tuple[str, ...]:
        return (*self._opened.warnings, *self.tables.warnings)

    @property
    def dropped(self) -> Counter[str]:
        """Return the number of records that were not processed, by reason."""
        return self.task.dropped

    @property
    def lateness(self) -> Lateness:
        """Return how late its records were."""
        return self.task.lateness

    def take_failed(self) -> list[FailedRecord]:
        """Return the failures of skipped records since the last call, with a limited number."""
        return self.task.take_failed()

    def measured(self) -> tuple[Measurement, ...]:
        """Return the measurements of its processors' sensors."""
        return self.task.measured()

    def sent(self) -> dict[str, int]:
        """Return how many records it has sent, by topic."""
        return self._sender.sent()

    def position(self) -> int:
        """Return the sum of the changelog offsets that are applied to the local state."""
        return sum(self.applied().values())

    def applied(self) -> Mapping[TopicPartition, int]:
        """Return, per changelog, the next offset that is not in the local state."""
        return self._opened.backend.positions()

    def starts(self) -> Mapping[TopicPartition, int]:
        """Return where to start reading each input: at the committed offset, or else as the policy of its source says."""
        return self._starts

    # Releases

    def follow(self, publication: Publication) -> None:
        """Apply a later record of the control topic. Only between two commits, with nothing to commit: see `may_follow`."""
        self._sender.publish(publication.topics)
        self.task.keep_letters_in(publication.dead_letters)
        self.task.pause_at(publication.limits)
        self.publication = publication

    def may_follow(self, publication: Publication) -> bool:
        """Return whether a record can take effect at once; if outputs change, it has to wait until the next commit."""
        # No transaction may write to both old and new outputs.
        return self.publication.topics == publication.topics or not self.task.needs_commit

    # Commits

    def commit(self) -> None:
        """Commit records, changelogs and input offsets together, then the local state, of a task with its own producer."""
        self.prepare_commit()
        send_commits(self.producer, [self])
        self.finish_commit()

    def prepare_commit(self) -> None:
        """Flush the stores, which may process records, and send their changelog records."""
        # First, as it raises: brokers may have removed tombstones that the task has not read.
        self.tables.require_recent(self._connected.admin)
        if self._is_sole:
            self.tables.reach(self.task)
        self.task.tell_whole(dict.fromkeys(self.tables.tps, self.tables.whole))
        self._commit = self.task.prepare_commit()
        self.claim.begin_commit(self._commit.offsets, self.task.aside)

    def finish_commit(self) -> None:
        """Bring the local state to the durable point."""
        self.task.post_commit(self._changelog_ends, self._whole)
        self.claim.end_commit()

    # Snapshots

    def publish_snapshot(self) -> Manifest:
        """Publish the state at the last commit."""
        self.confirm_commit()
        return publish_checkpoint(self.checkpoint())

    def confirm_commit(self) -> None:
        """Make sure before a `checkpoint` that the state is as committed, and that no successor has committed since.

        Only right after a commit: later records would be committed without the input offsets that they come from.
        """
        if self._commit.changelogs:
            self._opened.backend.write({}, self._settled_ends())

    def checkpoint(self) -> TaskCheckpoint:
        """Copy the state at the last commit."""
        # Also after commits that left the state as it was, and did not write this.
        self._opened.backend.write({}, {}, whole=self._whole)
        offsets = _offsets(self.claim.newest_commit)
        return take_checkpoint(self._connected, self.id, self._clock, self._opened.backend, offsets)

    @property
    def prepared(self) -> TaskCommit:
        return self._commit

    def note_changelog_ends(self, ends: Mapping[TopicPartition, int]) -> None:
        """Note the ends of changelogs as they were before the commit, which proves that no other owner wrote until now."""
        self._changelog_ends = {changelog: ends[changelog] for changelog in self._commit.changelogs}
        kept_ms = self._opened.missing.since.kept_ms
        if kept_ms != FOREVER_MS:
            now = Whole(self._connected.admin.clock.reckoned_ms(), kept_ms)
            # Stores whose changelog is an input are no more whole than what was read of that input.
            self._whole = oldest([now, self.tables.whole] if self.claim.spec.source_changelogs else [now])

    def _settled_ends(self) -> Mapping[TopicPartition, int]:
        """Return the ends of the changelogs at the last commit; its markers may have been written after its acknowledgement."""
        ends = self._connected.admin.settled_end_offsets(self._commit.changelogs)
        # Records of a successor must not count. Committing the same offsets once more proves that there was none.
        self.producer.commit(self._commit.offsets)
        return ends


def send_commits(
    producer: StreamsProducer,
    tasks: Sequence[ActiveTask],
    released: Mapping[TopicPartition, tuple[int, str]] = MappingProxyType({}),
) -> None:
    """Make prepared commits durable in Kafka, in one transaction. Waits for brokers; may run in another thread.

    Of the producer's tasks, only the given ones may have sent records since the last commit. After an error, all of them have
    to be closed, and taken over again unless another owner has them.
    """
    producer.flush()
    changelogs = [changelog for active in tasks for changelog in active.prepared.changelogs]
    # Before the commit, which proves that no other owner has written yet; a successor's later records must not count.
    ends = tasks[0].claim.connected.admin.written_offsets(changelogs) if changelogs else {}
    for active in tasks:
        active.note_changelog_ends(ends)
    offsets = {tp: found for active in tasks for tp, found in active.prepared.offsets.items()}
    producer.commit(offsets, released)


def start_task(
    claim: Claim,
    global_stores: Mapping[str, Any],
    *,
    on_restore: OnRestore = silently,
    backend: StateBackend | None = None,
    decorate: Callable[[RecordCollector], RecordCollector] = lambda collector: collector,
) -> ActiveTask:
    """Take a task over, bring its state to the committed point, and start it, for hosts that wait for that."""
    # From here on, the task owns and closes the local state that a standby may have opened.
    claimed = claim.take_over(backend)
    try:
        task = ActiveTask(claimed, global_stores, decorate=decorate)
    except BaseException:
        claimed.close()
        raise
    try:
        task.restore(on_restore)
        task.start()
    except BaseException:
        task.close()
        raise
    return task


def _offsets(committed: Mapping[TopicPartition, tuple[int, str]]) -> dict[TopicPartition, int]:
    return {tp: offset for tp, (offset, _metadata) in committed.items()}
