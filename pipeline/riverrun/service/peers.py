"""Asks other instances of the application.

Asks the instances of a version from outside, at the addresses that they have named to its group.

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
from riverrun.service.admission import SIGNATURE, Signatures
from riverrun.service.connections import client_tls

if TYPE_CHECKING:
    from collections.abc import Mapping
    from ssl import SSLContext

    from riverrun.config import StreamsConfig
    from riverrun.runtime.ports import Clock

FORWARDED = "X-Riverrun-Forwarded"
"""Marks a question that another instance has forwarded: it is not forwarded again."""
_PEER_SECONDS = 15.0
_MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Maximum size of an answer."""
_MAX_HELD_BYTES = 128 * 1024 * 1024
"""Maximum size of all answers that are being read; each must be complete before its signature shows that it may be believed."""

_CLOSE_SECONDS = 2.0
_SHOWN = 500
"""Greatest number of characters of an error in a message: some repeat what a peer has sent."""


class NoAnswerError(Exception):
    """Another instance does not answer, or not as one of ours does."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of another instance.

    Args:
        status: The status.
        headers: The headers.
        body: The body, decoded from JSON.
    """

    status: int
    headers: Mapping[str, str]
    body: Any


class Peers:
    """Asks other instances, at addresses that members of the group have named.

    Only instances that know the token are believed.

    Args:
        signatures: Sign questions; None without a token, where only instances of this machine are asked.
        clock: Returns the time.
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
        """Ignore the environment's proxies: they would see all questions."""
        self._signatures = signatures
        self._clock = clock
        self._scheme = "http" if tls is None else "https"
        verify = True if tls is None else tls
        self._client = httpx.AsyncClient(timeout=within_s, trust_env=False, verify=verify, transport=transport)
        self._within_s = within_s
        self._held_bytes = 0
        self._lock = threading.Lock()
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
        """Return the event loop of all questions: unlike a thread that reads, a task can be ended at any time."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=_run, args=(self._loop,), name="peers", daemon=True).start()
            return self._loop

    def get(self, server: str, path: str, params: Mapping[str, str], within_s: float | None = None) -> Answer:
        """Ask another instance."""
        try:
            address = ServerAddress.parse(server)
        except ValueError as error:
            raise NoAnswerError(str(error)) from error
        if self._signatures is None and not address.is_loopback:
            message = f"{server} is another machine: requests to it need a token (server.token)"
            raise NoAnswerError(message)
        request = self._client.build_request(
            "GET",
            f"{self._scheme}://{address}{path}",
            params=params,
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
            message = f"{server} has not answered within {seconds:.1f} s"
            raise NoAnswerError(message) from error
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            message = f"{server} does not answer: {str(error)[:_SHOWN]}"
            raise NoAnswerError(message) from error
        self._check(server, question, response, body)
        try:
            return Answer(response.status_code, response.headers, msgspec.json.decode(body))
        except (ValueError, RecursionError) as error:  # bytes that are no UTF-8 are no DecodeError
            message = f"{server} answers with status {response.status_code}, and without JSON"
            raise NoAnswerError(message) from error

    async def _ask(self, request: httpx.Request) -> tuple[httpx.Response, bytes]:
        """Return an answer and its body; unpacked, a body might be of any size."""
        response = await self._client.send(request, stream=True)
        body = bytearray()
        try:
            if "Content-Encoding" in response.headers:
                message = "the answer has an encoding that was not requested"
                raise httpx.ReadError(message)
            async for part in response.aiter_bytes():
                body += part
                self._held_bytes += len(part)
                if len(body) > _MAX_ANSWER_BYTES or self._held_bytes > _MAX_HELD_BYTES:
                    message = f"more than {_MAX_ANSWER_BYTES} bytes, or {_MAX_HELD_BYTES} in all answers"
                    raise httpx.ReadError(message)
        finally:
            self._held_bytes -= len(body)
            await response.aclose()
        return response, bytes(body)

    def _check(self, server: str, question: str, response: httpx.Response, body: bytes) -> None:
        """Make sure that an answer is signed: any process may answer at an address that a member has named."""
        if self._signatures is None:
            return
        shown, status = response.headers.get(SIGNATURE, ""), response.status_code
        if not self._signatures.is_answer(shown, question, status, response.headers, body):
            message = f"{server} answers with status {status}, and does not prove that it knows the token"
            raise NoAnswerError(message)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_asyncgens())  # those of answers that were not read to the end
    finally:
        loop.close()


_ANSWER_SECONDS = 3.0
_OK = 200


class Members:
    """The instances of one version.

    Args:
        streams: Their settings.
        token: Their `server.token`; empty for none.
        application_id: Their version.
    """

    def __init__(self, streams: StreamsConfig, token: str, application_id: str) -> None:
        """Open no connection yet: the first request to an instance does."""
        shared = token or streams.server_read_token
        signatures = Signatures.of(shared, application_id) if shared else None
        tls = client_tls(streams) if streams.server_ssl_certificate_location else None
        self._peers = Peers(signatures, SystemClock(), tls, within_s=_ANSWER_SECONDS)

    def ask(self, server: str, path: str) -> Any:
        """Return an instance's answer as parsed JSON."""
        answer = self._peers.get(server, path, {})
        if answer.status == _OK:
            return answer.body
        reason = answer.body.get("message", "") if isinstance(answer.body, dict) else ""
        message = f"{server} answers with status {answer.status}: {reason}"
        raise NoAnswerError(message)

    def close(self) -> None:
        """Close connections."""
        self._peers.close()
