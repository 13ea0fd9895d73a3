"""SIGTERM and SIGINT. Until a command begins they are held back (`pipeline.cli.__main__`); what they do then, it says here."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

from pipeline.cli.exit_codes import INTERRUPTED

if TYPE_CHECKING:
    from collections.abc import Callable

_ENDED_EARLY = b"Told to stop before it ran: nothing was processed\n"
_ENDED_AT_ONCE = b"Told to stop twice: ended at once; what is not committed is processed again\n"
_ENDING = frozenset({signal.SIGTERM, signal.SIGINT})


def interrupt_on_sigterm() -> None:
    """From now on SIGTERM does what SIGINT does: it raises `KeyboardInterrupt`. One that was held back does so at once.

    Where none is held back, the process is not that of the command, and its signals are somebody else's.
    """
    if signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)


class Ending:
    """Tells a worker to end: signals end the process while it starts, and ask it to stop once it can be asked.

    At the start there is nothing to clean up, but brokers may be waited for. A thread hears of signals, because handlers are
    called between two instructions of the main thread, which may be within a library for many seconds.
    """

    def __init__(self) -> None:
        """From now on they are heard here; one that was held back ends the process."""
        self._stop: Callable[[], None] = end_now
        heard, told = os.pipe()
        os.set_blocking(told, False)
        signal.set_wakeup_fd(told)
        self._listen()
        threading.Thread(target=self._hear, args=(heard,), name="signals", daemon=True).start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)

    def ask(self, stop: Callable[[], None]) -> None:
        """From now on ask.

        Args:
            stop: Called from another thread, for every signal.
        """
        self._stop = stop
        self._listen()  # an engine that was loaded meanwhile may have taken them

    def _listen(self) -> None:
        for number in _ENDING:
            signal.signal(number, lambda _number, _frame: None)

    def _hear(self, pipe: int) -> None:
        while number := os.read(pipe, 1):
            if number[0] in _ENDING:
                self._stop()


def stop_then_end(stop: Callable[[], None]) -> Callable[[], None]:
    """Return a handler that asks at the first signal, and ends the process at once at the second.

    What it has not committed its successor processes again, as if it had been killed.
    """
    is_asked = False

    def ask() -> None:
        nonlocal is_asked
        if is_asked:
            os.write(sys.stderr.fileno(), _ENDED_AT_ONCE)
            os._exit(INTERRUPTED)
        is_asked = True
        stop()

    return ask


def end_now() -> None:
    """End this process, which has not begun its work, and say so."""
    os.write(sys.stdout.fileno(), _ENDED_EARLY)  # the stream itself may just be writing
    os._exit(0)
