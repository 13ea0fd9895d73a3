"""Claims tasks: fences their previous owners, and remembers what this process has committed for them.

A task has one owner among all processes: the one that last initialised the task's transactional id.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from riverrun.config import EXACTLY_ONCE_V2
from riverrun.errors import StreamsError, TaskMigratedError
from riverrun.hosting.connected import Publication
from riverrun.hosting.inputs import found_ids, require_same
from riverrun.hosting.ownership import transactional_id
from riverrun.hosting.task_start import open_task, read_committed
from riverrun.kafka.producer import IdempotentProducer, TransactionalProducer
from riverrun.kafka.sending import time_limits
from riverrun.runtime.layout import full_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from riverrun.hosting.application import Application
    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.hosting.task_start import CommittedPoint, OpenedTask
    from riverrun.kafka.admin import Admin
    from riverrun.records import TaskId, TopicPartition
    from riverrun.runtime.ports import Clock
    from riverrun.state.api import StateBackend

    _Commit = dict[TopicPartition, tuple[int, str]]


class StreamsProducer:
    """Sends the records of a task, and commits its offsets (`StreamsProducer`).

    With exactly once one transaction does both. At least once needs the transactional producer too: a group with members
    accepts plain commits from its members only.

    Args:
        application: The application.
        owner: The producer that owns the task, and commits its offsets.
    """

    def __init__(self, application: Application, owner: TransactionalProducer) -> None:
        streams = application.config.streams
        self._group_id = application.id
        self._owner = owner
        is_exactly_once = streams.processing_guarantee == EXACTLY_ONCE_V2
        self.records = owner if is_exactly_once else IdempotentProducer(application.kafka, streams.producer)
        """The producer that sends records."""

    def publish(self, published: Mapping[str, str]) -> None:
        """Redirect the records of some topics from now on, between two transactions."""
        self.records.publish(published)

    def learn_limits(self, admin: Admin, topics: Iterable[str]) -> None:
        """Look up the limits of record times of the topics that receive the records of the given topics."""
        self.records.learn_limits(time_limits(admin, map(self.records.target, topics)))

    def sent(self) -> dict[str, int]:
        """Return how many records it has sent, by topic."""
        return self.records.sent()

    def flush(self) -> None:
        """Wait until everything sent has arrived. Errors are those of the producer of records."""
        self.records.flush()

    def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Commit offsets, in one transaction with the records if these are sent exactly once.

        Raises:
            TaskMigratedError: If another owner has taken over.
            UnknownOutcomeError: If it is unknown whether the commit succeeded.
            BrokerError: If brokers refused it.
        """
        self._owner.commit(offsets, self._group_id)

    def abort(self) -> None:
        """Abort the open transaction at once, so that no reader waits for it.

        Without transactions, sends remaining records to the end, including dead letters of the failure that ends the task,
        as `KafkaProducer.close` does for `RecordCollectorImpl`.
        """
        with suppress(StreamsError):  # a successor's takeover aborts the transaction as well
            if isinstance(self.records, IdempotentProducer):
                self.records.flush()
            self._owner.abort()

    def close(self) -> None:
        """Stop sending: its remaining records must not be written after a takeover. Idempotent."""
        self.records.close()
        self._owner.close()


@dataclass(frozen=True, slots=True, eq=False)
class ClaimedTask:
    """A task that this process has taken over: its predecessor is fenced, and its state is open, but not restored yet.

    Args:
        claim: The claim.
        publication: Where it publishes, as read after the predecessor was fenced.
        producer: Sends its records and commits.
        opened: Its committed offsets and its local state.
    """

    claim: Claim
    publication: Publication
    producer: StreamsProducer
    opened: OpenedTask

    def close(self) -> None:
        """Release everything. Idempotent."""
        self.opened.close()
        self.producer.close()


class Claim:
    """The claim of this process to a task, across all attempts to run it.

    Args:
        connected: The application of the task.
        task_id: The task.
        clock: Tells the time.
        transaction_timeout_ms: How long a transaction may stay open, ms.
        follows_releases: Whether it pauses at barriers, and publishes as the application's record in the control topic says at
            the time. Bounded runs do not: they end before a release takes its next step, or are refused.
    """

    def __init__(
        self,
        connected: ConnectedApplication,
        task_id: TaskId,
        clock: Clock,
        *,
        transaction_timeout_ms: int = 60_000,
        follows_releases: bool = False,
    ) -> None:
        self.id = task_id
        self.connected = connected
        self.clock = clock
        self.spec = connected.application.task_spec(task_id, connected.layout.tasks[task_id])
        """The definition of the task."""
        self.doubted_since: float | None = None
        """Time of the first commit with unknown outcome since the last successful one (monotonic seconds); set by its host."""
        self._transaction_timeout_ms = transaction_timeout_ms
        self._follows_releases = follows_releases
        self._topics: Mapping[str, int] = {}
        self._own_commits: list[_Commit] = []
        """The last commit with its metadata: within a pack only the metadata differs. A commit that is under way follows."""

    # Ownership

    def take_over(self, backend: StateBackend | None = None) -> ClaimedTask:
        """Fence the predecessor, read committed offsets, open the state, and find what it lacks.

        Waits for brokers; may run in another thread. Leaves nothing open if it fails.

        Args:
            backend: The local state, if a standby has it open; the task then owns and closes it.

        Raises:
            NotLiveError: If the version would publish and is not live.
            UnderWayError: If a switch to another version is under way, and no barrier says how far this version may process.
            BrokerError: If the brokers do not answer.
            StateError: If the local state is in use by another process.
        """
        with ExitStack() as opened:
            if backend is not None:
                opened.callback(backend.close)
            owner = self._new_owner()
            opened.callback(owner.close)
            owner.init()
            publication = self._publication()  # after the predecessor is fenced: see `Publication`
            producer = StreamsProducer(self.connected.application, owner)
            opened.callback(producer.close)
            producer.publish(publication.topics)
            producer.learn_limits(self.connected.admin, self._written())
            point = read_committed(self.connected, self.spec, self.spec.inputs)
            self._note(point)
            claimed = ClaimedTask(
                self, publication, producer, open_task(self.connected, self.spec, self.clock, point, backend)
            )
            opened.pop_all()
        return claimed

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
        if self.connected.committed(self.spec.inputs) not in self._own_commits:
            message = f"Task {self.id} of {self.connected.id}: another owner has committed meanwhile"
            raise TaskMigratedError(message)

    def require_same_topics(self) -> None:
        """Make sure that the topics that the task depends on are still those that it was taken over with.

        Raises:
            TopicError: If a topic was deleted and created again.
            BrokerError: If the brokers do not answer.
        """
        require_same(self.connected.application, self._topics.items(), found_ids(self.connected.admin, self._topics))

    def _new_owner(self) -> TransactionalProducer:
        application = self.connected.application
        return TransactionalProducer(
            application.kafka,
            transactional_id(application.id, self.id),
            transaction_timeout_ms=self._transaction_timeout_ms,
            overrides=application.config.streams.producer,
        )

    def _publication(self) -> Publication:
        """Read where to publish: see `Publication`."""
        if self._follows_releases:
            return self.connected.publication()
        self.connected.require_publishing()
        return Publication.at_start(self.connected.application)

    def _written(self) -> Iterator[str]:
        """Yield the topics that the task writes to, as far as its topology names them."""
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

    def begin_commit(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Note a commit that is sent next: only its outcome tells which commit is the last one."""
        self._own_commits = [self._own_commits[0], self._own_commits[0] | dict(offsets)]

    def end_commit(self) -> None:
        """Note that the commit has succeeded."""
        self._own_commits = self._own_commits[-1:]
        self.doubted_since = None

    def _note(self, point: CommittedPoint) -> None:
        self._topics = point.topics
        if [point.commits] != self._own_commits[:1]:  # the commit with unknown outcome has succeeded
            self.doubted_since = None
        self._own_commits = [dict(point.commits)]
