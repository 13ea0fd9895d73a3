"""Workers and deployments of an application, ready to start, and requests to running instances over HTTP."""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from riverrun.config.address import checked_address
from riverrun.config.checks import check_number
from riverrun.config.streams import MOST_THREADS
from riverrun.errors import ConfigError, StreamsError, UnderWayError
from riverrun.extras import require_extra
from riverrun.records import shortened
from riverrun.releases.topology import build_topology

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from riverrun.cluster.deployment import Deployment
    from riverrun.cluster.instance import InstanceReport
    from riverrun.config import AppConfig
    from riverrun.hosting.application import Application
    from riverrun.kafka.admin import Admin
    from riverrun.project.chosen_version import ChosenVersion
    from riverrun.project.worker import AppWorker
    from riverrun.records import TopicPartition
    from riverrun.releases.worker_quality import Answers
    from riverrun.worker.states import WorkerState
    from riverrun.worker.worker import Worker

log = logging.getLogger(__name__)

_ANSWER_SECONDS = 10.0
_ASKED_AT_ONCE = 16
_SHOWN = 1_000
"""Number of characters of an answer that a message shows: another program may have given it."""
_HINT = "Name a running instance: --server host:port."
_LOOK_SECONDS = 1.0


def asked(
    chosen: ChosenVersion,
    method: str,
    path: str,
    *,
    server: str | None,
    params: Mapping[str, Any] | None = None,
    body: Mapping[str, Any] | None = None,
) -> Any:
    """Return an instance's answer as parsed JSON; with a body, its decimal numbers are exact."""
    streams = chosen.config.streams
    address = server or streams.application_server
    if not address or checked_address("--server", address).port == 0:
        message = f"No address of an instance of {chosen.name} is known"
        raise ConfigError(message, hint="Name one: --server host:port, or set application.server.")
    require_extra("http")
    import httpx

    from riverrun.service.connections import client_tls

    tls = client_tls(streams)
    token = chosen.token or streams.server_read_token
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    url = f"http{'s' if tls else ''}://{address}{path}"
    # Instances themselves end queries, the requests with a body: they have that time as well.
    seconds = _ANSWER_SECONDS + (0 if body is None else streams.server_query_timeout_ms / 1000)
    # trust_env=False: no proxy of the environment must see the token.
    with httpx.Client(timeout=seconds, trust_env=False, verify=tls or True) as client:
        try:
            answer = client.request(method, url, params=dict(params or {}), headers=headers, json=body)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            message = f"Instance {address} does not answer: {error}"
            raise StreamsError(message, hint=_HINT) from error
    if answer.is_error:
        message = f"Instance {address} refuses, with status {answer.status_code}: {answer.text[:_SHOWN]}"
        is_stranger = answer.status_code == httpx.codes.UNAUTHORIZED
        raise StreamsError(message, hint="Set server.token, or RIVERRUN_TOKEN." if is_stranger else None)
    try:
        # Answers to queries may have decimals, which floats would round.
        return answer.json(parse_float=None if body is None else Decimal)
    except (ValueError, RecursionError) as error:
        message = f"{address} does not answer like an instance, but with {shortened(answer.content)}"
        raise StreamsError(message, hint="Another program may answer there.") from error


@dataclass(frozen=True, slots=True)
class AppStatus:
    """Instances and tasks of a running application.

    Args:
        application_id: Id of the application and version.
        group: The state of its consumer group, by Kafka's names.
        members: Its instances and runs, as `client-id@host`.
        instance: The `/status` of one instance, which covers all tasks; None if none was asked.
        warnings: What brokers may forget, or have forgotten, as nothing runs: committed offsets, and deletions of rows.
    """

    application_id: str
    group: str
    members: tuple[str, ...]
    instance: Mapping[str, Any] | None = None
    warnings: tuple[str, ...] = ()


def status_of(chosen: ChosenVersion, server: str | None) -> AppStatus:
    """Return the places where an application runs."""
    from riverrun.hosting.continuing import expiry_warning

    application_id = chosen.application_id
    group = chosen.cluster.admin.group(application_id)
    address = server or chosen.config.streams.application_server
    is_asked = bool(group.members or server) and bool(address) and not address.endswith(":0")
    instance = asked(chosen, "GET", "/status", server=address) if is_asked else None
    expiry = expiry_warning(chosen.cluster.admin, chosen.config, chosen.version)
    warnings = () if group.members else _lost_deletions(chosen)
    if expiry is not None:
        warnings = expiry, *warnings
    return AppStatus(application_id, group.state, tuple(map(str, group.members)), instance, warnings)


def _lost_deletions(chosen: ChosenVersion) -> tuple[str, ...]:
    from riverrun.hosting.table_inputs import absences

    try:
        return tuple(absences(chosen.connected()))
    # A status is shown whatever the topology and its topics are like.
    except StreamsError as error:
        log.debug("absences are not known: %s", error)
        return ()


def work_of(chosen: ChosenVersion, application_id: str) -> Answers:
    """Ask all instances of a version for the work of their tasks."""
    require_extra("http")
    from riverrun.releases.worker_quality import Answers, InstanceWork
    from riverrun.service.peers import Members, NoAnswerError
    from riverrun.worker.group.protocol import servers_of

    def told_by(server: str) -> InstanceWork | str:
        try:
            return InstanceWork.of(members.ask(server, "/tasks"))
        except NoAnswerError as error:
            return str(error)
        # Another program answers there, or another version of Riverrun.
        except ValueError:
            return f"{server} does not answer like an instance"

    servers = servers_of(chosen.cluster.admin, application_id)
    members = Members(chosen.config.streams, chosen.token, application_id)
    with closing(members), ThreadPoolExecutor(_ASKED_AT_ONCE) as threads:
        found = list(zip(servers, threads.map(told_by, servers), strict=True))
    told = {server: each for server, each in found if isinstance(each, InstanceWork)}
    return Answers(told, {server: each for server, each in found if isinstance(each, str)})


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """Settings that a call replaces in an application; None keeps a setting."""

    state_dir: str | Path | None = None
    threads: int | None = None
    server: str | None = None

    def applied_to(self, application: Application) -> Application:
        """Return an application with these settings."""
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
    """Return an instance for this process. In the middle of a switch of versions, it waits for its end."""
    from riverrun.project.worker import AppWorker

    application = _to_run(chosen, options)
    return AppWorker(application, build_topology, chosen.token if token is None else token, _completing(chosen))


def new_sole_worker(
    chosen: ChosenVersion,
    options: LiveOptions,
    on_state: Callable[[WorkerState], None] = lambda _state: None,
    on_restore: Callable[[TopicPartition, int, int], None] | None = None,
) -> Worker:
    """Return a worker that runs all tasks in this process and thread. In the middle of a switch, it waits for its end."""
    from riverrun.worker.worker import Worker

    application = _to_run(chosen, options)
    return Worker(application, on_state=on_state, on_restore=on_restore)


def new_deployment(
    chosen: ChosenVersion, options: LiveOptions, instances: int, on_report: Callable[[InstanceReport], None]
) -> Deployment:
    """Return instances on the Spark cluster. In the middle of a switch of versions, it waits for its end."""
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
    """Return the application to run. In the middle of a switch of versions this waits for its end."""
    application = options.applied_to(chosen.processing())
    try:
        chosen.require_no_switch(application)
    except UnderWayError:
        # A whole group may have been restarted at that moment, so that no instance is left to complete an abandoned switch.
        wait_for_switch(chosen.cluster.admin, chosen.config, _completing(chosen))
        # Another version may be live now.
        application = options.applied_to(chosen.processing())
        chosen.require_no_switch(application)
    return application


def wait_for_switch(admin: Admin, app: AppConfig, complete: Callable[[], None]) -> None:
    """Wait until no switch of an application's versions is under way; complete one whose coordinator has died.

    Args:
        admin: Asks the brokers.
        app: The application.
        complete: Completes the switch; after a failure, it is called again later.

    Raises:
        ReleaseError: If the release cannot be read, or is lost.
        BrokerError: If brokers do not answer.
    """
    from riverrun.hosting.barrier_listener import OrphanWatch
    from riverrun.hosting.control_topic import release_of
    from riverrun.hosting.release import SWITCHING

    watch, is_told = OrphanWatch(), False
    while (release := release_of(admin, app)).step in SWITCHING:
        if not is_told:
            message = "the release of %s is %s, by %s: this instance starts when that is completed"
            log.warning(message, app.name, release.step.value, release.changed_by)
            is_told = True
        if watch.has_found(release):
            try:
                complete()
            except StreamsError as error:
                log.warning("cannot complete the release of %s, trying again: %s", app.name, error)
        else:
            time.sleep(_LOOK_SECONDS)
