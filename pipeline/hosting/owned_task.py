"""A task in the hands of its owner: producer, local state and progress, taken over in the one right order."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pipeline.config import EXACTLY_ONCE
from pipeline.errors import StreamsError
from pipeline.kafka.producer import IdempotentProducer, KafkaCollector, OffsetCommitter, TransactionalProducer
from pipeline.kafka.ranges import read_range
from pipeline.records import OffsetRange, TaskId, TopicPartition
from pipeline.runtime.ports import Ports
from pipeline.runtime.task import Task, TaskSpec
from pipeline.state.memory import MemoryBackend
from pipeline.state.rocksdb import RocksDbBackend
from pipeline.topology.nodes import AutoOffsetReset

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pipeline.hosting.application import Application
    from pipeline.kafka.admin import Admin, CommittedOffset
    from pipeline.records import Headers
    from pipeline.runtime.layout import Layout
    from pipeline.runtime.ports import Clock, Collector
    from pipeline.state.api import StateBackend


class PublishedCollector:
    """A collector that sends some topics elsewhere: public outputs of a version that is not live go to staging topics."""

    def __init__(self, inner: Collector, published: Mapping[str, str]) -> None:
        """The mapping is by the name the topology uses."""
        self._inner = inner
        self._published = published

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Headers,
        partition: int | None,
    ) -> None:
        """Send to where the topic's records go."""
        self._inner.send(self._published.get(topic, topic), key, value, timestamp, headers, partition)

    def partitions(self, topic: str) -> int:
        """Number of partitions of where the topic's records go."""
        return self._inner.partitions(self._published.get(topic, topic))


def transactional_id(application_id: str, task_id: TaskId) -> str:
    """Names the one owner a task may have, in whatever process."""
    return f"{application_id}-{task_id}"


class OwnedTask:
    """A task that this process has taken over.

    Taking over (`open`) fences whoever had the task before, then reads the committed offsets, then the changelogs' ends, then
    restores what the local state lacks. Never in another order: a predecessor could still commit in between.

    Args:
        application: What it is a task of.
        layout: Which inputs it has.
        task_id: Which task.
        admin: Asks the brokers.
        clock: What time it is.
        global_stores: The global stores by name, filled by the host.
        transaction_timeout_ms: How long a transaction may stay open.
        decorate: Wraps the collector; for hosts that add to what is sent.
    """

    def __init__(
        self,
        application: Application,
        layout: Layout,
        task_id: TaskId,
        admin: Admin,
        clock: Clock,
        global_stores: Mapping[str, Any],
        *,
        transaction_timeout_ms: int = 60_000,
        decorate: Callable[[Collector], Collector] = lambda collector: collector,
    ) -> None:
        """Nothing is taken over before `open`."""
        self.id = task_id
        self.inputs = layout.tasks[task_id]
        self.committed: Mapping[TopicPartition, CommittedOffset] = {}
        self.restored_records = 0
        self._application = application
        self._admin = admin
        self._clock = clock
        self._global_stores = global_stores
        self._transaction_timeout_ms = transaction_timeout_ms
        self._decorate = decorate
        self._is_exactly_once = application.config.processing_guarantee == EXACTLY_ONCE
        self._backend: StateBackend | None = None
        self._task: Task | None = None
        self._producer: TransactionalProducer | IdempotentProducer | None = None
        self._committer: OffsetCommitter | None = None

    @property
    def task(self) -> Task:
        """The running task; there is one between `open` and `close`."""
        assert self._task is not None, f"task {self.id} is not open"  # noqa: S101 - a host's own mistake
        return self._task

    def open(self, on_restore: Callable[[TopicPartition, int, int], None] | None = None) -> None:
        """Take the task over and bring its state to the committed point.

        Args:
            on_restore: Called with changelog, records so far and records expected, as the restore proceeds.

        Raises:
            BrokerError: If the brokers do not answer.
            StateError: If the local state is in use by another process.
        """
        self._producer = producer = self._new_producer()
        self.committed = self._admin.committed(self._application.id, self.inputs)
        self._backend = self._open_backend()
        self._task = self._new_task(self._backend, producer)
        self._restore(self._task, self._backend, on_restore or _silently)
        self._task.start({tp: (c.offset, c.metadata) for tp, c in self.committed.items()})

    def starts(self) -> dict[TopicPartition, int]:
        """Where to read each input from: the committed offset, else where its source says."""
        missing = [tp for tp in self.inputs if tp not in self.committed]
        sources = {t: s for s in self._sub_topology.sources for t in s.topics}
        latest = [tp for tp in missing if (s := sources.get(tp.topic)) and s.reset is AutoOffsetReset.LATEST]
        starts = self._admin.beginning_offsets(set(missing) - set(latest)) | self._admin.end_offsets(latest)
        return starts | {tp: committed.offset for tp, committed in self.committed.items()}

    def commit(self) -> None:
        """Commit everything since the last commit: records, changelogs and input offsets together; then the local state.

        Raises:
            TaskMigratedError: If another owner has taken over: close this one, and nothing more.
            UnknownOutcomeError: If it cannot be said whether it was committed: close, and open again.
            BrokerError: If it was refused: close, and open again.
        """
        commit = self.task.prepare_commit()
        if isinstance(self._producer, TransactionalProducer):
            self._producer.commit(commit.offsets, self._application.id)
        elif self._producer is not None:
            self._producer.flush()
            if self._committer is None:
                self._committer = OffsetCommitter(self._application.kafka, self._application.id)
            self._committer.commit(commit.offsets)
        self.task.post_commit(self._admin.end_offsets(commit.changelogs))

    def checkpoint_source(self) -> StateBackend:
        """The local state, for snapshots."""
        assert self._backend is not None, f"task {self.id} is not open"  # noqa: S101 - a host's own mistake
        return self._backend

    def close(self) -> None:
        """Let go of the task. What was not committed is aborted and forgotten. Idempotent."""
        if isinstance(self._producer, TransactionalProducer):
            with suppress(StreamsError):  # a successor's takeover aborts it as well
                self._producer.abort()
        if self._task is not None:
            self._task.close()
            self._task = None
        if self._backend is not None:
            self._backend.close()
            self._backend = None
        if self._committer is not None:
            self._committer.close()
            self._committer = None

    @property
    def _sub_topology(self) -> Any:
        return self._application.sub_topology(self.id.sub_topology)

    def _new_producer(self) -> TransactionalProducer | IdempotentProducer:
        kafka, overrides = self._application.kafka, self._application.config.streams.producer
        if not self._is_exactly_once:
            return IdempotentProducer(kafka, overrides)
        producer = TransactionalProducer(
            kafka,
            transactional_id(self._application.id, self.id),
            transaction_timeout_ms=self._transaction_timeout_ms,
            overrides=overrides,
        )
        producer.init()
        return producer

    def _open_backend(self) -> StateBackend:
        if any(store.persistent for store in self._sub_topology.stores):
            return RocksDbBackend(self._application.directory / str(self.id))
        return MemoryBackend()

    def _new_task(self, backend: StateBackend, producer: TransactionalProducer | IdempotentProducer) -> Task:
        streams = self._application.config.streams
        spec = TaskSpec(
            self.id,
            self._sub_topology,
            self._application.id,
            self.inputs,
            skips_undecodable=streams.deserialization_exception_handler == "continue",
            skips_failures=streams.processing_exception_handler == "continue",
            max_task_idle_ms=streams.max_task_idle_ms,
        )
        collector: Collector = self._decorate(KafkaCollector(producer, self._admin))
        if self._application.published:
            collector = PublishedCollector(collector, self._application.published)
        return Task(spec, Ports(collector, backend, self._clock, self._global_stores))

    def _restore(
        self, task: Task, backend: StateBackend, on_restore: Callable[[TopicPartition, int, int], None]
    ) -> None:
        ranges = self._missing(task.restore_starts())
        if ranges is None:  # the local state is ahead of, or behind, what the changelogs still have
            backend.wipe()
            ranges = self._missing(dict.fromkeys(task.changelogs.values(), 0)) or {}
        expected = sum(r.size for r in ranges.values())
        for tp, records in read_range(self._admin, self._application.kafka, ranges):
            if records:
                task.restore(tp, records, records[-1].offset + 1)
                self.restored_records += len(records)
                on_restore(tp, self.restored_records, expected)
        for tp, whole in ranges.items():
            backend.write({}, {tp: whole.end})

    def _missing(self, starts: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetRange] | None:
        """What of each changelog the local state lacks; None if it is of another history than the changelog."""
        first, last = self._admin.beginning_offsets(starts), dict(self._admin.end_offsets(starts))
        for tp in starts.keys() & set(
            self.inputs
        ):  # of a read-only store: what was not committed is yet to be processed
            last[tp] = max(first[tp], self.committed[tp].offset if tp in self.committed else 0)
        if any(start > last[tp] or 0 < start < first[tp] for tp, start in starts.items()):
            return None
        return {tp: OffsetRange(max(start, first[tp]), last[tp]) for tp, start in starts.items()}


def _silently(_changelog: TopicPartition, _done: int, _expected: int) -> None:
    """No progress is shown."""
