"""Problems on the way to brokers have messages of their own, within seconds."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import pytest

from riverrun.errors import BrokerError, ConfigError
from riverrun.kafka.admin import Admin
from riverrun.kafka.door import Kafka
from riverrun.kafka.reaching import obstacle_to
from riverrun.kafka.requests import Requests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_TLS_ALERT = b"\x15\x03\x03\x00\x02\x02\x28"  # handshake failure
_HTTP = b"HTTP/1.1 400 Bad Request\r\n\r\n"


@pytest.fixture
def serve() -> Iterator[Callable[[bytes], str]]:
    """Starts a server that answers whatever it is sent with the same bytes, then hangs up."""
    listeners: list[socket.socket] = []

    def answering(listener: socket.socket, answer: bytes) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                try:
                    if connection.recv(4096):
                        connection.sendall(answer)
                except OSError:
                    continue

    def start(answer: bytes) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)
        threading.Thread(target=answering, args=(listener, answer), daemon=True).start()
        return f"127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


@pytest.mark.parametrize(
    ("answer", "tls", "problem"),
    [
        (_HTTP, False, "is an HTTP server, not a Kafka broker"),
        (_HTTP, True, "is an HTTP server, not a Kafka broker"),
        (_TLS_ALERT, False, "speaks TLS, and security.protocol does not"),
        (b"", True, "does not speak TLS, which security.protocol requires"),
    ],
)
def test_a_server_that_speaks_otherwise_is_told_from_one_that_is_gone(
    serve: Callable[[bytes], str], answer: bytes, tls: bool, problem: str
) -> None:
    server = serve(answer)
    found = obstacle_to(server, tls=tls)
    assert found is not None
    assert found.what == f"{server} {problem}"
    assert found.is_final


@pytest.mark.parametrize(("answer", "tls"), [(b"", False), (_TLS_ALERT, True)])
def test_a_server_that_speaks_what_the_client_speaks_may_be_a_broker(
    serve: Callable[[bytes], str], answer: bytes, tls: bool
) -> None:
    assert obstacle_to(serve(answer), tls=tls) is None


def test_a_name_that_cannot_be_resolved_and_a_port_without_listener_are_told_apart() -> None:
    with socket.socket() as deaf:  # a port that it holds, so that no other process can listen there
        deaf.bind(("127.0.0.1", 0))
        nobody = obstacle_to(f"PLAINTEXT://127.0.0.1:{deaf.getsockname()[1]}", tls=False)
    assert nobody is not None
    assert "nothing listens at" in nobody.what
    assert not nobody.is_final
    unknown = obstacle_to("kafka.does-not-exist.invalid:9092", tls=False)
    assert unknown is not None
    assert "the name kafka.does-not-exist.invalid cannot be resolved" in unknown.what


def test_who_waits_for_brokers_hears_of_it_and_then_why_they_do_not_answer(serve: Callable[[bytes], str]) -> None:
    server, waited = serve(_HTTP), list[str]()
    with pytest.raises(BrokerError, match=f"No broker can be reached: {server} is an HTTP server") as refused:
        Admin(Kafka({"bootstrap.servers": server})).require_answer(waited.append)
    assert waited == [server]
    assert not refused.value.retriable
    assert "bootstrap.servers" in (refused.value.hint or "")


def test_a_file_that_a_property_names_and_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "ca.pem")
    kafka = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SSL", "ssl.ca.location": missing}
    with pytest.raises(ConfigError) as refused:
        Requests(Kafka(kafka))
    assert refused.value.hint == f"These files do not exist: ssl.ca.location {missing}"
