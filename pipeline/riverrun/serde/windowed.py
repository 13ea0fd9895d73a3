"""Serdes of windowed keys that other applications can read (`TimeWindowedSerializer`, `SessionWindowedSerializer`)."""

from __future__ import annotations

import struct
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, overload

from riverrun.arguments import DURATION, SERDE, instance, optional, takes
from riverrun.serde.api import Serde
from riverrun.windows import CalendarWindows, Window, Windowed, Windows, end_of, millis, varying

if TYPE_CHECKING:
    from collections.abc import Callable

K = TypeVar("K")

_START = struct.Struct(">q")
_END_AND_START = struct.Struct(">qq")
NO_END_MS = 2**63 - 1
"""End of windows of unknown size."""
_LENGTH = instance(timedelta, Windows, wanted="a timedelta", hint=DURATION.hint)


@takes(inner=SERDE, size=optional(_LENGTH))
def windowed(inner: Serde[K], size: timedelta | Windows | None = None) -> Serde[Windowed[K]]:
    """Return the serde of time-windowed keys: the inner key, then the window's start (8 bytes, big-endian).

    The inner key alone selects the partition, so that all windows of a key stay together.

    >>> from riverrun.serde.serdes import STRING
    >>> windowed(STRING).serialize(Windowed("A", Window(60000, 120000))).hex()
    '41000000000000ea60'

    Args:
        inner: Serde of the inner key.
        size: Length of the windows, or windows of a calendar or of your own. The bytes do not contain it: reading needs it,
            writing does not.
    """
    if isinstance(size, Windows):
        return windowed_until(inner, varying(size).end_of)
    return windowed_of_size_ms(inner, millis(size, "window size") if size is not None else None)


def windowed_of_size_ms(inner: Serde[K], size_ms: int | None) -> Serde[Windowed[K]]:
    """Return the serde for a size in ms; windows without an end are longer than any `timedelta`."""
    encode, decode, start_bytes = inner.serialize, inner.deserialize, _START.pack

    def serialize(key: Windowed[K]) -> bytes:
        # Access by index takes half the time of access by name.
        return encode(key[0]) + start_bytes(key[1][0])

    def deserialize(data: bytes) -> Windowed[K]:
        if size_ms is None:
            raise ValueError(f"windowed({inner.name}) needs the size of the windows to read keys")
        if len(data) < _START.size:
            raise ValueError(f"a windowed key takes at least {_START.size} bytes, not {len(data)}")
        (start,) = _START.unpack(data[-8:])
        return Windowed(decode(data[:-8]), Window(start, end_of(start, size_ms)))

    def partition_key(key: Windowed[K]) -> bytes:
        return encode(key[0])

    return Serde(
        name=f"windowed[{inner.name}]",
        serialize=serialize,
        deserialize=deserialize,
        partition_key=partition_key,
        remake=(windowed_of_size_ms, (inner, size_ms)),
        value_type=None if size_ms is None else _type_of(inner),
        immutable_types=_immutable(inner),
        plain=_plain_of(inner),
    )


def windowed_until(inner: Serde[K], end: Callable[[int], int]) -> Serde[Windowed[K]]:
    """Return the serde for windows of several sizes; `end(start)` returns the end of a window."""
    fixed = windowed_of_size_ms(inner, 0)

    def deserialize(data: bytes) -> Windowed[K]:
        key, window = fixed.deserialize(data)
        return Windowed(key, Window(window.start, end(window.start)))

    return replace(fixed, deserialize=deserialize, remake=(windowed_until, (inner, end)))


def with_ends(serde: Serde[Windowed[K]], ends: int | Callable[[int], int]) -> Serde[Windowed[K]]:
    """Return a serde of `windowed` that reads windows with these ends: a size in ms, or a function of the start."""
    inner = _time_windowed(serde)
    made = windowed_of_size_ms(inner, ends) if isinstance(ends, int) else windowed_until(inner, ends)
    return replace(made, remake=(with_ends, (serde, ends)))


@overload
def with_ends_of(serde: Serde[Any], known: Serde[Any] | None) -> Serde[Any]: ...
@overload
def with_ends_of(serde: Serde[Any] | None, known: Serde[Any] | None) -> Serde[Any] | None: ...
def with_ends_of(serde: Serde[Any] | None, known: Serde[Any] | None) -> Serde[Any] | None:
    """Return the serde of windowed keys with the ends of windows that another serde of these keys knows; others unchanged.

    >>> from datetime import timedelta
    >>> from riverrun.serde.serdes import STRING
    >>> read = with_ends_of(windowed(STRING), windowed(STRING, timedelta(minutes=1))).deserialize
    >>> str(read(windowed(STRING).serialize(Windowed("A", Window(60000, 120000)))))
    '[A@60000/120000]'
    """
    if serde is None or serde is known:
        return serde
    made, arguments = (known.remake if known is not None else None) or (None, ())
    ends = arguments[1] if made in {windowed_of_size_ms, windowed_until, with_ends} else None
    if made is session_windowed:
        # Each session has its own end, which the bytes of time windows lack.
        ends = NO_END_MS
    return serde if ends is None or _time_windowed(serde) is None else with_ends(serde, ends)


def lacks_ends(serde: Serde[Any]) -> bool:
    """Return whether a serde of windowed keys does not know where their windows end, or they never end."""
    made, arguments = serde.remake or (None, ())
    return made in {windowed_of_size_ms, with_ends} and arguments[1] in {None, NO_END_MS}


def length_of_windows(serde: Serde[Any]) -> int | CalendarWindows | None:
    """Return the length in ms of the windows of a serde made by `windowed`, or their calendar.

    It is 0 if the length is unknown or windows are a program's own, and None for other serdes.
    """
    made, arguments = serde.remake or (None, ())
    if made not in {windowed_of_size_ms, windowed_until, with_ends}:
        return None
    calendar = getattr(arguments[1], "__self__", None)
    if isinstance(calendar, CalendarWindows):
        return replace(calendar, grace_ms=0)
    return arguments[1] if isinstance(arguments[1], int) and arguments[1] != NO_END_MS else 0


def start_of_window(key: bytes) -> int:
    """Return the start of the window (ms) of a key that a serde made by `windowed` has written."""
    return int.from_bytes(key[-_START.size :], "big", signed=True)


def _time_windowed(serde: Serde[Any]) -> Any:
    """Return the inner serde of one made by `windowed`; None of others."""
    made, arguments = serde.remake or (None, ())
    return arguments[0] if made is windowed_of_size_ms else None


def of_any_size(serde: Serde[Any]) -> Serde[Any]:
    """Return a serde that can read windowed keys without knowing the size: such windows have no end.

    >>> from riverrun.serde.serdes import STRING
    >>> sized_or_not = windowed(STRING)
    >>> of_any_size(sized_or_not).deserialize(sized_or_not.serialize(Windowed("A", Window(60000, 120000)))).key
    'A'
    """
    if serde.remake is None or serde.remake[0] is not windowed_of_size_ms or serde.remake[1][1] is not None:
        return serde
    return windowed_until(serde.remake[1][0], lambda _start: NO_END_MS)


@takes(inner=SERDE)
def session_windowed(inner: Serde[K]) -> Serde[Windowed[K]]:
    """Return the serde of session-windowed keys: inner key, session's end, session's start (8 bytes each, big-endian).

    The inner key alone selects the partition.

    >>> from riverrun.serde.serdes import STRING
    >>> session_windowed(STRING).serialize(Windowed("A", Window(10, 25))).hex()
    '410000000000000019000000000000000a'

    Args:
        inner: Serde of the inner key.
    """
    encode, decode = inner.serialize, inner.deserialize

    def serialize(key: Windowed[K]) -> bytes:
        # Access by index takes half the time of access by name.
        start, end = key[1]
        return encode(key[0]) + _END_AND_START.pack(end, start)

    def deserialize(data: bytes) -> Windowed[K]:
        if len(data) < _END_AND_START.size:
            raise ValueError(f"a session key takes at least {_END_AND_START.size} bytes, not {len(data)}")
        end, start = _END_AND_START.unpack(data[-16:])
        if not 0 <= start <= end:
            raise ValueError(f"a session from {start} to {end} ms ends before it begins, or begins before 1970")
        return Windowed(decode(data[:-16]), Window(start, end))

    def partition_key(key: Windowed[K]) -> bytes:
        return encode(key[0])

    return Serde(
        name=f"session_windowed[{inner.name}]",
        serialize=serialize,
        deserialize=deserialize,
        partition_key=partition_key,
        remake=(session_windowed, (inner,)),
        value_type=_type_of(inner),
        immutable_types=_immutable(inner),
        plain=_plain_of(inner),
    )


def _type_of(inner: Serde[Any]) -> Any:
    return None if inner.value_type is None else Windowed.__class_getitem__(inner.value_type)


def _plain_of(inner: Serde[K]) -> Callable[[Windowed[K]], Windowed[Any]] | None:
    """Return the function that shows the inner key as its serde does; None if that shows it unchanged."""
    plain = inner.plain
    return None if plain is None else lambda key: Windowed(plain(key.key), key.window)


def _immutable(inner: Serde[Any]) -> frozenset[type]:
    # A windowed key is immutable if its inner key is.
    is_known = inner.value_type is not Any and bool(inner.immutable_types)
    return frozenset({Windowed}) if is_known else frozenset()
