"""Ownership of tasks: the producers that own them, and how a process takes a task over from another producer.

Two kinds of transactional ids are involved. That of a task is its *lock*: the last process that initialised it may claim the
task. That of a stream thread carries data, for all tasks that the thread has claimed; the metadata of their offsets names it
(`OffsetMetadata.owner`). A bounded run sends data under the lock itself, and names no owner.

A process takes a task over in this order:

1. It initialises the lock, which fences all others that claim the task, and bounded runs.
2. It reads the name of the owner, and initialises its id, which aborts its open transaction and fences it. It reads the
   offsets afterwards.
3. A stream thread commits these offsets again under the lock, with itself as the owner. If that is refused, another process
   claims the task meanwhile.

In any other order a predecessor could still commit after its offsets have been read.
"""

from __future__ import annotations

import logging
import secrets
import threading
from contextlib import contextmanager, suppress
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from riverrun.config import EXACTLY_ONCE_V2
from riverrun.errors import OpenTransactionError, StreamsError
from riverrun.hosting.kept_offsets import commit_and_keep, kept_offsets_topic
from riverrun.kafka.admin import STABLE_SECONDS
from riverrun.kafka.producer import LONGEST_TRANSACTION_MS, IdempotentProducer, TransactionalProducer
from riverrun.runtime.times import OffsetMetadata

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from collections.abc import Set as AbstractSet

    from riverrun.hosting.application import Application
    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.kafka.admin import CommittedOffset
    from riverrun.kafka.sending import RecordSender
    from riverrun.records import TaskId, TopicPartition

log = logging.getLogger(__name__)

# A live owner usually ends a commit within milliseconds; after this time it counts as dead.
_COMMIT_SECONDS = 10.0
_GLANCE_SECONDS = 1.0
"""How long to wait for an open transaction that commits offsets of a task before its owner is fenced."""
# So many random bytes that no two producers ever have the same name: an owner that was fenced once is fenced for good.
_ID_BYTES = 8


def transactional_id(application_id: str, owner: TaskId | str) -> str:
    return f"{application_id}-{owner}"


def named_owners(commits: Mapping[TopicPartition, CommittedOffset]) -> set[str]:
    return {owner for found in commits.values() if (owner := OffsetMetadata.decode(found.metadata).owner)}


class CommittedOffsets(Protocol):
    """Reads committed offsets of the inputs of tasks (`ConnectedApplication`)."""

    def committed(
        self, tps: Iterable[TopicPartition], patience_s: float = STABLE_SECONDS
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """Return them once no transaction is open that commits any."""

    def noted(self, tps: Iterable[TopicPartition]) -> Mapping[TopicPartition, CommittedOffset]:
        """Return them as they are now, without those of open transactions."""


def fence_named(
    offsets: CommittedOffsets,
    inputs: Iterable[TopicPartition],
    fence: Callable[[str], None],
    known: Callable[[], AbstractSet[str]] = frozenset,
) -> Mapping[TopicPartition, CommittedOffset]:
    """Fence the owner of a task, and return its last commits. To be called after its lock was initialised."""
    asked, fenced = list(inputs), frozenset[str]()
    while True:
        # Before the offsets are read: what is read after an owner commits nothing more need not be read again.
        harmless = fenced | known()
        try:
            commits, is_stable = offsets.committed(asked, _GLANCE_SECONDS), True
        # A transaction that commits offsets of the task is the owner's, and ends when the owner is fenced.
        except OpenTransactionError:
            commits, is_stable = offsets.noted(asked), False
        named = named_owners(commits) - harmless
        if not named:
            return commits if is_stable else offsets.committed(asked)
        for owner in named:
            fence(owner)
        fenced |= named


def fence(application: Application, owner: TaskId | str) -> None:
    """Fence the producer with a task's or an owner's transactional id, and abort its open transaction."""
    producer = TransactionalProducer(application.kafka, transactional_id(application.id, owner))
    try:
        producer.init()
    finally:
        producer.close()


class StreamsProducer:
    """Sends the records of one or more tasks, and commits their offsets (`StreamsProducer`)."""

    def __init__(self, application: Application, name: TaskId | str, transaction_timeout_ms: int = 60_000) -> None:
        streams = application.config.streams
        self.owner = name if isinstance(name, str) else ""
        """The owner that the offsets of its tasks name; empty for a producer of one task, whose id is the task's lock."""
        self.is_closed = False
        self._group_id = application.id
        # At least once needs it too: a group with members accepts plain commits from its members only.
        self._offsets = TransactionalProducer(
            application.kafka,
            transactional_id(application.id, name),
            transaction_timeout_ms=transaction_timeout_ms,
            overrides=streams.producer,
        )
        self._application = application
        self._plain: IdempotentProducer | None = None
        """Sends records at least once; made with the first sender."""

    def init(self) -> None:
        """Fence earlier producers with this transactional id, and abort what they have open."""
        self._offsets.init()

    def new_sender(self) -> RecordSender:
        """Return a sender for the records of one task."""
        streams = self._application.config.streams
        if streams.processing_guarantee == EXACTLY_ONCE_V2:
            return self._offsets.new_sender()
        self._plain = self._plain or IdempotentProducer(self._application.kafka, streams.producer)
        return self._plain.new_sender()

    def flush(self) -> None:
        """Wait until everything sent has arrived. Errors are those of the producer of records."""
        (self._plain or self._offsets).flush()

    def commit(
        self,
        offsets: Mapping[TopicPartition, tuple[int, str]],
        released: Mapping[TopicPartition, tuple[int, str]] = MappingProxyType({}),
    ) -> None:
        """Commit offsets (`released` are of tasks that are let go), with all records sent so far if exactly once."""
        together = {**offsets, **released}
        # A stream thread copies only its last commit of a task: copies of all would add a partition to each transaction.
        commit_and_keep(self._offsets, self._group_id, together, released if self.owner else together)

    def abort(self) -> None:
        """Abort the open transaction at once, so that no reader waits for it."""
        # Errors do not matter: a successor's takeover aborts the transaction as well.
        with suppress(StreamsError):
            # Without transactions, remaining records are sent, such as dead letters of the failure that ends the task.
            # `KafkaProducer.close` does so for `RecordCollectorImpl`.
            if self._plain is not None:
                self._plain.flush()
            self._offsets.abort()

    def close(self) -> None:
        """Stop sending: its remaining records must not be written after a takeover. Idempotent."""
        self.is_closed = True
        if self._plain is not None:
            self._plain.close()
        self._offsets.close()


class ThreadProducer:
    """The producer that all tasks of a stream thread share, and the owners that this thread has fenced.

    After any failure it is replaced by one with another transactional id (`StreamsProducer.resetProducer`).
    """

    def __init__(self, application: Application) -> None:
        self.doubted_since: float | None = None
        """Time of the first commit with unknown outcome since the last successful one (monotonic seconds)."""
        self._application = application
        self._producer: StreamsProducer | None = None
        self._fenced: set[str] = set()
        self._mutex = threading.Lock()

    def present(self) -> StreamsProducer:
        """Return the producer, ready to send. Threads that take tasks over may call this at the same time."""
        with self._mutex:
            if self._producer is None:
                producer = StreamsProducer(self._application, secrets.token_hex(_ID_BYTES))
                try:
                    producer.init()
                except BaseException:
                    producer.close()
                    raise
                self._producer = producer
            return self._producer

    def known(self) -> frozenset[str]:
        """Return the owners that commit nothing more for a task that is being taken over: those fenced, and this one."""
        fenced, producer = frozenset(self._fenced), self._producer
        return fenced if producer is None else fenced | {producer.owner}

    def fence(self, owner: str) -> None:
        """Fence the owner of a task, unless that has been done: an owner never comes back."""
        with self._mutex:
            if owner not in self._fenced:
                fence(self._application, owner)
                self._fenced.add(owner)

    def discard(self, *, abort: bool) -> None:
        """Close the producer, whose tasks have been closed; the next task to be taken over gets another one. Idempotent."""
        producer, self._producer = self._producer, None
        if producer is not None:
            # Otherwise the next owner of one of its tasks aborts the open transaction.
            if abort:
                producer.abort()
            producer.close()


def fence_owners(connected: ConnectedApplication, task_ids: Iterable[TaskId]) -> None:
    """Fence the owners of tasks and abort their open transactions, without processing the tasks."""
    thread = ThreadProducer(connected.application)
    for task_id in task_ids:
        fence(connected.application, task_id)
        fence_named(connected, connected.layout.tasks[task_id], thread.fence, thread.known)


@contextmanager
def owning(connected: ConnectedApplication, task_id: TaskId) -> Iterator[TransactionalProducer]:
    """Take a task over within this context, under its lock: its owner is fenced."""
    application = connected.application
    # Before the first write: brokers would create a topic that forgets.
    connected.admin.create_topics([kept_offsets_topic(application)])
    producer = TransactionalProducer(
        application.kafka,
        transactional_id(application.id, task_id),
        transaction_timeout_ms=LONGEST_TRANSACTION_MS,
        overrides=application.config.streams.producer,
    )
    try:
        producer.init()
        fence_named(connected, connected.layout.tasks[task_id], partial(fence, application))
        yield producer
    finally:
        producer.close()


def settled_offsets(
    connected: ConnectedApplication, tps: Iterable[TopicPartition]
) -> dict[TopicPartition, CommittedOffset]:
    """Return the committed offsets of some inputs. If an owner has died during a commit, this fences all tasks."""
    asked = list(tps)
    try:
        return connected.committed(asked, _COMMIT_SECONDS)
    except OpenTransactionError as error:
        # The offsets are unknown after an owner has died during a commit. To fence the tasks ends the commit.
        log.warning("ending a transaction of %s that an earlier owner left open: %s", connected.id, error.message)
        resolved = connected.resolved()
        fence_owners(resolved, resolved.layout.tasks)
        return connected.committed(asked)
