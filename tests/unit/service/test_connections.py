"""Limits of connections whose callers are not known yet."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from riverrun.service.connections import HEADER_BYTES, ConnectionLimits, connection_limit
from riverrun.service.instance import bound, serving
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.requests import Request

HALF = b"GET /ready HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "
WHOLE = b"GET /ready HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


async def ready(_request: Request) -> Response:
    return PlainTextResponse("ready")


class Slow:
    """Answers as soon as it may."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.ends = threading.Event()

    def answer(self, _request: Request) -> Response:
        self.begun.release()
        self.ends.wait(30)
        return PlainTextResponse("slow")


@contextmanager
def served(limits: ConnectionLimits, slow: Slow | None = None) -> Iterator[int]:
    """A server with these limits."""
    app = Starlette(routes=[Route("/ready", ready), Route("/slow", (slow or Slow()).answer)])
    with bound("127.0.0.1:0", wants_token=False) as listener:
        port = listener.getsockname()[1]
        with serving(app, listener, limits):  # type: ignore[arg-type] # as good as any
            yield port


def connected(port: int, data: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    connection.sendall(data)
    return connection


def answer(connection: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    received = b""
    try:
        while part := connection.recv(65536):
            received += part
    except ConnectionResetError:
        pass
    return received


def test_complete_requests_are_answered_among_many_partial_ones() -> None:
    with served(ConnectionLimits(connections=8, header_s=60)) as port, ExitStack() as held:
        for _ in range(40):
            held.enter_context(connected(port, HALF))
        for _ in range(3):
            assert httpx.get(f"http://127.0.0.1:{port}/ready", timeout=30).text == "ready"


FEW_FILES = """
import resource
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from riverrun.service.instance import bound, serving

async def ready(request):
    return PlainTextResponse("ready")

resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
app = Starlette(routes=[Route("/ready", ready)])
with bound("127.0.0.1:0", wants_token=False) as listener, serving(app, listener):
    print(listener.getsockname()[1], flush=True)
    input()
"""


def test_a_flood_of_halves_does_not_take_all_files_of_the_process() -> None:
    command = [sys.executable, "-c", FEW_FILES]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe, stderr=pipe) as server, ExitStack() as held:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        for _ in range(300):
            held.enter_context(connected(port, HALF))
        for _ in range(3):
            assert httpx.get(f"http://127.0.0.1:{port}/ready", timeout=60).text == "ready"
        _, errors = server.communicate("\n", timeout=60)
    assert "Too many open files" not in errors


def test_a_caller_is_not_cut_off_during_its_answer() -> None:
    slow = Slow()
    asks = b"GET /slow HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with served(ConnectionLimits(connections=2, header_s=60), slow) as port, connected(port, asks) as one:
        slow.begun.acquire(timeout=30)
        with connected(port, asks) as other:
            slow.begun.acquire(timeout=30)
            with connected(port) as one_too_many:
                assert b"503" in answer(one_too_many)
            slow.ends.set()
            assert [answer(asking)[-4:] for asking in (one, other)] == [b"slow", b"slow"]


@pytest.mark.parametrize("sent", [b"", HALF, WHOLE + HALF, b"\x16\x03\x01"])
def test_headers_that_do_not_come_end_the_connection(sent: bytes) -> None:
    with served(ConnectionLimits(header_s=0.2)) as port, connected(port, sent) as silent:
        answer(silent)  # comes to an end


def test_headers_that_trickle_in_end_the_connection() -> None:
    with served(ConnectionLimits(header_s=0.3)) as port, connected(port, HALF) as trickling:
        deadline = time.monotonic() + 30
        with suppress(OSError):  # a reset, or a broken pipe
            while True:
                assert time.monotonic() < deadline, "it is open still"
                trickling.sendall(b"x")
                time.sleep(0.05)


def test_headers_that_are_too_large_are_refused() -> None:
    with served(ConnectionLimits()) as port, connected(port, HALF) as large:
        try:
            large.sendall(b"x" * 2 * HEADER_BYTES)
        except OSError:
            return  # it was not even taken in
        assert answer(large)[:12] in {b"HTTP/1.1 431", b""}


@pytest.mark.parametrize("pieces", [1, 2, 3, 4])
def test_a_large_body_is_taken_with_whatever_part_of_the_headers_end(pieces: int) -> None:
    body = b"x" * 2 * HEADER_BYTES
    head = b"GET /ready HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    begun, end = head[:-pieces], [head[-number:][:1] for number in range(pieces, 0, -1)]
    with served(ConnectionLimits()) as port, connected(port, begun) as asking:
        asking.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in end[:-1]:
            time.sleep(0.02)  # so that each comes alone
            asking.sendall(byte)
        time.sleep(0.02)
        asking.sendall(end[-1] + body)
        assert answer(asking).endswith(b"ready")


def test_a_connection_that_asks_again_and_again_is_kept() -> None:
    limits = ConnectionLimits(header_s=0.3)

    def is_kept() -> bool:
        """Whether one connection outlives the limit; a busy machine may be too slow for it once."""
        with connected(port) as asking:
            end = time.monotonic() + 3 * limits.header_s
            while time.monotonic() < end:
                try:
                    asking.sendall(WHOLE)
                    received = b""
                    while not received.endswith(b"ready"):
                        part = asking.recv(4096)
                        if not part:
                            return False
                        received += part
                except OSError:
                    return False
        return True

    with served(limits) as port:
        until(is_kept, "kept it")


def test_connections_leave_files_for_everything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for files in (256, 1024, 1_000_000, -1):
        monkeypatch.setattr("resource.getrlimit", lambda _which, files=files: (files, files))
        found.append(connection_limit())
    assert found == [64, 256, 256, 256]
