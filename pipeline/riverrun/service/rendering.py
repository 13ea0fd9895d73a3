"""Converts keys and values between a store's bytes and the texts and JSON of an HTTP interface."""

from __future__ import annotations

import base64
import uuid
from typing import TYPE_CHECKING, Any

import msgspec

from riverrun.errors import USER_ERRORS, RegistryError, as_exception
from riverrun.records import shortened
from riverrun.serde.api import shown_reader
from riverrun.serde.serdes import without_odd_numbers
from riverrun.state.api import StoreKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from riverrun.serde.api import Serde
    from riverrun.state.api import StoreBuilder
    from riverrun.worker.queries import StoreRow


def _boolean(text: str) -> bool:
    if text not in {"true", "false"}:
        raise ValueError(f"{text!r} is neither true nor false")
    return text == "true"


_LONGEST_REASON = 200
_TEXT_FORMS: Mapping[str, Callable[[str], Any]] = {
    "string": str,
    "short": int,
    "integer": int,
    "long": int,
    "float": float,
    "double": float,
    "boolean": _boolean,
    "uuid": uuid.UUID,
}
"""Parsers of keys of simple serdes from text; all other keys are base64url of their bytes, or JSON."""


def key_bytes(text: str, serde: Serde[Any], *, is_base64: bool) -> bytes:
    """Return a key's bytes, as the store has them. Keys of serdes without a text form have to be base64url.

    >>> from riverrun.serde.serdes import INTEGER
    >>> key_bytes("258", INTEGER, is_base64=False).hex(), key_bytes("AAABAg", INTEGER, is_base64=True).hex()
    ('00000102', '00000102')
    """
    read = _TEXT_FORMS.get(serde.name)
    is_json = serde.name.startswith("json") and not is_base64
    if not is_json and (read is None or is_base64):
        return _checked(from_base64(text), text, serde)
    try:
        if is_json or read is None:
            # Not the text itself: spaces may differ from what the serde writes, and stores compare bytes.
            return serde.serialize(serde.deserialize(text.encode()))
        return serde.serialize(read(text))
    except RegistryError:  # a schema registry does not answer, whatever the key is
        raise
    except USER_ERRORS as error:  # a serde may raise anything
        reason = shortened(str(as_exception(error)), _LONGEST_REASON)
        message = f"{shortened(text)} is not a key of serde {serde.name}: {reason}"
        raise ValueError(message) from error


def prefix_bytes(text: str, serde: Serde[Any], *, is_base64: bool) -> bytes:
    """Return the first bytes of keys, with the arguments and errors of `key_bytes`. In base64url they need not be a key."""
    return from_base64(text) if is_base64 else key_bytes(text, serde, is_base64=False)


def _checked(data: bytes, text: str, serde: Serde[Any]) -> bytes:
    try:
        serde.deserialize(data)
    except RegistryError:  # as above
        raise
    except USER_ERRORS as error:  # as above
        reason = shortened(str(as_exception(error)), _LONGEST_REASON)
        raise ValueError(f"{shortened(text)} is not the base64url of a key of serde {serde.name}: {reason}") from error
    return data


def from_base64(text: str) -> bytes:
    """Return the bytes of base64url."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except ValueError as error:  # also of a character beyond ASCII
        raise ValueError(f"{shortened(text)} is not base64url: {error}") from error


def row_object(row: StoreRow, builder: StoreBuilder, *, is_raw: bool = False) -> dict[str, Any]:
    """Return a row as JSON shows it: key, value, and its times."""
    if is_raw:
        shown: dict[str, Any] = {"key": _encoded(row.key), "value": _encoded(row.value)}
    else:
        shown = {"key": _plain_key(row.key, builder.key_serde), "value": _plain(row.value, builder.value_serde)}
    if row.timestamp is not None:
        shown["timestamp"] = row.timestamp
    if row.start is not None and row.end is not None:
        name = "session" if builder.kind is StoreKind.SESSION else "window"
        shown[name] = {"start": row.start, "end": row.end}
    return shown


def _plain_key(data: bytes, serde: Serde[Any]) -> Any:
    """Return a key as JSON can show it; one that has a text form alone, as `key_bytes` reads it."""
    found = _plain(data, serde)
    return next(iter(found.values())) if serde.name in _TEXT_FORMS and isinstance(found, dict) and found else found


def _plain(data: bytes, serde: Serde[Any]) -> Any:
    """Return a value as JSON can show it; otherwise base64url of its bytes."""
    value = shown_reader(serde)(data)
    if isinstance(value, bytes):
        return _encoded(data)
    try:
        return without_odd_numbers(msgspec.to_builtins(value, str_keys=True))
    except (TypeError, RecursionError):
        return _encoded(data)


def _encoded(data: bytes) -> dict[str, str]:
    return {"base64": to_base64(data)}


def to_base64(data: bytes) -> str:
    """Return base64url of bytes, as `key_bytes` reads it."""
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
