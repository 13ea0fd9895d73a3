"""Backfills: an interval of event time is computed, whether or not the live version has processed it.

What it has processed is computed again as a repair does: into staging topics, judged, and published as corrections. What it
has not processed yet is processed by a bounded run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from riverrun.config import OutputKind
from riverrun.errors import RangeError
from riverrun.project.unprocessed import process
from riverrun.records import counted
from riverrun.releases.scope import chosen_tables, moment_text
from riverrun.releases.topology import outputs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from riverrun.project.chosen_version import ChosenVersion
    from riverrun.project.unprocessed import PlannedRun
    from riverrun.releases.repair import Repair, Repairer, RepairPlan
    from riverrun.releases.scope import Scope
    from riverrun.spark.bounded_runs.job import RunSummary
    from riverrun.spark.ranges import RunRange
    from riverrun.topology.outputs import Output


@dataclass(frozen=True, slots=True)
class BackfillPlan:
    """The work of a backfill, before anything is done.

    Args:
        app: The application.
        live: The live version.
        interval: The interval of event time, as text.
        recomputed: How its processed part is computed again; None if there is nothing to compute again.
        unprocessed: The offsets up to the end of the interval that the live version has not processed yet.
        outputs: What happens to each output, as text, by topic.
    """

    app: str
    live: str
    interval: str
    recomputed: RepairPlan | None
    unprocessed: RunRange
    outputs: Mapping[str, str]

    @property
    def is_empty(self) -> bool:
        """Return whether the live version has processed all of it, and no table is to be recomputed."""
        return self.recomputed is None and not self.unprocessed.size

    def __str__(self) -> str:
        """Describe it line by line."""
        again, new = self.recomputed, self.unprocessed
        lines = [f"{self.app}: backfill of {self.interval}, {self.live} is live"]
        if again is not None:
            lines.append(f"  recompute with {again.code}: {counted(again.range.size, 'offset')}, {again.range}")
        if new.size:
            lines.append(f"  process with {self.live}: {counted(new.size, 'offset')} not processed yet, {new}")
        if self.is_empty:
            lines.append("  nothing to do")
        return "\n".join([*lines, *(f"  {topic}: {effect}" for topic, effect in self.outputs.items())])


@dataclass(frozen=True, slots=True)
class BackfillOutcome:
    """The result of a backfill.

    Args:
        plan: What was to be done.
        repair: The rows that were corrected; None if nothing was computed again.
        run: The bounded run over what was not processed yet; None if there was nothing.
    """

    plan: BackfillPlan
    repair: Repair | None
    run: RunSummary | None

    @property
    def corrections(self) -> int:
        """The number of published corrections."""
        return 0 if self.repair is None else self.repair.corrections

    @property
    def compared(self) -> int:
        """The number of public rows that were compared with rows computed again."""
        return 0 if self.repair is None else sum(self.repair.compared.values())

    def __str__(self) -> str:
        """Describe it line by line."""
        lines = [str(each) for each in (self.repair, self.run) if each is not None]
        if self.run is not None and self.run.published is not None:
            lines.append(str(self.run.published))
        return "\n".join(lines) or f"{self.plan.app}: nothing to do for {self.plan.interval}"


class Backfill:
    """An interval of event time to compute; `code` is the version that computes processed rows, by default the live one."""

    def __init__(
        self,
        chosen: ChosenVersion,
        repairer: Repairer,
        scope: Scope,
        rest: Callable[[], PlannedRun],
        *,
        code: str = "",
        approved: str = "",
    ) -> None:
        if scope.start_ms >= scope.end_ms:
            message = f"{chosen.name}: the interval to backfill is empty: {scope}"
            raise RangeError(message, hint="It ends before --to, and begins at --from.")
        self._chosen = chosen
        self._repairer = repairer
        self._scope = scope
        self._code = code
        self._approved = approved
        self._rest = rest

    def plan(self) -> BackfillPlan:
        """Say what would be read, computed and done to each output. Changes nothing.

        Raises:
            ReleaseError: If rows of the interval cannot be computed again exactly, a release is under way, or outputs of a run
                are held back. The message names the table and the store.
            RangeError: If records of that time have been deleted.
            BrokerError: If brokers do not answer.
        """
        return self._planned()[0]

    def run(self, on_plan: Callable[[BackfillPlan], None] = lambda _plan: None) -> BackfillOutcome:
        """Compute the interval. If it is interrupted, another call completes it.

        Args:
            on_plan: Called with the plan before anything is done.

        Returns:
            What was corrected and processed.

        Raises:
            GateFailedError: If a critical expectation fails. Recomputed rows are not published then; those of the bounded run
                are held back.
            ApprovalNeededError: If there are warnings that nobody has approved, likewise.
            ReleaseError: As `plan`.
            UnderWayError: If another run is alive; or a worker that does not process the rest of the interval.
            BrokerError: If brokers do not answer.
        """
        plan, part = self._planned()
        on_plan(plan)
        repair = self._recomputed(part)
        # Determined again: records may have come, or been processed, during the repair.
        done = process(self._chosen.name, self._chosen.config.streams, self._rest)
        return BackfillOutcome(plan, repair, done)

    def recompute(self, on_plan: Callable[[BackfillPlan], None] = lambda _plan: None) -> Repair | None:
        """Compute only what is processed already, and leave the rest.

        Args:
            on_plan: As in `run`.

        Returns:
            The rows that were corrected; None if there was nothing to compute again.

        Raises:
            StreamsError: As `run`.
        """
        plan, part = self._planned()
        on_plan(plan)
        return self._recomputed(part)

    def _recomputed(self, part: Scope | None) -> Repair | None:
        return None if part is None else self._repairer.repair(part, self._approved, self._code)

    def _planned(self) -> tuple[BackfillPlan, Scope | None]:
        """Return the plan, and the part of the scope that is computed again."""
        application = self._chosen.loaded()
        known = outputs(application)
        has_tables = chosen_tables(application, self._scope)
        part = self._repairer.repairable_part(self._scope, self._code) if has_tables else None
        recomputed = None if part is None else self._repairer.plan(part, self._code)
        unprocessed = self._rest().range
        effects = {topic: _effect(output, self._scope, part, recomputed) for topic, output in known.items()}
        interval = str(self._scope)
        return BackfillPlan(self._chosen.name, application.version, interval, recomputed, unprocessed, effects), part


def _effect(output: Output, scope: Scope, part: Scope | None, recomputed: RepairPlan | None) -> str:
    """Say what a backfill does to the records of an output that are public already."""
    if output.kind is OutputKind.LOG:
        return "a log, of which each record counts: its records stay, and none is written again"
    if recomputed is None or part is None:
        return (
            "a table without rows to recompute: records of this time are not processed yet, or their windows are open"
        )
    if output.topic not in recomputed.tables:
        return "a table that stays as it is: it was not chosen"
    text = "a table: recomputed into staging; rows that differ are judged, then published as corrections"
    if part.end_ms < scope.end_ms:
        text += f"; rows from {moment_text(part.end_ms)} on stay, as their windows are open"
    return text
