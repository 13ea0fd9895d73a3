"""A bounded run: slices, levels of sub-topologies, and one Spark task per stream task."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pipeline.errors
from pipeline.errors import ProcessingError, StreamsError
from pipeline.hosting.application import prepare
from pipeline.hosting.global_tables import global_partitions
from pipeline.kafka.admin import Admin
from pipeline.records import OffsetRange
from pipeline.spark.executor import run_task
from pipeline.spark.slices import MAX_RECORDS_PER_SLICE, cut
from pipeline.spark.work import Job, TaskResult, TaskWork
from pipeline.topology.grouping import is_cyclic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pipeline.hosting.application import Application
    from pipeline.records import TopicPartition
    from pipeline.runtime.layout import Layout
    from pipeline.spark.ranges import RunRange
    from pipeline.topology.nodes import SubTopology
    from pipeline.topology.topology import Topology

_SCHEMA = "result string"


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What a run did, in records.

    Args:
        range: What it was to process.
        slices: Number of slices.
        processed: Records processed, those of repartition topics included.
        restored: Records restored from changelogs.
        dropped: Records not processed, by reason.
    """

    range: RunRange
    slices: int
    processed: int = 0
    restored: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)


def run(
    application: Application,
    run_range: RunRange,
    spark: Any,
    build: Callable[[Job], Topology],
    *,
    max_records_per_slice: int = MAX_RECORDS_PER_SLICE,
) -> RunSummary:
    """Process a range. What is done already, by an earlier attempt, is not done again.

    Args:
        application: What to run.
        run_range: What to process.
        spark: A Spark session.
        build: Builds the topology on executors; must be picklable.
        max_records_per_slice: A slice is one transaction per task: larger ones are fewer, and need more memory.

    Raises:
        RangeError: If the application does not stand at the start of the range.
        RecordError: If a record cannot be handled.
        BrokerError: If brokers do not answer.
    """
    admin = Admin(application.kafka)
    topology = application.topology.resolved({tp.topic for tp in run_range.ranges})
    application = replace(application, topology=topology)
    layout = prepare(application, admin)
    job = job_of(application, admin)
    slices = cut(admin, application.kafka, run_range, max_records_per_slice)
    results: list[TaskResult] = []
    leftover = {
        tp: OffsetRange(r.start, r.start) for tp, r in run_range.ranges.items()
    }  # of a run that died between levels
    for part in [leftover, *slices]:
        for level in application.topology.levels():
            repeats = is_cyclic(level)
            while works := list(_works(job, admin, layout, level, part, resumes=repeats)):
                results += _run_on_spark(spark, works, build)
                if not repeats:
                    break
    return _summary(run_range, len(slices), results)


def job_of(application: Application, admin: Admin) -> Job:
    """What all tasks of a run have in common, as things are now."""
    sources = {*application.topology.source_topics}
    sources |= {t for g in application.topology.global_stores for t in g.source.topics}
    return Job(
        application.config,
        application.version,
        application.kafka,
        application.state_directory,
        application.topology.fingerprint(),
        application.published,
        admin.partitions(sources),
        admin.end_offsets(global_partitions(application, admin)),
    )


def _works(
    job: Job,
    admin: Admin,
    layout: Layout,
    level: Iterable[SubTopology],
    part: Mapping[TopicPartition, OffsetRange],
    *,
    resumes: bool,
) -> Iterator[TaskWork]:
    """The work of one level: external inputs as the slice says, repartition topics up to what has been written.

    With `resumes`, external inputs start where the task stands: a level whose tasks write to each other is run again and again
    until nothing is left.
    """
    ids = {sub.id for sub in level}
    tasks = {task_id: inputs for task_id, inputs in layout.tasks.items() if task_id.sub_topology in ids}
    internal = [tp for inputs in tasks.values() for tp in inputs if tp not in part]
    ends, first = admin.settled_end_offsets(internal), admin.beginning_offsets(internal)
    asked = [tp for inputs in tasks.values() for tp in inputs] if resumes else internal
    committed = admin.committed(job.config.application_id(job.version), asked)
    for task_id, inputs in tasks.items():
        ranges = {}
        for tp in inputs:
            if tp not in part:
                start = committed[tp].offset if tp in committed else first.get(tp, 0)
                ranges[tp] = OffsetRange(start, max(start, ends[tp]))
            elif tp in committed:
                start = max(part[tp].start, committed[tp].offset)
                ranges[tp] = OffsetRange(start, max(start, part[tp].end))
            else:
                ranges[tp] = part[tp]
        if any(r.size for r in ranges.values()):
            yield TaskWork(job, task_id, ranges)


def _run_on_spark(spark: Any, works: list[TaskWork], build: Callable[[Job], Topology]) -> list[TaskResult]:
    """One Spark task per work, in a frame with a row for each."""
    if not works:
        return []

    def process(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa  # noqa: PLC0415 - runs on executors

        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield pa.RecordBatch.from_pydict({"result": [attempt(works[number], build)]})

    frame = spark.range(0, len(works), 1, len(works)).mapInArrow(process, _SCHEMA)
    results = [TaskResult(**json.loads(row.result)) for row in frame.collect()]
    for result in results:
        if result.error is not None:
            raise rebuilt_error(result.error)
    return results


def attempt(work: TaskWork, build: Callable[[Job], Topology]) -> str:
    """One attempt at a task's work, as JSON. What another attempt may mend is raised, so that Spark tries again."""
    try:
        result = run_task(work, build)
    except StreamsError as error:
        if another_attempt_may_help(error):
            raise
        result = TaskResult(str(work.task_id), 0, 0, {}, describe_error(error))
    return json.dumps(asdict(result))


def another_attempt_may_help(error: StreamsError) -> bool:
    """Whether Spark should try the task again, rather than the run end."""
    return isinstance(error, pipeline.errors.TaskError) or bool(getattr(error, "retriable", False))


def describe_error(error: StreamsError) -> str:
    """An executor's error as text that `rebuilt_error` understands."""
    return json.dumps([type(error).__name__, error.message, error.hint])


def rebuilt_error(text: str) -> StreamsError:
    """An executor's error, in the driver."""
    name, message, hint = json.loads(text)
    kind = getattr(pipeline.errors, name, ProcessingError)
    rebuilt: StreamsError = kind(message, hint=hint)
    return rebuilt


def _summary(run_range: RunRange, slices: int, results: list[TaskResult]) -> RunSummary:
    dropped: dict[str, int] = {}
    for result in results:
        for reason, count in result.dropped.items():
            dropped[reason] = dropped.get(reason, 0) + count
    processed, restored = sum(r.processed for r in results), sum(r.restored for r in results)
    return RunSummary(run_range, slices, processed, restored, dropped)
