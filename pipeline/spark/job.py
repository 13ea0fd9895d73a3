"""A bounded run: slices, levels of sub-topologies, and one Spark task per stream task."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pipeline.errors
from pipeline.errors import ProcessingError, StreamsError
from pipeline.hosting.application import prepare
from pipeline.hosting.global_tables import global_partitions
from pipeline.hosting.owned_task import fence_owners
from pipeline.kafka.admin import Admin
from pipeline.records import OffsetRange, TaskId
from pipeline.runtime.layout import plan_layout
from pipeline.spark.executor import run_task
from pipeline.spark.failures import missing_module
from pipeline.spark.runs import RunLog
from pipeline.spark.slices import MAX_RECORDS_PER_SLICE, cut
from pipeline.spark.work import Job, TaskResult, TaskWork, total
from pipeline.topology.grouping import is_cyclic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pipeline.hosting.application import Application
    from pipeline.records import TopicPartition
    from pipeline.runtime.layout import Layout
    from pipeline.spark.ranges import RunRange
    from pipeline.topology.topology import Topology

_SCHEMA = "result string"


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What a run is going to do.

    Args:
        range: What it processes.
        slices: The parts of it, one after the other.
        levels: For each slice: tasks that run at the same time, one level after the other.
    """

    range: RunRange
    slices: tuple[Mapping[TopicPartition, OffsetRange], ...]
    levels: tuple[tuple[TaskId, ...], ...]


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What a run did, in records.

    Args:
        range: What it was to process.
        slices: Number of slices.
        processed: Records processed, those of repartition topics included.
        restored: Records restored from changelogs.
        dropped: Records not processed, by reason.
        tasks: What each task did, all slices together.
        warnings: What went wrong without harm to the results.
    """

    range: RunRange
    slices: int
    processed: int = 0
    restored: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    tasks: tuple[TaskResult, ...] = ()
    warnings: tuple[str, ...] = ()


def plan_run(
    application: Application, run_range: RunRange, max_records_per_slice: int = MAX_RECORDS_PER_SLICE
) -> RunPlan:
    """Say how a range would be processed. Nothing is created or changed.

    Raises:
        RangeError: If the range cannot be read.
        BrokerError: If brokers do not answer.
    """
    admin = Admin(application.kafka)
    topology = application.topology.resolved({tp.topic for tp in run_range.ranges})
    layout = plan_layout(topology, application.id, admin.partitions(_read_topics(topology)))
    slices = tuple(cut(admin, application.kafka, run_range, max_records_per_slice))
    levels = []
    for level in topology.levels():
        ids = {sub.id for sub in level}
        levels.append(tuple(sorted(task_id for task_id in layout.tasks if task_id.sub_topology in ids)))
    return RunPlan(run_range, slices, tuple(levels))


def run(
    application: Application,
    run_range: RunRange,
    spark: Any,
    build: Callable[[Job], Topology],
    *,
    max_records_per_slice: int = MAX_RECORDS_PER_SLICE,
    advance_to_ms: int | None = None,
    by: str | None = None,
    on_plan: Callable[[RunPlan], None] = lambda _plan: None,
) -> RunSummary:
    """Process a range. What is done already, by an earlier attempt, is not done again.

    Args:
        application: What to run.
        run_range: What to process.
        spark: A Spark session.
        build: Builds the topology on executors; must be picklable.
        max_records_per_slice: A slice is one transaction per task: larger ones are fewer, and need more memory.
        advance_to_ms: Where to move event time (ms since the epoch) in all tasks after the last slice. Windows that end before,
            grace included, are closed and forwarded. If left out they stay open, and what is suppressed until they close waits
            in the state for the records of the next run or of a worker.
        by: Who runs it, for the record of runs; this user on this machine if left out.
        on_plan: Told what is going to be done, before anything is.

    Raises:
        RangeError: If the application does not stand at the start of the range.
        RecordError: If a record cannot be handled.
        UnsupportedByHostError: If a processor schedules by the wall clock, and nothing says what to do about it.
        BrokerError: If brokers do not answer.
    """
    runs = RunLog(application.kafka)
    plan = plan_run(application, run_range, max_records_per_slice)
    on_plan(plan)
    recorded = runs.started(application, run_range, by)
    try:
        results = _run_levels(application, plan, spark, build, advance_to_ms)
    except BaseException as error:
        runs.failed(recorded, error)
        raise
    summary = _summary(plan, results)
    snapshots = {task.task_id: task.snapshot for task in summary.tasks if task.snapshot is not None}
    runs.ended(recorded, summary.slices, total(application.id, results), snapshots)
    return summary


def _run_levels(
    application: Application, plan: RunPlan, spark: Any, build: Callable[[Job], Topology], advance_to_ms: int | None
) -> list[TaskResult]:
    admin, ranges = Admin(application.kafka), plan.range.ranges
    application = replace(application, topology=application.topology.resolved({tp.topic for tp in ranges}))
    layout = prepare(application, admin)
    if admin.has_open_transactions(tp for inputs in layout.tasks.values() for tp in inputs if tp not in ranges):
        fence_owners(application, layout.tasks)  # of a run that died: nobody could say where repartition topics end
    job = job_of(application, admin)
    results: list[TaskResult] = []
    leftover = {tp: OffsetRange(r.start, r.start) for tp, r in ranges.items()}  # of a run that died between levels
    cyclic = [is_cyclic(level) for level in application.topology.levels()]
    for part in [leftover, *plan.slices]:
        for level, repeats in zip(plan.levels, cyclic, strict=True):
            while works := [w for w in _works(job, admin, layout, level, part, resumes=repeats) if w.size]:
                results += _run_on_spark(spark, works, build)
                if not repeats:
                    break
    if advance_to_ms is not None:
        end = {tp: OffsetRange(r.end, r.end) for tp, r in ranges.items()}
        for level in plan.levels:
            works = [
                replace(w, advance_to_ms=advance_to_ms) for w in _works(job, admin, layout, level, end, resumes=False)
            ]
            results += _run_on_spark(spark, works, build)
    return results


def job_of(application: Application, admin: Admin) -> Job:
    """What all tasks of a run have in common, as things are now."""
    return Job(
        application.config,
        application.version,
        application.kafka,
        application.state_directory,
        application.topology.fingerprint(),
        application.published,
        admin.partitions(_read_topics(application.topology)),
        admin.end_offsets(global_partitions(application, admin)),
    )


def _read_topics(topology: Topology) -> set[str]:
    """The external topics of sources and global tables."""
    return {*topology.source_topics, *(t for g in topology.global_stores for t in g.source.topics)}


def _works(
    job: Job,
    admin: Admin,
    layout: Layout,
    level: Iterable[TaskId],
    part: Mapping[TopicPartition, OffsetRange],
    *,
    resumes: bool,
) -> Iterator[TaskWork]:
    """The work of one level: external inputs as the slice says, repartition topics up to what has been written.

    With `resumes`, external inputs start where the task stands: a level whose tasks write to each other is run again and again
    until nothing is left.
    """
    tasks = {task_id: layout.tasks[task_id] for task_id in level}
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
    results = [TaskResult(**json.loads(row.result)) for row in collected(frame)]
    for result in results:
        if result.error is not None:
            raise rebuilt_error(result.error)
    return results


def collected(frame: Any) -> list[Any]:
    """A frame's rows.

    Raises:
        ConfigError: If executors cannot import what its tasks need.
    """
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an engine loads where it is used

    try:
        rows: list[Any] = frame.collect()
    except PySparkException as error:
        if (missing := missing_module(error)) is not None:
            raise missing from error
        raise
    return rows


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
    may_pass = isinstance(error, pipeline.errors.TaskError | pipeline.errors.StateInUseError)
    return may_pass or bool(getattr(error, "retriable", False))


def describe_error(error: StreamsError) -> str:
    """An executor's error as text that `rebuilt_error` understands."""
    return json.dumps([type(error).__name__, error.message, error.hint])


def rebuilt_error(text: str) -> StreamsError:
    """An executor's error, in the driver."""
    name, message, hint = json.loads(text)
    kind = getattr(pipeline.errors, name, ProcessingError)
    rebuilt: StreamsError = kind(message, hint=hint)
    return rebuilt


def _summary(plan: RunPlan, results: list[TaskResult]) -> RunSummary:
    everything = total("all", results)
    by_task: dict[str, list[TaskResult]] = {}
    for result in results:
        by_task.setdefault(result.task_id, []).append(result)
    tasks = tuple(total(task_id, by_task[task_id]) for task_id in sorted(by_task, key=TaskId.parse))
    return RunSummary(
        plan.range,
        len(plan.slices),
        everything.processed,
        everything.restored,
        everything.dropped,
        tasks,
        everything.warnings,
    )
