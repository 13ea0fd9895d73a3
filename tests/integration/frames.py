"""Frames of Kafka's protocol, and programs between clients and brokers that pass them on."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Line(Protocol):
    """Passes frames on between clients and a broker."""

    def accept(self, listening: socket.socket) -> None:
        """Serve each connection, until the socket is shut down."""
        ...


AnyLine = TypeVar("AnyLine", bound=Line)


@contextmanager
def served(make: Callable[[int], AnyLine]) -> Iterator[AnyLine]:
    """Serve a line at a free port of 127.0.0.1, which `make` is given."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        line = make(listening.getsockname()[1])
        threading.Thread(target=line.accept, args=(listening,), daemon=True).start()
        try:
            yield line
        finally:
            with suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)


def readdressed(sent: bytes, port: int, own_port: int) -> bytes:
    """An answer with the line's address in place of the broker's."""
    theirs, own = (b"127.0.0.1" + struct.pack(">i", each) for each in (port, own_port))
    return sent.replace(theirs, own)


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
