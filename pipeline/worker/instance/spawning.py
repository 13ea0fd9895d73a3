"""Starts stream threads. They import nothing of the program that starts them: it may be a script, a notebook or a shell.

Python's own `multiprocessing` has each process import the program first: a script without a guard starts a worker then, too,
and a notebook cannot be imported. What such a program defines itself travels with its code instead.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Final

from pipeline.config.by_value import dumps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_IGNORED: Final = frozenset({signal.SIGINT, signal.SIGTERM})
"""They reach the whole process group (Ctrl-C, systemd); the process that has started another one says what follows for it."""
_PROGRAM = "import sys; sys.path[:] = {path!r}; from {module} import run_child; run_child({name!r}, {fds!r})"


class ChildProcess:
    """A process that this one has started.

    Args:
        popen: The process.
    """

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        """It runs."""
        self._popen = popen

    @property
    def pid(self) -> int:
        """Its number to the system."""
        return self._popen.pid

    @property
    def exitcode(self) -> int | None:
        """The code that it has ended with; minus the number of the signal that ended it; None while it lives."""
        return self._popen.poll()

    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self._popen.poll() is None

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for its end, for so long at most."""
        try:
            self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return

    def kill(self) -> None:
        """End it at once."""
        self._popen.kill()


def start_child(
    name: str, function: Callable[..., None], lines: Sequence[Connection], arguments: Sequence[Any]
) -> ChildProcess:
    """Start a process that calls a function with its ends of some lines, then further arguments.

    Args:
        name: Names the process in what it logs.
        function: What it calls.
        lines: The ends of pairs (`multiprocessing.Pipe`); one at least. This process may close its own of them then.
        arguments: Go to the process through the first pipe, so that they are not on the command line.

    Raises:
        OSError: If the machine has no room for it.
    """
    sent = dumps((function, tuple(arguments)))
    ours, theirs = multiprocessing.Pipe(duplex=False)
    with ours, theirs:
        fds = [ours.fileno(), *(pipe.fileno() for pipe in lines)]
        path = [entry or os.getcwd() for entry in sys.path]  # noqa: PTH109 - as text
        program = _PROGRAM.format(path=path, module=__name__, name=name, fds=fds)
        warnings = [f"-W{option}" for option in sys.warnoptions]
        with _signals_held_back():
            popen = subprocess.Popen([sys.executable, *warnings, "-c", program], stdin=subprocess.DEVNULL, pass_fds=fds)
        child = ChildProcess(popen)
        ours.close()
        try:
            theirs.send_bytes(sent)
        except OSError:
            child.kill()
            child.join()
            raise
    return child


def run_child(name: str, fds: Sequence[int]) -> None:
    """Do what `start_child` says, in the process that it has started.

    Args:
        name: Names this process.
        fds: The line with the arguments, then the lines of the function.
    """
    multiprocessing.current_process().name = name
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _IGNORED)
    first: Connection
    lines: list[Connection]
    first, *lines = map(Connection, fds)
    with first:
        function, arguments = pickle.loads(first.recv_bytes())  # noqa: S301 - from the process that has started this one
    function(*lines, *arguments)


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """Hold signals back from a process that is started within: they would end it with a traceback while it loads."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _IGNORED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
