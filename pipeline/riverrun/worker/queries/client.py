"""Asks a stream thread; the thread that asks reads the answer itself."""

from __future__ import annotations

import itertools
import threading
import time
from typing import TYPE_CHECKING

from riverrun.worker.queries.pipe import Answered, Ask, readiness
from riverrun.worker.queries.queries import Page, Question, Reason, Refusal

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


class QueryClient:
    """The supervisor's end of the pipe for questions to one stream thread.

    One of the threads that wait for answers listens for all of them. A separate listening thread would have to be woken before
    each answer, which takes as long as the answer itself.

    Args:
        pipe: To the process and back; it is closed when the process is `gone`.
        name: Name of the process, for messages.
    """

    def __init__(self, pipe: Connection, name: str) -> None:
        self._pipe = pipe
        self._name = name
        self._numbers = itertools.count()
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        self._answers: dict[int, Page | Refusal | None] = {}
        """Answers by number of the question; None until the answer arrives."""
        self._has_listener = self._is_gone = False
        self._is_readable = readiness(pipe)

    def ask(self, question: Question, timeout_s: float) -> Page | Refusal:
        """Return the answer, or why there is none. May be called from any thread.

        Args:
            question: The question.
            timeout_s: How long to wait for the process, s.
        """
        deadline = time.monotonic() + timeout_s
        number = next(self._numbers)
        self._answers[number] = None
        try:
            with self._sending:
                self._pipe.send(Ask(number, question))
            return self._wait_for(number, deadline) or self._refusal(f"did not answer within {timeout_s:g} s")
        except (EOFError, OSError):
            return self._refusal("ended before it answered")
        finally:
            del self._answers[number]

    def gone(self) -> None:
        """Close the pipe: the process has ended, and will not answer its questions. Idempotent."""
        with self._sending, self._changed:
            self._is_gone = True
            # The process's end of the pipe is closed: a thread that listens notices at once.
            self._changed.wait_for(lambda: not self._has_listener)
            self._pipe.close()

    def _wait_for(self, number: int, deadline: float) -> Page | Refusal | None:
        """Return the answer; None if it does not arrive in time."""
        with self._changed:
            while self._answers[number] is None and self._has_listener:
                if not self._changed.wait(deadline - time.monotonic()):
                    return self._answers[number]
            if self._answers[number] is not None:
                return self._answers[number]
            if self._is_gone:
                raise EOFError
            self._has_listener = True
        try:
            return self._listen_for(number, deadline)
        finally:
            with self._changed:
                self._has_listener = False
                self._changed.notify_all()  # another thread listens now

    def _listen_for(self, number: int, deadline: float) -> Page | Refusal | None:
        while (left := deadline - time.monotonic()) > 0:
            if not self._is_readable(left * 1000):
                return None
            message: Answered = self._pipe.recv()
            if message.number == number:
                return message.answer
            with self._changed:
                if message.number in self._answers:  # else the thread that asked has given up
                    self._answers[message.number] = message.answer
                    self._changed.notify_all()
        return None

    def _refusal(self, what: str) -> Refusal:
        return Refusal(Reason.FAILED, f"{self._name} {what}")
