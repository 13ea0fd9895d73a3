"""Handles SIGTERM and SIGINT, which are deferred until a command begins (`riverrun.cli.__main__`)."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Protocol

import typer

from riverrun.cli.project import INTERRUPTED
from riverrun.records import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.transfers.follower import FollowReport

_ENDED_EARLY = b"Stopped before it ran: nothing was processed\n"
_ENDED_AT_ONCE = b"Stopped twice: ended at once; uncommitted records will be processed again\n"
_ENDING = frozenset({signal.SIGTERM, signal.SIGINT})


def interrupt_on_sigterm() -> None:
    """From now on, treat SIGTERM like SIGINT: it raises `KeyboardInterrupt`, at once if one was deferred.

    If none is deferred, the process does not belong to the command, and its signals belong to others.
    """
    if signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)


class Ending:
    """Ends a worker on signals: they end the process while it starts, and later request a stop.

    At the start there is nothing to clean up, but brokers may be awaited. A thread receives the signals, because Python
    runs handlers between two instructions of the main thread, which may spend many seconds in a library.
    """

    def __init__(self) -> None:
        """Start to receive signals; a deferred one ends the process."""
        self._stop: Callable[[], None] = end_now
        heard, told = os.pipe()
        os.set_blocking(told, False)  # `set_wakeup_fd` requires it
        signal.set_wakeup_fd(told)
        self._listen()
        threading.Thread(target=self._hear, args=(heard,), name="signals", daemon=True).start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)

    def ask(self, stop: Callable[[], None]) -> None:
        """From now on, request a stop on signals."""
        self._stop = stop
        self._listen()  # an engine loaded meanwhile may have replaced the handlers

    def _listen(self) -> None:
        for number in _ENDING:
            signal.signal(number, lambda _number, _frame: None)  # with a default handler, no byte would be written

    def _hear(self, pipe: int) -> None:
        while number := os.read(pipe, 1):
            if number[0] in _ENDING:
                self._stop()


def stop_then_end(stop: Callable[[], None]) -> Callable[[], None]:
    """Return a handler that requests a stop on the first signal, and ends the process at once on the second.

    The successor then processes the uncommitted records again, as after a kill.
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


class Follows(Protocol):
    """Follows topics until `ends` returns true, and tells its progress to `on_report`."""

    def __call__(self, *, ends: Callable[[], bool], on_report: Callable[[FollowReport], None]) -> FollowReport:
        """Return the last report."""
        ...


def follow_until_stopped(name: str, follow: Follows) -> None:
    """Follow until a signal requests the end, and show the progress. A second signal ends the process at once.

    So does the first one while brokers are awaited.
    """
    begun, stopped = threading.Event(), threading.Event()

    def stop() -> None:
        stopped.set()
        if not begun.is_set():  # it waits for brokers
            end_now()

    def ends() -> bool:
        begun.set()
        return stopped.is_set()

    Ending().ask(stop_then_end(stop))
    last = follow(ends=ends, on_report=lambda report: typer.echo(f"{name}: {report}"))
    typer.echo(f"{name}: {counted(last.records, 'record')} in {counted(last.commits, 'commit')}")


def end_now() -> None:
    """End this process, which has not begun its work, with a message."""
    os.write(sys.stdout.fileno(), _ENDED_EARLY)  # the stream itself may be in use
    os._exit(0)
