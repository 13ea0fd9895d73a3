"""`millrace status`, `lag`, `reset`, `clean-up` and `scale`: what operators ask of, and do to, applications that run."""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003 - typer reads the annotation
from typing import Annotated, Any

import typer

from pipeline.cli.project import App, Version, settings_of
from pipeline.config.address import checked_address
from pipeline.errors import ConfigError, StreamsError
from pipeline.extras import require_extra
from pipeline.records import counted

_ANSWER_SECONDS = 10.0

Yes = Annotated[bool, typer.Option("--yes", "-y", metavar="", help="Do not ask before anything is deleted.")]
Server = Annotated[str | None, typer.Option(help="host:port of an instance; application.server if left out.")]


def status(context: typer.Context, app: App, version: Version = None, server: Server = None) -> None:
    """Show an application's instances; with an instance that answers, its tasks and where all others are."""
    from pipeline.kafka.admin import Admin

    application = settings_of(context).application(app, version)
    group = Admin(application.kafka).group(application.id)
    typer.echo(f"{application.id}: group {group.state}, {counted(len(group.members), 'instance')}")
    for member in group.members:
        typer.echo(f"  {member}")
    if not (group.members or server):
        return
    address = server or application.config.streams.application_server
    if not _is_complete(address):
        typer.echo("Where its tasks are, an instance says: --server host:port")
        return
    _show_instance(_asked(context, app, "GET", address, "/status"))


def lag(context: typer.Context, app: App, version: Version = None) -> None:
    """Show how far an application is behind, per source partition and per partition of its repartition topics."""
    from rich.console import Console
    from rich.table import Table

    from pipeline.hosting.lags import input_lags
    from pipeline.kafka.admin import Admin

    application = settings_of(context).application(app, version)
    found = input_lags(application, Admin(application.kafka))
    table = Table(title=application.id, title_justify="left")
    table.add_column("partition", overflow="fold")
    for name in ("committed", "end", "lag"):
        table.add_column(name, justify="right", no_wrap=True)
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
    dry_run: Annotated[bool, typer.Option("--dry-run", metavar="", help="Say what would be done, and stop.")] = False,
    yes: Yes = False,
) -> None:
    """Make an application begin anew: delete its internal topics and local state, and set where it reads next."""
    from pipeline.kafka.admin import Admin
    from pipeline.spark.ranges import resolve
    from pipeline.worker.reset import plan_reset
    from pipeline.worker.reset import reset as carry_out

    settings = settings_of(context)
    application = settings.application(app, version)
    admin = Admin(application.kafka)
    offsets = resolve(application, admin, start, "latest").start
    plan = plan_reset(application, admin, offsets, settings.project().application_ids)
    for topic in plan.topics:
        typer.echo(f"delete topic {topic}")
    for directory in plan.directories:
        typer.echo(f"delete local state {directory}")
    typer.echo(f"set offsets {plan.offsets}")
    if dry_run:
        if plan.members:
            typer.echo(f"It is refused as long as the group has members: {', '.join(plan.members)}")
        typer.echo("Nothing was done")
        return
    if not plan.members:  # else it is refused
        _confirm(f"Delete all that {application.id} has computed?", yes=yes)
    carry_out(plan, admin)
    typer.echo(f"{application.id} begins anew")


def clean_up(
    context: typer.Context,
    app: App,
    version: Version = None,
    state_dir: Annotated[Path | None, typer.Option(help="Where local state is; state.dir if left out.")] = None,
    *,
    yes: Yes = False,
) -> None:
    """Delete an application's local state on this machine; workers restore theirs. With --version no broker is asked."""
    from pipeline.worker.local_state import directories_of
    from pipeline.worker.reset import clean_up as carry_out

    application_id, state_directory = settings_of(context).local_state(app, version, state_dir)
    found = directories_of(application_id, state_directory)
    if found:
        _confirm(f"Delete {', '.join(map(str, found))}?", yes=yes)
    carry_out(found)
    for directory in found:
        typer.echo(f"Deleted local state {directory}")
    if not found:
        typer.echo(f"There is no local state of {application_id} in {state_directory}")


def _confirm(question: str, *, yes: bool) -> None:
    """Ask before something is deleted.

    Raises:
        ConfigError: If nobody can be asked.
        Abort: If the answer is no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        message = f"{question} There is no terminal where that could be asked"
        raise ConfigError(message, hint="Say it beforehand: --yes.")
    typer.confirm(question, abort=True)


def scale(
    context: typer.Context,
    app: App,
    threads: Annotated[int, typer.Argument(min=1, help="Stream threads from now on.")],
    server: Server = None,
) -> None:
    """Set the number of stream threads of an instance (num.stream.threads) while it runs."""
    address = server or settings_of(context).project().app(app).streams.application_server
    if not _is_complete(address):
        message = f"It is not known where an instance of {app} answers"
        raise ConfigError(message, hint="Name one: --server host:port, or set application.server.")
    answer = _asked(context, app, "POST", address, "/scale", threads=threads)
    typer.echo(f"{address} runs {counted(answer['threads'], 'stream thread')} from now on")


def _is_complete(address: str) -> bool:
    """Whether somebody can be asked there; port 0 is any that is free."""
    return bool(address) and checked_address("--server", address).port != 0


def _asked(context: typer.Context, app: str, method: str, address: str, path: str, **params: Any) -> Any:
    """What an instance answers.

    Raises:
        StreamsError: If it does not, or refuses.
    """
    require_extra("http")
    import httpx

    from pipeline.service.encryption import client_tls

    settings = settings_of(context)
    config = settings.project().app(app)
    token = settings.token_of(config) or config.streams.server_read_token
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    hint = "Name an instance that runs: --server host:port."
    tls = client_tls(config.streams)
    with httpx.Client(
        timeout=_ANSWER_SECONDS, trust_env=False, verify=tls or True
    ) as client:  # no proxy sees the token
        try:
            answer = client.request(
                method, f"http{'s' if tls else ''}://{address}{path}", params=params, headers=headers
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            message = f"Instance {address} does not answer: {error}"
            raise StreamsError(message, hint=hint) from error
    if answer.is_error:
        message = f"Instance {address} refuses, with status {answer.status_code}: {answer.text}"
        raise StreamsError(
            message,
            hint="Set server.token, or MILLRACE_TOKEN." if answer.status_code == httpx.codes.UNAUTHORIZED else None,
        )
    return answer.json()


def _show_instance(status: Any) -> None:
    typer.echo(f"{status['server']} is {status['state']}{', paused' if status['paused'] else ''}:")
    done = f"{counted(status['processed'], 'record')} in {counted(status['commits'], 'commit')}"
    typer.echo(f"  {counted(status['threads'], 'stream thread')}, {done}")
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
