"""Serdes by name, and readable forms of keys and values."""

from __future__ import annotations

import re
import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec

from riverrun.decoders import double_or_exact, exact_json
from riverrun.errors import ConfigError
from riverrun.serde.serdes import (
    BOOLEAN,
    BYTES,
    DOUBLE,
    FLOAT,
    INTEGER,
    JSON,
    LONG,
    ODD_NUMBERS,
    SHORT,
    STRING,
    UUID,
    is_json,
    without_odd_numbers,
)
from riverrun.serde.windowed import session_windowed, windowed_of_size_ms
from riverrun.topology.nodes import SourceNode
from riverrun.windows import Windowed, millis

if TYPE_CHECKING:
    from riverrun.serde.api import Serde
    from riverrun.topology.topology import Topology

_SIMPLE: dict[str, Serde[Any]] = {
    serde.name: serde for serde in (STRING, JSON, BYTES, SHORT, INTEGER, LONG, FLOAT, DOUBLE, BOOLEAN, UUID)
}
_WINDOWED, _SESSION = "windowed-", "session-windowed-"
NAMES = f"{', '.join(_SIMPLE)}, {_WINDOWED}NAME or {_SESSION}NAME"
"""Names of serdes, for help texts."""
# Such windows end where they start, and only their start is shown.
_NO_SIZE = 0
_UNITS = {"ms": timedelta(milliseconds=1), "s": timedelta(seconds=1), "m": timedelta(minutes=1)}
_UNITS |= {"h": timedelta(hours=1), "d": timedelta(days=1)}
_SIZE = re.compile(r"(\d+)(ms|s|m|h|d)")


def serde_named(name: str, window: str | None = None) -> Serde[Any]:
    """Return a serde by its name (`NAMES`); without `window`, its size, only the start of time windows is known.

    >>> serde_named("windowed-string", "5m").name
    'windowed[string]'
    """
    if name.startswith(_SESSION):
        return session_windowed(serde_named(name.removeprefix(_SESSION)))
    if name.startswith(_WINDOWED):
        return windowed_of_size_ms(serde_named(name.removeprefix(_WINDOWED)), size_ms(window))
    if name not in _SIMPLE:
        raise ConfigError(f"There is no serde {name!r}", hint=f"Allowed: {NAMES}.")
    return _SIMPLE[name]


def size_ms(window: str | None) -> int:
    """Return the size of windows in ms; 0 without a text.

    >>> size_ms("90s"), size_ms("1h")
    (90000, 3600000)
    """
    if window is None:
        return _NO_SIZE
    found = _SIZE.fullmatch(window)
    if found is None or not int(found[1]):
        raise ConfigError(f"{window!r} is not a window size", hint="Write a number and ms, s, m, h or d, as in 5m.")
    return millis(int(found[1]) * _UNITS[found[2]], "window size")


def serdes_of(topology: Topology, topic: str, window: str | None = None) -> tuple[Serde[Any], Serde[Any]]:
    """Return the serdes of keys and values with which a topology reads or writes a topic; `window` as in `serde_named`."""
    key, value = declared_serdes(topology, topic, otherwise="Or choose serdes with --key-serde and --value-serde.")
    return _sized(key, size_ms(window)), value


def declared_serdes(topology: Topology, topic: str, *, otherwise: str = "") -> tuple[Serde[Any], Serde[Any]]:
    """Return the serdes of a topic as a topology has them; `otherwise` ends the hint if it does not know the topic."""
    sources = (n for n in topology.nodes.values() if isinstance(n, SourceNode))
    source = next((n for n in sources if topic in n.topics or (n.pattern and n.pattern.fullmatch(topic))), None)
    node = topology.sink_of(topic) or source
    if node is None:
        known = ", ".join(sorted({*topology.source_topics, *topology.sink_topics}))
        message = f"The application neither reads nor writes {topic}"
        raise ConfigError(message, hint=f"It has: {known}. {otherwise}".rstrip())
    return node.key_serde, node.value_serde


def lacks_size(serde: Serde[Any]) -> bool:
    """Return whether a serde is of windowed keys whose ends it does not know."""
    return serde.remake is not None and serde.remake[0] is windowed_of_size_ms and serde.remake[1][1] is None


def _sized(serde: Serde[Any], size: int) -> Serde[Any]:
    """Add the size of windows to a serde of windowed keys that lacks it."""
    if serde.remake is None or not lacks_size(serde):
        return serde
    return windowed_of_size_ms(serde.remake[1][0], size)


def readable(value: Any) -> str:
    """Return a key or a value as one readable line.

    >>> readable("ann"), readable({"n": 1}), readable(None), readable(bytes(1))
    ('ann', '{"n":1}', 'null', '0x00')
    """
    return one_line(_readable(value))


def one_line(text: str) -> str:
    """Return text with the ends of its lines as JSON escapes."""
    return text.replace("\n", "\\n")


def _readable(value: Any) -> str:
    match value:
        case str():
            return value
        case bytes():
            return f"0x{value.hex()}"
        case Windowed(key, window):
            end = "" if window.end == window.start else f", {time_text(window.end)}"
            return f"{_readable(key)} [{time_text(window.start)}{end})"
        case _:
            return msgspec.json.encode(_plain(value), order="deterministic").decode()


def jsonable(value: Any) -> Any:
    """Return a key or a value as JSON: bytes in hexadecimal digits, windowed keys as an object."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Windowed):
        return {"key": jsonable(value.key), "start": value.window.start, "end": value.window.end}
    return _plain(value)


def _plain(value: Any) -> Any:
    # Numbers that JSON does not have, such as NaN, become texts.
    return without_odd_numbers(msgspec.to_builtins(value, str_keys=True, enc_hook=str))


def time_text(time_ms: int) -> str:
    """Return a time in UTC, with ms if they are not 0.

    >>> time_text(1_500), time_text(0)
    ('1970-01-01T00:00:01.500Z', '1970-01-01T00:00:00Z')
    """
    try:
        time = datetime.fromtimestamp(time_ms / 1000, UTC)
    # Windows without an end have a time that no calendar has.
    except (OverflowError, ValueError):
        return str(time_ms)
    return time.isoformat(timespec="milliseconds" if time_ms % 1000 else "seconds").replace("+00:00", "Z")


def from_text(serde: Serde[Any], text: str) -> Any:
    """Convert text to a key or value for a serde. Fractions of JSON keep their digits, as decimals, until `bytes_of`.

    >>> from_text(LONG, "7"), from_text(STRING, "7"), from_text(JSON, "[7, 1.10]")
    (7, '7', [7, Decimal('1.10')])
    """
    if serde is STRING:
        return text
    if serde is BYTES:
        return bytes.fromhex(text.removeprefix("0x"))
    if serde is UUID:
        return uuid.UUID(text)
    if is_json(serde):
        return exact_json(text)
    if serde.of_text is not None:
        return serde.of_text(text)
    value = msgspec.json.decode(text)
    return float(value) if serde in {DOUBLE, FLOAT} and value in ODD_NUMBERS else value


exactly = msgspec.json.Encoder(order="deterministic", decimal_format="number").encode
"""Encodes JSON as `JSON` does, but numbers keep the digits that they were read with."""


def bytes_of(serde: Serde[Any], value: Any) -> bytes:
    """Serialize what `from_text` returns: decimals are numbers of JSON.

    >>> bytes_of(JSON, from_text(JSON, "[7, 1.10]")), JSON.serialize(from_text(JSON, "[7, 1.10]"))
    (b'[7,1.10]', b'[7,"1.10"]')
    """
    # It would write false for null, as Python does.
    if serde is BOOLEAN and not isinstance(value, bool):
        raise ValueError(f"{exactly(value).decode()} is neither true nor false")
    return exactly(value) if is_json(serde) else serde.serialize(value)


def key_bytes_of(serde: Serde[Any], key: Any) -> bytes:
    """Serialize a key that `from_text` returns: as the serde does, so that equal keys have equal bytes.

    >>> key_bytes_of(JSON, from_text(JSON, "[1.10, 1e400]"))
    b'[1.1,1E+400]'
    """
    return bytes_of(serde, _with_doubles(key) if is_json(serde) else key)


def _with_doubles(value: Any) -> Any:
    match value:
        case Decimal():
            return double_or_exact(str(value))
        case dict():
            return {name: _with_doubles(each) for name, each in value.items()}
        case list():
            return [_with_doubles(each) for each in value]
    return value
