"""`millrace worker`."""

from __future__ import annotations

import signal
from dataclasses import replace
from enum import StrEnum
from pathlib import Path  # noqa: TC003 - typer reads the annotation
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli.project import MASTER, settings_of
from pipeline.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pipeline.cluster.channel import InstanceReport
    from pipeline.hosting.application import Application
    from pipeline.records import TopicPartition
    from pipeline.worker.states import WorkerState, WorkerSummary

_RESTORE_LINES = 100_000
"""Records between two lines about a restore."""


class Place(StrEnum):
    """Where instances run."""

    SPARK = "spark"


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
    on: Annotated[
        Place | None, typer.Option("--on", help="Run instances on a Spark cluster; in this process if left out.")
    ] = None,
    instances: Annotated[int, typer.Option(min=1, help="With --on spark: how many; each takes a core.")] = 1,
    master: Annotated[str | None, MASTER] = None,
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
    settings = settings_of(context)
    token = streams.server_token or settings.environ.get("MILLRACE_TOKEN", "")
    if on is Place.SPARK:
        if until_caught_up:
            message = "--until-caught-up runs in this process, not on Spark"
            raise ConfigError(message, hint="A bounded run on Spark: millrace run.")
        summary = _on_spark(application, token, instances, lambda given: settings.spark(master, given))
    else:
        summary = _alone(application) if until_caught_up else _in_group(application, token)
    dropped = ", ".join(f"{reason}: {count}" for reason, count in sorted(summary.dropped.items())) or "none"
    typer.echo(f"{summary.processed} records processed in {summary.commits} commits; dropped: {dropped}")
    for name, value in summary.totals.items():
        typer.echo(f"{name}: {value:g}")


def _alone(application: Application) -> WorkerSummary:
    from pipeline.hosting.garbage import collect_rarely  # noqa: PLC0415 - engines load where they are used
    from pipeline.worker.worker import Worker  # noqa: PLC0415 - as above

    collect_rarely()
    running = Worker(application, on_state=_show_state, on_restore=_show_restore)
    _stop_with_signals(running.stop)
    return running.run(until_caught_up=True)


def _in_group(application: Application, token: str) -> WorkerSummary:
    from pipeline.releases.build import build_topology  # noqa: PLC0415 - as above
    from pipeline.service.instance import new_instance  # noqa: PLC0415 - as above

    with new_instance(application, build_topology, token=token, on_state=_show_state) as supervisor:
        if supervisor.server:
            typer.echo(f"Answers at http://{supervisor.server}")
        _stop_with_signals(supervisor.stop)
        return supervisor.run()


def _on_spark(
    application: Application, token: str, instances: int, new_session: Callable[[Mapping[str, str]], Any]
) -> WorkerSummary:
    from pipeline.cluster.deployment import DEPLOYMENT_SETTINGS, Deployment  # noqa: PLC0415 - as above
    from pipeline.releases.build import build_topology  # noqa: PLC0415 - as above

    spark = new_session(DEPLOYMENT_SETTINGS)
    try:
        deployment = Deployment(
            application, spark, build_topology, instances=instances, token=token, on_report=_show_report
        )
        _stop_with_signals(deployment.stop)
        return deployment.run()
    finally:
        spark.stop()


def _stop_with_signals(stop: Callable[[], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop())


def _show_report(report: InstanceReport) -> None:
    where = f", answers at http://{report.server}" if report.server and report.state == "running" else ""
    typer.echo(
        f"Instance {report.number} on {report.host} is {report.state}{where}: "
        f"{report.processed} records processed in {report.commits} commits"
    )


def _show_state(state: WorkerState) -> None:
    typer.echo(f"Worker is {state.value}")


def _show_restore(changelog: TopicPartition, done: int, expected: int) -> None:
    if done == expected or done % _RESTORE_LINES < _RESTORE_LINES // 10:
        typer.echo(f"Restored {done} of {expected} offsets, now {changelog}")
