"""Asks other instances of an application: from one of them (`Peers`), or from outside (`Members`).

Any process may join a group and name any address. So no token is sent there: questions and answers are signed.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import msgspec

from riverrun.config.address import ServerAddress
from riverrun.hosting.process import SystemClock
from riverrun.service.connections import client_tls
from riverrun.service.signatures import SIGNATURE, Signatures

if TYPE_CHECKING:
    from collections.abc import Mapping
    from ssl import SSLContext

    from riverrun.config import StreamsConfig
    from riverrun.runtime.ports import Clock

FORWARDED = "X-Riverrun-Forwarded"
"""Marks a question that another instance has forwarded: it is not forwarded again."""
_PEER_SECONDS = 15.0
_MAX_ANSWER_BYTES = 64 * 1024 * 1024
# Of all answers together. Each must be complete before its signature shows whether it comes from an instance at all.
_MAX_HELD_BYTES = 128 * 1024 * 1024

_CLOSE_SECONDS = 2.0
_SHOWN = 500
"""Greatest number of characters of an error in a message: some repeat what a peer has sent."""


class NoAnswerError(Exception):
    """An instance does not answer, or does not prove that it knows the token."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of another instance, its body decoded from JSON."""

    status: int
    headers: Mapping[str, str]
    body: Any


class Peers:
    """Asks other instances, at addresses that members of the group have named.

    Only instances that know the token are believed.

    Args:
        signatures: Sign questions; None without a token, where only instances of this machine are asked.
        tls: Checks the certificates of others; None asks in clear.
        transport: Sends questions elsewhere, in tests.
        within_s: Maximum time for a whole answer (seconds), however slowly it arrives.
    """

    def __init__(
        self,
        signatures: Signatures | None,
        clock: Clock,
        tls: SSLContext | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        within_s: float = _PEER_SECONDS,
    ) -> None:
        self._signatures = signatures
        self._clock = clock
        self._scheme = "http" if tls is None else "https"
        verify = True if tls is None else tls
        # trust_env=False: proxies of the environment would see all questions.
        self._client = httpx.AsyncClient(timeout=within_s, trust_env=False, verify=verify, transport=transport)
        self._within_s = within_s
        self._held_bytes = 0
        self._lock = threading.Lock()
        # One loop for all questions: unlike a thread that reads, a task can be cancelled whatever the other side does.
        self._loop: asyncio.AbstractEventLoop | None = None

    def close(self) -> None:
        """Close the connections that are kept open for the next question."""
        loop = self._running()
        with self._lock:
            self._loop = None
        # The client belongs to the loop: closed elsewhere, it would leave its connections open.
        asyncio.run_coroutine_threadsafe(self._client.aclose(), loop).result(_CLOSE_SECONDS)
        loop.call_soon_threadsafe(loop.stop)

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=_run, args=(self._loop,), name="peers", daemon=True).start()
            return self._loop

    def get(self, server: str, path: str, params: Mapping[str, str], within_s: float | None = None) -> Answer:
        """Ask another instance, for `within_s` at most (seconds) if that is less than usual."""
        try:
            address = ServerAddress.parse(server)
        except ValueError as error:
            raise NoAnswerError(str(error)) from error
        # Without a token, an answer cannot be checked: only processes of this machine are trusted so far.
        if self._signatures is None and not address.is_loopback:
            raise NoAnswerError(f"{server} is another machine: requests to it need a token (server.token)")
        request = self._client.build_request(
            "GET",
            f"{self._scheme}://{address}{path}",
            params=params,
            # No encoding: a small compressed answer may unpack to any size.
            headers={FORWARDED: "1", "Accept-Encoding": "identity"},
        )
        question = ""
        if self._signatures is not None:
            question = self._signatures.question(server, request.url.raw_path, self._clock.now_ms())
            request.headers[SIGNATURE] = question
        seconds = self._within_s if within_s is None else min(self._within_s, max(within_s, 0))
        asked = asyncio.run_coroutine_threadsafe(asyncio.wait_for(self._ask(request), seconds), self._running())
        try:
            response, body = asked.result()
        except TimeoutError as error:
            raise NoAnswerError(f"{server} has not answered within {seconds:.1f} s") from error
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise NoAnswerError(f"{server} does not answer: {str(error)[:_SHOWN]}") from error
        self._check(server, question, response, body)
        try:
            return Answer(response.status_code, response.headers, msgspec.json.decode(body))
        # Bytes that are no UTF-8 raise UnicodeDecodeError, not msgspec's DecodeError.
        except (ValueError, RecursionError) as error:
            raise NoAnswerError(f"{server} answers with status {response.status_code}, and without JSON") from error

    async def _ask(self, request: httpx.Request) -> tuple[httpx.Response, bytes]:
        response = await self._client.send(request, stream=True)
        body = bytearray()
        try:
            # A peer may ignore what was accepted.
            if "Content-Encoding" in response.headers:
                raise httpx.ReadError("the answer has an encoding that was not requested")
            async for part in response.aiter_bytes():
                body += part
                # No lock: all questions run in one event loop.
                self._held_bytes += len(part)
                if len(body) > _MAX_ANSWER_BYTES or self._held_bytes > _MAX_HELD_BYTES:
                    raise httpx.ReadError(f"more than {_MAX_ANSWER_BYTES} bytes, or {_MAX_HELD_BYTES} in all answers")
        finally:
            self._held_bytes -= len(body)
            await response.aclose()
        return response, bytes(body)

    def _check(self, server: str, question: str, response: httpx.Response, body: bytes) -> None:
        if self._signatures is None:
            return
        shown, status = response.headers.get(SIGNATURE, ""), response.status_code
        # Any process may answer at an address that a member has named.
        if not self._signatures.is_answer(shown, question, status, response.headers, body):
            raise NoAnswerError(f"{server} answers with status {status}, and does not prove that it knows the token")


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        # Generators of answers that were not read to the end hold their connections.
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


_ANSWER_SECONDS = 3.0
_OK = 200


class Members:
    """The instances of one version, asked from outside the application.

    Args:
        token: Their `server.token`; empty for none.
    """

    def __init__(self, streams: StreamsConfig, token: str, application_id: str) -> None:
        shared = token or streams.server_read_token
        signatures = Signatures.of(shared, application_id) if shared else None
        self._peers = Peers(signatures, SystemClock(), client_tls(streams), within_s=_ANSWER_SECONDS)

    def ask(self, server: str, path: str) -> Any:
        """Return an instance's answer as parsed JSON."""
        answer = self._peers.get(server, path, {})
        if answer.status == _OK:
            return answer.body
        reason = answer.body.get("message", "") if isinstance(answer.body, dict) else ""
        raise NoAnswerError(f"{server} answers with status {answer.status}: {reason}")

    def close(self) -> None:
        self._peers.close()
