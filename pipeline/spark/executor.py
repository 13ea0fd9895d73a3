"""Runs one task over its part of a slice, in one transaction. Imports no pyspark: any process can do it.

An attempt begins by taking the task over, so an earlier attempt, or a copy that Spark runs for speed, can write nothing any
more. What it then finds committed tells whether the work is done already.
"""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Self

from pipeline.errors import (
    BrokerError,
    RangeError,
    SnapshotError,
    StateInUseError,
    StreamsError,
    TaskError,
    TopologyError,
    UnsupportedByHostError,
)
from pipeline.hosting.application import Application
from pipeline.hosting.clock import SystemClock
from pipeline.hosting.garbage import collect_rarely, uncollected
from pipeline.hosting.global_tables import open_global_state
from pipeline.hosting.owned_task import OwnedTask
from pipeline.hosting.purge import Purge
from pipeline.hosting.snapshots import has_snapshots
from pipeline.hosting.task_state import after_predecessor
from pipeline.kafka.admin import Admin
from pipeline.kafka.producer import LONGEST_TRANSACTION_MS
from pipeline.kafka.ranges import read_fields
from pipeline.processor.metrics import totals
from pipeline.runtime.layout import plan_layout
from pipeline.spark.patience import outlast
from pipeline.spark.ranges import AGAIN
from pipeline.spark.spilling import WriterMerge, writer_tag
from pipeline.spark.work import TaskResult

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping

    from pipeline.records import Headers, OffsetRange, RawFields, TaskId, TopicPartition
    from pipeline.runtime.layout import Layout
    from pipeline.runtime.ports import Collector
    from pipeline.runtime.task import Task
    from pipeline.spark.work import Job, TaskWork
    from pipeline.topology.topology import Topology

    Send = Callable[[str, bytes | None, bytes | None, int, Headers, int | None], None]

_PREDECESSOR_SECONDS = 60.0
"""How long an earlier attempt on the same machine may take to let go of the local state."""
_RETRY_SECONDS = 0.5
_DONE_BEFORE = (
    "an attempt that died after its commit has processed a part of the range: what it has counted is in no figure"
)


class WriterTagging:
    """A collector that tells readers of repartition topics which task a record comes from, and counts records by topic.

    The tasks of a level run at different speeds, so their records lie in a repartition topic in an order that means nothing.
    With the writer known, a reader merges them by event time, as if each had a partition of its own: the order, and with
    it what is late, no longer depends on speeds.
    """

    def __init__(self, inner: Collector, task_id: TaskId, repartition_topics: frozenset[str]) -> None:
        """Topics are full names."""
        self.partitions = inner.partitions
        self.sent: defaultdict[str, int] = defaultdict(int)  # a Counter takes as long for this as the rest of a call
        self.send = _tagging(inner.send, writer_tag(task_id), repartition_topics, self.sent)
        """Sends, tagged if the topic is the application's own. Arguments as of `Collector.send`."""


def _tagging(send: Send, tag: Headers, topics: frozenset[str], sent: defaultdict[str, int]) -> Send:
    """What is called for every record: a function, as looking up a method's attributes takes as long as what it does."""

    def tagged(
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Headers,
        partition: int | None,
    ) -> None:
        sent[topic] += 1
        if topic in topics:
            headers = headers + tag if headers else tag
        send(topic, key, value, timestamp, headers, partition)

    return tagged


class Inputs:
    """What a task reads of a slice, as much of it in memory as is needed; a context that ends with all files and connections.

    Inputs from outside of the application are read while they are processed, each by a client of its own, as far ahead as
    that fetches. Repartition topics are read before: their writers have to be merged.

    Args:
        application: What the task belongs to.
        admin: Asks the brokers.
        ranges: What is read.
        repartitions: Full names of the application's repartition topics.
    """

    def __init__(
        self,
        application: Application,
        admin: Admin,
        ranges: Mapping[TopicPartition, OffsetRange],
        repartitions: frozenset[str],
    ) -> None:
        """Nothing is read."""
        self.read = 0
        self._kafka = application.kafka
        self._admin = admin
        self._ranges = ranges
        self._repartitions = repartitions
        limit_bytes = application.config.streams.bounded_buffer_max_bytes
        self._writers = WriterMerge(application.state_directory, limit_bytes)
        self._open = ExitStack()

    def __enter__(self) -> Self:
        """The inputs; nothing has been read."""
        self._open.enter_context(self._writers)
        return self

    def __exit__(self, *_: object) -> None:
        """Release all."""
        self._open.close()

    def feed(self, task: Task, handed_over: Iterable[tuple[TopicPartition, list[RawFields]]] = ()) -> None:
        """Let a task follow all its inputs; `read` counts the records from outside of the application as they are processed.

        Args:
            task: The task.
            handed_over: Records of repartition topics that are not in Kafka (a dry run's), behind those that are.

        Raises:
            RangeError: If a range cannot be read completely.
            StateError: If records cannot be spilled.
            BrokerError: If the brokers do not answer.
        """
        asked = {tp: wanted for tp, wanted in self._ranges.items() if wanted.size}
        own = {tp: wanted for tp, wanted in asked.items() if tp.topic in self._repartitions}
        with uncollected():
            for tp, records in read_fields(self._admin, self._kafka, own):
                self._writers.add(tp, records)
            for tp, records in handed_over:
                self._writers.add(tp, records)
        for tp, batches in self._writers.merged():
            task.follow(tp, batches)
        for tp in asked.keys() - own.keys():
            task.follow(tp, self._open.enter_context(closing(self._batches(tp))))

    def _batches(self, tp: TopicPartition) -> Generator[list[RawFields], None, None]:
        for _, records in read_fields(self._admin, self._kafka, {tp: self._ranges[tp]}):
            self.read += len(records)
            yield records


@cache
def _admin(kafka: tuple[tuple[str, str], ...]) -> Admin:
    """One for all tasks of this process: it takes two clients' start and end off each of them."""
    return Admin(dict(kafka))


def run_task(work: TaskWork, build: Callable[[Job], Topology]) -> TaskResult:
    """Do one task's work, unless it is done. While brokers are away it is tried again, for `task.timeout.ms`.

    Args:
        work: What to do.
        build: Builds the topology in this process.

    Raises:
        TaskMigratedError: If another attempt has taken over meanwhile.
        RangeError: If the application stands neither at the start nor at the end of the range.
        RecordError: If a record cannot be handled.
        UnsupportedByHostError: If a processor schedules by the wall clock, and nothing says what to do about it.
        BrokerError: If brokers do not answer.
    """
    collect_rarely()
    application = application_of(work.job, build(work.job).resolved(work.job.partitions))
    admin = _admin(tuple(sorted(work.job.kafka.items())))
    sent: list[_Done] = []
    return outlast(lambda: _take_on(work, application, admin, sent), admin, application.config.streams.task_timeout_ms)


def _take_on(work: TaskWork, application: Application, admin: Admin, sent: list[_Done]) -> TaskResult:
    """Take the task over, and do its work unless it is done; `sent` has what was to be committed by those that came before."""
    clock = SystemClock()
    layout = plan_layout(application.topology, application.id, work.job.partitions)
    repartitions = frozenset(topic.name for topic in layout.repartition_topics)
    global_state = open_global_state(application, admin, clock, work.job.global_ends)
    tagging: list[WriterTagging] = []

    def decorate(collector: Collector) -> Collector:
        tagging[:] = [WriterTagging(collector, work.task_id, repartitions)]
        return tagging[0]

    owned = OwnedTask(
        application,
        layout,
        work.task_id,
        admin,
        clock,
        global_state.stores,
        transaction_timeout_ms=LONGEST_TRANSACTION_MS,  # a slice is one transaction
        decorate=decorate,
    )
    began = time.monotonic()
    try:
        after_predecessor(lambda: _open(owned), within_s=_PREDECESSOR_SECONDS, retry_s=_RETRY_SECONDS)
        restored = time.monotonic()
        check_wall_clock(application, owned.task)
        processing = _Processing(work, application, owned, admin, layout, tagging[0].sent)
        done = processing.run(sent)
        ended = time.monotonic()
        snapshot, warnings = _snapshot(application, owned)
        warnings += _purge(owned, admin, repartitions)
        return TaskResult(
            str(work.task_id),
            done.processed,
            owned.restored_records,
            done.dropped,
            read=done.read,
            written=done.written,
            published=done.published,
            commits=done.commits,
            restore_ms=round((restored - began) * 1000),
            compute_ms=round((ended - restored) * 1000),
            snapshot=snapshot,
            warnings=(*(f"Task {owned.id}: {warning}" for warning in (*owned.warnings, *done.warnings)), *warnings),
            totals=done.totals,
        )
    finally:
        owned.close()


def _open(owned: OwnedTask) -> None:
    """Take the task over. An attempt on the same machine that is fenced by this may have the local state open still.

    Raises:
        StateInUseError: If somebody has it open.
    """
    try:
        owned.open()
    except StateInUseError:
        owned.close()
        raise


@dataclass(frozen=True, slots=True)
class _Done:
    """What has been processed and committed; fields as of `TaskResult`."""

    read: int = 0
    processed: int = 0
    commits: int = 0
    written: int = 0
    published: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


class _Processing:
    """The work of a task that has been taken over.

    Args:
        work: What to do.
        application: What the task belongs to.
        owned: The task.
        admin: Asks the brokers.
        layout: The application's topics.
        written: Counts records by topic as they are written.
    """

    def __init__(
        self,
        work: TaskWork,
        application: Application,
        owned: OwnedTask,
        admin: Admin,
        layout: Layout,
        written: Mapping[str, int],
    ) -> None:
        """Nothing is processed."""
        self._work = work
        self._application = application
        self._owned = owned
        self._admin = admin
        self._repartitions = frozenset(topic.name for topic in layout.repartition_topics)
        self._changelogs = frozenset(topic.name for topic in layout.changelog_topics)
        self._written = written

    def run(self, sent: list[_Done]) -> _Done:
        """Process the ranges, unless that is done; then move event time, which may be done again: nothing is left to forward.

        Args:
            sent: What was to be committed by earlier tries of this process, which got no answer; this one's is added. If the
                work turns out to be done, that is what they, or another attempt of the same, have done.
        """
        work, task = self._work, self._owned.task
        is_done = _is_done(work, self._owned, self._admin)
        if is_done and work.advance_to_ms is None:
            return sent[-1] if sent else _Done(warnings=(_DONE_BEFORE,) if work.size else ())
        read = processed = 0
        if not is_done:
            with Inputs(self._application, self._admin, work.ranges, self._repartitions) as inputs:
                inputs.feed(task)
                processed = task.process_all()
            read = inputs.read
            punctuate_wall_clock(self._application, task)
        if work.advance_to_ms is not None:
            task.advance_stream_time(work.advance_to_ms)
        for tp, wanted in work.ranges.items():
            task.advance(tp, wanted.end)
        self._owned.prepare_commit()
        if not (is_done and sent):
            sent.append(self._done(read, processed))
        self._owned.send_commit()
        self._owned.finish_commit()
        return sent[-1]

    def _done(self, read: int, processed: int) -> _Done:
        written = {topic: count for topic, count in self._written.items() if topic not in self._changelogs}
        return _Done(
            read,
            processed,
            1,
            sum(written.values()),
            sum(count for topic, count in written.items() if topic not in self._repartitions),
            dict(self._owned.task.dropped),
            totals(self._owned.measured()),
        )


def check_wall_clock(application: Application, task: Task) -> None:
    """Refuse processors that schedule by the wall clock, unless somebody has said what becomes of that.

    Raises:
        UnsupportedByHostError: If there is one.
    """
    if task.schedules_wall_clock and application.config.streams.bounded_wall_clock_punctuation == "refuse":
        message = f"{application.id} schedules punctuations by the wall clock, which means nothing in a bounded run"
        hint = (
            "Use PunctuationType.STREAM_TIME; or say --wall-clock-punctuation=once (each is called at the end of a slice) or "
            "never (bounded.wall.clock.punctuation in streams.toml)."
        )
        raise UnsupportedByHostError(message, hint=hint)


def punctuate_wall_clock(application: Application, task: Task) -> None:
    """Call what follows the wall clock at the end of a slice, if it is to be called.

    Raises:
        UnsupportedByHostError: If something was scheduled meanwhile, and nothing says what becomes of that.
    """
    check_wall_clock(application, task)
    if application.config.streams.bounded_wall_clock_punctuation == "once":
        task.punctuate_wall_clock_once()


def _snapshot(application: Application, owned: OwnedTask) -> tuple[str | None, tuple[str, ...]]:
    """Publish what has been committed. That it fails is a warning: the changelogs have it all."""
    if not has_snapshots(application, owned.id):
        return None, ()
    try:
        return owned.publish_snapshot().name, ()
    except (SnapshotError, BrokerError, TaskError) as error:
        return None, (f"Task {owned.id}: {error.message}",)


def _purge(owned: OwnedTask, admin: Admin, repartitions: frozenset[str]) -> tuple[str, ...]:
    """Delete what is needed no more. That it fails is a warning: the next run tries again."""
    try:
        Purge(admin).run([owned], repartitions)
    except StreamsError as error:
        return (f"Task {owned.id}: what is needed no more is not deleted: {error.message}",)
    return ()


def _is_done(work: TaskWork, owned: OwnedTask, admin: Admin) -> bool:
    """Whether an earlier attempt committed this slice; its transaction moved all inputs at once, or none.

    Raises:
        RangeError: If the task stands elsewhere. It may stand before the slice if nothing is left of what lies between.
    """
    starts = owned.starts()
    if all(starts[tp] >= wanted.end for tp, wanted in work.ranges.items()):
        return True
    elsewhere = [tp for tp, wanted in work.ranges.items() if starts[tp] != wanted.start]
    first = admin.beginning_offsets(elsewhere)
    elsewhere = [tp for tp in elsewhere if not starts[tp] < work.ranges[tp].start <= first[tp]]
    if elsewhere:
        tp = elsewhere[0]
        message = f"Task {work.task_id} stands at offset {starts[tp]} of {tp}; the run is to process {work.ranges[tp]}"
        raise RangeError(message, hint=f"Without --from, a run goes on where the application stands. {AGAIN}")
    return False


def application_of(job: Job, topology: Topology) -> Application:
    """The application of a job, made of the topology built in this process.

    Raises:
        TopologyError: If that topology is not the driver's.
    """
    if topology.fingerprint() != job.fingerprint:
        message = f"The topology of {job.config.name} here is not the driver's"
        raise TopologyError(message, hint="Driver and executors must run the same release of the application.")
    return Application(
        job.config, job.version, topology, job.kafka, job.state_directory, job.published, job.dead_letters
    )
