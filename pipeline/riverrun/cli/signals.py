"""Handles SIGTERM and SIGINT, which are deferred until a command begins (`riverrun.cli.__main__`)."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

from riverrun.cli.project import INTERRUPTED

if TYPE_CHECKING:
    from collections.abc import Callable

_ENDED_EARLY = b"Stopped before it ran: nothing was processed\n"
_ENDED_AT_ONCE = b"Stopped twice: ended at once; uncommitted records will be processed again\n"
_ENDING = frozenset({signal.SIGTERM, signal.SIGINT})


def interrupt_on_sigterm() -> None:
    """From now on, treat SIGTERM like SIGINT: it raises `KeyboardInterrupt`, at once if one was deferred."""
    # `riverrun.cli.__main__` defers signals. If they are not deferred, the process, and its handlers, belong to others.
    if signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)


class Ending:
    """Ends a worker on signals: they end the process while it starts, and later request a stop.

    At the start there is nothing to clean up, but brokers may be awaited.
    """

    def __init__(self) -> None:
        self._stop: Callable[[], None] = end_now
        heard, told = os.pipe()
        # `set_wakeup_fd` requires this.
        os.set_blocking(told, False)
        # A thread receives the signals: Python runs handlers between two instructions of the main thread, which may spend many
        # seconds in a library.
        signal.set_wakeup_fd(told)
        self._listen()
        threading.Thread(target=self._hear, args=(heard,), name="signals", daemon=True).start()
        # Only now: a deferred signal arrives at once.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)

    def ask(self, stop: Callable[[], None]) -> None:
        """From now on, call `stop` for every signal, from another thread."""
        self._stop = stop
        # An engine that was loaded meanwhile may have replaced the handlers.
        self._listen()

    def _listen(self) -> None:
        # With a default handler, Python writes no byte to the pipe.
        for number in _ENDING:
            signal.signal(number, lambda _number, _frame: None)

    def _hear(self, pipe: int) -> None:
        while number := os.read(pipe, 1):
            if number[0] in _ENDING:
                self._stop()


def stop_then_end(stop: Callable[[], None]) -> Callable[[], None]:
    """Return a handler that requests a stop on the first signal, and ends the process at once on the second."""
    is_asked = False

    def ask() -> None:
        nonlocal is_asked
        # As after a kill, the next worker processes the uncommitted records again.
        if is_asked:
            os.write(sys.stderr.fileno(), _ENDED_AT_ONCE)
            os._exit(INTERRUPTED)
        is_asked = True
        stop()

    return ask


def end_now() -> None:
    """End this process, which has not begun its work, with a message."""
    # Not through `sys.stdout`, which the main thread may be using.
    os.write(sys.stdout.fileno(), _ENDED_EARLY)
    os._exit(0)
