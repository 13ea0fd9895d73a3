"""A bounded run: its plan, slices, levels of sub-topologies, an attempt of each stream task, and its outcome."""

from __future__ import annotations

import logging
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from riverrun.config import EXACTLY_ONCE_V2
from riverrun.errors import BrokerError, RangeError, UnderWayError
from riverrun.hosting.added_partitions import counts_of, note_begun, note_unmatched
from riverrun.hosting.alone import RUN, processing_alone
from riverrun.hosting.continuing import keep_committed, require_new
from riverrun.hosting.inputs import warn_of_narrow_times
from riverrun.hosting.kept_offsets import KeptOffsets
from riverrun.hosting.ownership import fence_owners, settled_offsets
from riverrun.hosting.progress import polling_progress, report_progress
from riverrun.hosting.state_schemas import StateSchemas
from riverrun.hosting.topic_ids import found_ids
from riverrun.records import OffsetRange, TaskId, TopicPartition, counted
from riverrun.runtime.layout import kept_offsets_name
from riverrun.spark.bounded_runs.attempts import (
    LOCAL,
    SPARK,
    Levels,
    RunProgress,
    chosen_engine,
    run_here,
    run_on_spark,
)
from riverrun.spark.options import DEFAULTS, RunOptions
from riverrun.spark.ranges import RunRange, completed, time_ms
from riverrun.spark.runs import RunLog, committed_at_end, ends_of_outputs
from riverrun.spark.session import SessionOnDemand, lazily
from riverrun.spark.slices import slices_of
from riverrun.spark.tasks.inputs import retry_until_available
from riverrun.spark.tasks.reporting import Counts, new_group
from riverrun.spark.tasks.work import TaskResult, job_of, total
from riverrun.spark.unfinished import left_of_cut
from riverrun.topology.grouping import loops

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from riverrun.hosting.alone import SoleHost
    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.hosting.gated import PublishedRun
    from riverrun.kafka.admin import CommittedOffset
    from riverrun.spark.bounded_runs.attempts import Engine
    from riverrun.spark.runs import RunRecord
    from riverrun.spark.tasks.work import Job, SliceWork
    from riverrun.spark.unfinished import InterruptedRun, Slice, Step
    from riverrun.topology.topology import Topology

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The work that a run is going to do.

    Args:
        levels: For each slice: tasks that run at the same time, one level after the other.
        begun: Work that interrupted runs have begun within the range, the first of the slices; None if there is none.
        is_over: Whether the range was done before a later run that was interrupted. Then there is nothing to do, and the
            later run's work stays untouched.
        loops: Ids of sub-topologies that read topics that they write, directly or through each other. They process a slice's
            records of external topics first, and resulting records of repartition topics afterwards, whatever their times.
        topics: Ids of the topics of the range (`hosting.topic_ids`).
    """

    range: RunRange
    slices: tuple[Slice, ...]
    levels: tuple[tuple[TaskId, ...], ...]
    begun: InterruptedRun | None = None
    is_over: bool = False
    loops: tuple[tuple[int, ...], ...] = ()
    topics: Mapping[str, int] = field(default_factory=dict)


def plan_run(connected: ConnectedApplication, run_range: RunRange, options: RunOptions) -> RunPlan:
    """Plan how to process a range, without the partitions that it leaves out. Creates and changes nothing."""
    connected = connected.reading({tp.topic for tp in run_range.ranges})
    topology, topics = connected.topology, found_ids(connected.admin, connected.topology.source_topics)
    run_range = completed(connected, run_range)
    cut = slices_of(connected, run_range, options.max_records_per_slice)
    levels = []
    for level in topology.levels():
        ids = {sub.id for sub in level}
        levels.append(tuple(sorted(task_id for task_id in connected.layout.tasks if task_id.sub_topology in ids)))
    return RunPlan(
        range=run_range,
        slices=cut.parts,
        levels=tuple(levels),
        begun=cut.begun,
        is_over=cut.is_over,
        loops=loops(topology.sub_topologies()),
        topics=topics,
    )


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The outcome of a run, in records.

    Args:
        processed: Records processed, those of repartition topics included.
        warnings: Failures that do not affect the results.
        totals: Totals of processors' sensors over all tasks, by the text of their names.
        engine: What processed the tasks, with the reason; None if nothing was left to process.
        published: The outcome of a run with a gate; None without a gate, or if nothing was left to process.
    """

    range: RunRange
    slices: int
    processed: int = 0
    restored: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    tasks: tuple[TaskResult, ...] = ()
    warnings: tuple[str, ...] = ()
    totals: Mapping[str, float] = field(default_factory=dict)
    engine: Engine | None = None
    published: PublishedRun | None = None

    def __str__(self) -> str:
        dropped = ", ".join(f"{reason} {count}" for reason, count in sorted(self.dropped.items())) or "none"
        done = f"{counted(self.processed, 'record')} processed in {counted(self.slices, 'slice')}"
        engine = f"; engine: {self.engine}" if self.engine is not None else ""
        return f"{done}, up to {self.range.end}; dropped: {dropped}{engine}"


def summary_of(plan: RunPlan, results: Iterable[TaskResult], engine: Engine | None) -> RunSummary:
    """Sum up the results of tasks that an engine has processed."""
    by_task: dict[str, list[TaskResult]] = {}
    for result in results:
        by_task.setdefault(result.task_id, []).append(result)
    tasks = tuple(total(task_id, by_task[task_id]) for task_id in sorted(by_task, key=TaskId.parse))
    everything = total("all", tasks)
    return RunSummary(
        range=plan.range,
        # A plan without slices may still process what a worker left in repartition topics: that is one slice.
        slices=max(len(plan.slices), min(1, len(tasks))),
        processed=everything.processed,
        restored=everything.restored,
        dropped=everything.dropped,
        tasks=tasks,
        warnings=everything.warnings,
        totals=everything.totals,
        engine=engine if tasks else None,
    )


def run(
    connected: ConnectedApplication,
    run_range: RunRange,
    spark: Any,
    build: Callable[[Job], Topology],
    options: RunOptions = DEFAULTS,
    *,
    by: str | None = None,
    on_plan: Callable[[RunPlan], None] = lambda _plan: None,
    check: Callable[[], None] = lambda: None,
    after: Callable[[RunSummary], None] = lambda _summary: None,
) -> RunSummary:
    """Process a range. Work that an earlier attempt has committed is not repeated.

    The application already has the engine that `options` choose. `check` is called once the run is recorded, before anything
    is done; its error ends the run. `after` is called when the range is processed.
    """
    try:
        with _spark_ahead(connected, run_range, spark), processing_alone(connected, RUN, by) as host:
            plan = plan_run(connected, run_range, options)
            on_plan(plan)
            if not plan.is_over:
                summary = _Run(connected, plan, spark, build, options).recorded(host, check)
                # Within the context: no other host may process before `after` has ended.
                after(summary)
                return summary
    except UnderWayError:
        # Another host is running. A range that was done before its work began may be repeated all the same: nothing is done.
        plan = plan_run(connected, run_range, options)
        if not plan.is_over:
            raise
        on_plan(plan)
    if options.advance_stream_time_to is not None:
        # Earlier records of an interrupted run are still to come.
        message = "Cannot advance event time while an interrupted run is unfinished"
        raise RangeError(message, hint="Finish that run first, for example with the end latest.")
    return RunSummary(plan.range, 0)


def _spark_ahead(connected: ConnectedApplication, run_range: RunRange, spark: Any) -> AbstractContextManager[None]:
    """Return a context in which Spark's Java starts in the background, if Spark will probably process the range."""
    if not (run_range.size and isinstance(spark, SessionOnDemand)):
        return nullcontext()
    wanted = connected.application.config.streams.bounded_engine
    return spark.ahead() if chosen_engine(wanted, spark, run_range.size).name == SPARK else nullcontext()


class _Run:
    """A plan, carried out by a host that processes alone."""

    def __init__(
        self,
        connected: ConnectedApplication,
        plan: RunPlan,
        spark: Any,
        build: Callable[[Job], Topology],
        options: RunOptions,
    ) -> None:
        self._connected = connected.reading({tp.topic for tp in plan.range.ranges})
        self._plan = plan
        self._wanted = spark
        self._spark = lazily(spark)
        self._engine: Engine | None = None
        self._build = build
        self._options = options
        self._runs = RunLog(connected.admin)
        self._sources = frozenset(tp.topic for tp in plan.range.ranges)
        self._progress = RunProgress(Counts(connected.admin, ""), plan.range.size)

    def recorded(self, host: SoleHost, check: Callable[[], None]) -> RunSummary:
        """Carry out the plan, and record the run and its outcome."""
        application = self._connected.application
        record = self._outlasting(partial(self._runs.started, self._connected, self._plan.range, host))
        try:
            # The record comes first: of two processes that write and then look for each other, at least one finds the other.
            check()
            results = self._process()
        except BaseException as error:
            # Ctrl-C as well: a run without an end in its record counts as running until its host is gone.
            self._runs.failed(_with_engine(record, self._engine), error, self._ends())
            raise
        summary = summary_of(self._plan, results, self._engine)
        snapshots = {task.task_id: task.snapshot for task in summary.tasks if task.snapshot is not None}
        committed = self._committed() if snapshots else {}
        result = total(application.id, results)
        record = _with_engine(record, summary.engine)
        self._runs.ended(record, summary.slices, result, snapshots, committed, self._ends())
        return summary

    def _process(self) -> list[TaskResult]:
        known = self._prepare()
        group = new_group(self._connected.id)
        job = job_of(self._connected, group)
        levels = Levels(replace(job, topics={**job.topics, **self._plan.topics}), self._connected)
        slices = self._slices_left(known)
        everything = self._plan.range.size
        left = sum(wanted.size for part in slices for wanted in part.values())
        wanted = self._connected.application.config.streams.bounded_engine
        self._engine = chosen_engine(wanted, self._wanted, left)
        counts = Counts(self._connected.admin, group)
        self._progress = RunProgress(counts, max(everything, left), max(0, everything - left))
        with closing(counts), polling_progress(self._connected.id, self._progress.look):
            results = self._take_all(levels, slices)
        report_progress(self._connected.id, everything, everything)
        return results

    def _take_all(self, levels: Levels, slices: Sequence[Slice]) -> list[TaskResult]:
        origin = _origin(slices[0], self._plan.begun)
        if self._plan.begun is not None:
            levels.know(self._plan.begun)
        results: list[TaskResult] = []
        for step in levels.steps(len(slices)):
            results += self._take(step, levels, slices, origin)
        # Otherwise open windows stay open, and suppressed results wait in the state for records of the next run or of a worker.
        if self._options.advance_stream_time_to is not None:
            results += self._advance(levels, time_ms(self._options.advance_stream_time_to))
        return results

    def _prepare(self) -> Mapping[TopicPartition, CommittedOffset]:
        """Prepare topics, end open transactions of a run that died, and commit the offsets where partitions begin."""
        connected, ranges = self._connected, self._plan.range.ranges
        connected.prepare()
        StateSchemas(connected).check()
        warn_of_narrow_times(connected)
        copies = TopicPartition(kept_offsets_name(connected.id), 0)
        if connected.admin.has_open_transactions({*connected.inputs - ranges.keys(), copies}):
            # Open transactions of a dead host would hide where repartition topics end, and what it has committed.
            fence_owners(connected, connected.layout.tasks)
        known = settled_offsets(connected, connected.inputs)
        keep_committed(connected, known)
        new = {tp: r for tp, r in ranges.items() if tp not in known}
        # Also where a range was named: what is committed here would look like known progress.
        require_new(connected, new)
        if new:
            note_begun(connected.with_partitions(counts_of(ranges)))
        else:
            note_unmatched(connected)
        # Partitions without records to process: the next run continues from there. With at least once also the others: an
        # attempt that fails may leave rows, and state without any offset is refused.
        keeps_rows = connected.application.config.streams.processing_guarantee != EXACTLY_ONCE_V2
        begun = {tp: r.start for tp, r in new.items() if r.size == 0 or keeps_rows}
        KeptOffsets(connected.admin, connected.id).begin(begun)
        return known

    def _take(
        self, step: Step, levels: Levels, slices: Sequence[Slice], origin: Mapping[TopicPartition, int]
    ) -> list[TaskResult]:
        """Process levels and slices that are independent of each other."""
        results: list[TaskResult] = []
        if self._connected.layout.repartition_topics:
            # Noted before the step: a run that finds the note finishes these slices with the same cuts, and equal results.
            begun = levels.begun(step, slices, origin)
            check = self._connected.require_publishing
            self._outlasting(partial(self._runs.begin, self._connected.application, begun, check))
        while works := self._outlasting(partial(levels.works, step, slices)):
            results += self._take_on(works)
            if not levels.repeats(step):
                break
        self._outlasting(partial(levels.finish, step))
        return results

    def _advance(self, levels: Levels, advance_to_ms: int) -> list[TaskResult]:
        """Advance event time in all tasks, level by level: the results of a level are records of the next one."""
        end = {tp: OffsetRange(r.end, r.end) for tp, r in self._plan.range.ranges.items()}
        results: list[TaskResult] = []
        for level in range(len(self._plan.levels)):
            works = [replace(work, advance_to_ms=advance_to_ms) for work in levels.last_works(level, end)]
            results += self._take_on(works)
        return results

    def _take_on(self, works: Sequence[SliceWork]) -> list[TaskResult]:
        """Have the engine process tasks that are independent of each other."""
        works = self._progress.begin(works)
        results = self._processed(works)
        self._progress.end(works, results, self._sources)
        return results

    def _processed(self, works: Sequence[SliceWork]) -> list[TaskResult]:
        engine = self._engine
        if engine is not None and engine.name == LOCAL:
            return run_here(works, self._build, engine.attempts, self._connected.admin)
        return run_on_spark(self._spark(), works, self._build)

    def _slices_left(self, known: Mapping[TopicPartition, CommittedOffset]) -> Sequence[Slice]:
        """Return the slices that are not done; without records, one for what a dead run left in repartition topics."""
        plan = self._plan
        if plan.begun is not None:
            return plan.slices
        committed = {tp: known[tp].offset for tp in plan.range.ranges if tp in known}
        return left_of_cut(plan.slices, committed) or [plan.range.ranges]

    def _committed(self) -> dict[str, tuple[int, str]]:
        """Return the committed offsets at the end; empty if brokers do not answer: the run itself does not need them."""
        try:
            return committed_at_end(self._connected, self._plan.range)
        except BrokerError as error:
            log.warning("stores as of the end of this run cannot be read later: %s", error.message)
            return {}

    def _ends(self) -> dict[str, int]:
        """Return where the outputs end; empty if brokers do not answer: the next run's record then shows it."""
        try:
            return ends_of_outputs(self._connected)
        except BrokerError as error:
            log.warning("cannot record where the outputs of this run end: %s", error.message)
            return {}

    def _outlasting(self, step: Callable[[], T]) -> T:
        return retry_until_available(
            step, self._connected.admin, self._connected.application.config.streams.task_timeout_ms
        )


def _with_engine(record: RunRecord, engine: Engine | None) -> RunRecord:
    """Return the record of a run with its engine; unchanged if it has processed nothing."""
    return record if engine is None else replace(record, engine=engine.name, engine_reason=engine.reason)


def _origin(first: Slice, begun: InterruptedRun | None) -> dict[TopicPartition, int]:
    """Return where tasks stood before the unfinished work began, in this run or in interrupted ones before it."""
    earlier = {} if begun is None else begun.whole.ranges
    return {tp: min(r.start, earlier[tp].start if tp in earlier else r.start) for tp, r in first.items()}
