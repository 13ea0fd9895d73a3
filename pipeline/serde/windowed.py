"""Windowed keys as other applications read them (`TimeWindowedSerializer`)."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, TypeVar

from pipeline.serde.api import Serde
from pipeline.windows import Window, Windowed, millis

if TYPE_CHECKING:
    from datetime import timedelta

K = TypeVar("K")

_START = struct.Struct(">q")


def windowed(inner: Serde[K], size: timedelta | None = None) -> Serde[Windowed[K]]:
    """Serde of time-windowed keys: the inner key, then the window's start (8 bytes, big-endian).

    Partitions are chosen by the inner key alone, so that all windows of a key stay together.

    >>> from pipeline.serde.primitives import STRING
    >>> windowed(STRING).serialize(Windowed("A", Window(60000, 120000))).hex()
    '41000000000000ea60'

    Args:
        inner: Serde of the inner key.
        size: Length of the windows. The bytes do not say it: reading needs it, writing does not.
    """
    encode, decode = inner.serialize, inner.deserialize
    size_ms = millis(size, "window size") if size is not None else None

    def serialize(key: Windowed[K]) -> bytes:
        return encode(key.key) + _START.pack(key.window.start)

    def deserialize(data: bytes) -> Windowed[K]:
        if size_ms is None:
            message = f"windowed({inner.name}) can read keys only if it is given the size of the windows"
            raise ValueError(message)
        if len(data) < _START.size:
            message = f"a windowed key takes at least {_START.size} bytes, not {len(data)}"
            raise ValueError(message)
        (start,) = _START.unpack(data[-8:])
        return Windowed(decode(data[:-8]), Window(start, start + size_ms))

    def partition_key(key: Windowed[K]) -> bytes:
        return encode(key.key)

    return Serde(f"windowed[{inner.name}]", serialize, deserialize, partition_key, (windowed, (inner, size)))
