"""The HTTP interface over TLS."""

from __future__ import annotations

import socket
import ssl
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from riverrun.config import StreamsConfig
from riverrun.errors import ConfigError
from riverrun.service.connections import ConnectionLimits, client_tls, scheme_of, server_tls
from riverrun.service.instance import bound, serving
from riverrun.service.peers import Members

if TYPE_CHECKING:
    from starlette.requests import Request

PASSWORD = "key-password"  # noqa: S105 - of a key that is made here


async def ready(_request: Request) -> Response:
    return PlainTextResponse("ready " * 50_000)


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> StreamsConfig:
    """A certificate of 127.0.0.1, its own authority, with a key that has a password."""
    directory = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "worker")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    encrypted = serialization.BestAvailableEncryption(PASSWORD.encode())
    (directory / "worker.pem").write_bytes(certificate.public_bytes(pem))
    (directory / "key.pem").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, encrypted))
    return StreamsConfig(
        server_ssl_certificate_location=str(directory / "worker.pem"),
        server_ssl_key_location=str(directory / "key.pem"),
        server_ssl_key_password=PASSWORD,
        server_ssl_ca_location=str(directory / "worker.pem"),
    )


def test_an_instance_with_a_certificate_answers_over_tls_only(streams: StreamsConfig) -> None:
    app = Starlette(routes=[Route("/ready", ready)])
    trusts, knows_nobody = client_tls(streams), ssl.create_default_context()
    assert trusts is not None
    with bound("127.0.0.1:0", wants_token=False) as listener:
        port = listener.getsockname()[1]
        url = f"https://127.0.0.1:{port}/ready"
        with serving(app, listener, ConnectionLimits(connections=8, tls=server_tls(streams))):  # type: ignore[arg-type] # as good
            with httpx.Client(verify=trusts) as client:
                assert [len(client.get(url).content) for _ in range(3)] == [300_000] * 3
            with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
                httpx.get(url, verify=knows_nobody)
            with pytest.raises(httpx.HTTPError):
                httpx.get(url.replace("https", "http"))
            with ExitStack() as held:  # of those that never shake hands there may be many
                for _ in range(20):
                    held.enter_context(socket.create_connection(("127.0.0.1", port)))
                assert httpx.get(url, verify=trusts).status_code == 200


def test_a_machine_that_has_only_the_authorities_asks_over_tls(streams: StreamsConfig) -> None:
    async def status(_request: Request) -> Response:
        return JSONResponse({"state": "running"})

    of_callers = StreamsConfig(server_ssl_ca_location=streams.server_ssl_ca_location)
    app = Starlette(routes=[Route("/status", status)])
    with bound("127.0.0.1:0", wants_token=False) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with serving(app, listener, ConnectionLimits(tls=server_tls(streams))):  # type: ignore[arg-type] # as good
            assert Members(of_callers, "", "app-v1").ask(address, "/status") == {"state": "running"}
    assert (scheme_of(of_callers), scheme_of(StreamsConfig())) == ("https", "http")


def test_a_handshake_that_does_not_come_ends_the_connection(streams: StreamsConfig) -> None:
    app = Starlette(routes=[Route("/ready", ready)])
    with bound("127.0.0.1:0", wants_token=False) as listener:
        limits = ConnectionLimits(header_s=0.2, tls=server_tls(streams))
        with (
            serving(app, listener, limits),  # type: ignore[arg-type] # as above
            socket.create_connection(listener.getsockname(), timeout=30) as silent,
        ):
            assert silent.recv(1) == b""


@pytest.mark.parametrize(
    "key", ["server_ssl_certificate_location", "server_ssl_key_location", "server_ssl_ca_location"]
)
def test_files_that_cannot_be_used_are_named_before_anything_runs(streams: StreamsConfig, key: str) -> None:
    wrong, makes = (
        replace(streams, **dict[str, Any]({key: "/nowhere.pem"})),
        client_tls if "ca" in key.split("_") else server_tls,
    )
    with pytest.raises(ConfigError, match=r"server\.ssl\.(certificate|ca)\.location .* cannot be used") as refused:
        makes(wrong)
    assert PASSWORD not in str(refused.value)


def test_a_key_whose_password_is_wrong_is_refused_without_showing_it(streams: StreamsConfig) -> None:
    with pytest.raises(ConfigError, match="cannot be used") as refused:
        server_tls(replace(streams, server_ssl_key_password="another-one"))  # noqa: S106 - as above
    assert "another-one" not in str(refused.value)
