"""Claims tasks: fences their previous owners, and remembers what this process has committed for them.

A task has one owner among all processes (`hosting.ownership`).
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from riverrun.errors import TaskMigratedError, UnknownOutcomeError
from riverrun.hosting.added_partitions import note_begun
from riverrun.hosting.connected import Publication
from riverrun.hosting.inputs import reset_offsets
from riverrun.hosting.ownership import StreamsProducer, fence, fence_named
from riverrun.hosting.table_inputs import TableInputs
from riverrun.hosting.task_start import committed_point, open_task
from riverrun.hosting.topic_ids import found_ids, require_same, unread
from riverrun.kafka.sending import time_limits
from riverrun.runtime.layout import full_name
from riverrun.runtime.times import OffsetMetadata

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.hosting.ownership import ThreadProducer
    from riverrun.hosting.task_start import CommittedPoint, OpenedTask
    from riverrun.kafka.admin import CommittedOffset
    from riverrun.kafka.sending import TimeLimits
    from riverrun.records import TaskId, TopicPartition
    from riverrun.runtime.failures import SetAside
    from riverrun.runtime.ports import Clock
    from riverrun.state.api import StateBackend

    _Commit = dict[TopicPartition, tuple[int, str]]


@dataclass(frozen=True, slots=True, eq=False)
class ClaimedTask:
    """A task that this process has taken over: its predecessor is fenced, and its state is open, but not restored yet.

    Args:
        publication: Where it publishes, as read after the predecessor was fenced.
        limits: Limits of record times of the topics that it is known to write to.
    """

    claim: Claim
    publication: Publication
    producer: StreamsProducer
    starts: Mapping[TopicPartition, int]
    limits: Mapping[str, TimeLimits]
    opened: OpenedTask
    tables: TableInputs

    @property
    def is_sole(self) -> bool:
        """Return whether the producer has no other task, and ends with this one."""
        return not self.producer.owner

    def close(self) -> None:
        """Release everything. Idempotent."""
        self.opened.close()
        if self.is_sole:
            self.producer.close()


class Claim:
    """The claim of this process to a task, across all attempts to run it.

    Args:
        thread: The producer that the task shares with others, pausing at barriers and publishing as the application's record in
            the control topic says at the time. None for bounded runs: each task has its own producer there. They end before a
            release takes its next step, or are refused.
        transaction_timeout_ms: How long a transaction of a task with its own producer may stay open.
    """

    def __init__(
        self,
        connected: ConnectedApplication,
        task_id: TaskId,
        clock: Clock,
        *,
        thread: ThreadProducer | None = None,
        transaction_timeout_ms: int = 60_000,
    ) -> None:
        self.id = task_id
        self.connected = connected
        self.clock = clock
        self.spec = connected.application.task_spec(task_id, connected.layout.tasks[task_id])
        self._thread = thread
        self._transaction_timeout_ms = transaction_timeout_ms
        self._topics: Mapping[str, int] = {}
        self._has_owned = False
        # The last commit, and then the one that is under way. With metadata, as within a pack nothing else differs.
        self._own_commits: list[_Commit] = []
        self.aside: tuple[SetAside, ...] = ()
        """Records that attempts since the last commit have set aside, and those that remain if the next commit succeeds."""
        self._remaining: tuple[SetAside, ...] = ()

    # Ownership

    def take_over(self, backend: StateBackend | None = None) -> ClaimedTask:
        """Fence the predecessor, read committed offsets, open the state, and find what it lacks.

        Waits for brokers; may run in another thread. Leaves nothing open if it fails.
        """
        connected, spec = self.connected, self.spec
        with ExitStack() as opened:
            # The state of a standby belongs to the task from here on, and is closed even if this fails.
            if backend is not None:
                opened.callback(backend.close)
            # The lock, the owner, the offsets: in another order, a predecessor could still commit (`hosting.ownership`).
            lock = self._new_lock()
            opened.callback(lock.close)
            lock.init()
            point = committed_point(connected, spec, self._fenced_commits())
            starts = self._starts(point)
            self._note(point)
            producer = lock if self._thread is None else self._commit_owner(lock, self._thread, point, starts)
            self._has_owned = True
            # After the predecessor is fenced: see `Publication`.
            publication = self._publication()
            tables = TableInputs.begun(connected.admin, spec, point.commits)
            topics = (publication.topics.get(topic, topic) for topic in self._written())
            claimed = ClaimedTask(
                self,
                publication,
                producer,
                starts,
                time_limits(connected.admin, topics),
                opened=open_task(connected, spec, self.clock, point, backend),
                tables=tables,
            )
            opened.pop_all()
        if producer is not lock:
            lock.close()
        return claimed

    def release(self) -> None:
        """Let go of a task that was taken over, but has not been started: its next owner then fences nobody."""
        lock = self._new_lock()
        try:
            lock.init()
            # Otherwise another owner has continued the task, and its commit must not be undone.
            if self.connected.committed(self.spec.inputs) == self.last_commit:
                lock.commit(self.released())
        finally:
            lock.close()

    def released(self) -> dict[TopicPartition, tuple[int, str]]:
        """Return the newest commit without an owner, to be committed as the last one."""
        return {tp: (offset, _owned(metadata, "")) for tp, (offset, metadata) in self.newest_commit.items()}

    def check_owner(self) -> None:
        """Find out, before taking the task over once more, whether another owner has continued it."""
        # An owner that was out of reach for longer than its transaction timeout is fenced in either case: by the brokers
        # alone, or by a successor. A successor must not be fenced in turn.
        if not self._has_owned:
            return
        # First, as brokers delete committed offsets with a topic, which would look like another owner's commit.
        self.require_same_topics()
        if self.connected.committed(self.spec.inputs) not in self._own_commits:
            raise TaskMigratedError(f"Task {self.id} of {self.connected.id}: another owner has committed meanwhile")

    def require_same_topics(self) -> None:
        """Make sure that the topics that the task depends on are still those that it was taken over with."""
        require_same(self.connected.application, self._topics.items(), found_ids(self.connected.admin, self._topics))

    def _new_lock(self) -> StreamsProducer:
        return StreamsProducer(self.connected.application, self.id, self._transaction_timeout_ms)

    def _fenced_commits(self) -> Mapping[TopicPartition, CommittedOffset]:
        """Fence the owner that the offsets name, and return the last commits."""
        if self._thread is not None:
            return fence_named(self.connected, self.spec.inputs, self._thread.fence, self._thread.known)
        return fence_named(self.connected, self.spec.inputs, partial(fence, self.connected.application))

    def _starts(self, point: CommittedPoint) -> dict[TopicPartition, int]:
        missing = [tp for tp in self.spec.inputs if tp not in point.commits]
        # A bounded run has noted the partitions of its range.
        if missing and self._thread is not None:
            note_begun(self.connected)
        starts = reset_offsets(self.connected, missing, self.clock.now_ms())
        return starts | {tp: committed.offset for tp, committed in point.commits.items()}

    def _commit_owner(
        self, lock: StreamsProducer, thread: ThreadProducer, point: CommittedPoint, starts: Mapping[TopicPartition, int]
    ) -> StreamsProducer:
        """Commit the offsets again, with the producer of this thread as the owner. Returns the producer."""
        producer = thread.present()
        # Inputs without committed offsets get their start. An empty transaction would prove nothing: brokers accept it even
        # from a producer that is fenced.
        begun = {tp: unread(tp, point.topics, self.connected.id) for tp in starts.keys() - point.commits.keys()}
        known = {tp: committed.metadata for tp, committed in point.commits.items()} | begun
        self.begin_commit({tp: (starts[tp], _owned(metadata, producer.owner)) for tp, metadata in known.items()})
        try:
            lock.commit(self.newest_commit)
        except TaskMigratedError as error:
            message = f"Another process claims task {self.id} of {self.connected.id} at the same time"
            raise UnknownOutcomeError(message) from error
        self.end_commit()
        return producer

    def _publication(self) -> Publication:
        if self._thread is not None:
            return self.connected.publication()
        self.connected.require_publishing()
        return Publication.at_start(self.connected.application)

    def _written(self) -> Iterator[str]:
        """Yield the topics that the task writes to, except those that are chosen by record."""
        sub = self.spec.sub_topology
        for topic in sub.sink_topics:
            yield full_name(sub, self.connected.id, topic)
        yield from (tp.topic for tp in self.spec.own_changelogs.values())

    # Commits

    @property
    def last_commit(self) -> Mapping[TopicPartition, tuple[int, str]]:
        """Return offset and metadata of the last commit per input: a new object after each commit."""
        return self._own_commits[0] if self._own_commits else {}

    @property
    def newest_commit(self) -> Mapping[TopicPartition, tuple[int, str]]:
        """Return offset and metadata per input of the commit that is under way, or else of the last one."""
        return self._own_commits[-1] if self._own_commits else {}

    def begin_commit(
        self, offsets: Mapping[TopicPartition, tuple[int, str]], aside: tuple[SetAside, ...] | None = None
    ) -> None:
        """Note a commit that is sent next: only its outcome shows which commit is the last one.

        `aside` are the records that are set aside, and still to come after it; None for all of them.
        """
        self._remaining = self.aside if aside is None else aside
        self._own_commits = [self._own_commits[0], self._own_commits[0] | dict(offsets)]

    def end_commit(self) -> None:
        self._own_commits = self._own_commits[-1:]
        self.aside = self._remaining

    def _note(self, point: CommittedPoint) -> None:
        self._topics = point.topics
        # Other offsets than the last known ones: the commit with unknown outcome has succeeded.
        if self._thread is not None and [point.commits] != self._own_commits[:1]:
            self._thread.doubted_since = None
        if self._own_commits[1:] == [point.commits]:
            self.end_commit()
        self._own_commits = [dict(point.commits)]


def _owned(metadata: str, owner: str) -> str:
    return replace(OffsetMetadata.decode(metadata), owner=owner).encode()
