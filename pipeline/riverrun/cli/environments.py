"""`riverrun env`: changed applications and all that follows from them, computed next to the live ones, and never public."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from riverrun.cli.output import echo
from riverrun.cli.project import Master, confirm, flag, settings_of
from riverrun.cli.release import AsJson, CommandOutcome, plain, report
from riverrun.errors import ConfigError

if TYPE_CHECKING:
    from riverrun.project.environment import EnvironmentOutcome
    from riverrun.project.environment_plan import EnvironmentPlan

app = typer.Typer(
    help="Compute changed applications and all that follows from them next to the live ones; nothing of it is public.",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(help="Name of the environment: letters, digits and hyphens.")]


@app.command()
def create(
    context: typer.Context,
    name: Name,
    named: Annotated[
        list[str],
        typer.Option(
            "--from",
            help="Application to change: APP, or APP=VERSION; may be repeated. The version defaults to the live one.",
        ),
    ],
    without: Annotated[
        list[str] | None, typer.Option(help="Leave out this application, which would follow; may be repeated.")
    ] = None,
    master: Master = None,
    *,
    allow_lost: Annotated[
        bool, flag("--allow-lost", "Compute from the records that are left, if brokers have deleted some.")
    ] = False,
    dry_run: Annotated[bool, flag("--dry-run", "Show what the command would do, without doing it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Create an environment: the named applications, and all that read what they write, directly or through others.

    Each is computed from the first records into topics, state and groups of the environment, in the order of the flow. It
    processes up to where the live versions stand. What is to be created and processed is shown first. If the command is
    interrupted, run it again. An environment that exists is updated.
    """
    project, apps, left_out = settings_of(context).project(master), _versions(named), without or ()

    def planned() -> CommandOutcome:
        plan = project.environment(name).plan(apps, without=left_out)
        return CommandOutcome(f"{plan}\nNothing was done", _document(plan))

    def created() -> CommandOutcome:
        found = project.environment(name)
        return _computed(
            found.create(
                apps, without=left_out, allow_lost=allow_lost, on_plan=lambda plan: echo(str(plan), err=as_json)
            )
        )

    report(planned if dry_run else created, as_json=as_json)


@app.command()
def update(context: typer.Context, name: Name, master: Master = None, *, as_json: AsJson = False) -> None:
    """Bring an environment to where the live versions stand now, after completing what was interrupted."""
    project = settings_of(context).project(master)

    def updated() -> CommandOutcome:
        return _computed(project.environment(name).update(lambda plan: echo(str(plan), err=as_json)))

    report(updated, as_json=as_json)


@app.command()
def diff(
    context: typer.Context,
    name: Name,
    only: Annotated[str | None, typer.Option("--app", help="Application to compare; defaults to all.")] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=0, max=10**12, help="Rows to show of each table, at most.")
    ] = 10,
    *,
    as_json: AsJson = False,
) -> None:
    """Compare the tables of an environment with the public ones, row by row. Of logs, numbers of records are compared."""

    def compared() -> CommandOutcome:
        found = settings_of(context).project().environment(name).differences(only, limit=limit)
        return CommandOutcome("\n".join(map(str, found)), {"environment": name, "members": plain(found)})

    report(compared, as_json=as_json)


@app.command("list")
def list_(context: typer.Context, *, as_json: AsJson = False) -> None:
    """List all environments, with their members and who has changed them last."""

    def listed() -> CommandOutcome:
        found = settings_of(context).project().environments()
        lines = "\n".join(map(str, found))
        return CommandOutcome(lines or "There is no environment", {"environments": plain(found)})

    report(listed, as_json=as_json)


@app.command()
def status(context: typer.Context, name: Name, *, as_json: AsJson = False) -> None:
    """Show the members of an environment, how far they are behind, and its topics with their sizes."""

    def shown() -> CommandOutcome:
        found = settings_of(context).project().environment(name).status()
        return CommandOutcome(str(found), plain(found))

    report(shown, as_json=as_json)


@app.command()
def drop(
    context: typer.Context,
    name: Name,
    *,
    yes: Annotated[bool, flag("--yes", "-y", "Delete without asking first.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete an environment: its topics, offsets and groups, and its state on this machine. It can be repeated."""
    project = settings_of(context).project()
    environment = project.environment(name)
    if not yes:
        # Environments of other projects may have such a name.
        found = (str(each) for each in project.environments() if each.name == name)
        confirm(f"Delete environment {next(found, name)}?", yes=yes)

    def dropped() -> CommandOutcome:
        topics = environment.drop()
        lines = [*(f"Deleted topic {topic}" for topic in topics), f"Environment {name} is gone"]
        return CommandOutcome("\n".join(lines), {"environment": name, "deleted": list(topics)})

    report(dropped, as_json=as_json)


def _versions(named: list[str]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for each in named:
        name, equals, version = each.partition("=")
        if not name or (equals and not version) or name in found:
            message = f"--from {each} is not APP or APP=VERSION, or names an application twice"
            raise ConfigError(message, hint="For example --from orders=v2 --from customers.")
        found[name] = version or None
    return found


def _computed(outcome: EnvironmentOutcome) -> CommandOutcome:
    processed = {name: summary.processed for name, summary in outcome.runs.items()}
    return CommandOutcome(str(outcome), {**_document(outcome.plan), "processed": processed})


def _document(plan: EnvironmentPlan) -> dict[str, Any]:
    return {
        "environment": plan.name,
        "members": [
            {
                "app": each.app,
                "version": each.version,
                "live": each.live,
                "application_id": each.application.id,
                "reads": list(each.reads),
            }
            for each in plan.members
        ],
        "topics": [
            {"name": each.name, "public": each.public, "partitions": each.partitions, "is_whole": each.is_whole}
            for each in plan.topics
        ],
        "vector": str(plan.vector),
        "offsets": plan.offsets,
        "size": plan.size,
        "lost": list(plan.lost),
        "left_out": list(plan.left_out),
        "others": list(plan.others),
        "unknown": dict(plan.unknown),
    }
