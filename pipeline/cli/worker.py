"""`millrace worker`."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from pathlib import Path  # noqa: TC003 - typer reads the annotation
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli.figures import show_figures
from pipeline.cli.project import App, Master, Version, settings_of
from pipeline.cli.signals import Ending, end_now, stop_then_end
from pipeline.config.address import checked_address
from pipeline.errors import ConfigError
from pipeline.records import counted

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
    app: App,
    version: Version = None,
    state_dir: Annotated[
        Path | None, typer.Option(help="Local state; each instance on a machine needs a directory of its own.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Stream threads; num.stream.threads if left out.")] = None,
    server: Annotated[
        str | None, typer.Option(help="host:port of the HTTP interface; application.server if left out.")
    ] = None,
    on: Annotated[
        Place | None, typer.Option("--on", help="Run instances on a Spark cluster; in this process if left out.")
    ] = None,
    instances: Annotated[
        int | None, typer.Option(min=1, help="With --on spark: how many; each takes a core. One if left out.")
    ] = None,
    master: Master = None,
    *,
    until_caught_up: Annotated[
        bool,
        typer.Option(
            "--until-caught-up", metavar="", help="Run all tasks alone, and stop once everything is processed."
        ),
    ] = False,
) -> None:
    """Run an instance of an application until it is told to stop (Ctrl-C or SIGTERM); instances share the tasks."""
    ending = Ending()
    settings = settings_of(context)
    if on is None:
        _refuse({"--instances": instances, "--master": master}, "says how to run on Spark", "Add --on spark.")
    if until_caught_up:
        _refuse({"--on": on}, "does not go with --until-caught-up", "A bounded run on Spark: millrace run.")
        alone = {"--threads": threads, "--server": server}
        _refuse(alone, "does not go with --until-caught-up, which runs all tasks in one process", "Leave it out.")
    application = _configured(settings.processing(app, version), state_dir, threads, server)
    settings.require_no_switch(application, version)
    token = settings.token_of(application.config)
    if on is Place.SPARK:
        summary = _on_spark(application, token, instances or 1, lambda given: settings.spark(master, given), ending)
    else:
        summary = _alone(application, ending) if until_caught_up else _in_group(application, token, ending)
    done = f"{counted(summary.processed, 'record')} processed in {counted(summary.commits, 'commit')}"
    show_figures(done, summary.dropped, summary.totals)


def _refuse(options: Mapping[str, object], why: str, hint: str) -> None:
    """Have nobody believe in options that would do nothing.

    Raises:
        ConfigError: If one of them is given.
    """
    for name, given in options.items():
        if given is not None:
            message = f"{name} {why}"
            raise ConfigError(message, hint=hint)


def _configured(
    application: Application, state_dir: Path | None, threads: int | None, server: str | None
) -> Application:
    """The application as the options say."""
    if state_dir is not None:
        application = replace(application, state_directory=state_dir.resolve())
    address = None if server is None else str(checked_address("--server", server))
    given = {"num_stream_threads": threads, "application_server": address}
    changes = {name: value for name, value in given.items() if value is not None}
    streams = replace(application.config.streams, **changes)  # type: ignore[arg-type] # by name
    return replace(application, config=replace(application.config, streams=streams))


def _alone(application: Application, ending: Ending) -> WorkerSummary:
    from pipeline.hosting.garbage import collect_rarely
    from pipeline.worker.worker import Worker

    collect_rarely()
    running = Worker(application, on_state=_show_state, on_restore=_show_restore)

    def stop() -> None:
        running.stop()
        if not running.has_begun:  # it waits for brokers, or fills global tables
            end_now()

    ending.ask(stop_then_end(stop))
    return running.run(until_caught_up=True)


def _in_group(application: Application, token: str, ending: Ending) -> WorkerSummary:
    from pipeline.releases.build import build_topology
    from pipeline.service.instance import new_instance

    with new_instance(application, build_topology, token=token, on_state=_show_state) as supervisor:
        if supervisor.server:
            scheme = "https" if application.config.streams.server_ssl_certificate_location else "http"
            typer.echo(f"Answers at {scheme}://{supervisor.server}")

        def stop() -> None:
            supervisor.stop()
            if supervisor.layout is None:  # it waits for brokers
                end_now()

        ending.ask(stop)
        return supervisor.run()


def _on_spark(
    application: Application,
    token: str,
    instances: int,
    new_session: Callable[[Mapping[str, str]], Any],
    ending: Ending,
) -> WorkerSummary:
    from pipeline.cluster.deployment import DEPLOYMENT_SETTINGS, Deployment
    from pipeline.releases.build import build_topology

    spark = new_session(DEPLOYMENT_SETTINGS)
    try:
        deployment = Deployment(
            application, spark, build_topology, instances=instances, token=token, on_report=_show_report
        )
        ending.ask(deployment.stop)
        return deployment.run()
    finally:
        with suppress(OSError):  # Java may have ended before
            spark.stop()


def _show_report(report: InstanceReport) -> None:
    where = f", answers at {report.server}" if report.server and report.state == "running" else ""
    typer.echo(
        f"Instance {report.number} on {report.host} is {report.state}{where}: "
        f"{counted(report.processed, 'record')} processed in {counted(report.commits, 'commit')}"
    )


def _show_state(state: WorkerState) -> None:
    typer.echo(f"Worker is {state.value}")


def _show_restore(changelog: TopicPartition, done: int, expected: int) -> None:
    if done == expected or done % _RESTORE_LINES < _RESTORE_LINES // 10:
        typer.echo(f"Restored {done} of {expected} offsets, now {changelog}")
