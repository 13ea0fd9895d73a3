"""Starts stream threads. They do not import the program that starts them: it may be a script, a notebook or a shell.

Python's own `multiprocessing` has each process import the program first. A script without a guard would start another worker,
and a notebook cannot be imported. Here, code that such a program defines is sent along instead.
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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

# These signals reach the whole process group (Ctrl-C, systemd); a child leaves the reaction to its parent.
_IGNORED: Final = frozenset({signal.SIGINT, signal.SIGTERM})
_PROGRAM = "import sys; sys.path[:] = {path!r}; from {module} import run_child; run_child({name!r}, {fds!r})"


class ChildProcess:
    """A process that this process has started."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen = popen

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def exitcode(self) -> int | None:
        """Return its exit code: minus the number of the signal that ended it, if one did; None while it is alive."""
        return self._popen.poll()

    def is_alive(self) -> bool:
        return self._popen.poll() is None

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for its end, for up to `timeout_s` seconds."""
        try:
            self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return

    def kill(self) -> None:
        self._popen.kill()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; ignored if it has ended."""
        self._popen.send_signal(number)


def start_child(
    name: str, function: Callable[..., None], lines: Sequence[Connection], arguments: Sequence[Any]
) -> ChildProcess:
    """Start a process that calls a function with its ends of some pipes, then further arguments.

    The caller may close its copies of these ends (`lines`, at least one) afterwards.
    """
    from riverrun.config.by_value import dumps  # noqa: PLC0415 - the process that is started imports this module, too

    # Through a pipe: other users of the machine can read the command line, and client properties have secrets.
    sent = dumps((function, tuple(arguments)))
    ours, theirs = multiprocessing.Pipe(duplex=False)
    with ours, theirs:
        fds = [ours.fileno(), *(pipe.fileno() for pipe in lines)]
        # An empty entry means the working directory, which may be another one when the process imports.
        path = [entry or os.getcwd() for entry in sys.path]  # noqa: PTH109 - as text
        program = _PROGRAM.format(path=path, module=__name__, name=name, fds=fds)
        warnings = [f"-W{option}" for option in sys.warnoptions]
        with _signals_held_back():
            popen = subprocess.Popen([sys.executable, *warnings, "-c", program], stdin=subprocess.DEVNULL, pass_fds=fds)
        child = ChildProcess(popen)
        # With the reading end open here, sending to a child that has died would block instead of failing.
        ours.close()
        try:
            theirs.send_bytes(sent)
        except OSError:
            child.kill()
            child.join()
            raise
    return child


def run_child(name: str, fds: Sequence[int]) -> None:
    """Run the function of `start_child`, in the process that it has started."""
    multiprocessing.current_process().name = name
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    # Blocked by `start_child`: until they are ignored, they would end this process with a traceback.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _IGNORED)
    first: Connection
    lines: list[Connection]
    first, *lines = map(Connection, fds)
    with first:
        function, arguments = pickle.loads(first.recv_bytes())  # noqa: S301 - from the process that has started this one
    function(*lines, *arguments)


@contextmanager
def _signals_held_back() -> Iterator[None]:
    # A process inherits the mask: signals would end it with a traceback while it loads.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _IGNORED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
