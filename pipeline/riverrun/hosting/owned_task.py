"""A task that this process owns, with its producer, local state and progress."""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from riverrun.config import EXACTLY_ONCE_V2
from riverrun.errors import StreamsError, TaskMigratedError
from riverrun.hosting.inputs import found_ids, ids_to_commit, require_same, reset_offsets
from riverrun.hosting.ownership import transactional_id
from riverrun.hosting.publication import Publication
from riverrun.hosting.restoring import silently
from riverrun.hosting.snapshots import TaskCheckpoint, publish_checkpoint, take_checkpoint
from riverrun.hosting.task_start import TaskStart
from riverrun.kafka.producer import IdempotentProducer, KafkaRecordCollector, TransactionalProducer
from riverrun.kafka.record_times import time_limits
from riverrun.runtime.layout import full_name
from riverrun.runtime.ports import Ports
from riverrun.runtime.task import TaskCommit, TaskState
from riverrun.runtime.times import Lateness
from riverrun.state.api import idle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.hosting.restoring import Missing
    from riverrun.kafka.admin import CommittedOffset
    from riverrun.processor.metrics import Measurement
    from riverrun.records import TaskId, TopicPartition
    from riverrun.runtime.ports import Clock, RecordCollector
    from riverrun.runtime.task import Task
    from riverrun.state.api import StateBackend
    from riverrun.state.snapshots import Manifest

log = logging.getLogger(__name__)


class OwnedTask:
    """A task that this process has taken over, in the order of `TaskStart`.

    Args:
        connected: The application of the task.
        task_id: The task.
        clock: Tells the time.
        global_stores: The global stores by name, filled by the host.
        transaction_timeout_ms: How long a transaction may stay open, ms.
        decorate: Wraps the collector, for hosts that add to records that are sent.
        pause: Called now and then while a commit is prepared, for hosts that answer queries meanwhile (`Ports`).
        follows_releases: Whether it pauses at barriers, and publishes as the application's record in the control topic says at
            the time (`follow`). Bounded runs do not: they end before a release takes its next step, or are refused.
    """

    def __init__(
        self,
        connected: ConnectedApplication,
        task_id: TaskId,
        clock: Clock,
        global_stores: Mapping[str, Any],
        *,
        transaction_timeout_ms: int = 60_000,
        decorate: Callable[[RecordCollector], RecordCollector] = lambda collector: collector,
        pause: Callable[[], None] = idle,
        follows_releases: bool = False,
    ) -> None:
        self.id = task_id
        self.inputs = connected.layout.tasks[task_id]
        self.restored_records = 0
        self.doubted_since: float | None = None
        """Time of the first commit with unknown outcome since the last successful one (monotonic seconds); set by its host."""
        self._own_commits: list[dict[TopicPartition, tuple[int, str]]] = []
        """The last commit with its metadata: within a pack only the metadata differs. A commit that is under way follows."""
        self._connected = connected
        self._application = connected.application
        self._admin = connected.admin
        self._clock = clock
        self._global_stores = global_stores
        self._transaction_timeout_ms = transaction_timeout_ms
        self._decorate = decorate
        self._pause = pause
        self._follows_releases = follows_releases
        self.publication = Publication.at_start(connected.application)
        """Where it publishes now."""
        self.counts_since_ms = clock.now_ms()
        """When its counts began: when it was last started, ms of the wall clock."""
        self._is_exactly_once = self._application.config.streams.processing_guarantee == EXACTLY_ONCE_V2
        self._start = TaskStart(connected, task_id, clock, fence=self._fence)
        self._task: Task | None = None
        self._owner: TransactionalProducer | None = None
        self._records: TransactionalProducer | IdempotentProducer | None = None
        self._commit = TaskCommit({}, ())
        self._changelog_ends: Mapping[TopicPartition, int] = {}

    @property
    def task(self) -> Task:
        """Return the running task; it exists between `open` and `close`."""
        assert self._task is not None, f"task {self.id} is not open"  # noqa: S101 - a host's own mistake
        return self._task

    @property
    def is_running(self) -> bool:
        """Return whether it has been taken over and its state is complete."""
        return self._task is not None and self._task.state is TaskState.RUNNING

    @property
    def committed_offsets(self) -> Mapping[TopicPartition, int]:
        """Return the last committed offset per input."""
        return _offsets(self._own_commits[0]) if self._own_commits else {}

    @property
    def last_commit(self) -> Mapping[TopicPartition, tuple[int, str]]:
        """Return offset and metadata of the last commit per input: a new object after each commit."""
        return self._own_commits[0] if self._own_commits else {}

    @property
    def dropped(self) -> Counter[str]:
        """Return the number of records that were not processed, by reason; empty while the task is not open."""
        return self._task.dropped if self._task is not None else Counter()

    @property
    def lateness(self) -> Lateness:
        """Return how late its records were; no lateness while the task is not open."""
        return self._task.lateness if self._task is not None else Lateness()

    def measured(self) -> tuple[Measurement, ...]:
        """Return the measurements of its processors' sensors; empty while the task is not open."""
        return self._task.measured() if self._task is not None else ()

    def sent(self) -> dict[str, int]:
        """Return how many records it has sent, by topic; empty while the task is not open."""
        return self._records.sent() if self._records is not None else {}

    def position(self) -> int:
        """Return the sum of the changelog offsets that are applied to the local state."""
        return sum(self._start.backend.positions().values()) if self._start.backend is not None else 0

    @property
    def committed(self) -> Mapping[TopicPartition, CommittedOffset]:
        """Return the commits, per input, that it found when it was taken over."""
        return self._start.committed

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return warnings about its state."""
        return self._start.warnings

    def open(
        self,
        on_restore: Callable[[TopicPartition, int, int], None] | None = None,
        backend: StateBackend | None = None,
    ) -> None:
        """Take the task over and bring its state to the committed point.

        Args:
            on_restore: Called with changelog, records so far and records expected, as the restore proceeds.
            backend: Its local state, if a standby has it open; this task then owns and closes it.

        Raises:
            BrokerError: If the brokers do not answer.
            StateError: If the local state is in use by another process.
        """
        self.take_over(backend)
        self._start.restore(lambda: self.prepare()[0], on_restore or silently)
        self.restored_records = self._start.restored_records
        self.start()

    def take_over(self, backend: StateBackend | None = None) -> None:
        """Take the first step of `open`: fence the predecessor, read committed offsets, open the state, and find what it lacks.

        Waits for brokers; may run in another thread. Arguments and errors are those of `open`.

        Raises:
            NotLiveError: If the version would publish and is not live.
            UnderWayError: If a switch to another version is under way, and no mark says how far this version may process.
        """
        self._commit = TaskCommit({}, ())  # this attempt must not commit records that an earlier one prepared
        self._start.backend = backend
        self._start.read_committed()
        if [self.committed] != self._own_commits[:1]:  # the commit with unknown outcome has succeeded
            self.doubted_since = None
        self._own_commits = [dict(self.committed)]
        self._start.open_state()

    def find_missing(self) -> None:
        """Find the records of the present changelogs that the state lacks.

        Raises:
            BrokerError: If the brokers do not answer.
        """
        self._start.find_missing()

    def prepare(self) -> tuple[Task, Missing]:
        """Take the second step of `open`: make the task, which then has to be restored.

        Returns:
            The task, and the changelog records that its state lacks.
        """
        assert self._records is not None, f"task {self.id} is not taken over"  # noqa: S101 - a host's own mistake
        collector = self._decorate(KafkaRecordCollector(self._records, self._admin))
        ports = Ports(collector, self._opened, self._clock, self._global_stores, self._pause)
        self._task = self._start.prepare(ports, self.publication.dead_letters)
        return self._task, self._start.missing

    def start(self) -> None:
        """Take the last step of `open`, once the state is complete: continue from the committed offsets."""
        self.counts_since_ms = self._clock.now_ms()
        committed = {tp: (c.offset, c.metadata) for tp, c in self.committed.items()}
        topics = {tp: ids_to_commit(tp, self._start.topics, self._application.id) for tp in self.inputs}
        self.task.start(committed, topics)
        self.task.pause_at(self.publication.limits)

    def follow(self, publication: Publication) -> None:
        """Apply a later record of the control topic. Only between two commits, with nothing to commit: see `may_follow`."""
        assert self._records is not None, f"task {self.id} is not taken over"  # noqa: S101 - a host's own mistake
        self._records.publish(publication.topics)
        self.task.keep_letters_in(publication.dead_letters)
        self.task.pause_at(publication.limits)
        self.publication = publication

    def may_follow(self, publication: Publication) -> bool:
        """Return whether a record can take effect at once; if outputs change, it has to wait until the next commit.

        No transaction may write to both old and new outputs.
        """
        return self.publication.topics == publication.topics or not self.task.needs_commit

    def starts(self) -> dict[TopicPartition, int]:
        """Return where to start reading each input: at the committed offset, or else as the policy of its source says.

        Raises:
            ConfigError: If an input has no committed offset, and the policy of its source is `none`.
        """
        missing = [tp for tp in self.inputs if tp not in self.committed]
        starts = reset_offsets(self._connected, missing, self._clock.now_ms())
        return starts | {tp: committed.offset for tp, committed in self.committed.items()}

    def commit(self) -> None:
        """Commit all progress since the last commit: records, changelogs and input offsets together, then the local state.

        The three steps are methods as well, for hosts that commit several tasks at once. Errors are those of the steps.
        """
        self.prepare_commit()
        self.send_commit()
        self.finish_commit()

    def prepare_commit(self) -> None:
        """Flush the stores, which may process records, and send their changelog records."""
        self._commit = self.task.prepare_commit()
        self._own_commits = [self._own_commits[0], self._own_commits[0] | dict(self._commit.offsets)]

    def send_commit(self) -> None:
        """Make the prepared commit durable in Kafka. Waits for brokers; may run in another thread.

        Raises:
            TaskMigratedError: If another owner has taken over: close this task, and do nothing else.
            UnknownOutcomeError: If it is unknown whether the commit succeeded: close, and open again.
            BrokerError: If brokers refused it: close, and open again.
        """
        commit = self._commit
        if self._records is not None:
            self._records.flush()
        # Before the commit, which proves that no other owner has written yet; a successor's later records must not count.
        self._changelog_ends = self._admin.written_offsets(commit.changelogs)
        if self._owner is not None:
            self._owner.commit(commit.offsets, self._application.id)

    def finish_commit(self) -> None:
        """Bring the local state to the durable point."""
        self.task.post_commit(self._changelog_ends)
        self._own_commits = self._own_commits[-1:]
        self.doubted_since = None

    @property
    def topics(self) -> Mapping[str, int]:
        """Return the ids of the topics that it depends on, as they were when it was taken over."""
        return self._start.topics

    def require_same_topics(self) -> None:
        """Make sure that the topics that it depends on are still those that it was taken over with.

        Raises:
            TopicError: If a topic was deleted and created again.
            BrokerError: If the brokers do not answer.
        """
        require_same(self._application, self.topics.items(), found_ids(self._admin, self.topics))

    def check_owner(self) -> None:
        """Find out, before taking the task over once more, whether another owner has continued it.

        An owner that was out of reach for longer than its transaction timeout is fenced in either case: by the brokers alone,
        or by a successor. A successor must not be fenced in turn.

        Raises:
            TopicError: If a topic was deleted and created again. Brokers delete committed offsets with it.
            TaskMigratedError: If the last commit is another owner's.
            BrokerError: If the brokers do not answer.
        """
        if not self._own_commits:  # it was never taken over
            return
        self.require_same_topics()
        if self._connected.committed(self.inputs) not in self._own_commits:
            message = f"Task {self.id} of {self._application.id}: another owner has committed meanwhile"
            raise TaskMigratedError(message)

    def publish_snapshot(self) -> Manifest:
        """Publish the state at the last commit.

        Returns:
            The snapshot.

        Raises:
            SnapshotError: If it cannot be published.
            TaskMigratedError: If another owner has taken over.
            BrokerError: If brokers do not answer.
        """
        self.confirm_commit()
        return publish_checkpoint(self.checkpoint())

    def confirm_commit(self) -> None:
        """Make sure before a `checkpoint` that the state is as committed, and that no successor has committed since.

        Only right after a commit: later records would be committed without the input offsets that they come from.

        Raises:
            TaskMigratedError: If another owner has taken over.
            BrokerError: If brokers do not answer.
        """
        if self._commit.changelogs:
            self._opened.write({}, self._settled_ends())

    def checkpoint(self) -> TaskCheckpoint:
        """Copy the state at the last commit.

        Returns:
            The copy.

        Raises:
            SnapshotError: If it cannot be copied.
        """
        return take_checkpoint(self._connected, self.id, self._clock, self._opened, _offsets(self._own_commits[-1]))

    def applied(self) -> Mapping[TopicPartition, int]:
        """Return, per changelog, the next offset that is not in the local state."""
        return self._opened.positions()

    def close(self, *, abort: bool = True) -> None:
        """Close the task; discard and abort uncommitted work. Idempotent.

        Without transactions, sends remaining records to the end, including dead letters of the failure that ends the task,
        as `KafkaProducer.close` does for `RecordCollectorImpl`.

        Args:
            abort: Whether to abort the open transaction at once, so that no reader waits for it. Pointless if brokers are out
                of reach, and wrong if another process has the task.
        """
        if abort:
            with suppress(StreamsError):  # a successor's takeover aborts the transaction as well
                if isinstance(self._records, IdempotentProducer):
                    self._records.flush()
                if self._owner is not None:
                    self._owner.abort()
        if self._task is not None:
            try:
                self._task.close()
            except StreamsError as error:  # commits stay valid, and the task ends for another reason
                log.error("%s", error, extra={"task": str(self.id)})  # noqa: TRY400 - the message says what happened
            self._task = None
        self._start.close()
        for producer in (self._records, self._owner):
            if producer is not None:
                producer.close()  # its remaining records must not be written after a takeover
        self._records = self._owner = None

    def _settled_ends(self) -> Mapping[TopicPartition, int]:
        """Return the ends of the changelogs at the last commit; its markers may have been written after its acknowledgement.

        Records of a successor must not count. Committing the same offsets once more proves that there was none.
        """
        ends = self._admin.settled_end_offsets(self._commit.changelogs)
        if self._owner is not None:
            self._owner.commit(self._commit.offsets, self._application.id)
        return ends

    def _written(self, target: Callable[[str], str]) -> Iterator[str]:
        """Yield the topics that it writes to, as far as its topology names them."""
        spec = self._application.task_spec(self.id, self.inputs)
        for topic in spec.sub_topology.sink_topics:
            yield target(full_name(spec.sub_topology, self._application.id, topic))
        yield from (tp.topic for tp in spec.own_changelogs.values())

    def _fence(self) -> None:
        """Fence the predecessor, then read where to publish: see `hosting.publication`."""
        self._owner = owner = self._new_owner()
        if self._follows_releases:
            self.publication = self._connected.publication()
        else:
            self._connected.require_publishing()
        kafka, overrides = self._application.kafka, self._application.config.streams.producer
        self._records = owner if self._is_exactly_once else IdempotentProducer(kafka, overrides)
        self._records.publish(self.publication.topics)
        self._records.learn_limits(time_limits(self._admin, self._written(self._records.target)))

    def _new_owner(self) -> TransactionalProducer:
        """Create the producer that owns the task and commits its offsets, and with exactly once also its records.

        At least once needs this producer too: a group with members accepts plain commits from its members only.
        """
        owner = TransactionalProducer(
            self._application.kafka,
            transactional_id(self._application.id, self.id),
            transaction_timeout_ms=self._transaction_timeout_ms,
            overrides=self._application.config.streams.producer,
        )
        owner.init()
        return owner

    @property
    def _opened(self) -> StateBackend:
        assert self._start.backend is not None, f"task {self.id} is not open"  # noqa: S101 - a host's own mistake
        return self._start.backend


def _offsets(committed: Mapping[TopicPartition, tuple[int, str]]) -> dict[TopicPartition, int]:
    """Return the committed offsets without their metadata."""
    return {tp: offset for tp, (offset, _metadata) in committed.items()}
