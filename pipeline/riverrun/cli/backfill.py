"""`riverrun backfill`: compute an interval of event time, whether it is processed already or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from riverrun.cli.gathering import gathering
from riverrun.cli.output import echo
from riverrun.cli.project import App, Master, confirm, flag, settings_of
from riverrun.cli.release import AsJson, CommandOutcome, report
from riverrun.spark.options import BackfillOptions  # noqa: TC001 - gathering reads the annotation

if TYPE_CHECKING:
    from riverrun.project.backfill import BackfillOutcome, BackfillPlan


@dataclass(frozen=True, slots=True)
class _Before:
    """Options of what is shown and asked before the work."""

    plan: Annotated[bool, flag("--plan", "Show what the backfill would do to each output, and stop.")] = False
    yes: Annotated[bool, flag("--yes", "-y", "Begin without asking first.")] = False


@gathering
def backfill(
    context: typer.Context,
    app: App,
    start: Annotated[str, typer.Option("--from", help="Event time at which the interval begins.")],
    end: Annotated[str, typer.Option("--to", help="Event time at which the interval ends; not included.")],
    version: Annotated[
        str | None, typer.Option(help="Version whose code recomputes processed rows; defaults to the live one.")
    ] = None,
    *,
    options: BackfillOptions,
    master: Master = None,
    before: _Before,
    as_json: AsJson = False,
) -> None:
    """Compute an interval of event time: again where it is processed already, and for the first time where it is not.

    Rows of tables are recomputed into staging topics and judged by the application's expectations. Those that differ from
    the public rows are published as corrections. Records of logs stay as they are. The live version then processes what
    is left of the interval. If the command is interrupted, run it again.
    """
    from riverrun.project.runs import backfill_of

    chosen = settings_of(context).project(master).app(app, version=version)
    wanted = backfill_of(chosen.runs.chosen, start, end, options)

    def planned() -> CommandOutcome:
        found = wanted.plan()
        return CommandOutcome(str(found), _document(found))

    def filled() -> CommandOutcome:
        done = wanted.run(lambda found: echo(str(found), err=as_json) if before.yes else None)
        return CommandOutcome(str(done), {**_document(done.plan), **_done(done)})

    if before.plan:
        report(planned, as_json=as_json)
        return
    # The plan is shown before the question. With --yes, `filled` shows it as it begins.
    if not before.yes:
        found = wanted.plan()
        echo(str(found), err=as_json)
        confirm(f"Backfill {found.interval}?", yes=found.is_empty)
    report(filled, as_json=as_json)


def _document(plan: BackfillPlan) -> dict[str, Any]:
    again = plan.recomputed
    return {
        "app": plan.app,
        "live": plan.live,
        "interval": plan.interval,
        "code": None if again is None else again.code,
        "recomputed": None if again is None else str(again.range),
        "unprocessed": str(plan.unprocessed) if plan.unprocessed.size else None,
        "outputs": dict(plan.outputs),
    }


def _done(outcome: BackfillOutcome) -> dict[str, Any]:
    return {
        "corrections": outcome.corrections,
        "compared": dict(outcome.repair.compared) if outcome.repair is not None else {},
        "verdict": outcome.repair.verdict.id if outcome.repair is not None and outcome.repair.verdict else None,
        "processed": 0 if outcome.run is None else outcome.run.processed,
    }
