"""The files of the page; it shares some with the page of an instance."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from riverrun.service.console.files import FILES, content

if TYPE_CHECKING:
    from collections.abc import Mapping

_OWN = {
    "/": ("project.html", "text/html"),
    "/project.css": ("project.css", "text/css"),
    "/project.js": ("project.js", "text/javascript"),
    "/timeline.js": ("timeline.js", "text/javascript"),
    "/releases.js": ("releases.js", "text/javascript"),
}
_SHARED = ("/console.css", "/page.js", "/charts.js")
PATHS = frozenset({*_OWN, *_SHARED})


def files() -> Mapping[str, tuple[str, str]]:
    """Return the content and the type of the file at each path."""
    own = {path: (_content(name), media_type) for path, (name, media_type) in _OWN.items()}
    return own | {path: (content(path), FILES[path][1]) for path in _SHARED}


def _content(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")
