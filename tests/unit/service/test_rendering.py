"""Keys as people write them, and values as JSON shows them."""

from __future__ import annotations

import base64
import uuid
from typing import Any

import msgspec
import pytest

from riverrun import (
    BOOLEAN,
    BYTES,
    DOUBLE,
    INTEGER,
    JSON,
    LONG,
    SHORT,
    STRING,
    UUID,
    Serde,
    Window,
    Windowed,
    session_windowed,
)
from riverrun.service.rendering import key_bytes, row_object
from riverrun.state.api import StoreBuilder, StoreKind
from riverrun.worker.queries import StoreRow

NAME = uuid.UUID("12345678-1234-5678-1234-567812345678")


@pytest.mark.parametrize(
    ("text", "serde", "key"),
    [
        ("a/b", STRING, "a/b"),
        ("-7", SHORT, -7),
        ("-7", INTEGER, -7),
        ("-7", LONG, -7),
        ("0.5", DOUBLE, 0.5),
        ("true", BOOLEAN, True),
        (str(NAME), UUID, NAME),
        ('{"b": 1, "a": 2}', JSON, {"a": 2, "b": 1}),
        ("AP8", BYTES, b"\x00\xff"),
    ],
)
def test_keys_of_simple_serdes_are_given_as_text(text: str, serde: Serde[Any], key: Any) -> None:
    assert key_bytes(text, serde, is_base64=False) == serde.serialize(key)


def test_any_key_can_be_given_as_its_bytes() -> None:
    windowed = session_windowed(STRING)
    data = windowed.serialize(Windowed("a", Window(1, 255)))
    text = base64.urlsafe_b64encode(data).decode().rstrip("=")
    assert key_bytes(text, windowed, is_base64=False) == key_bytes(text, windowed, is_base64=True) == data
    assert key_bytes("77-_", STRING, is_base64=True) == b"\xef\xbf\xbf"


@pytest.mark.parametrize(("text", "serde"), [("AP8", session_windowed(STRING)), ("_-8", STRING), ("AAAA", LONG)])
def test_bytes_that_are_no_key_are_refused(text: str, serde: Serde[Any]) -> None:
    with pytest.raises(ValueError, match=f"'{text}' is not the base64url of a key of serde"):
        key_bytes(text, serde, is_base64=True)


@pytest.mark.parametrize(
    ("text", "serde"), [("x", LONG), ("99999", SHORT), ("maybe", BOOLEAN), ("*", BYTES), ("{", JSON)]
)
def test_a_text_that_is_no_key_is_refused(text: str, serde: Serde[Any]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        key_bytes(text, serde, is_base64=False)


class Total(msgspec.Struct):
    count: int
    raw: bytes


@pytest.mark.parametrize(
    ("serde", "value", "shown"),
    [
        (STRING, "a", "a"),
        (LONG, 7, 7),
        (BYTES, b"\xff", {"base64": "_w"}),
        (JSON(Total), Total(1, b"a"), {"count": 1, "raw": "YQ=="}),
        (Serde("complex", lambda c: str(c).encode(), lambda data: complex(data.decode())), 1j, {"base64": "MWo"}),
    ],
)
def test_values_are_shown_as_json_or_else_as_their_bytes(serde: Serde[Any], value: Any, shown: Any) -> None:
    builder = StoreBuilder("s", StoreKind.KEY_VALUE, STRING, serde)
    assert row_object(StoreRow(b"k", serde.serialize(value)), builder) == {"key": "k", "value": shown}
