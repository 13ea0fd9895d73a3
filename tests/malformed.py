"""Messages that another process could have sent: valid ones with parts changed, left out, added, nested and cut."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

_NUMBERS = [0, -1, 2**31, 2**63, -(2**63) - 1, 10**400, 1.5, 1e308, True]
_NAMES = ["", "..", "../../x", "a/b", "a b", "0_0", "zz", "clicks-0"]
_TEXTS = [*_NAMES, "\0", "\x1b[2J", "٣", "\ud800", "x" * 11_000, "9" * 5000]
_OTHERS: list[Any] = [None, [], {}, [[]], {"": {}}, [None], {"a": None}]
_DEEP = 3_000


def values() -> st.SearchStrategy[Any]:
    """Values that fit hardly any field."""
    plain = st.sampled_from([*_NUMBERS, *_TEXTS, *_OTHERS]) | st.text(max_size=10) | st.floats()
    return st.recursive(
        plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    )


@st.composite
def _changed(draw: st.DrawFn, value: Any) -> Any:
    """A value of which one part, somewhere within, is another."""
    inner = isinstance(value, dict | list) and len(value) > 0
    match draw(st.integers(0, 4)) if inner else draw(st.integers(0, 1)):
        case 0 | 1:
            return draw(values())
        case 2 if isinstance(value, dict):
            return {**value, draw(st.sampled_from(_TEXTS) | st.text(max_size=8)): draw(values())}
        case 2:
            return [*value, draw(values())]
        case 3 if isinstance(value, dict):
            left_out = draw(st.sampled_from(sorted(value)))
            return {name: each for name, each in value.items() if name != left_out}
        case 3:
            return value[1:]
    if isinstance(value, dict):
        name = draw(st.sampled_from(sorted(value)))
        return {**value, name: draw(_changed(value[name]))}
    at = draw(st.integers(0, len(value) - 1))
    return [*value[:at], draw(_changed(value[at])), *value[at + 1 :]]


@st.composite
def malformed(draw: st.DrawFn, valid: Any) -> bytes:
    """Bytes like those of a valid message, with up to three changes of values, then of the text.

    Args:
        valid: A valid message, of plain values.
    """
    value = valid
    for _ in range(draw(st.integers(0, 3))):
        value = draw(_changed(value))
    text = json.dumps(value)
    match draw(st.integers(0, 6)):
        case 0:
            return text.encode()[: draw(st.integers(0, len(text)))]
        case 1:
            return text.replace("1", draw(st.sampled_from(["1" * 5000, "1e400", "-1", "01", "1_0"]))).encode()
        case 2:
            opening, closing = draw(st.sampled_from([("[", "]"), ('{"x":', "}")]))
            return (opening * _DEEP + text + closing * _DEEP).encode()
        case 3:
            return text.encode().replace(b'"', draw(st.sampled_from([b"\xff", b"'", b'"\x00'])), 1)
        case 4:
            return text.encode("utf-16")
        case 5:
            return draw(st.binary(max_size=40))
    return text.encode()
