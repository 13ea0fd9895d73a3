"""Workers and deployments of an application, ready to start."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from riverrun.config.address import checked_address
from riverrun.config.checks import check_number
from riverrun.config.sections.streams import MOST_THREADS
from riverrun.releases.versions.build import build_topology

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.cluster.channel import InstanceReport
    from riverrun.cluster.deployment import Deployment
    from riverrun.hosting.application import Application
    from riverrun.project.chosen_version import ChosenVersion
    from riverrun.project.worker import AppWorker
    from riverrun.records import TopicPartition
    from riverrun.worker.states import WorkerState
    from riverrun.worker.worker import Worker


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """Settings that a call replaces in an application; None keeps a setting.

    Args:
        state_dir: Directory of local state.
        threads: `num.stream.threads`.
        server: `application.server`.
    """

    state_dir: str | Path | None = None
    threads: int | None = None
    server: str | None = None

    def applied_to(self, application: Application) -> Application:
        """Return an application with these settings.

        Raises:
            ConfigError: If a value is impossible.
        """
        if self.threads is not None:
            check_number("threads", self.threads, 1, MOST_THREADS)
        if self.state_dir is not None:
            application = replace(application, state_directory=Path(self.state_dir).resolve())
        address = None if self.server is None else str(checked_address("--server", self.server))
        given = {"num_stream_threads": self.threads, "application_server": address}
        changes = {name: value for name, value in given.items() if value is not None}
        streams = replace(application.config.streams, **changes)  # type: ignore[arg-type] # by name
        return replace(application, config=replace(application.config, streams=streams))


def new_worker(chosen: ChosenVersion, options: LiveOptions, token: str | None) -> AppWorker:
    """Return an instance for this process.

    Args:
        chosen: The application.
        options: Settings to replace.
        token: Token that callers must show; None for the configured one.
    """
    from riverrun.project.worker import AppWorker

    application = _to_run(chosen, options)
    return AppWorker(application, build_topology, chosen.token if token is None else token, _completing(chosen))


def new_sole_worker(
    chosen: ChosenVersion,
    options: LiveOptions,
    on_state: Callable[[WorkerState], None] = lambda _state: None,
    on_restore: Callable[[TopicPartition, int, int], None] | None = None,
) -> Worker:
    """Return a worker that runs all tasks in this process and thread.

    Args:
        chosen: The application.
        options: Settings to replace.
        on_state: Called with every change of state.
        on_restore: Called with the changelog, the records restored and the records expected.
    """
    from riverrun.worker.worker import Worker

    application = _to_run(chosen, options)
    return Worker(application, on_state=on_state, on_restore=on_restore, complete=_completing(chosen))


def new_deployment(
    chosen: ChosenVersion, options: LiveOptions, instances: int, on_report: Callable[[InstanceReport], None]
) -> Deployment:
    """Return instances on the Spark cluster.

    Args:
        chosen: The application.
        options: Settings to replace.
        instances: Their number.
        on_report: Called with their reports.
    """
    from riverrun.cluster.deployment import DEPLOYMENT_SETTINGS, Deployment

    application = _to_run(chosen, options)
    spark = chosen.cluster.sessions.session(defaults=DEPLOYMENT_SETTINGS)
    connected, token = chosen.on_brokers(application), chosen.token
    return Deployment(
        connected,
        spark,
        build_topology,
        instances=instances,
        token=token,
        on_report=on_report,
        complete=_completing(chosen),
    )


def _completing(chosen: ChosenVersion) -> Callable[[], None]:
    """Return the function that completes a switch of the application's versions."""

    def complete() -> None:
        from riverrun.project.release import AppRelease

        AppRelease(chosen.cluster, chosen.project, chosen.name, None).releaser.complete()

    return complete


def _to_run(chosen: ChosenVersion, options: LiveOptions) -> Application:
    application = options.applied_to(chosen.processing())
    chosen.require_no_switch(application)
    return application
