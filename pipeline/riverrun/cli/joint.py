"""`riverrun release joint`: several applications go live together, step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from riverrun.cli.output import echo
from riverrun.cli.project import NEEDS_APPROVAL, settings_of
from riverrun.cli.release import AsJson, CommandOutcome, next_step, plain, report
from riverrun.errors import ConfigError
from riverrun.hosting.release import ReleaseStep

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from riverrun.hosting.release import Release
    from riverrun.project.joint_plan import JointPlan
    from riverrun.project.joint_release import JointRelease

app = typer.Typer(
    help="Release new versions of several applications that read what others of them write: all go live together.",
    no_args_is_help=True,
)

Versions = Annotated[list[str], typer.Argument(help="All of its applications, each with its version: APP=VERSION ...")]


@app.command()
def plan(context: typer.Context, versions: Versions, *, as_json: AsJson = False) -> None:
    """Show the order of the applications, what each candidate reads until the cut, and the plan of each."""

    def planned() -> CommandOutcome:
        found = _release(context, versions).plan()
        return CommandOutcome(str(found), _document(found))

    report(planned, as_json=as_json)


@app.command()
def status(context: typer.Context, versions: Versions, *, as_json: AsJson = False) -> None:
    """Show the step that each application has reached, and the command that comes next."""
    report(lambda: _told(_release(context, versions).status), as_json=as_json)


@app.command()
def start(
    context: typer.Context,
    versions: Versions,
    through: Annotated[str, typer.Option(help="Last step to take: start, reprocess, gate or cut.")] = "start",
    *,
    as_json: AsJson = False,
) -> None:
    """Start a joint release. What the candidates have computed before is deleted. If it is interrupted, run it again.

    From then on, the releases before it cannot be rolled back.
    """
    from riverrun.project.joint_release import STEPS

    if through not in STEPS:
        raise typer.BadParameter(f"{through!r} is not one of {', '.join(STEPS)}", param_hint="--through")

    def begun() -> CommandOutcome:
        # With --json, the standard output is one document, so progress goes to the error output.
        tell: Callable[[str], None] = lambda line: echo(line, err=as_json)  # noqa: E731
        return _told(_release(context, versions).take_through(through, tell).status)

    report(begun, as_json=as_json)


@app.command()
def reprocess(context: typer.Context, versions: Versions, *, as_json: AsJson = False) -> None:
    """Compute the candidates from the beginning, one after the other, into fresh state and staging topics."""
    _take(context, versions, as_json=as_json)


@app.command()
def gate(context: typer.Context, versions: Versions, *, as_json: AsJson = False) -> None:
    """Run the data-quality checks on the results of all candidates. Workers of these applications have to be stopped."""
    _take(context, versions, as_json=as_json)


@app.command()
def cut(context: typer.Context, versions: Versions, *, as_json: AsJson = False) -> None:
    """Switch over to all candidates. Workers of these applications have to be stopped. The old versions are kept."""
    _take(context, versions, as_json=as_json)


@app.command()
def rollback(context: typer.Context, versions: Versions, *, as_json: AsJson = False) -> None:
    """Switch back to all previous versions. Workers of these applications have to be stopped."""
    _take(context, versions, as_json=as_json)


@app.command()
def abort(context: typer.Context, versions: Versions, *, as_json: AsJson = False) -> None:
    """Abandon a joint release before its cut."""
    _take(context, versions, as_json=as_json)


def _take(context: typer.Context, versions: list[str], *, as_json: bool) -> None:
    """Take the step that has the name of the command."""
    step = context.command.name or ""
    report(lambda: _told(getattr(_release(context, versions), step)().status), as_json=as_json)


def _release(context: typer.Context, versions: list[str]) -> JointRelease:
    found: dict[str, str] = {}
    for each in versions:
        name, _, version = each.partition("=")
        if not name or not version or name in found:
            message = f"{each} is not APP=VERSION, or names an application twice"
            raise ConfigError(message, hint="For example orders=v2 totals=v2.")
        found[name] = version
    return settings_of(context).project().joint_release(found)


_ORDER = tuple(ReleaseStep)


def _told(releases: Mapping[str, Release]) -> CommandOutcome:
    """Describe the state of the release, and the next command; the exit code says if an approval is needed."""
    open_ = [each for each in releases.values() if each.verdict is not None and each.verdict.needs_approval]
    least = min(releases.values(), key=lambda each: _ORDER.index(each.step))
    is_asked = least.step is ReleaseStep.GATED and bool(open_)
    following = next_step(open_[0] if is_asked else least)
    lines = [*map(str, releases.values()), f"Next: {following}"]
    document = {"members": {name: msgspec.to_builtins(each) for name, each in releases.items()}, "next": following}
    return CommandOutcome("\n".join(lines), document, NEEDS_APPROVAL if is_asked else 0)


def _document(plan: JointPlan) -> dict[str, Any]:
    return {
        "members": [
            {
                "app": name,
                "candidate": version,
                "live": plan.live[name],
                "reads": dict(plan.inputs[name].get(version) or {}),
                "offsets": plan.plans[name].range.size,
            }
            for name, version in plan.members.items()
        ],
        "readers": plain(plan.readers),
        "unknown": dict(plan.unknown),
    }
