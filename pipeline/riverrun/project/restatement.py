"""Restatements: a backfill of an application, and of all that reads its tables, directly or through others.

Corrections are records of the tables' topics, so an application that keeps these as tables has applied them once it has
processed them. It is brought there in the order of the flow. Its own rows are computed again where they can be, and compared.
Applications that count each correction as a record cannot be restated, and are named before anything begins.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING

from riverrun.errors import ConfigError, RangeError, ReleaseError, UnderWayError, VersionConflictError
from riverrun.project.changes import impact_of_change
from riverrun.project.chosen_version import ChosenVersion
from riverrun.project.members import graph_of
from riverrun.project.runs import backfill_of, bounded_run
from riverrun.project.unprocessed import drain, process
from riverrun.records import OffsetVector, TopicPartition
from riverrun.releases.scope import require_repairable, scope_of
from riverrun.spark.options import BackfillOptions, RunOptions
from riverrun.spark.ranges import COMMITTED

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from riverrun.config import ProjectConfig
    from riverrun.project.backfill import Backfill, BackfillOutcome, BackfillPlan
    from riverrun.project.cluster import ProjectCluster
    from riverrun.project.graph import Member, ProjectGraph
    from riverrun.project.impact import Impact
    from riverrun.project.stretches import Stretch
    from riverrun.releases.repair import Repair
    from riverrun.spark.bounded_runs.job import RunSummary


@dataclass(frozen=True, slots=True)
class RestatedReader:
    """An application that is brought to all corrections of the topics that it reads.

    Args:
        reads: The corrected topics that it reads.
        compared: The tables whose rows are computed again and compared, with the event times of what changes.
        kept: Other topics of it that change, with the reason why none of their rows is computed again.
    """

    app: str
    reads: tuple[str, ...]
    compared: Mapping[str, Stretch] = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)

    @property
    def times(self) -> Stretch:
        """The event times of all rows that are compared."""
        return reduce(or_, self.compared.values())

    def __str__(self) -> str:
        lines = [f"{self.app}: processes the corrections of {', '.join(self.reads)}"]
        lines += [f"  {topic}: rows {times} are computed again, and compared" for topic, times in self.compared.items()]
        return "\n".join([*lines, *(f"  {topic}: follows; {why}" for topic, why in self.kept.items())])


@dataclass(frozen=True, slots=True)
class RestatementPlan:
    """The work of a restatement, before anything is done.

    Args:
        first: The backfill of the application itself.
        readers: The applications that come next, in this order.
        others: Exports and other members that follow corrections by themselves.
        left_out: Members that cannot be restated, and are left out, with reasons.
        refused: Members that cannot be restated, and are not left out, with reasons.
    """

    first: BackfillPlan
    readers: tuple[RestatedReader, ...]
    others: tuple[str, ...]
    left_out: Mapping[str, tuple[str, ...]]
    refused: Mapping[str, tuple[str, ...]]

    def require_restatable(self) -> None:
        """Make sure that all members can be restated or are left out.

        Raises:
            ReleaseError: If there is another one. The message names them, with reasons.
        """
        if not self.refused:
            return
        named = "; ".join(f"{name} ({', '.join(why)})" for name, why in self.refused.items())
        without = " ".join(f"--without {_quoted(name)}" for name in (*self.left_out, *self.refused))
        message = f"{self.first.app}: these cannot be restated: {named}"
        raise ReleaseError(message, hint=f"Leave them out, and their results stay as they are: {without}")

    def __str__(self) -> str:
        """Describe it line by line."""
        parts = [str(self.first)]
        if self.readers:
            parts += ["then, in this order:", *(_indented(str(each)) for each in self.readers)]
        if self.others:
            parts += ["by themselves:", *(f"  {name}: follows the corrections" for name in self.others)]
        for title, members in (("left out", self.left_out), ("cannot be restated", self.refused)):
            told = [f"  {name}: {reason}" for name, why in members.items() for reason in why]
            parts += [f"{title}:", *told] if told else []
        return "\n".join(parts)


@dataclass(frozen=True, slots=True)
class ReaderOutcome:
    """The result of an application that follows.

    Args:
        reader: What was to be done.
        run: The bounded run that has processed the corrections; None if workers have, or nothing was left.
        repair: The rows that were compared and corrected; None if none were.
        kept: The reason why rows were not compared, though planned; empty if they were.
    """

    reader: RestatedReader
    run: RunSummary | None = None
    repair: Repair | None = None
    kept: str = ""

    def __str__(self) -> str:
        """Describe it line by line."""
        lines = [f"{self.reader.app}: has processed the corrections of {', '.join(self.reader.reads)}"]
        lines += [_indented(str(each)) for each in (self.run, self.repair) if each is not None]
        return "\n".join([*lines, f"  not compared: {self.kept}"] if self.kept else lines)


@dataclass(frozen=True, slots=True)
class RestatementOutcome:
    """The result of a restatement.

    Args:
        plan: What was to be done.
        first: The backfill of the application itself.
        readers: The applications that came next.
    """

    plan: RestatementPlan
    first: BackfillOutcome
    readers: tuple[ReaderOutcome, ...]

    @property
    def corrections(self) -> int:
        """The number of published corrections, those of the other applications included."""
        return self.first.corrections + sum(each.repair.corrections for each in self.readers if each.repair)

    def __str__(self) -> str:
        """Describe it line by line."""
        return "\n".join(map(str, (self.first, *self.readers)))


class Restatement:
    """A backfill of an application, and of all that reads its tables. If it is interrupted, another one completes it."""

    def __init__(
        self,
        cluster: ProjectCluster,
        project: ProjectConfig,
        app: ChosenVersion,
        interval: tuple[str, str],
        options: BackfillOptions,
        without: Collection[str] = (),
    ) -> None:
        self._cluster = cluster
        self._project = project
        self._app = app
        self._interval = interval
        self._options = options
        self._without = without

    def plan(self) -> RestatementPlan:
        """Say what would be computed and done, of which applications, and which members cannot be restated. Changes nothing.

        Raises:
            ReleaseError: As `Backfill.plan`; or if corrections return to a member from which they follow.
            ConfigError: If a member to leave out is none that cannot be restated.
            StreamsError: As `Backfill.plan`.
        """
        return self._planned(self._backfill().plan())

    def run(self, on_plan: Callable[[RestatementPlan], None] = lambda _plan: None) -> RestatementOutcome:
        """Backfill the application, then bring each reader to the corrections, and compare its rows.

        Args:
            on_plan: Called with the plan before anything is done.

        Returns:
            What was corrected and processed.

        Raises:
            ReleaseError: As `plan`; or if members cannot be restated and are not left out.
            StreamsError: As `Backfill.run`, for each application.
        """
        plan = self.plan()
        plan.require_restatable()
        on_plan(plan)
        first = self._backfill().run()
        return RestatementOutcome(plan, first, tuple(map(self._brought, plan.readers)))

    def recompute(
        self, on_plan: Callable[[RestatementPlan], None] = lambda _plan: None
    ) -> tuple[Repair | None, tuple[ReaderOutcome, ...]]:
        """Do as `run`, but leave what the application itself has not processed yet.

        Args:
            on_plan: As in `run`.

        Returns:
            The rows of the application that were corrected, as of `Backfill.recompute`, and the results of the readers.

        Raises:
            StreamsError: As `run`.
        """
        plan = self.plan()
        plan.require_restatable()
        on_plan(plan)
        return self._backfill().recompute(), tuple(map(self._brought, plan.readers))

    def _backfill(self) -> Backfill:
        return backfill_of(self._app, *self._interval, self._options)

    def _planned(self, first: BackfillPlan) -> RestatementPlan:
        impact, graph = self._impact()
        reasons = {str(each.member): each.told for each in impact.reached if not each.is_restated}
        reasons |= {name: (f"is not known: {why}",) for name, why in graph.unknown.items()}
        self._check_without(impact, reasons)
        restated = self._in_order(impact, graph)
        return RestatementPlan(
            first,
            tuple(self._reader(member, impact, graph) for member in restated if member.is_application),
            tuple(str(member) for member in restated if not member.is_application),
            {name: why for name, why in reasons.items() if name in self._without},
            {name: why for name, why in reasons.items() if name not in self._without},
        )

    def _impact(self) -> tuple[Impact, ProjectGraph]:
        """Return the impact on the live versions, and their graph."""
        name, (start, end) = self._app.name, self._interval
        versions = {each: self._live(each).version for each in self._project.apps}
        application = self._live(name).loaded()
        graph = graph_of(self._project, versions, self._cluster.kafka, {name: application})
        impact = impact_of_change(application, graph, start=start, end=end, topics=self._options.topics)
        return impact, graph

    def _in_order(self, impact: Impact, graph: ProjectGraph) -> tuple[Member, ...]:
        """Return the members that can be restated, each after those whose corrections it reads."""
        restated = {each.member for each in impact.reached if each.is_restated}
        # Other topics lead to other orders.
        flow = graph.part({impact.app, *restated}, impact.corrected)
        back = flow.returning()
        if back:
            named = ", ".join(map(str, back))
            message = f"{self._app.name}: corrections return to members from which they follow: {named}"
            raise ReleaseError(message, hint="Backfill each application by itself, without --downstream.")
        return tuple(member for member in flow.ordered() if member != impact.app)

    def _check_without(self, impact: Impact, reasons: Mapping[str, tuple[str, ...]]) -> None:
        needless = next((name for name in self._without if name not in reasons), None)
        if needless is None:
            return
        is_reached = needless in {str(each.member) for each in impact.reached}
        why = "it can be restated" if is_reached else "no correction reaches it"
        message = f"{needless} need not be left out: {why}"
        named = ", ".join(reasons) or "none"
        raise ConfigError(message, hint=f"Members that cannot be restated: {named}.")

    def _reader(self, member: Member, impact: Impact, graph: ProjectGraph) -> RestatedReader:
        application = self._live(member.name).loaded()
        reads = tuple(dict.fromkeys(edge.topic for edge in graph.reads_of(member) if edge.topic in impact.corrected))
        compared: dict[str, Stretch] = {}
        kept: dict[str, str] = {}
        for each in impact.changed:
            if each.writer != member or each.times is None:
                continue
            scope = scope_of(each.times.start, each.times.end, topics=[each.topic])
            try:
                require_repairable(application, replace(scope, from_beginning=self._options.from_beginning))
            except ReleaseError as error:
                kept[each.topic] = error.message
            else:
                compared[each.topic] = each.times
        return RestatedReader(member.name, reads, compared, kept)

    def _brought(self, reader: RestatedReader) -> ReaderOutcome:
        live = self._live(reader.app)
        connected = live.on_brokers(live.processing())
        topics = connected.resolved().topology.source_topics
        partitions = connected.admin.partitions(topics)
        tps = [TopicPartition(topic, number) for topic, count in partitions.items() for number in range(count)]
        # A global table is read by each instance for itself.
        if not tps:
            return ReaderOutcome(reader)
        # All inputs: an application that processes them by their times must not process one alone.
        to = str(OffsetVector(connected.admin.stable_end_offsets(tps)))
        options = RunOptions(gate=self._options.gate)
        rest = partial(bounded_run, live, COMMITTED, to, options, may_be_passed=True)
        done = process(reader.app, live.config.streams, rest) or drain(connected, rest)
        return self._compared(reader, live, done)

    def _compared(self, reader: RestatedReader, live: ChosenVersion, done: RunSummary | None) -> ReaderOutcome:
        if not reader.compared:
            return ReaderOutcome(reader, done)
        options = replace(self._options, topics=tuple(reader.compared))
        again = backfill_of(live, reader.times.start, reader.times.end, options)
        try:
            again.plan()
        # Once that is over, another restatement compares the rows.
        except (UnderWayError, VersionConflictError):
            raise
        # Its rows have followed in any case.
        except (ReleaseError, RangeError) as error:
            return ReaderOutcome(reader, done, kept=error.message)
        return ReaderOutcome(reader, done, again.recompute())

    def _live(self, name: str) -> ChosenVersion:
        return ChosenVersion(self._cluster, self._project, name)


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


def _quoted(name: str) -> str:
    return f'"{name}"' if " " in name else name
