"""Asks other instances of the application."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import msgspec

from riverrun.config.address import ServerAddress
from riverrun.service.access.signatures import SIGNATURE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from ssl import SSLContext

    from riverrun.runtime.ports import Clock
    from riverrun.service.access.signatures import Signatures

FORWARDED = "X-Riverrun-Forwarded"
"""Marks a question that another instance has forwarded: it is not forwarded again."""
_PEER_SECONDS = 15.0
_MAX_ANSWER_BYTES = 128 * 1024 * 1024


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
        within_s: Maximum time for an answer (seconds).
    """

    def __init__(
        self,
        signatures: Signatures | None,
        clock: Clock,
        tls: SSLContext | None = None,
        transport: httpx.BaseTransport | None = None,
        within_s: float = _PEER_SECONDS,
    ) -> None:
        """Ignore the environment's proxies: they would see all questions."""
        self._signatures = signatures
        self._clock = clock
        self._scheme = "http" if tls is None else "https"
        verify = True if tls is None else tls
        self._client = httpx.Client(timeout=within_s, trust_env=False, verify=verify, transport=transport)

    def close(self) -> None:
        """Close the connections that are kept open for the next question."""
        self._client.close()

    def get(self, server: str, path: str, params: Mapping[str, str]) -> Answer:
        """Ask another instance.

        Args:
            server: Its `host:port`.
            path: The path to request.
            params: The parameters of the request.

        Returns:
            Its answer.

        Raises:
            NoAnswerError: If it does not answer, or does not show that it knows the token.
        """
        try:
            address = ServerAddress.parse(server)
        except ValueError as error:
            raise NoAnswerError(str(error)) from error
        if self._signatures is None and not address.is_loopback:
            message = f"{server} is another machine, which is not asked without a token (server.token)"
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
        try:
            response = self._client.send(request, stream=True)
            body = _read(response)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            message = f"{server} does not answer: {error}"
            raise NoAnswerError(message) from error
        self._check(server, question, response, body)
        try:
            return Answer(response.status_code, response.headers, msgspec.json.decode(body))
        except msgspec.DecodeError as error:
            message = f"{server} answers with status {response.status_code}, and no JSON"
            raise NoAnswerError(message) from error

    def _check(self, server: str, question: str, response: httpx.Response, body: bytes) -> None:
        """Make sure that an answer is signed: any process may answer at an address that a member has named."""
        if self._signatures is None:
            return
        shown, status = response.headers.get(SIGNATURE, ""), response.status_code
        if not self._signatures.is_answer(shown, question, status, response.headers, body):
            message = f"{server} answers with status {status}, and does not show that it knows the token"
            raise NoAnswerError(message)


def _read(response: httpx.Response) -> bytes:
    body = bytearray()
    try:
        for part in response.iter_bytes():
            body += part
            if len(body) > _MAX_ANSWER_BYTES:
                message = f"more than {_MAX_ANSWER_BYTES} bytes"
                raise httpx.ReadError(message)
    finally:
        response.close()
    return bytes(body)
