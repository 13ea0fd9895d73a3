"""Serves an instance's HTTP interface in a thread, for as long as the instance runs."""

from __future__ import annotations

import ipaddress
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import uvicorn

from pipeline.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastapi import FastAPI

_STOP_SECONDS = 5.0
_EVERYWHERE = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - it is asked whether it is


def bound(server: str, token: str) -> socket.socket:
    """A socket at `host:port`, bound before anything is told of it.

    Args:
        server: Where; port 0 takes any that is free.
        token: What callers must show; empty for nothing, which only the loopback allows.

    Raises:
        ConfigError: If others could reach it without a token, or it cannot be bound.
    """
    host, _, port = server.rpartition(":")
    host = host.strip("[]")
    if not token and not _is_loopback(host):
        message = f"application.server {server} can be reached from other machines, and asks for no token"
        raise ConfigError(message, hint="Set server.token in [apps.NAME.config], or MILLRACE_TOKEN.")
    try:
        return socket.create_server((host, int(port)), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        message = f"application.server {server} cannot be used: {error}"
        raise ConfigError(
            message, hint="Is another instance running here? Each needs a port of its own: --server."
        ) from error


def name_of(listener: socket.socket, server: str, brokers: str) -> str:
    """`host:port` as others find it.

    Args:
        listener: Its port is the one that was taken.
        server: Where it was to be bound. If that was every address of this machine, the host is the one under which this
            machine reaches the brokers.
        brokers: `bootstrap.servers`.

    Raises:
        ConfigError: If there is no way to the brokers.
    """
    host = server.rpartition(":")[0]
    if host.strip("[]") in _EVERYWHERE:
        host = _address_towards(brokers.split(",", maxsplit=1)[0].rpartition("//")[2])
    return f"{host}:{listener.getsockname()[1]}"


@contextmanager
def serving(api: FastAPI, listener: socket.socket) -> Iterator[None]:
    """Serve within this context."""
    config = uvicorn.Config(api, log_level="warning", access_log=False, timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), name="http", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(_STOP_SECONDS)
        listener.close()


def _address_towards(peer: str) -> str:
    """This machine's address on the way to `host:port`; a datagram socket finds it without sending anything."""
    host, _, port = peer.strip().rpartition(":")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            own: str = probe.getsockname()[0]
    except (OSError, ValueError) as error:
        message = f"This machine's address is not known: there is no way to {peer}: {error}"
        raise ConfigError(message, hint="Name a host in application.server.") from error
    return f"[{own}]" if family is socket.AF_INET6 else own


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
