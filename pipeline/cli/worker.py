"""`millrace worker`."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path  # noqa: TC003 - typer reads the annotation
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.project import settings_of

if TYPE_CHECKING:
    from pipeline.hosting.application import Application
    from pipeline.records import TopicPartition
    from pipeline.worker.states import WorkerState, WorkerSummary

_RESTORE_LINES = 100_000
"""Records between two lines about a restore."""


def worker(
    context: typer.Context,
    app: Annotated[str, typer.Argument(help="The application's name in streams.toml.")],
    version: Annotated[str | None, typer.Option(help="Which version; the live one if left out.")] = None,
    state_dir: Annotated[
        Path | None, typer.Option(help="Local state; each instance on a machine needs a directory of its own.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Stream processes; num.stream.threads if left out.")
    ] = None,
    server: Annotated[
        str | None, typer.Option(help="host:port of the HTTP interface; application.server if left out.")
    ] = None,
    *,
    until_caught_up: Annotated[
        bool, typer.Option("--until-caught-up", help="Run all tasks alone, and stop once everything is processed.")
    ] = False,
) -> None:
    """Run an instance of an application until it is told to stop (Ctrl-C or SIGTERM); instances share the tasks."""
    application = settings_of(context).live_application(app, version)
    if state_dir is not None:
        application = replace(application, state_directory=state_dir.resolve())
    given = {"num_stream_threads": threads, "application_server": server}
    changes = {name: value for name, value in given.items() if value is not None}
    streams = replace(application.config.streams, **changes)  # type: ignore[arg-type] # by name
    application = replace(application, config=replace(application.config, streams=streams))
    token = streams.server_token or settings_of(context).environ.get("MILLRACE_TOKEN", "")
    summary = _alone(application) if until_caught_up else _in_group(application, token)
    dropped = ", ".join(f"{reason}: {count}" for reason, count in sorted(summary.dropped.items())) or "none"
    typer.echo(f"{summary.processed} records processed in {summary.commits} commits; dropped: {dropped}")


def _alone(application: Application) -> WorkerSummary:
    from pipeline.hosting.garbage import collect_rarely  # noqa: PLC0415 - engines load where they are used
    from pipeline.worker.worker import Worker  # noqa: PLC0415 - as above

    collect_rarely()
    running = Worker(application, on_state=_show_state, on_restore=_show_restore)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: running.stop())
    return running.run(until_caught_up=True)


def _in_group(application: Application, token: str) -> WorkerSummary:
    from pipeline.releases.build import build_topology  # noqa: PLC0415 - as above
    from pipeline.worker.supervisor import Supervisor  # noqa: PLC0415 - as above

    server = application.config.streams.application_server
    with ExitStack() as stack:
        if not server:
            supervisor = Supervisor(application, build_topology, on_state=_show_state)
        else:
            from pipeline.service.api import new_api  # noqa: PLC0415 - as above
            from pipeline.service.server import bound, name_of, serving  # noqa: PLC0415 - as above

            listener = stack.enter_context(bound(server, token))
            name = name_of(listener, server)
            supervisor = Supervisor(application, build_topology, server=name, on_state=_show_state)
            stack.enter_context(serving(new_api(supervisor, token), listener))
            typer.echo(f"Answers at http://{name}")
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _number, _frame: supervisor.stop())
        return supervisor.run()


def _show_state(state: WorkerState) -> None:
    typer.echo(f"Worker is {state.value}")


def _show_restore(changelog: TopicPartition, done: int, expected: int) -> None:
    if done == expected or done % _RESTORE_LINES < _RESTORE_LINES // 10:
        typer.echo(f"Restored {done} of {expected} offsets, now {changelog}")
