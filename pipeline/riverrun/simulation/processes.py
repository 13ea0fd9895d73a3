"""Stand-ins for processes and the pipes between them: a process is a host of actors."""

from __future__ import annotations

import itertools
import pickle
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from riverrun.config.by_value import dumps

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from riverrun.simulation.turns import Host, Turns

_KILLED = -9


@dataclass
class _Side:
    """One side of a pipe: its messages that have not been read, and the number of its open ends."""

    arrived: deque[bytes] = field(default_factory=deque)
    ends: int = 0


class PipeEnd:
    """`multiprocessing.connection.Connection`: one end of a pipe."""

    def __init__(self, turns: Turns, mine: _Side, peers: _Side) -> None:
        self._turns = turns
        self._mine = mine
        self._peers = peers
        self._is_closed = False
        mine.ends += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def copy(self) -> PipeEnd:
        """Return another end of this side."""
        return PipeEnd(self._turns, self._mine, self._peers)

    def is_readable(self) -> bool:
        """Return whether a read returns at once, with a message or an error."""
        return bool(self._mine.arrived) or not self._peers.ends or self._is_closed

    def send(self, message: Any) -> None:
        self._refuse_closed()
        if not self._peers.ends:
            raise BrokenPipeError
        # As bytes: no object is in two processes.
        self._peers.arrived.append(pickle.dumps(message))

    def recv(self) -> Any:
        self._turns.wait_until(self.is_readable)
        self._refuse_closed()
        if not self._mine.arrived:
            raise EOFError
        return pickle.loads(self._mine.arrived.popleft())  # noqa: S301 - from `send`

    def poll(self, timeout: float | None = 0.0) -> bool:
        self._refuse_closed()
        return self._turns.wait_until(self.is_readable, timeout)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._mine.ends -= 1

    def _refuse_closed(self) -> None:
        if self._is_closed:
            message = "handle is closed"
            raise OSError(message)


class Child:
    """A process that another one has started."""

    def __init__(self, turns: Turns, host: Host, pid: int) -> None:
        self._turns = turns
        self._host = host
        self.pid = pid

    @property
    def exitcode(self) -> int | None:
        """Return 0 or 1, minus 9 if it was killed, None while it runs."""
        if not self._host.is_dead:
            return None
        if self._host.error is None:
            return 0
        return 1 if isinstance(self._host.error, Exception) else _KILLED

    def is_alive(self) -> bool:
        return not self._host.is_dead

    def join(self, timeout_s: float | None = None) -> None:
        self._turns.wait_until(lambda: self._host.is_dead, timeout_s)

    def kill(self) -> None:
        self._turns.kill(self._host)

    def signal(self, _number: int) -> None:
        """Do nothing: signals interrupt only the main thread of a real process."""


class Processes:
    """Starts processes, and makes the pipes between them."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._pids = itertools.count(1)

    def pipe(self, duplex: bool = True) -> tuple[PipeEnd, PipeEnd]:  # noqa: ARG002, FBT001, FBT002 - Python's
        """Return the two ends of a pipe, like `multiprocessing.Pipe`. They close when the calling host ends."""
        one, other = _Side(), _Side()
        ends = PipeEnd(self._turns, one, other), PipeEnd(self._turns, other, one)
        self._turns.host.at_end += [end.close for end in ends]
        return ends

    def wait(self, connections: Sequence[PipeEnd], timeout: float | None = None) -> list[PipeEnd]:
        """Wait until any can be read, like `multiprocessing.connection.wait`."""
        self._turns.wait_until(lambda: any(each.is_readable() for each in connections), timeout)
        return [each for each in connections if each.is_readable()]

    def start(
        self, name: str, function: Callable[..., object], lines: Sequence[PipeEnd], arguments: Sequence[Any]
    ) -> Child:
        """Start a process that calls a function with copies of some ends of pipes, then further arguments.

        It ends with the process that has started it.
        """
        copies = [line.copy() for line in lines]
        sent, parent = dumps(tuple(arguments)), self._turns.host

        def run() -> None:
            function(*copies, *pickle.loads(sent))  # noqa: S301 - from above

        host = self._turns.start_host(f"{parent.name}/{name}", run, parent=parent)
        host.at_end += [copy.close for copy in copies]
        return Child(self._turns, host, next(self._pids))
