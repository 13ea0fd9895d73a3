"""The HTTP interface of the project console: its page, its data, and the rows that a release changes. It only reads."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from fastapi import FastAPI, Query, Response

from riverrun.console.shown import row_object
from riverrun.errors import ConfigError, ReleaseError
from riverrun.hosting.process import SystemClock
from riverrun.service.admission import OPEN_PATHS, Admission
from riverrun.service.answering import (
    FILES,
    Streams,
    as_events,
    as_json,
    content,
    page,
    serve_files,
    show_errors,
    show_refusals,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from riverrun.console.looking import ProjectWatch
    from riverrun.releases.rows import DifferentRow
    from riverrun.service.admission import Access

_OWN = {
    "/": ("project.html", "text/html"),
    "/project.js": ("project.js", "text/javascript"),
    "/between.js": ("between.js", "text/javascript"),
    "/timeline.js": ("timeline.js", "text/javascript"),
    "/releases.js": ("releases.js", "text/javascript"),
}
_SHARED = ("/page.css", "/page.js", "/charts.js")
PATHS = frozenset({*_OWN, *_SHARED})


def files() -> Mapping[str, tuple[str, str]]:
    """Return the content and the type of the file at each path."""
    own = {path: (_content(name), media_type) for path, (name, media_type) in _OWN.items()}
    return own | {path: (content(path), FILES[path][1]) for path in _SHARED}


def _content(name: str) -> str:
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    return page(text, "applications", "project.js") if name == "project.html" else text


_EVENT_SECONDS = 1.0
_STATUS = ((ConfigError, 404, "no-such-application"), (ReleaseError, 409, "no-difference"))


class Differences(Protocol):
    """Finds the rows in which a candidate differs from the live version."""

    def __call__(self, app: str, limit: int) -> Sequence[DifferentRow]:
        """Return a limited number of an application's differing rows."""


def new_api(
    watch: ProjectWatch, differences: Differences, between: Callable[[], Mapping[str, Any]], access: Access
) -> FastAPI:
    """Return the HTTP interface of a console.

    Args:
        watch: Keeps the last state of the project.
        differences: Finds rows in which versions differ.
        between: Returns the picture of the project's graph, as `Looking.between` does.
        access: Decides which callers are admitted.
    """
    api = FastAPI(title="Riverrun console", docs_url=None, redoc_url=None, openapi_url=None)
    api.add_middleware(Admission, access=access, clock=SystemClock(), open_paths=PATHS | OPEN_PATHS)
    show_errors(api)
    serve_files(api, files())
    _watch(api, watch)
    _compare(api, differences)

    @api.get("/graph")
    async def graph() -> Response:
        return as_json(between())

    return api


def _watch(api: FastAPI, watch: ProjectWatch) -> None:
    """Serve the last state of the project."""
    events = Streams(watch.event, _EVENT_SECONDS)
    # When the server stops, it ends all streams through this attribute (`console.serving`).
    api.state.events = events

    @api.get("/health")
    async def health() -> Response:
        return as_json({"state": "running"})

    @api.get("/status")
    async def status() -> Response:
        return as_json(watch.latest)

    @api.get("/history")
    def past(since: Annotated[int, Query(ge=0)] = 0) -> Response:
        return as_json(watch.since(since))

    @api.get("/events")
    async def stream() -> Response:
        return await as_events(events)


def _compare(api: FastAPI, differences: Differences) -> None:
    """Serve the rows in which versions differ."""
    # One question at a time, since each updates an index on disk.
    busy = threading.Lock()

    show_refusals(api, _STATUS)

    @api.get("/apps/{app}/difference")
    def difference(app: str, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> Response:
        if not busy.acquire(blocking=False):
            return as_json({"error": "busy", "message": "Another difference is being computed: try again"}, 503)
        try:
            rows = [row_object(row) for row in differences(app, limit + 1)]
        finally:
            busy.release()
        return as_json({"rows": rows[:limit], "more": len(rows) > limit})
