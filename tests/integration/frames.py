"""Frames of Kafka's protocol, as programs between clients and brokers pass them on."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket


def frame(source: socket.socket) -> bytes:
    """The next frame without its size; empty at the end."""
    size = _exactly(source, 4)
    return _exactly(source, struct.unpack(">i", size)[0]) if size else b""


def _exactly(source: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        part = source.recv(count - len(found))
        if not part:
            return b""
        found += part
    return found


def send(target: socket.socket, content: bytes) -> None:
    """Send a frame."""
    target.sendall(struct.pack(">i", len(content)) + content)
