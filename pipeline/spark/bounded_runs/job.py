"""A bounded run: slices, levels of sub-topologies, and one Spark task per stream task."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pipeline.errors import BrokerError, RangeError, UnderWayError
from pipeline.hosting.application import prepare
from pipeline.hosting.inputs.narrow_times import warn_of_narrow_times
from pipeline.hosting.ownership.alone import processing_alone
from pipeline.hosting.ownership.fencing import fence_owners, settled_offsets
from pipeline.hosting.ownership.sole_host import RUN
from pipeline.kafka.admin import Admin
from pipeline.records import OffsetRange, TaskId, TopicPartition, counted
from pipeline.runtime.layout import plan_layout
from pipeline.spark.bounded_runs.attempts import run_on_spark
from pipeline.spark.bounded_runs.levels import Levels
from pipeline.spark.planning.runs import RunLog, committed_at_end
from pipeline.spark.planning.slices import MAX_RECORDS_PER_SLICE, slices_of
from pipeline.spark.planning.unfinished import left_of_cut
from pipeline.spark.ranges import RunRange, completed
from pipeline.spark.session import lazily
from pipeline.spark.tasks.patience import outlast
from pipeline.spark.tasks.work import TaskResult, job_of, total
from pipeline.topology.grouping import loops

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pipeline.hosting.application import Application
    from pipeline.hosting.ownership.sole_host import SoleHost
    from pipeline.kafka.admin import CommittedOffset
    from pipeline.spark.planning.schedule import Slice
    from pipeline.spark.planning.unfinished import Begun
    from pipeline.spark.tasks.work import Job
    from pipeline.topology.topology import Topology

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The work that a run is going to do.

    Args:
        range: What it processes.
        slices: The parts of it, one after the other.
        levels: For each slice: tasks that run at the same time, one level after the other.
        begun: What runs that were interrupted have begun of it, the first of the slices; None if nothing.
        is_over: Whether it was done before a later run that was interrupted: nothing is to be done, and that is left alone.
        loops: Ids of sub-topologies that read what they write, directly or through each other. They process what a slice has of
            external topics first, and what that leads to in repartition topics after it, whatever the event times.
    """

    range: RunRange
    slices: tuple[Slice, ...]
    levels: tuple[tuple[TaskId, ...], ...]
    begun: Begun | None = None
    is_over: bool = False
    loops: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The outcome of a run, in records.

    Args:
        range: What it was to process.
        slices: Number of slices.
        processed: Records processed, those of repartition topics included.
        restored: Records restored from changelogs.
        dropped: Records not processed, by reason.
        tasks: What each task did, all slices together.
        warnings: What went wrong without harm to the results.
        totals: Totals that processors' sensors have counted, those of all tasks together, by the text of their names.
    """

    range: RunRange
    slices: int
    processed: int = 0
    restored: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    tasks: tuple[TaskResult, ...] = ()
    warnings: tuple[str, ...] = ()
    totals: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        """Say it in a line."""
        dropped = ", ".join(f"{reason} {count}" for reason, count in sorted(self.dropped.items())) or "none"
        done = f"{counted(self.processed, 'record')} processed in {counted(self.slices, 'slice')}"
        return f"{done}, up to {self.range.end}; dropped: {dropped}"


def plan_run(
    application: Application, run_range: RunRange, max_records_per_slice: int = MAX_RECORDS_PER_SLICE
) -> RunPlan:
    """Say how a range would be processed. Nothing is created or changed.

    Of partitions that the range leaves out, nothing is processed.

    Raises:
        RangeError: If the range cannot be read.
        BrokerError: If brokers do not answer.
    """
    admin = Admin(application.kafka)
    topology = application.topology.resolved({tp.topic for tp in run_range.ranges})
    run_range = completed(replace(application, topology=topology), admin, run_range)
    layout = plan_layout(topology, application.id, admin.partitions(topology.external_topics))
    cut = slices_of(application, admin, run_range, max_records_per_slice)
    levels = []
    for level in topology.levels():
        ids = {sub.id for sub in level}
        levels.append(tuple(sorted(task_id for task_id in layout.tasks if task_id.sub_topology in ids)))
    return RunPlan(run_range, cut.parts, tuple(levels), cut.begun, cut.is_over, loops(topology.sub_topologies()))


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
    check: Callable[[], None] = lambda: None,
) -> RunSummary:
    """Process a range. What is done already, by an earlier attempt, is not done again.

    Args:
        application: What to run.
        run_range: What to process.
        spark: A Spark session, or a function that makes one: it is called when there is something to process.
        build: Builds the topology on executors; must be picklable.
        max_records_per_slice: A slice is one transaction per task: larger ones are fewer, and need more memory.
        advance_to_ms: Where to move event time (ms since the epoch) in all tasks after the last slice. Windows that end before,
            grace included, are closed and forwarded. If left out they stay open, and what is suppressed until they close waits
            in the state for the records of the next run or of a worker.
        by: Who runs it, for the record of runs; this user on this machine if left out.
        on_plan: Told what is going to be done, before anything is.
        check: Called when the run is recorded, before anything is done; what it raises ends the run. Who writes something
            down, looks for runs, and finds none, has what it wrote seen here.

    Raises:
        RangeError: If the application does not stand at the start of the range, or a run that was interrupted must be
            finished first.
        RecordError: If a record cannot be handled.
        UnsupportedByHostError: If a processor schedules by the wall clock, and nothing says what to do about it.
        UnderWayError: If another run, or a worker, of the application lives.
        BrokerError: If brokers do not answer.
    """
    try:
        with processing_alone(application, Admin(application.kafka), RUN, by) as host:
            plan = plan_run(application, run_range, max_records_per_slice)
            on_plan(plan)
            if not plan.is_over:
                return _run_alone(application, plan, host, lazily(spark), build, advance_to_ms, check)
    except UnderWayError:
        plan = plan_run(application, run_range, max_records_per_slice)
        if not plan.is_over:
            raise
        on_plan(plan)
    _require_finished(advance_to_ms)
    return RunSummary(plan.range, 0)


def _run_alone(
    application: Application,
    plan: RunPlan,
    host: SoleHost,
    spark: Callable[[], Any],
    build: Callable[[Job], Topology],
    advance_to_ms: int | None,
    check: Callable[[], None],
) -> RunSummary:
    """Carry out a plan, and record what came of it."""
    runs, run_range = RunLog(application.kafka), plan.range
    recorded = runs.started(application, run_range, host)
    try:
        check()
        results = _run_levels(application, plan, spark, build, advance_to_ms, runs)
    except BaseException as error:
        runs.failed(recorded, error)
        raise
    summary = _summary(plan, results)
    snapshots = {task.task_id: task.snapshot for task in summary.tasks if task.snapshot is not None}
    committed = _committed(application, run_range) if snapshots else {}
    runs.ended(recorded, summary.slices, total(application.id, results), snapshots, committed)
    return summary


def _require_finished(advance_to_ms: int | None) -> None:
    """Refuse to move event time on: of a run that was interrupted, earlier records are still to come."""
    if advance_to_ms is not None:
        message = "Event time cannot be moved on before a run that was interrupted is finished"
        raise RangeError(message, hint="Finish that first: ask for an end such as latest.")


def _committed(application: Application, run_range: RunRange) -> dict[str, tuple[int, str]]:
    """Return what is committed at the end; empty if brokers do not say: the rest can do without."""
    admin = Admin(application.kafka)
    topology = application.topology.resolved({tp.topic for tp in run_range.ranges})
    try:
        layout = plan_layout(topology, application.id, admin.partitions(topology.external_topics))
        return committed_at_end(application, admin, layout, run_range)
    except BrokerError as error:
        log.warning("no store can be read from the end of this run on: %s", error.message)
        return {}


def _run_levels(
    application: Application,
    plan: RunPlan,
    spark: Callable[[], Any],
    build: Callable[[Job], Topology],
    advance_to_ms: int | None,
    runs: RunLog,
) -> list[TaskResult]:
    admin, ranges = Admin(application.kafka), plan.range.ranges
    application = replace(application, topology=application.topology.resolved({tp.topic for tp in ranges}))
    layout = prepare(application, admin)
    warn_of_narrow_times(application, admin)
    if admin.has_open_transactions(tp for inputs in layout.tasks.values() for tp in inputs if tp not in ranges):
        fence_owners(application, layout.tasks)  # of a run that died: nobody could say where repartition topics end
    known = settled_offsets(application, admin, {tp for inputs in layout.tasks.values() for tp in inputs})
    _note_starts(application, admin, ranges, known)
    levels = Levels(job_of(application, admin), admin, layout, application.topology.levels())
    results: list[TaskResult] = []
    committed = {tp: known[tp].offset for tp in ranges if tp in known}
    slices = _slices_left(plan, committed)
    origin = _origin(slices[0], plan.begun)
    if plan.begun is not None:
        levels.know(plan.begun)

    def outlasting(step: Callable[[], T]) -> T:
        return outlast(step, admin, application.config.streams.task_timeout_ms)

    for step in levels.steps(len(slices)):
        if layout.repartition_topics:
            outlasting(partial(runs.begin, application, levels.begun(step, slices, origin)))
        while works := outlasting(partial(levels.works, step, slices)):
            results += run_on_spark(spark(), works, build)
            if not levels.repeats(step):
                break
        outlasting(partial(levels.finish, step))
    if advance_to_ms is not None:
        end = {tp: OffsetRange(r.end, r.end) for tp, r in ranges.items()}
        for level in range(len(plan.levels)):
            works = [replace(work, advance_to_ms=advance_to_ms) for work in levels.last_works(level, end)]
            results += run_on_spark(spark(), works, build) if works else []
    return results


def _slices_left(plan: RunPlan, committed: Mapping[TopicPartition, int]) -> Sequence[Slice]:
    """The slices that are not done; without records, there is what a run that died has left."""
    if plan.begun is not None:
        return plan.slices
    return left_of_cut(plan.slices, committed) or [plan.range.ranges]


def _origin(first: Slice, begun: Begun | None) -> dict[TopicPartition, int]:
    """Return where tasks stood before the unfinished work was begun, by this run or by interrupted ones before it."""
    earlier = {} if begun is None else begun.whole.ranges
    return {tp: min(r.start, earlier[tp].start if tp in earlier else r.start) for tp, r in first.items()}


def _note_starts(
    application: Application,
    admin: Admin,
    ranges: Mapping[TopicPartition, OffsetRange],
    known: Mapping[TopicPartition, CommittedOffset],
) -> None:
    """Commit where partitions stand that are begun behind their last record: the next run goes on from there."""
    begun = {tp: r.start for tp, r in ranges.items() if r.size == 0 and r.start > 0}
    missing = {tp: offset for tp, offset in begun.items() if tp not in known}
    if missing:
        admin.alter_offsets(application.id, missing)


def _summary(plan: RunPlan, results: list[TaskResult]) -> RunSummary:
    everything = total("all", results)
    by_task: dict[str, list[TaskResult]] = {}
    for result in results:
        by_task.setdefault(result.task_id, []).append(result)
    tasks = tuple(total(task_id, by_task[task_id]) for task_id in sorted(by_task, key=TaskId.parse))
    return RunSummary(
        plan.range,
        max(len(plan.slices), min(1, len(results))),  # what a worker has left is one
        everything.processed,
        everything.restored,
        everything.dropped,
        tasks,
        everything.warnings,
        everything.totals,
    )
