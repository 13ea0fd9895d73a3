"""Checks whether brokers answer at all, and diagnoses the connection if not.

The library reports "Broker transport failure" for all causes. A plain socket finds out which one it is: the name, the
port, TLS on one side only, or a server that is not a broker.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException

from riverrun.errors import BrokerError
from riverrun.kafka import librdkafka
from riverrun.kafka.errors import is_login_refused
from riverrun.kafka.requests import REQUEST_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from riverrun.kafka.requests import Requests

# The first attempt is short; later ones take longer, in case brokers are busy.
_SLICE_SECONDS = 1.0
# A starting broker needs a moment, so a closed port counts as final only after this.
_STARTING_SECONDS = 5.0
_PROBE_SECONDS = 2.0
# An answer for all topics may be long, so the request names one. It need not exist.
_TOPIC = "riverrun-releases"
_RUNS = "Check that the brokers run and that bootstrap.servers in [kafka] names them."


@dataclass(frozen=True, slots=True)
class Obstacle:
    """An obstacle between this machine and a broker.

    Args:
        what: The problem, as a sentence without a full stop.
        is_final: Whether waiting cannot help.
    """

    what: str
    hint: str
    is_final: bool


def require_answer(requests: Requests, on_wait: Callable[[str], None]) -> None:
    """Check that brokers answer, and diagnose within seconds if they do not."""
    kafka, servers = requests.kafka.properties, requests.kafka.servers
    begun = time.monotonic()
    is_told, waited = False, 0.0
    while (failure := _failure(requests, max(_SLICE_SECONDS, waited / 2))) is not None:
        if is_login_refused(failure) and not _is_tls_on_one_side(kafka):
            refused = requests.error(failure, "connect to brokers")
            if not (isinstance(refused, BrokerError) and refused.retriable):
                raise refused
        if not is_told:
            on_wait(servers)
            is_told = True
        waited = time.monotonic() - begun
        found = [obstacle_to(server, tls=_wants_tls(kafka)) for server in _listed(servers)]
        obstacles = [obstacle for obstacle in found if obstacle is not None]
        is_final = all(obstacle.is_final for obstacle in obstacles) or waited > _STARTING_SECONDS
        if obstacles and len(obstacles) == len(found) and is_final:
            what = "; ".join(dict.fromkeys(obstacle.what for obstacle in obstacles))
            message = f"No broker can be reached: {what}"
            raise BrokerError(message, retriable=not obstacles[0].is_final, hint=obstacles[0].hint)
        if failure.code() == librdkafka.UNSUPPORTED_FEATURE and waited > _STARTING_SECONDS:
            message = f"The server at {servers} answers, but not as a Kafka broker"
            raise BrokerError(
                message, hint="If it is the port of a controller, set bootstrap.servers to the brokers' port."
            )
        if waited > REQUEST_SECONDS:
            raise requests.error(failure, "connect to brokers")


def _failure(requests: Requests, within_s: float) -> KafkaError | None:
    """Attempt a request and return its error, preferring a refused login; None if brokers answer."""
    try:
        requests.client.list_topics(_TOPIC, timeout=within_s)
    except KafkaException as error:
        return requests.refusal() or error.args[0]
    return None


def obstacle_to(server: str, *, tls: bool) -> Obstacle | None:
    """Return the obstacle between this machine and a server (`[protocol://]host:port`); None if it may be a broker."""
    host, _, port = server.rpartition("://")[2].rpartition(":")
    address = host.strip("[]"), int(port)
    try:
        socket.create_connection(address, _PROBE_SECONDS).close()
    except socket.gaierror as error:
        # With `EAI_AGAIN` the name server has not answered, so the name may exist.
        is_final = error.errno != socket.EAI_AGAIN
        return Obstacle(f"the name {host} cannot be resolved ({error.strerror})", _RUNS, is_final)
    except ConnectionRefusedError:
        return Obstacle(f"nothing listens at {server}", _RUNS, is_final=False)
    except TimeoutError:
        hint = f"{_RUNS} A firewall may block connections."
        return Obstacle(f"{server} refuses connections", hint, is_final=False)
    except OSError as error:
        return Obstacle(f"{server} cannot be reached ({error.strerror or error})", _RUNS, is_final=False)
    return _of_another_kind(server, address, tls=tls)


def _of_another_kind(server: str, address: tuple[str, int], *, tls: bool) -> Obstacle | None:
    """Return an obstacle if a listening server speaks another protocol than the client."""
    speaks_tls = _speaks_tls(address)
    if tls and not speaks_tls and _speaks_http(address):
        return _no_broker(server)
    if tls and not speaks_tls:
        hint = 'Set "security.protocol" in [kafka] to "PLAINTEXT" or "SASL_PLAINTEXT", or use the port that speaks TLS.'
        return Obstacle(f"{server} does not speak TLS, which security.protocol requires", hint, is_final=True)
    if speaks_tls and not tls:
        hint = 'Set "security.protocol" in [kafka] to "SSL" or "SASL_SSL".'
        return Obstacle(f"{server} speaks TLS, and security.protocol does not", hint, is_final=True)
    return _no_broker(server) if not tls and _speaks_http(address) else None


def _no_broker(server: str) -> Obstacle:
    return Obstacle(f"{server} is an HTTP server, not a Kafka broker", _RUNS, is_final=True)


def _speaks_tls(address: tuple[str, int]) -> bool:
    """Return whether a server answers a TLS handshake, without checking its certificate or sending data."""
    import ssl  # noqa: PLC0415 - only a broker that does not answer is probed

    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection(address, _PROBE_SECONDS) as plain, context.wrap_socket(plain):
            return True
    # With an alert, it has answered in TLS: it requires a client certificate, or another version.
    except ssl.SSLError as error:
        return "ALERT" in str(error).upper()
    except OSError:
        return False


def _speaks_http(address: tuple[str, int]) -> bool:
    with suppress(OSError), socket.create_connection(address, _PROBE_SECONDS) as connection:
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        return connection.recv(5) == b"HTTP/"
    return False


def _listed(servers: str) -> list[str]:
    return [server.strip() for server in servers.split(",") if server.strip()]


def _wants_tls(kafka: Mapping[str, str]) -> bool:
    return kafka.get("security.protocol", "plaintext").lower().endswith("ssl")


def _is_tls_on_one_side(kafka: Mapping[str, str]) -> bool:
    """Return whether a refused login only means that the server does not speak TLS, which has a plainer message."""
    if not _wants_tls(kafka):
        return False
    found = [obstacle_to(server, tls=True) for server in _listed(kafka.get("bootstrap.servers", ""))]
    return bool(found) and all(obstacle is not None and obstacle.is_final for obstacle in found)
