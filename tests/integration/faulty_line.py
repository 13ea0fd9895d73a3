"""A line to a broker on which answers come late or get lost."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.integration.frames import frame, readdressed, send, served

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class apis:  # noqa: N801 - a name for numbers
    """Has the numbers of requests in Kafka's protocol."""

    JOIN, HEARTBEAT, SYNC = 11, 12, 14


@dataclass(frozen=True)
class Fault:
    """Says what happens to answers.

    Args:
        kind: `lose`: the connection breaks instead of the answer. `delay`: it comes `DELAY_S` later.
        api: The number of the request; None for all of them.
    """

    kind: str
    api: int | None


DELAY_S = 0.15


def faulty_line(port: int, fault: Fault) -> AbstractContextManager[FaultyLine]:
    """A line to a broker.

    Args:
        port: The broker's, at 127.0.0.1.
        fault: What happens on it, until it is mended.
    """
    return served(lambda own_port: FaultyLine(port, own_port, fault))


class FaultyLine:
    """Passes frames on, both ways; in answers the broker's address is replaced by its own.

    Attributes:
        met: How many answers have met the fault.
    """

    def __init__(self, port: int, own_port: int, fault: Fault) -> None:
        self.met = 0
        self._port = port
        self._own_port = own_port
        self._fault = fault
        self._is_mended = threading.Event()

    @property
    def bootstrap_servers(self) -> str:
        """Its address."""
        return f"127.0.0.1:{self._own_port}"

    def mend(self) -> None:
        """Pass everything on at once from now on."""
        self._is_mended.set()

    def accept(self, listening: socket.socket) -> None:
        """Serve each connection."""
        with suppress(OSError):
            while True:
                client, broker = listening.accept()[0], socket.create_connection(("127.0.0.1", self._port))
                asked: dict[int, int] = {}
                for pump in (self._ask, self._answer):
                    threading.Thread(target=pump, args=(client, broker, asked), daemon=True).start()

    def _ask(self, client: socket.socket, broker: socket.socket, asked: dict[int, int]) -> None:
        with suppress(OSError):
            while sent := frame(client):
                api, _version, correlation = struct.unpack_from(">hhi", sent)
                asked[correlation] = api
                send(broker, sent)
        broker.close()

    def _answer(self, client: socket.socket, broker: socket.socket, asked: dict[int, int]) -> None:
        with suppress(OSError):
            while sent := frame(broker):
                api = asked.pop(struct.unpack_from(">i", sent)[0])
                if self._fault.api in (None, api) and not self._is_mended.is_set():
                    self.met += 1
                    if self._fault.kind == "lose":
                        break
                    self._is_mended.wait(DELAY_S)
                send(client, readdressed(sent, self._port, self._own_port))
        client.close()
        broker.close()
