"""`millrace release`: from one version of an application to the next, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli.project import App, settings_of
from pipeline.cli.release_report import Outcome, plain, report, told

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.project.release import AppRelease
    from pipeline.releases.registry import Release
    from pipeline.releases.releaser import ReleasePlan, Releaser

app = typer.Typer(
    help="Release a new version of an application: proven, switched over, taken back.", no_args_is_help=True
)

AsJson = Annotated[bool, typer.Option("--json", metavar="", help="One JSON document on the standard output.")]
Dry = Annotated[bool, typer.Option("--dry-run", metavar="", help="Say what it would do, and do nothing.")]
To = Annotated[str, typer.Option(help="The version that is to go live.")]


@app.command()
def status(context: typer.Context, app: App, *, as_json: AsJson = False) -> None:
    """Say where a release stands, and what comes next."""
    report(lambda: told(_releaser(context, app).status()), as_json=as_json)


@app.command()
def log(context: typer.Context, app: App, *, as_json: AsJson = False) -> None:
    """List what was done to an application's releases, by whom and when, first to last."""

    def listed() -> Outcome:
        changes = _releaser(context, app).log()
        nothing = f"{app}: nothing was released"
        return Outcome("\n".join(map(str, changes)) or nothing, {"app": app, "changes": plain(changes)})

    report(listed, as_json=as_json)


@app.command()
def plan(context: typer.Context, app: App, to: To, *, as_json: AsJson = False) -> None:
    """Say what a release would do: what changed, and how much there is to process. Changes nothing."""
    report(lambda: _planned(_releaser(context, app).plan(to)), as_json=as_json)


@app.command()
def start(
    context: typer.Context,
    app: App,
    to: To,
    through: Annotated[
        str,
        typer.Option(
            help="The last step to take: start, reprocess, await, gate or cut. Each begins when the last is done."
        ),
    ] = "start",
    *,
    dry_run: Dry = False,
    as_json: AsJson = False,
) -> None:
    """Begin a release; there is no way back from the last one any more."""
    from pipeline.releases.chain import Through, take_through

    if through not in {each.value for each in Through}:
        message = f"{through!r} is none of {', '.join(each.value for each in Through)}"
        raise typer.BadParameter(message, param_hint="--through")

    def begin() -> Outcome:
        releaser = _releaser(context, app)
        if dry_run:
            rehearsal, planned = _rehearsed(releaser, "start", to), _planned(releaser.plan(to))
            document = {**rehearsal.document, "through": through, "plan": planned.document}
            return Outcome(f"{planned.text}\n{rehearsal.text}", document)
        tell: Callable[[str], None] = lambda line: typer.echo(line, err=as_json)  # noqa: E731
        if through == Through.START.value:
            return told(releaser.start(to))
        return told(take_through(releaser, to, Through(through), tell), asks=True)

    report(begin, as_json=as_json)


@app.command()
def restore(
    context: typer.Context,
    app: App,
    live: Annotated[str, typer.Option(help="The version that is live.")],
    *,
    dry_run: Dry = False,
    as_json: AsJson = False,
) -> None:
    """Note again which version is live, after the control topic was lost."""
    _step(context, app, "restore", lambda releaser: releaser.restore(live), live, dry_run=dry_run, as_json=as_json)


@app.command()
def reprocess(context: typer.Context, app: App, *, dry_run: Dry = False, as_json: AsJson = False) -> None:
    """Compute the candidate from the beginning into fresh state and staging topics."""

    def compute() -> Outcome:
        releaser = _releaser(context, app)
        if dry_run:
            return _rehearsed(releaser, "reprocess")
        summary = releaser.reprocess()
        found = {"range": str(summary.range), "slices": summary.slices, "processed": summary.processed}
        return Outcome(
            str(summary),
            {"app": app, **found, "dropped": dict(summary.dropped), "warnings": list(summary.warnings)},
        )

    report(compute, as_json=as_json)


@app.command()
def gate(context: typer.Context, app: App, *, dry_run: Dry = False, as_json: AsJson = False) -> None:
    """Judge the candidate's data."""
    _step(context, app, "gate", lambda releaser: releaser.gate(), dry_run=dry_run, as_json=as_json)


@app.command()
def diff(
    context: typer.Context,
    app: App,
    limit: Annotated[int, typer.Option(min=1, help="How many rows at most.")] = 20,
    *,
    as_json: AsJson = False,
) -> None:
    """Show the rows of tables that differ between the live version and the candidate, with old and new values."""

    def differing() -> Outcome:
        rows = list(_releaser(context, app).diff(limit + 1))
        shown, more = rows[:limit], len(rows) > limit
        lines = [str(row) for row in shown] or [f"{app}: no row differs"]
        lines += [f"There are more than {limit}: --limit shows them."] if more else []
        return Outcome("\n".join(lines), {"app": app, "rows": plain(shown), "more": more})

    report(differing, as_json=as_json)


@app.command()
def approve(
    context: typer.Context,
    app: App,
    verdict: Annotated[str, typer.Option(help="The id of the verdict, as `gate` and `status` show it.")],
    *,
    dry_run: Dry = False,
    as_json: AsJson = False,
) -> None:
    """Approve the warnings of a gate."""
    _step(
        context, app, "approve", lambda releaser: releaser.approve(verdict), verdict, dry_run=dry_run, as_json=as_json
    )


@app.command()
def cut(context: typer.Context, app: App, *, dry_run: Dry = False, as_json: AsJson = False) -> None:
    """Put the candidate in the place of the live version."""
    _step(context, app, "cut", lambda releaser: releaser.cut(), dry_run=dry_run, as_json=as_json)


@app.command()
def rollback(context: typer.Context, app: App, *, dry_run: Dry = False, as_json: AsJson = False) -> None:
    """Put the previous version back."""
    _step(context, app, "rollback", lambda releaser: releaser.rollback(), dry_run=dry_run, as_json=as_json)


@app.command("await")
def wait(
    context: typer.Context,
    app: App,
    max_lag: Annotated[int, typer.Option(min=0, help="How many offsets an input may be behind.")] = 1000,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="Seconds after which to give up; never if left out.")
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Wait until workers of the candidate have caught up, and say how far they are meanwhile."""

    def wait_until_ready() -> Outcome:
        ready = None
        for ready in _releaser(context, app).wait_ready(max_lag=max_lag, timeout_s=timeout):
            if not ready.is_ready:
                typer.echo(str(ready), err=as_json)
        return Outcome(str(ready), {"app": app, **plain(ready)})

    report(wait_until_ready, as_json=as_json)


@app.command()
def repair(
    context: typer.Context,
    app: App,
    start: Annotated[str, typer.Option("--from", help="Event time at which the rows begin.")],
    end: Annotated[str, typer.Option("--to", help="Event time before which they end.")],
    key: Annotated[list[str] | None, typer.Option(help="A key, as `diff` shows it; may be repeated.")] = None,
    topic: Annotated[list[str] | None, typer.Option(help="A public topic; may be repeated.")] = None,
    approve: Annotated[str, typer.Option(help="The id of a verdict whose warnings you approve.")] = "",
    *,
    dry_run: Dry = False,
    as_json: AsJson = False,
) -> None:
    """Compute a stretch of the live version's tables anew, judge it, and publish what differs. Nothing is switched."""

    def mend() -> Outcome:
        from pipeline.releases.scope import scope_of

        scope, repairer = scope_of(start, end, key or (), topic or ()), _release(context, app).repairer
        if dry_run:
            planned = repairer.plan(scope)
            what = {"tables": planned.tables, "range": str(planned.range), "offsets": planned.range.size}
            return Outcome(str(planned), {"app": app, "live": planned.live, "scope": planned.scope, **what})
        done = repairer.repair(scope, approve)
        return Outcome(str(done), plain(done))

    report(mend, as_json=as_json)


@app.command()
def retire(
    context: typer.Context,
    app: App,
    version: Annotated[str, typer.Option(help="Which; the one that lost its place last if left out.")] = "",
    *,
    dry_run: Dry = False,
    as_json: AsJson = False,
) -> None:
    """Delete what a version has computed that is not live any more."""
    _step(context, app, "retire", lambda releaser: releaser.retire(version), version, dry_run=dry_run, as_json=as_json)


@app.command()
def abort(context: typer.Context, app: App, *, dry_run: Dry = False, as_json: AsJson = False) -> None:
    """Give a release up before its cut."""
    _step(context, app, "abort", lambda releaser: releaser.abort(), dry_run=dry_run, as_json=as_json)


def _step(
    context: typer.Context,
    name: str,
    step: str,
    take: Callable[[Releaser], Release],
    argument: str = "",
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    def act() -> Outcome:
        releaser = _releaser(context, name)
        return _rehearsed(releaser, step, argument) if dry_run else told(take(releaser), asks=step == "gate")

    report(act, as_json=as_json)


def _rehearsed(releaser: Releaser, step: str, argument: str = "") -> Outcome:
    from pipeline.releases.rehearsal import rehearsed

    release = releaser.check(step, argument)
    text = rehearsed(step, release, argument)
    return Outcome(text, {"app": release.app, "step": step, "dry_run": True, "would": text})


def _planned(plan: ReleasePlan) -> Outcome:
    document: dict[str, Any] = {
        "app": plan.app,
        "live": plan.live,
        "candidate": plan.candidate,
        "changed": plan.changed,
        "range": str(plan.range),
        "offsets": plan.range.size,
        "lost": {str(tp): offset for tp, offset in plan.lost.items()},
        "outputs": plain(plan.outputs),
        "ended": plan.ended,
        "forecast": plain(plan.forecast),
    }
    return Outcome(str(plan), document)


def _releaser(context: typer.Context, name: str) -> Releaser:
    return _release(context, name).releaser


def _release(context: typer.Context, name: str) -> AppRelease:
    return settings_of(context).project().app(name).release()
