"""Sets up an instance in any environment: a supervisor and, if it has an address, the HTTP interface for queries."""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from riverrun.extras import require_extra
from riverrun.hosting.clock import SystemClock
from riverrun.worker.instance.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from riverrun.config import StreamsConfig
    from riverrun.errors import StreamsError
    from riverrun.hosting.application import Application
    from riverrun.service.access.admission import Access
    from riverrun.topology.topology import Topology
    from riverrun.worker.states import WorkerState
    from riverrun.worker.stream_thread.protocol import StreamJob


@contextmanager
def new_instance(
    application: Application,
    build: Callable[[StreamJob], Topology],
    *,
    token: str = "",
    on_state: Callable[[WorkerState], None] = lambda _state: None,
    uncaught_exception_handler: Callable[[StreamsError], str] | None = None,
    complete: Callable[[], None] | None = None,
) -> Iterator[Supervisor]:
    """Yield an instance that does not run yet. Within this context it answers at `application.server`, if that is set.

    Args:
        application: The application to run.
        build: Builds its topology within a stream thread.
        token: Callers must show it for queries and commands; if empty, only `server.read.token` can be shown.
        on_state: Called on every change of state.
        uncaught_exception_handler: Decides what follows when a stream thread fails; by default, as configured.
        complete: Completes a switch of versions whose coordinator has died; None to leave that to others.

    Raises:
        ConfigError: If its address cannot be used.
        MissingExtraError: If it is to answer, and the packages for that are not installed.
    """
    streams = application.config.streams
    if not streams.application_server:
        yield Supervisor(
            application,
            build,
            on_state=on_state,
            uncaught_exception_handler=uncaught_exception_handler,
            complete=complete,
        )
        return
    require_extra("http")
    # These modules are half of what an instance loads, and most instances do not answer queries.
    from riverrun.service.access.connections import Limits  # noqa: PLC0415 - as above
    from riverrun.service.access.encryption import client_tls, server_tls  # noqa: PLC0415 - as above
    from riverrun.service.api import new_api  # noqa: PLC0415 - as above
    from riverrun.service.queries.peers import Peers  # noqa: PLC0415 - as above
    from riverrun.service.server import bound, name_of, serving  # noqa: PLC0415 - as above

    tls = server_tls(streams)
    with bound(streams.application_server, wants_token=bool(token or streams.server_read_token)) as listener:
        name = name_of(listener, streams.application_server, application.kafka["bootstrap.servers"])
        access = _access(streams, token, name, application.id)
        peers = Peers(access.signatures, SystemClock(), client_tls(streams) if tls else None)
        supervisor = Supervisor(
            application,
            build,
            server=name,
            on_state=on_state,
            uncaught_exception_handler=uncaught_exception_handler,
            complete=complete,
        )
        api = new_api(supervisor, access, peers)
        queries = api.state.queries
        if queries is not None:
            queries.start()

        def end() -> None:
            """End the answers that would go on."""
            api.state.events.end()
            if queries is not None:
                queries.close()

        with closing(peers), serving(api, listener, Limits(tls=tls), end):
            yield supervisor


def _access(streams: StreamsConfig, token: str, name: str, application_id: str) -> Access:
    from riverrun.service.access.admission import Access  # noqa: PLC0415 - as above
    from riverrun.service.access.signatures import Signatures  # noqa: PLC0415 - as above

    shared = token or streams.server_read_token
    signatures = Signatures.of(shared, application_id) if shared else None
    hosts = frozenset(streams.server_allowed_hosts)
    return Access(token, streams.server_read_token, signatures, name, hosts)
