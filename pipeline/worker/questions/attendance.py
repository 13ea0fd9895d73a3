"""How a stream process answers questions, whatever it is at."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from pipeline.worker.questions.line import Answered, readiness
from pipeline.worker.questions.queries import KeyQuery

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

    from pipeline.worker.questions.line import Ask
    from pipeline.worker.questions.queries import Page, Question, Refusal


class Attendance:
    """Two threads of a stream process, of which one at a time has the floor, and with it the line and the stores.

    That is the thread that processes or, while it waits for brokers and touches no store, one that does nothing but answer.
    So a question is answered between two records, or at once.

    Args:
        line: To whoever asks (`Asking`).
        answer: Answers a question; called by whoever has the floor.
    """

    def __init__(self, line: Connection, answer: Callable[[Question], Page | Refusal]) -> None:
        """Have the floor from the beginning."""
        self._line = line
        self._answer = answer
        self._postponed: deque[Ask] = deque()
        self._is_asked = readiness(line)
        self._floor = threading.Lock()
        self._floor.acquire()
        threading.Thread(target=self._answer_alone, name="answers", daemon=True).start()

    def attend(self) -> None:
        """Answer what was asked meanwhile. That nothing was costs a microsecond.

        Raises:
            EOFError: If the supervisor is gone.
        """
        while self._postponed:
            self._reply(self._postponed.popleft())
        if self._is_asked(0):
            self._take_in()

    def pause(self) -> None:
        """Answer those questions that look up a key; others wait until stores are at rest. Raises nothing: `attend` does."""
        if self._is_asked(0):
            with suppress(EOFError, OSError):
                self._take_in(is_at_rest=False)

    @contextmanager
    def away(self) -> Iterator[None]:
        """Within this, stores are not touched by the thread that processes: questions are answered by the other one."""
        self._floor.release()
        try:
            yield
        finally:
            self._floor.acquire()

    def _answer_alone(self) -> None:
        """The other thread: it waits until something is there to read, and then for the floor. It ends with the line."""
        wait = readiness(self._line)
        with suppress(EOFError, OSError):
            while wait(None):
                with self._floor:
                    self.attend()

    def _take_in(self, *, is_at_rest: bool = True) -> None:
        while self._is_asked(0):
            ask: Ask = self._line.recv()
            if is_at_rest or isinstance(ask.question.query, KeyQuery):
                self._reply(ask)
            else:
                self._postponed.append(ask)

    def _reply(self, ask: Ask) -> None:
        self._line.send(Answered(ask.number, self._answer(ask.question)))
