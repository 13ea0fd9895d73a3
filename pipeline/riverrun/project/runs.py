"""Bounded runs of an application: those that were, and one with its plan, a dry run, and the run itself."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from riverrun.errors import ConfigError
from riverrun.hosting.progress import LOOK_SECONDS, reporting_progress
from riverrun.releases.topology import build_topology
from riverrun.spark.options import MAX_RECORDS_PER_SLICE, BackfillOptions, RunOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from riverrun.hosting.application import Application
    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.kafka.admin import Admin
    from riverrun.project.backfill import Backfill
    from riverrun.project.chosen_version import ChosenVersion
    from riverrun.project.cluster import ProjectCluster
    from riverrun.releases.gated_run import GatedRuns
    from riverrun.runtime.recorded_answers import Answers
    from riverrun.spark.bounded_runs.job import RunPlan, RunSummary
    from riverrun.spark.ranges import RunRange
    from riverrun.spark.runs import RunRecord


class BoundedRun:
    """A range of offsets to process on Spark or, if they are few, in this process."""

    def __init__(
        self,
        connected: ConnectedApplication,
        run_range: RunRange,
        cluster: ProjectCluster,
        check: Callable[[], None],
        options: RunOptions,
        gate: GatedRuns | None = None,
    ) -> None:
        self._connected = connected
        self.range = run_range
        self._cluster = cluster
        self._check = check
        self._options = options
        self._gate = gate

    @property
    def application(self) -> Application:
        """The application that processes the range."""
        return self._connected.application

    @property
    def admin(self) -> Admin:
        """The client that asks the brokers."""
        return self._connected.admin

    def plan(self) -> RunPlan:
        """Return the plan of the run; nothing is created or changed.

        Raises:
            RangeError: If the range cannot be read.
            BrokerError: If brokers do not answer.
        """
        from riverrun.spark.bounded_runs.job import plan_run

        return plan_run(self._connected, self.range, self._options)

    def dry_run(self, *, answers: Answers | None = None) -> dict[str, Any]:
        """Process the range without committing anything.

        Args:
            answers: Recorded answers of look-ups, or the file that has them, instead of calls.

        Returns:
            By public topic, a DataFrame of the records it would get (`riverrun.spark.dry_run.dry_run`).

        Raises:
            ConfigError: If the engine is `local`: frames are Spark's. If an answer is missing, or the file cannot be read.
            UnsupportedByHostError: If sub-topologies write to each other: foreign-key joins.
            RangeError: If the range begins neither at the application's position nor at the beginning, or the position
                changes.
            RecordError: If a record cannot be handled.
            BrokerError: If brokers do not answer.
        """
        from riverrun.runtime.recorded_answers import answers_of
        from riverrun.spark.dry_run import dry_run

        known = None if answers is None else answers_of(answers)
        if self.application.config.streams.bounded_engine == "local":
            message = "A dry run returns DataFrames, which the engine local does not have"
            raise ConfigError(message, hint="Leave the engine out, or choose auto or spark.")
        session = self._cluster.sessions.session()
        return dry_run(self._connected, self.range, session, build_topology, self._options, answers=known)

    def run(
        self,
        *,
        progress: bool = False,
        on_plan: Callable[[RunPlan], None] = lambda _plan: None,
        on_progress: Callable[[int, int], None] | None = None,
        every_s: float = LOOK_SECONDS,
    ) -> RunSummary:
        """Process the range, exactly once. What an earlier attempt has done is not done again.

        With a gate, outputs become public once they have passed it. If they do not, the run's work is committed anyway.
        Its outputs are held back until they are published or discarded (`AppRuns.held`).

        Args:
            progress: Whether to show a bar, in a terminal or a notebook.
            on_plan: Called with the plan before the work begins.
            on_progress: Called repeatedly, from another thread, with the processed records and all known ones.
            every_s: Interval of these calls, in seconds.

        Raises:
            RangeError: If the application's position is not the start of the range.
            BegunRangeError: If an interrupted run must be finished first.
            RecordError: If a record cannot be handled.
            UnderWayError: If another run, or a worker, of the application lives; or a switch of versions is under way.
            UnsupportedByHostError: If a processor schedules by the wall clock, and no treatment is set.
            EngineError: If Spark fails, or a task ends with an error of no kind that Riverrun knows.
            GateFailedError: If a critical expectation fails, for this run or one whose outputs are held back already.
            ApprovalNeededError: If the gate has warnings, likewise.
            BrokerError: If brokers do not answer.
        """
        from riverrun.project.progress_bar import progress_bar

        with progress_bar() if progress else followed(on_progress, every_s):
            if self._gate is None:
                return self._processed(self._connected, on_plan, self._check, lambda _summary: None)
            gated = self._gate.new_run()
            application = replace(
                self.application,
                published=gated.version.application.published,
                dead_letters=gated.version.application.dead_letters,
                # Discarding takes the run back: until then, nothing that its state came from may be deleted.
                may_be_discarded=True,
                attempt=gated.attempt,
            )

            def begin() -> None:
                self._check()
                gated.begin(self.range.ranges)

            connected = replace(self._connected, application=application)
            summary = self._processed(connected, on_plan, begin, lambda summary: gated.end(summary.tasks))
            return replace(summary, published=gated.published)

    def _processed(
        self,
        connected: ConnectedApplication,
        on_plan: Callable[[RunPlan], None],
        check: Callable[[], None],
        after: Callable[[RunSummary], None],
    ) -> RunSummary:
        from riverrun.spark.bounded_runs.job import run

        return run(
            connected,
            self.range,
            self._cluster.sessions.on_demand,
            build_topology,
            self._options,
            by=self._cluster.by,
            on_plan=on_plan,
            check=check,
            after=after,
        )


class AppRuns:
    """Bounded runs of an application."""

    def __init__(self, chosen: ChosenVersion) -> None:
        self.chosen = chosen

    def bounded(
        self,
        start: str | RunRange = "committed",
        to: str = "latest",
        *,
        advance_stream_time_to: str | None = None,
        wall_clock_punctuation: str | None = None,
        engine: str | None = None,
        max_records_per_slice: int = MAX_RECORDS_PER_SLICE,
        gate: bool | None = None,
        may_be_passed: bool = False,
    ) -> BoundedRun:
        """Return a bounded run. This determines its range, and does nothing else yet.

        Args:
            start: `committed`, `earliest`, a vector (`topic-0@12,topic-1@7`) or a time; or a whole range.
            to: `latest`, a vector or a time; ignored if `start` is a whole range.
            advance_stream_time_to: Time to which event time advances after the last record. Windows that end before it close.
            wall_clock_punctuation: `refuse`, `once` or `never`. Default: the setting.
            engine: `spark`; `local` for this process, without Spark; or `auto`: `local` if there are few records and Spark
                would run on this machine. Default: the setting.
            max_records_per_slice: Each slice is one transaction per task: larger slices are fewer, and need more memory.
            gate: Whether the application's expectations judge the outputs before they are public. Default: the setting `gate`,
                for the live version.
            may_be_passed: Whether `to` may be a vector that was processed already, as an event brings it: then the run is
                empty. Times always may.

        Raises:
            ConfigError: If there is no such engine or treatment of punctuations; or if another version is to have a gate.
            RangeError: If it is not a range of the application's inputs.
            TopicError: If a topic is missing.
        """
        options = RunOptions(advance_stream_time_to, wall_clock_punctuation, engine, max_records_per_slice, gate)
        return bounded_run(self.chosen, start, to, options, may_be_passed=may_be_passed)

    def backfill(
        self,
        start: str,
        end: str,
        *,
        topics: Iterable[str] = (),
        from_beginning: bool = False,
        gate: bool | None = None,
        approve: str = "",
    ) -> Backfill:
        """Return a backfill of an interval of event time. This does nothing yet.

        The code of the chosen version recomputes rows that the live version has processed. The live version processes the rest.

        Args:
            start: Event time at which the interval begins: `2026-01-01T00:00:00+00:00`.
            end: Event time at which it ends, exclusive.
            topics: Public tables to recompute. Default: all.
            from_beginning: Whether tables that depend on all records are recomputed from all records of the inputs.
            gate: As in `bounded`, for records of the interval that are not processed yet.
            approve: The id of a verdict on the recomputed rows, whose warnings a person has approved.

        Raises:
            RangeError: If a time cannot be read, or the interval is empty.
        """
        return backfill_of(self.chosen, start, end, BackfillOptions(tuple(topics), gate, approve, from_beginning))

    @property
    def held(self) -> GatedRuns:
        """The run whose outputs a gate holds back: inspect it, judge it again, publish or discard it."""
        return _held(self.chosen)

    def history(self, limit: int | None = None) -> list[RunRecord]:
        """Return the runs of all versions, latest first.

        Args:
            limit: Maximum number; all by default.
        """
        from riverrun.spark.runs import RunLog

        return RunLog(self.chosen.cluster.admin).runs(self.chosen.name)[:limit]


def bounded_run(
    chosen: ChosenVersion, start: str | RunRange, to: str, options: RunOptions, *, may_be_passed: bool = False
) -> BoundedRun:
    """Return a bounded run with its options (`AppRuns.bounded`)."""
    from riverrun.spark.ranges import resolve, time_ms

    if options.advance_stream_time_to is not None:
        time_ms(options.advance_stream_time_to)  # refused here: the host reads it when everything else is done
    application = options.chosen_for(chosen.processing())
    is_live = application.published is None
    if options.gate and not is_live:
        message = f"{application.id} is not live: its outputs are judged by the gate of its release"
        raise ConfigError(message, hint=f"riverrun release gate {chosen.name}")
    # Other versions write to staging topics, which the gate of their release judges.
    is_gated = is_live and (chosen.config.gate if options.gate is None else options.gate)
    connected = chosen.on_brokers(application)
    return BoundedRun(
        connected,
        resolve(connected, start, to, may_be_passed=may_be_passed) if isinstance(start, str) else start,
        chosen.cluster,
        lambda: chosen.require_no_switch(application, may_be_held=is_gated),
        options,
        _held(chosen) if is_gated else None,
    )


def backfill_of(chosen: ChosenVersion, start: str, end: str, options: BackfillOptions) -> Backfill:
    """Return a backfill with its options (`AppRuns.backfill`)."""
    from riverrun.project.backfill import Backfill
    from riverrun.releases.repair import Repairer
    from riverrun.releases.scope import scope_of
    from riverrun.spark.ranges import resolve

    cluster, live = chosen.cluster, replace(chosen, named=None)
    repairer = Repairer(live.project, live.name, cluster.admin, cluster.sessions.on_demand, cluster.by or "")
    scope = scope_of(start, end, topics=options.topics)
    scope = replace(scope, from_beginning=options.from_beginning, may_be_open=True)

    def rest() -> BoundedRun:
        # That the end is processed already is no mistake here.
        unprocessed = resolve(live.on_brokers(live.processing()), end=end, warns=False)
        return bounded_run(live, unprocessed, end, RunOptions(gate=options.gate))

    return Backfill(live, repairer, scope, rest, code=chosen.named or "", approved=options.approve)


def _held(chosen: ChosenVersion) -> GatedRuns:
    from riverrun.releases.gated_run import GatedRuns

    cluster = chosen.cluster
    return GatedRuns(chosen.project, chosen.name, cluster.admin, cluster.sessions.session, cluster.by or "")


def followed(
    on_progress: Callable[[int, int], None] | None, every_s: float = LOOK_SECONDS
) -> AbstractContextManager[None]:
    """Report records done and records in all of the work in this context to a function, if there is one."""
    if on_progress is None:
        return nullcontext()
    return reporting_progress(lambda progress: on_progress(progress.done, progress.everything or 0), every_s)
