"""`riverrun backfill`: compute an interval of event time, whether it is processed already or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import Meta

from riverrun.cli.gathering import gathering
from riverrun.cli.output import echo
from riverrun.cli.project import App, Master, confirm, flag, settings_of
from riverrun.cli.release import AsJson, CommandOutcome, report
from riverrun.spark.options import BackfillOptions  # noqa: TC001 - gathering reads the annotation

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.project.backfill import Backfill, BackfillOutcome, BackfillPlan
    from riverrun.project.restatement import ReaderOutcome, Restatement, RestatementOutcome, RestatementPlan
    from riverrun.releases.repair import Repair


@dataclass(frozen=True, slots=True)
class _Interval:
    """The interval, and the code that computes it."""

    start: Annotated[str, typer.Option("--from", help="Event time at which the interval begins.")]
    end: Annotated[str, typer.Option("--to", help="Event time at which the interval ends; not included.")]
    version: Annotated[
        str | None, typer.Option(help="Version whose code recomputes processed rows; defaults to the live one.")
    ] = None


@dataclass(frozen=True, slots=True)
class _Before:
    """Options of what is shown and asked before the work."""

    plan: Annotated[bool, flag("--plan", "Show what the backfill would do to each output, and stop.")] = False
    yes: Annotated[bool, flag("--yes", "-y", "Begin without asking first.")] = False


@dataclass(frozen=True, slots=True)
class _Others:
    """Options about applications that read what is corrected."""

    without: Annotated[
        tuple[str, ...],
        Meta(description="With --downstream: leave out this member, which cannot be restated; its results stay."),
    ] = ()
    downstream: Annotated[
        bool, Meta(description="Restate all applications that read its tables as well, directly or through others.")
    ] = False


@gathering
def backfill(
    context: typer.Context,
    app: App,
    *,
    interval: _Interval,
    options: BackfillOptions,
    others: _Others,
    master: Master = None,
    before: _Before,
    as_json: AsJson = False,
) -> None:
    """Compute an interval of event time: again where it is processed already, and for the first time where it is not.

    Rows of tables are recomputed into staging topics and judged by the application's expectations. Those that differ from
    the public rows are published as corrections. Records of logs stay as they are. The live version then processes what
    is left of the interval. If the command is interrupted, run it again.

    With --downstream, the applications that read its tables come next, in the order of the flow. Each processes the
    corrections, and its rows are recomputed and compared where they can be. Members that cannot be restated are named first,
    with reasons: nothing begins until --without leaves them out.
    """
    if others.without and not others.downstream:
        raise typer.BadParameter("it is about --downstream", param_hint="--without")
    from riverrun.project.runs import backfill_of

    project = settings_of(context).project(master)
    chosen = project.app(app, version=interval.version).runs.chosen
    if not others.downstream:
        _fill(backfill_of(chosen, interval.start, interval.end, options), before, as_json=as_json)
        return
    from riverrun.project.restatement import Restatement

    between = interval.start, interval.end
    wanted = Restatement(project.cluster, project.config, chosen, between, options, others.without)
    _restate(wanted, before, as_json=as_json)


def _fill(wanted: Backfill, before: _Before, *, as_json: bool) -> None:
    def ask(found: BackfillPlan) -> None:
        confirm(f"Backfill {found.interval}?", yes=found.is_empty)

    _carry_out(wanted, before, ask, _document, _done, as_json=as_json)


def _restate(wanted: Restatement, before: _Before, *, as_json: bool) -> None:
    def ask(found: RestatementPlan) -> None:
        found.require_restatable()
        confirm(f"Backfill {found.first.interval}, and restate what follows?", yes=False)

    def told(done: RestatementOutcome) -> dict[str, Any]:
        return {**_done(done.first), "restated": {each.reader.app: _read(each) for each in done.readers}}

    _carry_out(wanted, before, ask, _whole_document, told, as_json=as_json)


def _carry_out(
    wanted: Any,
    before: _Before,
    ask: Callable[[Any], None],
    document: Callable[[Any], dict[str, Any]],
    told: Callable[[Any], dict[str, Any]],
    *,
    as_json: bool,
) -> None:
    """Show the plan of a backfill or restatement; or ask about it and carry it out."""

    def planned() -> CommandOutcome:
        found = wanted.plan()
        return CommandOutcome(str(found), document(found))

    def filled() -> CommandOutcome:
        done = wanted.run(lambda found: echo(str(found), err=as_json) if before.yes else None)
        return CommandOutcome(str(done), {**document(done.plan), **told(done)})

    if before.plan:
        report(planned, as_json=as_json)
        return
    # The plan is shown before the question. With --yes, `filled` shows it as it begins.
    if not before.yes:
        found = wanted.plan()
        echo(str(found), err=as_json)
        ask(found)
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


def _whole_document(plan: RestatementPlan) -> dict[str, Any]:
    readers = [
        {
            "app": each.app,
            "reads": list(each.reads),
            "compared": {topic: str(times) for topic, times in each.compared.items()},
            "kept": dict(each.kept),
        }
        for each in plan.readers
    ]
    return {
        **_document(plan.first),
        "readers": readers,
        "others": list(plan.others),
        "left_out": {name: list(why) for name, why in plan.left_out.items()},
        "refused": {name: list(why) for name, why in plan.refused.items()},
    }


def _done(outcome: BackfillOutcome) -> dict[str, Any]:
    processed = 0 if outcome.run is None else outcome.run.processed
    return {**_repaired(outcome.repair), "processed": processed}


def _read(outcome: ReaderOutcome) -> dict[str, Any]:
    processed = 0 if outcome.run is None else outcome.run.processed
    return {**_repaired(outcome.repair), "processed": processed, "not_compared": outcome.kept or None}


def _repaired(repair: Repair | None) -> dict[str, Any]:
    if repair is None:
        return {"corrections": 0, "compared": {}, "verdict": None}
    verdict = repair.verdict.id if repair.verdict else None
    return {"corrections": repair.corrections, "compared": dict(repair.compared), "verdict": verdict}
