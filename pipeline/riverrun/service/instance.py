"""Sets up an instance and, if it has an address, serves its HTTP interface in a thread as long as the instance runs."""

from __future__ import annotations

import socket
import threading
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from riverrun.config.address import ServerAddress, checked_address
from riverrun.errors import ConfigError
from riverrun.extras import require_extra
from riverrun.hosting.process import SystemClock
from riverrun.worker.streams_instance import StreamsInstance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastapi import FastAPI

    from riverrun.config import StreamsConfig
    from riverrun.errors import StreamsError
    from riverrun.hosting.application import Application
    from riverrun.service.admission import Access
    from riverrun.service.connections import ConnectionLimits
    from riverrun.topology.topology import Topology
    from riverrun.worker.states import WorkerState
    from riverrun.worker.stream_thread.protocol import StreamJob

_STOP_SECONDS = 5.0
# The kernel accepts so many connections before `connections` sees the first of them, and in a flood each takes a file.
_BACKLOG = 32
_EVERYWHERE = frozenset({"0.0.0.0", "::"})  # noqa: S104 - to compare with, not to bind to


def bound(server: str, *, wants_token: bool, where: str = "[apps.NAME.config]") -> socket.socket:
    """Return a socket bound at `host:port`, before the address is announced; port 0 takes any free port."""
    address = checked_address("application.server", server)
    if not wants_token and not address.is_loopback:
        message = f"application.server {server} can be reached from other machines, but requires no token"
        raise ConfigError(message, hint=f"Set server.token in {where}, or RIVERRUN_TOKEN.")
    try:
        listener = socket.create_server(address, family=socket.AF_INET6 if ":" in address.host else socket.AF_INET)
    except OSError as error:
        message = f"application.server {server} cannot be used: {error}"
        raise ConfigError(message, hint="If another instance runs here, choose another port: --server.") from error
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else an answer's end comes 40 ms late
    return listener


def name_of(listener: socket.socket, server: str, brokers: str) -> str:
    """Return `host:port` as others reach it."""
    host = checked_address("application.server", server).host
    # It names no machine, so other instances need the address from which this machine reaches the brokers.
    if host in _EVERYWHERE:
        host = _address_towards(brokers.split(",", maxsplit=1)[0].rpartition("//")[2])
    return str(ServerAddress(host, listener.getsockname()[1]))


@contextmanager
def serving(
    api: FastAPI,
    listener: socket.socket,
    limits: ConnectionLimits | None = None,
    end_streams: Callable[[], None] = lambda: None,
) -> Iterator[None]:
    """Serve within this context. `end_streams` ends answers that never end themselves, so that the server can stop."""
    import uvicorn  # noqa: PLC0415 - an extra
    from uvicorn.protocols.http.auto import AutoHTTPProtocol  # noqa: PLC0415 - as above

    from riverrun.service.connections import ConnectionLimits, LimitedConnection  # noqa: PLC0415 - most instances serve nothing

    shared = limits or ConnectionLimits()

    def limited(**given: Any) -> LimitedConnection:
        return LimitedConnection(shared, lambda: AutoHTTPProtocol(**given))

    config = uvicorn.Config(
        api,
        http=limited,  # type: ignore[arg-type] # any factory of a protocol will do
        ws="none",
        loop="asyncio",  # uvloop, which may be installed, loses connections that end in their handshake
        log_level="error",  # otherwise callers that do not speak HTTP could fill the log
        access_log=False,
        backlog=_BACKLOG,
        proxy_headers=False,  # a caller could otherwise claim any address
        server_header=False,
        timeout_graceful_shutdown=2,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), name="http", daemon=True)
    thread.start()
    try:
        yield
    finally:
        # Before the server stops: it waits for open answers.
        end_streams()
        server.should_exit = True
        thread.join(_STOP_SECONDS)
        listener.close()


def _address_towards(peer: str) -> str:
    """Return this machine's address on the way to `host:port`."""
    host, _, port = peer.strip().rpartition(":")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        # Connecting a datagram socket chooses a route, and with it the own address, without sending anything.
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            own: str = probe.getsockname()[0]
    except (OSError, ValueError) as error:
        message = f"Cannot determine this machine's address, as {peer} cannot be reached: {error}"
        raise ConfigError(message, hint="Name a host in application.server.") from error
    return own


@contextmanager
def new_instance(
    application: Application,
    build: Callable[[StreamJob], Topology],
    *,
    token: str = "",
    on_state: Callable[[WorkerState], None] = lambda _state: None,
    uncaught_exception_handler: Callable[[StreamsError], str] | None = None,
    complete: Callable[[], None] | None = None,
) -> Iterator[StreamsInstance]:
    """Yield an instance that does not run yet. Within this context it answers at `application.server`, if that is set.

    With an empty `token`, callers can only show `server.read.token`. `complete` completes a switch of versions whose
    coordinator has died; None leaves that to others.
    """
    streams = application.config.streams
    if not streams.application_server:
        yield StreamsInstance(
            application,
            build,
            on_state=on_state,
            uncaught_exception_handler=uncaught_exception_handler,
            complete=complete,
        )
        return
    require_extra("http")
    # These modules are half of what an instance loads, and most instances do not answer queries.
    from riverrun.service.api import new_api  # noqa: PLC0415 - as above
    from riverrun.service.connections import ConnectionLimits, client_tls, server_tls  # noqa: PLC0415 - as above
    from riverrun.service.peers import Peers  # noqa: PLC0415 - as above

    tls = server_tls(streams)
    # Bound before the instance exists: with port 0, only then is the address known that it announces to its group.
    with bound(streams.application_server, wants_token=bool(token or streams.server_read_token)) as listener:
        name = name_of(listener, streams.application_server, application.kafka.servers)
        access = _access(streams, token, name, application.id)
        peers = Peers(access.signatures, SystemClock(), client_tls(streams) if tls else None)
        instance = StreamsInstance(
            application,
            build,
            server=name,
            on_state=on_state,
            uncaught_exception_handler=uncaught_exception_handler,
            complete=complete,
        )
        api = new_api(instance, access, peers)
        queries = api.state.queries
        if queries is not None:
            # The first query would otherwise wait until a process has loaded its modules.
            queries.start()

        def end() -> None:
            api.state.events.end()
            if queries is not None:
                queries.close()

        with closing(peers), serving(api, listener, ConnectionLimits(tls=tls), end):
            yield instance


def _access(streams: StreamsConfig, token: str, name: str, application_id: str) -> Access:
    from riverrun.service.admission import Access  # noqa: PLC0415 - as above
    from riverrun.service.signatures import Signatures  # noqa: PLC0415 - as above

    shared = token or streams.server_read_token
    signatures = Signatures.of(shared, application_id) if shared else None
    hosts = frozenset(streams.server_allowed_hosts)
    return Access(token, streams.server_read_token, signatures, name, hosts)
