"""Requests to brokers: each has a deadline, and errors name the brokers.

Checks whether brokers answer at all, and diagnoses the connection if not.

The library reports "Broker transport failure" for all causes. A plain socket finds out which one it is: the name, the
port, TLS on one side only, or a server that is not a broker.
"""

from __future__ import annotations

import socket
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from riverrun.errors import BrokerError, ConfigError
from riverrun.kafka import librdkafka
from riverrun.kafka.errors import REFUSED_LOGIN, UNREACHABLE, mapped_errors, streams_error
from riverrun.kafka.librdkafka import CLIENT, quiet

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from concurrent.futures import Future

    from riverrun.errors import StreamsError

CLIENT_ID = "riverrun-admin"
"""Client id of these requests."""
REQUEST_SECONDS = 15.0
"""Time limit of a request, after which the brokers count as unreachable."""
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.002, 0.05
"""The pause between two attempts doubles, as most conditions hold within milliseconds."""


class Requests:
    """Creates clients for requests, and waits for their answers.

    Args:
        kafka: Client properties; security properties pass through.

    Attributes:
        kafka: The client properties.
        client: The library's client. It must outlive its requests: the future of a collected client never ends.

    Raises:
        ConfigError: If the library refuses the properties.
    """

    def __init__(self, kafka: Mapping[str, str]) -> None:
        self.kafka = kafka
        self._servers = kafka.get("bootstrap.servers", "")
        refusals: list[KafkaError] = []
        self._refusals = refusals  # not a method as callback: a client in a cycle lives until the collector comes round

        def connection_failed(error: KafkaError) -> None:
            if error.code() in REFUSED_LOGIN:
                refusals[:] = [error]

        # To the library an admin client is a producer, whose requests may make brokers create the topics they mention.
        own = {"client.id": CLIENT_ID, "allow.auto.create.topics": False, "error_cb": connection_failed}
        try:
            with mapped_errors("use the client properties"):
                self.client = AdminClient({**CLIENT, **kafka, **own}, logger=quiet)
        except ConfigError as error:
            missing = [f"{name} {path}" for name, path in kafka.items() if _is_missing_file(name, path)]
            error.hint = f"There is no such file: {', '.join(missing)}" if missing else error.hint
            raise

    def consumer(
        self, group: str, isolation: str = "read_committed", properties: Mapping[str, Any] = MappingProxyType({})
    ) -> Consumer:
        """Return a consumer that reads or sets a group's offsets without joining. The caller closes it.

        The admin client is not used for requests to a group's coordinator: it crashes the process if the coordinator
        has just started, moved or died (librdkafka issue 5040, pull request 5397).

        Args:
            group: The group.
            isolation: Whether it reads uncommitted offsets.
            properties: Properties of this consumer only.
        """
        own = {"group.id": group, "enable.auto.commit": False, "isolation.level": isolation}
        with mapped_errors("create a consumer"):
            return Consumer({**CLIENT, **self.kafka, **own, **properties}, logger=quiet)

    def result(self, future: Future[Any], doing: str, *, ignore: Collection[int] = ()) -> Any:
        """Return a request's answer.

        Args:
            future: The client's future of the request.
            doing: The action, to complete "cannot <doing>".
            ignore: Codes of errors that are not failures; the answer is None for them.
        """
        with self.asking(doing):
            try:
                return future.result(REQUEST_SECONDS + 5)
            except KafkaException as error:
                if error.args[0].code() not in ignore:
                    raise
        return None

    @contextmanager
    def asking(self, doing: str) -> Iterator[None]:
        """Translate the client's exceptions to Riverrun's errors, with the servers' names."""
        try:
            yield
        except KafkaException as error:
            raise self.error(error.args[0], doing) from error
        except TimeoutError as error:  # the future's timeout: the library should have given up earlier
            raise self.error(KafkaError(librdkafka.TIMED_OUT), doing) from error

    def error(self, error: KafkaError, doing: str) -> StreamsError:
        """Return the error with its true cause: a refused login looks like a broker that does not answer."""
        if error.code() in UNREACHABLE:
            error = self.refusal() or error
        return streams_error(error, f"{doing} at {self._servers}")

    def refusal(self) -> KafkaError | None:
        """Return why the brokers refused the login; None if they did not, or did not answer. Each refusal is returned once."""
        self.client.poll(0)
        return self._refusals.pop() if self._refusals else None

    def until(
        self,
        condition: Callable[[], bool],
        doing: str,
        seconds: float = REQUEST_SECONDS,
        error: type[BrokerError] = BrokerError,
        hint: str | None = None,
    ) -> None:
        """Check repeatedly until a condition holds.

        Args:
            condition: Returns whether it holds.
            doing: The action, to complete "cannot <doing>".
            seconds: Time limit.
            error: Type of the error on failure; it is `retriable`.
            hint: What the user can do about it.
        """
        deadline, pause = time.monotonic() + seconds, _FIRST_PAUSE_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                message = f"Cannot {doing} at {self._servers} within {seconds:.0f} s"
                raise error(message, retriable=True, hint=hint)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def _is_missing_file(name: str, path: str) -> bool:
    return name.startswith("ssl.") and name.endswith(".location") and path != "probe" and not Path(path).exists()


_SLICE_SECONDS = 1.0
"""Duration of the first attempt; later ones take longer, in case brokers are busy."""
_STARTING_SECONDS = 5.0
"""How long the port may be closed before that counts as final: a starting broker needs a moment."""
_PROBE_SECONDS = 2.0
_TOPIC = "riverrun-releases"
"""Topic of the request, as an answer for all topics may be long. It need not exist."""
_RUNS = "Check that the brokers run and that bootstrap.servers in [kafka] names them."


@dataclass(frozen=True, slots=True)
class Obstacle:
    """An obstacle between this machine and a broker.

    Args:
        what: The problem, as a sentence without a full stop.
        hint: What to do about it.
        is_final: Whether waiting cannot help.
    """

    what: str
    hint: str
    is_final: bool


def require_answer(requests: Requests, on_wait: Callable[[str], None]) -> None:
    """Check that brokers answer, and diagnose within seconds if they do not.

    Args:
        requests: The client.
        on_wait: Called once with the servers, if the answer takes longer than a moment.

    Raises:
        BrokerError: If they do not answer, with the cause.
    """
    kafka = requests.kafka
    begun, servers = time.monotonic(), kafka.get("bootstrap.servers", "")
    is_told, waited = False, 0.0
    while (failure := _failure(requests, max(_SLICE_SECONDS, waited / 2))) is not None:
        if failure.code() in REFUSED_LOGIN and not _is_tls_on_one_side(kafka):
            raise requests.error(failure, "connect to brokers")
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
                message, hint="Is that the port of a controller? Name the brokers' own in bootstrap.servers."
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
    """Return the obstacle between this machine and a server; None if it may be a broker.

    Args:
        server: `host:port`, with an optional protocol.
        tls: Whether the client would use TLS.
    """
    host, _, port = server.rpartition("://")[2].rpartition(":")
    address = host.strip("[]"), int(port)
    try:
        socket.create_connection(address, _PROBE_SECONDS).close()
    except socket.gaierror as error:
        is_final = error.errno != socket.EAI_AGAIN
        return Obstacle(f"the name {host} cannot be resolved ({error.strerror})", _RUNS, is_final)
    except ConnectionRefusedError:
        return Obstacle(f"nothing listens at {server}", _RUNS, is_final=False)
    except TimeoutError:
        hint = f"{_RUNS} A firewall may keep connections away."
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
        return Obstacle(f"{server} does not speak TLS, which security.protocol asks for", hint, is_final=True)
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
    except ssl.SSLError as error:  # it answered in TLS: it requires a client certificate, or another version
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
