"""Responses that all HTTP interfaces share: JSON, events, errors, and the files of a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import StreamingResponse

from riverrun.config.secrets import redacted
from riverrun.service.console.files import HEADERS
from riverrun.service.streams import MAX_STREAMS, UNKEPT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from riverrun.service.streams import Streams

_AWAY = {404: "no-such-path", 405: "no-such-method"}
"""Errors for paths and methods that do not exist."""
_SHOWN = 1000
"""Greatest number of characters of a request in an answer."""


def as_json(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response in JSON."""
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")


def as_events(streams: Streams) -> Response:
    """Return a stream of events as a response, or an error if too many readers have one."""
    if streams.is_full:
        message = f"{MAX_STREAMS} read events already: no further one is accepted"
        return as_json({"error": "too-many-streams", "message": message}, 503)
    return StreamingResponse(streams.stream(), headers=UNKEPT, media_type="text/event-stream")


def show_errors(api: FastAPI) -> None:
    """Show errors of requests as JSON."""

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


def _reason(error: BaseException) -> str:
    """Return why a body cannot be read as JSON, without the body."""
    if isinstance(error, RecursionError):
        return "its JSON is nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return f"it is not UTF-8 (byte {error.start + 1})"
    return "it is not JSON"


def serve_files(api: FastAPI, files: Mapping[str, tuple[str, str]]) -> None:
    """Serve the files of a page.

    Args:
        api: The interface that serves them.
        files: The content and the type of the file at each path.
    """
    for path, (body, media_type) in files.items():
        api.add_api_route(path, _file(body, media_type), include_in_schema=path == "/")


def _file(body: str, media_type: str) -> Callable[[], Awaitable[Response]]:
    async def answer() -> Response:
        """Return the console: a page without data, which requests the data with a token."""
        return Response(body, headers=dict(HEADERS), media_type=media_type)

    return answer
