"""`millrace status`, `lag`, `reset` and `scale`: what operators ask of, and do to, applications that run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli.project import settings_of

if TYPE_CHECKING:
    from pipeline.config import ProjectConfig

_ANSWER_SECONDS = 10.0

App = Annotated[str, typer.Argument(help="The application's name in streams.toml.")]
Version = Annotated[str | None, typer.Option(help="Which version; the live one if left out.")]
Server = Annotated[str | None, typer.Option(help="host:port of an instance; application.server if left out.")]


def status(context: typer.Context, app: App, version: Version = None, server: Server = None) -> None:
    """Show an application's instances; with an instance that answers, its tasks and where all others are."""
    from pipeline.kafka.admin import Admin  # noqa: PLC0415 - engines load where they are used

    application = settings_of(context).live_application(app, version)
    group = Admin(application.kafka).group(application.id)
    typer.echo(f"{application.id}: group {group.state}, {len(group.members)} instances")
    for member in group.members:
        typer.echo(f"  {member}")
    address = server or application.config.streams.application_server
    if not address or address.endswith(":0"):
        typer.echo("Where its tasks are, an instance says: --server host:port")
        return
    _show_instance(_asked(context, app, "GET", address, "/status"))


def lag(context: typer.Context, app: App, version: Version = None) -> None:
    """Show how far an application is behind, per source partition and per partition of its repartition topics."""
    from rich.console import Console  # noqa: PLC0415 - as above
    from rich.table import Table  # noqa: PLC0415 - as above

    from pipeline.hosting.lags import input_lags  # noqa: PLC0415 - as above
    from pipeline.kafka.admin import Admin  # noqa: PLC0415 - as above

    application = settings_of(context).live_application(app, version)
    found = input_lags(application, Admin(application.kafka))
    table = Table("partition", "committed", "end", "lag", title=application.id, title_justify="left")
    for each in found:
        committed = "none" if each.committed is None else str(each.committed)
        table.add_row(str(each.tp), committed, str(each.end), str(each.lag))
    Console().print(table)
    internal = sum(each.lag for each in found if each.is_internal)
    typer.echo(f"{sum(each.lag for each in found) - internal} offsets behind; {internal} in repartition topics")


def reset(
    context: typer.Context,
    app: App,
    version: Version = None,
    start: Annotated[
        str, typer.Option("--from", help="earliest, latest, a vector (topic-0@12,topic-1@7) or a time.")
    ] = "earliest",
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and stop.")] = False,
) -> None:
    """Make an application begin anew: delete its internal topics and local state, and set where it reads next."""
    from pipeline.kafka.admin import Admin  # noqa: PLC0415 - as above
    from pipeline.spark.ranges import resolve  # noqa: PLC0415 - as above
    from pipeline.worker.reset import plan_reset  # noqa: PLC0415 - as above
    from pipeline.worker.reset import reset as carry_out  # noqa: PLC0415 - as above

    settings = settings_of(context)
    application = settings.live_application(app, version)
    admin = Admin(application.kafka)
    offsets = resolve(application, admin, start, "latest").start
    plan = plan_reset(application, admin, offsets, _application_ids(settings.project()))
    for topic in plan.topics:
        typer.echo(f"delete topic {topic}")
    if plan.directory.exists():
        typer.echo(f"delete local state {plan.directory}")
    typer.echo(f"set offsets {plan.offsets}")
    if dry_run:
        typer.echo("Nothing was done")
        return
    carry_out(plan, admin)
    typer.echo(f"{application.id} begins anew")


def scale(
    context: typer.Context,
    app: App,
    processes: Annotated[int, typer.Argument(min=1, help="Stream processes from now on.")],
    server: Server = None,
) -> None:
    """Set the number of stream processes of an instance while it runs."""
    address = server or settings_of(context).project().app(app).streams.application_server
    answer = _asked(context, app, "POST", address, "/scale", processes=processes)
    typer.echo(f"{address} runs {answer['processes']} stream processes from now on")


def _asked(context: typer.Context, app: str, method: str, address: str, path: str, **params: Any) -> Any:
    """What an instance answers.

    Raises:
        StreamsError: If it does not, or refuses.
    """
    import httpx  # noqa: PLC0415 - as above

    from pipeline.errors import StreamsError  # noqa: PLC0415 - as above

    settings = settings_of(context)
    token = settings.project().app(app).streams.server_token or settings.environ.get("MILLRACE_TOKEN", "")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    hint = "Name an instance that runs: --server host:port."
    try:
        answer = httpx.request(
            method, f"http://{address}{path}", params=params, headers=headers, timeout=_ANSWER_SECONDS
        )
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        message = f"Instance {address or 'without address'} does not answer: {error}"
        raise StreamsError(message, hint=hint) from error
    if answer.is_error:
        message = f"Instance {address} refuses: {answer.text}"
        raise StreamsError(
            message, hint="Set MILLRACE_TOKEN." if answer.status_code == httpx.codes.UNAUTHORIZED else None
        )
    return answer.json()


def _show_instance(status: Any) -> None:
    typer.echo(f"{status['server']} is {status['state']}{', paused' if status['paused'] else ''}:")
    typer.echo(
        f"  {status['processes']} stream processes, {status['processed']} records in {status['commits']} commits"
    )
    typer.echo(f"  active: {' '.join(status['active']) or 'none'}")
    for task, missing in status["restoring"].items():
        typer.echo(f"  restoring: {task}, {'an unknown number of' if missing is None else missing} records missing")
    for task, behind in status["standby"].items():
        typer.echo(f"  standby: {task}, {behind} records behind")
    everywhere: dict[str, list[str]] = {}
    for task, server in sorted(status["servers"].items()):
        everywhere.setdefault(server, []).append(task)
    for server, tasks in sorted(everywhere.items()):
        typer.echo(f"{server} has {' '.join(tasks)}")


def _application_ids(project: ProjectConfig) -> list[str]:
    return [app.application_id(v) for app in project.apps.values() for v in (app.version, *app.versions)]
