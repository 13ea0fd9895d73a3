"""Functions of URLs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, quote_plus, unquote_plus, urlsplit

from riverrun.sql.functions.registry import scalar

if TYPE_CHECKING:
    from collections.abc import Callable

THEME = "URLs"
_ILLEGAL = re.compile(r"""[\s"<>\\^`{|}]|%(?![0-9a-fA-F]{2})""")


def _parts(url: str) -> SplitResult | None:
    if _ILLEGAL.search(url):
        return None
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    return parts


def _declare(name: str, take: Callable[[SplitResult], str | int | None], returns: str, description: str) -> None:
    def run(url: str) -> str | int | None:
        parts = _parts(url)
        return None if parts is None else take(parts)

    scalar(f"{name}(url STRING) -> {returns}", theme=THEME, description=description)(run)


_declare("URL_EXTRACT_FRAGMENT", lambda url: unquote_plus(url.fragment) or None, "STRING", "The decoded part behind #.")
_declare("URL_EXTRACT_HOST", lambda url: url.hostname, "STRING", "The name of the host.")
_declare(
    "URL_EXTRACT_PATH",
    lambda url: unquote_plus(url.path),
    "STRING",
    "The decoded path with its slash; empty if there is none.",
)
_declare("URL_EXTRACT_PORT", lambda url: url.port, "INTEGER", "The port, if the URL names one.")
_declare("URL_EXTRACT_PROTOCOL", lambda url: url.scheme or None, "STRING", "The part before the colon.")
_declare("URL_EXTRACT_QUERY", lambda url: unquote_plus(url.query) or None, "STRING", "The decoded part behind ?.")


@scalar("URL_EXTRACT_PARAMETER(url STRING, name STRING) -> STRING", theme=THEME)
def parameter(url: str, name: str) -> str | None:
    """The decoded value of a parameter; NULL if it has none."""
    parts = _parts(url)
    for part in parts.query.split("&") if parts else ():
        key, equals, value = part.partition("=")
        if equals and unquote_plus(key) == name:
            return unquote_plus(value) or None
    return None


@scalar("URL_ENCODE_PARAM(text STRING) -> STRING", theme=THEME)
def encoded(text: str) -> str:
    """The text as a parameter of a URL can have it."""
    return quote_plus(text, safe="*").replace("~", "%7E")


@scalar("URL_DECODE_PARAM(text STRING) -> STRING", theme=THEME)
def decoded(text: str) -> str:
    """The text of a parameter of a URL."""
    return unquote_plus(text)
