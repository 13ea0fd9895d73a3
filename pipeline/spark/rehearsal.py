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
from pipeline.hosting.task_state import open_backend, restore
from pipeline.kafka.admin import Admin
from pipeline.kafka.ranges import read_range
from pipeline.partitioning import partition_for
from pipeline.runtime.layout import plan_layout
from pipeline.runtime.ports import Ports
from pipeline.runtime.task import Task
from pipeline.spark.executor import application_of, check_wall_clock, punctuate_wall_clock, split_writers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pipeline.hosting.application import Application
    from pipeline.records import Headers, RawRecord, TopicPartition
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
    writer: int
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
        ports = Ports(collector, backend, clock, global_state.stores)
        task = Task(spec, ports)
        try:
            if restores:
                starts = {tp: wanted.start for tp, wanted in work.ranges.items()}
                task, _ = restore(
                    lambda: Task(spec, ports),
                    backend,
                    admin,
                    work.job.kafka,
                    starts,
                    lambda _changelog, _done, _expected: None,
                )
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
    for tp, records in read_range(admin, work.job.kafka, work.ranges):
        if tp.topic in internal:
            for run, part in split_writers(records).items():
                task.add_records(tp, part, run)
        else:
            task.add_records(tp, records)
    for batch in handed_over:
        task.add_records(batch.tp, batch.records, batch.writer)
