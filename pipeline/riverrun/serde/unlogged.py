"""Columns that a database did not log, as a change left them alone: Debezium writes a placeholder in place of the value.

The placeholder has the type of its column, so it has several forms: text, bytes, lists, maps and shapes.
"""

from __future__ import annotations

import base64
import hashlib
import uuid
from dataclasses import dataclass
from typing import Any

import msgspec

UNAVAILABLE = "__debezium_unavailable_value"
"""The default of the connector's `unavailable.value.placeholder`."""
_HEX = "hex:"
# PostgreSQL's connector has these for `geometry`, `geography` and `point`, whatever the placeholder is.
_SHAPES = frozenset(
    base64.b64encode(bytes.fromhex(text)).decode()
    for text in (
        "0101000020E6100000000000FC83D797C1000000FC83D797C1",
        "0101000020E61000000C21E7FDFF7F66401842CEFBFF7F5640",
    )
)
_POINT = (-99_999_999, -99_999_999)


@dataclass(frozen=True, slots=True)
class Placeholder:
    """The forms of a placeholder in columns of each type."""

    text: str
    _texts: frozenset[str]
    _parts: tuple[Any, ...]

    @classmethod
    def of(cls, text: str) -> Placeholder:
        """Return the forms of the connector's `unavailable.value.placeholder`; after `hex:`, it is bytes."""
        data = bytes.fromhex(text[len(_HEX) :]) if text.startswith(_HEX) else text.encode()
        if not data:
            raise ValueError("a placeholder needs a text: an empty one would stand for empty values")
        text = data.decode(errors="replace")
        as_bytes = {base64.b64encode(data).decode(), base64.urlsafe_b64encode(data).decode(), data.hex()}
        # As Java's `UUID.nameUUIDFromBytes` and signed bytes.
        name = uuid.UUID(bytes=hashlib.md5(data, usedforsecurity=False).digest(), version=3)
        numbers = [byte - 256 if byte > 127 else byte for byte in data]  # noqa: PLR2004
        lists = [[each] for each in (text, str(name), *sorted(as_bytes))]
        as_json = msgspec.json.encode({text: text}).decode()
        return cls(text, frozenset({text, as_json, *as_bytes}), (*lists, numbers, {text: text}))

    def stands_in(self, value: Any) -> bool:
        if value.__class__ is str:
            return value in self._texts
        if value.__class__ is dict:
            is_shape = value.get("wkb") in _SHAPES or (value.get("x"), value.get("y")) == _POINT
            return is_shape or value in self._parts
        return value.__class__ is list and value in self._parts


def not_sent(columns: tuple[str, ...]) -> str:
    """Return the reason why columns are missing in a row."""
    names = ", ".join(columns)
    return f"The database did not log {names}, as the change left it alone: ALTER TABLE ... REPLICA IDENTITY FULL"
