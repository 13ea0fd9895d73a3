"""Limits on connections, before anything is known about the caller, and their TLS (PEM files, as librdkafka names them).

Uvicorn waits for headers without a time limit, and accepts every connection. This module limits the time and the size of a
request's headers. It keeps the number of connections below the number of files that the process can open. When there are too
many, the connection that has been silent longest is closed, so that active callers get an answer.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import ssl
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from riverrun.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from ssl import SSLContext

    from riverrun.config import StreamsConfig

log = logging.getLogger(__name__)


def server_tls(streams: StreamsConfig) -> ssl.SSLContext | None:
    """Return the TLS context of an instance's server; None if it serves without TLS."""
    certificate, key = streams.server_ssl_certificate_location, streams.server_ssl_key_location
    if not certificate:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key or None, lambda: streams.server_ssl_key_password)
    except (OSError, ValueError) as error:  # SSL's errors are OSErrors
        message = f"server.ssl.certificate.location {certificate} cannot be used: {error}"
        raise ConfigError(message, hint="PEM files are needed: the certificates, and their key.") from error
    return context


def scheme_of(streams: StreamsConfig) -> str:
    """Return the scheme of requests to instances: `http` or `https`."""
    # Where no worker runs, the files of a worker may be missing, and the authorities are all that is set.
    return "https" if streams.server_ssl_ca_location or streams.server_ssl_certificate_location else "http"


def client_tls(streams: StreamsConfig) -> ssl.SSLContext | None:
    """Return the TLS context for requests to instances; None if these serve without TLS."""
    authorities = streams.server_ssl_ca_location
    if scheme_of(streams) == "http":
        return None
    try:
        return ssl.create_default_context(cafile=authorities or None)
    except OSError as error:
        message = f"server.ssl.ca.location {authorities} cannot be used: {error}"
        raise ConfigError(message, hint="A PEM file is needed: certificates of authorities.") from error


HEADER_SECONDS = 10.0
"""Maximum time for a handshake, for the headers of a request, and for the wait for the next request."""
HEADER_BYTES = 64 * 1024
SLOW_SECONDS = 30.0
"""Maximum time in which a reader may take nothing of an answer."""
_MAX_CONNECTIONS = 256
# A quarter of the files that the process may open: stores, brokers and stream threads need the rest.
_SHARE_OF_FILES = 4
_WARNING_SECONDS = 30.0
_HEADERS_END = b"\r\n\r\n"


def _refusal(status: str, error: str, message: str) -> bytes:
    body = f'{{"error":"{error}","message":"{message}"}}'
    headers = f"connection: close\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    return f"HTTP/1.1 {status}\r\n{headers}\r\n\r\n{body}".encode()


# Complete answers in bytes: they are written before Uvicorn has a request that it could answer.
_TOO_LARGE = _refusal(
    "431 Request Header Fields Too Large",
    "too-large",
    f"The path and the headers have more than {HEADER_BYTES} bytes",
)
_BUSY = _refusal("503 Service Unavailable", "busy", "There are too many connections: try again")


def connection_limit() -> int:
    """Return the maximum number of simultaneous connections."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # RLIM_INFINITY is -1.
    return _MAX_CONNECTIONS if files < 0 else max(8, min(_MAX_CONNECTIONS, files // _SHARE_OF_FILES))


@dataclass(slots=True)
class ConnectionLimits:
    """Limits that all connections of a server share.

    Args:
        header_s: Maximum time for headers (seconds).
        slow_s: Maximum time in which a reader may take nothing of a waiting answer (seconds).
        tls: Encrypts connections; None leaves them in clear.
    """

    connections: int = field(default_factory=connection_limit)
    header_s: float = HEADER_SECONDS
    slow_s: float = SLOW_SECONDS
    tls: SSLContext | None = None
    _open: dict[LimitedConnection, None] = field(default_factory=dict)
    _warned_at: float = float("-inf")

    def enter(self, connection: LimitedConnection) -> bool:
        """Make room for a connection if there are too many. Returns False if all others are being answered."""
        if len(self._open) >= self.connections:
            self._warn()
            # `heard` keeps the dict in order: the first has been silent longest. One that is being answered stays open.
            silent = next((other for other in self._open if other.is_waited_for), None)
            if silent is None:
                return False
            silent.drop()
        self._open[connection] = None
        return True

    def leave(self, connection: LimitedConnection) -> None:
        self._open.pop(connection, None)

    def heard(self, connection: LimitedConnection) -> None:
        """Record that a connection has sent a whole request: it is now the most recently active one."""
        if connection in self._open:
            del self._open[connection]
            self._open[connection] = None

    def _warn(self) -> None:
        now = time.monotonic()
        if now - self._warned_at > _WARNING_SECONDS:
            self._warned_at = now
            log.warning("there are %d connections: idle ones are closed", len(self._open))


class LimitedConnection(asyncio.Protocol):
    """One connection: passes data within the limits on to the web server's protocol.

    Args:
        new_protocol: Makes the web server's protocol, which knows its current request (`cycle`).
    """

    def __init__(self, limits: ConnectionLimits, new_protocol: Callable[[], Any]) -> None:
        self._limits = limits
        self._inner = new_protocol()
        self._transport: asyncio.Transport
        self._timer: asyncio.TimerHandle | None = None
        self._slow: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        self._last = b""
        self._is_passed_on = False
        self._early: list[bytes] = []
        self._handshake: asyncio.Task[None] | None = None

    @property
    def is_waited_for(self) -> bool:
        """True if the server waits for the other side to send something, or to take an answer."""
        cycle = self._inner.cycle
        return cycle is None or cycle.response_complete

    def drop(self) -> None:
        self._stop_waiting()
        self._limits.leave(self)
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the protocol on an unencrypted connection; an encrypted one first performs its handshake."""
        self._transport = cast("asyncio.Transport", transport)
        if not self._limits.enter(self):
            # A TLS client could not read it before its handshake.
            if self._limits.tls is None:
                self._transport.write(_BUSY)
            self._transport.close()
            return
        self._wait()
        if self._limits.tls is None:
            self._pass_on()
        else:
            # Bytes of the handshake must wait for start_tls: read here, they would be lost to it.
            self._transport.pause_reading()
            self._handshake = asyncio.get_running_loop().create_task(self._encrypt(self._limits.tls))

    async def _encrypt(self, tls: SSLContext) -> None:
        loop = asyncio.get_running_loop()
        try:
            encrypted = await loop.start_tls(
                self._transport, self, tls, server_side=True, ssl_handshake_timeout=self._limits.header_s
            )
        except (OSError, TimeoutError) as error:
            log.info("the TLS handshake of a connection failed: %s", error)
            self.drop()
            return
        if encrypted is None or encrypted.is_closing():
            self.drop()
            return
        self._transport = encrypted
        self._pass_on()

    def _pass_on(self) -> None:
        self._is_passed_on = True
        self._inner.connection_made(self._transport)
        early, self._early = self._early, []
        for data in early:
            self.data_received(data)

    def data_received(self, data: bytes) -> None:
        """Pass data on, unless it belongs to headers that have grown too large."""
        # start_tls delivers the first decrypted bytes before it returns, and then Uvicorn's protocol has no transport yet.
        if not self._is_passed_on:  # the handshake has just ended
            self._early.append(data)
            return
        if self.is_waited_for:
            self._header_bytes += self._in_headers(data)
            if self._header_bytes > HEADER_BYTES:
                self._transport.write(_TOO_LARGE)
                self._transport.close()
                return
            self._wait()
        # Uvicorn sets a new `cycle` when headers are complete. It reports that nowhere else.
        before = self._inner.cycle
        self._inner.data_received(data)
        if self._inner.cycle is not before:  # its headers are complete
            self._header_bytes, self._last = 0, b""
            self._limits.heard(self)
            self._stop_waiting()

    def _in_headers(self, data: bytes) -> int:
        """Return how many bytes of some data belong to headers; a body may come with them at once."""
        before, seen = len(self._last), self._last + data
        ends_at = seen.find(_HEADERS_END)
        # The end of headers may be split across two reads: keep what could be its beginning.
        self._last = seen[1 - len(_HEADERS_END) :]
        return len(data) if ends_at < 0 else max(0, ends_at - before)

    def eof_received(self) -> None:
        """Handle the end of the other side's data."""
        self._inner.eof_received()

    def pause_writing(self) -> None:
        """Begin to wait for a slow reader; the connection is dropped if it stays slow."""
        if self._slow is None:
            self._slow = asyncio.get_running_loop().call_later(self._limits.slow_s, self.drop)
        if self._is_passed_on:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Stop waiting: the other side reads again."""
        self._stop_slow()
        if self._is_passed_on:
            self._inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        """Clean up after the connection has ended."""
        self._stop_waiting()
        self._stop_slow()
        self._limits.leave(self)
        if self._is_passed_on:
            self._is_passed_on = False
            self._inner.connection_lost(error)

    def _wait(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._limits.header_s, self.drop)

    def _stop_slow(self) -> None:
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
