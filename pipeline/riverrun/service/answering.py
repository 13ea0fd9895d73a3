"""Responses that all HTTP interfaces share: JSON, server-sent events, errors, and the files of the console."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import StreamingResponse

from riverrun.config.secrets import redacted
from riverrun.errors import StreamsError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping

MAX_STREAMS = 8
"""Maximum number of simultaneous event streams. `connections` never closes an open answer to make room."""
UNKEPT = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
"""Headers that keep browsers and proxies (nginx: `X-Accel-Buffering`) from buffering events."""


class Streams:
    """Streams of events.

    Args:
        event: Returns the next event, encoded for sending.
        every_s: The time between two events (seconds).
    """

    def __init__(self, event: Callable[[], Awaitable[bytes]], every_s: float) -> None:
        self._event = event
        self._every_s = every_s
        self._lock = threading.Lock()
        self._open: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        self._has_ended = False

    @property
    def open_streams(self) -> int:
        return len(self._open)

    @property
    def is_full(self) -> bool:
        """True if the maximum number of streams is open."""
        return self.open_streams >= MAX_STREAMS

    def end(self) -> None:
        """End all streams at once; may be called from any thread, which asyncio's own objects do not allow."""
        with self._lock:
            self._has_ended = True
            for ends, loop in self._open.items():
                loop.call_soon_threadsafe(ends.set)

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield events until the server stops or the reader leaves."""
        ends = asyncio.Event()
        with self._lock:
            if self._has_ended or self.is_full:
                return
            self._open[ends] = asyncio.get_running_loop()
        try:
            while not ends.is_set():
                # The newest event after the last one was taken: a slow reader misses some, and delays nobody.
                yield await self._event()
                try:
                    await asyncio.wait_for(ends.wait(), self._every_s)
                except TimeoutError:
                    continue
        finally:
            with self._lock:
                del self._open[ends]


FILES: Mapping[str, tuple[str, str]] = {
    "/": ("console.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/console.js": ("console.js", "text/javascript"),
    "/page.js": ("page.js", "text/javascript"),
    "/charts.js": ("charts.js", "text/javascript"),
    "/graph.js": ("graph.js", "text/javascript"),
    "/stores.js": ("stores.js", "text/javascript"),
    "/topics.js": ("topics.js", "text/javascript"),
    "/letters.js": ("letters.js", "text/javascript"),
    "/sql.js": ("sql.js", "text/javascript"),
}
PATHS = frozenset(FILES)
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}
"""Allows only the page's own scripts and styles, and keeps other pages from showing it or reaching into it."""


def content(path: str) -> str:
    """Return the file at a path of `FILES`."""
    text = _read(FILES[path][0])
    return page(text, "figures", "console.js") if path == "/" else text


def page(
    main: str,
    contents: str,
    script: str,
    *,
    root: str = "",
    title: str = "Riverrun console",
    name: str = "",
    is_shown: bool = False,
) -> str:
    """Return a page with the head and header of all pages. Its script shows `main` when it has data, unless `is_shown`."""
    skeleton, hidden = Template(_read("page.html")), "" if is_shown else " hidden"
    return skeleton.substitute(
        main=main, contents=contents, script=script, root=root, title=title, name=name, hidden=hidden
    )


def _read(name: str) -> str:
    return (Path(__file__).parent / "console" / name).read_text(encoding="utf-8")


_AWAY = {404: "no-such-path", 405: "no-such-method"}
_SHOWN = 1000
"""Greatest number of characters of a request in an answer."""


def as_json(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")


async def as_events(streams: Streams) -> Response:
    """Return a stream of events as a response, or an error if too many readers have one."""
    events = streams.stream()
    # Its place is taken with the first event: of readers that come at once, some may have to be refused.
    first = await anext(events, None)
    if first is None:
        message = f"{MAX_STREAMS} clients already read events: try again later"
        return as_json({"error": "too-many-streams", "message": message}, 503)

    async def begun() -> AsyncIterator[bytes]:
        yield first
        async for event in events:
            yield event

    return StreamingResponse(begun(), headers=UNKEPT, media_type="text/event-stream")


def show_errors(api: FastAPI) -> None:

    @api.exception_handler(HTTPException)
    def send_away(request: Request, error: HTTPException) -> Response:
        reason = _AWAY.get(error.status_code, "bad-request")
        cause = "" if error.__cause__ is None else f": {_reason(error.__cause__)}"
        message = redacted(f"{request.method} {request.url.path[:_SHOWN]}: {error.detail}{cause}")
        return as_json({"error": reason, "message": message}, error.status_code, dict(error.headers or {}))

    @api.exception_handler(RequestValidationError)
    def correct(_request: Request, error: RequestValidationError) -> Response:
        wrong = [f"{each['loc'][-1]}: {each['msg']}" for each in error.errors()]
        return as_json({"error": "bad-request", "message": redacted("; ".join(wrong)[:_SHOWN])}, 422)


def show_refusals(api: FastAPI, statuses: Iterable[tuple[type[StreamsError], int, str]]) -> None:
    """Answer with what is wrong: by the first kind of error that fits, a status and a reason; otherwise 503."""

    @api.exception_handler(StreamsError)
    def explain(_request: Request, error: StreamsError) -> Response:
        message = f"{error.message}. {error.hint}" if error.hint else error.message
        found = (each[1:] for each in statuses if isinstance(error, each[0]))
        status, reason = next(found, (503, "failed"))
        return as_json({"error": reason, "message": redacted(message)}, status)


def _reason(error: BaseException) -> str:
    """Return why a body cannot be read as JSON, without the body."""
    if isinstance(error, RecursionError):
        return "its JSON is nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return f"it is not UTF-8 (byte {error.start + 1})"
    return "it is not JSON"


def serve_files(api: FastAPI, files: Mapping[str, tuple[str, str]]) -> None:
    for path, (body, media_type) in files.items():
        api.add_api_route(path, _file(body, media_type), include_in_schema=path == "/")


def _file(body: str, media_type: str) -> Callable[[], Awaitable[Response]]:
    async def answer() -> Response:
        """Return the console: a page without data, which requests the data with a token."""
        return Response(body, headers=dict(HEADERS), media_type=media_type)

    return answer
