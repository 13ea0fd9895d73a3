"""The files of the console."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

FILES: Mapping[str, tuple[str, str]] = {
    "/": ("console.html", "text/html"),
    "/console.css": ("console.css", "text/css"),
    "/console.js": ("console.js", "text/javascript"),
    "/page.js": ("page.js", "text/javascript"),
    "/charts.js": ("charts.js", "text/javascript"),
    "/graph.js": ("graph.js", "text/javascript"),
    "/stores.js": ("stores.js", "text/javascript"),
}
"""The name and type of the file at each path."""
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
    return (Path(__file__).parent / FILES[path][0]).read_text(encoding="utf-8")
