"""Serves an instance's HTTP interface in a thread, as long as the instance runs."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from riverrun.config.address import ServerAddress, checked_address
from riverrun.errors import ConfigError
from riverrun.service.access.connections import LimitedConnection, Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastapi import FastAPI

_STOP_SECONDS = 5.0
_BACKLOG = 32
"""Maximum number of connections accepted at once, before limits see the first of them; in a flood, each takes a file."""
_EVERYWHERE = frozenset({"0.0.0.0", "::"})  # noqa: S104 - to compare with, not to bind to


def bound(server: str, *, wants_token: bool, where: str = "[apps.NAME.config]") -> socket.socket:
    """Return a socket that is bound at `host:port`, before the address is announced.

    Args:
        server: The address; port 0 takes any free port.
        wants_token: Whether callers must show a token; without one, only the loopback is served.
        where: The table of `streams.toml` that has the token, for messages.

    Raises:
        ConfigError: If others could reach it without a token, or it cannot be bound.
    """
    address = checked_address("application.server", server)
    if not wants_token and not address.is_loopback:
        message = f"application.server {server} can be reached from other machines, and asks for no token"
        raise ConfigError(message, hint=f"Set server.token in {where}, or RIVERRUN_TOKEN.")
    try:
        listener = socket.create_server(address, family=socket.AF_INET6 if ":" in address.host else socket.AF_INET)
    except OSError as error:
        message = f"application.server {server} cannot be used: {error}"
        raise ConfigError(
            message, hint="Is another instance running here? Each needs a port of its own: --server."
        ) from error
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else an answer's end comes 40 ms late
    return listener


def name_of(listener: socket.socket, server: str, brokers: str) -> str:
    """Return `host:port` as others reach it.

    Args:
        listener: The bound socket, whose port is used.
        server: The address that was to be bound. If it means every address of this machine, the host is the address from
            which
            this machine reaches the brokers.
        brokers: `bootstrap.servers`.

    Raises:
        ConfigError: If there is no way to the brokers.
    """
    host = checked_address("application.server", server).host
    if host in _EVERYWHERE:
        host = _address_towards(brokers.split(",", maxsplit=1)[0].rpartition("//")[2])
    return str(ServerAddress(host, listener.getsockname()[1]))


@contextmanager
def serving(
    api: FastAPI,
    listener: socket.socket,
    limits: Limits | None = None,
    end_streams: Callable[[], None] = lambda: None,
) -> Iterator[None]:
    """Serve within this context.

    Args:
        api: The interface to serve.
        listener: The bound socket.
        limits: Limits of connections; by default, the usual ones, in clear.
        end_streams: Ends answers that would go on.
    """
    shared = limits or Limits()

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
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=2,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), name="http", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end_streams()
        server.should_exit = True
        thread.join(_STOP_SECONDS)
        listener.close()


def _address_towards(peer: str) -> str:
    """Return this machine's address on the way to `host:port`; a datagram socket finds it without sending anything."""
    host, _, port = peer.strip().rpartition(":")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            own: str = probe.getsockname()[0]
    except (OSError, ValueError) as error:
        message = f"This machine's address is not known: there is no way to {peer}: {error}"
        raise ConfigError(message, hint="Name a host in application.server.") from error
    return own
