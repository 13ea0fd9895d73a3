"""A bounded run: slices, levels of sub-topologies, and one Spark task per stream task."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from zipimport import zipimporter

from pipeline.errors import BrokerError, RangeError, StreamsError
from pipeline.hosting.application import prepare
from pipeline.hosting.global_tables import global_partitions
from pipeline.hosting.owned_task import fence_owners, settled_offsets
from pipeline.kafka.admin import Admin
from pipeline.records import OffsetRange, OffsetVector, TaskId, TopicPartition, counted
from pipeline.runtime.layout import full_name, plan_layout
from pipeline.spark.executor import run_task
from pipeline.spark.failures import on_executor, spark_failures
from pipeline.spark.patience import outlast
from pipeline.spark.ranges import RunRange, completed
from pipeline.spark.runs import Begun, RunLog, committed_at_end
from pipeline.spark.schedule import remaining, steps
from pipeline.spark.slices import MAX_RECORDS_PER_SLICE, slices_of
from pipeline.spark.text_rows import text_row
from pipeline.spark.work import (
    Job,
    TaskResult,
    TaskWork,
    another_attempt_may_help,
    describe_error,
    rebuilt_error,
    total,
)
from pipeline.topology.grouping import is_cyclic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pipeline.hosting.application import Application
    from pipeline.kafka.admin import CommittedOffset
    from pipeline.runtime.layout import Layout
    from pipeline.spark.schedule import Slice, Step
    from pipeline.topology.nodes import SubTopology
    from pipeline.topology.topology import Topology

log = logging.getLogger(__name__)

T = TypeVar("T")

_SCHEMA = "result string"
_ANSWER_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What a run is going to do.

    Args:
        range: What it processes.
        slices: The parts of it, one after the other.
        levels: For each slice: tasks that run at the same time, one level after the other.
        begun: Of the first slices, which a run that was interrupted has begun, where each ends in the repartition topics.
        is_over: Whether it was done before a later run that was interrupted: nothing is to be done, and that is left alone.
    """

    range: RunRange
    slices: tuple[Slice, ...]
    levels: tuple[tuple[TaskId, ...], ...]
    begun: tuple[Mapping[TopicPartition, int], ...] = ()
    is_over: bool = False


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
        """What it says, in a line."""
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
    return RunPlan(run_range, cut.parts, tuple(levels), cut.begun, cut.is_over)


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
        spark: A Spark session.
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
        BrokerError: If brokers do not answer.
    """
    runs = RunLog(application.kafka)
    plan = plan_run(application, run_range, max_records_per_slice)
    on_plan(plan)
    run_range = plan.range
    if plan.is_over:
        _require_finished(advance_to_ms)
        return RunSummary(run_range, 0)
    recorded = runs.started(application, run_range, by)
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
    """What is committed at the end; nothing if brokers do not say: what follows can do without."""
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
    spark: Any,
    build: Callable[[Job], Topology],
    advance_to_ms: int | None,
    runs: RunLog,
) -> list[TaskResult]:
    admin, ranges = Admin(application.kafka), plan.range.ranges
    application = replace(application, topology=application.topology.resolved({tp.topic for tp in ranges}))
    layout = prepare(application, admin)
    if admin.has_open_transactions(tp for inputs in layout.tasks.values() for tp in inputs if tp not in ranges):
        fence_owners(application, layout.tasks)  # of a run that died: nobody could say where repartition topics end
    known = settled_offsets(application, admin, {tp for inputs in layout.tasks.values() for tp in inputs})
    _note_starts(application, admin, ranges, known)
    levels = _Levels(job_of(application, admin), admin, layout, application.topology.levels())
    results: list[TaskResult] = []
    committed = {tp: known[tp].offset for tp in ranges if tp in known}
    slices = _slices_left(plan, committed)
    origin, repartitions = {}, bool(layout.repartition_topics)
    if repartitions:
        origin = _origin(slices[0], runs.begun(application))
        levels.know(plan.begun)

    def outlasting(step: Callable[[], T]) -> T:
        return outlast(step, admin, application.config.streams.task_timeout_ms)

    for step in levels.steps(len(slices)):
        if repartitions:
            begun = levels.begun(step, slices, origin)
            outlasting(partial(runs.begin, application, begun))
        while works := outlasting(partial(levels.works, step, slices)):
            results += _run_on_spark(spark, works, build)
            if not levels.repeats(step):
                break
        outlasting(partial(levels.finish, step))
    if advance_to_ms is not None:
        end = {tp: OffsetRange(r.end, r.end) for tp, r in ranges.items()}
        for level in range(len(plan.levels)):
            works = [replace(work, advance_to_ms=advance_to_ms) for work in levels.last_works(level, end)]
            results += _run_on_spark(spark, works, build)
    return results


def _slices_left(plan: RunPlan, committed: Mapping[TopicPartition, int]) -> Sequence[Slice]:
    """The slices that are not done; without records, there is what a run that died has left."""
    if plan.begun:
        return plan.slices
    return remaining(plan.slices, committed) or [plan.range.ranges]


def _origin(first: Slice, begun: Begun | None) -> dict[TopicPartition, int]:
    """Where tasks stood before what is begun now, by this run and those before it that were interrupted."""
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


def job_of(application: Application, admin: Admin) -> Job:
    """What all tasks of a run have in common, as things are now."""
    return Job(
        application.config,
        application.version,
        application.kafka,
        application.state_directory,
        application.topology.fingerprint(),
        application.published,
        admin.partitions(application.topology.external_topics),
        admin.end_offsets(global_partitions(application, admin)),
        application.dead_letters,
    )


class _Levels:
    """The work of each level, and where in the repartition topics the slices end that were written there.

    Args:
        job: The run.
        admin: Asks the brokers.
        layout: Inputs of tasks.
        levels: Sub-topologies by level.
    """

    def __init__(self, job: Job, admin: Admin, layout: Layout, levels: Sequence[tuple[SubTopology, ...]]) -> None:
        """Nothing has been written."""
        self._job = job
        self._admin = admin
        self._layout = layout
        self._levels = levels
        self._application_id = job.config.application_id(job.version)
        self._ends: dict[tuple[TopicPartition, int], int] = {}

    def know(self, begun: Sequence[Mapping[TopicPartition, int]]) -> None:
        """What an interrupted run knew of the ends of the slices that it had begun.

        The last one ends where the topics do: somebody else may have gone on. So do all if the topics have been made anew.
        """
        internal = {tp for level in range(len(self._levels)) for tp in self._internal(level)}
        now = self._admin.settled_end_offsets(internal) if len(begun) > 1 else {}
        for number, ends in enumerate(begun[:-1]):
            self._ends |= {(tp, number): min(end, now[tp]) for tp, end in ends.items() if tp in now}

    def begun(self, step: Step, slices: Sequence[Slice], origin: Mapping[TopicPartition, int]) -> Begun:
        """What will be begun, and not finished, once a step begins; `origin` is where the tasks stood before all of that."""
        numbers = [number for _, number in step]
        unfinished = range(min(numbers), max(numbers) + 1)
        whole = RunRange({tp: OffsetRange(start, slices[max(numbers)][tp].end) for tp, start in origin.items()})
        ends = [OffsetVector({tp: end for (tp, n), end in self._ends.items() if n == number}) for number in unfinished]
        return Begun(whole, tuple(RunRange(slices[number]) for number in unfinished), tuple(ends))

    def steps(self, slices: int) -> list[Step]:
        """What is done at the same time, one after the other."""
        return steps(self._levels, slices)

    def repeats(self, step: Step) -> bool:
        """Whether the step is run again and again, each task from where it stands, until nothing is left."""
        return any(is_cyclic(self._levels[level]) for level, _ in step)

    def works(self, step: Step, slices: Sequence[Slice]) -> list[TaskWork]:
        """The work of a step that is left, the largest first."""
        repeats = self.repeats(step)
        found = []
        for level, number in step:
            internal = self._internal(level)
            ends = (
                self._admin.settled_end_offsets(internal)
                if repeats
                else {tp: self._ends[tp, number] for tp in internal}
            )
            found += self._works(level, slices[number], ends, resumes=repeats)
        return sorted((work for work in found if work.size), key=lambda work: -work.size)

    def finish(self, step: Step) -> None:
        """The step is done: note how far its slices reach in the topics that it wrote to."""
        written = {level: self._written(level) for level, _ in step}
        ends = self._admin.settled_end_offsets({tp for tps in written.values() for tp in tps})
        for level, number in step:
            for tp in written[level]:
                self._ends.setdefault((tp, number), ends[tp])  # what an earlier run has noted is known better

    def last_works(self, level: int, end: Slice) -> list[TaskWork]:
        """Work for all tasks of a level, even if there is nothing to read."""
        return self._works(level, end, self._admin.settled_end_offsets(self._internal(level)), resumes=False)

    def _works(self, level: int, part: Slice, ends: Mapping[TopicPartition, int], *, resumes: bool) -> list[TaskWork]:
        """External inputs as the slice says or, with `resumes`, from where the task stands; internal ones up to an end."""
        tasks = self._tasks(level)
        first = self._admin.beginning_offsets(ends)
        asked = [tp for inputs in tasks.values() for tp in inputs] if resumes else ends
        committed = {tp: known.offset for tp, known in self._admin.committed(self._application_id, asked).items()}

        def wanted(tp: TopicPartition) -> OffsetRange:
            if tp in ends:
                start = committed.get(tp, first[tp])
                return OffsetRange(start, max(start, ends[tp]))
            start = max(part[tp].start, committed.get(tp, 0))
            return OffsetRange(start, max(start, part[tp].end))

        return [TaskWork(self._job, task_id, {tp: wanted(tp) for tp in inputs}) for task_id, inputs in tasks.items()]

    def _tasks(self, level: int) -> dict[TaskId, tuple[TopicPartition, ...]]:
        ids = {sub.id for sub in self._levels[level]}
        return {task_id: inputs for task_id, inputs in self._layout.tasks.items() if task_id.sub_topology in ids}

    def _internal(self, level: int) -> list[TopicPartition]:
        """Partitions of repartition topics that a level reads."""
        own = {topic.name for topic in self._layout.repartition_topics}
        return [tp for inputs in self._tasks(level).values() for tp in inputs if tp.topic in own]

    def _written(self, level: int) -> list[TopicPartition]:
        """Partitions of repartition topics that a level writes to."""
        names = {
            full_name(sub, self._application_id, topic)
            for sub in self._levels[level]
            for topic in sub.repartition_topics.intersection(sub.sink_topics)
        }
        return [
            TopicPartition(topic.name, number)
            for topic in self._layout.repartition_topics
            if topic.name in names
            for number in range(topic.partitions)
        ]


def _run_on_spark(spark: Any, works: list[TaskWork], build: Callable[[Job], Topology]) -> list[TaskResult]:
    """One Spark task per work, in a frame with a row for each."""
    if not works:
        return []

    def process(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                with on_executor():
                    result = attempt(works[number], build)
                yield text_row("result", result)
        forget_archives()

    frame = spark.range(0, len(works), 1, len(works)).mapInArrow(process, _SCHEMA)
    with spark_failures(f"process tasks {', '.join(str(work.task_id) for work in works)}"):
        results = [TaskResult(**json.loads(row.result)) for row in frame.collect()]
    for result in results:
        if result.error is not None:
            raise rebuilt_error(result.error)
    return results


def forget_archives() -> None:
    """Forget what Python knows about the archives on its path; it looks again when it has to.

    Spark's Python processes read the directories of all of them anew before each task, pyspark's own above all: 0.1 s.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[path]


def attempt(work: TaskWork, build: Callable[[Job], Topology]) -> str:
    """One attempt at a task's work, as JSON. What another attempt may mend is raised, so that Spark tries again.

    Where no broker answers it would wait as long as this one has.
    """
    try:
        result = run_task(work, build)
    except StreamsError as error:
        if another_attempt_may_help(error) and Admin(work.job.kafka).is_answered(_ANSWER_SECONDS):
            raise
        result = TaskResult(str(work.task_id), 0, 0, {}, describe_error(error))
    return json.dumps(asdict(result))


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
