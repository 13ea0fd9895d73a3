"""`riverrun release`: from one version of an application to the next, and back; reports each step as text or JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from riverrun.cli.output import echo
from riverrun.cli.project import NEEDS_APPROVAL, App, code_of, flag, settings_of
from riverrun.errors import StreamsError
from riverrun.hosting.release import ABORT, ACTIONS, APPROVE, GATE, REPROCESS, RETIRE, START, ReleaseStep

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.hosting.release import Action, Release
    from riverrun.project.release import AppRelease
    from riverrun.releases.release_plan import ReleasePlan
    from riverrun.releases.releaser import Releaser


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """The result of a command, as text and as a JSON document, with the exit code."""

    text: str
    document: Any
    code: int = 0


def report(action: Callable[[], CommandOutcome], *, as_json: bool) -> None:
    """Run an action and report its result as text, or as one JSON document."""
    from riverrun.project.progress_bar import progress_bar

    try:
        with progress_bar():
            outcome = action()
    except StreamsError as error:
        # Readers of JSON get a document in any case. `main` also prints the error to the error output.
        if as_json:
            told = {"error": type(error).__name__, "message": error.message, "hint": error.hint}
            echo(_encoded({**told, "exit_code": code_of(error)}))
        raise
    echo(_encoded(outcome.document) if as_json else outcome.text)
    if outcome.code:
        raise typer.Exit(outcome.code)


def told(release: Release, *, asks: bool = False) -> CommandOutcome:
    """Describe the state of a release, and the next command; with `asks`, the exit code says if an approval is needed."""
    following = next_step(release)
    needs = asks and release.verdict is not None and release.verdict.needs_approval
    document = {**msgspec.to_builtins(release), "next": following}
    return CommandOutcome(f"{release}\nNext: {following}", document, NEEDS_APPROVAL if needs else 0)


def next_step(release: Release) -> str:
    """Return the command that comes next in a release."""
    verdict = release.verdict
    if release.step is ReleaseStep.GATED and verdict is not None and verdict.needs_approval:
        return APPROVE.command(release.app, verdict.id)
    # A verdict at this step is that of a gate that has failed.
    if release.step is ReleaseStep.REPROCESSED and verdict is not None and verdict.critical:
        return f"{release.command(ABORT)}, then correct {release.candidate} and start again"
    action = next(each for each in ACTIONS.values() if release.step in each.next_at)
    command = action.command(release.app, "VERSION") if action is START else release.command(action)
    return f"{command}, if necessary" if release.step is ReleaseStep.LIVE else command


def plain(value: Any) -> Any:
    """Convert a dataclass to JSON; values that JSON lacks become text."""
    return msgspec.to_builtins(value, enc_hook=str, str_keys=True)


def _encoded(document: Any) -> str:
    return msgspec.json.encode(document, enc_hook=str).decode()


app = typer.Typer(
    help="Release a new version of an application: check it, switch over to it, switch back.", no_args_is_help=True
)

AsJson = Annotated[bool, flag("--json", "Print one JSON document.")]
Dry = Annotated[bool, flag("--dry-run", "Show what the command would do, without doing it.")]
To = Annotated[str, typer.Option(help="Version to release.")]
Carry = Annotated[
    bool,
    flag("--carry", "Take state over from the live version where nothing about it has changed, and compute the rest."),
]


@app.command()
def status(context: typer.Context, app: App, *, as_json: AsJson = False) -> None:
    """Show the step that a release has reached, and the command that comes next."""
    report(lambda: told(_releaser(context, app).status()), as_json=as_json)


@app.command()
def log(context: typer.Context, app: App, *, as_json: AsJson = False) -> None:
    """List the actions on an application's releases, with their time and user, oldest first."""

    def listed() -> CommandOutcome:
        changes = _releaser(context, app).log()
        nothing = f"{app}: nothing was released"
        return CommandOutcome("\n".join(map(str, changes)) or nothing, {"app": app, "changes": plain(changes)})

    report(listed, as_json=as_json)


@app.command()
def plan(context: typer.Context, app: App, to: To, *, carry: Carry = False, as_json: AsJson = False) -> None:
    """Show what a release would change and how much it would process, without starting it."""
    report(lambda: _planned(_releaser(context, app).plan(to, carry=carry)), as_json=as_json)


@app.command()
def start(
    context: typer.Context,
    app: App,
    to: To,
    through: Annotated[
        str,
        typer.Option(
            help="Last step to take: start, reprocess, await, gate or cut. Each step begins when the one before it is done."
        ),
    ] = "start",
    *,
    carry: Carry = False,
    dry_run: Dry = False,
    as_json: AsJson = False,
) -> None:
    """Start a release. From then on, the release before it cannot be rolled back."""
    from riverrun.releases.chain import Through, take_through

    if through not in {each.value for each in Through}:
        message = f"{through!r} is not one of {', '.join(each.value for each in Through)}"
        raise typer.BadParameter(message, param_hint="--through")

    def begin() -> CommandOutcome:
        releaser = _releaser(context, app)
        if dry_run:
            rehearsal, planned = _rehearsed(releaser, START, to), _planned(releaser.plan(to, carry=carry))
            document = {**rehearsal.document, "through": through, "plan": planned.document}
            return CommandOutcome(f"{planned.text}\n{rehearsal.text}", document)
        # With --json, the standard output is one document, so progress goes to the error output.
        tell: Callable[[str], None] = lambda line: echo(line, err=as_json)  # noqa: E731
        if through == Through.START.value:
            return told(releaser.start(to, carry=carry))
        return told(take_through(releaser, to, Through(through), tell, carry=carry), asks=True)

    report(begin, as_json=as_json)


@app.command()
def restore(
    context: typer.Context,
    app: App,
    live: Annotated[str, typer.Option(help="Version that is live.")],
    *,
    dry_run: Dry = False,
    as_json: AsJson = False,
) -> None:
    """Record which version is live, after the control topic was lost."""
    _take(context, app, live, dry_run=dry_run, as_json=as_json)


@app.command()
def reprocess(context: typer.Context, app: App, *, dry_run: Dry = False, as_json: AsJson = False) -> None:
    """Compute the candidate from the beginning into fresh state and staging topics."""

    def compute() -> CommandOutcome:
        releaser = _releaser(context, app)
        if dry_run:
            return _rehearsed(releaser, REPROCESS)
        summary = releaser.reprocess()
        found = {"range": str(summary.range), "slices": summary.slices, "processed": summary.processed}
        warnings = [*summary.warnings, *releaser.status().lost_records]
        return CommandOutcome(
            "\n".join([str(summary), *warnings]),
            {"app": app, **found, "dropped": dict(summary.dropped), "warnings": warnings},
        )

    report(compute, as_json=as_json)


@app.command()
def gate(context: typer.Context, app: App, *, dry_run: Dry = False, as_json: AsJson = False) -> None:
    """Run the data-quality checks on the candidate's results, and record the verdict."""
    _take(context, app, dry_run=dry_run, as_json=as_json)


@app.command()
def diff(
    context: typer.Context,
    app: App,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="Maximum number of rows.")] = 20,
    *,
    as_json: AsJson = False,
) -> None:
    """Show rows of tables in which the candidate differs from the live version, with old and new values."""

    def differing() -> CommandOutcome:
        releaser = _releaser(context, app)
        # One more than is shown, to say whether there are more.
        rows = list(releaser.diff(limit + 1))
        shown, more, compared = rows[:limit], len(rows) > limit, releaser.compared()
        lines = [str(row) for row in shown] or [f"{app}: no row differs"]
        lines += [f"There are more than {limit}: --limit shows them."] if more else [compared]
        return CommandOutcome("\n".join(lines), {"app": app, "rows": plain(shown), "more": more, "compared": compared})

    report(differing, as_json=as_json)


@app.command()
def approve(
    context: typer.Context,
    app: App,
    verdict: Annotated[str, typer.Option(help="Id of the verdict, as shown by `gate` and `status`.")],
    *,
    dry_run: Dry = False,
    as_json: AsJson = False,
) -> None:
    """Approve the warnings of a verdict, so that the release can continue."""
    _take(context, app, verdict, dry_run=dry_run, as_json=as_json)


@app.command()
def cut(context: typer.Context, app: App, *, dry_run: Dry = False, as_json: AsJson = False) -> None:
    """Switch over to the candidate. The version that was live is kept for a rollback."""
    _take(context, app, dry_run=dry_run, as_json=as_json)


@app.command()
def rollback(context: typer.Context, app: App, *, dry_run: Dry = False, as_json: AsJson = False) -> None:
    """Switch back to the previous version."""
    _take(context, app, dry_run=dry_run, as_json=as_json)


@app.command("await")
def wait(
    context: typer.Context,
    app: App,
    max_lag: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Maximum lag of an input, in offsets.")] = 1000,
    timeout: Annotated[
        float | None, typer.Option(min=0, max=31_536_000, help="Give up after this many seconds; defaults to never.")
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Wait until the candidate's workers have caught up, and show their progress."""

    def wait_until_ready() -> CommandOutcome:
        ready = None
        for ready in _releaser(context, app).wait_ready(max_lag=max_lag, timeout_s=timeout):
            if not ready.is_ready:
                echo(str(ready), err=as_json)
        return CommandOutcome(str(ready), {"app": app, **plain(ready)})

    report(wait_until_ready, as_json=as_json)


@app.command()
def repair(
    context: typer.Context,
    app: App,
    start: Annotated[str, typer.Option("--from", help="Event time of the first rows.")],
    end: Annotated[str, typer.Option("--to", help="Event time at which the rows end; not included.")],
    key: Annotated[list[str] | None, typer.Option(help="Repair only this key, as `diff` shows it.")] = None,
    topic: Annotated[list[str] | None, typer.Option(help="Repair only this public topic.")] = None,
    approve: Annotated[str, typer.Option(help="Id of a verdict whose warnings to approve.")] = "",
    *,
    dry_run: Dry = False,
    as_json: AsJson = False,
) -> None:
    """Recompute a time range of the live tables, check it, and publish the rows that differ. No version is switched."""

    def mend() -> CommandOutcome:
        from riverrun.releases.scope import scope_of

        scope, repairer = scope_of(start, end, key or (), topic or ()), _release(context, app).repairer
        if dry_run:
            planned = repairer.plan(scope)
            what = {"tables": planned.tables, "range": str(planned.range), "offsets": planned.range.size}
            return CommandOutcome(str(planned), {"app": app, "live": planned.live, "scope": planned.scope, **what})
        done = repairer.repair(scope, approve)
        return CommandOutcome(str(done), plain(done))

    report(mend, as_json=as_json)


@app.command()
def retire(
    context: typer.Context,
    app: App,
    version: Annotated[str, typer.Option(help="Version to delete; defaults to the one that was replaced last.")] = "",
    *,
    dry_run: Dry = False,
    as_json: AsJson = False,
) -> None:
    """Delete the state and topics of a version that is no longer live."""
    _take(context, app, version, dry_run=dry_run, as_json=as_json)


@app.command()
def abort(context: typer.Context, app: App, *, dry_run: Dry = False, as_json: AsJson = False) -> None:
    """Abandon a release before its cut."""
    _take(context, app, dry_run=dry_run, as_json=as_json)


def _take(context: typer.Context, name: str, argument: str = "", *, dry_run: bool, as_json: bool) -> None:
    """Take the action that has the name of the command."""
    action = ACTIONS[context.command.name or ""]

    def act() -> CommandOutcome:
        releaser = _releaser(context, name)
        if dry_run:
            return _rehearsed(releaser, action, argument)
        return told(action.take(releaser, argument), asks=action is GATE)

    report(act, as_json=as_json)


def _rehearsed(releaser: Releaser, action: Action, argument: str = "") -> CommandOutcome:
    from riverrun.releases.step_checks import retired_of

    release = releaser.check(action.name, argument)
    about = retired_of(release, argument) if action is RETIRE else argument
    text = f"{release.app}: this would {action.would.format(release, argument=about)}"
    return CommandOutcome(text, {"app": release.app, "step": action.name, "dry_run": True, "would": text})


def _planned(plan: ReleasePlan) -> CommandOutcome:
    document: dict[str, Any] = {
        "app": plan.app,
        "live": plan.live,
        "candidate": plan.candidate,
        "changed": plan.changed,
        "statements": plan.statements,
        "unseen": plain(plan.unseen),
        "new": {topic: {"computed": here, "public": there} for topic, (here, there) in plan.new.items()},
        "range": str(plan.range),
        "offsets": plan.range.size,
        "lost": {str(tp): offset for tp, offset in plan.lost.items()},
        "thinned": list(plan.thinned),
        "archived": {str(tp): str(found) for tp, (found, _) in plan.archived.items()},
        "outputs": plain(plan.outputs),
        "ended": plan.ended,
        "forecast": plain(plan.forecast),
    }
    return CommandOutcome(str(plan), document)


def _releaser(context: typer.Context, name: str) -> Releaser:
    return _release(context, name).releaser


def _release(context: typer.Context, name: str) -> AppRelease:
    return settings_of(context).project().app(name).release()
