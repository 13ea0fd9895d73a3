"""Other programs may answer at the address of an instance: commands say so."""

from __future__ import annotations

import threading
import time
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import pytest

from riverrun import Riverrun
from riverrun.errors import StreamsError
from riverrun.project import live

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def answering() -> Iterator[Callable[..., str]]:
    """Starts a program that answers every request alike, perhaps after some seconds; returns its address."""
    servers: list[HTTPServer] = []

    def start(status: int, body: bytes, after_s: float = 0) -> str:
        class Answers(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                time.sleep(after_s)
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET  # noqa: N815 - named by the library

            def log_message(self, *_: object) -> None:
                """Stay silent."""

        server = HTTPServer(("127.0.0.1", 0), Answers)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"\xff\xfe", b"[" * 100_000, b'{"threads": ' + b"9" * 5000 + b"}", b"{", b'{"a": \x1b[2J'],
    ids=range(7),
)
def test_answers_that_are_no_json_are_an_error_that_says_so(
    answering: Callable[..., str], tmp_path: Path, body: bytes
) -> None:
    app = Riverrun(kafka={"bootstrap.servers": "127.0.0.1:1"}, directory=tmp_path).app("clicks", lambda b: b.build())
    with pytest.raises(StreamsError, match="does not answer like an instance") as refused:
        app.scale(2, answering(200, body))
    assert len(str(refused.value)) < 500
    with pytest.raises(StreamsError, match="refuses, with status 500") as refused:
        app.scale(2, answering(500, body))
    assert len(str(refused.value)) < 1_500


def test_an_answer_to_a_query_is_awaited_for_as_long_as_the_instance_may_take(
    answering: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "_ANSWER_SECONDS", 0.2)
    app = Riverrun(kafka={"bootstrap.servers": "127.0.0.1:1"}, directory=tmp_path).app("clicks", lambda b: b.build())
    server = answering(200, b"[1.5]", 0.5)
    assert app.ask("POST", "/query", server=server, body={"sql": "SELECT 1;"}) == [Decimal("1.5")]
    with pytest.raises(StreamsError, match="does not answer"):
        app.ask("GET", "/status", server=server)
