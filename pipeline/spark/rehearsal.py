"""Runs one task without committing anything: what it would send is handed back. Imports no pyspark.

The task starts from the application's committed state, or from none, in a directory of its own that is removed afterwards. No
producer is made, so nobody is fenced and nothing is written to Kafka.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pipeline.errors import RangeError
from pipeline.hosting.clock import SystemClock
from pipeline.hosting.global_tables import open_global_state
from pipeline.hosting.restoring import find_missing, restore
from pipeline.hosting.task_state import open_backend
from pipeline.kafka.admin import Admin
from pipeline.kafka.ranges import read_range
from pipeline.partitioning import partition_for
from pipeline.runtime.layout import plan_layout
from pipeline.runtime.ports import Ports
from pipeline.runtime.task import Task
from pipeline.spark.executor import application_of, check_wall_clock, punctuate_wall_clock
from pipeline.spark.spilling import merge_writers, writer_tag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pipeline.hosting.application import Application
    from pipeline.records import Headers, RawFields, RawRecord, TaskId, TopicPartition
    from pipeline.runtime.layout import Layout
    from pipeline.spark.work import Job, TaskWork
    from pipeline.topology.topology import Topology


class Output(NamedTuple):
    """A record that a task would have sent: where to, what, and as how manyth of its task."""

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers
    position: int


@dataclass(frozen=True, slots=True)
class HandedOver:
    """Records that a task of the level above would have sent to one of this task's inputs, in order."""

    tp: TopicPartition
    writer: TaskId
    records: Sequence[RawRecord]


class OutputList:
    """A collector that keeps what is sent.

    Args:
        counts: Partitions of the application's own topics; all others are looked up.
        admin: Whom to ask.
        unwanted: Topics whose records are forgotten: changelogs.
    """

    def __init__(self, counts: Mapping[str, int], admin: Admin, unwanted: frozenset[str]) -> None:
        """Nothing has been sent."""
        self.outputs: list[Output] = []
        self._counts = dict(counts)
        self._admin = admin
        self._unwanted = unwanted

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Headers,
        partition: int | None,
    ) -> None:
        """Keep a record, with the partition Kafka's producers would choose; None where they choose freely (no key)."""
        if topic in self._unwanted:
            return
        if partition is None and key is not None:
            partition = partition_for(key, self.partitions(topic))
        self.outputs.append(Output(topic, partition, key, value, timestamp, headers, len(self.outputs)))

    def partitions(self, topic: str) -> int:
        """Number of partitions of a topic.

        Raises:
            TopicError: If there is no such topic.
        """
        if topic not in self._counts:
            self._admin.require([topic], "are written to")
            self._counts |= self._admin.partitions([topic])
        return self._counts[topic]


def rehearse_task(
    work: TaskWork, handed_over: Iterable[HandedOver], build: Callable[[Job], Topology], *, restores: bool
) -> list[Output]:
    """What a task would send if it did this work, in order.

    Args:
        work: What to do; of internal topics, what lies in them already.
        handed_over: What the level above would have sent.
        build: Builds the topology in this process.
        restores: Whether to begin with the application's state, else with none.

    Raises:
        RangeError: If the application goes on meanwhile, so that its state is not that of the start of the range.
        RecordError: If a record cannot be handled.
        BrokerError: If brokers do not answer.
    """
    application = application_of(work.job, build(work.job).resolved(work.job.partitions))
    admin, clock = Admin(work.job.kafka), SystemClock()
    layout = plan_layout(application.topology, application.id, work.job.partitions)
    global_state = open_global_state(application, admin, clock, work.job.global_ends)
    counts = {topic.name: topic.partitions for topic in layout.internal_topics}
    collector = OutputList(counts, admin, frozenset(topic.name for topic in layout.changelog_topics))
    with tempfile.TemporaryDirectory(prefix="millrace-dry-run-") as directory:
        backend = open_backend(application.sub_topology(work.task_id.sub_topology), Path(directory) / "state")
        spec = application.task_spec(work.task_id, layout.tasks[work.task_id])
        starts = {tp: wanted.start for tp, wanted in work.ranges.items()}
        missing = find_missing(admin, backend, spec, starts) if restores else None
        task = Task(spec, Ports(collector, backend, clock, global_state.stores))
        try:
            if missing is not None:
                task.restore_starts()
                restore(task, missing, admin, work.job.kafka)
            _start(task, work, application, admin, restores=restores)
            check_wall_clock(application, task)
            _feed(task, work, layout, admin, handed_over)
            task.process_all()
            punctuate_wall_clock(application, task)
            task.prepare_commit()  # what caches hold back is forwarded now
        finally:
            task.close()
            backend.close()
    return collector.outputs


def _start(task: Task, work: TaskWork, application: Application, admin: Admin, *, restores: bool) -> None:
    committed = admin.committed(application.id, work.ranges) if restores else {}
    moved = [tp for tp, c in committed.items() if c.offset != work.ranges[tp].start]
    if moved:
        message = f"{application.id} went on to offset {committed[moved[0]].offset} of {moved[0]} during the dry run"
        raise RangeError(message, hint="Stop its worker, or wait for the run that goes on, and try again.")
    task.start({tp: (c.offset, c.metadata) for tp, c in committed.items()})


def _feed(task: Task, work: TaskWork, layout: Layout, admin: Admin, handed_over: Iterable[HandedOver]) -> None:
    internal = {topic.name for topic in layout.repartition_topics}
    written: dict[TopicPartition, list[RawFields]] = {}
    for tp, records in read_range(admin, work.job.kafka, work.ranges):
        if tp.topic in internal:
            written.setdefault(tp, []).extend(records)
        else:
            task.add_records(tp, records)
    for batch in handed_over:
        tag = writer_tag(batch.writer)
        written.setdefault(batch.tp, []).extend(
            record._replace(headers=record.headers + tag) for record in batch.records
        )
    for tp, tagged in written.items():
        task.add_records(tp, merge_writers(tagged))
