"""`riverrun worker` runs an application: in this process, alone or in a group, or on a Spark cluster."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path  # noqa: TC003 - typer reads the annotation
from typing import TYPE_CHECKING, Annotated

import typer

from riverrun.cli.gathering import gathering
from riverrun.cli.output import echo
from riverrun.cli.project import App, Master, Version, flag, settings_of, tell_of_staging
from riverrun.cli.run import show_figures
from riverrun.cli.signals import Ending, end_now, stop_then_end
from riverrun.config.streams import MOST_INSTANCES, MOST_THREADS
from riverrun.errors import ConfigError
from riverrun.records import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from riverrun.cluster.deployment import Deployment
    from riverrun.cluster.instance import InstanceReport
    from riverrun.project.worker import AppWorker
    from riverrun.records import TopicPartition
    from riverrun.worker.states import WorkerState, WorkerSummary
    from riverrun.worker.worker import Worker

_RESTORE_LINES = 100_000
"""Number of records between two lines about a restore."""
_LEAST_SHARE = 0.005
"""Share of the time below which nodes are not shown, as in the console."""
_SHOWN_NODES = 5


class WorkerHost(StrEnum):
    """A place to run workers."""

    SPARK = "spark"


@dataclass(frozen=True, slots=True)
class _Replaced:
    """Options that replace settings, with the names that methods of applications have for them."""

    state_dir: Annotated[
        Path | None,
        typer.Option(
            help="Directory of the local state; defaults to state.dir. Each instance on a machine needs its own."
        ),
    ] = None
    threads: Annotated[
        int | None,
        typer.Option(min=1, max=MOST_THREADS, help="Number of stream threads; defaults to num.stream.threads."),
    ] = None
    server: Annotated[
        str | None, typer.Option(help="Address of the HTTP interface, host:port; defaults to application.server.")
    ] = None


@gathering
def worker(
    context: typer.Context,
    app: App,
    version: Version = None,
    *,
    replaced: _Replaced,
    on: Annotated[
        WorkerHost | None,
        typer.Option("--on", help="Run instances on a Spark cluster. Defaults to one instance in this process."),
    ] = None,
    instances: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_INSTANCES,
            help="With --on spark, the number of instances; defaults to one. Each takes a core.",
        ),
    ] = None,
    master: Master = None,
    until_caught_up: Annotated[
        bool, flag("--until-caught-up", "Run all tasks alone, and stop as soon as nothing is left to process.")
    ] = False,
    in_process: Annotated[
        bool, flag("--in-process", "Run all tasks alone in this process, where breakpoint() works.")
    ] = False,
) -> None:
    """Run an instance of an application until Ctrl-C or SIGTERM stops it. Instances share the tasks."""
    ending = Ending()
    if on is None:
        _refuse({"--instances": instances, "--master": master}, "says how to run on Spark", "Add --on spark.")
    if until_caught_up or in_process:
        flag = "--until-caught-up" if until_caught_up else "--in-process"
        _refuse({"--on": on}, f"cannot be combined with {flag}", "A bounded run on Spark: riverrun run.")
        alone = {"--threads": replaced.threads, "--server": replaced.server}
        _refuse(alone, f"cannot be combined with {flag}, which runs all tasks in one process", "Leave it out.")
    chosen = settings_of(context).project(master).app(app, version=version)
    if on is WorkerHost.SPARK:
        deployment = chosen.deployment(instances or 1, **asdict(replaced), on_report=_show_report)
        summary = _on_spark(deployment, ending)
    elif until_caught_up or in_process:
        sole = chosen.sole_worker(state_dir=replaced.state_dir, on_state=show_state, on_restore=show_restore)
        summary = _alone(sole, ending, until_caught_up=until_caught_up)
    else:
        summary = _in_group(chosen.worker(**asdict(replaced)), ending)
    done = f"{counted(summary.processed, 'record')} processed in {counted(summary.commits, 'commit')}"
    show_figures(done, summary.dropped, summary.totals)


def _refuse(options: Mapping[str, object], why: str, hint: str) -> None:
    """Refuse options that would have no effect."""
    for name, given in options.items():
        if given is not None:
            raise ConfigError(f"{name} {why}", hint=hint)


def _alone(running: Worker, ending: Ending, *, until_caught_up: bool) -> WorkerSummary:
    from riverrun.hosting.process import collect_rarely

    tell_of_staging(running.application)
    collect_rarely()

    def stop() -> None:
        running.stop()
        # It waits for brokers, or fills global tables, and would see the request only afterwards. Nothing is lost.
        if not running.has_begun:
            end_now()

    ending.ask(stop_then_end(stop))
    return running.run(until_caught_up=True) if until_caught_up else run_sampled(running)


def run_sampled(running: Worker) -> WorkerSummary:
    """Run a worker until it is stopped, with samples of where its time goes; then print its busiest nodes."""
    from riverrun.worker.node_sampling import sampled

    times = running.node_times
    with sampled(times, running.application.config.streams.node_sample_interval_ms):
        summary = running.run()
        busy = busy_text(times.shares())
    if busy:
        echo(f"Busy nodes: {busy}")
    return summary


def busy_text(shares: Mapping[str, float]) -> str:
    """Return the busiest nodes, in the order of `shares`, with their shares of the time; empty if none was busy.

    >>> busy_text({"totals": 0.384, "a-sink": 0.012, "a-source": 0.004})
    'totals 38.4 %, a-sink 1.2 %'
    """
    busy = [f"{node} {share:.1%}".replace("%", " %") for node, share in shares.items() if share >= _LEAST_SHARE]
    return ", ".join(busy[:_SHOWN_NODES])


def _in_group(running: AppWorker, ending: Ending) -> WorkerSummary:
    tell_of_staging(running.application)
    running.set_state_listener(lambda new, _old: show_state(new))

    def stop() -> None:
        running.close(0)
        # It waits for brokers, and would see the request only once they answer.
        if not running.has_begun:
            end_now()

    ending.ask(stop)
    running.start()
    if running.server:
        is_tls = running.application.config.streams.server_ssl_certificate_location
        echo(f"Answers at {'https' if is_tls else 'http'}://{running.server}")
    return running.wait()


def _on_spark(deployment: Deployment, ending: Ending) -> WorkerSummary:
    tell_of_staging(deployment.application)
    try:
        ending.ask(deployment.stop)
        return deployment.run()
    finally:
        # Java may have ended already; then there is nothing left to stop.
        with suppress(OSError):
            deployment.spark.stop()


def _show_report(report: InstanceReport) -> None:
    where = f", answers at {report.server}" if report.server and report.state == "running" else ""
    echo(
        f"Instance {report.number} on {report.host} is {report.state}{where}: "
        f"{counted(report.processed, 'record')} processed in {counted(report.commits, 'commit')}"
    )


def show_state(state: WorkerState) -> None:
    """Print a change of state."""
    echo(f"Worker is {state.value}")


def show_restore(changelog: TopicPartition, done: int, expected: int) -> None:
    """Print the progress of a restore, about every `_RESTORE_LINES` records."""
    # Records come in batches, so no call may hit a multiple exactly.
    if done == expected or done % _RESTORE_LINES < _RESTORE_LINES // 10:
        echo(f"Restored {done} of {expected} offsets, now {changelog}")
