"""Runs one task of a dry run without committing; its outputs and its state can be read afterwards. Imports no pyspark.

The task works in a temporary directory. It makes no producer, so it fences no other task and writes nothing to Kafka. It reads
and spills its inputs as a bounded run does, slice by slice; outputs move to a file if they take much memory.
"""

from __future__ import annotations

import pickle
import tempfile
from bisect import bisect_right
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from io import SEEK_END
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Self

from riverrun.errors import RangeError
from riverrun.hosting.local_state import open_backend
from riverrun.hosting.process import SystemClock, collect_rarely
from riverrun.hosting.snapshots import open_snapshot
from riverrun.hosting.standby_tasks import open_global_state
from riverrun.hosting.task_start import begin_task
from riverrun.hosting.topic_ids import committed_ids
from riverrun.partitioning import partition_for
from riverrun.processor.handlers import may_set_aside
from riverrun.records import TopicPartition
from riverrun.runtime.ports import Ports
from riverrun.runtime.recorded_answers import AnsweredLookups
from riverrun.runtime.stuck_records import named_if_stuck
from riverrun.runtime.task import Task
from riverrun.spark.tasks.inputs import Inputs, check_wall_clock, punctuate_wall_clock
from riverrun.spark.tasks.reporting import reporting
from riverrun.spark.tasks.setting_aside import without_set_aside
from riverrun.spark.tasks.spilling import WriterMerge
from riverrun.spark.tasks.work import connected_here, require_same_topics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from riverrun.hosting.application import Application
    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.kafka.admin import Admin
    from riverrun.records import Headers, OffsetRange, RawFields, TaskId
    from riverrun.runtime.failures import SetAside
    from riverrun.runtime.recorded_answers import LookupAnswer
    from riverrun.spark.tasks.work import Job
    from riverrun.state.api import StateBackend
    from riverrun.topology.topology import Topology

_BATCH = 1_000


@dataclass(frozen=True, slots=True)
class DryTask:
    """One task's part of a dry run, for the outputs of an application or for a store at a point in the past.

    Args:
        slices: Per slice, the offsets to process of each input; of internal topics, those of the records already there.
        committed: Per input the offset and the metadata (times) that it begins with, as if committed.
        restores: Whether it begins with the application's state; `committed` must equal the committed offsets then.
        snapshot: Name of the snapshot that it begins with. With neither, it begins with no state.
        readers: The sub-topology of the run that reads each of the application's own topics, by full name. Records for
            its other own topics are dropped.
        is_public: Whether to keep the records that a real run would write to public topics.
        answers: Recorded answers of look-ups; None to call what they ask.
    """

    job: Job
    task_id: TaskId
    slices: tuple[Mapping[TopicPartition, OffsetRange], ...]
    committed: Mapping[TopicPartition, tuple[int, str]]
    restores: bool
    snapshot: str | None
    readers: Mapping[str, int]
    is_public: bool
    turn: int = 0
    answers: tuple[LookupAnswer, ...] | None = None


class ShuffledRecord(NamedTuple):
    """A record that a task of the level above would have sent, with its slice."""

    slice: int
    tp: TopicPartition
    writer: TaskId
    fields: RawFields


class ShuffleReader:
    """Records that the level above would have sent to a task; the task takes them slice by slice, in order.

    Args:
        records: Records by slice; within a slice, those of an input and writer are in sending order.
    """

    def __init__(self, records: Iterator[ShuffledRecord]) -> None:
        self._records = self._source = records
        self._next = self._first = next(records, None)
        self._kept: BinaryIO | None = None

    def keep(self, file: BinaryIO) -> None:
        """Keep the records in a file, so that they can be read again. To be called before any is taken."""
        self._kept = file
        self._records = self._keeping(file)

    def rewind(self) -> None:
        """Begin again with the first record; `keep` was called."""
        assert self._kept is not None, "they are kept"  # noqa: S101 - see `run_dry`
        self._records = chain(_loaded(self._kept), self._keeping(self._kept))
        self._next = self._first

    def _keeping(self, file: BinaryIO) -> Iterator[ShuffledRecord]:
        for record in self._source:
            file.seek(0, SEEK_END)
            pickle.dump(record, file)
            yield record

    def has(self, number: int) -> bool:
        """Return whether records of a slice are left."""
        return self._next is not None and self._next.slice == number

    def take(self, number: int) -> Iterator[tuple[TopicPartition, TaskId, list[RawFields]]]:
        """Yield the records of a slice, in batches of an input and writer."""
        while self._next is not None and self._next.slice == number:
            _, tp, writer, first = self._next
            batch, self._next = [first], None
            for record in self._records:
                if len(batch) == _BATCH or record[:3] != (number, tp, writer):
                    self._next = record
                    break
                batch.append(record.fields)
            yield tp, writer, batch


def _loaded(file: BinaryIO) -> Iterator[ShuffledRecord]:
    file.seek(0)
    while file.peek(1):  # type: ignore[attr-defined]
        yield pickle.load(file)  # noqa: S301 - this process has written it


class ShuffleWriter:
    """A collector that keeps the records sent, spilling them beyond a memory limit; a context that removes its file at the end.

    Args:
        counts: Partition counts of the application's own topics; those of other topics are looked up.
    """

    def __init__(self, runs: WriterMerge, dry_task: DryTask, counts: Mapping[str, int], admin: Admin) -> None:
        self._runs = runs
        self._readers = dry_task.readers
        self._is_public = dry_task.is_public
        self._own = frozenset(counts)
        self._counts = dict(counts)
        self._admin = admin
        self._sent = 0
        self._slice_ends: list[int] = []
        self._batches: dict[TopicPartition, list[RawFields]] = {}

    def __enter__(self) -> Self:
        """Return this collector, still empty."""
        self._runs.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._runs.__exit__()

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Headers,
        partition: int | None,
    ) -> None:
        """Keep a record with the partition that Kafka's producers would choose; -1 if they choose freely (no key)."""
        is_own = topic in self._own
        if topic not in self._readers if is_own else not self._is_public:
            return
        if partition is None and key is not None:
            partition = partition_for(key, self.partitions(topic))
        elif partition is None:
            partition = 0 if is_own else -1
        batch = self._batches.setdefault(TopicPartition(topic, partition), [])
        batch.append((key, value, timestamp, self._sent, headers))
        self._sent += 1
        if self._sent % _BATCH == 0:
            self._keep()

    def partitions(self, topic: str) -> int:
        """Return a topic's partition count: as given for own topics, which may not exist yet; else asked once per topic."""
        if topic not in self._counts:
            self._admin.require([topic], "are written to")
            self._counts |= self._admin.partitions([topic])
        return self._counts[topic]

    def end_slice(self) -> None:
        """Begin the next slice, to which records sent from now on belong."""
        self._slice_ends.append(self._sent)

    def slice_of(self, position: int) -> int:
        """Return the slice in which a record was sent, given its number among all records."""
        return bisect_right(self._slice_ends, position)

    def records(self) -> Iterator[tuple[TopicPartition, list[RawFields]]]:
        """Yield all records by topic and partition (-1: any), in batches; a record's offset is its number among all."""
        self._keep()
        for tp, batches in self._runs.merged():
            for batch in batches:
                yield tp, batch

    def _keep(self) -> None:
        for tp, batch in self._batches.items():
            # Nothing here is packed, and headers are the user's: one may have the name of a pack's.
            self._runs.add(tp, batch, may_be_packs=False)
        self._batches.clear()


@dataclass(frozen=True, slots=True)
class FinishedTask:
    """A task that has done its part, with the records that it would have sent."""

    application: Application
    outputs: ShuffleWriter
    state: StateBackend


@contextmanager
def run_dry(dry_task: DryTask, inbox: ShuffleReader, build: Callable[[Job], Topology]) -> Iterator[FinishedTask]:
    """Provide a task that has done its part; leaving the context removes its state and outputs.

    `inbox` has the records that the level above would have sent to it.
    """
    collect_rarely()
    answered = _answered(dry_task)
    with ExitStack() as opened:
        if may_set_aside(dry_task.job.config.streams):
            inbox.keep(opened.enter_context(tempfile.TemporaryFile()))

        def attempt(aside: Sequence[SetAside]) -> FinishedTask:
            if aside:
                inbox.rewind()
                if answered is not None:
                    answered.undo((*aside[-1].tp, aside[-1].record.offset))
            return opened.enter_context(_attempt(dry_task, inbox, build, answered, aside))

        yield without_set_aside(attempt)


@contextmanager
def _attempt(
    dry_task: DryTask,
    inbox: ShuffleReader,
    build: Callable[[Job], Topology],
    answered: AnsweredLookups | None,
    aside: Sequence[SetAside],
) -> Iterator[FinishedTask]:
    """Provide a task that has done its part without the records that were set aside."""
    job = dry_task.job
    connected, clock = connected_here(job, build), SystemClock()
    layout = connected.layout
    counts = {topic.name: topic.partitions for topic in layout.internal_topics}
    repartitions = frozenset(topic.name for topic in layout.repartition_topics)
    with ExitStack() as opened:
        directory = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="riverrun-dry-run-")))
        connected = replace(connected.in_directory(directory), admin=connected.admin.silent())
        application = connected.application
        outputs = opened.enter_context(
            ShuffleWriter(
                WriterMerge(directory, application.config.streams.bounded_buffer_max_bytes),
                dry_task,
                counts,
                connected.admin,
            )
        )
        global_state = open_global_state(connected, clock, job.global_ends)
        if dry_task.restores:
            begun = begin_task(connected, dry_task.task_id, clock)
            opened.callback(begun.close)
            state = begun.backend
            task = begun.restored(Ports(outputs, state, clock, global_state.stores, lookups=answered))
            # Restored first, then compared: a commit in between would put later state below the start of the range.
            _check_committed(dry_task, connected)
        else:
            state = opened.enter_context(closing(_open_state(dry_task, application)))
            spec = application.task_spec(dry_task.task_id, layout.tasks[dry_task.task_id])
            task = Task(spec, Ports(outputs, state, clock, global_state.stores, lookups=answered))
        opened.callback(task.close)
        task.start({tp: dry_task.committed[tp] for tp in task.spec.inputs if tp in dry_task.committed})
        task.leave_out(aside)
        check_wall_clock(application, task)
        read: list[Inputs] = []
        opened.enter_context(
            reporting(
                connected.admin,
                job.progress,
                layout.tasks[dry_task.task_id],
                dry_task.turn,
                lambda: sum(each.handed for each in read),
            )
        )
        for number, ranges in enumerate(dry_task.slices):
            if inbox.has(number) or any(wanted.size for wanted in ranges.values()):
                with Inputs(connected, ranges, repartitions) as inputs, named_if_stuck(task.node_of):
                    read.append(inputs)
                    inputs.feed(task, inbox.take(number))
                    task.process_all()
                punctuate_wall_clock(application, task)
                # As a run commits here: caches forward what they hold back, and stores pass their writes on.
                task.prepare_commit()
                task.post_commit({})
            outputs.end_slice()
        # A handler may have passed over the error about a missing answer.
        _check_answers(answered)
        require_same_topics(job, connected, committed_ids(dry_task.committed, connected.id))
        yield FinishedTask(application, outputs, state)


def _answered(dry_task: DryTask) -> AnsweredLookups | None:
    return None if dry_task.answers is None else AnsweredLookups(dry_task.answers)


def _check_answers(answered: AnsweredLookups | None) -> None:
    if answered is not None:
        answered.check()


def _open_state(dry_task: DryTask, application: Application) -> StateBackend:
    """Return the state of a task that does not begin with the application's: a snapshot, or nothing."""
    task_id = dry_task.task_id
    if dry_task.snapshot is not None:
        return open_snapshot(application, task_id, dry_task.snapshot)
    return open_backend(application.sub_topology(task_id.sub_topology), application.directory / str(task_id))


def _check_committed(dry_task: DryTask, connected: ConnectedApplication) -> None:
    """Refuse state that does not belong to the start of the range."""
    inputs = {tp for ranges in dry_task.slices for tp in ranges}
    for tp, found in connected.committed(inputs).items():
        # Offset and metadata: within a pack, a worker's commit changes the metadata alone.
        if found != dry_task.committed.get(tp):
            message = f"{connected.id} advanced to offset {found.offset} of {tp} during the dry run"
            raise RangeError(message, hint="Stop its worker, or wait for the end of its run, and try again.")
