"""Functions of bytes and texts in other forms: encodings, and the parts of URLs."""

from __future__ import annotations

import base64
import re
import struct
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, quote_plus, unquote_plus, urlsplit

from riverrun.sql.functions.registry import scalar
from riverrun.sql.values import bytes_of_text

if TYPE_CHECKING:
    from collections.abc import Callable

THEME = "Bytes"


def _from_hexadecimal(text: str) -> bytes:
    """Convert digits to bytes, with or without a prefix: 0x1F (or 0xF for 0x0F), x'1F' or X'1F'."""
    if text.startswith("0x"):
        return bytes.fromhex("0" * (len(text) % 2) + text[2:])
    quoted = text[:2].lower() == "x'" and text.endswith("'") and len(text) > len("x'")
    return bytes.fromhex(text[2:-1] if quoted else text)


_TO_BYTES: dict[str, Callable[[str], bytes]] = {
    "hex": _from_hexadecimal,
    "utf8": str.encode,
    "ascii": lambda text: text.encode("ascii", errors="replace"),
    "base64": bytes_of_text,
}
_FROM_BYTES: dict[str, Callable[[bytes], str]] = {
    "hex": lambda data: data.hex().upper(),
    "utf8": lambda data: data.decode("utf-8", errors="replace"),
    "ascii": lambda data: data.decode("ascii", errors="replace"),
    "base64": lambda data: base64.b64encode(data).decode(),
}
_ORDERS = {"BIG_ENDIAN": ">", "LITTLE_ENDIAN": "<"}


def _known(encoding: str) -> str:
    if encoding.lower() not in _TO_BYTES:
        raise ValueError(f"encoding {encoding} is none of {', '.join(_TO_BYTES)}")
    return encoding.lower()


def _known_or_null(encoding: str) -> None:
    """Refuse an encoding that does not exist; ksqlDB's own cases have one called null, which makes NULL."""
    if encoding.lower() != "null":
        _known(encoding)


@scalar("TO_BYTES(text STRING, encoding STRING) -> BYTES", theme=THEME, constants={"encoding": _known})
def to_bytes(text: str, encoding: str) -> bytes:
    """The bytes of a text in `hex`, `utf8`, `ascii` or `base64`."""
    return _TO_BYTES[_known(encoding)](text)


@scalar("FROM_BYTES(data BYTES, encoding STRING) -> STRING", theme=THEME, constants={"encoding": _known})
def from_bytes(data: bytes, encoding: str) -> str:
    """The bytes as text in `hex`, `utf8`, `ascii` or `base64`."""
    return _FROM_BYTES[_known(encoding)](data)


@scalar(
    "ENCODE(text STRING, from STRING, to STRING) -> STRING",
    theme=THEME,
    constants={"from": _known_or_null, "to": _known_or_null},
)
def encoded(text: str, given: str, wanted: str) -> str:
    """A text of one encoding in another: `hex`, `utf8`, `ascii` or `base64`."""
    data = _TO_BYTES[_known(given)](text)
    return data.hex() if _known(wanted) == "hex" else _FROM_BYTES[_known(wanted)](data)


def _sign(order: str) -> str:
    if order.upper() not in _ORDERS:
        raise ValueError(f"order {order} is none of {', '.join(_ORDERS)}")
    return _ORDERS[order.upper()]


_ORDER = {"order": _sign}


def _unpacked(data: bytes, order: str, code: str) -> float | None:
    sign = _sign(order)
    if len(data) != struct.calcsize(f">{code}"):
        return None
    found: float = struct.unpack(sign + code, data)[0]
    return found


@scalar("INT_FROM_BYTES(data BYTES, [order STRING]) -> INTEGER", theme=THEME, constants=_ORDER)
def int_from_bytes(data: bytes, order: str = "BIG_ENDIAN") -> float | None:
    """The number in 4 bytes, `BIG_ENDIAN` (as it is by default) or `LITTLE_ENDIAN`; NULL for other lengths."""
    return _unpacked(data, order, "i")


@scalar("BIGINT_FROM_BYTES(data BYTES, [order STRING]) -> BIGINT", theme=THEME, constants=_ORDER)
def bigint_from_bytes(data: bytes, order: str = "BIG_ENDIAN") -> float | None:
    """The number in 8 bytes, `BIG_ENDIAN` (as it is by default) or `LITTLE_ENDIAN`; NULL for other lengths."""
    return _unpacked(data, order, "q")


@scalar("DOUBLE_FROM_BYTES(data BYTES, [order STRING]) -> DOUBLE", theme=THEME, constants=_ORDER)
def double_from_bytes(data: bytes, order: str = "BIG_ENDIAN") -> float | None:
    """The number in 8 bytes, `BIG_ENDIAN` (as it is by default) or `LITTLE_ENDIAN`; NULL for other lengths."""
    return _unpacked(data, order, "d")


URLS = "URLs"
_ILLEGAL = re.compile(r"""[\s"<>\\^`{|}]|%(?![0-9a-fA-F]{2})""")


def _parts(url: str) -> SplitResult | None:
    if _ILLEGAL.search(url):
        return None
    try:
        parts = urlsplit(url)
        # Python checks the port only when it is read.
        _ = parts.port
    except ValueError:
        return None
    return parts


def _declare(name: str, take: Callable[[SplitResult], str | int | None], returns: str, description: str) -> None:
    def run(url: str) -> str | int | None:
        parts = _parts(url)
        return None if parts is None else take(parts)

    scalar(f"{name}(url STRING) -> {returns}", theme=URLS, description=description)(run)


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


@scalar("URL_EXTRACT_PARAMETER(url STRING, name STRING) -> STRING", theme=URLS)
def parameter(url: str, name: str) -> str | None:
    """The decoded value of a parameter; NULL if it has none."""
    parts = _parts(url)
    for part in parts.query.split("&") if parts else ():
        key, equals, value = part.partition("=")
        if equals and unquote_plus(key) == name:
            return unquote_plus(value) or None
    return None


@scalar("URL_ENCODE_PARAM(text STRING) -> STRING", theme=URLS)
def url_encoded(text: str) -> str:
    """The text as a parameter of a URL can have it."""
    return quote_plus(text, safe="*").replace("~", "%7E")


@scalar("URL_DECODE_PARAM(text STRING) -> STRING", theme=URLS)
def url_decoded(text: str) -> str:
    """The text of a parameter of a URL."""
    return unquote_plus(text)
