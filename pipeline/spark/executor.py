"""Runs one task over its part of a slice, in one transaction. Imports no pyspark: any process can do it.

An attempt begins by taking the task over, so an earlier attempt, or a copy that Spark runs for speed, can write nothing any
more. What it then finds committed tells whether the work is done already.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from pipeline.errors import RangeError, TopologyError
from pipeline.hosting.application import Application
from pipeline.hosting.clock import SystemClock
from pipeline.hosting.global_tables import open_global_state
from pipeline.hosting.owned_task import OwnedTask
from pipeline.kafka.admin import Admin
from pipeline.kafka.ranges import read_range
from pipeline.records import RawRecord, TaskId
from pipeline.runtime.layout import plan_layout
from pipeline.spark.work import TaskResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pipeline.records import Headers
    from pipeline.runtime.ports import Collector
    from pipeline.runtime.task import Task
    from pipeline.spark.work import Job, TaskWork
    from pipeline.topology.topology import Topology

WRITER_HEADER = "__millrace.writer"
"""On records of repartition topics: which task wrote them. Stripped on reading."""
_WRITER = struct.Struct(">ii")
_TRANSACTION_TIMEOUT_MS = 15 * 60 * 1000
"""A slice is one transaction; brokers allow 15 minutes unless told otherwise."""


class WriterTagging:
    """A collector that tells readers of repartition topics which task a record comes from.

    The tasks of a level run at different speeds, so their records lie in a repartition topic in an order that means nothing.
    With the writer known, a reader merges one run per writer by event time, as if each were a partition: the order, and with
    it what is late, no longer depends on speeds.
    """

    def __init__(self, inner: Collector, task_id: TaskId, repartition_topics: frozenset[str]) -> None:
        """Topics are full names."""
        self._inner = inner
        self._topics = repartition_topics
        self._tag = ((WRITER_HEADER, _WRITER.pack(*task_id)),)
        self.partitions = inner.partitions

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Headers,
        partition: int | None,
    ) -> None:
        """Send, tagged if the topic is the application's own."""
        tagged = headers + self._tag if topic in self._topics else headers
        self._inner.send(topic, key, value, timestamp, tagged, partition)


def split_writers(records: Iterable[RawRecord]) -> dict[int, list[RawRecord]]:
    """Records of a repartition topic by who wrote them, each in order of offsets, without the tag.

    Records without one (a live worker's) are run 0.
    """
    runs: dict[int, list[RawRecord]] = {}
    for record in records:
        run, headers = 0, record.headers
        if headers and headers[-1][0] == WRITER_HEADER:
            run, headers = run_of(TaskId(*_WRITER.unpack(headers[-1][1] or b""))), headers[:-1]
        runs.setdefault(run, []).append(RawRecord(record.key, record.value, record.timestamp, record.offset, headers))
    return runs


def run_of(writer: TaskId) -> int:
    """The number of a writer's run of records within a partition; 0 is for records whose writer is not known."""
    return (writer.sub_topology << 32 | writer.partition) + 1


def run_task(work: TaskWork, build: Callable[[Job], Topology]) -> TaskResult:
    """Do one task's work, unless it is done.

    Args:
        work: What to do.
        build: Builds the topology in this process.

    Raises:
        TaskMigratedError: If another attempt has taken over meanwhile.
        RangeError: If the application stands neither at the start nor at the end of the range.
        RecordError: If a record cannot be handled.
        BrokerError: If brokers do not answer.
    """
    application = application_of(work.job, build(work.job).resolved(work.job.partitions))
    admin, clock = Admin(work.job.kafka), SystemClock()
    layout = plan_layout(application.topology, application.id, work.job.partitions)
    repartitions = frozenset(topic.name for topic in layout.repartition_topics)
    global_state = open_global_state(application, admin, clock, work.job.global_ends)
    owned = OwnedTask(
        application,
        layout,
        work.task_id,
        admin,
        clock,
        global_state.stores,
        transaction_timeout_ms=_TRANSACTION_TIMEOUT_MS,
        decorate=lambda collector: WriterTagging(collector, work.task_id, repartitions),
    )
    owned.open()
    try:
        if _is_done(work, owned):
            return TaskResult(str(work.task_id), 0, owned.restored_records, {})
        _feed(work, owned.task, admin, repartitions)
        processed = owned.task.process_all()
        for tp, wanted in work.ranges.items():
            owned.task.advance(tp, wanted.end)
        owned.commit()
        return TaskResult(str(work.task_id), processed, owned.restored_records, dict(owned.task.dropped))
    finally:
        owned.close()


def _feed(work: TaskWork, task: Task, admin: Admin, repartitions: frozenset[str]) -> None:
    for tp, records in read_range(admin, work.job.kafka, work.ranges):
        if tp.topic in repartitions:
            for run, part in split_writers(records).items():
                task.add_records(tp, part, run)
        else:
            task.add_records(tp, records)


def _is_done(work: TaskWork, owned: OwnedTask) -> bool:
    """Whether an earlier attempt committed this slice; its transaction moved all inputs at once, or none."""
    starts = owned.starts()
    if all(starts[tp] >= wanted.end for tp, wanted in work.ranges.items()):
        return True
    elsewhere = [tp for tp, wanted in work.ranges.items() if starts[tp] != wanted.start]
    if elsewhere:
        tp = elsewhere[0]
        message = f"Task {work.task_id} stands at offset {starts[tp]} of {tp}; the run is to process {work.ranges[tp]}"
        raise RangeError(message, hint="Start from `committed`, or reset the application's offsets and state first.")
    return False


def application_of(job: Job, topology: Topology) -> Application:
    """The application of a job, made of the topology built in this process.

    Raises:
        TopologyError: If that topology is not the driver's.
    """
    if topology.fingerprint() != job.fingerprint:
        message = f"The topology of {job.config.name} here is not the driver's"
        raise TopologyError(message, hint="Driver and executors must run the same release of the application.")
    return Application(job.config, job.version, topology, job.kafka, job.state_directory, job.published)
