"""A broker that refuses the first batch it is given, as one does that does not know yet that it leads the partition."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from tests.integration.frames import frame, readdressed, send, served

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

_PRODUCE = 0
_NOT_LEADER = 6
_SECONDS = 1.0
"""For how long a second batch is waited for, which a client with several requests under way sends without an answer."""


def late_leader(port: int) -> AbstractContextManager[LateLeader]:
    """A broker behind one that refuses the first batch of all, as soon as a second one has come.

    Args:
        port: The broker's, at 127.0.0.1.
    """
    return served(lambda own_port: LateLeader(port, own_port))


class LateLeader:
    """Passes frames on, both ways; in answers the broker's address is replaced by its own.

    Attributes:
        has_first: Set when the first batch has come, which is answered later.
    """

    def __init__(self, port: int, own_port: int) -> None:
        self.has_first = threading.Event()
        self._port = port
        self._own_port = own_port

    @property
    def kafka(self) -> dict[str, str]:
        """Client properties."""
        return {"bootstrap.servers": f"127.0.0.1:{self._own_port}"}

    def accept(self, listening: socket.socket) -> None:
        """Serve each connection."""
        with suppress(OSError):
            while True:
                client, broker = listening.accept()[0], socket.create_connection(("127.0.0.1", self._port))
                for pump in (self._ask, self._answer):
                    threading.Thread(target=pump, args=(client, broker), daemon=True).start()

    def _ask(self, client: socket.socket, broker: socket.socket) -> None:
        refuse: Callable[[], None] | None = None
        with suppress(OSError):
            while sent := frame(client):
                is_batch = struct.unpack_from(">h", sent)[0] == _PRODUCE
                if is_batch and not self.has_first.is_set():
                    refuse = _once(client, _refusal(sent))
                    threading.Timer(_SECONDS, refuse).start()
                    self.has_first.set()
                    continue
                if is_batch and refuse is not None:
                    refuse()
                send(broker, sent)
        broker.close()

    def _answer(self, client: socket.socket, broker: socket.socket) -> None:
        with suppress(OSError):
            while sent := frame(broker):
                send(client, readdressed(sent, self._port, self._own_port))
        client.close()


def _once(target: socket.socket, frame: bytes) -> Callable[[], None]:
    """Return a function that sends a frame at its first call."""
    is_first = threading.Lock()

    def sent() -> None:
        if is_first.acquire(blocking=False):
            send(target, frame)

    return sent


def _refusal(batch: bytes) -> bytes:
    """The answer to a `ProduceRequest` of version 9 or 10 with one partition: it was not written, find the leader."""
    correlation, client_id = struct.unpack_from(">ih", batch, 4)
    at = 10 + max(0, client_id) + 1  # behind the header's tags
    at += max(1, batch[at]) + 6  # the transactional id, `acks` and the time limit
    name = batch[at + 1 : at + 1 + batch[at + 1]]  # its length, which is one too large, and the name
    at += 1 + len(name) + 1
    (partition,) = struct.unpack_from(">i", batch, at)
    refused = struct.pack(">ihqqqbbb", partition, _NOT_LEADER, -1, -1, -1, 1, 0, 0)
    return struct.pack(">ib", correlation, 0) + b"\x02" + name + b"\x02" + refused + b"\0" + struct.pack(">ib", 0, 0)
