"""A token service on this machine, and tokens as brokers accept them that check no signature."""

from __future__ import annotations

import base64
import json
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def unsigned_token(principal: str, lives_s: float) -> str:
    """Return a JSON web token without a signature."""
    now_s = time.time()
    claims = {"sub": principal, "iat": now_s, "exp": now_s + lives_s}
    return ".".join((*(_encoded(part) for part in ({"alg": "none"}, claims)), ""))


def _encoded(part: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")


@dataclass
class TokenServer:
    """A running service.

    Args:
        url: Its address.
        status: The status of its next answers.
        body: Their body; empty for a token of the client's name.
        lives_s: How long its tokens live.
        forms: What it was asked, with the login of each.
    """

    url: str
    status: int = 200
    body: bytes = b""
    lives_s: float = 60.0
    forms: list[tuple[str, Mapping[str, list[str]]]] = field(default_factory=list)

    def answer(self, login: str, form: Mapping[str, list[str]]) -> bytes:
        self.forms.append((login, form))
        token = {"access_token": unsigned_token(login.partition(":")[0], self.lives_s), "expires_in": self.lives_s}
        return self.body or json.dumps(token).encode()


@contextmanager
def token_service() -> Iterator[TokenServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            login = base64.b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode()
            body = service.answer(login, form)
            self.send_response(service.status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        service = TokenServer(f"http://127.0.0.1:{server.server_port}/token")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield service
        server.shutdown()
