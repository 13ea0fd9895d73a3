"""Admits or refuses callers of the HTTP interface. This check comes before all others."""

from __future__ import annotations

import asyncio
import logging
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response

from riverrun.config.address import ServerAddress, is_loopback
from riverrun.service.answering import PATHS
from riverrun.service.signatures import SIGNATURE, Signatures

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, MutableMapping
    from collections.abc import Set as AbstractSet

    from riverrun.runtime.ports import Clock

    Message = MutableMapping[str, Any]
    Scope = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    App = Callable[[Scope, Receive, Send], Awaitable[None]]

log = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/health", "/ready"}) | PATHS
"""Paths that need no token, since they reveal no data. The console's files are equal everywhere."""
_READING = frozenset({"GET", "HEAD"})
QUERY_PATH, CHANGES_PATH = "/query", "/query/changes"
"""Paths of SQL queries, which only read: of the present rows, and of changes as they come."""
_BETWEEN_INSTANCES = "/stores/"
"""Prefix of the paths that instances request from each other."""
_OF_OBSERVERS = frozenset({"/status", "/tasks"})
"""Paths that project consoles and checks request from instances."""
_MAX_BODY_BYTES = 64 * 1024
"""Maximum size of a request's body; only SQL queries have one."""
_BODY_SECONDS = 10.0
"""Maximum time in which a body arrives."""
_CLOSES = {"Connection": "close"}
_SHOWN = 300


@dataclass(frozen=True, slots=True)
class Access:
    """Decides which callers are admitted.

    Args:
        token: Shown by callers (`Authorization: Bearer`) to do everything. If it is empty, no caller can do so.
        read_token: Shown by callers that only read; empty likewise. With neither token, all callers on this machine are
            admitted.
        signatures: Check questions of other instances; None without a token.
        server: `host:port` as other instances know it.
        hosts: Further names of this instance (`server.allowed.hosts`).
    """

    token: str = field(default="", repr=False)
    read_token: str = field(default="", repr=False)
    signatures: Signatures | None = None
    server: str = ""
    hosts: frozenset[str] = frozenset()

    @property
    def wants_token(self) -> bool:
        """True if callers without a token are refused."""
        return bool(self.token or self.read_token)

    def is_own_host(self, host: str) -> bool:
        """Return whether `host`, or `host:port`, names this instance."""
        # A foreign name that resolves to this machine does not count: a page under that name could make a browser ask.
        if host in {self.server, *self.hosts}:
            return True
        name = _host_of(host)
        return bool(name) and (is_loopback(name) or name in {*self.hosts, _host_of(self.server)})


def _host_of(host: str) -> str:
    """Return the host without a port; empty if there is none, or if the text has further parts."""
    # An IPv6 address without a port has colons as well, but then it ends with its bracket.
    bare = host.endswith("]") or ":" not in host
    try:
        return ServerAddress.parse(f"{host}:0" if bare else host).host.lower()
    except ValueError:
        return ""


class Admission:
    """Passes admitted requests on to an application, and answers all others itself.

    Args:
        clock: Returns the time: questions of other instances are valid for some minutes.
    """

    def __init__(self, app: App, access: Access, clock: Clock, open_paths: AbstractSet[str] = OPEN_PATHS) -> None:
        self._app = app
        self._access = access
        self._clock = clock
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        question = headers.get(SIGNATURE, "")
        signs = bool(question) and self._is_from_instance(question, scope)
        refusal = (
            _misfit(headers) or self._foreign(scope, headers) or (None if signs else self._stranger(scope, headers))
        )
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        # Read before the endpoint runs: a caller that sends slowly must not hold a thread of the interface.
        whole = await _received(headers, receive)
        if whole is None:
            await refused("too-slow", f"The body did not arrive within {_BODY_SECONDS} s", 408, _CLOSES)(
                scope, receive, send
            )
            return
        # FastAPI knows no HEAD; the server leaves the body of the answer out.
        if scope["method"] == "HEAD" and scope["path"] in self._open_paths:
            scope = {**scope, "method": "GET"}
        await self._answered(scope, whole, self._signing(question, send) if signs else send)

    async def _answered(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the application answer. An exception becomes one log line, whatever the request has put into its text."""
        has_begun = False

        async def noting(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except Exception as error:  # noqa: BLE001 - one failed request must not end the server
            log.error("%s %.200r failed: %s", scope["method"], scope["path"], _in_short(error))  # noqa: TRY400 - one line
            # Once a part was sent, the status cannot change any more: the connection just ends.
            if not has_begun:
                message = "The request failed; the log of the instance says why"
                await refused("internal-error", message, 500)(scope, receive, send)

    def _is_from_instance(self, question: str, scope: Scope) -> bool:
        signatures = self._access.signatures
        # A signature stands for a token that instances share. It must not allow commands, so it admits few paths, and GET only.
        may_ask = scope["path"].startswith(_BETWEEN_INSTANCES) or scope["path"] in _OF_OBSERVERS
        if signatures is None or scope["method"] != "GET" or not may_ask:
            return False
        query = scope["query_string"]
        target = scope["raw_path"] + (b"?" + query if query else b"")
        return signatures.is_question(question, self._access.server, target, self._clock.now_ms())

    def _foreign(self, scope: Scope, headers: Headers) -> Response | None:
        """Refuse requests that a page of another origin makes a browser send."""
        access, hosts = self._access, headers.getlist("Host")
        if len(hosts) > 1:
            return refused("misdirected", "The request names several hosts", 421)
        host = hosts[0] if hosts else ""
        # Without a token, a page could reach this instance by DNS rebinding. It cannot know a token: then any host will do.
        if not access.wants_token and not access.is_own_host(host):
            message = f"Host {host!r} is not allowed: add it to server.allowed.hosts"
            return refused("misdirected", message, 421)
        origin = headers.get("Origin")
        is_foreign = origin is not None and not _is_own_origin(origin, scope["scheme"], {host, *access.hosts})
        is_own = headers.get("Sec-Fetch-Site", "none") in {"none", "same-origin"}
        if is_foreign or not (is_own or _follows_link(scope, headers)):
            return refused("foreign-origin", "Pages of other sites may not call this instance", 403)
        return None

    def _stranger(self, scope: Scope, headers: Headers) -> Response | None:
        access = self._access
        if not access.wants_token or scope["path"] in self._open_paths:
            return None
        scheme, _, shown = headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer":  # may be written in any way (RFC 9110, 11.1)
            if _equal(shown, access.token):
                return None
            if _equal(shown, access.read_token):
                if scope["method"] in _READING or scope["path"] in {QUERY_PATH, CHANGES_PATH}:
                    return None
                return refused("forbidden", "This token is read-only: the request needs server.token", 403)
        wanted = {"WWW-Authenticate": "Bearer"}
        return refused("unauthorized", "The token is missing or wrong: send Authorization: Bearer ...", 401, wanted)

    def _signing(self, question: str, send: Send) -> Send:
        """Hold an answer back until it is complete, then sign it: the signature is a header, but covers the body."""
        started: list[Message] = []
        body = bytearray()

        async def sign(message: Message) -> None:
            if message["type"] == "http.response.start":
                started.append(message)
                return
            body.extend(message.get("body", b""))
            if message.get("more_body", False):
                return
            (start,) = started
            headers = MutableHeaders(scope=start)
            signatures = self._access.signatures
            assert signatures is not None, "it has checked the request"  # noqa: S101 - a mistake of ours
            headers[SIGNATURE] = signatures.answer(question, start["status"], headers, bytes(body))
            await send(start)
            await send({"type": "http.response.body", "body": bytes(body)})

        return sign


def _in_short(error: Exception) -> str:
    """Return an error and its place, in one line."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = "" if trace is None else f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
    return f"{type(error).__name__}: {str(error)[:_SHOWN]!r}{place}"


async def _received(headers: Headers, receive: Receive) -> Receive | None:
    """Return what receives a request whose body is there already; None if the body does not arrive in time."""
    if not _length(headers):
        return receive
    body, has_more = bytearray(), True
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            while has_more:
                message = await receive()
                body += message.get("body", b"")
                has_more = message.get("more_body", False)
    except TimeoutError:
        return None
    given = [{"type": "http.request", "body": bytes(body), "more_body": False}]

    async def received() -> Message:
        return given.pop() if given else await receive()

    return received


def _is_own_origin(origin: str, scheme: str, hosts: AbstractSet[str]) -> bool:
    shown, _, host = origin.partition("://")
    # A proxy may add TLS. Without one, anybody on the way can send a page without TLS in this instance's name.
    return host in hosts and shown in {scheme, "https"}


def _follows_link(scope: Scope, headers: Headers) -> bool:
    # The console has no data and stands in no frame, so a link to it from elsewhere is harmless.
    goes = headers.get("Sec-Fetch-Mode") == "navigate" and headers.get("Sec-Fetch-Dest") == "document"
    return goes and scope["method"] == "GET" and scope["path"] == "/"


def _equal(shown: str, token: str) -> bool:
    return bool(token) and secrets.compare_digest(shown.strip(" ").encode(), token.encode())


def _misfit(headers: Headers) -> Response | None:
    """Return a refusal if a request's body cannot be a statement, so that it need not be read."""
    length = _length(headers)
    if "Transfer-Encoding" in headers or length is None or length > _MAX_BODY_BYTES:
        return refused("too-large", "The request's body is too long, or has no known length", 413, _CLOSES)
    return None


def _length(headers: Headers) -> int | None:
    """Return the length of a request's body; None if it is no number. Very large ones are not exact."""
    length = headers.get("Content-Length", "0")
    # Python's int() raises an error for thousands of digits.
    return int(length.lstrip("0")[:10] or "0") if length.isdecimal() else None


def refused(error: str, message: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    """Return a refusal in the form of all errors: `error` is its kind, for programs; `message` the reason."""
    body = msgspec.json.encode({"error": error, "message": message})
    return Response(body, status, headers, media_type="application/json")
